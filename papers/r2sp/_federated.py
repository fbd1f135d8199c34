"""The common setting of R²SP's federated figures (VI-B): 128 clients, one server, measurements.

A client computes 100 local steps with jitter of 5 %. They take the time that is left of Table IV's
rounds under BSP without Table V's pushes and pulls. Then the client waits for the log-normal delay
that the paper injects (0.22 s on average). BSP is Algorithm 2 with one group, as the paper
describes it, so it has the same fraction C. FL-R²SP is literal: a group waits for its fraction.

**Three servers.** The paper's server has a port of 10 Gbit/s, and its clients have less than
100 Mbit/s. The paper's times are far longer than these rates explain (Table II). So there are two
more servers, whose program is the shared bottleneck, not their port. One has the rates of Table II,
and one those of Table V, whose pulls take seven times as long as Table II's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev

from anabranch.fleet import Compute, Lognormal
from anabranch.log import WorkerWent
from anabranch.log.pacing import Iteration, summarise_pace
from anabranch.overlay import Link, Overlay, Site
from anabranch.pace import FlR2sp
from anabranch.period import Every
from anabranch.plan import Star
from anabranch_lab.run.scenario import Scenario, Serve, Stop
from anabranch_lab.run.scenario.tasks import Exchange
from papers._compare import known
from papers._lab import events_of
from papers.r2sp import _setting as setting

CLIENTS, GROUPS, FRACTION, STEPS = 128, 8, 0.75, 100
SERVER = "server"
_SAMPLES = 32  # of a step, whose time is given
ROUNDS = 10
_SETTLED = 3  # a client's first rounds do not count, since all clients begin at once
_BIN_S = 0.1  # of the server's uplink
_MOMENTS = 100  # of a picture
SEEDS = 8
DELAY = Lognormal(mu=-2.0, sigma=1.0)
COMMON_NOTE = (
    f"{CLIENTS} clients, {ROUNDS} rounds of each, of which the first {_SETTLED} do not count. "
    "Simulated with sizes alone. A client's push is told without the delay that the paper injects "
    "before it."
)
NOTE = f"{COMMON_NOTE} C is {FRACTION:g}."


@dataclass(frozen=True, slots=True)
class Model:
    """A model, and the paper's values for it: pairs of BSP and FL-R²SP.

    Args:
        name: the paper's.
        elements: its parameters; the paper does not state those of CNN and LSTM, see `table2`.
        round_s, push_s, pull_s: of Tables IV and V, seconds.
        converged_s: when training had converged, of Table IV, seconds.
    """

    name: str
    elements: int
    round_s: tuple[float, float]
    push_s: tuple[float, float]
    pull_s: tuple[float, float]
    converged_s: tuple[float, float]

    @property
    def compute_s(self) -> float:
        """How long a client computes in a round, by BSP's row, without the injected delay."""
        return round(self.round_s[0] - self.push_s[0] - self.pull_s[0], 6)


CNN = Model("CNN", 62_006, (10.69, 8.31), (0.38, 0.34), (2.73, 0.38), (4098.81, 3181.55))
LSTM = Model("LSTM", 62_006, (9.41, 8.17), (0.36, 0.34), (2.12, 0.36), (2695.38, 2319.89))
RESNET20 = Model(
    "ResNet20", 269_722, (44.90, 36.75), (1.19, 0.47), (13.28, 1.50), (9172.85, 8158.34)
)
MODELS = (CNN, LSTM, RESNET20)


@dataclass(frozen=True, slots=True)
class Server:
    """The rates of the server and its clients, bit/s.

    Args:
        name: for rows.
        up_bps, down_bps: of the server, for all clients together.
        client_bps: of one client, each way.
    """

    name: str
    up_bps: float
    down_bps: float
    client_bps: float


_ALONE_BPS = 2 * 32 * RESNET20.elements / 0.13  # Table II: one client has the server alone
_TABLE_2_BPS = CLIENTS * 2 * 32 * RESNET20.elements / 1.98
# Table V: the clients that Algorithm 2 lets pull at once all finish in one's average pull time.
_TABLE_5_BPS = FRACTION * CLIENTS * 32 * RESNET20.elements / RESNET20.pull_s[0]
PORT = Server("port of 10 Gbit/s", 10e9, 10e9, 100e6)
PROGRAM_2 = Server("program as in Table II", _TABLE_2_BPS, _TABLE_2_BPS, _ALONE_BPS)
PROGRAM_5 = Server("program as in Table V", _TABLE_5_BPS, _TABLE_2_BPS, _ALONE_BPS)
SERVERS = (PORT, PROGRAM_2, PROGRAM_5)


def fleet(server: Server, clients: int = CLIENTS) -> Overlay:
    """Return a server and its clients."""
    own = Site(SERVER, uplink_bps=server.up_bps, downlink_bps=server.down_bps)
    sites = [own, *(Site(f"client-{number:04}") for number in range(1, clients + 1))]
    links = (
        Link(*way, server.client_bps, latency_s=1e-3)
        for client in range(1, clients + 1)
        for way in ((0, client), (client, 0))
    )
    name = f"{clients}-clients-{server.up_bps:.4g}-{server.client_bps:.4g}"
    return Overlay(name, tuple(sites), tuple(links))


def pace(groups: int, fraction: float = FRACTION) -> FlR2sp:
    """Return Algorithm 2's pace, literally; one group has no turns to wait for, so it is BSP."""
    relaxation = 1.0 if groups > 1 else 0.0
    return FlR2sp(groups=groups, fraction=fraction, relaxation=relaxation, late_after="never")


def ours(groups: int) -> FlR2sp:
    """Return FL-R²SP as we would run it.

    Groups bring as many updates a second, the group that is ready first has its turn, updates count
    until then, and no group is waited for longer than three of its rounds.
    """
    return FlR2sp(groups=groups, fraction=FRACTION, collects="turn", grouping="load", order="ready")


@dataclass(frozen=True, slots=True)
class Case:
    """A run.

    Args:
        model, server: the model and the server.
        under: the pace.
        clients: how many.
        seed: of jitter and delays.
    """

    model: Model
    server: Server
    under: FlR2sp
    clients: int = CLIENTS
    seed: int = 0

    def scenario(self, rounds: int = ROUNDS) -> Scenario:
        """Return the scenario to simulate."""
        samples = STEPS * _SAMPLES
        return Scenario(
            overlay=fleet(self.server, self.clients).name,
            route=Star(hub=SERVER),
            pace=self.under,
            period=Every(steps=STEPS),
            serve=Serve(only=(SERVER,), mixes="models"),
            stop=Stop(rounds=rounds),
            compute=Compute(
                samples_per_s=samples / self.model.compute_s,
                jitter=setting.JITTER,
                added_delay=DELAY,
            ),
            task=Exchange(elements=self.model.elements, batch_size=_SAMPLES),
            chunk_elements=self.model.elements,
            sample_every_s=1e6,
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True)
class Seen:
    """The outcome of a run: means over clients and their rounds, seconds.

    Args:
        round_s: from one permission to the next.
        push_s, pull_s: of an update, and of the model.
        wait_s: for the aggregation.
        gap_s, gap_off: between the moments at which groups got permission: the mean, and the
            deviation as a part of it.
        peak_bps: of the server's uplink, over 0.1 s.
        phases: how many clients train, push, wait and pull, at even moments of two rounds; empty
            unless it was drawn.
        uplink: the rate of the server's uplink in that time, Mbit/s, likewise.
    """

    round_s: float
    push_s: float
    pull_s: float
    wait_s: float
    gap_s: float
    gap_off: float
    peak_bps: float
    phases: tuple[tuple[float, int, int, int, int], ...] = ()
    uplink: tuple[tuple[float, float], ...] = ()


def observe(case: Case, data_dir: Path | None = None, draws: bool = False) -> Seen:
    """Simulate a run, and measure it; with ``draws``, for a picture too."""
    overlay = fleet(case.server, case.clients)
    events = [*events_of(case.scenario(), overlay, data_dir)]
    summary = summarise_pace(events)
    assert summary is not None
    of_each = {
        client: [each for each in series[_SETTLED:] if each.next_s is not None]
        for client, series in summary.iterations.items()
    }
    whole = [each for series in of_each.values() for each in series]
    went: defaultdict[float, int] = defaultdict(int)
    for event in events:
        if isinstance(event, WorkerWent) and event.update > _SETTLED:
            went[event.at_s] += 1
    turns = sorted(at_s for at_s, together in went.items() if together > 1)
    gaps_s = [after - before for before, after in pairwise(turns)]
    round_s = fmean(known(each.next_s, "the end of a round") - each.went_s for each in whole)
    carried = _carried_bps(case, whole)
    seen = Seen(
        round_s,
        fmean(each.push_s for each in whole),
        fmean(each.pull_s for each in whole),
        fmean(each.blocked_s for each in whole),
        fmean(gaps_s),
        pstdev(gaps_s) / fmean(gaps_s),
        min(case.server.up_bps, max(carried.values())),
    )
    if not draws:
        return seen
    # From when all clients have settled, for two rounds.
    begins_s = max(series[0].went_s for series in of_each.values() if series)
    moments = [begins_s + 2 * round_s * k / _MOMENTS for k in range(_MOMENTS)]
    phases = tuple((round(at_s - begins_s, 2), *_phases(whole, at_s)) for at_s in moments)
    uplink = tuple(
        (round(a - begins_s, 2), round(_mean_bps(case, carried, a, b) / 1e6, 2))
        for a, b in pairwise(moments)
    )
    return replace(seen, phases=phases, uplink=uplink)


def _carried_bps(case: Case, whole: Sequence[Iteration]) -> dict[int, float]:
    """Return the rate of the server's uplink in each 0.1 s, bit/s; a pull counts as even."""
    carried: defaultdict[int, float] = defaultdict(float)
    for each in whole:
        if each.pull_s <= 0:
            continue
        begins_s, ends_s = each.went_s, each.went_s + each.pull_s
        for number in range(int(begins_s / _BIN_S), int(ends_s / _BIN_S) + 1):
            here_s = min(ends_s, (number + 1) * _BIN_S) - max(begins_s, number * _BIN_S)
            bits = 32 * case.model.elements * max(0.0, here_s) / each.pull_s
            carried[number] += bits / _BIN_S
    return carried


def _mean_bps(case: Case, carried: Mapping[int, float], from_s: float, until_s: float) -> float:
    """Return the mean rate of the uplink in an interval, bit/s; at most the server's."""
    bins = range(int(from_s / _BIN_S), max(int(until_s / _BIN_S), int(from_s / _BIN_S) + 1))
    return min(case.server.up_bps, fmean(carried.get(number, 0.0) for number in bins))


def _phases(whole: Sequence[Iteration], at_s: float) -> tuple[int, int, int, int]:
    """Return how many clients train, push, wait and pull at a moment."""
    train = push = wait = pull = 0
    for each in whole:
        if not each.went_s <= at_s < (each.next_s or each.went_s):
            continue
        if at_s < each.went_s + each.pull_s:
            pull += 1
        elif at_s < each.asked_s:
            train += 1
        elif at_s < each.came_s:
            push += 1
        else:
            wait += 1
    return train, push, wait, pull
