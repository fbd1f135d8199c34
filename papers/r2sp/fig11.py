"""R²SP, Fig. 11: unequal workers converge sooner with tuned batches."""

from __future__ import annotations

from dataclasses import replace

from anabranch.fleet import Compute, SiteCompute
from anabranch.pace import TunedBatches
from papers._experiment import Experiment
from papers._lab import Lab
from papers._result import Result
from papers.r2sp import _setting as setting
from papers.r2sp import _training as training
from papers.r2sp._setting import PACES, RESNET32
from papers.r2sp._training import Way
from papers.r2sp.table3 import KINDS, SLOWEST

_PAPER_BATCH = 512
_BATCH = 4  # here: of 8, a batch can be tuned in steps of a quarter
_EQUAL, _TUNED = "R²SP, equal batches", "R²SP, tuned batches"
_LEARNER = replace(training.DIGITS, batch=_BATCH)
_WAYS = {
    _EQUAL: Way(PACES["R²SP"]),
    _TUNED: Way(PACES["R²SP"], TunedBatches(most=64), paper="converges about 40 % faster"),
}


def _make(lab: Lab) -> Result:
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
    window_s = training.WINDOW * RESNET32.iteration_s
    cluster = training.Cluster(
        RESNET32.elements,
        compute,
        window_s,
        workers=setting.WORKERS_1,
        servers=setting.SERVERS_1,
        learner=_LEARNER,
    )
    found = training.compare(lab, "ResNet32", cluster, _WAYS, (_EQUAL,))
    note = (
        "8 workers of three speeds, 2 servers, ports of 10 Gbit/s, ResNet32's size, R²SP with "
        f"r = 0.8; a batch of {_BATCH} takes as long as the paper's of {_PAPER_BATCH}. The paper's "
        "rule for ResNet32 is a fall of the loss by 90 %. "
        f"{training.window_note(window_s)} Curves are medians."
    )
    return Result(found.rows, (note, _LEARNER.note(lab.quick)), found.drawn())


EXPERIMENTS = (Experiment("r2sp/fig11", "tuned batches: time to a target accuracy", _make),)
