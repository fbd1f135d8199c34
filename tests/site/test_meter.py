"""What a site's meter is told of the chunks that come, and when it reports."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.net.throughput import Arrival, Estimate
from anabranch.overlay import Link, Overlay, Site
from anabranch.plan import star
from anabranch.site.meter import Meter
from anabranch_lab.sim.loop import run_virtually

from .cluster import Cluster, Tcp, simulated
from .test_all_reduce import run_over_tcp

PAIR = Overlay("pair", (Site("a"), Site("b")), (Link(0, 1, 1e9), Link(1, 0, 1e9)))


class Notes:
    """An estimator that only writes down."""

    def __init__(self, arrivals: list[Arrival]) -> None:
        self._arrivals = arrivals

    def arrived(self, arrival: Arrival) -> Estimate | None:
        self._arrivals.append(arrival)
        return None


@pytest.mark.parametrize(
    ("world", "shaped", "heads"),
    [("tcp", False, True), ("tcp", True, False), ("sim", False, False)],
)
def test_heads_are_told_of_where_they_go_ahead(world: str, shaped: bool, heads: bool) -> None:
    arrivals: list[Arrival] = []

    async def play() -> None:
        cluster = await Cluster.start(
            simulated(PAIR) if world == "sim" else Tcp(),
            PAIR,
            star(PAIR),
            shaped=shaped,
            meter=lambda: Meter(lambda: Notes(arrivals), 1.0),
        )
        await cluster.all_reduce([np.ones(4096, np.float32) for _ in range(2)])
        await cluster.leave()

    (run_virtually if world == "sim" else run_over_tcp)(play())
    assert len(arrivals) == 2 * 4096 // 64
    for each in arrivals:
        assert (each.begun_s is not None) == heads
        assert each.begun_s is None or each.sent_s <= each.begun_s <= each.received_s


class Constant:
    """An estimator that always has news."""

    def arrived(self, arrival: Arrival) -> Estimate | None:
        return Estimate(1e6 * arrival.received_s, None, 8)


def test_news_wait_until_the_next_report_is_due_and_only_the_latest_counts() -> None:
    meter = Meter(Constant, 1.0)
    reports = [
        meter.arrived(source, Arrival(0.0, at_s, 100, False))
        for source, at_s in ((1, 5.0), (1, 5.2), (2, 5.4), (1, 5.6), (2, 6.1))
    ]
    assert [[(link.source, link.rate_bps) for link in report] for report in reports] == [
        [(1, 5e6)],
        [],
        [],
        [],
        [(1, 5.6e6), (2, 6.1e6)],
    ]
