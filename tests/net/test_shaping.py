"""Shaping: when bytes leave a link of a given rate, latency, trace and course; and that they do."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.net.errors import LinkError, PeerError
from anabranch.net.frames import DISCARD, Limits, Sink
from anabranch.net.messages import AnyMessage, NoMoreRounds, Start
from anabranch.net.network import Connection
from anabranch.net.shaping import Course, ShapedNetwork, TokenBucket, serialised_s
from anabranch.net.tcp import TcpNetwork
from anabranch.overlay import Link, Trace


def test_a_busy_link_sends_at_exactly_its_rate() -> None:
    bucket = TokenBucket(Link(0, 1, rate_bps=8e6))
    now_s = 100.0
    for _ in range(50):
        leave_s = bucket.leave_s(now_s, 100_000)
        now_s = leave_s + 0.02  # every wake-up is late
        bucket.woke(now_s)
    assert leave_s == pytest.approx(105.0)


def test_an_idle_link_saves_nothing_up() -> None:
    bucket = TokenBucket(Link(0, 1, rate_bps=8e6))
    bucket.leave_s(0.0, 100_000)
    bucket.woke(0.1)
    assert bucket.leave_s(50.0, 100_000) == pytest.approx(50.1)


def test_loss_costs_the_packets_that_are_sent_again() -> None:
    assert serialised_s(Link(0, 1, rate_bps=8e6, loss=0.5), 0.0, 1_000_000) == pytest.approx(2.0)


def test_a_message_that_crosses_a_change_of_rate_feels_both_rates() -> None:
    trace = Trace((0.0, 10.0, 20.0), (8e6, 16e6, 8e6))
    link = Link(0, 1, rate_bps=8e6, trace=trace)
    assert serialised_s(link, 9.5, 1_000_000) == pytest.approx(10.25)
    assert serialised_s(link, 5.0, 35_000_000) == pytest.approx(30.0)
    assert serialised_s(link, 1000.0, 1_000_000) == pytest.approx(1001.0)


@given(
    st.floats(0, 100), st.integers(1, 10**7), st.lists(st.floats(1e5, 1e9), min_size=1, max_size=5)
)
def test_a_traced_link_takes_no_less_than_its_best_rate_and_no_more_than_its_worst(
    start_s: float, size_bytes: int, rates_bps: list[float]
) -> None:
    trace = Trace(tuple(10.0 * i for i in range(len(rates_bps))), tuple(rates_bps))
    took_s = serialised_s(Link(0, 1, rates_bps[0], trace=trace), start_s, size_bytes) - start_s
    best_s, worst_s = 8 * size_bytes / max(rates_bps), 8 * size_bytes / min(rates_bps)
    assert best_s - 1e-9 <= took_s * (1 + 1e-9) + 1e-9
    assert took_s <= worst_s * (1 + 1e-9) + 1e-9


# what faults leave of a link

STEADY = Link(0, 1, rate_bps=8e6)


def test_a_message_waits_while_its_link_is_cut_and_keeps_what_has_left() -> None:
    course = Course([(1.0, 0.0), (4.0, 1.0), (6.0, 0.5)])
    assert serialised_s(STEADY, 0.5, 1_000_000, course) == pytest.approx(4.5)
    assert serialised_s(STEADY, 2.0, 1_000_000, course) == pytest.approx(5.0)
    assert serialised_s(STEADY, 5.5, 1_000_000, course) == pytest.approx(7.0)
    trace = Trace((0.0, 4.5), (8e6, 16e6))
    traced = Link(0, 1, rate_bps=8e6, trace=trace)
    assert serialised_s(traced, 0.5, 1_000_000, course) == pytest.approx(4.5)
    assert serialised_s(traced, 2.0, 1_000_000, course) == pytest.approx(4.75)


def test_over_a_link_that_is_cut_for_ever_nothing_leaves() -> None:
    course = Course([(1.0, 0.0)])
    assert serialised_s(STEADY, 0.5, 1_000_000, course) == math.inf
    assert serialised_s(STEADY, 0.0, 1_000_000, course) == 1.0  # that just got through
    assert (course.whole_s(0.5), course.whole_s(1.0)) == (0.5, math.inf)


@given(
    st.lists(st.tuples(st.floats(0, 20), st.sampled_from([0.0, 0.25, 0.5, 1.0]))),
    st.floats(0, 20),
    st.floats(0.01, 10),
)
def test_what_leaves_is_the_rate_s_integral(
    changes: list[tuple[float, float]], start_s: float, megabytes: float
) -> None:
    course = Course([*sorted(changes, key=lambda change: change[0]), (30.0, 1.0)])
    end_s = serialised_s(STEADY, start_s, round(1e6 * megabytes), course)
    sent, now_s = 0.0, start_s
    while now_s < end_s:
        factor, until_s = course.piece(now_s)
        assert until_s > now_s
        sent += factor * (min(until_s, end_s) - now_s)
        now_s = until_s
    assert sent == pytest.approx(megabytes, rel=1e-3, abs=2e-6)


def test_a_course_is_drawn_no_further_than_it_is_asked_for() -> None:
    drawn = []

    def changes():
        for at_s in range(1, 100):
            drawn.append(at_s)
            yield float(at_s), at_s % 2.0

    course = Course(changes())
    assert course.piece(2.5) == (0.0, 3.0)
    assert drawn == [1, 2, 3]
    assert course.piece(0.5) == (1.0, 1.0)  # the past is remembered
    assert course.is_cut(2.0)


class Ear:
    """Hears messages and when each came, by the loop's clock."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[tuple[AnyMessage, float]] = asyncio.Queue()
        self.closed: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.connection: Connection

    def welcome(self, connection: Connection) -> Ear:
        self.connection = connection
        asyncio.get_running_loop().call_soon(connection.trust)  # once the connection is made
        return self

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        self.heard.put_nowait((message, asyncio.get_running_loop().time()))
        return DISCARD

    def on_refused(self, message: AnyMessage, error: PeerError) -> None:
        raise AssertionError(error)

    def on_closed(self, error: Exception | None) -> None:
        self.closed.set_result(error)


@dataclass
class Ends:
    """Two ends of a connection over links that are shaped."""

    began_s: float
    caller: Ear
    called: Ear
    connection: Connection

    async def at(self, at_s: float) -> None:
        """Wait for a moment that counts from the beginning."""
        await asyncio.sleep(self.began_s + at_s - asyncio.get_running_loop().time())


@asynccontextmanager
async def over_links(there: Course, back: Course, silence_s: float = 60.0) -> AsyncIterator[Ends]:
    """Connect two ends over links, from the calling end and back to it."""
    loop = asyncio.get_running_loop()
    # The kernel answers over a link that only we hold to be cut.
    tcp = TcpNetwork(
        Limits(1 << 16, 1 << 20), least_silence_s=silence_s, heartbeat_s=0.05, stillness_s=silence_s
    )
    called, caller = Ear(), Ear()
    listener = await tcp.listen(("127.0.0.1", 0), called.welcome)
    began: asyncio.Future[float] = loop.create_future()
    began.set_result(loop.time())
    courses = {(0, 1): there, (1, 0): back}
    links = {listener.address: (STEADY, Link(1, 0, 8e6))}
    network = ShapedNetwork(tcp, links, 0, began, courses.__getitem__, connect_s=0.2)
    try:
        connection = await network.connect(listener.address, caller)
        while not hasattr(called, "connection"):
            await asyncio.sleep(0)
        yield Ends(began.result(), caller, called, connection)
        connection.close()
        called.connection.close()
        await asyncio.wait({caller.closed, called.closed})
    finally:
        listener.close()


def on_loop(play: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(play(), 60))


def test_a_message_waits_for_a_cut_link() -> None:
    async def play() -> None:
        async with over_links(Course([(0.2, 0.0), (1.2, 1.0)]), Course()) as ends:
            await ends.at(0.3)
            await ends.connection.send(Start())
            message, at_s = await ends.called.heard.get()
            assert message == Start()
            assert at_s >= ends.began_s + 1.2

    on_loop(play)


def test_what_comes_back_waits_for_its_own_link() -> None:
    async def play() -> None:
        async with over_links(Course(), Course([(0.3, 0.0), (1.3, 1.0)])) as ends:
            await ends.at(0.4)
            await ends.connection.send(Start())
            await ends.called.heard.get()
            ends.called.connection.post(NoMoreRounds(1))
            _, at_s = await ends.caller.heard.get()
            assert at_s >= ends.began_s + 1.3

    on_loop(play)


@pytest.mark.parametrize("is_there", [True, False])
def test_an_end_that_hears_nothing_for_too_long_gives_the_other_up(is_there: bool) -> None:
    async def play() -> None:
        cut, whole = Course([(0.2, 0.0)]), Course()
        there, back = (cut, whole) if is_there else (whole, cut)
        async with over_links(there, back, silence_s=0.5) as ends:
            deaf = ends.called if is_there else ends.caller
            assert "has said nothing for" in str(await deaf.closed)

    on_loop(play)


@pytest.mark.parametrize("is_there", [True, False])
def test_no_connection_is_made_over_a_cut_link(is_there: bool) -> None:
    async def play() -> None:
        cut, whole = Course([(0.0, 0.0)]), Course()
        with pytest.raises(LinkError, match=r"nothing answered in 0\.2 s"):
            async with over_links(*((cut, whole) if is_there else (whole, cut))):
                pass

    on_loop(play)
