"""The books of all channels, the plans of their exchanges, and the last call of each. Pure.

All books share one counter of exchanges and of the bytes under way. A channel is never removed,
since that would renumber the others: if its members are all lost, its book has no members.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from anabranch import plan as plans
from anabranch.net.errors import OutOfPlaceMessage
from anabranch.net.messages import NoMoreRounds
from anabranch.plan import Plan
from anabranch.scheduler._exchanges import ExchangeBook
from anabranch.scheduler._plans_by_size import PlansBySize, order_of
from anabranch.scheduler._waits import Stall
from anabranch.scheduler.calls import _accounts as accounts
from anabranch.scheduler.calls._accounts import Name
from anabranch.scheduler.calls._answer import Answer
from anabranch.scheduler.calls._held import Counter


class Books:
    """The books of all channels, by their numbers.

    Args:
        name: returns a site's name for error messages.
        sites: the number of sites.
        plans: of the exchanges of all sites.
        most_bytes: the most bytes of buffers in exchanges under way at once.

    Attributes:
        counter: of exchanges, over all channels.
        left: the sites that make no further call.
        lost: the sites that are members of no channel.
        largest_elements: of all buffers exchanged so far.
        tells_last: whether a grant tells that its exchange is the last. Otherwise members hear of
            the end by the refusal of the next one.
    """

    def __init__(self, name: Name, sites: int, plans: PlansBySize, most_bytes: float) -> None:
        self._name = name
        self.counter = Counter(most_bytes)
        self._books = [ExchangeBook(range(sites), plans, self.counter)]
        self.left: set[int] = set()
        self.lost: set[int] = set()
        self.largest_elements = 0
        self._at_once: dict[int, int] = {}  # by order of size, the most that waited for a plan
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
        """Return the book of a channel, for a member.

        Raises:
            OutOfPlaceMessage: the site is no member of the channel.
        """
        if site not in self.members(channel):
            raise OutOfPlaceMessage(f"{self._name(site)} is no member of channel {channel}")
        return self._books[channel]

    def open(self, members: Collection[int], inside: tuple[int, ...]) -> None:
        """Open a channel; each member learns of it when it asks for the subgroup.

        Args:
            members: the sites that the subgroup names.
            inside: those of them that are not lost.
        """
        book = ExchangeBook(inside, self.all.plans.restricted(inside), self.counter, is_known=False)
        # Members that have left make no call here, even if they were lost since, so not inside.
        for left in sorted(self.left.intersection(members)):
            book.abandon(accounts.of_absence(left, self._name))
        self._books.append(book)

    def members(self, channel: int) -> tuple[int, ...]:
        """Return the members of a channel; an unknown channel has none."""
        return self._books[channel].members if 0 <= channel < len(self._books) else ()

    def awaiting(self, site: int) -> list[int]:
        """Return the channels in which another member has made a call that this site has not."""
        return [channel for channel, book in enumerate(self._books) if book.order.awaits(site)]

    @property
    def are_busy(self) -> bool:
        """Whether exchanges are under way that a member has called for."""
        return any(book.is_busy for book in self._books)

    def stalls(self) -> list[Stall]:
        """Return the members that others wait for, each with the call that it has not made."""
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
        """Use a plan, in subgroups a part of it, for exchanges that no member has asked for yet."""
        for book in self._books:
            if book.members:
                book.plans.replace(_part(plan, book.members), self.largest_elements)

    def lose(self, sites: Collection[int], plan: Plan) -> list[tuple[int, tuple[Answer, ...]]]:
        """Remove lost sites, and use a plan for the rest; return the answers by channel.

        Args:
            sites: the lost sites; empty if only links are lost.
            plan: a plan without lost sites and links; its version follows the one in force.
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
        """Add members to the channel of all sites, and use a plan for all from now on."""
        for book in self._books[1:]:
            if book.members:
                book.plans.replace(plans.restrict(plan, book.members), self.largest_elements)
        self.all.admit(sites, plan, self.largest_elements)
        self.left -= {*sites}
        self.lost -= {*sites}

    def add(self, plan: Plan, elements: int) -> None:
        """Use a plan for one more order of size of buffers; other orders may use it already."""
        for book in self._books:
            if book.members:
                book.plans.add(_part(plan, book.members), elements)

    @property
    def unplanned(self) -> list[int]:
        """The elements of buffers whose exchanges wait for a plan."""
        return sorted(set().union(*(book.unplanned for book in self._books)))

    def at_once(self, elements: int) -> int:
        """Return the elements that a plan for buffers of a size has to carry at once.

        Buffers of one order of size share a plan. If members ask for several before there is one,
        as a bucketed step does, their chunks share the trees: so it is the sum of these buffers.
        The most that ever waited is remembered, for later plans.
        """
        order = order_of(elements)
        waiting = sum(book.unplanned_elements(order) for book in self._books)
        self._at_once[order] = max(self._at_once.get(order, 0), waiting)
        return max(elements, self._at_once[order])

    @property
    def largest_at_once(self) -> int:
        """What ``at_once`` returns for the largest buffers so far."""
        return self.at_once(self.largest_elements)

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
        """Set the last exchange of each channel; those under way run to their end.

        Args:
            reason: why no exchange follows, for sites that ask for one.
            lasts: the last exchange, by channel. A channel that opens later needs another call.
        """
        for book, last in zip(self._books, lasts, strict=False):
            book.end.close(last, reason)

    def refusal(self, channel: int, number: int) -> NoMoreRounds:
        """Return the message for a site that asks for an exchange after the last one."""
        last = self._books[channel].end.last
        assert last is not None, "an exchange is refused, though more may follow"
        return NoMoreRounds(number, last.why, channel)

    def why_last(self, channel: int, number: int) -> str:
        """Return why an exchange is the last of its channel; an empty string if it is not."""
        last = self._books[channel].end.last
        return last.why if last is not None and last.number == number else ""

    @property
    def lasts(self) -> tuple[int, ...]:
        """By channel, the last exchange of a run that is stopped; empty if it is not."""
        return tuple(book.end.closed.number for book in self._books if book.end.closed is not None)


def _part(plan: Plan, members: Collection[int]) -> Plan:
    return plan if plan.members == frozenset(members) else plans.restrict(plan, members)
