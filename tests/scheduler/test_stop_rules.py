"""When a run ends before its last round."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from anabranch.log import events
from anabranch.log.events import ReachedBy
from anabranch.plan import Plan
from anabranch.scheduler._stopping import StoppingLog
from anabranch.scheduler.stop_rules import StopRules
from anabranch_lab.sim.loop import run_virtually


def evaluated(site: int, accuracy: float, step: int | None = 1) -> events.Evaluated:
    return events.Evaluated(at_s=1.0, site=site, round=3, accuracy=accuracy, step=step)


def lost(site: int, goes_on: bool = True) -> events.SiteLost:
    return events.SiteLost(at_s=1.0, site=site, detail="died", goes_on=goes_on)


def joined(site: int) -> events.SiteJoined:
    return events.SiteJoined(at_s=1.0, site=site, name="a", address="a:1")


def lossy(site: int, loss: float | None, step: int = 7) -> events.StepDone:
    return events.StepDone(at_s=1.0, site=site, round=step, loss=loss, samples=1, compute_s=0.0)


def pushed(site: int, loss: float | None) -> events.ProceedAsked:
    return events.ProceedAsked(at_s=1.0, site=site, update=7, samples=1, compute_s=0.0, loss=loss)


def done(round: int) -> events.RoundDone:
    return events.RoundDone(
        at_s=1.0, site=0, round=round, version=1, seconds=1.0, checksum=None, waited_for=None
    )


def left(site: int) -> events.SiteLeft:
    return events.SiteLeft(at_s=1.0, site=site)


BOTH = [joined(0), joined(1)]


def last(rules: StopRules, *happened: events.Event) -> str | None:
    stops = rules.follow(sites=range(2))
    *before, latest = map(stops.saw, [*BOTH, *happened])
    assert {*before} <= {None}
    return latest


REACHED = "accuracy 0.9 was reached after round 3"


LEFT = "accuracy 0.9 was reached by the sites that are left"


@pytest.mark.parametrize(
    ("by", "happened", "why"),
    [
        ("first", [evaluated(0, 0.9)], REACHED),
        ("first", [evaluated(0, 0.89)], None),
        ("all", [evaluated(0, 0.95)], None),
        ("all", [evaluated(0, 0.95), evaluated(1, 0.9)], REACHED),
        ("all", [evaluated(0, 0.9, step=None)], REACHED),
        ("all", [lost(1), evaluated(0, 0.9)], REACHED),
        ("all", [lost(1, goes_on=False), evaluated(0, 0.9)], None),
        ("all", [lost(1), joined(1), evaluated(0, 0.9)], None),
        ("all", [lost(1), lost(1), joined(1), evaluated(0, 0.9)], None),
        ("all", [joined(1), joined(5), evaluated(0, 0.9), evaluated(1, 0.9)], REACHED),
        ("all", [left(1), evaluated(0, 0.9)], REACHED),
        ("all", [left(1), joined(1), evaluated(0, 0.9)], None),
        ("all", [evaluated(1, 0.5), left(1), evaluated(0, 0.9)], None),
        ("all", [evaluated(1, 0.9), left(1), joined(1), evaluated(0, 0.9)], REACHED),
        ("mean", [evaluated(0, 0.8), evaluated(1, 1.0)], REACHED),
        ("all", [evaluated(0, 0.9), lost(1)], LEFT),
        ("all", [evaluated(0, 0.9), evaluated(1, 0.1), lost(1)], LEFT),
        ("all", [evaluated(0, 0.9), left(1)], LEFT),
        ("all", [evaluated(0, 0.8), lost(1)], None),
        ("all", [lost(0), lost(1)], None),
        ("mean", [evaluated(0, 0.9), evaluated(1, 0.1), lost(1)], LEFT),
        ("first", [evaluated(0, 0.8), lost(1)], None),
    ],
)
def test_a_run_ends_with_the_accuracy_that_was_asked_for(
    by: ReachedBy, happened: list[events.Event], why: str | None
) -> None:
    assert last(StopRules(accuracy=0.9, reached_by=by), *happened) == why


def test_a_run_ends_where_a_site_is_lost_that_alone_had_not_reached_the_loss() -> None:
    """Sites may tell once, as where each evaluates rarely: no other event says it later."""
    rules = StopRules(loss=0.5, reached_by="all")
    happened = lossy(0, 0.4), lossy(1, 0.9), lost(1)
    assert last(rules, *happened) == "loss 0.5 was reached by the sites that are left"


FELL = "loss 0.5 was reached at step 7"


@pytest.mark.parametrize(
    ("by", "happened", "why"),
    [
        ("first", [lossy(0, 0.51)], None),
        ("first", [lossy(0, 0.5)], FELL),
        ("first", [pushed(1, 0.5)], FELL),
        ("first", [lossy(0, None)], None),
        ("mean", [lossy(0, 0.4)], None),
        ("mean", [lossy(0, 0.4), lossy(1, 0.7), lossy(1, 0.6)], FELL),
        ("mean", [lossy(0, None), lossy(1, -9.0)], None),
        ("mean", [lossy(0, 0.1), lossy(0, None), lossy(1, 0.1)], None),
        ("all", [lossy(0, 0.1), lossy(1, 0.51)], None),
        ("all", [lossy(0, 0.1), lossy(1, None)], None),
        ("all", [lossy(0, 0.1), pushed(0, None), lossy(1, 0.5)], FELL),
    ],
)
def test_a_run_ends_with_the_loss_that_was_asked_for(
    by: ReachedBy, happened: list[events.Event], why: str | None
) -> None:
    assert last(StopRules(loss=0.5, reached_by=by), *happened) == why


def test_a_run_ends_after_so_many_rounds() -> None:
    assert last(StopRules(rounds=3), done(1), done(2), done(3)) == "3 rounds are over"
    assert last(StopRules(rounds=1), done(1)) == "1 round is over"


def test_sites_that_a_restarted_scheduler_awaits_are_those_that_count() -> None:
    stops = StopRules(accuracy=0.9, reached_by="all").follow(sites=range(3))
    back = events.SchedulerRestarted(at_s=1.0, awaited=[0, 2])
    happened = [back, evaluated(0, 0.9), evaluated(2, 0.9)]
    assert [stops.saw(event) for event in happened] == [None, None, REACHED]


def test_without_a_rule_no_event_ends_a_run() -> None:
    assert last(StopRules(), evaluated(0, 1.0), lossy(0, 0.0), done(9), lost(1)) is None


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"after_s": 0.0}, "after_s is 0.0"),
        ({"after_s": float("inf")}, "after_s is inf"),
        ({"rounds": 0}, "rounds is 0"),
        ({"rounds": 2.5}, "rounds is 2.5"),
        ({"accuracy": 0.0}, "accuracy is 0.0"),
        ({"accuracy": 90.0}, "accuracy is 90.0"),
        ({"loss": float("nan")}, "loss is nan"),
        ({"loss": 0.1, "reached_by": "most"}, "reached_by is 'most', must be one of first, mean"),
        ({"rounds": 3, "reached_by": "all"}, "reached_by: there is no target"),
        ({"loss": 0.1, "window_s": -1.0}, "window_s is -1.0, must be a number of seconds from 0"),
        ({"rounds": 3, "window_s": 9.0}, "window_s: there is no target"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_by_name(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        StopRules(**values)


class Witness:
    """A log that keeps what happens, and what its run is told, in order."""

    def __init__(self) -> None:
        self.kept: list[object] = []

    def began(self, buffer_elements: int, plan: Plan) -> None:
        self.kept.append("began")

    def write(self, *happened: events.Event) -> None:
        self.kept += happened


PLAN: Plan = None  # type: ignore[assignment]


def test_an_event_is_written_before_the_run_ends_for_it() -> None:
    async def run() -> list[object]:
        witness = Witness()
        stops = StopRules(accuracy=0.9).follow(sites=[0])
        log = StoppingLog(witness, stops, lambda: 0.0, witness.kept.append)
        log.began(1, PLAN)
        log.write(late)
        return witness.kept

    late = evaluated(0, 0.95)
    assert run_virtually(run()) == ["began", late, REACHED]


def test_a_target_that_is_told_of_before_the_run_begins_ends_it_then() -> None:
    async def run() -> list[object]:
        witness = Witness()
        stops = StopRules(accuracy=0.9).follow(sites=[0])
        log = StoppingLog(witness, stops, lambda: 0.0, witness.kept.append)
        log.write(early)
        await asyncio.sleep(1.0)
        log.began(1, PLAN)
        await asyncio.sleep(1.0)
        return witness.kept

    early = evaluated(0, 1.0)
    assert run_virtually(run()) == [early, "began", REACHED]


@pytest.mark.parametrize(("has_lasted_s", "left_s"), [(0.0, 7.0), (5.0, 2.0), (9.0, 0.0)])
def test_a_run_ends_so_long_after_it_began(has_lasted_s: float, left_s: float) -> None:
    """A group's log begins with the first exchange, and again when its scheduler is restarted."""
    ends: list[tuple[float, str]] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        begins_s = loop.time()
        log = StoppingLog(
            Witness(),
            StopRules(after_s=7.0).follow(sites=[0]),
            lambda: has_lasted_s,
            lambda why: ends.append((loop.time() - begins_s, why)),
        )
        log.began(1, PLAN)
        await asyncio.sleep(20.0)

    run_virtually(run())
    assert ends == [(left_s, "7 s are over")]
