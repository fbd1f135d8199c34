"""R²SP, Fig. 10: the mean bandwidth at which a worker pushes and pulls, over BSP's."""

from __future__ import annotations

from papers._experiment import Experiment
from papers._lab import Lab, Outcome
from papers._result import Result, Row
from papers.r2sp import _setting as setting
from papers.r2sp._setting import ALEXNET, FITTED_BPS, PACES, PORT_BPS, VGG16


def _make(lab: Lab) -> Result:
    models = (VGG16,) if lab.quick else (ALEXNET, VGG16)
    ports_bps = (PORT_BPS,) if lab.quick else (PORT_BPS, FITTED_BPS)
    outcomes = lab.measure(
        [
            setting.trial(
                model,
                pace,
                15 if lab.quick else 60,
                setting.cluster(port_bps),
                pace=name,
                gbps=round(port_bps / 1e9, 1),
            )
            for model in models
            for port_bps in ports_bps
            for name, pace in PACES.items()
        ]
    )
    rows = []
    for model in models:
        for port_bps in ports_bps:
            gbps = round(port_bps / 1e9, 1)
            times_s = {name: _times_s(outcomes, model.name, gbps, name) for name in PACES}
            (push_s, pull_s) = times_s["BSP"]
            for name in PACES:
                to_s, from_s = times_s[name]
                rates = f"{_rate(model, to_s)} up, {_rate(model, from_s)} down"
                if name != "BSP":
                    rates = f"{push_s / to_s:.1f}x up, {pull_s / from_s:.1f}x down ({rates})"
                paper = "the most, drawn only" if name == "R²SP" else "drawn only"
                rows.append(
                    Row(f"{model.name}, ports of {gbps:g} Gbit/s: {name}", paper, rates, "")
                )
    notes = (
        setting.NOTE + f" Besides, ports of {FITTED_BPS / 1e9:.1f} Gbit/s, which explain Table I.",
        "A rate is the model's size over the mean time that a worker pushed, or waited for the "
        "model that it pulled.",
    )
    return Result(tuple(rows), notes)


def _times_s(outcomes: list[Outcome], model: str, gbps: float, pace: str) -> tuple[float, float]:
    """Return how long a worker pushed and pulled in an iteration, seconds."""
    labels = {"model": model, "pace": pace, "gbps": gbps}
    (found,) = [each for each in outcomes if each.labels == labels]
    assert found.push_s is not None
    assert found.pull_s is not None
    return found.push_s, found.pull_s


def _rate(model: setting.Model, took_s: float) -> str:
    return f"{32 * model.elements / took_s / 1e9:.2f} Gbit/s"


EXPERIMENT = Experiment("r2sp/fig10", "the bandwidth of a worker that pushes or pulls", _make)
