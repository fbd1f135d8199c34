"""Overlays that come with anabranch, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

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
    at 20 to 155 Mbit/s, with 30 ms latency and 0.02 % loss on every link; the rates are the
    first draw of the authors' public scripts. The positions are ours and **for drawing only**:
    the paper gives none, and no latency comes from them.

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


BUILT_IN: Mapping[str, Callable[[], Overlay]] = MappingProxyType({"internet2-9": internet2_9})
"""The overlays that `load` knows by name."""
