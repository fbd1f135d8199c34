"""R²SP, Fig. 14: transformers and workers of three delays, under all paces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.experiments._experiment import Experiment
from anabranch.experiments._lab import Lab, Trial
from anabranch.experiments._result import Result
from anabranch.experiments.r2sp import _setting as setting
from anabranch.experiments.r2sp import _training as training
from anabranch.fleet import Compute, Constant, SiteCompute
from anabranch.learn import profiles
from anabranch.pace import AnyLoad, AnyPace, Safa, TunedBatches, Waves

_PORT_BPS = 100e9
_DELAYS_S = (0.0, 0.0, 0.0, 0.0, 0.5, 0.5, 1.0, 1.0)
_BATCH = 4
_TUNED = TunedBatches(most=64)


@dataclass(frozen=True, slots=True)
class _Transformer:
    """A model of the figure.

    Args:
        name: the paper's.
        elements: its parameters.
        compute_s: of a batch, seconds; the paper does not say, this is what 400 samples of some
            tens of tokens take a 2080 Ti at 10 teraflop a second.
        paper: what it says of R²SP.
    """

    name: str
    elements: int
    compute_s: float
    paper: str


_MODELS = (
    _Transformer("T5-small", profiles.T5_SMALL.elements, 0.5, "16.9 % over the second best"),
    _Transformer("BERT", profiles.BERT.elements, 1.5, "18.8 % over the second best"),
)
_PACES: Mapping[str, tuple[AnyPace, AnyLoad]] = {
    **{name: (pace, setting.EQUAL) for name, pace in setting.PACES.items() if name != "R²SP"},
    "SAFA": (Safa(), setting.EQUAL),
    "R²SP, equal batches": (setting.PACES["R²SP"], setting.EQUAL),
    "R²SP": (setting.PACES["R²SP"], _TUNED),
    "waves": (Waves(), setting.EQUAL),
    "waves, tuned batches": (Waves(), _TUNED),
}


def _make(lab: Lab) -> Result:
    effort = training.effort(lab)
    models = _MODELS[:1] if lab.quick else _MODELS
    outcomes = lab.measure(
        [
            _trial(model, name, rate, seed)
            for model in models
            for name in _PACES
            for rate in effort.rates
            for seed in effort.seeds
        ]
    )
    rows = []
    for model in models:
        paper = {name: model.paper if name == "R²SP" else "" for name in _PACES}
        about = {"model": model.name}
        one = f"{model.name}, one learning rate: to the target"
        rows += training.rows(outcomes, effort.rates[:1], one, about, paper)
        if len(effort.rates) > 1:
            each = f"{model.name}, each its best: to the target"
            rows += training.rows(outcomes, effort.rates, each, about, paper)
    note = (
        "8 workers, 2 servers, ports of 100 Gbit/s; four workers wait 0.5 or 1 s more in each "
        "iteration, as in the paper. R²SP has tuned batches where not said otherwise."
    )
    return Result(tuple(rows), tuple(outcomes), (note, training.NOTE))


def _trial(model: _Transformer, name: str, rate: float, seed: int) -> Trial:
    pace, load = _PACES[name]
    delays = {
        f"worker-{k}": SiteCompute(added_delay=Constant(delay_s=delay_s))
        for k, delay_s in enumerate(_DELAYS_S, 1)
        if delay_s
    }
    compute = Compute(samples_per_s=_BATCH / model.compute_s, jitter=setting.JITTER, sites=delays)
    overlay = training.cluster(model.elements, _PORT_BPS, setting.WORKERS_1, setting.SERVERS_1)
    return training.trial(
        pace, overlay, compute, rate, seed, load=load, batch=_BATCH, model=model.name, pace=name
    )


EXPERIMENT = Experiment("r2sp/fig14", "transformers, unequal delays: time to a target", _make)
