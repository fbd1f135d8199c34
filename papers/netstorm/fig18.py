"""NetStorm, Fig. 18: techniques added one after the other, on dynamic networks."""

from __future__ import annotations

from papers._experiment import Experiment
from papers._lab import Lab
from papers._result import Result, Row
from papers._trial import Outcome, chosen
from papers.netstorm import _setting as setting
from papers.netstorm._setting import (
    LITE,
    LITE_BOTH_WAYS,
    MXNET,
    OUR_LITE,
    OUR_PRO,
    OUR_PRO_256_KB,
    OUR_STD,
    OUR_STD_256_KB,
    PACKED,
    PRO,
    PRO_DIRECTED,
    PRO_DISJOINT,
    PRO_EXCEEDED,
    PRO_FLAT,
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
    *(MXNET, LITE, LITE_BOTH_WAYS, UNMEASURED, STD, PRO, PRO_FLAT),
    *(STD_TOLD, STD_FORECAST, STD_GATED, OUR_LITE, OUR_STD),
    *(PRO_DIRECTED, PRO_DISJOINT, PRO_EXCEEDED, PRO_WAITING, OUR_PRO),
    *(OUR_STD_256_KB, OUR_PRO_256_KB, PACKED),
)

_AUXILIARY = "+14 % (7.5x over 5.5x and +20 %)"


def _make(lab: Lab) -> Result:
    outcomes = lab.measure(setting.dynamic_trials(lab, _SYSTEMS))

    def of(system: System) -> list[Outcome]:
        return chosen(outcomes, system=system.name)

    def over_star(system: System) -> str:
        return setting.over(of(MXNET), of(system))

    def more(system: System, than: System) -> str:
        return setting.ratio(of(than), of(system), gain)

    seeds = setting.drawn_networks(lab)

    def row(what: str, paper: str, literal: str, ours: str, why: str = "") -> Row:
        return Row(what, paper, ours, why, literal=literal, seeds=seeds)

    cut = row(  # a tenth of a model, which is emulated, has no tensors
        "pro, each tensor cut, over the whole buffer cut",
        "",
        more(PRO, PRO_FLAT),
        "",
        "a root gets its share of the chunks, whatever their sizes (inferred)",
    )
    rows = (
        row(
            "lite (9 roots) over star",
            "5.5x",
            over_star(LITE),
            over_star(OUR_LITE),
            "planned for the first rates; our star: see fig13; what else differs is not known",
        ),
        row(
            "lite over star, its roots' shares by up and down",
            "5.5x",
            "",
            over_star(LITE_BOTH_WAYS),
            "all else literal: the two readings of w(T)",
        ),
        row(
            "lite over star, planned for equal rates",
            "5.5x",
            over_star(UNMEASURED),
            "",
            "not known",
        ),
        row(
            "std (and awareness) over star",
            "6.6x (from 5.5x and +20 %)",
            over_star(STD),
            over_star(OUR_STD),
            "not known",
        ),
        row("std over lite", "+20 %", more(STD, LITE), more(OUR_STD, OUR_LITE)),
        row(
            "std over lite planned for equal rates",
            "+20 %",
            more(STD, UNMEASURED),
            "",
            "not known; literal awareness begins with equal rates",
        ),
        row(
            "pro (and auxiliary paths) over star",
            "7.5x",
            over_star(PRO),
            over_star(OUR_PRO),
            "not known",
        ),
        row(
            "pro over std",
            _AUXILIARY,
            more(PRO, STD),
            more(OUR_PRO, OUR_STD),
            "Algorithm 3 leaves no pair of this network a second path",
        ),
        row(
            "pro over std: a used link is gone in its direction",
            _AUXILIARY,
            "",
            more(PRO_DIRECTED, STD),
            "all else literal",
        ),
        row(
            "pro over std: disjoint paths of each pair",
            _AUXILIARY,
            "",
            more(PRO_DISJOINT, STD),
            "all else literal",
        ),
        row("the same: a busy path exceeds its bound (VI-A)", "", "", more(PRO_EXCEEDED, STD)),
        row("the same: chunks wait for a path", "", "", more(PRO_WAITING, STD)),
        *(() if lab.emulate else (cut,)),
        row("std told the first rates, over lite", "", "", more(STD_TOLD, LITE), "else literal"),
        row(
            "and with forecasts from medians, over lite",
            "",
            "",
            more(STD_FORECAST, LITE),
        ),
        row(
            "and with new plans only if better, over lite",
            "",
            "",
            more(STD_GATED, LITE),
        ),
        row("chunks of 256 kB: std over star", "", "", over_star(OUR_STD_256_KB)),
        row(
            "chunks of 256 kB: pro over star",
            "7.5x",
            "",
            over_star(OUR_PRO_256_KB),
            "and bounds (2, 5), the paper's best",
        ),
        row(
            "chunks of 256 kB: pro over std",
            _AUXILIARY,
            "",
            more(OUR_PRO_256_KB, OUR_STD_256_KB),
            "latencies are not a tenth, and nor is what a message costs a process (inferred)"
            if lab.emulate
            else "a chunk that takes a slow path holds its round up less, the smaller it is; and "
            "longer queues (inferred)",
        ),
        row("packed trees over star", "", "", over_star(PACKED), "chunks of 1 MB, aware"),
        row("packed trees over pro, ours", "", "", more(PACKED, OUR_PRO)),
    )
    return Result(rows, (setting.dynamics_note(lab),))


EXPERIMENTS = (
    Experiment(
        "netstorm/fig18", "lite, std and pro: one technique after the other", _make, emulable=True
    ),
)
