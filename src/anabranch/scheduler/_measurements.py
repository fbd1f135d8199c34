"""Checks and logs what sites measure of links, and restores it from the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from anabranch.log import events
from anabranch.net.errors import MalformedMessage, OutOfPlaceMessage
from anabranch.net.messages import LinkRate, Measured
from anabranch.scheduler.awareness import Awareness
from anabranch.scheduler.run import LONGEST_S, Run

_MEASURABLE_BPS = 1.0, 1e15


class Measurements:
    """Passes measurements on to the awareness, and to the log.

    Args:
        run: the run.
        awareness: None if plans do not follow measurements.
        remember: writes the journal.
    """

    def __init__(self, run: Run, awareness: Awareness | None, remember: Callable[[], None]) -> None:
        self._run = run
        self._awareness = awareness
        self._remember = remember

    def hear(self, site: int, message: Measured) -> None:
        """Take the measurements of a site.

        Raises:
            OutOfPlaceMessage: a link that does not lead to the site.
            MalformedMessage: an impossible rate or latency.
        """
        name = self._run.name(site)
        known = frozenset() if self._awareness is None else self._awareness.measured_links
        for rate in message.links:
            if self._run.overlay.link(rate.source, site) is None:
                raise OutOfPlaceMessage(f"{name} measured a link from {rate.source}")
            slow, fast = _MEASURABLE_BPS
            latency_s = 0.0 if rate.latency_s is None else rate.latency_s
            if not slow <= rate.rate_bps <= fast or not 0 <= latency_s <= LONGEST_S:
                raise MalformedMessage(f"{name} measured {rate}")
            self._run.note(
                events.LinkMeasured(
                    at_s=self._run.since_start_s(),
                    site=site,
                    source=rate.source,
                    target=site,
                    rate_bps=rate.rate_bps,
                    latency_s=rate.latency_s,
                    chunks=rate.chunks,
                )
            )
            if self._awareness is not None:
                self._awareness.measured(rate.source, site, rate, self._run.since_start_s())
        # Only a link's first measurement is worth a write of the journal. Later ones are written
        # with the next change.
        if self._awareness is not None and self._awareness.measured_links != known:
            self._remember()

    def restore(self, rates: Iterable[tuple[int, LinkRate]]) -> None:
        """Restore the belief of measured links from the journal.

        Args:
            rates: each link's target, and the rest.
        """
        if self._awareness is not None:
            for site, rate in rates:
                self._awareness.measured(rate.source, site, rate, self._run.since_start_s())
