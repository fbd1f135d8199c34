"""R²SP, Fig. 13: the relaxation factor, between waiting for turns and contention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import msgspec

from anabranch.fleet import Lognormal
from anabranch.pace import R2sp
from papers._experiment import Experiment
from papers._lab import Lab, Label, Outcome, Trial
from papers._result import Result, Row
from papers.r2sp import _setting as setting
from papers.r2sp._setting import ALEXNET, VGG16, Model

_RELAXATIONS = (0.0, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0)
_JITTERS = (0.05, 0.1, 0.2, 0.3)
_SEEDS = 3
_CHUNKS = 16  # of a model; more make a simulation slower and iterations hardly longer


def _make(lab: Lab) -> Result:
    relaxations = _RELAXATIONS[::4] + _RELAXATIONS[-1:] if lab.quick else _RELAXATIONS
    jitters = _JITTERS[::2] if lab.quick else _JITTERS
    models = (ALEXNET,) if lab.quick else (ALEXNET, VGG16)
    updates = 15 if lab.quick else 60
    seeds = range(lab.seed, lab.seed + (1 if lab.quick else _SEEDS))
    outcomes = lab.measure(
        [
            _trial(model, jitter, relaxation, seed, updates)
            for model in models
            for jitter in jitters
            for relaxation in relaxations
            for seed in seeds
        ]
    )
    rows = []
    for model in models:
        for jitter in jitters:
            about: dict[str, Label] = {"model": model.name, "cv": jitter}
            told = [_of(outcomes, **about, relaxation=each) for each in relaxations]
            best = min(relaxations, key=lambda each: _mean_s(outcomes, **about, relaxation=each))
            rows.append(
                Row(
                    f"{model.name}, jitter of {jitter:.0%}: seconds an iteration",
                    "the shortest at r = 0.8" if model is VGG16 else "not shown",
                    "; ".join(
                        f"r = {relaxation:g}: {each}"
                        for relaxation, each in zip(relaxations, told, strict=True)
                    ),
                    f"the shortest at {best:g}",
                )
            )
    note = (
        f"{setting.NOTE} Where jitter is another, rows say so. Means of {len(seeds)} seeds, the "
        f"least to the most in parentheses; {updates} updates of each worker."
    )
    return Result(tuple(rows), (note,))


def _trial(model: Model, jitter: float, relaxation: float, seed: int, updates: int) -> Trial:
    made = setting.trial(
        model,
        R2sp(relaxation=relaxation),
        updates,
        setting.cluster(),
        Lognormal(cv=jitter),
        cv=jitter,
        relaxation=relaxation,
        seed=seed,
    )
    chunk_elements = -(-model.elements // _CHUNKS)
    scenario = msgspec.structs.replace(made.scenario, seed=seed, chunk_elements=chunk_elements)
    return replace(made, scenario=scenario)


def _times_s(outcomes: Sequence[Outcome], **about: Label) -> list[float]:
    return [each.round_s for each in outcomes if about.items() <= each.labels.items()]


def _mean_s(outcomes: Sequence[Outcome], **about: Label) -> float:
    return fmean(_times_s(outcomes, **about))


def _of(outcomes: Sequence[Outcome], **about: Label) -> str:
    times_s = _times_s(outcomes, **about)
    return f"{fmean(times_s):.3f} ({min(times_s):.3f} to {max(times_s):.3f})"


EXPERIMENT = Experiment("r2sp/fig13", "the relaxation factor, and jitter", _make)
