"""A run's log, played to a fresh pace: the same decisions at the same moments, in both worlds."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from anabranch.log import (
    Event,
    PaceLooked,
    ProceedAsked,
    RunStarted,
    RunStopping,
    SiteJoined,
    SiteLost,
    UnknownEvent,
    UpdateApplied,
    UpdateCame,
    UpdateDiscarded,
    WorkerWent,
    read_events,
)
from anabranch.overlay import load
from anabranch_lab.run.launch import run_locally
from anabranch_lab.run.replay import ReplayError, replay
from anabranch_lab.run.scenario import load as load_scenario
from anabranch_lab.run.simulate import simulate
from tests.run.test_served import PACES, hub, scenario
from tests.seeds import slow_after

HUNG = 'fault = [{kind = "slow", site = "dc2", at_s = 1.0, factor = 9.0}]'
UNEVEN = (
    'load = {kind = "tuned", most = 300}\n'
    'fault = [{kind = "kill", site = "dc2", at_s = 2.0, for_s = 1.5}, '
    '{kind = "pause", site = "dc3", at_s = 3.0, for_s = 6.0}]\n'
)


def exchange(pace: str, more: str = "") -> str:
    return (
        'overlay = "hub.toml"\nroute = {kind = "star", hub = "server"}\n'
        f'serve = {{only = ["server"]}}\npace = {pace}\nstop = {{rounds = 8}}\n{more}'
        'task = {kind = "exchange", elements = 50_000, batch_size = 20}\n'
    )


def log_of(text: str, folder: Path, workers: list[str], server: str) -> Path:
    hub(folder, server, workers, 1e8)
    path, log = folder / "scenario.toml", folder / "run.db"
    path.write_text(text)
    simulate(*load_scenario(path), log)
    return log


def simulated(pace: str, more: str, folder: Path, ahead: str = "false") -> Path:
    """Return the log of eight sites under a pace, with a server of its own where all are alike."""
    text = scenario(pace, '{kind = "star", hub = "dc9"}', more)
    text = text.replace('only = ["dc9"]', f'only = ["dc9"], ahead = {ahead}')
    text = text.replace('overlay = "internet2-9"', 'overlay = "hub.toml"')
    text = text.replace(
        "samples_per_s = 100}",
        'samples_per_s = 100, gini = 0.2, jitter = {kind = "lognormal", cv = 0.3}}',
    )
    return log_of(text, folder, [f"dc{k}" for k in range(1, 9)], "dc9")


def counted(log: Path, kind: type[Event]) -> int:
    return sum(isinstance(event, kind) for _, event in read_events(log))


@pytest.mark.parametrize("pace", slow_after(4, PACES))
@pytest.mark.parametrize("more", ["", UNEVEN])
def test_a_simulated_run_decides_alike_again(pace: str, more: str, tmp_path: Path) -> None:
    log = simulated(pace, more, tmp_path)
    done = replay(read_events(log))
    assert f'"{done.pace}"' in pace
    assert done.told >= 2 * counted(log, UpdateApplied)
    assert counted(log, SiteLost) == (1 if more else 0)
    assert counted(log, SiteJoined) == (10 if more else 9)


@pytest.mark.parametrize("more", [HUNG, UNEVEN])
@pytest.mark.parametrize("ahead", ["false", "true"])
def test_a_run_whose_workers_abandon_updates_decides_alike_again(
    ahead: str, more: str, tmp_path: Path
) -> None:
    log = simulated('{kind = "safa", lag_tolerance = 0}', more, tmp_path, ahead)
    replay(read_events(log))
    assert counted(log, UpdateDiscarded) > 8
    assert counted(log, UpdateApplied) + counted(log, UpdateDiscarded) == 8 * 12


@pytest.mark.slow
@pytest.mark.parametrize("pace", ['{kind = "r2sp"}', '{kind = "safa", lag_tolerance = 0}'])
@pytest.mark.usefixtures("forked")
def test_a_real_run_decides_alike_again(pace: str, tmp_path: Path) -> None:
    hub(tmp_path, "server", "abc", 1e8)
    text = exchange(pace, "compute = {samples_per_s = 200}\n")
    (tmp_path / "scenario.toml").write_text(text)
    log = tmp_path / "run.db"
    run_locally(tmp_path / "scenario.toml", 0, load(str(tmp_path / "hub.toml")), log)
    done = replay(read_events(log))
    decided = (UpdateCame, UpdateApplied, UpdateDiscarded, WorkerWent)
    assert done.decided == sum(counted(log, kind) for kind in decided)
    # A machine that holds up a worker makes it late: an update may miss too much, and is discarded.
    assert counted(log, UpdateApplied) + counted(log, UpdateDiscarded) == 3 * 8


def test_a_run_that_is_told_to_stop_decides_alike_again(tmp_path: Path) -> None:
    text = exchange('{kind = "r2sp"}', "compute = {samples_per_s = 20}\n")
    text = text.replace("rounds = 8", "rounds = 300, after_s = 7.5")
    log = log_of(text, tmp_path, ["a", "b", "c"], "server")
    replay(read_events(log))
    assert counted(log, RunStopping) == 1


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, Event | UnknownEvent]]:
    """The log of a run in which turns come by time, one worker dies and is back, one lags."""
    return list(read_events(simulated('{kind = "r2sp"}', UNEVEN, tmp_path_factory.mktemp("log"))))


def test_a_log_cut_short_is_played_as_far_as_it_goes(
    told: list[tuple[int, Event | UnknownEvent]],
) -> None:
    whole = replay(told)
    for length in range(1, len(told), 97):
        assert replay(told[:length]).decided <= whole.decided


@pytest.mark.parametrize(
    ("kind", "changes", "named"),
    [
        (UpdateApplied, {"missed": 99}, "missed=99"),
        (WorkerWent, {"samples": 1}, "samples=1"),
        (WorkerWent, {"at_s": 3.0000000001}, "at_s=3.0000000001"),
        (ProceedAsked, {"update": 99}, "update 99 of site"),
        (PaceLooked, {"at_s": 0.0}, "a fresh pace cannot be told PaceLooked"),
    ],
)
def test_the_first_event_that_differs_is_named(
    kind: type[Event],
    changes: dict[str, object],
    named: str,
    told: list[tuple[int, Event | UnknownEvent]],
) -> None:
    found = [number for number, event in told if isinstance(event, kind)]
    at = found[len(found) // 2]
    changed = [
        (number, msgspec.structs.replace(event, **changes) if number == at else event)
        for number, event in told
    ]
    with pytest.raises(ReplayError, match=rf"^event {at}\b.*{named}"):
        replay(changed)


@pytest.mark.parametrize("kind", [ProceedAsked, UpdateApplied, WorkerWent, SiteLost, PaceLooked])
def test_an_event_that_is_missing_is_missed(
    kind: type[Event], told: list[tuple[int, Event | UnknownEvent]]
) -> None:
    found = [number for number, event in told if isinstance(event, kind)]
    gone = found[len(found) // 2]
    with pytest.raises(ReplayError, match="a fresh pace"):
        replay([(number, event) for number, event in told if number != gone])


def test_a_worker_that_came_back_unsaid_is_missed(
    told: list[tuple[int, Event | UnknownEvent]],
) -> None:
    back = max(number for number, event in told if isinstance(event, SiteJoined))
    with pytest.raises(ReplayError, match="a fresh pace"):
        replay([(number, event) for number, event in told if number != back])


def test_another_pace_decides_otherwise(told: list[tuple[int, Event | UnknownEvent]]) -> None:
    number, started = told[0]
    assert isinstance(started, RunStarted)
    other = msgspec.structs.replace(
        started, pacing_json=started.pacing_json.replace('"relaxation":0.8', '"relaxation":0.7')
    )
    assert other != started
    with pytest.raises(ReplayError, match="a fresh pace"):
        replay([(number, other), *told[1:]])


def test_what_cannot_be_played_is_said(told: list[tuple[int, Event | UnknownEvent]]) -> None:
    number, started = told[0]
    with pytest.raises(ReplayError, match="does not begin with run_started"):
        replay(told[1:])
    unpaced = msgspec.structs.replace(started, pacing_json="")
    with pytest.raises(ReplayError, match="the log names no pace"):
        replay([(number, unpaced)])
    odd = msgspec.structs.replace(started, pacing_json='{"pace":{"kind":"waltz"}}')
    with pytest.raises(ReplayError, match="makes no sense here: Invalid value 'waltz'"):
        replay([(number, odd)])
    unknown = UnknownEvent(at_s=1.0, kind="eclipse", data="{}", reason="unknown")
    with pytest.raises(ReplayError, match="event 2, eclipse, is of another release"):
        replay([told[0], (2, unknown)])
