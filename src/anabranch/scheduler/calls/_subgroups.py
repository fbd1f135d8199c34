"""The subgroups that sites have asked for, and the order in which they asked. Pure.

A subgroup is identified by its members and a name. The first member that asks for it opens its
channel, and the others get the same one.

After an admission of newcomers, a request opens another channel, since the subgroup may contain
newcomers. There is one exception: if some members asked for a subgroup before the admission, the
others still get the same channel. A member whose program has not come to the admission yet says so,
and gets a channel without the newcomers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anabranch.net.errors import OutOfPlaceMessage
from anabranch.scheduler.calls import _accounts as accounts
from anabranch.scheduler.calls._accounts import Name
from anabranch.scheduler.calls._books import Books

# A subgroup's members, its name, and the members that were admitted since.
_Asked = tuple[tuple[int, ...], str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Subgroup:
    """A channel of some sites.

    Args:
        members: the sites that it names.
        name: tells it from others of the same members.
        inside: those of the members that are not lost.
        is_current: whether a site that asks for it now gets this channel.
        asked: the sites that have asked for it, each with the place among its requests.
    """

    members: tuple[int, ...]
    name: str
    inside: tuple[int, ...]
    is_current: bool
    asked: tuple[tuple[int, int], ...] = ()


class Subgroups:
    """The channels of some sites, from 1 on.

    Args:
        name: returns a site's name for error messages.
        books: of all channels; a new subgroup opens one.
    """

    def __init__(self, name: Name, books: Books) -> None:
        self._name = name
        self._books = books
        self._current: dict[_Asked, int] = {}  # the channel that a request gets now
        self._opened: list[_Asked] = []  # of the channels from 1 on, in order
        self._asked: dict[int, list[_Asked]] = {}  # by site, in order

    def ask(
        self, site: int, members: tuple[int, ...], name: str, without: tuple[int, ...] = ()
    ) -> int:
        """Take a site's request for a subgroup; return its channel.

        Raises:
            OutOfPlaceMessage: the subgroup was opened while the site was lost, and excludes it.
        """
        asked: _Asked = members, name, without
        before = members, name, ()
        if before in self._current and not {*without} & {
            *self._books.members(self._current[before])
        }:
            asked = before  # it was opened before that admission
        if asked in self._current and site not in self._books.members(self._current[asked]):
            raise OutOfPlaceMessage(
                f"{self._name(site)} asks for a subgroup that others opened while it was lost, and "
                "that excludes it; ask for one with another name"
            )
        if asked not in self._current:
            out = {*self._books.lost, *without}
            self._open(asked, tuple(each for each in members if each not in out))
        so_far = self._asked.setdefault(site, [])
        if asked not in so_far:  # a site asks again after an admission, or without an answer
            so_far.append(asked)
        return self._current[asked]

    def _open(self, asked: _Asked, inside: tuple[int, ...]) -> None:
        self._current[asked] = len(self._books)
        self._opened.append(asked)
        self._books.open(asked[0], inside)

    def out_of_order(self, site: int) -> list[tuple[int, str]]:
        """Return the channels whose calls cannot end after a site's latest request, with reasons.

        Members that ask for their common subgroups in different orders would wait for each other
        for ever.
        """
        found = []
        for other in self._asked[site][-1][0]:
            ours = [each for each in self._asked[site] if other in each[0]]
            theirs = [each for each in self._asked.get(other, ()) if site in each[0]]
            if len(ours) > len(theirs) or ours[-1] == theirs[len(ours) - 1]:
                continue
            wanted = ours[-1], theirs[len(ours) - 1]
            (mine, called, _), (others, other_name, _) = wanted
            reason = accounts.of_order(
                (site, mine, called), (other, others, other_name), self._name
            )
            found += [(self._current[asked], reason) for asked in wanted]
        return found

    def renew(self) -> None:
        """Forget the subgroups that every member has asked for, since newcomers are admitted."""
        awaited = {
            asked
            for asked, channel in self._current.items()
            if any(asked not in self._asked.get(site, ()) for site in self._books[channel].members)
        }
        self._current = {
            asked: channel for asked, channel in self._current.items() if asked in awaited
        }
        self._asked = {
            site: [each for each in asked if each in awaited] for site, asked in self._asked.items()
        }

    # --- after a restart

    def __iter__(self) -> Iterator[Subgroup]:
        """Return every subgroup, in the order of their channels."""
        for channel, asked in enumerate(self._opened, 1):
            is_current = self._current.get(asked) == channel and not asked[2]
            places = tuple(
                (site, so_far.index(asked))
                for site, so_far in self._asked.items()
                if is_current and asked in so_far
            )
            yield Subgroup(*asked[:2], self._books[channel].members, is_current, places)

    def restore(self, subgroups: Sequence[Subgroup]) -> None:
        """Open the channels of a run after a restart of its scheduler."""
        for each in subgroups:
            self._open((each.members, each.name, ()), each.inside)
        self._current = {
            (each.members, each.name, ()): channel
            for channel, each in enumerate(subgroups, 1)
            if each.is_current
        }
        requests = [(place, site, each) for each in subgroups for site, place in each.asked]
        for _, site, each in sorted(requests, key=lambda request: request[:2]):
            self._asked.setdefault(site, []).append((each.members, each.name, ()))
