"""Restores the calls in a restarted scheduler, from the sites' reports. Pure.

Each site reports its calls under way, and the answers that others may lack. For each channel:

- an exchange that some member has begun is held again, interrupted, and so repaired (`_settling`);
- an exchange that members asked for and none has begun waits for its grant again;
- a call that has ended at one member ends at the others, with the same answer;
- a call that must fail fails for every member, with the same reason.

The book restores the places and numbers of the calls itself
(:meth:`anabranch.scheduler._exchanges.ExchangeBook.restore`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from anabranch.exchange.terms import planned_elements
from anabranch.net.errors import OutOfPlaceMessage
from anabranch.net.messages import (
    Admitted,
    ChannelSnapshot,
    Contribution,
    ExchangeFailed,
    Gathered,
    GatherFailed,
    Settled,
    SiteSnapshot,
    decode,
)
from anabranch.scheduler.calls._answer import Answer
from anabranch.scheduler.calls._answering import Answering
from anabranch.scheduler.calls._books import Books
from anabranch.scheduler.calls._dealing import Dealing
from anabranch.scheduler.calls._following import Following
from anabranch.scheduler.calls._outcome import Outcome
from anabranch.scheduler.calls._settling import Settling


class Restoring:
    """Restores the books of all channels, which are open already.

    Args:
        books: of all channels.
        dealing, following, settling, answering: the parts that keep calls under way.
    """

    def __init__(
        self,
        books: Books,
        dealing: Dealing,
        following: Following,
        settling: Settling,
        answering: Answering,
    ) -> None:
        self._books = books
        self._dealing = dealing
        self._following = following
        self._settling = settling
        self._answering = answering

    def restore(
        self,
        snapshots: Mapping[int, SiteSnapshot],
        contributions: Mapping[tuple[int, int], Collection[Contribution]],
    ) -> Outcome:
        """Restore all calls from the sites' reports.

        Args:
            snapshots: each member's report; the caller declares the silent ones lost next.
            contributions: of exchanges that had been interrupted before the restart.
        """
        outcome = Outcome()
        for channel, book in enumerate(self._books):
            said = {
                site: each
                for site, snapshot in snapshots.items()
                for each in snapshot.channels
                if each.channel == channel and site in book.members
            }
            unaware = {*snapshots}.intersection(book.members) - said.keys()
            answers = self._restore_book(channel, said, unaware, outcome)
            self._take_up(channel, said, contributions, outcome)
            if not channel:
                follow = [site for site in said if snapshots[site].follows]
                outcome.say += self._following.restore(said, follow)
            self._answering.answer(channel, (*answers, *book.grant()), outcome)
        return outcome

    def _restore_book(
        self,
        channel: int,
        said: Mapping[int, ChannelSnapshot],
        unaware: Collection[int],
        outcome: Outcome,
    ) -> tuple[Answer, ...]:
        """Restore a book; repeat the answers that some members have not heard."""
        book = self._books[channel]
        failed: dict[int, str] = {}
        settled: dict[int, Settled] = {}
        gathered: dict[int, Gathered | GatherFailed | Admitted] = {}
        for snapshot in said.values():
            for encoded in snapshot.answers:
                match answer := decode(encoded):
                    case ExchangeFailed():
                        failed[answer.number] = answer.reason
                    case Settled():
                        settled[answer.number] = answer
                    case Gathered() | GatherFailed() | Admitted():
                        gathered[answer.number] = answer
                    case _:
                        raise OutOfPlaceMessage(f"a {type(answer).__name__} as an answer")
        for site, snapshot in said.items():
            for exchange in snapshot.exchanges:
                if exchange.number in settled:
                    outcome.say.append((site, settled[exchange.number]))
                elif exchange.number not in failed and not book.end.holds(exchange.number):
                    outcome.say.append((site, self._books.refusal(channel, exchange.number)))
            for gathering in snapshot.gatherings:
                for answer in gathered.values():
                    is_admitted = isinstance(answer, Admitted) and site in answer.newcomers
                    if answer.number == gathering.number or (not gathering.number and is_admitted):
                        outcome.say.append((site, answer))
        return book.restore(said, failed, settled, gathered, unaware)

    def _take_up(
        self,
        channel: int,
        said: Mapping[int, ChannelSnapshot],
        contributions: Mapping[tuple[int, int], Collection[Contribution]],
        outcome: Outcome,
    ) -> None:
        """Interrupt the held exchanges, so that they are repaired."""
        books = self._books
        for number in books[channel].held.numbers:
            held = books[channel].held[number]
            opened = [
                each for one in said.values() for each in one.exchanges if each.number == number
            ]
            granted = [each for each in opened if each.exchange]
            self._dealing.restore(held.exchange, granted[0].chunk_elements)
            self._settling.restore(channel, number, opened, contributions, outcome)
            elements = planned_elements(held.signature)
            books.largest_elements = max(books.largest_elements, elements)
