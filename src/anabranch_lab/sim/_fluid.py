"""Flows that share resources max-min fairly: the flow-level network. The caller keeps the clock.

A *resource* is anything with a capacity in bit/s: a directed link, a site's uplink or downlink. A
*flow* moves a number of bits over a set of resources at once. Rates are max-min fair (progressive
filling): all rates rise together, and a flow stops rising when one of its resources is full. The
allocation is the only one in which every flow has a *bottleneck*: a full resource on which no
other flow is faster (Bertsekas and Gallager, *Data Networks*, 6.5.2).

Theory of operation
-------------------

**Offers.** A resource with a single flow only limits that flow. A flow's *cap* is the least
capacity among the resources that it has to itself. Only *shared* resources, with two flows or
more, divide their capacity. Each makes its flows an *offer*: the rate x that fills the resource
when every flow takes the least of x and its limit elsewhere,

    sum over its flows of min(x, offered elsewhere) = capacity,

or infinity, if they cannot fill it. A flow's rate is the least of its cap and its offers. When all
offers agree with each other, no resource is overloaded, and a flow's least offer comes from a full
resource on which no flow is faster. So offers in agreement *are* the max-min allocation. Any order
of repairs that reaches agreement gives the same rates as progressive filling from scratch.

**Repair, not recomputation.** A start, an end or a new capacity makes the offers of a few resources
doubtful. We put those in a queue. We take one out and compute its offer. If the offer has changed,
we put in the shared resources of its flows that may depend on it, until the queue is empty. A
resource depends only on offers below its own, so a change travels from slower bottlenecks to faster
ones and never back. It comes to rest: the lowest of all offers depends on no other, the second
lowest on the lowest alone, and so on. The work is in proportion to the offers that change, not to
the component. The two usual cases are free: a flow alone on its link needs no offer, and a resource
that stays below its capacity limits no flow (``spare_bps`` admits most flows unexamined).

**Virtual time.** Flows with the same bottleneck have the same rate, so we keep no rate for each
flow. The resource counts the bits ``served`` to each of them since it became a bottleneck. A flow
joins with the target ``served`` + its remaining bits, and is done when ``served`` reaches the
target. A new rate then changes the resource alone, whatever the number of its flows. Only the
first flow to finish has a place in the schedule of finishes. Only flows whose *bottleneck* changes
are touched. Flows that run at their cap count their bits themselves, from the instant of their last
change of rate. They are exact: a flow that is always alone finishes at the float
``start_s + bits / capacity``.

**Instants.** Rounding moves simultaneous finishes apart. Finishes within the relative distance
``TIE`` of each other are one instant: such flows finish together, in the order of their start.
``TIE`` is relative to the time itself, so time must begin near 0.

**States of a flow.** A flow is *starting* until the next ``settle``. From then on it is in one of
three states, and ``settle`` moves it between them::

    start() -> starting -> at its cap | at a bottleneck | stalled, at rate 0 -> finished
                                                            cancel(), from any of these -> gone

The caller starts and cancels flows and changes capacities. Then it settles, and asks when the next
flow finishes. Rates change in ``settle``. A ``finish`` past several finishes settles at each.

**What must never happen.**

- *A resource carries more than its capacity.* Offers in agreement exclude it.
- *A flow finishes late or twice.* Each flow has one place in the schedule. At its cap it has its
  own; at a bottleneck, the place of the bottleneck's first flow stands for it.
- *Time goes back.* It raises ``ValueError``, since bits that were served cannot be taken back.
- *Order depends on addresses or hashes.* Loops follow the order in which dicts and lists were
  filled, and heaps break ties by the order of start.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, TypeVar

T = TypeVar("T")

TIE = 1e-12  # far above the sum of rounding errors, far below what a run can measure


class Flow(Generic[T]):
    """A number of bits on its way over some resources; made by :meth:`Fluid.start`.

    Attributes:
        resources: indices of the resources that it uses, each once.
        bits: its size.
        token: whatever the caller gave to :meth:`Fluid.start`.
        finish_s: when it finished; infinite until it does.
    """

    __slots__ = (
        "_active",
        "_bottleneck",
        "_cap_bps",
        "_due_s",
        "_left_bits",
        "_order",
        "_own_rate_bps",
        "_path",
        "_several",
        "_shared",
        "_since_s",
        "_target_bits",
        "bits",
        "finish_s",
        "resources",
        "token",
    )

    def __init__(
        self,
        resources: tuple[int, ...],
        bits: float,
        token: T,
        path: list[_Resource[T]],
        order: int,
    ) -> None:
        self.resources = resources
        self.bits = bits
        self.token = token
        self.finish_s = inf
        self._path = path
        self._order = order  # of start; breaks ties
        self._active = True  # neither finished nor cancelled
        self._cap_bps = inf  # the least capacity of the resources it has to itself
        self._shared: list[_Resource[T]] = []  # its other resources
        self._several = False  # whether it has more than one shared resource
        self._due_s = inf  # its place in the schedule, if it has one
        # At its cap: the bits left at `_since_s`, and the rate since then.
        self._left_bits = bits
        self._since_s = -inf  # has not begun
        self._own_rate_bps = 0.0
        # At a bottleneck: the flow is done when `served_bits` of the bottleneck reaches the target.
        self._bottleneck: _Resource[T] | None = None
        self._target_bits = 0.0

    @property
    def rate_bps(self) -> float:
        """The flow's rate since the last settle; 0 before it begins, while it stalls, and after."""
        return self._own_rate_bps if self._bottleneck is None else self._bottleneck.rate_bps


class _Resource(Generic[T]):
    """A capacity, the flows that use it, and, while shared, the service that it gives them.

    The search for agreement writes ``offer_bps``. ``rate_bps`` is the offer in force since
    ``since_s``: the rate of its ``members``, the flows that have their bottleneck here.
    """

    __slots__ = (
        "capacity_bps",
        "first",
        "flows",
        "index",
        "members",
        "offer_bps",
        "queued",
        "rate_bps",
        "served_bits",
        "since_s",
        "spare_bps",
        "touched",
    )

    def __init__(self, index: int, capacity_bps: float) -> None:
        self.index = index
        self.capacity_bps = capacity_bps
        self.flows: dict[Flow[T], None] = {}  # in order of start
        self.queued = False  # its offer is in doubt
        self.touched = False  # its first flow to finish is in doubt
        # A heap of (target, order, flow); it may hold stale entries of flows that left.
        self.members: list[tuple[float, int, Flow[T]]] = []
        self.lie_fallow()

    def lie_fallow(self) -> None:
        """Stop serving, since the resource is not shared."""
        self.offer_bps = self.rate_bps = inf
        self.spare_bps = -1.0  # a lower bound on its unused capacity; below 0: unknown
        self.served_bits = 0.0
        self.since_s = 0.0
        self.first: Flow[T] | None = None  # the member with a place in the schedule
        self.members.clear()

    def served_at(self, now_s: float) -> float:
        """Return bits served to each member; `now_s` is at or after the last change of rate."""
        if now_s == self.since_s:  # the rate may be infinite
            return self.served_bits
        return self.served_bits + self.rate_bps * (now_s - self.since_s)

    def agreed_offer(self) -> float:
        """Return the offer that agrees with the current offers of all other resources."""
        limits = [
            flow._cap_bps if not flow._several else self._offered_elsewhere(flow)
            for flow in self.flows
        ]
        left_bps = self.capacity_bps
        self.spare_bps = left_bps - sum(limits) if left_bps < inf else inf
        if self.spare_bps >= 0.0:
            return inf
        while limits:
            share_bps = left_bps / len(limits)
            higher = [limit for limit in limits if limit >= share_bps]
            if len(higher) == len(limits):
                return share_bps
            left_bps -= sum([limit for limit in limits if limit < share_bps])
            limits = higher
        return inf  # full to within rounding, and no flow would take more

    def _offered_elsewhere(self, flow: Flow[T]) -> float:
        limit_bps = flow._cap_bps
        for other in flow._shared:
            if other.offer_bps < limit_bps and other is not self:
                limit_bps = other.offer_bps
        return limit_bps


class Fluid(Generic[T]):
    """Resources and the flows on them.

    It is one class since flows and resources change together, within one settling.

    The caller hands in the time, which never goes back. At each instant it calls :meth:`finish`, to
    learn which flows are done. Then it calls any of :meth:`start`, :meth:`cancel` and
    :meth:`set_capacity`. Then it calls :meth:`settle` once, which brings all of it into force.
    :attr:`next_s` is the next instant to do so.

    Attributes:
        recomputes: how many instants had to find new shares; flows that are alone need none.
        offers: how many offers were computed, a measure of the work.

    >>> fluid = Fluid()
    >>> port = fluid.add_resource(100.0)
    >>> short, long = fluid.start((port,), 100.0, "short"), fluid.start((port,), 300.0, "long")
    >>> fluid.settle(0.0)
    >>> fluid.next_s, [flow.token for flow in fluid.finish(2.0)]
    (2.0, ['short'])
    >>> fluid.settle(2.0)
    >>> long.rate_bps, fluid.next_s
    (100.0, 4.0)
    """

    def __init__(self) -> None:
        self.recomputes = 0
        self.offers = 0
        self._now_s = -inf
        self._resources: list[_Resource[T]] = []
        self._orders = 0
        self._active = 0
        # Waiting for the next settle.
        self._starting: list[Flow[T]] = []
        self._cancelled: list[Flow[T]] = []
        self._capacities: dict[int, float] = {}
        # In doubt until the shares of this instant are found.
        self._queue: list[_Resource[T]] = []
        self._loose: list[Flow[T]] = []  # flows whose cap or choice of shared resources is new
        self._touched: list[_Resource[T]] = []
        # A heap of (due, order, flow); it may hold stale entries.
        self._schedule: list[tuple[float, int, Flow[T]]] = []
        self._finished: list[Flow[T]] = []

    def add_resource(self, capacity_bps: float) -> int:
        """Add a resource and return its index; capacity 0 is an outage, infinity no limit.

        Raises:
            ValueError: the capacity is negative or not a number.
        """
        _check_capacity(len(self._resources), capacity_bps)
        self._resources.append(_Resource(len(self._resources), capacity_bps))
        return len(self._resources) - 1

    def set_capacity(self, resource: int, capacity_bps: float) -> None:
        """Give a resource another capacity from the next settle on; the last one given counts.

        Raises:
            ValueError: the capacity is negative or not a number.
            IndexError: there is no such resource.
        """
        _check_capacity(self._resources[resource].index, capacity_bps)
        self._capacities[resource] = capacity_bps

    def start(self, resources: tuple[int, ...], bits: float, token: T) -> Flow[T]:
        """Return a new flow, which begins at the next settle.

        Args:
            resources: indices of the resources it uses, each once; empty: it takes no time.
            bits: its size; a flow of 0 bits finishes as it begins, one of infinite size never.
            token: any value, kept as the flow's `token`.

        Raises:
            ValueError: the size is negative or not a number, or a resource appears twice.
            IndexError: there is no such resource.
        """
        if not bits >= 0.0:
            raise ValueError(f"a flow has {bits} bits, which must be 0 or more")
        if len(resources) > 1 and len(set(resources)) < len(resources):
            raise ValueError(f"a flow uses resources {resources}; name each once")
        known = self._resources
        self._orders += 1
        flow = Flow(resources, bits, token, [known[i] for i in resources], self._orders)
        self._starting.append(flow)
        return flow

    def cancel(self, flow: Flow[T]) -> None:
        """Take a flow out at the next settle; :meth:`finish` will not return it.

        A flow that :meth:`finish` has returned, or that is cancelled already, is left alone.
        """
        self._cancelled.append(flow)

    def settle(self, now_s: float) -> None:
        """Bring into force all that was started, cancelled, finished and changed at this instant.

        Raises:
            ValueError: time goes back.
        """
        self._advance(now_s)
        if self._cancelled:
            self._take_out(now_s)
        if self._capacities:
            self._change_capacities(now_s)
        if self._starting:
            starting, self._starting = self._starting, []
            for flow in starting:
                self._begin(flow, now_s)
        self._share(now_s)

    @property
    def next_s(self) -> float:
        """When the next flow finishes at the settled rates; infinite if none will."""
        if self._finished:
            return self._now_s
        return self._next_due_s()

    def finish(self, now_s: float) -> list[Flow[T]]:
        """Remove and return the flows that finish at or before an instant.

        They are in order of the instant at which they finish, then of start. Shares do not change
        until :meth:`settle` is called for the same instant. A call later than :attr:`next_s` has
        the same result as a call at each finish with a settling there.

        Raises:
            ValueError: time goes back.
        """
        self._advance(now_s)
        finished, self._finished = self._finished, []
        return finished

    def stalled(self) -> list[Flow[T]]:
        """Return the flows that have begun but have rate 0, in order of start."""
        found = {
            flow._order: flow
            for resource in self._resources
            for flow in resource.flows
            if flow.rate_bps == 0.0
        }
        return [found[order] for order in sorted(found)]

    # Flows come and go.

    def _advance(self, now_s: float) -> None:
        """Finish all flows that are due by `now_s`."""
        if now_s != self._now_s:
            if not now_s > self._now_s:
                raise ValueError(f"time goes back from {self._now_s} s to {now_s} s")
            self._share(self._now_s)  # in case the caller did not settle after a finish
        due_s = self._next_due_s()
        while due_s <= now_s + TIE * abs(now_s):
            if now_s <= due_s + TIE * abs(due_s):
                self._retire(due_s, now_s)
                break
            self._retire(due_s, due_s)
            self._share(due_s)
            due_s = self._next_due_s()
        self._now_s = now_s

    def _next_due_s(self) -> float:
        schedule = self._schedule
        while schedule:
            due_s, _, flow = schedule[0]
            if flow._due_s == due_s and flow._active:
                return due_s
            heappop(schedule)
        return inf

    def _retire(self, due_s: float, now_s: float) -> None:
        """Remove all flows due at one instant; `now_s` is the caller's value of that instant."""
        schedule = self._schedule
        limit_s = due_s + TIE * abs(due_s)
        batch = []
        while schedule and schedule[0][0] <= limit_s:
            due_s, _, flow = heappop(schedule)
            if flow._due_s != due_s or not flow._active:
                continue
            flow._active = False
            flow.finish_s = due_s
            batch.append(flow)
            if flow._bottleneck is not None:  # the next in line may be due as well
                self._schedule_first(flow._bottleneck, now_s)
        if len(batch) > 1:
            batch.sort(key=lambda flow: flow._order)
        # Detach only now: otherwise the last of several flows that end together would be moved
        # to its cap before it ends.
        for flow in batch:
            self._detach(flow, now_s)
        self._finished += batch

    def _take_out(self, now_s: float) -> None:
        cancelled, self._cancelled = self._cancelled, []
        for flow in cancelled:
            if flow._active:
                flow._active = False
                if flow._since_s > -inf:
                    self._detach(flow, now_s)
            elif flow in self._finished:  # just now, and the caller has not seen it yet
                self._finished.remove(flow)

    def _begin(self, flow: Flow[T], now_s: float) -> None:
        if not flow._active:
            return
        if flow.bits == 0.0:
            flow._active = False
            flow.finish_s = now_s
            self._finished.append(flow)
            return
        self._active += 1
        flow._since_s = now_s
        cap_bps = inf
        met = False
        for resource in flow._path:
            flows = resource.flows
            if flows:
                met = True
            elif resource.capacity_bps < cap_bps:
                cap_bps = resource.capacity_bps
            flows[flow] = None
        flow._cap_bps = cap_bps
        if met:
            self._meet(flow)
        else:
            self._run_at_cap(flow, now_s)

    def _meet(self, flow: Flow[T]) -> None:
        """Share the resources of a flow that has just begun with the flows that use them."""
        for resource in flow._path:
            if len(resource.flows) == 1:
                continue
            flow._shared.append(resource)
            if len(resource.flows) == 2:
                self._review(next(iter(resource.flows)))
        flow._several = len(flow._shared) > 1
        self._loose.append(flow)
        for resource in flow._shared:
            # A resource with enough spare capacity stays below it. Its spare capacity is known
            # from its latest offer, less the caps of the flows that joined since.
            if resource.spare_bps > flow._cap_bps:
                resource.spare_bps -= flow._cap_bps
            else:
                self._doubt(resource)

    def _detach(self, flow: Flow[T], now_s: float) -> None:
        """Remove a flow that has ended from its resources."""
        self._active -= 1
        for resource in flow._path:
            flows = resource.flows
            del flows[flow]
            if not flows:
                continue
            if len(flows) > 1:
                if resource.offer_bps < inf:
                    self._doubt(resource)
                if flow._bottleneck is resource:
                    self._touch(resource)
                continue
            last = next(iter(flows))
            if last._active:
                if last._bottleneck is resource:
                    self._leave(last, now_s)
                self._review(last)
            resource.lie_fallow()
        flow._bottleneck = None
        flow._own_rate_bps = 0.0

    def _change_capacities(self, now_s: float) -> None:
        capacities, self._capacities = self._capacities, {}
        for index, capacity_bps in capacities.items():
            resource = self._resources[index]
            if capacity_bps == resource.capacity_bps:
                continue
            resource.capacity_bps = capacity_bps
            if len(resource.flows) == 1:
                self._review(next(iter(resource.flows)))
            elif resource.flows:
                self._doubt(resource)

    def _review(self, flow: Flow[T]) -> None:
        """Find again which resources a flow shares, and its cap."""
        flow._shared = []
        flow._cap_bps = inf
        for resource in flow._path:
            if len(resource.flows) > 1:
                flow._shared.append(resource)
                self._doubt(resource)
            elif resource.capacity_bps < flow._cap_bps:
                flow._cap_bps = resource.capacity_bps
        flow._several = len(flow._shared) > 1
        self._loose.append(flow)

    def _doubt(self, resource: _Resource[T]) -> None:
        if not resource.queued:
            resource.queued = True
            self._queue.append(resource)

    def _touch(self, resource: _Resource[T]) -> None:
        if not resource.touched:
            resource.touched = True
            self._touched.append(resource)

    # Shares.

    def _share(self, now_s: float) -> None:
        """Make all offers agree, if any is in doubt; every flow follows them from `now_s` on."""
        if not (self._queue or self._loose or self._touched):
            return
        self.recomputes += 1
        changed = self._agree()
        for resource in changed:
            if resource.members:
                resource.served_bits = resource.served_at(now_s)
            resource.since_s = now_s
            resource.rate_bps = resource.offer_bps
            self._touch(resource)
        for resource in changed:
            offer_bps = resource.offer_bps
            for flow in resource.flows:
                bottleneck = flow._bottleneck
                if bottleneck is resource:
                    if flow._cap_bps < offer_bps or flow._several:
                        self._place(flow, now_s)
                elif offer_bps < (
                    flow._own_rate_bps if bottleneck is None else bottleneck.offer_bps
                ):
                    self._place(flow, now_s)
        loose, self._loose = self._loose, []
        for flow in loose:
            if flow._active:
                self._place(flow, now_s)
        touched, self._touched = self._touched, []
        for resource in touched:
            resource.touched = False
            self._schedule_first(resource, now_s)
        if len(self._schedule) > 64 + 4 * self._active:
            self._schedule = [entry for entry in self._schedule if _is_due(entry)]
            heapify(self._schedule)

    def _agree(self) -> list[_Resource[T]]:
        """Repair offers until they agree; return the resources whose offer has changed."""
        # The lowest offer first, since the others may depend on it. In dense networks this takes a
        # third or less of the work of a first-in, first-out queue.
        queue = [(resource.offer_bps, resource.index, resource) for resource in self._queue]
        heapify(queue)
        self._queue.clear()
        asked: dict[_Resource[T], None] = {}
        while queue:
            resource = heappop(queue)[2]
            resource.queued = False
            if len(resource.flows) < 2:
                continue
            self.offers += 1
            before_bps = resource.offer_bps
            offer_bps = resource.agreed_offer()
            if offer_bps == before_bps:
                continue
            resource.offer_bps = offer_bps
            asked[resource] = None
            lower_bps = min(before_bps, offer_bps)
            # Resources with offers up to the lower one do not depend on this change. A resource
            # that its flows cannot fill stays unfilled when they are offered less elsewhere.
            falls = offer_bps < before_bps
            for flow in resource.flows:
                if flow._several and flow._cap_bps > lower_bps:
                    for other in flow._shared:
                        if (
                            other.offer_bps > lower_bps
                            and not other.queued
                            and other is not resource
                            and not (falls and other.offer_bps == inf)
                        ):
                            other.queued = True
                            heappush(queue, (other.offer_bps, other.index, other))
        return [resource for resource in asked if resource.offer_bps != resource.rate_bps]

    def _place(self, flow: Flow[T], now_s: float) -> None:
        """Give a flow the bottleneck with the least offer, or run it at its cap."""
        least_bps = flow._cap_bps
        bottleneck = None
        for resource in flow._shared:
            if resource.offer_bps < least_bps:
                least_bps = resource.offer_bps
                bottleneck = resource
        current = flow._bottleneck
        if current is not None:
            if current.offer_bps == least_bps:
                return
            self._leave(flow, now_s)
        elif bottleneck is None and flow._own_rate_bps == least_bps:
            return
        if bottleneck is None:
            self._run_at_cap(flow, now_s)
        else:
            self._join(flow, bottleneck, now_s)

    def _run_at_cap(self, flow: Flow[T], now_s: float) -> None:
        _count(flow, now_s)
        rate_bps = flow._own_rate_bps = flow._cap_bps
        if rate_bps == inf:
            flow._due_s = now_s
        elif rate_bps > 0.0:
            flow._due_s = now_s + flow._left_bits / rate_bps
        else:
            flow._due_s = inf
        if flow._due_s < inf:
            heappush(self._schedule, (flow._due_s, flow._order, flow))

    def _join(self, flow: Flow[T], resource: _Resource[T], now_s: float) -> None:
        _count(flow, now_s)
        flow._own_rate_bps = 0.0
        flow._due_s = inf
        flow._bottleneck = resource
        flow._target_bits = resource.served_at(now_s) + flow._left_bits
        heappush(resource.members, (flow._target_bits, flow._order, flow))
        self._touch(resource)

    def _leave(self, flow: Flow[T], now_s: float) -> None:
        resource = flow._bottleneck
        assert resource is not None
        flow._left_bits = max(0.0, flow._target_bits - resource.served_at(now_s))
        flow._since_s = now_s
        flow._due_s = inf
        flow._bottleneck = None
        self._touch(resource)

    def _schedule_first(self, resource: _Resource[T], now_s: float) -> None:
        """Keep exactly one of a resource's members in the schedule: the next to finish."""
        members = resource.members
        if len(members) > 64 + 4 * len(resource.flows):
            resource.members = members = [e for e in members if _is_member(e, resource)]
            heapify(members)
        while members and not _is_member(members[0], resource):
            heappop(members)
        first = members[0][2] if members else None
        before = resource.first
        if before is not None and before is not first and before._bottleneck is resource:
            before._due_s = inf
        resource.first = first
        if first is None:
            resource.served_bits = 0.0  # small numbers are more precise
            return
        left_bits = first._target_bits - resource.served_bits
        if resource.rate_bps > 0.0:
            due_s = max(now_s, resource.since_s + left_bits / resource.rate_bps)
        else:
            due_s = inf if left_bits > 0.0 else now_s
        if due_s != first._due_s:
            first._due_s = due_s
            if due_s < inf:
                heappush(self._schedule, (due_s, first._order, first))


def _count(flow: Flow[T], now_s: float) -> None:
    """Update the bits that are left of a flow that runs at its cap."""
    if flow._own_rate_bps > 0.0:
        done_bits = flow._own_rate_bps * (now_s - flow._since_s)
        flow._left_bits = max(0.0, flow._left_bits - done_bits)
    flow._since_s = now_s


def _is_member(entry: tuple[float, int, Flow[T]], resource: _Resource[T]) -> bool:
    target_bits, _, flow = entry
    return flow._active and flow._bottleneck is resource and flow._target_bits == target_bits


def _is_due(entry: tuple[float, int, Flow[T]]) -> bool:
    due_s, _, flow = entry
    return flow._active and flow._due_s == due_s


def _check_capacity(resource: int, capacity_bps: float) -> None:
    if not capacity_bps >= 0.0:
        raise ValueError(
            f"resource {resource} has capacity {capacity_bps} bit/s, which must be 0 or more"
        )
