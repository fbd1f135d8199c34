"""One copy of the model down each tree edge, for all workers below it. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from anabranch.net.errors import DuplicateMessage, OutOfPlaceMessage
from anabranch.net.frames import Sink
from anabranch.net.messages import Parameters
from anabranch.plan import Chunk, Plan, children_towards
from anabranch.site.accumulator import Floats
from anabranch.site.aggregation import Send
from anabranch.site.arithmetic import Arithmetic


class Multicast:
    """One site's part in handing the model down.

    What a worker passes on is sent from its own model, which does not change before everybody below
    has it: the next one is made of their updates too. A site that does not compute keeps a chunk
    until it has left.

    Chunks carry the epoch of their sender (:mod:`anabranch.site.summing`), which says whom they are
    for. What comes under an epoch that this site has not heard of is kept until it has; once some
    workers have come back, earlier models are of use to nobody: the others had the last one whole.

    Args:
        site: this site.
        plan: the one plan that everything travels along.
        chunks: its deal of the model.
        arithmetic: whether numbers matter.
        emit: called with each :class:`anabranch.site.aggregation.Send`.
        take: at a worker, called with a chunk that comes and its size; returns where it goes, and
            where it will then be, shape (elements,).
    """

    def __init__(
        self,
        site: int,
        plan: Plan,
        chunks: Sequence[Chunk],
        arithmetic: Arithmetic,
        emit: Callable[[Send], None],
        take: Callable[[Parameters, int], tuple[Sink, Floats]],
    ) -> None:
        self._site = site
        self._plan = plan
        self._chunks = chunks
        self._arithmetic = arithmetic
        self._emit = emit
        self._take = take
        self._epoch = 0
        self._oldest = 0  # no earlier epoch's models are of use
        self._early: list[tuple[Parameters, memoryview]] = []
        self._workers: frozenset[int] = frozenset()
        self._children: list[tuple[int, ...]] = []  # of this site, by tree
        # For which update the latest model that passed is, and which chunks of it did.
        self._passed: tuple[int, set[int]] = 1, set()

    def reach(self, workers: Collection[int], epoch: int = 0, update: int = 1) -> None:
        """Hand the model to these workers from now on.

        Args:
            workers: who takes part.
            epoch: since which they do.
            update: which update of each worker is under way.
        """
        trees = self._plan.trees
        if epoch and not self._workers.issuperset(workers):
            self._oldest = epoch
            self._passed = max(self._passed, (update - 1, set()), key=lambda passed: passed[0])
        self._epoch, self._workers = epoch, frozenset(workers)
        self._children = [children_towards(tree.down, workers)[self._site] for tree in trees]
        early, self._early = self._early, []
        for message, payload in early:
            self._take_early(message, payload)

    def pass_on(self, chunk: Chunk, update: int, payload: memoryview) -> None:
        """Send a chunk of the model for an update to whoever is next on its way down."""
        for child in self._children[chunk.tree]:
            path = self._plan.path(self._site, child)
            message = Parameters(update, self._plan.version, chunk.index, path, self._epoch)
            self._emit(Send(message, payload))

    def on_parameters(self, message: Parameters, payload_bytes: int) -> Sink:
        """Return where a chunk of the model goes, of those that the plan deals.

        Raises:
            OutOfPlaceMessage: it is not due, or comes from another site than the tree says.
            DuplicateMessage: it has come before.
        """
        chunk, source = self._chunks[message.chunk], message.path[0]
        if source != self._plan.trees[chunk.tree].down[self._site]:
            raise OutOfPlaceMessage(
                f"chunk {chunk.index} of the model from site {source}, which is not its source"
            )
        if message.epoch < self._oldest:
            return Sink()
        if message.epoch > self._epoch:
            return self._keep(message, payload_bytes, chunk)
        if self._site not in self._workers and not self._children[chunk.tree]:
            return Sink()  # for a worker that was lost
        if self._site in self._workers:
            sink, held = self._take(message, payload_bytes)
        else:
            self._check_passing(message, payload_bytes, chunk)
            held = np.empty(chunk.elements, np.float32)
            sink = Sink(target=self._arithmetic.memory(held))
        taken, payload = sink.done, self._arithmetic.payload(held)

        def done() -> None:
            self.pass_on(chunk, message.round, payload)  # others wait for it
            taken()

        sink.done = done
        return sink

    def _keep(self, message: Parameters, payload_bytes: int, chunk: Chunk) -> Sink:
        _check_size(message, payload_bytes, chunk)
        payload = memoryview(np.empty(payload_bytes, np.uint8).data)
        return Sink(target=payload, done=lambda: self._take_early(message, payload))

    def _take_early(self, message: Parameters, payload: memoryview) -> None:
        """Act on a chunk that came under an epoch not heard of then, if it has been by now."""
        if message.epoch > self._epoch:
            self._early.append((message, payload))
        else:
            pour(self.on_parameters(message, len(payload)), payload)

    def _check_passing(self, message: Parameters, payload_bytes: int, chunk: Chunk) -> None:
        """Check a chunk as a worker does that awaits it."""
        update, passed = self._passed
        name = f"chunk {chunk.index} of the model for update {message.round}"
        if message.round < update or (message.round == update and chunk.index in passed):
            raise DuplicateMessage(name)
        if message.round > update + 1:
            raise OutOfPlaceMessage(f"{name}, where that for {update} was the last")
        _check_size(message, payload_bytes, chunk)
        if message.round > update:
            self._passed = message.round, {chunk.index}
        else:
            passed.add(chunk.index)


def _check_size(message: Parameters, payload_bytes: int, chunk: Chunk) -> None:
    if payload_bytes != 4 * chunk.elements:
        raise OutOfPlaceMessage(
            f"chunk {chunk.index} of the model for update {message.round} has {payload_bytes} "
            f"bytes, not {4 * chunk.elements}"
        )


def pour(sink: Sink, payload: memoryview) -> None:
    """Hand a message over that is all here."""
    if sink.target is not None:
        sink.target[:] = payload
    sink.done()
