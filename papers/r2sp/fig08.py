"""R²SP, Fig. 8a and 9: iteration time under four paces, and how many updates come at once."""

from __future__ import annotations

from dataclasses import replace

from papers._experiment import Experiment
from papers._lab import Lab, seconds
from papers._result import Result, Row
from papers.r2sp import _setting as setting
from papers.r2sp._setting import ALEXNET, PACES, VGG16

# From the paper's Fig. 9, which has none for AlexNet.
_AT_ONCE = {"BSP": "94 % (15/16)", "ASP": "75 %", "SSP": "83 %", "R²SP": "about none"}
_AT_ONCE_OF_4 = {"BSP": "94 % (15/16); of 4 workers 3/4"}
_GAPS = {"BSP": "none, but one of 16 in 16", "R²SP": "almost all 1"}
_WHY = "here: 1 % of an iteration or less apart; the paper does not say what counts"
_FASTER = {"R²SP": "about 30 % less than BSP"}
_PARTS = f"25, 50, 75, 95, 100 % of gaps at most, {setting.WORKERS}ths of an iteration"
_REDUCED = "BSP, ours: all-reduced among workers"
_PART = 25  # emulated: a 25th of the rate and of the model, so that times are the same
_EMULATED_NOTE = (
    f"Real processes, a quarter of the cluster at a {_PART}th of the rate: 4 workers, 1 server, "
    f"ports of {setting.PORT_BPS / _PART / 1e6:g} Mbit/s, a {_PART}th of VGG16; workers sleep for "
    "what they would compute. Simulated: the same scenarios."
)


def _make(lab: Lab) -> Result:
    return _emulated(lab) if lab.emulate else _simulated(lab)


def _emulated(lab: Lab) -> Result:
    """Run the four paces with real processes, and the same scenarios in simulation."""
    small = replace(VGG16, elements=VGG16.elements // _PART)
    overlay = setting.cluster(setting.PORT_BPS / _PART, setting.WORKERS // 4, 1)
    updates = 8 if lab.quick else 24
    trials = [
        setting.trial(small, pace, updates, overlay, pace=name) for name, pace in PACES.items()
    ]
    real = lab.measure(trials)
    simulated = lab.measure(trials, simulated=True)
    rows = []
    for name, made, expected in zip(PACES, real, simulated, strict=True):
        off = made.round_s / expected.round_s - 1
        rows.append(
            Row(
                f"VGG16, a {_PART}th: iteration under {name}",
                _FASTER.get(name, "drawn only"),
                f"{made.round_s:.2f} s{_less(made.round_s, real[0].round_s)}",
                f"simulated {expected.round_s:.2f} s; measured is {off:+.1%}",
            )
        )
        rows.append(
            Row(
                f"VGG16, a {_PART}th: updates at once under {name}",
                _AT_ONCE_OF_4.get(name, _AT_ONCE[name]),
                _told(made.at_once),
                f"simulated {_told(expected.at_once)}",
            )
        )
    return Result(tuple(rows), (_EMULATED_NOTE,))


def _simulated(lab: Lab) -> Result:
    models = (VGG16,) if lab.quick else (ALEXNET, VGG16)
    updates = 15 if lab.quick else 60
    outcomes = lab.measure(
        [
            setting.trial(model, pace, updates, setting.cluster(), pace=name)
            for model in models
            for name, pace in PACES.items()
        ]
        + [setting.all_reduced(model, updates, pace=_REDUCED) for model in models]
    )
    rows = []
    for model in models:
        bsp_s = seconds(outcomes, model=model.name, pace="BSP")
        for name in PACES:
            took_s = seconds(outcomes, model=model.name, pace=name)
            rows.append(
                Row(
                    f"{model.name}: iteration under {name}",
                    _FASTER.get(name, "drawn only"),
                    f"{took_s:.2f} s{_less(took_s, bsp_s)}",
                    "both ways of a port are filled" if name == "R²SP" else "",
                )
            )
        took_s = seconds(outcomes, model=model.name, pace=_REDUCED)
        told = f"{took_s:.2f} s{_less(took_s, bsp_s)}"
        why = "the same 16 workers, without the servers; packed trees; nothing is stale"
        rows.append(Row(f"{model.name}: iteration, {_REDUCED}", "", told, why))
    for name in PACES:
        (one,) = [o for o in outcomes if o.labels == {"model": VGG16.name, "pace": name}]
        why = _WHY if name in ("ASP", "SSP") else ""
        about = f"VGG16: updates at once under {name}"
        rows.append(Row(about, _AT_ONCE[name], _told(one.at_once), why))
        about = f"VGG16: between updates under {name}, {_PARTS}"
        rows.append(Row(about, _GAPS.get(name, ""), _spread_of(one.gaps)))
    note = "Between updates is Fig. 9; runs have its distribution in steps of 5 %."
    return Result(tuple(rows), (setting.NOTE, note))


def _less(took_s: float, bsp_s: float) -> str:
    return "" if took_s == bsp_s else f", {1 - took_s / bsp_s:.0%} less than BSP"


def _spread_of(gaps: tuple[float, ...]) -> str:
    """Return the quartiles of gaps, what 95 % do not exceed, and the largest, as text."""
    if not gaps:
        return "-"
    told = (f"{setting.WORKERS * gaps[part]:.2f}" for part in (5, 10, 15, 19, 20))
    return ", ".join(told)


def _told(at_once: float | None) -> str:
    return "-" if at_once is None else f"{at_once:.0%}"


EXPERIMENT = Experiment(
    "r2sp/fig08", "iterations and updates at once under four paces", _make, emulable=True
)
