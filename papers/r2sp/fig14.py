"""R²SP, Fig. 14: transformers and workers of three delays, under all paces."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from anabranch.fleet import Compute, Constant, SiteCompute
from anabranch.pace import Safa, TunedBatches
from anabranch_lab.tasks import profiles
from papers._experiment import Experiment
from papers._lab import Lab
from papers._result import Result
from papers.r2sp import _setting as setting
from papers.r2sp import _training as training
from papers.r2sp._setting import PACES
from papers.r2sp._training import Learner, Way

_PORT_BPS = 100e9
_DELAYS_S = (0.0, 0.0, 0.0, 0.0, 0.5, 0.5, 1.0, 1.0)
_BATCH = 4
_TUNED = TunedBatches(most=64)


T5 = Learner(
    what="the next of six translated words in alphabetical order, given those before, a T5 of two "
    "layers each way",
    data="translation",
    model="t5-tiny",
    elements=661_632,
    classes=35,
    target=0.9,
    rate=0.2,
    first=0.2,
    looked_at=256,
)
BERT = Learner(
    what="which of two sentences has more words of a kind, a BERT of two layers",
    data="pairs",
    model="bert-tiny",
    elements=420_610,
    classes=2,
    target=0.9,
    rate=2e-4,
    first=2e-4,
    optimiser="adam",
    looked_at=512,
)


@dataclass(frozen=True, slots=True)
class _Transformer:
    """A model of the figure.

    Args:
        name: the paper's.
        elements: its parameters.
        compute_s: of a batch, seconds. The paper does not state it; 400 samples of some tens of
            tokens take a 2080 Ti this long at 10 teraflop a second.
        looked_every: batches that a worker computes between two evaluations of the model, 1 or 2 %
            of those that it needs to the target.
        learner: the model and task that replace it.
        paper: the paper's claim for R²SP.
    """

    name: str
    elements: int
    compute_s: float
    looked_every: int
    learner: Learner
    paper: str


_T5_SMALL = _Transformer(
    "T5-small", profiles.T5_SMALL.elements, 0.5, 2, T5, "16.9 % over the second best"
)
_BERT = _Transformer("BERT", profiles.BERT.elements, 1.5, 4, BERT, "18.8 % over the second best")
_WAYS = {
    **{name: Way(PACES[name], batch=_BATCH) for name in ("BSP", "ASP", "SSP")},
    "SAFA": Way(Safa(), batch=_BATCH),
    "R²SP, equal batches": Way(PACES["R²SP"], batch=_BATCH),
    "R²SP": Way(PACES["R²SP"], _TUNED, batch=_BATCH),
}


def _make(lab: Lab, model: _Transformer) -> Result:
    ways = {**_WAYS, "R²SP": replace(_WAYS["R²SP"], paper=model.paper)}
    rows = training.compare(lab, model.name, _cluster(model), ways, ("BSP", "R²SP"))
    note = (
        "8 workers, 2 servers, ports of 100 Gbit/s; four workers wait 0.5 or 1 s more in each "
        f"iteration, as in the paper. A batch takes {model.compute_s:g} s. R²SP has tuned batches "
        "where not said otherwise."
    )
    return Result(rows, (note, model.learner.note(lab.quick, _BATCH)))


def _cluster(model: _Transformer) -> training.Cluster:
    delays = {
        f"worker-{k}": SiteCompute(added_delay=Constant(delay_s=delay_s))
        for k, delay_s in enumerate(_DELAYS_S, 1)
        if delay_s
    }
    compute = Compute(samples_per_s=_BATCH / model.compute_s, jitter=setting.JITTER, sites=delays)
    return training.Cluster(
        model.elements,
        compute,
        _PORT_BPS,
        setting.WORKERS_1,
        setting.SERVERS_1,
        model.learner,
        looked_every=_BATCH * model.looked_every,
    )


EXPERIMENTS = tuple(
    Experiment(
        name,
        f"a model like {model.name}, unequal delays: time to a target",
        partial(_make, model=model),
    )
    for name, model in (("r2sp/fig14-t5", _T5_SMALL), ("r2sp/fig14-bert", _BERT))
)
