"""R²SP, Fig. 8a and 9: iteration time under four paces, and how many updates come at once."""

from __future__ import annotations

from anabranch.experiments._experiment import Experiment
from anabranch.experiments._lab import Lab, seconds
from anabranch.experiments._result import Result, Row
from anabranch.experiments.r2sp import _setting as setting
from anabranch.experiments.r2sp._setting import ALEXNET, PACES, VGG16

# Of the paper's Fig. 9; of AlexNet it gives none.
_AT_ONCE = {"BSP": "94 % (15/16)", "ASP": "75 %", "SSP": "83 %", "R²SP": "about none"}
_WHY = "here: 1 % of an iteration or less apart; the paper does not say what counts"
_FASTER = {"R²SP": "about 30 % less than BSP"}


def _make(lab: Lab) -> Result:
    models = (VGG16,) if lab.quick else (ALEXNET, VGG16)
    updates = 15 if lab.quick else 60
    outcomes = lab.measure(
        [
            setting.trial(model, pace, updates, setting.cluster(), pace=name)
            for model in models
            for name, pace in PACES.items()
        ]
    )
    rows = []
    for model in models:
        bsp_s = seconds(outcomes, model=model.name, pace="BSP")
        for name in PACES:
            took_s = seconds(outcomes, model=model.name, pace=name)
            less = "" if name == "BSP" else f", {1 - took_s / bsp_s:.0%} less than BSP"
            rows.append(
                Row(
                    f"{model.name}: iteration under {name}",
                    _FASTER.get(name, "drawn only"),
                    f"{took_s:.2f} s{less}",
                    "both ways of a port are filled" if name == "R²SP" else "",
                )
            )
    for name in PACES:
        (one,) = [o for o in outcomes if o.labels == {"model": VGG16.name, "pace": name}]
        told = "-" if one.at_once is None else f"{one.at_once:.0%}"
        why = _WHY if name in ("ASP", "SSP") else ""
        rows.append(Row(f"VGG16: updates at once under {name}", _AT_ONCE[name], told, why))
    return Result(tuple(rows), tuple(outcomes), (setting.NOTE,))


EXPERIMENT = Experiment("r2sp/fig08", "iterations and updates at once under four paces", _make)
