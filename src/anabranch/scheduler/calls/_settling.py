"""Settles exchanges: once all members hold a result, it is final. Pure.

::

    begun ──────────────all members hold all of it──────────────▶ settled
      │                                                              ▲
      └─a loss─▶ interrupted ─all have answered─▶ being repaired ────┘
                      ▲                                 │
                      └───────────── a loss ────────────┘
                 (no member has what is missing: the exchange fails)

- **Begun** with the first grant. A member reports what it holds with `Holding`.
- **Interrupted.** A loss interrupts *all* exchanges of all channels, since the lost site or link
  may have carried chunks of any. Members get `Interrupt`, drop the chunks of the voided numbers,
  and answer with `Holding`. Each interruption begins a *generation*; answers of earlier generations
  do not count.
- **Being repaired.** Members get `Repair`: exchanges of some elements, by which each gets the
  elements that it lacks. `_repair` chooses these exchanges.
- **Settled.** Members get `Settled`; their callers may have the result already. The message names
  the contributions in the result, if some member's is missing. Until then each member keeps the
  result or its own contribution, so that a loss at any moment can be repaired.

A transfer of the state passes through the same states. Its first `Repair` comes before any loss,
and tells which holder sends which part of the state.

What must never happen:

- members hear `Settled` before all of them hold all of the result;
- a repair is announced before the journal has its contributions (a restart would report others);
- an answer to an interruption counts for a later exchange of the same number, after the first one
  was taken back (so the later one continues the generations).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from operator import itemgetter

from anabranch import plan as plans
from anabranch.exchange import ranges
from anabranch.exchange.ranges import Ranges
from anabranch.exchange.terms import planned_elements
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
"""A function like `scheduler._transfer.shares`: which holders send which ranges to a receiver.

Arguments: the holders, the receiver, the number of elements, and the version of the plans.
"""


class Settling:
    """The exchanges that have begun and are not settled.

    Args:
        name: makes a site's name for error messages.
        books: of all channels.
        transferring: returns which members send which parts of the state to a newcomer.

    Attributes:
        incomplete: the number of results that lack contributions of members.
    """

    def __init__(self, name: Name, books: Books, transferring: Transferring) -> None:
        self._name = name
        self._books = books
        self._transferring = transferring
        self._unsettled: dict[tuple[int, int], Unsettled] = {}  # by channel and number
        # The latest generations of exchanges that were taken back. Their numbers may be used again
        # while answers to these generations are still on their way.
        self._generations: dict[tuple[int, int], int] = {}
        self.incomplete = 0

    def begin(self, channel: int, granted: Granted, followers: Collection[int]) -> None:
        """Add an exchange, at its first grant."""
        members, signature = self._books[channel].members, granted.signature
        if granted.is_void and granted.cut is not None:  # a lost one may have contributed
            members = tuple(sorted(granted.cut.plan.members))
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
            # The journal has the contributions of this exchange. A restart would otherwise take
            # them for those of the next exchange of its number.
            outcome.is_to_remember = True
            members = self._books[channel].members
            outcome.say += [(member, Withdrawn(channel, number)) for member in members]

    def forget_all_but(self, channel: int, held: Container[int]) -> None:
        """Forget the exchanges of a channel that its book holds no longer.

        When all members that knew a channel are lost, its book may fail an exchange, and no message
        to a member announces that.
        """
        for key in [each for each in self._unsettled if each[0] == channel]:
            if key[1] not in held:
                del self._unsettled[key]

    @property
    def contributions(self) -> dict[tuple[int, int], tuple[Contribution, ...]]:
        """The contributions in interrupted exchanges, by channel and number."""
        return {
            key: unsettled.contributions
            for key, unsettled in self._unsettled.items()
            if unsettled.generation
        }

    def is_open(self, channel: int, number: int) -> bool:
        """Return whether members still await the grant or the settlement of an exchange."""
        held = self._books[channel].held
        if number not in held:
            return False
        return not held[number].is_granted or (channel, number) in self._unsettled

    # --- after a loss

    def interrupt(self, outcome: Outcome) -> tuple[int, ...]:
        """Interrupt all exchanges, after the books have removed the lost members.

        Returns:
            The numbers of the voided exchanges, as their chunks carry them.
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

    def interrupt_one(self, channel: int, number: int, outcome: Outcome) -> None:
        """Interrupt an exchange that begins under a void lease."""
        unsettled, members = self._unsettled[channel, number], self._books[channel].members
        voided = unsettled.exchanges
        unsettled.interrupt(members)
        _tell_interrupted(channel, number, unsettled, voided, members, outcome)

    def hold(self, site: int, message: Holding, outcome: Outcome) -> tuple[Answer, ...]:
        """Take a site's report of the elements it holds; return the answers for its book.

        Raises:
            OutOfPlaceMessage: the site is no member, the elements are outside the buffer, or the
                end that it tells is not this exchange's.
        """
        key = message.channel, message.number
        unsettled = self._unsettled.get(key)
        if unsettled is None or site in self._books.lost:
            return ()  # the exchange has failed by now, or the site was excluded
        book = self._books.of(site, message.channel)
        elements = unsettled.contributions[-1].stop
        if any(not 0 <= start < stop <= elements for start, stop in message.held):
            raise OutOfPlaceMessage(f"{self._name(site)} holds elements {message.held}")
        if message.ended is not None and not unsettled.generation:
            told = message.ended
            if (told.channel, told.number) != key:
                raise OutOfPlaceMessage(
                    f"{self._name(site)} ends {told.number} where it holds {key}"
                )
            book.held.ending(site, told.number, told.version)
            unsettled.ended[site] = told
        if unsettled.hear(site, message.generation, ranges.union(message.held)):
            return self._mend(book, message, unsettled, outcome)
        if unsettled.is_settled:
            del self._unsettled[key]
            lacking = () if unsettled.is_whole else unsettled.contributions
            self.incomplete += bool(lacking)
            settled = Settled(*key, book.members, lacking, self._books.why_last(*key))
            outcome.say += [(member, settled) for member in book.members]
            outcome.ended += sorted(unsettled.ended.items(), key=itemgetter(0))
            if unsettled.generation:
                outcome.repaired.append(
                    Repaired(*key, book.members, *unsettled.repaired, unsettled.generation)
                )
        return ()

    def _mend(
        self, book: ExchangeBook, message: Holding, unsettled: Unsettled, outcome: Outcome
    ) -> tuple[Answer, ...]:
        """Tell members the repair of an exchange, or fail it."""
        channel, number = message.channel, message.number
        signature = book.held[number].signature
        way = book.plans.of(planned_elements(signature)) or book.plan
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

    # --- transfers of the state

    def transfer(self, channel: int, granted: Granted, outcome: Outcome) -> None:
        """Tell members which holder sends which part of the state to which receiver."""
        unsettled = self._unsettled[channel, granted.number]
        if unsettled.generation:
            return  # a loss came before the last grant: the repair will tell it
        book = self._books[channel]
        number, signature, version = granted.number, granted.signature, granted.plan.version
        parts = self._handed_on(book, signature, version, unsettled)
        begin = Repair(channel, number, 0, version, "", parts)
        outcome.say += [(member, begin) for member in book.members]

    def _handed_on(
        self, book: ExchangeBook, signature: Signature, version: int, unsettled: Unsettled
    ) -> tuple[RepairPart, ...]:
        """Return the parts that holders of the state send to each member that lacks some of it."""
        holders = {*book.members} - {*signature.receivers}

        def parts_for(receiver: int, lacks: Ranges) -> list[RepairPart]:
            found = self._transferring(holders, receiver, ranges.length(lacks), version)
            parts = []
            for source, places, plan in found:
                exchange, way = self._books.counter.next(), plans.dumps(plan)
                elements = ranges.places(lacks, places)
                parts.append(RepairPart(exchange, source, (receiver,), elements, way))
            # No holder has a way to the receiver and back: the part takes the trees of all members.
            if not found:
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
        """Restore an exchange that is held, and interrupt it.

        Args:
            channel, number: of the exchange.
            opened: the reports of the members that have not heard of its end.
            contributions: of exchanges that had been interrupted before the restart.
            outcome: takes the messages to members.
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
    """Return the members that have all of a result from the start; None if all contribute."""
    if signature.receivers:
        return {*members} - {*signature.receivers}
    return None if signature.source is None else {signature.source}
