"""Turns in a fixed order, evenly apart, and what becomes of those who do not come."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from anabranch.pace import R2sp, Step
from tests.pace.world import Story, live


def together(workers: int) -> list[tuple[float, int]]:
    return [(0.0, worker) for worker in range(workers)]


def turns(story: Story) -> list[tuple[float, int]]:
    """Return when somebody's update became part of the model, and whose."""
    return [(at_s, step.apply[0][0]) for at_s, step in story.steps if step.apply]


def test_equal_workers_update_evenly_apart_in_a_fixed_order() -> None:
    story = live(R2sp(relaxation=1.0), lambda worker, k: 8.0, together(8))
    found = turns(story)
    assert [worker for _, worker in found] == [k % 8 for k in range(len(found))]
    gaps_s = [after - before for (before, _), (after, _) in pairwise(found)]
    assert gaps_s == pytest.approx([1.0] * len(gaps_s))
    assert len(found) > 80


def test_the_relaxation_lets_early_birds_go_and_a_cycle_still_lasts_an_iteration() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(1.0, 0.03, (8, 1000))
    cycles_s = {}
    for relaxation in (0.8, 1.0):
        takes = lambda worker, k: float(8.0 * noise[worker, k])  # noqa: E731
        story = live(R2sp(relaxation=relaxation), takes, together(8), until_s=2000.0)
        went_s = story.went[0]
        cycles_s[relaxation] = (went_s[-1] - went_s[20]) / (len(went_s) - 21)
    assert 8.0 <= cycles_s[0.8] < cycles_s[1.0] < 8.6


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_the_worst_staleness_is_one_update_of_everybody_else(workers: int) -> None:
    rng = np.random.default_rng(0)
    noise = rng.lognormal(0.0, 0.3, (workers, 1000))
    story = live(R2sp(), lambda worker, k: float(noise[worker, k]), together(workers))
    missed = {each.missed for each in story.applied}
    assert max(missed) == workers - 1
    assert missed <= set(range(workers))


def test_the_gap_follows_the_slowest_worker() -> None:
    pace = R2sp(relaxation=0.8)
    rule = pace.rule()
    speeds_s = (1.0, 2.0, 5.0)
    live(pace, lambda worker, k: speeds_s[worker], together(3), rule=rule)
    assert rule.iteration_s == pytest.approx(5.0)
    assert rule.gap_s == pytest.approx(0.8 * 5.0 / 3)


def test_a_worker_that_stalls_is_passed_over_and_takes_its_place_again() -> None:
    def takes(worker: int, iteration: int) -> float:
        return 60.0 if (worker, iteration) == (2, 5) else 4.0

    story = live(R2sp(), takes, together(4), until_s=200.0)
    stalled_s = story.went[2][4]
    others_s = [at_s for at_s in story.went[1] if stalled_s <= at_s <= stalled_s + 60.0]
    assert len(others_s) >= 12  # at most one iteration's wait for it, then as before
    assert story.discarded == [(2, 5)]  # it had missed too much
    found = [worker for at_s, worker in turns(story) if at_s > story.went[2][5] + 8.0]
    assert found == [(found[0] + k) % 4 for k in range(len(found))]


def test_one_worker_s_hang_hardly_slows_the_turns_and_a_slower_pace_is_followed() -> None:
    def takes(worker: int, iteration: int) -> float:
        return 34.0 if (worker, iteration) == (2, 5) else 4.0

    pace, rule = R2sp(relaxation=0.8), R2sp(relaxation=0.8).rule()
    live(pace, takes, together(4), rule=rule, until_s=70.0)
    assert rule.gap_s < 1.2 * 0.8 * 4.0 / 4  # of 0.8 s; 30 s averaged in made it 2.3 s
    rule = pace.rule()
    live(pace, lambda w, k: 40.0 if w == 2 and k > 5 else 4.0, together(4), rule=rule, until_s=900)
    assert rule.gap_s == pytest.approx(0.8 * 40.0 / 4, rel=0.05)


def test_when_the_one_whose_turn_it_is_leaves_the_turn_is_the_next_one_s() -> None:
    rule = R2sp(relaxation=1.0).rule()
    for worker in range(4):
        rule.join(worker, 0.0)
    (first,) = rule.push(0, 1.0)
    assert first.apply == ((0, 1),)
    assert rule.leave(1, 1.1) == ()
    assert rule.push(3, 1.2) == ()  # it is the turn of 2
    steps = rule.push(2, 2.0)
    assert [step.apply for step in steps] == [((2, 1),)]


def test_a_worker_that_never_comes_costs_a_wait_and_no_more() -> None:
    def takes(worker: int, iteration: int) -> float:
        return float("inf") if (worker, iteration) == (0, 6) else 4.0

    story = live(R2sp(), takes, together(4), until_s=400.0)
    assert story.discarded == []
    went_s = [at_s for at_s in story.went[3] if at_s > 60.0]
    assert [after - before for before, after in pairwise(went_s)] == pytest.approx(
        [4.0] * (len(went_s) - 1), abs=0.1
    )


def test_one_that_joins_takes_its_place_by_index() -> None:
    story = live(R2sp(), lambda worker, k: 4.0, [(0.0, 0), (0.0, 2), (30.0, 1)])
    found = [worker for at_s, worker in turns(story) if at_s > 50.0]
    assert found == [(found[0] + k) % 3 for k in range(len(found))]


def test_a_look_before_anything_is_due_decides_nothing() -> None:
    rule = R2sp(relaxation=1.0).rule()
    for worker in (0, 1):
        assert rule.join(worker, 0.0) == (Step(proceed=(worker,)),)
    assert rule.push(0, 4.0) == (Step(((0, 1),), (0,)),)
    assert rule.push(1, 4.0) == ()
    assert rule.due_s == 6.0
    assert rule.look(5.0) == ()
    assert rule.look(6.0) == (Step(((1, 1),), (1,)),)


@pytest.mark.parametrize("relaxation", [-0.1, 1.1, float("nan")])
def test_a_relaxation_out_of_range_is_refused(relaxation: float) -> None:
    with pytest.raises(ValueError, match=r"must be in \[0, 1\]"):
        R2sp(relaxation=relaxation)
