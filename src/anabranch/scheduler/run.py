"""The state that all parts of a scheduler share: sites, sessions, the log, and the run's end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from anabranch.log import LogError, events
from anabranch.net.addresses import show
from anabranch.net.deadline import Deadline
from anabranch.net.errors import RunAborted
from anabranch.net.messages import Abort, Departed, Message, Patience, Shutdown, SiteGone
from anabranch.net.session import LEAST_PATIENCE_S, Session
from anabranch.overlay import Overlay
from anabranch.plan import Plan
from anabranch.scheduler._channels import Channels
from anabranch.scheduler._members import Members
from anabranch.scheduler._newcomers import Introductions
from anabranch.scheduler._patience import RoundTimes
from anabranch.scheduler._probes import Accusations
from anabranch.scheduler._restart import Returning
from anabranch.scheduler._tally import Tally
from anabranch.scheduler.losses import Losses
from anabranch.scheduler.membership._life import NEWCOMERS, Lives

LONGEST_S = 1e6
"""Upper bound on any duration a site reports, seconds."""

_CHANGE = 1.25  # sites hear of a new patience once it differs by this factor
# How much later the scheduler gives a site up than the site itself gives up: the site then stops
# before the others continue without it.
_SLACK_S = 1.0


class Abandoned(Exception):
    """A scheduler has stopped, and its sites wait for its successor."""


class Log(Protocol):
    """Takes the events of a run; a LogError of it ends the run."""

    def began(self, buffer_elements: int, plan: Plan) -> None:
        """Note that the run's clock has started, with the first buffer's elements and plan."""

    def write(self, *happened: events.Event) -> None:
        """Write events; their times are seconds since the run began."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A site whose connection has broken.

    Args:
        timer: declares the site lost, unless it connects again before.
        unwatch: ends the watch on its process; the process's end declares the site lost at once.
        why: the reason to report if it is lost.
    """

    timer: Deadline
    unwatch: Callable[[], None]
    why: str

    def cancel(self) -> None:
        """Stop the timer and the watch."""
        self.timer.cancel()
        self.unwatch()


class Run:
    """A run as each part of its scheduler sees it.

    Args:
        overlay: the sites and links of the run.
        members: the sites that have joined.
        channels: the calls that they make.
        log: takes the events of the run.
        times: the durations of rounds and iterations, from which the patience follows.

    Attributes:
        overlay, members, channels: see above.
        sessions: by site, the conversation with it; it outlives broken connections.
        lives: the stage of each site.
        introductions: the acknowledgements that newcomers await.
        missing: by site, the timers of sites whose connections have broken.
        accused: reports of neighbours whose lanes to a site ended.
        silent: sites that are silent on their connection for unusually long.
        through: by site, the neighbour that carries its connection, as the site itself reports.
        losses: the sites and links that the run continues without, where there are repairs.
        why_lost: by site, the reason of its last loss, in words.
        buffer_elements: of the first buffer; None before a site has told.
        patience_s: how long sites try to resume a broken connection, as they were told, seconds.
        started_s: when the run began, by the loop's clock; None before.
        stopped: why the run is to end before its last round, or None.
        returning: the sites that have come back after a restart; None once all calls are restored.
        tally: counts of events so far.
        end: done once the run has ended, well or not.
    """

    def __init__(
        self,
        overlay: Overlay,
        members: Members,
        channels: Channels,
        log: Log,
        times: Sequence[RoundTimes],
    ) -> None:
        self.overlay = overlay
        self.members = members
        self.channels = channels
        self._log = log
        self._is_written = True  # until the log fails
        self._times = times
        self.sessions: dict[int, Session] = {}
        self._dismissed: set[Session] = set()
        self.lives = Lives(overlay.size)
        self.introductions = Introductions()
        self.missing: dict[int, Missing] = {}
        self.accused = Accusations()
        self.silent: set[int] = set()
        self.through: dict[int, int] = {}
        self.losses = Losses()
        self.why_lost: dict[int, str] = {}
        self.buffer_elements: int | None = None
        self.patience_s = LEAST_PATIENCE_S
        self.started_s: float | None = None
        self.stopped: str | None = None
        self.returning: Returning | None = None
        self.tally = Tally()
        self._loop = asyncio.get_running_loop()  # kept: its clock is read after its end, too
        self.end: asyncio.Future[None] = self._loop.create_future()

    def name(self, site: int) -> str:
        """Return a site's index and name, for error messages."""
        return f"site {site} ({self.overlay.sites[site].name})"

    def now_s(self) -> float:
        """Return seconds by the loop's clock."""
        return self._loop.time()

    def since_start_s(self) -> float:
        """Return seconds since the run began; 0 before."""
        return 0.0 if self.started_s is None else self.now_s() - self.started_s

    def is_newcomer(self, site: int) -> bool:
        """Return whether a site joined after the start and is not a member yet."""
        return self.lives[site] in NEWCOMERS

    # --- how it ends

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, well or not."""
        return self.end.done()

    @property
    def has_failed(self) -> bool:
        """Whether the run has ended early."""
        return self.end.done() and self.end.exception() is not None

    def abort(self, reason: str) -> None:
        """End the run everywhere; only the first reason counts."""
        if not self.end.done():
            for site, missing in self.missing.items():
                missing.cancel()
                self.write_lost(site, missing.why, False, self.since_start_s())
            self.missing.clear()
            self.broadcast(Abort(reason))
            self._fail(RunAborted(reason))

    def abandon(self) -> None:
        """Stop, and leave the sites to a scheduler that is restarted with the same journal."""
        if not self.end.done():
            for missing in self.missing.values():
                missing.cancel()
            self._fail(Abandoned("the scheduler stops, and can be started again"))

    def _fail(self, error: Exception) -> None:
        self.end.set_exception(error)
        self.end.exception()  # mark as retrieved, so that asyncio does not warn

    # --- messages to sites

    def post(self, site: int, message: Message) -> None:
        """Send a message to a site; nothing happens if it has no session or was dismissed.

        A dismissed site closes its connection at once and acknowledges no later message. The end
        of the run would wait for that acknowledgement in vain.
        """
        session = self.sessions.get(site)
        if session is not None and session not in self._dismissed:
            session.post(message)

    def dismiss(self, site: int, others_go_on: bool = False) -> None:
        """Tell a site that it may end; no message to it follows."""
        self.post(site, Departed() if others_go_on else Shutdown())
        if site in self.sessions:
            self._dismissed.add(self.sessions[site])

    def broadcast(self, message: Message) -> None:
        """Send a message to every site with a session, newcomers among them."""
        for site in self.sessions:
            self.post(site, message)

    def tell_members(self, message: Message) -> None:
        """Send a message to every site with a session but newcomers."""
        for site in self.sessions:
            if not self.is_newcomer(site):
                self.post(site, message)

    # --- how long to wait for sites

    @property
    def give_up_s(self) -> float:
        """How long to wait for a site: a little longer than it tries to resume, seconds."""
        return self.patience_s + _SLACK_S

    def tell_patience(self) -> None:
        """Tell sites how long to try to resume, if that has changed enough."""
        now_s = max(each.patience_s for each in self._times)
        if not 1 / _CHANGE < now_s / self.patience_s < _CHANGE:
            self.patience_s = now_s
            self.broadcast(Patience(now_s))

    def await_no_longer(self, site: int) -> None:
        """Stop the timer of a missing site."""
        if site in self.missing:
            self.missing.pop(site).cancel()

    def forget_process(self, site: int) -> None:
        """Forget a process that ended: its timer, reports, silence and carrier."""
        self.await_no_longer(site)
        self.accused.forget(site)
        self.silent.discard(site)
        self.through.pop(site, None)

    # --- the log

    def note(self, *happened: events.Event) -> None:
        """Write events to the log; if that fails, the run ends and nothing more is written."""
        for event in happened:
            self.tally.note(event)
        self.write_down(partial(self._log.write, *happened))

    def note_began(self, buffer_elements: int) -> None:
        """Tell the log that the run has begun."""
        plan = self.channels.all.plans.of(buffer_elements) or self.channels.all.plan
        self.write_down(partial(self._log.began, buffer_elements, plan))

    def write_down(self, write: Callable[[], None]) -> None:
        """Write to the log or the journal; a failure ends the run, as for ``note``."""
        if self._is_written:
            try:
                write()
            except LogError as error:
                self._is_written = False
                self.abort(str(error))

    def write_joined(self, site: int, now_s: float) -> None:
        """Log that a site has joined."""
        address = show(self.members.addresses[site])
        name = self.overlay.sites[site].name
        self.note(events.SiteJoined(at_s=now_s, site=site, name=name, address=address))

    def write_lost(self, site: int, why: str, goes_on: bool, now_s: float) -> None:
        """Log that a site is lost and whether the run continues; tell the members if it does."""
        self.why_lost[site] = why
        if goes_on:
            self.tell_members(SiteGone(site, why))
        self.note(events.SiteLost(at_s=now_s, site=site, detail=why, goes_on=goes_on))
