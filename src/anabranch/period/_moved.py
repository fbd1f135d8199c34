"""A significance threshold on a model's movement (Gaia; Malik, Qi and Dalla, IV-A and V)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from anabranch._typed_toml import Positive, Table
from anabranch.period._period import Memoryless, Progress, Rule


class Moved(Table, frozen=True, kw_only=True, tag_field="kind", tag="moved"):
    """Average the models once one of them has moved far enough; its site calls the others.

    Args:
        by: the least movement: the norm of the model's change since the last average, over the norm
            of the model then.
        most_steps: local steps after which a site averages in any case.
    """

    averages: ClassVar[bool] = True
    calls: ClassVar[bool] = True
    asks_moved: ClassVar[bool] = True
    shares: ClassVar[bool] = False

    by: Annotated[float, Meta(gt=0, le=1e9)]
    most_steps: Positive = 64

    def rule(self) -> Rule:
        """See :class:`anabranch.period.Period`."""
        return _Rule(self.by, self.most_steps)


class _Rule(Memoryless):
    def __init__(self, by: float, most_steps: int) -> None:
        self._by = by
        self._most_steps = most_steps

    def is_due(self, progress: Progress) -> bool:
        """See :class:`anabranch.period.Rule`."""
        has_moved = progress.moved >= self._by
        return progress.is_called or has_moved or progress.steps >= self._most_steps
