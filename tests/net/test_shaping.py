"""Shaping: when bytes leave a link of a given rate, latency and trace. Time is virtual."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.net.shaping import TokenBucket, serialised_s
from anabranch.overlay import Link, Trace


def test_a_busy_link_sends_at_exactly_its_rate() -> None:
    bucket = TokenBucket(Link(0, 1, rate_bps=8e6))
    now_s = 100.0
    for _ in range(50):
        leave_s = bucket.leave_s(now_s, 100_000)
        now_s = leave_s + 0.02  # every wake-up is late
        bucket.woke(now_s)
    assert leave_s == pytest.approx(105.0)


def test_an_idle_link_saves_nothing_up() -> None:
    bucket = TokenBucket(Link(0, 1, rate_bps=8e6))
    bucket.leave_s(0.0, 100_000)
    bucket.woke(0.1)
    assert bucket.leave_s(50.0, 100_000) == pytest.approx(50.1)


def test_loss_costs_the_packets_that_are_sent_again() -> None:
    assert serialised_s(Link(0, 1, rate_bps=8e6, loss=0.5), 0.0, 1_000_000) == pytest.approx(2.0)


def test_a_message_that_crosses_a_change_of_rate_feels_both_rates() -> None:
    trace = Trace((0.0, 10.0, 20.0), (8e6, 16e6, 8e6))
    link = Link(0, 1, rate_bps=8e6, trace=trace)
    assert serialised_s(link, 9.5, 1_000_000) == pytest.approx(10.25)
    assert serialised_s(link, 5.0, 35_000_000) == pytest.approx(30.0)
    assert serialised_s(link, 1000.0, 1_000_000) == pytest.approx(1001.0)


@given(
    st.floats(0, 100), st.integers(1, 10**7), st.lists(st.floats(1e5, 1e9), min_size=1, max_size=5)
)
def test_a_traced_link_takes_no_less_than_its_best_rate_and_no_more_than_its_worst(
    start_s: float, size_bytes: int, rates_bps: list[float]
) -> None:
    trace = Trace(tuple(10.0 * i for i in range(len(rates_bps))), tuple(rates_bps))
    took_s = serialised_s(Link(0, 1, rates_bps[0], trace=trace), start_s, size_bytes) - start_s
    best_s, worst_s = 8 * size_bytes / max(rates_bps), 8 * size_bytes / min(rates_bps)
    assert best_s - 1e-9 <= took_s * (1 + 1e-9) + 1e-9
    assert took_s <= worst_s * (1 + 1e-9) + 1e-9
