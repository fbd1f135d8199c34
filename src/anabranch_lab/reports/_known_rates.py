"""The known rates of links at a moment of a run: given, measured or assumed. Pure.

A group may begin without any rate. Its plans then use one placeholder for every link, which a
report must not show as a rate.
"""

from __future__ import annotations

import math
from dataclasses import replace

from anabranch.log.summary import RunSummary
from anabranch.overlay import Basis, Link, Overlay


def known_rates(run: RunSummary, overlay: Overlay, at_s: float = math.inf) -> Overlay:
    """Return an overlay whose links have the known rates, and the basis of each.

    Args:
        run: has the measurements, which count unless links were held to the overlay's rates.
        overlay: of the run, at that moment.
        at_s: the moment; later measurements do not count.
    """
    if run.started.shaped:
        return overlay
    latest = {
        pair: before[-1].rate_bps
        for pair, series in run.measured.items()
        if (before := [each for each in series if each.at_s <= at_s])
    }
    unmeasured: Basis = "assumed" if run.started.assumes_rates else "given"

    def known(link: Link) -> Link:
        rate_bps = latest.get((link.source, link.target))
        if rate_bps is None:
            return replace(link, basis=unmeasured)
        rate_bps /= 1 - link.loss
        return replace(link, rate_bps=rate_bps, trace=None, basis="measured")

    return replace(overlay, links=tuple(map(known, overlay.links)))
