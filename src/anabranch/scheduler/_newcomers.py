"""Sites that join a run that goes on are introduced to their neighbours first. Pure.

How far each is in its life, says :mod:`anabranch.scheduler.membership._life`.
"""

from __future__ import annotations

from collections.abc import Collection


class Introductions:
    """Which neighbours have to know yet of which newcomers, and which lanes between them ended."""

    def __init__(self) -> None:
        self._awaits: dict[int, set[int]] = {}
        self._apart: set[frozenset[int]] = set()

    def came(self, site: int) -> None:
        """Take note of another process of a site: lanes of the last one do not count."""
        self._apart = {ends for ends in self._apart if site not in ends}

    def introduce(self, site: int, neighbours: Collection[int]) -> bool:
        """Note the neighbours that a newcomer is introduced to; return whether it may start."""
        self._awaits[site] = {*neighbours}
        return not neighbours

    def met(self, site: int, neighbour: int) -> bool:
        """Take note that one knows of a newcomer, or need not; return whether that was the last."""
        awaits = self._awaits.get(site)
        if not awaits or neighbour not in awaits:
            return False
        awaits.remove(neighbour)
        return not awaits

    def gone(self, neighbour: int) -> list[int]:
        """Take note that a neighbour of some is gone; return those that may start now."""
        return [site for site in self._awaits if self.met(site, neighbour)]

    def parted(self, site: int, neighbour: int) -> None:
        """Take note that the lanes between two have ended, of which one is no member yet."""
        self._apart.add(frozenset((site, neighbour)))

    @property
    def apart(self) -> frozenset[frozenset[int]]:
        """The pairs whose lanes have ended before both were members."""
        return frozenset(self._apart)

    def forget(self, site: int, newcomers: Collection[int]) -> None:
        """Take note that a newcomer is a member now, or gone.

        Args:
            site: which.
            newcomers: those that are left.
        """
        self._awaits.pop(site, None)
        self._apart = {ends for ends in self._apart if not ends.isdisjoint(newcomers)}
