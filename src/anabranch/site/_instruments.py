"""Measures a site's incoming links and its clock's offset, while chunks leave and arrive."""

from __future__ import annotations

import math
from collections.abc import Callable

from anabranch.net.messages import LinkRate, Measured, Message, Stamp, TimeReply, TimeRequest
from anabranch.net.throughput import Arrival
from anabranch.plan import Plan
from anabranch.site._timekeeper import Timekeeper
from anabranch.site.control import Control
from anabranch.site.meter import Meter


class Instruments:
    """One site's meter of links and its timekeeper, for chunks and requests for the time.

    Args:
        site: this site's index.
        clock: returns the site's time, seconds.
        meter: measures the links to it; None measures no links, and keeps no time.
        heads_go_ahead: whether its lanes deliver a chunk's head before the payload has arrived.
        scheduler: gets the measurements, and answers requests for the time.
        post: sends a message to another site.
        plan: returns the current plan.
    """

    def __init__(
        self,
        site: int,
        clock: Callable[[], float],
        meter: Meter | None,
        heads_go_ahead: bool,
        scheduler: Control,
        post: Callable[[int, Message], None],
        plan: Callable[[], Plan],
    ) -> None:
        self._site = site
        self._clock = clock
        self._meter = meter
        self._heads_go_ahead = heads_go_ahead
        self._scheduler = scheduler
        self._post = post
        self._plan = plan
        self._timekeeper: Timekeeper | None = None  # once the run has begun

    def begin(self) -> None:
        """Keep the time from now on, if links are measured."""
        if self._meter is not None:
            self._timekeeper = Timekeeper(self._clock, self._ask)
            self._timekeeper.begin()

    def remember(self) -> None:
        """Ask for the time if a request is due: links are idle now, so answers are quick."""
        if self._timekeeper is not None:
            self._timekeeper.remember()

    def stamp(self, backlogged: bool) -> Stamp:
        """Return the stamp of a chunk that leaves now."""
        offset_s = None if self._timekeeper is None else self._timekeeper.offset_s()
        return Stamp(self._clock(), offset_s, backlogged)

    def arriving(self, source: int, stamp: Stamp, size_bytes: int) -> Callable[[], None]:
        """Begin to measure a chunk's link; return the function that ends the measurement."""
        begun_s = self._clock() if self._heads_go_ahead else None
        return lambda: self._arrived(source, stamp, size_bytes, begun_s)

    def _arrived(self, source: int, stamp: Stamp, size_bytes: int, begun_s: float | None) -> None:
        if self._meter is None:
            return
        if self._timekeeper is not None:
            self._timekeeper.remember()
        own_s = None if self._timekeeper is None else self._timekeeper.offset_s()
        known = own_s is not None and stamp.offset_s is not None
        # Each offset is the scheduler's clock minus the site's: clocks differ by the difference.
        offset_s = (stamp.offset_s or 0.0) - (own_s or 0.0) if known else 0.0
        arrival = Arrival(
            stamp.sent_s, self._clock(), size_bytes, stamp.backlogged, offset_s, begun_s
        )
        if links := self._meter.arrived(source, arrival):
            self._scheduler.post(Measured(links))

    def hear_burst(self, rate: LinkRate, round_trip_s: float) -> None:
        """Take and report what a burst shows of a link; see :mod:`anabranch.site._bursts`."""
        assert self._meter is not None, "bursts are for sites that measure their links"
        self._meter.hear_burst(rate, round_trip_s)
        self._scheduler.post(Measured((rate,)))

    def tell_time(self, request: TimeRequest) -> TimeReply:
        """Return the answer to a child's request for the time."""
        now_s = self._clock()
        offset_s = None if self._timekeeper is None else self._timekeeper.offset_s()
        if self._timekeeper is None or offset_s is None:
            return TimeReply(request.sent_s, now_s, now_s, math.inf)
        now_s += offset_s
        return TimeReply(request.sent_s, now_s, now_s, self._timekeeper.error_s())

    def hear_time(self, reply: TimeReply) -> None:
        """Pass the answer of the scheduler or a parent to the timekeeper."""
        if self._timekeeper is not None:
            self._timekeeper.hear(reply)

    def _ask(self, request: TimeRequest) -> None:
        if self._scheduler.is_over:
            return
        parent = parent_to_ask(self._plan(), self._site)
        if parent is not None:
            self._post(parent, request)
        elif self._scheduler.is_connected:
            self._scheduler.post(request)
        elif self._timekeeper is not None:
            self._timekeeper.unasked(request)  # a request sent later would measure nothing


def parent_to_ask(plan: Plan, site: int) -> int | None:
    """Return the site that a site asks for the time; None for the scheduler.

    It is the parent in the heaviest tree, among the parents that a direct link reaches. A root asks
    the scheduler. So does a site without a direct link to any parent: a relay may be farther from
    the root than the site itself.
    """
    if any(tree.root == site for tree in plan.trees):
        return None
    parents = [
        (tree.share, tree.up[site])
        for tree in plan.trees
        if tree.up[site] >= 0 and len(plan.path(site, tree.up[site])) == 2
    ]
    return max(parents)[1] if parents else None
