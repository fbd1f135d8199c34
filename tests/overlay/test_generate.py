"""Random overlays hold what they promise, at any size and seed."""

import networkx as nx
import numpy as np
import pytest

from anabranch.overlay import (
    Overlay,
    OverlayError,
    random_complete,
    random_geographic,
    random_sparse,
)
from anabranch.overlay._geography import fibre_latency_s

from ..every import every

ALL = [random_sparse, random_geographic, random_complete]


def graph(overlay: Overlay) -> nx.Graph:
    return nx.Graph((link.source, link.target) for link in overlay)


@pytest.mark.parametrize("generate", ALL)
def test_equal_seeds_draw_equal_overlays(generate):
    assert generate(12, 5) == generate(12, 5)
    assert generate(12, 5) == generate(12, np.random.default_rng(5))
    assert generate(12, 5) != generate(12, 6)


@pytest.mark.parametrize("generate", ALL)
def test_a_generator_is_advanced(generate):
    rng = np.random.default_rng(5)
    assert generate(12, rng) != generate(12, rng)


@pytest.mark.parametrize("generate", ALL)
@pytest.mark.parametrize("n", [3, 4, 9, 60])
def test_every_link_has_a_way_back_and_a_rate_of_its_own_within_bounds(generate, n):
    overlay = generate(n, 1, low_bps=3.0, high_bps=5.0, loss=0.25)
    assert overlay.size == n
    assert every(overlay.link(link.target, link.source) for link in overlay)
    assert len({link.rate_bps for link in overlay}) == len(overlay.links)
    assert every(3.0 <= link.rate_bps <= 5.0 and link.loss == 0.25 for link in overlay)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("n", [3, 9, 40])
def test_a_sparse_overlay_has_no_bridge(n, seed):
    assert not nx.has_bridges(graph(random_sparse(n, seed)))


@pytest.mark.parametrize(("n", "degree"), [(9, 2.9), (9, 2), (100, 2.9), (100, 6), (8, 7)])
def test_a_sparse_overlay_has_the_mean_degree_asked_for(n, degree):
    assert len(random_sparse(n, 3, degree=degree).links) == 2 * round(n * degree / 2)


def test_nine_sparse_sites_have_the_thirteen_pairs_of_the_paper():
    assert len(random_sparse(9, 0).links) == 26


def test_a_sparse_overlay_asked_for_more_than_all_pairs_is_complete():
    assert len(random_sparse(5, 0, degree=99).links) == 5 * 4


@pytest.mark.parametrize("n", [2, 30])
def test_a_complete_overlay_links_every_ordered_pair(n):
    overlay = random_complete(n, 0)
    assert overlay.targets == tuple(tuple(j for j in range(n) if j != i) for i in range(n))


def test_a_complete_overlay_may_draw_the_latency_of_each_direction():
    overlay = random_complete(40, 0, latency_s=(1.0, 5.0), latency_drift_s=0.5)
    latencies_s = np.array([link.latency_s for link in overlay])
    assert len(set(latencies_s)) == 40 * 39
    assert latencies_s.min() >= 1
    assert latencies_s.max() <= 5
    assert latencies_s.mean() == pytest.approx(3, abs=5 * 4 / np.sqrt(12 * 40 * 39))
    assert {link.latency_drift_s for link in overlay} == {0.5}


def test_drawing_latencies_leaves_the_rates_as_they_were():
    drawn, fixed = random_complete(9, 4, latency_s=(1.0, 5.0)), random_complete(9, 4)
    assert [link.rate_bps for link in drawn] == [link.rate_bps for link in fixed]
    assert {link.latency_s for link in fixed} == {0.03}


@pytest.mark.parametrize("seed", range(20))
def test_a_geographic_overlay_links_each_site_to_its_nearest(seed):
    overlay = random_geographic(20, seed, neighbours=2)
    for i, site in enumerate(overlay.sites):
        latencies_s = sorted(
            (fibre_latency_s(site, other), j) for j, other in enumerate(overlay.sites) if j != i
        )
        assert every(overlay.link(i, j) is not None for _, j in latencies_s[:2])


def test_geographic_latency_is_that_of_the_distance():
    overlay = random_geographic(20, 0)
    for link in overlay:
        ends = overlay.sites[link.source], overlay.sites[link.target]
        assert link.latency_s == pytest.approx(fibre_latency_s(*ends))


def test_geographic_sites_lie_evenly_over_the_globe():
    latitudes_deg = np.array([site.latitude_deg for site in random_geographic(1000, 0).sites])
    # Half of a sphere lies within 30 degrees of its equator; 500 +- 16 of 1,000 sites.
    assert abs(np.count_nonzero(np.abs(latitudes_deg) < 30) - 500) < 5 * 16


def test_more_neighbours_than_sites_means_all():
    assert len(random_geographic(4, 0, neighbours=99).links) == 4 * 3


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: random_sparse(2, 0), "sparse overlay of 2 sites would hold a bridge; give n >= 3"),
        (lambda: random_sparse(9, 0, degree=1.9), "degree is 1.9, which must be >= 2"),
        (lambda: random_sparse(9, 0, degree=float("nan")), "degree is nan"),
        (lambda: random_sparse(9, 0, low_bps=0), "cannot draw rates from 0"),
        (lambda: random_geographic(1, 0), "overlay of 1 sites has nothing to link; give n >= 2"),
        (lambda: random_geographic(9, 0, neighbours=0), "neighbours is 0, which must be >= 1"),
        (lambda: random_complete(1, 0), "overlay of 1 sites has nothing to link"),
        (lambda: random_complete(3, 0, low_bps=9, high_bps=1), "cannot draw rates from 9 to 1"),
        (lambda: random_complete(3, 0, latency_s=(5, 1)), "cannot draw latencies from 5 to 1 s; g"),
        (lambda: random_complete(3, 0, latency_s=(-1, 1)), "cannot draw latencies from -1 to 1"),
        (lambda: random_complete(3, 0, latency_drift_s=-1), "has latency drift -1 s"),
    ],
)
def test_what_cannot_be_drawn_is_refused(make, complaint):
    with pytest.raises(OverlayError, match=complaint):
        make()
