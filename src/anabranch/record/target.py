"""When a run has reached its target accuracy, where sites' models may differ. Pure."""

from __future__ import annotations

from statistics import fmean

from anabranch.record.events import Evaluated, ReachedBy

_ROUNDING = 1e-9  # nine times 0.9 have a mean that is 1e-16 less


class Target:
    """Follows what sites see of their models.

    Where all have the same model one site looks at it, and there is nothing to choose.

    Args:
        accuracy: the target, in (0, 1].
        reached_by: whether it is reached once the first site's model does, the mean over the sites'
            latest, or each of these.
        sites: how many look at models of their own.

    >>> two = Target(0.9, "mean", sites=2)
    >>> told = [(0, 0.95), (1, 0.8), (1, 0.86)]
    >>> [two.is_reached(Evaluated(at_s=0.0, site=site, round=1, accuracy=seen, step=1))
    ...  for site, seen in told]
    [False, False, True]
    """

    def __init__(self, accuracy: float, reached_by: ReachedBy, sites: int) -> None:
        self._accuracy = accuracy
        self._reached_by = reached_by
        self._sites = sites
        self._latest: dict[int, float] = {}

    def lost(self, site: int) -> None:
        """Count a site no longer that the run goes on without."""
        self._latest.pop(site, None)
        self._sites -= 1

    def joined(self) -> None:
        """Count a site again that has come back."""
        self._sites += 1

    def is_reached(self, seen: Evaluated) -> bool:
        """Take note of what a site has seen; return whether the target is reached now."""
        if seen.step is None or self._reached_by == "first":
            return seen.accuracy >= self._accuracy
        self._latest[seen.site] = seen.accuracy
        if len(self._latest) < self._sites:
            return False
        found = self._latest.values()
        if self._reached_by == "all":
            return min(found) >= self._accuracy
        return fmean(found) >= self._accuracy - _ROUNDING
