"""Plans for some of the sites: against what the trees and the overlay allow, on random cases."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.overlay import Overlay
from anabranch.plan import (
    ABSENT,
    NO_PARENT,
    Plan,
    PlanError,
    Tree,
    packed,
    places_down,
    places_up,
    restrict,
)

from ..every import every
from .networks import all_plans, overlays, random_overlay


def drawn(data: st.DataObject, overlay: Overlay) -> tuple[Plan, frozenset[int]]:
    """Return a plan of any kind and some of the overlay's sites."""
    plan = data.draw(st.sampled_from([*all_plans(overlay), packed(overlay)]), label="plan")
    sites = st.integers(0, overlay.size - 1)
    return plan, data.draw(st.frozensets(sites, min_size=1), label="members")


def climbs(parents: tuple[int, ...], site: int) -> list[int]:
    """Return the sites from one to its root; fails if there is a circle."""
    way = [site]
    while parents[way[-1]] != NO_PARENT:
        way.append(parents[way[-1]])
        assert len(set(way)) == len(way)
    return way


# --- trees that do not span all sites


def test_a_site_that_is_no_member_has_no_place_in_the_tree() -> None:
    tree = Tree(2, 1.0, up=(2, ABSENT, -1), down=(2, ABSENT, -1))
    plan = Plan(1, (tree,))
    assert plan.size == 3
    assert plan.members == {0, 2}
    assert tree.children(tree.up) == [[], [], [0]]
    assert plan.next_hops == ((2,), (), (0,))
    assert places_up(plan, 1)[0].parent == NO_PARENT
    assert places_up(plan, 1)[0].path == places_up(plan, 1)[0].children == ()


@pytest.mark.parametrize(
    ("up", "down", "complaint"),
    [
        ((ABSENT, 0, -1), (2, ABSENT, -1), "site 1 has no way up"),  # its parent is no member
        ((2, ABSENT, -1), (2, 2, -1), "span the same sites, both ways"),
        ((2, ABSENT, ABSENT), (2, ABSENT, -1), "the root must be a site with no parent"),
        ((2, -3, -1), (2, ABSENT, -1), "site 1 has no way up"),
    ],
)
def test_members_reach_the_root_over_members_on_both_ways(
    up: tuple[int, ...], down: tuple[int, ...], complaint: str
) -> None:
    with pytest.raises(PlanError, match=complaint):
        Plan(1, (Tree(2, 1.0, up, down),))


def test_all_trees_of_a_plan_have_the_same_members() -> None:
    one = Tree(0, 0.5, up=(-1, 0, ABSENT), down=(-1, 0, ABSENT))
    other = Tree(0, 0.5, up=(-1, ABSENT, 0), down=(-1, ABSENT, 0))
    with pytest.raises(PlanError, match="span the same sites"):
        Plan(1, (one, other))


# --- restrict


@settings(deadline=None, max_examples=25)
@given(data=st.data(), overlay=overlays())
def test_a_restricted_plan_spans_its_members_alone_over_links_that_exist(
    data: st.DataObject, overlay: Overlay
) -> None:
    plan, members = drawn(data, overlay)
    found = restrict(plan, members)
    found.check_fits(overlay)  # every hop of every route is a link
    assert (found.version, found.size, found.members) == (plan.version, plan.size, members)
    assert [tree.share for tree in found.trees] == [tree.share for tree in plan.trees]
    for before, tree in zip(plan.trees, found.trees, strict=True):
        assert tree.root in members
        assert tree.root == before.root or before.root not in members
        for parents in (tree.up, tree.down):
            for site in members:
                way = climbs(parents, site)
                assert way[-1] == tree.root
                assert set(way) <= members
    edges = {
        edge
        for tree in found.trees
        for site in members - {tree.root}
        for edge in ((site, tree.up[site]), (tree.down[site], site))
    }
    assert set(found.routes) <= edges


@settings(deadline=None, max_examples=25)
@given(data=st.data(), overlay=overlays())
def test_all_sites_restrict_a_plan_to_itself_without_its_auxiliary_paths(
    data: st.DataObject, overlay: Overlay
) -> None:
    plan, _ = drawn(data, overlay)
    found = restrict(plan, range(overlay.size))
    assert found.trees == plan.trees
    for tree in plan.trees:
        for site in set(range(overlay.size)) - {tree.root}:
            for source, target in ((site, tree.up[site]), (tree.down[site], site)):
                path = found.path(source, target)
                assert (path[0], path[-1]) == (source, target)
                assert len(path) <= len(plan.path(source, target))


@settings(deadline=None, max_examples=25)
@given(data=st.data(), overlay=overlays())
def test_a_member_sends_to_the_nearest_member_above_it(
    data: st.DataObject, overlay: Overlay
) -> None:
    plan, members = drawn(data, overlay)
    for before, tree in zip(plan.trees, restrict(plan, members).trees, strict=True):
        if before.root not in members:
            continue
        for old, new in ((before.up, tree.up), (before.down, tree.down)):
            for site in members - {tree.root}:
                nearest = next(each for each in climbs(old, site)[1:] if each in members)
                assert new[site] == nearest


def test_who_is_below_a_root_that_is_no_member_passes_it_by() -> None:
    tree = Tree(0, 1.0, up=(-1, 0, 0, 1), down=(-1, 0, 0, 2))
    found = restrict(Plan(3, (tree,)), (1, 2, 3))
    assert found.trees == (Tree(1, 1.0, up=(-2, -1, 1, 1), down=(-2, -1, 1, 2)),)
    assert dict(found.routes) == {(2, 1): (2, 0, 1), (1, 2): (1, 0, 2)}


# --- places, by following what every site sends


def below(parents: tuple[int, ...], wanted: frozenset[int]) -> dict[int, set[int]]:
    """Return the wanted sites that each site has below it or is itself, walking up from each."""
    found: dict[int, set[int]] = {}
    for member in wanted:
        for site in climbs(parents, member):
            found.setdefault(site, set()).add(member)
    return found


@settings(deadline=None, max_examples=25)
@given(data=st.data(), overlay=overlays())
def test_every_contribution_reaches_each_root_once(data: st.DataObject, overlay: Overlay) -> None:
    plan, members = drawn(data, overlay)
    inner = restrict(plan, members)
    contributors = data.draw(
        st.none() | st.frozensets(st.sampled_from(sorted(members)), min_size=1)
    )
    wanted = members if contributors is None else contributors
    for index, tree in enumerate(inner.trees):
        places = [places_up(inner, site, contributors)[index] for site in range(inner.size)]
        holds: dict[int, list[int]] = {
            site: [site] if site in wanted else [] for site in range(inner.size)
        }
        if len(wanted) == 1 and contributors is not None:
            (lone,) = wanted
            assert places[tree.root].children == (() if lone == tree.root else (lone,))
            senders = wanted - {tree.root}
        else:
            through = below(tree.up, wanted)
            senders = frozenset(through) - {tree.root}
            for site, place in enumerate(places):
                expected = [child for child in sorted(senders) if tree.up[child] == site]
                assert list(place.children) == expected
        # Sums go up, the deepest first, as each site's place says.
        for site in sorted(senders, key=lambda site: -len(climbs(tree.up, site))):
            place = places[site]
            assert (place.path[0], place.path[-1]) == (site, place.parent)
            assert site in places[place.parent].children
            assert every(overlay.link(*hop) is not None for hop in pairwise(place.path))
            holds[place.parent] += holds.pop(site)
        assert sorted(holds[tree.root]) == sorted(wanted)


@settings(deadline=None, max_examples=25)
@given(data=st.data(), overlay=overlays())
def test_every_receiver_gets_each_result_once(data: st.DataObject, overlay: Overlay) -> None:
    plan, members = drawn(data, overlay)
    inner = restrict(plan, members)
    receivers = data.draw(st.none() | st.frozensets(st.sampled_from(sorted(members)), min_size=1))
    wanted = members if receivers is None else receivers
    for index, tree in enumerate(inner.trees):
        places = [places_down(inner, site, receivers)[index] for site in range(inner.size)]
        came: list[int] = []
        holding = [tree.root]
        while holding:
            site = holding.pop()
            came.append(site)
            for path in places[site].paths_down:
                assert path[0] == site
                assert every(overlay.link(*hop) is not None for hop in pairwise(path))
                assert places[path[-1]].parent == site
                holding.append(path[-1])
        assert len(set(came)) == len(came)
        assert wanted | {tree.root} <= set(came) <= members
        through = set(below(tree.down, wanted)) | {tree.root}
        alone = receivers is not None and len(receivers) == 1
        assert set(came) == (wanted | {tree.root} if alone else through)


@pytest.mark.parametrize("seed", range(5))
def test_restricting_twice_spans_the_same_sites_as_restricting_once(seed: int) -> None:
    random_ = random.Random(seed)
    overlay = random_overlay(8, seed, density=0.4)
    outer = random_.sample(range(8), 5)
    inner = random_.sample(outer, 3)
    for plan in all_plans(overlay):
        twice = restrict(restrict(plan, outer), inner)
        twice.check_fits(overlay)
        assert twice.members == restrict(plan, inner).members == frozenset(inner)
