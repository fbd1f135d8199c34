"""NetStorm, Fig. 17: the gain of auxiliary paths, over the two bounds that send chunks there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import msgspec

from papers._experiment import Experiment
from papers._lab import Lab, Outcome, Trial, seconds
from papers._result import Result, Row
from papers.netstorm import _setting as setting
from papers.netstorm._setting import (
    OUR_PRO,
    OUR_PRO_256_KB,
    OUR_STD,
    OUR_STD_256_KB,
    PRO,
    PRO_DISJOINT,
    STD,
    System,
    gain,
)

_PAPER = "+30 % .. +65 %, best (2, 5)"
_BOUNDS = (1, 2, 3, 4, 5)  # of either kind; the paper's, only drawn, include (2, 1) and (2, 5)
_ENDS = ((2, 1), (2, 5))  # the paper's default, and its best


@dataclass(frozen=True, slots=True)
class _Case:
    """Two systems, without and with auxiliary paths.

    Args:
        off, on: the two.
        why: what differs from the paper, and why.
        grid: pairs of PRIMARY_BUSY_BOUND and AUXILIARY_QUEUE_LENGTH to try.
    """

    off: System
    on: System
    why: str
    grid: tuple[tuple[int, int], ...] = tuple(product(_BOUNDS, _BOUNDS))

    def pairs(self, lab: Lab) -> tuple[tuple[int, int], ...]:
        """Return the pairs that a lab tries."""
        return _ENDS if lab.quick else self.grid


_CASES = {
    "as the paper has it": _Case(
        STD,
        PRO,
        "on this network Algorithm 3 leaves hardly any tree neighbours an auxiliary path",
    ),
    "disjoint paths, all else as the paper has it": _Case(
        STD, PRO_DISJOINT, "the paths that the text asks for, each pair's on their own"
    ),
    "ours": _Case(OUR_STD, OUR_PRO, "a chunk of 4 MB on a slow path holds up the end of the round"),
    "ours, chunks of 256 kB": _Case(
        OUR_STD_256_KB,
        OUR_PRO_256_KB,
        "small chunks on slow paths end in time",
        tuple(product((2, 5), (1, 5))),  # a run of 16 times the chunks takes a core a minute
    ),
}


def _trials(lab: Lab, case: str) -> list[Trial]:
    on = _CASES[case].on
    trials = setting.dynamic_trials(lab, (replace(_CASES[case].off, name="off"),), case=case)
    assert on.auxiliary is not None
    for busy, length in _CASES[case].pairs(lab):
        paths = msgspec.structs.replace(
            on.auxiliary, primary_busy_bound=busy, auxiliary_queue_length=length
        )
        bound = replace(on, name="on", auxiliary=paths)
        trials += setting.dynamic_trials(
            lab, (bound,), case=case, busy_bound=busy, queue_length=length
        )
    return trials


def _make(lab: Lab) -> Result:
    outcomes = lab.measure([trial for case in _CASES for trial in _trials(lab, case)])
    rows = [row for case in _CASES for row in _rows(lab, outcomes, case)]
    return Result(tuple(rows), (setting.dynamics_note(lab),))


def _rows(lab: Lab, outcomes: list[Outcome], case: str) -> list[Row]:
    grid = _CASES[case].pairs(lab)
    off = setting.chosen(outcomes, case=case, system="off")
    on = {
        (busy, length): setting.chosen(
            outcomes, case=case, system="on", busy_bound=busy, queue_length=length
        )
        for busy, length in grid
    }
    best, worst = (
        min(grid, key=lambda at: seconds(on[at])),
        max(grid, key=lambda at: seconds(on[at])),
    )
    rows = [
        Row(
            f"{case}: least and most",
            _PAPER,
            f"{gain(seconds(off) / seconds(on[worst]))} .. "
            f"{gain(seconds(off) / seconds(on[best]))}, best {best}",
            _CASES[case].why,
        ),
        *(
            Row(f"{case}: {at}, the paper's {which}", "", setting.ratio(off, on[at], gain))
            for at, which in zip(_ENDS, ("default", "best"), strict=True)
        ),
    ]
    for busy in dict.fromkeys(busy for busy, _ in grid):
        lengths = [length for other, length in grid if other == busy]
        rows.append(
            Row(
                f"{case}: bound {busy}, queue {setting.listed(lengths)}",
                "",
                "; ".join(setting.ratio(off, on[busy, each], gain) for each in lengths),
            )
        )
    return rows


EXPERIMENT = Experiment(
    "netstorm/fig17",
    "gain of auxiliary paths over PRIMARY_BUSY_BOUND x AUXILIARY_QUEUE_LENGTH",
    _make,
)
