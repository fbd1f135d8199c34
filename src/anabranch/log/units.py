"""Quantities as text: three digits and a unit."""

from __future__ import annotations

from collections.abc import Mapping

NONE = "\N{EN DASH}"  # for a missing number
TIMES = "\N{MULTIPLICATION SIGN}"


def seconds(value_s: float | None) -> str:
    """Return a duration: ``14.8 s``; a dash for None.

    >>> seconds(0.0123), seconds(14), seconds(1234.6), seconds(None)
    ('12.3 ms', '14.0 s', '1,235 s', '–')
    """
    if value_s is None:
        return NONE
    scaled, unit = (1e3 * value_s, "ms") if 0 < value_s < 0.1 else (value_s, "s")
    return f"{scaled:,.0f} {unit}" if scaled >= 99.95 else f"{scaled:#.3g} {unit}"


def rate(value_bps: float) -> str:
    """Return a data rate: ``155 Mbit/s``.

    >>> rate(155e6), rate(2.5e9), rate(800e3)
    ('155 Mbit/s', '2.5 Gbit/s', '800 kbit/s')
    """
    for unit_bps, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if value_bps >= unit_bps:
            return f"{_digits(value_bps / unit_bps)} {unit}"
    return f"{_digits(value_bps)} bit/s"


def size(value_bytes: float) -> str:
    """Return a size: ``244 MB``, in powers of ten.

    >>> size(244e6), size(1500), size(12)
    ('244 MB', '1.5 kB', '12 B')
    """
    for unit_bytes, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value_bytes >= unit_bytes:
            return f"{_digits(value_bytes / unit_bytes)} {unit}"
    return f"{_digits(value_bytes)} B"


def percent(share: float | None) -> str:
    """Return a share of one: ``97 %``, with a decimal below ten; a dash for None.

    >>> percent(0.973), percent(0.0123), percent(None)
    ('97 %', '1.2 %', '–')
    """
    if share is None:
        return NONE
    return f"{100 * share:.0f} %" if share >= 0.0995 or share == 0 else f"{100 * share:.1f} %"


def times(ratio: float | None) -> str:
    """Return a ratio: ``7.84×``; a dash for None.

    >>> times(7.8378), times(0.5), times(None)
    ('7.84×', '0.50×', '–')
    """
    if ratio is None:
        return NONE
    return f"{ratio:.1f}{TIMES}" if ratio >= 10 else f"{ratio:.2f}{TIMES}"


def ratio(value: float | None) -> str:
    """Return a ratio near 1, with three decimals: ``1.050×``; a dash for None.

    >>> ratio(1.05)
    '1.050×'
    """
    return NONE if value is None else f"{value:.3f}{TIMES}"


def buffers(load: float) -> str:
    """Return a link's load in buffers: ``2.00 × the buffer``.

    >>> buffers(0.5)
    '0.50 × the buffer'
    """
    return f"{load:.2f} {TIMES} the buffer"


def count(number: int, noun: str) -> str:
    """Return a count with its noun.

    >>> count(1, "round"), count(1200, "round")
    ('1 round', '1,200 rounds')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def tally(counts: Mapping[str, int]) -> str:
    """Return counts with their names.

    >>> tally({"DuplicateMessage": 2, "OversizedMessage": 1})
    '2 × DuplicateMessage, 1 × OversizedMessage'
    """
    return ", ".join(f"{number} {TIMES} {what}" for what, number in counts.items())


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
