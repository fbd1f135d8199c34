from __future__ import annotations

from itertools import pairwise, permutations

from hypothesis import given

from anabranch.plan import relay_routes

from .networks import build, overlays


def both(a: int, b: int, rate: float) -> list[tuple[int, int, float]]:
    return [(a, b, rate), (b, a, rate)]


def test_an_edge_with_a_link_needs_no_route():
    assert relay_routes(build(2, both(0, 1, 1.0)), [(0, 1), (1, 0)]) == {}


def test_fewest_hops_beat_least_delay():
    overlay = build(4, both(0, 1, 1.0) + both(1, 3, 1.0) + both(0, 2, 9.0) + [(2, 1, 9.0)])
    assert relay_routes(overlay, [(0, 3)]) == {(0, 3): (0, 1, 3)}


def test_of_as_few_hops_the_least_delay_wins():
    links = both(0, 1, 2.0) + both(1, 3, 2.0) + both(0, 2, 3.0) + both(2, 3, 3.0)
    assert relay_routes(build(4, links), [(0, 3)]) == {(0, 3): (0, 2, 3)}


def test_of_as_little_delay_the_lowest_index_wins_from_either_end():
    links = both(0, 1, 2.0) + both(1, 3, 2.0) + both(0, 2, 2.0) + both(2, 3, 2.0)
    routes = relay_routes(build(4, links), [(0, 3), (3, 0)])
    assert routes == {(0, 3): (0, 1, 3), (3, 0): (3, 1, 0)}


@given(overlays(max_sites=6))
def test_routes_are_the_best_of_all_simple_paths(overlay):
    n = overlay.size
    pairs = [(s, t) for s in range(n) for t in range(n) if s != t]

    def key(path: tuple[int, ...]) -> tuple[int, float, tuple[int, ...]]:
        delay = sum(1 / overlay.link(*hop).goodput_bps for hop in pairwise(path))
        return len(path), round(delay, 15), path

    routes = relay_routes(overlay, pairs)
    assert set(routes) == {pair for pair in pairs if overlay.link(*pair) is None}
    for (source, target), route in routes.items():
        between = [site for site in range(n) if site not in (source, target)]
        paths = [
            (source, *relays, target)
            for count in range(len(between) + 1)
            for relays in permutations(between, count)
            if all(overlay.link(*hop) for hop in pairwise((source, *relays, target)))
        ]
        assert route == min(paths, key=key)
        # asked from either end, alone or among others, a route is the same
        assert relay_routes(overlay, [(source, target)]) == {(source, target): route}
