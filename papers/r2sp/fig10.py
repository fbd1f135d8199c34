"""R²SP, Fig. 10: the mean bandwidth at which a worker pushes and pulls, over BSP's."""

from __future__ import annotations

from statistics import fmean

from papers._experiment import Experiment
from papers._lab import Lab
from papers._result import Result, Row
from papers._trial import Outcome, chosen
from papers.r2sp import _setting as setting
from papers.r2sp._setting import ALEXNET, FITTED_BPS, MODELS, PACES, PORT_BPS, VGG16, Model


def _make(lab: Lab) -> Result:
    models = (VGG16,) if lab.quick else MODELS
    outcomes = lab.measure(
        [
            setting.trial(
                model,
                pace,
                15 if lab.quick else 60,
                setting.cluster(port_bps),
                without=("workers", "gaps"),
                pace=name,
                gbps=_gbps(port_bps),
                seed=seed,
            )
            for model in models
            for port_bps in (PORT_BPS, FITTED_BPS)
            for name, pace in PACES.items()
            for seed in lab.seeds(setting.SEEDS)
        ]
    )
    rows = []
    for model in models:
        for name in PACES:
            literal, ours = (
                _told(outcomes, model, _gbps(port_bps), name) for port_bps in (PORT_BPS, FITTED_BPS)
            )
            rows.append(
                Row(
                    f"{model.name}: a worker's rate under {name}",
                    '"much higher" than the others' if name == "R²SP" else "drawn only",
                    ours,
                    literal=literal,
                    seeds=f"{len(lab.seeds(setting.SEEDS))}",
                )
            )
        literal, ours = (_less(outcomes, model, _gbps(bps)) for bps in (PORT_BPS, FITTED_BPS))
        rows.append(
            Row(
                f"{model.name}: an iteration under R²SP, less than BSP's",
                "about 30 % (Fig. 8a)" if model in (ALEXNET, VGG16) else "drawn only (Fig. 8a)",
                ours,
                "not known" if model in (ALEXNET, VGG16) else "",
                literal=literal,
                seeds=f"{len(lab.seeds(setting.SEEDS))}",
            )
        )
    notes = (
        f"{setting.NOTE} Ours: ports of {FITTED_BPS / 1e9:.1f} Gbit/s, which explain Table I.",
        "A rate is the model's size over the mean time that a worker pushed, or waited for the "
        "model that it pulled; over BSP's, as in the paper.",
    )
    return Result(tuple(rows), notes)


def _less(outcomes: list[Outcome], model: Model, gbps: float) -> str:
    """Return how much less time an iteration of R²SP takes than one of BSP, as text."""
    of = {
        pace: chosen(outcomes, model=model.name, gbps=gbps, pace=pace) for pace in ("R²SP", "BSP")
    }
    less = [1 - a.round_s / b.round_s for a, b in zip(of["R²SP"], of["BSP"], strict=True)]
    return setting.spread(less, ".0%")


def _gbps(port_bps: float) -> float:
    return round(port_bps / 1e9, 1)


def _told(outcomes: list[Outcome], model: Model, gbps: float, pace: str) -> str:
    """Return the rates of pushes and pulls, and over BSP's, as text."""
    runs, bsp = (chosen(outcomes, model=model.name, gbps=gbps, pace=name) for name in (pace, "BSP"))
    told = []
    for way in ("push_s", "pull_s"):
        over = [getattr(b, way) / getattr(a, way) for a, b in zip(runs, bsp, strict=True)]
        rate = _rate(model, fmean(getattr(each, way) for each in runs))
        told.append(f"{setting.spread(over, '.1f')}x ({rate})" if pace != "BSP" else rate)
    return f"{told[0]} up, {told[1]} down"


def _rate(model: Model, took_s: float) -> str:
    return f"{32 * model.elements / took_s / 1e9:.2f} Gbit/s"


EXPERIMENTS = (Experiment("r2sp/fig10", "the bandwidth of a worker that pushes or pulls", _make),)
