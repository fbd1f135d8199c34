"""Updates added up on their way: exact over any trees, in any order of arrival, whoever dies."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest

from anabranch.net.errors import DuplicateMessage, MalformedMessage, OutOfPlaceMessage
from anabranch.net.messages import UpdateSum
from anabranch.plan import NO_PARENT, Chunk, Plan, Tree, deal, in_between
from anabranch.site.accumulator import Floats
from anabranch.site.aggregation import Send
from anabranch.site.arithmetic import Float32, SizesOnly
from anabranch.site.summing import Summing

ELEMENTS = 24


def gradients(worker: int, update: int) -> Floats:
    """Return whole numbers, which float32 adds up exactly in any order."""
    draw = np.random.default_rng((worker, update))
    return draw.integers(-99, 99, ELEMENTS).astype(np.float32)


@dataclass
class Whole:
    """The sums that came out at the roots for one update and epoch, chunk by chunk."""

    workers: tuple[int, ...]
    sums: dict[int, tuple[Floats, float]] = field(default_factory=dict)


class World:
    """Every site's part, and events that wait for somebody to let them happen, in any order.

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
        self.doomed = doomed  # may die whenever it likes
        self.in_one = in_one  # messages come, head and tail
        self.chunks = deal(plan, ELEMENTS, chunk_elements)
        self.update = 0
        self.lost: tuple[int, ...] = ()
        self.epoch = 0
        self.workers = frozenset(workers)
        self.wholes: dict[tuple[int, int], Whole] = {}  # by update and epoch
        self.sent: defaultdict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
        self.flying: list[Send] = []
        self.arriving: list[Callable[[], None]] = []
        self.told: defaultdict[int, deque[Callable[[], None]]] = defaultdict(deque)
        self.sites = {site: self._make(site, workers) for site in range(plan.size)}

    def _make(self, site: int, workers: Collection[int]) -> Summing:
        def whole(chunk: Chunk, total: Floats, weight: float) -> None:
            assert self.plan.trees[chunk.tree].root == site
            summing = self.sites[site]
            key = summing.update, summing.epoch
            known = self.wholes.setdefault(key, Whole(summing.workers))
            assert known.workers == summing.workers
            assert chunk.index not in known.sums
            known.sums[chunk.index] = total.copy(), weight

        def emit(send: Send) -> None:
            message = send.message
            assert isinstance(message, UpdateSum)
            key = message.round, message.epoch, message.chunk
            self.sent[message.path[0], message.path[-1]].append(key)
            self.flying.append(send)

        return Summing(site, self.plan, self.chunks, workers, Float32(), emit, whole)

    def begin(self, back: Collection[int] = ()) -> None:
        """Let all workers that live compute another update; they push when it is their turn.

        Those in ``back`` are new processes of workers that died.
        """
        self.update += 1
        for worker in back:
            self.living.add(worker)
            self.lost = tuple(each for each in self.lost if each != worker)
            self.sites[worker] = self._make(worker, self.workers)
            self.told[worker].clear()
        if back:
            self.epoch += 1
            for site in sorted(self.sites.keys() - set(self.lost)):
                self.told[site].append(self._counting(self.sites[site]))
        for worker in sorted(self.living):
            self.told[worker].append(
                lambda worker=worker, update=self.update: self._push(worker, update)
            )

    def _push(self, worker: int, update: int) -> None:
        self.sites[worker].push(update, gradients(worker, update), self.weights[worker])

    def kill(self, worker: int, lives_on: bool = False) -> None:
        """Let a worker die; the scheduler tells everybody else, each in its own time.

        One that incarnations on is only cut off from the scheduler, and pushes what it was to push.
        """
        self.doomed = None
        self.living.remove(worker)
        if not lives_on:
            self.told.pop(worker, None)
            del self.sites[worker]
        self.lost += (worker,)
        self.epoch += 1
        for site in sorted(self.sites.keys() - set(self.lost)):
            summing = self.sites[site]
            self.told[site].append(self._counting(summing))

    def _counting(self, summing: Summing) -> Callable[[], None]:
        return partial(summing.count, self.epoch, sorted(self.living), self.update)

    def choices(self) -> list[Callable[[], None]]:
        """Return what may happen next."""
        told = [queue for _, queue in sorted(self.told.items()) if queue]
        happens = [lambda queue=queue: queue.popleft()() for queue in told]
        if self.doomed is not None:
            happens.append(lambda worker=self.doomed: self.kill(worker))
        happens += self.arriving
        return happens + [lambda send=send: self._arrive(send) for send in self.flying]

    def _arrive(self, send: Send) -> None:
        """Let the head of a message come; its tail comes in its own time."""
        self.flying.remove(send)
        message = send.message
        assert isinstance(message, UpdateSum)
        if message.path[-1] not in self.sites:
            return
        sink = self.sites[message.path[-1]].on_sum(message, len(send.payload))
        half = len(send.payload) // 8 * 4
        if sink.piece is not None:
            sink.piece(0, send.payload[:half])

        def end() -> None:
            self.arriving.remove(end)
            if sink.piece is not None:
                sink.piece(half, send.payload[half:])
            sink.done()

        self.arriving.append(end)
        if self.in_one:
            end()

    def check(self) -> None:
        """Compare the sum of the update under way with that of everybody who incarnations."""
        whole = self.wholes[self.update, self.epoch]
        assert whole.workers == tuple(sorted(self.living))
        assert sorted(whole.sums) == [chunk.index for chunk in self.chunks]
        weights = {worker: self.weights[worker] for worker in whole.workers}
        total = sum(weight * gradients(worker, self.update) for worker, weight in weights.items())
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
    """Return a world of a few trees, on some of whose sites nobody works."""
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


@pytest.mark.parametrize("seed", range(200))
def test_the_sum_of_all_updates_comes_out_of_any_trees_in_any_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    world = random_world(rng)
    for _ in range(3):
        world.begin()
        play(rng, world)
        world.check()
    for edge, sent in world.sent.items():
        assert len(set(sent)) == len(sent), f"{edge} carried a chunk of an update twice"


@pytest.mark.parametrize("seed", range(300))
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


@pytest.mark.parametrize("seed", range(300))
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


def small(
    up: tuple[int, ...], workers: set[int], doomed: int | None = None, in_one: bool = False
) -> World:
    """Return a world of one tree and one chunk, in which an update begins."""
    plan, weights = Plan(1, (Tree(0, 1.0, up, up),)), dict.fromkeys(workers, 1.0)
    world = World(plan, workers, weights, ELEMENTS, doomed, in_one)
    world.begin()
    return world


@pytest.mark.parametrize(
    ("up", "workers"),
    [((-1, 0, 1, 1), {0, 1, 2, 3}), ((-1, 0, 1, 0), {2, 3}), ((-1, 0, 1, 2), {1, 2, 3})],
)
def test_every_order_of_arrival_gives_the_same_sum(up: tuple[int, ...], workers: set[int]) -> None:
    for world in orders(lambda: small(up, workers)):
        world.check()


@pytest.mark.parametrize(
    ("up", "workers", "doomed", "in_one"),
    [((-1, 0, 1, 1), {2, 3}, 3, True), ((-1, 0, 1), {1, 2}, 2, False)],
)
def test_every_moment_of_a_death_and_every_order_of_the_news_give_the_sum_of_the_rest(
    up: tuple[int, ...], workers: set[int], doomed: int, in_one: bool
) -> None:
    for world in orders(lambda: small(up, workers, doomed, in_one)):
        world.check()


@pytest.mark.parametrize(
    ("up", "workers"), [((-1, 0, 1), {1, 2}), ((-1, 0, 1), {0, 2}), ((-1, 0, 1, 0), {2, 3})]
)
def test_every_order_of_the_news_that_a_worker_is_back_gives_the_sum_of_all(
    up: tuple[int, ...], workers: set[int]
) -> None:
    def after_a_death() -> World:
        world = small(up, workers, in_one=True)
        world.kill(2)
        play(np.random.default_rng(0), world)
        world.check()
        world.begin(back=[2])
        return world

    for world in orders(after_a_death):
        world.check()
        assert 2 in world.wholes[2, 2].workers


def test_what_is_no_sum_of_a_child_of_now_is_refused_and_harms_nothing() -> None:
    world = small((-1, 0, 1, 1, 0), {1, 2, 3})
    middle, size = world.sites[1], 4 * ELEMENTS

    def sum_of(child: int, update: int = 1, weight: float = 1.0, epoch: int = 0) -> UpdateSum:
        return UpdateSum(update, 1, 0, (child, 1), weight, epoch)

    world.told.pop(2)  # what it sends comes from here
    begun = middle.on_sum(sum_of(2), size)
    refused = [
        (sum_of(3, weight=float("nan")), size, MalformedMessage, "weight nan, out of range"),
        (sum_of(3), size - 4, OutOfPlaceMessage, "has 92 bytes, not 96"),
        (sum_of(4), size, OutOfPlaceMessage, "from site 4, below which no worker"),
        (sum_of(2), size, DuplicateMessage, "chunk 0 of update 1 from site 2"),
        (sum_of(3, update=2), size, OutOfPlaceMessage, "where update 1 is under way"),
        (sum_of(3, update=0), size, DuplicateMessage, "where update 1 is under way"),
        (sum_of(3, epoch=11), size, OutOfPlaceMessage, "of epoch 11, where 0 is now"),
    ]
    for message, payload_bytes, error, named in refused:
        with pytest.raises(error, match=named):
            middle.on_sum(message, payload_bytes)
    with pytest.raises(OutOfPlaceMessage, match="epoch 0 begins, where 0 already has"):
        middle.count(0, (2, 3), 1)
    assert begun.piece is not None
    begun.piece(0, gradients(2, 1).data.cast("B"))
    begun.done()
    play(np.random.default_rng(0), world)
    world.check()


def test_a_child_has_one_weight_for_all_its_chunks() -> None:
    up = (-1, 0)
    world = World(Plan(1, (Tree(0, 1.0, up, up),)), {1}, {1: 1.0})
    sizes = [4 * chunk.elements for chunk in world.chunks]
    world.sites[0].on_sum(UpdateSum(1, 1, 0, (1, 0), 1.0, 0), sizes[0])
    with pytest.raises(MalformedMessage, match="has weight 2, another 1"):
        world.sites[0].on_sum(UpdateSum(1, 1, 1, (1, 0), 2.0, 0), sizes[1])


def test_a_sum_of_before_a_loss_is_thrown_away_without_a_word() -> None:
    world = small((-1, 0, 1, 1), {2, 3})
    middle = world.sites[1]
    middle.count(1, (2,), 1)
    late = UpdateSum(1, 1, 0, (3, 1), 1.0, 0)
    sink = middle.on_sum(late, 4 * ELEMENTS)
    assert (sink.target, sink.piece) == (None, None)


def test_without_numbers_the_same_is_sent() -> None:
    sent: list[Send] = []
    up = (-1, 0, 1)
    plan, arithmetic = Plan(1, (Tree(0, 1.0, up, up),)), SizesOnly(ELEMENTS)
    chunks = deal(plan, ELEMENTS, ELEMENTS)
    wholes: list[tuple[Chunk, Floats, float]] = []
    nothing = np.zeros(ELEMENTS, np.float32)
    middle = Summing(1, plan, chunks, {1, 2}, arithmetic, sent.append, lambda *whole: None)
    root = Summing(
        0, plan, chunks, {1, 2}, arithmetic, sent.append, lambda *whole: wholes.append(whole)
    )
    middle.push(1, nothing, 2.0)
    sink = middle.on_sum(UpdateSum(1, 1, 0, (2, 1), 1.0, 0), 4 * ELEMENTS)
    assert sink.piece is None
    sink.done()
    (send,) = sent
    assert isinstance(send.message, UpdateSum)
    assert (send.message.weight, len(send.payload)) == (3.0, 4 * ELEMENTS)
    root.on_sum(send.message, len(send.payload)).done()
    assert [(chunk, weight) for chunk, _, weight in wholes] == [(chunks[0], 3.0)]
