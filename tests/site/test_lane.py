"""A lane: what goes first, what waits for credit, and what it remembers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from anabranch.exchange.actions import Send, Unsent
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.net.errors import LinkError, OutOfPlaceMessage, PeerError
from anabranch.net.frames import DISCARD, Sink
from anabranch.net.messages import AnyMessage, ChunkMessage, PartialSum, Result, Stamp
from anabranch.net.network import Connection
from anabranch.overlay import Link, Overlay, Site, Trace
from anabranch.site import _lane as lane
from anabranch.site._lane import Lane, priority, relay_window
from anabranch_lab.sim.loop import run_virtually

from .cluster import simulated

# Site 1's lane to site 2, which relays to site 3.
CHAIN = Overlay(
    "chain",
    tuple(Site(name) for name in "abcd"),
    tuple(Link(i, j, 8e6) for i in range(4) for j in (i - 1, i + 1) if 0 <= j < 4),
)
PAYLOAD = bytes(100_000)  # 0.1 s
RELAYED, OTHER = (1, 2, 3), (0, 1, 2, 3)
PASSING = (0, 1, 2)  # not of this site's making, and the neighbour keeps it


TERMS = Terms(Op.MEAN, Wire.FLOAT32, 1 << 20).code


def up(chunk: int, path: tuple[int, ...] = (1, 2), exchange: int = 1) -> PartialSum:
    return PartialSum(exchange, 1, chunk, path, TERMS)


def down(chunk: int, path: tuple[int, ...] = (1, 2), exchange: int = 1) -> Result:
    return Result(exchange, 1, chunk, path, TERMS)


class Neighbour:
    """Takes everything."""

    def __init__(self) -> None:
        self.heard: list[AnyMessage] = []

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        self.heard.append(message)
        return DISCARD

    def on_refused(self, message: AnyMessage, error: PeerError) -> None:
        raise AssertionError

    def on_closed(self, error: Exception | None) -> None: ...


class Bench:
    """A lane, its neighbour, and what it reported."""

    def __init__(self, window: int = 2) -> None:
        self.network = simulated(CHAIN)
        self.neighbour = Neighbour()
        self.sends: list[Send] = []
        self.sent: list[ChunkMessage] = []
        self.errors: list[Exception] = []
        self.lane = Lane(1, "lane", self._connect, window, self.errors.append)

    async def _connect(self, strand: int) -> Connection:
        listener = await self.network.lanes(2).listen(("", 0), lambda _: self.neighbour)
        return await self.network.lanes(1).connect(listener.address, Neighbour())

    def _has_been_sent(self, send: Send) -> None:
        self.sent.append(send.message)

    def put(self, *messages: ChunkMessage, is_spare: bool = False) -> None:
        for message in messages:
            send = Send(message, memoryview(PAYLOAD), then=self._has_been_sent, is_spare=is_spare)
            self.sends.append(send)
            self.lane.put(send)

    @property
    def left(self) -> list[ChunkMessage]:
        """What has begun to leave."""
        return [send.message for send in self.sends if send.has_left]

    async def hears(self, *messages: ChunkMessage) -> None:
        """Check what the neighbour hears, in the end."""
        await asyncio.sleep(3600.0)
        assert self.neighbour.heard == list(messages)


def on_bench(play: Callable[[Bench], Coroutine[Any, Any, None]], window: int = 2) -> None:
    async def main() -> None:
        bench = Bench(window)
        await play(bench)
        bench.lane.close()

    run_virtually(main())


def test_the_lowest_round_then_chunk_goes_first_and_a_mean_before_a_sum() -> None:
    async def play(bench: Bench) -> None:
        bench.put(up(7, exchange=2), up(2), up(0), down(2), down(1), up(1))
        await bench.hears(up(0), down(1), up(1), down(2), up(2), up(7, exchange=2))
        assert priority(down(9)) < priority(up(9)) < priority(down(10))

    on_bench(play)


def test_equals_go_in_the_order_they_came() -> None:
    async def play(bench: Bench) -> None:
        bench.put(down(0, RELAYED), down(0), down(0, OTHER))
        await bench.hears(down(0, RELAYED), down(0), down(0, OTHER))

    on_bench(play)


def test_spare_messages_alternate_with_others_where_both_wait() -> None:
    async def play(bench: Bench) -> None:
        bench.put(*map(down, range(4)), is_spare=True)
        bench.put(*(down(chunk, exchange=2) for chunk in range(3)))
        first, second, third = (down(chunk, exchange=2) for chunk in range(3))
        await bench.hears(first, down(0), second, down(1), third, down(2), down(3))

    on_bench(play)


def test_what_is_spare_is_withdrawn_and_handed_back_like_all_else() -> None:
    async def play(bench: Bench) -> None:
        bench.put(down(0), down(1, exchange=2))
        bench.put(down(2, exchange=3), down(3, exchange=4), is_spare=True)
        assert [each.message for each in bench.lane.withdraw(3)] == [down(2, exchange=3)]
        bench.lane.drop()
        assert bench.sent == [down(0), down(1, exchange=2), down(3, exchange=4)]

    on_bench(play)


def test_what_comes_later_overtakes_what_waits_and_not_what_is_leaving() -> None:
    async def play(bench: Bench) -> None:
        bench.put(up(5), up(6))
        await asyncio.sleep(0.05)
        bench.put(up(1))
        await bench.hears(up(5), up(1), up(6))

    on_bench(play)


def test_each_send_is_marked_as_it_begins_to_leave_and_told_of_when_it_has() -> None:
    async def play(bench: Bench) -> None:
        bench.put(up(0), up(1))
        assert bench.left == []
        await asyncio.sleep(0.05)
        assert bench.left == [up(0)]
        assert bench.sent == []
        await asyncio.sleep(0.1)
        assert bench.left == [up(0), up(1)]
        assert bench.sent == [up(0)]
        assert bench.lane.payload_bytes == len(PAYLOAD)

    on_bench(play)


def test_a_payload_is_made_when_it_leaves() -> None:
    async def play(bench: Bench) -> None:
        made: list[int] = []

        def payload(chunk: int) -> memoryview:
            made.append(chunk)
            return memoryview(PAYLOAD)

        for chunk in (0, 1):
            bench.lane.put(Send(up(chunk), lambda chunk=chunk: payload(chunk)))
        assert made == []
        await asyncio.sleep(0.05)
        assert made == [0]
        await bench.hears(up(0), up(1))
        assert bench.lane.payload_bytes == 2 * len(PAYLOAD)

    on_bench(play)


# --- credit ---------------------------------------------------------------------------------------


def test_a_window_of_a_route_is_sent_and_the_rest_waits_for_credit() -> None:
    async def play(bench: Bench) -> None:
        bench.put(*(up(chunk, RELAYED) for chunk in range(5)))
        await bench.hears(up(0, RELAYED), up(1, RELAYED))
        bench.lane.credit(RELAYED)
        await bench.hears(*(up(chunk, RELAYED) for chunk in range(3)))
        bench.lane.credit(RELAYED)
        bench.lane.credit(RELAYED)
        await bench.hears(*(up(chunk, RELAYED) for chunk in range(5)))

    on_bench(play)


def test_routes_have_credit_of_their_own_and_what_ends_here_needs_none() -> None:
    async def play(bench: Bench) -> None:
        bench.put(up(0, RELAYED), up(1, RELAYED), up(2, OTHER), up(3), up(4), up(5, OTHER))
        await bench.hears(up(0, RELAYED), up(2, OTHER), up(3), up(4))
        bench.lane.credit(OTHER)
        await bench.hears(up(0, RELAYED), up(2, OTHER), up(3), up(4), up(5, OTHER))

    on_bench(play, window=1)


def test_credit_that_came_back_may_be_spent_later() -> None:
    async def play(bench: Bench) -> None:
        bench.put(up(0, RELAYED))
        await asyncio.sleep(1.0)
        bench.lane.credit(RELAYED)
        bench.put(up(1, RELAYED), up(2, RELAYED))
        await bench.hears(up(0, RELAYED), up(1, RELAYED))

    on_bench(play, window=1)


def test_credit_beyond_the_window_is_refused() -> None:
    async def play(bench: Bench) -> None:
        with pytest.raises(OutOfPlaceMessage, match="nothing is outstanding"):
            bench.lane.credit(RELAYED)
        bench.put(up(0, RELAYED))
        bench.lane.credit(RELAYED)
        with pytest.raises(OutOfPlaceMessage, match="nothing is outstanding"):
            bench.lane.credit(RELAYED)

    on_bench(play)


@pytest.mark.parametrize(
    ("there_s", "back_s", "window"),
    [
        (0.0, 0.0, 2),  # one on its way in, one on its way out
        (0.05, 0.05, 3),  # a credit is back after 0.1 s, in which one more chunk is sent
        (0.051, 0.051, 4),
        (0.05, 1.95, 22),  # it comes back on another link than the chunk
        (1.0, None, 22),  # or on none of its own, and takes as long
    ],
)
def test_a_window_covers_the_time_a_credit_takes_to_come_back(
    there_s: float, back_s: float | None, window: int
) -> None:
    there = Link(0, 1, 8e6, there_s)
    back = None if back_s is None else Link(1, 0, 1e6, back_s)
    assert relay_window(there, back, chunk_bytes=100_000) == window


def test_a_window_covers_what_is_asked_for_where_a_links_latency_is_not_known() -> None:
    there, back = Link(0, 1, 8e6), Link(1, 0, 8e6)
    assert relay_window(there, back, chunk_bytes=100_000, least_bytes=1_000_000) == 2 + 10
    far = Link(0, 1, 80e6, 0.2)
    assert relay_window(far, back, chunk_bytes=100_000, least_bytes=1_000_000) == 2 + 20


def test_a_window_is_for_the_fastest_the_link_ever_is() -> None:
    trace = Trace((0.0, 60.0), (8e6, 80e6))
    there, back = Link(0, 1, 8e6, 0.05, trace=trace), Link(1, 0, 8e6, 0.05)
    assert relay_window(there, back, chunk_bytes=100_000) == 2 + 10


# --- memory and end -------------------------------------------------------------------------------


def test_a_lane_remembers_what_left_lately(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(bench: Bench) -> None:
        bench.put(up(0), up(3), up(0, exchange=2))
        assert not bench.lane.has_sent((1, 1, 0))  # it has not left yet
        await asyncio.sleep(1.0)
        assert bench.lane.has_sent((1, 1, 0))
        assert bench.lane.has_sent((1, 1, 3))
        assert bench.lane.has_sent((2, 1, 0))
        assert not bench.lane.has_sent((1, 2, 0))  # another plan's
        assert not bench.lane.has_sent(None)
        monkeypatch.setattr(lane, "_REMEMBERED", 3)
        bench.put(down(0, exchange=3))
        await asyncio.sleep(1.0)
        assert not bench.lane.has_sent((1, 1, 0))  # the oldest
        assert bench.lane.has_sent((1, 1, 3))
        assert bench.lane.has_sent((3, 1, 0))

    on_bench(play)


def test_a_connection_that_breaks_ends_the_lane_once() -> None:
    async def play(bench: Bench) -> None:
        bench.put(up(0), up(1))
        await asyncio.sleep(0.05)
        bench.network.kill(2)
        await asyncio.sleep(1.0)
        bench.put(up(2))
        await asyncio.sleep(1.0)
        [error] = bench.errors
        assert isinstance(error, LinkError)
        assert bench.left == [up(0)]
        assert bench.sent == []

    on_bench(play)


def test_a_neighbour_that_cannot_be_reached_ends_the_lane() -> None:
    async def main() -> None:
        async def connect(strand: int) -> Connection:
            raise LinkError("not there")

        errors: list[Exception] = []
        unreachable = Lane(1, "lane", connect, 2, errors.append)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [str(error) for error in errors] == ["not there"]
        unreachable.close()

    run_virtually(main())


def test_a_closed_lane_sends_no_more() -> None:
    async def play(bench: Bench) -> None:
        bench.put(up(0), up(1))
        await asyncio.sleep(0.15)
        bench.lane.close()
        await bench.hears(up(0))
        assert bench.errors == []

    on_bench(play)


def test_what_waits_in_a_lane_that_is_dropped_is_handed_back_once() -> None:
    async def play(bench: Bench) -> None:
        bench.put(up(0), up(1), up(2, RELAYED), up(3, RELAYED))  # the last one has no credit
        await asyncio.sleep(0.15)
        assert bench.sent == [up(0)]
        bench.lane.drop()
        assert sorted(message.chunk for message in bench.sent) == [0, 1, 2, 3]
        await bench.hears(up(0))

    on_bench(play, window=1)


@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_message_that_has_left_frees_its_memory_before_what_counts_it_hears(
    is_dropped: bool,
) -> None:
    async def play(bench: Bench) -> None:
        happened: list[str] = []
        unsent = Unsent(lambda: happened.append("none is left"), count=2)
        for name in ("first", "second"):
            send = Send(
                up(0),
                memoryview(PAYLOAD),
                free=partial(happened.append, f"{name} is free"),
                then=lambda send: happened.append("then"),
                counted=unsent,
            )
            bench.lane.put(send)
        if is_dropped:
            bench.lane.drop()
        await asyncio.sleep(3600.0)
        told = ["first is free", "then", "second is free", "then", "none is left"]
        assert happened == told
        assert unsent.count == 0
        assert not send.payload

    on_bench(play)


def test_what_is_withdrawn_gives_its_credit_to_what_waits() -> None:
    async def scenario() -> None:
        bench = Bench(window=2)
        bench.put(up(0), *(up(chunk, RELAYED) for chunk in range(4)))  # two have credit, two wait
        bench.put(up(9, RELAYED, exchange=2), up(8, PASSING), up(7, OTHER))
        withdrawn = bench.lane.withdraw(1)
        # One may be leaving already; what others made is not this site's to withdraw.
        assert {send.message for send in withdrawn} >= {up(chunk, RELAYED) for chunk in range(1, 4)}
        assert not {send.message for send in withdrawn} & {up(8, PASSING), up(7, OTHER)}
        await asyncio.sleep(2.0)
        assert {up(9, RELAYED, exchange=2), up(8, PASSING), up(7, OTHER)} <= {*bench.sent}
        assert not {send.message for send in withdrawn} & {*bench.sent}

    run_virtually(scenario())


class AtOnce:
    """A connection that takes small messages at once, except while it is busy."""

    def __init__(self) -> None:
        self.is_busy = False
        self.sent: list[tuple[AnyMessage, bytes, str]] = []

    def post_payload(self, message: AnyMessage, payload: memoryview) -> bool:
        if not self.is_busy:
            self.sent.append((message, bytes(payload), "at once"))
        return not self.is_busy

    async def send(self, message: AnyMessage, payload: memoryview, head_first: bool) -> None:
        self.sent.append((message, bytes(payload), "in turn"))

    def close(self) -> None: ...


def test_an_idle_lane_sends_what_is_small_at_once_and_ends_it_later() -> None:
    async def main() -> None:
        connection = AtOnce()

        async def connect(strand: int) -> Any:
            return connection

        lane = Lane(1, "lane", connect, 2, lambda error: None)
        await asyncio.sleep(1.0)
        ended: list[int] = []

        def put(chunk: int, size: int = 8) -> Send:
            send = Send(up(chunk), memoryview(bytes(size)), then=lambda _: ended.append(chunk))
            lane.put(send)
            return send

        assert put(0).has_left
        assert not ended, "further messages of its exchange are not queued yet"
        put(1, size=2000)
        put(2)  # behind the one that waits
        await asyncio.sleep(1.0)
        connection.is_busy = True
        put(3)
        await asyncio.sleep(1.0)
        ways = [(message.chunk, how) for message, _, how in connection.sent]  # type: ignore[union-attr]
        assert ways == [(0, "at once"), (1, "in turn"), (2, "in turn"), (3, "in turn")]
        assert sorted(ended) == [0, 1, 2, 3]
        assert lane.payload_bytes == 2024
        assert lane.has_sent((1, 1, 0))
        lane.close()

    run_virtually(main())


def test_a_lane_that_stamps_its_chunks_sends_none_past_its_task() -> None:
    async def main() -> None:
        connection = AtOnce()

        async def connect(strand: int) -> Any:
            return connection

        stamps: list[bool] = []

        def stamp(follows: bool) -> Stamp:
            stamps.append(follows)
            return Stamp(0.0, None, False)

        lane = Lane(1, "lane", connect, 2, lambda error: None, stamp=stamp)
        await asyncio.sleep(1.0)
        for chunk in range(3):
            lane.put(Send(up(chunk), memoryview(bytes(8))))
        await asyncio.sleep(1.0)
        assert [how for *_, how in connection.sent] == ["in turn"] * 3
        assert stamps == [False, True, True]
        lane.close()

    run_virtually(main())
