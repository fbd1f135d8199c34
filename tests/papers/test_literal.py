"""The intermittent paper's strategies, literally: latencies, and what becomes of models."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.period import NearPeers, RandomPeers
from anabranch.period.peers import AnyPeers
from anabranch.train.optimisers import Sgd
from anabranch_lab.tasks.kinds import load_task
from anabranch_lab.tasks.models import build_model
from anabranch_lab.tasks.train import Trainer
from papers.intermittent._literal import Edges, Literal, all_reduce, gossip
from papers.intermittent.tables import network


class Even(Edges):
    """Latencies of 2 s that stay, and how often they were used."""

    def __init__(self, nodes: int) -> None:
        super().__init__(nodes, seed=0)
        self._latencies_s[:] = 2.0
        self.used = 0

    def use_s(self, source: int, target: int) -> float:
        self.used += 1
        return 2.0


def nodes(count: int, rate: float = 0.3) -> list[Trainer]:
    data = load_task("digits", None)
    shards = np.array_split(np.arange(len(data.train_labels)), count)
    return [
        Trainer(data, build_model("softmax", data.shape, data.classes, 0), shard, Sgd(rate), 16, i)
        for i, shard in enumerate(shards)
    ]


def test_edges_begin_between_one_and_five_seconds_and_drift_by_half_a_second() -> None:
    edges = Edges(9, seed=3)
    drawn = [each for node in range(9) for each in edges.from_node(node).values()]
    assert len(drawn) == 72
    assert 1.0 <= min(drawn) < 1.5
    assert 4.5 < max(drawn) <= 5.0
    for _ in range(200):
        used_s = edges.use_s(0, 1)
        assert used_s >= 0.0
        assert abs(edges.from_node(0)[1] - used_s) <= 0.5
    links = {(link.source, link.target): link.latency_s for link in network(9, 3).links}
    fresh = Edges(9, seed=3)
    assert links == {(a, b): s for a in range(9) for b, s in fresh.from_node(a).items()}


@pytest.mark.parametrize("every", [1, 4])
def test_an_all_reduce_takes_its_largest_latency_and_leaves_one_model(every: int) -> None:
    trained, edges = nodes(3), Even(3)
    done = all_reduce(trained, edges, every, 1.0, 1, 200, target=2.0, longest_s=24.0, until="all")
    # An iteration takes 1 s, and every so many of them 2 s more.
    assert done.iterations == {1: 8, 4: 16}[every]
    assert edges.used == 6 * done.iterations // every
    for node in trained[1:]:
        assert np.array_equal(node.flat.parameters, trained[0].flat.parameters)
    assert done.reached_by == {"first": None, "mean": None, "all": None}
    assert [at_s for at_s, _ in done.curve][:2] == {1: [3.0, 6.0], 4: [1.0, 2.0]}[every]


@pytest.mark.parametrize("peers", [RandomPeers(share=0.5), NearPeers(count=1)])
def test_a_node_that_gossips_waits_for_what_it_sends(peers: AnyPeers) -> None:
    trained, edges = nodes(5), Even(5)
    done = gossip(trained, edges, peers, 1.0, 1, 200, 2.0, 30.0, "all", seed=0)
    assert done.iterations == 10  # each 1 s, and 2 s for what it sends
    assert edges.used == 5 * 10 * (2 if isinstance(peers, RandomPeers) else 1)
    spread = np.ptp([node.flat.parameters for node in trained], axis=0).max()
    assert 0.0 < spread < 0.5


def test_models_are_followed_until_the_target() -> None:
    done = all_reduce(nodes(3), Even(3), 2, 1.0, 1, 200, target=0.8, longest_s=200.0, until="mean")
    assert isinstance(done, Literal)
    first_s, mean_s = done.reached_by["first"], done.reached_by["mean"]
    assert first_s is not None
    assert mean_s is not None
    assert first_s <= mean_s < 200.0
    assert done.curve[-1][1] >= 0.8
