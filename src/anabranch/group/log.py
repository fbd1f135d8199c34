"""The log of a run, of a group or of a scenario: from the first event to the last."""

from __future__ import annotations

from collections.abc import Callable

from anabranch.log import events
from anabranch.log.console import Console
from anabranch.log.store import EventLog, LogError
from anabranch.net.errors import RunAborted
from anabranch.plan import Plan
from anabranch.scheduler.run import Abandoned
from anabranch.scheduler.server import Scheduler

First = Callable[[int, Plan | None], events.RunStarted]
"""Returns the first event of a log, which describes the run. Takes the elements of the buffer and
the first plan; 0 and None if the run ended before it began."""


class RunLog:
    """Writes a run's events to the log, and prints the most important ones.

    Args:
        log: the event log; None writes none.
        first: makes the first event.
        console: prints operator messages; None for no output.
        on_start: called when the run begins.

    Attributes:
        has_ended: whether the last event is written.
    """

    def __init__(
        self,
        log: EventLog | None,
        first: First,
        console: Console | None = None,
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        self._log = log
        self._first = first
        self._console = console
        self._on_start = on_start
        self._held: list[events.Event] = []  # until the first event, which leads the log
        self._began = False
        self.has_ended = False

    def began(self, buffer_elements: int, plan: Plan) -> None:
        """See :class:`anabranch.scheduler.run.Log`."""
        self._begin(buffer_elements, plan)
        self._on_start()

    def _begin(self, buffer_elements: int, plan: Plan | None) -> None:
        self._began = True
        if self._log is not None:
            self._log.append([self._first(buffer_elements, plan), *self._held])

    def write(self, *happened: events.Event) -> None:
        """See :class:`anabranch.scheduler.run.Log`."""
        if self._console is not None:
            for event in happened:
                self._console.tell(event)
        if not self._began:
            self._held += happened
        elif self._log is not None:
            self._log.append(happened)

    def ended(self, error: str | None, scheduler: Scheduler, goes_on: bool = False) -> None:
        """Write the last event.

        Args:
            error: why the run failed; None if it ended well.
            scheduler: the run's scheduler.
            goes_on: whether the sites wait for another scheduler.

        Raises:
            RunAborted: the log cannot be written, and the run had not failed before.
        """
        self.has_ended = True
        if self._console is not None:
            self._console.ended(error, goes_on)
        if self._log is None:
            return
        reason = None if error else scheduler.stopped or scheduler.overview.why_short
        at_s = scheduler.since_start_s()
        try:
            if not self._began:  # the log of a run that never began must be readable too
                self._begin(0, None)
            self._log.append([events.RunEnded(at_s=at_s, error=error, reason=reason)])
        except LogError as failed:
            if error is None:
                raise RunAborted(str(failed)) from failed


async def conduct(scheduler: Scheduler, log: RunLog) -> None:
    """Wait for the end of a run, log it, and close the scheduler.

    Raises:
        RunAborted: the run ended early; names the cause.
        Abandoned: the scheduler stops, and leaves its sites to the next scheduler.
    """
    try:
        await scheduler.finished()
    except (RunAborted, Abandoned) as error:
        log.ended(str(error), scheduler, isinstance(error, Abandoned))
        raise
    else:
        log.ended(None, scheduler)
    finally:
        await scheduler.close()
