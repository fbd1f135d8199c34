"""Runs whose model is served: any pace over any route from the scenario file, in both worlds."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

import msgspec
import numpy as np
import pytest

from anabranch import plan as plans
from anabranch.log import (
    Evaluated,
    Event,
    EventLog,
    LabelsHeld,
    LinkBytes,
    MessageRefused,
    RunEnded,
    RunStarted,
    SamplesHeld,
    SiteCut,
    SiteJoined,
    SiteLost,
    SiteResumed,
    UpdateApplied,
    UpdateDiscarded,
    WorkerWent,
    read_events,
    summarise,
)
from anabranch.net.errors import RunAborted
from anabranch.overlay import Overlay, dumps, load, random_complete
from anabranch.site._connections import Connections
from anabranch.site.agent import SiteAgent
from anabranch_lab.reports import write_report
from anabranch_lab.reports._ports import mean_use
from anabranch_lab.run.launch import run_locally
from anabranch_lab.run.replay import replay
from anabranch_lab.run.scenario import ScenarioError, check_twin, loads
from anabranch_lab.run.scenario import load as load_scenario
from anabranch_lab.run.simulate import simulate

from ..every import every
from ..seeds import seeds
from .relay import Relay, run_through_a_relay

PACES = [
    '{kind = "bsp"}',
    '{kind = "asp"}',
    '{kind = "ssp", lead = 2}',
    '{kind = "safa", fraction = 0.5}',
    '{kind = "r2sp"}',
]
ROUTES = [
    '{kind = "star"}',
    '{kind = "balanced"}',
    '{kind = "fapt", roots = 3}',
    '{kind = "packed"}',
    '{kind = "ring"}',
]


def scenario(pace: str, route: str = '{kind = "star"}', more: str = "") -> str:
    return (
        'overlay = "internet2-9"\nstop = {rounds = 12}\nserve = {only = ["dc9"]}\n'
        f"pace = {pace}\nroute = {route}\n{more}\n"
        'task = {kind = "train", data = "digits", model = "softmax", learning_rate = 0.5}\n'
        "compute = {samples_per_s = 100}\n"
    )


def write_overlay(folder: Path, name: str, edges: list[tuple[str, str]], rate_bps: float) -> None:
    """Write an overlay with links along these edges and nowhere else; servers come last."""
    sites = sorted({site for edge in edges for site in edge})
    (folder / f"{name}.toml").write_text(
        f'name = "{name}"\n[defaults]\nrate_bps = {rate_bps}\nlatency_s = 0.001\n'
        + "".join(f'[[site]]\nname = "{site}"\n' for site in sites)
        + "".join(
            f'[[link]]\nfrom = "{above}"\nto = "{below}"\nback_rate_bps = {rate_bps}\n'
            for above, below in edges
        )
    )


def hub(folder: Path, server: str, workers: Iterable[str], rate_bps: float) -> None:
    """Write an overlay whose server reaches every worker; so no worker is on another's way."""
    write_overlay(folder, "hub", [(server, worker) for worker in workers], rate_bps)


def two_levels(folder: Path) -> None:
    """Write an overlay in which dc9 reaches dc1 and dc2, and each of those three of the others."""
    below = [(f"dc{1 + k // 6}", f"dc{k}") for k in range(3, 9)]
    write_overlay(folder, "two-levels", [("dc9", "dc1"), ("dc9", "dc2"), *below], 1e6)


def simulated(text: str, folder: Path) -> list[Event]:
    path, log = folder / "scenario.toml", folder / "run.db"
    path.write_text(text)
    simulate(*load_scenario(path), log)
    return [event for _, event in read_events(log)]


@pytest.mark.parametrize(
    ("pace", "route"),
    [
        pytest.param(pace, route, marks=[] if i == j else [pytest.mark.slow])
        for i, pace in enumerate(PACES)
        for j, route in enumerate(ROUTES)
    ],
)
def test_every_pace_trains_over_every_route(pace: str, route: str, tmp_path: Path) -> None:
    happened = simulated(scenario(pace, route), tmp_path)
    applied = Counter(event.site for event in happened if isinstance(event, UpdateApplied))
    assert applied == dict.fromkeys(range(8), 12)  # dc9 only serves, if anything
    accuracy = [event.accuracy for event in happened if isinstance(event, Evaluated)]
    assert accuracy[-1] > 0.8
    held = [event.site for event in happened if isinstance(event, LabelsHeld)]
    assert held == list(range(8))  # dc9 has a part of the data, and trains on none


@pytest.mark.parametrize("pace", ['{kind = "bsp"}', '{kind = "asp"}'])
def test_updates_are_applied_with_the_weight_of_their_sites_data(
    pace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sites have unequal shards; each pushes with its share of the samples, 1 on their mean."""
    task = (
        'task = {kind = "train", data = "digits", model = "softmax", learning_rate = 0.5, '
        'partition = {kind = "quantity", alpha = 0.5}}'
    )
    text = (
        'overlay = "hub.toml"\nstop = {rounds = 3}\nserve = {only = ["server"]}\n'
        f'pace = {pace}\nroute = {{kind = "star", hub = "server"}}\n{task}\n'
        'compute = {samples_per_s = 100}\nmerge = {kind = "data-size"}\n'
    )
    hub(tmp_path, "server", ["few", "many"], 1e6)
    pushed: dict[int, set[float]] = {}
    push = SiteAgent.push

    def spied(agent: SiteAgent, permission: Any, gradients: Any, weight: float, *more: Any) -> bool:
        pushed.setdefault(agent.welcome.site, set()).add(weight)
        return push(agent, permission, gradients, weight, *more)

    monkeypatch.setattr(SiteAgent, "push", spied)
    happened = simulated(text, tmp_path)
    held = {event.site: event.samples for event in happened if isinstance(event, SamplesHeld)}
    applied = Counter(event.site for event in happened if isinstance(event, UpdateApplied))
    assert len(applied) == 2
    assert held.keys() == applied.keys() == pushed.keys()
    assert max(held.values()) > 2 * min(held.values())
    for site, weights in pushed.items():
        assert [*weights] == [pytest.approx(2 * held[site] / sum(held.values()))]
    # The rule's own factor leaves that as it is.
    assert {event.factor for event in happened if isinstance(event, UpdateApplied)} == {1.0}


@pytest.mark.parametrize("pace", PACES)
def test_who_computes_ahead_hides_what_travels(pace: str, tmp_path: Path) -> None:
    happened = []
    for ahead in ("false", "true"):
        text = scenario(pace, '{kind = "star", hub = "dc9"}')
        text = text.replace('only = ["dc9"]', f'only = ["dc9"], ahead = {ahead}')
        text = text.replace('overlay = "internet2-9"', 'overlay = "hub.toml"')
        hub(tmp_path, "dc9", [f"dc{k}" for k in range(1, 9)], 1e6)
        (tmp_path / ahead).mkdir()
        (tmp_path / ahead / "hub.toml").write_text((tmp_path / "hub.toml").read_text())
        happened.append(simulated(text, tmp_path / ahead))
        replay(read_events(tmp_path / ahead / "run.db"))
    for events in happened:
        settled = [e.site for e in events if isinstance(e, UpdateApplied | UpdateDiscarded)]
        assert Counter(settled) == dict.fromkeys(range(8), 12)
    ends_s = [max(e.at_s for e in events if isinstance(e, UpdateApplied)) for events in happened]
    assert ends_s[1] < 0.95 * ends_s[0]
    # A worker's second update is computed on the model of the first.
    second = [event.at_s for event in happened[1] if isinstance(event, WorkerWent)][:16]
    assert second == [0.0] * 16


def slow_worker(lag_tolerance: int, folder: Path) -> tuple[float, float, int]:
    """Return when a run with one slow worker ended, what that pushed, and how often it counted."""
    hub(folder, "server", "abcd", 1e8)
    text = (
        'overlay = "hub.toml"\nroute = {kind = "star", hub = "server"}\nstop = {rounds = 12}\n'
        'serve = {only = ["server"]}\n'
        f'pace = {{kind = "safa", lag_tolerance = {lag_tolerance}}}\n'
        'task = {kind = "exchange", elements = 50_000, batch_size = 20}\n'
        "compute = {samples_per_s = 20}\n"
        'fault = [{kind = "slow", site = "d", at_s = 0.0, factor = 10.0}]\n'
    )
    happened = simulated(text, folder)
    replay(read_events(folder / "run.db"))
    settled = [e for e in happened if isinstance(e, UpdateApplied | UpdateDiscarded)]
    assert Counter(event.site for event in settled) == dict.fromkeys(range(4), 12)
    links = [event for event in happened if isinstance(event, LinkBytes)]
    pushed_bytes = sum(event.payload_bytes for event in links if event.source == 3)
    applied = sum(isinstance(event, UpdateApplied) and event.site == 3 for event in settled)
    return happened[-1].at_s, pushed_bytes, applied


def test_who_is_too_late_neither_computes_to_the_end_nor_pushes(tmp_path: Path) -> None:
    for name in ("strict", "tolerant"):
        (tmp_path / name).mkdir()
    strict_s, pushed_bytes, applied = slow_worker(2, tmp_path / "strict")
    assert applied < 12
    assert pushed_bytes == applied * 50_000 * 4
    tolerant_s, pushed_bytes, applied = slow_worker(100, tmp_path / "tolerant")
    assert (applied, pushed_bytes) == (12, 12 * 50_000 * 4)
    assert 10.0 * applied < tolerant_s < 10.0 * applied + 2.0
    # An update that it gives up costs it the rounds until then, and no computing beyond.
    assert strict_s < 0.95 * tolerant_s


def test_with_auxiliary_paths_and_tuned_batches_it_is_one_line_each(tmp_path: Path) -> None:
    more = 'auxiliary = {}\nload = {kind = "tuned", most = 200}'
    happened = simulated(scenario('{kind = "r2sp"}', '{kind = "fapt"}', more), tmp_path)
    assert sum(isinstance(event, UpdateApplied) for event in happened) == 8 * 12


@pytest.mark.parametrize("pace", ['{kind = "bsp"}', '{kind = "asp"}'])
def test_auxiliary_paths_carry_updates_and_models_too(pace: str, tmp_path: Path) -> None:
    text = scenario(pace, '{kind = "fapt", roots = 3}', "auxiliary = {}").replace("12", "3")
    text = text.partition("task = ")[0] + 'task = {kind = "exchange", elements = 2_000_000}\n'
    links = []
    for each in (text, text.replace("auxiliary = {}", "")):
        happened = simulated(each, tmp_path)
        assert sum(isinstance(event, UpdateApplied) for event in happened) == 8 * 3
        assert not any(isinstance(event, MessageRefused) for event in happened)
        carried = [event for event in happened if isinstance(event, LinkBytes)]
        links.append({(event.source, event.target) for event in carried})
        (tmp_path / "run.db").unlink()
    assert links[0] > links[1]


def test_under_a_barrier_all_updates_are_one_step_and_miss_nothing(tmp_path: Path) -> None:
    happened = simulated(scenario('{kind = "bsp"}'), tmp_path)
    applied = [event for event in happened if isinstance(event, UpdateApplied)]
    assert [event.missed for event in applied] == [0] * 96
    assert [event.version for event in applied] == [step for step in range(1, 13) for _ in range(8)]


def test_in_turns_updates_are_evenly_apart_and_each_misses_one_of_everybody(tmp_path: Path) -> None:
    happened = simulated(scenario('{kind = "r2sp", relaxation = 1}'), tmp_path)
    applied = [event for event in happened if isinstance(event, UpdateApplied)]
    assert [event.site for event in applied] == list(range(8)) * 12
    assert {event.missed for event in applied[8:]} == {7}
    settled = applied[
        64:88
    ]  # the gap has been learnt, and in the last cycle there are fewer and fewer
    gaps_s = [after.at_s - before.at_s for before, after in pairwise(settled)]
    assert max(gaps_s) < 1.2 * mean(gaps_s)


@pytest.mark.parametrize("pace", ['{kind = "r2sp"}', '{kind = "bsp"}'])
def test_the_same_scenario_gives_the_same_log(pace: str, tmp_path: Path) -> None:
    logs = []
    for name in "ab":
        (tmp_path / name).mkdir()
        logs.append(simulated(scenario(pace, '{kind = "fapt"}'), tmp_path / name))
    assert logs[0] == logs[1]


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_real_processes_do_not_outrun_the_simulated_pace(tmp_path: Path) -> None:
    text = (
        'overlay = "hub.toml"\nroute = {kind = "star", hub = "server"}\n'
        'serve = {only = ["server"]}\npace = {kind = "r2sp", relaxation = 1}\n'
        "stop = {rounds = 8}\nchunk_elements = 4096\n"
        'task = {kind = "train", data = "digits", model = "softmax", learning_rate = 0.5}\n'
        "compute = {samples_per_s = 64}\n"
    )
    hub(tmp_path, "server", "ab", 10e6)
    (tmp_path / "scenario.toml").write_text(text)
    network: Overlay = load(str(tmp_path / "hub.toml"))
    run_locally(tmp_path / "scenario.toml", 0, network, tmp_path / "real.db")
    virtual = simulated(text, tmp_path)
    real = [event for _, event in read_events(tmp_path / "real.db")]
    ends_s = []
    for happened in (virtual, real):
        settled = [e for e in happened if isinstance(e, UpdateApplied | UpdateDiscarded)]
        assert Counter(event.site for event in settled) == {0: 8, 1: 8}
        assert sum(isinstance(event, WorkerWent) for event in happened) == 16
        applied = [event for event in settled if isinstance(event, UpdateApplied)]
        assert {event.missed for event in applied[1:]} <= {0, 1}
        ends_s.append(applied[-1].at_s)
    assert [event.site for event in virtual if isinstance(event, UpdateApplied)] == [0, 1] * 8
    # No faster: how much slower is this machine's to say, and a report of a twin says it.
    assert ends_s[1] > 0.95 * ends_s[0]


def test_a_report_says_how_workers_went_on(tmp_path: Path) -> None:
    simulated(scenario('{kind = "r2sp"}'), tmp_path)
    write_report([tmp_path / "run.db"], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "an iteration" in page
    assert "96 updates became part of the model; one missed 7 of others at most" in page
    assert "No round was completed" not in page
    headings = ("Pace", "Phases of each worker", "Gaps between updates, and staleness", "Loss")
    assert every(f"<h2>{heading}</h2>" in page for heading in headings)
    assert "what the ports could carry is not known" not in page


def test_what_servers_ports_carry_is_each_update_and_each_model_once(tmp_path: Path) -> None:
    happened = simulated(scenario('{kind = "r2sp"}', '{kind = "star", hub = "dc9"}'), tmp_path)
    run = summarise(happened)
    overlay, plan = load("internet2-9"), plans.loads(run.started.plan_json)
    carried_bytes = []
    for way in ("in", "out"):
        mean = mean_use(run, overlay, plan, way)
        assert mean is not None
        carried_bytes.append(mean.carried_bps * run.total_s / 8)
    # Everybody has the model for a first update from the start.
    wanted = [updates * run.started.buffer_bytes for updates in (96, 88)]
    assert carried_bytes == pytest.approx(wanted, rel=0.05)  # and headers


def test_a_report_compares_a_served_run_with_one_that_all_reduces(tmp_path: Path) -> None:
    simulated(scenario('{kind = "asp"}'), tmp_path)
    (tmp_path / "run.db").rename(tmp_path / "served.db")
    simulated(scenario('{kind = "bsp"}').replace('serve = {only = ["dc9"]}\n', ""), tmp_path)
    write_report([tmp_path / "served.db", tmp_path / "run.db"], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "all-reduces: a round every" in page
    assert "<h2>Phases of each worker</h2>" in page
    assert "<h2>Round times</h2>" in page


def test_a_report_of_unshaped_links_says_mbit_in_place_of_shares(tmp_path: Path) -> None:
    happened = simulated(scenario('{kind = "asp"}'), tmp_path)
    log = tmp_path / "unshaped.db"
    with EventLog.create(log) as unshaped:
        unshaped.append([msgspec.structs.replace(happened[0], shaped=False), *happened[1:]])
    write_report([log], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "what the ports could carry is not known" in page
    assert "bit/s</td>" in page


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ('awareness = {kind = "passive"}', "awareness: where the model is served"),
        ('deal = {kind = "adaptive"}', "deal: where the model is served"),
        ('load = {kind = "tuned", most = 4}', "load.most: 4 samples where task.batch_size is 32"),
    ],
)
def test_what_does_not_go_with_a_served_model_is_named(more: str, named: str) -> None:
    with pytest.raises(ScenarioError, match=named):
        loads(scenario('{kind = "r2sp"}', more=more))


def test_tuned_batches_need_a_served_model() -> None:
    text = scenario('{kind = "bsp"}', more='load = {kind = "tuned", most = 64}')
    loads(text)
    with pytest.raises(
        ScenarioError, match="load: a scheduler tunes batches by the updates that it sees"
    ):
        loads(text.replace('serve = {only = ["dc9"]}\n', ""))


@pytest.mark.parametrize(
    ("only", "named"),
    [
        ('["dc10"]', "serve.only: the overlay has no site 'dc10'"),
        (str([f"dc{k}" for k in range(1, 10)]), "serve.only: it names every site"),
    ],
)
def test_who_serves_must_be_there_and_somebody_must_compute(
    only: str, named: str, tmp_path: Path
) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(scenario('{kind = "asp"}').replace('["dc9"]', only))
    with pytest.raises(ScenarioError, match=named):
        load_scenario(path)


def check_that_the_rest_went_on(happened: list[Event], victim: int) -> None:
    """Check that one of eight workers died, and every other made all its twelve updates."""
    assert [event.site for event in happened if isinstance(event, SiteLost)] == [victim]
    applied = Counter(event.site for event in happened if isinstance(event, UpdateApplied))
    assert every(applied[site] == 12 for site in range(8) if site != victim)
    assert applied[victim] < 12
    end = happened[-1]
    assert isinstance(end, RunEnded)
    assert end.error is None


@seeds(6, 12)
def test_the_rest_trains_on_when_a_worker_dies_at_any_moment(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    pace, victim = PACES[seed % len(PACES)], int(rng.integers(8))
    fault = (
        f'fault = [{{kind = "kill", site = "dc{victim + 1}", at_s = {rng.uniform(0, 3.5):.3f}}}]'
    )
    text = scenario(pace, '{kind = "star", hub = "dc9"}', fault)
    text = text.replace('overlay = "internet2-9"', 'overlay = "hub.toml"')
    hub(tmp_path, "dc9", [f"dc{k}" for k in range(1, 9)], 1e8)
    happened = simulated(text, tmp_path)
    check_that_the_rest_went_on(happened, victim)
    replay(read_events(tmp_path / "run.db"))


@seeds(2, 20)
def test_a_worker_that_died_takes_part_again(seed: int, tmp_path: Path) -> None:
    kill_and_restart(seed, tmp_path)


def kill_and_restart(seed: int, tmp_path: Path) -> bool:
    """Kill a worker at a random moment, and start it again; return whether that was in time.

    With every other five seeds others' updates come to the server through the sites in between.
    """
    rng = np.random.default_rng(seed)
    pace, victim = PACES[seed % len(PACES)], int(rng.integers(2, 8))
    at_s, for_s = rng.uniform(0, 3.0), rng.choice([0.02, 0.3, 1.0])
    name = ("hub", "two-levels")[seed // len(PACES) % 2]
    hub(tmp_path, "dc9", [f"dc{k}" for k in range(1, 9)], 1e8)
    two_levels(tmp_path)

    def runs(fault: str, folder: str) -> list[Event]:
        text = scenario(pace, '{kind = "fapt", roots = ["dc9"]}', f"fault = [{{{fault}}}]")
        (tmp_path / folder).mkdir()
        return simulated(text.replace("internet2-9", f"../{name}.toml"), tmp_path / folder)

    fault = f'kind = "kill", site = "dc{victim + 1}", at_s = {at_s:.3f}'
    happened = runs(f"{fault}, for_s = {for_s}", "back")
    end = happened[-1]
    assert isinstance(end, RunEnded)
    assert end.error is None
    assert [event.site for event in happened if isinstance(event, SiteLost)] == [victim]
    assert not any(isinstance(event, MessageRefused) for event in happened)
    back = [event for event in happened if isinstance(event, SiteJoined) and event.at_s > 0]
    applied = [(e.site, e.update) for e in happened if isinstance(e, UpdateApplied)]
    discarded = [(e.site, e.update) for e in happened if isinstance(e, UpdateDiscarded)]
    settled = applied + discarded
    assert len(set(settled)) == len(settled)
    went_on = [event for event in happened if isinstance(event, WorkerWent)]
    went = Counter(event.site for event in went_on)
    assert every(went[site] == 12 for site in range(8) if site != victim)
    assert [event.site for event in back] in ([], [victim])
    own = sorted(number for site, number in settled if site == victim)
    if back and "bsp" not in pace:
        assert own == [*range(1, 13)]
    elif any(e.site == victim and e.at_s > back[0].at_s for e in went_on if back):
        assert own[-1] == 12  # it missed what the others made meanwhile, if any was left
    assert replay(read_events(tmp_path / "back" / "run.db")).told
    # The others wait for its death as if it never came back; then for an iteration of it at most.
    without_s = iterations_s(runs(fault, "away"), victim)
    assert max(iterations_s(happened, victim)) <= max(without_s) + median(without_s)
    return bool(back)


def iterations_s(happened: Iterable[Event], victim: int) -> list[float]:
    """Return how long all other workers took from each permission to the next."""
    went = [event for event in happened if isinstance(event, WorkerWent)]
    return [
        after.at_s - before.at_s
        for site in range(8)
        for before, after in pairwise([event for event in went if event.site == site])
        if site != victim
    ]


def test_a_worker_that_is_back_takes_its_turn_by_index(tmp_path: Path) -> None:
    hub(tmp_path, "dc9", [f"dc{k}" for k in range(1, 9)], 1e8)
    fault = 'fault = [{kind = "kill", site = "dc4", at_s = 1.0, for_s = 0.8}]'
    text = scenario('{kind = "r2sp"}', '{kind = "star", hub = "dc9"}', fault)
    text = text.replace('overlay = "internet2-9"', 'overlay = "hub.toml"')
    happened = simulated(text, tmp_path)
    [back] = [event for event in happened if isinstance(event, SiteJoined) and event.at_s > 0]
    turns = [event for event in happened if isinstance(event, UpdateApplied)]
    first = next(k for k, turn in enumerate(turns) if turn.site == 3 and turn.at_s > back.at_s)
    assert [turn.site for turn in turns[first : first + 8]] == [3, 4, 5, 6, 7, 0, 1, 2]
    assert {turn.missed for turn in turns[first + 8 : first + 40]} == {7}


def test_under_a_barrier_a_worker_that_is_back_takes_part_from_the_next_step_on(
    tmp_path: Path,
) -> None:
    two_levels(tmp_path)
    fault = 'fault = [{kind = "kill", site = "dc4", at_s = 1.0, for_s = 0.8}]'
    text = scenario('{kind = "bsp"}', '{kind = "fapt", roots = ["dc9"]}', fault)
    text = text.replace('overlay = "internet2-9"', 'overlay = "two-levels.toml"')
    happened = simulated(text, tmp_path)
    [back] = [event for event in happened if isinstance(event, SiteJoined) and event.at_s > 0]
    steps: dict[int, list[UpdateApplied]] = {}
    for event in happened:
        if isinstance(event, UpdateApplied):
            steps.setdefault(event.version, []).append(event)
    everybody = [version for version, step in steps.items() if len(step) == 8]
    others = [version for version, step in steps.items() if len(step) == 7]
    under_way = next(version for version in steps if steps[version][0].at_s > back.at_s)
    assert others
    assert max(others) == under_way
    assert everybody == [*range(1, others[0]), *range(under_way + 1, 13)]
    assert {event.update for event in steps[12]} == {12}


@seeds(6, 10)
def test_losing_the_scheduler_for_a_moment_costs_no_update(seed: int, tmp_path: Path) -> None:
    lose_the_scheduler(seed, tmp_path)


def lose_the_scheduler(seed: int, tmp_path: Path) -> None:
    """Break connections of some sites, the server's among them, at random moments."""
    rng = np.random.default_rng(seed)
    breaks = ", ".join(
        f'{{kind = "disconnect", site = "dc{rng.integers(1, 10)}", at_s = {rng.uniform(0, 5):.4f}, '
        f"for_s = {rng.choice([0, 0.01, 1.0])}}}"
        for _ in range(5)
    )
    pace, route = PACES[seed % len(PACES)], ROUTES[seed // len(PACES) % len(ROUTES)]
    happened = simulated(scenario(pace, route, f"fault = [{breaks}]"), tmp_path)
    applied = Counter(event.site for event in happened if isinstance(event, UpdateApplied))
    discarded = Counter(event.site for event in happened if isinstance(event, UpdateDiscarded))
    assert applied + discarded == dict.fromkeys(range(8), 12)
    cut = [event.site for event in happened if isinstance(event, SiteCut)]
    assert sorted(cut) == sorted(event.site for event in happened if isinstance(event, SiteResumed))
    assert not any(isinstance(event, SiteLost) for event in happened)
    end = happened[-1]
    assert isinstance(end, RunEnded)
    assert end.error is None


@pytest.mark.parametrize("is_carried", [False, True])
def test_a_worker_that_does_not_reach_the_scheduler_is_carried_by_its_server_or_lost(
    is_carried: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_carried:
        monkeypatch.setattr(Connections, "that_may_pipe", lambda self: [])
    fault = 'fault = [{kind = "disconnect", site = "dc3", at_s = 1.0, for_s = 60}]'
    text = scenario('{kind = "bsp"}', '{kind = "star", hub = "dc9"}', fault)
    hub(tmp_path, "dc9", [f"dc{k}" for k in range(1, 9)], 1e8)
    text = text.replace('overlay = "internet2-9"', 'overlay = "hub.toml"')
    happened = simulated(text, tmp_path)
    lost = [event for event in happened if isinstance(event, SiteLost)]
    applied = Counter(event.site for event in happened if isinstance(event, UpdateApplied))
    if is_carried:
        assert not lost
        assert every(applied[site] == 12 for site in range(8))
        return
    assert [event.site for event in lost] == [2]
    assert 6.0 <= lost[0].at_s < 8.0  # 5 s of patience
    assert every(applied[site] == 12 for site in range(8) if site != 2)


@seeds(3, 8)
def test_the_rest_trains_on_when_a_leaf_of_a_tree_that_adds_up_dies(
    seed: int, tmp_path: Path
) -> None:
    rng = np.random.default_rng(seed)
    victim = int(rng.integers(2, 8))
    fault = f'fault = [{{kind = "kill", site = "dc{victim + 1}", at_s = {rng.uniform(0, 4):.3f}}}]'
    text = scenario('{kind = "bsp"}', '{kind = "fapt", roots = ["dc9"]}', fault)
    text = text.replace('overlay = "internet2-9"', 'overlay = "two-levels.toml"')
    two_levels(tmp_path)
    happened = simulated(text, tmp_path)
    check_that_the_rest_went_on(happened, victim)
    replay(read_events(tmp_path / "run.db"))


def test_under_a_barrier_each_link_of_a_tree_carries_one_model_a_step_each_way(
    tmp_path: Path,
) -> None:
    two_levels(tmp_path)
    text = scenario('{kind = "bsp"}', '{kind = "fapt", roots = ["dc9"]}')
    text = text.replace('overlay = "internet2-9"', 'overlay = "two-levels.toml"')
    happened = simulated(text, tmp_path)
    started = next(event for event in happened if isinstance(event, RunStarted))
    carried: Counter[tuple[int, int]] = Counter()
    for event in happened:
        if isinstance(event, LinkBytes):
            carried[event.source, event.target] += event.payload_bytes
    up = {(0, 8), (1, 8), *((k, 0) for k in (2, 3, 4)), *((k, 1) for k in (5, 6, 7))}
    assert carried == {
        **dict.fromkeys(up, 12 * started.buffer_bytes),
        # The model of the last step goes to nobody.
        **{(above, below): 11 * started.buffer_bytes for below, above in up},
    }


def test_without_a_site_that_an_auxiliary_path_passes_the_run_ends_by_name(tmp_path: Path) -> None:
    hub(tmp_path, "dc9", [f"dc{k}" for k in range(1, 9)], 1e6)
    with (tmp_path / "hub.toml").open("a") as file:  # a way from dc9 to dc2 and back over dc1
        file.write('[[link]]\nfrom = "dc1"\nto = "dc2"\nback_rate_bps = 1e6\n')
    fault = 'fault = [{kind = "kill", site = "dc1", at_s = 0.5}]'
    text = scenario('{kind = "asp"}', '{kind = "star", hub = "dc9"}', fault)
    text = text.replace('overlay = "internet2-9"', 'overlay = "hub.toml"')
    assert isinstance(simulated(text, tmp_path)[-1], RunEnded)
    (tmp_path / "run.db").unlink()
    with pytest.raises(RunAborted, match=r"site 0 \(dc1\) died in update \d+"):
        simulated(f"auxiliary = {{}}\n{text}", tmp_path)


def test_without_a_site_that_others_need_the_run_ends_by_name(tmp_path: Path) -> None:
    fault = 'fault = [{kind = "kill", site = "dc5", at_s = 1.0}]'
    text = scenario('{kind = "asp"}', '{kind = "star", hub = "dc5"}', fault)
    with pytest.raises(RunAborted, match=r"site 4 \(dc5\) died"):
        simulated(text, tmp_path)


@pytest.mark.parametrize("pace", ['{kind = "bsp"}', '{kind = "asp"}'])
def test_without_a_relay_of_an_auxiliary_path_the_run_ends_by_name(
    pace: str, tmp_path: Path
) -> None:
    workers = [f"dc{k}" for k in range(1, 9)]
    edges = [*(("dc9", worker) for worker in workers), *pairwise(workers)]
    write_overlay(tmp_path, "hub", edges, 2e7)
    more = (
        'auxiliary = {}\nchunk_elements = 5000\nfault = [{kind = "kill", site = "dc3", at_s = 1.2}]'
    )
    text = scenario(pace, '{kind = "star", hub = "dc9"}', more)
    text = text.replace('overlay = "internet2-9"', 'overlay = "hub.toml"')
    text = text.partition("task = ")[0] + 'task = {kind = "exchange", elements = 200_000}\n'
    with pytest.raises(RunAborted, match=r"site 2 \(dc3\) died"):
        simulated(text, tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_real_workers_train_on_when_one_is_killed(tmp_path: Path) -> None:
    kill_a_real_worker('{kind = "r2sp"}', tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_real_workers_train_on_when_a_leaf_of_a_tree_that_adds_up_is_killed(tmp_path: Path) -> None:
    kill_a_real_worker('{kind = "bsp"}', tmp_path, below="a")


@pytest.mark.slow
def test_a_real_worker_that_was_killed_takes_part_again(tmp_path: Path) -> None:
    kill_a_real_worker('{kind = "bsp"}', tmp_path, below="a", back=True)


ENDS_WHEN_TOLD = """
from pathlib import Path

import numpy as np
from anabranch.train.optimisers import Sgd

class Work:
    make_rule = Sgd(0.1).start

    def __init__(self, over):
        self.over = over
        self.model, self.buffer = np.zeros(100_000, np.float32), np.zeros(100_000, np.float32)

    def local_step(self, samples):
        self.buffer[:] = self.model - 1.0

    def apply(self, round): ...

    def evaluate(self):
        return float(self.over.exists())

    def state_dict(self):
        return {"model": {"all": self.model}}

    def load_state_dict(self, state):
        self.model[:] = state["model"]["all"]

def make(context):
    return Work(Path(context.options["over"]))
"""


def served_until_told(
    folder: Path, edges: list[tuple[str, str]], pace: str
) -> tuple[Path, Path, Path]:
    """Write a scenario that ends once a file exists; return its path, its log's, and that file's.

    However busy the machine is, a test then sees all that it waits for.
    """
    write_overlay(folder, "hub", edges, 1e8)
    (folder / "told.py").write_text(ENDS_WHEN_TOLD)
    path, over = folder / "scenario.toml", folder / "over"
    path.write_text(
        'overlay = "hub.toml"\nroute = {kind = "fapt", roots = ["server"]}\n'
        f'serve = {{only = ["server"]}}\npace = {pace}\n'
        "stop = {rounds = 1_000_000, at_target = true}\n"
        "compute = {samples_per_s = 400}\n"
        '[task]\nkind = "own"\nfactory = "told:make"\nfolder = "."\nbatch_size = 20\n'
        f"evaluate_every_s = 0.1\ntarget_accuracy = 1.0\noptions = {{over = '{over}'}}\n"
    )
    return path, folder / "run.db", over


def counted(log: Path, kind: type[Event], since: type[Event], site: int | None = None) -> int:
    """Count events of a kind, of a site if one is given, after the last of another kind."""
    count = 0
    for _, event in read_events(log) if log.exists() else ():
        if isinstance(event, kind) and site in (None, getattr(event, "site", None)):
            count += 1
        elif isinstance(event, since):
            count = 0
    return count


def check_all_were_settled_once(happened: list[Event], workers: Iterable[int]) -> None:
    """Check that no update was settled twice, and that these workers left none out."""
    settled = [
        (e.site, e.update) for e in happened if isinstance(e, UpdateApplied | UpdateDiscarded)
    ]
    assert len(set(settled)) == len(settled)
    for worker in workers:
        of_it = sorted(update for site, update in settled if site == worker)
        assert of_it == [*range(1, len(of_it) + 1)]


def kill_a_real_worker(
    pace: str,
    tmp_path: Path,
    after: int = 8,
    then_s: float = 0.0,
    below: str = "server",
    back: bool = False,
) -> None:
    """Kill a worker; end the run after ten more updates, or after ten of its own once it is back.

    It is killed so many updates, and then so many seconds, after the beginning. Its updates go to
    the server through the site that it is below.

    Args:
        back: start it again at once.
    """
    edges = [("server", "a"), (below, "b"), ("server", "c")]
    path, log, over = served_until_told(tmp_path, edges, pace)
    pids: dict[str, int] = {}
    started: list[subprocess.Popen[bytes]] = []
    at_s: list[float] = []  # when it is to die

    def is_enough() -> bool:
        if back:
            is_there = counted(log, SiteJoined, SiteLost) > 0
            return is_there and counted(log, UpdateApplied, SiteJoined, site=1) >= 10
        is_lost = counted(log, SiteLost, RunStarted) > 0
        return is_lost and counted(log, UpdateApplied, SiteLost) >= 10

    def look() -> None:
        if not at_s and counted(log, UpdateApplied, RunStarted) >= after:
            at_s.append(time.monotonic() + then_s)
        if "site b" in pids and at_s and time.monotonic() >= at_s[0]:
            pid = pids.pop("site b")
            again = command_of(pid) if back else None
            os.kill(pid, signal.SIGKILL)
            if again is not None:
                started.append(subprocess.Popen(**again))
        elif pids and "site b" not in pids and is_enough():
            over.touch()

    try:
        overlay = load(str(tmp_path / "hub.toml"))
        run_locally(path, 0, overlay, log, on_tick=look, on_started=pids.update)
        assert [process.wait() for process in started] == [0] * back
    finally:
        for process in started:
            process.kill()
            process.wait()
    happened = [event for _, event in read_events(log)]
    check_all_were_settled_once(happened, (0, 2))
    assert [event.site for event in happened if isinstance(event, SiteLost)] == [1]
    joined = [e.site for e in happened if isinstance(e, SiteJoined) and e.at_s > 0]
    assert joined == [1] * back
    if not back:
        applied = Counter(event.site for event in happened if isinstance(event, UpdateApplied))
        assert applied[1] < min(applied[0], applied[2])
    replay(read_events(log))


def command_of(pid: int) -> dict[str, Any]:
    """Return what starts another process like this one, that nobody holds by its input."""
    process = Path(f"/proc/{pid}")
    arguments, environment = (
        (process / part).read_bytes().rstrip(b"\0").split(b"\0") for part in ("cmdline", "environ")
    )
    return {
        "args": [each for each in arguments if each != b"--stop-with-stdin"],
        "env": dict(each.split(b"=", 1) for each in environment),
        "stdin": subprocess.DEVNULL,
    }


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_real_sites_train_on_when_their_connections_break(tmp_path: Path) -> None:
    break_real_connections('{kind = "r2sp"}', [3, 11, 20], 0.0, tmp_path)


def break_real_connections(pace: str, after: list[int], then_s: float, tmp_path: Path) -> None:
    """Break all connections to the scheduler, each time so many updates and seconds later."""
    edges = [("server", "a"), ("server", "b"), ("server", "c")]
    path, log, over = served_until_told(tmp_path, edges, pace)
    due, at_s = sorted(after), list[float]()

    def break_in_time(relay: Relay) -> None:
        if due and counted(log, UpdateApplied, RunStarted) >= due[0]:
            due.pop(0)
            at_s.append(time.monotonic() + then_s)
        if at_s and time.monotonic() >= at_s[0]:
            at_s.pop(0)
            relay.break_all()
        is_back = not due and not at_s and counted(log, SiteResumed, RunStarted) >= 4
        if is_back and counted(log, UpdateApplied, SiteResumed) >= 10:
            over.touch()

    overlay = load(str(tmp_path / "hub.toml"))
    broken = run_through_a_relay(path, overlay, log, break_in_time, limit_s=110.0)
    assert broken >= 4
    happened = [event for _, event in read_events(log)]
    check_all_were_settled_once(happened, range(3))
    assert sum(isinstance(event, SiteResumed) for event in happened) >= 4
    assert not any(isinstance(event, SiteLost) for event in happened)


def test_a_twin_of_what_has_no_rounds_is_refused_by_name() -> None:
    with pytest.raises(ScenarioError, match="pace: a twin compares rounds"):
        check_twin(loads(scenario('{kind = "asp"}')))


@pytest.mark.parametrize(
    ("stop", "why"),
    [("rounds = 300, after_s = 3", "3 s are over"), ("rounds = 300, at_target = true", "accuracy")],
)
def test_a_run_with_servers_stops_when_asked(stop: str, why: str, tmp_path: Path) -> None:
    text = scenario('{kind = "r2sp"}').replace("rounds = 12", stop)
    text = text.replace("learning_rate = 0.5", "learning_rate = 0.5, target_accuracy = 0.5")
    end = simulated(text, tmp_path)[-1]
    assert isinstance(end, RunEnded)
    assert end.error is None
    assert end.reason is not None
    assert why in end.reason
    assert end.at_s < 10.0


def test_the_model_is_looked_at_by_whoever_pulls_it_first_after_a_time(tmp_path: Path) -> None:
    text = scenario('{kind = "r2sp"}').replace("0.5}", "0.5, evaluate_every_s = 0.2}")
    happened = simulated(text, tmp_path)
    looks = [event for event in happened if isinstance(event, Evaluated)]
    went = [event for event in happened if isinstance(event, WorkerWent) and event.update > 1]
    assert len(looks) == len({event.at_s // 0.2 for event in went}) + 1 > 20  # and in the end
    assert len({event.site for event in looks}) > 3
    assert replay(read_events(tmp_path / "run.db")).decided


def test_where_chunks_have_no_numbers_there_is_nothing_to_look_at(tmp_path: Path) -> None:
    text = scenario('{kind = "asp"}', more='simulation.tensors = "sizes"')
    happened = simulated(text.replace("0.5}", "0.5, evaluate_every_s = 0.2}"), tmp_path)
    assert isinstance(happened[-1], RunEnded)
    assert happened[-1].error is None
    assert not any(isinstance(event, Evaluated) for event in happened)


@pytest.mark.parametrize(
    ("pace", "elements"), [*((pace, 1) for pace in PACES), ('{kind = "asp"}', 7)]
)
def test_a_root_that_gets_nothing_of_a_small_model_is_no_server(
    pace: str, elements: int, tmp_path: Path
) -> None:
    text = scenario(pace, '{kind = "fapt"}').partition("task =")[0]
    task = f'task = {{kind = "exchange", elements = {elements}, batch_size = 10}}\n'
    happened = simulated(f"{text}{task}compute = {{samples_per_s = 100}}\n", tmp_path)
    went = Counter(event.site for event in happened if isinstance(event, WorkerWent))
    assert went == dict.fromkeys(range(8), 12)
    assert replay(read_events(tmp_path / "run.db")).decided


@pytest.mark.parametrize("elements", [200_000, 2_000_000])
@pytest.mark.parametrize(
    "route", ['{kind = "star", hub = "site0"}', '{kind = "packed"}', '{kind = "ring"}']
)
def test_r2sp_discards_no_update_of_an_equal_fleet(
    route: str, elements: int, tmp_path: Path
) -> None:
    """Its first iterations pull no model, and where a worker serves, its own cross no link."""
    mesh = random_complete(4, 0, low_bps=1e8, high_bps=1e8, latency_s=0.01)
    (tmp_path / "mesh.toml").write_text(dumps(mesh))
    happened = simulated(
        f'overlay = "mesh.toml"\nroute = {route}\npace = {{kind = "r2sp"}}\nstop = {{rounds = 6}}\n'
        f'task = {{kind = "exchange", elements = {elements}, batch_size = 16}}\n'
        "compute = {samples_per_s = 1600}\n",
        tmp_path,
    )
    assert not any(isinstance(event, UpdateDiscarded) for event in happened)
    applied = Counter(event.site for event in happened if isinstance(event, UpdateApplied))
    assert applied == dict.fromkeys(range(4), 6)
