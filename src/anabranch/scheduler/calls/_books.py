"""The channels of a run, and the plans that their exchanges run under. Pure.

A channel is a set of members and the calls among them; channel 0 is that of all sites. Each has a
book (:class:`anabranch.scheduler._exchanges.ExchangeBook`), and all books share one counter of
exchanges. A channel is never removed: one whose members are all lost has an empty book, so that
the numbers of the others stay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from anabranch import plan as plans
from anabranch.net.errors import OutOfPlaceMessage
from anabranch.net.messages import NoMoreRounds
from anabranch.plan import Plan
from anabranch.scheduler._exchanges import ExchangeBook
from anabranch.scheduler._plans_by_size import PlansBySize
from anabranch.scheduler._waits import Stall
from anabranch.scheduler.calls import _accounts as accounts
from anabranch.scheduler.calls._accounts import Name
from anabranch.scheduler.calls._answer import Answer
from anabranch.scheduler.calls._held import Counter


class Books:
    """The books of all channels, by their numbers.

    Args:
        name: makes a site's name for error messages.
        sites: how many there are.
        plans: that exchanges of all sites run under.
        most_bytes: of buffers of exchanges under way at once.

    Attributes:
        counter: of exchanges, over all channels.
        left: sites that have left, and make no further call.
        lost: sites that are no members of any channel.
        largest_elements: of the buffers that were exchanged so far.
        tells_last: whether each exchange is told of before it begins that it is the last; else
            members hear of the end by the next one, which is refused.
    """

    def __init__(self, name: Name, sites: int, plans: PlansBySize, most_bytes: float) -> None:
        self._name = name
        self.counter = Counter(most_bytes)
        self._books = [ExchangeBook(range(sites), plans, self.counter)]
        self.left: set[int] = set()
        self.lost: set[int] = set()
        self.largest_elements = 0
        self.tells_last = False

    @property
    def all(self) -> ExchangeBook:
        """The book of the calls of all sites."""
        return self._books[0]

    def __iter__(self) -> Iterator[ExchangeBook]:
        return iter(self._books)

    def __len__(self) -> int:
        return len(self._books)

    def __getitem__(self, channel: int) -> ExchangeBook:
        return self._books[channel]

    def of(self, site: int, channel: int) -> ExchangeBook:
        """Return the book of a channel that a site is to be a member of.

        Raises:
            OutOfPlaceMessage: it is not.
        """
        if site not in self.members(channel):
            raise OutOfPlaceMessage(f"{self._name(site)} is no member of channel {channel}")
        return self._books[channel]

    def open(self, members: Collection[int], inside: tuple[int, ...]) -> None:
        """Begin a channel of some sites, of which some are inside: the others are lost.

        Its members learn of it one by one, as each asks for it.
        """
        book = ExchangeBook(inside, self.all.plans.restricted(inside), self.counter, is_known=False)
        for left in sorted(self.left.intersection(members)):  # which may be lost since
            book.abandon(accounts.of_absence(left, self._name))
        self._books.append(book)

    def members(self, channel: int) -> tuple[int, ...]:
        """Return the members of a channel; none if there is no such one."""
        return self._books[channel].members if 0 <= channel < len(self._books) else ()

    def awaiting(self, site: int) -> list[int]:
        """Return the channels in which another member has made a call that this one has not."""
        return [channel for channel, book in enumerate(self._books) if book.order.awaits(site)]

    @property
    def are_busy(self) -> bool:
        """Whether exchanges are under way that a member has called for."""
        return any(book.is_busy for book in self._books)

    def stalls(self) -> list[Stall]:
        """Return the next call of each member that has not made a call which others have."""
        found = []
        for channel, book in enumerate(self._books):
            calls = {member: book.order.made(member) for member in book.members}
            for place, kind in book.order.begun.items():
                waiting = frozenset(site for site, made in calls.items() if made >= place)
                subgroup = book.members if channel else None
                what = accounts.of_call(place, kind, subgroup, self._name)
                found += [
                    Stall((channel, place), site, waiting, what)
                    for site, made in calls.items()
                    if made == place - 1
                ]
        return found

    # --- plans

    def issue(self, plan: Plan) -> None:
        """Let exchanges that no member has asked for yet run under this plan, or part of it."""
        for book in self._books:
            if book.members:
                book.plans.replace(_part(plan, book.members), self.largest_elements)

    def lose(self, sites: Collection[int], plan: Plan) -> list[tuple[int, tuple[Answer, ...]]]:
        """Go on without some sites, or links; return what follows in the books of members.

        Args:
            sites: that are lost; none, where links are.
            plan: without them; its version follows that of the one in force.
        """
        self.lost.update(sites)
        answers: list[tuple[int, tuple[Answer, ...]]] = []
        for channel, book in enumerate(self._books):
            if inside := set(book.members) - self.lost:
                part = plans.restrict(plan, inside) if channel else plan
                book.plans.replace(part, self.largest_elements)
            lost = [site for site in book.members if site in self.lost]
            if lost:
                answers.append((channel, book.lose(*lost)))
        return answers

    def admit(self, sites: Collection[int], plan: Plan) -> None:
        """Let sites be members of the channel of all; exchanges run under this plan from now on."""
        for book in self._books[1:]:
            if book.members:
                book.plans.replace(plans.restrict(plan, book.members), self.largest_elements)
        self.all.admit(sites, plan, self.largest_elements)
        self.left -= {*sites}
        self.lost -= {*sites}

    def add(self, plan: Plan, elements: int) -> None:
        """Let buffers of a further order of size have this plan, which may be in use already."""
        for book in self._books:
            if book.members:
                book.plans.add(_part(plan, book.members), elements)

    @property
    def unplanned(self) -> list[int]:
        """The elements of buffers whose exchanges wait until they are planned for."""
        return sorted(set().union(*(book.unplanned for book in self._books)))

    @property
    def main(self) -> Plan:
        """The plan of all sites for the largest buffers so far."""
        return self.all.plans.of(self.largest_elements) or self.all.plan

    # --- the end

    @property
    def why_closed(self) -> str | None:
        """Why the run is stopped; None where it is not."""
        return None if self.all.end.closed is None else self.all.end.closed.why

    def close(self, reason: str, lasts: Sequence[int]) -> None:
        """Hold no exchange after these; those under way run to their end.

        Args:
            reason: why, for sites that ask for one.
            lasts: the last one that is held, by channel; a channel that is opened later is closed
                by another call.
        """
        for book, last in zip(self._books, lasts, strict=False):
            book.end.close(last, reason)

    def refusal(self, channel: int, number: int) -> NoMoreRounds:
        """Return what a site is told that asks for an exchange which is not held."""
        last = self._books[channel].end.last
        assert last is not None, "an exchange is refused, though more may follow"
        return NoMoreRounds(number, last.why, channel)

    def why_last(self, channel: int, number: int) -> str:
        """Return why no exchange follows this one on its channel; empty where one may."""
        last = self._books[channel].end.last
        return last.why if last is not None and last.number == number else ""

    @property
    def lasts(self) -> tuple[int, ...]:
        """By channel, the last exchange since the run is stopped; empty where it is not."""
        return tuple(book.end.closed.number for book in self._books if book.end.closed is not None)


def _part(plan: Plan, members: Collection[int]) -> Plan:
    return plan if plan.members == frozenset(members) else plans.restrict(plan, members)
