"""A period chosen by the times of steps and averages, and by how far models drift apart.

With a period of k steps a run that needs N(k) local steps takes
``N(k) * (step_s + exchange_s / k)``. Drift makes N grow with k. If it grows as ``1 + c k``, the
time is least at ``k = sqrt(exchange_s / (c * step_s))``; if it grows as a power of k, at a multiple
of ``exchange_s / step_s``. Measured curves lie between the two, and so does the exponent here.

c depends on the data, and changes during a run: while all sites move in one direction, many local
steps cost little. The *spread* measures this: the root of the mean square of the models' distances
from their mean, over the distance that the mean has moved. With c proportional to its square, k is
proportional to its inverse.

AdaComm, too, begins with a long period and shortens it as training slows down, judged by the loss
(Wang and Joshi, "Adaptive Communication Strategies to Achieve the Best Error-Runtime Trade-off in
Local-Update SGD", MLSys 2019). The spread needs no first period to compare with, and depends on how
alike the sites' data are.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from msgspec import Meta

from anabranch._typed_toml import Positive, Table
from anabranch.period._period import Averaged, Progress, Rule

_EXPONENT = 0.65
_LEAST_SPREAD = 0.1  # a smaller spread does not tell how many steps would be too many
_NEWEST = 0.5  # weight of the newest spread, which is noisy, beside all before it


class Adaptive(Table, frozen=True, kw_only=True, tag_field="kind", tag="adaptive"):
    """Average the models after ``gain * (exchange_s / step_s) ** 0.65 / spread`` local steps.

    Rounded down: models averaged after every step learn as one model does, and the second step
    costs most. Times are means over the sites. The exchange time is of the average before, since
    sites send it with the next; after the first average it is each site's own. The spread is a
    geometric mean in which each average weighs as much as all before it; each counts as at least
    0.1. From the second average on, all inputs are the same at all sites, so all choose alike.

    Args:
        gain: the factor of the formula.
        first_steps: local steps before the first average, when no time has been measured.
        most_steps: local steps after which a site averages in any case.
    """

    averages: ClassVar[bool] = True
    calls: ClassVar[bool] = False
    asks_moved: ClassVar[bool] = False
    shares: ClassVar[bool] = True

    gain: Annotated[float, Meta(gt=0, le=1e9)] = 4.5
    first_steps: Positive = 2
    most_steps: Positive = 256

    def rule(self) -> Rule:
        """See :class:`anabranch.period.Period`."""
        return _Rule(self.gain, self.first_steps, self.most_steps)


class _Rule:
    def __init__(self, gain: float, first_steps: int, most_steps: int) -> None:
        self._gain = gain
        self._most_steps = most_steps
        self._steps = min(first_steps, most_steps)
        self._spread = 0.0  # none yet

    def is_due(self, progress: Progress) -> bool:
        """See :class:`anabranch.period.Rule`."""
        return progress.steps >= self._steps

    def averaged(self, averaged: Averaged) -> None:
        """See :class:`anabranch.period.Rule`."""
        spread = max(_LEAST_SPREAD, averaged.spread)
        before = self._spread or spread
        self._spread = spread**_NEWEST * before ** (1 - _NEWEST)
        if averaged.step_s > 0:
            ratio = averaged.exchange_s / averaged.step_s
            steps = self._gain * ratio**_EXPONENT / self._spread
            self._steps = max(1, int(min(steps, self._most_steps)))

    def state_dict(self) -> dict[str, Any]:
        """See :class:`anabranch.period.Rule`."""
        return {"steps": self._steps, "spread": self._spread}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See :class:`anabranch.period.Rule`."""
        self._steps, self._spread = state["steps"], state["spread"]
