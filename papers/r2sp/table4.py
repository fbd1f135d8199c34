"""R²SP, Tables IV and V: the times of a round, its push and its pull, under both schemes."""

from __future__ import annotations

from dataclasses import asdict
from statistics import fmean

from papers._experiment import Experiment
from papers._lab import Lab
from papers._result import Result, Row
from papers.r2sp import _federated as federated
from papers.r2sp._federated import Case, Seen

_SEEDS = 5


def _runs(lab: Lab) -> dict[tuple[str, str, int], list[Seen]]:
    """Return the outcomes of each model and server, in one group and in eight, by seed."""
    models = federated.MODELS[:1] if lab.quick else federated.MODELS
    servers = federated.SERVERS[2:] if lab.quick else federated.SERVERS
    seeds = range(lab.seed, lab.seed + (1 if lab.quick else _SEEDS))
    cases = [
        Case(model, server, federated.pace(groups), seed=seed)
        for model in models
        for server in servers
        for groups in (1, federated.GROUPS)
        for seed in seeds
    ]
    found: dict[tuple[str, str, int], list[Seen]] = {}
    for case, seen in zip(cases, lab.map(federated.observe, cases, Seen), strict=True):
        key = case.model.name, case.server.name, case.under.groups
        found.setdefault(key, []).append(seen)
    return found


def _told(values: list[float]) -> str:
    low, high = min(values), max(values)
    return f"{fmean(values):.2f} ({low:.2f} to {high:.2f})"


def _table_4(lab: Lab) -> Result:
    found = _runs(lab)
    rows = []
    for model in federated.MODELS:
        for server in federated.SERVERS:
            bsp = found.get((model.name, server.name, 1))
            ours = found.get((model.name, server.name, federated.GROUPS))
            if bsp is None or ours is None:
                continue
            ratios = [b.round_s / a.round_s for a, b in zip(bsp, ours, strict=True)]
            said = model.round_s
            rows.append(
                Row(
                    f"{model.name}, {server.name}: a round under BSP, FL-R²SP, and their ratio",
                    f"{said[0]:g} s, {said[1]:g} s, {said[1] / said[0]:.2f}",
                    f"{_told([each.round_s for each in bsp])} s, "
                    f"{_told([each.round_s for each in ours])} s, {_told(ratios)}",
                )
            )
    note = (
        f"Means over clients and {_SEEDS} seeds of jitter and delays, the least to the most in "
        "parentheses. Convergence is rounds times this, and rounds are fig15's."
    )
    return Result(tuple(rows), (federated.NOTE, note), _data(found))


def _table_5(lab: Lab) -> Result:
    found = _runs(lab)
    rows = []
    for model in federated.MODELS:
        for server in federated.SERVERS:
            for place, (name, groups) in enumerate((("BSP", 1), ("FL-R²SP", federated.GROUPS))):
                seen = found.get((model.name, server.name, groups))
                if seen is None:
                    continue
                rows.append(
                    Row(
                        f"{model.name}, {server.name}, {name}: push, pull",
                        f"{model.push_s[place]:g} s, {model.pull_s[place]:g} s",
                        f"{_told([each.push_s for each in seen])} s, "
                        f"{_told([each.pull_s for each in seen])} s",
                    )
                )
    note = (
        "The paper's pushes seem to have its injected delay in them: it is 0.22 s on average, and "
        "the least of them 0.34 s, where a client alone needs 0.015 s for CNN."
    )
    return Result(tuple(rows), (federated.NOTE, note), _data(found))


def _data(found: dict[tuple[str, str, int], list[Seen]]) -> dict[str, object]:
    kept = ("round_s", "push_s", "pull_s", "wait_s")
    return {
        "seen": [
            {
                "model": model,
                "server": server,
                "groups": groups,
                **{name: [asdict(each)[name] for each in seen] for name in kept},
            }
            for (model, server, groups), seen in found.items()
        ]
    }


EXPERIMENTS = (
    Experiment("r2sp/table4", "rounds of 128 clients, in one group and in eight", _table_4),
    Experiment("r2sp/table5", "a client's push and pull, in one group and in eight", _table_5),
)
