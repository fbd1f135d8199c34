"""NetStorm, Fig. 18: one technique after the other, on a dynamic network."""

from __future__ import annotations

from anabranch.experiments._experiment import Experiment
from anabranch.experiments._lab import Lab, seconds
from anabranch.experiments._result import Result, Row
from anabranch.experiments.netstorm import _setting as setting
from anabranch.experiments.netstorm._setting import (
    LITE,
    MXNET,
    PACKED,
    PRO,
    PRO_256_KB,
    PRO_ALGORITHM_3,
    STD,
    STD_256_KB,
    gain,
    times,
)


def _make(lab: Lab) -> Result:
    systems = (MXNET, LITE, STD, PRO_ALGORITHM_3, PRO, STD_256_KB, PRO_256_KB, PACKED)
    outcomes = lab.measure(setting.dynamic_trials(lab, systems))
    took_s = {each.name: seconds(outcomes, system=each.name) for each in systems}

    def over_star(name: str) -> str:
        return f"{times(took_s[MXNET.name] / took_s[name])} ({took_s[name]:.1f} s)"

    rows = (
        Row("lite (9 roots) over star", "5.5x", over_star(LITE.name), "a better star: see fig13"),
        Row("std (and awareness) over star", "6.6x", over_star(STD.name)),
        Row("std over lite", "+20 %", gain(took_s[LITE.name] / took_s[STD.name])),
        Row("pro (and auxiliary paths) over star", "7.5x", over_star(PRO.name)),
        Row("pro over std", "+14 %", gain(took_s[STD.name] / took_s[PRO.name])),
        Row(
            "pro over std, Algorithm 3",
            "+14 %",
            gain(took_s[STD.name] / took_s[PRO_ALGORITHM_3.name]),
            "read literally it leaves hardly a pair an auxiliary path",
        ),
        Row(
            "chunks of 256 kB: std over star",
            "",
            over_star(STD_256_KB.name),
            "our awareness, as the paper's misjudges small chunks: see fig16",
        ),
        Row(
            "chunks of 256 kB: pro over star",
            "7.5x",
            over_star(PRO_256_KB.name),
            "and bounds (2, 5), the paper's best",
        ),
        Row(
            "chunks of 256 kB: pro over std",
            "+14 %",
            gain(took_s[STD_256_KB.name] / took_s[PRO_256_KB.name]),
            "a chunk that takes a slow path holds its round up less, the smaller it is",
        ),
        Row("packed trees, ours, over star", "", over_star(PACKED.name), "chunks of 1 MB, aware"),
        Row("packed trees, ours, over pro", "", gain(took_s[PRO.name] / took_s[PACKED.name])),
    )
    return Result(rows, tuple(outcomes), (setting.dynamics_note(lab),))


EXPERIMENT = Experiment(
    "netstorm/fig18", "lite, std and pro: one technique after the other", _make, emulable=True
)
