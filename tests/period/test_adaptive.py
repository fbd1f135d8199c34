"""What the period is chosen by."""

from __future__ import annotations

import pytest

from anabranch.period import Adaptive, Averaged, Progress, Rule


def steps_of(rule: Rule) -> int:
    """Return after how many steps an average is due."""
    return next(steps for steps in range(1, 10_000) if rule.is_due(Progress(steps)))


def chosen(ratio: float, spread: float, averages: int = 8, gain: float = 4.5) -> int:
    """Return the period that a rule comes to where nothing changes."""
    rule = Adaptive(gain=gain).rule()
    for _ in range(averages):
        rule.averaged(Averaged(steps_of(rule), 0.1, 0.1 * ratio, spread))
    return steps_of(rule)


def test_the_period_is_the_formulas() -> None:
    assert chosen(ratio=32.0, spread=0.5) == int(4.5 * 32**0.65 / 0.5)
    assert chosen(ratio=32.0, spread=0.5, gain=1.0) == 19


def test_it_grows_with_the_time_of_an_exchange_and_falls_with_the_spread() -> None:
    by_ratio = [chosen(ratio, 2.0) for ratio in (0.1, 1.0, 10.0, 100.0)]
    assert by_ratio == sorted({*by_ratio})
    by_spread = [chosen(30.0, spread) for spread in (0.5, 1.0, 2.0, 4.0)]
    assert by_spread == sorted({*by_spread}, reverse=True)


def test_it_settles_at_once_where_nothing_changes() -> None:
    assert len({chosen(20.0, 1.5, averages) for averages in range(1, 10)}) == 1


@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_it_follows_an_exchange_time_that_changes_tenfold_within_two_averages(
    factor: float,
) -> None:
    rule = Adaptive().rule()
    for _ in range(10):
        rule.averaged(Averaged(steps_of(rule), 0.1, 2.0, 2.0))
    before = steps_of(rule)
    for _ in range(2):
        rule.averaged(Averaged(steps_of(rule), 0.1, 2.0 * factor, 2.0))
    assert steps_of(rule) == pytest.approx(before * factor**0.65, rel=0.2)


def test_one_odd_spread_counts_by_half() -> None:
    rule = Adaptive().rule()
    for spread in (2.0, 2.0, 2.0, 8.0):
        rule.averaged(Averaged(steps_of(rule), 0.1, 5.0, spread))
    assert steps_of(rule) == pytest.approx(chosen(50.0, 2.0) / 2, abs=1)


def test_it_stays_within_its_bounds() -> None:
    assert steps_of(Adaptive(first_steps=7).rule()) == 7
    assert chosen(1e9, 0.0) == Adaptive().most_steps
    assert chosen(0.0, 5.0) == 1
    rule = Adaptive(first_steps=3).rule()
    rule.averaged(Averaged(3, 0.0, 1.0, 1.0))
    assert steps_of(rule) == 3, "no step has been timed"
