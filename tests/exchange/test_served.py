"""Updates go to the servers, the model comes back: exact over any trees, whichever worker dies."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from msgspec import structs

from anabranch.exchange.actions import (
    Action,
    Drained,
    ModelArrived,
    Receipt,
    Send,
    Stray,
    Total,
    UpdateArrived,
)
from anabranch.exchange.arithmetic import Flat, Floats, Sized
from anabranch.exchange.partition import ServerPartition, Update
from anabranch.exchange.served import Served
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.net.errors import DuplicateMessage, MalformedMessage, OutOfPlaceMessage
from anabranch.net.messages import PartialSum, Result
from anabranch.overlay import internet2_9
from anabranch.plan import (
    NO_PARENT,
    Chunk,
    Plan,
    Tree,
    balanced,
    children_towards,
    deal,
    fapt,
    in_between,
    star,
)
from anabranch.train.optimisers import Sgd

from ..every import every
from ..seeds import seeds
from .hands import bytes_of, deliver, fill, sends

# --- to the servers and back, over a network that carries everything at once

ELEMENTS = 1000
TERMS = Terms(Op.STEP, Wire.FLOAT32, ELEMENTS)
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
        self.whole: list[tuple[int, int]] = []  # site and update of each model that is here
        self.sent: list[Send] = []
        self.sites: list[Served] = []
        self.partitions: dict[int, ServerPartition] = {}
        for site in range(plan.size):
            partition = None
            if site in self.roots:
                partition = ServerPartition(
                    [chunk for chunk in chunks if plan.trees[chunk.tree].root == site],
                    np.zeros(ELEMENTS, np.float32),
                    Sgd(1.0).start(ELEMENTS),
                    max(1, len(added_up)),
                )
                self.partitions[site] = partition
            self.sites.append(Served(site, plan, chunks, TERMS, partition, added_up))

    def push(self, site: int, update: int, gradients: Floats) -> None:
        self.carry(site, self.sites[site].push(update, Flat(gradients), 1.0))

    def advance(self, apply: Sequence[Update], pulls: Sequence[Update]) -> None:
        """Let every server take the same step."""
        for root in self.roots:
            self.partitions[root].apply(apply)
            self.carry(root, self.sites[root].serve(pulls))

    def carry(self, site: int, actions: Sequence[Action]) -> None:
        happening = deque((site, action) for action in actions)
        while happening:
            site, action = happening.popleft()
            match action:
                case UpdateArrived():
                    self.came.append((site, (action.worker, action.update)))
                case ModelArrived():
                    self.whole.append((site, action.update))
                case Send(message=message):
                    assert message.path[0] == site
                    assert every(OVERLAY.link(*hop) is not None for hop in pairwise(message.path))
                    self.sent.append(action)
                    to = message.path[-1]
                    follows = deliver(self.sites[to], message, bytes_of(action))
                    happening.extend((to, each) for each in follows)
                case _:
                    raise AssertionError(action)


def normal(seed: int) -> Floats:
    return np.random.default_rng(seed).normal(size=ELEMENTS).astype(np.float32)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_an_update_reaches_every_server_and_the_model_its_worker(plan: Plan) -> None:
    sites = Sites(plan)
    expected = np.zeros(ELEMENTS, np.float32)
    for worker in range(plan.size):
        model, gradients = np.full(ELEMENTS, np.nan, np.float32), normal(worker)
        sites.sites[worker].expect(2, Flat(model))
        sites.push(worker, 1, gradients)
        assert sorted(site for site, update in sites.came if update == (worker, 1)) == sorted(
            sites.roots
        )
        expected -= gradients
        sites.advance([(worker, 1)], [(worker, 2)])
        assert sites.whole[-1] == (worker, 2)
        np.testing.assert_array_equal(model, expected)


def test_several_workers_are_served_the_same_model() -> None:
    sites = Sites(PLANS["fapt, 2 roots"])
    models = {worker: np.full(ELEMENTS, np.nan, np.float32) for worker in (3, 5)}
    for worker, model in models.items():
        sites.sites[worker].expect(2, Flat(model))
        sites.push(worker, 1, normal(worker))
    sites.advance([(3, 1), (5, 1)], [(3, 2), (5, 2)])
    np.testing.assert_array_equal(models[3], models[5])
    assert not np.isnan(models[3]).any()


@pytest.mark.parametrize(
    "workers", [tuple(range(9)), (1, 4, 6), (4,)], ids=["all work", "some work", "one works"]
)
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_under_a_barrier_each_tree_link_carries_one_sum_up_and_one_model_down(
    plan: Plan, workers: tuple[int, ...]
) -> None:
    sites = Sites(plan, workers)
    models = {worker: np.full(ELEMENTS, np.nan, np.float32) for worker in workers}
    expected = np.zeros(ELEMENTS, np.float64)
    for step in (1, 2):
        for seen in (sites.sent, sites.came, sites.whole):
            seen.clear()
        for worker, model in models.items():
            sites.sites[worker].expect(step + 1, Flat(model))
            sites.push(worker, step, normal(10 * step + worker))
            expected -= normal(10 * step + worker) / len(workers)
        updates = [(worker, step) for worker in workers]
        assert sites.came == [
            (root, update) for root, _ in sites.came[:: len(workers)] for update in updates
        ]
        assert {root for root, _ in sites.came} == sites.roots
        sites.advance(updates, [(worker, step + 1) for worker in workers])
        assert sorted(sites.whole) == [(worker, step + 1) for worker in workers]
        for model in models.values():
            np.testing.assert_allclose(model, expected, atol=1e-5)
            np.testing.assert_array_equal(model, models[workers[0]])
        carried = Counter(
            (type(each.message), each.message.path[0], each.message.path[-1], each.message.chunk)
            for each in sites.sent
        )
        assert set(carried.values()) == {1}
        assert set(carried) == expected_messages(plan, workers)


def expected_messages(
    plan: Plan, workers: tuple[int, ...]
) -> set[tuple[type[PartialSum | Result], int, int, int]]:
    """Return what a step costs: kind, source, target and chunk of each message."""
    wanted: set[tuple[type[PartialSum | Result], int, int, int]] = set()
    for chunk in deal(plan, ELEMENTS, 64):
        tree = plan.trees[chunk.tree]
        if len(workers) == 1:  # which talks to the roots directly
            if (alone := workers[0]) != tree.root:
                wanted.add((PartialSum, alone, tree.root, chunk.index))
                wanted.add((Result, tree.root, alone, chunk.index))
            continue
        for parent, children in enumerate(children_towards(tree.up, workers)):
            wanted |= {(PartialSum, child, parent, chunk.index) for child in children}
        for parent, children in enumerate(children_towards(tree.down, workers)):
            wanted |= {(Result, parent, child, chunk.index) for child in children}
    return wanted


# --- what is not awaited

LINE = (-1, 0, 1, 1)
SMALL = Plan(1, (Tree(0, 1.0, LINE, LINE),))
WHOLE = deal(SMALL, ELEMENTS, ELEMENTS)


def up(update: int, path: tuple[int, ...], version: int = 1, epoch: int = 0) -> PartialSum:
    return PartialSum(update, version, 0, path, TERMS.code, epoch)


def down(update: int, path: tuple[int, ...], version: int = 1, epoch: int = 0) -> Result:
    return Result(update, version, 0, path, TERMS.code, epoch)


def test_under_a_barrier_what_is_not_awaited_is_refused() -> None:
    chunks = deal(SMALL, ELEMENTS, 64)
    middle, leaf, idle = (Served(site, SMALL, chunks, TERMS, None, (2, 3)) for site in (1, 2, 0))
    size = 4 * chunks[0].elements
    refused = [
        (middle, down(2, (2, 1)), size, "which is not its source"),
        (middle, down(2, (0, 1)), 8, "8 bytes"),
        (middle, down(3, (0, 1)), size, "where that for 0 was the last"),
        (leaf, down(2, (1, 2)), size, "update 2, where none is awaited"),
        (idle, up(1, (1, 0), version=4), size, "not 4"),
        (idle, PartialSum(1, 1, 99, (1, 0), TERMS.code), size, "chunk 99 of"),
        (idle, PartialSum(1, 1, 0, (1, 0), TERMS.code ^ 16), size, "is another one at site 1"),
        (idle, up(1, (2, 0)), size, "site 2 sends nothing to this site"),  # by itself
    ]
    for site, message, payload_bytes, named in refused:
        with pytest.raises(OutOfPlaceMessage, match=named):
            site.receive(message, payload_bytes)
    actions = deliver(middle, down(2, (0, 1)), memoryview(bytes(size)))
    assert [send.message.path for send in sends(actions)] == [(1, 2), (1, 3)]
    with pytest.raises(DuplicateMessage, match="chunk 0 of exchange 2"):
        middle.receive(down(2, (0, 1)), size)


def test_a_model_that_comes_ahead_of_the_news_of_its_epoch_is_kept_until_that_comes() -> None:
    middle, back = (Served(site, SMALL, WHOLE, TERMS, None, (2, 3)) for site in (1, 3))
    model = np.zeros(ELEMENTS, np.float32)
    back.come_back(5, Flat(model))
    actions = middle.change_epoch(1, (2,), 4) + back.change_epoch(1, (2,), 4)

    def arrives(at: Served, source: int, update: int, epoch: int) -> list[Action]:
        message = down(update, (source, 1 if at is middle else 3), epoch=epoch)
        return deliver(at, message, normal(update))

    actions += arrives(middle, 0, 7, 2)
    actions += arrives(back, 1, 7, 2)
    actions += arrives(back, 1, 4, 0)  # for its earlier incarnation
    assert actions == []
    actions += middle.change_epoch(2, (2, 3), 7) + back.change_epoch(2, (2, 3), 7)
    sent = sends(actions)
    assert [send.message.path for send in sent] == [(1, 2), (1, 3)]
    assert {send.message.exchange for send in sent} == {7}
    assert [each for each in actions if isinstance(each, ModelArrived)] == [ModelArrived(7)]
    np.testing.assert_array_equal(model, normal(7))
    assert arrives(middle, 0, 6, 1) == []  # for a worker that was lost


def test_models_of_epochs_not_heard_of_are_bounded_and_may_turn_out_strays() -> None:
    middle = Served(1, SMALL, WHOLE, TERMS, None, (2, 3))
    for epoch in (1, 2):
        assert deliver(middle, down(9, (0, 1), epoch=epoch), normal(0)) == []
    with pytest.raises(OutOfPlaceMessage, match="0 of 2000 elements of room"):
        middle.receive(down(9, (0, 1), epoch=3), 4 * ELEMENTS)
    [stray] = middle.change_epoch(1, (2, 3), 1)
    assert isinstance(stray, Stray)
    assert "where that for 0 was the last" in stray.why
    middle.receive(down(9, (0, 1), epoch=3), 4 * ELEMENTS)  # there is room again


def test_a_worker_that_is_back_awaits_its_next_update_and_throws_earlier_models_away() -> None:
    plan = PLANS["star"]
    site = next(site for site in range(plan.size) if site != plan.trees[0].root)
    worker, way = Sites(plan).sites[site], plan.way_down(0, site)
    worker.come_back(4, Flat(normal(0)))
    size = 4 * deal(plan, ELEMENTS, 64)[0].elements
    assert worker.receive(down(3, way, plan.version), size).target is None
    assert worker.receive(down(4, way, plan.version), size).target is not None
    with pytest.raises(OutOfPlaceMessage, match="update 5, where 4 is awaited"):
        worker.receive(down(5, way, plan.version), size)


def test_a_part_that_is_retired_throws_away_what_comes_and_is_quiet_once_all_has_come() -> None:
    plan = star(OVERLAY, hub=0)
    chunks = deal(plan, ELEMENTS, 500)
    part = Served(1, plan, chunks, TERMS, None, (1, 2))
    model = np.zeros(ELEMENTS, np.float32)
    part.expect(2, Flat(model))
    half = part.receive(down(2, (0, 1)), 2000)
    part.retire()
    assert not part.is_quiet  # the payload may still be written into the model
    assert part.receive(Result(2, 1, 1, (0, 1), TERMS.code), 2000).target is None
    assert part.received(half) == [Drained()]
    assert part.is_quiet
    assert part.receive(up(1, (2, 1)), 2000).target is None


def test_a_part_that_is_retired_waits_for_no_neighbour_that_is_gone() -> None:
    part = Served(1, star(OVERLAY, hub=0), deal(star(OVERLAY, hub=0), ELEMENTS, 500), TERMS, None)
    part.expect(1, Flat(np.zeros(ELEMENTS, np.float32)))
    part.receive(down(1, (0, 1)), 2000)
    assert part.gone(0) == []
    part.receive(Result(1, 1, 1, (0, 1), TERMS.code), 2000)
    part.retire()
    assert part.gone(0) == [Drained()]


def test_a_group_that_is_formed_later_begins_with_the_update_that_its_workers_go_on_with() -> None:
    plan = star(OVERLAY, hub=0)
    chunks = deal(plan, ELEMENTS, 1000)
    partition = ServerPartition(chunks, np.zeros(ELEMENTS, np.float32), None, 2)
    server = Served(0, plan, chunks, TERMS, partition, (1, 2), first=7)
    with pytest.raises(OutOfPlaceMessage, match="where update 6 is under way"):
        server.receive(up(8, (1, 0)), 4000)
    with pytest.raises(DuplicateMessage):
        server.receive(up(5, (1, 0)), 4000)
    for worker in (1, 2):
        receipt = server.receive(up(7, (worker, 0)), 4000)
        actions = server.received(receipt)
    assert actions == [UpdateArrived(1, 7), UpdateArrived(2, 7)]


def test_what_is_not_awaited_is_refused() -> None:
    plan = PLANS["star"]
    hub = plan.trees[0].root
    site = next(site for site in range(plan.size) if site != hub)
    sites = Sites(plan)
    worker, server = sites.sites[site], sites.sites[hub]
    there, back = plan.way_up(0, site), plan.way_down(0, site)
    size = 4 * deal(plan, ELEMENTS, 64)[0].elements

    def refuses(at: Served, message: PartialSum | Result, payload_bytes: int, named: str) -> None:
        with pytest.raises(OutOfPlaceMessage, match=named):
            at.receive(message, payload_bytes)

    refuses(worker, up(1, there, plan.version), size, "serves no part of the model")
    refuses(worker, down(1, back, plan.version), size, "update 1, where none is awaited")
    refuses(server, up(1, there, 9), size, "not 9")
    refuses(server, up(1, there, plan.version), 8, "8 bytes where the plan deals")
    for chunk in (-1, len(deal(plan, ELEMENTS, 64))):
        beyond = structs.replace(up(1, there, plan.version), chunk=chunk)
        refuses(server, beyond, size, f"chunk {chunk}")
    with pytest.raises(
        OutOfPlaceMessage, match="an epoch of sums, where each update travels alone"
    ):
        server.change_epoch(1, (2,), 1)
    worker.expect(2, Flat(normal(1)))
    worker.push(1, Flat(normal(0)), 1.0)
    refuses(worker, down(2, back, plan.version), 8, "8 bytes where the plan deals")
    refuses(worker, down(3, back, plan.version), size, "update 3, where 2 is awaited")
    worker.receive(down(2, back, plan.version), size)
    with pytest.raises(DuplicateMessage, match="chunk 0 of exchange 2 has come before"):
        worker.receive(down(2, back, plan.version), size)


def test_an_update_counts_once_and_not_after_its_worker_was_given_up() -> None:
    plan = PLANS["star"]
    hub = plan.trees[0].root
    site = next(site for site in range(plan.size) if site != hub)
    sites = Sites(plan)
    server, there = sites.sites[hub], plan.way_up(0, site)
    sites.push(site, 1, normal(0))
    size = 4 * deal(plan, ELEMENTS, 64)[0].elements
    with pytest.raises(DuplicateMessage, match=f"chunk 0 of update 1 of site {site}"):
        server.receive(up(1, there, plan.version), size)
    first = server.receive(up(2, there, plan.version), size)
    with pytest.raises(DuplicateMessage, match=f"chunk 0 of exchange 2 from site {site}"):
        server.receive(up(2, there, plan.version), size)
    sites.partitions[hub].apply([(site, 1)])
    sites.partitions[hub].discard([(site, 2)])
    server.discard([(site, 2)])
    fill(first, memoryview(bytes(size)))
    assert server.received(first) == []  # it was on its way
    late = server.receive(up(2, there, plan.version), size)
    assert (late.target, late.piece) == (None, None)
    assert server.received(late) == []
    with pytest.raises(DuplicateMessage):
        server.receive(up(1, there, plan.version), size)


# --- added up on the way, in any order of arrival

FEW = 24


def gradients(worker: int, update: int) -> Floats:
    """Return whole numbers, which float32 adds up exactly in any order."""
    draw = np.random.default_rng((worker, update))
    return draw.integers(-99, 99, FEW).astype(np.float32)


@dataclass
class Whole:
    """The sums that came out at the roots for one update and epoch, chunk by chunk."""

    workers: tuple[int, ...]
    sums: dict[int, tuple[Floats, float]] = field(default_factory=dict)


class Recorder(ServerPartition):
    """A server's part without numbers, which tells of the sums that come."""

    def __init__(
        self, chunks: Sequence[Chunk], took: Callable[[tuple[Update, ...], Total], None]
    ) -> None:
        super().__init__(chunks, np.empty(0, np.float32), None, 1)
        self._took = took

    def take(self, updates: tuple[Update, ...], total: Total) -> tuple[Update, ...]:
        self._took(updates, total)
        return super().take(updates, total)


class World:
    """Every site's part, and events that wait until they are let happen, in any order.

    What one site hears of the scheduler comes in order; messages between sites in none at all.
    """

    def __init__(
        self,
        plan: Plan,
        workers: set[int],
        weights: dict[int, float],
        chunk_elements: int = 5,
        doomed: int | None = None,
        in_one: bool = False,
    ) -> None:
        self.plan, self.weights = plan, weights
        self.living = set(workers)
        self.doomed = doomed  # may die at any moment
        self.in_one = in_one  # messages come, head and tail
        self.chunks = deal(plan, FEW, chunk_elements)
        self.terms = Terms(Op.STEP, Wire.FLOAT32, FEW)
        self.update = 0
        self.lost: tuple[int, ...] = ()
        self.epoch = 0
        self.workers = tuple(sorted(workers))
        self.wholes: dict[tuple[int, int], Whole] = {}  # by update and epoch
        self.sent: defaultdict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
        self.flying: list[Send] = []
        self.arriving: list[Callable[[], None]] = []
        self.told: defaultdict[int, deque[Callable[[], None]]] = defaultdict(deque)
        self.sites = {site: self._make(site) for site in range(plan.size)}

    def _make(self, site: int) -> Served:
        own = [chunk for chunk in self.chunks if self.plan.trees[chunk.tree].root == site]
        partition = Recorder(own, partial(self._took, site)) if own else None
        return Served(site, self.plan, self.chunks, self.terms, partition, self.workers)

    def _took(self, site: int, updates: tuple[Update, ...], total: Total) -> None:
        workers, numbers = zip(*updates, strict=True)
        [number] = set(numbers)
        known = self.wholes.setdefault((number, self.sites[site].epoch), Whole(workers))
        assert known.workers == workers
        assert total.chunk.index not in known.sums
        known.sums[total.chunk.index] = total.values.copy(), total.weight

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                message = action.message
                key = message.exchange, message.epoch, message.chunk
                self.sent[message.path[0], message.path[-1]].append(key)
                self.flying.append(action)
            else:
                assert isinstance(action, UpdateArrived)

    def begin(self, back: Collection[int] = ()) -> None:
        """Let all workers that live compute another update; they push when it is their turn.

        Those in ``back`` are new processes of workers that died.
        """
        self.update += 1
        for worker in back:
            self.living.add(worker)
            self.lost = tuple(each for each in self.lost if each != worker)
            self.sites[worker] = self._make(worker)
            self.told[worker].clear()
        if back:
            self._change_epoch()
        for worker in sorted(self.living):
            self.told[worker].append(partial(self._push, worker, self.update))

    def _push(self, worker: int, update: int) -> None:
        own = Flat(gradients(worker, update))
        self._do(self.sites[worker].push(update, own, self.weights[worker]))

    def kill(self, worker: int, lives_on: bool = False) -> None:
        """Let a worker die; the scheduler tells all others, each in its own time.

        One that lives on is only cut off from the scheduler, and pushes what it was to push.
        """
        self.doomed = None
        self.living.remove(worker)
        if not lives_on:
            self.told.pop(worker, None)
            del self.sites[worker]
        self.lost += (worker,)
        self._change_epoch()

    def _change_epoch(self) -> None:
        self.epoch += 1
        news = self.epoch, sorted(self.living), self.update
        for site in sorted(self.sites.keys() - set(self.lost)):
            served = self.sites[site]
            self.told[site].append(lambda served=served: self._do(served.change_epoch(*news)))

    def choices(self) -> list[Callable[[], None]]:
        """Return what may happen next."""
        told = [queue for _, queue in sorted(self.told.items()) if queue]
        happens = [lambda queue=queue: queue.popleft()() for queue in told]
        if self.doomed is not None:
            happens.append(partial(self.kill, self.doomed))
        happens += self.arriving
        return happens + [partial(self._arrive, send) for send in self.flying]

    def _arrive(self, send: Send) -> None:
        """Let the head of a message come; its tail comes in its own time."""
        self.flying.remove(send)
        site = self.sites.get(send.message.path[-1])
        if site is None:
            return
        data = bytes_of(send)
        receipt: Receipt = site.receive(send.message, len(data))
        half = len(data) // 8 * 4
        fill(receipt, data[:half])

        def end() -> None:
            self.arriving.remove(end)
            fill(receipt, data[half:], start=half)
            self._do(site.received(receipt))

        self.arriving.append(end)
        if self.in_one:
            end()

    def check(self) -> None:
        """Compare the sum of the update under way with that of all workers that live."""
        whole = self.wholes[self.update, self.epoch]
        assert whole.workers == tuple(sorted(self.living))
        assert sorted(whole.sums) == [chunk.index for chunk in self.chunks]
        weights = {worker: self.weights[worker] for worker in whole.workers}
        factors = weights if len(weights) > 1 else dict.fromkeys(weights, 1.0)
        total = sum(factors[worker] * gradients(worker, self.update) for worker in weights)
        for chunk in self.chunks:
            found, weight = whole.sums[chunk.index]
            assert weight == sum(weights.values())
            np.testing.assert_array_equal(found, np.asarray(total)[chunk.start : chunk.stop])


def random_way(rng: np.random.Generator, n: int, root: int) -> tuple[int, ...]:
    """Return a tree of any shape: each site below one that was drawn before."""
    order = [root, *(site for site in rng.permutation(n).tolist() if site != root)]
    parents = [NO_PARENT] * n
    for k in range(1, n):
        parents[order[k]] = order[int(rng.integers(k))]
    return tuple(parents)


def random_world(rng: np.random.Generator) -> World:
    """Return a world of a few trees, on some of whose sites no worker is."""
    n, roots = int(rng.integers(2, 9)), int(rng.integers(1, 4))
    trees = []
    for _ in range(roots):
        root = int(rng.integers(n))
        trees.append(Tree(root, 1 / roots, random_way(rng, n, root), random_way(rng, n, root)))
    workers = {site for site in range(n) if rng.random() < 0.8} or {0}
    weights = {worker: float(rng.choice([1.0, 0.5, 2.0, 3.0])) for worker in workers}
    return World(Plan(1, tuple(trees)), workers, weights)


def play(rng: np.random.Generator, world: World, most: int = 10_000) -> None:
    """Let so much of what may happen do so, in a random order."""
    while most and (choices := world.choices()):
        most -= 1
        choices[int(rng.integers(len(choices)))]()


@seeds(25, 200)
def test_the_sum_of_all_updates_comes_out_of_any_trees_in_any_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    world = random_world(rng)
    for _ in range(3):
        world.begin()
        play(rng, world)
        world.check()
    for edge, sent in world.sent.items():
        assert len(set(sent)) == len(sent), f"{edge} carried a chunk of an update twice"


@seeds(40, 300)
def test_a_dead_worker_is_in_no_sum_that_counts_whenever_it_dies(seed: int) -> None:
    rng = np.random.default_rng(seed)
    world = random_world(rng)
    for _ in range(4):
        world.begin()
        spare = sorted(world.living - in_between(world.plan, world.living))
        if spare and len(world.living) > 1 and rng.random() < 0.7:
            play(rng, world, int(rng.integers(40)))
            world.kill(spare[int(rng.integers(len(spare)))], lives_on=rng.random() < 0.3)
        play(rng, world)
        world.check()


@seeds(40, 300)
def test_a_worker_that_comes_back_is_in_all_sums_from_the_next_update_on(seed: int) -> None:
    rng = np.random.default_rng(seed)
    world = random_world(rng)
    for _ in range(6):
        dead = [worker for worker in world.lost if worker not in world.sites]
        world.begin([worker for worker in dead if rng.random() < 0.5])
        spare = sorted(world.living - in_between(world.plan, world.living))
        if spare and len(world.living) > 1 and rng.random() < 0.6:
            play(rng, world, int(rng.integers(40)))
            world.kill(spare[int(rng.integers(len(spare)))])
        play(rng, world)
        world.check()


def orders(make: Callable[[], World]) -> Iterator[World]:
    """Yield the end of every order in which things can happen in a world."""
    path = [0]
    while path:
        world = make()
        widths = []
        for place in path:
            widths.append(len(world.choices()))
            world.choices()[place]()
        while choices := world.choices():
            path.append(0)
            widths.append(len(choices))
            choices[0]()
        yield world
        while path and path[-1] + 1 >= widths[-1]:
            path.pop()
            widths.pop()
        if path:
            path[-1] += 1


def some_orders(make: Callable[[], World]) -> Iterator[World]:
    """Yield the ends of fifty orders, drawn at random."""
    for seed in range(50):
        world = make()
        play(np.random.default_rng(seed), world)
        yield world


SOME_OR_ALL = pytest.mark.parametrize(
    "ends", [some_orders, pytest.param(orders, marks=pytest.mark.slow)], ids=["some", "all"]
)
Ends = Callable[[Callable[[], World]], Iterator[World]]


def small(
    up: tuple[int, ...], workers: set[int], doomed: int | None = None, in_one: bool = False
) -> World:
    """Return a world of one tree and one chunk, in which an update begins."""
    plan, weights = Plan(1, (Tree(0, 1.0, up, up),)), dict.fromkeys(workers, 1.0)
    world = World(plan, workers, weights, FEW, doomed, in_one)
    world.begin()
    return world


@SOME_OR_ALL
@pytest.mark.parametrize(
    ("up", "workers"),
    [((-1, 0, 1, 1), {0, 1, 2, 3}), ((-1, 0, 1, 0), {2, 3}), ((-1, 0, 1, 2), {1, 2, 3})],
)
def test_every_order_of_arrival_gives_the_same_sum(
    up: tuple[int, ...], workers: set[int], ends: Ends
) -> None:
    for world in ends(lambda: small(up, workers)):
        world.check()


@SOME_OR_ALL
@pytest.mark.parametrize(
    ("up", "workers", "doomed", "in_one"),
    [((-1, 0, 1, 1), {2, 3}, 3, True), ((-1, 0, 1), {1, 2}, 2, False)],
)
def test_every_moment_of_a_death_and_every_order_of_the_news_give_the_sum_of_the_rest(
    up: tuple[int, ...], workers: set[int], doomed: int, in_one: bool, ends: Ends
) -> None:
    for world in ends(lambda: small(up, workers, doomed, in_one)):
        world.check()


@SOME_OR_ALL
@pytest.mark.parametrize(
    ("up", "workers"), [((-1, 0, 1), {1, 2}), ((-1, 0, 1), {0, 2}), ((-1, 0, 1, 0), {2, 3})]
)
def test_every_order_of_the_news_that_a_worker_is_back_gives_the_sum_of_all(
    up: tuple[int, ...], workers: set[int], ends: Ends
) -> None:
    def after_a_death() -> World:
        world = small(up, workers, in_one=True)
        world.kill(2)
        play(np.random.default_rng(0), world)
        world.check()
        world.begin(back=[2])
        return world

    for world in ends(after_a_death):
        world.check()
        assert 2 in world.wholes[2, 2].workers


def sum_of(
    world: World, child: int, update: int = 1, weight: float = 1.0, epoch: int = 0, chunk: int = 0
) -> PartialSum:
    parent = world.plan.trees[0].up[child]
    return PartialSum(update, 1, chunk, (child, parent), world.terms.code, epoch, weight)


def test_what_is_no_sum_of_a_child_of_now_is_refused_and_harms_nothing() -> None:
    world = small((-1, 0, 1, 1, 0), {1, 2, 3})
    middle, size = world.sites[1], 4 * FEW
    world.told.pop(2)  # what it sends comes from here
    begun = middle.receive(sum_of(world, 2), size)
    outsider = PartialSum(1, 1, 0, (4, 1), world.terms.code)
    refused = [
        (sum_of(world, 3, weight=float("nan")), size, MalformedMessage, "weight nan, out of range"),
        (sum_of(world, 3), size - 4, OutOfPlaceMessage, "92 bytes where the plan deals 96"),
        (outsider, size, OutOfPlaceMessage, "site 4 sends nothing to this site"),
        (sum_of(world, 2), size, DuplicateMessage, "chunk 0 of exchange 1 from site 2"),
        (sum_of(world, 3, update=2), size, OutOfPlaceMessage, "where update 1 is under way"),
        (sum_of(world, 3, update=0), size, DuplicateMessage, "where update 1 is under way"),
        (sum_of(world, 3, epoch=11), size, OutOfPlaceMessage, "of epoch 11, where 0 is now"),
    ]
    for message, payload_bytes, error, named in refused:
        with pytest.raises(error, match=named):
            middle.receive(message, payload_bytes)
    with pytest.raises(OutOfPlaceMessage, match="epoch 0 begins, where 0 already has"):
        middle.change_epoch(0, (2, 3), 1)
    fill(begun, gradients(2, 1).data.cast("B"))
    world._do(middle.received(begun))
    play(np.random.default_rng(0), world)
    world.check()


def test_a_child_has_one_weight_for_all_its_chunks() -> None:
    line = (-1, 0, 1)
    world = World(Plan(1, (Tree(0, 1.0, line, line),)), {1, 2}, {1: 1.0, 2: 1.0})
    sizes = [4 * chunk.elements for chunk in world.chunks]
    world.sites[0].receive(sum_of(world, 1), sizes[0])
    with pytest.raises(MalformedMessage, match="has weight 2, another 1"):
        world.sites[0].receive(sum_of(world, 1, weight=2.0, chunk=1), sizes[1])


def test_a_sum_of_before_a_loss_is_thrown_away_without_a_word() -> None:
    world = small((-1, 0, 1, 1), {2, 3})
    middle = world.sites[1]
    begun = middle.receive(sum_of(world, 2), 4 * FEW)
    middle.change_epoch(1, (2,), 1)
    late = middle.receive(sum_of(world, 3), 4 * FEW)
    assert (late.target, late.piece) == (None, None)
    assert middle.received(late) == []
    fill(begun, gradients(2, 1).data.cast("B"))  # half of it may have come before
    assert middle.received(begun) == []


def test_without_numbers_the_same_is_sent() -> None:
    line = (-1, 0, 1)
    plan, terms = Plan(1, (Tree(0, 1.0, line, line),)), Terms(Op.STEP, Wire.SIZES, FEW)
    chunks = deal(plan, FEW, FEW)
    took: list[tuple[tuple[Update, ...], Total]] = []
    partition = Recorder(chunks, lambda updates, total: took.append((updates, total)))
    middle = Served(1, plan, chunks, terms, None, (1, 2))
    root = Served(0, plan, chunks, terms, partition, (1, 2))
    assert middle.push(1, Sized(FEW), 2.0) == []
    receipt = middle.receive(PartialSum(1, 1, 0, (2, 1), terms.code), 4 * FEW)
    assert receipt.piece is None
    [send] = sends(middle.received(receipt))
    assert isinstance(send.message, PartialSum)
    assert (send.message.weight, len(bytes_of(send))) == (3.0, 4 * FEW)
    here = root.received(root.receive(send.message, 4 * FEW))
    assert here == [UpdateArrived(1, 1), UpdateArrived(2, 1)]
    [(updates, total)] = took
    assert (updates, total.chunk, total.weight) == (((1, 1), (2, 1)), chunks[0], 3.0)
    [model] = sends(root.serve([(1, 2), (2, 2)]))
    assert (model.message.path, len(bytes_of(model))) == ((0, 1), 4 * FEW)
