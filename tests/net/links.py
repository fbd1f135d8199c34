"""Simulated links whose rate is known at every moment, and what estimators make of them.

`benchmarks/estimators.py` measures estimators on many of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from anabranch.net.shaping import serialised_s
from anabranch.net.throughput import Arrival, Estimator
from anabranch.overlay import Link, Trace


@dataclass(frozen=True)
class Path:
    """All that lies between a lane and the receiver's estimator.

    Args:
        trace: the link's rate.
        latency_s: of the link.
        kernel_bytes: what the sender's kernel takes ahead of the wire.
        offset_s, drift: receiver's clock = sender's * (1 + drift) + offset.
        jitter_s: mean of an exponential delay of each chunk; none overtakes.
        pauses: spans in which the receiver reads nothing.
        heads_go_ahead: whether the receiver sees when a chunk begins to come.
    """

    trace: Trace
    latency_s: float = 0.03
    kernel_bytes: int = 400_000
    offset_s: float = 0.0
    drift: float = 0.0
    jitter_s: float = 0.0
    pauses: Sequence[tuple[float, float]] = ()
    heads_go_ahead: bool = False

    def carry(
        self, ready_s: Sequence[float], sizes: Sequence[int], rng: np.random.Generator
    ) -> Iterator[tuple[float, Arrival]]:
        """Yield, for each chunk of a lane, when it had left the link, and its arrival."""
        link = Link(0, 1, self.trace.rates_bps[0], trace=self.trace)
        starts_s: list[float] = []
        carried = [0]
        taken_s, left_s, received_s = -1.0, 0.0, 0.0
        for ready, size in zip(ready_s, sizes, strict=True):
            sent_s, backlogged = max(ready, taken_s), ready <= taken_s
            starts_s.append(max(sent_s, left_s))
            left_s = serialised_s(link, starts_s[-1], size)
            carried.append(carried[-1] + size)
            taken_s = sent_s
            if (gone := carried[-1] - self.kernel_bytes) > 0:  # room for the last byte then
                of = bisect_left(carried, gone) - 1
                taken_s = max(sent_s, serialised_s(link, starts_s[of], gone - carried[of]))
            begun_s = self._read_s(received_s, starts_s[-1], rng) if self.heads_go_ahead else None
            received_s = self._read_s(begun_s or received_s, left_s, rng)
            begun_clock_s = None if begun_s is None else self._clock_s(begun_s)
            arrival = Arrival(
                sent_s, self._clock_s(received_s), size, backlogged, begun_s=begun_clock_s
            )
            yield left_s, arrival

    def _read_s(self, before_s: float, left_s: float, rng: np.random.Generator) -> float:
        """Return when the receiver reads what has left the link; what came before goes first."""
        jitter_s = rng.exponential(self.jitter_s) if self.jitter_s else 0.0
        read_s = max(before_s, left_s + self.latency_s + jitter_s)
        for begin_s, end_s in self.pauses:
            if begin_s <= read_s < end_s:
                read_s = end_s
        return read_s

    def _clock_s(self, at_s: float) -> float:
        return at_s * (1 + self.drift) + self.offset_s


def all_at_once(count: int, chunk_s: float, rng: np.random.Generator) -> list[float]:
    return [0.0] * count


def one_by_one(count: int, chunk_s: float, rng: np.random.Generator) -> list[float]:
    return np.cumsum(rng.uniform(1.5, 4.0, count) * chunk_s).tolist()


def as_in_rounds(count: int, chunk_s: float, rng: np.random.Generator) -> list[float]:
    """Own chunks at once, others as they come from children, then a step of computing."""
    ready_s: list[float] = []
    now_s = 0.0
    while len(ready_s) < count:
        own = int(rng.integers(1, 10))
        ready_s += [now_s] * own
        now_s += chunk_s * own
        for _ in range(int(rng.integers(0, 6))):
            now_s += chunk_s * rng.exponential(1.3)
            ready_s.append(now_s)
        now_s += rng.uniform(0.2, 2.0)
    return ready_s[:count]


def steady(rng: np.random.Generator, chunk_s: float, rate_bps: float) -> Path:
    return Path(Trace((0.0,), (rate_bps,)), rng.uniform(0.0, 0.2), int(10 ** rng.uniform(5, 6.6)))


def with_wrong_clocks(rng: np.random.Generator, chunk_s: float, rate_bps: float) -> Path:
    clocks = {"offset_s": rng.uniform(-5, 5), "drift": rng.uniform(-1e-4, 1e-4)}
    return Path(Trace((0.0,), (rate_bps,)), rng.uniform(0.0, 0.2), **clocks)


def with_jitter(rng: np.random.Generator, chunk_s: float, rate_bps: float) -> Path:
    return Path(Trace((0.0,), (rate_bps,)), rng.uniform(0.0, 0.2), jitter_s=0.03 * chunk_s)


def with_pauses(rng: np.random.Generator, chunk_s: float, rate_bps: float) -> Path:
    begins_s = np.cumsum(rng.exponential(0.5, 500)).tolist()
    pauses = [(begin_s, begin_s + rng.uniform(0.005, 0.05)) for begin_s in begins_s]
    return Path(Trace((0.0,), (rate_bps,)), rng.uniform(0.0, 0.2), pauses=pauses)


def with_changing_rate(rng: np.random.Generator, chunk_s: float, rate_bps: float) -> Path:
    starts_s = tuple(k * (30 * chunk_s + 1) for k in range(10))
    return Path(Trace(starts_s, tuple((rate_bps * rng.uniform(0.3, 2, 10)).tolist())))


Disturbance = Callable[[np.random.Generator, float, float], Path]
Pattern = Callable[[int, float, np.random.Generator], list[float]]
DISTURBANCES = [steady, with_wrong_clocks, with_jitter, with_pauses, with_changing_rate]
PATTERNS = [all_at_once, as_in_rounds, one_by_one]


def passages(
    pattern: Pattern,
    disturbance: Disturbance,
    varied: bool,
    seed: int,
    heads_go_ahead: bool = False,
) -> tuple[Path, list[tuple[float, Arrival]]]:
    """Return a random link of 10 to 600 Mbit/s and 120 chunks of 0.25 to 4 MB on it."""
    rng = np.random.default_rng(seed)
    rate_bps, size = 10 ** rng.uniform(7, 8.8), 10 ** rng.uniform(5.4, 6.6)
    chunk_s = 8 * size / rate_bps
    shares = rng.uniform(0.3, 1.0, 120) if varied else np.ones(120)
    path = replace(disturbance(rng, chunk_s, rate_bps), heads_go_ahead=heads_go_ahead)
    sizes = [int(size * share) for share in shares]
    return path, list(path.carry(pattern(120, chunk_s, rng), sizes, rng))


def errors(path: Path, passed: list[tuple[float, Arrival]], estimator: Estimator) -> list[float]:
    """Return the relative errors of the estimates, but for ten chunks after a change of rate."""
    found = []
    for i, (left_s, arrival) in enumerate(passed):
        estimate = estimator.arrived(arrival)
        rate_bps = path.trace.rate_bps(left_s)
        since_s = min(left_s - 0.6, passed[max(0, i - 10)][0])
        if estimate is not None and path.trace.rate_bps(since_s) == rate_bps:
            found.append(abs(estimate.rate_bps / rate_bps - 1))
    return found
