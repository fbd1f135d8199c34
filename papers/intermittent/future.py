"""Malik, Qi and Dalla, V: a bound on a node's lead, messages after a move, sparse networks.

With nine nodes alone: a ring of three is complete.
"""

from __future__ import annotations

from collections.abc import Iterator

from papers._experiment import Experiment
from papers._lab import Lab
from papers._result import Result, Row
from papers.intermittent._runs import OURS, QUICK_NOTE, LiteralRuns, OwnRuns, Runs
from papers.intermittent._strategies import FUTURE, ours
from papers.intermittent._told import RULES, megabytes, over, told

_BASE = "gossip, half"
_BASES = {
    "all-reduce every 4": "all-reduce every 4",
    "average": "all-reduce every 4",
    "push-sum, half, ": "push-sum, half",
}
"""What our strategies whose name begins so are compared with; others: gossip in pairs."""
_PAIRS = "pairs, half"
_NODES = 9
_TUNING = (1000, 1001)  # added to the first seed: not among those that are measured


def _make(lab: Lab) -> Result:
    own = [name for name in ours(_NODES) if name not in _UNUSED]
    runs = Runs(lab, _NODES, (_BASE, *FUTURE), own, tuning=_TUNING)
    rows = _rows(runs, runs.literal(), runs.own())
    return Result(tuple(rows), (runs.note, QUICK_NOTE) if lab.quick else (runs.note,))


_UNUSED = ("all-reduce every 1", "all-reduce every 2", "all-reduce every 8", "plain, half")


def _rows(runs: Runs, literal: LiteralRuns, own: OwnRuns) -> Iterator[Row]:
    seeds = str(len(runs.seeds))
    for name, of in literal.items():
        messages = sum(run.messages for run in of) / max(1, sum(run.iterations for run in of))
        rate = runs.tuned[name].rate_told
        why = f"rate {rate}; {messages:.3g} messages an iteration of the foremost"
        for rule in ("first", "all"):
            nodes, said = RULES[rule], told(of, rule)
            yield Row(f"literal: {name}{nodes}", "future work", "", why, said, seeds)
            if name != _BASE:
                what, ratio = f"literal: {name}, over {_BASE}", over(of, literal[_BASE], rule)
                yield Row(f"{what}{nodes}", "", "", literal=ratio, seeds=seeds)
            why = ""
    for name, mine in own.items():
        why = f"rate {runs.tuned[OURS + name].rate_told}; {megabytes(mine)} over all links"
        base = next((to for begins, to in _BASES.items() if name.startswith(begins)), _PAIRS)
        for rule in ("first", "all"):
            nodes = RULES[rule]
            yield Row(f"ours: {name}{nodes}", "", told(mine, rule), why, seeds=seeds)
            if name != base:
                ratio = over(mine, own[base], rule)
                yield Row(f"ours: {name}, over {base}{nodes}", "", ratio, seeds=seeds)
            why = ""


EXPERIMENTS = (
    Experiment("intermittent/future9", "what the paper leaves to the future, with 9 nodes", _make),
)
