"""The books of a served model: which updates come, what they weigh, and which workers may go on.

A server says when all of its part of a worker's update has come. Once all servers have, and the
worker has asked to go on, the pace is told; what it answers is written into the books and becomes
orders to the servers and permissions to workers. Pure: times are handed in.

The books have one idea a file, in `serving/`:

- `updates`: an update's life, until the pace is told of it;
- `workers` and `groups`: a worker's life and a group's, one table each;
- `pace_of_groups`: the pace, told of groups, with its steps in the updates' own names;
- `permits` and `weights`: what a permission says, and what a step is multiplied by;
- `stepping`: what follows from the pace's steps;
- `barring` and `regrouping`: the conversations about outliers and about groups formed anew;
- `standing`: what the other parts of a scheduler may ask.

:class:`PaceBook` puts them together. Its methods are the events of a run. Each event ends with
telling the pace of all updates that are complete by then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType

from anabranch.cohort import Registry
from anabranch.merge import AnyMerge, Mean, filter_of
from anabranch.net.errors import OutOfPlaceMessage
from anabranch.net.messages import Agreed
from anabranch.pace import Load, Pace, Update, added_up
from anabranch.scheduler._clients import Clients
from anabranch.scheduler._outliers import Outliers
from anabranch.scheduler._patience import RoundTimes
from anabranch.scheduler.decisions import Decision
from anabranch.scheduler.serving._barring import Barring
from anabranch.scheduler.serving._groups import Groups
from anabranch.scheduler.serving._groups import Stage as GroupStage
from anabranch.scheduler.serving._pace_of_groups import PaceOfGroups
from anabranch.scheduler.serving._permits import Permits
from anabranch.scheduler.serving._regrouping import Regrouping
from anabranch.scheduler.serving._standing import Standing
from anabranch.scheduler.serving._stepping import Stepping
from anabranch.scheduler.serving._updates import Iteration, Updates
from anabranch.scheduler.serving._weights import Weights
from anabranch.scheduler.serving._workers import Happens, Stage, Workers


class PaceBook:
    """Keeps a run's pace.

    Workers move in *groups*: under a barrier all together, in a forest those of each tree, else
    each alone. Where a group's updates come added up, the loss of a worker voids what has come of
    the others' too, so the pace is told of none before all of the group's are complete.

    **A worker that was lost may join again.** The update that it was let compute last is lost with
    it, and its name with the update: it goes on with its next, and makes what is left of as many as
    were asked of each.

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
        standing: what may be asked of the books.
        times: of iterations, each from going on to asking to go on.
        merge: see above.
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
        all_together = added_up(pace, workers, ahead)
        together = tuple(groups) or ((all_together,) if all_together else ())
        registered = None if registry is None else Clients(registry)
        rule = filter_of(Mean() if merge is None else merge)
        outliers = None if rule is None else Outliers(rule.start())
        self.merge = Mean() if merge is None else merge
        self.times = RoundTimes()
        # A sum comes with its slowest part, and one that computes ahead does so while it pushes.
        self._counts_pushing = not together and not ahead
        self._load = load
        self._clients = registered
        self._groups = Groups(together or [(each,) for each in workers], bool(together))
        self._workers = Workers(sorted(self._groups.lead_of))
        self._updates = Updates(self._workers.all, servers, updates, ahead)
        self._weights = Weights(self.merge, self._workers.all)
        self._permits = Permits(self._updates, load, registered, outliers, look_every_s)
        self._pace = PaceOfGroups(pace, ahead)
        self._stepping = Stepping(
            self._pace,
            self._updates,
            self._workers,
            self._groups,
            self._permits,
            self._weights,
            load,
        )
        self._regrouping = Regrouping(self._stepping, self._updates, self._workers, self._groups)
        self._barring = (
            None
            if outliers is None
            else Barring(
                outliers,
                registered,
                self._stepping,
                self._updates,
                self._workers,
                self._groups,
                load,
            )
        )
        self.standing = Standing(
            self._updates,
            self._workers,
            self._groups,
            self._pace,
            self._regrouping,
            self._barring,
            self._clients,
        )

    @property
    def due_s(self) -> float:
        """When to call ``look`` next; infinite where nothing depends on time alone."""
        return self._pace.due_s

    # --- the run begins

    def holds(self, worker: int, samples: int) -> None:
        """Take note of how many samples a worker trains on, before the run begins."""
        self._weights.holds(worker, samples)

    def serve(self, servers: Iterable[int]) -> None:
        """Take these alone for those that hold the model; before it begins."""
        self._updates.servers = frozenset(servers)

    def begin(self, now_s: float) -> tuple[Decision, ...]:
        """Let all workers join."""
        decisions: list[Decision] = []
        for lead in self._groups.leads:
            decisions += self._stepping.join(lead, now_s)
        return tuple(decisions)

    # --- updates

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
            worker: which.
            update: which of its updates.
            samples: of its batch.
            compute_s: how long it computed.
            now_s: the time.
            loss: of its batch; None if there is none.

        Raises:
            OutOfPlaceMessage: it has asked before, or was not let compute that update.
        """
        name = worker, update
        iteration = self._updates.ask(name, samples, compute_s, now_s, loss)
        if self._updates.is_given_up(name):  # its time is not that of an iteration
            decisions: list[Decision] = []
            if self._barring is not None:
                decisions += self._barring.readmit_if_recalled(worker, now_s)
            decisions += self._regrouping.rest_if_all_asked(self._groups.lead_of[worker], now_s)
            return (*decisions, *self._tell(now_s))
        self.times.add(name, iteration.iteration_s)
        if not self._counts_pushing:
            self._measured(worker, iteration)
        return self._push_if_complete(name, now_s)

    def _measured(self, worker: int, iteration: Iteration) -> None:
        self._load.measured(worker, iteration.samples, iteration.compute_s, iteration.iteration_s)

    def is_void(self, worker: int, epoch: int) -> bool:
        """Return whether a sum with an update of a worker that came under an epoch counts no more.

        Raises:
            OutOfPlaceMessage: there was no such epoch yet, or the site computes nothing.
        """
        latest = self._groups.epochs.get(self._groups.lead_of.get(worker, -1), -1)
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
        if server not in self._updates.servers:
            raise OutOfPlaceMessage(f"site {server} has an update, but serves no part of the model")
        name = worker, update
        if not self._workers.is_member(worker) or self._updates.is_given_up(name):
            return ()  # it was lost meanwhile, or has abandoned it
        self._updates.come(server, name, squared_norm)
        return self._push_if_complete(name, now_s)

    def _push_if_complete(self, update: Update, now_s: float) -> tuple[Decision, ...]:
        if not self._updates.is_complete(update):
            return ()
        if self._counts_pushing:
            self._measured(update[0], self._updates.iteration(update, now_s))
        squared_norm = self._updates.squared_norm(update)
        came = Decision((), (), (), self._pace.version, came=update, squared_norm=squared_norm)
        return (came, *self._tell(now_s))

    def _tell(self, now_s: float) -> list[Decision]:
        """Tell the pace of all updates that are complete and that it can hear of."""
        decisions: list[Decision] = []
        waiting = self._with_updates()
        while waiting:
            pushed = self._stepping.push(waiting.pop(0), now_s)
            if pushed is not None:
                decisions += pushed
                waiting = self._with_updates()  # a worker's next update may be complete already
        if self._barring is not None:
            decisions += self._barring.let_in_if_none_computes(now_s)
        while not self._updates.closed and self._permits.has_client:
            idle = self._workers.at(Stage.IDLE)
            if not idle:
                break
            decisions += self._stepping.join(self._groups.lead_of[idle[0]], now_s)
        return decisions

    def _with_updates(self) -> list[int]:
        """Return the groups that compute and of which an update may be complete, in their order."""
        lead_of, is_computing = self._groups.lead_of, GroupStage.COMPUTING
        leads = {lead_of[each] for each in self._updates.asked_after() if each in lead_of}
        return [
            lead
            for lead in self._groups.leads
            if lead in leads and self._groups.stages[lead] is is_computing
        ]

    def look(self, now_s: float) -> tuple[Decision, ...]:
        """Decide what has become due; harmless at any time."""
        return (*self._stepping.look(now_s), *self._tell(now_s))

    # --- outliers

    def agreed(self, server: int, told: Agreed) -> list[tuple[Update, float]]:
        """See :meth:`anabranch.scheduler._outliers.Outliers.agreed`."""
        if self._barring is None:
            raise OutOfPlaceMessage(f"site {server} tells how updates agree, and nothing asks it")
        return self._barring.agreed(server, told)

    def judged(self, worker: int, update: int, cosine: float, now_s: float) -> tuple[Decision, ...]:
        """Take note of how far an update agreed with its step; bar whose it is if it is time to.

        Args:
            worker: whose.
            update: which.
            cosine: of the angle between the two.
            now_s: the time.
        """
        assert self._barring is not None
        decisions = self._barring.judged((worker, update), cosine, now_s)
        return (*decisions, *self._tell(now_s))

    # --- workers that are lost, and back

    def lost(self, site: int, now_s: float, broken: Iterable[int] = ()) -> tuple[Decision, ...]:
        """Go on without a site that has died; servers forget what of its update has come.

        Args:
            site: which; it may compute nothing.
            now_s: the time.
            broken: the firsts of groups whose way to the server led through it. They are to be
                formed anew.
        """
        given_up = [self._regrouping.give_up(lead, now_s) for lead in broken]
        return (*chain.from_iterable(given_up), *self._lost(site, now_s))

    def _lost(self, worker: int, now_s: float) -> tuple[Decision, ...]:
        stage = self._workers[worker]
        if stage is Stage.OUT:
            return ()
        if not self._workers.is_member(worker):
            self._workers.happens(Happens.IS_LOST, worker)
            return ()
        lead = self._groups.lead_of[worker]
        # A group that gives up what is under way makes no other sum of it: what comes is void.
        gives_up = self._groups.stages[lead] in (GroupStage.GIVING_UP, GroupStage.RESTING)
        is_discarded = gives_up or stage in (Stage.BARRED, Stage.RECALLED)  # by name already
        if self._groups.adds_up and not gives_up:
            self._groups.begin_epoch(lead)
            self._updates.void({*self._groups.all_of(lead)})
        under_way = self._updates.lose(worker)
        self._permits.settle((), under_way)
        decisions = [
            *self._stepping.remove(Happens.IS_LOST, worker, now_s),
            *self._regrouping.rest_if_all_asked(lead, now_s),
            *self._tell(now_s),
        ]
        if not self._groups[lead]:  # no iteration is under way any more
            decisions += self._stepping.begin_anew(lead, now_s)
        if not under_way or is_discarded:
            return tuple(decisions)  # it was complete: the pace has discarded it now, or it counts
        return (Decision((), under_way, (), self._pace.version), *decisions)

    def joined(self, worker: int, now_s: float, is_cut_off: bool = False) -> tuple[Decision, ...]:
        """Take a site in again that was lost, if it computes and has updates to make.

        Args:
            worker: which.
            now_s: the time.
            is_cut_off: whether its group's way from it to the server leads through a site that is
                lost. The group is to be formed anew.
        """
        assert not self._workers.is_member(worker)
        if worker not in self._workers.all or self.standing.is_over:
            return ()
        if self._updates.closed:
            self._workers.happens(Happens.RUN_STOPS, worker)
            return ()
        lead = self._groups.lead_of.get(worker)
        has_more = bool(self._updates.with_more_to_do([worker]))
        if lead is None:
            if has_more:
                self._workers.happens(Happens.HAS_NO_GROUP, worker)
            return ()
        if is_cut_off:
            self._groups.mark(lead)
        if self._groups.adds_up:
            self._workers.happens(Happens.RETURNS, worker)
            return () if self._groups[lead] else self._stepping.begin_anew(lead, now_s)
        if not has_more:
            return ()
        self._groups.add(worker)
        if self._barring is not None and self._barring.is_barred(worker):
            self._workers.happens(Happens.IS_BARRED, worker)
            return ()
        return (*self._stepping.join(lead, now_s), *self._tell(now_s))

    # --- groups that are formed anew

    def reform(self, groups: Sequence[tuple[int, ...]], kept: Iterable[int]) -> None:
        """Let groups that are to change come to rest, each when it would go on.

        Args:
            groups: those that there are to be, in rising order each; workers in none are out.
            kept: the firsts of groups that stay as they are.
        """
        self._regrouping.want(groups, kept)

    def formed(self, now_s: float) -> tuple[Decision, ...]:
        """Let the new groups begin, of which all sites know."""
        return (*self._regrouping.form(now_s), *self._tell(now_s))

    # --- the run ends

    def close(self) -> None:
        """Grant no further permissions."""
        self._updates.closed = True
        back = self._workers.at(Stage.RETURNING, Stage.HOMELESS)
        self._workers.happens(Happens.RUN_STOPS, *back)

    def last_pulls(
        self,
        there: Collection[int],
        to_one: bool = False,
        told: Mapping[int, Collection[int]] = MappingProxyType({}),
    ) -> tuple[Update, ...]:
        """Return the workers that get the final model, once all is over.

        Args:
            there: the sites that are connected.
            to_one: whether one worker is enough, with those that get it only together with it.
            told: the workers that sites take for a group's members, by its first. They take all of
                it for members where it is missing here.

        Returns:
            Workers, each with the update after its last one. In a group that adds up, those that
            wait to come back have made as many as the others from then on.
        """
        assert self.standing.is_over
        for lead in self._groups.leads if self._groups.adds_up else ():
            group = self._groups.all_of(lead)
            last = max(map(self.standing.made, group))
            back = [each for each in group if self._workers[each] in (Stage.RETURNING, Stage.LATE)]
            for worker in back:
                self._updates.resume(worker, last)
            finished = [each for each in group if self.standing.made(each) == last]
            here = [each for each in finished if each in there]
            self._groups.set_members(lead, here)
            if back or not {*here} <= {*told.get(lead, group)}:
                self._groups.begin_epoch(lead)
        lead_of, adds_up = self._groups.lead_of, self._groups.adds_up
        pulls = [
            (worker, self.standing.made(worker) + 1)
            for worker in self._workers.all
            if worker in there
            and worker in lead_of
            and (worker in self._groups[lead_of[worker]] or not adds_up)
        ]
        if to_one and pulls:
            lead = lead_of[pulls[0][0]]
            pulls = [each for each in pulls if lead_of[each[0]] == lead]
        return tuple(pulls)
