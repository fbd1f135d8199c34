"""HAAF, Fig. 10: the staleness factor, beside the synchronous and the asynchronous server."""

from __future__ import annotations

from papers._experiment import Experiment
from papers._lab import Lab
from papers._result import Result, Row
from papers.haaf import _setting as setting
from papers.haaf._setting import ASYNCHRONOUS_PS, SCHEMES, haaf

_GINIS = (0.3, 0.6)
_FACTORS = (0.2, 0.8)


def _make(lab: Lab) -> Result:
    schemes = {"PS": SCHEMES["PS"], "asynchronous PS": ASYNCHRONOUS_PS}
    schemes |= {f"HAAF, a = {a:g}": haaf(a=a) for a in _FACTORS}
    paper = dict.fromkeys(schemes, "above asynchronous PS, near PS")
    paper |= {"PS": "the best, and the slowest", "asynchronous PS": "faster, and worse"}
    outcomes = lab.measure(
        [
            setting.trial(lab, scheme, gini, seed, to_target=False, scheme=name)
            for gini in _GINIS
            for name, scheme in schemes.items()
            for seed in setting.seeds(lab, 5)
        ]
    )
    rows = []
    for gini in _GINIS:
        for name in schemes:
            runs = setting.of(outcomes, scheme=name, gini=gini)
            rows.append(Row(f"Gini {gini:g}: accuracy, {name}", paper[name], setting.at_end(runs)))
            rows.append(Row(f"Gini {gini:g}: to the target, {name}", "", setting.to_target(runs)))
    when = (
        f"Accuracies are those last seen within {setting.HORIZON_S:g} s, not those that training "
        f"converges to; the target is {setting.TARGET:.0%}."
    )
    return Result(tuple(rows), setting.notes(lab, outcomes, when))


EXPERIMENT = Experiment("haaf/fig10", "the staleness factor", _make)
