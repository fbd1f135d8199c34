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
        self._works = False
        self._children: list[tuple[int, ...]] = []  # of this site, by tree
        # For which update the latest model that passed is, and which chunks of it did.
        self._passed: tuple[int, set[int]] = 1, set()

    def reach(self, workers: Collection[int]) -> None:
        """Hand the model to these workers from now on."""
        trees = self._plan.trees
        self._works = self._site in workers
        self._children = [children_towards(tree.down, workers)[self._site] for tree in trees]

    def pass_on(self, chunk: Chunk, update: int, payload: memoryview) -> None:
        """Send a chunk of the model for an update to whoever is next on its way down."""
        for child in self._children[chunk.tree]:
            path = self._plan.path(self._site, child)
            self._emit(Send(Parameters(update, self._plan.version, chunk.index, path), payload))

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
        if self._works:
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

    def _check_passing(self, message: Parameters, payload_bytes: int, chunk: Chunk) -> None:
        """Check a chunk as a worker does that awaits it."""
        update, passed = self._passed
        name = f"chunk {chunk.index} of the model for update {message.round}"
        if message.round < update or (message.round == update and chunk.index in passed):
            raise DuplicateMessage(name)
        if message.round > update + 1:
            raise OutOfPlaceMessage(f"{name}, where that for {update} was the last")
        if payload_bytes != 4 * chunk.elements:
            raise OutOfPlaceMessage(f"{name} has {payload_bytes} bytes, not {4 * chunk.elements}")
        if message.round > update:
            self._passed = message.round, {chunk.index}
        else:
            passed.add(chunk.index)
