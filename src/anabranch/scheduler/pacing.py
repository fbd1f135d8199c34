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
        pulls: whether the model comes for it; otherwise it computes on what it has.
    """

    worker: int
    update: int
    samples: int
    pulls: bool


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
        ahead: how many updates a worker may compute before the model comes that has its last one
            in, 0 or 1: it computes while that one and the model are on their way.

    Attributes:
        longest_s: that an iteration has taken, from going on to asking to go on.
        voided_by: the workers whose loss voided sums, in order; none where the pace is no barrier.
    """

    def __init__(
        self,
        pace: Pace,
        load: Load,
        workers: Iterable[int],
        servers: Iterable[int],
        updates: int,
        ahead: int = 0,
    ) -> None:
        self._pace = pace
        self._load = load
        self._ahead = ahead
        self._ledger = Ledger(pace, ahead)
        self._workers = dict.fromkeys(workers)  # that take part
        self._servers = frozenset(servers)
        self._updates = updates
        self._made: dict[int, int] = {}  # updates that each worker was let compute
        self._told: dict[int, int] = {}  # of them, those that the pace was told of
        self._computing: set[int] = set()  # as the pace knows it
        self._began_s: dict[Update, float] = {}  # when it could be begun
        self._pulled: dict[int, int] = {}  # which version of the model each has, or will
        self._coming: dict[Update, _Coming] = {}
        self._closed = False
        self.longest_s = 0.0
        self.voided_by: tuple[int, ...] = ()

    @property
    def is_barrier(self) -> bool:
        """Whether updates come added up."""
        return self._pace.barrier and not self._ahead

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
        iteration_s = now_s - self._began_s.pop((worker, update))
        coming.asked, coming.compute_s = True, min(compute_s, iteration_s)
        self.longest_s = max(self.longest_s, iteration_s)
        self._load.measured(worker, samples, coming.compute_s, iteration_s)
        if (worker, update + 1) in self._began_s:
            self._began_s[worker, update + 1] = now_s
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
        made, told = self._made.get(worker, 0), self._told.get(worker, 0)
        if worker not in self._workers or not told < update <= made:
            raise OutOfPlaceMessage(f"update {update} of site {worker}, which is not awaited")
        return self._coming.setdefault((worker, update), _Coming(set()))

    def _push_if_all_here(self, worker: int, update: int, now_s: float) -> tuple[Decision, ...]:
        if not self._is_all_here((worker, update)):
            return ()
        came = Decision((), (), (), self._ledger.version, came=(worker, update))
        if self.is_barrier:
            together = [(each, self._made[each]) for each in self._workers]
            if not all(map(self._is_all_here, together)):
                return (came,)  # a loss may yet void it
        return (came, *self._tell(now_s))

    def _tell(self, now_s: float) -> list[Decision]:
        """Tell the pace of all updates that are here and that it can hear of."""
        decisions: list[Decision] = []
        waiting = list(self._workers)
        while waiting:
            worker = waiting.pop(0)
            update = worker, self._told.get(worker, 0) + 1
            if worker not in self._computing or not self._is_all_here(update):
                continue
            coming = self._coming.pop(update)
            self._told[worker] = update[1]
            self._computing.remove(worker)
            self._ledger.pushed(update)
            decisions += self._book(self._pace.push(worker, now_s, coming.compute_s), now_s)
            waiting = list(self._workers)  # whoever goes on may have its next update here already
        return decisions

    def _is_all_here(self, update: Update) -> bool:
        coming = self._coming.get(update)
        return coming is not None and coming.asked and coming.servers == self._servers

    def look(self, now_s: float) -> tuple[Decision, ...]:
        """Decide what has become due; harmless at any time."""
        return (*self._book(self._pace.look(now_s), now_s), *self._tell(now_s))

    def lost(self, worker: int, now_s: float) -> tuple[Decision, ...]:
        """Go on without a worker that has died; servers forget what of its update has come."""
        if worker not in self._workers:
            return ()
        if self.is_barrier:
            self.voided_by += (worker,)
            for coming in self._coming.values():
                coming.servers.clear()
        decisions = (*self._leave(worker, now_s), *self._tell(now_s))
        made, told = self._made.get(worker, 0), self._told.get(worker, 0)
        under_way = tuple((worker, update) for update in range(told + 1, made + 1))
        if not under_way:
            return decisions
        forgotten = Decision((), under_way, (), self._ledger.version)
        return (forgotten, *decisions)

    def close(self) -> None:
        """Let nobody go on any more."""
        self._closed = True

    def _leave(self, worker: int, now_s: float) -> tuple[Decision, ...]:
        del self._workers[worker]
        self._load.leave(worker)
        for update in [update for update in self._coming if update[0] == worker]:
            del self._coming[update]
        self._computing.discard(worker)
        self._ledger.left(worker)
        return self._book(self._pace.leave(worker, now_s), now_s)

    def _book(self, steps: Sequence[Step], now_s: float) -> tuple[Decision, ...]:
        decisions: list[Decision] = []
        leaving: list[int] = []
        for step in steps:
            applied = self._ledger.enter(step)
            permissions, finished = [], []
            for worker in step.proceed:
                self._computing.add(worker)
                permissions += self._permit(worker, now_s)
                if self._made.get(worker, 0) == self._told.get(worker, 0):
                    finished.append(worker)
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

    def _permit(self, worker: int, now_s: float) -> list[Permission]:
        """Let a worker compute what it may, after a step of the model."""
        made = self._made.get(worker, 0)
        more = 1 if made else 1 + self._ahead
        until = made if self._closed else min(self._updates, made + more)
        permissions = []
        for update in range(made + 1, until + 1):
            pulls = self._pulled.get(worker, 0) < self._ledger.version
            self._pulled[worker] = self._ledger.version
            self._began_s[worker, update] = now_s
            permissions.append(Permission(worker, update, self._load.samples(worker), pulls))
        self._made[worker] = until
        return permissions
