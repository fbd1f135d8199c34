"""Which sites take part in a run, and when others are let in: the same at every site."""

from __future__ import annotations

import pytest

from anabranch_lab.run._attendance import Absence, Attendance

ALL, TWO = (0, 1, 2), (0, 2)


@pytest.mark.parametrize("window", [1, 2, 4])
def test_others_are_let_in_before_each_exchange_a_window_after_one_that_lacked_a_site(
    window: int,
) -> None:
    attendance = Attendance(3, window)
    let_in = []
    for number in range(1, 13):
        if attendance.lets_in_before(number):
            let_in.append(number)
            attendance.let_in(number)
            assert not attendance.lets_in_before(number)
        attendance.ended(number, TWO if number in (3, 4, 6) else ALL)
    assert let_in == [number + window for number in (3, 4, 6)]


@pytest.mark.parametrize("window", [1, 2, 4])
def test_a_site_that_is_let_in_decides_as_the_others_do(window: int) -> None:
    one, other = Attendance(3, window), Attendance(3, window)
    for number in range(1, 13):
        if number == 6:
            one.let_in(number)
            other.load(one.state())
        if number >= 6:
            assert one.lets_in_before(number) == other.lets_in_before(number)
            other.ended(number, TWO if number == 8 else ALL)
        one.ended(number, TWO if number in (4, 5, 8) else ALL)


def test_nothing_is_let_in_where_a_lost_site_ends_the_run() -> None:
    attendance = Attendance(3, 1)
    attendance.ended(1, ())
    assert not attendance.lets_in_before(2)


def test_a_site_that_is_taken_in_waits_as_long_as_the_run_goes_on() -> None:
    absence = Absence(at_s=10.0, was_in_s=2.0, patience_s=5.0)
    assert not absence.is_given_up(15.0)
    assert absence.is_given_up(15.1)
    absence.taken_in(100.0)
    assert not absence.is_given_up(105.0)
    assert absence.pause_s(100.0) == 22.5
