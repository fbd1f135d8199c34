"""R²SP, Fig. 13: the relaxation factor, between waiting for turns and contention."""

from __future__ import annotations

from anabranch.experiments._experiment import Experiment
from anabranch.experiments._lab import Lab
from anabranch.experiments._result import Result, Row
from anabranch.experiments.r2sp import _setting as setting
from anabranch.experiments.r2sp._setting import VGG16
from anabranch.pace import R2sp

_RELAXATIONS = (0.0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0)


def _make(lab: Lab) -> Result:
    relaxations = _RELAXATIONS[::2] + _RELAXATIONS[-1:] if lab.quick else _RELAXATIONS
    updates = 15 if lab.quick else 200
    outcomes = lab.measure(
        [
            setting.trial(VGG16, R2sp(relaxation=r), updates, setting.cluster(), relaxation=r)
            for r in relaxations
        ]
    )
    rows = [
        Row(
            f"relaxation {relaxation:g}",
            "the shortest iteration" if relaxation == 0.8 else "drawn only",
            f"{outcome.round_s:.3f} s an iteration"
            + ("" if outcome.blocked_s is None else f", {outcome.blocked_s:.3f} s of it waiting"),
        )
        for relaxation, outcome in zip(relaxations, outcomes, strict=True)
    ]
    best = min(outcomes, key=lambda outcome: outcome.round_s)
    why = "turns cost little waiting where computing varies by 5 % only"
    rows.append(Row("best", "0.8", f"{best.labels['relaxation']}", why))
    return Result(tuple(rows), tuple(outcomes), (setting.NOTE,))


EXPERIMENT = Experiment("r2sp/fig13", "the relaxation factor", _make)
