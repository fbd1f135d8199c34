"""R²SP, Fig. 8b and 8c: iterations and time to a target under the paces, and under waves."""

from __future__ import annotations

from anabranch.experiments._experiment import Experiment
from anabranch.experiments._lab import Lab
from anabranch.experiments._result import Result
from anabranch.experiments.r2sp import _setting as setting
from anabranch.experiments.r2sp import _training as training
from anabranch.experiments.r2sp._setting import ALEXNET, INCEPTION, RESNET32, VGG16
from anabranch.fleet import Compute
from anabranch.pace import Safa, Waves

_PACES = {**setting.PACES, "SAFA": Safa(), "waves": Waves()}
_AHEAD = ("BSP", "R²SP", "waves")  # under which workers compute ahead too
_PAPER = {
    "BSP": "fewest iterations",
    "ASP": "slower than BSP",
    "SSP": "slower than BSP",
    "R²SP": "up to 25 % faster than BSP (VGG16)",
    "SAFA": "",
    "waves": "",
    **{f"{name}, ahead": "" for name in _AHEAD},
}


def _make(lab: Lab) -> Result:
    effort = training.effort(lab)
    models = (INCEPTION,) if lab.quick else (RESNET32, ALEXNET, VGG16, INCEPTION)
    paces = [(name, pace, False) for name, pace in _PACES.items()]
    paces += [(f"{name}, ahead", _PACES[name], True) for name in _AHEAD]
    trials = [
        training.trial(
            pace,
            training.cluster(model.elements, setting.PORT_BPS, setting.WORKERS, setting.SERVERS),
            Compute(samples_per_s=training.BATCH / model.compute_s, jitter=setting.JITTER),
            rate,
            seed,
            ahead=ahead,
            model=model.name,
            pace=name,
        )
        for model in models
        for name, pace, ahead in paces
        for rate in effort.rates
        for seed in effort.seeds
    ]
    outcomes = lab.measure(trials)
    rows = []
    for model in models:
        about = {"model": model.name}
        one = f"{model.name}, one learning rate: to the target"
        rows += training.rows(outcomes, effort.rates[:1], one, about, _PAPER)
        if len(effort.rates) > 1:
            each = f"{model.name}, each its best: to the target"
            rows += training.rows(outcomes, effort.rates, each, about, dict.fromkeys(_PAPER, ""))
    return Result(tuple(rows), tuple(outcomes), (setting.NOTE, training.NOTE))


EXPERIMENT = Experiment("r2sp/fig08c", "iterations and time to a target accuracy", _make)
