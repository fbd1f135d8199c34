"""Search for faults that break a contract: random calls, random faults, an oracle. Virtual time.

A case is a small group in a simulated network, the calls of its sites, and the faults with their
moments. It follows from its seed alone. Whatever happens, this must hold:

- A call that ends has the same bits at every site.
- These bits are the exact result of the contributions that the call names.
- The contributions are those of all sites that stayed, and of no site that did not call.
- A call that returns before it is settled has the bits and contributions that are settled.
- Everything ends.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import numpy.typing as npt

from anabranch import plan as plans
from anabranch.exchange.arithmetic import Buffer, Flat
from anabranch.exchange.compressed import Compressed
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.group.async_group import AsyncGroup, Callbacks, Door, Ports, join
from anabranch.group.hand_over import Offer
from anabranch.group.service import Service
from anabranch.log import events
from anabranch.net.errors import NetError, PeerError
from anabranch.net.messages import Admitted, Contribution
from anabranch.overlay import Link, Overlay, Site
from anabranch.plan import AnyPlanner, Balanced, Fapt, Packed, Spanning, Star
from anabranch.scheduler.deal import ByShare
from anabranch.scheduler.losses import or_packed
from anabranch.scheduler.run import Abandoned
from anabranch.scheduler.server import Scheduler
from anabranch.site.control import RoundsOver
from anabranch.site.round import Round
from anabranch_lab.sim.loop import Deadlock, run_virtually
from anabranch_lab.sim.network import Host, SimulatedNetwork

_TOKEN = "explored"
_LISTEN = "127.0.0.1", 0
_DEADLINE_S = 600.0  # of virtual time: a case takes a few seconds, and its patience a few more
_MOST_SITES, _MOST_CALLS, _MOST_FAULTS = 6, 10, 3
_LEAST_SITES = 2
_MOST_IN_A_ROW = 14
_MOST_LIVES = 3  # processes of a site
_ONLY_HOLDER_LOST = "has the state", "is lost, and with it", "would broadcast, is lost"
_AWAY_S = 60.0  # how long sites wait for a scheduler
_KINDS = (*("kill", "sever", "hush", "restart") * 2, "unplug", "pause")
_HUSHED_S = 2.0  # until sites give up silent connections
_CUT_S = 60.0  # how long a connection to the scheduler is cut
_PATIENCE_S = 5.0  # how long a scheduler waits for a broken connection, at least
_SOME_COMPRESSED = 1_000_000_000  # from this seed on; tests name many before it
# By how much means of values up to 100 may differ from the exact ones: a hop loses half of a step.
_MOST_OFF = {Wire.BLOCKS8: 4.0, Wire.BLOCKS4: 50.0, Wire.BLOCKS2: 300.0, Wire.TOP2: 300.0}
_COMES_BACK_S = 1.0  # until a site that the others left out comes back


@dataclass(frozen=True)
class Call:
    """The next call of every site.

    Args:
        op: of an exchange; None for a gather.
        elements: of the buffer; of the state of training, where the call admits others.
        source: of a broadcast.
        at_once: whether the next call is made before this one has ended.
        admits: whether the call admits others, and hands the state to them.
        of: the subgroup of sites that make the call; None: all sites.
        wire: the format of elements on the wire.
    """

    op: Op | None
    elements: int
    source: int | None
    at_once: bool
    admits: bool = False
    of: tuple[int, ...] | None = None
    wire: Wire = Wire.FLOAT32

    def is_made_by(self, site: int) -> bool:
        """Return whether a site makes this call."""
        return self.of is None or site in self.of


@dataclass(frozen=True)
class Fault:
    """One fault of a case.

    Args:
        kind: ``kill`` a site; or, for a while, ``sever`` or ``hush`` the links between two,
            ``unplug`` a site from the scheduler, ``pause`` one, ``restart`` or ``stall`` the
            scheduler. ``replan`` is no fault: calls continue over other trees.
        at_s: when, in seconds after all sites are ready.
        site, other: the sites that it concerns.
        for_s: how long it lasts, seconds; after a kill, how long the site stays away, where sites
            come back.
    """

    kind: str
    at_s: float
    site: int
    other: int
    for_s: float


@dataclass(frozen=True)
class Case:
    """A group, its calls, and its faults.

    Args:
        overlay: the network.
        planner: makes the routes.
        chunk_elements: of a chunk.
        calls: in order.
        pauses_s: how long each site computes before each call, seconds; by site, then by call.
        leaves_after: how many calls each site makes; the others continue without a site that makes
            fewer.
        faults: what goes wrong.
        seed: of the numbers.
        comes_s: when each site joins, seconds; the group does not wait for those after 0.
        come_back: whether lost sites come back, as other processes.
        retries: whether an exchange that loses a site or link is begun again.
        outbound_only: sites that accept no connections.
        state_times: how many times larger the state of training is than the buffer of its call.
        by_size: whether buffers with different numbers of digits have different plans.
        asks_ahead: whether each exchange asks for another with its terms ahead, whatever follows.
        returns_early: whether calls return before they are settled; they overwrite their buffers
            then.
    """

    overlay: Overlay
    planner: AnyPlanner
    chunk_elements: int
    calls: tuple[Call, ...]
    pauses_s: tuple[tuple[float, ...], ...]
    leaves_after: tuple[int, ...]
    faults: tuple[Fault, ...]
    seed: int
    comes_s: tuple[float, ...] = ()
    come_back: bool = False
    retries: bool = False
    outbound_only: frozenset[int] = frozenset()
    state_times: int = 1
    by_size: bool = False
    asks_ahead: bool = False
    returns_early: bool = False

    @property
    def out_of_reach(self) -> set[tuple[int, int]]:
        """Pairs of sites, neither of which accepts connections."""
        return {*permutations(self.outbound_only, 2)}

    @property
    def founders(self) -> list[int]:
        """The sites with which the group begins."""
        return [site for site in range(self.overlay.size) if not self.is_late(site)]

    def leaves_early(self, site: int) -> bool:
        """Return whether calls of others may continue after a site has left."""
        makes_all = all(call.is_made_by(site) for call in self.calls)
        return self.leaves_after[site] < len(self.calls) or not makes_all

    def is_late(self, site: int) -> bool:
        """Return whether the group does not wait for a site."""
        return bool(self.comes_s) and self.comes_s[site] > 0


def make_case(seed: int) -> Case:
    """Return the case of a seed."""
    rng = random.Random(seed)
    case = _make_case(seed, rng)
    case = replace(case, state_times=rng.choice([1, 10, 100]))
    if rng.random() < 0.3:  # drawn after the rest, so that older cases of other seeds do not change
        case = replace(case, faults=(*case.faults, *_stall(rng, case)))
    case = replace(case, by_size=rng.random() < 0.3)
    if rng.random() < 0.2:
        case = replace(case, faults=(*case.faults, _cut_way(rng, case)))
    if rng.random() < 0.2:
        case = _with_calls_like_those_before(rng, case)
    if rng.random() < 0.2:
        case = replace(case, asks_ahead=True)
    if rng.random() < 0.2:
        case = _with_subgroups(rng, case)
    if rng.random() < 0.5:
        case = _with_least(case)
    case = replace(case, returns_early=rng.random() < 0.7)
    if rng.random() < 0.4:
        case = _with_calls_in_a_row(rng, case)
    if rng.random() < 0.3:
        case = replace(case, faults=(*case.faults, *_replans(rng, case)))
    if seed >= _SOME_COMPRESSED and rng.random() < 0.5:
        case = _with_compressed_calls(rng, case)
    return case


def _with_compressed_calls(rng: random.Random, case: Case) -> Case:
    """Return a case in which most means travel in blocks of few bits."""
    calls = [*case.calls]
    for place, call in enumerate(calls):
        if call.op == Op.MEAN and rng.random() < 0.8:
            wire = rng.choice([each for each in Wire if each.has_blocks])
            elements = wire.padded(50 * call.elements)
            calls[place] = replace(call, wire=wire, elements=elements)
    return replace(case, calls=(*calls,))


def _replans(rng: random.Random, case: Case) -> Iterator[Fault]:
    """Yield the moments of some new plans."""
    length_s: float = sum(0.1 + max(at_sites) for at_sites in zip(*case.pauses_s, strict=True))
    for _ in range(rng.randint(1, 3)):
        yield replace(_fault(rng, case.overlay.size, length_s), kind="replan")


def _cut_way(rng: random.Random, case: Case) -> Fault:
    """Return a cut of a site from the scheduler that lasts longer than the scheduler waits."""
    length_s: float = sum(0.1 + max(at_sites) for at_sites in zip(*case.pauses_s, strict=True))
    return replace(_fault(rng, case.overlay.size, length_s), kind="unplug", for_s=_CUT_S)


def _stall(rng: random.Random, case: Case) -> Iterator[Fault]:
    """Yield a stall of the scheduler, and perhaps an unplugged site shortly before it."""
    length_s: float = sum(0.1 + max(at_sites) for at_sites in zip(*case.pauses_s, strict=True))
    stall = replace(_fault(rng, case.overlay.size, length_s), kind="stall")
    if rng.random() < 0.5:
        before_s = rng.random() * 0.3
        yield replace(stall, kind="unplug", for_s=rng.choice([0.01, 0.3, 2.0]))
        stall = replace(stall, at_s=stall.at_s + before_s)
    yield stall


def _make_case(seed: int, rng: random.Random) -> Case:
    size = rng.randint(3, _MOST_SITES)
    overlay = _overlay(rng, size)
    planners: list[AnyPlanner] = [Packed(), Star(), Fapt(), Spanning(), Balanced()]
    planner = rng.choice(planners)
    calls = []
    for _ in range(rng.randint(1, _MOST_CALLS)):
        op = rng.choice([Op.MEAN, Op.MEAN, Op.SUM, Op.MAX, Op.COPY, None])
        source = rng.randrange(size) if op == Op.COPY else None
        calls.append(Call(op, rng.randint(1, 200), source, rng.random() < 0.3))
    slow_s = rng.choice([0.0, 0.02, 0.3, 6.0])
    pauses_s = tuple(tuple(rng.random() * slow_s for _ in calls) for _ in range(size))
    length_s = 0.1 * len(calls) + slow_s * len(calls)
    faults = tuple(
        _fault(rng, size, length_s) for _ in range(rng.choice([0, 1, 1, 1, 2, 2, _MOST_FAULTS]))
    )
    leaves_after = [len(calls)] * size
    if rng.random() < 0.3:
        leaves_after[rng.randrange(size)] = rng.randrange(len(calls))
    chunk_elements = rng.choice([16, 50, 200])
    comes_s: tuple[float, ...] = ()
    come_back = rng.random() < 0.5
    if come_back:
        calls = [
            replace(call, op=None, source=None, at_once=False, admits=True)
            if rng.random() < 0.4
            else call
            for call in calls
        ]
        if rng.random() < 0.5:
            late = rng.sample(range(size), rng.randint(1, size - 2))
            comes_s = tuple(rng.random() * length_s if i in late else 0.0 for i in range(size))
            founders = [site for site in range(size) if site not in late]
            if len(plans.remainder(overlay, late).sites) < len(founders):
                comes_s = ()  # the founders would not reach one another
    case = Case(
        *(overlay, planner, chunk_elements, tuple(calls), pauses_s, tuple(leaves_after)),
        *(faults, seed, comes_s, come_back, rng.random() < 0.25),
    )
    if rng.random() < 0.3:
        callers = frozenset(rng.sample(range(size), rng.randint(1, size - 1)))
        behind_nat = replace(case, outbound_only=callers)
        late = [site for site in range(size) if case.is_late(site)]
        rest = plans.remainder(overlay, late, behind_nat.out_of_reach)
        if len(rest.sites) == len(case.founders):
            return behind_nat
    return case


def _with_calls_like_those_before(rng: random.Random, case: Case) -> Case:
    """Return a case in which most exchanges repeat the one before, and are asked for ahead."""
    calls = [*case.calls]
    for place, (before, call) in enumerate(pairwise(case.calls), 1):
        is_exchange = before.op is not None and call.op is not None
        if is_exchange and rng.random() < 0.8:
            calls[place] = replace(calls[place - 1], at_once=call.at_once)
    return replace(case, calls=(*calls,), asks_ahead=True)


def _with_calls_in_a_row(rng: random.Random, case: Case) -> Case:
    """Return a case with many exchanges of a few sizes, so that sites begin most under leases."""
    sizes = [rng.randint(1, 200) for _ in range(rng.choice([1, 1, 2, 3]))]
    count = rng.randint(5, _MOST_IN_A_ROW)
    calls = []
    for place in range(count):
        call = case.calls[place % len(case.calls)]
        if not call.admits and rng.random() < 0.9:
            op, at_once = rng.choice([Op.MEAN, Op.SUM]), rng.random() < 0.4
            call = Call(op, rng.choice(sizes), None, at_once, of=call.of)
        calls.append(call)
    pauses_s = tuple((each * count)[:count] for each in case.pauses_s)
    all_before = len(case.calls)
    leaves_after = tuple(
        count if each == all_before else min(each, count) for each in case.leaves_after
    )
    return replace(case, calls=(*calls,), pauses_s=pauses_s, leaves_after=leaves_after)


def _with_subgroups(rng: random.Random, case: Case) -> Case:
    """Return a case in which subgroups make some of the calls."""
    everyone = range(case.overlay.size)
    subgroups = [tuple(sorted(rng.sample(everyone, rng.randint(2, len(everyone))))) for _ in "12"]
    calls = [*case.calls]
    for place, call in enumerate(calls):
        of = rng.choice(subgroups)
        if not call.admits and call.source in (None, *of) and rng.random() < 0.6:
            calls[place] = replace(call, of=of)
    return replace(case, calls=(*calls,))


def _with_least(case: Case) -> Case:
    """Return a case that looks for the least elements in place of the largest."""
    calls = (replace(call, op=Op.MIN) if call.op == Op.MAX else call for call in case.calls)
    return replace(case, calls=(*calls,))


def _overlay(rng: random.Random, size: int) -> Overlay:
    pairs = {(site, (site + 1) % size) for site in range(size)}  # a ring, and chords
    chance = rng.choice([0.0, 0.5, 1.0])
    for one in range(size):
        for other in range(one + 1, size):
            if (other, one) not in pairs and rng.random() < chance:
                pairs.add((one, other))
    links = []
    for one, other in sorted(pairs):
        for source, target in ((one, other), (other, one)):
            rate_bps = rng.choice([1e5, 3e5, 1e6])
            links.append(Link(source, target, rate_bps, latency_s=rng.choice([0.0, 0.001, 0.02])))
    return Overlay("explored", tuple(Site(f"s{site}") for site in range(size)), tuple(links))


def _fault(rng: random.Random, size: int, length_s: float) -> Fault:
    kind = rng.choice(_KINDS)
    site, other = rng.sample(range(size), 2)
    return Fault(kind, rng.random() * length_s, site, other, rng.choice([0.01, 0.3, 2.0, 20.0]))


@dataclass
class _Ended:
    """How a call ended at a site."""

    result: npt.NDArray[np.float32] | tuple[bytes, ...] | None
    contributions: tuple[Contribution, ...]
    members: tuple[int, ...]
    error: str
    life: int = 0  # which of the site's processes made the call
    is_settled: bool = True  # if not, the site has the result, and not its contributions
    why_not: str = ""


class _Journal:
    """A journal in memory, which outlives the scheduler; its clock is virtual time."""

    def __init__(self) -> None:
        self.data: bytes | None = None

    def load(self) -> bytes | None:
        """See :class:`anabranch.scheduler.memory.Journal`."""
        return self.data

    def save(self, data: bytes) -> None:
        """See :class:`anabranch.scheduler.memory.Journal`."""
        self.data = data

    def now_s(self) -> float:
        """See :class:`anabranch.scheduler.memory.Journal`."""
        return asyncio.get_running_loop().time()


class _Log:
    """Counts of the events that the scheduler logs."""

    def __init__(self) -> None:
        self.repaired = 0
        self.joined = 0
        self.restarted = 0
        self.lost: set[int] = set()

    def began(self, buffer_elements: int, plan: plans.Plan) -> None:
        """See :class:`anabranch.scheduler.run.Log`."""

    def write(self, *happened: events.Event) -> None:
        """See :class:`anabranch.scheduler.run.Log`."""
        for event in happened:
            if isinstance(event, events.ExchangeRepaired):
                self.repaired += 1
            elif isinstance(event, events.SiteLost):
                self.lost.add(event.site)
            elif isinstance(event, events.SchedulerRestarted):
                self.restarted += 1
            elif isinstance(event, events.SiteJoined) and event.at_s > 0:
                self.joined += 1


@dataclass(frozen=True)
class Explored:
    """The outcome of a case.

    Args:
        violations: of the contract, as text.
        exchanges: how many the case calls for.
        repaired: how many exchanges were completed after an interruption.
        lost: how many sites were lost.
        joined: how many times a site was admitted.
        restarted: how many times the scheduler was started again.
    """

    violations: tuple[str, ...]
    exchanges: int
    repaired: int
    lost: int
    joined: int
    restarted: int


def explore(case: Case) -> Explored:
    """Run a case, and check that the contract held."""
    log = _Log()
    ended: dict[int, dict[int, _Ended]] = {site: {} for site in range(case.overlay.size)}
    wrong: list[str] = []
    refusals: list[tuple[int, int, str]] = []
    finished: list[str] = []
    try:
        finished.append(run_virtually(_run(case, log, ended, refusals, wrong)))
    except (Deadlock, TimeoutError) as error:
        wrong.append(f"it hangs: {type(error).__name__}: {error}")
    except Exception as error:
        wrong.append(f"{type(error).__name__}: {error}")
    else:
        wrong += _oracle(case, ended, log.lost, finished[0])
        for site, sender, why in refusals:
            if not {site, sender} & log.lost:
                wrong.append(f"site {site} refused a message of site {sender}: {why}")
    exchanges = sum(call.op is not None for call in case.calls)
    counts = log.repaired, len(log.lost), log.joined, log.restarted
    return Explored(tuple(wrong), exchanges, *counts)


def contribution(case: Case, site: int, call: int) -> npt.NDArray[np.float32]:
    """Return what a site contributes: small whole numbers, whose sums are exact."""
    rng = np.random.default_rng((case.seed, site, call))
    return rng.integers(-100, 100, case.calls[call].elements).astype(np.float32)


def _weight(case: Case, site: int) -> float:
    return float(1 << (case.seed + site) % 3)


async def _run(
    case: Case,
    log: _Log,
    ended: dict[int, dict[int, _Ended]],
    refusals: list[tuple[int, int, str]],
    wrong: list[str],
) -> str:
    loop = asyncio.get_running_loop()

    def failed(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not isinstance(error, NetError):
            wrong.append(f"{context['message']}: {type(error).__name__}: {error}")

    loop.set_exception_handler(failed)
    network = SimulatedNetwork(loop, case.overlay, seed=case.seed, control_latency_s=0.005)  # type: ignore[arg-type]
    schedulers: list[Scheduler] = []
    journal = _Journal()
    service = Service(
        case.overlay,
        _ManyPlans(case.planner, case.by_size),
        awareness=None,
        deal=ByShare(),
        under_way_bytes=None,
        chunk_elements=case.chunk_elements,
        on_loss="retry" if case.retries else "complete",
        on_error="abort",
        least_sites=_LEAST_SITES,
        begin_with=len(case.founders),
        away_s=_AWAY_S,
    )
    first = service.first_plan()  # for no size: many trees for small buffers

    async def start_scheduler() -> tuple[str, int]:
        with network.scheduler.in_process():
            schedulers.append(service.scheduler(network.control(None), _TOKEN, log, journal, first))
            return await schedulers[-1].listen(_LISTEN)

    address = await start_scheduler()
    ready = asyncio.Event()
    how_many = 0

    def refused(site: int, sender: int | None, error: PeerError) -> None:
        if sender is not None:
            refusals.append((site, sender, str(error)))

    async def live(site: int, life: int) -> None:
        """Join, make the calls, and leave; come back if the others left this site out."""
        nonlocal how_many
        control, data = network.control(site), network.lanes(site)
        name = case.overlay.sites[site].name
        listen = None if site in case.outbound_only else _LISTEN
        door, callbacks = Door(address, name, _TOKEN, listen), Callbacks(partial(refused, site))
        group: AsyncGroup | None = None
        first = 0
        try:
            try:
                group = await join(Ports(control, data), door, callbacks)
                agent = group.agent
                transport = group.settings.transport(room_elements=1 << 16)
                await group.start(transport, network.lanes(site))
                if not agent.is_new:
                    how_many += 1
                    if how_many == len(case.founders):
                        ready.set()
                else:
                    first = 1 + await _enter(case, group, site, life, ended[site], wrong)
            except (NetError, RoundsOver):
                if not life and not case.is_late(site):
                    raise
            else:
                settling: list[asyncio.Task[None]] = []
                await _make_calls(case, group, life, first, ended[site], settling)
                with suppress(NetError):
                    await group.leave()
                await asyncio.gather(*settling)
        finally:
            if group is not None:
                await group.close()
        if case.come_back and life < _MOST_LIVES and site in log.lost and not is_over():
            await asyncio.sleep(_COMES_BACK_S)
            await live(site, life + 1)

    def is_over() -> bool:
        return schedulers[-1].is_over and not network.scheduler.dead

    def come(site: int, wait_s: float, life: int = 0) -> asyncio.Task[None]:
        async def come_later() -> None:
            await asyncio.sleep(wait_s)
            await live(site, life)

        with network.sites[site].in_process():
            return loop.create_task(come_later(), name=f"site {site}")

    network.begin()
    lives: dict[int, asyncio.Task[None]] = {}
    for site in range(case.overlay.size):
        comes = case.comes_s[site] if case.is_late(site) else 0.0
        lives[site] = come(site, comes)

    async def restart(for_s: float) -> None:
        if network.scheduler.dead or schedulers[-1].is_over or journal.data is None:
            return
        network.kill(None)
        schedulers[-1].abandon()
        await asyncio.sleep(for_s)
        network.revive(None)
        await start_scheduler()

    def replan(number: int) -> None:
        def plan(overlay: Overlay, version: int, _: plans.Plan | None) -> plans.Plan:
            return planners[number % len(planners)].plan(overlay, version=version)

        planners: list[AnyPlanner] = [Packed(), Spanning(), Balanced()]
        if not network.scheduler.dead:
            schedulers[-1].planning.replan(or_packed(plan))

    script = loop.create_task(_script(case, network, ready, lives, come, restart, replan))
    try:
        async with asyncio.timeout(_DEADLINE_S):
            while waiting := [task for task in lives.values() if not task.done()]:
                await asyncio.wait(waiting)
            for task in lives.values():
                if not task.cancelled() and (error := task.exception()) is not None:
                    raise error
            while True:
                try:
                    await schedulers[-1].finished()
                    return ""
                except NetError as error:
                    return str(error)
                except Abandoned:
                    await asyncio.sleep(_COMES_BACK_S)
    finally:
        script.cancel()
        for task in lives.values():
            task.cancel()
        await schedulers[-1].close()


async def _make_calls(
    case: Case,
    group: AsyncGroup,
    life: int,
    first: int,
    ended: dict[int, _Ended],
    settling: list[asyncio.Task[None]],
) -> None:
    """Make a site's calls from call `first` on, until the group continues without the site.

    Args:
        settling: takes a task for each call that returns before it is settled.
    """
    site = group.index
    under_way: list[asyncio.Task[None]] = []
    for number in range(first, min(case.leaves_after[site], len(case.calls))):
        call = case.calls[number]
        if not call.is_made_by(site):
            continue
        await asyncio.sleep(case.pauses_s[site][number])
        if call.admits:
            await asyncio.gather(*under_way)
        try:
            channel = 0 if call.of is None else await group.agent.subgroup(call.of)
        except NetError as error:
            ended[number] = _Ended(None, (), (), str(error), life)
            break
        made = _call(case, group, life, number, ended, channel, settling)
        task = asyncio.create_task(made)
        under_way.append(task)
        await asyncio.sleep(0)
        if not call.at_once:
            await asyncio.gather(*under_way)
        if case.come_back and group.agent.is_over:
            break  # the others continue without this site, and it may come back
    await asyncio.gather(*under_way)
    await group.has_handed_on()


async def _enter(
    case: Case,
    group: AsyncGroup,
    site: int,
    life: int,
    ended: dict[int, _Ended],
    wrong: list[str],
) -> int:
    """Wait to be admitted and for the state; return the number of the call that admitted."""
    told = await group.agent.admit()
    found = await _hand_on(case, group, -1, told)
    assert found is not None, "a site that is new is no holder"
    number, state = found
    if state.tobytes() != _state(case, number).tobytes():
        wrong.append(f"site {site} got another state by call {number}")
    ended[number] = _Ended((repr(told).encode(),), (), told.members, "", life)
    return number


def _state(case: Case, number: int) -> npt.NDArray[np.float32]:
    return np.tile(contribution(case, case.overlay.size, number), case.state_times)


async def _hand_on(
    case: Case, group: AsyncGroup, number: int, told: Admitted
) -> tuple[int, npt.NDArray[np.float32]] | None:
    """Hand the state to the sites without it, or get it with the number of the call."""
    offer = None
    if group.index in told.holders:
        offer = Offer({"number": number, "state": _state(case, number)}, told.follows)
    handed = await group.hand_over(told, offer)
    group.agent.has_state()
    return None if handed.state is None else (handed.state["number"], handed.state["state"])


@dataclass(frozen=True)
class _ManyPlans:
    """A planner that cycles through three routes by the number of digits of the buffer's size.

    Args:
        planner: the first of the three; also for buffers of unknown size.
        by_size: whether the size matters to the scheduler's plans.
    """

    planner: AnyPlanner
    by_size: bool
    deep: bool = True

    def plan(
        self,
        overlay: Overlay,
        *,
        version: int = 1,
        previous: plans.Plan | None = None,
        elements: int | None = None,
        chunk_elements: int = 1,
    ) -> plans.Plan:
        """See :class:`anabranch.plan.Planner`."""
        if elements is None:
            return self.planner.plan(overlay, version=version)
        planner = (self.planner, Packed(), Spanning())[len(str(elements)) % 3]
        return planner.plan(overlay, version=version)


async def _call(
    case: Case,
    group: AsyncGroup,
    life: int,
    number: int,
    ended: dict[int, _Ended],
    channel: int,
    settling: list[asyncio.Task[None]],
) -> None:
    agent, site, call = group.agent, group.index, case.calls[number]
    try:
        if call.admits:
            told = await agent.admit()
            if told.newcomers:
                await _hand_on(case, group, number, told)
            agent.has_state()
            ended[number] = _Ended((repr(told).encode(),), (), told.members, "", life)
            return
        if call.op is None:
            gathered = await agent.gather(b"%d %d" % (site, number), channel)
            ended[number] = _Ended(gathered.values, (), gathered.members, "", life)
            return
        buffer, weight = contribution(case, site, number), _weight(case, site)
        terms = Terms(call.op, call.wire, call.elements, call.source)
        given: Buffer = Flat(buffer)
        if call.wire.has_blocks:
            given = Compressed(buffer, np.zeros_like(buffer), weight, call.wire)
        done = await group.exchange(
            given,
            terms,
            weight,
            more=case.asks_ahead,
            channel=channel,
            returns_early=case.returns_early,
        )
        result = buffer.copy()
        if done.settlement is None:
            ended[number] = _Ended(result, done.contributions, done.members, "", life)
            return
        buffer.fill(math.nan)  # the program goes on with its buffer
        returned = _Ended(result, (), (), "", life, is_settled=False)
        ended[number] = returned
        settling.append(asyncio.create_task(_settled(done.settlement, ended, number, returned)))
    except NetError as error:
        ended[number] = _Ended(None, (), (), str(error), life)


async def _settled(
    settlement: asyncio.Future[Round], ended: dict[int, _Ended], number: int, returned: _Ended
) -> None:
    """Take the settlement of a call that has returned."""
    try:
        done = await asyncio.shield(settlement)
    except NetError as error:  # the group has ended, or goes on without this site
        ended[number] = replace(returned, why_not=str(error))
    else:
        settled = replace(returned, members=done.members, contributions=done.contributions)
        ended[number] = replace(settled, is_settled=True)


async def _script(
    case: Case,
    network: SimulatedNetwork,
    ready: asyncio.Event,
    lives: dict[int, asyncio.Task[None]],
    come: Callable[[int, float, int], asyncio.Task[None]],
    restart: Callable[[float], Coroutine[Any, Any, None]],
    replan: Callable[[int], None],
) -> None:
    await ready.wait()
    began_s = asyncio.get_running_loop().time()

    async def act(fault: Fault) -> None:
        await asyncio.sleep(began_s + fault.at_s - asyncio.get_running_loop().time())
        host = network.sites[fault.site]
        if fault.kind == "restart":
            await restart(fault.for_s)
            return
        if fault.kind == "replan":
            replan(fault.site)
            return
        if fault.kind == "stall":
            scheduler = network.scheduler
            if not (scheduler.asleep or scheduler.dead):
                await _pause(scheduler, fault.for_s)
            return
        if host.dead:
            return
        match fault.kind:
            case "kill":
                network.kill(fault.site)
                lives[fault.site].cancel()
                if case.come_back:
                    network.revive(fault.site)
                    lives[fault.site] = come(fault.site, fault.for_s, 1)
            case "sever":
                network.sever(fault.site, fault.other)
                await asyncio.sleep(fault.for_s)
                network.join(fault.site, fault.other)
            case "hush":
                await _hush(network, fault)
            case "unplug":
                network.disconnect(fault.site)
                await asyncio.sleep(fault.for_s)
                network.reconnect(fault.site)
            case "pause" if not host.asleep:
                await _pause(host, fault.for_s)

    await asyncio.gather(*(act(fault) for fault in case.faults))


async def _pause(host: Host, for_s: float) -> None:
    """Stop a machine for a while; wake it if this task is cancelled, so that it can end too."""
    host.sleep()
    try:
        await asyncio.sleep(for_s)
    finally:
        host.wake()


async def _hush(network: SimulatedNetwork, fault: Fault) -> None:
    """Silence the links between two sites; a long silence ends with a break of the links."""
    network.hush(fault.site, fault.other, are_silent=True)
    await asyncio.sleep(min(fault.for_s, _HUSHED_S))
    network.hush(fault.site, fault.other, are_silent=False)
    if fault.for_s > _HUSHED_S:
        network.sever(fault.site, fault.other)
        await asyncio.sleep(fault.for_s - _HUSHED_S)
        network.join(fault.site, fault.other)


def _oracle(
    case: Case, ended: dict[int, dict[int, _Ended]], lost: set[int], outcome: str
) -> Iterator[str]:
    """Yield each violation of the contract."""
    # After all others have made their calls and left, the group ends with the last site's death.
    have_ended = {
        site
        for site in ended
        if all(
            number in ended[site]
            for number in range(min(case.leaves_after[site], len(case.calls)))
            if case.calls[number].is_made_by(site)
        )
    }
    others = {site for site in ended if site not in lost and not case.is_late(site)}
    if not (others <= have_ended and (" died " in outcome or "did not come back" in outcome)):
        yield from _early_end(case, lost, have_ended, outcome)
    left_early = {site for site in range(case.overlay.size) if case.leaves_early(site)}
    # A fault may take a site that has left, and carries for others: it is not called lost.
    explained = {site for site in lost | left_early if _may_be_lost(case, site)}
    following = {site for site in range(case.overlay.size) if case.is_late(site)}
    if not outcome and len(explained) < case.overlay.size:
        # Without the explained losses, some sites may not reach the others. A site carries no
        # traffic between others before it is admitted; nor, once another is lost, after it left.
        rest = {*plans.remainder(case.overlay, explained, case.out_of_reach).sites}
        several = [following]
        if explained:  # some of those that leave may have been there still
            several += [left_early, following | left_early]
        for no_way in several:
            if len(explained | no_way) < case.overlay.size:
                without = plans.remainder(case.overlay, explained | no_way, case.out_of_reach)
                rest &= no_way | {*without.sites}
        for site in sorted(lost & rest - explained):
            yield f"site {site} is lost, and none of the faults explains it"
    for number, call in enumerate(case.calls):
        came = {site: min(calls, default=len(case.calls)) for site, calls in ended.items()}
        there = [site for site in ended if number < case.leaves_after[site]]
        there = [site for site in there if not case.is_late(site) or came[site] <= number]
        gone = lost | {site for site in ended if site not in there}
        stayed = [site for site in there if call.is_made_by(site) and site not in lost]
        here = {site: calls[number] for site, calls in ended.items() if number in calls}
        name = f"call {number} ({'gather' if call.op is None else call.op.name})"
        if not outcome:
            for site in stayed:
                if site not in here:
                    yield f"{name} did not end at site {site}"
        for site, each in here.items():
            if not each.is_settled and site not in lost and not outcome:
                yield f"{name} was not settled at site {site}: {each.why_not}"
        # A result that was not settled may lack what the others know, or have what they lack.
        here = {site: each for site, each in here.items() if each.is_settled}
        good = {site: each for site, each in here.items() if not each.error}
        bad = {site: each.error for site, each in here.items() if each.error}
        for site, error in bad.items():
            if outcome or site in lost or len(stayed) < _LEAST_SITES:
                continue
            if call.op == Op.COPY and call.source in gone:
                continue
            if "has left, and not made" in error and _may_be_apart(case, gone):
                continue
            if call.admits and any(each in error for each in _ONLY_HOLDER_LOST):
                continue
            # The remaining sites came late, and contribute nothing before they are in step.
            if "that contributed are lost" in error and following.issuperset(stayed):
                continue
            yield f"{name} failed at site {site}: {error}"
        if bad and good and not outcome and set(bad) - gone:
            yield f"{name} failed at {sorted(bad)} and not at {sorted(good)}"
        if not good:
            continue
        first = next(iter(good.values()))
        for site, each in good.items():
            if call.op is None:
                if each.result != first.result:
                    yield f"{name} gathered other values at site {site}"
                continue
            assert isinstance(each.result, np.ndarray)
            assert isinstance(first.result, np.ndarray)
            if each.result.tobytes() != first.result.tobytes():
                yield f"{name} has other bits at site {site}"
            if (each.contributions, each.members) != (first.contributions, first.members):
                yield f"{name} names other contributions at site {site}"
        if call.admits:
            if not set(stayed) <= set(first.members) and not outcome:
                yield f"{name} lacks {sorted(set(stayed) - set(first.members))}"
        elif call.op is None:
            assert isinstance(first.result, tuple)
            of = [int(value.split()[0]) for value in first.result]
            if (*of,) != first.members:
                yield f"{name} gathered values of {of}, and says that {first.members} are members"
            if not set(stayed) <= set(of) and not outcome:
                yield f"{name} lacks values of {sorted(set(stayed) - set(of))}"
            if sorted(first.result) != [b"%d %d" % (site, number) for site in sorted(of)]:
                yield f"{name} gathered {first.result!r}"
        else:
            # A site that came late contributes nothing until it is in step, and always afterwards.
            whose = {site for each in first.contributions for site in each.sites}
            silent = following - (whose or {*first.members})
            due = [site for site in stayed if site not in silent or call.of]
            if call.source is None and call.of is None:
                following = silent
            yield from _exactness(case, number, call, first, due, outcome, name)


def _may_be_apart(case: Case, gone: set[int]) -> bool:
    """Return whether, without the sites in `gone`, the others may be too few or split."""
    cut = {
        ends
        for fault in case.faults
        if fault.kind in ("sever", "hush")  # a silent link counts as cut until it carries again
        for ends in ((fault.site, fault.other), (fault.other, fault.site))
    }
    cut |= case.out_of_reach
    left = case.overlay.size - len(gone)
    if left < _LEAST_SITES:
        return True
    return len(plans.remainder(case.overlay, gone, cut).sites) < left


def _may_be_lost(case: Case, site: int) -> bool:
    """Return whether a case's faults explain the loss of a site.

    A pause of another site or of the scheduler explains no loss: no site may be blamed for messages
    that the paused process could not receive or send.
    """
    for fault in case.faults:
        match fault.kind:
            case "kill" | "sever" | "hush":
                return True  # they hit this site, its links, or detours of other sites
            case "pause" if fault.site == site and fault.for_s > _PATIENCE_S:
                return True
            case "unplug" if fault.site == site and fault.for_s > _PATIENCE_S:
                if not _has_a_way_round(case, site) or _may_miss_a_restart(case, site):
                    return True
    return False


def _may_miss_a_restart(case: Case, site: int) -> bool:
    """Return whether a neighbour may stand still that carries a site's way to the scheduler.

    If the scheduler is started again meanwhile, the site hears nothing of it, until it takes the
    neighbour for silent. That is later than the scheduler waits.
    """
    restarts = any(fault.kind == "restart" for fault in case.faults)
    return restarts and any(
        fault.kind == "pause"
        and fault.for_s > _PATIENCE_S
        and case.overlay.link(site, fault.site) is not None
        for fault in case.faults
    )


def _has_a_way_round(case: Case, site: int) -> bool:
    """Return whether some neighbour relays a site's messages to the scheduler all the time."""
    there = {fault.site for fault in case.faults if fault.kind in ("unplug", "pause")}
    return any(
        case.overlay.link(site, other) is not None
        and other not in there | case.outbound_only
        and not case.leaves_early(other)
        and not case.is_late(other)
        for other in range(case.overlay.size)
    )


def _early_end(case: Case, lost: set[int], have_ended: set[int], outcome: str) -> Iterator[str]:
    """Yield the outcome of a group that ended early without a reason.

    Args:
        have_ended: the sites that have made all their calls, and have left.
    """
    left = {site for site in range(case.overlay.size) if case.leaves_early(site)}
    late = {site for site in range(case.overlay.size) if case.is_late(site)}
    several = [lost, lost | left, lost | late, lost | left | late]
    away = {fault.site for fault in case.faults if fault.kind in ("kill", "unplug", "pause")}
    if "left and its connection broke" in outcome:  # such a site is gone, but not lost
        several += [lost | left | late | away, lost | left | late | away | have_ended]
    if "no site came back" in outcome and have_ended | away | left | late >= {
        *range(case.overlay.size)
    }:
        return
    if outcome and not any(_may_be_apart(case, gone) for gone in several):
        yield f"the group ended: {outcome}"
    if any(each in outcome for each in ("broke the protocol", "failed", "refused")):
        yield f"the group ended: {outcome}"


def _exactness(
    case: Case, number: int, call: Call, found: _Ended, stayed: list[int], outcome: str, name: str
) -> Iterator[str]:
    whose = found.contributions
    if not whose and found.members:
        all_of = found.members if call.source is None else (call.source,)
        whose = (Contribution(0, call.elements, all_of),)
    covered = 0
    assert isinstance(found.result, np.ndarray)
    if case.retries and call.source is None and len({each.sites for each in whose}) > 1:
        yield f"{name} has contributions of more than one set of sites: {whose}"
    for each in whose:
        if each.start != covered:
            yield f"{name}: contributions do not cover the buffer: {whose}"
        covered = each.stop
        if call.source is None and not outcome and not set(stayed) <= set(each.sites):
            yield f"{name} lacks {sorted(set(stayed) - set(each.sites))}, who stayed"
        parts = [contribution(case, site, number)[each.start : each.stop] for site in each.sites]
        weights = [_weight(case, site) for site in each.sites]
        weighed = [weight * part for weight, part in zip(weights, parts, strict=True)]
        expected: Any
        match call.op:
            case Op.MEAN:
                expected = np.sum(weighed, axis=0, dtype=np.float32) / np.float32(sum(weights))
            case Op.SUM:
                expected = np.sum(weighed, axis=0, dtype=np.float32)
            case Op.MAX:
                expected = np.max(parts, axis=0)
            case Op.MIN:
                expected = np.min(parts, axis=0)
            case _:
                expected = parts[0]
        off = np.abs(found.result[each.start : each.stop] - expected)
        if not (off <= _MOST_OFF.get(call.wire, 0.0)).all():
            yield f"{name} is not the result of {each.sites} in [{each.start}, {each.stop})"
    if covered != call.elements:
        yield f"{name}: contributions cover {covered} of {call.elements} elements: {whose}"


@dataclass
class Found:
    """The outcome of many cases.

    Attributes:
        cases, exchanges, repaired, lost, joined, restarted: how many; see `Explored`.
        violations: by seed.
    """

    cases: int = 0
    exchanges: int = 0
    repaired: int = 0
    lost: int = 0
    joined: int = 0
    restarted: int = 0
    violations: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def add(self, other: Found) -> None:
        """Add the counts of other cases."""
        self.cases += other.cases
        self.exchanges += other.exchanges
        self.repaired += other.repaired
        self.lost += other.lost
        self.joined += other.joined
        self.restarted += other.restarted
        self.violations |= other.violations


def explore_seeds(seeds: Sequence[int]) -> Found:
    """Run the cases of some seeds."""
    found = Found()
    for seed in seeds:
        each = explore(make_case(seed))
        found.cases += 1
        found.exchanges += each.exchanges
        found.repaired += each.repaired
        found.lost += each.lost
        found.joined += each.joined
        found.restarted += each.restarted
        if each.violations:
            found.violations[seed] = each.violations
    return found


def minimised(case: Case) -> Case:
    """Leave faults and calls out while the case still breaks the contract; return the smallest."""
    while True:
        smaller = [
            replace(case, faults=case.faults[:index] + case.faults[index + 1 :])
            for index in range(len(case.faults))
        ] + [
            replace(
                case,
                calls=case.calls[:index] + case.calls[index + 1 :],
                pauses_s=tuple(each[:index] + each[index + 1 :] for each in case.pauses_s),
            )
            for index in range(len(case.calls))
            if len(case.calls) > 1
        ]
        for each in smaller:
            if explore(each).violations:
                case = each
                break
        else:
            return case
