"""Who may proceed in a run with servers: the pace, kept in step with what servers and workers say.

A server says when all of its part of a worker's update has come. Once all servers have, and the
worker has asked to go on, the pace is told; what it answers is written into the books and becomes
orders to the servers and permissions to workers. Pure: times are handed in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product

from anabranch import plan as plans
from anabranch.net.errors import OutOfPlaceMessage
from anabranch.pace import Applied, Ledger, Load, Pace, Step, Update
from anabranch.plan import Plan
from anabranch.record import events
from anabranch.scheduler.patience import RoundTimes


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
        abandoned: for each worker that is to compute and push nothing before it goes on anew, the
            last of its updates that are given up.
    """

    applied: tuple[Applied, ...]
    discarded: tuple[Update, ...]
    permissions: tuple[Permission, ...]
    version: int
    finished: tuple[int, ...] = ()
    came: Update | None = None
    abandoned: tuple[Update, ...] = ()


_NOTHING = -1  # the version of the model that a new process of a site has


@dataclass(slots=True)
class _Coming:
    """An update that is not all here: which servers have it, and whether its worker has asked."""

    servers: set[int]
    asked: bool = False
    samples: int = 0
    compute_s: float = 0.0
    began_s: float = 0.0  # when it could be begun


class PaceBook:
    """Keeps a run's pace.

    Where the pace is a barrier, updates come added up: the loss of a worker voids what has come of
    the others' too, so the pace is told of none before everybody's is there.

    **A worker that was lost may join again.** The update that it was let compute last is lost with
    it, and its name with the update: it goes on with its next, and makes what is left of as many as
    were asked of each. Under a barrier all make the same update at a time, so it waits for the end
    of the one under way, and goes on with everybody's next.

    **A worker whose model is too old abandons its updates**, where the pace says so: all that it
    was let compute, wherever they are. It asks to proceed after each, but pushes none that it has
    not pushed yet. Then they are discarded by name, and it begins anew with its next.

    Args:
        pace: the pace.
        load: sizes the batches; a fresh one.
        workers: which sites compute.
        servers: which sites hold the model; each must have an update before it counts.
        updates: how many each worker makes.
        ahead: how many updates a worker may compute before the model comes that has its last one
            in, 0 or 1: it computes while that one and the model are on their way.

    Attributes:
        times: of iterations, each from going on to asking to go on.
        epoch: how many times it has changed who takes part in sums; 0 where the pace is no barrier.
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
        self._is_barrier = pace.barrier and not ahead
        self._rule = pace.rule()
        self._load = load
        # A sum comes with its slowest part, and one that computes ahead does so while it pushes.
        self._counts_pushing = not self._is_barrier and not ahead
        self._ahead = ahead
        self._ledger = Ledger(pace, ahead)
        self._workers = dict.fromkeys(workers)  # that take part
        self._all = frozenset(self._workers)
        self._returning: dict[int, None] = {}  # who waits for the end of an iteration
        self._servers = frozenset(servers)
        self._updates = updates
        self._made: dict[int, int] = {}  # updates that each worker was let compute
        self._settled: dict[int, int] = {}  # the latest that the pace was told of, or that was lost
        self._computing: set[int] = set()  # as the pace knows it
        self._began_s: dict[Update, float] = {}  # when it could be begun
        self._pulled: dict[int, int] = {}  # which version of the model each has, or will
        self._coming: dict[Update, _Coming] = {}
        self._forgotten: set[Update] = set()  # with their workers, or abandoned by them
        # A pace counts what it is told of; not every update that was begun has come.
        self._told: Counter[int] = Counter()
        self._names: dict[Update, tuple[Update, ...]] = {}  # ours, by the pace's
        self._closed = False
        self.times = RoundTimes()
        self.epoch = 0

    @property
    def is_barrier(self) -> bool:
        """Whether updates come added up."""
        return self._is_barrier

    @property
    def under_way(self) -> int:
        """The latest update that a worker was let compute; under a barrier that of all."""
        return max(self._made.values(), default=0)

    def made(self, worker: int) -> int:
        """Return how many updates a worker was let compute."""
        return self._made.get(worker, 0)

    @property
    def due_s(self) -> float:
        """When to call ``look`` next; infinite where nothing depends on time alone."""
        return self._rule.due_s

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
            decisions += self._book(self._join(worker, now_s), now_s)
        return tuple(decisions)

    def _join(self, worker: int, now_s: float) -> tuple[Step, ...]:
        self._workers[worker] = None
        self._ledger.joined()
        return self._rule.join(worker, now_s)

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
        coming.began_s = self._began_s.pop((worker, update))
        iteration_s = now_s - coming.began_s
        coming.asked, coming.samples = True, samples
        coming.compute_s = min(compute_s, iteration_s)
        if (worker, update + 1) in self._began_s:
            self._began_s[worker, update + 1] = now_s
        if (worker, update) in self._forgotten:  # its time is not that of an iteration
            return tuple(self._tell(now_s))
        self.times.add((worker, update), iteration_s)
        if not self._counts_pushing:
            self._load.measured(worker, samples, coming.compute_s, iteration_s)
        return self._push_if_all_here(worker, update, now_s)

    def is_void(self, epoch: int) -> bool:
        """Return whether a sum that came under this epoch counts no more.

        Raises:
            OutOfPlaceMessage: there was no such epoch yet.
        """
        if not 0 <= epoch <= self.epoch:
            raise OutOfPlaceMessage(f"a sum of epoch {epoch}, where {self.epoch} is the latest")
        return epoch < self.epoch

    def came(self, server: int, worker: int, update: int, now_s: float) -> tuple[Decision, ...]:
        """Take note that all of a server's part of an update has come, in no void sum.

        Raises:
            OutOfPlaceMessage: it holds no part, has said so before, or the worker was not let
                compute that update.
        """
        if server not in self._servers:
            raise OutOfPlaceMessage(f"site {server} has an update, but serves no part of the model")
        if worker not in self._workers or (worker, update) in self._forgotten:
            return ()  # it was lost meanwhile, or has abandoned it
        coming = self._expected(worker, update)
        if server in coming.servers:
            raise OutOfPlaceMessage(f"site {server} has update {update} of site {worker} twice")
        coming.servers.add(server)
        return self._push_if_all_here(worker, update, now_s)

    def _expected(self, worker: int, update: int) -> _Coming:
        due = self._settled.get(worker, 0) < update <= self.made(worker)
        if worker not in self._workers or not due:
            raise OutOfPlaceMessage(f"update {update} of site {worker}, which is not awaited")
        return self._coming.setdefault((worker, update), _Coming(set()))

    def _push_if_all_here(self, worker: int, update: int, now_s: float) -> tuple[Decision, ...]:
        if not self._is_all_here((worker, update)):
            return ()
        if self._counts_pushing:
            coming = self._coming[worker, update]
            iteration_s = now_s - coming.began_s
            self._load.measured(worker, coming.samples, coming.compute_s, iteration_s)
        came = Decision((), (), (), self._ledger.version, came=(worker, update))
        return (came, *self._tell(now_s))

    def _tell(self, now_s: float) -> list[Decision]:
        """Tell the pace of all updates that are here and that it can hear of."""
        if self.is_barrier:
            together = [(each, self.made(each)) for each in self._workers]
            if not all(map(self._is_all_here, together)):
                return []  # a loss may yet void them
        decisions: list[Decision] = []
        waiting = list(self._workers)
        while waiting:
            worker = waiting.pop(0)
            update = worker, self._settled.get(worker, 0) + 1
            updates = self._under_way(worker) if update in self._forgotten else (update,)
            if worker not in self._computing or not all(map(self._is_all_here, updates)):
                continue
            compute_s = self._coming[update].compute_s
            for each in updates:
                del self._coming[each]
                self._ledger.pushed(each)
            self._settled[worker] = updates[-1][1]
            self._computing.remove(worker)
            self._told[worker] += 1
            self._names[worker, self._told[worker]] = updates
            steps: Sequence[Step] = self._rule.push(worker, now_s, compute_s)
            if self.is_barrier and steps:
                steps = self._with_returning(steps, now_s)
            decisions += self._book(steps, now_s)
            if not self.is_barrier:  # whoever goes on may have its next update here already
                waiting = list(self._workers)
        return decisions

    def _is_all_here(self, update: Update) -> bool:
        """Return whether nothing of an update is awaited: none of one that is abandoned is."""
        coming = self._coming.get(update)
        has_come = coming is not None and coming.servers == self._servers
        return coming is not None and coming.asked and (has_come or update in self._forgotten)

    def _under_way(self, worker: int) -> tuple[Update, ...]:
        """Return the updates that a worker was let compute, and that are not settled."""
        first = self._settled.get(worker, 0) + 1
        return tuple((worker, update) for update in range(first, self.made(worker) + 1))

    def look(self, now_s: float) -> tuple[Decision, ...]:
        """Decide what has become due; harmless at any time."""
        return (*self._book(self._rule.look(now_s), now_s), *self._tell(now_s))

    def lost(self, worker: int, now_s: float) -> tuple[Decision, ...]:
        """Go on without a worker that has died; servers forget what of its update has come."""
        self._returning.pop(worker, None)
        if worker not in self._workers:
            return ()
        if self.is_barrier:
            self.epoch += 1
            for coming in self._coming.values():
                coming.servers.clear()
        under_way = self._under_way(worker)
        self._settled[worker] = self.made(worker)
        self._forgotten.update(under_way)
        self._pulled[worker] = _NOTHING
        decisions = (*self._leave(worker, now_s), *self._tell(now_s))
        if not self._workers and self._returning:  # no iteration is under way any more
            decisions += self._book(self._with_returning((Step(),), now_s), now_s)
        if not under_way:
            return decisions  # it was all here: the pace has discarded it now, or it counts
        forgotten = Decision((), under_way, (), self._ledger.version)
        return (forgotten, *decisions)

    def joined(self, worker: int, now_s: float) -> tuple[Decision, ...]:
        """Let a site that was lost take part again, if it computes and anything is left to do."""
        assert worker not in self._workers
        if worker not in self._all or self.is_over or self._closed:
            return ()
        if self.is_barrier:
            self._returning[worker] = None
            return ()
        if self.made(worker) == self._updates:
            return ()
        return (*self._book(self._join(worker, now_s), now_s), *self._tell(now_s))

    def _with_returning(self, steps: Sequence[Step], now_s: float) -> Sequence[Step]:
        """Let those go on with the others who wait for the end of an iteration, which this is."""
        update = self.under_way
        if self._closed or update == self._updates:
            return steps
        (step,) = steps  # at a barrier
        proceed = [*step.proceed]
        for worker in self._returning:
            self._made[worker] = self._settled[worker] = update
            for joined in self._join(worker, now_s):
                proceed += joined.proceed
        self.epoch += bool(self._returning)
        self._returning.clear()
        return (replace(step, proceed=tuple(proceed)),)

    def close(self) -> None:
        """Let nobody go on any more."""
        self._closed = True

    def _leave(self, worker: int, now_s: float) -> tuple[Decision, ...]:
        del self._workers[worker]
        self._load.leave(worker)
        for update in [update for update in self._coming if update[0] == worker]:
            del self._coming[update]
        for update in [update for update in self._began_s if update[0] == worker]:
            del self._began_s[update]
        self._computing.discard(worker)
        self._ledger.left(worker)
        return self._book(self._rule.leave(worker, now_s), now_s)

    def _book(self, steps: Sequence[Step], now_s: float) -> tuple[Decision, ...]:
        decisions: list[Decision] = []
        leaving: list[int] = []
        for told in steps:
            step = self._in_our_names(told)
            if self._ahead:
                step = self._without_late(step)
            applied = self._ledger.enter(step)
            permissions, finished = [], []
            for worker in step.proceed:
                self._computing.add(worker)
                permissions += self._permit(worker, now_s)
                if self.made(worker) == self._settled.get(worker, 0):
                    finished.append(worker)
            leaving += finished
            abandoned: list[Update] = []
            for worker in step.abandon:
                under_way = self._under_way(worker)
                self._forgotten.update(under_way)
                abandoned += under_way[-1:]
            decisions.append(
                Decision(
                    applied,
                    step.discard,
                    tuple(permissions),
                    self._ledger.version,
                    tuple(finished),
                    abandoned=tuple(abandoned),
                )
            )
        for worker in leaving:
            decisions += self._leave(worker, now_s)
        return tuple(decisions)

    def _without_late(self, step: Step) -> Step:
        """Discard what comes after an update that was discarded, on a model as old.

        A pace takes its worker to have gone on with a new one.
        """
        late = tuple(update for update in step.apply if self._ledger.is_late(update))
        apply = tuple(update for update in step.apply if update not in late)
        return replace(step, apply=apply, discard=(*step.discard, *late))

    def _permit(self, worker: int, now_s: float) -> list[Permission]:
        """Let a worker compute what it may, after a step of the model."""
        made = self.made(worker)
        most = self._settled.get(worker, 0) + 1 + self._ahead
        until = made if self._closed else min(self._updates, most)
        permissions = []
        for update in range(made + 1, until + 1):
            pulls = self._pulled.get(worker, 0) < self._ledger.version
            self._pulled[worker] = self._ledger.version
            self._began_s[worker, update] = now_s
            permissions.append(Permission(worker, update, self._load.samples(worker), pulls))
        self._made[worker] = until
        return permissions

    def _in_our_names(self, step: Step) -> Step:
        apply = chain.from_iterable(self._names.pop(update) for update in step.apply)
        discard = chain.from_iterable(self._names.pop(update) for update in step.discard)
        return replace(step, apply=tuple(apply), discard=tuple(discard))


def events_of(decision: Decision, at_s: float) -> list[events.Event]:
    """Return what the log says of a decision."""
    came = [] if decision.came is None else [decision.came]
    return [
        *(events.UpdateCame(at_s=at_s, site=worker, update=update) for worker, update in came),
        *(
            events.UpdateApplied(
                at_s=at_s,
                site=each.update[0],
                update=each.update[1],
                version=each.version,
                missed=each.missed,
            )
            for each in decision.applied
        ),
        *(
            events.UpdateDiscarded(at_s=at_s, site=worker, update=update)
            for worker, update in decision.discarded
        ),
        *(
            events.WorkerWent(at_s=at_s, site=went.worker, update=went.update, samples=went.samples)
            for went in decision.permissions
        ),
    ]


def dispensable(plan: Plan, pacing: PaceBook) -> set[int]:
    """Return the sites whose death leaves the others a way to every server and back."""
    # What is at a relay of an auxiliary path when it dies is not sent again.
    needed = {site for paths in plan.auxiliary.values() for path in paths for site in path[1:-1]}
    if pacing.is_barrier:
        return set(range(plan.size)) - plans.in_between(plan, pacing.workers) - needed
    needed.update(tree.root for tree in plan.trees)
    for tree, site in product(range(len(plan.trees)), pacing.workers):
        needed.update(plan.way_up(tree, site)[1:], plan.way_down(tree, site)[:-1])
    return set(range(plan.size)) - needed
