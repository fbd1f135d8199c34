"""Acts on sites' messages about their calls, over all channels of a run. Pure.

:mod:`anabranch.scheduler.calls` describes the states of a call, and the parts that this class puts
together. Time is an argument. Each method returns an
:class:`anabranch.scheduler.calls._outcome.Outcome`: messages, each with its receiver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from anabranch import plan as plans
from anabranch.exchange.terms import Wire, planned_elements
from anabranch.net.errors import OutOfPlaceMessage
from anabranch.net.messages import (
    Admitted,
    AskAhead,
    Contribution,
    ExchangeEnded,
    ExchangeRequest,
    Gather,
    Holding,
    Lease,
    LeasedSize,
    LeaseOver,
    ModelDigest,
    ModelsDiffer,
    Progress,
    RequestAwaited,
    SiteSnapshot,
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
from anabranch.scheduler.calls._leases import LeasedNumbers, lease_count
from anabranch.scheduler.calls._outcome import Outcome
from anabranch.scheduler.calls._requests import Request
from anabranch.scheduler.calls._restoring import Restoring
from anabranch.scheduler.calls._settling import Settling, Transferring
from anabranch.scheduler.calls._subgroups import Subgroup, Subgroups
from anabranch.site.channel import LEASED_SHARE

_MOST_BEHIND = 1024  # chunks' numbers between an unused lease and the latest exchange


class Channels:
    """All channels of a run.

    It is one class since each method acts on one message and all share the same parts.

    Args:
        name: makes a site's name for error messages.
        sites: the number of sites.
        plan: the first plan of all sites.
        most_bytes: the most bytes of buffers in exchanges under way at once.
        chunking: returns the most elements of a chunk, for a plan and the elements of a buffer.
        dispatching: how chunks are dispatched during an exchange; None deals all beforehand.
        repairs: whether exchanges are completed after a loss; otherwise a loss ends the run.
        transferring: returns which members send which parts of the state to a newcomer.
        by_size: whether each order of size of buffers has its own plan.
        returns_early: see :class:`anabranch.scheduler.losses.Repairs`.
        leases: whether exchanges are leased to members.

    Attributes:
        books: the books of all channels: their members, plans and calls.
        checks: refuses messages about impossible calls.
        following: the members that follow the exchanges of all sites without contributing, until
            they have the state of training.
        results: the number of exchanges with a result that a member holds.
        result_bytes: the bytes of these results, in their wire formats.
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
        returns_early: bool = False,
        leases: bool = False,
    ) -> None:
        self._name = name
        self.checks = Checks(name, sites, repairs)
        if leases:
            most_bytes *= 1 - LEASED_SHARE
        self.books = books = Books(name, sites, PlansBySize(plan, by_size), most_bytes)
        self.following = Following(books.all)
        self._subgroups = Subgroups(name, books)
        self._dealing = Dealing(chunking, dispatching)
        self._settling = Settling(name, books, transferring)
        self._answering = Answering(
            name, books, self._dealing, self.following, self._settling, repairs
        )
        self._settles, self._leases = repairs, leases
        # By channel, how many answers each member owes, as leases end. A member that owes one may
        # have begun leased exchanges unheard.
        self._recalled: dict[int, Counter[int]] = {}
        self._closing = ""  # why, while members end their leases
        self._returns_early = books.tells_last = returns_early
        self.results = 0
        self.result_bytes = 0
        self._rounds: Last | None = None
        # By channel, the latest exchange of which members were told by `RequestAwaited`.
        self._called_for: dict[int, int] = {}
        self._models: dict[int, Models] = {}  # by channel

    @property
    def all(self) -> ExchangeBook:
        """The book of the calls of all sites."""
        return self.books.all

    @property
    def is_busy(self) -> bool:
        """Whether members follow or exchanges are under way: no site is admitted then."""
        return bool(self.following.sites) or self.books.are_busy

    @property
    def incomplete(self) -> int:
        """The number of results that lack contributions of members."""
        return self._settling.incomplete

    def issue(self, plan: Plan) -> Outcome:
        """Use a plan for exchanges that no member has begun; leases under earlier plans end."""
        outcome = Outcome()
        self.books.issue(plan)
        self._recall(outcome)
        return outcome

    def add(self, plan: Plan, elements: int) -> Outcome:
        """Use a plan for buffers of one more order of magnitude; others may use it already."""
        outcome = Outcome()
        self.books.add(plan, elements)
        self._answering.use_room(outcome)
        return outcome

    def grant(self) -> Outcome:
        """Grant the exchanges that wait for no plan any more."""
        outcome = Outcome()
        self._answering.use_room(outcome)
        return outcome

    def close(self, reason: str) -> Outcome:
        """Set the last exchange of each channel; those under way run to their end.

        An exchange's grant or settlement tells members that it is the last of its channel. The
        last exchange is the latest one if a member still awaits its grant or settlement, and
        otherwise the next one. If calls return before the settlement, only the grant tells, so it
        is the next one. If only a refusal tells members of the end, it is the latest one.

        Members may have begun leased exchanges that the scheduler has not heard of. So leases end
        first, and the last exchange is set once all members have answered.

        Args:
            reason: why no exchange follows.
        """
        outcome, self._closing = Outcome(), reason
        self._recall(outcome)
        self._take_recalled(outcome)
        return outcome

    def _recall(self, outcome: Outcome) -> None:
        """End the leases of all channels that members can still use."""
        for channel, book in enumerate(self.books):
            if book.leases.last > book.latest_held and channel not in self._recalled:
                self._end_leases(channel, False, outcome)

    def _end_leases(self, channel: int, is_void: bool, outcome: Outcome) -> None:
        """Tell the members of a channel that its leases are over; they answer."""
        members = sorted({*self.books.members(channel)} - self.books.left)
        self._recalled.setdefault(channel, Counter()).update(members)
        outcome.say += [(each, LeaseOver(channel, is_void)) for each in members]

    def lease_ended(self, site: int, channel: int) -> Outcome:
        """Note that a site has asked for all exchanges that it has begun under leases."""
        outcome = Outcome()
        owed = self._recalled.get(channel, Counter())
        if owed[site]:  # else it has left meanwhile
            owed[site] -= 1
        self._take_recalled(outcome)
        return outcome

    def _begins_no_more(self, sites: Collection[int], outcome: Outcome) -> None:
        """Note that sites make no further call."""
        for owed in self._recalled.values():
            for site in sites:
                del owed[site]
        self._take_recalled(outcome)

    def _take_recalled(self, outcome: Outcome) -> None:
        """Forget the leases that have ended at all members; then close, if that was decided."""
        for channel in [each for each, owed in self._recalled.items() if not any(owed.values())]:
            del self._recalled[channel]
            self.books[channel].leases.truncate(self.books[channel].latest_held)
        if not self._closing or self._recalled:
            return
        reason, self._closing = self._closing, ""
        lasts = [book.latest_held for book in self.books]
        if self._returns_early:
            lasts = [last + 1 for last in lasts]
        elif self._settles or self.books.tells_last:
            is_open = self._settling.is_open
            lasts = [last + (not is_open(channel, last)) for channel, last in enumerate(lasts)]
        self.books.close(reason, lasts)
        outcome.is_to_remember = True

    def bound(self, rounds: int, why: str) -> None:
        """Bound the number of rounds.

        Args:
            rounds: the number of exchanges of all sites, without transfers of the state.
            why: the reason for a site that asks for a further one.
        """
        self._rounds = Last(rounds, why)
        self._bind()

    def _bind(self) -> None:
        """Raise the bound on exchanges of all sites by one for each transfer of the state."""
        if self._rounds is not None:
            number = self.following.number_of(self._rounds.number)
            self.all.end.bound = Last(number, self._rounds.why)

    # --- exchanges

    def request(self, site: int, message: ExchangeRequest) -> Outcome:
        """Answer a site's call for an exchange.

        Raises:
            OutOfPlaceMessage: its terms are impossible, or it does not follow the site's last one.
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
            outcome.is_to_remember = True  # a restarted scheduler would count it as a round
        book.has_followers = is_of_all and bool(self.following.sites)
        refusal = ""
        if book.is_last_to_ask(site, message.number):
            refusal = self._compared(book, message, outcome)
        answers = book.request(_request(site, message), refusal)
        if answers is None:
            self._tell_it_is_over(site, message, outcome)
            return outcome
        if is_first and is_of_all:
            outcome.say += self.following.asked(site, message.number, signature)
        self._answering.answer(message.channel, answers, outcome)
        if is_first:
            if signature.source is None and not signature.receivers:
                book.leases.note(planned_elements(signature))
            self._lease(message.channel, book, outcome)
        if message.calls:
            self._call(site, message, outcome)
        return outcome

    def _lease(self, channel: int, book: ExchangeBook, outcome: Outcome) -> None:
        """Lease the next exchanges of a channel, if it is time to."""
        if not (self._leases and self.books.tells_last):
            return
        if self._closing or self.books.why_closed is not None:
            return
        if book is self.all and self.following.are_expected:
            return
        if book.order.limit is not None or channel in self._recalled:
            return
        self._recall_unused(outcome)
        round_trip_s = self._dealing.round_trip_s(book.members)
        count = lease_count(round_trip_s, book.leases.every_s, len(book.held.numbers))
        if not book.leases.is_due(book.latest, count):
            return
        lease = book.lease(count, partial(self._dealing.cut, members=book.members))
        if lease is None:
            return
        trees = {elements: self._dealing.first_of(cut) for elements, cut in lease.cuts.items()}
        for site in book.members:
            outcome.say.append((site, self._leased(channel, book, site, lease, trees)))

    def _recall_unused(self, outcome: Outcome) -> None:
        """End leases whose numbers lie far behind: sites would take them for ended ones."""
        for channel, book in enumerate(self.books):
            behind = self.books.counter.latest - book.leases.last_exchange
            is_unused = book.leases.last > book.latest_held and behind > _MOST_BEHIND
            if is_unused and channel not in self._recalled:
                self._end_leases(channel, False, outcome)

    def _leased(
        self,
        channel: int,
        book: ExchangeBook,
        site: int,
        lease: LeasedNumbers,
        trees: Mapping[int, tuple[int, ...] | None],
    ) -> Lease:
        """Return the message of a lease to a site, with the plans that the site lacks."""
        sizes = []
        for elements, cut in lease.cuts.items():
            lacks = book.knowledge.tell(site, cut.plan) is not None
            plan_json = plans.dumps(cut.plan) if lacks else ""
            version, chunk = cut.plan.version, cut.chunk_elements
            sizes.append(LeasedSize(elements, version, plan_json, chunk, trees[elements]))
        count = lease.last - lease.first + 1
        exchange, settles = lease.first_exchange, self._settles
        return Lease(channel, lease.first, count, exchange, settles, (*sizes,))

    def ask_ahead(self, site: int, message: AskAhead) -> Outcome:
        """Answer a site that will probably call for an exchange next.

        Raises:
            OutOfPlaceMessage: its terms are impossible, or it does not follow the site's last one.
        """
        book = self.books.of(site, message.channel)
        self.checks.exchange(site, message.signature)
        outcome = Outcome()
        if book is self.all and self.following.sites:
            return outcome  # the first call fixes the followers of an exchange, so none precedes it
        answers = book.ask_ahead(_request(site, message))
        if answers is None:
            self._tell_it_is_over(site, message, outcome)
        else:
            self._answering.answer(message.channel, answers, outcome)
        return outcome

    def _tell_it_is_over(
        self, site: int, message: ExchangeRequest | AskAhead, outcome: Outcome
    ) -> None:
        """Tell a site that no further exchange follows, and why."""
        refused = self.books.refusal(message.channel, message.number)
        outcome.say.append((site, refused))
        outcome.over = refused.reason

    def _take_back(self, site: int, outcome: Outcome, call: ExchangeRequest | None = None) -> None:
        """Take back a site's request ahead, unless it was for this call.

        A granted request ahead reserves room. Unused, it would keep that room from others for ever.
        """
        for channel, book in enumerate(self.books):
            is_its = call is not None and call.channel == channel
            if call is None or not (is_its and book.requests.is_ahead(_request(site, call))):
                self._answering.answer(channel, book.take_back(site), outcome)

    def _call(self, site: int, message: ExchangeRequest, outcome: Outcome) -> None:
        """Tell the other members, once, that a member waits for them in an exchange."""
        if message.number > self._called_for.get(message.channel, 0):
            self._called_for[message.channel] = message.number
            awaited = RequestAwaited(message.channel, message.number)
            members = self.books.members(message.channel)
            outcome.say += [(member, awaited) for member in members if member != site]

    def refuse(self, site: int, message: Unfit) -> Outcome:
        """Fail an exchange that a site has called for and cannot contribute to.

        Raises:
            OutOfPlaceMessage: the site has not called for it.
        """
        book = self.books.of(site, message.channel)
        outcome = Outcome()
        reason = f"{self._name(site)} has {message.why}"
        answers = book.refuse(site, message.number, reason)
        self._answering.answer(message.channel, answers, outcome)
        return outcome

    def hear_model(self, site: int, message: ModelDigest) -> None:
        """Take the checksum of a site's model; the last member's call compares all checksums.

        Raises:
            OutOfPlaceMessage: it is not for the exchange that the site may call for next.
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
        """Compare members' models; return why the exchange fails, or an empty string.

        Only models that differ before the first step fail an exchange. If models differ later, the
        members are told. An exchange that was granted ahead of calls does not fail: members may
        have its result.
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
        """Note the chunks that ended at a site; dispatch further ones if that frees the window."""
        return Outcome(say=[*self._dealing.progress(site, message, now_s)])

    def ended(self, site: int, message: ExchangeEnded) -> Outcome:
        """Note that a site holds a result."""
        book = self.books.of(site, message.channel)
        exchange = book.held[message.number].exchange if message.number in book.held else 0
        outcome = Outcome()
        awaited = book.held.awaited_result(message.number)
        outcome.wrong = book.ended(site, message.number, message.version, message.checksum) or ""
        self._dealing.hear_round_trip(site, message.round_trip_s)
        book.leases.every_s = message.every_s
        if awaited is not None and not awaited.receivers:
            self.results += 1
            self.result_bytes += Wire(awaited.wire).bytes_of(awaited.elements)
        if message.number not in book.held:
            self._dealing.forget(exchange)
            self._answering.use_room(outcome)
        return outcome

    def hold(self, site: int, message: Holding) -> Outcome:
        """Note which elements of a result a site holds."""
        outcome = Outcome()
        answers = self._settling.hold(site, message, outcome)
        self._answering.answer(message.channel, answers, outcome)
        return outcome

    # --- small values, and some sites

    def gather(self, site: int, message: Gather) -> Outcome:
        """Take a site's small value; once all members have given theirs, send all to each.

        Raises:
            OutOfPlaceMessage: the gathering does not follow the site's last one.
            OversizedMessage: the value is too large.
        """
        book = self.books.of(site, message.channel)
        self.checks.gathering(site, message)
        book.leases.in_a_row = 0
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

    def subgroup(
        self, site: int, members: tuple[int, ...], name: str = "", without: tuple[int, ...] = ()
    ) -> Outcome:
        """Answer a site that asks for a subgroup.

        Args:
            site: the site.
            members: of the subgroup, in rising order.
            name: tells this subgroup from others of the same members.
            without: see :class:`anabranch.net.messages.SubgroupRequest`.

        Raises:
            OutOfPlaceMessage: the members are no rising sites of the run, or lack this one.
            OversizedMessage: the name is too long.
        """
        self.checks.subgroup(site, members, name, without)
        channel = self._subgroups.ask(site, members, name, without)
        why_closed = self.books.why_closed
        if why_closed is not None:  # a channel that opens after the stop needs its last call, too
            self.close(why_closed)
        # The member gets the plan in force now; a grant brings it a newer one.
        book = self.books[channel]
        book.knowledge.tell_of_channel(site, book.plan)
        outcome = Outcome()
        outcome.say.append((site, Subgrouped(channel, members, plans.dumps(book.plan), name)))
        for other, reason in self._subgroups.out_of_order(site):
            self._answering.give_up(other, self.books[other].abandon(reason), outcome)
        return outcome

    # --- members leave, are lost, and are admitted

    def take_back(self, site: int) -> Outcome:
        """Take back a site's request ahead, since the site makes no further call."""
        outcome = Outcome()
        self._take_back(site, outcome)
        return outcome

    def leave(self, site: int) -> Outcome:
        """Fail the calls that need a further call of a site, since it makes none."""
        self.books.left.add(site)
        outcome = Outcome()
        self._begins_no_more({site}, outcome)
        self._take_back(site, outcome)
        reason = accounts.of_absence(site, self._name)
        for channel, book in enumerate(self.books):
            if site in book.members:
                self._answering.give_up(channel, book.leave(site, reason), outcome)
        return outcome

    def lose(self, sites: Collection[int], plan: Plan) -> Outcome:
        """Continue without lost sites or links: interrupt every exchange under way.

        Args:
            sites: the lost sites; empty if only links are lost.
            plan: a plan without lost sites and links; its version follows the one in force.
        """
        outcome = Outcome()
        self.following.sites.difference_update(sites)
        leased = [channel for channel, book in enumerate(self.books) if book.leases.last]
        for book in self.books:
            book.leases.end()
        answers = self.books.lose(sites, plan)
        self._begins_no_more(sites, outcome)
        for channel in leased:  # before members hear of interruptions
            self._end_leases(channel, True, outcome)
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
        """Admit sites as members, since all members have gathered to admit.

        Args:
            number: of the gathering.
            sites: the newcomers to admit; may be empty.
            holders: members that have the state of training.
            plan: for all members; with newcomers, its version follows that of the plan in force.
            follow: whether members without the state follow, from the exchange that hands it to
                them until they are in step.
        """
        outcome, book = Outcome(), self.all
        book.leases.forget()
        if sites:
            if not book.is_level or self.books.are_busy:
                outcome.wrong = (
                    "sites are admitted while calls are under way; this is a bug of the scheduler, "
                    "please report it"
                )
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
        """The subgroups, in the order of their channels' numbers."""
        return tuple(self._subgroups)

    @property
    def latest_exchange(self) -> int:
        """The highest number that the chunks of an exchange carry."""
        return self.books.counter.latest

    @property
    def contributions(self) -> dict[tuple[int, int], tuple[Contribution, ...]]:
        """The contributions in interrupted exchanges, by channel and number."""
        return self._settling.contributions

    def restore(
        self,
        snapshots: Mapping[int, SiteSnapshot],
        lost: Collection[int],
        subgroups: Sequence[Subgroup],
        latest_exchange: int,
        contributions: Mapping[tuple[int, int], Collection[Contribution]],
        lasts: Sequence[int] = (),
        why_closed: str = "",
        transfers: Sequence[int] = (),
    ) -> Outcome:
        """Restore all calls after a restart, from the sites' reports.

        Exchanges under way are interrupted and completed, as after a loss. A call that ended at one
        member ends at the others.

        Args:
            snapshots: each member's report; the caller declares the silent ones lost next.
            lost: sites that are no members.
            subgroups: the channels from 1 on.
            latest_exchange: an upper bound of the numbers used before.
            contributions: of exchanges that had been interrupted before the restart.
            lasts: by channel, the last exchange, if that was decided before.
            why_closed: why no exchange follows these.
            transfers: the numbers of earlier transfers of the state.
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
        return restoring.restore(snapshots, contributions)


def _request(site: int, message: ExchangeRequest | AskAhead) -> Request:
    is_leased = isinstance(message, ExchangeRequest) and message.is_leased
    return Request(site, message.number, message.signature, message.attempt, is_leased)
