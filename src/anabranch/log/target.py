"""Decides when a run has reached its target accuracy or loss; sites' models may differ. Pure."""

from __future__ import annotations

from collections import deque
from statistics import fmean

from anabranch.log.events import Evaluated, ReachedBy

_ROUNDING = 1e-9  # the mean of nine times 0.9 is 1e-16 less


class Target:
    """Follows the sites' evaluations of their models.

    Where all sites have the same model, one site evaluates it, and ``reached_by`` does not matter.

    Args:
        value: the target: an accuracy in (0, 1], or a loss.
        reached_by: ``first``: one site's value reaches it. ``mean``: the mean of the sites' latest
            values does. ``all``: each of these does.
        sites: how many sites evaluate their own models.
        is_loss: whether the value is a loss, so that smaller is better. NaN is never better.
        window_s: a site's value is the mean of what it told in the latest so many seconds; 0: what
            it told last.

    >>> two = Target(0.9, "mean", sites=2)
    >>> told = [(0, 0.95), (1, 0.8), (1, 0.86)]
    >>> [two.is_reached(Evaluated(at_s=0.0, site=site, round=1, accuracy=seen, step=1))
    ...  for site, seen in told]
    [False, False, True]
    """

    def __init__(
        self,
        value: float,
        reached_by: ReachedBy,
        sites: int,
        is_loss: bool = False,
        window_s: float = 0.0,
    ) -> None:
        self._value = value
        self._is_loss = is_loss
        self._reached_by = reached_by
        self._sites = sites
        self._latest: dict[int, float] = {}
        self._window_s = window_s
        self._told: dict[int | None, deque[tuple[float, float]]] = {}

    def lost(self, site: int) -> bool:
        """Remove a lost site and its value; return whether the target is reached now."""
        self._latest.pop(site, None)
        self._told.pop(site, None)
        self._sites -= 1
        return self._is_reached_by_all()

    def left(self, site: int) -> bool:
        """Remove a site that has left, unless it has reported a value.

        Returns:
            Whether the target is reached now.
        """
        if site in self._latest:
            return False
        self._sites -= 1
        return self._is_reached_by_all()

    def joined(self, site: int) -> None:
        """Count a site that has joined, unless its value still counts."""
        if site not in self._latest:
            self._sites += 1

    def is_reached(self, seen: Evaluated) -> bool:
        """Record a site's evaluation; return whether the target is reached now."""
        if seen.step is None:
            return self._suffices(self._averaged(None, seen.accuracy, seen.at_s))
        return self.is_reached_by(seen.site, seen.accuracy, seen.at_s)

    def is_reached_by(self, site: int, seen: float, at_s: float) -> bool:
        """Record the value of a site's own model; return whether the target is reached now."""
        self._latest[site] = value = self._averaged(site, seen, at_s)
        if self._reached_by == "first":
            return self._suffices(value)
        return self._is_reached_by_all()

    def _averaged(self, site: int | None, seen: float, at_s: float) -> float:
        """Return the mean of the window that ends now, of a site's model or of all sites' one."""
        if not self._window_s:
            return seen
        told = self._told.setdefault(site, deque())
        told.append((at_s, seen))
        while told[0][0] <= at_s - self._window_s:
            told.popleft()
        return fmean(each for _, each in told)

    def _is_reached_by_all(self) -> bool:
        """Return whether all sites have reported and their values suffice; False for ``first``."""
        if self._reached_by == "first" or not self._latest or len(self._latest) < self._sites:
            return False
        found = self._latest.values()
        if self._reached_by == "all":
            return all(map(self._suffices, found))
        return self._suffices(fmean(found))

    def _suffices(self, seen: float) -> bool:
        is_mean = self._reached_by == "mean" or self._window_s
        slack = _ROUNDING if is_mean else 0.0
        return seen <= self._value + slack if self._is_loss else seen >= self._value - slack
