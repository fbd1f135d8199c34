"""NetStorm, Fig. 20: how much four settings matter, one at a time and beside CHUNK_SIZE."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from anabranch.scheduler.awareness import Passive
from papers._experiment import Experiment
from papers._lab import Lab
from papers._picture import picture
from papers._result import Result, Row
from papers._trial import Outcome, Trial, chosen, seconds
from papers.netstorm import _setting as setting
from papers.netstorm._setting import (
    MXNET,
    OUR_PRO,
    PRO,
    UNMEASURED,
    System,
    times,
)

_M = 1_000_000
_Systems = Mapping[float, System | None]
"""A variant of a system for each value of a setting; None where the scenario is refused."""

_CHUNK_ELEMENTS = (_M // 4, _M // 2, _M, 2 * _M, 4 * _M, 8 * _M, 16 * _M)
_UPDATE_TIMES_S = (1.0, 5.0, 20.0, 60.0, 180.0)
_PROBE_ELEMENTS = (_M // 100, _M // 10, _M // 2, _M, 2 * _M, 4 * _M)
_PROBE_CHUNKS = (1, 4, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class _Sweep:
    """One setting of a system, over its values.

    Args:
        unit: of its values, in rows and pictures.
        scale: the value over the number in rows.
        systems: returns the variants of a system.
        paper, why: see :class:`Row`.
        is_ours: whether our systems have this setting too.
    """

    unit: str
    scale: float
    systems: Callable[[System], _Systems]
    paper: str
    why: str
    is_ours: bool = True

    def written(self, value: float) -> str:
        """Return a value as rows have it."""
        return f"{value / self.scale:g}{self.unit}"


def _chunk_sizes(system: System) -> _Systems:
    return {elements: setting.in_chunks_of(system, elements) for elements in _CHUNK_ELEMENTS}


def _of_awareness(field: str, values: Sequence[float]) -> Callable[[System], _Systems]:
    """Return the variants by one field of the awareness."""

    def systems(system: System) -> _Systems:
        assert isinstance(system.awareness, Passive)
        found = {
            value: msgspec.structs.replace(system.awareness, **{field: value}) for value in values
        }
        return {
            value: replace(system, awareness=each) if _measures(each, system) else None
            for value, each in found.items()
        }

    return systems


def _measures(awareness: Passive, system: System) -> bool:
    """Return whether chunks are large enough to be measured; else the scenario is refused."""
    least = awareness.probe_chunk_elements
    return least is None or least <= system.chunk_elements


_SWEEPS = {
    "CHUNK_SIZE": _Sweep(
        " M",
        _M,
        _chunk_sizes,
        "best 0.5 .. 1 M, significantly less above",
        "a message costs nothing here, so that small chunks cost no more (inferred)",
    ),
    "UPDATE_TIME": _Sweep(
        " s",
        1,
        _of_awareness("update_time_s", _UPDATE_TIMES_S),
        "best 5 s",
        "a look takes no time here, and news of a plan none to travel (inferred)",
    ),
    "PROBE_CHUNK_SIZE": _Sweep(
        " M",
        _M,
        _of_awareness("probe_chunk_elements", _PROBE_ELEMENTS),
        "0.01 .. 4 M; too large a size collapses",
        "counted in elements; where no chunk is large enough, a scenario is refused",
        is_ours=False,
    ),
    "PROBE_CHUNK_NUM": _Sweep(
        "",
        1,
        _of_awareness("probe_chunks", _PROBE_CHUNKS),
        "4 .. 32",
        "not known",
        is_ours=False,
    ),
}
_JOINT = ("UPDATE_TIME", "PROBE_CHUNK_SIZE", "PROBE_CHUNK_NUM")  # each beside CHUNK_SIZE
_OURS = "ours"


def _joint(lab: Lab, sweep: str) -> dict[str, _Systems]:
    """Return a sweep for each CHUNK_SIZE; all else is as in Table II."""
    found = {}
    for elements in _CHUNK_ELEMENTS[1:-1:2] if lab.quick else _CHUNK_ELEMENTS[:-1]:
        # Probes scale with the chunks, unless they are swept.
        system = replace(PRO, chunk_elements=elements)
        if sweep != "PROBE_CHUNK_SIZE":
            system = setting.in_chunks_of(PRO, elements)
        found[f"CHUNK_SIZE {elements / _M:g} M"] = _SWEEPS[sweep].systems(system)
    return found


def _cases(lab: Lab) -> dict[tuple[str, str], _Systems]:
    """Return the variants by sweep and case: literal, ours, or a CHUNK_SIZE."""
    found: dict[tuple[str, str], _Systems] = {}
    for name, sweep in _SWEEPS.items():
        found[name, ""] = sweep.systems(PRO)
        if sweep.is_ours and not lab.quick:
            found[name, _OURS] = sweep.systems(OUR_PRO)
    for name in _JOINT:
        found |= {(name, case): systems for case, systems in _joint(lab, name).items()}
    if lab.quick:
        found = {case: dict(list(systems.items())[::2]) for case, systems in found.items()}
    return found


def _trials(lab: Lab, sweep: str, case: str, systems: _Systems) -> list[Trial]:
    return [
        trial
        for value, system in systems.items()
        if system is not None
        for trial in setting.dynamic_trials(lab, (system,), sweep=sweep, case=case, value=value)
    ]


def _make(lab: Lab) -> Result:
    cases = _cases(lab)
    trials = setting.dynamic_trials(lab, (MXNET, UNMEASURED))
    for (sweep, case), systems in cases.items():
        trials += _trials(lab, sweep, case, systems)
    outcomes = lab.measure(trials)
    star = chosen(outcomes, system=MXNET.name)
    seeds = setting.drawn_networks(lab)

    def of(sweep: str, case: str, value: float) -> list[Outcome]:
        return chosen(outcomes, sweep=sweep, case=case, value=value)

    def told(sweep: str, case: str) -> str:
        values = cases.get((sweep, case), {})
        return "; ".join(
            f"{_SWEEPS[sweep].written(value)}: "
            + (setting.ratio(star, of(sweep, case, value), times) if system else "refused")
            for value, system in values.items()
        )

    rows = [
        Row(
            f"{name}: over star",
            sweep.paper,
            told(name, _OURS),
            sweep.why,
            literal=told(name, ""),
            seeds=seeds,
        )
        for name, sweep in _SWEEPS.items()
    ]
    rows.append(
        Row(
            "if probes that are too large were not refused: nothing is measured",
            "collapse",
            "",
            "the plan stays that of equal rates, which awareness begins with",
            literal=setting.over(star, chosen(outcomes, system=UNMEASURED.name)),
            seeds=seeds,
        )
    )
    panels = {name: _lines(outcomes, star, name, _joint(lab, name), cases) for name in _JOINT}
    drawn = picture("CHUNK_SIZE, M", "speed-up over star", panels)
    return Result(tuple(rows), (setting.dynamics_note(lab),), drawn)


def _lines(
    outcomes: Sequence[Outcome],
    star: Sequence[Outcome],
    sweep: str,
    chunks: Mapping[str, _Systems],
    cases: Mapping[tuple[str, str], _Systems],
) -> dict[str, list[tuple[float, float]]]:
    """Return the speed-up over the star at each CHUNK_SIZE, a line for each value of a setting."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for case in chunks:
        for value, system in cases[sweep, case].items():
            if system is not None:
                runs = chosen(outcomes, sweep=sweep, case=case, value=value)
                point = system.chunk_elements / _M, round(seconds(star) / seconds(runs), 4)
                lines.setdefault(f"{sweep} {_SWEEPS[sweep].written(value)}", []).append(point)
    return lines


EXPERIMENTS = (
    Experiment(
        "netstorm/fig20",
        "CHUNK_SIZE, UPDATE_TIME, PROBE_CHUNK_SIZE and PROBE_CHUNK_NUM, alone and beside "
        "CHUNK_SIZE",
        _make,
    ),
)
