"""A served model's pace: what workers and servers say of it, and what they are told."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Iterable

from anabranch.net.errors import MalformedMessage
from anabranch.net.messages import (
    Abandon,
    Advance,
    Came,
    EpochChanged,
    PaceOver,
    Proceed,
    ProceedRequest,
)
from anabranch.record import events
from anabranch.scheduler.pacing import Decision, PaceBook, events_of
from anabranch.scheduler.run import LONGEST_S, Run


class ServedPace:
    """Tells workers when to proceed, and servers what becomes part of the model.

    Args:
        run: whose sites.
        book: decides who may proceed.
        servers: sites that hold the model, in the order in which they are told.
        dispensable: sites without which the run can go on.

    Attributes:
        book: see above.
    """

    def __init__(
        self, run: Run, book: PaceBook, servers: Iterable[int], dispensable: Collection[int]
    ) -> None:
        self._run = run
        self.book = book
        self._servers = tuple(servers)
        self._dispensable = dispensable
        self._workers = frozenset(book.workers)
        self._told_epoch = 0  # of sums
        self._timer: asyncio.TimerHandle | None = None  # to look at the pace

    @property
    def epoch_changed(self) -> EpochChanged:
        """Who takes part in sums now, as sites are told."""
        return EpochChanged(self.book.epoch, self.book.workers, self.book.under_way)

    def begin(self) -> None:
        """Let workers proceed for the first time."""
        now_s = self._run.since_start_s()
        self._act(self.book.begin(now_s), now_s)

    def asked(self, site: int, message: ProceedRequest) -> None:
        """Hear that a worker would proceed."""
        seconds = message.compute_s
        if message.samples < 0 or not 0 <= seconds <= LONGEST_S:
            raise MalformedMessage(f"{message.samples} samples computed in {seconds} s")
        now_s = self._run.since_start_s()
        decisions = self.book.asked(site, message.update, message.samples, seconds, now_s)
        self._run.note(
            events.ProceedAsked(
                at_s=now_s,
                site=site,
                update=message.update,
                samples=message.samples,
                compute_s=seconds,
            )
        )
        self._run.tell_patience()
        self._act(decisions, now_s)

    def came(self, site: int, message: Came) -> None:
        """Hear that a server has its part of an update."""
        if not self.book.is_void(message.epoch):
            now_s = self._run.since_start_s()
            self._act(self.book.came(site, message.worker, message.update, now_s), now_s)

    def joined(self, site: int, now_s: float) -> None:
        """Let a site that has joined again take part."""
        self._act(self.book.joined(site, now_s), now_s)
        if self.book.is_over:
            self._run.post(site, PaceOver())

    def may_go_on_without(self, site: int) -> bool:
        """Return whether a site can be lost and the run go on."""
        return (
            site in self._dispensable
            and self._run.started_s is not None
            and bool(self._workers - self._run.lost - {site})
            and not self._run.is_over
        )

    def lost(self, site: int, now_s: float) -> None:
        """Go on without a site."""
        self._act(self.book.lost(site, now_s), now_s)

    def stop_looking(self) -> None:
        """Look at the pace no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _act(self, decisions: tuple[Decision, ...], now_s: float) -> None:
        if self.book.epoch > self._told_epoch:
            self._told_epoch = self.book.epoch
            self._run.broadcast(self.epoch_changed)
        for decision in decisions:
            self._run.note(*events_of(decision, now_s))
            advance = Advance(
                tuple(each.update for each in decision.applied),
                decision.discarded,
                tuple((each.worker, each.update) for each in decision.permissions if each.pulls),
            )
            if advance.apply or advance.discard or advance.pulls:
                for server in self._servers:
                    self._run.post(server, advance)
            for worker, update in decision.abandoned:
                self._run.post(worker, Abandon(update))
            for each in decision.permissions:
                self._run.post(each.worker, Proceed(each.update, each.samples, each.pulls))
        if decisions and self.book.is_over:
            self._run.tell_members(PaceOver())
        self._look_at(self.book.due_s)

    def _look_at(self, due_s: float) -> None:
        self.stop_looking()
        if due_s < math.inf and not self._run.is_over:
            assert self._run.started_s is not None  # nothing is due before
            self._timer = asyncio.get_running_loop().call_at(
                self._run.started_s + due_s, self._look
            )

    def _look(self) -> None:
        self._timer = None
        # A timer may ring a little early; the pace is told the moment that it asked for.
        now_s = max(self._run.since_start_s(), self.book.due_s)
        self._run.note(events.PaceLooked(at_s=now_s))
        self._act(self.book.look(now_s), now_s)
