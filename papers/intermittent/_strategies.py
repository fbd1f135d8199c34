"""The strategies of the intermittent paper and ours, its networks, and its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.log.events import ReachedBy
from anabranch.merge import AnyMerge, Mean, Staleness
from anabranch.overlay import Link, Overlay, Site
from anabranch.period import AnyPeriod, Every, EveryStep, Gossip, Moved, NearPeers, RandomPeers
from anabranch.plan import AnyPlanner, Fapt, Star
from papers.intermittent._literal import Edges, Letters

TARGET = 0.9
SEEDS = 8
TUNING = (1000,)  # added to the first seed: not among those that are measured
FIRST_RATE = 0.2
BATCHES = 30  # of a shard, as in the paper
LOOK_SAMPLES = {3: 1000, 9: 500}
LOOK_EVERY = {3: 1, 9: 3}
# Seconds of an iteration, by `_literal.fitting_step_s` of the paper's All-Reduce-1 and -2.
FITTED_S = {3: 2.3, 9: 7.0}
STEPS_S = (0.5, 2.3, 7.0)
MOST_ITERATIONS = {3: 150, 9: 210}
LATENCY_S = 3.0  # on average
TRAINING_SAMPLES = 60_000
UNTIL: ReachedBy = "all"  # a measured run ends when all nodes are at the target
PAPER_S: Mapping[int, Mapping[str, str]] = {
    3: {
        "all-reduce every 1": "173.56",
        "all-reduce every 2": "110.92",
        "all-reduce every 4": "80.14",
        "all-reduce every 8": "106.69",
        "gossip, half": "142.41",
        "gossip, by latency": "146.55",
    },
    9: {
        "all-reduce every 1": "642.94",
        "all-reduce every 2": "461.17",
        "all-reduce every 4": "554.19",
        "all-reduce every 8": "531.95",
        "gossip, half": "never",
        "gossip, by latency": "never",
    },
}
_HALF = RandomPeers(share=0.5)
LETTERS: Mapping[str, Letters] = {
    "gossip, half": Letters(_HALF),
    "gossip, by latency": Letters(NearPeers(count=1)),
    "gossip, half, at most 4 ahead": Letters(_HALF, most_ahead=4),
    "gossip, half, at most 1 ahead": Letters(_HALF, most_ahead=1),
    "gossip, half, after a move of 5 %": Letters(_HALF, moved=0.05),
    "gossip, half, after a move of 20 %": Letters(_HALF, moved=0.2),
}
EVERY = {f"all-reduce every {k}": k for k in (1, 2, 4, 8)}
SIX = tuple(PAPER_S[3])
"""The strategies of the paper's tables."""
FUTURE = tuple(name for name in LETTERS if name not in SIX)
"""The literal strategies of the paper's future work."""


_MEAN, _STAR = Mean(), Star(hub="site-1")


@dataclass(frozen=True, slots=True)
class Ours:
    """One of our strategies.

    Args:
        period, how, merge, route: see :class:`anabranch_lab.run.scenario.Scenario`.
        near: how many others each node has links to, on a ring; None: all.
        rate_of: the literal strategy whose rate it has; empty: its own.
    """

    period: AnyPeriod
    how: Gossip | None = None
    merge: AnyMerge = _MEAN
    route: AnyPlanner = _STAR
    near: int | None = None
    rate_of: str = ""


_PAIRS = Gossip(peers=_HALF)
_PUSH_SUM = Gossip(peers=_HALF, rule="push-sum")
_TREE = Fapt(roots=1)


def ours(nodes: int) -> dict[str, Ours]:
    """Return our strategies, by name."""
    found = {
        "all-reduce every 1": Ours(EveryStep(), rate_of="all-reduce every 1"),
        **{
            f"all-reduce every {k}": Ours(Every(steps=k), rate_of=f"all-reduce every {k}")
            for k in (2, 4, 8)
        },
        "plain, half": Ours(EveryStep(), Gossip(peers=_HALF, rule="plain"), rate_of="gossip, half"),
        "pairs, half": Ours(EveryStep(), _PAIRS),
        "pairs, by latency": Ours(EveryStep(), Gossip(peers=NearPeers())),
        # Nodes are equally fast, so a bound of more than 1 would hold none.
        "pairs, half, at most 1 ahead": Ours(EveryStep(), Gossip(peers=_HALF, most_ahead=1)),
        "push-sum, half": Ours(EveryStep(), _PUSH_SUM),
        "push-sum, half, by age": Ours(EveryStep(), _PUSH_SUM, Staleness(a=0.5)),
        "pairs, half, after a move of 5 %": Ours(Moved(by=0.05), _PAIRS),
        "average after a move of 5 %": Ours(Moved(by=0.05)),
        "average after a move of 20 %": Ours(Moved(by=0.2)),
    }
    if nodes == 9:
        for near in (2, 4):
            ring = f"on a ring of {near} neighbours"
            every = Ours(Every(steps=4), None, _MEAN, _TREE, near, "all-reduce every 4")
            found[f"all-reduce every 4, {ring}"] = every
            found[f"pairs, half, {ring}"] = Ours(EveryStep(), _PAIRS, _MEAN, _TREE, near)
    return found


def network(nodes: int, seed: int, near: int | None = None) -> Overlay:
    """Return the paper's complete graph, with the latencies of :class:`._literal.Edges`.

    Args:
        nodes: how many.
        seed: of the latencies.
        near: keep the links to so many neighbours on a ring alone; None: all.
    """
    edges = Edges(nodes, seed)
    return Overlay(
        f"intermittent-{nodes}-{seed}" + ("" if near is None else f"-ring-{near}"),
        tuple(Site(f"site-{node + 1}") for node in range(nodes)),
        tuple(
            Link(source, target, 100e6, latency_s, latency_drift_s=0.5)
            for source in range(nodes)
            for target, latency_s in edges.from_node(source).items()
            if near is None or min((target - source) % nodes, (source - target) % nodes) * 2 <= near
        ),
    )
