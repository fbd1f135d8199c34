"""When a run has reached its target accuracy or loss, where sites' models may differ. Pure."""

from __future__ import annotations

from statistics import fmean

from anabranch.log.events import Evaluated, ReachedBy

_ROUNDING = 1e-9  # nine times 0.9 have a mean that is 1e-16 less


class Target:
    """Follows what sites see of their models.

    Where all have the same model one site looks at it, and there is nothing to choose.

    Args:
        value: the target: an accuracy in (0, 1], or a loss.
        reached_by: whether it is reached once the first site's model does, the mean over the sites'
            latest, or each of these.
        sites: how many look at models of their own.
        is_loss: whether the value is a loss, so that smaller ones are better. NaN is never better.

    >>> two = Target(0.9, "mean", sites=2)
    >>> told = [(0, 0.95), (1, 0.8), (1, 0.86)]
    >>> [two.is_reached(Evaluated(at_s=0.0, site=site, round=1, accuracy=seen, step=1))
    ...  for site, seen in told]
    [False, False, True]
    """

    def __init__(
        self, value: float, reached_by: ReachedBy, sites: int, is_loss: bool = False
    ) -> None:
        self._value = value
        self._is_loss = is_loss
        self._reached_by = reached_by
        self._sites = sites
        self._latest: dict[int, float] = {}

    def lost(self, site: int) -> bool:
        """Count a site no longer that the run goes on without; return as ``is_reached``."""
        self._latest.pop(site, None)
        self._sites -= 1
        return self._is_reached_by_all()

    def left(self, site: int) -> bool:
        """Count a site no longer that has left, unless it has told of its model.

        Returns:
            Whether the target is reached now.
        """
        if site in self._latest:
            return False
        self._sites -= 1
        return self._is_reached_by_all()

    def joined(self, site: int) -> None:
        """Count a site that has come, or has come back."""
        if site not in self._latest:
            self._sites += 1

    def is_reached(self, seen: Evaluated) -> bool:
        """Take note of what a site has seen; return whether the target is reached now."""
        if seen.step is None:
            return self._suffices(seen.accuracy)
        return self.is_reached_by(seen.site, seen.accuracy)

    def is_reached_by(self, site: int, seen: float) -> bool:
        """Take note of the accuracy or loss of a site's own model; return as ``is_reached``."""
        self._latest[site] = seen
        if self._reached_by == "first":
            return self._suffices(seen)
        return self._is_reached_by_all()

    def _is_reached_by_all(self) -> bool:
        """Return whether the sites have all told, and suffice; not where the first one counts."""
        if self._reached_by == "first" or not self._latest or len(self._latest) < self._sites:
            return False
        found = self._latest.values()
        if self._reached_by == "all":
            return all(map(self._suffices, found))
        return self._suffices(fmean(found), _ROUNDING)

    def _suffices(self, seen: float, slack: float = 0.0) -> bool:
        return seen <= self._value + slack if self._is_loss else seen >= self._value - slack
