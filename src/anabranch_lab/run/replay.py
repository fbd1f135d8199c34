"""Replay a run's pace from its log: a fresh pace, told the same, must decide the same. Pure.

The log holds each event that the pace was told, with the moment that the pace calculated with.
Such an event is a worker's request to proceed, an update that came, or time that passed. It is also
a site that was lost or came back, or the run's stop. The pace's decisions stand between them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import cast

from anabranch import plan as plans
from anabranch._typed_toml import tag_of
from anabranch.log.events import (
    ClientBarred,
    ClientReadmitted,
    Event,
    GroupsFormed,
    PaceLooked,
    PlanIssued,
    ProceedAsked,
    RunEnded,
    RunStarted,
    RunStopping,
    SamplesHeld,
    SiteJoined,
    SiteLost,
    UnknownEvent,
    UpdateApplied,
    UpdateCame,
    UpdateDiscarded,
    UpdateJudged,
    WorkerWent,
    kind_of,
)
from anabranch.net.errors import PeerError
from anabranch.plan import Plan
from anabranch.scheduler import paced
from anabranch.scheduler.decisions import Decision, events_of
from anabranch.scheduler.dependence import groups_of, led_through, lost_between
from anabranch.scheduler.pacing import PaceBook

_Reported = (
    ProceedAsked
    | UpdateJudged
    | UpdateCame
    | PaceLooked
    | SiteLost
    | SiteJoined
    | PlanIssued
    | GroupsFormed
    | RunStopping
)
_Decided = (
    UpdateCame | UpdateApplied | UpdateDiscarded | WorkerWent | ClientBarred | ClientReadmitted
)


class ReplayError(ValueError):
    """The log's decisions are not those of its pace, or the log cannot be replayed."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """A log whose pace made the same decisions again.

    Args:
        pace: the kind of pace.
        told: how many events the pace was told.
        decided: how many events its decisions made.
    """

    pace: str
    told: int
    decided: int


def replay(numbered: Iterable[tuple[int, Event | UnknownEvent]]) -> Replayed:
    """Tell a fresh pace the events that a log's pace was told, and compare the decisions.

    Moments are compared too, to the last bit. A log cut short is replayed as far as it goes.

    Args:
        numbered: a log's events from the first on, as `anabranch.log.read_events` yields them.

    Raises:
        ReplayError: names the first event that differs, or why the log cannot be played.
    """
    numbered = iter(numbered)
    _, started = next(numbered, (0, None))
    if not isinstance(started, RunStarted):
        raise ReplayError("the log does not begin with run_started; give all of its events")
    if not started.pacing_json:
        raise ReplayError(
            "the log names no pace: its sites all-reduced, averaged or gossiped, which no pace "
            "decides; only logs of runs and groups whose model is served can be replayed"
        )
    try:
        plan = plans.loads(started.plan_json)
        told = paced.decode(started.pacing_json)
        book = told.book(plan, started.sites, started.rounds)
    except ValueError as error:
        raise ReplayError(f"the log's pace or plan makes no sense here: {error}") from error
    player = _Player(book, plan, len(started.sites))
    for number, event in numbered:
        player.take(number, event)
    return Replayed(tag_of(told.pace), player.told, player.decided)


class _Player:
    """Compares a log's events with the decisions of a book, which has not begun yet."""

    def __init__(self, book: PaceBook, plan: Plan, sites: int) -> None:
        self._book = book
        self._plan = self._next = plan  # in force, and the next to be in force
        self._servers = {tree.root for tree in plan.trees}
        self._lost = {*range(sites)}  # until they join
        self._begun = False
        self._due: deque[_Decided] = deque()  # decided, and not found in the log yet
        self.told = self.decided = 0

    def take(self, number: int, event: Event | UnknownEvent) -> None:
        match event:
            case UnknownEvent():
                raise ReplayError(
                    f"event {number}, {event.kind}, is of another release, and the pace may have "
                    "heard of it; replay the log with the release that wrote it"
                )
            case SamplesHeld():
                self._book.holds(event.site, event.samples)
            case SiteLost(goes_on=False):
                pass  # the run ends because of this loss, and the pace was not told
            case SiteJoined() if not self._begun:
                self._lost.discard(event.site)
            case SiteLost() if not self._begun:
                self._lost.add(event.site)
            case (
                ProceedAsked()
                | UpdateCame()
                | UpdateJudged()
                | PaceLooked()
                | SiteLost()
                | SiteJoined()
                | PlanIssued()
                | GroupsFormed()
                | RunStopping()
            ):
                self._expect_nothing(number, event)
                self._tell(number, event)
                if isinstance(event, UpdateCame):
                    self._compare(number, event)
            case (
                UpdateApplied()
                | UpdateDiscarded()
                | WorkerWent()
                | ClientBarred()
                | ClientReadmitted()
            ):
                if not self._begun and isinstance(event, WorkerWent):
                    self._begun = True
                    self._decide(self._book.begin(event.at_s), event.at_s)
                    for site in sorted(self._lost):  # a group begins without them
                        self._decide(self._book.lost(site, event.at_s), event.at_s)
                self._compare(number, event)
            case RunEnded():
                self._expect_nothing(number, event)

    def _tell(self, number: int, event: _Reported) -> None:
        self.told += 1
        try:
            decisions = self._ask(event)
        except (AssertionError, LookupError, PeerError, ValueError) as error:
            raise ReplayError(
                f"event {number}: a fresh pace cannot be told {event}: {error}"
            ) from error
        self._decide(decisions, event.at_s)

    def _ask(self, event: _Reported) -> Iterable[Decision]:
        book = self._book
        match event:
            case ProceedAsked():
                return book.asked(
                    event.site,
                    event.update,
                    event.samples,
                    event.compute_s,
                    event.at_s,
                    event.loss,
                )
            case UpdateJudged():
                return book.judged(event.site, event.update, event.cosine, event.at_s)
            case UpdateCame():  # logged when the last server has it
                norms = dict.fromkeys(sorted(self._servers), 0.0)
                norms[min(norms)] = event.squared_norm or 0.0
                answers = [
                    book.came(
                        server,
                        event.site,
                        event.update,
                        event.at_s,
                        None if event.squared_norm is None else norm,
                    )
                    for server, norm in norms.items()
                ]
                return chain(*answers)
            case PaceLooked():
                if event.at_s < book.due_s:
                    raise ValueError(f"it is to look at {book.due_s!r} s, not before")
                return book.look(event.at_s)
            case SiteLost():
                broken = led_through(self._plan, book, event.site)
                self._lost.add(event.site)
                return book.lost(event.site, event.at_s, broken)
            case PlanIssued():
                self._next = plans.loads(event.plan_json)
                book.reform(*groups_of(self._next, self._plan))
                return ()
            case GroupsFormed():
                self._plan = self._next
                return book.formed(event.at_s)
            case SiteJoined():
                self._lost.discard(event.site)
                is_cut_off = bool(lost_between(self._plan, event.site, self._lost))
                return book.joined(event.site, event.at_s, is_cut_off)
            case RunStopping():
                book.close()
                return ()

    def _decide(self, decisions: Iterable[Decision], at_s: float) -> None:
        for decision in decisions:
            self._due += cast(list[_Decided], events_of(decision, at_s))

    def _compare(self, number: int, event: _Decided) -> None:
        again = self._due.popleft() if self._due else None
        if again != event:
            raise ReplayError(
                f"event {number} is {event}; a fresh pace decides {again or 'nothing'} there"
            )
        self.decided += 1

    def _expect_nothing(self, number: int, event: Event) -> None:
        if self._due:
            raise ReplayError(
                f"event {number} is {kind_of(event)}; a fresh pace decides {self._due[0]} before it"
            )
