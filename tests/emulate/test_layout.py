"""The commands that make an emulated overlay: one of everything, and held to the right rates."""

from __future__ import annotations

import re

import pytest

from anabranch.overlay import (
    Link,
    Overlay,
    Site,
    Trace,
    internet2_9,
    random_geographic,
    random_sparse,
)
from anabranch_lab.emulate._layout import (
    EmulationError,
    Layout,
    Way,
    changes,
    check,
    most_strands,
    needed_way,
    next_hops,
)

from ..every import every

PAIR = Overlay(
    "pair",
    (Site("a"), Site("b")),
    (Link(0, 1, 80e6, latency_s=0.02, loss=0.01), Link(1, 0, 40e6, latency_s=0.02)),
)
CHAIN = Overlay(
    "chain",
    (Site("a"), Site("b"), Site("c")),
    (Link(0, 1, 8e6), Link(1, 0, 8e6), Link(1, 2, 8e6), Link(2, 1, 8e6)),
)


def lines(layout: Layout, namespace: int) -> list[str]:
    name = layout.namespaces[namespace]
    batches = [*layout.configure(), *layout.hold()]
    return [line for batch in batches if batch.namespace == name for line in batch.lines]


def rates_bps(layout: Layout, namespace: int) -> list[float]:
    """Return the rates of a namespace's links, as HTB is told them."""
    found = [
        re.search(r"class add dev to\d+ .* rate (\d+)bit ceil (\d+)bit", line)
        for line in lines(layout, namespace)
    ]
    assert every(each.group(1) == each.group(2) for each in found if each)
    return [float(each.group(1)) for each in found if each]


def test_lanes_take_one_connection_where_many_links_share_a_core() -> None:
    few, many = random_sparse(9, 0), random_sparse(25, 0)
    assert most_strands(few, cores=2) is None
    assert most_strands(many, cores=2) == 1
    assert most_strands(many, cores=16) is None


def test_every_site_and_the_scheduler_have_a_namespace_and_every_pair_of_links_two_devices() -> (
    None
):
    overlay = internet2_9()
    made = Layout(overlay, "x", "plain").create().lines
    assert sum(line.startswith("netns add") for line in made) == overlay.size + 1
    assert sum(line.startswith("link add to") for line in made) == len(overlay.links) / 2
    assert sum(line.startswith("link add control") for line in made) == overlay.size


def test_a_relay_makes_its_devices_itself() -> None:
    made = Layout(internet2_9(), "x", "relay").create().lines
    assert not any(line.startswith("link add to") for line in made)


@pytest.mark.parametrize(
    ("way", "payload_bps", "framing_bytes"),
    [("plain", 80e6 * 0.99, 14), ("netem", 80e6 * 0.99, 14), ("relay", 80e6, 0)],
)
def test_a_link_is_held_so_that_full_packets_carry_its_payload(
    way: Way, payload_bps: float, framing_bytes: int
) -> None:
    # A packet of 1500 bytes carries 1448 of payload, and a frame is 14 bytes longer.
    (rate_bps,) = rates_bps(Layout(PAIR, "x", way), 0)
    assert rate_bps == pytest.approx(payload_bps * (1500 + framing_bytes) / 1448, abs=1)


def test_a_new_rate_is_held_like_a_first_one() -> None:
    layout = Layout(PAIR, "x", "plain")
    (batch,) = layout.set_rates([(0, 1, 80e6)])
    assert batch.namespace == layout.namespaces[0]
    (first,) = [line for line in lines(layout, 0) if line.startswith("class add dev to1")]
    assert batch.lines[0] == first.replace("class add", "class change")


def test_new_rates_take_one_batch_for_each_site() -> None:
    layout = Layout(internet2_9(), "x", "plain")
    batches = layout.set_rates([(link.source, link.target, 1e6) for link in layout.overlay])
    assert sorted(batch.namespace or "" for batch in batches) == sorted(layout.namespaces)


def test_a_queue_holds_50_ms_and_no_less_than_two_handovers_of_the_kernel() -> None:
    fast = Overlay("fast", PAIR.sites, (Link(0, 1, 800e6), Link(1, 0, 1e6)))
    layout = Layout(fast, "x", "plain")
    assert any("bfifo limit 5000000" in line for line in lines(layout, 0))
    assert any("bfifo limit 131072" in line for line in lines(layout, 1))


def test_the_kernel_delays_what_it_can() -> None:
    assert any("netem delay 20000us" in line for line in lines(Layout(PAIR, "x", "netem"), 0))
    assert not any("netem" in line for line in lines(Layout(PAIR, "x", "relay"), 0))


def test_a_way_back_that_is_no_link_is_there_and_not_held() -> None:
    ring = Overlay("ring", CHAIN.sites, (Link(0, 1, 8e6), Link(1, 2, 8e6), Link(2, 0, 8e6)))
    layout = Layout(ring, "x", "plain")
    assert len(layout.pairs) == 3
    assert len(rates_bps(layout, 1)) == 1
    assert any("route add 10.77.0.1/32 dev to0" in line for line in lines(layout, 1))


@pytest.mark.parametrize(("port", "way"), [("uplink", "egress"), ("downlink", "ingress")])
def test_links_share_a_capped_port_evenly_and_may_borrow(port: str, way: str) -> None:
    capped = Overlay(
        "capped", (Site("a"), Site("b", **{f"{port}_bps": 4e6}), Site("c")), CHAIN.links
    )
    layout = Layout(capped, "x", "plain")
    found = [line for line in lines(layout, 1) if f" {port} " in line and "class add" in line]
    rates = [re.findall(r"(?:rate|ceil) (\d+)bit", line) for line in found]
    whole = str(round(4e6 * 1514 / 1448))
    half = str(round(2e6 * 1514 / 1448))
    assert rates == [[whole, whole], [half, whole], [half, whole]]
    assert sum(f"{way} pref 2" in line and line.endswith(port) for line in lines(layout, 1)) == 2
    assert not any(f" {port}" in line for line in lines(layout, 0))


def test_without_forwarding_only_linked_sites_have_routes() -> None:
    assert not any("10.77.0.3" in line for line in lines(Layout(CHAIN, "x", "plain"), 0))
    forwarding = lines(Layout(CHAIN, "x", "plain", forwarding=True), 0)
    assert "route add 10.77.0.3/32 via 10.77.0.2 dev to1 onlink src 10.77.0.1" in forwarding


def test_a_way_through_others_takes_the_fewest_links_then_the_least_latency() -> None:
    sites = tuple(Site(name) for name in "abcd")
    links = [
        *(Link(0, 1, 1e6, latency_s=0.03), Link(1, 3, 1e6, latency_s=0.03)),
        *(Link(0, 2, 1e6, latency_s=0.01), Link(2, 3, 1e6, latency_s=0.01)),
        *(Link(3, 0, 1e6), Link(1, 0, 1e6), Link(2, 0, 1e6)),
    ]
    hops = next_hops(Overlay("square", sites, tuple(links)))
    assert hops[0, 3] == 2
    assert hops[3, 1] == 0
    assert len(hops) == 4 * 3


def test_following_next_hops_reaches_every_site() -> None:
    overlay = random_geographic(20, seed=3)
    hops = next_hops(overlay)
    for source in range(overlay.size):
        for target in range(overlay.size):
            at, links = source, 0
            while at != target:
                at, links = hops[at, target], links + 1
                assert links < overlay.size


def test_a_cut_and_its_healing_name_the_same_filter() -> None:
    layout = Layout(PAIR, "x", "plain")
    cut, heal = layout.cut(0, 1), layout.heal(0, 1)
    assert cut.namespace == heal.namespace == layout.namespaces[0]
    assert cut.lines[0].startswith("filter add dev to1 egress pref 1 ")
    assert heal.lines == ("filter delete dev to1 egress pref 1",)


def test_the_way_to_the_scheduler_is_cut_in_the_directions_that_are_asked_for() -> None:
    layout = Layout(PAIR, "x", "plain")
    both = layout.cut_control(1, ("to", "from"))
    assert both.namespace == layout.namespaces[1]
    hooks = [line.partition(" pref")[0] for line in both.lines]
    assert hooks == ["filter add dev control egress", "filter add dev control ingress"]
    assert [layout.cut_control(1, (each,)).lines for each in ("to", "from")] == [
        both.lines[:1],
        both.lines[1:],
    ]


def test_what_is_cut_loses_no_arp() -> None:
    """Without it the kernel says soon that no host is there, in the other direction, too."""
    layout = Layout(PAIR, "x", "plain")
    for batch in (layout.cut(0, 1), layout.cut_control(1, ("to", "from"))):
        assert every(" protocol ip " in line for line in batch.lines)


@pytest.mark.parametrize("change", ["cut", "heal"])
def test_a_link_that_is_not_there_is_named(change: str) -> None:
    with pytest.raises(KeyError, match="no link leads from site 0 to site 2"):
        getattr(Layout(CHAIN, "x", "plain"), change)(0, 2)


def test_changes_at_one_moment_are_one() -> None:
    trace = Trace((0.0, 2.0, 5.0), (1e6, 2e6, 3e6))
    other = Trace((0.0, 5.0), (4e6, 5e6))
    overlay = Overlay(
        "pair", PAIR.sites, (Link(0, 1, 1e6, trace=trace), Link(1, 0, 4e6, trace=other))
    )
    found = [(change.at_s, change.rates_bps) for change in changes(overlay)]
    assert found == [(2.0, ((0, 1, 2e6),)), (5.0, ((0, 1, 3e6), (1, 0, 5e6)))]


@pytest.mark.parametrize(
    ("latency_s", "loss", "netem", "way"),
    [
        (0.0, 0.0, True, "plain"),
        (0.01, 0.0, True, "netem"),
        (0.01, 0.0, False, "relay"),
        (0.01, 0.01, True, "relay"),
        (0.0, 0.01, True, "relay"),
    ],
)
def test_the_relay_is_used_where_the_kernel_does_not_do(
    latency_s: float, loss: float, netem: bool, way: str
) -> None:
    links = (Link(0, 1, 1e6, latency_s, loss), Link(1, 0, 1e6))
    assert needed_way(Overlay("pair", PAIR.sites, links), lambda: netem) == way


def test_a_latency_that_drifts_is_refused_by_name() -> None:
    links = (Link(0, 1, 1e6, 1.0, latency_drift_s=0.5), Link(1, 0, 1e6))
    with pytest.raises(EmulationError, match="link a->b has a latency that drifts"):
        check(Overlay("pair", PAIR.sites, links))


def test_addresses_go_on_past_one_byte() -> None:
    layout = Layout(random_geographic(300, seed=1), "x", "plain")
    addresses = [layout.address(site) for site in range(300)]
    assert addresses[0] == "10.77.0.1"
    assert addresses[255] == "10.77.1.0"
    assert len(set(addresses)) == 300


def handover_shift(round_trip_s: float) -> int | None:
    links = (Link(0, 1, 1e6, round_trip_s / 2, 0.01), Link(1, 0, 1e6, round_trip_s / 2))
    script = Layout(Overlay("pair", PAIR.sites, links), "x", "relay").settings().get(0, "")
    found = re.search(r"echo (\d+) > /proc/sys/net/ipv4/tcp_tso_rtt_log", script)
    return int(found.group(1)) if found else None


@pytest.mark.parametrize("round_trip_s", [0.002, 0.02, 0.06, 0.3])
def test_a_relay_is_handed_8_or_16_kb_more_at_once(round_trip_s: float) -> None:
    shift = handover_shift(round_trip_s)
    assert shift is not None
    more_bytes = 65_536 >> (round(1e6 * round_trip_s) >> shift)
    assert 8192 <= more_bytes <= 16384


def test_the_kernels_own_handover_is_kept_on_short_round_trips_and_without_a_relay() -> None:
    assert handover_shift(0.0005) is None
    assert Layout(internet2_9(), "x", "plain").settings() == {}


def test_forwarding_is_switched_on_at_every_site() -> None:
    scripts = Layout(CHAIN, "x", "plain", forwarding=True).settings()
    assert len(scripts) == 3
    assert every("ip_forward" in script for script in scripts.values())
