"""NetStorm, Fig. 16: seconds an iteration takes on a dynamic network, unaware and aware of it."""

from __future__ import annotations

from dataclasses import replace

from anabranch.experiments._experiment import Experiment
from anabranch.experiments._lab import Lab, seconds
from anabranch.experiments._result import Result, Row
from anabranch.experiments.netstorm import _setting as setting
from anabranch.experiments.netstorm._setting import LITE, PACKED, PRO, STD, STD_256_KB, gain
from anabranch.scheduler.awareness import Oracle, Passive

_OURS = replace(STD, name="std, our estimator", awareness=Passive())
_ORACLE = replace(STD, name="std, oracle", awareness=Oracle())
_SMALL = replace(setting.in_chunks_of(STD, 1 << 16), name="std, 256 kB, the paper's estimator")
_SMALL_OFF = replace(STD_256_KB, name="lite, 256 kB", awareness=None)
_PRO_OFF = replace(PRO, name="pro, unaware", awareness=None)
_PACKED_OFF = replace(PACKED, name="packed trees, unaware", awareness=None)


def _make(lab: Lab) -> Result:
    systems = (
        *(LITE, STD, _OURS, _ORACLE, _SMALL_OFF, _SMALL, STD_256_KB, _PRO_OFF, PRO),
        *(_PACKED_OFF, PACKED),
    )
    outcomes = lab.measure(setting.dynamic_trials(lab, systems))
    took_s = {each.name: seconds(outcomes, system=each.name) for each in systems}

    def row(what: str, off: str, on: str, paper: str = "", why: str = "") -> Row:
        return Row(
            what,
            paper,
            f"{took_s[off]:.1f} s -> {took_s[on]:.1f} s ({gain(took_s[on] / took_s[off])})",
            why,
        )

    rows = (
        row(
            "9 roots, the paper's estimator",
            LITE.name,
            STD.name,
            "66 s -> 50 s (-24 %)",
            "the plan without awareness fits the first of many draws",
        ),
        row("9 roots, our estimator", LITE.name, _OURS.name),
        row("9 roots, rates known at every moment", LITE.name, _ORACLE.name),
        row(
            "9 roots, chunks of 256 kB, the paper's estimator",
            _SMALL_OFF.name,
            _SMALL.name,
            "",
            "latency, a small part of a large chunk's transfer, counts as transfer",
        ),
        row(
            "9 roots, chunks of 256 kB, our estimator",
            _SMALL_OFF.name,
            STD_256_KB.name,
            "",
            "it tells rate from latency",
        ),
        row(
            "9 roots and auxiliary paths",
            _PRO_OFF.name,
            PRO.name,
            "66 s -> 50 s (-24 %)",
            "auxiliary paths help a stale plan, and leave awareness less to gain",
        ),
        row("packed trees, ours", _PACKED_OFF.name, PACKED.name),
    )
    return Result(rows, tuple(outcomes), (setting.dynamics_note(lab),))


EXPERIMENT = Experiment("netstorm/fig16", "seconds an iteration, awareness off and on", _make)
