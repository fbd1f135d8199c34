"""What is known of links' rates at a moment of a run: stated, measured, or nothing. Pure.

A group may begin without any rate. Its plans then rest on one placeholder for every link, which a
report must not show as a rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from anabranch.overlay import Overlay
from anabranch.record.summary import RunSummary

Pair = tuple[int, int]


@dataclass(frozen=True)
class KnownRates:
    """An overlay's links, by what their rates rest on.

    Attributes:
        overlay: whose links have the rates that were measured, where there are any.
        measured: links whose rate is a measurement.
        unknown: links whose rate is a placeholder.
    """

    overlay: Overlay
    measured: frozenset[Pair] = frozenset()
    unknown: frozenset[Pair] = frozenset()


def known_rates(run: RunSummary, overlay: Overlay, at_s: float = math.inf) -> KnownRates:
    """Return what is known of the rates of a run's links.

    Args:
        run: whose measurements count, unless its links were held to the overlay's rates.
        overlay: of the run, at that moment.
        at_s: until when measurements count.
    """
    if run.started.shaped:
        return KnownRates(overlay)
    latest = {
        pair: before[-1].rate_bps
        for pair, series in run.measured.items()
        if (before := [each for each in series if each.at_s <= at_s])
    }
    links = tuple(
        replace(link, rate_bps=latest[pair] / (1 - link.loss), trace=None)
        if (pair := (link.source, link.target)) in latest
        else link
        for link in overlay.links
    )
    pairs = frozenset((link.source, link.target) for link in links)
    return KnownRates(
        replace(overlay, links=links),
        pairs & latest.keys(),
        pairs - latest.keys() if run.started.assumes_rates else frozenset(),
    )
