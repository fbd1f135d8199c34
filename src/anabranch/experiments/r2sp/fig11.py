"""R²SP, Fig. 11: unequal workers converge sooner with tuned batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anabranch.experiments._experiment import Experiment
from anabranch.experiments._lab import Lab, Outcome
from anabranch.experiments._result import Result, Row
from anabranch.experiments.r2sp import _setting as setting
from anabranch.experiments.r2sp import _training as training
from anabranch.experiments.r2sp._setting import RESNET32
from anabranch.experiments.r2sp.table3 import KINDS, SLOWEST
from anabranch.fleet import Compute, SiteCompute
from anabranch.pace import AnyLoad, EqualBatches, R2sp, TunedBatches

_PAPER_BATCH = 512
_BATCH = 4  # here: of 8, a batch can be tuned in steps of a quarter
_LOADS: Mapping[str, AnyLoad] = {
    "equal": EqualBatches(),
    "tuned": TunedBatches(most=64),
}


def _make(lab: Lab) -> Result:
    effort = training.effort(lab)
    overlay = training.cluster(
        RESNET32.elements, setting.PORT_BPS, setting.WORKERS_1, setting.SERVERS_1
    )
    part = _BATCH / _PAPER_BATCH
    compute = Compute(
        samples_per_s=part * SLOWEST.samples_per_s,
        jitter=setting.JITTER,
        sites={
            f"worker-{k}": SiteCompute(samples_per_s=part * kind.samples_per_s)
            for kind in KINDS
            for k in kind.workers
        },
    )
    outcomes = lab.measure(
        [
            training.trial(
                R2sp(), overlay, compute, rate, seed, load=load, batch=_BATCH, load_kind=name
            )
            for name, load in _LOADS.items()
            for rate in effort.rates
            for seed in effort.seeds
        ]
    )
    rows = _compare(outcomes, effort.rates[:1], "one learning rate", "about 40 % faster")
    if len(effort.rates) > 1:
        rows += _compare(outcomes, effort.rates, "each its best learning rate", "")
    note = (
        "8 workers of three speeds, 2 servers, ports of 10 Gbit/s, ResNet32's size, R²SP with "
        f"r = 0.8; a batch of {_BATCH} takes as long as the paper's of {_PAPER_BATCH}."
    )
    return Result(tuple(rows), tuple(outcomes), (note, training.NOTE))


def _compare(
    outcomes: Sequence[Outcome], rates: Sequence[float], how: str, paper: str
) -> list[Row]:
    made = {name: training.best(outcomes, rates, {"load_kind": name}) for name in _LOADS}
    rows = [
        Row(
            f"{how}, {name} batches: to the target",
            "",
            "does not reach it"
            if one is None
            else f"{one.seconds:.1f} s, {one.iterations:.1f} iterations",
            "" if one is None else f"learning rate {one.rate:g}",
        )
        for name, one in made.items()
    ]
    equal, tuned = made["equal"], made["tuned"]
    if equal is not None and tuned is not None:
        gain = equal.seconds / tuned.seconds - 1
        rows.append(Row(f"{how}: tuned over equal batches", paper, f"{gain:+.0%}"))
    return rows


EXPERIMENT = Experiment("r2sp/fig11", "tuned batches: time to a target accuracy", _make)
