"""Distance on the globe, and the latency of light in fibre over it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from anabranch.overlay._model import Site

EARTH_RADIUS_M = 6_371_008.8
"""Mean radius of the Earth, metres."""

FIBRE_M_PER_S = 299_792_458.0 * 2 / 3
"""Speed of light in fibre: two thirds of that in vacuum, metres per second."""


def great_circle_m(
    latitude_deg: npt.ArrayLike,
    longitude_deg: npt.ArrayLike,
    other_latitude_deg: npt.ArrayLike,
    other_longitude_deg: npt.ArrayLike,
) -> npt.NDArray[np.float64]:
    """Return the distance along the globe's surface, metres; the arguments broadcast.

    It uses the haversine formula, which is precise for sites near each other.

    >>> quarter_m = great_circle_m(0.0, 0.0, 0.0, 90.0)  # the metre was defined by this: 1e7
    >>> bool(abs(quarter_m - 1e7) < 1e4)
    True
    """
    a_lat, a_lon, b_lat, b_lon = (
        np.radians(np.asarray(angle, dtype=np.float64))
        for angle in (latitude_deg, longitude_deg, other_latitude_deg, other_longitude_deg)
    )
    haversine = (
        np.sin((b_lat - a_lat) / 2) ** 2
        + np.cos(a_lat) * np.cos(b_lat) * np.sin((b_lon - a_lon) / 2) ** 2
    )
    # Rounding may lift the haversine of two antipodes above 1, where arcsin is not defined.
    return np.asarray(2 * EARTH_RADIUS_M * np.arcsin(np.sqrt(np.minimum(haversine, 1.0))))


def fibre_latency_s(a: Site, b: Site) -> float | None:
    """Return the one-way delay of fibre laid straight between two sites, seconds.

    None where a site has no position. Real cables wander, so this is a lower bound.

    >>> new_york = Site("new-york", 40.71, -74.01)
    >>> round(fibre_latency_s(new_york, Site("seattle", 47.61, -122.33)), 4)
    0.0193
    """
    if (
        a.latitude_deg is None
        or a.longitude_deg is None
        or b.latitude_deg is None
        or b.longitude_deg is None
    ):
        return None
    distance_m = great_circle_m(a.latitude_deg, a.longitude_deg, b.latitude_deg, b.longitude_deg)
    return float(distance_m) / FIBRE_M_PER_S
