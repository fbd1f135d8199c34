"""Who may proceed in a run with servers: the pace, kept in step with what servers and workers say.

A server says when all of its part of a worker's update has come. Once all servers have, and the
worker has asked to go on, the pace is told; what it answers is written into the books and becomes
orders to the servers and permissions to workers. Pure: times are handed in.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product

from anabranch.cohort import Registry
from anabranch.merge import AnyMerge, Judge, Mean, UpdateFacts, filter_of
from anabranch.net.errors import OutOfPlaceMessage
from anabranch.net.messages import Agreed
from anabranch.pace import Ledger, Load, Pace, Step, Update, added_up
from anabranch.scheduler.clients import Clients
from anabranch.scheduler.decisions import Decision, Merged, Permission
from anabranch.scheduler.outliers import Outliers
from anabranch.scheduler.patience import RoundTimes
from anabranch.scheduler.waits import Stall

_NOTHING = -1  # the version of the model that a new process of a site has


@dataclass(slots=True)
class _Coming:
    """An update that is not all here: what each server said of it, and whether its worker asked."""

    servers: dict[int, float | None]  # the squared norm of each one's part, if it told
    asked: bool = False
    samples: int = 0
    compute_s: float = 0.0
    loss: float | None = None
    began_s: float = 0.0  # when it could be begun


@dataclass(frozen=True, slots=True)
class _Here:
    """An update of a group that is all here."""

    workers: tuple[int, ...]  # whose it is
    based_on: int  # which version of the model it was computed on
    mean_loss: float | None
    squared_norm: float | None


class PaceBook:
    """Keeps a run's pace.

    Workers move in *groups*: under a barrier all together, in a forest those of each tree, else
    each alone. A group's updates become part of the model in one step, and its workers go on
    together. So the pace knows a group as one worker, by the name of its first.

    Where a group's updates come added up, the loss of a worker voids what has come of the others'
    too, so the pace is told of none before all of the group's are there.

    **A worker that was lost may join again.** The update that it was let compute last is lost with
    it, and its name with the update: it goes on with its next, and makes what is left of as many as
    were asked of each. In a group that adds up, all make the same update at a time, so it waits for
    the end of the one under way, and goes on with the group's next.

    **A worker whose model is too old abandons its updates**, where the pace says so: all that it
    was let compute, wherever they are. It asks to proceed after each, but pushes none that it has
    not pushed yet. Then they are discarded by name, and it begins anew with its next.

    **Groups may be formed anew.** Those that are to change come to rest first: each leaves the pace
    when that would let it go on, so its updates are settled. The others notice nothing. Once all
    who take part know of the new groups, these join the pace, and go on with the update after the
    latest that one of theirs has made. A group whose way to the server led through a site that was
    lost cannot end its iteration: its updates under way are discarded, and it is at rest when all
    its workers have asked to proceed.

    **Outliers are barred**, where the merge rule has a filter: servers tell how far the updates of
    each step agree with their mean. A worker that is barred leaves the pace, and abandons what it
    computes. One that is let in again goes on with its next update. Where workers stand for others,
    these are barred, and a worker for whom no other is left leaves the pace until one is.

    Args:
        pace: the pace.
        load: sizes the batches; a fresh one.
        workers: which sites compute.
        servers: which sites hold the model; each must have an update before it counts.
        updates: how many each worker makes.
        ahead: how many updates a worker may compute before the model comes that has its last one
            in, 0 or 1: it computes while that one and the model are on their way.
        groups: of the workers, where they move in such; their updates are added up on their way.
        merge: what an update weighs.
        registry: of the clients that workers stand for; None where each stands for itself.
        look_every_s: the first worker that pulls the model after each so many seconds evaluates it;
            None where the book has no say in that.

    Attributes:
        times: of iterations, each from going on to asking to go on.
        adds_up: whether a group's updates are added up on their way.
        merge: see above.
        epochs: by each group's first, how many times it has changed who takes part in its sums.
        homeless: workers that are back, and in no group.
    """

    def __init__(
        self,
        pace: Pace,
        load: Load,
        workers: Iterable[int],
        servers: Iterable[int],
        updates: int,
        ahead: int = 0,
        groups: Sequence[tuple[int, ...]] = (),
        merge: AnyMerge | None = None,
        registry: Registry | None = None,
        look_every_s: float | None = None,
    ) -> None:
        workers = tuple(workers)
        together = added_up(pace, workers, groups, ahead)
        self.adds_up = bool(together)
        self.merge = Mean() if merge is None else merge
        self._rule = pace.rule()
        self._load = load
        # A sum comes with its slowest part, and one that computes ahead does so while it pushes.
        self._counts_pushing = not together and not ahead
        self._ahead = ahead
        self._ledger = Ledger(pace, ahead)
        of = [(min(group), sorted(group)) for group in together or [(each,) for each in workers]]
        self._groups = {lead: dict.fromkeys(group) for lead, group in of}  # who takes part
        self._lead = {worker: lead for lead, group in of for worker in group}
        self._workers = dict.fromkeys(sorted(self._lead))  # that take part
        self._all = frozenset(self._workers)
        self._returning: dict[int, None] = {}  # who waits for the end of an iteration
        self._servers = frozenset(servers)
        self._updates = updates
        self._made: dict[int, int] = {}  # updates that each worker was let compute
        self._settled: dict[int, int] = {}  # the latest that the pace was told of, or that was lost
        self._computing: set[int] = set()  # groups, as the pace knows it
        self._began_s: dict[Update, float] = {}  # when it could be begun
        self._pulled: dict[int, int] = {}  # which version of the model each has, or will
        self._based_on: dict[Update, int] = {}  # which version an update is computed on
        self._samples = dict.fromkeys(self._all, 1)  # that each worker holds
        self._coming: dict[Update, _Coming] = {}
        self._here: dict[Update, _Here] = {}  # of groups, until they are settled
        self._forgotten: set[Update] = set()  # with their workers, or abandoned by them
        # A pace counts what it is told of; not every update that was begun has come.
        self._told: Counter[int] = Counter()
        self._names: dict[Update, tuple[Update, ...]] = {}  # ours, by the pace's
        self._closed = False
        self._next: tuple[tuple[int, ...], ...] | None = None  # the groups that there are to be
        self._clients = None if registry is None else Clients(registry)
        self._look_every_s = look_every_s
        self._look_s = 0.0  # when to look at the model next
        rule = filter_of(self.merge)
        self._outliers = None if rule is None else Outliers(rule.start())
        self._barred: dict[int, bool] = {}  # workers, and whether each is to be let in again
        self._idle: dict[int, None] = {}  # workers for whom there is no client, out of the pace
        self._draining: set[int] = set()  # groups that are to change
        self._giving_up: set[int] = set()  # of those, whose workers give up what is under way
        self._resting: set[int] = set()  # groups of which nothing is under way, out of the pace
        self.homeless: dict[int, None] = {}
        self.times = RoundTimes()
        self.epochs = dict.fromkeys(self._groups, 0)

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The workers of each group that still take part, by groups; some may have none."""
        return tuple(tuple(group) for group in self._groups.values())

    def left_of(self, group: Iterable[int]) -> tuple[int, ...]:
        """Return those of some workers that still take part, or are back and about to."""
        here = self._workers.keys() | self._returning.keys()
        return tuple(worker for worker in group if worker in here)

    @property
    def under_way(self) -> int:
        """The latest update that a worker was let compute."""
        return max(self._made.values(), default=0)

    def sums_of(self, lead: int) -> tuple[tuple[int, ...], int]:
        """Return who takes part in a group's sums now, and of which of their updates these are.

        Args:
            lead: the group's first worker.
        """
        workers = tuple(self._groups[lead])
        made = max(self.made(worker) for worker, first in self._lead.items() if first == lead)
        is_next = all(self._settled.get(worker, 0) == made for worker in workers)
        return workers, made + is_next

    def made(self, worker: int) -> int:
        """Return how many updates a worker was let compute."""
        return self._made.get(worker, 0)

    def stalls(self) -> list[Stall]:
        """Return each worker that computes while another one waits to go on."""
        computing = dict.fromkeys(worker for worker, _ in self._began_s)
        waiting = self._workers.keys() - computing - self._idle.keys() - self._barred.keys()
        if not waiting:
            return []
        return [
            Stall(("update", *update), update[0], frozenset(waiting), f"its update {update[1]}")
            for update in self._began_s
        ]

    def is_given_up(self, worker: int, update: int) -> bool:
        """Return whether an update of a worker was given up before it was all here."""
        return (worker, update) in self._forgotten

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
        """Whether no worker takes part any more, nor is about to.

        In groups to be formed it may, or where the last verdicts can let it in again.
        """
        waiting = [each for each in self._returning if self._lead.get(each) in self._draining]
        out = self._barred.keys() | self._idle.keys()
        here = self._workers.keys() - out
        # One that is about to has only to ask.
        unjudged = self._outliers is not None and self._outliers.unjudged
        may_be_let_in = out and not self._closed and (unjudged or self._are_about_to_be_back)
        return not (here or self.homeless or may_be_let_in or self._with_more_to_do(waiting))

    @property
    def barred(self) -> tuple[int, ...]:
        """Which workers are barred, and have not made all their updates."""
        return tuple(each for each in self._barred if self.made(each) < self._updates)

    @property
    def idle(self) -> tuple[int, ...]:
        """Which workers have no client, as too many are barred, and updates to make."""
        return tuple(each for each in self._idle if self.made(each) < self._updates)

    @property
    def version(self) -> int:
        """How many steps have changed the model."""
        return self._ledger.version

    @property
    def size(self) -> int:
        """How many workers there are, with those that take part no more."""
        return len(self._all)

    @property
    def welcome(self) -> int:
        """How many clients are registered and not barred; 0 where workers stand for themselves."""
        return 0 if self._clients is None else self._clients.welcome

    def holds(self, worker: int, samples: int) -> None:
        """Take note of how many samples a worker trains on, before the run begins."""
        self._samples[worker] = samples

    def serve(self, servers: Iterable[int]) -> None:
        """Take these alone for those that hold the model; before it begins."""
        self._servers = frozenset(servers)

    def begin(self, now_s: float) -> tuple[Decision, ...]:
        """Let all workers join."""
        decisions: list[Decision] = []
        for lead in self._groups:
            decisions += self._book(self._join(lead, now_s), now_s)
        return tuple(decisions)

    def _join(self, lead: int, now_s: float) -> tuple[Step, ...]:
        self._workers |= self._groups[lead]
        self._ledger.joined()
        return self._rule.join(lead, now_s)

    def asked(
        self,
        worker: int,
        update: int,
        samples: int,
        compute_s: float,
        now_s: float,
        loss: float | None = None,
    ) -> tuple[Decision, ...]:
        """Take a worker's request to proceed: its update is on its way.

        Args:
            worker: who.
            update: which of its updates.
            samples: of its batch.
            compute_s: how long it computed.
            now_s: the time.
            loss: of its batch; None if there is none.

        Raises:
            OutOfPlaceMessage: it has asked before, or was not let compute that update.
        """
        coming = self._expected(worker, update)
        if coming.asked:
            raise OutOfPlaceMessage(f"site {worker} asks to proceed twice, after update {update}")
        coming.began_s = self._began_s.pop((worker, update))
        iteration_s = now_s - coming.began_s
        coming.asked, coming.samples, coming.loss = True, samples, loss
        coming.compute_s = min(compute_s, iteration_s)
        if (worker, update + 1) in self._began_s:
            self._began_s[worker, update + 1] = now_s
        if (worker, update) in self._forgotten:  # its time is not that of an iteration
            back: tuple[Decision, ...] = ()
            if self._outliers is not None and self._barred.get(worker):
                back = self._readmit(self._outliers.judge, worker, now_s)
            return (*back, *self._rest_if_all_asked(self._lead[worker]), *self._tell(now_s))
        self.times.add((worker, update), iteration_s)
        if not self._counts_pushing:
            self._load.measured(worker, samples, coming.compute_s, iteration_s)
        return self._push_if_all_here(worker, update, now_s)

    def is_void(self, worker: int, epoch: int) -> bool:
        """Return whether a sum with an update of a worker that came under an epoch counts no more.

        Raises:
            OutOfPlaceMessage: there was no such epoch yet, or the site computes nothing.
        """
        latest = self.epochs.get(self._lead.get(worker, -1), -1)
        if not 0 <= epoch <= latest:
            raise OutOfPlaceMessage(
                f"a sum of epoch {epoch} with an update of site {worker}, where {latest} is the "
                "latest"
            )
        return epoch < latest

    def came(
        self,
        server: int,
        worker: int,
        update: int,
        now_s: float,
        squared_norm: float | None = None,
    ) -> tuple[Decision, ...]:
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
        coming.servers[server] = squared_norm
        return self._push_if_all_here(worker, update, now_s)

    # --- outliers

    def agreed(self, server: int, told: Agreed) -> list[tuple[Update, float]]:
        """See :meth:`anabranch.scheduler.outliers.Outliers.agreed`."""
        if self._outliers is None:
            raise OutOfPlaceMessage(f"site {server} tells how updates agree, and nothing asks it")
        return self._outliers.agreed(server, self._servers, told)

    def judged(self, worker: int, update: int, cosine: float, now_s: float) -> tuple[Decision, ...]:
        """Take note of how far an update agreed with its step; bar whose it is if it is time to.

        Args:
            worker: whose.
            update: which.
            cosine: of the angle between the two.
            now_s: the time.
        """
        assert self._outliers is not None
        version, decisions = self._ledger.version, list[Decision]()
        clients, judge = self._clients, self._outliers.judge
        who = self._outliers.unjudged.pop((worker, update))
        of = len(self._all) if clients is None else clients.registry.registered
        if judge.saw(who, cosine, version, of):
            if clients is None:
                decisions += self._bar(worker, now_s)
            else:
                clients.registry.barred.add(who)
                decisions.append(Decision((), (), (), version, barred=(who,)))
        decisions += self._let_in(judge, judge.over(version), now_s)
        return (*decisions, *self._tell(now_s))

    def _let_in(self, judge: Judge, whom: Iterable[int], now_s: float) -> list[Decision]:
        """Let barred clients take part again, or workers that stand for themselves."""
        decisions = list[Decision]()
        for each in whom:
            if self._clients is None:
                decisions += self._readmit(judge, each, now_s)
            else:
                judge.readmit(each)
                self._clients.registry.barred.discard(each)
                decisions.append(Decision((), (), (), self._ledger.version, readmitted=(each,)))
        return decisions

    @property
    def _are_about_to_be_back(self) -> list[int]:
        """The barred workers that are to be let in again, once they ask."""
        return [
            each
            for each, is_to_be in self._barred.items()
            if is_to_be and self.made(each) < self._updates
        ]

    def _stands_still(self, outliers: Outliers) -> bool:
        """Whether no step can come, since all are barred whose updates would make one."""
        out = self._barred.keys() | self._idle.keys()
        return not (
            self._closed
            or not out
            or self._workers.keys() - out
            or outliers.unjudged
            or self._are_about_to_be_back
            or self.done  # then they end, with those who are barred to the end
        )

    def _bar(self, worker: int, now_s: float) -> tuple[Decision, ...]:
        barred = Decision((), (), (), self._ledger.version, barred=(worker,), uncounted=(worker,))
        if worker not in self._workers:  # it is lost, and may come back
            return (barred,)
        self._barred[worker] = False
        self._load.leave(worker)
        under_way = self._under_way(worker)
        self._forgotten.update(under_way)
        decision = replace(barred, discarded=under_way, abandoned=under_way[-1:])
        return (decision, *self._leave_pace(self._lead[worker], now_s))

    def _readmit(self, judge: Judge, worker: int, now_s: float) -> tuple[Decision, ...]:
        """Let a barred worker take part again, once it has asked to after what it abandoned."""
        if worker not in self._barred:
            return ()
        self._barred[worker] = True
        under_way = self._under_way(worker)
        if not all(each in self._coming and self._coming[each].asked for each in under_way):
            return ()
        for each in under_way:
            del self._coming[each], self._based_on[each]
        self._settled[worker] = self.made(worker)
        if self.made(worker) == self._updates or self._closed:
            return ()
        del self._barred[worker]
        judge.readmit(worker)
        back = Decision((), (), (), self._ledger.version, readmitted=(worker,))
        return (back, *self._book(self._join(self._lead[worker], now_s), now_s))

    def _expected(self, worker: int, update: int) -> _Coming:
        due = self._settled.get(worker, 0) < update <= self.made(worker)
        if worker not in self._workers or not due:
            raise OutOfPlaceMessage(f"update {update} of site {worker}, which is not awaited")
        return self._coming.setdefault((worker, update), _Coming({}))

    def _push_if_all_here(self, worker: int, update: int, now_s: float) -> tuple[Decision, ...]:
        if not self._is_all_here((worker, update)):
            return ()
        coming = self._coming[worker, update]
        if self._counts_pushing:
            iteration_s = now_s - coming.began_s
            self._load.measured(worker, coming.samples, coming.compute_s, iteration_s)
        came = Decision(
            *((), (), (), self._ledger.version),
            came=(worker, update),
            squared_norm=_sum([coming.servers[server] for server in sorted(coming.servers)]),
        )
        return (came, *self._tell(now_s))

    def _tell(self, now_s: float) -> list[Decision]:
        """Tell the pace of all updates that are here and that it can hear of."""
        decisions: list[Decision] = []
        waiting = self._coming_groups()
        while waiting:
            lead = waiting.pop(0)
            workers = tuple(self._groups[lead])
            if lead not in self._computing or not workers:
                continue
            first = self._settled.get(workers[0], 0) + 1
            is_abandoned = (workers[0], first) in self._forgotten
            last = self.made(workers[0]) if is_abandoned else first
            updates = [*product(workers, range(first, last + 1))]
            if not all(map(self._is_all_here, updates)):
                continue  # a loss may yet void what is here
            compute_s = max(self._coming[worker, first].compute_s for worker in workers)
            for number in range(first, last + 1):
                self._here[lead, number] = self._of_group(workers, number)
                self._ledger.pushed((lead, number))
            for worker in workers:
                self._settled[worker] = last
            if is_abandoned and self.adds_up:
                self.epochs[lead] += 1  # its sums are never whole
            self._computing.remove(lead)
            self._told[lead] += 1
            names = tuple((lead, number) for number in range(first, last + 1))
            self._names[lead, self._told[lead]] = names
            decisions += self._book(self._rule.push(lead, now_s, compute_s), now_s)
            waiting = self._coming_groups()  # a worker's next update may be here already
        if self._outliers is not None and self._stands_still(self._outliers):
            # A blacklist ends with steps of the model, and none would come.
            judge, among = self._outliers.judge, None if self._clients else self._barred
            decisions += self._let_in(judge, judge.eldest(among), now_s)
        while self._idle and not self._closed and self._has_client():
            worker = next(iter(self._idle))
            del self._idle[worker]
            decisions += self._book(self._join(self._lead[worker], now_s), now_s)
        return decisions

    def _coming_groups(self) -> list[int]:
        """Return the groups of which anything has come, in their order."""
        leads = {self._lead[worker] for worker, _ in self._coming if worker in self._lead}
        return [lead for lead in self._groups if lead in leads]

    def _of_group(self, workers: tuple[int, ...], number: int) -> _Here:
        """Return what is known of an update of a group, whose parts are awaited no more."""
        parts = [self._coming.pop((worker, number)) for worker in workers]
        bases = [self._based_on.pop((worker, number)) for worker in workers]
        loss = _sum([part.loss for part in parts])
        # Added up, they came as their mean, and each says how large that was.
        norm = _sum([parts[0].servers[server] for server in sorted(parts[0].servers)])
        return _Here(workers, min(bases), None if loss is None else loss / len(parts), norm)

    def _is_all_here(self, update: Update) -> bool:
        """Return whether nothing of an update is awaited: none of one that is abandoned is."""
        coming = self._coming.get(update)
        has_come = coming is not None and coming.servers.keys() == self._servers
        return coming is not None and coming.asked and (has_come or update in self._forgotten)

    def _under_way(self, worker: int) -> tuple[Update, ...]:
        """Return the updates that a worker was let compute, and that are not settled."""
        first = self._settled.get(worker, 0) + 1
        return tuple((worker, update) for update in range(first, self.made(worker) + 1))

    def look(self, now_s: float) -> tuple[Decision, ...]:
        """Decide what has become due; harmless at any time."""
        return (*self._book(self._rule.look(now_s), now_s), *self._tell(now_s))

    def lost(self, site: int, now_s: float, broken: Iterable[int] = ()) -> tuple[Decision, ...]:
        """Go on without a site that has died; servers forget what of its update has come.

        Args:
            site: which; it may compute nothing.
            now_s: the time.
            broken: the firsts of groups whose way to the server led through it. They are to be
                formed anew.
        """
        given_up = [self._give_up(lead, now_s) for lead in broken]
        return (*chain.from_iterable(given_up), *self._lost(site, now_s))

    def _lost(self, worker: int, now_s: float) -> tuple[Decision, ...]:
        self._returning.pop(worker, None)
        self.homeless.pop(worker, None)
        if worker not in self._workers:
            return ()
        lead = self._lead[worker]
        # Who gives up what is under way makes no other sum of it, and takes what still comes.
        gives_up = lead in self._giving_up or lead in self._resting
        is_settled = gives_up or worker in self._barred  # what is under way, by name
        if self.adds_up and not gives_up:
            self.epochs[lead] += 1
            for (other, _), coming in self._coming.items():
                if self._lead[other] == lead:
                    coming.servers.clear()
        under_way = self._under_way(worker)
        self._settled[worker] = self.made(worker)
        self._forgotten.update(under_way)
        self._settle_clients((), under_way)
        self._pulled[worker] = _NOTHING
        decisions = (*self._leave(worker, now_s), *self._tell(now_s))
        if not self._groups[lead]:  # no iteration is under way any more
            decisions += self._begin_anew(lead, now_s)
        if not under_way or is_settled:
            return decisions  # it was all here: the pace has discarded it now, or it counts
        forgotten = Decision((), under_way, (), self._ledger.version)
        return (forgotten, *decisions)

    def joined(self, worker: int, now_s: float, is_cut_off: bool = False) -> tuple[Decision, ...]:
        """Let a site that was lost take part again, if it computes and anything is left to do.

        Args:
            worker: which.
            now_s: the time.
            is_cut_off: whether its group's way from it to the server leads through a site that is
                lost. The group is to be formed anew.
        """
        assert worker not in self._workers
        if worker not in self._all or self.is_over or self._closed:
            return ()
        if worker not in self._lead:
            if self.made(worker) < self._updates:
                self.homeless[worker] = None
            return ()
        lead = self._lead[worker]
        if is_cut_off:
            self._draining.add(lead)
        if self.adds_up:
            self._returning[worker] = None
            return () if self._groups[lead] else self._begin_anew(lead, now_s)
        if self.made(worker) == self._updates:
            return ()
        self._groups[lead][worker] = None
        if self._outliers is not None and worker in self._outliers.judge.barred:
            self._workers[worker] = None
            self._barred[worker] = False
            return ()
        return (*self._book(self._join(lead, now_s), now_s), *self._tell(now_s))

    def _let_back(self, lead: int) -> None:
        """Let those go on with their group who wait for the end of an iteration, which this is."""
        back = [worker for worker in self._returning if self._lead.get(worker) == lead]
        update = max(self.made(worker) for worker, first in self._lead.items() if first == lead)
        if not back or self._closed or update == self._updates:
            return
        self.epochs[lead] += 1
        for worker in back:
            del self._returning[worker]
            self._made[worker] = self._settled[worker] = update
            self._workers[worker] = self._groups[lead][worker] = None

    def _begin_anew(self, lead: int, now_s: float) -> tuple[Decision, ...]:
        """Let a group take part again of whom all were lost and some are back."""
        if lead in self._draining:
            return ()
        self._let_back(lead)
        return self._book(self._join(lead, now_s), now_s) if self._groups[lead] else ()

    def last_pulls(self, there: Collection[int], to_one: bool = False) -> tuple[Update, ...]:
        """Return to which workers the model is sent that no step follows, once all is over.

        Args:
            there: the sites that are.
            to_one: whether one worker is enough, with those to which it cannot come but together.

        Returns:
            Workers, each with the update after its last one. In a group that adds up, those who
            waited to come back have made as many as the others from then on.
        """
        assert self.is_over
        for lead in self._groups if self.adds_up else ():
            group = [each for each, first in self._lead.items() if first == lead]
            last = max(map(self.made, group))
            if back := [each for each in group if each in self._returning and each in there]:
                self.epochs[lead] += 1
                self._made |= dict.fromkeys(back, last)
                self._settled |= dict.fromkeys(back, last)
            finished = [each for each in group if self.made(each) == last]
            self._groups[lead] = dict.fromkeys(each for each in finished if each in there)
        pulls = [
            (worker, self.made(worker) + 1)
            for worker in sorted(self._all)
            if worker in there and worker in self._lead
        ]
        if to_one and pulls:
            lead = self._lead[pulls[0][0]]
            pulls = [each for each in pulls if self._lead[each[0]] == lead]
        return tuple(pulls)

    def close(self) -> None:
        """Let nobody go on any more."""
        self._closed = True
        self.homeless.clear()
        self._returning.clear()

    def _leave(self, worker: int, now_s: float) -> tuple[Decision, ...]:
        lead = self._lead[worker]
        del self._workers[worker], self._groups[lead][worker]
        self._load.leave(worker)
        for update in [update for update in self._coming if update[0] == worker]:
            del self._coming[update]
        for update in [update for update in self._began_s if update[0] == worker]:
            del self._began_s[update]
        for update in [update for update in self._based_on if update[0] == worker]:
            del self._based_on[update]
        if self._groups[lead]:
            return self._rest_if_all_asked(lead)
        if worker in self._barred or worker in self._idle:
            self._barred.pop(worker, None)
            self._idle.pop(worker, None)
            return ()
        if lead in self._giving_up or lead in self._resting:
            self._giving_up.discard(lead)
            self._resting.discard(lead)
            return ()
        return self._leave_pace(lead, now_s)

    def _leave_pace(self, lead: int, now_s: float) -> tuple[Decision, ...]:
        self._computing.discard(lead)
        self._ledger.left(lead)
        has_finished = self._closed or self.made(lead) == self._updates
        return self._book(self._rule.leave(lead, now_s, has_finished), now_s)

    # --- groups that are formed anew

    def reform(self, groups: Sequence[tuple[int, ...]], kept: Iterable[int]) -> None:
        """Let groups that are to change come to rest, each when it would go on.

        Args:
            groups: those that there are to be, in rising order each; workers in none take part no
                more.
            kept: the firsts of groups that stay as they are.
        """
        self._next = tuple(groups)
        self._draining = self._groups.keys() - {*kept}

    @property
    def is_at_rest(self) -> bool:
        """Whether new groups can be formed: of all that are to change nothing is under way."""
        awaited = [lead for lead in self._draining if self._groups[lead]]
        return self._next is not None and all(lead in self._resting for lead in awaited)

    @property
    def done(self) -> tuple[int, ...]:
        """The workers that were let compute all that they are to."""
        return tuple(each for each in sorted(self._all) if self.made(each) == self._updates)

    def next_update(self, group: Iterable[int]) -> int:
        """Return the update that workers at rest go on with as a group, but those who are done."""
        return 1 + max(map(self.made, self._with_more_to_do(group)), default=0)

    def _with_more_to_do(self, group: Iterable[int]) -> list[int]:
        return [each for each in group if self.made(each) < self._updates]

    def formed(self, now_s: float) -> tuple[Decision, ...]:
        """Let the new groups begin, of which all who take part know."""
        assert self._next is not None
        assert self.is_at_rest
        begins = [lead for lead in self._resting if lead not in self._draining]  # they stay
        for lead in self._draining:
            del self._groups[lead], self.epochs[lead]
        self._lead = {each: lead for each, lead in self._lead.items() if lead in self._groups}
        for group in self._next:
            if group[0] not in self._groups and self._with_more_to_do(group):
                self._form(group)
                begins.append(group[0])
        for worker in [each for each in self._returning if each not in self._lead]:
            del self._returning[worker]
            if self.made(worker) < self._updates and not self._closed:
                self.homeless[worker] = None
        self._next = None
        self._draining = set()
        self._resting.clear()
        decisions: list[Decision] = []
        for lead in begins:
            if self._groups[lead]:
                decisions += self._book(self._join(lead, now_s), now_s)
        return (*decisions, *self._tell(now_s))

    def _form(self, group: tuple[int, ...]) -> None:
        lead, first = group[0], self.next_update(group)
        there = self._workers.keys() | self._returning.keys() | self.homeless.keys()
        here = [each for each in self._with_more_to_do(group) if each in there]
        goes_on = all(each in self._workers for each in group)
        for worker in here:
            self._returning.pop(worker, None)
            self.homeless.pop(worker, None)
            self._made[worker] = self._settled[worker] = first - 1
            self._pulled[worker] = _NOTHING
        self._groups[lead] = dict.fromkeys(here)
        self._workers |= self._groups[lead]
        self._lead |= dict.fromkeys(self._with_more_to_do(group), lead)
        # Sites take all to be there, and one that is back awaits to hear that it takes part.
        self.epochs[lead] = int(not goes_on)

    def _give_up(self, lead: int, now_s: float) -> tuple[Decision, ...]:
        """Let a group whose way to the server is broken leave the pace; it is to be formed anew."""
        self._draining.add(lead)
        if lead not in self._computing:
            return ()  # what it has made is here
        self._giving_up.add(lead)
        of_each = [self._under_way(worker) for worker in self._groups[lead]]
        under_way = tuple(chain.from_iterable(of_each))
        self._forgotten.update(under_way)
        abandoned = tuple(each[-1] for each in of_each)
        version = self._ledger.version
        given_up = Decision((), under_way, (), version, abandoned=abandoned, is_broken=True)
        decisions = (given_up, *self._leave_pace(lead, now_s))
        return (*decisions, *self._rest_if_all_asked(lead))

    def _rest_if_all_asked(self, lead: int) -> tuple[Decision, ...]:
        """Take note of the moment when a group that gives up what is under way is at rest.

        Where that was the last that it had to do, its workers have finished.
        """
        if lead not in self._giving_up:
            return ()
        under_way = [*chain.from_iterable(map(self._under_way, self._groups[lead]))]
        if not all(each in self._coming and self._coming[each].asked for each in under_way):
            return ()
        for each in under_way:
            del self._coming[each], self._based_on[each]
        for worker in self._groups[lead]:
            self._settled[worker] = self.made(worker)
        self._giving_up.remove(lead)
        self._resting.add(lead)
        if self._with_more_to_do(self._groups[lead]):
            return ()
        finished = tuple(self._groups[lead])
        for worker in finished:
            del self._workers[worker], self._groups[lead][worker]
            self._load.leave(worker)
        return (Decision((), (), (), self._ledger.version, finished),)

    def _book(self, steps: Sequence[Step], now_s: float) -> tuple[Decision, ...]:
        decisions: list[Decision] = []
        leaving: list[int] = []
        resting: list[int] = []
        idle: list[int] = []
        for told in steps:
            step = self._in_our_names(told)
            if self._ahead:
                step = self._without_late(step)
            before = self._ledger.version
            applied: list[Merged] = []
            for each in self._ledger.enter(step):
                here = self._here.pop(each.update)
                factor = self._factor(here, before)
                for worker in here.workers:
                    update = worker, each.update[1]
                    applied.append(Merged(update, each.version, each.missed, factor))
            discarded = [
                (worker, number)
                for lead, number in step.discard
                for worker in self._here.pop((lead, number)).workers
            ]
            self._settle_clients([each.update for each in applied], discarded)
            permissions, finished = [], []
            for lead in step.proceed:
                if self._is_to_rest(lead):
                    self._resting.add(lead)
                    resting.append(lead)
                    continue
                if self._is_to_idle(lead):
                    idle.append(lead)
                    continue
                self._computing.add(lead)
                self._let_back(lead)
                for worker in self._groups[lead]:
                    permissions += self._permit(worker, now_s)
                    if self.made(worker) == self._settled.get(worker, 0):
                        finished.append(worker)
            if self._outliers is not None:
                self._outliers.merged([each.update for each in applied])
            leaving += finished
            abandoned: list[Update] = []
            for worker in chain.from_iterable(self._groups[lead] for lead in step.abandon):
                under_way = self._under_way(worker)
                self._forgotten.update(under_way)
                abandoned += under_way[-1:]
            decisions.append(
                Decision(
                    tuple(applied),
                    tuple(discarded),
                    tuple(permissions),
                    self._ledger.version,
                    tuple(finished),
                    abandoned=tuple(abandoned),
                    share=step.share,
                )
            )
        for worker in leaving:
            decisions += self._leave(worker, now_s)
        for lead in resting:
            decisions += self._leave_pace(lead, now_s)
        for lead in idle:
            self._idle[lead] = None
            decisions += self._leave_pace(lead, now_s)
        return tuple(decisions)

    def _settle_clients(self, applied: Iterable[Update], discarded: Iterable[Update]) -> None:
        """Let clients be free whose updates are settled, before others are drawn."""
        clients, outliers = self._clients, self._outliers
        if clients is not None:
            for update in discarded:
                clients.settle(update)
        for update in applied:
            client = None if clients is None else clients.settle(update)
            if outliers is not None:
                outliers.unjudged[update] = update[0] if client is None else client

    def _has_client(self) -> bool:
        """Return whether there is a client that a worker may compute for, if it stands for many."""
        return self._clients is None or self._clients.has_one(self._settled)

    def _is_to_idle(self, worker: int) -> bool:
        """Return whether a worker that may go on has more to do, and no client to do it for."""
        return not self._closed and self.made(worker) < self._updates and not self._has_client()

    def _is_to_rest(self, lead: int) -> bool:
        """Return whether a group that may go on is to change instead; not if it has made all."""
        made = max(map(self.made, self._groups[lead]))
        return lead in self._draining and not self._closed and made < self._updates

    def _factor(self, here: _Here, version: int) -> float | None:
        """Return what a group's step is multiplied by, which is to change this version."""
        if isinstance(self.merge, Mean):
            return None
        samples = sum(self._samples[worker] for worker in here.workers)
        all_samples = sum(self._samples.values())
        weight = self.merge.weight(
            UpdateFacts(
                version - here.based_on, samples, all_samples, here.mean_loss, here.squared_norm
            )
        )
        # By its data it weighs already: workers push with that weight.
        return weight / (samples / all_samples) if self.merge.weighs_data else weight

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
            if not self._has_client():
                until = update - 1
                break
            pulls = self._pulled.get(worker, 0) < self._ledger.version
            self._pulled[worker] = self._based_on[worker, update] = self._ledger.version
            self._began_s[worker, update] = now_s
            client = None
            if self._clients is not None:
                unjudged = {} if self._outliers is None else self._outliers.unjudged
                client = self._clients.draw(
                    (worker, update), now_s, unjudged.values(), self._settled
                )
            samples = self._load.samples(worker)
            looks = pulls and self._looks(now_s)
            permissions.append(Permission(worker, update, samples, pulls, client, looks))
        self._made[worker] = until
        return permissions

    def _looks(self, now_s: float) -> bool:
        """Return whether it is time to evaluate the model; if so, it is not until the next time."""
        if self._look_every_s is None or now_s < self._look_s or not self._ledger.version:
            return False
        self._look_s = (now_s // self._look_every_s + 1) * self._look_every_s
        return True

    def _in_our_names(self, step: Step) -> Step:
        apply = chain.from_iterable(self._names.pop(update) for update in step.apply)
        discard = chain.from_iterable(self._names.pop(update) for update in step.discard)
        return replace(step, apply=tuple(apply), discard=tuple(discard))


def _sum(numbers: Sequence[float | None]) -> float | None:
    """Return the sum of numbers; None where one is missing."""
    known = [number for number in numbers if number is not None]
    return math.fsum(known) if len(known) == len(numbers) and known else None
