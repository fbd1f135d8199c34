"""Channels: the state of a site's calls among the same members. No I/O.

An exchange on a channel passes through these states at a site::

    ahead --its call--> waiting --Grant--> calls (a Call runs) --> ended
      `--another call: withdrawn                `-- interrupted, repaired, or failed

The scheduler may interrupt, repair or fail an exchange before it has begun here. Such messages are
kept by number (``interrupted``, ``repairs``, ``failed``) until the call begins.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from anabranch import plan as plans
from anabranch.net.errors import OutOfPlaceMessage
from anabranch.net.messages import (
    ChannelSnapshot,
    ExchangeFailed,
    Gathered,
    GatherFailed,
    Grant,
    Holding,
    Interrupt,
    Lease,
    Message,
    OpenExchange,
    OpenGathering,
    Repair,
    Signature,
    encode,
)
from anabranch.plan import Plan
from anabranch.site._call import Call, void
from anabranch.site._exchanging import Exchanging

KEPT_PLANS = 16
"""How many plans a site keeps of a channel: those of the highest versions. Each order of size of
buffers has one plan, and fewer orders than that are in use at once."""
LEASED_SHARE = 0.25
"""Of the bytes that may be under way, the share of exchanges that began under a lease. The
scheduler grants the others the rest."""
_LEAST_DELAY_S, _MOST_DELAY_S = 0.002, 0.010
_LEAST_BETWEEN_REPORTS_S = 0.010
_CALLS, _LEAST_CALLS = 32, 3  # whose mean interval is told
_REMEMBERED = 1024  # ended exchanges of a channel


def most_delay_s(round_trip_s: float) -> float:
    """Return how long a message to the scheduler may wait for the next one, if no caller waits.

    So several small calls share one message. A longer wait would keep copies of results for longer.

    Args:
        round_trip_s: to the scheduler and back.

    >>> most_delay_s(0.0002), most_delay_s(0.020), most_delay_s(0.100)
    (0.002, 0.005, 0.01)
    """
    return min(_MOST_DELAY_S, max(_LEAST_DELAY_S, round_trip_s / 4))


def between_reports_s(round_trip_s: float) -> float:
    """Return the seconds between two reports of an exchange.

    A site reports earlier only when every dealt chunk is finished. So the number of reports depends
    on the time of the exchange, not on its chunks. The scheduler deals the chunks of that time in
    advance, so that no tree waits for a report.

    Args:
        round_trip_s: to the scheduler and back.

    >>> between_reports_s(0.0002), between_reports_s(0.100)
    (0.01, 0.025)
    """
    return max(_LEAST_BETWEEN_REPORTS_S, round_trip_s / 4)


@dataclass(slots=True)
class RequestedExchange:
    """A requested exchange."""

    at_s: float  # when, by the loop's time
    place: int  # among the channel's calls; 0 before its call
    signature: Signature
    follows: bool  # requested in the program's place; contributes nothing
    granted: asyncio.Future[tuple[Grant, Plan]]
    attempt: int = 0  # how often it was asked for ahead before, and withdrawn
    unfit: str = ""  # why this site's contribution is not usable, so that it fails


@dataclass(slots=True)
class Gathering:
    """A gathering in progress."""

    place: int
    value: bytes
    admits: bool
    what: str
    answered: asyncio.Future[Any]


class CallTimes:
    """How soon calls of exchanges follow one another, if none waits for a grant."""

    def __init__(self) -> None:
        # Of the latest calls: when, and for how long calls had waited for grants until then.
        self._called_s: deque[tuple[float, float]] = deque(maxlen=_CALLS)
        self._waiting = 0  # calls
        self._since_s = 0.0  # while calls wait
        self._waited_s = 0.0  # in all; calls that wait at the same time count once

    def called(self, now_s: float) -> None:
        """Take note of a call."""
        waited_s = self._waited_s + (now_s - self._since_s if self._waiting else 0.0)
        self._called_s.append((now_s, waited_s))

    def waits(self, now_s: float) -> None:
        """Take note of a call that begins to wait for its grant."""
        if not self._waiting:
            self._since_s = now_s
        self._waiting += 1

    def granted(self, now_s: float) -> None:
        """Take note of the end of a wait."""
        self._waiting -= 1
        if not self._waiting:
            self._waited_s += now_s - self._since_s

    @property
    def every_s(self) -> float | None:
        """The mean time between calls, without waits; None before there are several calls."""
        if len(self._called_s) < _LEAST_CALLS:
            return None
        (first_s, waited_s), (last_s, waited_since_s) = self._called_s[0], self._called_s[-1]
        took_s = last_s - first_s - (waited_since_s - waited_s)
        return max(0.0, took_s) / (len(self._called_s) - 1)


@dataclass(slots=True)
class Channel:
    """A site's exchanges and gatherings with the same members."""

    plan: Plan  # the latest
    plans: dict[int, Plan] = field(default_factory=dict)  # the latest ones, by version
    number: int = 0  # of the latest exchange called here
    ahead: RequestedExchange | None = None  # the next exchange, asked for ahead of its call
    attempt: int = 0  # how often the next exchange was asked for ahead, and withdrawn
    awaited: int = 0  # the latest exchange that another member is known to have requested
    gathered: int = 0  # of the latest gathering called here
    over: Exception | None = None  # the error of later calls, after the last exchange
    waiting: dict[int, RequestedExchange] = field(default_factory=dict)
    gathering: dict[int, Gathering] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)  # reasons, before their call here
    calls: dict[int, Call] = field(default_factory=dict)
    times: CallTimes = field(default_factory=CallTimes)
    leased_number: int = 0  # of the latest exchange that began under a lease
    leases: list[tuple[Lease, dict[int, Plan]]] = field(default_factory=list)  # with their plans
    # Of exchanges that have not begun here: the generation, and the repair.
    interrupted: dict[int, int] = field(default_factory=dict)
    repairs: dict[int, tuple[Repair, Plan]] = field(default_factory=dict)
    # The outcomes of the latest exchanges here. A restarted scheduler may have forgotten them,
    # while other members have not received them yet.
    ended: deque[Message] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    # Likewise the answers to gatherings that some member may not have received.
    answers: dict[int, Message] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.plans[self.plan.version] = self.plan

    def take(self, plan: Plan) -> bool:
        """Keep a plan; return whether it is the latest."""
        self.plans[plan.version] = plan
        for version in sorted(self.plans)[:-KEPT_PLANS]:
            del self.plans[version]
        is_latest = plan.version >= self.plan.version
        if is_latest:
            self.plan = plan
        return is_latest

    def plan_of(self, version: int) -> Plan:
        """Return the plan of a version.

        Raises:
            OutOfPlaceMessage: it has not arrived, or is too old to be kept.
        """
        if version not in self.plans:
            raise OutOfPlaceMessage(
                f"plan version {version}, which is none of those that came: {sorted(self.plans)}"
            )
        return self.plans[version]

    def take_back(self) -> None:
        """Withdraw an exchange that was asked for ahead: this site makes another call."""
        if self.ahead is not None:
            self.ahead = None
            self.attempt += 1

    def granted(self, grant: Grant) -> RequestedExchange | None:
        """Return the request that a grant answers; None if that is withdrawn.

        Raises:
            OutOfPlaceMessage: there is no such request.
        """
        asked = self.waiting.get(grant.number)
        if asked is None and grant.number == self.number + 1:
            asked = self.ahead
            if grant.attempt < self.attempt:
                return None
        if asked is not None and grant.attempt < asked.attempt:
            return None
        if asked is None and grant.number <= self.leased_number:
            return None  # asked for ahead, withdrawn, and begun under a lease meanwhile
        if asked is None or grant.attempt > asked.attempt or asked.granted.done():
            raise OutOfPlaceMessage(
                f"exchange {grant.number} of channel {grant.channel} is granted, unasked"
            )
        return asked

    def lease(self, lease: Lease, planned: dict[int, Plan]) -> None:
        """Keep a lease, with its plans by version; forget those that are used up."""
        self.leases = [each for each in self.leases if each[0].first + each[0].count > self.number]
        self.leases.append((lease, planned))

    def leased(self, number: int, elements: int) -> tuple[Grant, Plan] | None:
        """Return the grant of an exchange under a lease; None for no lease."""
        for lease, planned in self.leases:
            place = number - lease.first
            if not 0 <= place < lease.count:
                continue
            for size in lease.sizes:
                if size.elements == elements:
                    grant = Grant(
                        lease.channel,
                        number,
                        lease.first_exchange + place,
                        size.version,
                        "",
                        size.chunk_elements,
                        size.trees,
                        lease.settles,
                    )
                    return grant, planned[size.version]
        return None

    def end_leases(self) -> list[int]:
        """Forget all leases; return the numbers that chunks of their further exchanges carry."""
        unused = [
            lease.first_exchange + number - lease.first
            for lease, _ in self.leases
            for number in range(max(lease.first, self.number + 1), lease.first + lease.count)
        ]
        self.leases.clear()
        return unused

    def refuse(self, number: int, over: Exception) -> None:
        """Fail a requested exchange, and all later ones, with this error."""
        self.over, self.ahead = over, None
        for each, asked in self.waiting.items():
            if each >= number and not asked.granted.done():
                asked.granted.set_exception(over)
                asked.granted.exception()  # it may never be waited for

    @property
    def calls_made(self) -> int:
        """The number of calls made here, of either kind."""
        return self.number + self.gathered

    @property
    def heard(self) -> int:
        """The highest number up to which all gatherings have ended here."""
        return min(self.gathering, default=self.gathered + 1) - 1

    def forget_interruptions(self) -> list[Repair]:
        """Forget interruptions of exchanges not granted here: the scheduler was restarted.

        It will send again what it still knows of them. It knows no exchange that was asked for
        ahead, and no earlier attempts.

        Returns:
            The repairs that will not begin.
        """
        self.ahead, self.attempt = None, 0
        self.leases.clear()
        for asked in self.waiting.values():
            asked.attempt = 0
        granted = {number for number, asked in self.waiting.items() if asked.granted.done()}
        for number in self.interrupted.keys() - granted:
            del self.interrupted[number]
        return [self.repairs.pop(number)[0] for number in self.repairs.keys() - granted]

    def snapshot(self, channel: int, site: int) -> ChannelSnapshot:
        """Return the state of this channel, for a restarted scheduler.

        Args:
            channel: the channel's number.
            site: this site's index.
        """
        exchanges = []
        for number, asked in self.waiting.items():
            grant = None
            if asked.granted.done():
                if asked.granted.cancelled() or asked.granted.exception() is not None:
                    continue  # it has failed
                grant, _ = asked.granted.result()
            granted = (0, 0) if grant is None else (grant.exchange, grant.chunk_elements)
            generation = self.interrupted.get(number, 0)
            running = () if grant is None else (grant.exchange,)
            followers: tuple[int, ...] = (site,) if asked.follows else ()
            if grant is not None:
                followers = grant.followers
            asked_for = number, asked.signature, asked.place
            exchanges.append(OpenExchange(*asked_for, *granted, generation, running, followers))
        begun = [call.snapshot() for call in self.calls.values()]
        exchanges += [each for each in begun if each is not None]
        gatherings = tuple(
            OpenGathering(number, each.place, each.value, each.admits, each.what)
            for number, each in self.gathering.items()
        )
        answers = tuple(encode(message) for message in (*self.ended, *self.answers.values()))
        counts = self.plan.version, self.number, self.gathered
        return ChannelSnapshot(channel, *counts, (*exchanges,), gatherings, answers)

    # --- messages of the scheduler

    def interrupt(self, message: Interrupt, exchanging: Exchanging) -> Holding:
        """Stop an exchange; return which elements of its result are here."""
        call = self.calls.get(message.number)
        if call is not None:
            return call.interrupt(message)
        for exchange in message.exchanges:
            exchanging.stop(exchange)
        self.interrupted[message.number] = message.generation
        self.repairs.pop(message.number, None)
        return Holding(message.channel, message.number, message.generation, ())

    def repair(self, message: Repair, plan: Plan) -> None:
        """Begin, or keep for later, the repair of an exchange."""
        call = self.calls.get(message.number)
        if call is None:
            self.repairs[message.number] = message, plan
        else:
            call.repair(message, plan)

    def withdraw(self, number: int) -> Repair | None:
        """Forget the interruption of an exchange that will not be held; return its repair."""
        self.interrupted.pop(number, None)
        repair, _ = self.repairs.pop(number, (None, None))
        return repair

    def fail(
        self,
        message: ExchangeFailed,
        error: Exception,
        is_underway: bool,
        exchanging: Exchanging | None,
    ) -> None:
        """End an exchange without a result.

        Args:
            message: names the exchange and the reason.
            error: raised by its call.
            is_underway: whether it is in progress here.
            exchanging: runs exchanges; None before the site has started.
        """
        self.ended.append(message)
        self.leases.clear()
        call = self.calls.get(message.number)
        if call is not None:
            call.fail(error)
            return
        repair = self.withdraw(message.number)
        if exchanging is not None:
            if repair is not None:
                void(exchanging, repair)
            if message.exchange:
                exchanging.give_up(message.exchange, error)
        if is_underway:
            return
        asked = self.waiting.get(message.number)
        if asked is not None and not asked.granted.done():
            asked.granted.set_exception(error)
            asked.granted.exception()  # it may never be waited for
        else:  # its call is about to begin, or is yet to be made
            self.failed[message.number] = message.reason

    def gather(self, message: Gathered) -> None:
        """End a gathering; forget the answers that every member has received."""
        self.answers[message.number] = message
        for number in [number for number in self.answers if number <= message.heard]:
            del self.answers[number]
        answered = self.gathering.pop(message.number).answered
        if not answered.done():
            answered.set_result(message)

    def fail_to_gather(self, message: GatherFailed, error: Exception) -> None:
        """End a gathering without all values; its call raises this error."""
        self.answers[message.number] = message
        self.leases.clear()
        answered = self.gathering.pop(message.number).answered
        if not answered.done():
            answered.set_exception(error)


class Channels(dict[int, Channel]):
    """A site's channels, by number; 0 is the channel of all sites.

    Args:
        planned: called with each new plan of all sites.
    """

    def __init__(self, planned: Callable[[Plan], None]) -> None:
        super().__init__()
        self._planned = planned

    def begin(self, plan: Plan) -> None:
        """Make the channel of all sites, with its first plan."""
        self[0] = Channel(plan)

    @property
    def plan(self) -> Plan:
        """The present plan of all sites."""
        return self[0].plan

    def of(self, channel: int) -> Channel:
        """Return a channel; made now if another member has asked for it first."""
        if channel not in self:
            self[channel] = Channel(self.plan)
        return self[channel]

    def plan_of(self, channel: int, version: int, plan_json: str) -> Plan:
        """Return the plan that a message names, from ``plan_json`` if that is not empty."""
        return self.take(channel, plan_json) if plan_json else self[channel].plan_of(version)

    def take(self, channel: int, plan_json: str) -> Plan:
        """Keep a plan, and return it."""
        plan = plans.loads(plan_json)
        if self[channel].take(plan) and channel == 0:
            self._planned(plan)
        return plan
