"""Tracks the acknowledgements that newcomers still await from their neighbours. Pure.

The conversation is in :mod:`anabranch.scheduler._admission`.
"""

from __future__ import annotations

from collections.abc import Collection


class Introductions:
    """Neighbours that have yet to acknowledge newcomers, and lanes to newcomers that ended."""

    def __init__(self) -> None:
        self._awaits: dict[int, set[int]] = {}  # by newcomer, the neighbours
        self._apart: set[frozenset[int]] = set()

    def came(self, site: int) -> None:
        """Note another process of a site: the ended lanes of its last process do not count."""
        self._apart = {ends for ends in self._apart if site not in ends}

    def introduce(self, site: int, neighbours: Collection[int]) -> bool:
        """Note the neighbours that must acknowledge a newcomer; return whether there are none."""
        self._awaits[site] = {*neighbours}
        return not neighbours

    def acknowledged(self, site: int, neighbour: int) -> bool:
        """Note a neighbour's acknowledgement of a newcomer; return whether it was the last one."""
        awaits = self._awaits.get(site)
        if not awaits or neighbour not in awaits:
            return False
        awaits.remove(neighbour)
        return not awaits

    def gone(self, neighbour: int) -> list[int]:
        """Await no acknowledgement of a lost neighbour; return the newcomers that may start."""
        return [site for site in self._awaits if self.acknowledged(site, neighbour)]

    def lane_ended(self, site: int, neighbour: int) -> None:
        """Note that the lanes between a newcomer and another site ended."""
        self._apart.add(frozenset((site, neighbour)))

    @property
    def apart(self) -> frozenset[frozenset[int]]:
        """The pairs of sites whose lanes ended before both were members."""
        return frozenset(self._apart)

    def forget(self, site: int, newcomers: Collection[int]) -> None:
        """Forget a site that is a member now, or gone.

        Args:
            site: the site.
            newcomers: the remaining newcomers.
        """
        self._awaits.pop(site, None)
        self._apart = {ends for ends in self._apart if not ends.isdisjoint(newcomers)}
