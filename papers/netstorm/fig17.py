"""NetStorm, Fig. 17: the gain of auxiliary paths, over the two bounds that send chunks there."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from papers._experiment import Experiment
from papers._lab import Lab
from papers._picture import picture
from papers._result import Result, Row
from papers._trial import Outcome, Trial, chosen, seconds
from papers.netstorm import _setting as setting
from papers.netstorm._setting import (
    OUR_PRO,
    OUR_PRO_256_KB,
    OUR_STD,
    OUR_STD_256_KB,
    PRO,
    PRO_DIRECTED,
    PRO_DISJOINT,
    PRO_EXCEEDED,
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
        is_literal: whether each choice is one that the paper's text states.
        grid: pairs of PRIMARY_BUSY_BOUND and AUXILIARY_QUEUE_LENGTH to try.
    """

    off: System
    on: System
    why: str
    is_literal: bool
    grid: tuple[tuple[int, int], ...] = tuple(product(_BOUNDS, _BOUNDS))

    def pairs(self, lab: Lab) -> tuple[tuple[int, int], ...]:
        """Return the pairs that a lab tries."""
        return _ENDS if lab.quick else self.grid


_CASES = {
    "a used edge is gone in both directions": _Case(
        STD,
        PRO,
        "Algorithm 3 leaves no pair of this network a second path, see Tables I and II",
        is_literal=True,
        grid=_ENDS,
    ),
    "a used link is gone in its direction": _Case(
        STD,
        PRO_DIRECTED,
        "it leaves hardly a pair a second path, see Tables I and II",
        is_literal=False,
    ),
    "disjoint paths of each pair, all else literal": _Case(
        STD,
        PRO_DISJOINT,
        "the paths that VI-B's first sentence asks for; why they gain less is not known",
        is_literal=False,
    ),
    "the same, where a busy path exceeds its bound (VI-A)": _Case(
        STD,
        PRO_EXCEEDED,
        "VI-A: busy above the bound; IX-C: busy at the bound; why they gain less is not known",
        is_literal=False,
        grid=_ENDS,
    ),
    "ours": _Case(
        OUR_STD,
        OUR_PRO,
        "a chunk of 4 MB on a slow path holds up the end of the round (inferred)",
        False,
    ),
    "ours, chunks of 256 kB": _Case(
        OUR_STD_256_KB,
        OUR_PRO_256_KB,
        "small chunks on slow paths end in time (inferred)",
        is_literal=False,
        grid=tuple(product((2, 5), (1, 5))),  # a run of 16 times the chunks takes a core a minute
    ),
}


def _trials(lab: Lab, case: str) -> list[Trial]:
    off, on = _CASES[case].off, _CASES[case].on
    trials = setting.dynamic_trials(lab, (off,), case=case, bounds="off")
    for busy, length in _CASES[case].pairs(lab):
        bound = setting.beside(on, "bounds", primary_busy_bound=busy, auxiliary_queue_length=length)
        trials += setting.dynamic_trials(lab, (bound,), case=case, bounds=f"{busy}, {length}")
    return trials


def _make(lab: Lab) -> Result:
    outcomes = lab.measure([trial for case in _CASES for trial in _trials(lab, case)])
    rows = [row for case in _CASES for row in _rows(lab, outcomes, case)]
    panels = {case: _lines(lab, outcomes, case) for case in _CASES}
    drawn = {case: lines for case, lines in panels.items() if len(lines) == len(_BOUNDS)}
    note = setting.dynamics_note(lab)
    return Result(tuple(rows), (note,), _picture(drawn) if drawn else {})


def _picture(panels: dict[str, dict[str, list[tuple[float, float]]]]) -> dict[str, object]:
    return picture("AUXILIARY_QUEUE_LENGTH", "throughput over none", panels)


def _of(outcomes: list[Outcome], case: str, bounds: str) -> list[Outcome]:
    return chosen(outcomes, case=case, bounds=bounds)


def _lines(lab: Lab, outcomes: list[Outcome], case: str) -> dict[str, list[tuple[float, float]]]:
    """Return the throughput over that without auxiliary paths, a line for each bound."""
    off = seconds(_of(outcomes, case, "off"))
    lines: dict[str, list[tuple[float, float]]] = {}
    for busy, length in _CASES[case].pairs(lab):
        gained = off / seconds(_of(outcomes, case, f"{busy}, {length}"))
        lines.setdefault(f"PRIMARY_BUSY_BOUND {busy}", []).append((length, round(gained, 4)))
    return lines


def _rows(lab: Lab, outcomes: list[Outcome], case: str) -> list[Row]:
    grid, about = _CASES[case].pairs(lab), _CASES[case]
    off = _of(outcomes, case, "off")
    on = {at: _of(outcomes, case, f"{at[0]}, {at[1]}") for at in grid}
    best = min(grid, key=lambda at: seconds(on[at]))
    worst = max(grid, key=lambda at: seconds(on[at]))

    def row(what: str, paper: str, told: str, why: str = "") -> Row:
        ours, literal = ("", told) if about.is_literal else (told, "")
        seeds = setting.drawn_networks(lab)
        return Row(f"{case}: {what}", paper, ours, why, literal=literal, seeds=seeds)

    ends = "; ".join(f"{at} {setting.ratio(off, on[at], gain)}" for at in _ENDS)
    what = "the paper's default (2, 1), and its best (2, 5)"
    if len(grid) == len(_ENDS):
        return [row(what, _PAPER, ends, about.why)]
    least, most = (gain(seconds(off) / seconds(on[at])) for at in (worst, best))
    told = f"{least} .. {most}, best {best}, of {len(grid)} pairs"
    return [row("least and most", _PAPER, told, about.why), row(what, "", ends)]


EXPERIMENTS = (
    Experiment(
        "netstorm/fig17",
        "gain of auxiliary paths over PRIMARY_BUSY_BOUND x AUXILIARY_QUEUE_LENGTH",
        _make,
    ),
)
