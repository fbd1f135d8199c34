"""NetStorm, Fig. 15: one to nine roots, on dynamic networks with auxiliary paths, and static.

As in the paper, the dynamic runs choose their roots once, when only the set of links is known. Then
both readings of w(T) choose alike. On the static networks the rates are known, and they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from anabranch.overlay import random_complete
from anabranch.plan import Fapt
from anabranch_lab.run.scenario import Stop
from papers._experiment import Experiment
from papers._lab import Lab
from papers._result import Result, Row
from papers._trial import Outcome, Trial, chosen
from papers.netstorm import _setting as setting
from papers.netstorm._setting import (
    HIGH_BPS,
    LITE,
    LITE_BOTH_WAYS,
    LOW_BPS,
    MXNET,
    OUR_PRO,
    OUR_STD,
    PRO,
    System,
    gain,
    times,
)

_COMPLETE = "complete"


def _complete(lab: Lab) -> list[Trial]:
    """Return one root and nine on networks that link every pair, planned for the true rates."""
    return [
        setting.trial(
            lab,
            with_roots(LITE, roots),
            replace(overlay, name=f"{overlay.name}-{seed}"),
            Stop(rounds=3),
            {"case": _COMPLETE, "network": "static", "roots": roots, "draw": seed},
        )
        for seed in range(lab.seed, lab.seed + (2 if lab.quick else 20))
        for overlay in (random_complete(9, seed, low_bps=LOW_BPS, high_bps=HIGH_BPS),)
        for roots in (1, 9)
    ]


def with_roots(system: System, roots: int) -> System:
    """Return a system of FAPT with `roots` roots."""
    assert isinstance(system.route, Fapt)
    return replace(system, route=msgspec.structs.replace(system.route, roots=roots))


def _make(lab: Lab) -> Result:
    counts = (1, 3, 5, 9) if lab.quick else tuple(range(1, 10))
    trials = setting.dynamic_trials(lab, (MXNET,), case="dynamic")
    trials += setting.static_trials(lab, (MXNET,), case="static")
    for roots in counts:
        aware = [with_roots(each, roots) for each in (PRO, OUR_PRO)]
        known = [with_roots(each, roots) for each in (LITE, LITE_BOTH_WAYS)]
        trials += setting.dynamic_trials(lab, aware, case="dynamic", roots=roots)
        trials += setting.static_trials(lab, known, case="static", roots=roots)
    for roots in (1, 9):
        alone = with_roots(OUR_STD, roots)
        trials += setting.dynamic_trials(lab, (alone,), case="dynamic", roots=roots)
    outcomes = lab.measure(trials + _complete(lab))

    def of(case: str, system: System, roots: int) -> list[Outcome]:
        return chosen(outcomes, case=case, system=system.name, roots=roots)

    def nine_over_one(case: str, system: System) -> str:
        return setting.ratio(of(case, system, 1), of(case, system, 9), gain)

    def over_star(case: str, system: System) -> str:
        star = chosen(outcomes, case=case, system=MXNET.name)
        return "; ".join(f"{roots}: {_middle(star, of(case, system, roots))}" for roots in counts)

    static, dynamic = setting.static_draws(lab), setting.drawn_networks(lab)
    few = (
        "nine trees over thirteen links mostly use the same ones (inferred), see every pair linked"
    )
    rows = (
        Row(
            "dynamic: 9 roots over 1",
            "+180 %, linearly",
            nine_over_one("dynamic", OUR_PRO),
            few,
            literal=nine_over_one("dynamic", PRO),
            seeds=dynamic,
        ),
        Row(
            "dynamic: over star, by the number of roots",
            "drawn only",
            over_star("dynamic", OUR_PRO),
            literal=over_star("dynamic", PRO),
            seeds=dynamic,
        ),
        Row(
            "dynamic: 9 roots over 5",
            "9 roots are the peak (drawn only)",
            setting.ratio(of("dynamic", OUR_PRO, 5), of("dynamic", OUR_PRO, 9), gain),
            literal=setting.ratio(of("dynamic", PRO, 5), of("dynamic", PRO, 9), gain),
            seeds=dynamic,
        ),
        Row(
            "dynamic: 9 roots over 1, no auxiliary paths",
            "",
            nine_over_one("dynamic", OUR_STD),
            "auxiliary paths give one tree some of what more trees would",
            seeds=dynamic,
        ),
        Row(
            "static, rates known, no auxiliary paths: 9 roots over 1",
            "",
            nine_over_one("static", LITE_BOTH_WAYS),
            "literal: leaf to root; ours: up and down. One root differs, and nine roots' shares",
            literal=nine_over_one("static", LITE),
            seeds=static,
        ),
        Row(
            "the same: over star, by the number of roots",
            "",
            over_star("static", LITE_BOTH_WAYS),
            literal=over_star("static", LITE),
            seeds=static,
        ),
        *(
            Row(
                f"the same, with {said}: up and down over leaf to root",
                "",
                setting.ratio(of("static", LITE, roots), of("static", LITE_BOTH_WAYS, roots), gain),
                "the two readings of w(T)",
                seeds=static,
            )
            for roots, said in ((1, "one root"), (9, "nine roots"))
        ),
        Row(
            "static, every pair linked: 9 roots over 1",
            "",
            "",
            "more roots need links to use: these are 36 pairs instead of 13",
            literal=nine_over_one(_COMPLETE, LITE),
            seeds=f"{2 if lab.quick else 20} complete networks",
        ),
    )
    return Result(rows, (setting.statics_note(lab), setting.dynamics_note(lab)))


def _middle(slow: Sequence[Outcome], fast: Sequence[Outcome]) -> str:
    """Return a speed-up without its spread, for a list of many."""
    return setting.ratio(slow, fast, times).partition(",")[0]


EXPERIMENTS = (Experiment("netstorm/fig15", "one to nine roots, dynamic and static", _make),)
