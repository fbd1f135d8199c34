"""The exchanges of a channel that have begun, until every member holds the result. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from anabranch.net.errors import OutOfPlaceMessage
from anabranch.net.messages import Signature
from anabranch.plan import Plan
from anabranch.scheduler.calls._answer import TakenBack
from anabranch.scheduler.calls._requests import Request


class Counter:
    """Numbers the exchanges of all books, and bounds the bytes under way.

    Args:
        most_bytes: the most bytes of buffers under way; one exchange may exceed it, alone.
    """

    def __init__(self, most_bytes: float) -> None:
        self._most_bytes = most_bytes
        self.latest = 0
        self.bytes_under_way = 0

    def next(self) -> int:
        """Return the number for a further exchange."""
        return self.reserve(1)

    def reserve(self, count: int) -> int:
        """Return the first of several numbers in a row, for further exchanges."""
        self.latest += count
        return self.latest - count + 1

    def has_room(self, signature: Signature, at_most: bool) -> bool:
        """Return whether there is room for an exchange.

        Args:
            signature: the terms of the exchange.
            at_most: whether the bound holds for a lone exchange, too. It does while members follow:
                they keep the results that come before their own call.
        """
        under_way = self.bytes_under_way
        fits = under_way + size_bytes(signature) <= self._most_bytes
        return (not under_way and not at_most) or fits


def size_bytes(signature: Signature) -> int:
    """Return the bytes that an exchange takes of the room; a transfer takes none."""
    return 0 if signature.receivers else 4 * signature.elements


@dataclass(slots=True)
class HeldExchange:
    """An exchange that has begun.

    Attributes:
        exchange: the number that its chunks carry.
        plan: the plan of the exchange.
        signature: its terms.
        first: the site that asked first.
        is_granted: whether any member was granted it; that member may be lost by now.
        is_restored: whether it was restored after a restart.
        was_ahead: whether a member was granted it ahead of its call, or began it under a lease.
            That member may have begun it before its call arrives here.
        granted: the members that may have begun it.
        ended: by member that holds its result, the checksum.
    """

    exchange: int
    plan: Plan
    signature: Signature
    first: int
    is_granted: bool = False
    is_restored: bool = False
    was_ahead: bool = False
    granted: set[int] = field(default_factory=set)
    ended: dict[int, int | None] = field(default_factory=dict)


class Held:
    """The held exchanges of one channel, by their numbers.

    Args:
        counter: shared by the books of one run.
    """

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._held: dict[int, HeldExchange] = {}

    def __contains__(self, number: object) -> bool:
        return number in self._held

    def __getitem__(self, number: int) -> HeldExchange:
        return self._held[number]

    @property
    def numbers(self) -> list[int]:
        """The held exchanges, in the order in which they began."""
        return list(self._held)

    @property
    def exchanges(self) -> set[int]:
        """The numbers that the chunks of the held exchanges carry."""
        return {held.exchange for held in self._held.values()}

    def awaited_result(self, number: int) -> Signature | None:
        """Return the terms of a held exchange of which no member has the result; None otherwise."""
        held = self._held.get(number)
        return None if held is None or held.ended else held.signature

    def begin(
        self, site: int, number: int, signature: Signature, plan: Plan, exchange: int = 0
    ) -> None:
        """Begin an exchange that a site was the first to ask for.

        Args:
            site, number, signature, plan: see :class:`HeldExchange`.
            exchange: the number that its chunks carry; 0 for the next one.
        """
        self._counter.bytes_under_way += size_bytes(signature)
        exchange = exchange or self._counter.next()
        self._held[number] = HeldExchange(exchange, plan, signature, site)

    def take_up(
        self, site: int, number: int, exchange: int, signature: Signature, plan: Plan
    ) -> None:
        """Restore an exchange that a member began before a restart."""
        held = self._held.get(number)
        if held is None:
            self._counter.bytes_under_way += size_bytes(signature)
            held = HeldExchange(exchange, plan, signature, site, is_granted=True, is_restored=True)
            self._held[number] = held
        held.granted.add(site)

    def may_still_agree(self, request: Request, is_ahead: bool, asked: Mapping[int, int]) -> bool:
        """Return whether a request disagrees with a held exchange, but either may be withdrawn.

        Either may have been made ahead of a call, and another call may take it back. The request
        then waits, since it would be premature to fail both.

        Args:
            request, is_ahead: the request, and whether it is ahead of its call.
            asked: by member, the latest exchange that it called for.
        """
        held = self._held.get(request.number)
        if held is None or held.signature == request.signature:
            return False
        is_called = any(asked[site] >= request.number for site in held.granted)
        return is_ahead or (held.was_ahead and bool(held.granted) and not is_called)

    def called(self, site: int, number: int, asked: Mapping[int, int]) -> None:
        """Note a call for an exchange that may have been asked for ahead."""
        held = self._held.get(number)
        if held is not None and asked.get(held.first, 0) < number:
            # The site that asked first has not called and may withdraw: errors name a caller.
            held.first = site

    def take_back(self, site: int, number: int) -> None:
        """Note that a site withdrew before it began an exchange that it was granted ahead."""
        if number in self._held:
            self._held[number].granted.discard(site)

    def drop_unused(self) -> list[TakenBack]:
        """Drop the exchanges granted ahead from which all members with the grant withdrew."""
        unused = [
            number for number, held in self._held.items() if held.was_ahead and not held.granted
        ]
        return [TakenBack(number, self.drop(number).exchange) for number in unused]

    def drop(self, number: int) -> HeldExchange:
        """Remove an exchange, free its room, and return it."""
        held = self._held.pop(number)
        self._counter.bytes_under_way -= size_bytes(held.signature)
        return held

    def lose(self, sites: Collection[int], members: Collection[int]) -> None:
        """Remove lost members, and drop the exchanges that all others have ended."""
        for number, held in list(self._held.items()):
            held.granted.difference_update(sites)
            for site in sites:
                held.ended.pop(site, None)
            if len(held.ended) == len(members):
                self.drop(number)

    def ended(
        self, site: int, number: int, version: int, checksum: int | None, members: Collection[int]
    ) -> str | None:
        """Note that a site holds a result; once all do, return how their models differ, or None.

        Raises:
            OutOfPlaceMessage: the site was not granted that exchange, ran it under another plan
                version, or has reported its end before.
        """
        held = self.ending(site, number, version)
        held.ended[site] = checksum
        if len(held.ended) < len(members):
            return None
        self.drop(number)
        return _disagreement(number, held.ended)

    def ending(self, site: int, number: int, version: int) -> HeldExchange:
        """Return an exchange that a site ends.

        Raises:
            OutOfPlaceMessage: see ``ended``.
        """
        held = self._held.get(number)
        if held is None or site not in held.granted or site in held.ended:
            raise OutOfPlaceMessage(f"site {site} ends exchange {number}, which it is not in")
        if version != held.plan.version and not held.is_restored:
            raise OutOfPlaceMessage(f"site {site} ends exchange {number} under version {version}")
        return held


def _disagreement(number: int, votes: dict[int, int | None]) -> str | None:
    # A site gives no checksum if its program has not used the result yet, or computes none.
    values = [value for value in votes.values() if value is not None]
    if not values:
        return None
    common = max(set(values), key=lambda value: (values.count(value), value))
    odd = sorted(site for site, value in votes.items() if value not in (None, common))
    if not odd:
        return None
    return f"after round {number} the models of sites {odd} differ from the others'"
