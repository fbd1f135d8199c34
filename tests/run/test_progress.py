"""What a terminal shows while a run goes on: how far it is, its loss, and how long it takes yet."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from anabranch.log import RoundDone, RunStarted, StepDone, summarise
from anabranch.log.events import Event
from anabranch.log.store import EventLog
from anabranch.overlay import dumps, random_complete
from anabranch.plan import dumps as dump_plan
from anabranch.plan import star
from anabranch_lab.run.progress import LiveRun, mean_loss, remaining_s

OVERLAY = random_complete(2, 0)
STARTED = RunStarted(
    at_s=0.0,
    label="star",
    overlay_toml=dumps(OVERLAY),
    plan_json=dump_plan(star(OVERLAY, hub=0)),
    sites=["site0", "site1"],
    buffer_bytes=4000,
    chunk_elements=1000,
    shaped=False,
    task="digits",
    model="mlp",
    seed=0,
    rounds=100,
    predicted_s=1.0,
    paper_s=1.0,
    limit_s=None,
    target_accuracy=None,
    versions={},
    started_at=None,
)


def round_at(number: int, at_s: float) -> list[Event]:
    return [
        *(
            StepDone(
                at_s=at_s - 0.1,
                site=site,
                round=number,
                loss=(site + 1) / number,
                samples=8,
                compute_s=0.1,
            )
            for site in range(2)
        ),
        *(
            RoundDone(at_s=at_s, site=site, round=number, version=1, seconds=0.5, checksum=None)
            for site in range(2)
        ),
    ]


def test_the_rest_takes_as_long_as_the_latest_rounds() -> None:
    slow = [event for number in range(1, 11) for event in round_at(number, 10.0 * number)]
    fast = [event for number in range(11, 41) for event in round_at(number, 90.0 + number)]
    run = summarise([STARTED, *slow, *fast])
    assert remaining_s(run, 40) == pytest.approx(60.0)
    assert mean_loss(run) == pytest.approx(1.5 / 40)


def test_nothing_is_foretold_before_the_first_round() -> None:
    run = summarise([STARTED])
    assert remaining_s(run, 0) is None
    assert mean_loss(run) is None


def test_a_terminal_shows_loss_and_time_left(tmp_path: Path) -> None:
    log = tmp_path / "run.db"
    terminal = Console(force_terminal=True, color_system=None, width=120, file=io.StringIO())
    with EventLog.create(log) as writing, LiveRun("demo", log, terminal) as live:
        writing.append([STARTED, *round_at(1, 10.0)])
        live.tick()
        with terminal.capture() as shown:
            terminal.print(live._bar)
    text = shown.get()
    assert " 1/100 rounds, loss 1.5" in text
    assert "0:16:30 left" in text


def test_a_run_goes_on_in_the_log_of_a_scheduler_that_was_started_again(tmp_path: Path) -> None:
    terminal = Console(force_terminal=True, color_system=None, width=120, file=io.StringIO())
    with LiveRun("demo", tmp_path / "run.db", terminal) as live:
        for name, rounds in (("run.db", (1, 2)), ("run-2.db", (3,))):
            with EventLog.create(tmp_path / name) as writing:
                made = [event for number in rounds for event in round_at(number, 10.0 * number)]
                writing.append([STARTED, *made])
        live.tick()
        with terminal.capture() as shown:
            terminal.print(live._bar)
    assert " 3/100 rounds" in shown.get()
