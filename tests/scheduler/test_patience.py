"""Patience: follows what rounds take, and not a single stall."""

from __future__ import annotations

from anabranch.net.session import LEAST_PATIENCE_S
from anabranch.scheduler._patience import RoundTimes


def test_before_anything_is_known_it_is_the_least() -> None:
    assert RoundTimes().patience_s == LEAST_PATIENCE_S


def test_long_rounds_make_it_long_from_the_first() -> None:
    times = RoundTimes()
    times.add(1, 30.0)
    assert times.patience_s == 60.0


def test_what_one_site_took_longest_counts_for_a_round() -> None:
    times = RoundTimes()
    for seconds in (10.0, 30.0, 20.0):
        times.add(1, seconds)
    assert times.patience_s == 60.0


def test_of_three_rounds_the_longest_may_be_an_exception_and_of_two_it_may_not() -> None:
    times = RoundTimes()
    times.add(1, 30.0)
    times.add(2, 10.0)
    assert times.patience_s == 60.0
    times.add(3, 10.0)
    assert times.patience_s == 20.0


def test_one_stall_changes_nothing_and_two_do_until_they_are_forgotten() -> None:
    times = RoundTimes()
    for number in range(3):
        times.add(number, 0.1)
    times.add("stall", 12.0)
    assert times.patience_s == LEAST_PATIENCE_S
    times.add("another", 11.0)
    assert times.patience_s == 22.0
    for number in range(10, 25):
        times.add(number, 0.1)
    assert times.patience_s == LEAST_PATIENCE_S
