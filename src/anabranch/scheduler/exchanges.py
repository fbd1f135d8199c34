"""Which plan each exchange runs under, and whether all members agree on it. Pure.

Members make the same calls in the same order: exchanges, gatherings of small values, and those that
let further members in. A call that cannot end, since a member makes another one in its place or
none any more, fails at once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from anabranch.net.errors import OutOfPlaceMessage
from anabranch.net.messages import ChannelStanding, OpenExchange, Signature
from anabranch.plan import Plan
from anabranch.scheduler.plans_by_size import PlansBySize
from anabranch.site.channel import KEPT_PLANS


class Kind(IntEnum):
    """What a call is, besides its number."""

    EXCHANGE = 0
    GATHER = 1
    ADMIT = 2


@dataclass(frozen=True, slots=True)
class Granted:
    """A site may begin an exchange.

    Args:
        site: which.
        number: of the exchange, among those of its members.
        exchange: the number that its chunks carry.
        plan: that it runs under.
        lacks: whether the site has not got that plan.
        is_first: whether no other member was granted it before.
        is_last: whether all members are granted it now.
        signature: what is exchanged.
    """

    site: int
    number: int
    exchange: int
    plan: Plan
    lacks: bool
    is_first: bool
    is_last: bool
    signature: Signature


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Members asked for different things under one number; the exchange ends without a result.

    Args:
        number, exchange: as in :class:`Granted`; ``exchange`` is 0 where it had not begun.
        sites: the two that disagree.
        signatures: what each would exchange.
        tell: the members that know of the channel.
    """

    number: int
    exchange: int
    sites: tuple[int, int]
    signatures: tuple[Signature, Signature]
    tell: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Made:
    """A call that a site has made.

    Args:
        site: which.
        kind: of call.
        what: is exchanged, or what a gathering is for, in words.
    """

    site: int
    kind: Kind
    what: Signature | str = ""


@dataclass(frozen=True, slots=True)
class Mixed:
    """Members make calls of two kinds in the same place: neither can end.

    Args:
        call: the place, from 1.
        made: by two sites, in the order of their kinds.
        exchanges, gatherings: how many of each all members can still end.
    """

    call: int
    made: tuple[Made, Made]
    exchanges: int
    gatherings: int


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A site's call cannot end.

    Args:
        site, number, exchange: as in :class:`Granted`; ``exchange`` is 0 where it had not begun.
        gathers: whether the call gathers small values.
        reason: why.
    """

    site: int
    number: int
    exchange: int
    gathers: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Whole:
    """Every member has gathered.

    Args:
        number: of the gathering.
        values: the members' small values, in their order.
        admits: whether they let further members in.
        heard: the latest gathering up to which every member has heard the values.
    """

    number: int
    values: tuple[bytes, ...]
    admits: bool
    heard: int


Answer = Granted | Disagreement | Mixed | Abandoned | Whole


@dataclass(slots=True)
class _Failed:
    """An exchange that ended without a result."""

    exchange: int
    reason: str
    told: frozenset[int]


@dataclass(frozen=True, slots=True)
class _Limit:
    """The calls that can still end, where not all can."""

    exchanges: int
    gatherings: int
    reason: str


@dataclass(slots=True)
class _Held:
    """An exchange that a member has asked for, until all have ended it."""

    exchange: int
    plan: Plan
    signature: Signature
    first: int  # the site that asked first
    is_granted: bool = False  # to anyone, who may be lost by now
    is_restored: bool = False  # from what members said of it
    granted: set[int] = field(default_factory=set)
    ended: dict[int, int | None] = field(default_factory=dict)  # checksums, by site


class Counter:
    """Numbers exchanges over all members' books, and bounds what goes on at once.

    Args:
        most_bytes: of buffers of exchanges under way; one may always be.
    """

    def __init__(self, most_bytes: float) -> None:
        self._most_bytes = most_bytes
        self.latest = 0
        self.bytes_under_way = 0

    def next(self) -> int:
        """Return the next exchange's number."""
        self.latest += 1
        return self.latest

    def has_room(self, size_bytes: int, at_most: bool) -> bool:
        """Return whether an exchange of this size may begin; one that needs more, only alone.

        Args:
            size_bytes: of its buffer.
            at_most: whether one that needs more may not, as data may come early that has to fit.
        """
        under_way = self.bytes_under_way
        return (not under_way and not at_most) or under_way + size_bytes <= self._most_bytes


class ExchangeBook:
    """Fixes one plan version for each exchange, at the first request for it (NetStorm, VII-A).

    A new plan counts for exchanges that no member has asked for yet, so none ever mixes two. A
    member may ask for its next exchanges before it has ended the present one.

    Args:
        members: sites, each of which asks for every exchange, in order.
        plans: that exchanges run under.
        counter: shared by the books of one run.
        is_known: whether all members know of their channel from the first, or learn by
            ``known_from_now``.

    Attributes:
        plans: see above.
        has_followers: whether members follow, to whom a result may come before they have asked.
    """

    def __init__(
        self, members: Iterable[int], plans: PlansBySize, counter: Counter, is_known: bool = True
    ) -> None:
        self.members = tuple(members)
        self.plans = plans
        self._counter = counter
        self._held: dict[int, _Held] = {}  # by number
        self._asked = dict.fromkeys(self.members, 0)  # the latest number each site asked for
        # The versions of the plans that each site has.
        self._known = {member: {plans.latest.version} for member in self.members}
        self._waiting: deque[tuple[int, int, Signature]] = deque()  # for room: site, number, what
        self._failed: dict[int, _Failed] = {}  # by number
        self._informed = set(self.members) if is_known else set()  # who knows of the channel
        self._gathered = dict.fromkeys(self.members, 0)  # the latest gathering of each site
        self._heard = dict.fromkeys(self.members, 0)  # up to which gathering each site knows all
        self._values: dict[int, dict[int, bytes]] = {}  # of gatherings not all have joined, by site
        self._calls = dict.fromkeys(self.members, 0)  # exchanges and gatherings of each site
        self._firsts: dict[int, Made] = {}  # the call that was made first, by its place
        self._admissions: set[int] = set()  # gatherings that let members in
        self._limit: _Limit | None = None
        self._last_call = math.inf  # whatever is called after this place fails
        self._last: int | None = None  # no exchange after this one is held
        self._settled: frozenset[int] = frozenset()  # before this book was restored
        self.has_followers = False

    @property
    def latest(self) -> int:
        """The latest exchange any member asked for; 0 before the first, and without members."""
        return max(self._asked.values(), default=0)

    def calls(self, site: int) -> int:
        """Return how many calls a member has made."""
        return self._calls[site]

    def is_last_to_ask(self, site: int, number: int) -> bool:
        """Return whether all other members have asked for this exchange."""
        return all(asked >= number for each, asked in self._asked.items() if each != site)

    @property
    def latest_call(self) -> int:
        """The place of the latest call any member made; 0 before the first."""
        return max(self._calls.values())

    @property
    def begun(self) -> dict[int, Kind]:
        """Calls that some members have made and others have not: by place, the kind."""
        return {place: made.kind for place, made in self._firsts.items()}

    @property
    def plan(self) -> Plan:
        """The latest plan of exchanges that no member has asked for yet."""
        return self.plans.latest

    @property
    def unplanned(self) -> set[int]:
        """The elements of buffers whose exchanges wait until they are planned for."""
        waiting = (each for each in self._waiting if each[1] not in self._held)
        return {what.elements for *_, what in waiting if self._plan_of(what) is None}

    def _plan_of(self, signature: Signature) -> Plan | None:
        """Return the plan for a buffer; what hands the state on is moved by plans of its own."""
        return self.plans.latest if signature.receivers else self.plans.of(signature.elements)

    def is_held(self, number: int) -> bool:
        """Return whether a member has asked for this exchange, and not all have ended it."""
        return number in self._held

    def awaited_result(self, number: int) -> Signature | None:
        """Return what is exchanged, if the exchange is held and no member has its result yet."""
        held = self._held.get(number)
        return None if held is None or held.ended else held.signature

    def exchange(self, number: int) -> int:
        """Return the number that the chunks of an exchange carry which is held."""
        return self._held[number].exchange

    def known_from_now(self, site: int) -> Plan:
        """Return the plan in force, which a site has from now on, as it knows of the channel."""
        self._informed.add(site)
        self._has_from_now(site, self.plan)
        return self.plan

    def _has_from_now(self, site: int, plan: Plan) -> None:
        known = self._known[site]
        known.add(plan.version)
        known.difference_update(sorted(known)[:-KEPT_PLANS])  # which the site has forgotten

    def issue(self, plan: Plan, elements: int = 0) -> None:
        """Let every exchange that no member has asked for yet run under this plan.

        Args:
            plan: for a network that is another.
            elements: of the buffers that it was made for; 0 where it was made for none.
        """
        self.plans.replace(plan, elements)

    def close(self, last: int | None = None) -> None:
        """Hold no exchange that no member has asked for yet; those under way run to their end.

        Args:
            last: the last one that is held, where that was decided before; None for the latest.
        """
        if self._last is None:
            self._last = self.latest if last is None else last

    @property
    def last(self) -> int | None:
        """The last exchange that is held; None where more may follow."""
        return self._last

    def holds(self, number: int) -> bool:
        """Return whether an exchange is held, or may be."""
        return self._last is None or number <= self._last

    def request(
        self, site: int, number: int, signature: Signature, refusal: str = ""
    ) -> tuple[Answer, ...] | None:
        """Answer a site's request.

        Args:
            site, number, signature: which site asks, for which exchange, of what.
            refusal: why it has nothing to contribute, and the exchange fails; empty if it has.

        Returns:
            What follows: nothing while exchanges under way take all the room, None if the exchange
            is not held.

        Raises:
            OutOfPlaceMessage: the site is no member, or does not ask for the one after its last.
        """
        if site not in self._asked:
            raise OutOfPlaceMessage(f"site {site} asks for an exchange of members {self.members}")
        if number != self._asked[site] + 1:
            raise OutOfPlaceMessage(
                f"site {site} asks for exchange {number} after {self._asked[site]}"
            )
        if not self.holds(number):
            return None
        mixed = self._count(Made(site, Kind.EXCHANGE, signature))
        self._asked[site] = number
        also = () if mixed is None else (mixed,)
        failed = self._failed.get(number)
        if failed is not None:
            if site in failed.told:
                return also
            return (Abandoned(site, number, failed.exchange, False, failed.reason), *also)
        if self._limit is not None and number > self._limit.exchanges:
            return (Abandoned(site, number, 0, False, self._limit.reason), *also)
        if refusal:
            return (*self._refuse(number, refusal), *also)
        self._waiting.append((site, number, signature))
        return also or self.grant()

    def _refuse(self, number: int, reason: str) -> tuple[Abandoned, ...]:
        """End an exchange without a result, whether it has begun or not."""
        if number in self._held:
            return self.give_up(number, reason)
        told = self._fail(number, 0, reason).told
        self._waiting = deque(each for each in self._waiting if each[1] != number)
        return tuple(Abandoned(member, number, 0, False, reason) for member in sorted(told))

    def gather(
        self,
        site: int,
        number: int,
        value: bytes,
        admits: bool = False,
        heard: int = 0,
        what: str = "",
    ) -> tuple[Answer, ...]:
        """Take a member's small value, who has heard the values of gatherings up to one.

        What it is gathered for is told where another member makes another call.

        Raises:
            OutOfPlaceMessage: the site does not gather as the one after its last.
        """
        if number != self._gathered[site] + 1:
            raise OutOfPlaceMessage(f"site {site} gathers {number} after {self._gathered[site]}")
        mixed = self._count(Made(site, Kind.ADMIT if admits else Kind.GATHER, what))
        self._gathered[site] = number
        self._heard[site] = min(heard, number - 1)
        if admits:
            self._admissions.add(number)
        also = () if mixed is None else (mixed,)
        if self._limit is not None and number > self._limit.gatherings:
            return (Abandoned(site, number, 0, True, self._limit.reason), *also)
        values = self._values.setdefault(number, {})
        values[site] = value
        if also or len(values) < len(self.members):
            return also
        return (self._whole(number),)

    def _whole(self, number: int) -> Whole:
        values, admits = self._values.pop(number), number in self._admissions
        self._admissions.discard(number)
        of_all = tuple(values[member] for member in self.members)
        return Whole(number, of_all, admits, min(self._heard.values()))

    def _count(self, made: Made) -> Mixed | None:
        """Count a site's call; return what is wrong with its kind."""
        site = made.site
        self._calls[site] += 1
        call = self._calls[site]
        if call > self._last_call:
            return None
        before = self._asked[site], self._gathered[site]
        return self._compare(made, call, before, min(self._calls.values()))

    @property
    def exchanges(self) -> set[int]:
        """The numbers that the chunks of the exchanges carry that are held."""
        return {held.exchange for held in self._held.values()}

    def lose(self, *sites: int) -> tuple[Answer, ...]:
        """Go on without some members, all at once; return what follows for the others."""
        self.members = tuple(member for member in self.members if member not in sites)
        for site in sites:
            counts = self._asked, self._known, self._gathered, self._heard, self._calls
            for per_site in counts:
                per_site.pop(site)
        self._informed.difference_update(sites)
        self._waiting = deque(each for each in self._waiting if each[0] not in sites)
        for call, made in list(self._firsts.items()):
            others = [member for member in self.members if self._calls[member] >= call]
            if len(others) == len(self.members):  # all have made this call
                del self._firsts[call]
            elif made.site in sites and others:  # which have made the same call
                self._firsts[call] = replace(made, site=others[0])
            elif made.site in sites:
                del self._firsts[call]
        answers: list[Answer] = []
        for number, values in list(self._values.items()):
            for site in sites:
                values.pop(site, None)
            if not values:
                del self._values[number]
            elif len(values) == len(self.members):
                answers.append(self._whole(number))
        for number, held in list(self._held.items()):
            held.granted.difference_update(sites)
            for site in sites:
                held.ended.pop(site, None)
            if len(held.ended) == len(self.members):
                self._drop(number)
        return (*answers, *self.grant())

    def restore(
        self,
        standings: Mapping[int, ChannelStanding],
        failed: Mapping[int, str],
        settled: Collection[int],
        gathered: Collection[int],
    ) -> tuple[Answer, ...]:
        """Go on from what members say of their calls, where what was known of them is lost.

        Args:
            standings: what each member says; those that say nothing are to be lost next.
            failed: exchanges that have failed, and why.
            settled, gathered: exchanges and gatherings that have ended at some member: at all, but
                for those that are told so.
        """
        self._settled = frozenset(settled)
        for site, each in standings.items():
            self._informed.add(site)
            self._known[site] = {each.version}
            self._asked[site], self._gathered[site] = each.asked, each.gathered
            self._calls[site] = each.asked + each.gathered
            lacking = (gathering.number for gathering in each.gatherings if gathering.number)
            self._heard[site] = min(lacking, default=each.gathered + 1) - 1
        for counts in (self._asked, self._gathered, self._heard, self._calls):
            least = min((counts[site] for site in standings), default=0)
            counts |= dict.fromkeys(set(self.members) - standings.keys(), least)
        answers: list[Answer] = []
        mixed: Mixed | None = None
        for site, each in standings.items():
            for exchange in each.exchanges:
                number, place = exchange.number, exchange.place
                before = number - 1, place - number
                made = Made(site, Kind.EXCHANGE, exchange.signature)
                mixed = mixed or self._compare(made, place, before, 0)
                if number in failed:
                    answers.append(
                        Abandoned(site, number, exchange.exchange, False, failed[number])
                    )
                elif number not in settled and self.holds(number):
                    self._take_up(site, exchange)
            for gathering in each.gatherings:
                kind = Kind.ADMIT if gathering.admits else Kind.GATHER
                number, place = gathering.number, gathering.place
                if number:
                    before = place - number, number - 1
                    made = Made(site, kind, gathering.what)
                    mixed = mixed or self._compare(made, place, before, 0)
                if gathering.number and gathering.number not in gathered:
                    self._values.setdefault(gathering.number, {})[site] = gathering.value
                    if gathering.admits:
                        self._admissions.add(gathering.number)
        lowest = min(self._calls.values(), default=0)
        self._firsts = {place: who for place, who in self._firsts.items() if place > lowest}
        for number, reason in failed.items():
            told = frozenset(site for site, each in standings.items() if each.asked >= number)
            self._failed[number] = _Failed(0, reason, told)  # the others will ask for it
        self._waiting = deque(sorted(self._waiting, key=lambda each: each[1]))
        whole = [number for number, said in self._values.items() if said.keys() >= {*self.members}]
        answers += [self._whole(number) for number in sorted(whole)]
        return (*answers, *(() if mixed is None else (mixed,)))

    def _compare(
        self, made: Made, place: int, before: tuple[int, int], lowest: int
    ) -> Mixed | None:
        """Compare a call with that of others in its place.

        Args:
            made, place: the call, and where.
            before: how many exchanges and gatherings its site has called for earlier.
            lowest: the place of the last call that all have made.
        """
        first = self._firsts.setdefault(place, made)
        if place <= lowest:
            del self._firsts[place]
        if made.kind == first.kind:
            return None
        both = (first, made) if first.kind < made.kind else (made, first)
        return Mixed(place, both, *before)

    def _take_up(self, site: int, said: OpenExchange) -> None:
        """Hold what a member has begun, or let it wait for what it asked for."""
        if not said.exchange:
            self._waiting.append((site, said.number, said.signature))
            return
        held = self._held.get(said.number)
        if held is None:
            self._counter.bytes_under_way += _size_bytes(said.signature)
            held = _Held(said.exchange, self.plan, said.signature, site, True, True)
            self._held[said.number] = held
        held.granted.add(site)

    @property
    def held(self) -> dict[int, tuple[int, Signature]]:
        """The exchanges that are held: the numbers of their chunks, and what is exchanged."""
        return {number: (held.exchange, held.signature) for number, held in self._held.items()}

    @property
    def is_level(self) -> bool:
        """Whether all members have made the same calls."""
        per_site = self._asked, self._gathered, self._calls
        return all(len({*counts.values()}) == 1 for counts in per_site)

    def admit(self, sites: Iterable[int], plan: Plan, elements: int = 0) -> None:
        """Let sites take part from here on, while it is level; all have this plan.

        Args:
            sites: that are let in.
            plan, elements: see ``issue``.
        """
        self.issue(plan, elements)
        for counts in (self._asked, self._gathered, self._heard, self._calls):
            counts |= dict.fromkeys(sites, max(counts.values()))
        self.members = tuple(sorted(self._calls))
        self._informed.update(self.members)
        self._known = {member: {plan.version} for member in self.members}

    def awaits(self, site: int) -> bool:
        """Return whether another member has made a call that this one has not."""
        return site in self._calls and max(self._calls.values()) > self._calls[site]

    def plan_for(self, site: int, plan: Plan) -> Plan | None:
        """Return a plan, which a site has from now on; None if it has it already."""
        if plan.version in self._known[site]:
            return None
        self._has_from_now(site, plan)
        return plan

    def leave(self, site: int, reason: str) -> tuple[Abandoned, ...]:
        """Take note that a member makes no further call."""
        limit = _Limit(self._asked[site], self._gathered[site], reason)
        return self._abandon(limit, self._calls[site])

    def abandon_mixed(self, mixed: Mixed, reason: str) -> tuple[Abandoned, ...]:
        """Give up all calls from those on that are of two kinds."""
        return self._abandon(_Limit(mixed.exchanges, mixed.gatherings, reason), mixed.call)

    def abandon(self, reason: str) -> tuple[Abandoned, ...]:
        """Give up all calls that not every member has made."""
        per_site = self._asked, self._gathered, self._calls
        asked, gathered, calls = (min(counts.values(), default=0) for counts in per_site)
        return self._abandon(_Limit(asked, gathered, reason), calls)

    def give_up(self, number: int, reason: str) -> tuple[Abandoned, ...]:
        """End one exchange that is held, without a result."""
        exchange = self._held[number].exchange
        told = self._fail(number, exchange, reason).told
        self._drop(number)
        return tuple(Abandoned(site, number, exchange, False, reason) for site in sorted(told))

    def _abandon(self, limit: _Limit, last_call: int) -> tuple[Abandoned, ...]:
        reason, before = limit.reason, self._limit
        if before is not None:
            lowest = (
                min(limit.exchanges, before.exchanges),
                min(limit.gatherings, before.gatherings),
            )
            is_lower = lowest != (before.exchanges, before.gatherings)
            limit = _Limit(*lowest, reason if is_lower else before.reason)
        self._limit, self._last_call = limit, min(self._last_call, last_call)
        self._firsts = {call: who for call, who in self._firsts.items() if call <= self._last_call}
        given_up = []
        for number in [number for number in self._held if number > limit.exchanges]:
            held = self._held[number]
            told = self._fail(number, held.exchange, reason).told
            given_up += [Abandoned(site, number, held.exchange, False, reason) for site in told]
            self._drop(number)
        for site, number, _ in self._waiting:
            if number > limit.exchanges:
                given_up.append(Abandoned(site, number, 0, False, reason))
        self._waiting = deque(each for each in self._waiting if each[1] <= limit.exchanges)
        for number in [number for number in self._values if number > limit.gatherings]:
            sites = self._values.pop(number)
            given_up += [Abandoned(site, number, 0, True, reason) for site in sites]
        return tuple(given_up)

    def _fail(self, number: int, exchange: int, reason: str = "") -> _Failed:
        failed = self._failed[number] = _Failed(exchange, reason, frozenset(self._informed))
        return failed

    def explain(self, number: int, reason: str) -> None:
        """Keep why members disagreed, for those that do not know of the channel yet."""
        self._failed[number].reason = reason

    def grant(self) -> tuple[Answer, ...]:
        """Grant what waits for room or for other members, as far as it can begin."""
        answers: list[Answer] = []
        before = -1
        while len(answers) > before:  # what began last may be what an earlier request is for
            before = len(answers)
            waiting, self._waiting = self._waiting, deque()
            for site, number, signature in waiting:
                if number in self._failed:
                    continue
                if number not in self._held and number <= min(self._asked.values()):
                    # Nothing has begun: compare all before any buffer is overwritten.
                    of_all = [(who, what) for who, which, what in waiting if which == number]
                    odd = [(who, what) for who, what in of_all if what != signature]
                    if odd:
                        answers.append(self._disagreement(number, 0, (site, signature), odd[0]))
                        continue
                if number not in self._held and (reason := self._lacks_source(signature)):
                    told = self._fail(number, 0, reason).told
                    answers += [Abandoned(who, number, 0, False, reason) for who in sorted(told)]
                    continue
                if number not in self._held and not self._begin(site, number, signature):
                    self._waiting.append((site, number, signature))
                    continue
                answers.append(self._answer(site, number, signature))
        return tuple(answers)

    def _lacks_source(self, signature: Signature) -> str:
        """Return which source is lost that an exchange would need; empty for none."""
        if signature.source not in (None, *self.members):
            return f"site {signature.source}, which would broadcast, is lost"
        if signature.receivers and {*self.members} <= {*signature.receivers}:
            return f"no site is left that has what sites {signature.receivers} would get"
        return ""

    def _begin(self, site: int, number: int, signature: Signature) -> bool:
        size_bytes = _size_bytes(signature)
        # One that all members wait for can end by itself, whatever the others do. Where only one
        # contributes, the others' buffers are overwritten before a late one can disagree.
        have_all_asked = number <= min(self._asked.values())
        all_contribute = signature.source is None and not signature.receivers
        may_begin = all_contribute and self._counter.has_room(size_bytes, self.has_followers)
        if not may_begin and not have_all_asked:
            return False
        plan = self._plan_of(signature)
        if plan is None:
            return False
        self._counter.bytes_under_way += size_bytes
        self._held[number] = _Held(self._counter.next(), plan, signature, site)
        return True

    def _answer(self, site: int, number: int, signature: Signature) -> Granted | Disagreement:
        held = self._held[number]
        if signature != held.signature:
            self._drop(number)
            first = held.first, held.signature
            return self._disagreement(number, held.exchange, first, (site, signature))
        lacks = self.plan_for(site, held.plan) is not None
        is_first, held.is_granted = not held.is_granted, True
        held.granted.add(site)
        is_last = held.granted == {*self.members}
        return Granted(site, number, held.exchange, held.plan, lacks, is_first, is_last, signature)

    def _disagreement(
        self, number: int, exchange: int, one: tuple[int, Signature], other: tuple[int, Signature]
    ) -> Disagreement:
        told = self._fail(number, exchange).told
        (first, what), (second, else_what) = one, other
        return Disagreement(
            number, exchange, (first, second), (what, else_what), tuple(sorted(told))
        )

    def _drop(self, number: int) -> None:
        self._counter.bytes_under_way -= _size_bytes(self._held.pop(number).signature)

    def ended(self, site: int, number: int, version: int, checksum: int | None) -> str | None:
        """Note that a site holds a result; return what is wrong once all do, or None.

        Raises:
            OutOfPlaceMessage: the site is not in that exchange or ran it under another version, or
                has said so before.
        """
        if number in self._failed or number in self._settled:
            return None  # it was said before the failure was heard, or this book restored
        held = self._held.get(number)
        if held is None or site not in held.granted or site in held.ended:
            raise OutOfPlaceMessage(f"site {site} ends exchange {number}, which it is not in")
        if version != held.plan.version and not held.is_restored:
            raise OutOfPlaceMessage(f"site {site} ends exchange {number} under version {version}")
        held.ended[site] = checksum
        if len(held.ended) < len(self.members):
            return None
        self._drop(number)
        return _disagreement(number, held.ended)


def _size_bytes(signature: Signature) -> int:
    """Return what an exchange takes of the room; what hands a state on takes only what is left."""
    return 0 if signature.receivers else 4 * signature.elements


def _disagreement(number: int, votes: dict[int, int | None]) -> str | None:
    # A site whose program has not used the result yet, or that computes none, says none.
    values = [value for value in votes.values() if value is not None]
    if not values:
        return None
    common = max(set(values), key=lambda value: (values.count(value), value))
    odd = sorted(site for site, value in votes.items() if value not in (None, common))
    if not odd:
        return None
    return f"after round {number} the models of sites {odd} differ from the others'"
