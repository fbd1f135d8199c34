"""R²SP, Figures 16 to 18: clients' phases, the server's uplink, and the size of groups."""

from __future__ import annotations

from statistics import fmean, pstdev

from papers._experiment import Experiment
from papers._lab import Lab
from papers._result import Result, Row
from papers.r2sp import _federated as federated
from papers.r2sp._federated import CLIENTS, GROUPS, Case, Model, Seen, Server

_SIZES = (2, 4, 8, 16, 32, 64, 128)
_SEEDS = 5


def _both(lab: Lab, models: tuple[Model, ...], servers: tuple[Server, ...]) -> dict[Case, Seen]:
    cases = [
        Case(model, server, federated.pace(groups), seed=lab.seed)
        for model in models
        for server in servers
        for groups in (1, GROUPS)
    ]
    return dict(zip(cases, lab.map(federated.observe, cases, Seen), strict=True))


def _name(case: Case) -> str:
    return "BSP" if case.under.groups == 1 else "FL-R²SP"


def _fig_16(lab: Lab) -> Result:
    models = (federated.CNN,) if lab.quick else (federated.RESNET20,)
    found = _both(lab, models, (federated.PROGRAM_5,))
    rows = []
    for case, seen in found.items():
        gap_s = fmean(seen.gaps_s)
        rows.append(
            Row(
                f"{case.model.name}, {_name(case)}: train, push, wait, pull, of a round",
                "pulling is much less under FL-R²SP",
                ", ".join(f"{part:.1%}" for part in _parts(seen)),
            )
        )
        rows.append(
            Row(
                f"{case.model.name}, {_name(case)}: between two aggregations",
                "evenly apart under FL-R²SP" if case.under.groups > 1 else "",
                f"{gap_s:.2f} s, deviation {pstdev(seen.gaps_s) / gap_s:.0%}",
            )
        )
    data = {"phases": {_name(case): seen.phases for case, seen in found.items()}}
    return Result(tuple(rows), (federated.NOTE,), data)


def _parts(seen: Seen) -> tuple[float, float, float, float]:
    push, wait, pull = (each / seen.round_s for each in (seen.push_s, seen.wait_s, seen.pull_s))
    return 1.0 - push - wait - pull, push, wait, pull


def _fig_17(lab: Lab) -> Result:
    models = federated.MODELS[:1] if lab.quick else federated.MODELS
    found = _both(lab, models, federated.SERVERS)
    by_case = {(c.model.name, c.server.name, c.under.groups): seen for c, seen in found.items()}
    rows = []
    for case, ours in found.items():
        if case.under.groups == 1:
            continue
        bsp = by_case[case.model.name, case.server.name, 1]
        rows.append(
            Row(
                f"{case.model.name}, {case.server.name}: peak of the uplink, BSP over FL-R²SP",
                "about 3" if case.model is federated.RESNET20 else "more than 1",
                f"{bsp.peak_bps / ours.peak_bps:.2f} ({_rate(bsp.peak_bps)}, "
                f"{_rate(ours.peak_bps)})",
            )
        )
    note = (
        "Peaks are over 0.1 s, each pull taken to go evenly while it lasts. A program that goes at "
        "one rate whenever anybody pulls has the same peak under any pace."
    )
    return Result(tuple(rows), (federated.NOTE, note))


def _fig_18(lab: Lab) -> Result:
    models = federated.MODELS[:1] if lab.quick else federated.MODELS
    servers = (federated.PORT, federated.PROGRAM_5)
    sizes = (4, 16, 64) if lab.quick else _SIZES
    seeds = range(lab.seed, lab.seed + (1 if lab.quick else _SEEDS))
    cases = [
        Case(model, server, federated.pace(CLIENTS // size), seed=seed)
        for model in models
        for server in servers
        for size in sizes
        for seed in seeds
    ]
    found: dict[tuple[str, str, int], list[float]] = {}
    for case, seen in zip(cases, lab.map(federated.observe, cases, Seen), strict=True):
        size = CLIENTS // case.under.groups
        found.setdefault((case.model.name, case.server.name, size), []).append(seen.round_s)
    rows = []
    for model in models:
        for server in servers:
            rounds = {size: found[model.name, server.name, size] for size in sizes}
            best = min(sizes, key=lambda size: fmean(rounds[size]))
            told = ", ".join(f"{size}: {fmean(rounds[size]):.2f}" for size in sizes)
            rows.append(
                Row(
                    f"{model.name}, {server.name}: a round by the size of groups",
                    "falls, then rises; 32 is best",
                    f"{told} s; {best} is best",
                )
            )
    data = {
        "rounds": [
            {"model": model, "server": server, "size": size, "round_s": each}
            for (model, server, size), each in found.items()
        ]
    }
    note = f"Means of {_SEEDS} seeds. A size of {CLIENTS} is BSP."
    return Result(tuple(rows), (federated.NOTE, note), data)


def _rate(bps: float) -> str:
    return f"{bps / 1e6:.0f} Mbit/s"


EXPERIMENTS = (
    Experiment("r2sp/fig16", "what clients do when, in one group and in eight", _fig_16),
    Experiment("r2sp/fig17", "the server's uplink, in one group and in eight", _fig_17),
    Experiment("r2sp/fig18", "rounds by the size of groups", _fig_18),
)
