"""Every k local steps (local SGD; Malik, Qi and Dalla's All-Reduce-k, II-C)."""

from __future__ import annotations

from typing import ClassVar

from anabranch._typed_toml import Positive, Table
from anabranch.period._period import Memoryless, Progress, Rule


class Every(Table, frozen=True, kw_only=True, tag_field="kind", tag="every"):
    """Average the models after a fixed number of local steps.

    Args:
        steps: that number. With 1, models are averaged after every step; for plain SGD this equals
            averaging gradients, but for rounding.
    """

    averages: ClassVar[bool] = True
    calls: ClassVar[bool] = False
    asks_moved: ClassVar[bool] = False
    shares: ClassVar[bool] = False

    steps: Positive

    def rule(self) -> Rule:
        """See :class:`anabranch.period.Period`."""
        return _Rule(self.steps)


class _Rule(Memoryless):
    def __init__(self, steps: int) -> None:
        self._steps = steps

    def is_due(self, progress: Progress) -> bool:
        """See :class:`anabranch.period.Rule`."""
        return progress.steps >= self._steps
