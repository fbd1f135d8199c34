"""What members exchange, gather and dispatch, for all sites and for some of them. Pure.

A channel is a set of members and the exchanges among them, numbered from 1; channel 0
is that of all sites.
Time is handed in; what is to be said, and to which site, is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from anabranch import plan as plans
from anabranch.net.errors import OutOfPlaceMessage, OversizedMessage
from anabranch.net.messages import (
    MOST_GATHERED_BYTES,
    MOST_NAME_CHARACTERS,
    NO_MESSAGE,
    Admitted,
    Awaited,
    Called,
    ChannelStanding,
    Contribution,
    Dispatched,
    ExchangeEnded,
    ExchangeFailed,
    ExchangeRequest,
    Gather,
    Gathered,
    GatherFailed,
    Grant,
    Holding,
    Interrupt,
    Message,
    ModelsDiffer,
    NoMoreRounds,
    Progress,
    Repair,
    RepairPart,
    Settled,
    Signature,
    Standing,
    Subgrouped,
    Unfit,
    decode,
)
from anabranch.plan import Plan
from anabranch.scheduler.dispatch import Dispatcher
from anabranch.scheduler.exchanges import (
    Abandoned,
    Answer,
    Counter,
    Disagreement,
    ExchangeBook,
    Granted,
    Kind,
    Made,
    Mixed,
    Whole,
)
from anabranch.scheduler.models import Models
from anabranch.scheduler.plans_by_size import PlansBySize
from anabranch.scheduler.repair import Unsettled
from anabranch.scheduler.waits import Stall
from anabranch.site import ranges
from anabranch.site.ranges import Ranges
from anabranch.site.terms import Op, Terms, Wire

Transferring = Callable[[Collection[int], int, int, int], Sequence[tuple[int, Ranges, Plan]]]
"""Who sends what to a site that has nothing of what others have: called with those, that site, the
elements and the version of plans; returns what :func:`anabranch.scheduler.transfer.shares` does."""

Dispatching = Callable[[Plan, int], tuple[int, int]]
"""How chunks are dispatched while an exchange goes on: called with the plan and the elements of the
buffer, returns how many chunks there are, and how many of them may be under way."""

Chunking = Callable[[Plan, int], int]
"""How finely buffers are cut: called with the plan and the elements of the buffer, returns the most
elements of a chunk."""

_ANSWERS = ExchangeFailed, Settled, Gathered, GatherFailed, Admitted


@dataclass(frozen=True, slots=True)
class Began:
    """A member was the first to ask for an exchange, which fixed its plan version."""

    channel: int
    number: int
    version: int
    site: int
    elements: int


@dataclass(frozen=True, slots=True)
class Repaired:
    """An exchange is settled that had been interrupted.

    Args:
        channel, number: which.
        members: who has its result.
        reduced, spread: how many elements were reduced again, and how many came from a holder.
        interrupted: how many times.
    """

    channel: int
    number: int
    members: tuple[int, ...]
    reduced: int
    spread: int
    interrupted: int


_Asked = tuple[tuple[int, ...], str]  # a subgroup's members, and its name


@dataclass(frozen=True, slots=True)
class Subgroup:
    """A channel of some sites.

    Args:
        members: who asked for it.
        name: that tells it from others of the same members.
        inside: of those, who is not lost.
        is_current: whether who asks for these members now gets this channel.
    """

    members: tuple[int, ...]
    name: str
    inside: tuple[int, ...]
    is_current: bool


@dataclass(slots=True)
class Outcome:
    """What follows from a message.

    Attributes:
        repaired: exchanges that are settled and had been interrupted.
        say: what to say, and to which site, in order.
        began: exchanges that are held from now on.
        wrong: why the run must end; empty if it need not.
        mended: whether what is said completes an exchange that was interrupted.
        admission: the gathering by which all members let further ones in, and which of them have
            the state of training; None for none.
    """

    say: list[tuple[int, Message]] = field(default_factory=list)
    began: list[Began] = field(default_factory=list)
    repaired: list[Repaired] = field(default_factory=list)
    wrong: str = ""
    mended: bool = False
    admission: tuple[int, frozenset[int]] | None = None


class Channels:
    """Every channel of a run.

    Args:
        name: makes a site's name for error messages.
        sites: how many there are.
        plan: the first plan of all of them.
        most_bytes: of buffers of exchanges under way at once.
        chunking: the most elements of a chunk, by the plan and the elements of the buffer.
        dispatching: how chunks are dispatched during an exchange; None deals all beforehand.
        repairs: whether exchanges are completed without a site or a link that is lost.
        transferring: how members hand their state to further ones.
        by_size: whether each order of size of buffers has a plan of its own.

    Attributes:
        results: how many exchanges have a result that a member holds.
        result_bytes: of their buffers, as they travel.
        incomplete: how many results lack contributions of members.
        followers: members that contribute nothing to the exchanges of all sites that are called
            for now, as they have yet to get the state of training.
    """

    def __init__(
        self,
        name: Callable[[int], str],
        sites: int,
        plan: Plan,
        most_bytes: float,
        chunking: Chunking,
        dispatching: Dispatching | None,
        repairs: bool = False,
        transferring: Transferring = lambda holders, receiver, elements, version: (),
        by_size: bool = False,
    ) -> None:
        self._sites = sites
        self._transferring = transferring
        self._repairs = repairs
        self._unsettled: dict[tuple[int, int], Unsettled] = {}  # by channel and number
        self._name = name
        self._chunking = chunking
        self._dispatching = dispatching
        self._counter = Counter(most_bytes)
        self._books = [ExchangeBook(range(sites), PlansBySize(plan, by_size), self._counter)]
        self._subgroups: dict[_Asked, int] = {}
        self._memberships: list[_Asked] = []  # of channels from 1 on, as they began
        self._dispatchers: dict[int, Dispatcher] = {}  # by exchange
        self._chunk_elements: dict[int, int] = {}  # by exchange
        self._gone: set[int] = set()  # sites that have left
        self._lost: set[int] = set()  # and that are lost
        # Subgroups that each site asked for, in order.
        self._asked: dict[int, list[_Asked]] = {}
        self.largest_elements = 0
        self.results = 0
        self.result_bytes = 0
        self.incomplete = 0
        self.followers: set[int] = set()
        self._why_closed = ""
        self._will_follow = False  # those that the state is handed to next
        self._transfers: list[int] = []  # exchanges of all sites that hand the state on
        # Those of exchanges of all sites that were called for and have not begun, by number.
        self._followers_of: dict[int, frozenset[int]] = {}
        self._called_for: dict[int, int] = {}  # by channel: the latest that members were called to
        self._models: dict[int, Models] = {}  # by channel

    @property
    def all(self) -> ExchangeBook:
        """The book of the exchanges of all sites."""
        return self._books[0]

    def issue(self, plan: Plan) -> None:
        """Let exchanges that no member has asked for yet run under this plan, or part of it."""
        for book in self._books:
            if book.members:
                book.issue(_part(plan, book.members), self.largest_elements)

    def add(self, plan: Plan, elements: int) -> Outcome:
        """Let buffers of a further order of size have this plan, which may be in use already."""
        outcome = Outcome()
        for book in self._books:
            if book.members:
                book.plans.add(_part(plan, book.members), elements)
        self._use_room(outcome)
        return outcome

    @property
    def unplanned(self) -> list[int]:
        """The elements of buffers whose exchanges wait until they are planned for."""
        return sorted(set().union(*(book.unplanned for book in self._books)))

    @property
    def main(self) -> Plan:
        """The plan of all sites for the largest buffers so far."""
        return self.all.plans.of(self.largest_elements) or self.all.plan

    def stalls(self) -> list[Stall]:
        """Return the next call of each member that has not made a call which others have."""
        found = []
        for channel, book in enumerate(self._books):
            calls = {member: book.calls(member) for member in book.members}
            for place, kind in book.begun.items():
                waiting = frozenset(site for site, made in calls.items() if made >= place)
                found += [
                    Stall((channel, place), site, waiting, self._call(channel, place, kind))
                    for site, made in calls.items()
                    if made == place - 1
                ]
        return found

    def _call(self, channel: int, place: int, kind: Kind) -> str:
        name = {Kind.EXCHANGE: "an exchange", Kind.GATHER: "a gathering", Kind.ADMIT: "admit"}
        call = f"call {place} ({name[kind]})"
        if not channel:
            return call
        return f"{call} of the subgroup {', '.join(map(self._name, self._books[channel].members))}"

    def close(self, reason: str) -> None:
        """Hold no further exchange; those under way run to their end.

        Args:
            reason: why, for sites that ask for one.
        """
        self._why_closed = reason
        for book in self._books:
            book.close()

    @property
    def lasts(self) -> tuple[int, ...]:
        """By channel, the last exchange that is held; empty where more may follow."""
        return tuple(book.last for book in self._books if book.last is not None)

    def _book(self, site: int, channel: int) -> ExchangeBook:
        if not 0 <= channel < len(self._books) or site not in self._books[channel].members:
            raise OutOfPlaceMessage(f"{self._name(site)} is no member of channel {channel}")
        return self._books[channel]

    # --- exchanges

    def request(self, site: int, message: ExchangeRequest | Unfit) -> Outcome:
        """Answer a site's request for an exchange, to which it may have nothing to contribute."""
        book = self._book(site, message.channel)
        signature = message.signature
        self._check(site, signature)
        is_first = message.number > book.latest
        if is_first and book is self.all and signature.receivers:
            self._transfers.append(message.number)
        book.has_followers = book is self.all and bool(self.followers)
        outcome = Outcome()
        if isinstance(message, Unfit):
            refusal = f"{self._name(site)} has {message.why}"
        else:
            refusal = self._compare_models(site, message, outcome)
        answers = book.request(site, message.number, signature, refusal)
        if answers is None:
            outcome.say.append((site, NoMoreRounds(message.number, self._why_closed)))
            return outcome
        if is_first and book is self.all and signature.receivers and self._will_follow:
            self._will_follow = False
            self.followers |= {*signature.receivers} & {*book.members}
        elif is_first and book is self.all and self.followers:
            self._followers_of[message.number] = frozenset(self.followers)
            self._let_follow(site, message.number, signature, outcome)
        self._answer(message.channel, book, answers, outcome)
        calls = isinstance(message, ExchangeRequest) and message.calls
        if calls and message.number > self._called_for.get(message.channel, 0):
            self._called_for[message.channel] = message.number
            awaited = Awaited(message.channel, message.number)
            outcome.say += [(member, awaited) for member in book.members if member != site]
        return outcome

    def _compare_models(self, site: int, message: ExchangeRequest, outcome: Outcome) -> str:
        """Compare members' models once all have asked; return why the exchange fails, if it does.

        That models which were alike have parted is said to the members, and nothing fails.
        """
        models = self._models.setdefault(message.channel, Models(self._name))
        models.hear(message.number, site, message.model)
        book = self._books[message.channel]
        if not book.is_last_to_ask(site, message.number):
            return ""
        unlike = models.compare(message.number)
        if unlike is None:
            return ""
        if unlike.is_first:
            return unlike.reason
        outcome.say += [(member, ModelsDiffer(unlike.reason)) for member in book.members]
        return ""

    def round_of(self, number: int) -> int | None:
        """Return which round an exchange of all sites is; None where it hands the state on.

        Rounds are counted from 1. What a scheduler that was started again has not seen counts.
        """
        if number in self._transfers:
            return None
        return number - sum(transfer < number for transfer in self._transfers)

    def _let_follow(
        self, site: int, number: int, signature: Signature | None, outcome: Outcome
    ) -> None:
        """Tell members that follow of a call that a site was the first to make."""
        called = Called(number, self.all.calls(site), signature)
        source = None if signature is None else signature.source
        outcome.say += [(each, called) for each in sorted(self.followers - {site, source})]

    @property
    def is_busy(self) -> bool:
        """Whether members follow, or exchanges are under way: no further site is let in then."""
        return bool(self.followers) or any(book.exchanges for book in self._books)

    def _answer(
        self,
        channel: int,
        book: ExchangeBook,
        answers: Iterable[Answer],
        outcome: Outcome,
    ) -> None:
        failed_any = False
        for answer in answers:
            failed_any |= isinstance(answer, Disagreement | Mixed | Abandoned)
            if isinstance(answer, Disagreement):
                self._followers_of.pop(answer.number if book is self.all else 0, None)
                self._forget(answer.exchange)
                self._unsettled.pop((channel, answer.number), None)
                reason = self._account(answer)
                failed = ExchangeFailed(channel, answer.number, answer.exchange, reason)
                book.explain(answer.number, reason)
                outcome.say += [(member, failed) for member in answer.tell]
            elif isinstance(answer, Mixed):
                given_up = book.abandon_mixed(answer, self._account_of_mixed(answer))
                self._answer(channel, book, given_up, outcome)
            elif isinstance(answer, Abandoned):
                self._forget(answer.exchange)
                if not answer.gathers:
                    self._followers_of.pop(answer.number if book is self.all else 0, None)
                    self._unsettled.pop((channel, answer.number), None)
                outcome.say.append((answer.site, _failure(channel, answer)))
            elif isinstance(answer, Whole) and answer.admits:
                values = zip(book.members, answer.values, strict=True)
                holders = frozenset(member for member, value in values if value)
                outcome.admission = answer.number, holders
            elif isinstance(answer, Whole):
                gathered = Gathered(
                    channel, answer.number, answer.values, tuple(book.members), answer.heard
                )
                outcome.say += [(member, gathered) for member in book.members]
            else:
                self._grant(channel, book, answer, outcome)
        if failed_any:
            self._use_room(outcome)

    def _use_room(self, outcome: Outcome) -> None:
        """Grant what waited for an exchange that has ended, on whichever channel."""
        for channel, book in enumerate(self._books):
            self._answer(channel, book, book.grant(), outcome)

    def _grant(self, channel: int, book: ExchangeBook, answer: Granted, outcome: Outcome) -> None:
        if answer.is_first:
            elements = answer.signature.elements
            self._chunk_elements[answer.exchange] = self._chunking(answer.plan, elements)
            source, receivers = answer.signature.source, answer.signature.receivers
            if self._dispatching is not None and source is None and not receivers:
                self._dispatchers[answer.exchange] = self._dispatcher(book, answer, elements)
            self.largest_elements = max(self.largest_elements, elements)
            if self._repairs:
                sources = _sources(answer.signature, book.members)
                followers: Collection[int] = ()
                if book is self.all:
                    followers = self._followers_of.pop(answer.number, ())
                self._unsettled[channel, answer.number] = Unsettled(
                    answer.exchange, elements, book.members, sources, followers
                )
        dispatcher = self._dispatchers.get(answer.exchange)
        unsettled = self._unsettled.get((channel, answer.number))
        grant = Grant(
            channel,
            answer.number,
            answer.exchange,
            answer.plan.version,
            plans.dumps(answer.plan) if answer.lacks else "",
            self._chunk_elements[answer.exchange],
            None if dispatcher is None else dispatcher.first,
            unsettled is not None,
            bool(answer.signature.receivers)
            or (unsettled is not None and unsettled.generation > 0),
            () if unsettled is None else tuple(sorted(unsettled.followers)),
        )
        outcome.say.append((answer.site, grant))
        if answer.is_first:
            outcome.began.append(
                Began(channel, answer.number, answer.plan.version, answer.site, elements)
            )
        if answer.signature.receivers and answer.is_last:
            assert unsettled is not None  # transfers are repaired like all else
            self._transfer(channel, book, answer, unsettled, outcome)

    def _transfer(
        self,
        channel: int,
        book: ExchangeBook,
        granted: Granted,
        unsettled: Unsettled,
        outcome: Outcome,
    ) -> None:
        """Say who sends which part of a buffer to those that have none of it."""
        if unsettled.generation:
            return  # something was lost before all had asked: it is said once all have answered
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
                exchange, way = self._counter.next(), plans.dumps(plan)
                elements = ranges.places(lacks, places)
                parts.append(RepairPart(exchange, source, (receiver,), elements, way))
            if not found:  # no holder reaches it and is reached: over the trees of all
                everyone = self._counter.next(), min(holders), (receiver,)
                parts.append(RepairPart(*everyone, lacks))
            return parts

        return unsettled.hand_on(parts_for)

    def _check(self, site: int, signature: Signature) -> None:
        if (
            signature.elements < 1
            or signature.op not in list(Op)
            or signature.wire not in list(Wire)
            or (signature.receivers and not self._may_be_transfer(signature))
        ):
            raise OutOfPlaceMessage(f"{self._name(site)} asks to exchange {signature}")

    def check(self, site: int, standing: Standing) -> None:
        """Check what a site says of its calls after a restart.

        Raises:
            OutOfPlaceMessage: a call that cannot be, or what is no answer to one.
        """
        for channel in standing.channels:
            counts: tuple[int, ...] = channel.asked, channel.gathered, channel.version
            for exchange in channel.exchanges:
                self._check(site, exchange.signature)
                numbers = exchange.number, exchange.place, exchange.chunk_elements
                counts = *counts, *numbers, exchange.generation, exchange.exchange
                counts = *counts, *exchange.followers
            for encoded in channel.answers:
                try:
                    is_answer = isinstance(decode(encoded), _ANSWERS)
                except NO_MESSAGE:
                    is_answer = False
                if not is_answer:
                    raise OutOfPlaceMessage(f"{self._name(site)} tells of an answer that is none")
            if min(counts) < 0:
                raise OutOfPlaceMessage(f"{self._name(site)} says that it stands at {counts}")

    def _may_be_transfer(self, signature: Signature) -> bool:
        receivers = signature.receivers
        fits = receivers == tuple(sorted({*receivers})) and receivers[0] >= 0
        return (
            self._repairs
            and fits
            and receivers[-1] < self._sites
            and signature.op == Op.COPY
            and signature.source is None
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
            return f"{self._name(site)} calls for a {_terms(asked)}"

        return (
            f"{what(0)}, {what(1)}, as exchange {disagreement.number} of the same members; "
            "call the same exchanges in the same order at every site"
        )

    def _account_of_mixed(self, mixed: Mixed) -> str:
        def does(made: Made) -> str:
            if isinstance(made.what, Signature):
                return f"exchanges a {_terms(made.what)}"
            if made.kind == Kind.ADMIT:
                return "lets others in (admit)"
            return f"gathers ({made.what or 'all_gather or barrier'})"

        made = " and ".join(f"{self._name(each.site)} {does(each)}" for each in mixed.made)
        return (
            f"{made} as call {mixed.call} of the same members; make the same calls in the same "
            "order at every site"
        )

    def leave(self, site: int) -> Outcome:
        """Take note that a site makes no further call: what needs it cannot end."""
        self._gone.add(site)
        outcome = Outcome()
        for channel, book in enumerate(self._books):
            if site in book.members:
                self._answer(channel, book, book.leave(site, self._absence(site)), outcome)
        return outcome

    def _absence(self, site: int) -> str:
        return f"{self._name(site)} has left, and not made this call"

    def ended(self, site: int, message: ExchangeEnded) -> Outcome:
        """Take note that a site holds a result."""
        book = self._book(site, message.channel)
        exchange = book.exchange(message.number) if book.is_held(message.number) else 0
        outcome = Outcome()
        awaited = book.awaited_result(message.number)
        outcome.wrong = book.ended(site, message.number, message.version, message.checksum) or ""
        if awaited is not None and not awaited.receivers:
            self.results += 1
            self.result_bytes += Wire(awaited.wire).item_bytes * awaited.elements
        if not book.is_held(message.number):
            self._forget(exchange)
            self._use_room(outcome)
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

    # --- after a restart

    @property
    def subgroups(self) -> tuple[Subgroup, ...]:
        """Every channel but that of all sites, in the order of their numbers."""
        return tuple(
            Subgroup(*asked, book.members, self._subgroups.get(asked) == channel)
            for channel, (asked, book) in enumerate(
                zip(self._memberships, self._books[1:], strict=True), 1
            )
        )

    @property
    def latest_exchange(self) -> int:
        """The highest number that an exchange's chunks carry."""
        return self._counter.latest

    @property
    def contributions(self) -> dict[tuple[int, int], tuple[Contribution, ...]]:
        """Whose contributions are in exchanges that were interrupted, by channel and number."""
        return {
            key: unsettled.contributions
            for key, unsettled in self._unsettled.items()
            if unsettled.generation
        }

    def restore(
        self,
        standings: Mapping[int, Standing],
        lost: Collection[int],
        subgroups: Sequence[Subgroup],
        latest_exchange: int,
        contributions: Mapping[tuple[int, int], Collection[Contribution]],
        lasts: Sequence[int] = (),
        why_closed: str = "",
    ) -> Outcome:
        """Go on from what sites say of their calls, where what was known of them is lost.

        What is under way is interrupted and completed, as where something is lost; what has ended
        at one member ends at the others.

        Args:
            standings: what each member says; those that say nothing are to be lost next.
            lost: sites that are no members.
            subgroups: the channels from 1 on.
            latest_exchange: no exchange before had a higher number.
            contributions: as they were, of exchanges that had been interrupted before.
            lasts: by channel, the last exchange that is held, where that was decided before.
            why_closed: why no further one is.
        """
        self._why_closed = why_closed
        outcome = Outcome()
        self._counter.latest = latest_exchange
        self._lost.update(lost)
        if lost:
            self.all.lose(*lost)
        for each in subgroups:
            self._open((each.members, each.name), each.inside)
        self._subgroups = {
            (each.members, each.name): channel
            for channel, each in enumerate(subgroups, 1)
            if each.is_current
        }
        for book, last in zip(self._books, lasts, strict=False):  # others are open
            book.close(last)
        for channel, book in enumerate(self._books):
            said = {
                site: each
                for site, standing in standings.items()
                for each in standing.channels
                if each.channel == channel and site in book.members
            }
            answers = self._restore_book(channel, book, said, outcome)
            for number, (exchange, signature) in book.held.items():
                opened = [
                    each for one in said.values() for each in one.exchanges if each.number == number
                ]
                granted = [each for each in opened if each.exchange]
                self._chunk_elements[exchange] = granted[0].chunk_elements
                sources = _sources(signature, book.members)
                unsettled = Unsettled(
                    *(exchange, signature.elements, book.members, sources),
                    {site for each in granted for site in each.followers},
                )
                generation = max(each.generation for each in opened)
                unsettled.restore(generation, contributions.get((channel, number), ()))
                unsettled.interrupt(book.members)
                self._unsettled[channel, number] = unsettled
                voided = tuple(sorted({each for one in opened for each in one.running}))
                interrupt = Interrupt(channel, number, unsettled.generation, voided)
                outcome.say += [(member, interrupt) for member in book.members]
                self.largest_elements = max(self.largest_elements, signature.elements)
            if book is self.all:
                self._restore_followers(said, standings, outcome)
            self._answer(channel, book, (*answers, *book.grant()), outcome)
        return outcome

    def _restore_followers(
        self,
        said: Mapping[int, ChannelStanding],
        standings: Mapping[int, Standing],
        outcome: Outcome,
    ) -> None:
        """Take note who follows, and tell those again of calls that others have made."""
        self.followers = {site for site in said if standings[site].follows}
        made: dict[int, Called] = {}  # by place
        for each in said.values():
            for exchange in each.exchanges:
                if exchange.exchange or exchange.signature.receivers:
                    continue
                follows = {*exchange.followers} | self.followers
                before = self._followers_of.get(exchange.number, frozenset())
                self._followers_of[exchange.number] = before | follows
            made |= {
                one.place: Called(one.number, one.place, one.signature)
                for one in each.exchanges
                if not one.signature.receivers
            }
            made |= {
                one.place: Called(one.number, one.place, None)
                for one in each.gatherings
                if one.admits and one.number
            }
        for number in self.all.held:
            self._followers_of.pop(number, None)
        for site in sorted(self.followers):
            outcome.say += [
                (site, called)
                for place, called in sorted(made.items())
                if place > self.all.calls(site)
                and (called.signature is None or called.signature.source != site)
            ]

    def _restore_book(
        self,
        channel: int,
        book: ExchangeBook,
        said: Mapping[int, ChannelStanding],
        outcome: Outcome,
    ) -> tuple[Answer, ...]:
        """Restore a book; say again what not all have heard."""
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
                elif exchange.number not in failed and not book.holds(exchange.number):
                    outcome.say.append((site, NoMoreRounds(exchange.number, self._why_closed)))
            for gathering in standing.gatherings:
                for answer in gathered.values():
                    is_let_in = isinstance(answer, Admitted) and site in answer.newcomers
                    if answer.number == gathering.number or (not gathering.number and is_let_in):
                        outcome.say.append((site, answer))
        return book.restore(said, failed, settled, gathered)

    # --- what is lost

    def members(self, channel: int) -> tuple[int, ...]:
        """Return who takes part in a channel; none if there is no such one."""
        return self._books[channel].members if 0 <= channel < len(self._books) else ()

    def awaiting(self, site: int) -> list[int]:
        """Return the channels in which another member has made a call that this one has not."""
        return [channel for channel, book in enumerate(self._books) if book.awaits(site)]

    def lose(self, sites: Collection[int], plan: Plan) -> Outcome:
        """Go on without some sites, or links: interrupt what they may be part of.

        Args:
            sites: that are lost; none, where links are.
            plan: without them; its version follows that of the one in force.
        """
        outcome = Outcome()
        self._lost.update(sites)
        self.followers.difference_update(sites)
        answers: list[tuple[int, tuple[Answer, ...]]] = []
        for channel, book in enumerate(self._books):
            if inside := set(book.members) - self._lost:
                part = plan if book is self.all else plans.restrict(plan, inside)
                book.issue(part, self.largest_elements)
            gone = [site for site in book.members if site in self._lost]
            if gone:
                answers.append((channel, book.lose(*gone)))
        held = set().union(*(book.exchanges for book in self._books))
        for exchange in self._chunk_elements.keys() - held:
            self._forget(exchange)
        for (channel, number), unsettled in list(self._unsettled.items()):
            book = self._books[channel]
            for exchange in unsettled.exchanges:
                self._dispatchers.pop(exchange, None)
            if not book.members:
                del self._unsettled[channel, number]
                continue
            voided = unsettled.exchanges
            unsettled.interrupt(book.members)
            interrupt = Interrupt(channel, number, unsettled.generation, voided)
            outcome.say += [(member, interrupt) for member in book.members]
        for channel, several in answers:
            self._answer(channel, self._books[channel], several, outcome)
        self._use_room(outcome)
        return outcome

    def hold(self, site: int, message: Holding) -> Outcome:
        """Take note of what a site holds of an exchange's result."""
        outcome = Outcome()
        key = message.channel, message.number
        unsettled = self._unsettled.get(key)
        if unsettled is None or site in self._lost:
            return outcome  # it has failed meanwhile, or the site has left
        book = self._book(site, message.channel)
        elements = unsettled.contributions[-1].stop
        if any(not 0 <= start < stop <= elements for start, stop in message.held):
            raise OutOfPlaceMessage(f"{self._name(site)} holds elements {message.held}")
        if unsettled.hear(site, message.generation, ranges.union(message.held)):
            self._mend(book, message, unsettled, outcome)
        elif unsettled.is_settled:
            del self._unsettled[key]
            told = () if unsettled.is_whole else unsettled.contributions
            self.incomplete += bool(told)
            settled = Settled(*key, book.members, told)
            outcome.say += [(member, settled) for member in book.members]
            if unsettled.generation:
                outcome.repaired.append(
                    Repaired(*key, book.members, *unsettled.repaired, unsettled.generation)
                )
        return outcome

    def _mend(
        self, book: ExchangeBook, message: Holding, unsettled: Unsettled, outcome: Outcome
    ) -> None:
        channel, number = message.channel, message.number
        _, signature = book.held[number]
        way = book.plans.of(signature.elements) or book.plan
        parts: tuple[RepairPart, ...] | None
        if {*book.members} - {*signature.receivers} and signature.receivers:
            parts = self._handed_on(book, signature, way.version, unsettled)
        else:
            parts = unsettled.mend(self._counter.next)
        if parts is None:
            reason = "all sites that contributed are lost"
            if unsettled.sources is not None:
                lost = ", ".join(map(self._name, sorted(unsettled.sources - {*book.members})))
                reason = (
                    f"{lost} is lost, and with it a part of what it broadcast, which no other site "
                    "has; the tensors hold a part of it"
                )
            self._answer(channel, book, book.give_up(number, reason), outcome)
            return
        outcome.mended = True
        for member in book.members:
            plan = book.plan_for(member, way)
            repair = Repair(
                channel,
                number,
                unsettled.generation,
                way.version,
                "" if plan is None else plans.dumps(plan),
                parts,
            )
            outcome.say.append((member, repair))

    def admit(
        self,
        number: int,
        sites: Collection[int],
        holders: Collection[int],
        plan: Plan,
        follow: bool = False,
    ) -> Outcome:
        """Let sites take part from here on, as all members have said by a gathering.

        Args:
            number: of the gathering.
            sites: that are let in; there may be none.
            holders: members that have the state of training.
            plan: for all of them; where there are new ones, its version follows that in force.
            follow: whether those that have not got the state follow, from when it is handed to them
                until they are in step.
        """
        outcome, book = Outcome(), self.all
        if sites:
            if not book.is_level or any(each.exchanges for each in self._books):
                outcome.wrong = "sites are let in while calls are under way; this is a mistake"
                return outcome
            for other in self._books[1:]:
                if other.members:
                    other.issue(plans.restrict(plan, other.members), self.largest_elements)
            book.admit(sites, plan, self.largest_elements)
            self._gone -= {*sites}
            self._lost -= {*sites}
            # Subgroups that are asked for from now on may have the new members; one that some of
            # its members have asked for, and others have not yet, is the same for these.
            awaited = {
                asked
                for asked, channel in self._subgroups.items()
                if any(
                    asked not in self._asked.get(site, ()) for site in self._books[channel].members
                )
            }
            self._subgroups = {
                asked: channel for asked, channel in self._subgroups.items() if asked in awaited
            }
            self._asked = {
                site: [each for each in asked if each in awaited]
                for site, asked in self._asked.items()
            }
        newcomers = tuple(site for site in book.members if site not in holders)
        self._will_follow = follow and bool(newcomers)
        admitted = Admitted(
            number,
            book.latest,
            book.members,
            newcomers,
            tuple(sorted(holders)),
            plans.dumps(plan) if sites else "",
            self._will_follow,
        )
        outcome.say = [(member, admitted) for member in book.members]
        return outcome

    # --- some sites, and small values

    def subgroup(self, site: int, members: tuple[int, ...], name: str = "") -> Outcome:
        """Answer a site that would exchange with some others.

        Args:
            site: which.
            members: the sites, in rising order.
            name: that tells this subgroup from others of the same members.

        Raises:
            OutOfPlaceMessage: sites that cannot be, or without the one that asks.
            OversizedMessage: the name is too long.
        """
        if len(name) > MOST_NAME_CHARACTERS:
            raise OversizedMessage(
                f"{self._name(site)} names a subgroup with {len(name)} characters, at most "
                f"{MOST_NAME_CHARACTERS} are allowed"
            )
        fits = all(0 <= each < self._sites for each in members) and members == tuple(
            sorted({*members})
        )
        if not fits or site not in members:
            raise OutOfPlaceMessage(f"{self._name(site)} asks for a subgroup of sites {members}")
        asked = members, name
        if asked not in self._subgroups:
            self._open(asked, tuple(each for each in members if each not in self._lost))
        channel = self._subgroups[asked]
        # Each member asks once, so each has the plan that was in force then, or gets a newer one.
        plan = self._books[channel].known_from_now(site)
        outcome = Outcome()
        outcome.say.append((site, Subgrouped(channel, members, plans.dumps(plan), name)))
        self._asked.setdefault(site, []).append(asked)
        for other in members:
            self._compare(site, other, outcome)
        return outcome

    def _open(self, asked: _Asked, inside: tuple[int, ...]) -> None:
        """Begin a channel of some members, of which some are inside: the others are lost."""
        self._subgroups[asked] = len(self._books)
        self._memberships.append(asked)
        book = ExchangeBook(
            inside, self.all.plans.restricted(inside), self._counter, is_known=False
        )
        for gone in self._gone.intersection(asked[0]):
            book.leave(gone, self._absence(gone))
        self._books.append(book)

    def _compare(self, site: int, other: int, outcome: Outcome) -> None:
        """Check that two sites ask for the subgroups they share in the same order."""
        ours = [each for each in self._asked[site] if other in each[0]]
        theirs = [each for each in self._asked.get(other, ()) if site in each[0]]
        if len(ours) > len(theirs) or ours[-1] == theirs[len(ours) - 1]:
            return

        def account(who: int, asked: _Asked) -> str:
            members, name = asked
            named = f" named {name!r}" if name else ""
            among = ", ".join(map(self._name, members))
            return f"{self._name(who)} asks for a subgroup{named} of {among}"

        reason = (
            f"{account(site, ours[-1])}; {account(other, theirs[len(ours) - 1])}; ask for the same "
            "subgroups in the same order at every site"
        )
        for asked in (ours[-1], theirs[len(ours) - 1]):
            channel = self._subgroups[asked]
            book = self._books[channel]
            self._answer(channel, book, book.abandon(reason), outcome)

    def gather(self, site: int, message: Gather) -> Outcome:
        """Take a site's small value; once all members' are here, hand them out.

        Raises:
            OutOfPlaceMessage: it does not follow the site's last one.
            OversizedMessage: it is too large.
        """
        book = self._book(site, message.channel)
        if len(message.value) > MOST_GATHERED_BYTES:
            raise OversizedMessage(
                f"{self._name(site)} gathers {len(message.value)} bytes, at most "
                f"{MOST_GATHERED_BYTES} are allowed"
            )
        if len(message.what) > MOST_NAME_CHARACTERS:
            raise OversizedMessage(
                f"{self._name(site)} describes a gathering in {len(message.what)} characters, at "
                f"most {MOST_NAME_CHARACTERS} are allowed"
            )
        outcome = Outcome()
        if message.admits and (book is not self.all or not self._repairs):
            raise OutOfPlaceMessage(f"{self._name(site)} lets others in where none can be")
        is_first = book.calls(site) == book.latest_call
        answers = book.gather(
            site, message.number, message.value, message.admits, message.heard, message.what
        )
        if is_first and message.admits and self.followers:
            self._let_follow(site, message.number, None, outcome)
        self._answer(message.channel, book, answers, outcome)
        return outcome


def _sources(signature: Signature, members: Iterable[int]) -> set[int] | None:
    """Return who has all of a result from the first; None where all contribute to it."""
    if signature.receivers:
        return {*members} - {*signature.receivers}
    return None if signature.source is None else {signature.source}


def _part(plan: Plan, members: Collection[int]) -> Plan:
    return plan if plan.members == frozenset(members) else plans.restrict(plan, members)


def _terms(asked: Signature) -> Terms:
    return Terms(Op(asked.op), Wire(asked.wire), asked.elements, asked.source, asked.receivers)


def _failure(channel: int, answer: Abandoned) -> Message:
    if answer.gathers:
        return GatherFailed(channel, answer.number, answer.reason)
    return ExchangeFailed(channel, answer.number, answer.exchange, answer.reason)
