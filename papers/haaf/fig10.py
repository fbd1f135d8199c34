"""HAAF, Fig. 10: the staleness factor, beside the synchronous and the asynchronous server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from papers._experiment import Experiment
from papers._lab import Lab
from papers._picture import middle, picture
from papers._result import Result, Row
from papers._trial import Outcome
from papers.haaf import _setting as setting
from papers.haaf import _told as told
from papers.haaf._setting import (
    ASYNCHRONOUS_PS,
    FEW,
    LENET,
    LENET_LONGER,
    LONGER_TIMES,
    RATE,
    Case,
    Learner,
    haaf,
)

_SEEDS, _LITERAL_SEEDS = 5, 3
_DRAWN_S = 240.0
_ASYNCHRONOUS = "asynchronous PS"
_UNDAMPED = "HAAF, a = 0"
_PAPER = {
    "PS": "the best, and the slowest",
    _ASYNCHRONOUS: "faster than PS, and worse than all others",
    _UNDAMPED: "",
}
_HAAF = "above asynchronous PS, near PS"
_NOTE = (
    f"HAAF has at most {FEW} trees; a = 0 damps nothing, and is not the paper's. Literal runs are "
    f"as long as ours, and have {_LITERAL_SEEDS} seeds."
)
_LONGER_NOTE = (
    f"HAAF has at most {FEW} trees. {LONGER_TIMES} times as many batches as in haaf/fig10, with "
    "the learning rates that are best there. No literal runs, for time."
)


def _make(
    lab: Lab,
    learner: Learner,
    ginis: Sequence[float],
    dampings: Sequence[float],
    literal_seeds: int,
    note: str,
) -> Result:
    """Compare HAAF's factors with both servers.

    Args:
        lab: makes the runs.
        learner: how long runs are; rates are tuned with `LENET`.
        ginis: coefficients of speeds.
        dampings: HAAF's a.
        literal_seeds: how many seeds run with the paper's rate, too.
        note: of this figure.
    """
    factors = {f"HAAF, a = {a:g}": haaf(FEW, a=a) for a in dampings}
    schemes = {"PS": setting.ps(), _ASYNCHRONOUS: ASYNCHRONOUS_PS, **factors}
    cases = [Case(gini, seed, learner) for gini in ginis for seed in lab.seeds(_SEEDS)]
    rates = {
        (name, gini): setting.tuned(lab, how, Case(gini, lab.seed)).rate
        for name, how in schemes.items()
        for gini in ginis
    }

    def run(names: Iterable[str], by: dict[tuple[str, float], float], count: int) -> list[Outcome]:
        return lab.measure(
            [
                setting.trial(lab, schemes[name], case, by[name, case.gini], scheme=name)
                for name in names
                for case in cases
                if case.seed - lab.seed < count
            ]
        )

    ours = run(schemes, rates, _SEEDS)
    papers = [name for name in schemes if name != _UNDAMPED]
    literal = run(papers, dict.fromkeys(rates, RATE), literal_seeds)
    rows = [
        replace(row, what=f"{row.what}: Gini {gini:g}")
        for gini in ginis
        for row in _rows(
            {name: rates[name, gini] for name in schemes},
            told.of(ours, gini=gini),
            told.of(literal, gini=gini),
        )
    ]
    drawn_s = _DRAWN_S * learner.batches / LENET.batches
    panels = {
        f"Gini {gini:g}": {
            name: middle(
                [
                    [point for point in run.curve if point[0] <= drawn_s]
                    for run in told.of(ours, gini=gini, scheme=name)
                ]
            )
            for name in schemes
        }
        for gini in ginis
    }
    drawn = picture("seconds", "accuracy", panels)
    notes = setting.notes(lab, note, is_literal=literal_seeds > 0)
    return Result(tuple(rows), notes, drawn)


def _rows(rates: dict[str, float], ours: list[Outcome], literal: list[Outcome]) -> list[Row]:
    """Return the rows of one Gini coefficient."""
    of = partial(told.of, ours)
    ps, asynchronous, undamped = (of(scheme=name) for name in ("PS", _ASYNCHRONOUS, _UNDAMPED))
    rows = [
        Row("seeds", "", f"{len(ps)}"),
        Row("learning rates, in this order", "", told.rates(rates)),
    ]
    for name in rates:
        runs, slow = of(scheme=name), told.of(literal, scheme=name)
        said = told.final(slow) if slow else ""
        paper = _PAPER.get(name, _HAAF)
        rows.append(Row(f"{name}, final accuracy", paper, told.final(runs), literal=said))
    for name in rates:
        rows += told.rising(name, of(scheme=name))
    slow_ps = told.of(literal, scheme="PS")
    for name, beside in (("PS", ps), (_ASYNCHRONOUS, asynchronous), (_UNDAMPED, undamped)):
        for other in rates if beside else ():
            if other not in ("PS", name) and (name != _UNDAMPED or other != _ASYNCHRONOUS):
                gain = told.gain(of(scheme=other), beside)
                slow = told.of(literal, scheme=other) if name == "PS" else []
                said = told.gain(slow, slow_ps) if slow else ""
                rows.append(Row(f"{other}, final accuracy beside {name}", "", gain, literal=said))
    to = f"to {LENET.target:.0%}"
    for name, beside in (("PS", ps), (_ASYNCHRONOUS, asynchronous)):
        rows += [
            Row(f"{other}, {to}, over {name}", "", told.over(of(scheme=other), beside))
            for other in rates
            if other not in ("PS", name)
        ]
    others = {name: of(scheme=name) for name in rates if name != "PS"}
    return rows + told.averaged(others, ps, LENET.target)


EXPERIMENTS = (
    Experiment(
        "haaf/fig10",
        "the staleness factor",
        partial(
            _make,
            learner=LENET,
            ginis=(0.3, 0.6),
            dampings=(0.0, 0.2, 0.8),
            literal_seeds=_LITERAL_SEEDS,
            note=_NOTE,
        ),
    ),
    Experiment(
        "haaf/fig10-long",
        "the staleness factor, in long training",
        partial(
            _make,
            learner=LENET_LONGER,
            ginis=(0.3,),
            dampings=(0.8,),
            literal_seeds=0,
            note=_LONGER_NOTE,
        ),
    ),
)
