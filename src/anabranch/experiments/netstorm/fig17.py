"""NetStorm, Fig. 17: what auxiliary paths gain, over the two bounds that send chunks there."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Literal

from anabranch.experiments._experiment import Experiment
from anabranch.experiments._lab import Lab, Outcome, seconds
from anabranch.experiments._result import Result, Row
from anabranch.experiments.netstorm import _setting as setting
from anabranch.experiments.netstorm._setting import STD, STD_256_KB, gain
from anabranch.plan import Auxiliary

_SEARCHES: tuple[Literal["disjoint", "algorithm-3"], ...] = ("disjoint", "algorithm-3")
_CHUNKS = {"1 M elements": STD, "256 kB": STD_256_KB}
_ENDS = ((2, 1), (2, 5))  # the paper's default, and its best


def _bounds(lab: Lab, search: str) -> list[tuple[int, int]]:
    """Return the pairs of PRIMARY_BUSY_BOUND and AUXILIARY_QUEUE_LENGTH to try."""
    # There is next to nothing to bound where hardly a pair has an auxiliary path.
    if lab.quick or search == "algorithm-3":
        return list(_ENDS)
    return list(product((1, 2, 5), (1, 5)))


def _make(lab: Lab) -> Result:
    trials = []
    for chunk, system in _CHUNKS.items():
        off = replace(system, name="off")
        trials += setting.dynamic_trials(lab, (off,), chunk=chunk)
        for search in _SEARCHES:
            for busy, length in _bounds(lab, search):
                paths = Auxiliary(
                    search=search, primary_busy_bound=busy, auxiliary_queue_length=length
                )
                on = replace(off, name=search, auxiliary=paths)
                trials += setting.dynamic_trials(
                    lab, (on,), chunk=chunk, busy_bound=busy, queue_length=length
                )
    outcomes = lab.measure(trials)
    rows = [
        row
        for chunk, search in product(_CHUNKS, _SEARCHES)
        for row in _rows(outcomes, chunk, search, _bounds(lab, search))
    ]
    return Result(tuple(rows), tuple(outcomes), (setting.dynamics_note(lab),))


def _rows(
    outcomes: list[Outcome], chunk: str, search: str, bounds: list[tuple[int, int]]
) -> list[Row]:
    found = [each for each in outcomes if each.labels["chunk"] == chunk]
    off_s = seconds(found, system="off")
    gains = {
        (busy, length): off_s / seconds(found, system=search, busy_bound=busy, queue_length=length)
        for busy, length in bounds
    }
    best = max(gains, key=lambda each: gains[each])
    what = f"{search}, chunks of {chunk}"
    rows = [
        Row(
            what,
            "+30 % .. +65 %, best (2, 5)",
            f"{gain(min(gains.values()))} .. {gain(max(gains.values()))}, best {best}",
            _WHY[chunk, search],
        )
    ]
    for busy in dict.fromkeys(busy for busy, _ in bounds):
        lengths = [length for other, length in bounds if other == busy]
        rows.append(
            Row(
                f"{what}: bound {busy}, queue {setting.listed(lengths)}",
                "",
                setting.listed(gain(gains[busy, length]) for length in lengths),
            )
        )
    return rows


_WHY = {
    ("1 M elements", "disjoint"): "a chunk of 4 MB on a slow path holds up the end of the round",
    ("1 M elements", "algorithm-3"): "read literally it leaves hardly a pair an auxiliary path",
    ("256 kB", "disjoint"): "small chunks on slow paths end in time; with our awareness",
    ("256 kB", "algorithm-3"): "read literally it leaves hardly a pair an auxiliary path",
}

EXPERIMENT = Experiment(
    "netstorm/fig17",
    "gain of auxiliary paths over PRIMARY_BUSY_BOUND x AUXILIARY_QUEUE_LENGTH",
    _make,
)
