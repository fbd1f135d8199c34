"""NetStorm, Fig. 15: one to nine roots on a dynamic network, with auxiliary paths.

As in the paper, roots are chosen once, when only the set of links is known.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from anabranch.overlay import random_complete
from anabranch.plan import Fapt
from anabranch_lab.run.scenario import Stop
from papers._experiment import Experiment
from papers._lab import Lab, Outcome, Trial
from papers._result import Result, Row
from papers.netstorm import _setting as setting
from papers.netstorm._setting import (
    HIGH_BPS,
    LITE,
    LOW_BPS,
    MXNET,
    OUR_PRO,
    OUR_STD,
    PRO,
    System,
    gain,
)


def _complete(lab: Lab) -> list[Trial]:
    """Return one root and nine on networks that link every pair, planned for the true rates."""
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


def with_roots(system: System, roots: int) -> System:
    """Return a system of FAPT with `roots` roots."""
    assert isinstance(system.route, Fapt)
    return replace(system, route=msgspec.structs.replace(system.route, roots=roots))


def _make(lab: Lab) -> Result:
    counts = (1, 3, 5, 9) if lab.quick else range(1, 10)
    trials = setting.dynamic_trials(lab, (MXNET,))
    for system, several in ((PRO, counts), (OUR_PRO, counts), (OUR_STD, (1, 9))):
        for roots in several:
            trials += setting.dynamic_trials(lab, (with_roots(system, roots),), roots=roots)
    outcomes = lab.measure(trials + _complete(lab))
    changing = setting.chosen(outcomes, network="dynamic")
    star = setting.chosen(changing, system=MXNET.name)

    def of(system: System, roots: int) -> list[Outcome]:
        return setting.chosen(changing, system=system.name, roots=roots)

    def nine_over_one(system: System) -> str:
        return setting.ratio(of(system, 1), of(system, 9), gain)

    rows = []
    for system, said in ((PRO, ""), (OUR_PRO, "ours: ")):
        rows += [
            Row(
                f"{said}{roots} root{'s' if roots > 1 else ''} over star",
                "",
                setting.over(star, of(system, roots)),
            )
            for roots in counts
        ]
        rows.append(
            Row(
                f"{said}9 roots over 1",
                "+180 %, near linear",
                nine_over_one(system),
                "nine trees over thirteen links mostly use the same ones",
            )
        )
    one, nine = (setting.chosen(outcomes, network="complete", roots=roots) for roots in (1, 9))
    rows += [
        Row(
            "ours: 9 roots over 1, no auxiliary paths",
            "",
            nine_over_one(OUR_STD),
            "auxiliary paths give one tree some of what more trees would",
        ),
        Row(
            "9 roots over 1, static, every pair linked",
            "",
            setting.ratio(one, nine, gain),
            "more roots need links to use: these are 36 pairs instead of 13",
        ),
    ]
    return Result(tuple(rows), (setting.dynamics_note(lab),))


EXPERIMENT = Experiment("netstorm/fig15", "one to nine roots, dynamic, auxiliary paths on", _make)
