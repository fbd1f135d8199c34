"""When a run ends before its last round."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.plan import Plan
from anabranch.record import events
from anabranch.record.events import ReachedBy
from anabranch.scheduler.stop_rules import StopRules, Stops
from anabranch.scheduler.stopping import StoppingLog
from anabranch.sim.loop import run_virtually


def evaluated(site: int, accuracy: float, step: int | None = 1) -> events.Evaluated:
    return events.Evaluated(at_s=1.0, site=site, round=3, accuracy=accuracy, step=step)


def lost(site: int, goes_on: bool = True) -> events.SiteLost:
    return events.SiteLost(at_s=1.0, site=site, detail="died", goes_on=goes_on)


def joined(site: int) -> events.SiteJoined:
    return events.SiteJoined(at_s=1.0, site=site, name="a", address="a:1")


def last(stops: Stops, *happened: events.Event) -> str | None:
    *before, latest = map(stops.saw, happened)
    assert set(before) <= {None}
    return latest


REACHED = "accuracy 0.9 was reached after round 3"


@pytest.mark.parametrize(
    ("by", "happened", "why"),
    [
        ("first", [evaluated(0, 0.9)], REACHED),
        ("first", [evaluated(0, 0.89)], None),
        ("all", [evaluated(0, 0.95)], None),
        ("all", [evaluated(0, 0.95), evaluated(1, 0.9)], REACHED),
        ("all", [lost(1), evaluated(0, 0.9)], REACHED),
        ("all", [lost(1, goes_on=False), evaluated(0, 0.9)], None),
        ("all", [lost(1), joined(1), evaluated(0, 0.9)], None),
        ("mean", [evaluated(0, 0.8), evaluated(1, 1.0)], REACHED),
    ],
)
def test_a_run_ends_with_the_accuracy_that_was_asked_for(
    by: ReachedBy, happened: list[events.Event], why: str | None
) -> None:
    assert last(StopRules(accuracy=0.9, reached_by=by).follow(sites=2), *happened) == why


def test_without_a_rule_no_event_ends_a_run() -> None:
    assert last(StopRules().follow(sites=2), evaluated(0, 1.0), lost(1)) is None


class Witness:
    """A log that keeps what happens, and what its run is told, in order."""

    def __init__(self) -> None:
        self.kept: list[object] = []

    def began(self, buffer_elements: int, plan: Plan) -> None:
        self.kept.append("began")

    def write(self, *happened: events.Event) -> None:
        self.kept += happened


PLAN: Plan = None  # type: ignore[assignment]


def test_an_event_is_written_before_the_run_ends_for_it_and_counts_from_the_beginning_on() -> None:
    witness = Witness()
    stops = StopRules(accuracy=0.9).follow(sites=1)
    log = StoppingLog(witness, stops, lambda: 0.0, witness.kept.append)
    early, late = evaluated(0, 1.0), evaluated(0, 0.95)
    log.write(early)
    log.began(1, PLAN)
    log.write(late)
    assert witness.kept == [early, "began", late, REACHED]


@pytest.mark.parametrize(("has_lasted_s", "left_s"), [(0.0, 7.0), (5.0, 2.0), (9.0, 0.0)])
def test_a_run_ends_so_long_after_it_began(has_lasted_s: float, left_s: float) -> None:
    """A group's log begins with the first exchange, and again when its scheduler is restarted."""
    ends: list[tuple[float, str]] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        begins_s = loop.time()
        log = StoppingLog(
            Witness(),
            StopRules(after_s=7.0).follow(sites=1),
            lambda: has_lasted_s,
            lambda why: ends.append((loop.time() - begins_s, why)),
        )
        log.began(1, PLAN)
        await asyncio.sleep(20.0)

    run_virtually(run())
    assert ends == [(left_s, "7 s are over")]
