"""What is left of a network: sites that reach one another, and plans among them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from anabranch.overlay import Link, Overlay, Site
from anabranch.plan import PLANNERS, FromFile, predict, remainder


def ring(size: int, chords: int, seed: int = 0) -> Overlay:
    """Return a ring with further pairs of links."""
    rng = random.Random(seed)
    pairs = {(site, (site + 1) % size) for site in range(size)}
    while len(pairs) < size + chords:
        one, other = rng.sample(range(size), 2)
        if (other, one) not in pairs:
            pairs.add((one, other))
    both = {*pairs, *((other, one) for one, other in pairs)}
    links = tuple(Link(one, other, rng.uniform(1e6, 9e6)) for one, other in sorted(both))
    return Overlay("ring", tuple(Site(f"s{index}") for index in range(size)), links)


def test_sites_that_no_longer_reach_the_others_are_left_out() -> None:
    cut = {(0, 1), (1, 0), (2, 3), (3, 2)}
    assert remainder(ring(6, 0), set(), cut).sites == (0, 3, 4, 5)
    assert remainder(ring(6, 0), {4}, cut).sites == (0, 5)  # the first of two alike
    assert remainder(ring(6, 0), {5}).sites == (0, 1, 2, 3, 4)


def test_a_link_that_is_left_one_way_connects_nothing() -> None:
    cut = {(0, 1), (3, 0)}
    assert remainder(ring(4, 0), set(), cut).sites == (0, 1, 2, 3)
    assert remainder(ring(4, 0), set(), {*cut, (1, 0)}).sites == (1, 2, 3)


@pytest.mark.parametrize("planner", [kind for kind in PLANNERS if kind is not FromFile])
@pytest.mark.parametrize("seed", range(5))
def test_plans_for_the_rest_use_nothing_that_is_lost(planner: type, seed: int) -> None:
    overlay = ring(7, 9, seed)
    cut = {(3, 4), (4, 3)}
    rest = remainder(overlay, {2, 5}, cut)
    inner = planner().plan(rest.overlay, version=4)
    plan = rest.widen(inner)
    plan.check_fits(overlay)
    assert plan.version == 4
    assert plan.members == frozenset(rest.sites)
    for _, hop in plan.hops():
        assert hop not in cut
        assert not {2, 5} & {*hop}
    assert rest.narrow(plan) == inner
    alone = predict(inner, rest.overlay, 1e6, chunk_bytes=1e4)
    within = predict(plan, overlay, 1e6, chunk_bytes=1e4)
    assert within.contention_s == pytest.approx(alone.contention_s)


def test_auxiliary_paths_come_along() -> None:
    rest = remainder(ring(5, 5), {0})
    inner = PLANNERS[0]().plan(rest.overlay)
    tree = inner.trees[0]
    site = next(index for index, parent in enumerate(tree.up) if parent == tree.root)
    relay = next(index for index in range(4) if index not in (site, tree.root))
    inner = replace(inner, auxiliary={(site, tree.root): ((site, relay, tree.root),)})
    path = tuple(rest.sites[each] for each in (site, relay, tree.root))
    assert rest.widen(inner).auxiliary == {(path[0], path[-1]): (path,)}
    assert rest.narrow(rest.widen(inner)) == inner
