"""How often sites report their progress: messages do not grow with chunks."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from anabranch.exchange.arithmetic import Flat
from anabranch.exchange.exchange import Exchange
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.group import Service
from anabranch.group.async_group import AsyncGroup
from anabranch.net.messages import Progress
from anabranch.scheduler.calls._dealing import Dealing
from anabranch.site._reporting import Reports
from anabranch.site.channel import between_reports_s
from anabranch_lab.sim.loop import run_virtually
from tests.group.virtual import as_told, complete, run

_ELEMENTS = 6_250_000
_EXCHANGES = 3


@pytest.mark.parametrize("chunk_elements", [62_500, 8_192])
@pytest.mark.parametrize("control_s", [0.0001, 0.030])
def test_a_site_reports_a_few_times_an_exchange(
    chunk_elements: int, control_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[int] = []
    deals: list[int] = []
    progress = Dealing.progress

    def counted(self: Dealing, site: int, message: Progress, now_s: float) -> Any:
        reports.append(site)
        dealt = progress(self, site, message, now_s)
        deals.extend(member for member, _ in dealt)
        return dealt

    monkeypatch.setattr(Dealing, "progress", counted)
    took_s: list[float] = []

    async def program(group: AsyncGroup) -> None:
        buffer = np.zeros(_ELEMENTS, np.float32)
        for _ in range(_EXCHANGES):
            began_s = group.now_s()
            await group.exchange(Flat(buffer), Terms(Op.MEAN, Wire.FLOAT32, _ELEMENTS))
            took_s.append(group.now_s() - began_s)

    service = Service(complete(3), awareness=None, chunk_elements=chunk_elements)
    run(program, program, program, service=service, start=as_told, control_s=control_s)
    most = 1 + max(took_s) / between_reports_s(2 * control_s)
    assert len(reports) / 3 / _EXCHANGES <= most
    assert len(deals) / 3 / _EXCHANGES <= 2 * most


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
        clock = Clock(window=16, round_trip_s=math.inf)
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
