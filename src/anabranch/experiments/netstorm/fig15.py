"""NetStorm, Fig. 15: one to nine roots on a dynamic network, with auxiliary paths."""

from __future__ import annotations

from dataclasses import replace

from anabranch.experiments._experiment import Experiment
from anabranch.experiments._lab import Lab, Trial, seconds
from anabranch.experiments._result import Result, Row
from anabranch.experiments.netstorm import _setting as setting
from anabranch.experiments.netstorm._setting import (
    HIGH_BPS,
    LITE,
    LOW_BPS,
    MXNET,
    PRO,
    STD,
    gain,
    times,
)
from anabranch.overlay import random_complete
from anabranch.plan import Fapt
from anabranch.run.scenario import Stop


def _complete(lab: Lab) -> list[Trial]:
    """Return one root and nine where every pair is linked, planned for the rates as they are."""
    return [
        setting.trial(
            lab,
            replace(LITE, route=Fapt(roots=roots)),
            replace(overlay, name=f"{overlay.name}-{seed}"),
            Stop(rounds=3),
            {"network": "complete", "roots": roots, "draw": seed},
        )
        for seed in range(lab.seed, lab.seed + (2 if lab.quick else 10))
        for overlay in (random_complete(9, seed, low_bps=LOW_BPS, high_bps=HIGH_BPS),)
        for roots in (1, 9)
    ]


def _make(lab: Lab) -> Result:
    counts = (1, 3, 5, 9) if lab.quick else range(1, 10)
    trials = setting.dynamic_trials(lab, (MXNET,))
    for roots in counts:
        system = replace(PRO, route=Fapt(roots=roots))
        trials += setting.dynamic_trials(lab, (system,), roots=roots)
    for roots in (1, 9):
        system = replace(STD, route=Fapt(roots=roots))
        trials += setting.dynamic_trials(lab, (system,), roots=roots)
    outcomes = lab.measure(trials + _complete(lab))
    changing = [each for each in outcomes if each.labels["network"] == "dynamic"]
    star_s = seconds(changing, system=MXNET.name)
    took_s = {roots: seconds(changing, system=PRO.name, roots=roots) for roots in counts}
    rows = [
        Row(
            f"{roots} root{'s' if roots > 1 else ''} over star",
            "",
            f"{times(star_s / round_s)} ({round_s:.1f} s)",
        )
        for roots, round_s in took_s.items()
    ]
    bare_s = [seconds(changing, system=STD.name, roots=roots) for roots in (1, 9)]
    linked_s = [seconds(outcomes, network="complete", roots=roots) for roots in (1, 9)]
    rows += [
        Row(
            "9 roots over 1",
            "+180 %, near linear",
            gain(took_s[1] / took_s[9]),
            "nine trees over thirteen links mostly use the same ones",
        ),
        Row(
            "9 roots over 1, no auxiliary paths",
            "",
            gain(bare_s[0] / bare_s[1]),
            "auxiliary paths give one tree some of what more trees would",
        ),
        Row(
            "9 roots over 1, static, every pair linked",
            "",
            gain(linked_s[0] / linked_s[1]),
            "more roots need links to use: these are 36 pairs instead of 13",
        ),
    ]
    return Result(tuple(rows), tuple(outcomes), (setting.dynamics_note(lab),))


EXPERIMENT = Experiment("netstorm/fig15", "one to nine roots, dynamic, auxiliary paths on", _make)
