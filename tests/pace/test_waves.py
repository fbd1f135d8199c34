"""Waves: how many follows from what they bring, and nobody who is slow once holds up the rest."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pytest

from anabranch.pace import Waves
from tests.pace.world import Story, live

N = 16
COMPUTE_S = 0.7
ALL_AT_ONCE = [(0.0, worker) for worker in range(N)]


def network(rule: Any, alone_s: float, jitter: float = 0.0) -> Callable[[int, int], float]:
    """Let pushes and pulls take as long as a wave's size says, ``alone_s`` for one update."""
    noise = np.random.default_rng(0).lognormal(0.0, jitter, (N, 1000))

    def takes(worker: int, iteration: int) -> float:
        compute_s = COMPUTE_S * noise[worker, iteration % 1000]
        return float(compute_s + 2 * alone_s * N / rule.waves)

    return takes


def spacing_s(story: Story, since_s: float) -> list[float]:
    stepped_s = [at_s for at_s, step in story.steps if step.apply and at_s > since_s]
    return [after_s - before_s for before_s, after_s in pairwise(stepped_s)]


def test_where_the_network_is_idle_it_is_a_barrier() -> None:
    pace = Waves()
    rule = pace.rule()
    story = live(pace, network(rule, 0.001), ALL_AT_ONCE, compute_s=COMPUTE_S, rule=rule)
    assert rule.waves == 1
    assert {each.missed for each in story.applied} == {0}
    assert all(len(step.apply) in (0, N) for _, step in story.steps)


def test_where_the_network_is_busy_a_few_waves_share_it_evenly() -> None:
    pace = Waves()
    rule = pace.rule()
    story = live(
        pace, network(rule, 0.11), ALL_AT_ONCE, until_s=60.0, compute_s=COMPUTE_S, rule=rule
    )
    assert rule.waves == 4  # 0.7 s of computing and 3.5 s of talking by one wave
    late = [step for at_s, step in story.steps if at_s > 30.0]
    assert {len(step.apply) for step in late} == {N // 4}
    assert max(spacing_s(story, 30.0)) < 1.2 * min(spacing_s(story, 30.0))
    assert max(each.missed for each in story.applied[-100:]) == 12  # three other waves


def test_who_fears_staleness_more_has_fewer_waves() -> None:
    waves = []
    for cost in (0.0, 0.25, 2.0, 20.0):
        pace = Waves(staleness_cost=cost)
        rule = pace.rule()
        live(
            pace,
            network(rule, 0.06, jitter=0.1),
            ALL_AT_ONCE,
            until_s=80.0,
            compute_s=COMPUTE_S,
            rule=rule,
        )
        waves.append(rule.waves)
    assert waves == sorted(waves, reverse=True)
    assert waves[0] > waves[-1] == 1


def test_a_network_that_changes_is_noticed() -> None:
    pace = Waves()
    rule = pace.rule()
    busy, idle = network(rule, 0.11), network(rule, 0.001)
    went = [0] * N

    def takes(worker: int, iteration: int) -> float:
        went[worker] = iteration
        return (busy if iteration < 30 else idle)(worker, iteration)

    live(pace, takes, ALL_AT_ONCE, until_s=50.0, compute_s=COMPUTE_S, rule=rule)
    assert rule.waves == 4
    pace = Waves()
    rule = pace.rule()
    busy, idle = network(rule, 0.11), network(rule, 0.001)
    live(pace, takes, ALL_AT_ONCE, until_s=200.0, compute_s=COMPUTE_S, rule=rule)
    assert min(went) > 60
    assert rule.waves == 1


def test_a_number_of_waves_that_is_hardly_better_is_not_worth_a_change() -> None:
    pace = Waves(staleness_cost=0.0)
    rule = pace.rule()
    # Two waves are tried last, and turn out worse than four, which have come to 3.67 s after what
    # eight left behind; but by less than counts.
    takes_s = {1: 6.0, 2: 3.70, 4: 3.00, 8: 9.0, 16: 9.0}
    tried = []

    def takes(worker: int, iteration: int) -> float:
        tried.append(rule.waves)
        return takes_s[rule.waves]

    live(pace, takes, ALL_AT_ONCE, until_s=150.0, compute_s=COMPUTE_S, rule=rule)
    assert [waves for waves, _ in groupby(tried)] == [1, 4, 8, 16, 4, 2]


def test_one_that_is_slow_for_once_holds_up_nobody_and_is_stale_at_the_end() -> None:
    pace = Waves()
    rule = pace.rule()
    usual = network(rule, 0.11)

    def takes(worker: int, iteration: int) -> float:
        return 30.0 if (worker, iteration) == (3, 20) else usual(worker, iteration)

    story = live(pace, takes, ALL_AT_ONCE, until_s=120.0, compute_s=COMPUTE_S, rule=rule)
    assert story.discarded == [(3, 20)]
    assert max(each.missed for each in story.applied) <= 2 * (N - 1)
    # The others wait for it until it is late by its own standards, once.
    assert sum(gap_s > 1.0 for gap_s in spacing_s(story, 20.0)) <= 1
    later = [each.update for each in story.applied if each.update[0] == 3 and each.update[1] > 20]
    assert len(later) > 20


def test_one_that_has_missed_as_much_as_is_promised_and_no_more_still_counts() -> None:
    pace = Waves()
    rule = pace.rule()
    for worker in (0, 1):
        rule.join(worker, 0.0)
    now_s, missed = 1.0, 0
    while missed < pace.staleness_bound(2):
        steps = rule.push(0, now_s)
        if not steps:
            now_s = rule.due_s
            steps = rule.look(now_s)
        missed += sum(len(step.apply) for step in steps)
        now_s += 1.0
    steps = (*rule.push(1, now_s), *rule.look(rule.due_s))
    assert [step.discard for step in steps if step.discard] == []
    assert (1, 1) in [update for step in steps for update in step.apply]


@pytest.mark.parametrize("cost", [-0.1, float("inf"), float("nan")])
def test_a_cost_that_cannot_be_is_refused(cost: float) -> None:
    with pytest.raises(ValueError, match="staleness_cost is"):
        Waves(staleness_cost=cost)


def test_a_step_that_takes_a_worker_to_the_bound_need_not_wait_for_it() -> None:
    pace = Waves()
    rule, others = pace.rule(), [0, 1, 2]
    for worker in (*others, 3):
        rule.join(worker, 0.0)
    for worker in (*others, 3):
        stepped = rule.push(worker, 10.0)
    assert [len(step.apply) for step in stepped] == [4]
    applied, now_s = 0, 10.0  # without worker 3, which is not late before 20 s
    while now_s < 13.0:
        now_s += 0.1
        rule.waves = 4  # a step waits for one update
        steps = rule.push(others[0], now_s)
        if not steps:
            break
        applied += sum(len(step.apply) for step in steps)
        others = [*others[1:], others[0]]
    assert applied == pace.staleness_bound(4)
    assert rule.due_s >= 20.0


@pytest.mark.parametrize("scale", [1 / 64, 1.0, 64.0])
@pytest.mark.parametrize(("later", "tried"), [(1.2, [4]), (2.0, [4, 8, 16, 2, 4])])
def test_what_takes_a_quarter_longer_is_another_network_whatever_updates_take(
    later: float, tried: list[int], scale: float
) -> None:
    pace = Waves(staleness_cost=0.0)
    rule = pace.rule()
    takes_s = {1: 6.0, 2: 3.70, 4: 3.00, 8: 9.0, 16: 9.0}
    found = []

    def takes(worker: int, iteration: int) -> float:
        found.append(rule.waves)
        return scale * takes_s[rule.waves] * (later if iteration >= 40 else 1.0)

    until_s, compute_s = 300 * scale, scale * COMPUTE_S
    live(pace, takes, ALL_AT_ONCE, until_s=until_s, compute_s=compute_s, rule=rule)
    assert [waves for waves, _ in groupby(found)] == [1, 4, 8, 16, 4, 2, *tried]
