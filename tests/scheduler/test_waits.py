"""Since when sites are awaited, and which waits are told."""

from __future__ import annotations

from anabranch.net.messages import ExchangeRequest, Gather, Signature
from anabranch.overlay import random_complete
from anabranch.plan import star
from anabranch.scheduler._channels import Channels
from anabranch.scheduler._waits import LEAST_S, Stall, Waits

CALL_7 = Stall((0, 7), 2, frozenset({0, 1}), "call 7")
CALL_8 = Stall((0, 8), 2, frozenset({0, 1}), "call 8")


def told_at(waits: Waits, stall: Stall, begin_s: float, end_s: float) -> list[float]:
    """Return at which ages a wait is told, of looks at each half second."""
    told, now_s = [], begin_s
    while now_s <= end_s:
        told += [wait.seconds for wait in waits.news(waits.look([stall], now_s))]
        now_s += 0.5
    return told


def test_a_wait_lasts_from_the_first_look_that_saw_its_call() -> None:
    waits = Waits()
    assert [wait.seconds for wait in waits.look([CALL_7], 3.0)] == [0.0]
    assert [wait.seconds for wait in waits.look([CALL_7, CALL_8], 5.0)] == [2.0, 0.0]
    assert [wait.seconds for wait in waits.look([CALL_8], 9.0)] == [4.0]
    assert waits.look([], 10.0) == ()
    assert [wait.seconds for wait in waits.look([CALL_8], 11.0)] == [0.0]


def test_a_wait_is_told_when_it_is_old_and_each_time_that_it_is_twice_as_old() -> None:
    assert told_at(Waits(), CALL_7, 0.0, 45.0) == [LEAST_S, 10.0, 20.0, 40.0]


def test_no_wait_is_told_that_is_as_long_as_usual() -> None:
    waits = Waits()
    assert told_at(waits, CALL_7, 0.0, 9.0) == [5.0]
    assert told_at(waits, CALL_8, 20.0, 32.0) == []  # the first ended between 9 and 20 s
    assert told_at(waits, CALL_7, 100.0, 300.0) != []  # yet one that never ends is told


def test_each_site_is_awaited_at_its_own_next_call() -> None:
    overlay = random_complete(3, 0)
    channels = Channels(str, 3, star(overlay, hub=0), 1e9, lambda plan, elements: 1 << 20, None)
    signature = Signature(1, 2, 1000)
    assert channels.books.stalls() == []
    for number in (1, 2):
        channels.request(0, ExchangeRequest(0, number, signature))
    channels.request(1, ExchangeRequest(0, 1, signature))
    found = {stall.awaited: (stall.what, stall.waiting) for stall in channels.books.stalls()}
    assert found == {
        1: ("call 2 (an exchange)", frozenset({0})),
        2: ("call 1 (an exchange)", frozenset({0, 1})),
    }
    for number in (1, 2):
        channels.request(2, ExchangeRequest(0, number, signature))
    channels.request(1, ExchangeRequest(0, 2, signature))
    assert channels.books.stalls() == []
    channels.gather(2, Gather(0, 1, b"value"))
    assert {stall.what for stall in channels.books.stalls()} == {"call 3 (a gathering)"}


def test_no_wait_is_told_in_which_no_site_is_held_up() -> None:
    assert told_at(Waits(), Stall("begin", 2, frozenset(), "the beginning"), 0.0, 60.0) == []
