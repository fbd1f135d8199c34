"""Progress that members report to a near scheduler, which deals chunks during an exchange."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.exchange.arithmetic import Flat
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.group import Service
from anabranch.group.async_group import AsyncGroup
from anabranch.net.messages import Dispatched, Progress
from anabranch.scheduler.calls._dealing import Dealing

from .virtual import as_told, complete, run

SITES, ELEMENTS = 3, 1_000_000


async def one_mean(group: AsyncGroup) -> None:
    buffer = np.ones(ELEMENTS, np.float32)
    await group.exchange(Flat(buffer), Terms(Op.MEAN, Wire.FLOAT32, ELEMENTS))


def test_over_distance_smaller_chunks_need_no_more_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A window covers what is on its way, and its progress is reported sixteen times."""
    note = Dealing.progress
    messages = 0

    def progress(
        self: Dealing, site: int, message: Progress, now_s: float
    ) -> list[tuple[int, Dispatched]]:
        nonlocal messages
        deals = note(self, site, message, now_s)
        messages += 1 + len(deals)
        return deals

    monkeypatch.setattr(Dealing, "progress", progress)
    counts = []
    for chunk_elements in (1 << 13, 1 << 11):
        messages = 0
        overlay = complete(SITES, latency_s=0.002)
        service = Service(overlay, awareness=None, chunk_elements=chunk_elements)
        run(*[one_mean] * SITES, service=service, start=as_told)
        counts.append(messages / SITES)
    assert counts[0] > 10
    assert counts[1] < 1.25 * counts[0]
