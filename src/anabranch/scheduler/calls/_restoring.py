"""How a scheduler that was started again takes up the calls from what sites say of them. Pure.

What is under way is interrupted and completed, as where something is lost; what has ended at one
member ends at the others, in the words that it was told in. All else a book restores itself
(:meth:`anabranch.scheduler._exchanges.ExchangeBook.restore`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from anabranch.net.errors import OutOfPlaceMessage
from anabranch.net.messages import (
    Admitted,
    ChannelStanding,
    Contribution,
    ExchangeFailed,
    Gathered,
    GatherFailed,
    Settled,
    Standing,
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
        dealing, following, settling, answering: to take up what was under way.
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
        standings: Mapping[int, Standing],
        contributions: Mapping[tuple[int, int], Collection[Contribution]],
    ) -> Outcome:
        """Go on from what sites say of their calls.

        Args:
            standings: what each member says; those that say nothing are to be lost next.
            contributions: as they were, of exchanges that had been interrupted before.
        """
        outcome = Outcome()
        for channel, book in enumerate(self._books):
            said = {
                site: each
                for site, standing in standings.items()
                for each in standing.channels
                if each.channel == channel and site in book.members
            }
            unaware = {*standings}.intersection(book.members) - said.keys()
            answers = self._restore_book(channel, said, unaware, outcome)
            self._take_up(channel, said, contributions, outcome)
            if not channel:
                follow = [site for site in said if standings[site].follows]
                outcome.say += self._following.restore(said, follow)
            self._answering.answer(channel, (*answers, *book.grant()), outcome)
        return outcome

    def _restore_book(
        self,
        channel: int,
        said: Mapping[int, ChannelStanding],
        unaware: Collection[int],
        outcome: Outcome,
    ) -> tuple[Answer, ...]:
        """Restore a book; say again what not all have heard."""
        book = self._books[channel]
        failed: dict[int, str] = {}
        settled: dict[int, Settled] = {}
        gathered: dict[int, Gathered | GatherFailed | Admitted] = {}
        for standing in said.values():
            for encoded in standing.answers:
                match answer := decode(encoded):
                    case ExchangeFailed():
                        failed[answer.number] = answer.reason
                    case Settled():
                        settled[answer.number] = answer
                    case Gathered() | GatherFailed() | Admitted():
                        gathered[answer.number] = answer
                    case _:
                        raise OutOfPlaceMessage(f"a {type(answer).__name__} as an answer")
        for site, standing in said.items():
            for exchange in standing.exchanges:
                if exchange.number in settled:
                    outcome.say.append((site, settled[exchange.number]))
                elif exchange.number not in failed and not book.end.holds(exchange.number):
                    outcome.say.append((site, self._books.refusal(channel, exchange.number)))
            for gathering in standing.gatherings:
                for answer in gathered.values():
                    is_let_in = isinstance(answer, Admitted) and site in answer.newcomers
                    if answer.number == gathering.number or (not gathering.number and is_let_in):
                        outcome.say.append((site, answer))
        return book.restore(said, failed, settled, gathered, unaware)

    def _take_up(
        self,
        channel: int,
        said: Mapping[int, ChannelStanding],
        contributions: Mapping[tuple[int, int], Collection[Contribution]],
        outcome: Outcome,
    ) -> None:
        """Interrupt the exchanges that are held, so that they are completed."""
        books = self._books
        for number in books[channel].held.numbers:
            held = books[channel].held[number]
            opened = [
                each for one in said.values() for each in one.exchanges if each.number == number
            ]
            granted = [each for each in opened if each.exchange]
            self._dealing.restore(held.exchange, granted[0].chunk_elements)
            self._settling.restore(channel, number, opened, contributions, outcome)
            books.largest_elements = max(books.largest_elements, held.signature.elements)
