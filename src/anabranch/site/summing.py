"""Adding up workers' updates on their way to the servers, where all are one step. No I/O.

Up a tree, a site sends one sum for all workers below it and itself, as soon as it has theirs; the
root hands the whole sum over. A subtree without workers sends nothing and is not waited for.

**Workers that die.** The part of a dead worker's update in a sum could not be taken out again, and
chunks of it may be missing elsewhere. So sums carry an *epoch*: how many times it had changed who
takes part, as far as their sender had heard. With each loss that the scheduler tells of, all sums
of the iteration under way are void, and every worker that is left pushes its update again: time is
lost, and in every whole sum each update of that epoch's workers is there once. A site that hears of
an epoch from a neighbour first keeps such sums, and passes none on before it knows who takes part.
Who comes back does so between two iterations, and then nothing is void.

One iteration is under way at a time: nobody pushes the next update before it has the model that
the last whole sums made, and no sum is whole before it has passed here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from anabranch.net.errors import DuplicateMessage, MalformedMessage, OutOfPlaceMessage
from anabranch.net.frames import Sink
from anabranch.net.messages import UpdateSum
from anabranch.plan import NO_PARENT, Chunk, Plan, children_towards
from anabranch.site.accumulator import Floats
from anabranch.site.aggregation import LEAST_WEIGHT, MOST_WEIGHT, Send
from anabranch.site.arithmetic import Arithmetic, Gathering

# A child's weights are added up in the order in which they come, which may differ between chunks.
_SAME_WEIGHT = 1e-9


@dataclass(frozen=True, slots=True)
class _Own:
    """The update that this site has pushed last."""

    update: int
    gradients: Floats
    weight: float


class _Partial:
    """A chunk's sum as it grows, and whose contributions it holds."""

    __slots__ = ("counted", "gathering", "started", "weight")

    def __init__(self, gathering: Gathering) -> None:
        self.gathering = gathering
        self.started: set[int] = set()  # children whose sum has begun to arrive
        self.counted = 0  # children whose sum is all there
        self.weight = 0.0  # theirs


class Summing:
    """One site's part in adding up.

    Args:
        site: this site.
        plan: the one plan that everything travels along.
        chunks: its deal of the model.
        workers: the sites that push updates, each as many.
        arithmetic: whether numbers matter.
        emit: called with each :class:`anabranch.site.aggregation.Send`.
        whole: at a root, called with each chunk whose sum holds the updates of all ``workers``,
            and with the sum, shape (elements,), and its weight.

    Attributes:
        workers: those that are left, as far as this site has heard, in order of index.
        epoch: how many times that has changed.
        update: which update of each is being added up, from 1; 0 before the first.
    """

    def __init__(
        self,
        site: int,
        plan: Plan,
        chunks: Sequence[Chunk],
        workers: Iterable[int],
        arithmetic: Arithmetic,
        emit: Callable[[Send], None],
        whole: Callable[[Chunk, Floats, float], None],
    ) -> None:
        self._site = site
        self._plan = plan
        self._chunks = chunks
        self._arithmetic = arithmetic
        self._emit = emit
        self._whole = whole
        self.workers = tuple(sorted(workers))
        self.epoch = 0
        self.update = 0
        self._newest = 0  # the epoch of the sums here; ahead of `epoch` if a neighbour heard first
        self._own: _Own | None = None
        self._partials: dict[int, _Partial] = {}  # by chunk
        self._summed: set[int] = set()  # chunks whose sum was passed on
        self._weights: dict[tuple[int, int], float] = {}  # of each child's sums, by (tree, child)
        self._children: list[tuple[int, ...]]  # of this site, by tree
        self._find_children()

    def _find_children(self) -> None:
        trees = self._plan.trees
        self._children = [children_towards(tree.up, self.workers)[self._site] for tree in trees]

    def push(self, update: int, gradients: Floats, weight: float) -> None:
        """Add this site's update.

        Args:
            update: counted from 1.
            gradients: shape (elements,); must not change before the next model has come.
            weight: what the update counts, > 0.
        """
        self._own = _Own(update, gradients, weight)
        if update > self.update:
            self._begin(update, self._newest)
        self._add_own()

    def count(self, epoch: int, workers: Sequence[int], update: int) -> None:
        """Add up the updates of these workers; all sums of before are void.

        Args:
            epoch: how many times it has changed who takes part.
            workers: who does from now on.
            update: which update of each worker is under way; whoever has pushed it does so again.

        Raises:
            OutOfPlaceMessage: it is no news, or this site holds a sum of that epoch that cannot be.
        """
        if epoch <= self.epoch:
            raise OutOfPlaceMessage(f"epoch {epoch} begins, where {self.epoch} already has")
        self.workers = tuple(sorted(workers))
        self.epoch = epoch
        self._find_children()
        if epoch > self._newest:
            self._begin(max(update, self.update), epoch)
        elif epoch == self._newest:
            self._check_early()
        self._add_own()
        for index, early in list(self._partials.items()):
            self._pass_on_if_complete(self._chunks[index], early)

    def _check_early(self) -> None:
        """Check what came under an epoch before it was known who takes part in it."""
        for index, early in self._partials.items():
            if others := sorted(early.started - set(self._children[self._chunks[index].tree])):
                raise OutOfPlaceMessage(
                    f"sums of update {self.update} from {others}, below which no worker is left"
                )

    def _begin(self, update: int, epoch: int) -> None:
        self.update, self._newest = update, epoch
        self._partials, self._summed, self._weights = {}, set(), {}

    def on_sum(self, message: UpdateSum, payload_bytes: int) -> Sink:
        """Return where a child's sum goes, of a chunk that the plan deals.

        Raises:
            MalformedMessage: a weight that cannot be, or other than the child's other sums have.
            DuplicateMessage: this child's sum of this chunk was already counted.
            OutOfPlaceMessage: a sum that is not due, of another size, or from no child.
        """
        if message.epoch < self._newest:
            return Sink()  # its sender hears of the loss too, and sends another
        child, chunk = message.path[0], self._chunks[message.chunk]
        name = f"the sum of chunk {chunk.index} of update {message.round} from site {child}"
        if not LEAST_WEIGHT <= message.weight <= MOST_WEIGHT:
            raise MalformedMessage(f"{name} has weight {message.weight:g}, out of range")
        if payload_bytes != 4 * chunk.elements:
            raise OutOfPlaceMessage(f"{name} has {payload_bytes} bytes, not {4 * chunk.elements}")
        if child not in self._may_send(chunk.tree, message.epoch):
            raise OutOfPlaceMessage(f"{name}, below which no worker sends its updates this way")
        self._check_due(message, name)
        if (message.round, message.epoch) != (self.update, self._newest):
            self._begin(message.round, message.epoch)
        growing = self._partials.get(chunk.index)
        if chunk.index in self._summed or (growing is not None and child in growing.started):
            raise DuplicateMessage(name)
        weight = self._weights.setdefault((chunk.tree, child), message.weight)
        if not math.isclose(weight, message.weight, rel_tol=_SAME_WEIGHT):
            raise MalformedMessage(f"{name} has weight {message.weight:g}, another {weight:g}")
        if growing is None:
            growing = self._partials[chunk.index] = self._open(chunk)
        growing.started.add(child)
        return Sink(
            piece=growing.gathering.take,
            done=partial(self._count, chunk, growing, message.weight),
        )

    def _check_due(self, message: UpdateSum, name: str) -> None:
        # Two iterations may be under way, as seen from here, and each site is lost once at most in
        # one; between them some may come back together.
        if message.epoch > self.epoch + 2 * self._plan.size:
            raise OutOfPlaceMessage(f"{name}, of epoch {message.epoch}, where {self.epoch} is now")
        if message.round < self.update:
            raise DuplicateMessage(f"{name}, where update {self.update} is under way")
        if message.epoch > self._newest:
            return  # those who took part in between may have made updates that did not pass here
        due = self.update if self.update and not self._is_complete else self.update + 1
        if message.round > due:
            raise OutOfPlaceMessage(f"{name}, where update {self.update} is under way")

    def _may_send(self, tree: int, epoch: int) -> Collection[int]:
        """Return the children whose sums count; any, of an epoch whose workers are not known."""
        if epoch == self.epoch:
            return self._children[tree]
        up = self._plan.trees[tree].up
        return [child for child, parent in enumerate(up) if parent == self._site]

    @property
    def _is_complete(self) -> bool:
        """Whether all sums of the update under way have been passed on."""
        works = self._site in self.workers
        return all(
            chunk.index in self._summed or not (works or self._children[chunk.tree])
            for chunk in self._chunks
        )

    def _own_now(self) -> _Own | None:
        """Return this site's update if it is part of the sums that are formed now."""
        own = self._own
        counts = own is not None and own.update == self.update and self._newest == self.epoch
        return own if counts else None

    def _open(self, chunk: Chunk) -> _Partial:
        opened = _Partial(self._arithmetic.gather(chunk.elements))
        if (own := self._own_now()) is not None:
            opened.gathering.add_own(own.gradients[chunk.start : chunk.stop], own.weight)
        return opened

    def _add_own(self) -> None:
        """Add this site's update to the sums that have begun; where it is all, begin them."""
        own = self._own_now()
        if own is None:
            return
        for chunk in self._chunks:
            gradients = own.gradients[chunk.start : chunk.stop]
            growing = self._partials.get(chunk.index)
            if growing is not None:
                growing.gathering.add_own(gradients, own.weight)
                self._pass_on_if_complete(chunk, growing)
            elif not self._children[chunk.tree]:
                weighted = self._arithmetic.weighted(gradients, own.weight)
                self._pass_on(chunk, weighted, own.weight)

    def _count(self, chunk: Chunk, growing: _Partial, weight: float) -> None:
        growing.counted += 1
        growing.weight += weight
        if self._partials.get(chunk.index) is growing:
            self._pass_on_if_complete(chunk, growing)

    def _pass_on_if_complete(self, chunk: Chunk, complete: _Partial) -> None:
        own = self._own_now()
        awaited = len(self._children[chunk.tree])
        if self._newest != self.epoch or complete.counted < awaited:
            return
        if own is None and self._site in self.workers:
            return
        del self._partials[chunk.index]
        weight = complete.weight + (0.0 if own is None else own.weight)
        self._pass_on(chunk, complete.gathering.sum, weight)

    def _pass_on(self, chunk: Chunk, total: Floats, weight: float) -> None:
        self._summed.add(chunk.index)
        parent = self._plan.trees[chunk.tree].up[self._site]
        if parent == NO_PARENT:
            self._whole(chunk, total, weight)
            return
        path, version = self._plan.path(self._site, parent), self._plan.version
        message = UpdateSum(self.update, version, chunk.index, path, weight, self.epoch)
        self._emit(Send(message, self._arithmetic.payload(total)))
