"""Push and pull at one site: its updates go to the servers, its model comes from them. No I/O.

The roots of a plan's trees are its servers: each holds the chunks dealt to its trees
(:mod:`anabranch.site.partition`). A worker's update travels up the trees and the model down them,
chunk by chunk, and every site in between only forwards. Under a barrier all workers' updates are one
step, and all pull the same model: then updates are added up on the way
(:mod:`anabranch.site.summing`), and one copy of the model goes down each tree, from site to site
(:mod:`anabranch.site.multicast`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from anabranch.net.errors import DuplicateMessage, OutOfPlaceMessage
from anabranch.net.frames import Sink
from anabranch.net.messages import Parameters, Push, UpdateSum
from anabranch.plan import Chunk, Plan
from anabranch.site.accumulator import Floats
from anabranch.site.aggregation import Send
from anabranch.site.arithmetic import Arithmetic
from anabranch.site.multicast import Multicast, pour
from anabranch.site.partition import ServerPartition
from anabranch.site.summing import Summing


@dataclass(slots=True)
class _Pull:
    """A model that comes, chunk by chunk, for the update that will be computed on it."""

    update: int
    memory: Floats
    whole: Callable[[], None]
    begun: set[int] = field(default_factory=set)
    held: int = 0


class PushPull:
    """One site's part in push and pull.

    Args:
        site: this site.
        plan: the one plan that everything travels along.
        chunks: its deal of the model.
        arithmetic: whether numbers matter.
        emit: called with each :class:`Send`.
        partition: the part of the model that this site serves; None where it serves none.
        added_up: the workers whose updates are added up on the way; none where each travels alone.
    """

    def __init__(
        self,
        site: int,
        plan: Plan,
        chunks: Sequence[Chunk],
        arithmetic: Arithmetic,
        emit: Callable[[Send], None],
        partition: ServerPartition | None,
        added_up: Sequence[int] = (),
    ) -> None:
        self._site = site
        self._plan = plan
        self._chunks = chunks
        self._arithmetic = arithmetic
        self._emit = emit
        self._partition = partition
        self._pulls: dict[int, _Pull] = {}  # by update
        self._first = 1  # update of this process; what comes for earlier ones is another's
        self._returning: tuple[Floats, Callable[[], None]] | None = None
        self._sums: Summing | None = None
        self._models = Multicast(site, plan, chunks, arithmetic, emit, self._take)
        if added_up:
            self._sums = Summing(site, plan, chunks, added_up, arithmetic, emit, self._whole_sum)
            self._models.reach(added_up)

    def come_back(self, first: int, model: Floats, whole: Callable[[], None]) -> None:
        """Await the model at a site that takes part again, as another process.

        Args:
            first: the update that it will compute first; under a barrier none is earlier.
            model, whole: see :meth:`expect`.
        """
        self._first = first
        if self._sums is None:
            self.expect(first, model, whole)
        else:
            self._returning = model, whole

    def expect(self, update: int, memory: Floats, whole: Callable[[], None]) -> None:
        """Await the model that an update will be computed on.

        Args:
            update: counted from 1.
            memory: shape (elements,); overwritten chunk by chunk as the model comes.
            whole: called once it has.
        """
        self._pulls[update] = _Pull(update, memory, whole)

    def push(self, update: int, gradients: Floats, weight: float) -> None:
        """Send an update to the servers.

        Args:
            update: counted from 1.
            gradients: shape (elements,); must not change before everything has left.
            weight: what the update counts, > 0.
        """
        for before in [each for each in self._pulls if each <= update]:
            del self._pulls[before]
        if self._sums is not None:
            self._sums.push(update, gradients, weight)
            return
        for chunk in self._chunks:
            path = self._plan.way_up(chunk.tree, self._site)
            message = Push(update, self._plan.version, chunk.index, path, weight)
            payload = self._arithmetic.payload(gradients[chunk.start : chunk.stop])
            if len(path) > 1:
                self._emit(Send(message, payload))
            else:
                assert self._partition is not None  # this site is the root
                pour(self._partition.on_push(message, len(payload)), payload)

    def on_push(self, message: Push, payload_bytes: int) -> Sink:
        """Return where a chunk of a worker's update goes.

        Raises:
            OutOfPlaceMessage: this site serves nothing, or the message came another way than the
                plan's.
            PeerError: see :meth:`anabranch.site.partition.ServerPartition.on_push`.
        """
        if self._partition is None:
            raise OutOfPlaceMessage("an update for this site, which serves no part of the model")
        if self._sums is not None:
            raise OutOfPlaceMessage("an update by itself, where they are added up on their way")
        self._check(message)
        self._check_way(message, self._plan.way_up, message.path[0])
        return self._partition.on_push(message, payload_bytes)

    def on_sum(self, message: UpdateSum, payload_bytes: int) -> Sink:
        """Return where a chunk of a sum of updates goes.

        Raises:
            OutOfPlaceMessage: nothing is added up in this run.
            PeerError: see :meth:`anabranch.site.summing.Summing.on_sum`.
        """
        if self._sums is None:
            raise OutOfPlaceMessage("a sum of updates, where each travels alone")
        self._check(message)
        return self._sums.on_sum(message, payload_bytes)

    def _whole_sum(self, chunk: Chunk, total: Floats, weight: float) -> None:
        assert self._sums is not None
        assert self._partition is not None  # this site is the root
        updates = tuple((worker, self._sums.update) for worker in self._sums.workers)
        self._partition.on_sum(updates, chunk.index, total, weight)

    def count(self, epoch: int, workers: Sequence[int], update: int) -> None:
        """Go on with these workers; see :meth:`anabranch.site.summing.Summing.count`.

        Raises:
            OutOfPlaceMessage: also where nothing is added up.
        """
        if self._sums is None:
            raise OutOfPlaceMessage("an epoch of sums, where each update travels alone")
        self._sums.count(epoch, workers, update)
        if self._returning is not None and self._site in workers:
            self.expect(update, *self._returning)
            self._returning = None
        self._models.reach(workers, epoch, update)

    @property
    def epoch(self) -> int:
        """How many times it has changed who takes part; 0 where each update travels alone."""
        return 0 if self._sums is None else self._sums.epoch

    def serve(self, pulls: Sequence[tuple[int, int]]) -> None:
        """Send workers this site's part of the model as it is now.

        Args:
            pulls: (worker, which of its updates it will compute on the model).
        """
        assert self._partition is not None
        if not pulls:
            return
        alone = pulls
        if self._sums is not None:
            (together,) = {update for _, update in pulls}  # all go on with the same one
            alone = [pull for pull in pulls if pull[0] == self._site]
        for index, parameters in self._partition.snapshot().items():
            payload, chunk = self._arithmetic.payload(parameters), self._chunks[index]
            if self._sums is not None:
                self._models.pass_on(chunk, together, payload)
            for worker, update in alone:
                path = self._plan.way_down(chunk.tree, worker)
                message = Parameters(update, self._plan.version, index, path)
                if len(path) > 1:
                    self._emit(Send(message, payload))
                else:
                    pour(self._take(message, len(payload))[0], payload)

    def on_parameters(self, message: Parameters, payload_bytes: int) -> Sink:
        """Return where a chunk of the model goes.

        Raises:
            OutOfPlaceMessage: no such chunk is awaited, or it came another way than the plan's.
            DuplicateMessage: it has come before.
        """
        self._check(message)
        if self._sums is not None:
            return self._models.on_parameters(message, payload_bytes)
        self._check_way(message, self._plan.way_down, self._site)
        if message.round < self._first:
            return Sink()
        return self._take(message, payload_bytes)[0]

    def _take(self, message: Parameters, payload_bytes: int) -> tuple[Sink, Floats]:
        pull = self._pulls.get(message.round)
        if pull is None:
            awaited = ", ".join(map(str, self._pulls)) or "none"
            raise OutOfPlaceMessage(
                f"the model for update {message.round}, where {awaited} is awaited"
            )
        chunk = self._chunks[message.chunk]
        if payload_bytes != 4 * chunk.elements:
            raise OutOfPlaceMessage(
                f"chunk {chunk.index} of the model has {payload_bytes} bytes, not "
                f"{4 * chunk.elements}"
            )
        if chunk.index in pull.begun:
            raise DuplicateMessage(f"chunk {chunk.index} of the model for update {pull.update}")
        pull.begun.add(chunk.index)
        held = pull.memory[chunk.start : chunk.stop]
        return Sink(target=self._arithmetic.memory(held), done=partial(self._count, pull)), held

    def _count(self, pull: _Pull) -> None:
        pull.held += 1
        if pull.held == len(self._chunks):
            pull.whole()

    def _check(self, message: Push | Parameters | UpdateSum) -> None:
        if message.version != self._plan.version or not 0 <= message.chunk < len(self._chunks):
            raise OutOfPlaceMessage(
                f"chunk {message.chunk} under plan version {message.version}, where "
                f"{len(self._chunks)} chunks travel under {self._plan.version}"
            )

    def _check_way(
        self, message: Push | Parameters, way: Callable[[int, int], tuple[int, ...]], worker: int
    ) -> None:
        path, wanted = message.path, way(self._chunks[message.chunk].tree, worker)
        if message.is_aux:  # then who carries it in between is for the sender to choose
            path, wanted = (path[0], path[-1]), (wanted[0], wanted[-1])
        if path != wanted:
            raise OutOfPlaceMessage(
                f"chunk {message.chunk} came along {message.path}, which is not its way"
            )
