"""R²SP, Fig. 13: the relaxation factor, between waiting for turns and contention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import msgspec

from anabranch.fleet import Lognormal
from anabranch.pace import R2sp
from papers._compare import known
from papers._experiment import Experiment
from papers._lab import Lab
from papers._picture import picture
from papers._result import Result, Row
from papers._trial import Label, Outcome, Trial, chosen
from papers.r2sp import _setting as setting
from papers.r2sp._setting import ALEXNET, VGG16, Model

_RELAXATIONS = (0.0, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0)
_JITTERS = (0.05, 0.1, 0.2, 0.3)
_CHUNKS = 16  # of a model; more make a simulation slower and iterations hardly longer
# VGG16 with ports that it does not keep busy: whether that is why 0.8 is not the best.
_WIDE_BPS = 40e9
_CASES = ((VGG16, setting.PORT_BPS), (VGG16, _WIDE_BPS), (ALEXNET, setting.PORT_BPS))


def _make(lab: Lab) -> Result:
    relaxations = _RELAXATIONS[::4] + _RELAXATIONS[-1:] if lab.quick else _RELAXATIONS
    jitters = _JITTERS[::2] if lab.quick else _JITTERS
    cases = _CASES[2:] if lab.quick else _CASES
    updates = 15 if lab.quick else 60
    seeds = lab.seeds(setting.SEEDS)
    outcomes = lab.measure(
        [
            _trial(model, port_bps, jitter, relaxation, seed, updates)
            for model, port_bps in cases
            for jitter in jitters
            for relaxation in relaxations
            for seed in seeds
        ]
    )
    rows = []
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for model, port_bps in cases:
        where = f"{model.name}, ports of {port_bps / 1e9:g} Gbit/s"
        panels[where] = {}
        for jitter in jitters:
            about: dict[str, Label] = {"model": model.name, "gbps": port_bps / 1e9, "cv": jitter}
            times = {each: _times_s(outcomes, **about, relaxation=each) for each in relaxations}
            means = {each: fmean(times[each]) for each in relaxations}
            best = min(relaxations, key=lambda each: means[each])
            is_papers = (model, port_bps) == _CASES[0]
            told = "; ".join(f"{r:g}: {setting.spread(times[r], '.3f')}" for r in relaxations)
            rows.append(
                Row(
                    f"{where}, jitter of {jitter:.0%}: seconds an iteration by r",
                    "the shortest at r = 0.8" if is_papers else "not shown",
                    f"{told}; the shortest at {best:g}",
                    _WHY[model, port_bps],
                    seeds=f"{len(seeds)}",
                )
            )
            if is_papers:
                blocked_s = {each: _blocked_s(outcomes, **about, relaxation=each) for each in times}
                told = "; ".join(
                    f"{r:g}: {setting.spread(of, '.3f')}" for r, of in blocked_s.items()
                )
                rows.append(
                    Row(
                        f"{where}, jitter of {jitter:.0%}: seconds blocked of an iteration, by r",
                        "the smaller r, the less",
                        told,
                        seeds=f"{len(seeds)}",
                    )
                )
            panels[where][f"jitter of {jitter:.0%}"] = list(means.items())
    blocked = f"{updates} updates of each worker. Where jitter is another than 5 %, rows say so."
    drawn = picture("relaxation factor", "seconds", panels)
    return Result(tuple(rows), (f"{setting.NOTE} {blocked}",), drawn)


_WHY = {
    _CASES[0]: "the ports are busy nearly all the time, so that turns should not come closer "
    "(inferred, see wider ports below)",
    _CASES[1]: "the same model with ports that it does not fill",
    _CASES[2]: "its ports are busy for less of the time (inferred)",
}


def _trial(
    model: Model, port_bps: float, jitter: float, relaxation: float, seed: int, updates: int
) -> Trial:
    made = setting.trial(
        model,
        R2sp(relaxation=relaxation),
        updates,
        setting.cluster(port_bps),
        Lognormal(cv=jitter),
        without=("workers", "gaps"),
        gbps=port_bps / 1e9,
        cv=jitter,
        relaxation=relaxation,
        seed=seed,
    )
    chunk_elements = -(-model.elements // _CHUNKS)
    scenario = msgspec.structs.replace(made.scenario, chunk_elements=chunk_elements)
    return replace(made, scenario=scenario)


def _times_s(outcomes: Sequence[Outcome], **about: Label) -> list[float]:
    return [each.round_s for each in chosen(outcomes, **about)]


def _blocked_s(outcomes: Sequence[Outcome], **about: Label) -> list[float]:
    return [known(each.blocked_s, "blocked_s") for each in chosen(outcomes, **about)]


EXPERIMENTS = (Experiment("r2sp/fig13", "the relaxation factor, and jitter", _make),)
