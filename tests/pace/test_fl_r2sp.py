"""FL-R²SP by itself: turns of groups, fractions, stragglers, and those who never return."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import numpy as np
import pytest

from anabranch.pace import FlR2sp, R2sp, Step
from tests.every import every
from tests.pace.test_conformance import all_at_once, heavy_tailed
from tests.pace.world import Takes, live
from tests.seeds import seeds

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


@pytest.mark.parametrize("order", ["fixed", "ready"])
def test_literally_all_groups_wait_for_one_that_has_not_its_fraction(order: str) -> None:
    """Algorithm 2, lines 4 and 5."""

    def takes(worker: int, k: int) -> float:
        return 50.0 if worker == 0 and k == 5 else 1.0

    pace = FlR2sp(groups=2, fraction=1.0, order=order, late_after="never")  # type: ignore[arg-type]
    story = live(pace, takes, all_at_once(4))
    with_0 = [at_s for at_s, step in story.steps if 0 in {worker for worker, _ in step.apply}]
    late = next(after for before, after in pairwise(with_0) if after - before > 10.0)
    assert {len(step.apply) for _, step in story.steps if step.apply} == {2}  # always both
    between = [at_s for at_s, step in story.steps if late - 45.0 < at_s < late and step.apply]
    assert bool(between) == (order == "ready")


def test_a_deadline_ends_a_round_that_is_never_late() -> None:
    def takes(worker: int, k: int) -> float:
        return NEVER if worker == 2 and k == 5 else 1.0

    pace = FlR2sp(groups=1, fraction=0.9, relaxation=0.0, late_after="never", deadline_s=20.0)
    story = live(pace, takes, all_at_once(3), until_s=50.0)
    few = [at_s for at_s, step in story.steps if step.apply and len(step.apply) == 2]
    assert few == [4.0 + 20.0, 4.0 + 40.0]


@pytest.mark.parametrize(("late_after", "steps"), [(3.0, [1, 2, 3]), ("never", [1, 11])])
def test_literally_stragglers_are_waited_for_where_the_others_are_too_few(
    late_after: float | Literal["never"], steps: list[int]
) -> None:
    def takes(worker: int, k: int) -> float:
        return 10.0 if worker > 1 and k == 1 else 1.0

    pace = FlR2sp(groups=1, fraction=0.5, relaxation=0.0, late_after=late_after)
    story = live(pace, takes, all_at_once(4), leaves=[(1.5, 1)])
    assert [at_s for at_s, step in story.steps if step.apply][: len(steps)] == steps


def test_a_lost_client_is_not_waited_for_even_where_groups_are_never_late() -> None:
    def takes(worker: int, k: int) -> float:
        return NEVER if worker == 2 and k == 5 else 1.0

    pace = FlR2sp(groups=1, fraction=0.9, relaxation=0.0, late_after="never")
    story = live(pace, takes, all_at_once(3), leaves=[(40.0, 2)])
    moments = [at_s for at_s, step in story.steps if step.apply]
    assert moments[3:6] == [4.0, 40.0, 41.0]
    assert moments[-1] == 100.0


@pytest.mark.parametrize("late_after", [2.0, 5.0])
def test_a_group_is_late_after_as_many_usual_rounds_as_are_asked_for(late_after: float) -> None:
    def takes(worker: int, k: int) -> float:
        return NEVER if worker and k == 5 else 1.0

    pace = FlR2sp(groups=1, fraction=0.9, late_after=late_after)
    story = live(pace, takes, all_at_once(3), until_s=30.0)
    alone = [at_s for at_s, step in story.steps if len(step.apply) == 1]
    assert alone[0] == pytest.approx(4.0 + late_after)


def test_groups_of_one_take_turns_as_workers_do_under_r2sp() -> None:
    workers = 5
    groups = live(FlR2sp(groups=workers, fraction=1.0), steady, all_at_once(workers))
    each = live(R2sp(relaxation=1.0), steady, all_at_once(workers))
    assert [a.update for a in groups.applied] == [a.update for a in each.applied]


def test_the_usual_time_forgets_the_first_round_and_a_tenth_with_each_other() -> None:
    """Of each group: neither begins by pulling a model."""
    rule = FlR2sp(groups=2, fraction=1.0, relaxation=0.0, smoothing=0.1).rule()
    usual = rule._round  # type: ignore[attr-defined]
    seen_s = []
    for worker in (0, 1):
        rule.join(worker, 0.0)
    for worker, now_s in ((0, 10.0), (1, 20.0), (0, 50.0), (1, 70.0), (0, 100.0)):
        rule.push(worker, now_s)
        seen_s.append(usual.usual_s)
    # Rounds of 10 and 20 s, the groups' first; of 40 s, which takes their place; of 50 and 50 s.
    assert seen_s == pytest.approx([10.0, 20.0, 40.0, 41.0, 41.9])


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


def test_by_load_a_group_of_slow_clients_has_more_of_them_and_goes_further() -> None:
    """Twelve of 1 s and twelve of 3 s bring 12 and 4 updates a second: 4 for each of 4 groups."""
    pace = FlR2sp(groups=4, fraction=1.0, grouping="load", regroup_every=1, order="ready")
    rule = pace.rule()
    story = live(
        pace,
        lambda worker, k: 3.0 if worker % 2 else 1.0,
        all_at_once(24),
        until_s=200.0,
        rule=rule,
    )
    slow = {worker for worker in range(24) if worker % 2}
    groups = [set(group) for group in rule._members]  # type: ignore[attr-defined]
    assert sorted(len(group) for group in groups) == [4, 4, 4, 12]
    assert slow in groups
    late = [step for at_s, step in story.steps if step.apply and at_s > 100.0]
    assert {(len(step.apply), step.share) for step in late} == {(4, 4 / 24), (12, 12 / 24)}


def test_a_client_that_brings_more_than_a_groups_part_has_one_and_the_rest_are_dealt_evenly() -> (
    None
):
    rule = FlR2sp(groups=4, grouping="load", regroup_every=1, collects="turn").rule()
    live(
        FlR2sp(groups=4),
        lambda worker, k: 0.1 if worker == 5 else 5.0,
        all_at_once(16),
        until_s=300.0,
        rule=rule,
    )
    groups = [set(group) for group in rule._members]  # type: ignore[attr-defined]
    assert groups[0] == {5}
    assert [len(group) for group in groups[1:]] == [5, 5, 5]


@pytest.mark.parametrize("grouping", ["delay", "load"])
@pytest.mark.parametrize("groups", [2, 4])
def test_one_goes_on_though_all_others_hang_and_groups_are_dealt_anew(
    grouping: str, groups: int
) -> None:
    story = live(
        FlR2sp(groups=groups, grouping=grouping),  # type: ignore[arg-type]
        lambda worker, k: NEVER if worker else 1.0,
        all_at_once(2),
        until_s=1000.0,
    )
    assert story.went[0][-1] > 990.0


@pytest.mark.parametrize("grouping", ["delay", "load"])
@pytest.mark.parametrize("seed", range(20))
def test_what_rounds_take_is_no_less_than_what_its_clients_did(grouping: str, seed: int) -> None:
    """An update that waits goes to another group, whose round has not begun with its client."""
    rng = np.random.default_rng(seed)
    takes = rng.integers(2, 8, (3, 400))
    pace = FlR2sp(
        groups=int(rng.integers(2, 4)),
        fraction=1.0,
        smoothing=1.0,
        grouping=grouping,  # type: ignore[arg-type]
        regroup_every=1,
        collects="turn",
        order="ready" if rng.random() < 0.5 else "fixed",
    )
    rule = pace.rule()
    usual_s: list[float] = []

    def took(worker: int, k: int) -> float:
        usual_s.extend(each.usual.usual_s for each in rule._rounds if each.usual.usual_s)  # type: ignore[attr-defined]
        return float(takes[worker, k % 400])

    live(pace, took, all_at_once(3), until_s=300.0, rule=rule)
    assert len(usual_s) > 100
    assert min(usual_s) > 2.0 - 1e-6


def test_those_that_have_finished_count_in_all_groups_alike_once_dealt_anew() -> None:
    rule = FlR2sp(groups=2, fraction=1.0, grouping="delay", regroup_every=1).rule()
    for worker in range(8):
        rule.join(worker, 0.0)
    for worker in range(8):
        rule.push(worker, 1.0 + (worker >= 4))
    now_s, steps = 2.0, []
    for worker in range(4):
        rule.leave(worker, now_s, has_finished=True)
    for _ in range(4):
        now_s += 2.0
        for worker in range(4, 8):
            if worker in rule._workers.computing:  # type: ignore[attr-defined]
                steps += rule.push(worker, now_s)
        if rule.due_s < NEVER:
            now_s = max(now_s, rule.due_s)
            steps += rule.look(now_s)
    shares = [(len(step.apply), step.share) for step in steps if step.apply]
    assert every(share == pytest.approx(count / 8) for count, share in shares[2:])
    assert len(shares) > 4


def test_ready_groups_wait_for_no_slow_one_and_are_as_far_apart_as_all_need() -> None:
    """Rounds of 2, 2, 2 and 8 s: 13 turns in 8 s at most, a turn each 8 / 13 s."""
    pace = FlR2sp(groups=4, fraction=1.0, order="ready")
    rule = pace.rule()
    takes = {0: 2.0, 1: 2.0, 2: 2.0, 3: 8.0}
    story = live(pace, lambda worker, k: takes[worker], all_at_once(4), until_s=400.0, rule=rule)
    assert rule.gap_s == pytest.approx(8 / 13)  # type: ignore[attr-defined]
    at = [at_s for at_s, step in story.steps if step.apply and at_s > 100.0]
    assert min(after - before for before, after in pairwise(at)) > 8 / 13 - 1e-6
    turns = [sum(update[0] == worker for update in story.pushed) for worker in range(4)]
    fixed = live(
        FlR2sp(groups=4, fraction=1.0), lambda w, k: takes[w], all_at_once(4), until_s=400.0
    )
    in_order = [sum(update[0] == worker for update in fixed.pushed) for worker in range(4)]
    assert max(in_order) - min(in_order) <= 2  # all as often
    assert turns[3] > 0.75 * in_order[3]
    assert min(turns[:3]) > 2.2 * in_order[0]


def test_of_ready_groups_one_of_which_nothing_comes_holds_up_no_other() -> None:
    story = live(
        FlR2sp(groups=3, order="ready"),
        lambda worker, k: NEVER if worker == 1 and k == 3 else 1.0,
        all_at_once(3),
        until_s=100.0,
    )
    assert story.went[0][-1] > 95.0
    assert story.went[1][-1] < 5.0
    assert FlR2sp(order="ready").staleness_bound(3) is None


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
    assert every(moments[-1] > 250.0 for moments in story.went.values())


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("grouping", ["index", "delay"])
def test_no_group_has_two_turns_running_and_shares_are_an_mth(grouping: str, seed: int) -> None:
    workers, takes = heavy_tailed(seed)
    pace = FlR2sp(groups=3, grouping=grouping, regroup_every=10**6)  # type: ignore[arg-type]
    rule = pace.rule()
    story = live(pace, takes, all_at_once(workers), rule=rule)
    group = rule._group  # type: ignore[attr-defined]
    turns = [{group[worker] for worker, _ in step.apply} for _, step in story.steps if step.apply]
    assert every(len(each) == 1 for each in turns)
    present = min(3, workers)
    shares = {step.share for _, step in story.steps if step.apply}
    assert max(share for share in shares if share is not None) == 1 / present


@pytest.mark.parametrize("name", ["fraction", "smoothing"])
@pytest.mark.parametrize("value", [0.0, -1.0, 1.5])
def test_a_part_that_is_none_is_named(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"{name} is .*, must be in \(0, 1\]"):
        FlR2sp(**{name: value})  # type: ignore[arg-type]


def test_who_goes_on_after_enough_are_in_computes_for_the_next_round() -> None:
    """Algorithm 2: a straggler's update is ignored, and the one after it is like the others'."""
    rule = FlR2sp(groups=2, fraction=0.5).rule()
    for worker in range(4):
        rule.join(worker, 0.0)
    rule.push(1, 1.0)  # enough of group 1, which waits for its turn
    assert rule.push(3, 2.0) == (Step((), (3,), ((3, 1),)),)
    assert rule.push(0, 3.0) == (Step(((0, 1),), (0,), share=0.5),)
    turn = rule.look(rule.due_s)
    assert turn == (Step(((1, 1),), (1,), share=0.5),)
    assert rule.push(3, 5.0) == ()  # of the round that goes on, which it is enough for
    rule.push(2, 5.0)
    rule.push(0, 5.0)
    steps = rule.look(rule.due_s)
    steps += rule.look(rule.due_s)
    assert ((3, 2),) in [step.apply for step in steps]


def test_a_group_that_is_empty_for_a_while_begins_anew() -> None:
    """What was enough before its last client left is not when another joins."""
    rule = FlR2sp(groups=2, fraction=0.5, give_up_after=1).rule()
    rule.join(0, 0.0)
    rule.join(1, 0.0)
    rule.push(1, 1.0)
    rule.leave(1, 2.0)
    rule.push(0, 3.0)
    rule.join(3, 40.0)
    (step,) = rule.push(3, 41.0)
    assert step.apply == ((3, 1),)
    assert rule._rounds[1].usual.usual_s == 1.0  # type: ignore[attr-defined]


def test_whether_enough_are_in_goes_by_who_is_there() -> None:
    rule = FlR2sp(groups=2, fraction=0.5).rule()
    for worker in (0, 1, 3):
        rule.join(worker, 0.0)
    rule.push(1, 1.0)  # one of two is enough
    rule.join(5, 2.0)
    assert rule.push(3, 3.0) == ()  # two of three: it counts
    assert rule.push(5, 4.0)[0] == Step((), (5,), ((5, 1),))
    rule.leave(3, 5.0)  # one of two again
    assert rule.push(5, 6.0)[0] == Step((), (5,), ((5, 2),))


@pytest.mark.parametrize(("has_finished", "share"), [(False, 0.5), (True, 0.25)])
def test_steps_are_as_long_without_the_lost_and_shorter_without_who_has_finished(
    has_finished: bool, share: float
) -> None:
    rule = FlR2sp(groups=2, fraction=1.0, relaxation=0.0).rule()
    for worker in range(4):
        rule.join(worker, 0.0)
    rule.leave(2, 1.0, has_finished)
    assert [step.share for step in rule.push(0, 2.0)] == [share]
    rule.push(1, 2.0)
    assert [step.share for step in rule.push(3, 2.0)] == [0.5]
    for worker in (1, 3):
        rule.leave(worker, 3.0, has_finished)
    assert [step.share for step in rule.push(0, 4.0)] == [0.25 if has_finished else 1.0]


def test_all_may_become_slower_than_they_are_waited_for() -> None:
    story = live(
        FlR2sp(groups=2, fraction=0.5, give_up_after=1),
        lambda worker, k: 1.0 if k < 5 else 40.0,
        all_at_once(6),
        until_s=3000.0,
    )
    assert len(story.steps) < 2000
    assert {worker for worker, number in story.pushed if number > 5} == set(range(6))
    assert max(each.update[1] for each in story.applied) > 20


def drawn(seed: int) -> tuple[FlR2sp, int, Takes]:
    """Return a pace, how many workers there are, and times of which some are for ever."""
    rng = np.random.default_rng(seed)
    workers = int(rng.integers(1, 9))
    never = float(rng.choice([0.0, 0.02, 0.1]))
    usual_s = rng.uniform(0.1, 3.0, workers)
    noise = rng.lognormal(0.0, rng.choice([0.0, 0.3, 1.5]), (workers, 300))
    hangs = rng.random((workers, 300)) < never
    gives_up = bool(never) or rng.random() < 0.5
    pace = FlR2sp(
        groups=int(rng.integers(1, 6)),
        fraction=float(rng.uniform(0.05, 1)),
        relaxation=float(rng.choice([0.0, 1.0, rng.uniform()])),
        smoothing=float(rng.uniform(0.05, 1)),
        grouping=str(rng.choice(["index", "delay", "load"])),  # type: ignore[arg-type]
        regroup_every=int(rng.integers(1, 4)),
        collects="turn" if rng.random() < 0.5 else "fraction",
        give_up_after=int(rng.integers(1, 3)) if gives_up else None,
        deadline_s=float(rng.uniform(0.5, 9)) if gives_up else None,
    )

    def takes(worker: int, k: int) -> float:
        return NEVER if hangs[worker, k % 300] else float(usual_s[worker] * noise[worker, k % 300])

    return pace, workers, takes


@seeds(1, 20)
def test_no_update_is_staler_than_promised_and_some_are_as_stale(seed: int) -> None:
    """Some updates miss each other's twice; three times, where groups are dealt anew."""
    most = {"index": 0.0, "delay": 0.0, "load": 0.0}
    for part in range(60):
        pace, workers, takes = drawn(60 * seed + part)
        story = live(pace, takes, all_at_once(workers), until_s=60.0)
        assert len(story.steps) < 6000
        missed = max((each.missed for each in story.applied), default=0)
        bound = pace.staleness_bound(workers)
        assert bound is not None
        assert missed <= bound
        if workers > 1:
            most[pace.grouping] = max(most[pace.grouping], missed / (workers - 1))
    for reached in most.values():
        assert reached > 1.0  # some update misses another worker's twice


@pytest.mark.parametrize("grouping", ["delay", "load"])
def test_one_that_is_dealt_to_an_earlier_group_has_a_third_turn_before_the_other(
    grouping: str,
) -> None:
    """Of two groups of one, dealt anew: the bound, 3 (N - 1), is reached."""
    takes = {0: [2.0, 7.0], 1: [3.0, 1.0, 0.5]}
    pace = FlR2sp(
        groups=2,
        fraction=1.0,
        relaxation=0.0,
        smoothing=1.0,
        grouping=grouping,  # type: ignore[arg-type]
        regroup_every=1,
        deadline_s=6.0,
    )

    def took(worker: int, k: int) -> float:
        return takes[worker][k - 1] if k <= len(takes[worker]) else NEVER

    story = live(pace, took, all_at_once(2), until_s=20.0)
    applied = [each.update for each in story.applied]
    assert applied == [(0, 1), (1, 1), (1, 2), (1, 3), (0, 2)]
    assert story.applied[-1].missed == pace.staleness_bound(2) == 3


def test_a_group_is_passed_over_and_what_comes_after_it_counts_in_its_next_turn() -> None:
    """Of two groups of one: the bound, 2 (N - 1), is reached."""
    rule = FlR2sp(groups=2, relaxation=0.0, deadline_s=3.0).rule()
    rule.join(0, 0.0)
    rule.join(1, 0.0)
    rule.push(0, 1.0)
    rule.push(1, 1.0)
    assert rule.push(0, 2.0) == (Step(((0, 2),), (0,), share=0.5),)
    assert rule.push(0, 3.0) == ()  # group 1's turn
    (step,) = rule.look(rule.due_s)  # not any more
    assert step.apply == ((0, 3),)
    (step,) = rule.push(1, 4.6)
    assert step.apply == ((1, 2),)  # it has missed (0, 2) and (0, 3)


def test_who_was_passed_over_twice_is_a_straggler() -> None:
    rule = FlR2sp(groups=2, relaxation=0.0).rule()
    rule.join(0, 0.0)
    rule.join(1, 0.0)
    rule.push(0, 1.0)
    rule.push(1, 1.0)
    now_s = 1.0
    for _ in range(4):
        now_s += 10.0
        rule.push(0, now_s)
    answer = rule.push(1, now_s + 1.0)
    assert answer[0] == Step((), (1,), ((1, 2),))


def test_a_round_that_takes_longer_than_the_first_did_is_waited_for_in_the_end() -> None:
    """The first round pulls no model; all later ones take five times as long."""
    story = live(
        FlR2sp(groups=1),
        lambda worker, k: 1.0 + 0.001 * worker if k == 1 else 5.0 + 0.001 * worker,
        all_at_once(16),
        until_s=200.0,
    )
    sizes = [len(step.apply) for _, step in story.steps if step.apply]
    assert sizes == [12] * len(sizes)
    assert len(sizes) > 30


def test_a_round_that_takes_much_longer_than_the_first_did_is_waited_for_in_the_end() -> None:
    story = live(
        FlR2sp(groups=1),
        lambda worker, k: 1.0 + 0.001 * worker if k == 1 else 15.0 + 0.001 * worker,
        all_at_once(16),
        until_s=600.0,
    )
    sizes = [len(step.apply) for _, step in story.steps if step.apply]
    assert sizes[0] == 12
    assert sizes[1] < 12  # ended when ten of the first round's times had gone by
    assert sizes[2:] == [12] * (len(sizes) - 2)
    assert len(sizes) > 30
