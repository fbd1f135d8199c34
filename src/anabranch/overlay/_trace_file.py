"""Traces in CSV files: one line for each change of rate."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from anabranch._text import read_text
from anabranch.overlay._model import OverlayError, Trace

_HEADER = ["time_s", "rate_bps"]


def read_trace(path: Path) -> Trace:
    """Read a link's trace from a CSV file.

    Args:
        path: the first line is ``time_s,rate_bps``. Each other line has the start of a piece,
            seconds since the run began, and its rate, bit/s. Empty lines are skipped.

    Raises:
        OverlayError: the file cannot be read, or a line is not two numbers, has a time not after
            the line before it, or a rate that is not positive; names the file and the line.
    """
    lines = read_text(path, OverlayError).splitlines()
    rows = [(number, row) for number, row in enumerate(csv.reader(lines), 1) if row]
    if not rows or [each.strip() for each in rows[0][1]] != _HEADER:
        raise OverlayError(f"{path}:1: a trace begins with the line {','.join(_HEADER)}")
    starts_s: list[float] = []
    rates_bps: list[float] = []
    for number, row in rows[1:]:
        try:
            start_s, rate_bps = map(float, row)
        except ValueError:
            raise OverlayError(
                f"{path}:{number}: {','.join(row)!r} is not two numbers, a time and a rate"
            ) from None
        if rate_bps == 0:
            raise OverlayError(
                f"{path}:{number}: a rate of 0; leave the line out, and script the outage in the "
                'scenario: a [[fault]] of kind "cut" or "outages"'
            )
        if not 0 < rate_bps < math.inf:
            raise OverlayError(f"{path}:{number}: rate {rate_bps:g} bit/s; give a finite one > 0")
        if not starts_s and start_s != 0:
            raise OverlayError(f"{path}:{number}: the first time is {start_s:g} s; begin at 0")
        if starts_s and not starts_s[-1] < start_s < math.inf:
            raise OverlayError(
                f"{path}:{number}: time {start_s:g} s follows {starts_s[-1]:g} s; give finite "
                "times that rise"
            )
        starts_s.append(start_s)
        rates_bps.append(rate_bps)
    if not starts_s:
        raise OverlayError(f"{path}: no rate; give at least the one from time 0 on")
    return Trace(tuple(starts_s), tuple(rates_bps))
