"""What runs of the intermittent paper's tables came to, as the text of rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median

from papers._compare import compared, or_never
from papers._trial import Outcome
from papers.intermittent._literal import Literal
from papers.intermittent._strategies import SIX

RULES = {"first": "", "mean": ", nodes' mean", "all": ", all nodes"}
"""Which nodes must be at the target, and what a row says of it."""

Ran = Sequence[Literal] | Sequence[Outcome]
"""Runs of one strategy, in order of their seeds."""


def all_s(runs: Ran, rule: str = "first") -> list[float]:
    """Return when runs reached the target by a rule; infinite where they did not."""
    found = []
    for run in runs:
        # Where all sites share one model, rules agree.
        shared_s = run.reached_s if isinstance(run, Outcome) else None
        at_s = run.reached_by.get(rule, shared_s)
        found.append(or_never(at_s))
    return found


def told(runs: Ran, rule: str = "first") -> str:
    """Return seconds to the target over the seeds."""
    reached = [each for each in all_s(runs, rule) if math.isfinite(each)]
    if not reached:
        return "never"
    said = f"{median(reached):.0f} ({min(reached):.0f} to {max(reached):.0f})"
    return said if len(reached) == len(runs) else f"{len(reached)} of {len(runs)}: {said}"


def over(runs: Ran, others: Ran, rule: str = "first") -> str:
    """Return times of runs over those of others, seed by seed."""
    return compared(all_s(runs, rule), all_s(others, rule))


def megabytes(runs: Sequence[Outcome]) -> str:
    """Return what all links carried until the first site was at the target."""
    sent = [each.sent_by.get("first", each.sent_bytes) for each in runs]
    known = [each / 1e6 for each in sent if each is not None]
    return f"{median(known):.3g} MB" if known else "none reaches it"


def best(literal: Mapping[str, Ran], rule: str) -> str:
    """Return which of the paper's six has the least geometric mean of times."""
    return min(SIX, key=lambda name: fmean(map(math.log, all_s(literal[name], rule))))


def wins(literal: Mapping[str, Ran]) -> str:
    """Return how often each of the paper's six is the first of a seed."""
    found: dict[str, int] = {}
    for times_s in zip(*(all_s(literal[name]) for name in SIX), strict=True):
        if math.isfinite(least_s := min(times_s)):
            name = SIX[times_s.index(least_s)]
            found[name] = found.get(name, 0) + 1
    return ", ".join(f"{name} in {count}" for name, count in found.items()) or "none"
