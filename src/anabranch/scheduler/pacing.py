"""The books of a served model: which updates count, by how much, and which workers proceed. Pure.

Workers compute updates, servers hold the model, and the scheduler decides which updates become part
of it and when. One update goes this way::

    worker                     scheduler                           servers
    Proceed ◀──────────────────  permission: update, batch, client
    (pulls the model) ◀──────────────────────────────────────────── model
    computes
    (pushes the update) ──────────────────────────────────────────▶ parts of the update
    ProceedRequest ──────────▶ asked
                               came ◀────────────────────────────── UpdateReceived
                               complete: the pace is told
                               step: apply, discard ──── Advance ─▶ step of the model
    Proceed ◀──────────────────  permission for the next update

An update is *complete* once every server has its part and its worker has asked to proceed. The
pace's answer is written into the books and becomes a :class:`Decision`: orders to the servers and
permissions to workers.

Each part of the books has one file in `serving/`:

- `_updates`: an update's life, until the pace is told of it;
- `_workers` and `_groups`: a worker's life and a group's, one table each;
- `_pace_of_groups`: the pace, told of groups, with its steps in the updates' own names;
- `_permits` and `_weights`: the contents of a permission, and the factor of a step;
- `_stepping`: turns the pace's steps into decisions;
- `_barring` and `_regrouping`: the conversations about outliers and about new groups;
- `_standing`: answers to the other parts of a scheduler.

:class:`PaceBook` puts them together. Its methods are the events of a run. Each event ends with
telling the pace of all updates that are complete by then.

What must never happen:

- an update is applied twice, or neither applied nor discarded;
- a worker gets two permissions for one update;
- a sum counts that has a lost worker's update in it.

Times are arguments, in seconds since the run began.
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
    """The books of one run.

    Workers move in *groups*: under a barrier all together, in a forest those of each tree, else
    each alone. A group is named by its first worker, its *lead*. If a group's updates are added up
    on their way, the loss of a worker voids the sums with the others' updates, too. So the pace is
    told of a group's updates only once all of them are complete.

    **A lost worker may join again.** Its updates under way are lost, and their numbers are not used
    again. It continues with the next number, up to the number of updates that each worker makes.

    Args:
        pace: the pace.
        load: sizes the batches; a fresh one.
        workers: the sites that compute.
        servers: the sites that hold the model; each must have its part before an update counts.
        updates: the number of updates that each worker makes.
        ahead: how many updates a worker may compute before it gets the model with its last one, 0
            or 1. With 1 it computes while that update and the model are on their way.
        groups: of workers whose updates are added up on their way; empty for none.
        merge: weighs the updates.
        registry: of the clients that workers stand for; None if each stands for itself.
        look_every_s: the interval of evaluations, seconds: the first worker that pulls the model in
            each interval evaluates it. None for no evaluations by permissions.

    Attributes:
        standing: answers to the other parts of a scheduler.
        times: the durations of iterations, each from a permission to the next request.
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
        # The batch size follows an iteration's time. The time to push counts for single updates
        # only: a sum waits for its slowest worker, and computing ahead overlaps the push.
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
        """When to call ``look`` next; infinite if nothing depends on time alone."""
        return self._pace.due_s

    # --- the run begins

    def holds(self, worker: int, samples: int) -> None:
        """Note the number of samples that a worker holds, before the run begins."""
        self._weights.holds(worker, samples)

    def serve(self, servers: Iterable[int]) -> None:
        """Set the sites that hold the model, before the run begins."""
        self._updates.servers = frozenset(servers)

    def begin(self, now_s: float) -> tuple[Decision, ...]:
        """Let all groups join the pace."""
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
            worker: the worker.
            update: the number of the update.
            samples: of its batch.
            compute_s: how long it computed.
            now_s: the time.
            loss: of its batch; None if it tells none.

        Raises:
            OutOfPlaceMessage: it has asked before, or has no permission for that update.
        """
        name = worker, update
        iteration = self._updates.ask(name, samples, compute_s, now_s, loss)
        if self._updates.is_given_up(name):  # it was cut short: its time must not size a batch
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
        """Return whether a sum of an earlier epoch of a worker's group is void by now.

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
        """Note that a server has its part of an update, in a sum that is not void.

        Raises:
            OutOfPlaceMessage: the site is no server, it has said so before, or the worker has no
                permission for that update.
        """
        if server not in self._updates.servers:
            raise OutOfPlaceMessage(f"site {server} has an update, but serves no part of the model")
        name = worker, update
        if not self._workers.is_member(worker) or self._updates.is_given_up(name):
            return ()  # the worker is lost by now, or has abandoned the update
        self._updates.come(server, name, squared_norm)
        return self._push_if_complete(name, now_s)

    def _push_if_complete(self, update: Update, now_s: float) -> tuple[Decision, ...]:
        if update not in self._updates.complete:
            return ()
        if self._counts_pushing:
            self._measured(update[0], self._updates.iteration(update, now_s))
        squared_norm = self._updates.squared_norm(update)
        came = Decision((), (), (), self._pace.version, came=update, squared_norm=squared_norm)
        return (came, *self._tell(now_s))

    def _tell(self, now_s: float) -> list[Decision]:
        """Tell the pace of all complete updates of groups that compute; return what follows."""
        decisions: list[Decision] = []
        waiting = self._with_updates()
        while waiting:
            pushed = self._stepping.push(waiting.pop(0), now_s)
            if pushed is not None:
                decisions += pushed
                waiting = self._with_updates()  # a worker's next update may be complete already
        if self._barring is not None:
            decisions += self._barring.readmit_if_none_computes(now_s)
        while not self._updates.closed and self._permits.has_client:
            idle = self._workers.at(Stage.IDLE)
            if not idle:
                break
            decisions += self._stepping.join(self._groups.lead_of[idle[0]], now_s)
        return decisions

    def _with_updates(self) -> list[int]:
        """Return the computing groups with a complete update, in their order."""
        lead_of, is_computing = self._groups.lead_of, GroupStage.COMPUTING
        leads = {lead_of[each] for each, _ in self._updates.complete if each in lead_of}
        computing = (lead for lead in leads if self._groups.stages[lead] is is_computing)
        return sorted(computing, key=self._groups.place_of)

    def look(self, now_s: float) -> tuple[Decision, ...]:
        """Take the steps that have become due; harmless at any time."""
        return (*self._stepping.look(now_s), *self._tell(now_s))

    # --- outliers

    def agreed(self, server: int, told: Agreed) -> list[tuple[Update, float]]:
        """See :meth:`anabranch.scheduler._outliers.Outliers.agreed`."""
        if self._barring is None:
            raise OutOfPlaceMessage(f"site {server} tells how updates agree, and nothing asks it")
        return self._barring.agreed(server, told)

    def judged(self, worker: int, update: int, cosine: float, now_s: float) -> tuple[Decision, ...]:
        """Take the verdict on an update; bar its worker or client if the judge says so.

        Args:
            worker: of the update.
            update: its number.
            cosine: of the angle between the update and its step.
            now_s: the time.
        """
        assert self._barring is not None
        decisions = self._barring.judged((worker, update), cosine, now_s)
        return (*decisions, *self._tell(now_s))

    # --- workers are lost, and come back

    def lost(self, site: int, now_s: float, broken: Iterable[int] = ()) -> tuple[Decision, ...]:
        """Continue without a lost site; servers discard their parts of its updates under way.

        Args:
            site: the site; it may compute nothing.
            now_s: the time.
            broken: the leads of groups that reached the server through it, and are to be formed
                anew.
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
        # A group that abandons updates does not restart their sums, so it needs no new epoch.
        gives_up = self._groups.stages[lead] in (GroupStage.GIVING_UP, GroupStage.RESTING)
        # Servers were told to discard these updates when they were given up.
        is_discarded = gives_up or stage in (Stage.BARRED, Stage.RECALLED)
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
        if not self._groups[lead]:  # the last member is lost: the group has no iteration under way
            decisions += self._stepping.begin_anew(lead, now_s)
        if not under_way or is_discarded:
            return tuple(decisions)  # a complete update belongs to the pace, which decides on it
        return (Decision((), under_way, (), self._pace.version), *decisions)

    def joined(self, worker: int, now_s: float, is_cut_off: bool = False) -> tuple[Decision, ...]:
        """Take back a lost site, if it computes and has updates to make.

        Args:
            worker: the site.
            now_s: the time.
            is_cut_off: whether its way to the server leads through a lost site. Its group is to be
                formed anew then.
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
        """Bring the groups that are to change to rest, each at its next permission.

        Args:
            groups: the wanted groups, each in rising order; a worker in none of them is out.
            kept: the leads of groups that stay as they are.
        """
        self._regrouping.want(groups, kept)

    def formed(self, now_s: float) -> tuple[Decision, ...]:
        """Form the wanted groups, now that all sites know them, and let them join the pace."""
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
        """Return the workers that get the final model, once no step follows.

        A group that adds up pulls the model together, so workers that wait to return get it, too:
        they count as having made as many updates as the others.

        Args:
            there: the sites that are connected.
            to_one: whether one worker is enough, with the rest of its group if that adds up.
            told: by lead, the members of a group as sites know them. If a group is missing, sites
                know all its workers as members.

        Returns:
            Workers, each with the number after its last update.
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
