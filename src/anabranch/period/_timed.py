"""Averages after a time of local steps, in which faster sites make more of them."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from anabranch._typed_toml import Table
from anabranch.period._period import Memoryless, Progress, Rule


class Timed(Table, frozen=True, kw_only=True, tag_field="kind", tag="timed"):
    """Average once a site has made local steps for so long; it calls the others.

    So no site waits for a slower one to make as many steps. The others join after their current
    step.

    Args:
        seconds: of local steps since the last average, after which a site calls the others.
    """

    averages: ClassVar[bool] = True
    calls: ClassVar[bool] = True
    asks_moved: ClassVar[bool] = False
    shares: ClassVar[bool] = False

    seconds: Annotated[float, Meta(gt=0, le=1e9)]

    def rule(self) -> Rule:
        """See :class:`anabranch.period.Period`."""
        return _Rule(self.seconds)


class _Rule(Memoryless):
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def is_due(self, progress: Progress) -> bool:
        """See :class:`anabranch.period.Rule`."""
        return progress.is_called or progress.seconds >= self._seconds
