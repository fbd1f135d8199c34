"""What a loop's author is told about the time that averages take."""

from __future__ import annotations

import pytest

from anabranch.train.waiting import Waiting


def measured(every: int, fragments: int, compute_s: float, wait_s: float) -> Waiting:
    """Return a wait after each part of a period, once enough of them have been measured."""
    waiting = Waiting(every, fragments)
    spacing = every // fragments
    for step in range(1, 4 * every + 1):
        waits = step % spacing == 0
        first_s = 5.0 if step <= every else 0.0  # to open connections
        waiting.stepped(compute_s, wait_s + first_s if waits else 0.0)
        assert waiting.is_known == (step == 4 * every)
    return waiting


@pytest.mark.parametrize("fragments", [1, 5])
def test_the_steps_that_are_told_bring_waits_to_a_tenth(fragments: int) -> None:
    waiting = measured(10, fragments, compute_s=0.1, wait_s=1.5 / fragments)
    assert waiting.share == pytest.approx(0.6)
    least = waiting.least_every
    assert least % fragments == 0
    assert least == pytest.approx(9 * 1.5 / 0.1, rel=0.1)
    assert 1.5 / (1.5 + least * 0.1) <= 0.1
    assert f"60 % of the time goes into averages every 10 steps; every >= {least}" in waiting.advice


def test_those_who_wait_for_a_tenth_or_less_are_told_nothing() -> None:
    assert measured(10, 1, compute_s=0.1, wait_s=0.11).advice == ""
    assert measured(10, 1, compute_s=0.1, wait_s=0.0).advice == ""


def test_steps_that_take_no_time_are_no_reason_to_divide_by_it() -> None:
    assert measured(10, 1, compute_s=0.0, wait_s=1.0).least_every == 10
    assert measured(10, 1, compute_s=0.0, wait_s=0.0).advice == ""
