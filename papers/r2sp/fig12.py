"""R²SP, Fig. 12: the gain over BSP as bandwidth becomes scarcer."""

from __future__ import annotations

from statistics import fmean

from papers._experiment import Experiment
from papers._lab import Lab
from papers._picture import picture
from papers._result import Result, Row
from papers._trial import chosen
from papers.r2sp import _setting as setting
from papers.r2sp._setting import ALEXNET, PACES, VGG16

# The paper throttles 10 Gbit/s. Its framework used only a part, so higher rates matter here too.
_PORTS_BPS = (2e9, 5e9, 10e9, 20e9, 40e9, 100e9)


def _make(lab: Lab) -> Result:
    ports_bps = _PORTS_BPS[1::2] if lab.quick else _PORTS_BPS
    updates = 12 if lab.quick else 40
    models = (ALEXNET, VGG16)
    outcomes = lab.measure(
        [
            setting.trial(
                model,
                PACES[pace],
                updates,
                setting.cluster(port_bps),
                without=("workers", "gaps"),
                pace=pace,
                gbps=port_bps / 1e9,
                seed=seed,
            )
            for model in models
            for port_bps in ports_bps
            for pace in ("BSP", "R²SP")
            for seed in lab.seeds(setting.SEEDS)
        ]
    )
    rows, curves = [], {}
    for model in models:
        gains = {}
        for gbps in (port_bps / 1e9 for port_bps in ports_bps):
            bsp, turns = (
                chosen(outcomes, model=model.name, gbps=gbps, pace=pace) for pace in ("BSP", "R²SP")
            )
            gains[gbps] = [a.round_s / b.round_s for a, b in zip(bsp, turns, strict=True)]
        rows.append(
            Row(
                f"{model.name}: R²SP over BSP by the ports' rate",
                "the scarcer, the more",
                "; ".join(f"{gbps:g} Gbit/s: {setting.spread(gains[gbps])}x" for gbps in gains),
                "where ports are always busy it is near two, as a barrier uses one way at a time "
                "(inferred); there scarcer bandwidth gains nothing more. The paper throttles 10 "
                "Gbit/s, of which its framework moved a half (Table I)",
                seeds=f"{len(lab.seeds(setting.SEEDS))}",
            )
        )
        curves[model.name] = [(gbps, fmean(each)) for gbps, each in gains.items()]
    drawn = picture("Gbit/s", "R²SP over BSP", {"ports": curves})
    return Result(tuple(rows), (setting.NOTE,), drawn)


EXPERIMENTS = (Experiment("r2sp/fig12", "throttled bandwidth: R²SP over BSP", _make),)
