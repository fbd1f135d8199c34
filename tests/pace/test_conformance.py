"""What every pace must hold to, whoever is slow, stalls, leaves or joins."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from anabranch.pace import (
    PACES,
    Asp,
    Bsp,
    FedAvg,
    FedBuff,
    FlR2sp,
    Pace,
    R2sp,
    Safa,
    Ssp,
)
from tests.every import every
from tests.pace.world import Story, Takes, live

EACH: list[Pace] = [
    Bsp(),
    Asp(),
    *(Ssp(lead=lead) for lead in (0, 1, 5)),
    *(
        Safa(fraction=fraction, lag_tolerance=lag)
        for fraction, lag in ((0.5, 1), (0.3, 5), (1.0, 0))
    ),
    Safa(fraction=0.8, lag_tolerance=2, deadline_s=2.0),
    Safa(late_after="never"),
    *(R2sp(relaxation=relaxation) for relaxation in (0.8, 0.0, 1.0)),
    FlR2sp(groups=3),
    FlR2sp(groups=8, fraction=0.5, relaxation=0.5, collects="turn"),
    FlR2sp(groups=1, fraction=1.0),
    FlR2sp(groups=3, grouping="delay", regroup_every=2),
    FlR2sp(groups=2, give_up_after=1),
    FlR2sp(groups=3, grouping="load", regroup_every=1, order="ready", relaxation=0.5),
    FlR2sp(groups=4, order="ready", give_up_after=1),
    FlR2sp(groups=3, late_after="never"),
    FedAvg(),
    FedAvg(fraction=0.5, give_up_after=1),
    FedAvg(sample=0.5, fraction=0.75),
    FedAvg(fraction=0.75, late_after="never"),
    FedBuff(size=3),
    FedBuff(size=1, share=0.6),
]
paces = pytest.mark.parametrize("pace", EACH, ids=str)
SEEDS = 18
seeded = pytest.mark.parametrize("seed", range(SEEDS))


def in_worlds(only: Callable[[Pace], bool] = lambda pace: True) -> pytest.MarkDecorator:
    """Try paces in worlds that are drawn: every pair, of which a sixth are fast.

    The fast ones have each pace in five worlds, and each world under two or three paces.
    """
    return pytest.mark.parametrize(
        ("pace", "seed"),
        [
            pytest.param(
                *(pace, seed),
                id=f"{pace}-{seed}",
                marks=[] if (number + seed) % 6 == 0 else [pytest.mark.slow],
            )
            for number, pace in enumerate(EACH)
            if only(pace)
            for seed in range(SEEDS)
        ],
    )


def test_no_pace_is_left_out() -> None:
    assert {type(pace) for pace in EACH} == set(PACES)


def heavy_tailed(seed: int) -> tuple[int, Takes]:
    """Return how many workers there are, and times with a heavy tail about different means."""
    rng = np.random.default_rng(seed)
    workers = int(rng.integers(2, 12))
    usual_s = rng.uniform(0.5, 3.0, workers)
    noise = rng.lognormal(0.0, rng.choice([0.0, 0.1, 1.0]), (workers, 1000))

    def takes(worker: int, iteration: int) -> float:
        return float(usual_s[worker] * noise[worker, iteration % 1000])

    return workers, takes


def all_at_once(workers: int) -> list[tuple[float, int]]:
    return [(0.0, worker) for worker in range(workers)]


def check(story: Story) -> None:
    """Each update that came is settled once or waits; the ledger has checked the bound."""
    applied = [each.update for each in story.applied]
    settled = applied + story.discarded
    assert len(set(settled)) == len(settled)
    assert set(settled) <= set(story.pushed)


@in_worlds()
def test_each_update_is_counted_once_and_none_is_staler_than_promised(
    pace: Pace, seed: int
) -> None:
    workers, takes = heavy_tailed(seed)
    story = live(pace, takes, all_at_once(workers))
    check(story)
    assert len(story.applied) >= 10
    # Whatever came long ago is part of the model, or was discarded by name.
    settled = {each.update for each in story.applied} | set(story.discarded)
    for update, at_s in story.pushed.items():
        assert update in settled or at_s > 40.0


@in_worlds(only=lambda pace: pace.barrier)
def test_a_barrier_takes_one_update_of_everybody_in_each_step(pace: Pace, seed: int) -> None:
    workers, takes = heavy_tailed(seed)
    story = live(pace, takes, all_at_once(workers))
    for step, first in enumerate(range(0, len(story.applied), workers), 1):
        together = story.applied[first : first + workers]
        assert [each.update for each in together] == [(worker, step) for worker in range(workers)]
        assert {each.version for each in together} == {step}


@in_worlds()
def test_once_all_have_left_every_update_is_settled(pace: Pace, seed: int) -> None:
    workers, takes = heavy_tailed(seed)
    leaves = [(20.0 + 3 * worker, worker) for worker in range(workers)]
    story = live(pace, takes, all_at_once(workers), leaves)
    settled = [each.update for each in story.applied] + story.discarded
    assert sorted(settled) == sorted(story.pushed)


@in_worlds()
def test_nobody_starves(pace: Pace, seed: int) -> None:
    workers, takes = heavy_tailed(seed)
    story = live(pace, takes, all_at_once(workers), until_s=400.0)
    slowest_s = max(takes(worker, k) for worker in range(workers) for k in range(1, 300))
    for worker in range(workers):
        for before_s, after_s in pairwise([*story.went[worker], 400.0]):
            assert after_s - before_s < 4 * slowest_s * workers


@in_worlds()
def test_workers_that_leave_join_or_come_back_never_wedge_the_rest(pace: Pace, seed: int) -> None:
    workers, takes = heavy_tailed(seed)
    rng = np.random.default_rng(seed)
    joins, leaves = all_at_once(workers), []
    for worker in range(1, workers):
        if rng.random() < 0.7:
            away_s = float(rng.uniform(0, 150))
            leaves.append((away_s, worker))
            if rng.random() < 0.5:
                joins.append((away_s + float(rng.uniform(0, 50)), worker))
    joins.append((100.0, workers))
    story = live(pace, lambda worker, k: takes(worker % workers, k), joins, leaves, until_s=600.0)
    check(story)
    gone = {worker for _, worker in leaves} - {worker for at_s, worker in joins if at_s > 0}
    for worker in set(range(workers + 1)) - gone:
        assert story.went[worker][-1] > 500.0, f"worker {worker} was wedged"


@paces
def test_one_worker_alone_never_waits(pace: Pace) -> None:
    story = live(pace, lambda worker, k: 1.0, [(0.0, 0)], until_s=50.5)
    assert story.went[0] == [float(k) for k in range(51)]
    assert [each.update for each in story.applied] == [(0, k) for k in range(1, 51)]
    assert every(each.missed == 0 for each in story.applied)


@in_worlds()
def test_a_run_played_to_a_fresh_pace_gives_the_same_decisions(pace: Pace, seed: int) -> None:
    workers, takes = heavy_tailed(seed)
    story = live(pace, takes, all_at_once(workers), [(20.0, 0)])
    again = pace.rule()
    for what, worker, now_s, answer in story.told:
        if worker is None:
            assert again.look(now_s) == answer
        else:
            assert {"join": again.join, "leave": again.leave, "push": again.push}[what](
                worker, now_s
            ) == answer


@seeded
def test_ssp_without_a_lead_lets_go_on_when_bsp_does(seed: int) -> None:
    workers, takes = heavy_tailed(seed)
    barrier = live(Bsp(), takes, all_at_once(workers))
    lead = live(Ssp(lead=0), takes, all_at_once(workers))
    assert lead.went == barrier.went
    assert {each.update for each in lead.applied} >= {each.update for each in barrier.applied}


@paces
def test_a_worker_out_of_place_is_named(pace: Pace) -> None:
    rule = pace.rule()
    rule.join(3, 0.0)
    with pytest.raises(ValueError, match="worker 3 joins, but has joined"):
        rule.join(3, 1.0)
    with pytest.raises(ValueError, match="worker 4 leaves, but has not"):
        rule.leave(4, 1.0)
    with pytest.raises(ValueError, match="worker 4 pushes an update that was not"):
        rule.push(4, 1.0)


@pytest.mark.parametrize(
    "pace",
    [
        *(Bsp(), Asp(), Ssp(lead=1), FedBuff(size=3), FedAvg()),
        *(R2sp(relaxation=relaxation) for relaxation in (0.8, 0.0, 1.0)),
        *(FlR2sp(groups=groups, fraction=1.0) for groups in (1, 3, 6)),
        FlR2sp(groups=3, fraction=1.0, order="ready", grouping="delay", regroup_every=1),
        Safa(fraction=0.5, lag_tolerance=1),
    ],
    ids=str,
)
@pytest.mark.parametrize("first_s", [0.8, 4.0, 30.0])
def test_no_update_of_an_equal_fleet_is_discarded(pace: Pace, first_s: float) -> None:
    """A first iteration is unlike the others: it pulls no model, or its process is cold."""
    story = live(
        pace,
        lambda worker, k: first_s if k == 1 else 4.0,
        [(0.0, worker) for worker in range(6)],
        until_s=300.0,
    )
    assert story.discarded == []
    assert not any(step.abandon for _, step in story.steps)
    assert len(story.applied) > 6 * 20
