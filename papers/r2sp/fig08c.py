"""R²SP, Fig. 8b and 8c: iterations and time to a target under the paces, ours among them."""

from __future__ import annotations

from functools import partial

from anabranch.fleet import Compute
from anabranch.pace import Safa
from papers._experiment import Experiment
from papers._lab import Lab
from papers._result import Result
from papers.r2sp import _setting as setting
from papers.r2sp import _training as training
from papers.r2sp._setting import ALEXNET, INCEPTION, PACES, RESNET32, VGG16, Model
from papers.r2sp._training import Way

_WAYS = {
    "BSP": Way(PACES["BSP"], paper="fewest iterations"),
    "ASP": Way(PACES["ASP"], paper="slower than BSP"),
    "SSP": Way(PACES["SSP"], paper="slower than BSP"),
    "R²SP": Way(PACES["R²SP"], paper="up to 25 % faster than BSP (VGG16)"),
    "SAFA": Way(Safa()),
    "BSP, all-reduced among workers": Way(PACES["BSP"], all_reduces=True),
    "BSP, ahead": Way(PACES["BSP"], ahead=True),
    "R²SP, ahead": Way(PACES["R²SP"], ahead=True),
    "BSP, ahead, batches of 2": Way(PACES["BSP"], ahead=True, batch=2),
    "R²SP, ahead, batches of 2": Way(PACES["R²SP"], ahead=True, batch=2),
}


def _make(lab: Lab, model: Model) -> Result:
    compute = Compute(samples_per_s=training.BATCH / model.compute_s, jitter=setting.JITTER)
    cluster = training.Cluster(model.elements, compute)
    ways = {name: _WAYS[name] for name in ("BSP", "R²SP")} if lab.quick else _WAYS
    rows = training.compare(lab, model.name, cluster, ways, ("BSP", "R²SP"))
    return Result(rows, (setting.NOTE, cluster.learner.note(lab.quick)))


def _experiment(model: Model) -> Experiment:
    name = f"r2sp/fig08c-{model.name.lower()}"
    return Experiment(name, f"time to a target accuracy, {model.name}", partial(_make, model=model))


EXPERIMENTS = tuple(map(_experiment, (VGG16, RESNET32, ALEXNET, INCEPTION)))
