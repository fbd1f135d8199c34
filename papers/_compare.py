"""Compare times of runs with those of others, seed by seed, with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean, median, stdev
from typing import TypeVar

Value = TypeVar("Value")


def compared(ours_s: Sequence[float], theirs_s: Sequence[float]) -> str:
    """Return the times of runs over those of others, as text.

    The text has the geometric mean of the ratios and, in parentheses, a 95 % interval of Student's
    t on their logarithms.

    Args:
        ours_s, theirs_s: of the same seeds in the same order; infinite where a run did not reach
            the target.

    >>> compared([10.0, 10.0], [20.0, 20.0])
    '0.500 (0.50 to 0.50); sooner in 2 of 2'
    """
    pairs = list(zip(ours_s, theirs_s, strict=True))
    sooner = f"sooner in {sum(a < b for a, b in pairs)} of {len(pairs)}"
    logs = [math.log(a / b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    if len(logs) < len(pairs):
        return f"{sooner}; in {len(logs)} do both reach it"
    told = f"{math.exp(fmean(logs)):.3f}"
    if len(logs) > 1:
        told += f" ({ratio_interval(logs)})"
    return f"{told}; {sooner}"


def or_never(at_s: float | None) -> float:
    """Return when something came to pass; infinite for None."""
    return math.inf if at_s is None else at_s


def known(value: Value | None, what: str) -> Value:
    """Return a value that a run must have measured.

    Raises:
        ValueError: it did not.
    """
    if value is None:
        raise ValueError(f"a run has not measured {what}")
    return value


def spread(
    values: Sequence[float],
    form: str,
    middle: Callable[[Sequence[float]], float] = median,
) -> str:
    """Return the middle of numbers and, of several, the least to the most in parentheses.

    >>> spread([3.0, 1.0, 2.0], ".1f"), spread([3.0], ".4g")
    ('2.0 (1.0 to 3.0)', '3')
    """
    told = format(middle(values), form)
    if len(values) == 1:
        return told
    return f"{told} ({min(values):{form}} to {max(values):{form}})"


def spread_s(times_s: Sequence[float]) -> str:
    """Return times to a target as text: the median, the least to the most, and how many reach it.

    >>> spread_s([10.0, 30.0, 20.0]), spread_s([10.0, math.inf]), spread_s([math.inf])
    ('20 (10 to 30) s', '10 (10 to 10) s, in 1 of 2', 'not reached')
    """
    reached = [each for each in times_s if math.isfinite(each)]
    if not reached:
        return "not reached"
    told = f"{median(reached):.3g} ({min(reached):.3g} to {max(reached):.3g}) s"
    return told if len(reached) == len(times_s) else f"{told}, in {len(reached)} of {len(times_s)}"


def bound(value: float, form: str = ".2f", none: float = 1.0) -> str:
    """Return a bound of an interval as text, with as many digits as tell it from no difference.

    Args:
        value: the bound.
        form: its format, with one digit for the number of decimals.
        none: what stands for no difference: 1 for ratios, 0 for gains.

    >>> bound(0.84), bound(1.0037), bound(1.0), bound(-0.04, "+.1f", 0.0)
    ('0.84', '1.004', '1.00', '-0.04')
    """
    begins, digits, ends = form[:-2], int(form[-2]), form[-1]
    finer = (format(value, f"{begins}{more}{ends}") for more in range(digits, digits + 4))
    return next((told for told in finer if float(told) != none), format(value, form))


def ratio_interval(logs: Sequence[float]) -> str:
    """Return a 95 % confidence interval of ratios' geometric mean, as text, from their logarithms.

    >>> ratio_interval([0.0, 0.0])
    '1.00 to 1.00'
    """
    return " to ".join(bound(math.exp(each)) for each in interval(logs))


def interval(values: Sequence[float], of: int = 1) -> tuple[float, float]:
    """Return the bounds of a 95 % confidence interval of the values' mean.

    Student's t: at least two values, assumed to be normal.

    Args:
        values: of which the mean is.
        of: of so many intervals, all of which hold with 95 % (Bonferroni's correction).

    >>> low, high = interval([1.0, 2.0, 3.0])
    >>> round(low, 2), round(high, 2)
    (-0.48, 4.48)
    """
    from scipy.stats import t  # takes most of a second to import

    half = float(t.ppf(1 - 0.025 / of, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half
