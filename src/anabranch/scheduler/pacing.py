"""Who may proceed in a run with servers: the pace, kept in step with what servers and workers say.

A server says when all of its part of a worker's update has come. Once all servers have, and the
worker has asked to go on, the pace is told; what it answers is written into the books and becomes
orders to the servers and permissions to workers. Pure: times are handed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from anabranch.net.errors import OutOfPlaceMessage
from anabranch.pace import Applied, Ledger, Load, Pace, Step, Update


@dataclass(frozen=True, slots=True)
class Permission:
    """A worker may go on: pull the model as it is after this step, and compute.

    Args:
        worker: who.
        update: which of its updates it is to compute, from 1.
        samples: of its batch.
    """

    worker: int
    update: int
    samples: int


@dataclass(frozen=True, slots=True)
class Decision:
    """A step of the model and what follows from it.

    Args:
        applied: updates that become part of the model, in this order, with what each had missed.
        discarded: updates that never will.
        permissions: who may go on.
        version: of the model from then on.
        finished: workers that have computed all they were to, and the last of whose updates is
            settled.
        came: the update that is all here now, and has its worker wait; under a barrier it may come
            again, if a loss voids it.
    """

    applied: tuple[Applied, ...]
    discarded: tuple[Update, ...]
    permissions: tuple[Permission, ...]
    version: int
    finished: tuple[int, ...] = ()
    came: Update | None = None


@dataclass(slots=True)
class _Coming:
    """An update that is not all here: which servers have it, and whether its worker has asked."""

    servers: set[int]
    asked: bool = False
    compute_s: float = 0.0


class PaceBook:
    """Keeps a run's pace.

    Where the pace is a barrier, updates come added up: the loss of a worker voids what has come of
    the others' too, so the pace is told of none before everybody's is there.

    Args:
        pace, load: fresh ones.
        workers: which sites compute.
        servers: which sites hold the model; each must have an update before it counts.
        updates: how many each worker makes.

    Attributes:
        longest_s: that an iteration has taken, from going on to asking to go on.
        voided_by: the workers whose loss voided sums, in order; none where the pace is no barrier.
    """

    def __init__(
        self, pace: Pace, load: Load, workers: Iterable[int], servers: Iterable[int], updates: int
    ) -> None:
        self._pace = pace
        self._load = load
        self._ledger = Ledger(pace)
        self._workers = dict.fromkeys(workers)  # that take part
        self._servers = frozenset(servers)
        self._updates = updates
        self._made: dict[int, int] = {}  # updates that each worker was let compute
        self._went_s: dict[int, float] = {}
        self._coming: dict[Update, _Coming] = {}
        self._closed = False
        self.longest_s = 0.0
        self.voided_by: tuple[int, ...] = ()

    @property
    def is_barrier(self) -> bool:
        """Whether updates come added up."""
        return self._pace.barrier

    @property
    def under_way(self) -> int:
        """The latest update that a worker was let compute; under a barrier that of all."""
        return max(self._made.values(), default=0)

    @property
    def due_s(self) -> float:
        """When to call ``look`` next; infinite where nothing depends on time alone."""
        return self._pace.due_s

    @property
    def workers(self) -> tuple[int, ...]:
        """Which sites compute, of those that still take part."""
        return tuple(self._workers)

    @property
    def is_over(self) -> bool:
        """Whether no worker takes part any more."""
        return not self._workers

    def begin(self, now_s: float) -> tuple[Decision, ...]:
        """Let all workers join."""
        decisions: list[Decision] = []
        for worker in self._workers:
            self._ledger.joined()
            decisions += self._book(self._pace.join(worker, now_s), now_s)
        return tuple(decisions)

    def asked(
        self, worker: int, update: int, samples: int, compute_s: float, now_s: float
    ) -> tuple[Decision, ...]:
        """Take a worker's request to proceed: its update is on its way.

        Args:
            worker: who.
            update: which of its updates.
            samples: of its batch.
            compute_s: how long it computed.
            now_s: the time.

        Raises:
            OutOfPlaceMessage: it has asked before, or was not let compute that update.
        """
        coming = self._expected(worker, update)
        if coming.asked:
            raise OutOfPlaceMessage(f"site {worker} asks to proceed twice, after update {update}")
        iteration_s = now_s - self._went_s[worker]
        coming.asked, coming.compute_s = True, min(compute_s, iteration_s)
        self.longest_s = max(self.longest_s, iteration_s)
        self._load.measured(worker, samples, coming.compute_s, iteration_s)
        return self._push_if_all_here(worker, update, now_s)

    def is_void(self, epoch: int) -> bool:
        """Return whether a sum that came under this epoch counts no more.

        Raises:
            OutOfPlaceMessage: so many losses have not been.
        """
        losses = len(self.voided_by)
        if not 0 <= epoch <= losses:
            raise OutOfPlaceMessage(f"a sum after {epoch} losses, where there were {losses}")
        return epoch < losses

    def came(self, server: int, worker: int, update: int, now_s: float) -> tuple[Decision, ...]:
        """Take note that all of a server's part of an update has come, in no void sum.

        Raises:
            OutOfPlaceMessage: it holds no part, has said so before, or the worker was not let
                compute that update.
        """
        if server not in self._servers:
            raise OutOfPlaceMessage(f"site {server} has an update, but serves no part of the model")
        if worker not in self._workers:
            return ()  # it was lost meanwhile
        coming = self._expected(worker, update)
        if server in coming.servers:
            raise OutOfPlaceMessage(f"site {server} has update {update} of site {worker} twice")
        coming.servers.add(server)
        return self._push_if_all_here(worker, update, now_s)

    def _expected(self, worker: int, update: int) -> _Coming:
        if worker not in self._workers or self._made.get(worker) != update:
            raise OutOfPlaceMessage(f"update {update} of site {worker}, which is not awaited")
        return self._coming.setdefault((worker, update), _Coming(set()))

    def _push_if_all_here(self, worker: int, update: int, now_s: float) -> tuple[Decision, ...]:
        if not self._is_all_here((worker, update)):
            return ()
        decisions = [Decision((), (), (), self._ledger.version, came=(worker, update))]
        together = [(worker, update)]
        if self._pace.barrier:
            together = [(each, self._made[each]) for each in self._workers]
            if not all(map(self._is_all_here, together)):
                return tuple(decisions)  # a loss may yet void it
        for each in together:
            coming = self._coming.pop(each)
            self._ledger.pushed(each)
            steps = self._pace.push(each[0], now_s, coming.compute_s)
            decisions += self._book(steps, now_s)
        return tuple(decisions)

    def _is_all_here(self, update: Update) -> bool:
        coming = self._coming.get(update)
        return coming is not None and coming.asked and coming.servers == self._servers

    def look(self, now_s: float) -> tuple[Decision, ...]:
        """Decide what has become due; harmless at any time."""
        return self._book(self._pace.look(now_s), now_s)

    def lost(self, worker: int, now_s: float) -> tuple[Decision, ...]:
        """Go on without a worker that has died; servers forget what of its update has come."""
        if worker not in self._workers:
            return ()
        if self._pace.barrier:
            self.voided_by += (worker,)
            for coming in self._coming.values():
                coming.servers.clear()
        decisions = self._leave(worker, now_s)
        under_way = worker, self._made.get(worker, 0)
        if any(under_way in decision.discarded for decision in decisions):
            return decisions  # it was all here, and waited
        forgotten = Decision((), (under_way,), (), self._ledger.version)
        return (forgotten, *decisions)

    def close(self) -> None:
        """Let nobody go on any more."""
        self._closed = True

    def _leave(self, worker: int, now_s: float) -> tuple[Decision, ...]:
        del self._workers[worker]
        self._load.leave(worker)
        for update in [update for update in self._coming if update[0] == worker]:
            del self._coming[update]
        self._ledger.left()
        return self._book(self._pace.leave(worker, now_s), now_s)

    def _book(self, steps: Sequence[Step], now_s: float) -> tuple[Decision, ...]:
        decisions: list[Decision] = []
        leaving: list[int] = []
        for step in steps:
            applied = self._ledger.enter(step)
            permissions, finished = [], []
            for worker in step.proceed:
                made = self._made.get(worker, 0)
                if made == self._updates or self._closed:
                    finished.append(worker)
                    continue
                self._made[worker], self._went_s[worker] = made + 1, now_s
                permissions.append(Permission(worker, made + 1, self._load.samples(worker)))
            leaving += finished
            decisions.append(
                Decision(
                    applied,
                    step.discard,
                    tuple(permissions),
                    self._ledger.version,
                    tuple(finished),
                )
            )
        for worker in leaving:
            decisions += self._leave(worker, now_s)
        return tuple(decisions)
