"""NetStorm, Fig. 18: techniques added one after the other, on a dynamic network."""

from __future__ import annotations

from papers._experiment import Experiment
from papers._lab import Lab, Outcome
from papers._result import Result, Row
from papers.netstorm import _setting as setting
from papers.netstorm._setting import (
    LITE,
    MXNET,
    OUR_PRO,
    OUR_PRO_256_KB,
    OUR_STD,
    OUR_STD_256_KB,
    PACKED,
    PRO,
    PRO_DISJOINT,
    PRO_WAITING,
    STD,
    STD_FORECAST,
    STD_GATED,
    STD_TOLD,
    UNMEASURED,
    System,
    gain,
)

_SYSTEMS = (
    *(MXNET, LITE, UNMEASURED, STD, PRO),
    *(STD_TOLD, STD_FORECAST, STD_GATED, OUR_STD),
    *(PRO_DISJOINT, PRO_WAITING, OUR_PRO),
    *(OUR_STD_256_KB, OUR_PRO_256_KB, PACKED),
)


def _make(lab: Lab) -> Result:
    outcomes = lab.measure(setting.dynamic_trials(lab, _SYSTEMS))

    def of(system: System) -> list[Outcome]:
        return setting.chosen(outcomes, system=system.name)

    def over_star(system: System) -> str:
        return setting.over(of(MXNET), of(system))

    def more(system: System, than: System) -> str:
        return setting.ratio(of(than), of(system), gain)

    rows = (
        Row(
            "lite (9 roots) over star",
            "5.5x",
            over_star(LITE),
            "planned for the rates of the first 180 s; our star: see fig13",
        ),
        Row("std (and awareness) over star", "6.6x", over_star(STD)),
        Row("std over lite", "+20 %", more(STD, LITE)),
        Row("pro (and auxiliary paths) over star", "7.5x", over_star(PRO)),
        Row(
            "pro over std",
            "+14 %",
            more(PRO, STD),
            "on this network Algorithm 3 leaves hardly any tree neighbours an auxiliary path",
        ),
        Row("lite planned for equal rates over star", "5.5x", over_star(UNMEASURED)),
        Row("std over lite planned for equal rates", "+20 %", more(STD, UNMEASURED)),
        Row(
            "ours: std told the first rates, over lite",
            "",
            more(STD_TOLD, LITE),
            "all else as the paper has it",
        ),
        Row("ours: and forecasts, from medians, over lite", "", more(STD_FORECAST, LITE)),
        Row("ours: and a plan must be better, over lite", "", more(STD_GATED, LITE)),
        Row("ours: and our estimator, each second, over lite", "", more(OUR_STD, LITE)),
        Row("ours: that over star", "", over_star(OUR_STD)),
        Row(
            "ours: disjoint paths, pro over std",
            "+14 %",
            more(PRO_DISJOINT, STD),
            "all else as the paper has it",
        ),
        Row("ours: and chunks wait for a path, pro over std", "", more(PRO_WAITING, STD)),
        Row("ours: and our awareness, pro over std", "", more(OUR_PRO, OUR_STD)),
        Row("ours: that over star", "7.5x", over_star(OUR_PRO)),
        Row("ours, chunks of 256 kB: std over star", "", over_star(OUR_STD_256_KB)),
        Row(
            "ours, chunks of 256 kB: pro over star",
            "7.5x",
            over_star(OUR_PRO_256_KB),
            "and bounds (2, 5), the paper's best",
        ),
        Row(
            "ours, chunks of 256 kB: pro over std",
            "+14 %",
            more(OUR_PRO_256_KB, OUR_STD_256_KB),
            "latencies are not a tenth, and nor is what a message costs a process (inferred)"
            if lab.emulate
            else "a chunk that takes a slow path holds its round up less, the smaller it is",
        ),
        Row("packed trees, ours, over star", "", over_star(PACKED), "chunks of 1 MB, aware"),
        Row("packed trees, ours, over pro", "", more(PACKED, PRO)),
    )
    return Result(rows, (setting.dynamics_note(lab),))


EXPERIMENT = Experiment(
    "netstorm/fig18", "lite, std and pro: one technique after the other", _make, emulable=True
)
