"""Who is drawn, who is away, and who never returns."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from anabranch.cohort import Away, Clients, Registry

SLEEPERS = Clients(registered=50, away=Away(awake_s=20.0, asleep_s=10.0))


def test_draws_are_even_and_of_nobody_who_is_busy_or_barred() -> None:
    registry = Registry(Clients(registered=20), seed=3)
    registry.barred |= {4, 5}
    counts = Counter(registry.draw({1, 2, 3}, 0.0) for _ in range(15_000))
    assert set(counts) == set(range(20)) - {1, 2, 3, 4, 5}
    assert max(counts.values()) < 1.2 * min(counts.values())


def test_the_last_who_is_free_is_found() -> None:
    registry = Registry(Clients(registered=2000), seed=0)
    assert registry.draw(set(range(2000)) - {1234}, 0.0) == 1234


def test_a_barred_client_is_not_drawn() -> None:
    registry = Registry(Clients(registered=3), seed=0)
    registry.barred |= {0, 1}
    assert {registry.draw(set(), 0.0) for _ in range(20)} == {2}
    registry.barred.remove(1)
    assert {registry.draw({2}, 0.0) for _ in range(20)} == {1}


def test_only_those_who_are_awake_are_drawn_as_long_as_there_are_any() -> None:
    registry = Registry(SLEEPERS, seed=7)
    for at_s in range(0, 1000, 7):
        client = registry.draw(set(), float(at_s))
        assert SLEEPERS.back_s(7, client, at_s) == at_s
    asleep = [each for each in range(50) if SLEEPERS.back_s(7, each, 70.0) > 70.0]
    free = asleep[:5]
    client = Registry(SLEEPERS, seed=7).draw(set(range(50)) - {*free}, 70.0)
    assert client == min(free, key=lambda each: SLEEPERS.back_s(7, each, 70.0))


def test_a_registry_that_goes_through_days_once_finds_who_is_there() -> None:
    registry, rng = Registry(SLEEPERS, seed=3), np.random.default_rng(1)
    for at_s in np.cumsum(rng.exponential(400.0, 60)).tolist():
        busy = set(rng.permutation(50)[: int(rng.integers(40, 50))].tolist())
        client = registry.draw(busy, at_s)
        free = {each: SLEEPERS.back_s(3, each, at_s) for each in set(range(50)) - busy}
        assert free[client] == min(free.values())


def test_clients_are_awake_for_their_part_of_the_time() -> None:
    seen = [
        SLEEPERS.back_s(1, client, at_s) == at_s
        for client in range(50)
        for at_s in map(float, range(0, 600, 5))
    ]
    assert sum(seen) / len(seen) == pytest.approx(2 / 3, abs=0.03)
    first = [SLEEPERS.back_s(seed, 3, 0.0) == 0.0 for seed in range(2000)]
    assert sum(first) / len(first) == pytest.approx(2 / 3, abs=0.04)


def test_nobody_is_back_before_it_is() -> None:
    for client in range(20):
        for at_s in (0.0, 33.0, 120.0):
            back_s = SLEEPERS.back_s(5, client, at_s)
            assert back_s >= at_s
            assert SLEEPERS.back_s(5, client, back_s) == back_s


def test_a_part_of_what_is_given_out_never_returns() -> None:
    clients = Clients(registered=10, vanish=0.2)
    returned = [clients.returns_s(0, 3, update, 5.0) for update in range(3000)]
    assert set(returned) == {5.0, math.inf}
    assert returned.count(math.inf) / 3000 == pytest.approx(0.2, abs=0.03)
    assert returned == [clients.returns_s(0, 3, update, 5.0) for update in range(3000)]
    assert Clients(registered=10).returns_s(0, 3, 1, 5.0) == 5.0
