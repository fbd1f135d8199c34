"""Turns in order of arrival, evenly apart, at the rate of all workers together."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from anabranch.pace import Asp, Metered, R2sp
from tests.pace.test_r2sp import together, turns
from tests.pace.world import live

SPEEDS_S = (1.0, 2.0, 4.0, 4.0)


def test_updates_that_come_together_are_spread_evenly() -> None:
    story = live(Metered(relaxation=1.0), lambda worker, k: 8.0, together(8))
    gaps_s = [after - before for (before, _), (after, _) in pairwise(turns(story))]
    assert gaps_s == pytest.approx([1.0] * len(gaps_s))
    assert len(gaps_s) > 80


def test_the_gap_is_a_part_of_the_time_between_updates_of_all_workers() -> None:
    pace = Metered(relaxation=0.8)
    rule = pace.rule()
    live(pace, lambda worker, k: SPEEDS_S[worker], together(4), rule=rule)
    assert rule.gap_s == pytest.approx(0.8 / (1 / 1 + 1 / 2 + 1 / 4 + 1 / 4))


def test_fast_workers_are_not_held_to_the_slowest_ones_time() -> None:
    def made(pace: Metered | R2sp | Asp) -> int:
        return len(turns(live(pace, lambda worker, k: SPEEDS_S[worker], together(4))))

    assert made(Metered()) > 0.9 * made(Asp())
    assert made(R2sp()) < 0.6 * made(Asp())


def test_what_comes_first_is_first() -> None:
    noise = np.random.default_rng(1).lognormal(0.0, 0.5, (6, 1000))
    story = live(Metered(), lambda worker, k: float(noise[worker, k]), together(6))
    came_s = [story.pushed[step.apply[0]] for _, step in story.steps if step.apply]
    assert came_s == sorted(came_s)
    assert len(came_s) > 300


def test_without_relaxation_it_is_asp() -> None:
    noise = np.random.default_rng(2).lognormal(0.0, 0.5, (5, 1000))
    takes = lambda worker, k: float(noise[worker, k])  # noqa: E731
    stories = [live(pace, takes, together(5)) for pace in (Metered(relaxation=0.0), Asp())]
    assert turns(stories[0]) == turns(stories[1])


def test_a_worker_that_takes_no_time_is_not_held_to_a_slow_ones() -> None:
    rule = Metered().rule()
    for worker in (0, 1):
        rule.join(worker, 0.0)
    assert rule.push(1, 8.0)
    assert rule.gap_s == pytest.approx(0.8 * 8.0)
    rule.leave(0, 9.0)
    rule.join(0, 9.0)
    assert rule.push(0, 9.0)
    assert rule.gap_s == 0.0


def test_an_update_of_a_worker_that_leaves_is_discarded() -> None:
    rule = Metered(relaxation=1.0).rule()
    for worker in (0, 1):
        rule.join(worker, 0.0)
    rule.push(0, 1.0)
    assert not rule.push(1, 1.0)  # its turn is a gap later
    [step] = rule.leave(1, 1.1)
    assert step.discard == ((1, 1),)


@pytest.mark.parametrize("relaxation", [-0.1, 1.1])
def test_the_relaxation_is_a_part(relaxation: float) -> None:
    with pytest.raises(ValueError, match=f"relaxation is {relaxation:g}"):
        Metered(relaxation=relaxation)
