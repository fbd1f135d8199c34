"""What members exchange, gather and dispatch, for all sites and for some of them. Pure.

A channel is a set of members and the exchanges among them, numbered from 1; channel 0
is that of all sites.
Time is handed in; what is to be said, and to which site, is returned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from anabranch import plan as plans
from anabranch.net.errors import OutOfPlaceMessage, OversizedMessage
from anabranch.net.messages import (
    Dispatched,
    ExchangeEnded,
    ExchangeFailed,
    ExchangeRequest,
    Gather,
    Gathered,
    Grant,
    Message,
    NoMoreRounds,
    Progress,
    Subgrouped,
)
from anabranch.plan import Plan
from anabranch.scheduler.dispatch import Dispatcher
from anabranch.scheduler.exchanges import Counter, Disagreement, ExchangeBook, Granted
from anabranch.site.terms import Op, Terms, Wire

Dispatching = Callable[[Plan, int], tuple[int, int]]
"""How chunks are dispatched while an exchange goes on: called with the plan and the elements of the
buffer, returns how many chunks there are, and how many of them may be under way."""

Chunking = Callable[[Plan, int], int]
"""How finely buffers are cut: called with the plan and the elements of the buffer, returns the most
elements of a chunk."""

MOST_GATHERED_BYTES = 1 << 20
"""The largest value that a site may have gathered."""


@dataclass(frozen=True, slots=True)
class Began:
    """A member was the first to ask for an exchange, which fixed its plan version."""

    channel: int
    number: int
    version: int
    site: int
    elements: int


@dataclass(slots=True)
class Outcome:
    """What follows from a message.

    Attributes:
        say: what to say, and to which site, in order.
        began: exchanges that are held from now on.
        wrong: why the run must end; empty if it need not.
    """

    say: list[tuple[int, Message]] = field(default_factory=list)
    began: list[Began] = field(default_factory=list)
    wrong: str = ""


class Channels:
    """Every channel of a run.

    Args:
        name: makes a site's name for error messages.
        sites: how many there are.
        plan: the first plan of all of them.
        most_bytes: of buffers of exchanges under way at once.
        chunking: the most elements of a chunk, by the plan and the elements of the buffer.
        dispatching: how chunks are dispatched during an exchange; None deals all beforehand.
    """

    def __init__(
        self,
        name: Callable[[int], str],
        sites: int,
        plan: Plan,
        most_bytes: float,
        chunking: Chunking,
        dispatching: Dispatching | None,
    ) -> None:
        self._name = name
        self._chunking = chunking
        self._dispatching = dispatching
        self._counter = Counter(most_bytes)
        self._books = [ExchangeBook(range(sites), plan, self._counter)]
        self._subgroups: dict[tuple[int, ...], int] = {}
        self._dispatchers: dict[int, Dispatcher] = {}  # by exchange
        self._chunk_elements: dict[int, int] = {}  # by exchange
        self._gathering: dict[tuple[int, int], dict[int, bytes]] = {}
        self.largest_elements = 0

    @property
    def all(self) -> ExchangeBook:
        """The book of the exchanges of all sites."""
        return self._books[0]

    def issue(self, plan: Plan) -> None:
        """Let exchanges that no member has asked for yet run under this plan, or part of it."""
        for book in self._books:
            inside = plan if book is self.all else plans.restrict(plan, book.members)
            book.issue(inside)

    def close(self) -> None:
        """Hold no further exchange; those under way run to their end."""
        for book in self._books:
            book.close()

    def _book(self, site: int, channel: int) -> ExchangeBook:
        if not 0 <= channel < len(self._books) or site not in self._books[channel].members:
            raise OutOfPlaceMessage(f"{self._name(site)} is no member of channel {channel}")
        return self._books[channel]

    # --- exchanges

    def request(self, site: int, message: ExchangeRequest) -> Outcome:
        """Answer a site's request for an exchange."""
        book = self._book(site, message.channel)
        signature = message.signature
        if (
            signature.elements < 1
            or signature.op not in list(Op)
            or signature.wire not in list(Wire)
        ):
            raise OutOfPlaceMessage(f"{self._name(site)} asks to exchange {signature}")
        answers = book.request(site, message.number, signature)
        outcome = Outcome()
        if answers is None:
            outcome.say.append((site, NoMoreRounds(message.number)))
        else:
            self._answer(message.channel, book, answers, outcome)
        return outcome

    def _answer(
        self,
        channel: int,
        book: ExchangeBook,
        answers: tuple[Granted | Disagreement, ...],
        outcome: Outcome,
    ) -> None:
        for answer in answers:
            if isinstance(answer, Disagreement):
                self._forget(answer.exchange)
                reason = self._account(answer)
                failed = ExchangeFailed(channel, answer.number, answer.exchange, reason)
                outcome.say += [(member, failed) for member in book.members]
                continue
            if answer.is_first:
                elements = answer.signature.elements
                self._chunk_elements[answer.exchange] = self._chunking(answer.plan, elements)
                if self._dispatching is not None and answer.signature.source is None:
                    self._dispatchers[answer.exchange] = self._dispatcher(book, answer, elements)
                self.largest_elements = max(self.largest_elements, elements)
            dispatcher = self._dispatchers.get(answer.exchange)
            grant = Grant(
                channel,
                answer.number,
                answer.exchange,
                answer.plan.version,
                plans.dumps(answer.plan) if answer.lacks else "",
                self._chunk_elements[answer.exchange],
                None if dispatcher is None else dispatcher.first,
            )
            outcome.say.append((answer.site, grant))
            if answer.is_first:
                outcome.began.append(
                    Began(channel, answer.number, answer.plan.version, answer.site, elements)
                )

    def _forget(self, exchange: int) -> None:
        self._dispatchers.pop(exchange, None)
        self._chunk_elements.pop(exchange, None)

    def _dispatcher(self, book: ExchangeBook, granted: Granted, elements: int) -> Dispatcher:
        assert self._dispatching is not None
        chunks, window = self._dispatching(granted.plan, elements)
        shares = [tree.share for tree in granted.plan.trees]
        return Dispatcher(shares, book.members, chunks, window)

    def _account(self, disagreement: Disagreement) -> str:
        def what(index: int) -> str:
            site, asked = disagreement.sites[index], disagreement.signatures[index]
            terms = Terms(Op(asked.op), Wire(asked.wire), asked.elements, asked.source)
            return f"{self._name(site)} calls for a {terms}"

        return (
            f"{what(0)}, {what(1)}, as exchange {disagreement.number} of the same members; "
            "call the same exchanges in the same order at every site"
        )

    def ended(self, site: int, message: ExchangeEnded) -> Outcome:
        """Take note that a site holds a result."""
        book = self._book(site, message.channel)
        exchange = book.exchange(message.number) if book.is_held(message.number) else 0
        outcome = Outcome()
        outcome.wrong = book.ended(site, message.number, message.version, message.checksum) or ""
        if not book.is_held(message.number):
            self._forget(exchange)
            for channel, other in enumerate(self._books):
                self._answer(channel, other, other.grant(), outcome)
        return outcome

    def progress(self, site: int, message: Progress, now_s: float) -> Outcome:
        """Dispatch further chunks, as others have ended."""
        outcome = Outcome()
        dispatcher = self._dispatchers.get(message.exchange)
        if dispatcher is None:
            return outcome
        if trees := dispatcher.progress(site, message.finished, now_s):
            more = Dispatched(message.exchange, trees)
            outcome.say = [(member, more) for member in dispatcher.members]
        return outcome

    # --- some sites, and small values

    def subgroup(self, site: int, members: tuple[int, ...]) -> Outcome:
        """Answer a site that would exchange with some others.

        Raises:
            OutOfPlaceMessage: sites that cannot be, or without the one that asks.
        """
        sites = len(self.all.members)
        fits = all(0 <= each < sites for each in members) and members == tuple(sorted({*members}))
        if not fits or site not in members:
            raise OutOfPlaceMessage(f"{self._name(site)} asks for a subgroup of sites {members}")
        if members not in self._subgroups:
            self._subgroups[members] = len(self._books)
            plan = plans.restrict(self.all.plan, members)
            self._books.append(ExchangeBook(members, plan, self._counter))
        channel = self._subgroups[members]
        # Each member asks once, so each has the plan that was in force then, or gets a newer one.
        plan = self._books[channel].known_from_now(site)
        outcome = Outcome()
        outcome.say.append((site, Subgrouped(channel, members, plans.dumps(plan))))
        return outcome

    def gather(self, site: int, message: Gather) -> Outcome:
        """Take a site's small value; once all members' are here, hand them out.

        Raises:
            OutOfPlaceMessage: it has given one already.
            OversizedMessage: it is too large.
        """
        book = self._book(site, message.channel)
        if len(message.value) > MOST_GATHERED_BYTES:
            raise OversizedMessage(
                f"{self._name(site)} gathers {len(message.value)} bytes, at most "
                f"{MOST_GATHERED_BYTES} are allowed"
            )
        values = self._gathering.setdefault((message.channel, message.number), {})
        if site in values:
            raise OutOfPlaceMessage(f"{self._name(site)} gathers twice as {message.number}")
        values[site] = message.value
        outcome = Outcome()
        if len(values) == len(book.members):
            del self._gathering[message.channel, message.number]
            together = tuple(values[member] for member in book.members)
            gathered = Gathered(message.channel, message.number, together)
            outcome.say = [(member, gathered) for member in book.members]
        return outcome
