"""A scheduler's settings, and the one place that builds a scheduler from them.

Theory of operation
-------------------

A ``Service`` is a frozen value. Constructing it checks each field (``group/checks.py``) and reads
no file, clock or socket. Everything that a group needs follows from it::

    a user's arguments,  \\
    a group's file,       >  Service -> believed() -> first_plan() -> scheduler() -> Scheduler
    a scenario's file    /      |                                          ^
                                |-> chunk_rule, paced, _reforming ---------+
                                |-> settings()    -> Welcome.work, the same bytes to every site
                                |-> run_started() -> the first event of the log
                                +-> network()     -> where sites connect

There are three views of the network, and each caller must take the right one:

- ``overlay``: as the user wrote it. Sites get it, and the log keeps it.
- ``network_known``: the overlay, with ports that the machines' cores limit. Predictions use it.
- ``believed()``: the scheduler's knowledge before it measures. Plans use it. A plan that used the
  overlay instead would know rates that a passive scheduler has to measure first.

After the start, ``awareness.made_for`` replaces ``believed()`` for chunks and dispatching.

What must never happen:

- *Sites and scheduler cut chunks differently.* ``settings`` and ``chunk_rule`` come from the same
  fields, and sites get their bounds only in the Welcome.
- *A group starts with settings that do not fit together.* ``check_values`` tests single fields,
  ``scheduler`` then tests them together, with the plan. Scenarios have other checks.
- *A second place builds a scheduler.* Groups and scenarios call ``Service.scheduler``.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Literal

import msgspec

from anabranch import overlay as overlays
from anabranch import plan as plans
from anabranch.cohort import Clients
from anabranch.group._settings import Settings, dumps
from anabranch.group.checks import LEAST_SITES, check, check_values
from anabranch.log import events
from anabranch.log.releases import versions
from anabranch.merge import AnyMerge, Mean
from anabranch.net.addresses import is_loopback
from anabranch.net.frames import CONTROL_LIMITS
from anabranch.net.network import Address, Network
from anabranch.net.silence import STILLNESS_S
from anabranch.net.tcp import CONTROL_SILENCE_S, TcpNetwork
from anabranch.net.tls import Credentials
from anabranch.overlay import Overlay
from anabranch.pace import AnyLoad, AnyPace, EqualBatches, added_up
from anabranch.period import Gossip
from anabranch.plan import (
    LEAST_CHUNK_ELEMENTS,
    Auxiliary,
    ForestRoute,
    Packed,
    PathSearch,
    Plan,
)
from anabranch.plan import Planner as Route
from anabranch.scheduler.awareness import AnyAwareness, Awareness, Passive
from anabranch.scheduler.chunking import MOST_ELEMENTS, ChunkRule
from anabranch.scheduler.deal import AnyDeal, adaptive_of, cuts_tensors
from anabranch.scheduler.losses import Planner, Repairs, or_packed
from anabranch.scheduler.memory import Journal
from anabranch.scheduler.paced import Paced, Serve
from anabranch.scheduler.reforming import LEAST_CHANGE, LEAST_GAIN, Reforming
from anabranch.scheduler.run import Log
from anabranch.scheduler.served_pace import LastTo
from anabranch.scheduler.server import Scheduler
from anabranch.scheduler.stop_rules import StopRules

_ANY_BYTES = 1 << 62
_ELEMENT_BYTES = 4
_SILENCE_S = 2.0  # of a site or link, where the others continue after its loss


@dataclass(frozen=True)
class Serving:
    """How a model is served, beside its pace, load and merge rule.

    Args:
        serve: which sites compute, and on which model.
        clients: the registered clients, if a worker represents another client with each update;
            None if each worker represents itself.
        seed: of the registry of clients.
        look_every_s: the period of evaluations: in each, the first worker that pulls the model
            evaluates it. None where the scheduler does not schedule evaluations.
        last_to: which workers get the final model.
    """

    serve: Serve = field(default_factory=Serve)
    clients: Clients | None = None
    seed: int = 0
    look_every_s: float | None = None
    last_to: LastTo = "all"


@dataclass(frozen=True)
class Machines:
    """The sites' machines, which plans, chunks and dispatching account for.

    Args:
        cores: the processor cores that the sites share; chunks are larger where these are few.
            Infinite if each site has its own machine.
        control_latency_s: one-way latency between the scheduler and each site.
    """

    cores: float = math.inf
    control_latency_s: float = 0.0


@dataclass(frozen=True)
class Service:
    """The settings of a scheduler, for a group or for the sites of a scenario.

    Args:
        overlay: the sites and links.
        planner: plans the trees over which sums and models travel.
        awareness: how the scheduler learns of the network; None keeps the first plan.
        auxiliary: paths that help the trees' links; None for no such paths.
        deal: how chunks are dealt to the trees; None for ``Adaptive`` where trees are many and
            deep, and for ``ByShare`` on other routes. ``Adaptive`` deals during an exchange: a
            call then waits for the scheduler before its first chunk leaves.
        pace: when workers of a served model may compute; None for a group that all-reduces.
        load: how much work each worker of a served model has.
        merge: the weight of an update of a served model, or of a letter of gossip. A group refuses
            rules that weigh by data: its sites give weights by ``push(weight=...)`` or
            ``gossip(weight=...)``.
        gossip: how sites gossip: each sends its model to some neighbours between steps, and mixes
            their letters in; None for sites that exchange with all. A group that gossips begins
            with all of its sites, admits none later, and ends with its scheduler.
        serving: the other settings of a served model.
        updates: how many updates each worker of a served model makes.
        batch_size: of the slowest worker, from which tuned loads compute the others, and of workers
            whose batch is not stated; 0 leaves batches to the program.
        model_elements: of the buffer, if all exchanges have one size: the route is planned for that
            size before any site asks. None if it is not known; then a group that all-reduces makes
            a plan for each order of magnitude that comes.
        stop: when the group ends; a served model also ends after its last update.
        under_way_bytes: limit on the buffers of concurrent exchanges; None for no limit.
        chunk_elements: the most elements of every chunk; None follows the buffer and the plan.
        least_chunk_elements: the fewest elements of a chunk, if ``chunk_elements`` is None.
        on_loss: what happens to exchanges when a site or link is lost. ``complete``: the sites that
            still reach one another complete them. ``retry``: these sites begin them again, so that
            one set of sites contributes to all of a result. For that, each site keeps a copy of its
            contribution. ``abort``: the group ends. With a served model, ``complete`` and ``retry``
            are alike: the others continue without a site that serves no part of the model and
            relays none to others; any other loss ends the group.
        on_error: what happens when an exception, or Ctrl-C, ends a site's program. ``lose``: the
            site is lost, ``on_loss`` applies, and the others print its message. ``abort``: the
            group ends.
        least_sites: the group ends when fewer sites are left.
        begin_with: how many sites the group begins with; None for all of the overlay, as always if
            ``on_loss`` is ``abort``. Others join later, when the members admit them; with a served
            model, whenever they come. A served model also waits for sites that the others need.
        silence_s: a site or link is lost after this silence, or after six times its usual silence
            if that is longer. None for 2 s if the others continue after a loss, and longer if the
            group ends.
        stillness_s: a site is not lost before this silence while its machine answers, since one
            call of C code may hold its interpreter's lock.
        away_s: how long sites wait for the restart of a scheduler with a journal.
        machines: the sites' machines.

    Raises:
        TypeError, ValueError: a value is invalid; names it.
    """

    overlay: Overlay
    planner: Route = field(default_factory=Packed)
    awareness: AnyAwareness | None = field(default_factory=Passive)
    auxiliary: Auxiliary | None = None
    deal: AnyDeal | None = None
    pace: AnyPace | None = None
    load: AnyLoad = field(default_factory=EqualBatches)
    merge: AnyMerge = field(default_factory=Mean)
    gossip: Gossip | None = None
    serving: Serving = field(default_factory=Serving)
    updates: int = 1
    batch_size: int = 0
    model_elements: int | None = None
    stop: StopRules = field(default_factory=StopRules)
    under_way_bytes: int | None = 1 << 30
    chunk_elements: int | None = None
    least_chunk_elements: int = LEAST_CHUNK_ELEMENTS
    on_loss: Literal["complete", "retry", "abort"] = "complete"
    on_error: Literal["lose", "abort"] = "lose"
    least_sites: int = LEAST_SITES
    begin_with: int | None = None
    silence_s: float | None = None
    stillness_s: float = STILLNESS_S
    away_s: float = 60.0
    machines: Machines = field(default_factory=Machines)

    def __post_init__(self) -> None:
        check_values(self, Serving, Machines)

    def listening_at(self, listen: Address) -> Service:
        """Return the settings for a listening address: at a loopback one, sites share the cores."""
        cores = float(os.cpu_count() or 1) if is_loopback(listen[0]) else math.inf
        return replace(self, machines=replace(self.machines, cores=cores))

    # --- plans, and their input

    @property
    def network_known(self) -> Overlay:
        """The overlay, with ports that the sites' machines limit."""
        return plans.within_cores(self.overlay)

    def believed(self) -> Overlay:
        """Return the network as the scheduler knows it before it measures."""
        network = self.network_known
        return network if self.awareness is None else self.awareness.believed(network)

    @property
    def assumes_rates(self) -> bool:
        """Whether the rates of some links are guesses until they are measured."""
        return any(link.basis == "assumed" for link in self.believed().links)

    def plan(
        self,
        believed: Overlay,
        version: int = 1,
        previous: Plan | None = None,
        elements: int | None = None,
    ) -> Plan:
        """Return a plan with its auxiliary paths.

        Args:
            believed, version, previous: see :class:`anabranch.plan.Planner`.
            elements: of the buffer, if it has another size than ``model_elements``.
        """
        believed = plans.within_cores(believed)
        elements = elements or self.model_elements
        plan = self._route.plan(
            believed,
            version=version,
            previous=previous,
            elements=elements,
            chunk_elements=self.chunk_rule.before_plan(elements),
        )
        return plans.with_auxiliary(plan, believed, self._search)

    @property
    def _route(self) -> Route:
        """The planner; that of a forest gets the names of the sites that compute."""
        if not isinstance(self.planner, ForestRoute):
            return self.planner
        return self.planner.of_workers(self.overlay.sites[site].name for site in self.workers)

    def first_plan(self) -> Plan:
        """Return the plan with which a run begins, from ``believed()``.

        Raises:
            OverlayError, PlanError: no plan is possible.
        """
        return self.plan(self.believed())

    @property
    def _search(self) -> PathSearch:
        return (lambda overlay, plan: {}) if self.auxiliary is None else self.auxiliary.paths

    @property
    def chunk_rule(self) -> ChunkRule:
        """The rule for the size of chunks."""
        return ChunkRule(
            self.planner.deep,
            self.chunk_elements,
            self.least_chunk_elements,
            self.machines.cores,
            served=self.pace is not None,
        )

    @property
    def paced(self) -> Paced | None:
        """How the model is served; None where no model is served."""
        if self.pace is None:
            return None
        return Paced(
            pace=self.pace,
            load=self.load,
            batch_size=self.batch_size,
            workers=self.workers,
            updates=self.updates,
            ahead=self.serving.serve.ahead,
            merge=self.merge,
            clients=self.serving.clients,
            seed=self.serving.seed,
            look_every_s=self.serving.look_every_s,
        )

    @property
    def workers(self) -> list[int]:
        """The sites that compute, by index, if the model is served."""
        return self.serving.serve.workers(self.overlay.names)

    @property
    def repairs(self) -> bool:
        """Whether exchanges continue without lost sites and links."""
        return self.on_loss != "abort" and self.pace is None

    @property
    def _least_silence_s(self) -> float | None:
        if self.silence_s is None and self.repairs:
            return _SILENCE_S
        return self.silence_s

    # --- the scheduler, and the messages and log that describe the group

    def scheduler(
        self,
        network: Network,
        token: str,
        log: Log,
        journal: Journal | None = None,
        plan: Plan | None = None,
        job_json: str = "",
    ) -> Scheduler:
        """Return a scheduler, in the running loop.

        Args:
            network: where sites connect.
            token: the group's secret, which a site proves to join.
            log: takes the run's events.
            journal: keeps the state from which a restarted scheduler resumes its group; None where
                the group ends with its scheduler.
            plan: the first plan, if already made; see ``first_plan``.
            job_json: the job of a scenario's sites; empty for a group.

        Raises:
            ServiceError: settings do not fit together, or are for scenarios alone.
        """
        believed, settings = self.believed(), self.settings(journal is not None, job_json)
        first = self.first_plan() if plan is None else plan
        names = self.overlay.names
        if not job_json:
            check(self, first, journal is not None)
        reforming = self._reforming(first, believed)
        awareness: Awareness | None = None

        def now_believed() -> Overlay:
            return believed if awareness is None else awareness.made_for

        def chunking(plan: Plan, elements: int) -> int:
            return self.chunk_rule.under(plan, elements, now_believed())

        if self.awareness is not None:
            awareness = self.awareness.awareness(
                first,
                self.plan,
                self._search,
                partial(chunking, first),
                self.network_known,
                reforming,
            )
        adaptive = adaptive_of(self.deal, self.planner.deep) if self.pace is None else None
        dispatching = None
        if adaptive is not None:
            round_trip_s = 2 * self.machines.control_latency_s
            dispatching = adaptive.dispatching(now_believed, round_trip_s)
        return Scheduler(
            network,
            self.overlay,
            first,
            token,
            dumps(settings),
            chunking,
            log,
            awareness,
            dispatching,
            None if (paced := self.paced) is None else paced.book(first, names),
            math.inf if self.under_way_bytes is None else self.under_way_bytes,
            least_sites=self.overlay.size if self.on_loss == "abort" else self.least_sites,
            begin_with=None if self.on_loss == "abort" else self.begin_with,
            last_to=self.serving.last_to,
            repairs=self._repairs(is_group=not job_json) if self.repairs else None,
            journal=journal,
            reforming=reforming,
            errors_end=self.on_error == "abort",
            planners=self._planner_for if self._plans_by_size else None,
            stops=self.stop.follow(self.workers, self.gossip is not None),
            leases=settings.leases,
        )

    def run_started(self, buffer_elements: int, plan: Plan | None) -> events.RunStarted:
        """Return the first event of a group's log.

        Args:
            buffer_elements: of the buffer; 0 if the run ended before it began.
            plan: the first plan; None if it is not known.
        """
        plan = self.first_plan() if plan is None else plan
        overlay, size_bytes = self.network_known, _ELEMENT_BYTES * buffer_elements
        chunk = self.chunk_rule.under(plan, buffer_elements, overlay)
        predicted = plans.predict(plan, overlay, size_bytes, chunk_bytes=_ELEMENT_BYTES * chunk)
        return events.RunStarted(
            at_s=0.0,
            label=plan.label,
            overlay_toml=overlays.dumps(self.overlay),
            plan_json=plans.dumps(plan),
            sites=[*self.overlay.names],
            buffer_bytes=size_bytes,
            chunk_elements=chunk,
            shaped=False,
            task="group",
            model=f"{buffer_elements} elements",
            seed=0,
            rounds=self.stop.rounds or 0,
            predicted_s=predicted.contention_s,
            paper_s=predicted.paper_s,
            limit_s=None,
            target_accuracy=self.stop.accuracy,
            reached_by=self.stop.reached_by,
            window_s=self.stop.window_s,
            versions=versions(),
            gossips=self.gossip is not None,
            assumes_rates=self.assumes_rates,
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            pacing_json="" if (paced := self.paced) is None else paced.encode(),
        )

    @property
    def _plans_by_size(self) -> bool:
        return self.pace is None and self.model_elements is None and self.planner.by_size

    def _planner_for(self, elements: int) -> Planner:
        return or_packed(partial(self.plan, elements=elements), elements)

    def _repairs(self, is_group: bool) -> Repairs:
        retries = self.on_loss == "retry"
        return Repairs(
            or_packed(self.plan),
            self.least_sites,
            self.begin_with,
            retries,
            returns_early=is_group and not retries,  # a scenario's sites wait for the settlement
        )

    def _reforming(self, first: Plan, believed: Overlay) -> Reforming | None:
        """Return the rule that re-forms a forest's groups; None where no groups change."""
        route, asked = self._route, self.awareness
        if not isinstance(route, ForestRoute) or route.within is not None:
            return None
        return Reforming(
            route,
            first,
            believed.at(0.0),
            {believed.index(name): each_s for name, each_s in (route.compute_s or {}).items()},
            self.model_elements,
            LEAST_CHANGE if asked is None or asked.update_rate is None else asked.update_rate,
            _least_gain(asked),
            self._search,
            self.serving.last_to == "all",
        )

    def network(self, credentials: Credentials | None = None) -> TcpNetwork:
        """Return the network on which a group's sites connect to the scheduler."""
        return TcpNetwork(
            CONTROL_LIMITS,
            least_silence_s=self._least_silence_s or CONTROL_SILENCE_S,
            credentials=credentials,
            stillness_s=self.stillness_s,
        )

    def settings(self, may_be_restarted: bool, job_json: str = "") -> Settings:
        """Return the settings that sites get in their Welcome.

        Args:
            may_be_restarted: whether the scheduler has a journal.
            job_json: see ``scheduler``.
        """
        serve, workers = self.serving.serve, self.workers
        ahead = int(serve.ahead)
        least = self.chunk_elements or self.least_chunk_elements
        return Settings(
            deep=self.planner.deep,
            least_chunk_elements=least,
            most_chunk_elements=self.chunk_elements or max(MOST_ELEMENTS, least),
            cuts_tensors=cuts_tensors(self.deal),
            under_way_bytes=_ANY_BYTES if self.under_way_bytes is None else self.under_way_bytes,
            auxiliary=self.auxiliary,
            measuring=self.awareness.measuring() if isinstance(self.awareness, Passive) else None,
            assumes_rates=self.assumes_rates,
            workers=0 if self.pace is None else len(workers),
            added_up=() if self.pace is None else added_up(self.pace, workers, ahead),
            ahead=ahead,
            mixes=serve.mixes,
            merge_json="" if self.merge == Mean() else msgspec.json.encode(self.merge).decode(),
            gossip_json="" if self.gossip is None else msgspec.json.encode(self.gossip).decode(),
            silence_s=self._least_silence_s,
            stillness_s=self.stillness_s,
            away_s=self.away_s if may_be_restarted else 0.0,
            job_json=job_json,
        )


def _least_gain(asked: AnyAwareness | None) -> float:
    """Return the least gain for which a forest is re-formed."""
    if asked is None or asked.least_gain is None:
        return LEAST_GAIN
    assert asked.least_gain != "none"  # refused beside a forest
    return asked.least_gain
