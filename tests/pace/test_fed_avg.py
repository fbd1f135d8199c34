"""FedAvg and FedBuff by themselves."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from anabranch.pace import Asp, FedAvg, FedBuff, Step
from tests.every import every
from tests.pace.test_conformance import all_at_once, heavy_tailed
from tests.pace.world import live

NEVER = float("inf")


def test_a_round_ends_with_its_fraction_and_goes_all_the_way() -> None:
    takes = {0: 1.0, 1: 2.0, 2: 3.0, 3: 3.5}
    story = live(
        FedAvg(fraction=0.75), lambda worker, k: takes[worker], all_at_once(4), until_s=3.6
    )
    (step,) = [step for _, step in story.steps if step.apply]
    assert step.apply == ((0, 1), (1, 1), (2, 1))
    assert step.share == 1.0
    assert story.discarded == [(3, 1)]


def test_draws_are_even() -> None:
    story = live(FedAvg(sample=0.25), lambda worker, k: 1.0, all_at_once(16), until_s=400.0)
    counts = Counter(worker for worker, moments in story.went.items() for _ in moments)
    assert set(counts) == set(range(16))
    assert max(counts.values()) - min(counts.values()) <= 2
    drawn = [len(step.apply) for _, step in story.steps if step.apply]
    assert set(drawn[2:]) == {4}


def test_other_seeds_draw_others() -> None:
    stories = [
        live(FedAvg(sample=0.25, seed=seed), lambda worker, k: 1.0, all_at_once(16), until_s=9.0)
        for seed in range(4)
    ]
    assert len({tuple(each.applied) for each in stories}) > 1


@pytest.mark.parametrize("never", [{2}, {0, 1, 2, 3, 4, 5}])
def test_who_never_returns_is_given_up(never: set[int]) -> None:
    def takes(worker: int, k: int) -> float:
        return NEVER if worker in never and k == 3 else 1.0

    story = live(FedAvg(fraction=0.6, give_up_after=2), takes, all_at_once(6), until_s=200.0)
    for worker in never:
        assert (worker, 3) in story.discarded
        assert story.went[worker][-1] > 150.0


def test_without_giving_up_a_round_ends_with_what_it_has() -> None:
    def takes(worker: int, k: int) -> float:
        return NEVER if worker and k == 3 else 1.0

    story = live(FedAvg(), takes, all_at_once(3), until_s=100.0)
    assert story.went[0][-1] > 90.0


def test_literally_a_round_waits_for_its_fraction_and_for_no_lost_client() -> None:
    def takes(worker: int, k: int) -> float:
        return NEVER if worker == 2 and k == 3 else 1.0

    story = live(FedAvg(late_after="never"), takes, all_at_once(3), leaves=[(50.0, 2)])
    moments = [at_s for at_s, step in story.steps if step.apply]
    assert moments[1:4] == [2.0, 50.0, 51.0]
    bounded = live(FedAvg(late_after="never", deadline_s=20.0), takes, all_at_once(3))
    assert [at_s for at_s, step in bounded.steps if step.apply][1:3] == [2.0, 22.0]


@pytest.mark.parametrize("seed", range(8))
def test_no_update_has_missed_any(seed: int) -> None:
    workers, takes = heavy_tailed(seed)
    story = live(FedAvg(sample=0.6, fraction=0.7), takes, all_at_once(workers))
    assert every(each.missed == 0 for each in story.applied)


def test_a_full_buffer_is_a_step_and_nobody_waits() -> None:
    story = live(FedBuff(size=3, share=0.5), lambda worker, k: 1.0 + worker / 10, all_at_once(5))
    steps = [step for _, step in story.steps if step.apply]
    assert {len(step.apply) for step in steps} == {3}
    assert {step.share for step in steps} == {0.5}
    for worker, moments in story.went.items():
        assert moments == pytest.approx([k * (1.0 + worker / 10) for k in range(len(moments))])


def test_a_buffer_is_no_larger_than_there_are_workers() -> None:
    rule = FedBuff(size=10).rule()
    rule.join(0, 0.0)
    rule.join(1, 0.0)
    assert rule.push(0, 1.0) == (Step(proceed=(0,)),)
    assert rule.push(1, 1.0) == (Step(((0, 1), (1, 1)), (1,), share=1.0),)


def test_a_buffer_is_filled_by_those_who_are_left_when_others_have_finished() -> None:
    rule = FedBuff(size=3, share=0.6).rule()
    for worker in range(3):
        rule.join(worker, 0.0)
    rule.push(0, 1.0)
    rule.push(1, 1.0)
    assert rule.leave(0, 1.0, has_finished=True) == rule.leave(1, 1.0, has_finished=True) == ()
    [step] = rule.push(2, 2.0)
    assert (step.apply, step.share) == (((0, 1), (1, 1), (2, 1)), 0.6)
    assert rule.push(2, 3.0) == (Step(proceed=(2,)),)
    [step] = rule.leave(2, 4.0, has_finished=True)  # a third of a buffer is a third of a step
    assert (step.apply, step.share) == (((2, 2),), pytest.approx(0.2))


def test_a_buffer_is_smaller_once_a_worker_is_lost() -> None:
    rule = FedBuff(size=3).rule()
    for worker in range(3):
        rule.join(worker, 0.0)
    rule.push(0, 1.0)
    rule.push(1, 1.0)
    [step] = rule.leave(2, 2.0)
    assert (step.apply, step.share) == (((0, 1), (1, 1)), 1.0)


def test_asp_goes_as_far_as_its_share() -> None:
    rule = Asp(share=0.6).rule()
    rule.join(0, 0.0)
    assert rule.push(0, 1.0) == (Step(((0, 1),), (0,), share=0.6),)


def test_nobody_is_drawn_while_it_computes() -> None:
    rule = FedAvg(sample=0.5, fraction=0.5, seed=3).rule()
    computing: set[int] = set()

    def take(steps: tuple[Step, ...]) -> None:
        for step in steps:
            assert not computing & {*step.proceed}
            computing.update(step.proceed)

    for worker in range(8):
        take(rule.join(worker, 0.0))
    rng = np.random.default_rng(0)
    for k in range(1, 400):
        worker = int(rng.choice(sorted(computing)))
        computing.remove(worker)
        take(rule.push(worker, float(k)))
        assert len(computing) >= 1


@pytest.mark.parametrize("sample", [0.07, 0.14, 0.28, 0.56])
def test_a_part_of_a_hundred_is_drawn_to_the_client(sample: float) -> None:
    """0.07 times 100 is a little more than 7 in floating point."""
    story = live(
        FedAvg(sample=sample, fraction=1.0), lambda worker, k: 1.0, all_at_once(100), until_s=9.5
    )
    steps = [step for _, step in story.steps if step.apply]
    assert len(steps[-1].apply) == round(100 * sample)
    assert steps[-1].share == 1.0


def test_rounds_go_on_when_all_have_become_slower_than_they_are_waited_for() -> None:
    story = live(
        FedAvg(give_up_after=1),
        lambda worker, k: 1.0 if k < 5 else 40.0,
        all_at_once(4),
        until_s=3000.0,
    )
    assert len(story.steps) < 500
    assert max(each.update[1] for each in story.applied) > 20


@pytest.mark.parametrize(("has_finished", "share"), [(False, 1.0), (True, 0.5)])
def test_rounds_go_all_the_way_without_the_lost(has_finished: bool, share: float) -> None:
    rule = FedAvg().rule()
    for worker in range(4):
        rule.join(worker, 0.0)
    for worker in (2, 3):
        rule.leave(worker, 1.0, has_finished)
    rule.push(0, 2.0)
    assert [step.share for step in rule.push(1, 2.0)] == [share]
