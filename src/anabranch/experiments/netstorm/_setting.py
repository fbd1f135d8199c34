"""What the experiments have in common: the network, the model, the systems that are compared.

The network is the paper's Fig. 12, and AlexNet's 61 M parameters are exchanged. *Static*: the rates
stay as in the overlay file. *Dynamic*: from them on, every rate is drawn again each 180 s, and a
system makes as many rounds as it can in a given time; several such networks are drawn, because one
is luck. Computing is left out: of AlexNet with 32 samples it is a fraction of a second.

Emulated and quick, the model, its chunks, the time between draws and between looks at plans are a
tenth of that, so that rounds mostly keep their proportions. Latencies stay as they are, and so do
the times that measuring takes.

A chunk has at most 1 M elements, as in the paper. On packed trees, which are ours, it has 256 k:
they gain from small chunks, and hardly from yet smaller ones, which take longer to simulate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import msgspec

from anabranch import overlay as overlays
from anabranch.experiments._lab import Lab, Label, Outcome, Trial, seconds
from anabranch.learn.profiles import ALEXNET
from anabranch.overlay import Overlay, redraw
from anabranch.plan import AnyPlanner, Auxiliary, Balanced, Fapt, Packed, Spanning, Star
from anabranch.run.scenario import Scenario, Stop
from anabranch.run.scenario.tasks import Exchange
from anabranch.scheduler.awareness import AnyAwareness, Passive

CHUNK_ELEMENTS = 1_000_000
"""The paper's CHUNK_SIZE."""

PAPERS_AWARENESS = Passive(
    update_time_s=5.0,
    estimator="chunk-mean",
    least_gain=0.0,
    probe_chunk_elements=500_000,
    probe_chunks=4,
)
"""As in the paper's Table II; its authors' PROBE_CHUNK_SIZE of 2 million counts bytes."""

LOW_BPS, HIGH_BPS = 20e6, 155e6
REDRAW_S = 180.0


@dataclass(frozen=True, slots=True)
class System:
    """What is compared: an answer to where aggregates travel, and how that follows the network.

    Args:
        name: for labels.
        route, awareness, auxiliary, chunk_elements: as in a scenario.
    """

    name: str
    route: AnyPlanner
    awareness: AnyAwareness | None = None
    auxiliary: Auxiliary | None = None
    chunk_elements: int = CHUNK_ELEMENTS


def in_chunks_of(system: System, elements: int) -> System:
    """Return a system with other chunks; the paper's estimator measures those of half the size."""
    awareness = system.awareness
    if isinstance(awareness, Passive) and awareness.estimator == "chunk-mean":
        awareness = msgspec.structs.replace(awareness, probe_chunk_elements=elements // 2)
    return replace(system, chunk_elements=elements, awareness=awareness)


MXNET = System("star", Star())
MLNET = System("balanced tree", Balanced())
TSENGINE = System("spanning tree", Spanning())
LITE = System("lite", Fapt())
STD = replace(LITE, name="std", awareness=PAPERS_AWARENESS)
PRO = replace(STD, name="pro", auxiliary=Auxiliary())
PRO_ALGORITHM_3 = replace(PRO, name="pro, algorithm 3", auxiliary=Auxiliary(search="algorithm-3"))
# Not with the paper's estimator, which takes the latency for a part of each chunk's transfer, and
# that part grows as chunks get smaller.
STD_256_KB = replace(STD, name="std, 256 kB", awareness=Passive(), chunk_elements=1 << 16)
PRO_256_KB = replace(
    STD_256_KB,
    name="pro, 256 kB",
    auxiliary=Auxiliary(primary_busy_bound=2, auxiliary_queue_length=5),
)
OUR_PRO = replace(PRO, name="pro, our awareness", awareness=Passive())
PACKED = System("packed trees", Packed(), awareness=Passive(), chunk_elements=1 << 18)


def following(system: System) -> System:
    """Return a system that plans again as the network changes, by the paper's measurements."""
    return replace(system, name=f"{system.name}, adaptive", awareness=PAPERS_AWARENESS)


def reference() -> Overlay:
    """Return the network at its first draw."""
    return overlays.load("internet2-9")


def smaller(lab: Lab) -> int:
    """Return by how much the model, its chunks, and times between changes and looks are smaller."""
    return 10 if lab.emulate and lab.quick else 1


def at_scale(lab: Lab, system: System) -> System:
    """Return a system with chunks, and pauses between looks at plans, of that size."""
    by = smaller(lab)
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
    return tuple(range(lab.seed, lab.seed + (1 if lab.quick or lab.emulate else 3)))


def window_s(lab: Lab) -> float:
    """Return how long each system runs on a dynamic network, seconds.

    Emulation takes that long in truth, and so gets less.
    """
    if lab.emulate:
        return redraw_s(lab) * (3 if lab.quick else 5)
    return redraw_s(lab) * (5 if lab.quick else 7)


def redraw_s(lab: Lab) -> float:
    """Return how long rates of a dynamic network stay, seconds."""
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
    """Return static networks of the same shape, each with rates of its own."""
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
    system = at_scale(lab, system)
    if task is None and smaller(lab) == 1:
        task = Exchange(profile="alexnet")
    elif task is None:
        task = Exchange(elements=ALEXNET.elements // smaller(lab))
    scenario = Scenario(
        overlay="",
        route=system.route,
        task=task,
        stop=stop,
        awareness=system.awareness,
        auxiliary=system.auxiliary,
        chunk_elements=system.chunk_elements,
        seed=lab.seed,
        sample_every_s=60.0,  # nobody looks at what links carried
    )
    return Trial({**labels, "system": system.name}, scenario, overlay)


def static_trials(lab: Lab, systems: Iterable[System], **labels: Label) -> list[Trial]:
    """Return a run of some rounds of each system on the network at its first draw."""
    stop = Stop(rounds=3 if lab.quick or lab.emulate else 10)
    about = {**labels, "network": "static"}
    return [trial(lab, system, reference(), stop, about) for system in systems]


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


def faster(outcomes: Sequence[Outcome], system: System, than: System, network: str) -> float:
    """Return how many rounds a system makes in the time the other makes one."""
    return seconds(outcomes, network=network, system=than.name) / seconds(
        outcomes, network=network, system=system.name
    )


def faster_by_draw(
    lab: Lab, outcomes: Sequence[Outcome], system: System, than: System
) -> list[float]:
    """Return the same for each dynamic network."""
    return [
        faster(
            [each for each in outcomes if each.labels.get("draw") == seed], system, than, "dynamic"
        )
        for seed in draws(lab)
    ]


def times(ratio: float) -> str:
    """Write a speed-up.

    >>> times(3.684)
    '3.7x'
    """
    return f"{ratio:.1f}x"


def gain(ratio: float) -> str:
    """Write a speed-up as what it adds.

    >>> gain(1.7), gain(0.96)
    ('+70 %', '-4 %')
    """
    return f"{100 * (ratio - 1):+.0f} %"


def dynamics_note(lab: Lab) -> str:
    """Say how the dynamic figures were made."""
    by = smaller(lab)
    small = f" Chunks are {1 / by:g} of what rows say." if by > 1 else ""
    return (
        f"Dynamic: {len(draws(lab))} drawn networks (seeds {listed(draws(lab))}) of "
        f"{window_s(lab):g} s, new rates every {redraw_s(lab):g} s; figures are of all rounds "
        f"together. The model has {ALEXNET.elements // by:,} parameters.{small}"
    )


def listed(values: Iterable[object]) -> str:
    """Write values one after the other."""
    return ", ".join(map(str, values))
