"""HAAF, Fig. 15: time to accuracy of four schemes, as more sites share the data.

Here only the workers have speeds: with few sites, the speed dealt to the server would make a large
difference.
"""

from __future__ import annotations

from papers._experiment import Experiment
from papers._lab import Lab
from papers._result import Result, Row
from papers.haaf import _setting as setting
from papers.haaf._setting import schemes

_WORKERS = (6, 12, 24)
_GINI = 0.6  # where schemes differ most; the paper names none
_PAPER = {6: "all alike", 12: "HAAF less (drawn only)", 24: "HAAF less (drawn only)"}


def _make(lab: Lab) -> Result:
    outcomes = lab.measure(
        [
            setting.trial(
                lab,
                scheme,
                _GINI,
                seed,
                workers=workers,
                server_has_speed=False,
                sites=workers,
                scheme=name,
            )
            for workers in _WORKERS
            for name, scheme in schemes(workers).items()
            for seed in setting.seeds(lab, 5)
        ]
    )
    rows = []
    for workers in _WORKERS:
        by_name = {name: setting.of(outcomes, scheme=name, sites=workers) for name in schemes()}
        for name, runs in by_name.items():
            paper = _PAPER[workers] if name == "HAAF" else ""
            what = f"{workers} workers: to the target, {name}"
            rows.append(Row(what, paper, setting.to_target(runs)))
        rows.append(Row(f"{workers} workers: trees of HAAF", "", setting.trees(by_name["HAAF"])))
        rows += setting.over_others(f"{workers} workers", by_name)
    about = (
        f"The target is {setting.TARGET:.0%} of held-out samples; Gini {_GINI:g} at each number "
        "of workers, so that the slowest of more is slower; all share one data set."
    )
    counts = ", ".join(map(str, _WORKERS))
    notes = setting.notes(lab, outcomes, about, workers=counts, server_has_speed=False)
    return Result(tuple(rows), notes)


EXPERIMENT = Experiment("haaf/fig15", "time to accuracy with more workers", _make)
