"""HAAF, Fig. 9: time to accuracy of four schemes, as computing becomes more uneven."""

from __future__ import annotations

from papers._experiment import Experiment
from papers._lab import Lab
from papers._result import Result, Row
from papers.haaf import _setting as setting
from papers.haaf._setting import SCHEMES

_GINIS = (0.1, 0.3, 0.6)
_PAPER = {0.1: "all alike", 0.3: "HAAF less (drawn only)", 0.6: "about 40 % less than the others"}


def _make(lab: Lab) -> Result:
    seeds = setting.seeds(lab, 5)
    outcomes = lab.measure(
        [
            setting.trial(lab, scheme, gini, seed, scheme=name)
            for gini in _GINIS
            for name, scheme in SCHEMES.items()
            for seed in seeds
        ]
    )
    rows = []
    for gini in _GINIS:
        by_name = {name: setting.of(outcomes, scheme=name, gini=gini) for name in SCHEMES}
        for name, runs in by_name.items():
            theirs = _PAPER[gini] if name == "HAAF" else ""
            what = f"Gini {gini:g}: to the target, {name}"
            rows.append(Row(what, theirs, setting.to_target(runs)))
        rows.append(Row(f"Gini {gini:g}: trees of HAAF", "", setting.trees(by_name["HAAF"])))
        paper = dict.fromkeys(SCHEMES, "0.6") if gini == _GINIS[-1] else {}
        rows += setting.over_others(f"Gini {gini:g}", by_name, paper)
    target = f"The target is {setting.TARGET:.0%} of held-out samples."
    return Result(tuple(rows), setting.notes(lab, outcomes, target))


EXPERIMENT = Experiment("haaf/fig09", "time to accuracy as computing is more uneven", _make)
