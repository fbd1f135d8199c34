"""A fixed number of passes over a site's own samples: a federated client's local epochs."""

from __future__ import annotations

from typing import ClassVar

from anabranch._typed_toml import Positive, Table
from anabranch.period._period import Rule


class EveryEpoch(Table, frozen=True, kw_only=True, tag_field="kind", tag="every-epoch"):
    """Send an update after some passes over the site's own samples (McMahan et al., 2017, E).

    Sites with more samples make more local steps. So this period needs a served model, where no
    site waits for as many steps of all others. Where batches do not divide the samples evenly, the
    last batch is a whole one too.

    Args:
        epochs: how many passes.
    """

    averages: ClassVar[bool] = True
    calls: ClassVar[bool] = False
    asks_moved: ClassVar[bool] = False
    shares: ClassVar[bool] = False

    epochs: Positive = 1

    def rule(self) -> Rule:
        """Never called: without servers, all sites average after equally many steps."""
        raise AssertionError("only where the model is served")

    def steps(self, held: int, samples: int) -> int:
        """Return how many local steps the passes take.

        Args:
            held: samples of the site.
            samples: of a step.

        >>> EveryEpoch(epochs=2).steps(held=45, samples=10)
        9
        """
        return max(1, -(-self.epochs * held // samples))
