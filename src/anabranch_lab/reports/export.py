"""A run's rounds for other tools: one row a round, of flat keys and numbers. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from anabranch.log.events import StepDone
from anabranch.log.summary import RunSummary

Row = dict[str, float | int]


def rows(run: RunSummary, began_s: float | None = None) -> list[Row]:
    """Return a row for each round or step in a run's log, in order.

    Each row has ``_step``, the number of the round, and ``_runtime``, seconds since the run began.
    If the run has a date, it has ``_timestamp``, seconds since 1970. These are the names of Weights
    & Biases. Unknown values, and values that are no number, are left out. Steps of workers that
    push updates count by the update.

    - ``train/loss``, ``train/loss/SITE``: means over samples of the local steps before the round.
    - ``round/exchange_s``: the time of the exchange at its slowest site; ``round/interval_s``: from
      the previous round's end to this one's; ``round/plan_version``.
    - ``eval/accuracy``: after the round, mean over the sites that evaluated it.

    Args:
        run: the run.
        began_s: when it began, seconds since 1970; None: it has no date.
    """
    found: defaultdict[int, Row] = defaultdict(dict)
    at_s: dict[int, float] = {}
    steps: defaultdict[int, list[StepDone]] = defaultdict(list)
    for step in run.steps:
        steps[step.round].append(step)
    for number, several in steps.items():
        at_s[number] = max(step.at_s for step in several)
        found[number] |= _losses(several, run.sites)
    for point in run.accuracy:
        at_s[point.round] = max(point.at_s, at_s.get(point.round, 0.0))
        found[point.round]["eval/accuracy"] = point.accuracy
    for done, interval_s in zip(run.rounds, run.interval_s, strict=True):
        at_s[done.round] = max(done.at_s, at_s.get(done.round, 0.0))
        found[done.round] |= {
            "round/exchange_s": done.seconds,
            "round/interval_s": interval_s,
            "round/plan_version": done.version,
        }
    return [
        {
            "_step": number,
            "_runtime": at_s[number],
            **({} if began_s is None else {"_timestamp": began_s + at_s[number]}),
            **dict(sorted(found[number].items())),
        }
        for number in sorted(found)
    ]


def _losses(steps: Sequence[StepDone], names: Sequence[str]) -> Row:
    """Return the mean loss of some steps, and that of each site among them."""
    by_site: defaultdict[int, list[StepDone]] = defaultdict(list)
    for step in steps:
        by_site[step.site].append(step)
    means = {"train/loss": _mean(steps)} | {
        f"train/loss/{names[site]}": _mean(several) for site, several in by_site.items()
    }
    return {key: mean for key, mean in means.items() if mean is not None}


def _mean(steps: Sequence[StepDone]) -> float | None:
    """Return the mean loss over samples; None if a loss is no number, since training diverged."""
    losses = [math.nan if step.loss is None else step.loss for step in steps]
    samples = [max(step.samples, 1) for step in steps]
    mean = math.fsum(loss * n for loss, n in zip(losses, samples, strict=True)) / sum(samples)
    return mean if math.isfinite(mean) else None


def as_json_lines(of: Iterable[Row]) -> bytes:
    """Return rows as JSON, a line each.

    >>> as_json_lines([{"_step": 1, "train/loss": 0.5}, {"_step": 2}])
    b'{"_step":1,"train/loss":0.5}\\n{"_step":2}\\n'
    """
    return msgspec.json.Encoder().encode_lines(of)
