"""Who is picked, who is undrafted, who is too late."""

from __future__ import annotations

from typing import Literal

import pytest

from anabranch.pace import Rule, Safa, Step
from tests.pace.world import live


def begun(pace: Safa, workers: int) -> Rule:
    rule = pace.rule()
    for worker in range(workers):
        rule.join(worker, 0.0)
    return rule


def test_a_round_ends_with_the_first_enough_and_the_next_prefers_the_others() -> None:
    rule = begun(Safa(fraction=0.5, lag_tolerance=2), 4)
    assert rule.push(0, 1.0) == ()
    assert rule.push(1, 2.0) == (Step(((0, 1), (1, 1)), (0, 1)),)
    # 0 and 1 were picked: they wait, as 2 and 3 have the first claim.
    assert rule.push(0, 3.0) == ()
    assert rule.push(1, 3.5) == ()
    assert rule.push(2, 3.6) == ()
    # 2 and 3 are picked, 0 and 1 undrafted; all go on.
    assert rule.push(3, 3.7) == (Step(((2, 1), (3, 1)), (0, 1, 2, 3)),)
    # What was undrafted comes with the next round's step.
    assert rule.push(0, 5.0) == ()
    assert rule.push(1, 5.1) == (Step(((0, 2), (1, 2), (0, 3), (1, 3)), (0, 1)),)


@pytest.mark.parametrize(
    ("late_after", "deadline_s", "due_s"),
    [(3.0, None, 2.0 + 6.0), ("never", None, float("inf")), ("never", 30.0, 2.0 + 30.0)],
)
def test_a_round_with_too_few_is_late_when_it_is_asked_to_be(
    late_after: float | Literal["never"], deadline_s: float | None, due_s: float
) -> None:
    rule = begun(Safa(fraction=0.5, late_after=late_after, deadline_s=deadline_s), 4)
    rule.push(0, 1.0)
    rule.push(1, 2.0)  # rounds take 2 s
    assert rule.push(2, 3.0) == ()
    assert rule.due_s == due_s


def test_a_round_does_not_wait_for_ever_for_those_whose_turn_it_is() -> None:
    rule = begun(Safa(fraction=0.5, lag_tolerance=2), 4)
    rule.push(0, 1.0)
    rule.push(1, 2.0)  # rounds take 2 s
    rule.push(0, 3.0)
    assert rule.push(1, 3.5) == ()
    assert rule.due_s == pytest.approx(2.0 + 1.5 * 2.0)
    assert rule.look(4.9) == ()
    assert rule.look(5.0) == (Step(((0, 2), (1, 2)), (0, 1)),)
    rule.push(0, 6.0)
    assert rule.push(1, 6.5) == ()
    assert rule.due_s == pytest.approx(5.0 + 1.5 * 3.0)  # the second round took 3 s
    assert rule.look(9.5)
    rule.push(0, 10.0)
    assert rule.push(1, 10.5) == ()
    usual_s = 0.9 * 3.0 + 0.1 * 4.5
    assert rule.due_s == pytest.approx(9.5 + 1.5 * usual_s)


def test_a_round_does_not_wait_for_ever_for_workers_that_hang() -> None:
    rule = begun(Safa(fraction=1.0, lag_tolerance=2), 3)
    rule.push(0, 1.0)
    rule.push(1, 1.5)
    assert rule.due_s == float("inf")  # nobody knows yet what is usual
    assert rule.push(2, 2.0) == (Step(((0, 1), (1, 1), (2, 1)), (0, 1, 2)),)
    rule.push(1, 3.0)
    assert rule.push(0, 3.5) == ()
    assert rule.due_s == pytest.approx(2.0 + 3.0 * 2.0)
    assert rule.look(7.9) == ()
    assert rule.look(8.0) == (Step(((0, 2), (1, 2)), (1, 0)),)
    assert rule.push(2, 9.0) == ()  # one round late, which is tolerated


def test_when_a_round_ends_who_is_too_late_by_then_abandons_its_update() -> None:
    rule = begun(Safa(fraction=0.5, lag_tolerance=1), 4)
    rule.push(0, 1.0)
    assert rule.push(1, 2.0) == (Step(((0, 1), (1, 1)), (0, 1)),)
    rule.push(2, 3.0)
    rule.push(0, 3.5)
    assert rule.look(5.0) == (Step(((0, 2), (2, 1)), (2, 0), abandon=(3,)),)  # 1 is a round late
    rule.push(0, 6.0)
    rule.push(1, 6.5)
    assert rule.look(9.5) == (Step(((0, 3), (1, 2)), (0, 1)),)  # 3 has been told
    assert rule.push(3, 10.0) == (Step(proceed=(3,), discard=((3, 1),)),)


def test_who_abandons_at_once_has_its_slow_updates_discarded_as_rounds_end() -> None:
    def takes(worker: int, iteration: int) -> float:
        return 1000.0 if worker == 3 else 1.0

    story = live(Safa(fraction=0.5, lag_tolerance=1), takes, [(0.0, worker) for worker in range(4)])
    ends_s = [at_s for at_s, step in story.steps if step.apply]
    assert story.went[3][1:] == ends_s[1::2]
    assert {worker for worker, _ in story.discarded} == {3}


def test_one_that_is_too_late_is_discarded_and_goes_on_at_once() -> None:
    def takes(worker: int, iteration: int) -> float:
        return 7.5 if worker == 3 else 1.0

    tolerant = live(
        Safa(fraction=0.5, lag_tolerance=20), takes, [(0.0, worker) for worker in range(4)]
    )
    strict = live(
        Safa(fraction=0.5, lag_tolerance=1), takes, [(0.0, worker) for worker in range(4)]
    )
    assert tolerant.discarded == []
    assert strict.discarded
    assert {worker for worker, _ in strict.discarded} == {3}
    assert (3, 1) in {each.update for each in tolerant.applied}
    assert strict.went[3][1] == strict.pushed[3, 1]


@pytest.mark.parametrize(("fraction", "lag"), [(0.0, 1), (1.1, 1), (0.5, -1), (float("nan"), 0)])
def test_arguments_out_of_range_are_refused(fraction: float, lag: int) -> None:
    with pytest.raises(ValueError, match="give a fraction in"):
        Safa(fraction=fraction, lag_tolerance=lag)


def test_a_deadline_ends_a_round_before_anybody_knows_what_is_usual() -> None:
    rule = begun(Safa(fraction=1.0, deadline_s=3.0), 3)
    assert rule.push(0, 1.0) == ()
    assert rule.due_s == 3.0
    assert rule.look(2.9) == ()
    assert rule.look(3.0) == (Step(((0, 1),), (0,)),)
    assert rule.push(0, 3.5) == ()
    assert rule.due_s == 6.0  # and not after three times the 3 s that the first took
    assert rule.push(1, 4.0) == ()
    assert rule.push(2, 4.5) == (Step(((0, 2), (1, 1), (2, 1)), (0, 1, 2)),)


def test_until_an_update_is_in_a_deadline_ends_nothing() -> None:
    rule = begun(Safa(fraction=1.0, deadline_s=3.0), 2)
    assert rule.look(9.0) == ()
    assert rule.push(1, 10.0) == (Step(((1, 1),), (1,)),)
