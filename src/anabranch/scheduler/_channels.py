"""What members exchange, gather and dispatch, for all sites and for some of them. Pure.

A channel is a set of members and the exchanges among them, numbered from 1; channel 0
is that of all sites.
Time is handed in; what is to be said, and to which site, is returned.

Each message of a site passes three stages: `checks` refuse what cannot be, the channel's book
(`exchanges`) says what follows from it, and `answering` makes messages of that. The other parts
keep one idea each, in :mod:`anabranch.scheduler.calls`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from anabranch import plan as plans
from anabranch.exchange.terms import Wire
from anabranch.net.errors import OutOfPlaceMessage
from anabranch.net.messages import (
    Admitted,
    AskAhead,
    Awaited,
    Contribution,
    ExchangeEnded,
    ExchangeRequest,
    Gather,
    Holding,
    ModelsDiffer,
    ModelTold,
    Progress,
    Standing,
    Subgrouped,
    Unfit,
)
from anabranch.plan import Plan
from anabranch.scheduler._exchanges import ExchangeBook
from anabranch.scheduler._models import Models
from anabranch.scheduler._plans_by_size import PlansBySize
from anabranch.scheduler.calls import _accounts as accounts
from anabranch.scheduler.calls._answering import Answering
from anabranch.scheduler.calls._books import Books
from anabranch.scheduler.calls._checks import Checks
from anabranch.scheduler.calls._dealing import Chunking, Dealing, Dispatching
from anabranch.scheduler.calls._end import Last
from anabranch.scheduler.calls._following import Following
from anabranch.scheduler.calls._outcome import Outcome
from anabranch.scheduler.calls._requests import Request
from anabranch.scheduler.calls._restoring import Restoring
from anabranch.scheduler.calls._settling import Settling, Transferring
from anabranch.scheduler.calls._subgroups import Subgroup, Subgroups


class Channels:
    """Every channel of a run.

    It is one class since each method is a message of a site's, and all pass through the same parts.

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
        books: of all channels: their members, their plans, and which calls wait.
        checks: what sites may ask for, and say.
        following: members that contribute nothing to the exchanges of all sites that are called
            for now, as they have yet to get the state of training.
        results: how many exchanges have a result that a member holds.
        result_bytes: of their buffers, as they travel.
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
        self._name = name
        self.checks = Checks(name, sites, repairs)
        self.books = books = Books(name, sites, PlansBySize(plan, by_size), most_bytes)
        self.following = Following(books.all)
        self._subgroups = Subgroups(name, books)
        self._dealing = Dealing(chunking, dispatching)
        self._settling = Settling(name, books, transferring)
        self._answering = Answering(
            name, books, self._dealing, self.following, self._settling, repairs
        )
        self._settles = repairs
        self.results = 0
        self.result_bytes = 0
        self._rounds: Last | None = None
        self._called_for: dict[int, int] = {}  # by channel: the latest that members were called to
        self._models: dict[int, Models] = {}  # by channel

    @property
    def all(self) -> ExchangeBook:
        """The book of the calls of all sites."""
        return self.books.all

    @property
    def is_busy(self) -> bool:
        """Whether members follow, or exchanges are under way: no further site is let in then."""
        return bool(self.following.sites) or self.books.are_busy

    @property
    def incomplete(self) -> int:
        """How many results lack contributions of members."""
        return self._settling.incomplete

    def add(self, plan: Plan, elements: int) -> Outcome:
        """Let buffers of a further order of size have this plan, which may be in use already."""
        outcome = Outcome()
        self.books.add(plan, elements)
        self._answering.use_room(outcome)
        return outcome

    def close(self, reason: str) -> None:
        """Hold no further exchange; those under way run to their end.

        Members hear with a result which call is the last of its channel: the latest, or the next
        one where no member waits to hear of that any more. Where they hear neither with a grant
        nor once all hold it, the latest is the last, and the next one is refused.

        Args:
            reason: why.
        """
        lasts = [book.latest_held for book in self.books]
        if self._settles or self.books.tells_last:
            is_open = self._settling.is_open
            lasts = [last + (not is_open(channel, last)) for channel, last in enumerate(lasts)]
        self.books.close(reason, lasts)

    def bound(self, rounds: int, why: str) -> None:
        """Hold no more rounds than these.

        Args:
            rounds: exchanges of all sites, without those that hand the state on.
            why: what a site is told that asks for a further one.
        """
        self._rounds = Last(rounds, why)
        self._bind()

    def _bind(self) -> None:
        """Bound the exchanges of all sites, as far as it is known which are no rounds."""
        if self._rounds is not None:
            number = self.following.number_of(self._rounds.number)
            self.all.end.bound = Last(number, self._rounds.why)

    # --- exchanges

    def request(self, site: int, message: ExchangeRequest) -> Outcome:
        """Answer a site's request for an exchange.

        Raises:
            OutOfPlaceMessage: it cannot be, or does not follow the site's last one.
        """
        book = self.books.of(site, message.channel)
        signature = message.signature
        self.checks.exchange(site, signature)
        outcome = Outcome()
        self._take_back(site, outcome, message)
        is_of_all = book is self.all
        is_first = message.number > book.latest
        if is_first and is_of_all and signature.receivers:
            self.following.note_transfer(message.number)
            self._bind()
            outcome.is_to_remember = True
        book.has_followers = is_of_all and bool(self.following.sites)
        refusal = ""
        if book.is_last_to_ask(site, message.number):
            refusal = self._compared(book, message, outcome)
        answers = book.request(_request(site, message), refusal)
        if answers is None:
            self._refuse(site, message, outcome)
            return outcome
        if is_first and is_of_all:
            outcome.say += self.following.asked(site, message.number, signature)
        self._answering.answer(message.channel, answers, outcome)
        if message.calls:
            self._call(site, message, outcome)
        return outcome

    def ask_ahead(self, site: int, message: AskAhead) -> Outcome:
        """Answer a site that will probably call for an exchange next.

        Raises:
            OutOfPlaceMessage: it cannot be, or does not follow the site's last one.
        """
        book = self.books.of(site, message.channel)
        self.checks.exchange(site, message.signature)
        outcome = Outcome()
        if book is self.all and self.following.sites:
            return outcome  # who follows in an exchange is fixed by the first call for it
        answers = book.ask_ahead(_request(site, message))
        if answers is None:
            self._refuse(site, message, outcome)
        else:
            self._answering.answer(message.channel, answers, outcome)
        return outcome

    def _refuse(self, site: int, message: ExchangeRequest | AskAhead, outcome: Outcome) -> None:
        """Tell a site that an exchange is not held, and why."""
        refused = self.books.refusal(message.channel, message.number)
        outcome.say.append((site, refused))
        outcome.over = refused.reason

    def _take_back(self, site: int, outcome: Outcome, call: ExchangeRequest | None = None) -> None:
        """Take back what a site had asked for ahead, unless this call is that.

        It may have been granted, and takes room for which other members could wait for ever.
        """
        for channel, book in enumerate(self.books):
            is_its = call is not None and call.channel == channel
            if call is None or not (is_its and book.requests.is_ahead(_request(site, call))):
                self._answering.answer(channel, book.take_back(site), outcome)

    def _call(self, site: int, message: ExchangeRequest, outcome: Outcome) -> None:
        """Tell members once of an exchange that one of them waits for."""
        if message.number > self._called_for.get(message.channel, 0):
            self._called_for[message.channel] = message.number
            awaited = Awaited(message.channel, message.number)
            members = self.books.members(message.channel)
            outcome.say += [(member, awaited) for member in members if member != site]

    def refuse(self, site: int, message: Unfit) -> Outcome:
        """End an exchange to which a site that has asked for it has nothing to contribute.

        Raises:
            OutOfPlaceMessage: the site has not asked for it.
        """
        book = self.books.of(site, message.channel)
        outcome = Outcome()
        reason = f"{self._name(site)} has {message.why}"
        answers = book.refuse(site, message.number, reason)
        self._answering.answer(message.channel, answers, outcome)
        return outcome

    def hear_model(self, site: int, message: ModelTold) -> None:
        """Take in a site's model; the members' are compared once all have called.

        Raises:
            OutOfPlaceMessage: it is for another exchange than the site may call for next.
        """
        book = self.books.of(site, message.channel)
        if message.number != book.asked[site] + 1:
            raise OutOfPlaceMessage(
                f"{self._name(site)} tells of its model for exchange {message.number} after "
                f"{book.asked[site]}"
            )
        models = self._models.setdefault(message.channel, Models(self._name))
        models.hear(message.number, site, message.model)

    def _compared(self, book: ExchangeBook, message: ExchangeRequest, outcome: Outcome) -> str:
        """Compare members' models; return why the exchange fails, if it does.

        That models which were alike have parted is said to the members, and nothing fails; nor does
        it where the exchange was granted ahead of calls, as some members may have its result.
        """
        models = self._models.get(message.channel)
        unlike = None if models is None else models.compare(message.number)
        if unlike is None:
            return ""
        was_ahead = message.number in book.held and book.held[message.number].was_ahead
        if unlike.is_first and not was_ahead:
            return unlike.reason
        outcome.say += [(member, ModelsDiffer(unlike.reason)) for member in book.members]
        return ""

    def progress(self, site: int, message: Progress, now_s: float) -> Outcome:
        """Dispatch further chunks, as others have ended."""
        return Outcome(say=[*self._dealing.progress(site, message, now_s)])

    def ended(self, site: int, message: ExchangeEnded) -> Outcome:
        """Take note that a site holds a result."""
        book = self.books.of(site, message.channel)
        exchange = book.held[message.number].exchange if message.number in book.held else 0
        outcome = Outcome()
        awaited = book.held.awaited_result(message.number)
        outcome.wrong = book.ended(site, message.number, message.version, message.checksum) or ""
        if awaited is not None and not awaited.receivers:
            self.results += 1
            self.result_bytes += Wire(awaited.wire).item_bytes * awaited.elements
        if message.number not in book.held:
            self._dealing.forget(exchange)
            self._answering.use_room(outcome)
        return outcome

    def hold(self, site: int, message: Holding) -> Outcome:
        """Take note of what a site holds of an exchange's result."""
        outcome = Outcome()
        answers = self._settling.hold(site, message, outcome)
        self._answering.answer(message.channel, answers, outcome)
        return outcome

    # --- small values, and some sites

    def gather(self, site: int, message: Gather) -> Outcome:
        """Take a site's small value; once all members' are here, hand them out.

        Raises:
            OutOfPlaceMessage: it does not follow the site's last one.
            OversizedMessage: it is too large.
        """
        book = self.books.of(site, message.channel)
        self.checks.gathering(site, message)
        outcome = Outcome()
        self._take_back(site, outcome)
        is_first = book.order.made(site) == book.order.latest
        answers = book.gather(
            site, message.number, message.value, message.admits, message.heard, message.what
        )
        if is_first and message.admits:
            outcome.say += self.following.called(site, message.number, None)
        self._answering.answer(message.channel, answers, outcome)
        return outcome

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
        self.checks.subgroup(site, members, name)
        channel = self._subgroups.ask(site, members, name)
        why_closed = self.books.why_closed
        if why_closed is not None:  # a channel that begins now has its last call like the others
            self.close(why_closed)
        # Each member asks once, so each has the plan that was in force then, or gets a newer one.
        book = self.books[channel]
        book.knowledge.tell_of_channel(site, book.plan)
        outcome = Outcome()
        outcome.say.append((site, Subgrouped(channel, members, plans.dumps(book.plan), name)))
        for other, reason in self._subgroups.out_of_order(site):
            self._answering.give_up(other, self.books[other].abandon(reason), outcome)
        return outcome

    # --- members that go, and come

    def take_back(self, site: int) -> Outcome:
        """Take back what a site had asked for ahead, as it makes no further call."""
        outcome = Outcome()
        self._take_back(site, outcome)
        return outcome

    def leave(self, site: int) -> Outcome:
        """Take note that a site makes no further call: what needs it cannot end."""
        self.books.left.add(site)
        outcome = Outcome()
        self._take_back(site, outcome)
        reason = accounts.of_absence(site, self._name)
        for channel, book in enumerate(self.books):
            if site in book.members:
                self._answering.give_up(channel, book.leave(site, reason), outcome)
        return outcome

    def lose(self, sites: Collection[int], plan: Plan) -> Outcome:
        """Go on without some sites, or links: interrupt what they may be part of.

        Args:
            sites: that are lost; none, where links are.
            plan: without them; its version follows that of the one in force.
        """
        outcome = Outcome()
        self.following.sites.difference_update(sites)
        answers = self.books.lose(sites, plan)
        self._dealing.forget_all_but(set().union(*(book.held.exchanges for book in self.books)))
        for exchange in self._settling.interrupt(outcome):
            self._dealing.stop_dispatching(exchange)
        for channel, several in answers:
            self._answering.answer(channel, several, outcome)
        self._answering.use_room(outcome)
        return outcome

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
            if not book.is_level or self.books.are_busy:
                outcome.wrong = "sites are let in while calls are under way; this is a mistake"
                return outcome
            self.books.admit(sites, plan)
            self._subgroups.renew()
        newcomers = tuple(site for site in book.members if site not in holders)
        will_follow = follow and bool(newcomers)
        self.following.expect(will_follow)
        admitted = Admitted(
            number,
            book.latest,
            book.members,
            newcomers,
            tuple(sorted(holders)),
            plans.dumps(plan) if sites else "",
            will_follow,
        )
        outcome.say = [(member, admitted) for member in book.members]
        return outcome

    # --- after a restart

    @property
    def subgroups(self) -> tuple[Subgroup, ...]:
        """Every channel but that of all sites, in the order of their numbers."""
        return tuple(self._subgroups)

    @property
    def latest_exchange(self) -> int:
        """The highest number that an exchange's chunks carry."""
        return self.books.counter.latest

    @property
    def contributions(self) -> dict[tuple[int, int], tuple[Contribution, ...]]:
        """Whose contributions are in exchanges that were interrupted, by channel and number."""
        return self._settling.contributions

    def restore(
        self,
        standings: Mapping[int, Standing],
        lost: Collection[int],
        subgroups: Sequence[Subgroup],
        latest_exchange: int,
        contributions: Mapping[tuple[int, int], Collection[Contribution]],
        lasts: Sequence[int] = (),
        why_closed: str = "",
        transfers: Sequence[int] = (),
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
            transfers: exchanges of all sites that have handed the state on.
        """
        books = self.books
        books.counter.latest = latest_exchange
        books.lost.update(lost)
        if lost:
            self.all.lose(*lost)
        self._subgroups.restore(subgroups)
        books.close(why_closed, lasts)
        self.following.recall(transfers)
        self._bind()
        restoring = Restoring(books, self._dealing, self.following, self._settling, self._answering)
        return restoring.restore(standings, contributions)


def _request(site: int, message: ExchangeRequest | AskAhead) -> Request:
    return Request(site, message.number, message.signature, message.attempt)
