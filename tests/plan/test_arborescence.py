from __future__ import annotations

import numpy as np
import pytest

from anabranch.plan import NO_PARENT
from anabranch.plan._arborescence import cheapest_way, least_totals, lighten, seconds_from

from .networks import all_ways, random_overlay


def priced(n: int, seed: int, density: float) -> tuple[np.ndarray, np.ndarray]:
    """Return prices and hop times of a random overlay's links."""
    overlay = random_overlay(n, seed, density=density, one_way=0.4)
    rng = np.random.default_rng(seed)
    joined = overlay.goodput_matrix_bps() > 0
    price = np.where(joined, rng.integers(0, 9, size=(n, n)).astype(float), np.inf)
    return price, np.where(joined, rng.uniform(0.1, 1.0, size=(n, n)), np.inf)


def draw(n: int, seed: int, *, density: float = 1.0) -> tuple[np.ndarray, np.ndarray, list]:
    """Return prices and hop times of a random overlay's links, and every way out of site 0."""
    overlay = random_overlay(n, seed, density=density, one_way=0.4)
    return (*priced(n, seed, density), list(all_ways(overlay, 0, up=False)))


def total(price: np.ndarray, way) -> float:
    return sum(price[parent, site] for site, parent in enumerate(way) if site != 0)


def as_parents(way: np.ndarray) -> tuple[int, ...]:
    assert way[0] == 0
    return (NO_PARENT, *way[1:].tolist())


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("density", [0.3, 1.0])
@pytest.mark.parametrize("seed", range(12))
def test_the_cheapest_way_is_the_cheapest_of_all(n, density, seed):
    price, _, ways = draw(n, seed, density=density)
    way = cheapest_way(price, 0)
    assert as_parents(way) in ways
    assert total(price, way) == min(total(price, other) for other in ways)


@pytest.mark.parametrize("n", [2, 3, 5, 9])
@pytest.mark.parametrize("density", [0.3, 1.0])
@pytest.mark.parametrize("seed", range(12))
def test_the_least_totals_are_those_of_the_cheapest_way_of_each_root(n, density, seed):
    price, _ = priced(n, seed, density)
    of_each = [cheapest_way(price, root) for root in range(n)]
    totals = [np.delete(price[way, np.arange(n)], root).sum() for root, way in enumerate(of_each)]
    assert least_totals(price) == pytest.approx(totals)


def test_rings_within_rings_are_opened_again():
    """Sites 1 and 2 prefer each other; so do 3 and that ring; only site 3 hears the root."""
    price = np.full((4, 4), np.inf)
    for source, target, cost in ((0, 3, 9), (1, 2, 1), (2, 1, 1), (2, 3, 2), (3, 1, 3), (3, 2, 4)):
        price[source, target] = cost
    assert cheapest_way(price, 0).tolist() == [0, 3, 1, 0]


@pytest.mark.parametrize("seed", range(12))
def test_a_light_way_is_a_way_and_no_dearer_where_seconds_cost_next_to_nothing(seed):
    price, hop_s, ways = draw(6, seed, density=0.5)
    start = ways[seed % len(ways)]
    way = lighten(np.array([0, *start[1:]]), price, hop_s, 0, 1e-9)
    assert as_parents(way) in ways
    assert total(price, way) <= total(price, start) + 1e-6


@pytest.mark.parametrize("seed", range(12))
def test_where_seconds_cost_most_every_site_is_as_near_as_it_can_be(seed):
    price, hop_s, ways = draw(6, seed, density=0.5)
    way = lighten(cheapest_way(price, 0), price, hop_s, 0, 1e6)
    nearest_s = np.min([seconds_from(0, np.array([0, *w[1:]]), hop_s) for w in ways], axis=0)
    assert seconds_from(0, way, hop_s) == pytest.approx(nearest_s)


def test_a_path_takes_the_sum_of_its_hops():
    hop_s = np.full((5, 5), np.inf)
    for source, target, seconds in ((2, 0, 1.0), (0, 1, 0.5), (1, 3, 0.25), (2, 4, 8.0)):
        hop_s[source, target] = seconds
    way = np.array([2, 0, 2, 1, 2])
    assert seconds_from(2, way, hop_s).tolist() == [1.0, 1.5, 0.0, 1.75, 8.0]
