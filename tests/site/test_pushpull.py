"""Updates go to the servers that hold their chunks, and the model comes back, over any route."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from anabranch.learn.optimisers import Sgd
from anabranch.net.errors import DuplicateMessage, OutOfPlaceMessage
from anabranch.net.messages import ChunkMessage, Parameters, Push, UpdateSum
from anabranch.overlay import internet2_9
from anabranch.plan import Plan, Tree, balanced, children_towards, deal, fapt, star
from anabranch.site.accumulator import Floats
from anabranch.site.aggregation import Send
from anabranch.site.arithmetic import Float32
from anabranch.site.partition import ServerPartition, Update
from anabranch.site.pushpull import PushPull

ELEMENTS = 1000
OVERLAY = internet2_9()
PLANS = {
    "star": star(OVERLAY),
    "balanced": balanced(OVERLAY),
    "fapt, 9 roots": fapt(OVERLAY, roots=9),
    "fapt, 2 roots": fapt(OVERLAY, roots=2),
}


class Sites:
    """Every site's part, and a network that hands each message over at the end of its path."""

    def __init__(self, plan: Plan, added_up: tuple[int, ...] = ()) -> None:
        chunks = deal(plan, ELEMENTS, 64)
        self.roots = {tree.root for tree in plan.trees}
        self.came: list[tuple[int, Update]] = []
        self.shards: dict[int, ServerPartition] = {}
        self.sites: list[PushPull] = []
        self.sent: list[ChunkMessage] = []
        for site in range(plan.size):
            if site in self.roots:
                self.shards[site] = ServerPartition(
                    [chunk for chunk in chunks if plan.trees[chunk.tree].root == site],
                    np.zeros(ELEMENTS, np.float32),
                    Sgd(1.0).start(ELEMENTS),
                    max(1, len(added_up)),
                    lambda update, site=site: self.came.append((site, update)),
                )
            self.sites.append(
                PushPull(
                    site, plan, chunks, Float32(), self._carry, self.shards.get(site), added_up
                )
            )

    def _carry(self, send: Send) -> None:
        message = send.message
        for hop in zip(message.path, message.path[1:], strict=False):
            assert OVERLAY.link(*hop) is not None
        self.sent.append(message)
        receiver = self.sites[message.path[-1]]
        if isinstance(message, Push):
            sink = receiver.on_push(message, len(send.payload))
        elif isinstance(message, UpdateSum):
            sink = receiver.on_sum(message, len(send.payload))
            assert sink.piece is not None
            sink.piece(0, send.payload)
        else:
            assert isinstance(message, Parameters)
            sink = receiver.on_parameters(message, len(send.payload))
        if sink.piece is None:
            assert sink.target is not None
            sink.target[:] = send.payload
        sink.done()


def normal(seed: int) -> Floats:
    return np.random.default_rng(seed).normal(size=ELEMENTS).astype(np.float32)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_an_update_reaches_every_server_and_the_model_its_worker(plan: Plan) -> None:
    sites = Sites(plan)
    whole: list[int] = []
    expected = np.zeros(ELEMENTS, np.float32)
    for worker in range(plan.size):
        model, gradients = np.full(ELEMENTS, np.nan, np.float32), normal(worker)
        sites.sites[worker].expect(2, model, lambda w=worker: whole.append(w))
        sites.sites[worker].push(1, gradients, 1.0)
        assert sorted(site for site, update in sites.came if update == (worker, 1)) == sorted(
            sites.roots
        )
        expected -= gradients
        for root in sites.roots:
            sites.shards[root].apply([(worker, 1)])
            sites.sites[root].serve([(worker, 2)])
        assert whole[-1] == worker
        np.testing.assert_array_equal(model, expected)


def test_several_workers_are_served_the_same_model() -> None:
    sites = Sites(PLANS["fapt, 2 roots"])
    models = {worker: np.full(ELEMENTS, np.nan, np.float32) for worker in (3, 5)}
    for worker, model in models.items():
        sites.sites[worker].expect(2, model, lambda: None)
        sites.sites[worker].push(1, normal(worker), 1.0)
    for root in sites.roots:
        sites.shards[root].apply([(3, 1), (5, 1)])
        sites.sites[root].serve([(3, 2), (5, 2)])
    np.testing.assert_array_equal(models[3], models[5])
    assert not np.isnan(models[3]).any()


@pytest.mark.parametrize("workers", [tuple(range(9)), (1, 4, 6)], ids=["all work", "some work"])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_under_a_barrier_each_tree_link_carries_one_sum_up_and_one_model_down(
    plan: Plan, workers: tuple[int, ...]
) -> None:
    sites = Sites(plan, workers)
    models = {worker: np.full(ELEMENTS, np.nan, np.float32) for worker in workers}
    whole: list[int] = []
    expected = np.zeros(ELEMENTS, np.float64)
    for step in (1, 2):
        sites.sent.clear()
        for worker, model in models.items():
            sites.sites[worker].expect(step + 1, model, lambda w=worker: whole.append(w))
            sites.sites[worker].push(step, normal(10 * step + worker), 1.0)
            expected -= normal(10 * step + worker) / len(workers)
        updates = [(worker, step) for worker in workers]
        assert sites.came == [
            (root, update) for root, _ in sites.came[:: len(workers)] for update in updates
        ]
        assert {root for root, _ in sites.came} == sites.roots
        sites.came.clear()
        for root in sites.roots:
            sites.shards[root].apply(updates)
        for root in sites.roots:
            sites.sites[root].serve([(worker, step + 1) for worker in workers])
        assert sorted(whole) == sorted(workers)
        whole.clear()
        for model in models.values():
            np.testing.assert_allclose(model, expected, atol=1e-5)
            np.testing.assert_array_equal(model, models[workers[0]])
        carried = Counter(
            (type(each), each.path[0], each.path[-1], each.chunk) for each in sites.sent
        )
        assert set(carried.values()) == {1}
        wanted = set()
        for chunk in deal(plan, ELEMENTS, 64):
            tree = plan.trees[chunk.tree]
            for parent, children in enumerate(children_towards(tree.up, workers)):
                wanted |= {(UpdateSum, child, parent, chunk.index) for child in children}
            for parent, children in enumerate(children_towards(tree.down, workers)):
                wanted |= {(Parameters, parent, child, chunk.index) for child in children}
        assert set(carried) == wanted


def test_under_a_barrier_what_nobody_awaits_is_refused() -> None:
    up = (-1, 0, 1, 1)
    plan = Plan(1, (Tree(0, 1.0, up, up),))
    chunks = deal(plan, ELEMENTS, 64)
    sent: list[Send] = []
    middle, leaf, idle = (
        PushPull(site, plan, chunks, Float32(), sent.append, None, (2, 3)) for site in (1, 2, 0)
    )
    size = 4 * chunks[0].elements
    alone = PushPull(1, plan, chunks, Float32(), sent.append, None)
    with pytest.raises(OutOfPlaceMessage, match="a sum of updates, where each travels alone"):
        alone.on_sum(UpdateSum(1, 1, 0, (2, 1), 1.0, 0), size)
    with pytest.raises(
        OutOfPlaceMessage, match="an epoch of sums, where each update travels alone"
    ):
        alone.count(1, (2,), 1)
    with pytest.raises(OutOfPlaceMessage, match="which is not its source"):
        middle.on_parameters(Parameters(2, 1, 0, (2, 1)), size)
    with pytest.raises(OutOfPlaceMessage, match="8 bytes"):
        middle.on_parameters(Parameters(2, 1, 0, (0, 1)), 8)
    with pytest.raises(OutOfPlaceMessage, match="where that for 1 was the last"):
        middle.on_parameters(Parameters(3, 1, 0, (0, 1)), size)
    middle.on_parameters(Parameters(2, 1, 0, (0, 1)), size).done()
    assert [send.message.path for send in sent] == [(1, 2), (1, 3)]
    with pytest.raises(DuplicateMessage, match="chunk 0 of the model for update 2"):
        middle.on_parameters(Parameters(2, 1, 0, (0, 1)), size)
    with pytest.raises(OutOfPlaceMessage, match="update 2, where none is awaited"):
        leaf.on_parameters(Parameters(2, 1, 0, (1, 2)), size)
    with pytest.raises(OutOfPlaceMessage, match="plan version 4"):
        idle.on_sum(UpdateSum(1, 4, 0, (1, 0), 1.0, 0), size)
    star = PLANS["star"]
    root = Sites(star, (0, 1)).sites[star.trees[0].root]
    with pytest.raises(OutOfPlaceMessage, match="an update by itself, where they are added up"):
        root.on_push(Push(1, star.version, 0, star.way_up(0, 0), 1.0), size)


def test_a_model_that_comes_ahead_of_the_news_of_its_epoch_is_kept_until_that_comes() -> None:
    up = (-1, 0, 1, 1)
    plan = Plan(1, (Tree(0, 1.0, up, up),))
    chunk = deal(plan, ELEMENTS, ELEMENTS)[0]
    sent: list[Send] = []
    whole: list[Floats] = []
    middle, back = (
        PushPull(site, plan, [chunk], Float32(), sent.append, None, (2, 3)) for site in (1, 3)
    )
    model = np.zeros(ELEMENTS, np.float32)
    back.come_back(5, model, lambda: whole.append(model))
    for each in (middle, back):
        each.count(1, (2,), 4)

    def arrives(at: PushPull, source: int, update: int, epoch: int) -> None:
        message = Parameters(update, 1, 0, (source, 1 if at is middle else 3), epoch)
        sink = at.on_parameters(message, 4 * ELEMENTS)
        if sink.target is not None:
            sink.target[:] = normal(update).data.cast("B")
        sink.done()

    arrives(middle, 0, 7, 2)
    arrives(back, 1, 7, 2)
    arrives(back, 1, 4, 0)  # for its earlier incarnation
    assert not sent
    assert not whole
    for each in (middle, back):
        each.count(2, (2, 3), 7)
    assert [send.message.path for send in sent] == [(1, 2), (1, 3)]
    assert {send.message.round for send in sent} == {7}
    np.testing.assert_array_equal(whole[0], normal(7))
    arrives(middle, 0, 6, 1)  # for nobody any more
    assert len(sent) == 2


def test_who_is_back_awaits_its_next_update_and_throws_earlier_models_away() -> None:
    plan = PLANS["star"]
    site = next(site for site in range(plan.size) if site != plan.trees[0].root)
    worker, down = Sites(plan).sites[site], plan.way_down(0, site)
    worker.come_back(4, normal(0), lambda: None)
    size = 4 * deal(plan, ELEMENTS, 64)[0].elements
    assert worker.on_parameters(Parameters(3, plan.version, 0, down), size).target is None
    assert worker.on_parameters(Parameters(4, plan.version, 0, down), size).target is not None
    with pytest.raises(OutOfPlaceMessage, match="update 5, where 4 is awaited"):
        worker.on_parameters(Parameters(5, plan.version, 0, down), size)


def test_what_nobody_awaits_is_refused() -> None:
    plan = PLANS["star"]
    hub = plan.trees[0].root
    site = next(site for site in range(plan.size) if site != hub)
    sites = Sites(plan)
    up, down = plan.way_up(0, site), plan.way_down(0, site)
    worker, server = sites.sites[site], sites.sites[hub]
    with pytest.raises(OutOfPlaceMessage, match="serves no part of the model"):
        worker.on_push(Push(1, plan.version, 0, up, 1.0), 256)
    with pytest.raises(OutOfPlaceMessage, match="update 1, where none is awaited"):
        worker.on_parameters(Parameters(1, plan.version, 0, down), 256)
    with pytest.raises(OutOfPlaceMessage, match="plan version 9"):
        server.on_push(Push(1, 9, 0, up, 1.0), 256)
    with pytest.raises(OutOfPlaceMessage, match="not its way"):
        server.on_push(Push(1, plan.version, 0, (8, *up), 1.0), 256)
    worker.expect(2, normal(1), lambda: None)
    worker.push(1, normal(0), 1.0)
    with pytest.raises(OutOfPlaceMessage, match="has 8 bytes"):
        worker.on_parameters(Parameters(2, plan.version, 0, down), 8)
    with pytest.raises(OutOfPlaceMessage, match="update 3, where 2 is awaited"):
        worker.on_parameters(Parameters(3, plan.version, 0, down), 256)
    size = 4 * deal(plan, ELEMENTS, 64)[0].elements
    worker.on_parameters(Parameters(2, plan.version, 0, down), size)
    with pytest.raises(DuplicateMessage, match="chunk 0 of the model for update 2"):
        worker.on_parameters(Parameters(2, plan.version, 0, down), size)
