"""NetStorm, Tables I and II, its algorithms' complexity, and Proposition 1. No run is made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import numpy as np
from scipy.sparse import csgraph

from anabranch.overlay import Overlay, random_complete, random_sparse
from anabranch.plan import algorithm_3, fapt
from anabranch.scheduler.awareness import Passive
from papers._experiment import Experiment
from papers._lab import Lab
from papers._result import Result, Row
from papers.netstorm import _setting as setting
from papers.netstorm._setting import OUR_PRO_256_KB, PRO, System

_LATENCY_S = 0.03
_CHUNK_BITS = 32 * setting.CHUNK_ELEMENTS


def _defaults(system: System) -> tuple[str, ...]:
    """Return Table II's values in a system, in its order."""
    awareness, paths = system.awareness, system.auxiliary
    assert isinstance(awareness, Passive)
    assert paths is not None
    overlay = setting.reference()
    roots = len(system.route.plan(overlay).trees)
    probe = awareness.probe_chunk_elements
    return (
        str(overlay.size),
        str(roots),
        f"{system.chunk_elements:,} elements",
        f"{paths.primary_busy_bound}, {paths.busy_when}",
        str(paths.auxiliary_queue_length),
        "no probes" if probe is None else f"{4 * probe:,} bytes",
        "no probes" if probe is None else str(awareness.probe_chunks),
        f"{awareness.update_time_s:g} s",
    )


_TABLE_2 = (
    ("NUM_NODES", "9", ""),
    ("NUM_ROOT_SERVERS", "9", ""),
    ("CHUNK_SIZE", "1 million", "parameters"),
    ("PRIMARY_BUSY_BOUND", "2", "IX-C: two chunks in transit; VI-A: more than two, see fig17"),
    ("AUXILIARY_QUEUE_LENGTH", "1", "Fig. 17's best is 5"),
    (
        "PROBE_CHUNK_SIZE",
        "2 millions",
        "as bytes, as in the authors' code: 2 million elements are more than a chunk has",
    ),
    ("PROBE_CHUNK_NUM", "4", ""),
    ("UPDATE_TIME", "5 seconds", ""),
)
_TABLE_1 = (
    ("ENABLE_AWARENESS", "whether to enable network awareness", "awareness", "fig16"),
    ("ENABLE_AUX_PATH", "whether to use auxiliary paths", "auxiliary", "fig17"),
    (
        "UPDATE_RATE",
        "threshold to distinguish significant changes",
        "awareness.update_rate",
        "0 as in VIII-B; ours looks at the gain of a plan instead, see fig16",
    ),
)


def _options() -> list[Row]:
    assert isinstance(PRO.awareness, Passive)
    literal = ("on in std and pro", "on in pro", f"{PRO.awareness.update_rate:g}")
    return [
        Row(f"Table I: {option}", paper, f"key `{key}`", why, literal=value)
        for (option, paper, key, why), value in zip(_TABLE_1, literal, strict=True)
    ]


def _settings() -> list[Row]:
    both = zip(_TABLE_2, _defaults(PRO), _defaults(OUR_PRO_256_KB), strict=True)
    return [
        Row(f"Table II: {name}", paper, ours, why, literal=literal)
        for (name, paper, why), literal, ours in both
    ]


def _networks(lab: Lab, kind: str) -> list[Overlay]:
    seeds = range(lab.seed, lab.seed + (3 if lab.quick else 20))
    if kind == "the paper's network":
        return list(setting.drawn(len(seeds), lab.seed))
    if kind == "sparse, 20 sites":
        return [random_sparse(20, seed) for seed in seeds]
    return [random_complete(9, seed) for seed in seeds]


def turns(overlay: Overlay, undirected: bool) -> int:
    """Return how many times Algorithm 3 runs Algorithm 1 on an overlay.

    Args:
        overlay: the network.
        undirected: whether a used edge is gone in both directions.
    """
    goodput_bps = overlay.goodput_matrix_bps()
    fastest_bps, count = goodput_bps.max(), 0
    while goodput_bps.any():
        with np.errstate(divide="ignore"):
            delays = fastest_bps / goodput_bps  # inf where there is no link
        np.fill_diagonal(delays, 0.0)
        _, before = csgraph.floyd_warshall(delays, return_predecessors=True)
        sources, targets = np.nonzero(before >= 0)
        goodput_bps[before[sources, targets], targets] = 0.0
        if undirected:
            goodput_bps[targets, before[sources, targets]] = 0.0
        count += 1
    return count


def _turns(networks: Sequence[Overlay], undirected: bool) -> str:
    """Return how often Algorithm 3 runs Algorithm 1, over E / (V - 1) rounded up."""
    times = []
    for overlay in networks:
        edges = len(overlay.links) // (2 if undirected else 1)
        times.append(turns(overlay, undirected) / math.ceil(edges / (overlay.size - 1)))
    return f"{median(times):.2f}, {min(times):.2f} to {max(times):.2f}"


def _paths(networks: Sequence[Overlay], undirected: bool) -> str:
    """Return on how many networks a tree neighbour has an auxiliary path, and how many have."""
    found = []
    for overlay in networks:
        plan = fapt(overlay, roots=overlay.size)
        found.append(len(algorithm_3(overlay, plan, undirected=undirected)))
    some = sum(each > 0 for each in found)
    return f"{sum(found)} pairs, on {some} of {len(networks)} networks"


def _search(lab: Lab) -> list[Row]:
    rows = []
    for kind in ("the paper's network", "sparse, 20 sites", "every pair linked, 9 sites"):
        networks = _networks(lab, kind)
        seeds = f"{len(networks)} drawn networks"
        rows += [
            Row(
                f"Algorithm 3, {kind}: tree neighbours with an auxiliary path",
                "several between each pair; all links are used (VI-A)",
                _paths(networks, undirected=False),
                "literal: a used edge is gone in both directions; ours: in its direction",
                literal=_paths(networks, undirected=True),
                seeds=seeds,
            ),
            Row(
                f"Algorithm 3, {kind}: runs of Algorithm 1 over E / (V - 1) rounded up",
                "at most 1, hence O(E V^2) in all (VI-B)",
                _turns(networks, undirected=False),
                "literal: a used edge is gone in both directions; ours: in its direction",
                literal=_turns(networks, undirected=True),
                seeds=seeds,
            ),
        ]
    return rows


def one_way(rate_bps: float) -> tuple[float, float]:
    """Return the estimates of a link's rate over the rate: one way, and by round trip.

    Proposition 1 with Appendix B: a chunk's transfer and the latency count (eq. 14), and by round
    trip half of the way back too.

    >>> [round(each, 3) for each in one_way(20e6)]
    [0.982, 0.973]
    """
    transfer_s = _CHUNK_BITS / rate_bps
    return (
        transfer_s / (transfer_s + _LATENCY_S),
        transfer_s / (transfer_s + 1.5 * _LATENCY_S),
    )


def _proposition() -> Row:
    told = "; ".join(
        f"{rate_bps / 1e6:g} Mbit/s: {one_way(rate_bps)[0]:.3f}, {one_way(rate_bps)[1]:.3f}"
        for rate_bps in (setting.LOW_BPS, setting.HIGH_BPS)
    )
    return Row(
        "Proposition 1: a rate estimated one way, and by round trip, over the rate",
        "one way is more precise and faster",
        "",
        "a chunk of 1 M elements over 30 ms; eq. 14 counts the latency as transfer",
        literal=told,
    )


def _complexity() -> Row:
    return Row(
        "Algorithms 1 and 2: time for V sites, N roots and E links",
        "O(V^3); O((N + V) V^2 - N^2 V + E)",
        "O(V^3) both",
        "by construction, not timed: Floyd-Warshall for all pairs, both ways",
    )


def _make(lab: Lab) -> Result:
    rows = (*_options(), *_settings(), _complexity(), *_search(lab), _proposition())
    return Result(rows)


EXPERIMENTS = (
    Experiment(
        "netstorm/tables", "Tables I and II, the algorithms' complexity, Proposition 1", _make
    ),
)
