"""Updates go to the servers that hold their chunks, and the model comes back, over any route."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.learn.optimisers import Sgd
from anabranch.net.errors import DuplicateMessage, OutOfPlaceMessage
from anabranch.net.messages import ChunkMessage, Parameters, Push
from anabranch.overlay import internet2_9
from anabranch.plan import Plan, balanced, deal, fapt, star
from anabranch.site.accumulator import Floats
from anabranch.site.aggregation import Send
from anabranch.site.arithmetic import Float32
from anabranch.site.pushpull import PushPull
from anabranch.site.shard import Shard, Update

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

    def __init__(self, plan: Plan) -> None:
        chunks = deal(plan, ELEMENTS, 64)
        self.roots = {tree.root for tree in plan.trees}
        self.came: list[tuple[int, Update]] = []
        self.shards: dict[int, Shard] = {}
        self.sites: list[PushPull] = []
        self.sent: list[ChunkMessage] = []
        for site in range(plan.size):
            if site in self.roots:
                self.shards[site] = Shard(
                    [chunk for chunk in chunks if plan.trees[chunk.tree].root == site],
                    np.zeros(ELEMENTS, np.float32),
                    Sgd(1.0).start(ELEMENTS),
                    1,
                    lambda update, site=site: self.came.append((site, update)),
                )
            self.sites.append(
                PushPull(site, plan, chunks, Float32(), self._carry, self.shards.get(site))
            )

    def _carry(self, send: Send) -> None:
        message = send.message
        for hop in zip(message.path, message.path[1:], strict=False):
            assert OVERLAY.link(*hop) is not None
        self.sent.append(message)
        receiver = self.sites[message.path[-1]]
        if isinstance(message, Push):
            sink = receiver.on_push(message, len(send.payload))
        else:
            assert isinstance(message, Parameters)
            sink = receiver.on_parameters(message, len(send.payload))
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
        sites.sites[worker].push(1, gradients, 1.0, model, lambda w=worker: whole.append(w))
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
        sites.sites[worker].push(1, normal(worker), 1.0, model, lambda: None)
    for root in sites.roots:
        sites.shards[root].apply([(3, 1), (5, 1)])
        sites.sites[root].serve([(3, 2), (5, 2)])
    np.testing.assert_array_equal(models[3], models[5])
    assert not np.isnan(models[3]).any()


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
    worker.push(1, normal(0), 1.0, normal(1), lambda: None)
    with pytest.raises(OutOfPlaceMessage, match="has 8 bytes"):
        worker.on_parameters(Parameters(2, plan.version, 0, down), 8)
    with pytest.raises(OutOfPlaceMessage, match="update 3, where 2 is awaited"):
        worker.on_parameters(Parameters(3, plan.version, 0, down), 256)
    size = 4 * deal(plan, ELEMENTS, 64)[0].elements
    worker.on_parameters(Parameters(2, plan.version, 0, down), size)
    with pytest.raises(DuplicateMessage, match="chunk 0 of the model for update 2"):
        worker.on_parameters(Parameters(2, plan.version, 0, down), size)
