"""R²SP, Fig. 1 and 3: the traffic of the servers' ports under BSP, and under R²SP."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import msgspec

from anabranch.log import LinkBytes
from anabranch.pace import AnyPace
from papers._experiment import Experiment
from papers._lab import Lab, events_of
from papers._picture import picture
from papers._result import Result, Row
from papers.r2sp import _setting as setting
from papers.r2sp._setting import FITTED_BPS, PACES, SERVERS_1, VGG16, WORKERS_1, Model

_BIN_S = 0.1  # as in the paper
_LASTS_S = 40.0  # likewise
_MOMENTS = 100  # of a picture, over the first half
_IDLE = 0.02  # of a port's rate: less than that is idle
_ALONE = (1, 2)  # the workers that the paper draws
_WAYS = ("downlink", "uplink")


@dataclass(frozen=True, slots=True)
class Watch:
    """A run to watch.

    Args:
        model: whose size and times it has.
        pace: when workers may proceed.
        port_bps: of servers and workers, bit/s.
        workers, servers: how many.
        from_s: when watching begins; it lasts 40 s.
    """

    model: Model
    pace: AnyPace
    port_bps: float
    workers: int
    servers: int
    from_s: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """The traffic of the first server's port.

    Args:
        idle: the share of time in which its downlink and its uplink carried nothing.
        share: of the port, that a worker has while it pushes, and while it pulls.
        traces: for each way, Gbit/s at even moments: (seconds, all, worker 1, worker 2).
    """

    idle: tuple[float, float]
    share: tuple[float, float]
    traces: tuple[tuple[tuple[float, float, float, float], ...], ...]


def watch(job: Watch, data_dir: Path | None = None) -> Traffic:
    """Simulate a run, and return the traffic of its first server's port."""
    overlay = setting.cluster(job.port_bps, job.workers, job.servers)
    updates = round(2 * (job.from_s + _LASTS_S) / job.model.iteration_s) + 8
    made = setting.trial(job.model, job.pace, updates, overlay, jitter=None).scenario
    small = -(-setting.CHUNK_ELEMENTS // 4)  # a chunk counts when a link is given it
    scenario = msgspec.structs.replace(made, sample_every_s=_BIN_S, chunk_elements=small)
    events = events_of(scenario, overlay, data_dir)
    found = [event for event in events if isinstance(event, LinkBytes)]
    bins = round(_LASTS_S / _BIN_S)
    # Of each way and worker, the bits of each bin.
    carried: dict[tuple[str, int], list[float]] = defaultdict(lambda: [0.0] * bins)
    for event in found:
        number = round((event.at_s - job.from_s) / _BIN_S) - 1
        if not 0 <= number < bins or 0 not in (event.source, event.target):
            continue
        way, site = ("downlink", event.source) if event.target == 0 else ("uplink", event.target)
        carried[way, site - job.servers + 1][number] += 8 * event.payload_bytes
    workers = range(1, job.workers + 1)
    idle, share, traces = [], [], []
    for way in _WAYS:
        of_each = [[bits / _BIN_S for bits in carried[way, worker]] for worker in workers]
        all_bps = [sum(rates) for rates in zip(*of_each, strict=True)]
        idle.append(fmean(rate <= _IDLE * job.port_bps for rate in all_bps))
        busy = [rate for rates in of_each for rate in rates if rate > _IDLE * job.port_bps / 8]
        share.append(fmean(busy) / job.port_bps if busy else 0.0)
        drawn = [all_bps, *(of_each[worker - 1] for worker in _ALONE)]
        traces.append(_thinned(drawn))
    return Traffic((idle[0], idle[1]), (share[0], share[1]), tuple(traces))


def _thinned(rates_bps: Sequence[Sequence[float]]) -> tuple[tuple[float, float, float, float], ...]:
    """Return the first half of traces at fewer moments, Gbit/s."""
    bins = len(rates_bps[0]) // 2
    each = bins // _MOMENTS
    return tuple(
        (
            round((first + each) * _BIN_S, 2),
            *(round(fmean(of[first : first + each]) / 1e9, 3) for of in rates_bps),
        )  # type: ignore[misc]
        for first in range(0, bins - each + 1, each)
    )


def _make(lab: Lab) -> Result:
    job = Watch(VGG16, PACES["BSP"], FITTED_BPS, WORKERS_1, SERVERS_1, from_s=40.0)
    jobs = [job, replace(job, pace=PACES["R²SP"])]
    three = replace(job, workers=3, servers=1)
    jobs += [three, replace(three, pace=PACES["R²SP"])]
    if lab.quick:
        jobs = jobs[2:]
    found = dict(zip(jobs, lab.map(watch, jobs, Traffic), strict=True))
    rows, panels = [], {}
    for bsp, turns in zip(jobs[::2], jobs[1::2], strict=True):
        where = f"VGG16, {bsp.workers} workers"
        is_papers = bsp.workers == WORKERS_1
        for k, way in enumerate(_WAYS):
            rows.append(
                Row(
                    f"{where}: share of time in which the {way} is idle, BSP and R²SP",
                    "BSP: more than 50 %" if is_papers else "",
                    f"BSP {found[bsp].idle[k]:.0%}, R²SP {found[turns].idle[k]:.0%}",
                    seeds="no jitter",
                )
            )
            rows.append(
                Row(
                    f"{where}: a worker's share of the {way} while it uses it, BSP and R²SP",
                    f"BSP: 1/{bsp.workers}"
                    + ("" if is_papers else "; R²SP: half or more (Fig. 3)"),
                    f"BSP {found[bsp].share[k]:.2f}, R²SP {found[turns].share[k]:.2f}",
                    seeds="no jitter",
                )
            )
            for name, seen in (("BSP", found[bsp]), ("R²SP", found[turns])):
                lines = {"all": 1, **{f"worker {worker}": worker + 1 for worker in _ALONE}}
                panels[f"{bsp.workers} workers, {name}: {way} of a server"] = {
                    line: [(point[0], point[at]) for point in seen.traces[k]]
                    for line, at in lines.items()
                }
    note = (
        f"Ports of {FITTED_BPS / 1e9:.1f} Gbit/s, which explain Table I. Rates over {_BIN_S:g} s, "
        f"as in the paper, of one server's port in {_LASTS_S:g} s; a link that carries less than "
        f"{_IDLE:.0%} of its port is idle. Bytes count when a link is given them."
    )
    drawn = {name: panels[name] for name in panels if name.startswith(f"{jobs[0].workers} ")}
    return Result(tuple(rows), (note,), picture("seconds", "Gbit/s", drawn))


EXPERIMENTS = (
    Experiment("r2sp/fig01", "the traffic of a server's port under BSP and R²SP", _make),
)
