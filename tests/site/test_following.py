"""What a newcomer keeps of others' calls, and when it is in step with them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from anabranch.net.messages import CallMade, CaughtUp, Signature
from anabranch.site._following import FollowedCall, Following

SMALL, OTHER = Signature(op=0, wire=0, elements=100), Signature(op=1, wire=0, elements=100)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def kept(
    loop: asyncio.AbstractEventLoop, signature: Signature | None = SMALL, has_ended: bool = True
) -> FollowedCall:
    ended = loop.create_future()
    if has_ended:
        ended.set_result(None)
    return FollowedCall(signature, ended)


def test_calls_of_others_are_made_in_their_places() -> None:
    following = Following(1e9)
    assert following.next_call(2) is None
    following.called(CallMade(3, 5, SMALL))
    following.called(CallMade(2, 4, SMALL))
    assert following.next_call(2) is None  # the program has its own call to make before
    assert following.next_call(3) == CallMade(2, 4, SMALL)
    assert following.next_call(4) == CallMade(3, 5, SMALL)
    following.called(CallMade(4, 6, SMALL))
    assert following.next_call(6) is None  # it has made that one itself
    assert following.next_call(5) is None


def test_the_program_gets_what_was_kept_in_order_and_nothing_else(
    loop: asyncio.AbstractEventLoop,
) -> None:
    following = Following(1e9)
    first, second = kept(loop), kept(loop, None)
    following.keep(first)
    following.keep(second)
    following.has_state()
    assert following.take(OTHER) is None
    assert following.take(None) is None
    assert following.take(SMALL) is first
    assert following.take(None) is second
    assert not following.has_kept


def test_it_is_in_step_once_its_program_waits_for_a_call_that_has_not_ended(
    loop: asyncio.AbstractEventLoop,
) -> None:
    following = Following(1e9)
    following.keep(kept(loop))
    assert following.step() is None
    following.has_state()
    following.take(SMALL)
    assert following.step() is None  # the others have gone on from there
    following.keep(kept(loop, has_ended=False))
    following.take(SMALL)
    assert following.step() == CaughtUp(0, "")
    assert following.is_in_step
    assert following.step() is None  # it is said once


def test_it_is_in_step_where_its_program_is_the_first_to_make_a_call() -> None:
    following = Following(1e9)
    following.goes_ahead()
    assert following.step() is None  # it asks for the state
    following.has_state()
    assert following.step() is None  # the others may be far into their step
    following.goes_ahead()
    assert following.step() == CaughtUp(0, "")


def test_the_others_wait_where_too_much_is_kept_but_never_for_two_results(
    loop: asyncio.AbstractEventLoop,
) -> None:
    following = Following(most_bytes=100)
    for _ in range(2):
        following.keep(kept(loop))
        assert following.step() is None
    following.keep(kept(loop))
    assert following.step() == CaughtUp(3, "it keeps 1,200 bytes of results")


def test_a_program_that_falls_behind_is_waited_for(loop: asyncio.AbstractEventLoop) -> None:
    following = Following(1e9)
    following.keep(kept(loop))
    following.has_state()
    for _ in range(2):
        following.keep(kept(loop))
        assert following.step() is None
    following.keep(kept(loop))
    assert following.step() == CaughtUp(4, "its program does not catch up")


def test_a_program_that_is_long_about_it_is_waited_for(loop: asyncio.AbstractEventLoop) -> None:
    following = Following(1e9)
    following.has_state()
    turns = 0
    while (said := following.step()) is None:
        turns += 1
        following.keep(kept(loop))
        following.take(SMALL)
    assert (said, turns) == (CaughtUp(0, "its program does not catch up"), 17)
