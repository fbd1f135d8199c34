"""HAAF, Fig. 11: the fairness factor, by the variance of accuracy over sites.

The caption has the "variance of local training progress", the text the "node-wise accuracy
variance", "of per-node convergence accuracy". This script follows the text: the variance over the
workers of the server's model's accuracy for each worker. A worker's accuracy is that of each class
on held-out samples, weighted by the worker's own share of labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from anabranch.log.by_site import spread_of
from papers._compare import spread
from papers._experiment import Experiment
from papers._lab import Lab
from papers._result import Result, Row
from papers._trial import Outcome
from papers.haaf import _setting as setting
from papers.haaf import _told as told
from papers.haaf._setting import FEW, LENET_LONGER, LONGER_TIMES, RATE, Case, haaf

_GINIS = (0.3, 0.6)
_FACTORS = (0.0, 0.5, 1.0, 5.0)
_MOST = _FACTORS[-1]
_SEEDS, _LITERAL_SEEDS = 5, 3
_LIPSCHITZ = 100.0
_STRONG = 1.0  # a Lipschitz constant with which eq. 8 damps much more
_VARIANCE = {0.3: "0.50 (7.8 of 15.7)", 0.6: "0.62 (11.81 of 19.2)"}
_ACCURACY = {0.3: "preserved or slightly better", 0.6: "+7.6 points"}
_NOTE = (
    f"HAAF has at most {FEW} trees, and the learning rate that is best with q = 1; with L = "
    f"{_STRONG:g} the one that is best there, since weights shorten steps. Variance is "
    "over the workers, in percentage points squared; a worker's accuracy is the final model's on "
    "held-out samples of each class, weighed as the worker's samples have classes. The paper does "
    "not say on which data it is. Literal runs are as long as ours, and have "
    f"{_LITERAL_SEEDS} seeds. L = {_STRONG:g} is not the paper's: eq. 8's weights "
    "are further from 1 the smaller L is."
)

_LONGER_NOTE = (
    f"HAAF has at most {FEW} trees. {LONGER_TIMES} times as many batches as in haaf/fig11, with "
    "the learning rate that is best there with q = 1. Variance is as in haaf/fig11. No literal "
    "runs, and no others, for time."
)

Values = Callable[[Sequence[Outcome]], list[float]]
Compare = Callable[[Sequence[float], Sequence[float]], str]


def _make_longer(lab: Lab) -> Result:
    rates = {gini: setting.tuned(lab, haaf(FEW), Case(gini, lab.seed)).rate for gini in _GINIS}
    ours = lab.measure(
        [
            setting.trial(
                lab, haaf(FEW, q=q), Case(gini, seed, LENET_LONGER), rates[gini], q=q, L=_LIPSCHITZ
            )
            for q in (0.0, _MOST)
            for gini in _GINIS
            for seed in lab.seeds(_SEEDS)
        ]
    )
    rows = [
        replace(row, what=f"{row.what}: Gini {gini:g}")
        for gini in _GINIS
        for row in [*_rows(gini, told.of(ours, gini=gini), []), *_rising(told.of(ours, gini=gini))]
    ]
    said = f"{_LONGER_NOTE} Learning rates: {told.rates(rates)}."
    return Result(tuple(rows), setting.notes(lab, said, is_literal=False))


def _make(lab: Lab) -> Result:
    rates, strong = (
        {gini: setting.tuned(lab, how, Case(gini, lab.seed)).rate for gini in _GINIS}
        for how in (haaf(FEW), haaf(FEW, q=_MOST, lipschitz=_STRONG))
    )
    cases = [Case(gini, seed) for gini in _GINIS for seed in lab.seeds(_SEEDS)]

    def run(
        factors: Sequence[float],
        lipschitz: float,
        by: dict[float, float],
        cases: Sequence[Case] = cases,
    ) -> list[Outcome]:
        return lab.measure(
            [
                setting.trial(
                    lab,
                    haaf(FEW, q=q, lipschitz=lipschitz),
                    case,
                    by[case.gini],
                    q=q,
                    L=lipschitz,
                )
                for q in factors
                for case in cases
            ]
        )

    ours = [*run(_FACTORS, _LIPSCHITZ, rates), *run((_MOST,), _STRONG, strong)]
    fewer = [case for case in cases if case.seed - lab.seed < _LITERAL_SEEDS]
    literal = run((0.0, _MOST), _LIPSCHITZ, dict.fromkeys(_GINIS, RATE), fewer)
    rows = [
        replace(row, what=f"{row.what}: Gini {gini:g}")
        for gini in _GINIS
        for row in _rows(gini, told.of(ours, gini=gini), told.of(literal, gini=gini))
    ]
    said = f"Learning rates: {told.rates(rates)}; with L = {_STRONG:g}: {told.rates(strong)}."
    return Result(tuple(rows), setting.notes(lab, f"{_NOTE} {said}"))


def _rising(runs: list[Outcome]) -> list[Row]:
    return [row for q in (0.0, _MOST) for row in told.rising(f"q = {q:g}", told.of(runs, q=q))]


def _rows(gini: float, ours: list[Outcome], literal: list[Outcome]) -> list[Row]:
    """Return the rows of one Gini coefficient."""
    of, papers = partial(told.of, ours, L=_LIPSCHITZ), partial(told.of, literal)
    named = {f"q = {q:g}": of(q=q) for q in _FACTORS if q}
    named[f"q = {_MOST:g} with L = {_STRONG:g}"] = told.of(ours, q=_MOST, L=_STRONG)
    named = {name: runs for name, runs in named.items() if runs}
    slow = papers(q=_MOST), papers(q=0.0)
    rows = [Row("seeds", "", f"{len(of(q=0.0))}")]
    quantities: tuple[tuple[str, Values, Compare, str, dict[float, str]], ...] = (
        ("variance over workers", variances, told.ratio, ".1f", _VARIANCE),
        ("final accuracy, %", told.finals, told.more, ".1f", _ACCURACY),
    )
    for what, values, beside, form, paper in quantities:
        plain = values(of(q=0.0))
        was = spread(values(slow[1]), form) if literal else ""
        rows.append(Row(f"q = 0, {what}", "", spread(plain, form), literal=was))
        for name, runs in named.items():
            is_papers = name == f"q = {_MOST:g}"
            rows.append(
                Row(
                    f"{name}, {what} beside q = 0",
                    paper[gini] if is_papers else "",
                    beside(values(runs), plain),
                    literal=beside(*map(values, slow)) if is_papers and literal else "",
                )
            )
    return rows


def variances(runs: Sequence[Outcome]) -> list[float]:
    """Return the variance over the workers of each run's accuracies, percentage points squared."""
    found = [spread_of(each.accuracy_by_site.values()) for each in runs]
    return [each.variance for each in found if each is not None]


EXPERIMENTS = (
    Experiment("haaf/fig11", "the fairness factor", _make),
    Experiment("haaf/fig11-long", "the fairness factor, in long training", _make_longer),
)
