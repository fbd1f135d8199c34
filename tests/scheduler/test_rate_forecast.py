"""How much of what was measured is still there later."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.scheduler._rate_forecast import RateForecast

LINKS = 26


def redrawn(every_s: float, looks: int, seed: int = 0, seen: float = 1.0) -> RateForecast:
    """Look once a second at links whose rates are all drawn anew from time to time."""
    rng = np.random.default_rng(seed)
    forecast = RateForecast(LINKS)
    rates_bps = rng.uniform(20e6, 155e6, LINKS)
    for second in range(looks):
        if second and second % every_s == 0:
            rates_bps = rng.uniform(20e6, 155e6, LINKS)
        measured = {i: float(rate) for i, rate in enumerate(rates_bps) if rng.random() < seen}
        forecast.look(measured, float(second))
    return forecast


def test_at_first_everything_is_believed() -> None:
    assert RateForecast(3).kept(100.0) == 1.0
    assert redrawn(1.0, looks=1).kept(5.0) == 1.0


@pytest.mark.parametrize("seed", range(5))
def test_a_steady_network_is_believed_as_measured_however_uneven(seed: int) -> None:
    steady = redrawn(1e9, looks=64, seed=seed, seen=0.7)
    assert steady.kept(1.0) == pytest.approx(1.0)
    assert steady.kept(30.0) == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(5))
def test_of_rates_drawn_every_20_s_as_much_is_left_as_have_not_been_drawn_again(seed: int) -> None:
    changing = redrawn(20.0, looks=64, seed=seed)
    assert changing.kept(5.0) == pytest.approx(0.75, abs=0.1)
    assert changing.kept(10.0) == pytest.approx(0.5, abs=0.15)
    assert changing.kept(30.0) < 0.3


def test_less_than_the_distance_of_looks_loses_less() -> None:
    changing = redrawn(2.0, looks=64)
    assert changing.kept(1.0) < changing.kept(0.5) < changing.kept(0.1) < 1.0
    assert changing.kept(0.5) == pytest.approx(changing.kept(1.0) ** 0.5)


def test_little_seen_concludes_little() -> None:
    forecast = RateForecast(LINKS)
    forecast.look({0: 1e6, 1: 9e6, 2: 3e6}, 0.0)
    forecast.look({0: 9e6, 1: 1e6, 2: 3e6}, 1.0)
    assert forecast.kept(1.0) > 0.75


def test_links_that_nobody_measured_say_nothing() -> None:
    forecast = RateForecast(LINKS)
    for second in range(10):
        forecast.look({}, float(second))
    assert forecast.kept(3.0) == 1.0
