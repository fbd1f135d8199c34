"""The collective calls of a site, and the scheduler's answers to them.

Members make the same calls in the same order: exchanges, gatherings of small values, and gatherings
that admit further members. The scheduler chooses the plan of an exchange, completes it after a loss
by a repair, and confirms when every member has the result.

Exchanges that follow one another begin under leases, and a call returns once its result is here
(docs/mechanisms/fast-path.md). Messages to the scheduler are delayed where no caller waits for an
answer, so that several calls share one write.

The state of a channel is in `channel`, of an exchange in `_call`, of a follower in `_following`.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from msgspec import structs

from anabranch import plan as plans
from anabranch.exchange.arithmetic import Buffer, Flat, Floats
from anabranch.exchange.exchange import Exchange
from anabranch.exchange.reduction import weight_of
from anabranch.exchange.terms import Op, Terms, signature_of, terms_of
from anabranch.net.errors import LinkError, NetError, OutOfPlaceMessage, PeerError, RunAborted
from anabranch.net.messages import (
    Admitted,
    AnyMessage,
    AskAhead,
    CallMade,
    Contribution,
    Dispatched,
    ExchangeEnded,
    ExchangeFailed,
    ExchangeRequest,
    Failed,
    Gather,
    Gathered,
    GatherFailed,
    Grant,
    Holding,
    Interrupt,
    Lease,
    LeaseEnded,
    LeaseOver,
    Message,
    Model,
    ModelDigest,
    NoMoreRounds,
    Repair,
    RequestAwaited,
    Settled,
    Signature,
    SiteSnapshot,
    Subgrouped,
    SubgroupRequest,
    Unfit,
    Withdrawn,
)
from anabranch.plan import Plan
from anabranch.site._call import Call, is_worth_a_copy, void
from anabranch.site._exchanging import Exchanging
from anabranch.site._following import FollowedCall, Following
from anabranch.site._reporting import Reports
from anabranch.site.channel import Channel, Channels, Gathering, RequestedExchange, most_delay_s
from anabranch.site.control import Control, RoundsOver
from anabranch.site.round import ExchangeError, Round

T = TypeVar("T")

_ELEMENT_BYTES = 4
_ROUND_TRIPS = 8  # the least of the latest counts: a grant may wait for a plan, or for other sites


OTHER_CALL = (
    "the other sites made another call in this place, while this one got the state of training; "
    "make the same calls in the same order at every site"
)


@dataclass(slots=True)
class _Underway:
    """An exchange in progress here, and its latest report."""

    channel: int
    grant: Grant
    call: Call
    terms: Terms
    began_s: float
    reports: Reports | None  # of its progress; None if all chunks were dealt before
    more: Terms | None  # the terms of a probable next exchange
    has_told_end: bool = False  # within `Holding`; void after an interruption


def is_time_to_ask(elapsed_s: float, done_share: float, round_trip_s: float) -> bool:
    """Return whether to ask for the next exchange during the present one.

    The answer should arrive by its end. The request should not be much earlier, because the first
    request fixes the plan. So it is time when the rest takes about two round trips.

    Args:
        elapsed_s: seconds since the exchange began here.
        done_share: the share of its chunks that are finished here, in [0, 1].
        round_trip_s: seconds to the scheduler and back.

    >>> is_time_to_ask(9.0, 0.90, round_trip_s=0.1), is_time_to_ask(9.9, 0.99, round_trip_s=0.1)
    (False, True)
    """
    if done_share <= 0.0:
        return False
    return elapsed_s * (1.0 - done_share) / done_share <= 2.0 * round_trip_s


class Collectives:
    """One site's side of collective calls: exchanges, gatherings, admissions and subgroups.

    It is one class since three sources share one order of calls, and each may begin the next
    call: the program, the calls made in its place while it follows, and the scheduler's answers.

    Args:
        scheduler: the connection to the scheduler.
        planned: called with each new plan of all sites.

    Attributes:
        is_new: whether the group has begun, and its members have not admitted this site yet.
        admissions: how many admissions this site has heard of.
    """

    def __init__(self, scheduler: Control, planned: Callable[[Plan], None]) -> None:
        self._scheduler = scheduler
        self._loop = asyncio.get_running_loop()
        self._exchanging: Exchanging | None = None
        self._retries = False
        self._channels = Channels(planned)
        self._subgroups: dict[tuple[tuple[int, ...], str], asyncio.Future[int]] = {}
        self._underway: dict[int, _Underway] = {}  # by exchange
        self._round_trips_s: deque[float] = deque(maxlen=_ROUND_TRIPS)  # from request to grant
        self._site = 0
        self._most_kept_bytes = math.inf
        self._following: Following | None = None  # since this site was admitted
        self._leased: dict[int, int] = {}  # bytes of exchanges under way without a grant
        self._most_leased_bytes = 0.0
        self._gets_state = False  # whether a hand-over of the state has begun
        self._made: set[asyncio.Task[Any]] = set()  # calls made in the program's place
        self._unsettled: set[asyncio.Task[Round]] = set()  # of calls that have returned
        self.is_new = False
        self.admissions = 0

    def join(self, plan: Plan, site: int, is_new: bool) -> None:
        """Set the plan of all sites, this site, and whether members must admit it first."""
        self._channels.begin(plan)
        self._site = site
        self.is_new = is_new

    def start(
        self,
        exchanging: Exchanging,
        retries: bool,
        most_kept_bytes: float = math.inf,
        most_leased_bytes: float = math.inf,
    ) -> None:
        """Enable calls.

        Args:
            exchanging: runs exchanges.
            retries: whether an interrupted exchange is reduced again as a whole.
            most_kept_bytes: the most bytes of results to keep while this site follows; two may
                always be kept.
            most_leased_bytes: the most bytes of exchanges under way that began under a lease.
        """
        self._exchanging = exchanging
        self._retries = retries
        self._most_kept_bytes = most_kept_bytes
        self._most_leased_bytes = most_leased_bytes

    @property
    def _round_trip_s(self) -> float:
        """Seconds to the scheduler and back."""
        return min(self._round_trips_s, default=0.0)

    def _is_worth_a_copy(self, terms: Terms) -> bool:
        return is_worth_a_copy(_ELEMENT_BYTES * terms.elements, self._round_trip_s)

    @property
    def plan(self) -> Plan:
        """The present plan of all sites."""
        return self._channels.plan

    async def exchange(
        self,
        buffer: Buffer,
        terms: Terms,
        weight: float = 1.0,
        more: bool = False,
        channel: int = 0,
        calls: bool = False,
        unfit: str = "",
        model: Model | None = None,
        returns_early: bool = False,
    ) -> Round:
        """Run one exchange to its end; several may run at once.

        Args:
            buffer: this site's contribution; holds the result afterwards.
            terms: the terms, the same at every member.
            weight: the contribution's weight, > 0.
            more: whether this site's next call is probably an exchange of the same terms. It is
                then requested before this one ends, so that no site waits for its plan.
            channel: the members' channel; 0 for all sites, others as ``subgroup`` returns them.
            calls: whether to notify members that have not requested it, see ``is_awaited``.
            unfit: why this site's contribution is not usable: the exchange then fails at every
                member with this reason. Empty if it is usable.
            model: a digest for the scheduler to compare with other members'; None for no
                comparison.
            returns_early: whether to return once the result is here, where that is sooner than to
                hear that every member holds it. See ``Round.settlement``.

        Raises:
            ValueError: the buffer is empty, or the weight is out of range.
            RoundsOver: there is no further exchange; the buffer is unchanged.
            ExchangeError: the members disagree on the terms (names two of them), or a member has
                left or cannot contribute.
            RunAborted: the run ended early; names the site or error that caused it.
        """
        if not buffer.elements:
            raise ValueError("the buffer is empty; an exchange without data would wait for no site")
        weight = weight_of(weight)
        signature = signature_of(terms)
        if channel == 0 and not terms.receivers:
            kept = self._take_kept(signature)
            if kept is not None:
                done: Round
                done, result = await asyncio.shield(kept.ended)
                buffer.write(0, result)
                return replace(done, was_kept=True)
        if model is not None and not self.is_over(channel) and not self._scheduler.is_over:
            # Before the request, so that the comparison is complete with the last request.
            number = self._channels[channel].number + 1
            self._scheduler.post(ModelDigest(channel, number, model))
        # Members' models are compared, and unusable values refused, before an exchange begins.
        leases = model is None and not unfit
        # A call that returns early waits for no answer, if it begins under a lease.
        is_urgent = calls or not (returns_early and self._is_worth_a_copy(terms))
        number = self._ask_for_next(channel, terms, calls=calls, leases=leases, is_urgent=is_urgent)
        if unfit:
            self._refuse(channel, number, unfit)
        self._gets_state |= self._site in terms.receivers
        self._make_called()  # calls of the others that come after this one
        return await self._take_part(channel, number, buffer, terms, weight, more, returns_early)

    async def settled(self) -> None:
        """Wait until all results that have been returned are settled, or the run has ended."""
        self.flush()
        while self._unsettled:
            await asyncio.wait({*self._unsettled})

    def flush(self) -> None:
        """Send the delayed messages to the scheduler, since a caller waits for a settlement.

        The other members' messages are as delayed. Programs wait at the same place, so each member
        sends its own.
        """
        self._scheduler.flush()

    def ask_ahead(self, terms: Terms, channel: int = 0) -> None:
        """Ask for the next exchange ahead of its call, so that its plan is here in time.

        It commits to nothing: any other call of this site withdraws it. A follower does not ask,
        because its next call may have been made already.
        """
        state = self._channels[channel]
        if (channel == 0 and self._following is not None) or state.ahead is not None:
            return
        if state.leased(state.number + 1, terms.planned_elements) is not None:
            return
        if state.over is None and not self._scheduler.is_over:
            state.ahead = self._asked_for(state, signature_of(terms))
            message = AskAhead(channel, state.number + 1, state.ahead.signature, state.attempt)
            self._scheduler.post(message)

    def _asked_for(
        self, state: Channel, signature: Signature, follows: bool = False
    ) -> RequestedExchange:
        granted: asyncio.Future[tuple[Grant, Plan]] = self._loop.create_future()
        return RequestedExchange(self._loop.time(), 0, signature, follows, granted, state.attempt)

    def _take_back_all_but(self, kept: Channel | None = None) -> None:
        """Withdraw exchanges that were asked for ahead. The scheduler does the same at each call.

        A granted exchange that never begins would hold the room for early data. A large exchange of
        other members could then wait for ever.
        """
        for state in self._channels.values():
            if state is not kept:
                state.take_back()

    def _refuse(self, channel: int, number: int, why: str) -> None:
        """Make a requested exchange fail at every member; even if granted, it does not begin."""
        asked = self._channels[channel].waiting[number]
        if asked.granted.done():
            if asked.granted.exception() is not None:
                return  # it has failed
            asked.granted = self._loop.create_future()
        asked.unfit = why
        self._scheduler.post(Unfit(channel, number, why))

    @property
    def has_kept(self) -> bool:
        """Whether the next call has been made already in the program's place."""
        return self._following is not None and self._following.has_kept

    def is_awaited(self, channel: int = 0) -> bool:
        """Return whether another member waits for this site's next exchange.

        At a follower, also whether that exchange has been made already in its program's place.
        """
        state, following = self._channels[channel], self._following
        if channel == 0 and following is not None and following.has_kept:
            return following.keeps_exchange
        return state.awaited > state.number

    def _ask_for_next(
        self,
        channel: int,
        terms: Terms,
        follows: bool = False,
        calls: bool = False,
        leases: bool = False,
        is_urgent: bool = True,
    ) -> int:
        """Request the next exchange, and return its number.

        It is counted even if it cannot be held: numbers must agree at all members.

        Args:
            channel, terms, calls: see ``exchange``.
            follows: whether the call is made in the program's place.
            leases: whether it may begin under a lease, without a grant.
            is_urgent: whether the request leaves at once even if it begins under a lease.
        """
        state, signature = self._channels[channel], signature_of(terms)
        leased = self._under_lease(state, terms) if leases and state.over is None else None
        if state.over or leased or (state.ahead and state.ahead.signature != signature):
            state.take_back()  # the scheduler grants no leased exchange ahead
        asked = state.ahead or self._asked_for(state, signature, follows)
        state.number += 1
        state.times.called(self._loop.time())
        state.ahead, state.attempt = None, 0
        asked.place = state.calls_made
        state.waiting[state.number] = asked
        if state.over is not None:
            asked.granted.set_exception(state.over)
            asked.granted.exception()  # it may never be waited for
        elif self._scheduler.is_over:
            if not asked.granted.done():
                self._scheduler.fail_with(asked.granted)
        else:  # only a call that is sent to the scheduler takes requests ahead back
            self._take_back_all_but(state)
            asks = channel, state.number, signature, calls, asked.attempt
            request = ExchangeRequest(*asks, is_leased=leased is not None)
            if leased is None or is_urgent:
                self._scheduler.post(request)
            else:
                self._post_delayed(request)
            if leased is not None:
                asked.granted.set_result(leased)
        return state.number

    def _under_lease(self, state: Channel, terms: Terms) -> tuple[Grant, Plan] | None:
        """Return the grant of the next exchange under a lease; None if it has to be asked for.

        It is asked for where neighbours have sent data of other terms: then members disagree, and
        the scheduler names two of them before anything is sent. Also where the room that leases may
        use is taken.
        """
        if terms.source is not None or terms.receivers or self._exchanging is None:
            return None
        if state.gathering:  # the others may have made these calls in another order
            return None
        leased = state.leased(state.number + 1, terms.planned_elements)
        size_bytes = _ELEMENT_BYTES * terms.elements
        if leased is None or sum(self._leased.values()) + size_bytes > self._most_leased_bytes:
            return None
        exchange = leased[0].exchange
        if not self._exchanging.may_begin(exchange, terms):
            return None
        self._leased[exchange] = size_bytes
        state.leased_number = state.number + 1
        return leased

    async def _take_part(
        self,
        channel: int,
        number: int,
        buffer: Buffer,
        terms: Terms,
        weight: float,
        more: bool,
        returns_early: bool = False,
    ) -> Round:
        """Run a requested exchange to its end, or until its result is here."""
        assert self._exchanging is not None, "start() comes first"
        began_s = self._loop.time()
        state = self._channels[channel]
        asked = state.waiting[number]
        if number in state.failed and not asked.granted.done():
            del state.waiting[number]
            raise ExchangeError(state.failed.pop(number))
        waits = not asked.granted.done()
        if waits:
            state.times.waits(began_s)
        try:
            grant, plan = await asked.granted
        finally:
            del state.waiting[number]
            if waits:
                state.times.granted(self._loop.time())
        if number in state.failed:
            self._leased.pop(grant.exchange, None)
            raise ExchangeError(state.failed.pop(number))
        is_watched = more or grant.trees is not None
        keeps_own = grant.settles and self._retries and terms.op != Op.COPY
        returns_early = returns_early and grant.settles and not keeps_own
        returns_early = returns_early and self._is_worth_a_copy(terms)
        call = Call(
            self._exchanging,
            partial(self._say_early, grant.exchange) if returns_early else self._scheduler.say,
            grant,
            asked.place,
            buffer,
            terms,
            weight,
            is_watched,
            keeps_own,
            state.interrupted.pop(number, 0),
            state.repairs.pop(number, None),
        )
        if grant.settles:  # in the step in which the request ends, so that no message is missed
            state.calls[number] = call
        reports = None
        if grant.trees:
            post, window = self._scheduler.post, len(grant.trees)
            reports = Reports(self._loop, post, window, self._round_trip_s)
        hint = terms if more else None
        underway = _Underway(channel, grant, call, terms, began_s, reports, hint)
        self._underway[grant.exchange] = underway
        try:
            is_held = await self._reported(call.until_held(plan))
            returns_early = is_held and returns_early and await call.copy_result()
        except BaseException:
            self._forget(state, grant)
            raise
        if returns_early:
            done = self._returned_early(state, underway)
        else:
            done = await self._until_settled(state, underway)
        if more and not done.is_last and state.number == number:
            self.ask_ahead(terms, channel)
        return done

    def _returned_early(self, state: Channel, underway: _Underway) -> Round:
        """Return the round of a result that is here; a task goes on until it is settled."""
        seconds, why_last = self._loop.time() - underway.began_s, underway.grant.why_last
        if why_last:
            state.over = RoundsOver(why_last)
        settling = self._loop.create_task(self._until_settled(state, underway, seconds))
        self._unsettled.add(settling)
        settling.add_done_callback(self._on_settled)
        return _round(underway, seconds, is_last=bool(why_last), settlement=settling)

    def _on_settled(self, settling: asyncio.Task[Round]) -> None:
        self._unsettled.discard(settling)
        if settling.cancelled() or settling.exception() is not None:
            return  # the run has ended, and this site's next call tells why
        done = settling.result()
        if not done.is_told and not self._scheduler.is_over:
            self._post_delayed(self._end_message(done, None))

    async def _until_settled(
        self, state: Channel, underway: _Underway, seconds: float | None = None
    ) -> Round:
        """Run an exchange, whose result may be here, to its end.

        Args:
            state: of its channel.
            underway: the exchange.
            seconds: from the request to the result, if it was returned then.
        """
        try:
            settled = await self._reported(underway.call.until_settled())
        finally:
            self._forget(state, underway.grant)
        if seconds is None:
            seconds = self._loop.time() - underway.began_s
        members: tuple[int, ...] = ()
        contributions: tuple[Contribution, ...] = ()
        why_last = underway.grant.why_last
        if settled is not None:
            members, contributions = settled.members, settled.contributions
            why_last = settled.why_last
        if why_last:
            state.over = RoundsOver(why_last)
        return _round(underway, seconds, members, contributions, bool(why_last))

    async def _reported(self, running: Awaitable[T]) -> T:
        """Await a part of a call; if it fails, tell the scheduler, or raise its error."""
        try:
            return await running
        except (LinkError, PeerError, RunAborted) as error:
            raise await self._scheduler.verdict(error) from error
        except (NetError, RoundsOver):
            raise
        except Exception as error:  # the others would wait for this site's part
            if not self._scheduler.is_over:
                self._scheduler.post(Failed(f"{type(error).__name__}: {error}"))
            raise

    def _forget(self, state: Channel, grant: Grant) -> None:
        """Forget an exchange that has ended here."""
        underway = self._underway.pop(grant.exchange)
        if underway.reports is not None:
            underway.reports.stop()
        self._leased.pop(grant.exchange, None)
        state.calls.pop(grant.number, None)

    def advanced(self, exchange: Exchange) -> None:
        """Report progress to the scheduler, and ask for the next exchange in time."""
        underway = self._underway.get(exchange.number)
        if underway is None:
            return
        if underway.reports is not None:
            underway.reports.advanced(exchange)
        if underway.more is not None and not self._scheduler.is_over:
            state = self._channels[underway.channel]
            if underway.grant.number < state.number or state.ahead is not None:
                return
            elapsed_s = self._loop.time() - underway.began_s
            if is_time_to_ask(elapsed_s, exchange.done_share, self._round_trip_s):
                self.ask_ahead(underway.more, underway.channel)

    async def subgroup(self, members: tuple[int, ...], name: str = "") -> int:
        """Return the channel of some sites. All of them call this; this site is one of them.

        Args:
            members: the sites, in rising order.
            name: tells apart subgroups with the same members.

        Raises:
            RunAborted: the run ended early.
        """
        asked = members, name
        if asked not in self._subgroups:
            self._scheduler.say(self._subgroup_request(*asked))  # raises where the run is over
            self._subgroups[asked] = self._loop.create_future()
        return await asyncio.shield(self._subgroups[asked])

    def _subgroup_request(self, members: tuple[int, ...], name: str) -> SubgroupRequest:
        admitted = frozenset() if self._following is None else self._following.admitted
        return SubgroupRequest(members, name, (*sorted(admitted & {*members}),))

    async def gather(self, value: bytes, channel: int = 0, what: str = "") -> Gathered:
        """Return the members of a channel, and a small value of each, in the order of indices.

        Args:
            value: this site's value.
            channel: the channel's number.
            what: the purpose, for the error message if another member makes a different call.

        Raises:
            ExchangeError: a member exchanges instead, or has left; names it.
            RunAborted: the run ended early.
        """
        if channel == 0 and self._following is not None:
            if self._following.has_kept:
                raise ExchangeError(OTHER_CALL)
            self._following.goes_ahead()
            self._tell_step()
        state = self._channels[channel]
        state.gathered += 1
        answered = self._gather(channel, state.gathered, value, admits=False, what=what)
        self._make_called()
        found: Gathered = await answered
        return found

    async def admit(self, holds_state: bool) -> Admitted:
        """At a member: admit the sites that wait. At a new site: wait to be admitted.

        All members make this call. No other call of this site may be in progress.

        Args:
            holds_state: whether this site has the state of training.

        Raises:
            ExchangeError: a member makes another call instead; names it.
            RunAborted: the run ended early.
        """
        found: Admitted
        await self.settled()  # first: meanwhile, this call may be made in the program's place
        kept = self._take_kept(None)
        if kept is not None:
            found = await asyncio.shield(kept.ended)
            self._subgroups.clear()  # the program's earlier ones have other members
            return found
        state, number = self._channels[0], 0
        if not self.is_new:
            state.gathered += 1
            number = state.gathered
        has_it = b"state" if holds_state else b""
        answered = self._gather(0, number, has_it, admits=True)
        self._make_called()
        found = await answered
        return found

    # --- calls of the others that this site's program has not made yet

    def has_state(self) -> None:
        """Note that the program has the state of training."""
        if self._following is not None:
            self._following.has_state()
            self._tell_step()

    def _take_kept(self, signature: Signature | None) -> FollowedCall | None:
        """Return the kept result of the program's next call; None if it has not been made."""
        if self._following is None:
            return None
        kept = None
        if self._following.has_kept:
            kept = self._following.take(signature)
            if kept is None:
                raise ExchangeError(OTHER_CALL)
        else:
            self._following.goes_ahead()
        self._tell_step()
        return kept

    def _make_called(self) -> None:
        """Make the others' calls, in order, until one that waits for earlier calls of this site."""
        following, state = self._following, self._channels[0]
        while following is not None:
            called = following.next_call(state.calls_made)
            if called is None:
                break
            following.keep(FollowedCall(called.signature, self._made_instead(called)))
        self._tell_step()

    def _made_instead(self, called: CallMade) -> asyncio.Future[Any]:
        """Make a call in the program's place; return a future of its result."""
        if called.signature is None:
            state = self._channels[0]
            state.gathered += 1
            return self._gather(0, state.gathered, b"state", admits=True)
        terms = terms_of(called.signature)
        number = self._ask_for_next(0, terms, follows=True)
        made = self._loop.create_task(self._follow(number, terms))
        self._made.add(made)
        made.add_done_callback(self._made_has_ended)
        return made

    def _made_has_ended(self, made: asyncio.Task[Any]) -> None:
        self._made.discard(made)
        if not made.cancelled():
            made.exception()  # mark as retrieved: the program may never ask for it

    async def _follow(self, number: int, terms: Terms) -> tuple[Round, Floats]:
        """Get the result of an exchange to which this site contributes nothing."""
        result = np.zeros(terms.elements, np.float32)
        done = await self._take_part(0, number, Flat(result), terms, 1.0, more=False)
        self.tell_ended(done, None)
        return done, result

    def _tell_step(self) -> None:
        """Tell the others, once, that this site is in step; see `_following`."""
        said = None if self._following is None else self._following.step()
        if said is not None and not self._scheduler.is_over:
            self._scheduler.post(said)

    def finish(self) -> None:
        """Make no further calls in the program's place; those in progress go on until ``close``."""
        self._following = None
        self._take_back_all_but()

    def close(self) -> None:
        """Cancel the calls in the program's place, and those that are not settled."""
        for each in (*self._made, *self._unsettled):
            each.cancel()

    # --- to the scheduler

    def tell_ended(self, done: Round, checksum: int | None) -> None:
        """Tell the scheduler that this site holds an exchange's result, unless it has been told."""
        if not done.is_told:
            self._scheduler.say(self._end_message(done, checksum))

    def _end_message(self, done: Round, checksum: int | None) -> ExchangeEnded:
        return ExchangeEnded(
            done.channel,
            done.round,
            done.version,
            done.seconds,
            checksum,
            done.waited_for,
            done.tree,
            self._round_trip_s,
            self._channels[done.channel].times.every_s,
        )

    def _post_delayed(self, message: Message) -> None:
        self._scheduler.post_delayed(message, most_delay_s(self._round_trip_s))

    def _say_early(self, exchange: int, holding: Message) -> None:
        """Send ``Holding`` and the end of a call that returns early, delayed.

        After an interruption, the settlement is awaited, so send ``Holding`` alone, and at once.
        """
        assert isinstance(holding, Holding)
        if holding.generation or self._scheduler.is_over:
            self._scheduler.say(holding)
            return
        underway = self._underway[exchange]
        underway.has_told_end = True
        done = _round(underway, self._loop.time() - underway.began_s)
        self._post_delayed(structs.replace(holding, ended=self._end_message(done, None)))

    def _gather(
        self, channel: int, number: int, value: bytes, admits: bool, what: str = ""
    ) -> asyncio.Future[Any]:
        self._take_back_all_but()
        state = self._channels[channel]
        future: asyncio.Future[Any] = self._loop.create_future()
        state.gathering[number] = Gathering(state.calls_made, value, admits, what, future)
        heard = 0 if self.is_new else state.heard
        self._scheduler.say(Gather(channel, number, value, admits, heard, what))
        return future

    def is_over(self, channel: int) -> bool:
        """Return whether a channel, or that of all sites, has had its last exchange."""
        return any(self._channels[each].over is not None for each in {0, channel})

    def fail_waiting(self, error: Exception) -> None:
        """Fail all pending requests to the scheduler."""
        futures: list[asyncio.Future[Any]] = [*self._subgroups.values()]
        for state in self._channels.values():
            futures += [asked.granted for asked in state.waiting.values()]
            futures += [] if state.ahead is None else [state.ahead.granted]
            futures += [gathering.answered for gathering in state.gathering.values()]
        for future in futures:
            if not future.done():
                future.set_exception(error)
                future.exception()  # mark as retrieved, so that asyncio does not warn

    # --- from the scheduler

    def report_after_restart(self) -> None:
        """Tell a restarted scheduler this site's state, and repeat the pending requests."""
        for state in self._channels.values():
            for repair in state.forget_interruptions():
                if self._exchanging is not None:
                    void(self._exchanging, repair)
        channels = sorted(self._channels.items())
        snapshots = [state.snapshot(number, self._site) for number, state in channels]
        following = self._following if self._gets_state else None
        follows = following is not None and not following.is_in_step
        self._scheduler.post(SiteSnapshot((*snapshots,), self.is_new, follows))
        for channel, state in channels:
            for number, asked in state.waiting.items():
                if asked.unfit and not asked.granted.done():
                    self._scheduler.post(Unfit(channel, number, asked.unfit))
        for (members, name), future in self._subgroups.items():
            if not future.done():
                self._scheduler.post(self._subgroup_request(members, name))

    def hear(self, message: AnyMessage) -> None:
        """Act on a message of the scheduler.

        Raises:
            OutOfPlaceMessage: the message does not concern calls, or is not due.
        """
        match message:
            case Grant():
                self._granted(message)
            case Lease():
                self._take_lease(message)
            case LeaseOver():
                unused = self._channels.of(message.channel).end_leases()
                if message.is_void and self._exchanging is not None:
                    for exchange in unused:
                        self._exchanging.stop(exchange)
                self._scheduler.post(LeaseEnded(message.channel))
            case RequestAwaited():
                state = self._channels.of(message.channel)
                state.awaited = max(state.awaited, message.number)
            case Dispatched() if self._exchanging is not None:
                self._exchanging.dispatched(message.exchange, message.trees)
            case Interrupt() if self._exchanging is not None:
                state = self._channels.of(message.channel)
                self._scheduler.post(state.interrupt(message, self._exchanging))
            case Repair():
                state = self._channels.of(message.channel)
                plan = self._channels.plan_of(message.channel, message.version, message.plan_json)
                state.repair(message, plan)
            case Withdrawn():
                repair = self._channels.of(message.channel).withdraw(message.number)
                if repair is not None and self._exchanging is not None:
                    void(self._exchanging, repair)
            case Settled():
                state = self._channels[message.channel]
                state.ended.append(message)
                if message.number in state.calls:
                    state.calls[message.number].settle(message)
            case ExchangeFailed():
                state, error = self._channels[message.channel], ExchangeError(message.reason)
                is_underway = message.exchange in self._underway
                state.fail(message, error, is_underway, self._exchanging)
            case NoMoreRounds():
                self._channels[message.channel].refuse(message.number, RoundsOver(message.reason))
            case Subgrouped():
                self._channels.of(message.channel).take(plans.loads(message.plan_json))
                self._subgroups[message.members, message.name].set_result(message.channel)
            case Gathered():
                self._channels[message.channel].gather(message)
            case GatherFailed():
                error = ExchangeError(message.reason)
                self._channels[message.channel].fail_to_gather(message, error)
            case Admitted():
                self._admitted(message)
            case CallMade():
                if self._following is not None:
                    self._following.called(message)
                    self._make_called()
            case _:
                raise OutOfPlaceMessage(f"a {type(message).__name__}, which has no meaning here")

    def _granted(self, grant: Grant) -> None:
        state = self._channels.of(grant.channel)
        asked = state.granted(grant)
        # Keep the plan in any case: the scheduler will not send it again.
        plan = self._channels.plan_of(grant.channel, grant.version, grant.plan_json)
        if asked is None:
            return
        self._round_trips_s.append(self._loop.time() - asked.at_s)
        if not asked.unfit:  # else `ExchangeFailed` follows
            asked.granted.set_result((grant, plan))

    def _take_lease(self, lease: Lease) -> None:
        planned = {
            size.version: self._channels.plan_of(lease.channel, size.version, size.plan_json)
            for size in lease.sizes
        }
        self._channels.of(lease.channel).lease(lease, planned)

    def _admitted(self, message: Admitted) -> None:
        """Take over the members' counts of calls, and the new plan."""
        state = self._channels[0]
        future = state.gathering.pop(0 if self.is_new else message.number).answered
        if message.follows and self._site in message.newcomers:
            self._following, self._gets_state = Following(self._most_kept_bytes), False
        self.is_new = False
        self.admissions += 1
        for each in self._channels.values():  # every member has the answers before this one
            each.answers.clear()
        state.answers[message.number] = message
        state.number, state.attempt = message.exchanges, 0
        state.leases.clear()
        state.gathered = message.number
        if message.plan_json:
            self._channels.take(0, message.plan_json)
            self._subgroups.clear()  # earlier ones have other members
        if not future.done():
            future.set_result(message)


def _round(
    underway: _Underway,
    seconds: float,
    members: tuple[int, ...] = (),
    contributions: tuple[Contribution, ...] = (),
    is_last: bool = False,
    settlement: asyncio.Future[Round] | None = None,
) -> Round:
    """Return the round of an exchange, with the chunk that was finished last here."""
    grant, terms = underway.grant, underway.terms
    tree, waited_for = underway.call.latest or (None, None)
    return Round(
        grant.number,
        grant.version,
        seconds,
        tree,
        waited_for,
        underway.channel,
        terms.wire.bytes_of(terms.elements),
        members,
        contributions,
        is_last=is_last,
        is_told=underway.has_told_end and not underway.call.was_interrupted,
        settlement=settlement,
    )
