"""Distances that are known, and the delay they cost."""

import math

import pytest

from anabranch.overlay import Site
from anabranch.overlay._geography import EARTH_RADIUS_M, fibre_latency_s, great_circle_m


def test_distances_are_those_of_the_sphere():
    half_way_m = math.pi * EARTH_RADIUS_M
    assert great_circle_m(90, 0, -90, 0) == pytest.approx(half_way_m)
    assert great_circle_m(0, 179, 0, -179) == pytest.approx(half_way_m / 90)
    assert great_circle_m(12, 34, 12, 34) == 0


def test_distances_broadcast():
    assert great_circle_m([[0], [10]], [[0], [0]], [0, 10, 20], [0, 0, 0]).shape == (2, 3)


def test_new_york_to_london_takes_28_ms():
    new_york, london = Site("new-york", 40.7128, -74.006), Site("london", 51.5074, -0.1278)
    assert fibre_latency_s(new_york, london) == pytest.approx(5570e3 / 199.86e6, rel=1e-3)


def test_a_site_without_a_position_has_no_distance():
    assert fibre_latency_s(Site("a", 1.0, 2.0), Site("b")) is None
    assert fibre_latency_s(Site("a"), Site("b", 1.0, 2.0)) is None
