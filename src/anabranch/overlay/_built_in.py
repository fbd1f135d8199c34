"""Overlays that come with anabranch, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from anabranch.overlay._geography import fibre_latency_s
from anabranch.overlay._model import Link, Overlay, Site

# Link (i, j), then the rates i->j and j->i in Mbit/s.
_INTERNET2_9 = (
    (1, 2, 38, 54),
    (1, 3, 135, 81),
    (2, 3, 123, 108),
    (2, 5, 87, 78),
    (3, 4, 127, 32),
    (4, 5, 23, 20),
    (4, 6, 133, 80),
    (5, 7, 123, 142),
    (6, 7, 118, 24),
    (6, 8, 51, 93),
    (6, 9, 148, 49),
    (7, 8, 23, 147),
    (8, 9, 71, 77),
)

# Seattle, Salt Lake City, Los Angeles, Houston, Kansas City, Atlanta, Chicago, New York and
# Washington: the nine cities of Internet2 whose links have this very shape.
_INTERNET2_9_PLACES_DEG = (
    (47.61, -122.33),
    (40.76, -111.89),
    (34.05, -118.24),
    (29.76, -95.36),
    (39.11, -94.63),
    (33.75, -84.39),
    (41.85, -87.65),
    (40.71, -74.01),
    (38.90, -77.04),
)


def internet2_9() -> Overlay:
    """Return the nine-site overlay on which NetStorm was evaluated.

    Site ``dc1`` is the paper's node 1, and so on to ``dc9``. Thirteen pairs are linked both ways,
    at 20 to 155 Mbit/s. Every link has 30 ms latency and 0.02 % loss. The rates are the first draw
    of the authors' public scripts. The positions are ours and **for drawing only**: the paper gives
    none, and no latency comes from them.

    Source: NetStorm, Fig. 12.

    >>> overlay = internet2_9()
    >>> overlay.size, len(overlay.links)
    (9, 26)
    >>> overlay.link(overlay.index("dc7"), overlay.index("dc8")).rate_bps
    23000000.0
    """
    sites = tuple(
        Site(f"dc{number}", latitude_deg, longitude_deg)
        for number, (latitude_deg, longitude_deg) in enumerate(_INTERNET2_9_PLACES_DEG, start=1)
    )
    links = tuple(
        Link(source - 1, target - 1, rate_mbps * 1e6, latency_s=0.03, loss=0.0002)
        for i, j, forward_mbps, back_mbps in _INTERNET2_9
        for source, target, rate_mbps in ((i, j, forward_mbps), (j, i, back_mbps))
    )
    return Overlay("internet2-9", sites, links)


# AWS's regions, the cities they are named after, and the Mbit/s from each to all, in this order.
_AWS_8 = (
    ("us-east-1", (39.0, -77.5), (0, 80, 72, 50, 40, 41.5, 44.5, 73)),  # Northern Virginia
    ("us-west-1", (37.8, -122.4), (83.5, 0, 55.5, 46, 49, 54.5, 56.5, 53)),  # San Francisco
    ("eu-west-1", (53.3, -6.3), (74, 52, 0, 64, 47.5, 37, 35.5, 47)),  # Dublin
    ("ap-south-1", (19.1, 72.9), (47, 38, 53, 0, 95, 50.5, 44, 32)),  # Mumbai
    ("ap-southeast-1", (1.35, 103.8), (37.5, 46.5, 39, 96, 0, 63.5, 61.5, 29)),  # Singapore
    ("ap-southeast-2", (-33.9, 151.2), (47.5, 53.5, 32.5, 63, 74, 0, 55, 32)),  # Sydney
    ("ap-northeast-1", (35.7, 139.7), (54, 55.5, 38.5, 65.5, 80.5, 61, 0, 37)),  # Tokyo
    ("sa-east-1", (-23.5, -46.6), (66, 46, 43, 36, 31, 31, 35, 0)),  # Sao Paulo
)


def aws_8() -> Overlay:
    """Return eight regions of AWS with the rates measured between all of them at once.

    Each rate is the median of 86 measurements at the receiver. Each measurement lasted 20 s, from
    one t2.medium instance to another while all pairs sent, so the rates hold together. Latencies
    were not measured: they are those of straight fibre between the regions' cities, and thus too
    low. Loss is 0.

    Source: the files of ``datasets/`` with eight data centres and kind ``dynamic`` in
    mc2lab/WANify (commit be25bd37), Copyright (c) 2025 anonymous-cloudsub, MIT licence.

    >>> overlay = aws_8()
    >>> overlay.size, len(overlay.links)
    (8, 56)
    >>> overlay.link(overlay.index("ap-south-1"), overlay.index("ap-southeast-1")).rate_bps
    95000000.0
    """
    sites = tuple(Site(name, *place) for name, place, _ in _AWS_8)
    links = []
    for source, (_, _, rates_mbps) in enumerate(_AWS_8):
        for target, rate_mbps in enumerate(rates_mbps):
            if source != target:
                latency_s = fibre_latency_s(sites[source], sites[target])
                assert latency_s is not None
                links.append(Link(source, target, rate_mbps * 1e6, round(latency_s, 4)))
    return Overlay("aws-8", sites, tuple(links))


# Gbit/s that a virtual machine of each cloud sent and received at most, in any measurement.
_PORTS_GBPS = {"aws": (4.8, 9.6), "azure": (15.6, 22.0), "gcp": (7.1, 15.4)}

# Regions and their cities, the Gbit/s from each to all, and round trips in ms, in this order.
_SKYPLANE_10 = (
    (
        "aws-us-east-1",
        (39.0, -77.5),  # Northern Virginia
        (0, 4.35, 4.32, 3.12, 4.78, 4.20, 3.54, 4.65, 4.02, 3.23),
        (0, 68.3, 84.9, 197.0, 1.9, 80.4, 157.9, 28.5, 116.3, 191.4),
    ),
    (
        "aws-us-west-2",
        (45.8, -119.7),  # Oregon
        (4.35, 0, 3.85, 3.66, 4.24, 3.52, 4.07, 4.43, 3.50, 3.08),
        (68.5, 0, 122.3, 138.6, 79.7, 160.0, 97.9, 64.7, 188.2, 229.0),
    ),
    (
        "aws-eu-west-1",
        (53.3, -6.3),  # Dublin
        (4.31, 3.87, 0, 2.59, 4.31, 4.70, 2.68, 4.10, 3.33, 3.73),
        (84.9, 122.3, 0, 253.9, 67.2, 20.1, 250.2, 104.1, 199.8, 140.3),
    ),
    (
        "aws-ap-southeast-2",
        (-33.9, 151.2),  # Sydney
        (3.11, 3.66, 2.62, 0, 3.16, 2.62, 3.94, 3.44, 2.46, 3.75),
        (197.3, 138.6, 255.7, 0, 199.3, 261.7, 112.6, 184.1, 302.5, 154.0),
    ),
    (
        "azure-eastus",
        (37.4, -78.7),  # Virginia
        (9.56, 6.77, 2.52, 2.24, 0, 13.47, 10.62, 13.26, 3.86, 2.09),
        (1.9, 79.6, 67.2, 205.3, 0, 80.3, 156.1, 27.7, 116.0, 199.3),
    ),
    (
        "azure-westeurope",
        (52.4, 4.9),  # Netherlands
        (3.32, 4.02, 9.28, 2.03, 13.46, 0, 8.62, 4.87, 2.55, 6.07),
        (80.5, 158.6, 20.3, 263.2, 80.3, 0, 224.1, 106.4, 183.9, 132.6),
    ),
    (
        "azure-japaneast",
        (35.7, 139.7),  # Tokyo
        (1.85, 3.57, 1.55, 1.32, 10.61, 8.68, 0, 5.20, 2.57, 4.59),
        (162.1, 97.9, 250.1, 112.5, 156.3, 224.2, 0, 145.0, 261.9, 128.5),
    ),
    (
        "gcp-us-central1",
        (41.3, -95.9),  # Iowa
        (6.83, 5.46, 5.03, 3.73, 6.30, 5.64, 5.51, 0, 5.07, 3.97),
        (29.7, 62.0, 106.6, 184.2, 27.8, 107.7, 145.2, 0, 138.3, 209.3),
    ),
    (
        "gcp-southamerica-east1",
        (-23.5, -46.6),  # Sao Paulo
        (4.98, 4.82, 4.55, 2.49, 5.58, 4.79, 3.69, 5.24, 0, 2.45),
        (116.0, 187.8, 226.2, 302.0, 116.2, 167.8, 263.2, 138.3, 0, 322.9),
    ),
    (
        "gcp-asia-south1",
        (19.1, 72.9),  # Mumbai
        (4.30, 4.21, 3.89, 4.98, 2.90, 5.41, 5.20, 4.12, 3.01, 0),
        (174.1, 221.7, 140.5, 144.0, 199.3, 137.8, 137.3, 245.1, 273.0, 0),
    ),
)


def skyplane_10() -> Overlay:
    """Return ten regions of AWS, Azure and Google Cloud with the rates and latencies measured.

    Each rate is one measurement of 5 s over 64 connections (January 2022), from one large virtual
    machine to another: m5.8xlarge, Standard_D32_v5 or n2-standard-32. Pairs were measured one at a
    time. So each site has ports, which all its links share: what a machine of its cloud sent and
    received at most in these measurements. A latency is half a mean round trip (April 2022), the
    least where several zones were measured. Loss is 0.

    Source: ``profiles/throughput.csv`` (commit 87e32de8) and ``profiles/latency.csv`` (commit
    945dca27) of skyplane-project/skyplane, Apache-2.0 licence.

    >>> overlay = skyplane_10()
    >>> overlay.size, len(overlay.links)
    (10, 90)
    >>> overlay.sites[0].uplink_bps
    4800000000.0
    """
    sites, links = [], []
    for source, (name, place, rates_gbps, round_trips_ms) in enumerate(_SKYPLANE_10):
        up_gbps, down_gbps = _PORTS_GBPS[name.partition("-")[0]]
        up_bps, down_bps = up_gbps * 1e9, down_gbps * 1e9
        sites.append(Site(name, *place, uplink_bps=up_bps, downlink_bps=down_bps))
        for target, (rate_gbps, both_ms) in enumerate(zip(rates_gbps, round_trips_ms, strict=True)):
            if source != target:
                links.append(Link(source, target, rate_gbps * 1e9, round(both_ms / 2000, 6)))
    return Overlay("skyplane-10", tuple(sites), tuple(links))


BUILT_IN: Mapping[str, Callable[[], Overlay]] = MappingProxyType(
    {"aws-8": aws_8, "internet2-9": internet2_9, "skyplane-10": skyplane_10}
)
"""The overlays that `load` knows by name."""
