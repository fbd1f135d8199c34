"""What all parts of a control plane share: who is in the run, what is said and written, its end."""

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
"""The longest time that a site may say something took."""

# Sites hear of another patience when it has changed by so much, and are given up so much later than
# they give up themselves.
_CHANGE = 1.25
_SLACK_S = 1.0


class Abandoned(Exception):
    """A scheduler has stopped, and its group waits for one that takes its place."""


class Log(Protocol):
    """Where a scheduler writes down what happens; LogError, where it cannot, ends the run."""

    def began(self, buffer_elements: int, plan: Plan) -> None:
        """The run's clock has started; the first buffer has so many elements, and this plan."""

    def write(self, *happened: events.Event) -> None:
        """Something has happened; times are seconds since the run began."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A site whose connection has broken.

    Args:
        timer: gives it up, should it not connect again.
        unwatch: ends the watch on its process, whose end gives it up at once.
        why: the account of its death then.
    """

    timer: Deadline
    unwatch: Callable[[], None]
    why: str

    def cancel(self) -> None:
        """Do not give it up."""
        self.timer.cancel()
        self.unwatch()


class Run:
    """A run as each part of its control plane sees it.

    Args:
        overlay: the sites and links of the run.
        members: who has joined.
        channels: what they exchange and gather.
        log: where to write down what happens.
        times: how long rounds, or iterations, take: so patient are sites and scheduler.

    Attributes:
        overlay, members, channels: see above.
        sessions: with the sites that take part.
        lives: at which stage each site is.
        introductions: who has to know yet of sites that join while the run goes on.
        missing: those of them whose connections have broken.
        accused: sites whose lanes have ended, as neighbours say.
        silent: sites that have said nothing for unusually long.
        through: by site, the site that pipes what it says, where one does; as it says itself.
        losses: what the group goes on without, where there are repairs.
        why_lost: how each site was last lost, in words.
        buffer_elements: of the first buffer; None before a site has said.
        patience_s: how long a broken connection may take to come back, as sites know it.
        started_s: when the run began, by the loop's clock; None before.
        stopped: why the run is to end before its last round, or None.
        returning: who comes back, while a scheduler that was started again finds its group.
        tally: what has happened so far, in numbers.
        end: done once the run has ended, in whichever way.
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
        self._loop = asyncio.get_running_loop()  # whose clock is asked after its end, too
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
        """Return whether a site has joined while the run goes on, and is no member yet."""
        return self.lives[site] in NEWCOMERS

    # --- how it ends

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, in whichever way."""
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
        """Stop, and leave the group to a scheduler that is started again with the same journal."""
        if not self.end.done():
            for missing in self.missing.values():
                missing.cancel()
            self._fail(Abandoned("the scheduler stops, and can be started again"))

    def _fail(self, error: Exception) -> None:
        self.end.set_exception(error)
        self.end.exception()  # mark as retrieved, so that asyncio does not warn

    # --- what is said

    def post(self, site: int, message: Message) -> None:
        """Say something to a site, if it is still there.

        A site that was dismissed closes its connection on that word, and would never be known to
        have heard another: the end would wait for it in vain.
        """
        session = self.sessions.get(site)
        if session is not None and session not in self._dismissed:
            session.post(message)

    def dismiss(self, site: int, others_go_on: bool = False) -> None:
        """Tell a site, once, that it may go; it is told nothing more."""
        self.post(site, Departed() if others_go_on else Shutdown())
        if site in self.sessions:
            self._dismissed.add(self.sessions[site])

    def broadcast(self, message: Message) -> None:
        """Say something to all that take part."""
        for site in self.sessions:
            self.post(site, message)

    def tell_members(self, message: Message) -> None:
        """Tell all but those that have not begun."""
        for site in self.sessions:
            if not self.is_newcomer(site):
                self.post(site, message)

    # --- how long sites are waited for

    @property
    def give_up_s(self) -> float:
        """How long to wait for a site: a little longer than it tries to connect again."""
        return self.patience_s + _SLACK_S

    def tell_patience(self) -> None:
        """Tell sites how long they may try to connect again, when that has changed enough."""
        now_s = max(each.patience_s for each in self._times)
        if not 1 / _CHANGE < now_s / self.patience_s < _CHANGE:
            self.patience_s = now_s
            self.broadcast(Patience(now_s))

    def await_no_longer(self, site: int) -> None:
        """Stop what gives a site up, if there is such."""
        if site in self.missing:
            self.missing.pop(site).cancel()

    def forget_process(self, site: int) -> None:
        """Forget a site's process that is gone: how it was heard, what it and others said of it."""
        self.await_no_longer(site)
        self.accused.forget(site)
        self.silent.discard(site)
        self.through.pop(site, None)

    # --- what is written down

    def note(self, *happened: events.Event) -> None:
        """Write down what happened; where that fails, the run ends and no more is written."""
        for event in happened:
            self.tally.note(event)
        self.write_down(partial(self._log.write, *happened))

    def note_began(self, buffer_elements: int) -> None:
        """Write down that the run has begun."""
        plan = self.channels.all.plans.of(buffer_elements) or self.channels.all.plan
        self.write_down(partial(self._log.began, buffer_elements, plan))

    def write_down(self, write: Callable[[], None]) -> None:
        """Write something, in the log or elsewhere; where that fails, as for ``note``."""
        if self._is_written:
            try:
                write()
            except LogError as error:
                self._is_written = False
                self.abort(str(error))

    def write_joined(self, site: int, now_s: float) -> None:
        """Write down that a site takes part."""
        address = show(self.members.address(site))
        name = self.overlay.sites[site].name
        self.note(events.SiteJoined(at_s=now_s, site=site, name=name, address=address))

    def write_lost(self, site: int, why: str, goes_on: bool, now_s: float) -> None:
        """Write down that a site is lost, and whether the run goes on without it; let all know."""
        self.why_lost[site] = why
        if goes_on:
            self.tell_members(SiteGone(site, why))
        self.note(events.SiteLost(at_s=now_s, site=site, detail=why, goes_on=goes_on))
