"""Which neighbours have to know yet of a newcomer."""

from __future__ import annotations

from anabranch.scheduler._newcomers import Introductions


def test_one_starts_once_all_its_neighbours_know_of_it() -> None:
    introductions = Introductions()
    assert not introductions.introduce(3, {0, 1})
    assert not introductions.acknowledged(3, 0)
    assert introductions.acknowledged(3, 1)
    assert not introductions.acknowledged(3, 1)


def test_one_without_neighbours_starts_at_once() -> None:
    assert Introductions().introduce(3, ())


def test_a_neighbour_that_is_gone_need_not_know() -> None:
    introductions = Introductions()
    introductions.introduce(3, {0, 4})
    introductions.introduce(4, {0, 1})
    assert introductions.gone(0) == []
    assert introductions.gone(4) == [3]
    assert introductions.gone(1) == [4]


def test_lanes_that_ended_are_remembered_while_an_end_is_a_newcomer() -> None:
    introductions = Introductions()
    introductions.lane_ended(3, 4)
    introductions.lane_ended(3, 0)
    introductions.forget(3, newcomers={4})
    assert introductions.apart == {frozenset((3, 4))}
    introductions.came(3)
    assert not introductions.apart
