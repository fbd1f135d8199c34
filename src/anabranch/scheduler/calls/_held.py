"""Exchanges that members have begun, until all members have ended them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from anabranch.net.errors import OutOfPlaceMessage
from anabranch.net.messages import Signature
from anabranch.plan import Plan
from anabranch.scheduler.calls._answer import TakenBack
from anabranch.scheduler.calls._requests import Request


class Counter:
    """Numbers exchanges over all members' books, and bounds what goes on at once.

    Args:
        most_bytes: of buffers of exchanges under way; one may always be.
    """

    def __init__(self, most_bytes: float) -> None:
        self._most_bytes = most_bytes
        self.latest = 0
        self.bytes_under_way = 0

    def next(self) -> int:
        """Return the next exchange's number."""
        self.latest += 1
        return self.latest

    def has_room(self, signature: Signature, at_most: bool) -> bool:
        """Return whether an exchange may begin; one that needs more room than there is, only alone.

        Args:
            signature: what is exchanged.
            at_most: whether one that needs more may not, as data may come early that has to fit.
        """
        under_way = self.bytes_under_way
        fits = under_way + size_bytes(signature) <= self._most_bytes
        return (not under_way and not at_most) or fits


def size_bytes(signature: Signature) -> int:
    """Return what an exchange takes of the room; what hands a state on takes only what is left."""
    return 0 if signature.receivers else 4 * signature.elements


@dataclass(slots=True)
class HeldExchange:
    """An exchange that a member has asked for, until all have ended it.

    Attributes:
        exchange: the number that its chunks carry.
        plan: that it runs under.
        signature: what is exchanged.
        first: the site that asked first.
        is_granted: whether to any member, which may be lost by now.
        is_restored: whether from what members said of it, after a restart.
        was_ahead: whether it was granted to a member ahead of its call, which may have begun it
            before the call is heard of here.
        granted: the members that may have begun it.
        ended: the checksums of those that have its result.
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
    """The exchanges of one channel that are held, by their numbers.

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
        """The exchanges that are held, in the order in which they began."""
        return list(self._held)

    @property
    def exchanges(self) -> set[int]:
        """The numbers that the chunks of the exchanges carry that are held."""
        return {held.exchange for held in self._held.values()}

    def awaited_result(self, number: int) -> Signature | None:
        """Return what is exchanged, if the exchange is held and no member has its result yet."""
        held = self._held.get(number)
        return None if held is None or held.ended else held.signature

    def begin(self, site: int, number: int, signature: Signature, plan: Plan) -> None:
        """Hold an exchange that a site was the first to ask for."""
        self._counter.bytes_under_way += size_bytes(signature)
        self._held[number] = HeldExchange(self._counter.next(), plan, signature, site)

    def take_up(
        self, site: int, number: int, exchange: int, signature: Signature, plan: Plan
    ) -> None:
        """Hold an exchange that a member has begun before a restart."""
        held = self._held.get(number)
        if held is None:
            self._counter.bytes_under_way += size_bytes(signature)
            held = HeldExchange(exchange, plan, signature, site, is_granted=True, is_restored=True)
            self._held[number] = held
        held.granted.add(site)

    def may_still_agree(self, request: Request, is_ahead: bool, asked: Mapping[int, int]) -> bool:
        """Return whether a request for other terms than are held waits until members have called.

        What was asked for ahead, whichever of the two it is, may be taken back.

        Args:
            request, is_ahead: which, and whether it is ahead of its call.
            asked: by member, the latest exchange that it called for.
        """
        held = self._held.get(request.number)
        if held is None or held.signature == request.signature:
            return False
        is_called = any(asked[site] >= request.number for site in held.granted)
        return is_ahead or (held.was_ahead and bool(held.granted) and not is_called)

    def called(self, site: int, number: int, asked: Mapping[int, int]) -> None:
        """Take note of a call for an exchange that may have been asked for ahead; see above."""
        held = self._held.get(number)
        if held is not None and asked.get(held.first, 0) < number:
            held.first = site  # the one that asked first may take it back

    def take_back(self, site: int, number: int) -> None:
        """Take note that a site has not begun an exchange that it was granted ahead."""
        if number in self._held:
            self._held[number].granted.discard(site)

    def drop_unused(self) -> list[TakenBack]:
        """Hold no exchange that all members have taken back which were granted it ahead."""
        unused = [
            number for number, held in self._held.items() if held.was_ahead and not held.granted
        ]
        return [TakenBack(number, self.drop(number).exchange) for number in unused]

    def drop(self, number: int) -> HeldExchange:
        """Hold an exchange no more; return what it was."""
        held = self._held.pop(number)
        self._counter.bytes_under_way -= size_bytes(held.signature)
        return held

    def lose(self, sites: Collection[int], members: Collection[int]) -> None:
        """Go on without some members; what all others have ended is held no more."""
        for number, held in list(self._held.items()):
            held.granted.difference_update(sites)
            for site in sites:
                held.ended.pop(site, None)
            if len(held.ended) == len(members):
                self.drop(number)

    def ended(
        self, site: int, number: int, version: int, checksum: int | None, members: Collection[int]
    ) -> str | None:
        """Note that a site holds a result; return what is wrong once all do, or None.

        Raises:
            OutOfPlaceMessage: the site is not in that exchange or ran it under another version, or
                has said so before.
        """
        held = self._held.get(number)
        if held is None or site not in held.granted or site in held.ended:
            raise OutOfPlaceMessage(f"site {site} ends exchange {number}, which it is not in")
        if version != held.plan.version and not held.is_restored:
            raise OutOfPlaceMessage(f"site {site} ends exchange {number} under version {version}")
        held.ended[site] = checksum
        if len(held.ended) < len(members):
            return None
        self.drop(number)
        return _disagreement(number, held.ended)


def _disagreement(number: int, votes: dict[int, int | None]) -> str | None:
    # A site whose program has not used the result yet, or that computes none, says none.
    values = [value for value in votes.values() if value is not None]
    if not values:
        return None
    common = max(set(values), key=lambda value: (values.count(value), value))
    odd = sorted(site for site, value in votes.items() if value not in (None, common))
    if not odd:
        return None
    return f"after round {number} the models of sites {odd} differ from the others'"
