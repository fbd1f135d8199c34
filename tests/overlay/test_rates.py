"""Rates drawn once, and rates drawn again every period."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from anabranch.overlay import OverlayError, UniformRates, internet2_9, random_sparse, redraw

from ..every import every

DYNAMICS = {"period_s": 180, "low_bps": 20e6, "high_bps": 155e6, "duration_s": 900, "seed": 0}


@pytest.mark.parametrize(
    ("low_bps", "high_bps"),
    [(0, 1), (-1, 1), (2, 1), (1, float("inf")), (float("nan"), 1), (1, float("nan"))],
)
def test_bounds_out_of_order_are_refused(low_bps, high_bps):
    with pytest.raises(OverlayError, match=r"cannot draw rates from .* give 0 < low_bps"):
        UniformRates(low_bps, high_bps, seed=0)
    with pytest.raises(OverlayError, match="cannot draw rates from"):
        redraw(internet2_9(), **{**DYNAMICS, "low_bps": low_bps, "high_bps": high_bps})


def test_equal_rules_draw_equal_rates_within_their_bounds():
    first, second = (list(islice(UniformRates(3, 5, seed=1).draws_bps(), 100)) for _ in range(2))
    assert first == second
    assert len(set(first)) == 100
    assert every(3 <= rate_bps <= 5 for rate_bps in first)


def test_redrawing_keeps_everything_but_the_traces():
    overlay = internet2_9()
    sites = tuple(replace(site, uplink_bps=1e8, downlink_bps=2e8) for site in overlay.sites)
    links = tuple(replace(link, latency_drift_s=0.01) for link in overlay)
    overlay = replace(overlay, sites=sites, links=links)
    changing = redraw(overlay, **DYNAMICS)
    stripped = replace(changing, links=tuple(replace(link, trace=None) for link in changing))
    assert stripped == overlay


def test_the_overlays_own_rates_hold_for_the_first_period():
    assert redraw(internet2_9(), **DYNAMICS).at(179.9) == internet2_9()


def test_a_rate_is_drawn_at_every_period_below_the_duration_for_each_direction():
    traces = [link.trace for link in redraw(internet2_9(), **DYNAMICS)]
    assert {trace.starts_s for trace in traces} == {(0.0, 180.0, 360.0, 540.0, 720.0)}
    drawn_bps = np.array([trace.rates_bps[1:] for trace in traces])
    assert np.unique(drawn_bps).size == 26 * 4
    assert drawn_bps.min() >= 20e6
    assert drawn_bps.max() <= 155e6


def test_a_run_shorter_than_a_period_never_changes():
    changing = redraw(internet2_9(), **{**DYNAMICS, "duration_s": 100})
    assert {link.trace.starts_s for link in changing} == {(0.0,)}


def test_drawn_rates_are_uniform():
    overlay = redraw(random_sparse(500, seed=0), **{**DYNAMICS, "duration_s": 1800})
    drawn_bps = np.array([link.trace.rates_bps[1:] for link in overlay])
    # Standard error of the mean of 13,000 draws is 0.34 Mbit/s; the tenths are 1,305 +- 34 each.
    assert drawn_bps.mean() == pytest.approx(87.5e6, abs=1.5e6)
    counts, _ = np.histogram(drawn_bps, bins=10, range=(20e6, 155e6))
    assert np.abs(counts - drawn_bps.size / 10).max() < 5 * 35


def test_equal_seeds_redraw_alike_and_others_do_not():
    overlay = internet2_9()
    assert redraw(overlay, **DYNAMICS) == redraw(overlay, **DYNAMICS)
    assert redraw(overlay, **DYNAMICS) != redraw(overlay, **{**DYNAMICS, "seed": 1})
    generator = {**DYNAMICS, "seed": np.random.default_rng(0)}
    assert redraw(overlay, **DYNAMICS) == redraw(overlay, **generator)


def test_a_longer_duration_leaves_earlier_rates_as_they_were():
    short = redraw(internet2_9(), **DYNAMICS)
    long = redraw(internet2_9(), **{**DYNAMICS, "duration_s": 9000})
    for before, after in zip(short, long, strict=True):
        assert after.trace.rates_bps[: len(before.trace.rates_bps)] == before.trace.rates_bps


@pytest.mark.parametrize("key", ["period_s", "duration_s"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_a_period_or_duration_that_is_not_positive_is_refused(key, value):
    with pytest.raises(OverlayError, match=f"{key} is .* s, which must be finite and > 0"):
        redraw(internet2_9(), **{**DYNAMICS, key: value})
