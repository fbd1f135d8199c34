"""Malik, Qi and Dalla, Tables I and II, and figures 1 to 4: six strategies on 3 and 9 nodes.

The paper's strategies run literally (:mod:`._literal`). Beside them, ours run on the same network
with the same latencies, in the simulated world, over our data plane. Each strategy has the learning
rate that is best for it. The paper does not state the time of an iteration: ``intermittent/steps3``
and ``steps9`` have three values of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from papers._experiment import Experiment
from papers._lab import Lab
from papers._picture import middle, picture
from papers._result import Result, Row
from papers.intermittent._runs import OURS, QUICK_NOTE, LiteralRuns, OwnRuns, Runs
from papers.intermittent._strategies import EVERY, FITTED_S, PAPER_S, SIX, STEPS_S
from papers.intermittent._told import RULES, best, megabytes, over, told, wins

TWINS = {name: name for name in EVERY} | {
    "gossip, half": "pairs, half",
    "gossip, by latency": "pairs, by latency",
}
"""Ours beside each of the paper's six."""
PLAIN = "plain, half"
_FIGURES = {3: ("Fig. 1", "Fig. 2"), 9: ("Fig. 3", "Fig. 4")}  # of all-reduces, and of gossip
_UNEXPLAINED = {
    3: {("all-reduce every 8", "all-reduce every 4"), ("gossip, by latency", "gossip, half")},
    9: {
        ("all-reduce every 4", "all-reduce every 2"),
        ("gossip, half", "all-reduce every 1"),
        ("gossip, by latency", "all-reduce every 1"),
        ("gossip, by latency", "gossip, half"),
    },
}
"""Ratios of which the paper has another, and we do not know why."""


def _table(lab: Lab, nodes: int) -> Result:
    runs = Runs(lab, nodes, SIX, (*TWINS.values(), PLAIN))
    literal, own = runs.literal(), runs.own()
    seeds, rows = str(len(runs.seeds)), []
    for name in SIX:
        twin = TWINS[name]
        rates = f"rates {runs.tuned[name].rate_told} and {runs.tuned[OURS + twin].rate_told}"
        which = "ours over a star, two hops" if name in EVERY else f"ours: {twin}"
        for rule, by in RULES.items():
            why, paper = (f"{which}; {rates}", PAPER_S[nodes][name]) if not by else ("", "")
            if rule == "mean":
                paper = f"drawn in {_FIGURES[nodes][name not in EVERY]}"
            found = told(own[twin], rule), told(literal[name], rule)
            rows.append(Row(f"{name}{by}", paper, found[0], why, literal=found[1], seeds=seeds))
    for name in SIX:
        sent = megabytes(own[TWINS[name]])
        rows.append(Row(f"{name}, sent over all links", "", sent, seeds=seeds))
    rows += _ratios(runs, literal, own)
    first, second = (f"{figure}, literal" for figure in _FIGURES[nodes])
    curves = {name: middle([run.curve for run in of]) for name, of in literal.items()}
    panels = {
        first: {name: curves[name] for name in EVERY},
        second: {name: curves[name] for name in SIX if name not in EVERY},
        "ours": {name: middle([run.curve for run in own[name]]) for name in dict.fromkeys(own)},
    }
    notes = (runs.note, QUICK_NOTE) if lab.quick else (runs.note,)
    return Result(tuple(rows), notes, picture("seconds", "accuracy", panels))


def _ratios(runs: Runs, literal: LiteralRuns, own: OwnRuns) -> Iterator[Row]:
    """Yield ratios of the paper's strategies, and of ours over them."""
    seeds = str(len(runs.seeds))
    best_told = min(SIX, key=lambda name: _paper_s(runs.nodes, name))
    yield Row("the first of the six", best_told, "", literal=wins(literal), seeds=seeds)
    for name, other in (
        *((f"all-reduce every {2 * k}", f"all-reduce every {k}") for k in (1, 2, 4)),
        ("gossip, half", "all-reduce every 1"),
        ("gossip, by latency", "all-reduce every 1"),
        ("gossip, half", "all-reduce every 4"),
        ("gossip, by latency", "all-reduce every 4"),
        ("gossip, by latency", "gossip, half"),
    ):
        why = "not known" if (name, other) in _UNEXPLAINED[runs.nodes] else ""
        for rule in RULES if other == "gossip, half" else ("first", "all"):
            yield Row(
                f"{name} over {other}{RULES[rule]}",
                _paper_ratio(runs.nodes, name, other, rule),
                over(own[TWINS[name]], own[TWINS[other]], rule),
                why if rule != "all" else "",
                literal=over(literal[name], literal[other], rule),
                seeds=seeds,
            )
    yield Row(
        "plain gossip that waits for nothing, over literal gossip, half",
        "",
        over(own[PLAIN], literal["gossip, half"]),
        "without the wait for models that were sent; also mixes before it sends, and is looked at "
        f"after it; rate {runs.tuned[OURS + PLAIN].rate_told} of both",
        seeds=seeds,
    )
    for rule in ("first", "all"):
        found = best(literal, rule)
        yield Row(
            f"pairs, half, over the best of the six{RULES[rule]}",
            "",
            over(own["pairs, half"], literal[found], rule),
            f"the best in hindsight: {found}",
            seeds=seeds,
        )


def _paper_s(nodes: int, name: str) -> float:
    said = PAPER_S[nodes][name]
    return float("inf") if said == "never" else float(said)


def _paper_ratio(nodes: int, name: str, other: str, rule: str) -> str:
    if rule == "mean":
        return f"half is better ({_FIGURES[nodes][1]})" if nodes == 9 else "similar"
    both = _paper_s(nodes, name), _paper_s(nodes, other)
    if rule == "all" or both == (float("inf"), float("inf")):
        return ""
    return "never" if float("inf") in both else f"{both[0] / both[1]:.2f}"


def _steps(lab: Lab, nodes: int) -> Result:
    rows, notes = [], []
    for step_s in STEPS_S:
        runs = Runs(lab, nodes, SIX, ("pairs, half", "pairs, by latency"), step_s)
        seeds = str(len(runs.seeds))
        literal, own = runs.literal(), runs.own()
        notes.append(runs.note)
        at = f"{step_s:g} s an iteration"
        why = "fits the paper" if step_s == FITTED_S[nodes] else ""
        rows.append(Row(f"{at}: the first of the six", "", "", why, wins(literal), seeds))
        for name in SIX:
            mine = told(own[TWINS[name]]) if TWINS[name] in own else ""
            rates = f"rate {runs.tuned[name].rate_told}"
            if mine:
                rates += f", of ours {runs.tuned[OURS + TWINS[name]].rate_told}"
            row = Row(f"{at}: {name}", "", mine, rates, literal=told(literal[name]), seeds=seeds)
            rows.append(row)
        for rule in ("first", "all"):
            found = best(literal, rule)
            what = f"{at}: pairs, half, over the best of the six{RULES[rule]}"
            mine = over(own["pairs, half"], literal[found], rule)
            rows.append(Row(what, "", mine, f"the best in hindsight: {found}", seeds=seeds))
    return Result(tuple(rows), (*notes, QUICK_NOTE) if lab.quick else tuple(notes))


EXPERIMENTS = tuple(
    Experiment(f"intermittent/{name}", f"{title} with {nodes} nodes", partial(make, nodes=nodes))
    for name, title, make, nodes in (
        ("table1", "time to accuracy over latencies that drift", _table, 3),
        ("table2", "time to accuracy over latencies that drift", _table, 9),
        ("steps3", "the table for three times of an iteration", _steps, 3),
        ("steps9", "the table for three times of an iteration", _steps, 9),
    )
)
