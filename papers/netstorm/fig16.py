"""NetStorm, Fig. 16: seconds of an iteration on a dynamic network, without and with awareness."""

from __future__ import annotations

from dataclasses import replace

from anabranch.scheduler.awareness import Oracle
from papers._experiment import Experiment
from papers._lab import Lab, seconds
from papers._result import Result, Row
from papers.netstorm import _setting as setting
from papers.netstorm._setting import (
    LITE,
    OUR_PRO,
    OUR_STD,
    OUR_STD_256_KB,
    PACKED,
    PRO,
    STD,
    STD_FORECAST,
    STD_GATED,
    STD_TOLD,
    UNMEASURED,
    gain,
)

_ORACLE = replace(OUR_STD, name="std, oracle", awareness=Oracle())
_SMALL = replace(setting.in_chunks_of(STD_GATED, 1 << 16), name="std, 256 kB")
_SMALL_OFF = replace(OUR_STD_256_KB, name="lite, 256 kB", awareness=None)
_PRO_OFF = replace(PRO, name="pro, unaware", awareness=None)
_OUR_PRO_OFF = replace(OUR_PRO, name="pro, ours, unaware", awareness=None)
_PACKED_OFF = replace(PACKED, name="packed trees, unaware", awareness=None)

_PAPER = "66 s -> 50 s (-24 %)"
_ROWS = (
    ("9 roots", LITE, STD, _PAPER, "its plan off is that of the rates of the first 180 s"),
    ("9 roots, off planned for equal rates", UNMEASURED, STD, _PAPER, "as on begins"),
    ("9 roots and auxiliary paths", _PRO_OFF, PRO, _PAPER, ""),
    ("ours: told the first rates", LITE, STD_TOLD, "", "all else as the paper has it"),
    ("ours: and forecasts, from medians", LITE, STD_FORECAST, "", ""),
    ("ours: and a plan must be better", LITE, STD_GATED, "", ""),
    ("ours: and our estimator, each second", LITE, OUR_STD, "", ""),
    ("ours: rates known at every moment", LITE, _ORACLE, "", ""),
    ("ours: and auxiliary paths", _OUR_PRO_OFF, OUR_PRO, "", ""),
    (
        "chunks of 256 kB: told, forecasts, plan gate",
        _SMALL_OFF,
        _SMALL,
        "",
        "latency, a small part of a large chunk's transfer, counts as transfer in eq. 14",
    ),
    ("chunks of 256 kB: ours", _SMALL_OFF, OUR_STD_256_KB, "", "it tells rate from latency"),
    ("packed trees, ours", _PACKED_OFF, PACKED, "", ""),
)


def _make(lab: Lab) -> Result:
    systems = {each.name: each for _, off, on, _, _ in _ROWS for each in (off, on)}
    outcomes = lab.measure(setting.dynamic_trials(lab, systems.values()))
    rows = []
    for what, without, aware, paper, why in _ROWS:
        off, on = (setting.chosen(outcomes, system=each.name) for each in (without, aware))
        change = setting.ratio(on, off, gain)
        rows.append(
            Row(what, paper, f"{seconds(off):.1f} s -> {seconds(on):.1f} s ({change})", why)
        )
    return Result(tuple(rows), (setting.dynamics_note(lab),))


EXPERIMENT = Experiment("netstorm/fig16", "seconds an iteration, awareness off and on", _make)
