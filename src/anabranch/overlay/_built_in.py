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


BUILT_IN: Mapping[str, Callable[[], Overlay]] = MappingProxyType(
    {"aws-8": aws_8, "internet2-9": internet2_9}
)
"""The overlays that `load` knows by name."""
