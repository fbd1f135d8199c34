"""Progress that members report to the scheduler, which deals chunks during an exchange."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anabranch.exchange.arithmetic import Flat
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.group import Service
from anabranch.group.async_group import AsyncGroup
from anabranch.net.messages import Progress
from anabranch.scheduler.calls._dealing import Dealing
from anabranch.site.channel import between_reports_s

from .virtual import as_told, complete, run

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
