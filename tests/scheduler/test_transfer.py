"""Which holder of a state sends which part of it to a site that has none."""

from __future__ import annotations

import pytest

from anabranch.exchange.ranges import Ranges
from anabranch.overlay import Link, Overlay, Site
from anabranch.plan import Plan
from anabranch.scheduler._transfer import shares


def network(size: int, *links: tuple[int, int, float], one_way: bool = False) -> Overlay:
    both = [Link(a, b, rate) for a, b, rate in links]
    if not one_way:
        both += [Link(b, a, rate) for a, b, rate in links]
    return Overlay("some", tuple(Site(f"s{site}") for site in range(size)), tuple(both))


def asked(
    overlay: Overlay, holders: list[int], receiver: int, **losses: object
) -> list[tuple[int, Ranges, Plan]]:
    lost, cut = losses.get("lost", ()), losses.get("cut", ())
    found = shares(overlay, lost, cut, holders, receiver, 1000, 3)  # type: ignore[arg-type]
    for _, _, plan in found:
        plan.check_fits(overlay)
        assert plan.version == 3
    return found


def test_neighbours_share_it_by_rate() -> None:
    overlay = network(4, (0, 3, 1e6), (1, 3, 2e6), (2, 3, 1e6), (0, 1, 9e9))
    found = asked(overlay, [0, 1, 2], 3)
    assert [(who, what) for who, what, _ in found] == [
        (0, ((0, 250),)),
        (1, ((250, 750),)),
        (2, ((750, 1000),)),
    ]
    assert [plan.members for _, _, plan in found] == [{0, 3}, {1, 3}, {2, 3}]


def test_only_holders_that_are_there_over_links_that_are_there_send() -> None:
    overlay = network(4, (0, 3, 1e6), (1, 3, 2e6), (2, 3, 1e6))
    assert [who for who, _, _ in asked(overlay, [0, 2], 3)] == [0, 2]
    assert [who for who, _, _ in asked(overlay, [0, 1, 2], 3, lost={1})] == [0, 2]
    assert [who for who, _, _ in asked(overlay, [0, 1, 2], 3, cut={(1, 3)})] == [0, 2]
    assert [who for who, _, _ in asked(overlay, [0, 1, 2], 3, cut={(3, 1)})] == [0, 2]


def test_without_a_neighbour_that_has_it_others_relay() -> None:
    overlay = network(5, (0, 1, 1e6), (1, 3, 1e6), (0, 2, 3e6), (2, 3, 2e6), (3, 4, 5e6))
    ((who, what, plan),) = asked(overlay, [0], 4)
    assert (who, what) == (0, ((0, 1000),))
    assert plan.path(0, 4) == (0, 2, 3, 4)
    ((_, _, plan),) = asked(overlay, [0], 4, cut={(0, 2)})
    assert plan.path(0, 4) == (0, 1, 3, 4)
    assert asked(overlay, [0], 4, lost={3}) == []


def test_of_ways_as_fast_the_one_over_fewest_links_is_taken() -> None:
    overlay = network(4, (0, 1, 1e6), (0, 2, 1e6), (1, 2, 1e6), (2, 3, 1e6))
    for holder in (0, 1):
        ((_, _, plan),) = asked(overlay, [holder], 3)
        assert plan.path(holder, 3) == (holder, 2, 3)


def test_links_of_one_way_are_left_alone() -> None:
    ring = network(3, (0, 1, 1e6), (1, 2, 1e6), (2, 0, 1e6), one_way=True)
    assert asked(ring, [0], 1) == []


@pytest.mark.parametrize("elements", [1, 2, 7])
def test_a_buffer_may_be_smaller_than_the_number_of_holders(elements: int) -> None:
    overlay = network(5, *((site, 4, 1e6) for site in range(4)))
    found = shares(overlay, (), (), range(4), 4, elements, 1)
    covered = [index for _, ((start, stop),), _ in found for index in range(start, stop)]
    assert covered == [*range(elements)]
