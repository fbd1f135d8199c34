"""The reference overlay is the one of the paper."""

from anabranch.overlay import BUILT_IN, aws_8, internet2_9, skyplane_10

# The authors' published first draw: link, then Mbit/s there and back.
TABLE = """
1-2 38 54    4-5 23 20     6-8 51 93
1-3 135 81   4-6 133 80    6-9 148 49
2-3 123 108  5-7 123 142   7-8 23 147
2-5 87 78    6-7 118 24    8-9 71 77
3-4 127 32
"""


def test_internet2_9_has_the_papers_links_and_rates():
    overlay = internet2_9()
    words = TABLE.split()
    expected = {}
    for pair, there, back in zip(words[::3], words[1::3], words[2::3], strict=True):
        a, b = pair.split("-")
        expected[f"dc{a}->dc{b}"] = float(there) * 1e6
        expected[f"dc{b}->dc{a}"] = float(back) * 1e6
    assert {overlay.label(link): link.rate_bps for link in overlay} == expected


def test_internet2_9_numbers_its_sites_as_the_paper_does():
    assert [site.name for site in internet2_9().sites] == [f"dc{i}" for i in range(1, 10)]


def test_internet2_9_has_one_latency_and_one_loss():
    assert {(link.latency_s, link.loss, link.trace) for link in internet2_9()} == {
        (0.03, 0.0002, None)
    }


def test_every_built_in_overlay_has_the_name_it_is_found_by():
    assert {name: make().name for name, make in BUILT_IN.items()} == {n: n for n in BUILT_IN}


def test_aws_8_has_a_measured_rate_each_way_between_all_regions():
    overlay = aws_8()
    rates_mbps = {overlay.label(link): link.rate_bps / 1e6 for link in overlay}
    assert len(rates_mbps) == 8 * 7
    assert rates_mbps["us-east-1->us-west-1"] == 80
    assert rates_mbps["us-west-1->us-east-1"] == 83.5
    assert rates_mbps["sa-east-1->ap-southeast-1"] == min(rates_mbps.values()) + 2 == 31


def test_aws_8_is_no_faster_than_light_in_straight_fibre():
    overlay = aws_8()
    ocean = overlay.link(overlay.index("ap-northeast-1"), overlay.index("sa-east-1"))
    assert ocean is not None
    assert 0.09 < ocean.latency_s < 0.1  # 18,500 km


def test_skyplane_10_has_a_measured_rate_and_latency_each_way_between_all_regions():
    overlay = skyplane_10()
    rates_gbps = {overlay.label(link): link.rate_bps / 1e9 for link in overlay}
    assert len(rates_gbps) == 10 * 9
    assert rates_gbps["azure-japaneast->aws-ap-southeast-2"] == min(rates_gbps.values()) == 1.32
    near = overlay.link(overlay.index("aws-us-east-1"), overlay.index("azure-eastus"))
    assert near is not None
    assert near.latency_s == 0.00095


def test_skyplane_10_has_ports_that_carry_each_link_alone():
    overlay = skyplane_10()
    for link in overlay:
        up_bps, down_bps = (
            overlay.sites[link.source].uplink_bps,
            overlay.sites[link.target].downlink_bps,
        )
        assert up_bps is not None
        assert down_bps is not None
        assert link.rate_bps <= min(up_bps, down_bps)
