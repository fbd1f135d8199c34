"""R²SP, Fig. 8a and 9: iteration time under four paces, and how many updates come at once."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from papers._compare import known
from papers._experiment import Experiment
from papers._lab import Lab
from papers._picture import picture
from papers._result import Result, Row
from papers._trial import chosen
from papers.r2sp import _setting as setting
from papers.r2sp._setting import MODELS, PACES, VGG16

# From the paper's Fig. 9, which has none for AlexNet.
_AT_ONCE = {"BSP": "94 % (15/16)", "ASP": "75 %", "SSP": "83 %", "R²SP": "about none"}
_AT_ONCE_OF_4 = {"BSP": "94 % (15/16); of 4 workers 3/4"}
_GAPS = {"BSP": "none, but one of 16 in 16", "R²SP": "almost all 1"}
_WHY = "here: 1 % of an iteration or less apart; the paper does not say what counts"
_LESS = "about 30 % less than BSP"
_SAID = {
    ("VGG16", "BSP"): "about 8 s (Fig. 9)",
    ("VGG16", "R²SP"): _LESS,
    ("AlexNet", "R²SP"): _LESS,
}
_PARTS = f"quantiles of gaps (25, 50, 75, 95, 100 %), in {setting.WORKERS}ths of an iteration"
_REDUCED = "BSP, all-reduced among workers (ours)"
_WHY_SHORTER = "not known; ports of half the rate are in fig10"
_WHY_REDUCED = "the same workers, without the servers; packed trees; nothing is stale"
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
                _LESS if name == "R²SP" else "drawn only",
                f"{made.round_s:.2f} s{_less(made.round_s, real[0].round_s)}",
                f"simulated {expected.round_s:.2f} s; measured is {off:+.1%}",
                seeds="1",
            )
        )
        rows.append(
            Row(
                f"VGG16, a {_PART}th: updates at once under {name}",
                _AT_ONCE_OF_4.get(name, _AT_ONCE[name]),
                _told(made.at_once),
                f"simulated {_told(expected.at_once)}",
                seeds="1",
            )
        )
    return Result(tuple(rows), (_EMULATED_NOTE,))


def _simulated(lab: Lab) -> Result:
    models = (VGG16,) if lab.quick else MODELS
    updates = 15 if lab.quick else 60
    seeds = lab.seeds(setting.SEEDS)
    outcomes = lab.measure(
        [
            setting.trial(
                model, pace, updates, setting.cluster(), without=("workers",), pace=name, seed=seed
            )
            for model in models
            for name, pace in PACES.items()
            for seed in seeds
        ]
        + [
            setting.all_reduced(model, updates, pace=_REDUCED, seed=seed)
            for model in models
            for seed in seeds
        ]
    )
    rows = []
    for model in models:
        times = {
            name: [o.round_s for o in chosen(outcomes, model=model.name, pace=name)]
            for name in (*PACES, _REDUCED)
        }
        for name, told in times.items():
            less = [1 - each / bsp_s for each, bsp_s in zip(told, times["BSP"], strict=True)]
            said = f"{setting.spread(told)} s"
            if name != "BSP":
                said += f", {_than_bsp(less)}"
            paper = _SAID.get((model.name, name), "drawn only")
            why = (
                _WHY_REDUCED
                if name == _REDUCED
                else _WHY_SHORTER
                if paper in _SAID.values()
                else ""
            )
            rows.append(
                Row(
                    f"{model.name}: an iteration under {name}",
                    "" if name == _REDUCED else paper,
                    said,
                    why,
                    seeds=f"{len(seeds)}",
                )
            )
    for name in PACES:
        runs = chosen(outcomes, model=VGG16.name, pace=name)
        at_once = setting.spread([known(each.at_once, "at_once") for each in runs], ".0%")
        why = _WHY if name in ("ASP", "SSP") else ""
        about = f"VGG16: gaps between updates that are zero under {name}"
        rows.append(Row(about, _AT_ONCE[name], at_once, why, seeds=f"{len(seeds)}"))
        if name in _GAPS:
            about = f"VGG16: {_PARTS}, under {name}"
            why = "not known" if name == "R²SP" else ""
            rows.append(Row(about, _GAPS[name], _spread_of(runs[0].gaps), why, seeds="1"))
    curves = {
        name: [
            (setting.WORKERS * gap, part / 20)
            for part, gap in enumerate(chosen(outcomes, model=VGG16.name, pace=name)[0].gaps)
        ]
        for name in PACES
    }
    drawn = picture("gap, 16ths of an iteration", "part of gaps", {"VGG16": curves})
    note = "Gaps are Fig. 9; runs have their distribution in steps of 5 %."
    return Result(tuple(rows), (setting.NOTE, note), drawn)


def _than_bsp(less: list[float]) -> str:
    """Return by how much iterations are shorter than BSP's, or longer, as text."""
    if fmean(less) < 0:
        return f"{setting.spread([-each for each in less], '.0%')} more than BSP"
    return f"{setting.spread(less, '.0%')} less than BSP"


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


EXPERIMENTS = (
    Experiment(
        "r2sp/fig08", "iterations and updates at once under four paces", _make, emulable=True
    ),
)
