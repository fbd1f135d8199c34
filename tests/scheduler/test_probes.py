"""When cut links are looked at, and when they count as healed."""

from __future__ import annotations

import pytest

from anabranch.scheduler._probes import Probes, Silences

ENDS = frozenset({2, 5})


def test_looks_are_ever_less_often() -> None:
    probes = Probes()
    pauses_s = [probes.pause_s(ENDS, 0.0) for _ in range(9)]
    assert pauses_s == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]
    assert probes.pause_s(frozenset({2, 4}), 0.0) == 0.5


@pytest.mark.parametrize(("whole_s", "pause_s"), [(1.9, 2.0), (2.1, 0.5)])
def test_links_that_were_whole_for_long_are_looked_at_soon_again(
    whole_s: float, pause_s: float
) -> None:
    probes = Probes()
    for _ in range(2):
        probes.pause_s(ENDS, 0.0)
    probes.heal(ENDS)
    assert not probes.healed(ENDS, 2, 100.0)
    assert probes.healed(ENDS, 5, 100.0)
    assert probes.pause_s(ENDS, 100.0 + whole_s) == pause_s
    assert probes.pause_s(ENDS, 100.0 + whole_s) == 2 * pause_s


def test_both_ends_must_reach_the_other() -> None:
    probes = Probes()
    assert not probes.is_asked(ENDS)
    for answers, reach in (((True, True), True), ((True, False), False), ((False, True), False)):
        probes.ask(ENDS)
        assert probes.is_asked(ENDS)
        assert probes.hear(ENDS, 2, answers[0]) is None
        assert probes.hear(ENDS, 5, answers[1]) is reach
        assert not probes.is_asked(ENDS)


def test_links_are_healed_once_both_ends_have_lanes_again() -> None:
    probes = Probes()
    probes.heal(ENDS)
    assert probes.is_healing(ENDS)
    assert not probes.healed(ENDS, 5, 9.0)
    assert not probes.healed(ENDS, 5, 9.0)
    assert probes.healed(ENDS, 2, 9.0)
    assert not probes.is_healing(ENDS)


def test_silence_is_mutual_between_two_processes_until_one_hears_the_other() -> None:
    silences, one, other = Silences(), (2, 0), (5, 1)
    for site, neighbour in ((one, other), (other, one)):
        assert not silences.are_mutual(one, other, 1.0)
        silences.hear(site, neighbour, True, 1.0)
    assert silences.are_mutual(one, other, 1.2)
    assert silences.are_alone(other, one, 1.2)
    assert not silences.are_mutual((2, 1), other, 1.2)  # another process
    silences.hear(other, one, False, 1.2)
    assert not silences.are_mutual(one, other, 1.2)


def test_what_was_said_before_a_site_stood_still_does_not_count() -> None:
    silences, one, other = Silences(), (2, 0), (5, 0)
    silences.hear(one, other, True, 1.0)
    silences.hear(other, one, True, 1.5)
    assert not silences.are_mutual(one, other, 1.5)
    assert not silences.are_alone(one, other, 1.5)
    silences.hear(one, other, True, 1.6)
    assert silences.are_alone(one, other, 1.6)


def test_a_site_that_hears_none_of_its_neighbours_has_no_link_to_blame() -> None:
    silences, hub, leaves = Silences(), (0, 0), [(1, 0), (2, 0)]
    for leaf in leaves:
        silences.hear(leaf, hub, True, 1.0)
    silences.hear(hub, leaves[0], True, 1.0)
    assert silences.are_mutual(hub, leaves[0], 1.0)
    assert not silences.are_alone(hub, leaves[0], 1.0)
    silences.hear(leaves[1], hub, False, 1.1)
    assert silences.are_alone(hub, leaves[0], 1.1)
