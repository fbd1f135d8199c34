"""Ends a run by its stop rules, which read the events that the log reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from anabranch.log import events
from anabranch.plan import Plan
from anabranch.scheduler.run import Log
from anabranch.scheduler.stop_rules import Stops


class StoppingLog:
    """A log that stops its run when a rule holds; see :class:`anabranch.scheduler.run.Log`.

    Args:
        log: takes the events.
        stops: applies the stop rules.
        since_start_s: returns the seconds since the run began.
        stop: called with the reason why the run is to end.
    """

    def __init__(
        self,
        log: Log,
        stops: Stops,
        since_start_s: Callable[[], float],
        stop: Callable[[str], None],
    ) -> None:
        self._log = log
        self._stops = stops
        self._since_start_s = since_start_s
        self._stop = stop
        self._began = False
        self._why: str | None = None  # a rule that held before the run began

    def began(self, buffer_elements: int, plan: Plan) -> None:
        """Start the clock of the time limit; end the run soon if a rule held before."""
        self._began = True
        loop = asyncio.get_running_loop()
        if self._stops.after_s is not None:
            left_s = max(0.0, self._stops.after_s - self._since_start_s())
            loop.call_later(left_s, self._stop, self._stops.timed_out())
        if self._why is not None:
            # A group's log begins with its first exchange, and a site may report a target only
            # once, before that. The stop comes in a later turn of the loop, because the scheduler
            # acts on an outcome now.
            loop.call_soon(self._stop, self._why)
        self._log.began(buffer_elements, plan)

    def write(self, *happened: events.Event) -> None:
        """Write events down first, so that the log has the reason before the end."""
        self._log.write(*happened)
        for event in happened:
            why = self._stops.saw(event)
            if why is None:
                continue
            if self._began:
                self._stop(why)
            else:
                self._why = self._why or why
