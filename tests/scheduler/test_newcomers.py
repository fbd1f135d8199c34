"""Sites that have joined a group that goes on, and are no members yet."""

from __future__ import annotations

from anabranch.scheduler.newcomers import Newcomers


def test_one_starts_once_all_its_neighbours_know_of_it() -> None:
    newcomers = Newcomers()
    newcomers.came(3)
    assert 3 in newcomers
    assert not newcomers.is_introduced(3)
    assert not newcomers.introduce(3, {0, 1})
    assert newcomers.is_introduced(3)
    assert not newcomers.met(3, 0)
    assert not newcomers.has_started(3)
    assert newcomers.met(3, 1)
    assert newcomers.has_started(3)
    assert not newcomers.met(3, 1)


def test_one_without_neighbours_starts_at_once() -> None:
    newcomers = Newcomers()
    newcomers.came(3)
    assert newcomers.introduce(3, ())
    assert newcomers.has_started(3)


def test_a_neighbour_that_is_gone_need_not_know() -> None:
    newcomers = Newcomers()
    for site in (3, 4):
        newcomers.came(site)
    newcomers.introduce(3, {0, 4})
    newcomers.introduce(4, {0, 1})
    assert newcomers.gone(0) == []
    assert newcomers.gone(4) == [3]
    assert newcomers.gone(1) == [4]


def test_one_that_is_forgotten_asks_no_more() -> None:
    newcomers = Newcomers()
    newcomers.came(3)
    newcomers.asking.add(3)
    newcomers.forget(3)
    assert 3 not in newcomers
    assert not newcomers.asking
