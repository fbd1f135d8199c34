from __future__ import annotations

from functools import partial
from itertools import pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.overlay import Overlay, internet2_9
from anabranch.plan import (
    NO_PARENT,
    Auxiliary,
    Plan,
    PlanError,
    algorithm_3,
    disjoint_paths,
    dumps,
    fapt,
    loads,
    spanning,
    star,
    with_auxiliary,
)

from ..every import every
from .networks import all_plans, build, overlays, random_overlay

SEARCHES = [algorithm_3, disjoint_paths, partial(algorithm_3, undirected=True)]

Path = tuple[int, ...]
Hop = tuple[int, int]


def both(a: int, b: int, rate: float) -> list[tuple[int, int, float]]:
    return [(a, b, rate), (b, a, rate)]


def neighbours(plan: Plan) -> set[Hop]:
    ups = {(s, p) for tree in plan.trees for s, p in enumerate(tree.up) if p != NO_PARENT}
    return ups | {(p, s) for tree in plan.trees for s, p in enumerate(tree.down) if p != NO_PARENT}


def delay(overlay: Overlay, path: Path) -> float:
    return sum(1 / overlay.link(*hop).goodput_bps for hop in pairwise(path))


def fastest(overlay: Overlay, source: int, target: int, spent: set[Hop]) -> Path | None:
    """Return the fastest of all simple paths that avoid the spent links, by trying each."""
    between = [site for site in range(overlay.size) if site not in (source, target)]
    links = {(link.source, link.target) for link in overlay} - spent
    paths = [
        (source, *relays, target)
        for count in range(len(between) + 1)
        for relays in permutations(between, count)
        if links.issuperset(pairwise((source, *relays, target)))
    ]
    return min(paths, key=lambda path: delay(overlay, path), default=None)


def test_a_scenario_chooses_between_the_searches():
    overlay = internet2_9()
    plan = fapt(overlay)
    papers, ours = algorithm_3(overlay, plan), disjoint_paths(overlay, plan)
    assert papers != ours
    assert Auxiliary(search="algorithm-3").paths(overlay, plan) == papers
    undirected = Auxiliary(search="algorithm-3-undirected").paths(overlay, plan)
    assert undirected == algorithm_3(overlay, plan, undirected=True)
    assert set(Auxiliary().paths(overlay, plan)) <= set(ours)  # the slowest are left out
    assert Auxiliary().paths(overlay, plan) != papers


@pytest.mark.parametrize("search", SEARCHES)
@given(overlay=overlays())
def test_paths_are_simple_disjoint_and_in_order_of_delay(search, overlay):
    for plan in all_plans(overlay):
        found = search(overlay, plan)
        assert set(found) <= neighbours(plan)
        assert list(found) == sorted(found)
        for (source, target), paths in found.items():
            used = list(pairwise(plan.path(source, target)))
            for path in paths:
                assert (path[0], path[-1]) == (source, target)
                assert len(set(path)) == len(path)
                assert every(overlay.link(*hop) for hop in pairwise(path))
                used += pairwise(path)
            assert len(set(used)) == len(used)
            delays = [delay(overlay, path) for path in paths]
            assert not any(one > after * (1 + 1e-12) for one, after in pairwise(delays))


@pytest.mark.parametrize("search", SEARCHES)
@given(overlay=overlays())
def test_a_plan_with_the_paths_fits_its_overlay_and_comes_back_equal(search, overlay):
    for plan in all_plans(overlay):
        richer = with_auxiliary(plan, overlay, search)
        richer.check_fits(overlay)
        assert loads(dumps(richer)) == richer
        assert with_auxiliary(richer, overlay, lambda overlay, plan: {}) == plan


@given(overlays(max_sites=5))
def test_of_each_pair_alone_every_next_path_is_the_fastest_left(overlay):
    for plan in all_plans(overlay):
        found = disjoint_paths(overlay, plan, most=9)
        for source, target in neighbours(plan):
            spent = set(pairwise(plan.path(source, target)))
            for path in found.get((source, target), ()):
                best = fastest(overlay, source, target, spent)
                assert delay(overlay, path) == pytest.approx(delay(overlay, best), rel=1e-12)
                spent |= set(pairwise(path))
            assert fastest(overlay, source, target, spent) is None


@pytest.mark.parametrize("undirected", [False, True])
@given(st.integers(2, 5), st.integers(0, 10_000), st.sampled_from([0.0, 0.3, 1.0]))
def test_algorithm_3_takes_out_what_all_pairs_use_and_searches_again(undirected, n, seed, density):
    # Rates without common factors, so that no two paths are equally fast.
    primes = [101, 103, 107, 109, 113, 127, 131, 137, 139, 149]
    primes += [151, 157, 163, 167, 173, 179, 181, 191, 193, 197]
    shape = random_overlay(n, seed, density=density, one_way=0.3)
    rates = zip(shape, primes[seed % 7 :] + primes[: seed % 7], strict=False)
    overlay = build(n, [(link.source, link.target, prime) for link, prime in rates])
    expected: dict[Hop, list[Path]] = {}
    spent: set[Hop] = set()
    links = {(link.source, link.target) for link in overlay}
    while not spent >= links:
        pairs = [(s, t) for s in range(n) for t in range(n) if s != t]
        turn = {pair: fastest(overlay, *pair, spent) for pair in pairs}
        for pair, path in turn.items():
            if path is not None:
                expected.setdefault(pair, []).append(path)
                spent |= set(pairwise(path))
                if undirected:
                    spent |= set(pairwise(reversed(path)))
    for plan in all_plans(overlay):
        kept = {
            pair: tuple(
                path
                for path in expected[pair]
                if not set(pairwise(path)) & set(pairwise(plan.path(*pair)))
            )
            for pair in sorted(neighbours(plan))
        }
        found = algorithm_3(overlay, plan, undirected=undirected)
        assert found == {pair: paths for pair, paths in kept.items() if paths}


def test_without_directions_algorithm_3_spends_a_link_both_ways_at_once():
    # A ring whose links are fast one way round: the first turn uses that way alone.
    fast, slow = [(0, 1), (1, 2), (2, 0)], [(1, 0), (2, 1), (0, 2)]
    overlay = build(3, [(*hop, 9.0) for hop in fast] + [(*hop, 2.0) for hop in slow])
    plan = fapt(overlay, roots=[0])
    assert set(algorithm_3(overlay, plan)) == set(fast)
    assert algorithm_3(overlay, plan, undirected=True) == {}


def test_of_fastest_paths_algorithm_3_finds_the_primary_first_and_keeps_the_rest():
    overlay = build(3, both(0, 1, 4.0) + both(1, 2, 4.0) + both(0, 2, 1.0))
    plan = fapt(overlay, roots=[0, 2])
    assert neighbours(plan) == {(0, 1), (1, 0), (1, 2), (2, 1)}
    # The slow link is all that the first turn leaves, and no tree sends between its ends.
    assert algorithm_3(overlay, plan) == {}
    relayed = {
        (0, 1): ((0, 2, 1),),
        (1, 0): ((1, 2, 0),),
        (1, 2): ((1, 0, 2),),
        (2, 1): ((2, 0, 1),),
    }
    assert disjoint_paths(overlay, plan) == relayed


def test_a_direct_link_is_auxiliary_where_the_primary_path_is_a_route():
    overlay = build(3, both(0, 1, 4.0) + both(1, 2, 4.0) + both(0, 2, 1.0))
    hub = star(overlay, hub=0)
    plan = Plan(1, hub.trees, {(2, 0): (2, 1, 0)})
    assert disjoint_paths(overlay, plan)[2, 0] == ((2, 0),)
    assert algorithm_3(overlay, plan)[2, 0] == ((2, 0),)


def test_a_path_that_is_faster_than_the_primary_is_auxiliary_too():
    overlay = build(3, both(0, 1, 4.0) + both(1, 2, 4.0) + both(0, 2, 1.0))
    found = algorithm_3(overlay, star(overlay, hub=0))
    assert found == {(0, 2): ((0, 1, 2),), (2, 0): ((2, 1, 0),)}


def test_a_path_that_shares_a_link_with_the_primary_is_left_out():
    # 0 -> 1 -> 3 is the fastest way, and the route 0 -> 1 -> 2 -> 3 shares its first link.
    overlay = build(
        4, both(0, 1, 9.0) + both(1, 3, 9.0) + both(1, 2, 5.0) + both(2, 3, 5.0) + both(0, 3, 1.0)
    )
    plan = Plan(1, star(overlay, hub=3).trees, {(0, 3): (0, 1, 2, 3)})
    assert algorithm_3(overlay, plan)[0, 3] == ((0, 3),)
    assert disjoint_paths(overlay, plan)[0, 3] == ((0, 3),)


def test_of_equal_delays_fewer_hops_and_then_lower_sites_come_first():
    back = [(site, 0, 1.0) for site in (1, 2, 3, 4)]
    links = [
        (0, 4, 9.0),
        (0, 3, 2.0),
        (3, 4, 2.0),
        (0, 2, 2.0),
        (2, 4, 2.0),
        (0, 1, 4.0),
        (1, 2, 4.0),
    ]
    overlay = build(5, links + back)
    plan = star(overlay, hub=4)
    assert disjoint_paths(overlay, plan)[0, 4] == ((0, 2, 4), (0, 3, 4))


@pytest.mark.parametrize("search", SEARCHES)
def test_without_spare_links_there_are_no_paths(search):
    line = build(4, both(0, 1, 3.0) + both(1, 2, 2.0) + both(2, 3, 1.0))
    alone = build(1, [])
    for overlay in (line, alone):
        for plan in (spanning(overlay), fapt(overlay, roots=overlay.size), star(overlay)):
            assert search(overlay, plan) == {}


@given(overlays(), st.integers(1, 4))
def test_at_most_so_many_paths_are_the_first_of_all(overlay, most):
    plan = fapt(overlay, roots=overlay.size)
    every = disjoint_paths(overlay, plan, most=99)
    expected = {pair: paths[:most] for pair, paths in every.items()}
    assert disjoint_paths(overlay, plan, most=most) == expected


def test_a_complete_overlay_has_a_disjoint_path_over_each_site_beside_the_two():
    overlay = random_overlay(9, 0)
    plan = fapt(overlay, roots=9)
    found = disjoint_paths(overlay, plan, most=99)
    assert {len(found[pair]) for pair in neighbours(plan)} == {7}


def test_on_internet2_9_only_disjoint_paths_serve_every_pair():
    overlay = internet2_9()
    plan = fapt(overlay, roots=9)
    assert algorithm_3(overlay, plan) == {}
    assert set(disjoint_paths(overlay, plan)) == neighbours(plan)


@pytest.mark.parametrize("search", SEARCHES)
def test_a_plan_for_another_overlay_is_refused(search):
    ring = build(3, [(0, 1, 1.0), (1, 2, 1.0), (2, 0, 1.0)])
    with pytest.raises(PlanError, match="spans 2 sites, the overlay 3"):
        search(ring, star(build(2, both(0, 1, 1.0))))
    with pytest.raises(PlanError, match="which has no link"):
        search(ring, star(build(3, both(0, 1, 1.0) + both(0, 2, 1.0)), hub=0))


@pytest.mark.parametrize("most", [0, -1])
def test_fewer_than_one_path_cannot_be_asked_for(most):
    overlay = internet2_9()
    with pytest.raises(PlanError, match=f"at most {most} auxiliary paths"):
        disjoint_paths(overlay, star(overlay), most=most)
