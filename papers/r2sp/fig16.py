"""R²SP, Figures 16 to 18, and the fraction C: phases, the server's uplink, the size of groups."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from statistics import fmean

from papers._experiment import Experiment
from papers._lab import Lab
from papers._picture import picture
from papers._result import Result, Row
from papers.r2sp import _federated as federated
from papers.r2sp import _setting as setting
from papers.r2sp._federated import CLIENTS, GROUPS, SEEDS, Case, Model, Seen, Server

_SIZES = (2, 4, 8, 16, 32, 64, 128)
_PHASES = ("train", "push", "wait", "pull")
_FRACTIONS = (0.25, 0.5, 0.75, 0.9, 1.0)


def _both(
    lab: Lab, models: tuple[Model, ...], servers: tuple[Server, ...]
) -> list[tuple[Model, Server, Seen, Seen]]:
    """Return a run under BSP and one under FL-R²SP of each model and server, for pictures."""
    pairs = [(model, server) for model in models for server in servers]
    cases = [
        Case(model, server, federated.pace(groups), seed=lab.seed)
        for model, server in pairs
        for groups in (1, GROUPS)
    ]
    seen = lab.map(partial(federated.observe, draws=True), cases, Seen)
    return [
        (model, server, bsp, turns)
        for (model, server), bsp, turns in zip(pairs, seen[::2], seen[1::2], strict=True)
    ]


def _fig_16(lab: Lab) -> Result:
    models = (federated.CNN,) if lab.quick else (federated.RESNET20,)
    rows, panels = [], {}
    for model, _, bsp, turns in _both(lab, models, (federated.PROGRAM_5,)):
        for name, seen in (("BSP", bsp), ("FL-R²SP", turns)):
            rows += [
                Row(
                    f"{model.name}, {name}: train, push, wait, pull, of a round",
                    'pulling is "much smaller" under FL-R²SP',
                    ", ".join(f"{part:.1%}" for part in _parts(seen)),
                    "the server is as slow as Table V's pulls of ResNet20 say: fitted",
                    seeds="1",
                ),
                Row(
                    f"{model.name}, {name}: between two aggregations",
                    '"evenly-gapped"' if seen is turns else "",
                    f"{seen.gap_s:.2f} s, deviation {seen.gap_off:.0%}",
                    seeds="1",
                ),
            ]
            panels[f"{model.name}, {name}"] = {
                phase: [(at_s, float(counts[k])) for at_s, *counts in seen.phases]
                for k, phase in enumerate(_PHASES)
            }
    note = (
        "The paper draws bars of each client in three rounds; the picture has the number of "
        "clients in each phase, over two rounds."
    )
    return Result(tuple(rows), (federated.NOTE, note), picture("seconds", "clients", panels))


def _parts(seen: Seen) -> tuple[float, float, float, float]:
    push, wait, pull = (each / seen.round_s for each in (seen.push_s, seen.wait_s, seen.pull_s))
    return 1.0 - push - wait - pull, push, wait, pull


def _fig_17(lab: Lab) -> Result:
    models = federated.MODELS[:1] if lab.quick else federated.MODELS
    rows, panels = [], {}
    for model, server, bsp, turns in _both(lab, models, federated.SERVERS):
        cases = [
            Case(model, server, federated.pace(groups), seed=seed)
            for groups in (1, GROUPS)
            for seed in lab.seeds(SEEDS)
        ]
        seen = lab.map(federated.observe, cases, Seen)
        peaks = seen[: len(seen) // 2], seen[len(seen) // 2 :]
        factors = [a.peak_bps / b.peak_bps for a, b in zip(*peaks, strict=True)]
        rates = (_rate(fmean(each.peak_bps for each in of)) for of in peaks)
        rows.append(
            Row(
                f"{model.name}, {server.name}: peak of the uplink, BSP over FL-R²SP",
                "about 3" if model is federated.RESNET20 else "more than 1",
                f"{setting.spread(factors)} ({', '.join(rates)})",
                "a program sends at one rate, so both have the same peak"
                if server is federated.PROGRAM_5
                else "",
                seeds=f"{len(lab.seeds(SEEDS))}",
            )
        )
        panels[f"{model.name}, {server.name}"] = {"BSP": bsp.uplink, "FL-R²SP": turns.uplink}
    note = (
        "Peaks are over 0.1 s, each pull taken to go evenly while it lasts. Means, the least to "
        "the most."
    )
    return Result(tuple(rows), (federated.NOTE, note), picture("seconds", "Mbit/s", panels))


def _fig_18(lab: Lab) -> Result:
    models = federated.MODELS[:1] if lab.quick else federated.MODELS
    servers = (federated.PORT, federated.PROGRAM_5)
    sizes = (4, 16, 64) if lab.quick else _SIZES
    cases = [
        Case(model, server, federated.pace(CLIENTS // size), seed=seed)
        for model in models
        for server in servers
        for size in sizes
        for seed in lab.seeds(SEEDS)
    ]
    seen = dict(zip(cases, lab.map(federated.observe, cases, Seen), strict=True))
    rows = []
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for model in models:
        for server in servers:
            rounds = {
                size: [
                    seen[Case(model, server, federated.pace(CLIENTS // size), seed=k)].round_s
                    for k in lab.seeds(SEEDS)
                ]
                for size in sizes
            }
            best = min(sizes, key=lambda size: fmean(rounds[size]))
            told = "; ".join(f"{size}: {setting.spread(rounds[size])}" for size in sizes)
            rows.append(
                Row(
                    f"{model.name}, {server.name}: a round by the size of groups",
                    "falls, then rises; 32 is best",
                    f"{told} s; {best} is best",
                    "at the port there is nothing to take turns for"
                    if server is federated.PORT
                    else "why 32 is best in the paper is not known",
                    seeds=f"{len(lab.seeds(SEEDS))}",
                )
            )
            lines = panels.setdefault(server.name, {})
            lines[model.name] = [(float(size), fmean(rounds[size])) for size in sizes]
    note = f"Literal groups. A size of {CLIENTS} is BSP. Means, the least to the most."
    drawn = picture("clients of a group", "seconds", panels)
    return Result(tuple(rows), (federated.NOTE, note), drawn)


def _fractions(lab: Lab) -> Result:
    models = federated.MODELS[:1] if lab.quick else federated.MODELS
    fractions = _FRACTIONS[1::2] if lab.quick else _FRACTIONS
    cases = [
        Case(model, federated.PROGRAM_5, federated.pace(groups, fraction), seed=seed)
        for model in models
        for groups in (1, GROUPS)
        for fraction in fractions
        for seed in lab.seeds(SEEDS)
    ]
    seen = dict(zip(cases, lab.map(federated.observe, cases, Seen), strict=True))
    rows = []
    for model in models:
        for groups, name in ((1, "BSP"), (GROUPS, "FL-R²SP")):
            told = []
            for fraction in fractions:
                case = Case(model, federated.PROGRAM_5, federated.pace(groups, fraction))
                rounds = [seen[replace(case, seed=k)].round_s for k in lab.seeds(SEEDS)]
                told.append(f"C = {fraction:g}: {setting.spread(rounds)}")
            rows.append(
                Row(
                    f"{model.name}, {name}: seconds a round by the fraction C",
                    "in the appendix, which we do not have",
                    "; ".join(told),
                    "rounds alone; accuracy by C is in fig15-fractions",
                    seeds=f"{len(lab.seeds(SEEDS))}",
                )
            )
    rows.append(
        Row(
            "FedScale's setting",
            "leaving the filter out costs accuracy there, too (appendix)",
            "not made",
            "its data set is not here",
        )
    )
    server = "The server's program is the one fitted to Table V."
    return Result(tuple(rows), (federated.COMMON_NOTE, server))


def _rate(bps: float) -> str:
    return f"{bps / 1e6:.0f} Mbit/s"


EXPERIMENTS = (
    Experiment("r2sp/fig16", "what clients do when, in one group and in eight", _fig_16),
    Experiment("r2sp/fig17", "the server's uplink, in one group and in eight", _fig_17),
    Experiment("r2sp/fig18", "rounds by the size of groups", _fig_18),
    Experiment("r2sp/fractions", "rounds by the fraction C", _fractions),
)
