"""Latency that moves with every message."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.overlay import Latency, Link


def series_s(link: Link, seed: int = 0, count: int = 500) -> list[float]:
    latency = Latency(link, seed)
    return [latency.next_s() for _ in range(count)]


def test_the_first_message_takes_the_links_latency():
    assert series_s(Link(0, 1, 1e6, latency_s=3.0, latency_drift_s=0.5), count=1) == [3.0]


@given(st.floats(0, 10), st.floats(0, 10), st.integers(0, 2**64))
def test_a_message_moves_the_latency_by_no_more_than_the_drift_and_never_below_0(
    latency_s, drift_s, seed
):
    found_s = series_s(Link(0, 1, 1e6, latency_s, latency_drift_s=drift_s), seed, count=50)
    assert min(found_s) >= 0
    rounded_s = 2 * np.spacing(max(found_s))
    assert np.abs(np.diff(found_s)).max() <= drift_s * (1 + 1e-9) + rounded_s


def test_steps_are_even_over_the_drift():
    steps_s = np.diff(series_s(Link(0, 1, 1e6, 1000.0, latency_drift_s=0.5), count=12_001))
    # 12,000 draws: the mean's standard error is 0.0026 s, each tenth holds 1,200 +- 33.
    assert abs(steps_s.mean()) < 5 * 0.0027
    counts, _ = np.histogram(steps_s, bins=10, range=(-0.5, 0.5))
    assert np.abs(counts - 1200).max() < 5 * 33


def test_a_link_at_0_may_rise_again():
    found_s = series_s(Link(0, 1, 1e6, latency_s=0.1, latency_drift_s=0.5))
    assert 0.0 in found_s
    assert max(found_s) > 0.5


def test_the_series_follows_from_the_seed_and_the_ends_alone():
    link = Link(0, 1, 1e6, latency_s=3.0, latency_drift_s=0.5)
    faster = Link(0, 1, 9e9, latency_s=3.0, loss=0.5, latency_drift_s=0.5)
    assert series_s(link) == series_s(link) == series_s(faster)
    assert series_s(link) != series_s(link, seed=1)


def test_the_two_directions_of_a_pair_drift_apart():
    there = Link(0, 1, 1e6, latency_s=3.0, latency_drift_s=0.5)
    back = Link(1, 0, 1e6, latency_s=3.0, latency_drift_s=0.5)
    assert series_s(there)[1] != series_s(back)[1]


def test_without_drift_nothing_is_drawn(monkeypatch):
    monkeypatch.delattr(np.random, "default_rng")
    assert series_s(Link(0, 1, 1e6, latency_s=0.03)) == [0.03] * 500


def test_a_latency_is_a_python_number():
    latency = Latency(Link(0, 1, 1e6, latency_s=3.0, latency_drift_s=0.5), seed=0)
    assert [type(latency.next_s()) for _ in range(3)] == [float] * 3
    assert math.isfinite(latency.next_s())


def test_a_seed_is_not_negative():
    with pytest.raises(ValueError, match="non-negative"):
        Latency(Link(0, 1, 1e6, latency_drift_s=0.5), seed=-1)
