"""Latency that drifts from message to message."""

from __future__ import annotations

import numpy as np

from anabranch.overlay._model import Link


class Latency:
    """The latency of one message after another over a link.

    The series follows from the seed and the link's two ends alone, so every process computes the
    same series, on any machine. The two directions of a pair drift independently.

    Args:
        link: with no drift, every message takes its ``latency_s`` and nothing is drawn.
        seed: of the run, >= 0.

    Source: Malik et al., Optimizing Distributed Training on Intermittently Connected Networks,
    II-A. There the latency starts between 1 and 5 s and moves by up to 0.5 s. The bound at 0 is
    ours.

    >>> steady = Latency(Link(0, 1, 1e6, latency_s=0.03), seed=7)
    >>> [steady.next_s() for _ in range(3)]
    [0.03, 0.03, 0.03]
    >>> drifting = Latency(Link(0, 1, 1e6, latency_s=3.0, latency_drift_s=0.5), seed=7)
    >>> [round(drifting.next_s(), 2) for _ in range(4)]
    [3.0, 3.33, 3.32, 3.54]
    """

    __slots__ = ("_drift_s", "_latency_s", "_rng")

    def __init__(self, link: Link, seed: int) -> None:
        self._latency_s = link.latency_s
        self._drift_s = link.latency_drift_s
        # Only where it is used: a generator costs more than all the rest of a link.
        self._rng = (
            np.random.default_rng((seed, link.source, link.target)) if self._drift_s else None
        )

    def next_s(self) -> float:
        """Return the one-way delay of the next message, seconds; later messages may differ."""
        latency_s = self._latency_s
        if self._rng is not None:
            drifted_s = latency_s + self._rng.uniform(-self._drift_s, self._drift_s)
            self._latency_s = max(0.0, float(drifted_s))
        return latency_s
