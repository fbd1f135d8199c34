"""What a site has asked for among the same members, and how far that is: state alone, no I/O.

The scheduler's answers may come before a call has begun here: what they say is kept for it then.
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
    ChannelStanding,
    ExchangeFailed,
    Gathered,
    GatherFailed,
    Grant,
    Holding,
    Interrupt,
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
"""The plans that a site keeps of a channel: those of the highest versions. Each order of size of
buffers has one; more orders than that are not in use at once."""
_REMEMBERED = 1024  # exchanges of a channel that have ended


@dataclass(slots=True)
class Asked:
    """An exchange that was asked for."""

    at_s: float
    place: int  # among the channel's calls; 0 before its call
    signature: Signature
    follows: bool  # asked in the place of the program, which contributes nothing
    granted: asyncio.Future[tuple[Grant, Plan]]
    attempt: int = 0  # how often it was asked for ahead before, and taken back
    unfit: str = ""  # why no member can use what this site would contribute: it fails


@dataclass(slots=True)
class Gathering:
    """A gathering that was begun."""

    place: int
    value: bytes
    admits: bool
    what: str
    answered: asyncio.Future[Any]


@dataclass(slots=True)
class Channel:
    """What a site exchanges with the same members, one after the other or at once."""

    plan: Plan  # the latest
    plans: dict[int, Plan] = field(default_factory=dict)  # that came last, by version
    number: int = 0  # of the latest exchange that began here
    ahead: Asked | None = None  # the next exchange, asked for ahead of its call
    attempt: int = 0  # how often the next exchange was asked for ahead, and that was taken back
    awaited: int = 0  # the latest exchange that another member is known to have asked for
    gathered: int = 0  # gatherings begun here
    over: Exception | None = None  # that no further exchange is held, once it is known
    waiting: dict[int, Asked] = field(default_factory=dict)
    gathering: dict[int, Gathering] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)  # before they were asked for here
    calls: dict[int, Call] = field(default_factory=dict)
    # Of calls that have not begun here: in which generation they are, and what completes them.
    interrupted: dict[int, int] = field(default_factory=dict)
    repairs: dict[int, tuple[Repair, Plan]] = field(default_factory=dict)
    # The latest calls that have ended here: the scheduler may forget what others have not heard.
    ended: deque[Message] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    # And what was gathered, by number, as far as some member may not have heard it.
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
            OutOfPlaceMessage: it has not come, or too many have come since.
        """
        if version not in self.plans:
            raise OutOfPlaceMessage(
                f"plan version {version}, which is none of those that came: {sorted(self.plans)}"
            )
        return self.plans[version]

    def take_back(self) -> None:
        """Forget that the next exchange was asked for ahead: this site makes another call."""
        if self.ahead is not None:
            self.ahead = None
            self.attempt += 1

    def granted(self, grant: Grant) -> Asked | None:
        """Return what a grant answers; None where it was asked for ahead, and taken back.

        Raises:
            OutOfPlaceMessage: it answers nothing that was asked for.
        """
        asked = self.waiting.get(grant.number)
        if asked is None and grant.number == self.number + 1:
            asked = self.ahead
            if grant.attempt < self.attempt:
                return None
        if asked is not None and grant.attempt < asked.attempt:
            return None
        if asked is None or grant.attempt > asked.attempt or asked.granted.done():
            raise OutOfPlaceMessage(
                f"exchange {grant.number} of channel {grant.channel} is granted, unasked"
            )
        return asked

    def refuse(self, number: int, over: Exception) -> None:
        """Let an exchange that was asked for, and all after it, end by this error."""
        self.over, self.ahead = over, None
        for each, asked in self.waiting.items():
            if each >= number and not asked.granted.done():
                asked.granted.set_exception(over)
                asked.granted.exception()  # it may never be waited for

    @property
    def calls_made(self) -> int:
        """How many calls were asked for here, of whichever kind."""
        return self.number + self.gathered

    @property
    def heard(self) -> int:
        """The latest gathering up to which all have ended here."""
        return min(self.gathering, default=self.gathered + 1) - 1

    def forget_interruptions(self) -> list[Repair]:
        """Forget those of exchanges that were not granted here: the scheduler was restarted.

        It will say anew what it still knows of them. It knows of no call that was asked for ahead,
        nor of earlier attempts.

        Returns:
            The repairs that will not begin.
        """
        self.ahead, self.attempt = None, 0
        for asked in self.waiting.values():
            asked.attempt = 0
        granted = {number for number, asked in self.waiting.items() if asked.granted.done()}
        for number in self.interrupted.keys() - granted:
            del self.interrupted[number]
        return [self.repairs.pop(number)[0] for number in self.repairs.keys() - granted]

    def standing(self, channel: int, site: int) -> ChannelStanding:
        """Return how far this site is, for a scheduler that was restarted.

        Args:
            channel: this one's number.
            site: this site.
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
        begun = [call.standing() for call in self.calls.values()]
        exchanges += [each for each in begun if each is not None]
        gatherings = tuple(
            OpenGathering(number, each.place, each.value, each.admits, each.what)
            for number, each in self.gathering.items()
        )
        answers = tuple(encode(message) for message in (*self.ended, *self.answers.values()))
        counts = self.plan.version, self.number, self.gathered
        return ChannelStanding(channel, *counts, (*exchanges,), gatherings, answers)

    # --- what the scheduler says

    def interrupt(self, message: Interrupt, exchanging: Exchanging) -> Holding:
        """Stop an exchange that has lost something; return what is here of its result."""
        call = self.calls.get(message.number)
        if call is not None:
            return call.interrupt(message)
        for exchange in message.exchanges:
            exchanging.stop(exchange)
        self.interrupted[message.number] = message.generation
        self.repairs.pop(message.number, None)
        return Holding(message.channel, message.number, message.generation, ())

    def repair(self, message: Repair, plan: Plan) -> None:
        """Complete an exchange that was interrupted, or is handed on."""
        call = self.calls.get(message.number)
        if call is None:
            self.repairs[message.number] = message, plan
        else:
            call.repair(message, plan)

    def withdraw(self, number: int) -> Repair | None:
        """Forget what interrupted an exchange that is not held; return a repair not to begin."""
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
            message: which, and why.
            error: raised by its call.
            is_underway: whether it goes on here.
            exchanging: moves what is exchanged; None before it can.
        """
        self.ended.append(message)
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
        else:  # it is about to begin here, or will be asked for
            self.failed[message.number] = message.reason

    def gather(self, message: Gathered) -> None:
        """End a gathering; forget the answers that every member has heard."""
        self.answers[message.number] = message
        for number in [number for number in self.answers if number <= message.heard]:
            del self.answers[number]
        answered = self.gathering.pop(message.number).answered
        if not answered.done():
            answered.set_result(message)

    def fail_to_gather(self, message: GatherFailed, error: Exception) -> None:
        """End a gathering without all values; its call raises this error."""
        self.answers[message.number] = message
        answered = self.gathering.pop(message.number).answered
        if not answered.done():
            answered.set_exception(error)


class Channels(dict[int, Channel]):
    """Every channel that a site knows, by its number; that of all sites is 0.

    Args:
        planned: called with each new plan of all sites.
    """

    def __init__(self, planned: Callable[[Plan], None]) -> None:
        super().__init__()
        self._planned = planned

    def begin(self, plan: Plan) -> None:
        """Take note of the channel of all sites, and of their plan."""
        self[0] = Channel(plan)

    @property
    def plan(self) -> Plan:
        """The plan that all sites go by now."""
        return self[0].plan

    def of(self, channel: int) -> Channel:
        """Return a channel, also one that this site has not asked for yet."""
        if channel not in self:
            self[channel] = Channel(self.plan)
        return self[channel]

    def plan_of(self, channel: int, version: int, plan_json: str) -> Plan:
        """Return the plan that a message names, which may have it with it."""
        return self.take(channel, plan_json) if plan_json else self[channel].plan_of(version)

    def take(self, channel: int, plan_json: str) -> Plan:
        """Keep a plan that exchanges run under, and return it."""
        plan = plans.loads(plan_json)
        if self[channel].take(plan) and channel == 0:
            self._planned(plan)
        return plan
