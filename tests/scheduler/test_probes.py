"""When cut links are looked at, and when they count as healed."""

from __future__ import annotations

import pytest

from anabranch.scheduler.probes import Probes, Silences

ENDS = frozenset({2, 5})


def test_looks_are_ever_less_often() -> None:
    probes = Probes()
    pauses_s = [probes.pause_s(ENDS, 0.0) for _ in range(9)]
    assert pauses_s == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0, 300.0]
    assert probes.pause_s(frozenset({2, 4}), 0.0) == 5.0


@pytest.mark.parametrize(("whole_s", "pause_s"), [(19.0, 20.0), (21.0, 5.0)])
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
        assert not silences.are_mutual(one, other)
        silences.hear(site, neighbour, is_silent=True)
    assert silences.are_mutual(one, other)
    assert silences.are_mutual(other, one)
    assert not silences.are_mutual((2, 1), other)  # another process
    silences.hear(other, one, is_silent=False)
    assert not silences.are_mutual(one, other)


def test_silence_is_forgotten_with_the_connections_it_was_on() -> None:
    silences = Silences()
    for one, other in (((2, 0), (5, 0)), ((2, 0), (4, 0))):
        silences.hear(one, other, is_silent=True)
        silences.hear(other, one, is_silent=True)
    silences.forget(ENDS)
    assert not silences.are_mutual((2, 0), (5, 0))
    assert silences.are_mutual((2, 0), (4, 0))
