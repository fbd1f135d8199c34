"""Which subgroups sites have asked for, and whether they ask in the same order. Pure.

A subgroup is named by its members and a name. The first member that asks for it opens its channel,
and the others get the same one. Members that let further sites in begin anew: subgroups that are
asked for from then on may have those sites, so that they are other channels. Only a subgroup that
some of its members have asked for, and others have not yet, stays the same for these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anabranch.net.errors import OutOfPlaceMessage
from anabranch.scheduler.calls import _accounts as accounts
from anabranch.scheduler.calls._accounts import Name
from anabranch.scheduler.calls._books import Books

_Asked = tuple[tuple[int, ...], str]  # a subgroup's members, and its name


@dataclass(frozen=True, slots=True)
class Subgroup:
    """A channel of some sites.

    Args:
        members: who asked for it.
        name: that tells it from others of the same members.
        inside: of those, who is not lost.
        is_current: whether who asks for these members now gets this channel.
        asked: the sites that have asked for it, each with its place among the site's requests.
    """

    members: tuple[int, ...]
    name: str
    inside: tuple[int, ...]
    is_current: bool
    asked: tuple[tuple[int, int], ...] = ()


class Subgroups:
    """The channels of some sites, from 1 on.

    Args:
        name: makes a site's name for error messages.
        books: of all channels; a new subgroup opens one.
    """

    def __init__(self, name: Name, books: Books) -> None:
        self._name = name
        self._books = books
        self._current: dict[_Asked, int] = {}  # the channel that a site gets which asks now
        self._opened: list[_Asked] = []  # of channels from 1 on, as they began
        self._asked: dict[int, list[_Asked]] = {}  # by site, in order

    def ask(self, site: int, members: tuple[int, ...], name: str) -> int:
        """Take a site's request for a subgroup; return its channel.

        Raises:
            OutOfPlaceMessage: the subgroup goes on without the site, which was lost meanwhile.
        """
        asked = members, name
        if asked in self._current and site not in self._books.members(self._current[asked]):
            raise OutOfPlaceMessage(
                f"{self._name(site)} asks for a subgroup that others asked for while it was lost, "
                "and that goes on without it; ask by another name"
            )
        if asked not in self._current:
            lost = self._books.lost
            self._open(asked, tuple(each for each in members if each not in lost))
        so_far = self._asked.setdefault(site, [])
        if asked not in so_far:  # else it asks again, as it was let in anew, or had no answer
            so_far.append(asked)
        return self._current[asked]

    def _open(self, asked: _Asked, inside: tuple[int, ...]) -> None:
        self._current[asked] = len(self._books)
        self._opened.append(asked)
        self._books.open(asked[0], inside)

    def out_of_order(self, site: int) -> list[tuple[int, str]]:
        """Return the channels whose calls cannot end after a site's latest request, each with why.

        Members that ask for the subgroups they share in different orders would wait for each other
        for ever.
        """
        found = []
        for other in self._asked[site][-1][0]:
            ours = [each for each in self._asked[site] if other in each[0]]
            theirs = [each for each in self._asked.get(other, ()) if site in each[0]]
            if len(ours) > len(theirs) or ours[-1] == theirs[len(ours) - 1]:
                continue
            wanted = ours[-1], theirs[len(ours) - 1]
            reason = accounts.of_order((site, *wanted[0]), (other, *wanted[1]), self._name)
            found += [(self._current[asked], reason) for asked in wanted]
        return found

    def renew(self) -> None:
        """Forget the subgroups that every member has asked for, as further sites are let in."""
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
            is_current = self._current.get(asked) == channel
            places = tuple(
                (site, so_far.index(asked))
                for site, so_far in self._asked.items()
                if is_current and asked in so_far
            )
            yield Subgroup(*asked, self._books[channel].members, is_current, places)

    def restore(self, subgroups: Sequence[Subgroup]) -> None:
        """Open the channels that a run had whose scheduler was started again."""
        for each in subgroups:
            self._open((each.members, each.name), each.inside)
        self._current = {
            (each.members, each.name): channel
            for channel, each in enumerate(subgroups, 1)
            if each.is_current
        }
        requests = [(place, site, each) for each in subgroups for site, place in each.asked]
        for _, site, each in sorted(requests, key=lambda request: request[:2]):
            self._asked.setdefault(site, []).append((each.members, each.name))
