"""A channel's book: checks that members agree on each exchange, and fixes its plan. Pure.

Members make the same calls in the same order: exchanges, gatherings of small values, and admissions
of newcomers. A call fails at once if a member makes a different call in its place, or has made its
last. :mod:`anabranch.scheduler.calls` describes the states of an exchange.

A book keeps which exchanges its members have asked for, and the requests that wait: for room, for
other members, or for a plan.

A member may ask for its next exchange before it calls. Such a request ahead waits and is granted
like any other, but it is no call. It has no place in the order of calls, it fails no exchange, and
any other call of that member withdraws it.

The book's parts are in `calls/`: the places of calls (`_order`), the last exchange (`_end`),
gatherings (`_gatherings`), requests that wait (`_requests`), exchanges that have begun (`_held`) or
may begin unasked (`_leases`), and the facts that each member was told (`_knowledge`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from anabranch.exchange.terms import planned_elements
from anabranch.net.errors import OutOfPlaceMessage
from anabranch.net.messages import ChannelSnapshot, Signature
from anabranch.plan import Plan
from anabranch.scheduler._plans_by_size import PlansBySize, order_of
from anabranch.scheduler.calls._answer import (
    Abandoned,
    Answer,
    Call,
    Disagreement,
    Granted,
    Kind,
    MixedKinds,
)
from anabranch.scheduler.calls._end import End
from anabranch.scheduler.calls._gatherings import Gatherings
from anabranch.scheduler.calls._held import Counter, Held
from anabranch.scheduler.calls._knowledge import Knowledge
from anabranch.scheduler.calls._leases import Cut, LeasedNumbers, Leases
from anabranch.scheduler.calls._order import Limit, Order
from anabranch.scheduler.calls._requests import Request, Requests

_NOTHING_CALLED = ChannelSnapshot(0, 0, 0, 0, (), (), ())


class ExchangeBook:
    """Fixes one plan version for each exchange, as it begins (NetStorm, VII-A).

    A new plan counts for exchanges that have not begun yet, so no exchange mixes two plans. Members
    may have several exchanges under way.

    It is one class since every request, withdrawal or loss can free queued requests of other
    members.

    Args:
        members: the sites of the channel.
        plans: of exchanges, by the size of their buffers.
        counter: numbers exchanges, and bounds the bytes under way, over all books of a run.
        is_known: whether all members know the channel from the start. Otherwise each learns of it
            when it asks for the subgroup.

    Attributes:
        plans: see above.
        order: the places of members' calls.
        asked: by member, the latest exchange that it called for.
        requests: the requests that wait, and those made ahead.
        held: the exchanges that have begun, until all members have ended them.
        knowledge: what members have been told.
        end: the last exchange.
        has_followers: whether members follow: a result may reach them before they call.
        leases: the exchanges that members may begin without asking.
    """

    def __init__(
        self, members: Iterable[int], plans: PlansBySize, counter: Counter, is_known: bool = True
    ) -> None:
        self.members = tuple(members)
        self.plans = plans
        self.order = Order(self.members)
        self.held = Held(counter)
        self.knowledge = Knowledge(self.members, plans.latest.version, is_known)
        self._counter = counter
        self._gatherings = Gatherings(self.members)
        self.asked = dict.fromkeys(self.members, 0)
        self.requests = Requests()
        self.end = End()
        # The exchanges settled before this book was restored: members may still report that they
        # hold the results, and the book does not know these exchanges.
        self._settled: frozenset[int] = frozenset()
        self.has_followers = False
        self.leases = Leases()

    @property
    def latest(self) -> int:
        """The latest exchange any member called for; 0 before the first, and without members."""
        return max(self.asked.values(), default=0)

    @property
    def latest_held(self) -> int:
        """The latest exchange that any member called for, or may have begun."""
        return max((self.latest, *self.held.numbers))

    @property
    def is_busy(self) -> bool:
        """Whether exchanges are under way that a member has called for."""
        latest = self.latest
        return any(number <= latest for number in self.held.numbers)

    def is_last_to_ask(self, site: int, number: int) -> bool:
        """Return whether all other members have called for this exchange."""
        # From the end: sites often ask in order, so that the last ones show soonest that some wait.
        others = (asked for each, asked in reversed(self.asked.items()) if each != site)
        return all(asked >= number for asked in others)

    @property
    def is_level(self) -> bool:
        """Whether all members have made the same calls."""
        has_asked_alike = len({*self.asked.values()}) == 1
        return has_asked_alike and self._gatherings.is_level and self.order.is_level

    # --- plans

    @property
    def plan(self) -> Plan:
        """The latest plan of exchanges that no member has asked for yet."""
        return self.plans.latest

    @property
    def unplanned(self) -> set[int]:
        """The elements of buffers whose exchanges wait for a plan."""
        return {size for size, _ in self.requests.sizes if self.plans.of(size) is None}

    def unplanned_elements(self, order: int) -> int:
        """Return the elements of an order of size in exchanges that wait for a plan.

        All members contribute to these exchanges.
        """
        return sum(
            size * count
            for (size, all_contribute), count in self.requests.sizes.items()
            if all_contribute and order_of(size) == order and self.plans.of(size) is None
        )

    # --- calls

    def request(self, request: Request, refusal: str = "") -> tuple[Answer, ...] | None:
        """Answer a site's call for an exchange.

        Args:
            request: the site, the exchange and its terms.
            refusal: why the exchange must fail; empty if it need not.

        Returns:
            The answers; empty while the exchange waits, None if it is after the last one.

        Raises:
            OutOfPlaceMessage: the site is no member, or does not ask for the one after its last.
        """
        site, number = request.site, request.number
        self._check_follows(site, number)
        was_ahead = self.requests.call(request)
        if not self.end.holds(number):
            self.asked[site] = number  # the site's next requests may already be on their way
            return None
        also = self._count(Call(site, Kind.EXCHANGE, request.signature))
        self.asked[site] = number
        failed, limit = self.knowledge.failure(number), self.order.limit
        if failed is not None:
            if site in failed.told:
                return also
            exchange = failed.exchange or self._leased_exchange(number)
            return (Abandoned(site, number, exchange, False, failed.reason), *also)
        if limit is not None and number > limit.exchanges:
            exchange = self._leased_exchange(number)
            return (Abandoned(site, number, exchange, False, limit.reason), *also)
        if refusal:
            return (*self.give_up(number, refusal), *also)
        if was_ahead:
            self.held.called(site, number, self.asked)
        else:
            self.requests.add(request)
        return also or self.grant(number)

    def ask_ahead(self, request: Request) -> tuple[Answer, ...] | None:
        """Answer a site that will probably call for this exchange next; see ``request``.

        Raises:
            OutOfPlaceMessage: the site is no member, does not ask for the one after its last, or
                has asked for it already.
        """
        number, limit = request.number, self.order.limit
        self._check_follows(request.site, number)
        if not self.end.holds(number):
            return None
        is_doomed = self.knowledge.failure(number) is not None or (
            limit is not None and number > limit.exchanges
        )
        # A leased number is not granted ahead: a member may have begun it with other terms.
        is_leased = self.leases.of(number) is not None
        if is_doomed or is_leased or not _all_contribute(request.signature):
            return ()  # the site gets its answer when it calls
        self.requests.add(request, is_ahead=True)
        return self.grant(number)

    def _check_follows(self, site: int, number: int) -> None:
        if site not in self.asked:
            raise OutOfPlaceMessage(f"site {site} asks for an exchange of members {self.members}")
        if number != self.asked[site] + 1:
            raise OutOfPlaceMessage(
                f"site {site} asks for exchange {number} after {self.asked[site]}"
            )

    def take_back(self, site: int) -> tuple[Answer, ...]:
        """Withdraw a site's request ahead, since it makes another call."""
        request = self.requests.take_back(site)
        if request is None:
            return ()
        self.held.take_back(site, request.number)
        return (*self.held.drop_unused(), *self.grant())

    def refuse(self, site: int, number: int, reason: str) -> tuple[Answer, ...]:
        """Fail an exchange that a member has called for and cannot contribute to.

        Raises:
            OutOfPlaceMessage: the member has not called for it.
        """
        if not self.end.holds(number):
            return ()
        if not 0 < number <= self.asked[site]:
            raise OutOfPlaceMessage(
                f"site {site} refuses exchange {number} after {self.asked[site]}"
            )
        is_waiting = number in self.requests.numbers
        if self.knowledge.failure(number) is not None or not (number in self.held or is_waiting):
            return ()  # the exchange has ended
        return self.give_up(number, reason)

    def gather(
        self,
        site: int,
        number: int,
        value: bytes,
        admits: bool = False,
        heard: int = 0,
        what: str = "",
    ) -> tuple[Answer, ...]:
        """Take a member's small value for a gathering.

        Args:
            site: the member.
            number: of the gathering.
            value: the member's value.
            admits: whether the gathering admits newcomers.
            heard: the gathering up to which the member has heard all values.
            what: the purpose in words, for the error if another member makes another call.

        Raises:
            OutOfPlaceMessage: the gathering is not the one after the member's last.
        """
        self._gatherings.check_follows(site, number)
        also = self._count(Call(site, Kind.ADMIT if admits else Kind.GATHER, what))
        self._gatherings.note(site, number, admits, heard)
        limit = self.order.limit
        if limit is not None and number > limit.gatherings:
            return (Abandoned(site, number, 0, True, limit.reason), *also)
        is_whole = self._gatherings.take(site, number, value)
        return (self._gatherings.end(number),) if is_whole and not also else also

    def _count(self, made: Call) -> tuple[MixedKinds, ...]:
        """Count a site's call; return how its kind differs from the first call in its place."""
        before = self.asked[made.site], self._gatherings.latest(made.site)
        mixed = self.order.count(made, before)
        return () if mixed is None else (mixed,)

    def ended(self, site: int, number: int, version: int, checksum: int | None) -> str | None:
        """Note that a site holds a result; once all do, return how their models differ, or None.

        Raises:
            OutOfPlaceMessage: the site was not granted that exchange, ran it under another plan
                version, or has reported its end before.
        """
        if self.knowledge.failure(number) is not None or number in self._settled:
            return None  # sent before the site heard of the failure, or of the restart
        return self.held.ended(site, number, version, checksum, self.members)

    # --- requests that wait

    def grant(self, *numbers: int) -> tuple[Answer, ...]:
        """Grant or fail the waiting requests that need not wait any longer.

        Args:
            numbers: what to look at: a request frees requests for its own number alone. All, if
                none is given.
        """
        answers: list[Answer] = []
        for number in numbers or tuple(self.requests.numbers):
            before = -1
            while len(answers) > before:  # a request that began may let an earlier one join it
                before = len(answers)
                answers += self._grant(number)
        return tuple(answers)

    def _grant(self, number: int) -> list[Answer]:
        """Grant or fail the requests for an exchange that need not wait any longer."""
        answers: list[Answer] = []
        waiting, kept = self.requests.of(number), []
        for request in waiting:
            signature = request.signature
            is_ahead = self.requests.is_ahead(request)
            if self.knowledge.failure(number) is not None:
                continue
            if is_ahead and not self.end.holds(number):
                self.requests.take_back(request.site)  # the site hears of the end when it calls
                continue
            if self.held.may_still_agree(request, is_ahead, self.asked):
                kept.append(request)
                continue
            if number not in self.held and number <= min(self.asked.values()):
                # All have called and nothing has begun: compare all requests now, before any
                # buffer is overwritten.
                odd = [each for each in waiting if each.signature != signature]
                if odd:
                    told, one = self.knowledge.fail(number, 0), (request.site, signature)
                    other = odd[0].site, odd[0].signature
                    answers.append(_disagreement(number, 0, one, other, told))
                    continue
            if number not in self.held and (reason := _lacks_source(signature, self.members)):
                answers += self._fail(number, 0, reason)
                continue
            if number not in self.held and not self._begin(request):
                kept.append(request)
                continue
            answers.append(self._answer(request, is_ahead))
        self.requests.keep(number, kept)
        return answers

    def _begin(self, request: Request) -> bool:
        number, signature = request.number, request.signature
        # An exchange that all members wait for may exceed the room: it ends without further calls,
        # so it cannot hold up others for ever. A broadcast has to wait for all members: it
        # overwrites their buffers before a late member could disagree.
        have_all_asked = number <= min(self.asked.values())
        may_begin = request.is_leased or (
            _all_contribute(signature) and self._counter.has_room(signature, self.has_followers)
        )
        if not may_begin and not have_all_asked:
            return False
        cut = self._cut(number, signature)
        plan = self.plans.for_exchange(signature) if cut is None else cut.plan
        if plan is None:
            return False
        self.held.begin(request.site, number, signature, plan, self._leased_exchange(number))
        return True

    # --- leases

    def lease(self, count: int, cut_of: Callable[[Plan, int], Cut]) -> LeasedNumbers | None:
        """Lease the next exchanges to all members; None if none can be leased.

        Args:
            count: how many.
            cut_of: returns how a buffer's chunks go, given the plan and the elements.
        """
        first = max((self.latest_held, self.leases.last, *self.requests.numbers)) + 1
        last = first + count - 1
        if self.end.last is not None:
            last = min(last, self.end.last.number - 1)  # the last one's grant says so
        plans = {size: self.plans.of(size) for size in self.leases.sizes}
        cuts = {size: cut_of(plan, size) for size, plan in plans.items() if plan is not None}
        if last < first or not cuts or not min(self.asked.values(), default=0):
            return None
        exchange = self._counter.reserve(last - first + 1)
        lease = LeasedNumbers(first, last, exchange, cuts)
        self.leases.add(lease, min(self.asked.values()))
        return lease

    def _leased_exchange(self, number: int) -> int:
        """Return the number that the chunks of a leased exchange carry; 0 if it is not leased."""
        lease = self.leases.of(number)
        return 0 if lease is None else lease.exchange_of(number)

    def _cut(self, number: int, signature: Signature) -> Cut | None:
        """Return how a leased exchange's chunks go; None if no lease says so."""
        lease = self.leases.of(number)
        is_of_all = lease is not None and _all_contribute(signature)
        if lease is None or not is_of_all:
            return None
        return lease.cuts.get(planned_elements(signature))

    def _answer(self, request: Request, is_ahead: bool) -> Granted | Disagreement:
        site, number, signature = request.site, request.number, request.signature
        held = self.held[number]
        if signature != held.signature:
            self.held.drop(number)
            told = self.knowledge.fail(number, held.exchange)
            first = held.first, held.signature
            return _disagreement(number, held.exchange, first, (site, signature), told)
        lacks = self.knowledge.tell(site, held.plan) is not None
        is_first, held.is_granted = not held.is_granted, True
        held.granted.add(site)
        held.was_ahead |= is_ahead or request.is_leased
        if not is_ahead:
            self.held.called(site, number, self.asked)
        is_last = held.granted == {*self.members}
        lease = self.leases.of(number)
        return Granted(
            site,
            number,
            held.exchange,
            held.plan,
            lacks,
            is_first,
            is_last,
            signature,
            request.attempt,
            request.is_leased,
            self._cut(number, signature),
            is_void=lease is not None and lease.is_void,
        )

    # --- calls that cannot end

    def leave(self, site: int, reason: str) -> tuple[Abandoned, ...]:
        """Fail the calls after a member's last, since it makes no further one."""
        limit = Limit(self.asked[site], self._gatherings.latest(site), reason)
        return self._abandon(limit, self.order.made(site))

    def abandon_mixed(self, mixed: MixedKinds, reason: str) -> tuple[Abandoned, ...]:
        """Fail all calls from the place on at which members made calls of two kinds."""
        return self._abandon(Limit(mixed.exchanges, mixed.gatherings, reason), mixed.call)

    def abandon(self, reason: str) -> tuple[Abandoned, ...]:
        """Fail all calls that not every member has made."""
        asked = min(self.asked.values(), default=0)
        return self._abandon(Limit(asked, self._gatherings.lowest, reason), self.order.lowest)

    def _abandon(self, limit: Limit, last_call: int) -> tuple[Abandoned, ...]:
        reason, limit = limit.reason, self.order.lower(limit, last_call)
        given_up = []
        for number in self.held.numbers:
            if number > limit.exchanges:
                given_up += self._fail(number, self.held.drop(number).exchange, reason)
        for each in self.requests.drop_after(limit.exchanges):
            exchange = self._leased_exchange(each.number)
            given_up.append(Abandoned(each.site, each.number, exchange, False, reason))
        given_up += self._gatherings.give_up_after(limit.gatherings, reason)
        return tuple(given_up)

    def give_up(self, number: int, reason: str) -> tuple[Abandoned, ...]:
        """Fail an exchange, whether it has begun or not."""
        is_held = number in self.held
        exchange = self.held.drop(number).exchange if is_held else self._leased_exchange(number)
        self.requests.drop(number)
        return tuple(self._fail(number, exchange, reason))

    def _fail(self, number: int, exchange: int, reason: str) -> list[Abandoned]:
        """Note that an exchange has failed; return the calls that this ends."""
        told = self.knowledge.fail(number, exchange, reason)
        return [Abandoned(site, number, exchange, False, reason) for site in sorted(told)]

    # --- members are lost and admitted

    def lose(self, *sites: int) -> tuple[Answer, ...]:
        """Remove lost members, all at once; return the answers for the others."""
        self.members = tuple(member for member in self.members if member not in sites)
        for site in sites:
            del self.asked[site]
        self.knowledge.lose(sites)
        self.requests.lose(sites)
        self.order.lose(sites)
        whole = self._gatherings.lose(sites, self.members)
        self.held.lose(sites, self.members)
        return (*whole, *self.held.drop_unused(), *self.grant())

    def admit(self, sites: Collection[int], plan: Plan, elements: int = 0) -> None:
        """Add members, while all members have made the same calls.

        Args:
            sites: the newcomers.
            plan, elements: see :meth:`anabranch.scheduler._plans_by_size.PlansBySize.replace`.
        """
        self.plans.replace(plan, elements)
        self.asked |= dict.fromkeys(sites, self.latest)
        self.members = tuple(sorted(self.asked))
        self.order.admit(sites)
        self._gatherings.admit(sites, self.members)
        self.knowledge.admit(self.members, plan.version)

    def restore(
        self,
        snapshots: Mapping[int, ChannelSnapshot],
        failed: Mapping[int, str],
        settled: Collection[int],
        gathered: Collection[int],
        unaware: Collection[int] = (),
    ) -> tuple[Answer, ...]:
        """Restore the book after a restart, from members' reports about their calls.

        A silent member is declared lost next, or has left. It counts as having made the calls that
        have ended for certain, and no others.

        Args:
            snapshots: each member's report.
            failed: the exchanges that have failed at some member, with reasons.
            settled, gathered: the exchanges and gatherings that have ended at some member. They end
                at the others, which are told so elsewhere.
            unaware: members that do not know the channel yet, and have made no call.
        """
        informed = snapshots.keys()
        snapshots = {**snapshots, **dict.fromkeys(unaware, _NOTHING_CALLED)}
        self._settled = frozenset(settled)
        asked = [each.asked for each in snapshots.values()]
        asked += [said.number - 1 for each in snapshots.values() for said in each.exchanges]
        self.asked |= dict.fromkeys(self.members, min(asked, default=0))
        mixed = self.order.restore(snapshots)
        answers: list[Answer] = []
        for site, each in snapshots.items():
            self.asked[site] = each.asked
            if site in informed:
                self.knowledge.restore(site, each.version)
            for said in each.exchanges:
                number = said.number
                if number in failed:
                    answers.append(Abandoned(site, number, said.exchange, False, failed[number]))
                elif number in settled or not self.end.holds(number):
                    continue
                elif said.exchange:
                    self.held.take_up(site, number, said.exchange, said.signature, self.plan)
                else:
                    self.requests.add(Request(site, number, said.signature))
        for number, reason in failed.items():
            told = (site for site, each in snapshots.items() if each.asked >= number)
            self.knowledge.restore_failure(number, reason, told)
        self.requests.sort()
        answers += self._gatherings.restore(snapshots, gathered)
        return (*answers, *mixed)


def _all_contribute(signature: Signature) -> bool:
    """Return whether all members contribute: the exchange cannot end before each has agreed."""
    return signature.source is None and not signature.receivers


def _lacks_source(signature: Signature, members: Collection[int]) -> str:
    """Return why an exchange lacks a source, or an empty string."""
    if signature.source not in (None, *members):
        return f"site {signature.source}, which would broadcast, is lost"
    if signature.receivers and {*members} <= {*signature.receivers}:
        return f"no site is left that has what sites {signature.receivers} would get"
    return ""


def _disagreement(
    number: int,
    exchange: int,
    one: tuple[int, Signature],
    other: tuple[int, Signature],
    told: Collection[int],
) -> Disagreement:
    (first, what), (second, else_what) = one, other
    return Disagreement(number, exchange, (first, second), (what, else_what), tuple(sorted(told)))
