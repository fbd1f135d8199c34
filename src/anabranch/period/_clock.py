"""Vector clocks: how many steps each site has finished, as far as one site knows."""

from __future__ import annotations

from collections.abc import Sequence

FINISHED = 1 << 53
"""The step count of a site that makes no more steps: no other site waits for it."""


class VectorClock:
    """One site's knowledge of all sites' steps.

    Args:
        site: this site, by index.
        sites: number of sites.
        most_ahead: see :class:`anabranch.period.Gossip`.

    >>> clock = VectorClock(0, sites=2, most_ahead=1)
    >>> clock.may_step(), clock.step(), clock.may_step()
    (True, None, False)
    >>> clock.hear((0, 1)), clock.may_step()
    (True, True)
    """

    def __init__(self, site: int, sites: int, most_ahead: int | None = None) -> None:
        self._site = site
        self._steps = [0] * sites
        self._most_ahead = most_ahead

    @property
    def steps(self) -> int:
        """How many steps this site has finished."""
        return self._steps[self._site]

    @property
    def known(self) -> tuple[int, ...]:
        """Each site's finished steps, as far as this site knows."""
        return tuple(self._steps)

    def step(self) -> None:
        """Count a finished step of this site."""
        self._steps[self._site] += 1

    def finish(self) -> None:
        """Mark this site as finished: it makes no more steps."""
        self._steps[self._site] = FINISHED

    def gone(self, site: int) -> None:
        """Mark another site as finished or lost: this site no longer waits for it."""
        self._steps[site] = FINISHED

    def may_step(self) -> bool:
        """Return whether another step keeps the bound, whatever other sites have done since."""
        return self._most_ahead is None or self.steps - min(self._steps) < self._most_ahead

    def hear(self, known: Sequence[int]) -> bool:
        """Merge another site's clock; return whether any other site's known steps rose.

        Raises:
            ValueError: the clock has another number of sites, or a step count out of range.
        """
        if len(known) != len(self._steps) or not all(0 <= each <= FINISHED for each in known):
            raise ValueError(
                f"a clock of {len(known)} sites, must hold {len(self._steps)} step counts in "
                f"0..{FINISHED}: {known}"
            )
        before = [*self._steps]
        for site, steps in enumerate(known):
            if site != self._site:
                self._steps[site] = max(self._steps[site], steps)
        return self._steps != before
