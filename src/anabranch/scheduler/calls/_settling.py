"""How exchanges are completed without what is lost: what members are told, and when. Pure.

What one exchange lacks, and what completes it, `scheduler._repair` decides. Here that
becomes messages to its members: an `Interrupt` once something is lost, `Repair` once all members
have said what they hold, and `Settled` once all of them hold all of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence

from anabranch import plan as plans
from anabranch.exchange import ranges
from anabranch.exchange.ranges import Ranges
from anabranch.net.errors import OutOfPlaceMessage
from anabranch.net.messages import (
    Contribution,
    Holding,
    Interrupt,
    OpenExchange,
    Repair,
    RepairPart,
    Settled,
    Signature,
    Withdrawn,
)
from anabranch.plan import Plan
from anabranch.scheduler._exchanges import ExchangeBook
from anabranch.scheduler._repair import Unsettled
from anabranch.scheduler.calls import _accounts as accounts
from anabranch.scheduler.calls._accounts import Name
from anabranch.scheduler.calls._answer import Answer, Granted
from anabranch.scheduler.calls._books import Books
from anabranch.scheduler.calls._outcome import Outcome, Repaired

Transferring = Callable[[Collection[int], int, int, int], Sequence[tuple[int, Ranges, Plan]]]
"""Who sends what to a site that has nothing of what others have: called with those, that site, the
elements and the version of plans; returns what `scheduler._transfer.shares` does."""


class Settling:
    """The exchanges that are completed whatever is lost, until all their members hold the result.

    Args:
        name: makes a site's name for error messages.
        books: of all channels.
        transferring: how members hand their state to further ones.

    Attributes:
        incomplete: how many results lack contributions of members.
    """

    def __init__(self, name: Name, books: Books, transferring: Transferring) -> None:
        self._name = name
        self._books = books
        self._transferring = transferring
        self._unsettled: dict[tuple[int, int], Unsettled] = {}  # by channel and number
        # Of exchanges that were taken back: answers to these may be on their way.
        self._generations: dict[tuple[int, int], int] = {}
        self.incomplete = 0

    def begin(self, channel: int, granted: Granted, followers: Collection[int]) -> None:
        """Follow an exchange from its first grant on."""
        members, signature = self._books[channel].members, granted.signature
        self._unsettled[channel, granted.number] = Unsettled(
            granted.exchange,
            signature.elements,
            members,
            _sources(signature, members),
            followers,
            self._generations.pop((channel, granted.number), 0),
        )

    def get(self, channel: int, number: int) -> Unsettled | None:
        """Return an exchange that is not settled; None for another."""
        return self._unsettled.get((channel, number))

    def drop(self, channel: int, number: int) -> None:
        """Forget an exchange that has failed."""
        self._unsettled.pop((channel, number), None)

    def take_back(self, channel: int, number: int, outcome: Outcome) -> None:
        """Forget an exchange that no member has begun; another of its number may follow."""
        unsettled = self._unsettled.pop((channel, number), None)
        if unsettled is None:
            return
        if unsettled.latest_generation:
            self._generations[channel, number] = unsettled.latest_generation
        if unsettled.generation:
            outcome.is_to_remember = True  # else a restart would give its contributions to the next
            members = self._books[channel].members
            outcome.say += [(member, Withdrawn(channel, number)) for member in members]

    def forget_all_but(self, channel: int, held: Container[int]) -> None:
        """Forget the exchanges of a channel that are not held any more.

        A book may give one up and have no member to tell: those that knew of the channel are lost.
        """
        for key in [each for each in self._unsettled if each[0] == channel]:
            if key[1] not in held:
                del self._unsettled[key]

    @property
    def contributions(self) -> dict[tuple[int, int], tuple[Contribution, ...]]:
        """Whose contributions are in exchanges that were interrupted, by channel and number."""
        return {
            key: unsettled.contributions
            for key, unsettled in self._unsettled.items()
            if unsettled.generation
        }

    def is_open(self, channel: int, number: int) -> bool:
        """Return whether members of an exchange still wait to hear that all hold the result."""
        held = self._books[channel].held
        if number not in held:
            return False
        return not held[number].is_granted or (channel, number) in self._unsettled

    # --- something is lost

    def interrupt(self, outcome: Outcome) -> tuple[int, ...]:
        """Ask the members of all exchanges what they hold, once these members are all that is left.

        Returns:
            The numbers that the chunks carried of the exchanges which are void now.
        """
        all_voided: tuple[int, ...] = ()
        for (channel, number), unsettled in list(self._unsettled.items()):
            members, voided = self._books[channel].members, unsettled.exchanges
            all_voided += voided
            if not members:
                del self._unsettled[channel, number]
                continue
            unsettled.interrupt(members)
            _tell_interrupted(channel, number, unsettled, voided, members, outcome)
        return all_voided

    def hold(self, site: int, message: Holding, outcome: Outcome) -> tuple[Answer, ...]:
        """Take what a site holds of a result; return what follows in the book of its channel.

        Raises:
            OutOfPlaceMessage: it is no member, or holds elements that are none.
        """
        key = message.channel, message.number
        unsettled = self._unsettled.get(key)
        if unsettled is None or site in self._books.lost:
            return ()  # it has failed meanwhile, or the site has left
        book = self._books.of(site, message.channel)
        elements = unsettled.contributions[-1].stop
        if any(not 0 <= start < stop <= elements for start, stop in message.held):
            raise OutOfPlaceMessage(f"{self._name(site)} holds elements {message.held}")
        if unsettled.hear(site, message.generation, ranges.union(message.held)):
            return self._mend(book, message, unsettled, outcome)
        if unsettled.is_settled:
            del self._unsettled[key]
            told = () if unsettled.is_whole else unsettled.contributions
            self.incomplete += bool(told)
            settled = Settled(*key, book.members, told, self._books.why_last(*key))
            outcome.say += [(member, settled) for member in book.members]
            if unsettled.generation:
                outcome.repaired.append(
                    Repaired(*key, book.members, *unsettled.repaired, unsettled.generation)
                )
        return ()

    def _mend(
        self, book: ExchangeBook, message: Holding, unsettled: Unsettled, outcome: Outcome
    ) -> tuple[Answer, ...]:
        """Tell members what completes an exchange, or give it up."""
        channel, number = message.channel, message.number
        signature = book.held[number].signature
        way = book.plans.of(signature.elements) or book.plan
        parts: tuple[RepairPart, ...] | None
        if {*book.members} - {*signature.receivers} and signature.receivers:
            parts = self._handed_on(book, signature, way.version, unsettled)
        else:
            parts = unsettled.mend(self._books.counter.next)
        if parts is None:
            reason = "all sites that contributed are lost"
            if unsettled.sources is not None:
                lost = unsettled.sources - {*book.members}
                reason = accounts.of_lost_sources(lost, self._name)
            return book.give_up(number, reason)
        outcome.is_to_remember = True
        for member in book.members:
            plan = book.knowledge.tell(member, way)
            repair = Repair(
                channel,
                number,
                unsettled.generation,
                way.version,
                "" if plan is None else plans.dumps(plan),
                parts,
            )
            outcome.say.append((member, repair))
        return ()

    # --- the state is handed on

    def transfer(self, channel: int, granted: Granted, outcome: Outcome) -> None:
        """Say which site sends which part of a buffer to those that have none of it."""
        unsettled = self._unsettled[channel, granted.number]  # transfers are repaired like all else
        if unsettled.generation:
            return  # something was lost before all had asked: it is said once all have answered
        book = self._books[channel]
        number, signature, version = granted.number, granted.signature, granted.plan.version
        parts = self._handed_on(book, signature, version, unsettled)
        begin = Repair(channel, number, 0, version, "", parts)
        outcome.say += [(member, begin) for member in book.members]

    def _handed_on(
        self, book: ExchangeBook, signature: Signature, version: int, unsettled: Unsettled
    ) -> tuple[RepairPart, ...]:
        """Return which part each of those that have all of a buffer sends to those that lack it."""
        holders = {*book.members} - {*signature.receivers}

        def parts_for(receiver: int, lacks: Ranges) -> list[RepairPart]:
            found = self._transferring(holders, receiver, ranges.length(lacks), version)
            parts = []
            for source, places, plan in found:
                exchange, way = self._books.counter.next(), plans.dumps(plan)
                elements = ranges.places(lacks, places)
                parts.append(RepairPart(exchange, source, (receiver,), elements, way))
            if not found:  # no holder reaches it and is reached: over the trees of all
                everyone = self._books.counter.next(), min(holders), (receiver,)
                parts.append(RepairPart(*everyone, lacks))
            return parts

        return unsettled.hand_on(parts_for)

    # --- after a restart

    def restore(
        self,
        channel: int,
        number: int,
        opened: Collection[OpenExchange],
        contributions: Mapping[tuple[int, int], Collection[Contribution]],
        outcome: Outcome,
    ) -> None:
        """Take up an exchange that is held, and interrupt it.

        Args:
            channel, number: which.
            opened: what each member says of it that has not heard its end.
            contributions: as they were, of exchanges that had been interrupted before.
            outcome: gets what members are told.
        """
        book = self._books[channel]
        signature = book.held[number].signature
        unsettled = Unsettled(
            book.held[number].exchange,
            signature.elements,
            book.members,
            _sources(signature, book.members),
            {site for each in opened if each.exchange for site in each.followers},
        )
        generation = max(each.generation for each in opened)
        unsettled.restore(generation, contributions.get((channel, number), ()))
        unsettled.interrupt(book.members)
        self._unsettled[channel, number] = unsettled
        voided = tuple(sorted({each for one in opened for each in one.running}))
        _tell_interrupted(channel, number, unsettled, voided, book.members, outcome)


def _tell_interrupted(
    channel: int,
    number: int,
    unsettled: Unsettled,
    voided: tuple[int, ...],
    members: tuple[int, ...],
    outcome: Outcome,
) -> None:
    interrupt = Interrupt(channel, number, unsettled.generation, voided)
    outcome.say += [(member, interrupt) for member in members]


def _sources(signature: Signature, members: Iterable[int]) -> set[int] | None:
    """Return who has all of a result from the first; None where all contribute to it."""
    if signature.receivers:
        return {*members} - {*signature.receivers}
    return None if signature.source is None else {signature.source}
