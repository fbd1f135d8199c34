"""Every step: sites exchange gradients, and models never differ."""

from __future__ import annotations

from typing import ClassVar

from anabranch._typed_toml import Table
from anabranch.period._period import Memoryless, Progress, Rule


class EveryStep(Table, frozen=True, kw_only=True, tag_field="kind", tag="every-step"):
    """Exchange the gradients of every step; all sites take the same step with their mean."""

    averages: ClassVar[bool] = False
    calls: ClassVar[bool] = False
    asks_moved: ClassVar[bool] = False
    shares: ClassVar[bool] = False

    def rule(self) -> Rule:
        """See :class:`anabranch.period.Period`."""
        return _Rule()


class _Rule(Memoryless):
    def is_due(self, progress: Progress) -> bool:
        """See :class:`anabranch.period.Rule`."""
        return True
