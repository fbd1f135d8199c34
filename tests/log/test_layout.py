from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from anabranch.overlay import Link, Overlay, Site
from anabranch_lab.reports._layout import site_positions


def build(sites: list[Site], pairs: list[tuple[int, int]]) -> Overlay:
    both = [edge for a, b in pairs for edge in ((a, b), (b, a))]
    return Overlay("test", tuple(sites), tuple(Link(a, b, 1e6) for a, b in both))


def unplaced(n: int) -> list[Site]:
    return [Site(f"s{i}") for i in range(n)]


def all_pairs(n: int) -> list[tuple[int, int]]:
    return list(combinations(range(n), 2))


@pytest.mark.parametrize("n", [2, 3, 9, 30])
def test_sites_are_apart_and_inside_the_unit_square(n: int) -> None:
    points = site_positions(build(unplaced(n), all_pairs(n)))
    gaps = np.linalg.norm(points[:, None] - points[None], axis=2)[np.triu_indices(n, 1)]
    assert gaps.min() > 0.5 / n
    assert points.min() >= -1e-9
    assert points.max() <= 1 + 1e-9


def test_a_single_site_is_in_the_middle() -> None:
    assert site_positions(build(unplaced(1), [])).tolist() == [[0.5, 0.5]]


def test_a_chain_is_drawn_in_order_along_a_line() -> None:
    points = site_positions(build(unplaced(5), [(0, 1), (1, 2), (2, 3), (3, 4)]))
    assert sorted(points[:, 0]) == points[:, 0].tolist()
    assert np.ptp(points[:, 1]) < 0.1


def test_the_same_overlay_gives_the_same_drawing() -> None:
    overlay = build(unplaced(12), all_pairs(12))
    assert np.array_equal(site_positions(overlay), site_positions(overlay))


def test_known_places_are_drawn_as_on_a_map() -> None:
    sites = [Site("Oslo", 59.9, 10.8), Site("Madrid", 40.4, -3.7), Site("Athens", 38.0, 23.7)]
    oslo, madrid, athens = site_positions(build(sites, all_pairs(3)))
    assert madrid[0] < oslo[0] < athens[0]
    assert oslo[1] > madrid[1] > athens[1]


def test_the_map_is_cut_at_the_widest_gap() -> None:
    sites = [Site("Tokyo", 35.7, 139.7), Site("Seattle", 47.6, -122.3), Site("Hilo", 19.7, -155.1)]
    tokyo, seattle, hilo = site_positions(build(sites, all_pairs(3)))
    assert tokyo[0] < hilo[0] < seattle[0]


def test_two_sites_in_one_town_are_pushed_apart() -> None:
    sites = [Site("a", 10.0, 10.0), Site("b", 10.0, 10.0), Site("c", 30.0, 40.0)]
    a, b, _ = site_positions(build(sites, all_pairs(3)))
    assert np.hypot(*(a - b)) > 0.1


def test_one_unplaced_site_means_no_map() -> None:
    sites = [Site("a", 10.0, 10.0), Site("b", 10.0, 10.0), Site("c")]
    points = site_positions(build(sites, all_pairs(3)))
    sides = [float(np.hypot(*(points[i] - points[j]))) for i, j in all_pairs(3)]
    assert sides == pytest.approx([sides[0]] * 3)
