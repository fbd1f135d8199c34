"""FL-R²SP by itself: turns of groups, fractions, stragglers, and those who never return."""

from __future__ import annotations

from itertools import pairwise

import pytest

from anabranch.pace import FlR2sp, R2sp, Step
from tests.pace.test_conformance import all_at_once, heavy_tailed
from tests.pace.world import live

NEVER = float("inf")


def steady(worker: int, iteration: int) -> float:
    return 8.0


def test_groups_take_turns_an_even_part_of_a_round_apart() -> None:
    story = live(FlR2sp(groups=4, fraction=1.0), steady, all_at_once(8), until_s=200.0)
    turns = [(at_s, {worker % 4 for worker, _ in step.apply}) for at_s, step in story.steps]
    turns = [(at_s, groups) for at_s, groups in turns if groups]
    assert [groups for _, groups in turns[:9]] == [{k % 4} for k in range(9)]
    gaps = [after - before for (before, _), (after, _) in pairwise(turns[8:])]
    assert gaps == pytest.approx([2.0] * len(gaps))  # T / M
    assert {step.share for _, step in story.steps if step.apply} == {0.25}


def test_a_group_goes_with_its_fraction_and_who_is_later_goes_on_at_once() -> None:
    """Algorithm 2, lines 4 to 12."""
    takes = {0: 1.0, 1: 2.0, 2: 3.0, 3: 3.5}
    story = live(
        FlR2sp(groups=1, relaxation=0.0),
        lambda worker, k: takes[worker],
        all_at_once(4),
        until_s=3.6,
    )
    ((at_s, step),) = [(at_s, step) for at_s, step in story.steps if step.apply]
    assert at_s == 3.0
    assert step == Step(((0, 1), (1, 1), (2, 1)), (0, 1, 2), share=1.0)
    assert story.discarded == [(3, 1)]
    assert story.went[3] == [0.0, 3.5]


@pytest.mark.parametrize(("collects", "counts"), [("fraction", False), ("turn", True)])
def test_what_comes_between_enough_and_the_turn_counts_if_it_is_asked_to(
    collects: str, counts: bool
) -> None:
    rule = FlR2sp(groups=2, fraction=0.5, collects=collects).rule()  # type: ignore[arg-type]
    for worker in range(4):
        rule.join(worker, 0.0)
    assert rule.push(1, 1.0) == ()  # enough of group 1, whose turn it is not
    answer = rule.push(3, 2.0)
    assert (answer == ()) == counts
    if not counts:
        assert answer[0] == Step((), (3,), ((3, 1),))
    steps = rule.push(0, 3.0)
    steps += rule.look(rule.due_s) if rule.due_s < NEVER else ()
    of_group_1 = [step for step in steps if (1, 1) in step.apply]
    assert len(of_group_1) == 1
    assert ((3, 1) in of_group_1[0].apply) == counts


def test_a_group_that_has_not_enough_is_waited_for_as_long_as_three_rounds_and_then_taken() -> None:
    def takes(worker: int, k: int) -> float:
        return NEVER if worker and k == 5 else 1.0

    story = live(FlR2sp(groups=1, fraction=0.9), takes, all_at_once(3), until_s=100.0)
    alone = [(at_s, step) for at_s, step in story.steps if step.apply and len(step.apply) == 1]
    assert alone[0][0] == pytest.approx(4.0 + 3.0)
    assert story.went[0][-1] > 90.0  # and so on


def test_groups_of_one_take_turns_as_workers_do_under_r2sp() -> None:
    workers = 5
    groups = live(FlR2sp(groups=workers, fraction=1.0), steady, all_at_once(workers))
    each = live(R2sp(relaxation=1.0), steady, all_at_once(workers))
    assert [a.update for a in groups.applied] == [a.update for a in each.applied]


def test_the_usual_time_forgets_a_tenth_with_each_round() -> None:
    rule = FlR2sp(groups=2, fraction=1.0).rule()
    rule.join(0, 0.0)
    rule.join(1, 0.0)
    rule.push(0, 10.0)
    assert rule.gap_s == pytest.approx(5.0)  # type: ignore[attr-defined]
    rule.push(1, 20.0)
    assert rule.gap_s == pytest.approx(0.5 * (10.0 + 0.1 * (20.0 - 10.0)))  # type: ignore[attr-defined]


def test_by_delay_those_that_are_slow_come_together() -> None:
    slow = {1, 4, 6}
    rule = FlR2sp(groups=4, grouping="delay", regroup_every=1, collects="turn").rule()
    live(
        FlR2sp(groups=4),
        lambda worker, k: 9.0 if worker in slow else 1.0,
        all_at_once(12),
        until_s=400.0,
        rule=rule,
    )
    groups = [set(group) for group in rule._members]  # type: ignore[attr-defined]
    assert sorted(len(group) for group in groups) == [3, 3, 3, 3]
    assert slow in groups


@pytest.mark.parametrize("never", [{3}, {0, 1, 2, 3}, {4, 5, 6, 7}])
def test_who_never_returns_is_given_up_and_goes_on(never: set[int]) -> None:
    def takes(worker: int, k: int) -> float:
        return NEVER if worker in never and k == 4 else 1.0 + worker / 100

    story = live(FlR2sp(groups=2, give_up_after=1), takes, all_at_once(8), until_s=300.0)
    for worker in never:
        assert (worker, 4) in story.discarded
        assert story.went[worker][-1] > 250.0


def test_all_may_vanish_at_once_once_a_round_is_known() -> None:
    story = live(
        FlR2sp(groups=2, give_up_after=1),
        lambda worker, k: NEVER if k == 3 else 1.0,
        all_at_once(6),
        until_s=300.0,
    )
    assert all(moments[-1] > 250.0 for moments in story.went.values())


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("grouping", ["index", "delay"])
def test_no_group_has_two_turns_running_and_shares_are_an_mth(grouping: str, seed: int) -> None:
    workers, takes = heavy_tailed(seed)
    pace = FlR2sp(groups=3, grouping=grouping, regroup_every=10**6)  # type: ignore[arg-type]
    rule = pace.rule()
    story = live(pace, takes, all_at_once(workers), rule=rule)
    group = rule._group  # type: ignore[attr-defined]
    turns = [{group[worker] for worker, _ in step.apply} for _, step in story.steps if step.apply]
    assert all(len(each) == 1 for each in turns)
    present = min(3, workers)
    shares = {step.share for _, step in story.steps if step.apply}
    assert max(share for share in shares if share is not None) == 1 / present


@pytest.mark.parametrize("name", ["fraction", "smoothing"])
@pytest.mark.parametrize("value", [0.0, -1.0, 1.5])
def test_a_part_that_is_none_is_named(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"{name} is .*, must be in \(0, 1\]"):
        FlR2sp(**{name: value})  # type: ignore[arg-type]
