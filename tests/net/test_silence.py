"""Silence: what is gone is missed soon, and what stalls is not taken for gone."""

from __future__ import annotations

import random

import pytest

from anabranch.net.silence import HEARTBEAT_S, Silence


def missed_after_s(gaps_s: list[float], least_s: float = 5.0) -> float:
    """Return how long the peer is silent when it is given up, after gaps of these lengths."""
    silence = Silence(least_s, 0.0)
    heard_s, looked_s = 0.0, 0.0
    for gap_s in gaps_s:
        heard_s += gap_s
        while looked_s + HEARTBEAT_S <= heard_s:
            looked_s += HEARTBEAT_S
            assert silence.look(looked_s) <= silence.most_s
        silence.heard(heard_s)
    while True:
        looked_s += HEARTBEAT_S
        if silence.look(looked_s) > silence.most_s:
            return looked_s - heard_s


@pytest.mark.parametrize("least_s", [2.0, 5.0, 30.0])
def test_who_speaks_all_the_time_is_missed_after_the_least_silence(least_s: float) -> None:
    assert missed_after_s([0.1] * 1000, least_s) <= least_s + 2 * HEARTBEAT_S


def test_who_is_not_heard_from_the_first_is_missed_too() -> None:
    assert missed_after_s([]) <= 5.0 + 2 * HEARTBEAT_S


def test_one_stall_is_an_exception_and_two_are_a_habit_that_is_forgotten() -> None:
    usual = [1.0] * 400  # in two minutes no more are remembered
    assert missed_after_s([*usual, 4.0, *usual[:5]]) < 8.0
    assert missed_after_s([*usual, 4.0, *usual[:5], 3.0, *usual[:5]]) == pytest.approx(18.0, abs=2)
    assert missed_after_s([*usual, 4.0, 3.0, *usual]) < 8.0


def test_stalls_of_five_times_the_usual_raise_no_alarm() -> None:
    rng = random.Random(0)
    usual_s = 2.0  # gaps as on a machine that has far too much to do
    gaps_s = [usual_s] * 200
    for _ in range(10_000):
        gaps_s.append(usual_s * (5.0 if rng.random() < 0.05 else rng.uniform(0.5, 1.0)))
    assert missed_after_s(gaps_s) > 5 * usual_s  # none before the end, where it is gone


def test_who_stood_still_itself_does_not_blame_the_other() -> None:
    silence = Silence(5.0, 0.0)
    for second in range(1, 20):
        silence.heard(float(second))
        assert silence.look(float(second)) == 0.0
    assert silence.look(60.0) == 0.0  # it looks late: the peer's words may wait to be read
    assert silence.look(60.5) == pytest.approx(0.5)


def test_two_minutes_are_remembered_and_of_their_gaps_the_longest_but_one_counts() -> None:
    rng, silence = random.Random(1), Silence(0.0, 0.0)
    gaps_s, now_s = list[float](), 0.0
    for _ in range(3000):
        gap_s = rng.choice([0.1, 0.2, 0.25, 0.3]) * rng.random()
        now_s += gap_s
        silence.heard(now_s)
        silence.look(now_s)
        gaps_s = [*gaps_s[-399:], gap_s]
        usual_s = sorted(gaps_s)[-2] if len(gaps_s) > 1 else 0.0
        assert silence.most_s == pytest.approx(6.0 * usual_s)
        unusual_s = max(1.2, 3.0 * usual_s)
        assert not silence.is_unusual(unusual_s * 0.999, 0.1)
        assert silence.is_unusual(unusual_s * 1.001, None)


def test_gaps_of_a_busy_process_are_no_reason_to_bear_with_a_kernel_that_answers_nothing() -> None:
    silence = Silence(15.0, 0.0, heartbeat_s=0.1)
    for second in range(1, 60):
        silence.heard(float(second))
        silence.look(second + 0.05)
        for tenth in range(1, 10):
            silence.look(second + 0.05 + tenth / 10)
    assert not silence.is_unusual(2.9, unanswered_s=0.1)
    assert not silence.is_unusual(2.9, unanswered_s=None)
    assert silence.is_unusual(3.1, unanswered_s=0.1)
    assert silence.is_unusual(0.5, unanswered_s=0.3)
    assert not silence.is_unusual(0.3, unanswered_s=0.3)
