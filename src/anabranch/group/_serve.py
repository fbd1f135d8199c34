"""The scheduler of a group: an overlay, a planner, a pace and awareness, as values; no scenario."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal

from anabranch import __version__
from anabranch import overlay as overlays
from anabranch import plan as plans
from anabranch._paths import next_free
from anabranch.group._settings import Settings, dumps
from anabranch.net.addresses import is_loopback
from anabranch.net.errors import RunAborted
from anabranch.net.frames import CONTROL_LIMITS
from anabranch.net.network import Address, Network
from anabranch.net.silence import STILLNESS_S
from anabranch.net.stdin import at_end_of_stdin
from anabranch.net.tcp import CONTROL_SILENCE_S, TcpNetwork
from anabranch.net.tls import Credentials
from anabranch.overlay import Overlay
from anabranch.pace import AnyLoad, AnyPace, EqualBatches
from anabranch.plan import AnyPlanner, Auxiliary, ForestRoute, Packed, Plan
from anabranch.record import events
from anabranch.record.console import Console, Line
from anabranch.record.journal import Journal as FileJournal
from anabranch.record.journal import JournalBusy
from anabranch.record.log import EventLog, LogError
from anabranch.scheduler.awareness import Awareness, Passive
from anabranch.scheduler.chunking import (
    LEAST_ELEMENTS,
    MOST_ELEMENTS,
    chunk_elements,
    filling_elements,
)
from anabranch.scheduler.dispatch import needed_window
from anabranch.scheduler.losses import Planner, Repairs, or_packed
from anabranch.scheduler.memory import Journal
from anabranch.scheduler.paced import Paced
from anabranch.scheduler.run import Abandoned, Log
from anabranch.scheduler.server import Scheduler
from anabranch.scheduler.watching import UNWATCHED, Watching, watched

_ELEMENT_BYTES = 4
_LARGE_ELEMENTS = 1 << 26  # taken for buffers of which none has come yet
_NAMED_FIRST_S = 0.5
_LOOK_S = 0.2  # at a journal that another scheduler has


@dataclass(frozen=True)
class Service:
    """What a scheduler serves a group with.

    Args:
        overlay: the sites and links.
        planner: where aggregates travel.
        awareness: how the scheduler learns of the network; None keeps the first plan.
        auxiliary: paths that help the trees' links; None for none.
        adaptive: whether chunks are dispatched while an exchange goes on. (A call then waits for a
            word from the scheduler before its first chunk leaves, as it does for its plan.)
        pace: who may proceed when, where the model is served; None for a group that all-reduces.
        load: how much work each worker has, where the model is served.
        updates: how many each worker makes, where the model is served.
        model_elements: of the model, where it is served: its route is planned for that size, before
            any site says it. None where it is not known.
        batch_size: that loads reckon from.
        under_way_bytes: of buffers whose exchanges may be under way at once.
        least_chunk_elements: chunks are no smaller than this.
        on_loss: what becomes of exchanges when a site or link is lost: they are ``complete``d among
            those that still reach one another; or begun again (``retry``), so that a result has the
            contributions of one set of sites, for which each keeps a copy of what it contributes;
            or the group ends (``abort``). Where the model is served, the others go on without a
            site that serves no part of it and is on no other's way to it (``complete`` and
            ``retry`` alike), and it ends for others.
        on_error: what becomes of the group when an exception, or Ctrl-C, ends a site's part: that
            site is lost (``lose``), as ``on_loss`` says of losses, and the others say its message;
            or the group ends (``abort``).
        least_sites: with fewer left than these it ends in any case.
        begin_with: how many sites it begins with, unless a loss ends it; None for all of the
            overlay. Others join when the members let them in; where the model is served, when they
            come, and those that the others need are awaited in any case.
        silence_s: where exchanges are completed, no site or link counts as lost that is silent for
            less; nor for less than six times what is usual with it.
        stillness_s: no site counts as lost that is silent for less while its machine answers: one
            call of C code may hold its interpreter's lock.
        away_s: where the scheduler has a journal, sites wait so long for it to be started again.

    Raises:
        ValueError: a planner whose plans only a scenario can use; a model's size without a pace.
    """

    overlay: Overlay
    planner: AnyPlanner = field(default_factory=Packed)
    awareness: Passive | None = field(default_factory=Passive)
    auxiliary: Auxiliary | None = None
    adaptive: bool = True
    pace: AnyPace | None = None
    load: AnyLoad = field(default_factory=EqualBatches)
    updates: int = 1
    model_elements: int | None = None
    batch_size: int = 1
    under_way_bytes: int = 1 << 30
    least_chunk_elements: int = LEAST_ELEMENTS
    on_loss: Literal["complete", "retry", "abort"] = "complete"
    on_error: Literal["lose", "abort"] = "lose"
    least_sites: int = 2
    begin_with: int | None = None
    silence_s: float = 2.0
    stillness_s: float = STILLNESS_S
    away_s: float = 60.0

    def __post_init__(self) -> None:
        if isinstance(self.planner, ForestRoute):
            raise ValueError(
                "a forest's workers and their server are named by a scenario; give another planner"
            )
        if self.model_elements is not None and self.pace is None:
            raise ValueError(
                "model_elements is for a model that is served: give a pace too, or leave it out; a "
                "group without one plans for the size of each exchange"
            )

    @property
    def assumes_rates(self) -> bool:
        """Whether nothing is known of what some links carry until they are measured."""
        return any(link.basis == "assumed" for link in self.believed().links)

    def believed(self) -> Overlay:
        """Return what is believed of the network before anything is measured."""
        network = plans.within_cores(self.overlay)
        return network if self.awareness is None else self.awareness.believed(network)

    def plan(
        self,
        believed: Overlay,
        version: int = 1,
        previous: Plan | None = None,
        elements: int | None = None,
    ) -> Plan:
        """Return a plan with its auxiliary paths.

        Args:
            believed, version, previous, elements: see :class:`anabranch.plan.Planner`. No site is
                given more than a core carries.
        """
        believed = plans.within_cores(believed)
        chunk = filling_elements(elements or _LARGE_ELEMENTS, self.planner.deep)
        plan = self.planner.plan(
            believed,
            version=version,
            previous=previous,
            elements=elements,
            chunk_elements=max(chunk, self.least_chunk_elements),
        )
        return plans.with_auxiliary(plan, believed, self._search)

    def _search(
        self, overlay: Overlay, plan: Plan
    ) -> dict[tuple[int, int], tuple[tuple[int, ...], ...]]:
        return {} if self.auxiliary is None else dict(self.auxiliary.paths(overlay, plan))

    def scheduler(
        self,
        network: Network,
        token: str,
        log: Log,
        listen: Address,
        journal: Journal | None = None,
    ) -> Scheduler:
        """Return a scheduler that serves a group, in the running loop.

        Args:
            network: where sites connect.
            token: what a site must know to join.
            log: where to write down what happens.
            listen: where it will listen; on this machine alone, sites share its cores.
            journal: where it writes down what it needs to find its group again when it is started
                again; None where the group ends with it.
        """
        believed = self.believed()
        first = self.plan(believed, elements=self.model_elements)
        by_size = self.pace is None and self.planner.by_size
        awareness: Awareness | None = None
        cores = float(os.cpu_count() or 1) if is_loopback(listen[0]) else math.inf

        def now_believed() -> Overlay:
            return believed if awareness is None else awareness.made_for

        def chunking(plan: Plan, elements: int) -> int:
            found = chunk_elements(elements, plan, now_believed(), self.planner.deep, cores)
            return max(found, self.least_chunk_elements)

        def dispatching(plan: Plan, elements: int) -> tuple[int, int]:
            each = chunking(plan, elements)
            chunks = len(plans.cut(plan, elements, each))
            return chunks, needed_window(plan, now_believed(), _ELEMENT_BYTES * each, chunks, 0.0)

        if self.awareness is not None:
            awareness = self.awareness.awareness(
                first,
                partial(self.plan, elements=self.model_elements),
                self._search,
                lambda elements: chunking(first, elements),
                plans.within_cores(self.overlay),
            )
        return Scheduler(
            network,
            self.overlay,
            first,
            token,
            dumps(self._settings(journal is not None)),
            chunking,
            log,
            awareness,
            dispatching if self.adaptive and self.planner.deep else None,
            None if (paced := self.paced) is None else paced.book(first),
            self.under_way_bytes,
            least_sites=self.overlay.size if self.on_loss == "abort" else self.least_sites,
            begin_with=None if self.on_loss == "abort" else self.begin_with,
            last_to="all",
            repairs=self._repairs() if self.repairs else None,
            journal=journal,
            errors_end=self.on_error == "abort",
            planners=self._planner_for if by_size else None,
        )

    def _planner_for(self, elements: int) -> Planner:
        return or_packed(partial(self.plan, elements=elements), elements)

    def network(self, credentials: Credentials | None = None) -> TcpNetwork:
        """Return the network that the scheduler takes sites in on."""
        return TcpNetwork(
            CONTROL_LIMITS,
            least_silence_s=self.silence_s if self.repairs else CONTROL_SILENCE_S,
            credentials=credentials,
            stillness_s=self.stillness_s,
        )

    @property
    def repairs(self) -> bool:
        """Whether exchanges go on without what is lost."""
        return self.on_loss != "abort" and self.pace is None

    def _repairs(self) -> Repairs:
        retries = self.on_loss == "retry"
        return Repairs(or_packed(self.plan), self.least_sites, self.begin_with, retries)

    def _settings(self, may_be_restarted: bool) -> Settings:
        workers = tuple(range(self.overlay.size))
        barrier = self.pace is not None and self.pace.barrier
        return Settings(
            least_chunk_elements=self.least_chunk_elements,
            most_chunk_elements=max(MOST_ELEMENTS, self.least_chunk_elements),
            under_way_bytes=self.under_way_bytes,
            auxiliary=self.auxiliary,
            measuring=None
            if self.awareness is None
            else self.awareness.measuring(self.least_chunk_elements),
            assumes_rates=self.assumes_rates,
            workers=0 if self.pace is None else len(workers),
            added_up=workers if barrier else (),
            silence_s=self.silence_s if self.repairs else None,
            stillness_s=self.stillness_s,
            away_s=self.away_s if may_be_restarted else 0.0,
        )

    @property
    def paced(self) -> Paced | None:
        """How the model is served; None where it is not."""
        if self.pace is None:
            return None
        return Paced(
            pace=self.pace,
            load=self.load,
            batch_size=self.batch_size,
            workers=[*range(self.overlay.size)],
            updates=self.updates,
        )


class GroupLog:
    """Writes a group's events down, and says the most important ones.

    Args:
        service: what the group is served with.
        log: where to write; None for nowhere.
        console: where to say what people should know at once.
    """

    def __init__(self, service: Service, log: EventLog | None, console: Console) -> None:
        self._service = service
        self._log = log
        self._console = console
        self._held: list[events.Event] = []  # until the first event: what was meant to happen
        self._began = False
        self._last_s = 0.0

    def began(self, buffer_elements: int, plan: Plan) -> None:
        """See :class:`anabranch.scheduler.run.Log`."""
        self._began = True
        overlay, size_bytes = self._service.overlay, _ELEMENT_BYTES * buffer_elements
        if self._log is None:
            return
        network = plans.within_cores(overlay)
        chunk = chunk_elements(buffer_elements, plan, network, self._service.planner.deep)
        predicted = plans.predict(plan, network, size_bytes, chunk_bytes=_ELEMENT_BYTES * chunk)
        started = events.RunStarted(
            at_s=0.0,
            label=plan.label,
            overlay_toml=overlays.dumps(overlay),
            plan_json=plans.dumps(plan),
            sites=[site.name for site in overlay.sites],
            buffer_bytes=size_bytes,
            chunk_elements=chunk,
            shaped=False,
            task="group",
            model=f"{buffer_elements} elements",
            seed=0,
            rounds=0,
            predicted_s=predicted.contention_s,
            paper_s=predicted.paper_s,
            limit_s=None,
            target_accuracy=None,
            versions={"anabranch": __version__},
            assumes_rates=self._service.assumes_rates,
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            pacing_json="" if (paced := self._service.paced) is None else paced.encode(),
        )
        self._log.append([started, *self._held])

    def write(self, *happened: events.Event) -> None:
        """See :class:`anabranch.scheduler.run.Log`."""
        for event in happened:
            self._last_s = max(self._last_s, event.at_s)
            self._console.tell(event)
        if not self._began:
            self._held += happened
        elif self._log is not None:
            self._log.append(happened)

    def ended(self, error: str | None) -> None:
        """Write the last event.

        Raises:
            RunAborted: the log cannot be written; where the group has failed, that counts more.
        """
        self._console.ended(error)
        if self._log is None:
            return
        try:
            if not self._began:
                self.began(1, self._service.plan(self._service.believed()))
            self._log.append([events.RunEnded(at_s=self._last_s, error=error, reason=None)])
        except LogError as failed:
            if error is None:
                raise RunAborted(str(failed)) from failed


def serve(
    service: Service,
    token: str,
    listen: Address,
    log_path: Path | None,
    listening: Callable[[Address], None],
    say: Callable[[Line], None],
    credentials: Credentials | None = None,
    journal_path: Path | None = None,
    stands_by: bool = False,
    stop_with_stdin: bool = False,
    watching: Watching = UNWATCHED,
) -> None:
    """Serve one group over TCP until every site has left.

    With a journal, a scheduler that is killed or told to terminate leaves its group; started again
    with the same journal, it finds it. So does one that stands by.

    Args:
        service: what with.
        token: what a site must know to join.
        listen: where sites join.
        log_path: the event log to create; None for none.
        listening: called once sites can join, with where.
        say: called with lines for people: who joined, who is awaited, what changed.
        credentials: for TLS; None for none.
        journal_path: the journal, which is made if there is none; None for none.
        stands_by: whether to wait while another scheduler has the journal. Once that has ended its
            group, nothing is left to do.
        stop_with_stdin: whether the group ends when standard input closes, with the process that
            holds its other end.
        watching: what people and machines see of the group while it goes on.

    Raises:
        RunAborted: the group ended early; says who or what caused it.
        LogError: the log cannot be created, or the journal not be used.
    """
    if log_path is not None and not log_path.parent.is_dir():  # said before it is waited for
        raise LogError(f"cannot create {log_path}: there is no folder {log_path.parent}")
    with ExitStack() as stack:
        journal = None
        if journal_path is not None:
            journal, has_waited = _journal(journal_path, stands_by, say)
            stack.enter_context(journal)
            if journal.why_ended is not None:
                raise LogError(
                    f"the group of the journal {journal_path} ended early: {journal.why_ended}; "
                    "remove that file to begin another group"
                )
            if has_waited and journal.had_ended:
                say(Line("ended", "the group has ended"))
                return
            journal.begin()
            if has_waited:
                say(Line("took_over", "the other scheduler is gone: this one goes on"))
        if log_path is not None and journal is not None and log_path.exists():
            log_path = next_free(log_path)  # the one before has its own, up to where it stopped
            say(Line("log", f"events go to {log_path}", fields={"log": str(log_path)}))
        log = None if log_path is None else stack.enter_context(EventLog.create(log_path))
        asyncio.run(
            _serve(
                *(service, token, listen, log, listening, say, credentials, journal),
                *(stop_with_stdin, watching),
            )
        )


def _journal(path: Path, stands_by: bool, say: Callable[[Line], None]) -> tuple[FileJournal, bool]:
    """Return the journal, and whether another scheduler had it first."""
    has_waited = False
    while True:
        try:
            return FileJournal(path), has_waited
        except JournalBusy:
            if not stands_by:
                raise
        if not has_waited:
            say(Line("standing_by", f"standing by: another scheduler has {path}"))
        has_waited = True
        time.sleep(_LOOK_S)


async def _serve(
    service: Service,
    token: str,
    listen: Address,
    log: EventLog | None,
    listening: Callable[[Address], None],
    say: Callable[[Line], None],
    credentials: Credentials | None,
    journal: FileJournal | None,
    stop_with_stdin: bool,
    watching: Watching,
) -> None:
    console = Console([site.name for site in service.overlay.sites], say)
    group_log = GroupLog(service, log, console)
    network = service.network(credentials)
    scheduler = service.scheduler(network, token, group_log, listen, journal)
    loop = asyncio.get_running_loop()
    is_interrupted = False

    def interrupt() -> None:
        nonlocal is_interrupted
        is_interrupted = not scheduler.is_over
        scheduler.abort("the scheduler was interrupted")

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt)
    if journal is not None:
        loop.add_signal_handler(signal.SIGTERM, scheduler.abandon)
    if stop_with_stdin:
        gone = partial(scheduler.abort, "the process that started the scheduler is gone")
        # Where that process was a site too, its connections' end names it.
        at_end_of_stdin(partial(loop.call_later, _NAMED_FIRST_S, gone))
    where = await scheduler.listen(listen)
    try:
        async with watched(scheduler, console, watching):
            listening(where)  # once all else that it listens to is there
            console.listening()
            await scheduler.finished()
    except RunAborted as error:
        group_log.ended(str(error))
        if journal is not None and not is_interrupted:
            # What starts a failed scheduler again must not begin another group by that.
            journal.end_early(str(error))
        else:
            _forget(journal)
        raise
    except Abandoned as stopped:
        group_log.ended(str(stopped))
    else:
        group_log.ended(None)
        _forget(journal)
    finally:
        await scheduler.close()


def _forget(journal: FileJournal | None) -> None:
    """Let the next scheduler with this journal begin a group of its own."""
    if journal is not None:
        journal.clear()
