"""When a site reports its progress with an exchange."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from anabranch.exchange.exchange import Exchange
from anabranch.net.messages import Progress
from anabranch.site._reporting import Reports
from anabranch_lab.sim.loop import run_virtually


class Clock:
    """A site's progress with one exchange, and what it posts."""

    def __init__(self, window: int, round_trip_s: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.posted: list[tuple[float, int]] = []
        self.spread = SimpleNamespace(held=0, held_by_tree=[0])
        self.exchange: Any = SimpleNamespace(
            number=1, spread=self.spread, dealt=window, all_dealt=False
        )
        self.reports = Reports(self.loop, self._post, window, round_trip_s)

    def _post(self, message: Progress) -> None:
        self.posted.append((self.loop.time(), message.finished[0]))

    def hold(self, chunks: int) -> None:
        self.spread.held += chunks
        self.spread.held_by_tree[0] += chunks
        self.reports.advanced(cast(Exchange, self.exchange))


def test_chunks_within_a_short_time_share_a_report() -> None:
    async def chunks() -> None:
        clock = Clock(window=64, round_trip_s=0.0)
        for _ in range(32):
            clock.hold(1)
            await asyncio.sleep(0.001)
        began_s = clock.posted[0][0]
        assert [round(at_s - began_s, 3) for at_s, _ in clock.posted] == [0.0, 0.010, 0.020]
        assert [held for _, held in clock.posted] == [8, 17, 27]

    run_virtually(chunks())


def test_the_last_chunk_under_way_is_reported_at_once() -> None:
    async def chunks() -> None:
        clock = Clock(window=16, round_trip_s=1e6)
        clock.hold(8)
        clock.hold(7)
        assert [held for _, held in clock.posted] == [8], "the next one is far away"
        clock.hold(1)
        assert [held for _, held in clock.posted] == [8, 16]

    run_virtually(chunks())


def test_an_ended_exchange_is_reported_no_more() -> None:
    async def chunks() -> None:
        clock = Clock(window=64, round_trip_s=0.0)
        clock.hold(8)
        clock.hold(8)
        clock.reports.stop()
        await asyncio.sleep(1.0)
        assert [held for _, held in clock.posted] == [8]

    run_virtually(chunks())


def test_no_report_comes_once_all_chunks_are_dealt() -> None:
    async def chunks() -> None:
        clock = Clock(window=64, round_trip_s=0.0)
        clock.hold(8)
        clock.hold(8)
        clock.exchange.all_dealt = True
        await asyncio.sleep(1.0)
        assert [held for _, held in clock.posted] == [8]

    run_virtually(chunks())
