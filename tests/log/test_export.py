"""Rounds as rows for other tools: one a round, flat, and only numbers."""

from __future__ import annotations

import json

import pytest

from anabranch.log import Evaluated, RoundDone, StepDone, summarise
from anabranch_lab.reports.export import as_json_lines, rows

from .conftest import MakeStart


def step(site: int, round: int, at_s: float, loss: float | None, samples: int = 10) -> StepDone:
    return StepDone(at_s=at_s, site=site, round=round, loss=loss, samples=samples, compute_s=0.1)


def done(site: int, round: int, at_s: float, seconds: float) -> RoundDone:
    return RoundDone(at_s=at_s, site=site, round=round, version=2, seconds=seconds, checksum=None)


def test_a_row_has_what_a_round_was_and_when(start: MakeStart) -> None:
    events = [
        start(),
        step(0, 1, 0.5, 2.0),
        step(1, 1, 0.6, 1.0, samples=30),
        *(done(site, 1, 1.0 + site / 10, 0.4) for site in range(4)),
        Evaluated(at_s=1.5, site=0, round=1, accuracy=0.75),
        step(0, 2, 1.7, None),
        step(1, 2, 1.8, 0.5),
        *(done(site, 2, 2.0 + site / 10, 0.5) for site in range(4)),
    ]
    first, second = rows(summarise(events), began_s=1000.0)
    assert first == {
        "_step": 1,
        "_runtime": 1.3,
        "_timestamp": 1001.3,
        "eval/accuracy": 0.75,
        "round/exchange_s": 0.4,
        "round/interval_s": pytest.approx(1.3),
        "round/plan_version": 2,
        "train/loss": 1.25,
        "train/loss/Lima": 1.0,
        "train/loss/Oslo": 2.0,
    }
    assert second["train/loss/Lima"] == 0.5
    assert not {"train/loss", "train/loss/Oslo"} & second.keys()  # diverged: no number
    read = [json.loads(line) for line in as_json_lines([first, second]).splitlines()]
    assert read == [first, second]


def test_a_run_that_never_began_has_no_rows(start: MakeStart) -> None:
    assert rows(summarise([start()])) == []
