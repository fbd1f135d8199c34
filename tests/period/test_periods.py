"""When averages are due."""

from __future__ import annotations

import pytest

from anabranch.period import (
    PERIODS,
    Adaptive,
    AnyPeriod,
    Averaged,
    Every,
    EveryEpoch,
    EveryStep,
    Moved,
    Progress,
    Timed,
)

EACH: list[AnyPeriod] = [
    EveryStep(),
    Every(steps=4),
    Moved(by=0.1, most_steps=6),
    Timed(seconds=3.0),
    Adaptive(),
]


def test_every_period_is_tried() -> None:
    served = {EveryEpoch}  # whose steps are counted before they are made
    assert {type(each) for each in EACH} | served == {*PERIODS}


@pytest.mark.parametrize("period", EACH, ids=lambda each: type(each).__name__)
def test_an_average_is_due_some_time_and_decided_by_what_is_handed_in(period: AnyPeriod) -> None:
    rule, again = period.rule(), period.rule()
    told = [Progress(steps, moved=0.001 * steps, seconds=0.1 * steps) for steps in range(1, 100)]
    due = [rule.is_due(each) for each in told]
    assert any(due)
    assert due == sorted(due), "due, and then not any more"
    rule.averaged(Averaged(4, 1.0, 2.0, 0.5))
    again.load_state_dict(rule.state_dict())
    assert [rule.is_due(each) for each in told] == [again.is_due(each) for each in told]
    is_called = [period.rule().is_due(Progress(1, is_called=True))]
    assert is_called == [not period.averages or period.calls]


@pytest.mark.parametrize(
    ("held", "samples", "steps"), [(40, 10, 8), (41, 10, 9), (3, 10, 1), (1, 1, 2), (0, 5, 1)]
)
def test_epochs_are_whole_passes_in_whole_batches(held: int, samples: int, steps: int) -> None:
    assert EveryEpoch(epochs=2).steps(held, samples) == steps


def test_every_counts_steps() -> None:
    rule = Every(steps=3).rule()
    assert [rule.is_due(Progress(steps)) for steps in (1, 2, 3)] == [False, False, True]


def test_timed_counts_seconds_of_steps() -> None:
    rule = Timed(seconds=2.0).rule()
    assert not rule.is_due(Progress(100, seconds=1.99))
    assert rule.is_due(Progress(1, seconds=2.0))


def test_moved_has_a_threshold_and_a_cap_on_silence() -> None:
    rule = Moved(by=0.1, most_steps=8).rule()
    assert not rule.is_due(Progress(7, moved=0.0999))
    assert rule.is_due(Progress(1, moved=0.1))
    assert rule.is_due(Progress(8))
