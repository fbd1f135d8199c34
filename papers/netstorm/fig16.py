"""NetStorm, Fig. 16: seconds of an iteration on a dynamic network, without and with awareness."""

from __future__ import annotations

from dataclasses import dataclass, replace

from anabranch.scheduler.awareness import Oracle
from papers._experiment import Experiment
from papers._lab import Lab
from papers._result import Result, Row
from papers._trial import Outcome, chosen, seconds
from papers.netstorm import _setting as setting
from papers.netstorm._setting import (
    LITE,
    OUR_LITE,
    OUR_PRO,
    OUR_STD,
    OUR_STD_256_KB,
    PACKED,
    STD,
    STD_FORECAST,
    STD_GATED,
    STD_TOLD,
    UNMEASURED,
    System,
    gain,
)

_ORACLE = replace(OUR_STD, name="std, oracle", awareness=Oracle())
_SMALL = replace(setting.in_chunks_of(STD_GATED, 1 << 16), name="std, 256 kB")
_SMALL_OFF = replace(OUR_STD_256_KB, name="lite, 256 kB", awareness=None)
_OUR_PRO_OFF = replace(OUR_PRO, name="pro, ours, unaware", awareness=None)
_PACKED_OFF = replace(PACKED, name="packed trees, unaware", awareness=None)


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two systems, without and with awareness."""

    off: System
    on: System


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A row.

    Args:
        what, paper, why: see :class:`Row`.
        literal, ours: the systems of its two values.
    """

    what: str
    paper: str = ""
    literal: _Pair | None = None
    ours: _Pair | None = None
    why: str = ""


_PAPER = "66 s -> 50 s (-24 %)"
_LINES = (
    _Line(
        what="9 roots",
        paper=_PAPER,
        literal=_Pair(LITE, STD),
        ours=_Pair(OUR_LITE, OUR_STD),
        why="without awareness the plan is for the rates of the first 180 s",
    ),
    _Line(
        what="9 roots, off planned for equal rates",
        paper=_PAPER,
        literal=_Pair(UNMEASURED, STD),
        why="awareness begins so, too; the paper does not say what the plan without it is for",
    ),
    _Line(what="and auxiliary paths", paper=_PAPER, ours=_Pair(_OUR_PRO_OFF, OUR_PRO)),
    _Line(what="steps to ours: told the first rates", ours=_Pair(LITE, STD_TOLD)),
    _Line(what="steps to ours: told, with forecasts from medians", ours=_Pair(LITE, STD_FORECAST)),
    _Line(what="steps to ours: and new plans only if better", ours=_Pair(LITE, STD_GATED)),
    _Line(what="ours, rates known at every moment", ours=_Pair(OUR_LITE, _ORACLE)),
    _Line(
        what="chunks of 256 kB: eq. 14, told, forecasts, plan gate",
        ours=_Pair(_SMALL_OFF, _SMALL),
        why="a small chunk's latency counts as its transfer in eq. 14 (inferred)",
    ),
    _Line(
        what="chunks of 256 kB: ours",
        ours=_Pair(_SMALL_OFF, OUR_STD_256_KB),
        why="it tells rate from latency (inferred)",
    ),
    _Line(what="packed trees", ours=_Pair(_PACKED_OFF, PACKED)),
)


def _make(lab: Lab) -> Result:
    pairs = [each for line in _LINES for each in (line.literal, line.ours) if each is not None]
    systems = {each.name: each for pair in pairs for each in (pair.off, pair.on)}
    outcomes = lab.measure(setting.dynamic_trials(lab, systems.values()))

    def told(pair: _Pair | None) -> str:
        if pair is None:
            return ""
        off, on = (_of(outcomes, each) for each in (pair.off, pair.on))
        change = setting.ratio(off, on, lambda speed_up: gain(1 / speed_up))
        return f"{seconds(off):.1f} s -> {seconds(on):.1f} s ({change})"

    rows = [
        Row(
            line.what,
            line.paper,
            told(line.ours),
            line.why,
            literal=told(line.literal),
            seeds=setting.drawn_networks(lab),
        )
        for line in _LINES
    ]
    return Result(tuple(rows), (setting.dynamics_note(lab),))


def _of(outcomes: list[Outcome], system: System) -> list[Outcome]:
    return chosen(outcomes, system=system.name)


EXPERIMENTS = (Experiment("netstorm/fig16", "seconds an iteration, awareness off and on", _make),)
