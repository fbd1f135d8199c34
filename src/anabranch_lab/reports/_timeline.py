"""The payload that links carried, in bins of time. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from anabranch.log.events import LinkBytes
from anabranch.log.summary import RunSummary
from anabranch.overlay import Link

Floats = npt.NDArray[np.float64]

MOST_BINS = 240
_INTERVALS_IN_A_ROUND = 10  # with fewer, a record shows no details within a round


def bin_edges_s(
    runs: Sequence[RunSummary], whole_rounds: bool = False, until_s: float = math.inf
) -> Floats:
    """Return the edges of even bins that span the records of runs, at least one with a record.

    Bins are as wide as the intervals of the coarsest record, or wider where intervals are many.

    Args:
        runs: the runs whose records the bins span.
        whole_rounds: make bins as long as the longest median time per round, if that is only a few
            intervals. Such a record shows no details within a round, and shows false differences
            where rounds of two runs are out of step.
        until_s: leave out all that is later, seconds.
    """
    recorded = [
        samples for run in runs if (samples := [s for row in run.links.values() for s in row])
    ]
    begin_s = max(0.0, min(sample.at_s - sample.seconds for row in recorded for sample in row))
    end_s = max(sample.at_s for row in recorded for sample in row)
    # A site's clock may be wrong; the scheduler's clock gives the end of the run.
    end_s = min(end_s, until_s, max(run.total_s for run in runs))
    if end_s <= begin_s:  # in virtual time a whole record may fall on one moment
        begin_s, end_s = 0.0, end_s or 1.0
    typical_s = max(float(np.median([sample.seconds for sample in row])) for row in recorded)
    rounds_s = [run.median_interval_s for run in runs if run.median_interval_s is not None]
    if whole_rounds and rounds_s and max(rounds_s) < _INTERVALS_IN_A_ROUND * typical_s:
        typical_s = max(typical_s, *rounds_s)
    bins = round((end_s - begin_s) / typical_s) if typical_s > 0 else 1
    return np.linspace(begin_s, end_s, min(MOST_BINS, max(1, bins)) + 1)


def shares(link: Link, samples: Sequence[LinkBytes], edges_s: Floats) -> Floats:
    """Return the payload that a link carried in each bin, as a share of its goodput."""
    found: Floats = rates_bps(samples, edges_s) / goodput_bps(link, edges_s)
    return found


def rates_bps(samples: Sequence[LinkBytes], edges_s: Floats) -> Floats:
    """Return the rate of payload on one link in each bin, bit/s."""
    found: Floats = 8 * np.diff(_bytes_by(samples, edges_s)) / np.diff(edges_s)
    return found


def goodput_bps(link: Link, edges_s: Floats) -> Floats:
    """Return a link's goodput in the middle of each bin, bit/s."""
    middles_s = (edges_s[1:] + edges_s[:-1]) / 2
    if link.trace is None:
        return np.full(len(middles_s), link.goodput_bps)
    at_bps = [link.trace.rate_bps(float(at_s)) for at_s in middles_s]
    return np.array(at_bps) * (1 - link.loss)


def bytes_by(run: RunSummary, moments_s: Floats) -> Floats:
    """Return the payload that all links together had carried by each moment, bytes."""
    total: Floats = np.zeros(len(moments_s))
    for samples in run.links.values():
        total += _bytes_by(samples, moments_s)
    return total


def _bytes_by(samples: Sequence[LinkBytes], moments_s: Floats) -> Floats:
    """Return the bytes that one link had carried by each moment; a sample's bytes flow evenly."""
    known_s, totals = [0.0], [0.0]
    for sample in samples:
        known_s += [max(known_s[-1], sample.at_s - sample.seconds), max(known_s[-1], sample.at_s)]
        totals += [totals[-1], totals[-1] + sample.payload_bytes]
    return np.interp(moments_s, known_s, totals)
