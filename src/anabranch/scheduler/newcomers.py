"""Sites that join a group that goes on, until its members let them in. Pure.

A newcomer is *introduced* to its neighbours, which tell that they know where it is; then it starts,
and *asks* to be let in. It is no member until then, and what becomes of it harms no exchange.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator


class Newcomers:
    """Those that have joined and are no members yet.

    Attributes:
        asking: those that ask to be let in.
    """

    def __init__(self) -> None:
        self._awaits: dict[int, set[int] | None] = {}  # who has to know of it; None: not said yet
        self.asking: set[int] = set()
        self._apart: set[frozenset[int]] = set()

    def __contains__(self, site: int) -> bool:
        return site in self._awaits

    def __iter__(self) -> Iterator[int]:
        return iter(self._awaits)

    def came(self, site: int) -> None:
        """Take note that a site has joined; lanes of a past process of it do not count."""
        self._awaits[site] = None
        self._apart = {ends for ends in self._apart if site not in ends}

    def introduce(self, site: int, neighbours: Collection[int]) -> bool:
        """Take note whom a newcomer is introduced to; return whether it may start."""
        self._awaits[site] = {*neighbours}
        return not neighbours

    def is_introduced(self, site: int) -> bool:
        """Return whether its neighbours have been told of it."""
        return self._awaits[site] is not None

    def met(self, site: int, neighbour: int) -> bool:
        """Take note that one knows of a newcomer, or need not; return whether that was the last."""
        awaits = self._awaits.get(site)
        if not awaits or neighbour not in awaits:
            return False
        awaits.remove(neighbour)
        return not awaits

    def has_started(self, site: int) -> bool:
        """Return whether all its neighbours know of it."""
        return self._awaits[site] == set()

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

    def forget(self, *sites: int) -> None:
        """Take note that some are members now, or gone."""
        for site in sites:
            self._awaits.pop(site, None)
            self.asking.discard(site)
        self._apart = {ends for ends in self._apart if not ends.isdisjoint(self._awaits)}
