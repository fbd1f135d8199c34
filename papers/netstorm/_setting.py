"""The common setting of the experiments: the network, the model, the compared systems.

The network is the paper's Fig. 12, and sites exchange AlexNet's 61 M parameters. *Static*: rates
do not change. Because one network may be luck, its links get other rates, 20 times over. *Dynamic*:
the run begins with the rates of the overlay file, and every rate is drawn again each 180 s. A
system makes as many rounds as it can in a given time, on five such networks. Computing is left out:
for AlexNet with 32 samples it is a fraction of a second.

*Literal* systems are the paper's, as its text has them; *ours* make other choices.

Emulated and quick, the model, its chunks, the time between draws and between looks at plans are a
tenth of that, so that rounds mostly keep their proportions. Latencies do not change, and neither do
the times that measurements take. A tenth of a model has no tensors, so its buffer is cut whole.

A chunk has at most 1 M elements, as in the paper. On packed trees, which are ours, it has 256 k:
they gain from small chunks, and hardly from even smaller ones, which take longer to simulate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median

import msgspec

from anabranch import overlay as overlays
from anabranch.overlay import Overlay, redraw
from anabranch.plan import AnyPlanner, Auxiliary, Balanced, Fapt, Packed, Spanning, Star
from anabranch.scheduler.awareness import AnyAwareness, Passive
from anabranch.scheduler.deal import ByShare
from anabranch.site.neighbourhood import MOST_CHUNK_ELEMENTS
from anabranch_lab.run.scenario import Scenario, Stop
from anabranch_lab.run.scenario.tasks import Exchange
from anabranch_lab.tasks.profiles import ALEXNET
from papers._lab import Lab
from papers._trial import Label, Outcome, Trial, chosen, seconds

CHUNK_ELEMENTS = 1_000_000
"""The paper's CHUNK_SIZE."""

PAPERS_AWARENESS = Passive(
    start="equal",
    estimator="chunk-mean",
    probe_chunk_elements=500_000,
    probe_chunks=4,
    belief="latest",
    update_time_s=5.0,
    update_rate=0.0,
    least_gain="none",
)
"""As in the paper's Table II, with eq. 14, Algorithm 2's rates and each new plan adopted (VIII-B).

The authors' PROBE_CHUNK_SIZE of 2 million counts bytes. The paper does not state the initial rates.
"""

LOW_BPS, HIGH_BPS = 20e6, 155e6
_ALIKE = 1 + 1e-9
REDRAW_S = 180.0


@dataclass(frozen=True, slots=True)
class System:
    """A compared system: its routes, and how they follow the network.

    Args:
        name: for labels.
        route, awareness, auxiliary, chunk_elements: as in a scenario.
        cuts_tensors: whether each tensor is cut into chunks on its own, as in the paper (IV-C), or
            the whole buffer.
    """

    name: str
    route: AnyPlanner
    awareness: AnyAwareness | None = None
    auxiliary: Auxiliary | None = None
    chunk_elements: int = CHUNK_ELEMENTS
    cuts_tensors: bool = False


def in_chunks_of(system: System, elements: int) -> System:
    """Return a system with other chunks; the paper's estimator then probes half that size."""
    awareness = system.awareness
    if isinstance(awareness, Passive) and awareness.estimator == "chunk-mean":
        awareness = msgspec.structs.replace(awareness, probe_chunk_elements=elements // 2)
    return replace(system, chunk_elements=elements, awareness=awareness)


def whole(system: System) -> System:
    """Return a system that sends the whole model as one chunk."""
    return replace(
        in_chunks_of(system, MOST_CHUNK_ELEMENTS), name=f"{system.name}, whole", cuts_tensors=False
    )


MXNET = System("star", Star(), cuts_tensors=True)
MLNET = System("balanced tree", Balanced(), cuts_tensors=True)
TSENGINE = System("spanning tree", Spanning(), cuts_tensors=True)

# As in the paper; examples/scenarios/netstorm-*.toml spell the same, with the equations.
LITE = System("lite", Fapt(shares="first", quality="leaf-to-root"), cuts_tensors=True)
STD = replace(LITE, name="std", awareness=PAPERS_AWARENESS)
PRO = replace(
    STD, name="pro", auxiliary=Auxiliary(search="algorithm-3-undirected", when_full="primary")
)


def measuring(system: System, name: str, **changed: object) -> System:
    """Return a system whose awareness differs in some fields."""
    assert isinstance(system.awareness, Passive)
    return replace(
        system, name=name, awareness=msgspec.structs.replace(system.awareness, **changed)
    )


def beside(system: System, name: str, **changed: object) -> System:
    """Return a system whose auxiliary paths differ in some fields."""
    assert system.auxiliary is not None
    paths = msgspec.structs.replace(system.auxiliary, **changed)
    return replace(system, name=f"{system.name}, {name}", auxiliary=paths)


# These replace the paper's choices by ours, one after the other, up to all of them.
LITE_BOTH_WAYS = replace(LITE, name="lite, both ways", route=Fapt(shares="first"))
PRO_FLAT = replace(PRO, name="pro, whole buffer cut", cuts_tensors=False)
PRO_DIRECTED = beside(PRO, "directed", search="algorithm-3")
STD_TOLD = measuring(STD, "std, told the first rates", start="overlay")
STD_FORECAST = measuring(STD_TOLD, "std, told, forecasts", belief="forecast")
STD_GATED = measuring(STD_FORECAST, "std, told, forecasts, plan gate", least_gain=0.0)
OUR_LITE = System("lite, ours", Fapt())
OUR_STD = replace(OUR_LITE, name="std, ours", awareness=Passive())
PRO_DISJOINT = beside(PRO, "disjoint paths", search="disjoint")
PRO_EXCEEDED = beside(PRO_DISJOINT, "bound exceeded", busy_when="exceeded")
PRO_WAITING = beside(PRO_DISJOINT, "chunks wait", when_full="wait")
OUR_PRO = replace(OUR_STD, name="pro, ours", auxiliary=Auxiliary())
# Not with the paper's estimator: it counts the latency as part of each chunk's transfer, and that
# part grows as chunks get smaller.
OUR_STD_256_KB = replace(OUR_STD, name="std, ours, 256 kB", chunk_elements=1 << 16)
OUR_PRO_256_KB = replace(
    OUR_STD_256_KB,
    name="pro, ours, 256 kB",
    auxiliary=Auxiliary(primary_busy_bound=2, auxiliary_queue_length=5),
)
PACKED = System("packed trees", Packed(), awareness=Passive(), chunk_elements=1 << 18)

# It never measures a rate, so that the plan stays that of equal rates.
UNMEASURED = measuring(STD, "std that measures nothing", probe_chunks=1_000_000)


def following(system: System, like: System = STD) -> System:
    """Return a system that plans again as the network changes, with another's awareness."""
    return replace(
        system, name=f"{system.name}, adaptive like {like.name}", awareness=like.awareness
    )


def rooted(system: System, site: str) -> System:
    """Return a system of one tree with its root at a site."""
    route = system.route
    key: dict[str, object]
    if isinstance(route, Star):
        key = {"hub": site}
    elif isinstance(route, Fapt):
        key = {"roots": (site,)}
    else:
        assert isinstance(route, Balanced | Spanning)
        key = {"root": site}
    return replace(system, route=msgspec.structs.replace(route, **key))


def reference() -> Overlay:
    """Return the network at its first draw."""
    return overlays.load("internet2-9")


def equal_rates() -> Overlay:
    """Return the network as a scheduler believes it that knows the links and no rate."""
    assert PAPERS_AWARENESS.start == "equal"
    return PAPERS_AWARENESS.believed(reference())


def smaller(lab: Lab) -> int:
    """Return the divisor of the model, its chunks, and times between changes and looks."""
    return 10 if lab.emulate and lab.quick else 1


def at_scale(system: System, by: int) -> System:
    """Return a system with chunks, and pauses between looks at plans, `by` times smaller."""
    if by == 1:
        return system
    system = in_chunks_of(system, system.chunk_elements // by)
    if system.awareness is None:
        return system
    update_time_s = system.awareness.update_time_s / by
    awareness = msgspec.structs.replace(system.awareness, update_time_s=update_time_s)
    return replace(system, awareness=awareness)


def draws(lab: Lab) -> tuple[int, ...]:
    """Return the seeds of the dynamic networks."""
    return tuple(range(lab.seed, lab.seed + (1 if lab.quick or lab.emulate else 5)))


def window_s(lab: Lab) -> float:
    """Return how long each system runs on a dynamic network, seconds.

    Emulation takes real time, and so it gets less.
    """
    if lab.emulate:
        return redraw_s(lab) * (3 if lab.quick else 5)
    return redraw_s(lab) * (5 if lab.quick else 7)


def redraw_s(lab: Lab) -> float:
    """Return how long rates of a dynamic network last, seconds."""
    return REDRAW_S / smaller(lab)


@lru_cache(maxsize=64)
def dynamic(seed: int, period_s: float = REDRAW_S) -> Overlay:
    """Return the network with rates that change for longer than any run lasts."""
    drawn = redraw(
        reference(),
        period_s=period_s,
        low_bps=LOW_BPS,
        high_bps=HIGH_BPS,
        duration_s=30 * period_s,
        seed=seed,
    )
    return replace(drawn, name=f"internet2-9-dynamic-{seed}")


@lru_cache(maxsize=64)
def drawn(number: int, seed: int) -> tuple[Overlay, ...]:
    """Return static networks of the same shape, each with other rates."""
    moments = redraw(
        reference(),
        period_s=1.0,
        low_bps=LOW_BPS,
        high_bps=HIGH_BPS,
        duration_s=number + 1.0,
        seed=seed,
    )
    return tuple(
        replace(moments.at(float(moment)), name=f"internet2-9-static-{seed}-{moment}")
        for moment in range(1, number + 1)
    )


def trial(
    lab: Lab,
    system: System,
    overlay: Overlay,
    stop: Stop,
    labels: Mapping[str, Label],
    task: Exchange | None = None,
) -> Trial:
    """Return a run of a system; without a task, it exchanges AlexNet, or a tenth of it."""
    system = at_scale(system, smaller(lab))
    if task is None and smaller(lab) == 1:
        task = Exchange(profile="alexnet")
    elif task is None:
        task = Exchange(elements=ALEXNET.elements // smaller(lab))
        system = replace(system, cuts_tensors=False)
    scenario = Scenario(
        overlay="",
        route=system.route,
        task=task,
        stop=stop,
        deal=ByShare(cut="tensors") if system.cuts_tensors else None,
        awareness=system.awareness,
        auxiliary=system.auxiliary,
        chunk_elements=system.chunk_elements,
        seed=lab.seed,
        sample_every_s=60.0,  # these experiments do not use the links' records
    )
    return Trial({**labels, "system": system.name}, scenario, overlay)


def static_networks(lab: Lab) -> dict[int, Overlay]:
    """Return the static networks by number: 20 drawn ones; emulated, that of the overlay file."""
    if lab.emulate:
        return {0: reference()}
    return dict(enumerate(drawn(3 if lab.quick else 20, lab.seed)))


def static_trials(lab: Lab, systems: Iterable[System], **labels: Label) -> list[Trial]:
    """Return a run of each system on each static network.

    A run of a system that measures the network has ten rounds, since its plan follows the first
    ones; a plan that is made once needs three.
    """
    return [
        trial(
            lab,
            system,
            overlay,
            Stop(rounds=3 if lab.quick or lab.emulate or system.awareness is None else 10),
            {**labels, "network": "static", "draw": number},
        )
        for system in systems
        for number, overlay in static_networks(lab).items()
    ]


def dynamic_trials(
    lab: Lab, systems: Iterable[System], task: Exchange | None = None, **labels: Label
) -> list[Trial]:
    """Return a run of each system on each dynamic network."""
    stop = Stop(rounds=100_000, after_s=window_s(lab))
    return [
        trial(
            lab,
            system,
            dynamic(seed, redraw_s(lab)),
            stop,
            {**labels, "network": "dynamic", "draw": seed},
            task,
        )
        for system in systems
        for seed in draws(lab)
    ]


def roots(lab: Lab) -> tuple[str, ...]:
    """Return the sites at which one-root systems are tried."""
    names = [site.name for site in reference().sites]
    return tuple(names[:: 3 if lab.quick else 1])


def ranked(found: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """Return a system's runs at the roots where its rounds are shortest, median and longest.

    Static networks differ from the first round on, so each has its own order of roots. Dynamic ones
    begin alike, and have one order.

    Args:
        found: its runs, labelled with their ``root``; each root has the same networks.
    """
    if any(each.labels["network"] == "static" for each in found):
        alone = [_ranked(chosen(found, draw=draw)) for draw in _draws(found)]
        return {rank: [run for each in alone for run in each[rank]] for rank in alone[0]}
    return _ranked(found)


def _ranked(found: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    by_root = [chosen(found, root=root) for root in {each.labels["root"]: 0 for each in found}]
    by_root.sort(key=seconds)
    middle = (len(by_root) - 1) // 2
    return {"best": by_root[0], "median": by_root[middle], "worst": by_root[-1]}


def _draws(found: Iterable[Outcome]) -> list[Label]:
    return sorted({each.labels["draw"] for each in found if "draw" in each.labels}, key=int)


def ratios(slow: Sequence[Outcome], fast: Sequence[Outcome]) -> list[float]:
    """Return the speed-up of some runs over others on each network that is drawn, rising."""
    return sorted(
        seconds(chosen(slow, draw=draw)) / seconds(chosen(fast, draw=draw)) for draw in _draws(slow)
    )


def ratio(slow: Sequence[Outcome], fast: Sequence[Outcome], write: Callable[[float], str]) -> str:
    """Return the speed-up of some runs over others as text.

    Of several draws it has the least and the most, and how many are faster, unless all or none are.
    Before them is the median of static networks, and the ratio of all rounds of dynamic ones.

    Args:
        slow, fast: runs on the same networks, labelled with their ``draw`` if there are several.
        write: formats a ratio.
    """
    by_draw = ratios(slow, fast)
    is_static = any(each.labels.get("network") == "static" for each in slow)
    middle = median(by_draw) if is_static and by_draw else seconds(slow) / seconds(fast)
    if len(by_draw) < 2:
        return write(middle)
    told = f"{write(middle)}, {write(by_draw[0])} to {write(by_draw[-1])}"
    faster = sum(each > _ALIKE for each in by_draw)
    if by_draw[0] < 1 / _ALIKE and faster:
        told += f", faster in {faster} of {len(by_draw)}"
    return told


def over(slow: Sequence[Outcome], fast: Sequence[Outcome]) -> str:
    """Return the speed-up of some runs over others, and the seconds of their rounds, as text."""
    return f"{ratio(slow, fast, times)} ({seconds(fast):.1f} s)"


def by_rank(
    slow: Mapping[str, Sequence[Outcome]],
    fast: Mapping[str, Sequence[Outcome]],
    write: Callable[[float], str],
) -> str:
    """Return ratios, as :func:`ratio` does, for each rank of :func:`ranked`."""
    return "; ".join(f"{rank} {ratio(slow[rank], fast[rank], write)}" for rank in slow)


def times(ratio: float) -> str:
    """Return a speed-up as text.

    >>> times(3.684)
    '3.7x'
    """
    return f"{ratio:.1f}x"


def gain(ratio: float) -> str:
    """Return a speed-up as a gain in percent.

    >>> gain(1.7), gain(0.96)
    ('+70 %', '-4 %')
    """
    return f"{100 * (ratio - 1):+.0f} %"


def drawn_networks(lab: Lab) -> str:
    """Return how many networks are drawn, as rows say it."""
    return f"{len(draws(lab))} dynamic networks" if len(draws(lab)) > 1 else "1 dynamic network"


def static_draws(lab: Lab) -> str:
    """Return how many static networks there are, as rows say it."""
    networks = len(static_networks(lab))
    return "1 static network" if networks == 1 else f"{networks} static networks"


def statics_note(lab: Lab) -> str:
    """Return a note on how the static values were made."""
    rates = "the rates of the authors' scripts" if lab.emulate else "drawn rates"
    return (
        f"Static: {static_draws(lab)}, links of the paper's network with {rates}; figures are "
        "the median, then the least and the most."
    )


def dynamics_note(lab: Lab) -> str:
    """Return a note on how the dynamic values were made."""
    by = smaller(lab)
    small = f" Chunks are {1 / by:g} of what rows say." if by > 1 else ""
    return (
        f"Dynamic: {len(draws(lab))} drawn networks (seeds {listed(draws(lab))}) of "
        f"{window_s(lab):g} s, new rates every {redraw_s(lab):g} s; figures are of all rounds "
        "together, then of the draw with the least to that with the most. The model has "
        f"{ALEXNET.elements // by:,} parameters.{small}"
    )


def listed(values: Iterable[object]) -> str:
    """Return values, separated by commas."""
    return ", ".join(map(str, values))
