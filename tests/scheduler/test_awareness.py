"""What is believed of the network, and the plan that follows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.net.messages import LinkRate
from anabranch.net.throughput import Arrival
from anabranch.overlay import Overlay, Trace, internet2_9
from anabranch.plan import Plan, disjoint_paths, fapt
from anabranch.scheduler._collector import Collector, equal_rates
from anabranch.scheduler._policy import Policy, Replan
from anabranch.scheduler.awareness import Awareness, Passive

OVERLAY = internet2_9()
SIZE_BYTES = 100_000_000


def test_sites_measure_as_the_estimator_says() -> None:
    """Chunks of 8 kbit, each 1.5 s on the way, of which 0.5 s is latency."""
    paper = Passive(estimator="chunk-mean", probe_chunks=2)
    rates = []
    for awareness in (paper, Passive(estimator="chunk-mean", probe_chunk_elements=300), Passive()):
        meter = awareness.measuring().meter(chunk_elements=1000)
        for k in range(40):
            arrival = Arrival(sent_s=float(k), received_s=k + 1.5, size_bytes=1000, backlogged=True)
            meter.arrived(1, arrival)
        rates.append(meter.latest[1].rate_bps if meter.latest else None)
    assert rates[:2] == [pytest.approx(8000 / 1.5), None]  # 1000 bytes are fewer than 300 elements
    assert rates[2] == pytest.approx(8000.0)


def planner(network: Overlay, version: int, previous: Plan) -> Plan:
    return fapt(network, roots=9, version=version)


def make(overlay: Overlay = OVERLAY, oracle: bool = False) -> Awareness:
    policy = Policy(fapt(overlay, roots=9), overlay.at(0.0), planner)
    collector = None if oracle else Collector(overlay.at(0.0))
    return Awareness(5.0, policy, disjoint_paths, lambda elements: 1 << 16, collector, overlay)


def look(awareness: Awareness, now_s: float) -> Replan | None:
    return awareness.consider(awareness.expectation(SIZE_BYTES, now_s), SIZE_BYTES)


def measure(awareness: Awareness, slow: tuple[int, int], rate_bps: float, now_s: float) -> None:
    for link in OVERLAY:
        pair = link.source, link.target
        bps = rate_bps if pair == slow else link.goodput_bps
        awareness.measured(*pair, LinkRate(link.source, bps, None, 8), now_s)


def test_a_link_that_slowed_down_and_stays_slow_leads_to_another_plan() -> None:
    awareness = make()
    for second in (1.0, 6.0, 11.0):
        measure(awareness, (0, 2), 135e6 * (1 - OVERLAY.links[0].loss), second)
        look(awareness, second)
    found = []
    for second in range(16, 60, 5):
        measure(awareness, (0, 2), 5e6, float(second))
        found.append(look(awareness, float(second)))
    replans = [replan for replan in found if replan is not None]
    assert replans
    assert "dc1->dc3 fell" in replans[0].why
    assert replans[0].after_s < replans[0].before_s


def test_a_network_as_it_was_leads_to_none() -> None:
    awareness = make()
    for second in range(1, 60, 5):
        measure(awareness, (-1, -1), 0.0, float(second))
        assert look(awareness, float(second)) is None


def aware(asked: Passive) -> Awareness:
    """Return what follows a run, as a scenario asks for it."""
    plan = fapt(asked.believed(OVERLAY), roots=9)
    return asked.awareness(plan, planner, disjoint_paths, lambda elements: 1 << 16, OVERLAY)


def test_the_latest_measurements_are_what_is_expected_and_the_rest_is_as_at_the_start() -> None:
    awareness = aware(Passive(start="equal", belief="latest"))
    started_bps = equal_rates(OVERLAY).links[0].goodput_bps
    for now_s, rate_bps in ((1.0, 90e6), (1.5, 90e6), (2.0, 3e6)):
        awareness.measured(0, 2, LinkRate(0, rate_bps, None, 8), now_s)
    expected = {
        (link.source, link.target): link.goodput_bps
        for link in awareness.expectation(SIZE_BYTES, 900.0)
    }
    assert expected.pop((0, 2)) == pytest.approx(3e6)
    assert [*expected.values()] == pytest.approx([started_bps] * 25)


def test_with_no_gain_asked_every_other_plan_is_taken() -> None:
    def taken(asked: Passive) -> int:
        awareness = aware(asked)
        found = 0
        for second in range(1, 60, 5):  # a measurement wobbles, and so do the roots' shares
            measure(awareness, (0, 2), (130e6, 131e6)[second % 2], float(second))
            found += look(awareness, float(second)) is not None
        return found

    assert taken(Passive(belief="latest", least_gain="none")) == 12
    assert taken(Passive(belief="latest")) == 0


def test_an_oracle_knows_what_nobody_measured() -> None:
    slowed = replace(
        OVERLAY,
        links=tuple(
            replace(link, trace=Trace((0.0, 10.0), (link.rate_bps, 3e6)))
            if (link.source, link.target) == (0, 2)
            else link
            for link in OVERLAY.links
        ),
    )
    oracle = make(slowed, oracle=True)
    assert look(oracle, 9.0) is None
    replan = look(oracle, 11.0)
    assert replan is not None
    known = oracle.expectation(SIZE_BYTES, 11.0).link(0, 2)
    assert known is not None
    assert known.rate_bps == pytest.approx(3e6)


def test_auxiliary_paths_are_those_of_the_plan_in_force() -> None:
    awareness = make()
    plan = fapt(OVERLAY, roots=9)
    found = disjoint_paths(OVERLAY, plan)
    assert set(awareness.auxiliary(OVERLAY)) == {path for paths in found.values() for path in paths}
