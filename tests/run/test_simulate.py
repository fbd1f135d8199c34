"""Whole simulated runs: how long they take, how they end, and that they are the same every time."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import TypeVar

import msgspec
import pytest

from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.log import (
    Evaluated,
    Event,
    FaultInjected,
    LabelsHeld,
    LinkBytes,
    RoundDone,
    RunEnded,
    RunStarted,
    SiteLost,
    SiteResumed,
    StepDone,
    UnknownEvent,
    fingerprint,
    read_events,
    summarise,
)
from anabranch.net.errors import RunAborted
from anabranch.net.frames import encode_frame
from anabranch.net.messages import Hello, PartialSum, Result
from anabranch.overlay import Link, Overlay, Site, Trace, dumps, internet2_9, redraw
from anabranch_lab.run.scenario import Scenario, ScenarioError, Simulation, load, loads
from anabranch_lab.run.simulate import simulate
from anabranch_lab.tasks.kinds import load_task
from anabranch_lab.tasks.partition import Dirichlet

from ..plan.networks import build, random_overlay
from ..plan.reference_schedule import round_s

E = TypeVar("E", bound=Event)

ROUTES = {
    "star": 'kind = "star"',
    "balanced": 'kind = "balanced"',
    "balanced-3": 'kind = "balanced"\narity = 3',
    "mst": 'kind = "mst"',
    "fapt-1": 'kind = "fapt"\nroots = 1',
    "fapt-all": 'kind = "fapt"',
    "ring": 'kind = "ring"',
}
DIGITS = (
    'kind = "train"\ndata = "digits"\nmodel = "softmax"\nlearning_rate = 0.5\nbatch_size = 32\n'
    "evaluate_every = 2"
)
MB_S = 8e6  # bit/s
LATENCY_S = 0.1
ELEMENTS = 25_000  # 0.1 s at 1 MB/s
# Three sites, all joined alike; in star runs "a" is the hub.
TRIANGLE = Overlay(
    "triangle",
    tuple(Site(name) for name in "abc"),
    tuple(Link(i, j, MB_S, LATENCY_S) for i in range(3) for j in range(3) if i != j),
)
PAIR = Overlay("pair", TRIANGLE.sites[:2], TRIANGLE.links[:1] + TRIANGLE.links[2:3])


def scenario(
    *tables: str,
    route: str = 'kind = "star"\nhub = "a"',
    task: str = f'kind = "exchange"\nelements = {ELEMENTS}',
    rounds: int = 3,
    top: str = "",
) -> Scenario:
    """Return a scenario; ``top`` are keys, ``tables`` whole tables of TOML.

    Its scheduler is next to each site, unless a table says how far that is.
    """
    parts = [
        f'overlay = "given elsewhere"\nstop.rounds = {rounds}\n{top}\n[route]\n{route}',
        f"[task]\n{task}",
        *tables,
    ]
    return loads("\n".join(parts)).beside_its_scheduler()


class Run:
    """A finished run's log."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.events: list[Event] = []
        for _, event in read_events(log):
            assert not isinstance(event, UnknownEvent)
            self.events.append(event)
        assert [type(event) for event in self.events].index(RunEnded) == len(self.events) - 1

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def ends_s(self) -> list[float]:
        """When the last site had each round's result."""
        last: dict[int, float] = {}
        for done in self.of(RoundDone):
            last[done.round] = done.at_s
        return [last[round] for round in sorted(last)]

    @property
    def rounds_s(self) -> list[float]:
        """How long each round but the first took, from end to end."""
        return [end_s - before_s for before_s, end_s in pairwise(self.ends_s)]

    @property
    def end(self) -> RunEnded:
        assert isinstance(self.events[-1], RunEnded)
        return self.events[-1]


Simulate = Callable[..., Run]


@pytest.fixture
def run(tmp_path: Path) -> Simulate:
    numbers = iter(range(100))

    def simulate_it(scenario: Scenario, overlay: Overlay = TRIANGLE, aborted: str = "") -> Run:
        """Simulate; ``aborted`` is what the error that ends it must match."""
        log = tmp_path / f"{next(numbers)}.db"
        if aborted:
            with pytest.raises(RunAborted, match=aborted):
                simulate(scenario, overlay, log)
        else:
            simulate(scenario, overlay, log)
        return Run(log)

    return simulate_it


_CODE = Terms(Op.MEAN, Wire.SIZES, ELEMENTS).code
# The frames of a star's round that has one chunk; every round up to 127 has the same.
_UP = encode_frame(PartialSum(1, 1, 0, (1, 0), _CODE), 4 * ELEMENTS)
_DOWN = encode_frame(Result(1, 1, 0, (0, 1), _CODE), 4 * ELEMENTS)
UP_S = 8 * (len(_UP) + 4 * ELEMENTS) / MB_S
DOWN_S = 8 * (len(_DOWN) + 4 * ELEMENTS) / MB_S
HELLO_S = 8 * len(encode_frame(Hello(bytes(16), 1, 0))) / MB_S  # on each lane, once
STAR_S = UP_S + LATENCY_S + DOWN_S + LATENCY_S
ALMOST = 1e-9  # relative: what adding up many floats may cost


# --- how long a round takes -----------------------------------------------------------------------


def compare_with_reference(
    run: Simulate,
    route: str,
    overlay: Overlay,
    elements: int,
    chunk_elements: int,
    rel: float = 1e-4,
) -> None:
    """Check that a round takes as long as the schedule that plans' predictions describe.

    The schedule knows no headers. With these chunks they are less than 1e-4 of all bytes, Hellos
    included. (Where two messages are ready within a header of each other, which comes first could
    make more of a difference; rates drawn at random and a latency keep them apart.)
    """
    task = f'kind = "exchange"\nelements = {elements}'
    top = f'chunk_elements = {chunk_elements}\ndeal = {{kind = "by-share"}}'
    given = scenario(route=route, task=task, rounds=1, top=top)
    plan = given.routes[0].plan(overlay)
    expected_s = round_s(plan, overlay, elements, chunk_elements)
    [end_s] = run(given, overlay).ends_s
    assert end_s == pytest.approx(expected_s, rel=rel)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("route", ROUTES)
def test_a_round_over_a_complete_overlay_takes_what_the_reference_schedule_says(
    route: str, seed: int, run: Simulate
) -> None:
    overlay = random_overlay(3 + 2 * seed, seed, latency_s=0.03)
    elements, chunk_elements = [(3_000_000, 1 << 18), (20_000_000, 777_777)][seed % 2]
    compare_with_reference(run, ROUTES[route], overlay, elements, chunk_elements)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("route", ["mst", "fapt-1", "fapt-all"])
def test_so_does_a_round_over_the_links_of_a_sparse_one(
    route: str, seed: int, run: Simulate
) -> None:
    overlay = random_overlay(4 + 2 * seed, seed, density=0.3, one_way=0.5, latency_s=0.5)
    compare_with_reference(run, ROUTES[route], overlay, 10_000_000, 1 << 18)


@pytest.mark.parametrize("latency_s", [0.0, 0.03, 0.5])
@pytest.mark.parametrize(("count", "rel"), [(3, 1e-4), (5, 1e-2)])
def test_so_does_a_round_with_relays(
    count: int, rel: float, latency_s: float, run: Simulate
) -> None:
    # All sums go along the chain to site 1. Chunks of one number wait at a relay in the same order
    # in both: the near site's before the far one's. But where one route leads through several
    # relays, a chunk that lacks credit lets others go first, of which the schedule knows nothing.
    rates = [61e6, 48e6, 112e6, 25e6][: count - 1]
    links = [(i, i + 1, rate) for i, rate in enumerate(rates)]
    links += [(j, i, 1.3 * rate) for i, j, rate in links]
    overlay = build(count, links, latency_s=latency_s)
    compare_with_reference(run, 'kind = "star"\nhub = "1"', overlay, 10_000_000, 1 << 18, rel)


def test_so_does_a_round_through_capped_ports(run: Simulate) -> None:
    overlay = random_overlay(5, 26, symmetric=True, latency_s=0.01, ports=0.5)
    compare_with_reference(run, ROUTES["fapt-all"], overlay, 1 << 20, 777_777)


@pytest.mark.parametrize(
    "route", ['kind = "star"\nhub = "dc4"', 'kind = "star"\nhub = "dc1"', 'kind = "balanced"']
)
def test_with_relays_no_round_is_slower_for_those_that_follow_it_or_went_before(
    route: str, run: Simulate
) -> None:
    # Sites that are ahead send chunks of the next round to be relayed. What a site only passes on
    # keeps it from ending no round, neither the first nor a later one.
    task = 'kind = "exchange"\nelements = 4_000_000'
    [alone_s] = run(scenario(route=route, task=task, rounds=1), internet2_9()).ends_s
    done = run(scenario(route=route, task=task, rounds=4), internet2_9())
    # What is of a later round yields to what is of an earlier one; but what is leaving goes on.
    assert done.ends_s[0] == pytest.approx(alone_s, rel=1e-3)
    assert len(done.rounds_s) == 3
    assert max(done.rounds_s) <= done.ends_s[0]
    assert max(each.seconds for each in done.of(RoundDone)) <= done.ends_s[0]


def test_a_star_takes_a_sum_and_a_mean_and_two_latencies(run: Simulate) -> None:
    done = run(scenario(rounds=20))
    assert done.ends_s[0] == pytest.approx(HELLO_S + STAR_S, rel=ALMOST)
    assert done.rounds_s == pytest.approx([STAR_S] * 19, rel=ALMOST)
    # The hub has the last mean as soon as the last sum is in, and has done its part when all means
    # have left.
    reported = [each.seconds for each in done.of(RoundDone) if each.round == 1 and each.site]
    assert reported == pytest.approx([HELLO_S + STAR_S] * 2, rel=ALMOST)
    [hub_s] = [each.seconds for each in done.of(RoundDone) if each.round == 1 and not each.site]
    assert hub_s == pytest.approx(HELLO_S + STAR_S - LATENCY_S, rel=ALMOST)
    assert done.end == RunEnded(at_s=done.ends_s[-1], error=None)


def test_the_scheduler_far_away_costs_a_round_trip_a_round(run: Simulate) -> None:
    control_s = 0.7
    tables = f"[simulation]\ncontrol_latency_s = {control_s}"
    near, far = run(scenario()), run(scenario(tables))
    assert far.rounds_s == pytest.approx([STAR_S + 2 * control_s] * 2, rel=ALMOST)
    # The first also waits for the word to start, and the scheduler hears of every end later.
    expected_s = near.ends_s[0] + control_s + 2 * control_s + control_s
    assert far.ends_s[0] == pytest.approx(expected_s, rel=ALMOST)
    # Then each site says that it leaves, as soon as it has its result.
    assert far.end.at_s == far.ends_s[-1]


def test_a_scheduler_is_as_far_as_sites_are_apart_unless_a_scenario_says_how_far(
    run: Simulate,
) -> None:
    unsaid = msgspec.structs.replace(scenario(), simulation=Simulation())
    each_s = (1.0, 2.0, 3.0, 3.0, 9.0, 8.0)
    given = zip(TRIANGLE.links, each_s, strict=True)
    links = tuple(replace(link, latency_s=latency_s) for link, latency_s in given)
    for latency_s, overlay in ((LATENCY_S, TRIANGLE), (3.0, replace(TRIANGLE, links=links))):
        said = scenario(f"[simulation]\ncontrol_latency_s = {latency_s}")
        assert run(unsaid, overlay).events[1:] == run(said, overlay).events[1:]


def test_one_site_without_links_has_its_scheduler_beside_it(run: Simulate) -> None:
    alone = scenario(top='on_loss = "complete"\nleast_sites = 1')
    unsaid = msgspec.structs.replace(alone, simulation=Simulation())
    done = run(unsaid, Overlay("one", (Site("a"),), ()))
    assert done.end.error is None
    assert len(done.rounds_s) == 2


def test_a_rate_trace_counts_from_the_start_of_the_run(run: Simulate) -> None:
    # Sites join and get ready one control latency after another; only then does the run start.
    slower_s = STAR_S + HELLO_S  # the moment at which round 1 ends
    trace = Trace((0.0, slower_s), (MB_S, MB_S / 2))
    links = tuple(replace(link, trace=trace) for link in TRIANGLE.links)
    control = "[simulation]\ncontrol_latency_s = 0.001"
    done = run(scenario(control), replace(TRIANGLE, links=links))
    expected_s = 2 * UP_S + 2 * DOWN_S + 2 * LATENCY_S + 0.002
    assert done.rounds_s == pytest.approx([expected_s] * 2, rel=ALMOST)
    assert done.ends_s[0] == pytest.approx(slower_s + 0.004, abs=0.005)


# --- what is computed -----------------------------------------------------------------------------


def test_with_real_numbers_every_exchange_gives_the_exact_mean(run: Simulate) -> None:
    real = '[simulation]\ntensors = "real"'
    overlay = random_overlay(6, 3, density=0.3, latency_s=0.01)
    for route in ROUTES.values():
        task = 'kind = "exchange"\nelements = 30_011'
        done = run(scenario(real, route=route, task=task, top="chunk_elements = 1000"), overlay)
        summary = summarise(done.events)  # the sites compare each element with the true mean
        assert summary.checked_rounds == 3
        assert summary.checksums_agree
        assert done.end.error is None


@pytest.mark.parametrize("route", ["star", "fapt-all"])
def test_without_numbers_it_all_takes_the_same_time_and_the_same_bytes(
    route: str, run: Simulate
) -> None:
    overlay = random_overlay(6, 3, density=0.3, latency_s=0.01, ports=0.5)
    overlay = redraw(overlay, period_s=1, low_bps=2e7, high_bps=2e8, duration_s=60, seed=1)
    drifting = tuple(replace(link, latency_drift_s=0.01) for link in overlay.links)
    overlay = replace(overlay, links=drifting)

    def events_with(tensors: str) -> list[Event]:
        compute = '[compute]\nsamples_per_s = 100.0\njitter = {kind = "lognormal", cv = 1.0}'
        fault = '[[fault]]\nkind = "pause"\nsite = "2"\nat_s = 1.0\nfor_s = 2.0'
        given = scenario(
            f'[simulation]\ntensors = "{tensors}"',
            compute,
            fault,
            route=ROUTES[route],
            task='kind = "exchange"\nelements = 500_000\nbatch_size = 10',
            rounds=4,
            top="chunk_elements = 30_000\nsample_every_s = 0.1",
        )
        return [
            msgspec.structs.replace(event, checksum=None) if isinstance(event, RoundDone) else event
            for event in run(given, overlay).events
        ]

    with_numbers, without = events_with("real"), events_with("sizes")
    assert with_numbers == without
    assert sum(isinstance(event, LinkBytes) for event in without) > 50


def test_every_byte_of_a_star_is_on_its_link_s_account(run: Simulate) -> None:
    carried = summarise(run(scenario()).events).link_bytes
    spokes = [(1, 0), (2, 0), (0, 1), (0, 2)]
    assert carried == dict.fromkeys(spokes, 3 * 4 * ELEMENTS)


def test_training_learns_and_all_sites_hold_one_model(run: Simulate) -> None:
    compute = "[compute]\nsamples_per_s = 320.0"
    done = run(scenario(compute, task=DIGITS, rounds=20))
    summary = summarise(done.events)
    assert summary.best_accuracy is not None
    assert summary.best_accuracy > 0.85
    assert summary.checked_rounds == 20
    assert summary.checksums_agree
    assert [each.round for each in done.of(Evaluated)] == list(range(2, 21, 2))
    losses = [each.loss for each in done.of(StepDone) if each.site == 0]
    assert losses[-1] < losses[0] / 3
    computed_s = [each.compute_s for each in done.of(StepDone)]
    assert computed_s == pytest.approx([0.1] * 60, rel=ALMOST)


def test_a_log_knows_who_holds_which_labels_and_how_good_the_model_is_for_each(
    run: Simulate,
) -> None:
    compute = "[compute]\nsamples_per_s = 320.0"
    skewed = f"{DIGITS}\npartition = {{ kind = 'dirichlet', alpha = 0.3 }}"
    done = run(scenario(compute, task=skewed, rounds=4))
    held = {each.site: each.samples for each in done.of(LabelsHeld)}
    data = load_task("digits")
    shards = Dirichlet(alpha=0.3).deal(data.train_labels.numpy(), 3, seed=0, least=32)
    assert held == {
        site: data.train_labels[shard].bincount(minlength=10).tolist()
        for site, shard in enumerate(shards)
    }
    there = data.held_out_labels.bincount(minlength=10).tolist()
    for seen in done.of(Evaluated):
        assert seen.by_class is not None
        right = sum(count * (each or 0.0) for count, each in zip(there, seen.by_class, strict=True))
        assert right / sum(there) == pytest.approx(seen.accuracy, rel=1e-12)
    assert set(summarise(done.events).site_accuracy) == {0, 1, 2}


def test_training_without_numbers_takes_the_same_time(run: Simulate) -> None:
    compute = "[compute]\nsamples_per_s = 320.0"
    real = run(scenario(compute, task=DIGITS, rounds=4))
    sizes = run(scenario(compute, '[simulation]\ntensors = "sizes"', task=DIGITS, rounds=4))
    assert sizes.ends_s == real.ends_s
    assert sizes.of(Evaluated) == sizes.of(LabelsHeld) == []
    assert {each.loss for each in sizes.of(StepDone)} == {None}
    buffers = [each.of(RunStarted)[0].buffer_bytes for each in (real, sizes)]
    assert buffers[0] == buffers[1] == 4 * (64 + 1) * 10


def test_training_without_a_word_on_computing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="a simulation cannot tell how long a step takes"):
        simulate(scenario(task=DIGITS), TRIANGLE, tmp_path / "run.db")
    assert not (tmp_path / "run.db").exists()


# --- when it stops --------------------------------------------------------------------------------


def rounds_of_sites(done: Run) -> list[list[int]]:
    return [[each.round for each in done.of(RoundDone) if each.site == s] for s in range(3)]


def test_a_run_stops_at_its_target_and_every_site_after_the_same_round(run: Simulate) -> None:
    compute = "[compute]\nsamples_per_s = 320.0"
    task = f"{DIGITS}\ntarget_accuracy = 0.7"
    done = run(scenario(compute, task=task, rounds=500, top="stop.at_target = true"))
    seen = done.of(Evaluated)
    reached = next(each.round for each in seen if each.accuracy >= 0.7)
    assert reached > 1
    assert done.end.error is None
    assert done.end.reason == f"accuracy 0.7 was reached after round {reached}"
    rounds = rounds_of_sites(done)
    assert rounds[0] == rounds[1] == rounds[2]
    # A round that somebody has asked for by then is finished.
    assert rounds[0][-1] in (reached, reached + 1)
    assert seen[-1].round == rounds[0][-1]


def test_with_a_window_a_run_stops_where_the_mean_of_its_evaluations_is_at_the_target(
    run: Simulate,
) -> None:
    compute, task = "[compute]\nsamples_per_s = 320.0", f"{DIGITS}\ntarget_accuracy = 0.7"
    window_s = 2.0
    top = f"stop.at_target = true\nstop.window_s = {window_s}"
    done = run(scenario(compute, task=task, rounds=500, top=top))
    seen = done.of(Evaluated)

    def mean(number: int) -> float:
        now_s = seen[number].at_s
        return fmean(each.accuracy for each in seen[: number + 1] if each.at_s > now_s - window_s)

    reached = next(number for number in range(len(seen)) if mean(number) >= 0.7)
    assert any(each.accuracy >= 0.7 for each in seen[:reached])  # the window does matter
    assert done.end.reason == f"accuracy 0.7 was reached after round {seen[reached].round}"
    summary = summarise(done.events)  # it dates a round by the scheduler's clock
    (point,) = [each for each in summary.accuracy if each.round == seen[reached].round]
    assert summary.time_to_accuracy_s(0.7) == point.at_s


def test_a_run_stops_when_its_time_is_over_and_finishes_the_round(run: Simulate) -> None:
    after_s = HELLO_S + 2.5 * STAR_S
    done = run(scenario(rounds=500, top=f"stop.after_s = {after_s}"))
    assert done.end.reason == f"{after_s:g} s are over"
    assert rounds_of_sites(done) == [[1, 2, 3]] * 3
    assert done.end.at_s == pytest.approx(HELLO_S + 3 * STAR_S, rel=ALMOST)


def test_a_run_that_does_all_its_rounds_in_time_gives_no_reason(run: Simulate) -> None:
    done = run(scenario(rounds=2, top="stop.after_s = 1000.0"))
    assert done.end.reason is None
    assert done.end.at_s < 2  # and does not wait for that time to come


def test_a_site_that_cannot_begin_ends_the_run_by_name_and_the_log_can_be_read(
    run: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*given: object) -> None:
        raise OSError("the data cannot be read")

    monkeypatch.setattr("anabranch_lab.run._site.make_work", unreadable)
    task = 'kind = "train"\nmodel = "mlp"\nlearning_rate = 0.1'
    compute = "[compute]\nsamples_per_s = 1.0"
    done = run(scenario(compute, task=task), aborted=r"site 0 \(a\) failed: .*cannot be read")
    assert "cannot be read" in str(done.end.error)
    assert done.of(RunStarted)[0].buffer_bytes == 0
    assert done.of(RoundDone) == []


def test_a_model_that_does_not_fit_the_data_is_told_before_the_run_begins(tmp_path: Path) -> None:
    task = 'kind = "train"\nmodel = "lenet-5"\nlearning_rate = 0.1'
    given = scenario("[compute]\nsamples_per_s = 1.0", task=task)
    with pytest.raises(ScenarioError, match=r"task.model: .*lenet-5.*12 x 12"):
        simulate(given, TRIANGLE, tmp_path / "run.db")
    assert not (tmp_path / "run.db").exists()


def test_an_interrupted_run_says_so_in_its_log(tmp_path: Path) -> None:
    def on_round(round: int, loss: float | None) -> None:
        if round == 3:
            signal.raise_signal(signal.SIGINT)

    log = tmp_path / "run.db"
    with pytest.raises(KeyboardInterrupt):
        simulate(scenario(rounds=500), TRIANGLE, log, on_round=on_round)
    done = Run(log)
    assert done.end.error == "the run was interrupted"
    assert {each.round for each in done.of(RoundDone)} <= {1, 2}


# --- computing ------------------------------------------------------------------------------------

BATCH = f'kind = "exchange"\nelements = {ELEMENTS}\nbatch_size = 100'


def compute(c: float = 100.0, extra: str = "") -> str:
    """Return computing where a step takes 1 s, at "c" 100 / c seconds."""
    return f"[compute]\nsamples_per_s = 100.0\n[compute.sites.c]\nsamples_per_s = {c}\n{extra}"


def test_a_round_begins_when_the_slowest_has_computed(run: Simulate) -> None:
    # "c" takes 5 s; by then the sum of "b" has been at the hub for long.
    done = run(scenario(compute(c=20.0), task=BATCH))
    assert done.ends_s[0] == pytest.approx(5.0 + HELLO_S + STAR_S, rel=ALMOST)
    assert done.rounds_s == pytest.approx([5.0 + STAR_S] * 2, rel=ALMOST)
    steps = {(each.site, each.round): each.compute_s for each in done.of(StepDone)}
    expected = {(site, round): [1.0, 1.0, 5.0][site] for site in range(3) for round in (1, 2, 3)}
    assert steps == pytest.approx(expected, rel=ALMOST)


@pytest.mark.parametrize("control_s", [0.0, 0.5])
def test_added_delays_and_slowdowns_count_as_computing(control_s: float, run: Simulate) -> None:
    # Four times slower from some moment of the second step on, counted from the run's beginning,
    # which is when sites have been heard to be ready.
    slower_s = 2.0 + 3 * control_s
    extra = 'added_delay = {kind = "constant", delay_s = 0.25}\n'
    extra += f"slowdowns = {{starts_s = [0.0, {slower_s}], factors = [1.0, 4.0]}}"
    control = f"[simulation]\ncontrol_latency_s = {control_s}"
    done = run(scenario(compute(extra=extra), control, task=BATCH))
    round_s = STAR_S + 2 * control_s
    fast_s = slower_s - (control_s + 1.25 + HELLO_S + round_s)  # of the second step
    assert 0 < fast_s < 1
    second_s = fast_s + 4 * (1 - fast_s) + 0.25
    assert [each.compute_s for each in done.of(StepDone) if each.site == 2] == pytest.approx(
        [1.25, second_s, 4.25], rel=ALMOST
    )
    # Later rounds' plans are asked for while the sites compute.
    assert done.rounds_s == pytest.approx([second_s + STAR_S, 4.25 + STAR_S], rel=ALMOST)


# --- faults ---------------------------------------------------------------------------------------


def fault(kind: str, **keys: object) -> str:
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    return "\n".join([f'[[fault]]\nkind = "{kind}"', *lines])


def faults_of(done: Run) -> list[tuple[float, str, str, bool]]:
    return [(each.at_s, each.fault, each.detail, each.over) for each in done.of(FaultInjected)]


def test_a_slow_site_holds_everybody_up_while_it_is_slow(run: Simulate) -> None:
    slow = fault("slow", site="c", factor=3.0, at_s=0.5, for_s=6.0)
    done = run(scenario(compute(), slow, task=BATCH))
    # From 0.5 s to 6.5 s two seconds' worth of work is done, as far as there is work to do.
    first_s = 0.5 + 3 * 0.5
    second_s = 3.0  # from about 2.4 s on: it just ends within
    assert faults_of(done) == [
        (0.5, "slow", "slow c 3x for 6 s", False),
        (6.5, "slow", "slow c 3x for 6 s", True),
    ]
    steps = [each.compute_s for each in done.of(StepDone) if each.site == 2]
    third_began_s = first_s + second_s + HELLO_S + 2 * STAR_S
    third_s = (6.5 - third_began_s) + (1 - (6.5 - third_began_s) / 3)
    assert steps == pytest.approx([first_s, second_s, third_s], rel=ALMOST)
    assert done.rounds_s == pytest.approx([second_s + STAR_S, third_s + STAR_S], rel=ALMOST)


def test_a_slow_link_takes_its_factor_longer_and_only_in_its_direction(run: Simulate) -> None:
    slow = fault("slow", link=["b", "a"], factor=4.0, round=2)
    done = run(scenario(slow))
    assert done.rounds_s == pytest.approx([STAR_S + 3 * UP_S] * 2, rel=ALMOST)
    pair = fault("slow", pair=["b", "a"], factor=4.0, round=2)
    done = run(scenario(pair))
    assert done.rounds_s == pytest.approx([STAR_S + 3 * UP_S + 3 * DOWN_S] * 2, rel=ALMOST)


def test_a_site_that_pauses_while_it_computes_is_later_by_the_pause(run: Simulate) -> None:
    calm = run(scenario(compute(), task=BATCH))
    paused = run(scenario(compute(), fault("pause", site="c", at_s=0.5, for_s=7.0), task=BATCH))
    assert paused.ends_s[0] == pytest.approx(calm.ends_s[0] + 7.0, rel=ALMOST)
    assert paused.rounds_s == pytest.approx(calm.rounds_s, rel=ALMOST)
    assert faults_of(paused) == [
        (0.5, "pause", "pause c for 7 s", False),
        (7.5, "pause", "pause c for 7 s", True),
    ]


def test_a_site_that_pauses_in_its_added_delay_goes_on_when_it_wakes(run: Simulate) -> None:
    delay = 'added_delay = {kind = "constant", delay_s = 0.5}'
    pause = fault("pause", site="c", at_s=1.2, for_s=3.0)  # nothing stretches a delay
    done = run(scenario(compute(extra=delay), pause, task=BATCH, rounds=1))
    assert [each.compute_s for each in done.of(StepDone) if each.site == 2] == [4.2]
    assert done.ends_s == pytest.approx([4.2 + HELLO_S + STAR_S], rel=ALMOST)


def test_a_hub_that_pauses_turns_round_when_it_wakes(run: Simulate) -> None:
    # Sums arrive at 0.2 s and find it asleep; what it then says takes the way down.
    done = run(scenario(fault("pause", site="a", at_s=0.15, for_s=3.0), rounds=1))
    assert done.ends_s == pytest.approx([3.15 + DOWN_S + LATENCY_S], rel=ALMOST)


def test_a_scheduler_that_pauses_answers_when_it_wakes_and_loses_no_site(run: Simulate) -> None:
    unplugged = fault("disconnect", site="c", at_s=1.5, for_s=0.5)
    pause = fault("pause", scheduler=True, at_s=1.6, for_s=3.0)
    completes = 'on_loss = "complete"'
    done = run(scenario(compute(), unplugged, pause, task=BATCH, top=completes))
    assert [lost.site for lost in done.of(SiteLost)] == []
    resumed = done.of(SiteResumed)[-1]  # each of its attempts is answered then, the last one too
    assert 4.6 <= resumed.at_s < 5.0


def test_overlapping_pauses_end_with_the_last(run: Simulate) -> None:
    one = fault("pause", site="c", at_s=0.25, for_s=2.0)
    other = fault("pause", site="c", at_s=0.75, for_s=4.0)
    calm = run(scenario(compute(), task=BATCH, rounds=1))
    done = run(scenario(compute(), one, other, task=BATCH, rounds=1))
    assert done.ends_s[0] == pytest.approx(calm.ends_s[0] + 4.5, rel=ALMOST)


def test_a_killed_site_ends_the_run_by_name(run: Simulate) -> None:
    named = r"site 1 \(b\) died in round 3"
    done = run(scenario(fault("kill", site="b", round=3), rounds=9), aborted=named)
    [(at_s, *rest)] = faults_of(done)
    assert rest == ["kill", "kill b", False]
    first_s = min(each.at_s for each in done.of(RoundDone) if each.round == 2)
    assert at_s == pytest.approx(first_s, rel=ALMOST)  # when round 3 was first asked for
    [lost] = done.of(SiteLost)
    assert lost.site == 1
    assert re.match(named, lost.detail)
    assert re.match(named, str(done.end.error))
    assert done.end.reason is None
    assert {each.round for each in done.of(RoundDone)} == {1, 2}


@pytest.mark.parametrize("victim", ["a", "c"])
def test_the_others_go_on_where_the_scenario_says_so(victim: str, run: Simulate) -> None:
    """Site a is the star's hub, evaluates, and would leave the weights."""
    compute = "[compute]\nsamples_per_s = 320.0"
    kill = fault("kill", site=victim, round=5)
    top = 'on_loss = "complete"'
    done = run(scenario(compute, kill, task=DIGITS, rounds=20, top=top))
    assert done.end.error is None
    (lost,) = done.of(SiteLost)
    assert (TRIANGLE.sites[lost.site].name, lost.goes_on) == (victim, True)
    assert {each.version for each in done.of(RoundDone) if each.round > 6} == {2}
    left = {0, 1, 2} - {lost.site}
    assert {each.site for each in done.of(RoundDone) if each.round > 6} == left
    summary = summarise(done.events)
    assert summary.checksums_agree
    assert summary.best_accuracy is not None
    assert summary.best_accuracy > 0.85
    assert [each.round for each in done.of(Evaluated)] == list(range(2, 21, 2))
    assert done.log.with_suffix(".safetensors").exists()


def test_with_too_few_left_the_run_ends_all_the_same(run: Simulate) -> None:
    top = 'on_loss = "complete"\nleast_sites = 3'
    kill = fault("kill", site="c", round=2)
    run(scenario(kill, rounds=9, top=top), aborted=r"site 2 \(c\) died in round")


def test_a_site_without_numbers_comes_back_to_an_all_reduce(run: Simulate) -> None:
    top = 'on_loss = "complete"'
    kill = fault("kill", site="c", round=2, for_s=1.0)
    done = run(scenario(kill, rounds=20, top=top))
    by_round = [{each.site for each in done.of(RoundDone) if each.round == at} for at in (3, 20)]
    assert by_round == [{0, 1}, {0, 1, 2}]


def test_the_site_whose_request_begins_the_round_may_be_the_one_that_dies_of_it(
    run: Simulate,
) -> None:
    # The hub is the first to ask for round 2, as its means take a latency to the others.
    done = run(scenario(fault("kill", site="a", round=2)), aborted=r"site 0 \(a\) died in round 2")
    assert [each.site for each in done.of(SiteLost)] == [0]


def test_a_site_killed_while_it_computes_ends_the_run_when_somebody_would_talk_to_it(
    run: Simulate,
) -> None:
    far = "[simulation]\ncontrol_latency_s = 0.3"
    kill = fault("kill", site="c", at_s=0.5)
    done = run(
        scenario(far, compute(), kill, task=BATCH), aborted=r"site 2 \(c\) died before the first"
    )
    [lost] = done.of(SiteLost)
    assert 0.8 < lost.at_s < 5.8  # at the latest 5 s after the news that its connection ended
    assert done.end.at_s == lost.at_s


def test_a_site_killed_in_its_sleep_ends_the_run_too(run: Simulate) -> None:
    # The sum it was sending is with its network by then, so the others end round 1 without it.
    pause = fault("pause", site="b", at_s=0.05, for_s=5.0)
    kill = fault("kill", site="b", at_s=1.0)
    done = run(scenario(pause, kill), aborted=r"site 1 \(b\) died in round 2")
    assert done.of(SiteLost)[0].at_s == pytest.approx(1.1)  # when a neighbour has lost its lane


def test_a_link_cut_for_a_while_delays_by_as_long(run: Simulate) -> None:
    cut = fault("cut", link=["b", "a"], at_s=0.05, for_s=60.0)
    done = run(scenario(cut))
    assert done.ends_s[0] == pytest.approx(HELLO_S + STAR_S + 60.0, rel=ALMOST)
    assert done.rounds_s == pytest.approx([STAR_S] * 2, rel=ALMOST)
    assert [each[1:] for each in faults_of(done)] == [
        ("cut", "cut b->a for 60 s", False),
        ("cut", "cut b->a for 60 s", True),
    ]


@pytest.mark.parametrize(
    ("cut", "stalled"),
    [
        ({"link": ["b", "a"]}, "nothing moves from b to a"),
        ({"pair": ["a", "c"]}, "nothing moves from c to a"),
        ({"site": "a"}, "nothing moves from b to a; nothing moves from c to a"),
    ],
)
def test_a_link_cut_for_ever_ends_the_run_and_is_named(
    cut: dict[str, str | list[str]], stalled: str, run: Simulate
) -> None:
    expected = rf"^the run stands still for ever: {stalled}\. A fault without an end is the reason "
    done = run(scenario(fault("cut", round=2, **cut)), aborted=expected)
    assert re.search(
        expected + r"\(cut .*\)\. Give the fault for_s, or wait_s,", str(done.end.error)
    )
    assert not re.search(r"Task-|line \d|DataPlane|lane|wait in", str(done.end.error))
    assert {each.round for each in done.of(RoundDone)} == {1}
    assert done.end.at_s < 1  # and not hours later


def test_each_outage_of_a_link_delays_by_as_long(run: Simulate) -> None:
    outages = fault("outages", link=["b", "a"], up_s=0.05, down_s=60.0, distribution="fixed")
    done = run(scenario(outages, rounds=2))
    # A sum takes 0.1 s: two outages fall into it and what came before it on its lane.
    assert [each[1:] for each in faults_of(done)[:3]] == [
        ("outages", "outage of b->a for 60 s", False),
        ("outages", "outage of b->a for 60 s", True),
        ("outages", "outage of b->a for 60 s", False),
    ]
    assert [at_s for at_s, *_ in faults_of(done)[:3]] == pytest.approx([0.05, 60.05, 60.1])
    count = math.floor((HELLO_S + UP_S) / 0.05)
    assert done.ends_s[0] == pytest.approx(HELLO_S + STAR_S + 60.0 * count, rel=ALMOST)


def test_a_partition_delays_until_it_heals(run: Simulate) -> None:
    parted = fault("partition", groups=[["c"]], at_s=0.05, for_s=30.0)
    done = run(scenario(parted))
    assert done.ends_s[0] == pytest.approx(HELLO_S + STAR_S + 30.0, rel=ALMOST)
    assert done.rounds_s == pytest.approx([STAR_S] * 2, rel=ALMOST)
    assert {detail for _, _, detail, _ in faults_of(done)} == {"partition c | a, b for 30 s"}


def test_a_site_that_sleeps_now_and_then_is_later_by_all_its_sleep(run: Simulate) -> None:
    calm = run(scenario(compute(), task=BATCH, rounds=1))
    fixed = {"distribution": "fixed", "until_s": 5.0}  # before it talks to the others
    sleep = fault("sleep", site="c", awake_s=0.4, asleep_s=2.0, **fixed)
    done = run(scenario(compute(), sleep, task=BATCH, rounds=1))
    assert done.ends_s[0] == pytest.approx(calm.ends_s[0] + 2 * 2.0, rel=ALMOST)


def test_all_kinds_that_come_and_go_leave_a_run_its_means_and_the_same_log(run: Simulate) -> None:
    given = scenario(
        fault("outages", all=True, up_s=2.0, down_s=1.0, until_s=40.0),
        fault("outages", site="b", up_s=3.0, down_s=0.5),
        fault("sleep", site="c", awake_s=2.0, asleep_s=1.0),
        fault("partition", groups=[["a"], ["b", "c"]], at_s=5.0, for_s=4.0),
        fault("cut", pair=["a", "b"], at_s=4.0, for_s=3.0),
        '[simulation]\ntensors = "real"',
        route='kind = "fapt"',
        rounds=30,
    )
    one, other = run(given), run(given)
    assert fingerprint(one.log) == fingerprint(other.log)
    assert {each.fault for each in one.of(FaultInjected)} == {
        *("outages", "sleep", "partition", "cut")
    }
    summary = summarise(one.events)
    assert summary.checked_rounds == 30
    assert summary.checksums_agree
    assert one.end.error is None
    changed = run(msgspec.structs.replace(given, seed=1))
    assert fingerprint(changed.log) != fingerprint(one.log)


def test_outages_without_end_do_not_hide_a_run_that_cannot_go_on(run: Simulate) -> None:
    outages = fault("outages", pair=["a", "c"], up_s=2.0, down_s=1.0)
    sleep = fault("sleep", site="c", awake_s=5.0, asleep_s=1.0)
    cut = fault("cut", link=["b", "a"], round=2)
    run(
        scenario(outages, sleep, cut), aborted="the run stands still for ever: nothing moves from b"
    )


def test_a_run_may_begin_in_an_outage(run: Simulate) -> None:
    cut = fault("cut", site="a", at_s=0.0, for_s=20.0)
    assert run(scenario(cut)).ends_s[0] == pytest.approx(20.0 + HELLO_S + STAR_S, rel=ALMOST)


@pytest.mark.parametrize(
    ("silent", "named"),
    [
        (("cut", {"pair": ["b", "a"], "for_s": 60.0}), "has said nothing for 9 s"),
        (("partition", {"groups": [["c"]], "for_s": 60.0}), "has said nothing for 9 s"),
        (("pause", {"site": "c", "for_s": 60.0}), r"site 2 \(c\) died .*nothing for 9 s"),
    ],
)
def test_what_is_silent_for_longer_than_it_is_waited_for_is_lost(
    silent: tuple[str, dict[str, str | float | list[str]]], named: str, run: Simulate
) -> None:
    kind, keys = silent
    faults = fault(kind, at_s=0.05, **keys)
    done = run(scenario(faults, top="wait_s = 9"), aborted=named)
    assert 9.0 < done.end.at_s < 20.0
    patient = run(scenario(faults, top="wait_s = 61"))
    assert patient.ends_s[0] == pytest.approx(HELLO_S + STAR_S + 60.0, abs=1.0)


def test_sites_go_round_a_pair_at_once_and_a_link_that_is_silent_for_too_long(
    run: Simulate,
) -> None:
    cut = fault("cut", pair=["b", "a"], at_s=0.05, for_s=60.0)
    way = fault("cut", link=["b", "a"], at_s=0.05, for_s=60.0)
    for what, least_s, most_s in ((cut, 0.4, 2.0), (way, 2.0, 10.0)):
        done = run(scenario(what, top='wait_s = 2\non_loss = "complete"', rounds=5))
        assert done.end.error is None
        assert least_s < done.ends_s[0] < most_s
        assert {each.site for each in done.of(RoundDone) if each.round == 5} == {0, 1, 2}


def test_a_pair_that_is_silent_at_both_ends_is_taken_again_once_it_is_whole(run: Simulate) -> None:
    cut = fault("cut", pair=["b", "a"], at_s=0.05, for_s=3.0)
    done = run(scenario(cut, top='on_loss = "complete"', rounds=40))
    assert done.end.error is None
    assert done.ends_s[0] < 2.0
    assert done.rounds_s[-5:] == pytest.approx([STAR_S] * 5, rel=ALMOST)


@pytest.mark.parametrize("offset_s", [1000.0, -1000.0, 0.0])
def test_a_clock_that_is_wrong_changes_when_its_site_says_that_things_were_and_nothing_else(
    offset_s: float, run: Simulate
) -> None:
    since_s, drift = 0.5, 0.01
    clock = fault("clock", site="c", at_s=since_s, offset_s=offset_s, drift=drift)

    def run_with(*faults: str) -> Run:
        top = "sample_every_s = 0.03"
        return run(scenario(compute(), *faults, task=f"{BATCH}\n", top=top, route='kind = "fapt"'))

    right, wrong = run_with(), run_with(clock)
    assert faults_of(wrong) == [(since_s, "clock", wrong.of(FaultInjected)[0].detail, False)]
    told = [event for event in wrong.events if not isinstance(event, FaultInjected)]
    shifted = 0
    for said, true in zip(told, right.events, strict=True):
        of_c = (isinstance(true, StepDone) and true.site == 2) or (
            isinstance(true, LinkBytes) and true.source == 2
        )
        if not of_c or true.at_s < since_s:
            assert said == true  # the scheduler's clock is right, and so are the others'
            continue
        gained_s = offset_s + drift * (true.at_s - since_s)
        assert said.at_s == pytest.approx(true.at_s + gained_s, rel=ALMOST)
        assert said == msgspec.structs.replace(true, at_s=said.at_s)  # durations, too, are right
        shifted += 1
    assert shifted >= 3 + 3 * 2  # steps, and links that were sampled within rounds
    assert summarise(wrong.events).total_s == wrong.end.at_s == right.end.at_s


def test_a_clock_that_jumps_back_within_a_round_ends_no_run(run: Simulate) -> None:
    clock = fault("clock", site="c", at_s=0.2, offset_s=-100.0)
    right, done = run(scenario()), run(scenario(clock))
    assert done.end == right.end
    assert done.end.error is None
    assert done.of(RoundDone) == right.of(RoundDone)  # how long it took, too


def test_a_fault_by_round_comes_when_the_first_site_asks_for_it(run: Simulate) -> None:
    # "c" is late; "a" and "b" ask first.
    slow = fault("slow", link=["a", "c"], factor=2.0, round=2, for_s=0.5)
    done = run(scenario(compute(c=20.0), slow, task=BATCH))
    [(at_s, *_, begins), (over_s, *_, ends)] = faults_of(done)
    assert (begins, ends) == (False, True)
    # The hub ends round 1 when its means have left, and computes for 1 s.
    assert at_s == pytest.approx(done.ends_s[0] - LATENCY_S + 1.0, rel=ALMOST)
    assert over_s == pytest.approx(at_s + 0.5, rel=ALMOST)


# --- the same every time --------------------------------------------------------------------------

# Real gradients, jitter, capped ports, and one fault of each kind that a run survives.
TRAINING = f"""
overlay = "pair.toml"
stop.rounds = 12
chunk_elements = 100
[route]
kind = "fapt"
[task]
{DIGITS}
[compute]
samples_per_s = 200.0
jitter = {{kind = "lognormal", cv = 0.5}}
added_delay = {{kind = "exponential", mean_s = 0.01}}
[[fault]]
kind = "pause"
site = "b"
round = 4
for_s = 0.5
[[fault]]
kind = "cut"
link = ["a", "b"]
at_s = 1.0
for_s = 0.2
[[fault]]
kind = "slow"
pair = ["a", "c"]
factor = 3.0
round = 6
[[fault]]
kind = "clock"
site = "c"
at_s = 0.5
drift = 1e-4
"""
CHANGING = """
overlay = "changing.toml"
stop.rounds = 8
sample_every_s = 5.0
[route]
kind = "fapt"
[task]
kind = "exchange"
elements = 20_000_000
"""


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Write two scenarios that use much of what could differ from run to run."""
    folder = tmp_path_factory.mktemp("scenarios")
    capped = tuple(replace(site, uplink_bps=1.5 * MB_S) for site in TRIANGLE.sites)
    (folder / "pair.toml").write_text(dumps(replace(TRIANGLE, sites=capped)))
    network = internet2_9()
    links = tuple(replace(each, latency_s=0.5, latency_drift_s=0.2) for each in network.links)
    (folder / "changing.toml").write_text(
        dumps(replace(network, links=links))
        + "\n[dynamics]\nperiod_s = 3.0\nlow_bps = 20e6\nhigh_bps = 155e6\n"
        "duration_s = 300.0\nseed = 4\n"
    )
    paths = [folder / "training.toml", folder / "changing-exchange.toml"]
    for path, text in zip(paths, (TRAINING, CHANGING), strict=True):
        path.write_text(text)
    return paths


@pytest.mark.slow
def test_the_same_scenario_gives_the_same_log_whatever_the_order_of_hashes(
    scenarios: list[Path], tmp_path: Path
) -> None:
    prints = []
    for hash_seed in ("1", "2"):
        out = tmp_path / hash_seed
        command = [sys.executable, "-m", "anabranch", "simulate", *map(str, scenarios)]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        subprocess.run(
            [*command, "--out", str(out)],
            env=environment,
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=100,
        )
        prints.append([fingerprint(log) for log in sorted(out.rglob("*.db"))])
    assert len(prints[0]) == 2
    assert prints[0] == prints[1]


@pytest.mark.parametrize("which", [0, 1])
def test_another_seed_gives_another_log(which: int, scenarios: list[Path], tmp_path: Path) -> None:
    given, overlay = load(scenarios[which])
    prints = []
    for number, seed in enumerate((7, 8)):
        log = tmp_path / f"{number}.db"
        simulate(msgspec.structs.replace(given, seed=seed), overlay, log)
        # All but the first event, which has the seed in it.
        prints.append([event for _, event in read_events(log)][1:])
    assert prints[0] != prints[1]


@pytest.mark.parametrize("what", ["cut", "kill"])
def test_a_run_that_ends_early_has_the_same_log_too(what: str, run: Simulate) -> None:
    cut, kill = fault("cut", link=["b", "a"], round=2), fault("kill", site="b", round=2)
    given = scenario({"cut": cut, "kill": kill}[what])
    first, second = (run(given, aborted="stands still for ever|died") for _ in range(2))
    assert first.end.error == second.end.error
    assert fingerprint(first.log) == fingerprint(second.log)


@pytest.mark.slow
def test_thousands_of_rounds_pass_in_seconds_and_leave_nothing_behind(tmp_path: Path) -> None:
    tasks: list[int] = []
    objects: list[int] = []

    def on_round(round: int, loss: float | None) -> None:
        if round in (250, 1000):
            gc.collect()
            tasks.append(len(asyncio.all_tasks()))
            objects.append(len(gc.get_objects()))

    task = 'kind = "exchange"\nelements = 90'
    given = scenario(route='kind = "fapt"', task=task, rounds=1000)
    simulate(given, TRIANGLE, tmp_path / "run.db", on_round=on_round)
    done = Run(tmp_path / "run.db")
    assert len(done.ends_s) == 1000
    assert tasks[0] == tasks[1]
    assert objects[1] - objects[0] < 750  # less than one a round


# --- what happens near the end --------------------------------------------------------------------


def test_a_kill_after_the_last_round_harms_no_run_that_is_over(run: Simulate) -> None:
    slow = "[simulation]\ncontrol_latency_s = 0.2"
    whole = run(scenario(slow, rounds=1))
    for early_s in (0.05, 0.15, 0.25, 0.35):
        late = fault("kill", site="b", at_s=whole.end.at_s - early_s)
        log = whole.log.with_name(f"{early_s}.db")
        with suppress(RunAborted):  # before the scheduler heard that all had finished
            simulate(scenario(slow, late, rounds=1), TRIANGLE, log)
        assert Run(log).end.error in (None, "site 1 (b) died in round 1: b closed the connection")


def test_every_site_that_dies_at_one_instant_is_written_down(run: Simulate) -> None:
    kills = [fault("kill", site=site, at_s=1.0) for site in "bc"]
    done = run(scenario(*kills, rounds=9), aborted=r"site 1 \(b\) died")
    assert [lost.site for lost in done.of(SiteLost)] == [1, 2]


def test_nothing_is_written_after_the_end(run: Simulate) -> None:
    pause = fault("pause", site="a", for_s=60.0, at_s=0.5)
    kill = fault("kill", site="b", at_s=1.0)
    done = run(scenario(pause, kill, rounds=9), aborted=r"site 1 \(b\) died")
    assert done.end.at_s < 60.0


def test_a_fault_that_never_happened_is_told(tmp_path: Path) -> None:
    late = fault("kill", site="b", at_s=1e6)
    early = fault("slow", site="b", factor=2.0, at_s=0.0)
    unused = simulate(scenario(late, early), TRIANGLE, tmp_path / "run.db")
    assert unused == ("kill b",)


def test_a_cut_link_carries_no_credit_either(run: Simulate) -> None:
    """A relay gives its credits back over the link that is cut, so its window runs dry."""
    line = Overlay(
        "line",
        TRIANGLE.sites,
        tuple(Link(i, j, MB_S, 0.01) for i, j in ((0, 1), (1, 0), (1, 2), (2, 1))),
    )
    task = f'kind = "exchange"\nelements = {20 * ELEMENTS}'
    top = f"chunk_elements = {ELEMENTS}"
    cut = fault("cut", link=["b", "c"], for_s=60.0, at_s=0.01)
    whole, held = (run(scenario(*f, task=task, top=top, rounds=1), line) for f in ((), (cut,)))
    # c sends its twenty sums through b; three may be at b before the first credit is back.
    sent = {
        end: sum(e.payload_bytes for e in done.of(LinkBytes) if e.source == 2 and e.at_s < 30)
        for end, done in (("whole", whole), ("held", held))
    }
    assert sent["held"] <= 4 * 4 * ELEMENTS < sent["whole"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[simulation]\ncontrol_latency_s = inf", "simulation.control_latency_s: must be"),
        ("[compute]\nsamples_per_s = nan", "compute.samples_per_s: must be"),
    ],
)
def test_numbers_that_are_none_are_refused(text: str, named: str) -> None:
    with pytest.raises(ScenarioError, match=named):
        scenario(text)
