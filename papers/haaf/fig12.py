"""HAAF, Fig. 12: resampling, as labels become more skewed."""

from __future__ import annotations

from papers._experiment import Experiment
from papers._lab import Lab
from papers._result import Result, Row
from papers.haaf import _setting as setting
from papers.haaf._setting import SCHEMES

_ALPHAS = (0.1, 1.0, 5.0)
_BETAS = (0.0, 0.99, 0.999)
_GINI = 0.1  # the paper's


def _make(lab: Lab) -> Result:
    outcomes = lab.measure(
        [
            setting.trial(lab, SCHEMES["HAAF"], _GINI, seed, alpha, beta, to_target=False)
            for alpha in _ALPHAS
            for beta in _BETAS
            for seed in setting.seeds(lab, 5)
        ]
    )
    rows = []
    for alpha in _ALPHAS:
        plain = setting.of(outcomes, alpha=alpha, beta=0.0)
        for beta in _BETAS:
            runs = setting.of(outcomes, alpha=alpha, beta=beta)
            what = f"alpha {alpha:g}, beta {beta:g}: accuracy"
            if beta:
                gains = [
                    100 * (ours.accuracy - theirs.accuracy)
                    for ours, theirs in zip(runs, plain, strict=True)
                    if ours.accuracy is not None and theirs.accuracy is not None
                ]
                more = f"{setting.at_end(runs)}; {setting.spread(gains, '+.1f')} points more"
                rows.append(Row(what, "15 to 39 % more", more))
            else:
                rows.append(Row(what, "", setting.at_end(runs)))
    when = f"Accuracies are those last seen within {setting.HORIZON_S:g} s; Gini {_GINI:g}."
    return Result(tuple(rows), setting.notes(lab, outcomes, when))


EXPERIMENT = Experiment("haaf/fig12", "resampling as labels are more skewed", _make)
