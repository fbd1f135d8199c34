"""R²SP, Tables IV and V: the times of a round, its push and its pull, under both schemes.

Table IV's convergence is in fig15, since it takes training.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from papers._experiment import Experiment
from papers._lab import Lab
from papers._result import Result, Row
from papers.r2sp import _federated as federated
from papers.r2sp import _setting as setting
from papers.r2sp._federated import Case, Seen, Server

_BSP, _LITERAL, _OURS = "BSP", "FL-R²SP", "FL-R²SP, ours"
_PACES = {
    _BSP: federated.pace(1),
    _LITERAL: federated.pace(federated.GROUPS),
    _OURS: federated.ours(federated.GROUPS),
}
_WHY: Mapping[str, str] = {
    federated.PORT.name: "the paper's rates: a round has hardly any contention, and turns cost "
    "waiting; why the paper gains is not known from its rates (Table II)",
    federated.PROGRAM_2.name: "the rate that Table II's ResNet20 implies",
    federated.PROGRAM_5.name: "the rate that Table V's pulls of ResNet20 under BSP imply: fitted",
}
_OURS_IS = (
    f"Ours: {federated.GROUPS} groups that bring as many updates a second, the group that is ready "
    "first has its turn, and updates count until then. So a round takes longer, and more updates "
    "count in it; what that gains in training is in fig15."
)


def _runs(lab: Lab) -> dict[tuple[str, str, str], list[Seen]]:
    """Return the outcomes of each model, server and scheme, by seed."""
    models = federated.MODELS[:1] if lab.quick else federated.MODELS
    seeds = lab.seeds(federated.SEEDS)
    cases = [
        (name, Case(model, server, pace, seed=seed))
        for model in models
        for server in _servers(lab)
        for name, pace in _PACES.items()
        for seed in seeds
    ]
    found: dict[tuple[str, str, str], list[Seen]] = {}
    made = lab.map(federated.observe, [case for _, case in cases], Seen)
    for (name, case), seen in zip(cases, made, strict=True):
        found.setdefault((case.model.name, case.server.name, name), []).append(seen)
    return found


def _servers(lab: Lab) -> tuple[Server, ...]:
    return federated.SERVERS[2:] if lab.quick else federated.SERVERS


def _rounds(runs: list[Seen], beside: list[Seen]) -> str:
    """Return the rounds of runs, and their part of others' with the same seeds."""
    ratios = [each.round_s / other.round_s for each, other in zip(runs, beside, strict=True)]
    return f"{setting.spread([each.round_s for each in runs])} s, {setting.spread(ratios)} of BSP's"


def _table_4(lab: Lab) -> Result:
    found = _runs(lab)
    rows = []
    for model in federated.MODELS[:1] if lab.quick else federated.MODELS:
        for server in _servers(lab):
            bsp, literal, ours = (found[model.name, server.name, name] for name in _PACES)
            bsp_s, group_s = model.round_s
            rows.append(
                Row(
                    f"{model.name}, {server.name}: a round of FL-R²SP",
                    f"{group_s:g} s, {group_s / bsp_s:.2f} of BSP's ({bsp_s:g} s)",
                    _rounds(ours, bsp),
                    _WHY[server.name],
                    literal=f"{_rounds(literal, bsp)} ({fmean(x.round_s for x in bsp):.2f} s)",
                    seeds=f"{len(bsp)}",
                )
            )
    notes = (federated.NOTE, _OURS_IS, "Convergence: fig15. Means, the least to the most.")
    return Result(tuple(rows), notes)


def _table_5(lab: Lab) -> Result:
    found = _runs(lab)
    rows = []
    for model in federated.MODELS[:1] if lab.quick else federated.MODELS:
        for server in _servers(lab):
            for what, paper in (("push", model.push_s), ("pull", model.pull_s)):
                bsp, literal, ours = (
                    [getattr(seen, f"{what}_s") for seen in found[model.name, server.name, name]]
                    for name in _PACES
                )
                rows.append(
                    Row(
                        f"{model.name}, {server.name}: a {what} under BSP, and FL-R²SP",
                        f"{paper[0]:g} s, {paper[1]:g} s",
                        f"{setting.spread(ours)} s",
                        _why_push(what, server),
                        literal=f"{setting.spread(bsp)} s, {setting.spread(literal)} s",
                        seeds=f"{len(bsp)}",
                    )
                )
    return Result(tuple(rows), (federated.NOTE, _OURS_IS))


def _why_push(what: str, server: Server) -> str:
    if what == "push":
        return (
            "without the injected delay, 0.22 s on average, which theirs seem to have; the rest of "
            "ResNet20's 1.19 s is not known"
        )
    return _WHY[server.name]


EXPERIMENTS = (
    Experiment("r2sp/table4", "rounds of 128 clients, in one group and in eight", _table_4),
    Experiment("r2sp/table5", "a client's push and pull, in one group and in eight", _table_5),
)
