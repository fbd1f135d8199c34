"""R²SP, Fig. 12: the gain over BSP as bandwidth becomes scarcer."""

from __future__ import annotations

from papers._experiment import Experiment
from papers._lab import Lab, Label, seconds
from papers._result import Result, Row
from papers.r2sp import _setting as setting
from papers.r2sp._setting import ALEXNET, PACES, VGG16

# The paper throttles 10 Gbit/s. Its framework used only a part, so higher rates matter here too.
_PORTS_BPS = (2e9, 5e9, 10e9, 20e9, 40e9, 100e9)


def _make(lab: Lab) -> Result:
    ports_bps = _PORTS_BPS[1::2] if lab.quick else _PORTS_BPS
    updates = 12 if lab.quick else 40
    trials = [
        setting.trial(
            model, PACES[pace], updates, setting.cluster(port_bps), pace=pace, gbps=port_bps / 1e9
        )
        for model in (ALEXNET, VGG16)
        for port_bps in ports_bps
        for pace in ("BSP", "R²SP")
    ]
    outcomes = lab.measure(trials)
    rows = []
    for model in (ALEXNET, VGG16):
        gains = []
        for port_bps in ports_bps:
            about: dict[str, Label] = {"model": model.name, "gbps": port_bps / 1e9}
            bsp_s = seconds(outcomes, **about, pace="BSP")
            gain = bsp_s / seconds(outcomes, **about, pace="R²SP")
            gains.append(f"{port_bps / 1e9:g} Gbit/s: {gain:.2f}x")
        rows.append(
            Row(
                f"{model.name}: R²SP over BSP",
                "the scarcer, the more",
                "; ".join(gains),
                "where ports are always busy it is near two, as a barrier uses one way at a time; "
                "there scarcer bandwidth gains nothing more",
            )
        )
    return Result(tuple(rows), (setting.NOTE,))


EXPERIMENT = Experiment("r2sp/fig12", "throttled bandwidth: R²SP over BSP", _make)
