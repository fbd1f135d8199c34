"""Sites that come back to a restarted scheduler, and their reports about calls. Pure.

:mod:`anabranch.scheduler._resumption` describes the whole conversation.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import structs

from anabranch.net.messages import Admitted, AnyMessage, SiteSnapshot, decode


class Returning:
    """The sites that have come back, until all have or the absent ones are given up.

    Args:
        awaited: the sites that were in the run.

    Attributes:
        early: the other messages that came meanwhile, with their sites.
    """

    def __init__(self, awaited: Collection[int]) -> None:
        self.awaited = frozenset(awaited)
        self.early: list[tuple[int, AnyMessage]] = []
        self._snapshots: dict[int, SiteSnapshot] = {}

    def hear(self, site: int, message: AnyMessage) -> bool:
        """Take a site's message; return whether all sites have now reported their calls."""
        if isinstance(message, SiteSnapshot) and site not in self._snapshots:
            self._snapshots[site] = message
        else:
            self.early.append((site, message))
        return self._snapshots.keys() >= self.awaited

    @property
    def absent(self) -> frozenset[int]:
        """The sites that have not reported their calls yet."""
        return self.awaited - self._snapshots.keys()

    def forget(self, site: int) -> None:
        """Forget the early messages of a site, since another process of it has joined."""
        self.early = [each for each in self.early if each[0] != site]

    def awaits(self, site: int) -> bool:
        """Return whether a site has yet to report its calls."""
        return site in self.awaited and site not in self._snapshots

    @property
    def snapshots(self) -> dict[int, SiteSnapshot]:
        """The reports of the sites that have come back.

        A newcomer may have been admitted without having heard of it. If a member heard of the
        admission, the newcomer gets the members' counts of calls at that time. If none did, it is
        left out.
        """
        admissions = [
            answer
            for snapshot in self._snapshots.values()
            for channel in snapshot.channels
            if channel.channel == 0
            for answer in map(decode, channel.answers)
            if isinstance(answer, Admitted)
        ]
        found = {}
        for site, snapshot in self._snapshots.items():
            if snapshot.is_new:
                told = [each for each in admissions if site in each.newcomers]
                if not told:
                    continue
                (first, *_) = snapshot.channels
                counts = {"asked": told[-1].exchanges, "gathered": told[-1].number}
                channels = (structs.replace(first, **counts),)
                snapshot = SiteSnapshot(channels, True)
            found[site] = snapshot
        return found
