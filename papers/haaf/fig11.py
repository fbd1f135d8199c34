"""HAAF, Fig. 11: the fairness factor, by the variance of accuracy over sites.

The caption has the "variance of local training progress", the text the "node-wise accuracy
variance", "of per-node convergence accuracy". This script follows the text: the variance over the
workers of the server's model's accuracy for each worker. A worker's accuracy is that of each class
on held-out samples, weighted by the worker's own share of labels.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.log.by_site import spread_of
from papers._experiment import Experiment
from papers._lab import Lab, Outcome
from papers._result import Result, Row
from papers.haaf import _setting as setting
from papers.haaf._setting import haaf

_GINIS = (0.3, 0.6)
_FACTORS = (0.0, 0.5, 1.0, 5.0)
_HORIZON_S = 60.0
_LOOK_S = 20.0  # only the last look counts
_VARIANCE = {(0.3, 0.0): "15.7", (0.3, 5.0): "7.8", (0.6, 0.0): "19.2", (0.6, 5.0): "11.81"}
_ACCURACY = {(0.3, 5.0): "up to 79.5 %", (0.6, 0.0): "69.5 %", (0.6, 5.0): "77.07 %"}


def _make(lab: Lab) -> Result:
    outcomes = lab.measure(
        [
            setting.trial(
                lab,
                haaf(q=q),
                gini,
                seed,
                to_target=False,
                look_s=_LOOK_S,
                horizon_s=_HORIZON_S,
                scheme="HAAF",
                q=q,
            )
            for gini in _GINIS
            for q in _FACTORS
            for seed in setting.seeds(lab, 5)
        ]
    )
    rows = []
    for gini in _GINIS:
        plain = setting.of(outcomes, gini=gini, q=0.0)
        for q in _FACTORS:
            runs = setting.of(outcomes, gini=gini, q=q)
            what = f"Gini {gini:g}, q = {q:g}"
            least = _variance_and_least(runs, plain if q else ())
            rows.append(Row(f"{what}: variance over sites", _VARIANCE.get((gini, q), ""), least))
            paper = _ACCURACY.get((gini, q), "")
            rows.append(Row(f"{what}: accuracy", paper, setting.at_end(runs)))
    when = (
        f"Accuracies are those last seen within {_HORIZON_S:g} s, not those that training "
        "converges to. Variance is over the workers, in percentage points squared; a worker's "
        "accuracy is the model's on held-out samples of each class, weighed as the worker's "
        "samples have classes."
    )
    notes = setting.notes(lab, outcomes, when, look_s=_LOOK_S)
    return Result(tuple(rows), notes)


def _variance_and_least(runs: Sequence[Outcome], plain: Sequence[Outcome]) -> str:
    """Return the variance over sites, its ratio to that of `plain`, and the least accuracy."""
    found = [spread_of(each.accuracy_by_site.values()) for each in runs]
    spreads = [each for each in found if each is not None]
    if len(spreads) < len(runs):
        return f"{len(runs) - len(spreads)} of {len(runs)} were never looked at"
    text = setting.spread([each.variance for each in spreads], ".1f")
    least = setting.spread([100 * each.least for each in spreads], ".1f")
    beside = [spread_of(each.accuracy_by_site.values()) for each in plain]
    ratios = [
        ours.variance / theirs.variance
        for ours, theirs in zip(spreads, beside, strict=False)
        if theirs is not None and theirs.variance
    ]
    more = f"; {setting.spread(ratios, '.2f')} of that of q = 0" if ratios else ""
    return f"{text}{more}; worst site {least} %"


EXPERIMENT = Experiment("haaf/fig11", "the fairness factor", _make)
