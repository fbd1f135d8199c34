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
from papers.intermittent._literal import (
    Edges,
    Letters,
    Literal,
    Looks,
    all_reduce,
    fitting_step_s,
    gossip,
    timed,
)
from papers.intermittent._strategies import FITTED_S, PAPER_S, network

from ..every import every


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


LOOKS = Looks(every=1, samples=200, target=2.0, until="all")


@pytest.mark.parametrize("every", [1, 4])
def test_an_all_reduce_takes_its_largest_latency_and_leaves_one_model(every: int) -> None:
    trained, edges = nodes(3), Even(3)
    seen = all_reduce(trained, every, LOOKS, most_iterations=8)
    for node in trained[1:]:
        assert np.array_equal(node.flat.parameters, trained[0].flat.parameters)
    done = timed(seen, edges, every, 1.0, LOOKS)
    # An iteration takes 1 s, and every so many of them 2 s more.
    assert done.iterations == 8
    assert edges.used == done.messages == 6 * 8 // every
    assert done.reached_by == {"first": None, "mean": None, "all": None}
    assert [at_s for at_s, _ in done.curve][:2] == {1: [3.0, 6.0], 4: [1.0, 2.0]}[every]
    assert done.curve[-1][0] == {1: 24.0, 4: 12.0}[every]


def test_the_same_models_are_there_later_if_an_iteration_takes_longer() -> None:
    looks = Looks(every=1, samples=200, target=0.8, until="all")
    seen = all_reduce(nodes(3), 2, looks, most_iterations=60)
    soon, late = (timed(seen, Even(3), 2, step_s, looks) for step_s in (1.0, 4.0))
    assert [accuracy for _, accuracy in soon.curve] == [accuracy for _, accuracy in late.curve]
    soon_s, late_s = soon.reached_by["first"], late.reached_by["first"]
    assert soon_s is not None
    assert late_s is not None
    assert soon_s < late_s


@pytest.mark.parametrize("peers", [RandomPeers(share=0.5), NearPeers(count=1)])
def test_a_node_that_gossips_waits_for_what_it_sends(peers: AnyPeers) -> None:
    trained, edges = nodes(5), Even(5)
    done = gossip(trained, edges, Letters(peers), 1.0, LOOKS, 30.0, seed=0)
    assert done.iterations == 10  # each 1 s, and 2 s for what it sends
    assert edges.used == done.messages == 5 * 10 * (2 if isinstance(peers, RandomPeers) else 1)
    spread = np.ptp([node.flat.parameters for node in trained], axis=0).max()
    assert 0.0 < spread < 0.5


@pytest.mark.parametrize("bound", [1, 3])
def test_no_node_is_further_ahead_than_the_bound_and_none_is_held_for_ever(bound: int) -> None:
    slow = Even(5)

    def use_s(source: int, target: int) -> float:
        return 9.0 if source == 0 else 0.5  # node 0 waits long for what it sends

    slow.use_s = use_s  # type: ignore[method-assign]
    free, held = (
        gossip(nodes(5), slow, Letters(RandomPeers(), most), 1.0, LOOKS, 200.0, seed=0)
        for most in (None, bound)
    )
    assert free.iterations > 100
    # Node 0 has an iteration each 10 s, and the others hear of it 9 s later.
    assert 15 <= held.iterations <= 20 + bound


def test_a_node_that_has_not_moved_sends_nothing() -> None:
    edges = Even(3)
    looks = Looks(every=1, samples=200, target=2.0, until="all")
    still = gossip(nodes(3), edges, Letters(RandomPeers(), moved=1e6), 1.0, looks, 20.0, seed=0)
    assert (still.messages, edges.used, still.iterations) == (0, 0, 19)
    some = gossip(nodes(3), edges, Letters(RandomPeers(), moved=0.3), 1.0, looks, 20.0, seed=0)
    assert 0 < some.messages < 3 * some.iterations


def test_models_are_followed_until_the_target() -> None:
    looks = Looks(every=1, samples=200, target=0.8, until="mean")
    done = timed(all_reduce(nodes(3), 2, looks, 60), Even(3), 2, 1.0, looks)
    assert isinstance(done, Literal)
    first_s, mean_s = done.reached_by["first"], done.reached_by["mean"]
    assert first_s is not None
    assert mean_s is not None
    assert first_s <= mean_s < 200.0
    assert done.curve[-1][1] >= 0.8


def test_a_ring_keeps_each_nodes_nearest() -> None:
    ring = network(9, 3, near=4)
    assert {link.target for link in ring.links if link.source == 0} == {1, 2, 7, 8}
    whole = {(link.source, link.target): link.latency_s for link in network(9, 3).links}
    assert every(whole[link.source, link.target] == link.latency_s for link in ring.links)


@pytest.mark.parametrize("nodes", [3, 9])
def test_the_time_of_an_iteration_fits_the_papers_first_two_rows(nodes: int) -> None:
    both_s = (float(PAPER_S[nodes][f"all-reduce every {k}"]) for k in (1, 2))
    assert fitting_step_s(nodes, *both_s, draws=40) == pytest.approx(FITTED_S[nodes], rel=0.1)
