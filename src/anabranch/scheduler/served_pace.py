"""A served model's pace: the messages of workers and servers, and the messages to them.

:class:`anabranch.scheduler.pacing.PaceBook` decides. This module checks sites' messages, asks the
book, logs each decision, and sends the messages that follow (``_act``): `Advance` to all servers,
`Abandon` and `Proceed` to workers, `EpochChanged` to all sites.

New groups of a forest go through these states::

    none ──a better forest, or a loss──▶ wanted ──groups to change are at rest──▶ announced
      ▲                                                                              │
      └────────────────────── every site knows the new groups ───────────────────────┘

A loss or a return meanwhile makes another forest the wanted one. ``_wanted`` is the next plan,
``plan`` the one that sites know, and ``_in_force`` the plan of the groups that compute.

The end: once no worker is in, all sites hear `PaceOver`, with the workers that get the final model.
If the run sends it, servers get one more `Advance` with these pulls.

What must never happen:

- a permission goes to a new process before its site has joined the pace;
- an epoch begins unannounced (sites would add up the updates of other members);
- new groups compute before every site knows them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from typing import Literal

from anabranch import plan as plans
from anabranch.log import events
from anabranch.net.deadline import Deadline
from anabranch.net.errors import MalformedMessage
from anabranch.net.messages import (
    Abandon,
    Advance,
    Agreed,
    EpochChanged,
    PaceOver,
    Proceed,
    ProceedRequest,
    Reform,
    Reformed,
    UpdateReceived,
)
from anabranch.pace import Update
from anabranch.plan import Plan
from anabranch.scheduler._policy import Replan, event_of
from anabranch.scheduler.decisions import Decision, events_of
from anabranch.scheduler.dependence import groups_of, led_through, lost_between, needed
from anabranch.scheduler.pacing import PaceBook
from anabranch.scheduler.reforming import Reforming
from anabranch.scheduler.run import LONGEST_S, Run

LastTo = Literal["none", "one", "all"]
_MOST_SAMPLES = 1 << 50  # upper bound on the samples that a site reports


class ServedPace:
    """Tells workers when to proceed, and servers which updates to apply.

    It is one class since every method acts on one message, or on a decision of the book.

    Args:
        run: the run.
        book: decides which updates are applied and which workers proceed.
        dispensable: the sites that no other needs on its way to the model.
        plan: the first plan.
        reforming: finds other groups; None if the groups stay as they are.
        least_sites: the run ends with fewer sites left.
        begin_with: the number of sites to begin with, the indispensable ones among them; None for
            all.
        last_to: the workers that get the final model: all, none, or one that evaluates it (with
            the rest of its group, if the group's updates are added up).

    Attributes:
        book: see above.
        begin_with: see above.
        plan: the plan that sites know.
    """

    def __init__(
        self,
        run: Run,
        book: PaceBook,
        dispensable: Set[int],
        plan: Plan,
        reforming: Reforming | None = None,
        least_sites: int = 1,
        begin_with: int | None = None,
        last_to: LastTo = "none",
    ) -> None:
        self._run = run
        self.begin_with = begin_with
        self._least_sites = least_sites
        self._last_to = last_to
        self.book = book
        self.plan = self._in_force = plan
        self._wanted: Plan | None = None  # while groups come to rest for it
        self._wanted_since_s = 0.0
        self._awaited: set[int] = set()  # sites that have yet to confirm the new groups
        self._reforming = reforming
        self._servers: tuple[int, ...] = ()  # sites that hold the model
        self._dispensable = dispensable
        self._workers = frozenset(book.standing.workers)
        self._told: dict[int, EpochChanged] = {}  # the last one sent, by the group's plan version
        self._held: dict[int, int] = {}  # by worker, its samples, if the merge rule counts them
        self._is_over_told = False  # whether sites were told that no step follows
        self._last_pulls: tuple[Update, ...] = ()  # of the final model
        self._timer: Deadline | None = None  # rings when the pace has a step due

    def epochs_changed(self, told: Mapping[int, int]) -> list[EpochChanged]:
        """Return an EpochChanged for each group that is in a later epoch than ``told``.

        Args:
            told: the latest epoch that sites know of each group, by its plan's version. The lead
                would not do: a later group may have the same one.
        """
        later = self.book.standing.later_epochs
        versions = self._versions(later)
        return [
            EpochChanged(epoch, *self.book.standing.sums_of(lead), versions[lead])
            for lead, epoch in later.items()
            if epoch > told.get(versions[lead], 0)
        ]

    def _versions(self, leads: Iterable[int]) -> dict[int, int]:
        """Return the versions of the plans that some groups have, by the groups' first workers."""
        versions = dict.fromkeys(leads, self._in_force.version)
        if not versions:
            return {}
        return versions | {group.workers[0]: group.plan.version for group in self._in_force.groups}

    def _tell_epochs(self) -> None:
        """Tell all sites the members of each group that began an epoch."""
        told = {version: changed.epoch for version, changed in self._told.items()}
        for changed in self.epochs_changed(told):
            self._run.broadcast(changed)
            self._told[changed.version] = changed

    def holds(self, site: int, samples: int) -> None:
        """Note the number of samples that a site holds, before the run begins."""
        if not 0 <= samples <= _MOST_SAMPLES:
            raise MalformedMessage(f"{samples} samples held")
        if site in self._workers and self.book.merge.weighs_data:
            self._held[site] = samples

    def begin(self, elements: int) -> None:
        """Send the first permissions.

        Args:
            elements: of the model; a root that holds no part of a small model is no server.
        """
        self._servers = plans.holders(self.plan, elements)
        self.book.serve(self._servers)
        if self._reforming is not None:
            self._reforming.begin(elements)
        now_s = self._run.since_start_s()
        for site, samples in sorted(self._held.items()):
            if not samples:
                self._run.abort(
                    f"{self._run.name(site)} does not say how many samples it holds, which "
                    "merge.kind weighs its updates by; let its work have samples_held"
                )
                return
            self.book.holds(site, samples)
            self._run.note(events.SamplesHeld(at_s=now_s, site=site, samples=samples))
        self._act(self.book.begin(now_s), now_s)
        for site in sorted(self._run.lives.lost):  # sites that were not at the start: they may join
            self._act(self.book.lost(site, now_s), now_s)

    def asked(self, site: int, message: ProceedRequest) -> None:
        """Act on a worker's request to proceed."""
        seconds = message.compute_s
        if message.samples < 0 or not 0 <= seconds <= LONGEST_S:
            raise MalformedMessage(f"{message.samples} samples computed in {seconds} s")
        loss = message.loss
        if loss is not None and not math.isfinite(loss):
            raise MalformedMessage(f"a loss of {loss}")
        now_s = self._run.since_start_s()
        update, samples = message.update, message.samples
        decisions = self._ask(lambda: self.book.asked(site, update, samples, seconds, now_s, loss))
        self._run.note(
            events.ProceedAsked(
                at_s=now_s,
                site=site,
                update=update,
                samples=samples,
                compute_s=seconds,
                loss=loss,
            )
        )
        self._run.tell_patience()
        if self._reforming is not None and not self.book.standing.is_given_up(site, update):
            self._reforming.computed(site, seconds)
        self._act(decisions, now_s)

    def came(self, site: int, message: UpdateReceived) -> None:
        """Act on a server's message that it has its part of an update."""
        norm = message.squared_norm
        if norm is not None and not 0 <= norm < math.inf:
            raise MalformedMessage(f"an update whose squared norm is {norm}")
        if not self.book.is_void(message.worker, message.epoch):
            now_s = self._run.since_start_s()
            worker, update = message.worker, message.update
            self._act(self._ask(lambda: self.book.came(site, worker, update, now_s, norm)), now_s)

    def agreed(self, site: int, message: Agreed) -> None:
        """Act on a server's report of how far a step's updates agree with their mean."""
        count = len(message.updates)
        numbers = (*message.dots, *message.squared_norms, message.squared_norm)
        if len(message.dots) != count or len(message.squared_norms) != count:
            raise MalformedMessage(
                f"{count} updates with {len(message.dots)} products and "
                f"{len(message.squared_norms)} norms"
            )
        if not all(map(math.isfinite, numbers)) or min((0.0, *message.squared_norms)) < 0:
            raise MalformedMessage("a product that is not finite, or a norm that is not >= 0")
        for (worker, update), cosine in self.book.agreed(site, message):
            now_s = self._run.since_start_s()
            self._run.note(
                events.UpdateJudged(at_s=now_s, site=worker, update=update, cosine=cosine)
            )
            self._act(self.book.judged(worker, update, cosine, now_s), now_s)

    def _ask(self, decide: Callable[[], tuple[Decision, ...]]) -> tuple[Decision, ...]:
        """Return the book's decisions; end the run if its merge rule cannot weigh an update."""
        try:
            return decide()
        except ValueError as error:
            self._run.abort(f"merge: {error}")
            return ()

    def joined(self, site: int, now_s: float) -> None:
        """Take a site that has joined again into the pace."""
        if self._reforming is not None:
            self._reforming.missing(self._run.lives.lost)
        is_cut_off = bool(lost_between(self._in_force, site, self._run.lives.lost))
        self._act(self.book.joined(site, now_s, is_cut_off), now_s)
        if self._is_over_told:
            self._run.post(site, PaceOver())
            return
        is_wanted_broken = any(map(self._is_to_lead_through, self._run.lives.lost))
        has_no_way = (is_cut_off or is_wanted_broken) and bool(self.book.standing.left_of((site,)))
        if has_no_way or site in self.book.standing.homeless:
            self._form_anew(f"{self._run.name(site)} is back", now_s)

    def awaits(self, site: int) -> frozenset[int]:
        """Return the lost sites that cut a newcomer off from the model; empty if it reaches it.

        Where a planner finds other ways, no single loss is the cause, so all lost sites are.
        """
        lost = self._run.lives.lost - {site}
        if self._reforming is not None:
            return lost if self._reforming.is_out_of_reach(site, lost) else frozenset()
        return lost_between(self._in_force, site, lost)

    @property
    def is_closed(self) -> bool:
        """Whether no site may join any more, since servers already send the final model."""
        return self.book.standing.is_over and self._last_to == "all"

    def can_begin_without(self, missing: Collection[int]) -> bool:
        """Return whether no other site needs the sites that have not joined."""
        return frozenset(missing) <= self._dispensable

    def may_go_on_without(self, site: int) -> bool:
        """Return whether the run can continue without a site."""
        run = self._run
        lost = {*run.lives.lost, site}
        if run.started_s is None or run.is_over or not self._workers - lost:
            return False
        # Exchanges beside a served model are not repaired: a loss during one ends the run.
        if run.overlay.size - len(lost) < self._least_sites or run.channels.is_busy:
            return False
        if self._reforming is not None:
            return self._reforming.can_lose(lost)
        if self._in_force.groups:
            return not led_through(self._in_force, self.book, site)
        return site in self._dispensable

    def lost(self, site: int, now_s: float) -> None:
        """Continue without a lost site."""
        if self._reforming is not None:
            self._reforming.missing(self._run.lives.lost)
        broken = led_through(self._in_force, self.book, site)
        is_needed = bool(broken) or self._is_to_lead_through(site)
        self._awaited.discard(site)
        self._act(self.book.lost(site, now_s, broken), now_s)
        if self._is_over_told:
            self._give_up_last(site)
        elif is_needed:
            self._form_anew(f"{self._run.name(site)} is lost", now_s)
        else:
            self._go_on_if_all_know(now_s)

    # --- groups that are formed anew

    def found(self, replan: Replan) -> None:
        """Form groups anew after measured changes, unless they are being formed already."""
        assert self._reforming is not None
        now_s, is_free = self._run.since_start_s(), self._wanted is None and not self._is_over_told
        if self._reforming.accept(replan, is_free, now_s):
            self._reform(replan, now_s)

    def reformed(self, site: int, message: Reformed) -> None:
        """Note that a site knows the new groups; let them begin if it is the last one."""
        if self._wanted is not None and message.version == self._wanted.version:
            self._awaited.discard(site)
            self._go_on_if_all_know(self._run.since_start_s())

    def _is_to_lead_through(self, site: int) -> bool:
        """Return whether wanted groups need a site on their way to the model."""
        return self._wanted is not None and any(
            site in needed(group.plan, group.workers) for group in self._wanted.groups
        )

    def _form_anew(self, why: str, now_s: float) -> None:
        """Want new groups of the workers that are not lost, if any has updates to make."""
        if self._reforming is not None and not self._is_over_told:
            self._reforming.finished(self.book.standing.done)
            if self._reforming.anyone_trains(self._run.lives.lost):
                self._reform(self._reforming.without(self._run.lives.lost, why), now_s)

    def _reform(self, replan: Replan, now_s: float) -> None:
        self._run.note(event_of(replan, now_s))
        self._wanted, self._awaited, self._wanted_since_s = replan.plan, set(), now_s
        self.book.reform(*groups_of(replan.plan, self._in_force))
        self._act((), now_s)

    def _announce_if_at_rest(self, now_s: float) -> None:
        """Tell all sites of the wanted groups, once the groups to change are at rest."""
        wanted = self._wanted
        if wanted is None or wanted is self.plan or not self.book.standing.is_at_rest:
            return
        self.plan = wanted
        updates = tuple(self.book.standing.next_update(group.workers) for group in wanted.groups)
        # Newcomers hear of them, too. They are in no group, so their answers are not awaited.
        self._awaited = {*self._run.sessions} - self._run.lives.newcomers
        self._run.broadcast(Reform(plans.dumps(wanted), updates))

    def _go_on_if_all_know(self, now_s: float) -> None:
        if self._wanted is None or self._wanted is not self.plan or self._awaited:
            return
        self._in_force, self._wanted = self.plan, None
        assert self._reforming is not None
        self._reforming.formed(self._wanted_since_s, now_s)
        self._run.note(events.GroupsFormed(at_s=now_s, version=self.plan.version))
        self._act(self.book.formed(now_s), now_s)
        if self.book.standing.homeless:
            self._form_anew("sites are back", now_s)

    def stop_looking(self) -> None:
        """Stop the timer of the pace."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _act(self, decisions: tuple[Decision, ...], now_s: float) -> None:
        self._tell_epochs()
        for decision in decisions:
            self._run.note(*events_of(decision, now_s))
            advance = Advance(
                tuple(each.update for each in decision.applied),
                decision.discarded,
                tuple((each.worker, each.update) for each in decision.permissions if each.pulls),
                tuple(each.factor for each in decision.applied if each.factor is not None),
                decision.share if decision.applied else None,
                tuple(worker for worker, _ in decision.abandoned) if decision.applied else (),
                decision.uncounted,
            )
            if advance.apply or advance.discard or advance.pulls or advance.uncounted:
                for server in self._servers:
                    self._run.post(server, advance)
            for worker, update in decision.abandoned:
                self._run.post(worker, Abandon(update, not decision.is_broken))
            if self._reforming is not None:
                self._reforming.finished(decision.finished)
            for each in decision.permissions:
                # The permission is for the lost process. A new process of the site may have a
                # session already, and must not get it.
                if each.worker not in self._run.lives.lost:
                    proceed = Proceed(
                        each.update, each.samples, each.pulls, each.client, each.looks
                    )
                    self._run.post(each.worker, proceed)
        if self.book.standing.is_over and not self._is_over_told:
            self._is_over_told = True
            self._wanted = None
            receivers = () if self._last_to == "none" else self._send_last()
            self._run.tell_members(PaceOver(receivers))
        self._look_at(self.book.due_s)
        self._announce_if_at_rest(now_s)

    def _send_last(self) -> tuple[int, ...]:
        """Let servers send the final model; return the workers that get it."""
        lost, there = self._run.lives.lost, {*self._run.sessions} - self._run.lives.newcomers
        there = {site for site in there if not lost_between(self._in_force, site, lost)}
        told = {
            lead: self._told[version].workers
            for lead, version in self._versions(self.book.standing.epochs).items()
            if version in self._told
        }
        pulls = self.book.last_pulls(there, self._last_to == "one", told)
        self._tell_epochs()
        for server in self._servers:
            self._run.post(server, Advance((), (), pulls, ()))
        self._last_pulls = pulls
        return tuple(worker for worker, _ in pulls)

    def _give_up_last(self, site: int) -> None:
        """Tell workers behind a lost site that the final model may not come; it is sent once."""
        for worker, update in self._last_pulls:
            if worker not in self._run.lives.lost and lost_between(self._in_force, worker, {site}):
                self._run.post(worker, Abandon(update, model_comes=False))

    def _look_at(self, due_s: float) -> None:
        self.stop_looking()
        if due_s < math.inf and not self._run.is_over:
            assert self._run.started_s is not None  # nothing is due before
            self._timer = Deadline(self._run.started_s + due_s, self._look)

    def _look(self) -> None:
        self._timer = None
        # A timer may ring a little early. The pace still gets the time that it asked for: at an
        # earlier time no step would be due, and the timer would be set again.
        now_s = max(self._run.since_start_s(), self.book.due_s)
        self._run.note(events.PaceLooked(at_s=now_s))
        self._act(self.book.look(now_s), now_s)
