"""How much of a loop's time goes into averages, and how seldom they would take a tenth. Pure."""

from __future__ import annotations

import math

_SHARE = 0.1  # of the time
_SKIPPED, _MEASURED = 1, 3  # averages of the whole model: the first opens connections


class Waiting:
    """The time that a site's steps and its waits for averages take.

    Args:
        every: local steps between averages of the whole model.
        fragments: the parts in which it is averaged; the advice is a multiple of it.

    >>> waiting = Waiting(every=10)
    >>> for _ in range(40):
    ...     waiting.stepped(compute_s=0.1, wait_s=0.05)
    >>> waiting.least_every
    45
    """

    def __init__(self, every: int, fragments: int = 1) -> None:
        self._every = every
        self._fragments = fragments
        self._steps = 0
        self._compute_s = self._wait_s = 0.0

    def stepped(self, compute_s: float, wait_s: float) -> None:
        """Count a local step, and the wait for averages that followed it."""
        self._steps += 1
        if self._steps > _SKIPPED * self._every:
            self._compute_s += compute_s
            self._wait_s += wait_s

    @property
    def share(self) -> float:
        """The share of the time that waits take, in [0, 1]."""
        whole_s = self._compute_s + self._wait_s
        return self._wait_s / whole_s if whole_s else 0.0

    @property
    def is_known(self) -> bool:
        """Whether enough averages have been measured, with this step for the first time."""
        return self._steps == (_SKIPPED + _MEASURED) * self._every

    @property
    def least_every(self) -> int:
        """The fewest steps between averages with which waits would take a tenth of the time.

        An average is taken to last as long as now. The number has two digits, rounded up.
        """
        if not self._compute_s:
            return self._every
        least = self._every * (1 / _SHARE - 1) * self._wait_s / self._compute_s
        unit = int(10 ** max(0, math.floor(math.log10(max(least, 1.0))) - 1))
        rounded = math.ceil(round(least / unit, 6)) * unit
        return max(1, -(-rounded // self._fragments)) * self._fragments

    @property
    def advice(self) -> str:
        """A sentence for the program's author; empty if waits take a tenth at most."""
        if self.share <= _SHARE:
            return ""
        return (
            f"{100 * self.share:.0f} % of the time goes into averages every {self._every} "
            f"steps; every >= {self.least_every} would keep that at {100 * _SHARE:.0f} %. A delay "
            "or a wire of few bits may help, too"
        )
