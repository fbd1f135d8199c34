"""R²SP, Algorithm 1 literally: each update moves the model by the whole of the learning rate.

In the other scripts N workers' updates of a turn together move the model as far as one update of
BSP: each by an N-th. So one rate means one distance under every pace. In Algorithm 1 each update
moves the model by ``-eta g``, while BSP averages N gradients and makes one such step. This script
compares these full steps, as the paper does at one learning rate for all, at BSP's rate and lower
ones.
"""

from __future__ import annotations

from anabranch.fleet import Compute
from papers._experiment import Experiment
from papers._lab import Lab
from papers._result import Result, Row
from papers._trial import chosen
from papers.r2sp import _setting as setting
from papers.r2sp import _training as training
from papers.r2sp._setting import PACES, VGG16
from papers.r2sp._training import Way

_RATE = 0.1  # in the comparison at one rate for all (fig08c)
_LOWER = (1, 2, 4, 8, 16)  # at a sixteenth of BSP's rate an iteration moves as far as BSP's
_WAYS = {
    "ASP": Way(PACES["ASP"], paper="slower than BSP"),
    "R²SP": Way(PACES["R²SP"], paper="up to 25 % faster than BSP"),
}


def _make(lab: Lab) -> Result:
    compute = Compute(samples_per_s=training.DIGITS.batch / VGG16.compute_s, jitter=setting.JITTER)
    window_s = training.WINDOW * VGG16.iteration_s
    cluster = training.Cluster(VGG16.elements, compute, window_s)
    learner = cluster.learner
    seeds = lab.seeds(learner.seeds)
    bsp = Way(PACES["BSP"])
    best = training.rates(lab, {"BSP": bsp}, cluster)["BSP"].rate
    runs = {f"BSP, {rate:g}": (bsp, rate) for rate in (_RATE, best)}
    for part in (1, 16) if lab.quick else _LOWER:
        for name, way in _WAYS.items():
            # A server applies an N-th of each update, so N times the rate makes full steps.
            runs[f"{name}, {_RATE / part:g}"] = way, _RATE / part * cluster.workers
    measured = lab.measure(
        [
            training.trial(way, cluster, rate, seed, name=name, use="measured")
            for name, (way, rate) in runs.items()
            for seed in seeds
        ],
        may_abort=True,
    )
    found = {name: chosen(measured, name=name) for name in runs}
    rows = []
    for name, (way, _) in runs.items():
        is_literal = name.endswith(f", {_RATE:g}")  # one rate for all
        beside = f"BSP, {_RATE if is_literal else best:g}"
        told = training.told_of(found[name], {beside: found[beside]} if name != beside else {})
        rows.append(
            Row(
                f"VGG16, full steps: {name}",
                way.paper if is_literal else "",
                "" if is_literal else told,
                literal=told if is_literal else "",
                seeds=f"{len(seeds)}",
            )
        )
    note = (
        f"{setting.NOTE} Full steps: an update moves the model by the learning rate, in the row's "
        f"name, times its gradient, BSP's {cluster.workers} together by it times their mean. "
        f"Literal: BSP's rate of {_RATE:g} for all. Ours: lower ones, beside BSP at its best rate. "
        f"{training.window_note(window_s)}"
    )
    return Result(tuple(rows), (note, learner.note(lab.quick, tuned=False)))


EXPERIMENTS = (Experiment("r2sp/full-steps", "Algorithm 1 literally: full steps, VGG16", _make),)
