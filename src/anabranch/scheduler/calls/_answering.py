"""Turns the answers of a book into messages to members. Pure.

An answer may end an exchange and so free room that exchanges of any channel wait for. One failure
can therefore lead to grants elsewhere: :meth:`Answering.use_room` asks each book.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from anabranch import plan as plans
from anabranch.exchange.terms import planned_elements
from anabranch.net.messages import ExchangeFailed, Gathered, GatherFailed, Grant, Message
from anabranch.scheduler.calls import _accounts as accounts
from anabranch.scheduler.calls._accounts import Name
from anabranch.scheduler.calls._answer import (
    Abandoned,
    AllGathered,
    Answer,
    Disagreement,
    Granted,
    MixedKinds,
    TakenBack,
)
from anabranch.scheduler.calls._books import Books
from anabranch.scheduler.calls._dealing import Dealing
from anabranch.scheduler.calls._following import Following
from anabranch.scheduler.calls._outcome import Began, Outcome
from anabranch.scheduler.calls._settling import Settling


class Answering:
    """Makes messages from answers.

    Args:
        name: returns a site's name for error messages.
        books: of all channels.
        dealing: cuts the buffers of exchanges that begin.
        following: the members that follow.
        settling: settles exchanges, and repairs them after a loss.
        repairs: whether exchanges are repaired; otherwise a loss ends the run.
    """

    def __init__(
        self,
        name: Name,
        books: Books,
        dealing: Dealing,
        following: Following,
        settling: Settling,
        repairs: bool,
    ) -> None:
        self._name = name
        self._books = books
        self._dealing = dealing
        self._following = following
        self._settling = settling
        self._repairs = repairs

    def answer(self, channel: int, answers: Iterable[Answer], outcome: Outcome) -> None:
        """Add the messages for a book's answers to an outcome, in order, and for grants elsewhere.

        Args:
            channel: of the book.
            answers: of the book.
            outcome: takes the messages.
        """
        frees_room = False
        for answer in answers:
            match answer:
                case Disagreement():
                    self._disagreement(channel, answer, outcome)
                case MixedKinds():
                    reason = accounts.of_mixed(answer, self._name)
                    given_up = self._books[channel].abandon_mixed(answer, reason)
                    self.answer(channel, given_up, outcome)
                case Abandoned():
                    self._abandoned(channel, answer, outcome)
                case AllGathered():
                    self._all_gathered(channel, answer, outcome)
                case Granted():
                    self._granted(channel, answer, outcome)
                case TakenBack():
                    self._dealing.forget(answer.exchange)
                    self._settling.take_back(channel, answer.number, outcome)
            frees_room |= isinstance(answer, Disagreement | MixedKinds | Abandoned | TakenBack)
        if frees_room:
            self.use_room(outcome)

    def give_up(self, channel: int, answers: Iterable[Abandoned], outcome: Outcome) -> None:
        """Add the messages for calls that cannot end; some may have no member left to tell."""
        self.answer(channel, answers, outcome)
        self._settling.forget_all_but(channel, self._books[channel].held)

    def use_room(self, outcome: Outcome) -> None:
        """Grant the exchanges of any channel that waited for room, after another has ended."""
        for channel, book in enumerate(self._books):
            self.answer(channel, book.grant(), outcome)

    def _disagreement(self, channel: int, answer: Disagreement, outcome: Outcome) -> None:
        self._forget(channel, answer.number, answer.exchange)
        reason = accounts.of_disagreement(answer, self._name)
        failed = ExchangeFailed(channel, answer.number, answer.exchange, reason)
        self._books[channel].knowledge.explain(answer.number, reason)
        outcome.say += [(member, failed) for member in answer.tell]

    def _abandoned(self, channel: int, answer: Abandoned, outcome: Outcome) -> None:
        failed: Message
        if answer.gathers:
            failed = GatherFailed(channel, answer.number, answer.reason)
        else:
            self._forget(channel, answer.number, answer.exchange)
            failed = ExchangeFailed(channel, answer.number, answer.exchange, answer.reason)
        outcome.say.append((answer.site, failed))

    def _forget(self, channel: int, number: int, exchange: int) -> None:
        """Forget an exchange that has failed."""
        self._dealing.forget(exchange)
        self._settling.drop(channel, number)
        if not channel:
            self._following.take(number)

    def _all_gathered(self, channel: int, answer: AllGathered, outcome: Outcome) -> None:
        members = self._books[channel].members
        if answer.admits:
            values = zip(members, answer.values, strict=True)
            outcome.admission = answer.number, frozenset(site for site, value in values if value)
            return
        gathered = Gathered(channel, answer.number, answer.values, members, answer.heard)
        outcome.say += [(member, gathered) for member in members]

    def _granted(self, channel: int, answer: Granted, outcome: Outcome) -> None:
        books, signature = self._books, answer.signature
        elements = planned_elements(signature)
        if answer.is_first:
            self._dealing.begin(answer, books[channel].members)
            books.largest_elements = max(books.largest_elements, elements)
            if self._repairs:
                followers: Collection[int] = ()
                if not channel:
                    followers = self._following.take(answer.number)
                self._settling.begin(channel, answer, followers)
                if answer.is_void:
                    self._dealing.stop_dispatching(answer.exchange)
                    self._settling.interrupt_one(channel, answer.number, outcome)
        if not answer.is_leased:
            outcome.say.append((answer.site, self._grant(channel, answer)))
        if answer.is_first:
            outcome.began.append(
                Began(channel, answer.number, answer.plan.version, answer.site, elements)
            )
        if answer.signature.receivers and answer.is_last:
            self._settling.transfer(channel, answer, outcome)

    def _grant(self, channel: int, answer: Granted) -> Grant:
        unsettled = self._settling.get(channel, answer.number)
        was_interrupted = unsettled is not None and unsettled.generation > 0
        return Grant(
            channel,
            answer.number,
            answer.exchange,
            answer.plan.version,
            plans.dumps(answer.plan) if answer.lacks else "",
            self._dealing.chunk_elements(answer.exchange),
            self._dealing.first(answer.exchange),
            unsettled is not None,
            bool(answer.signature.receivers) or was_interrupted,
            () if unsettled is None else tuple(sorted(unsettled.followers)),
            self._books.why_last(channel, answer.number) if self._books.tells_last else "",
            answer.attempt,
        )
