"""NetStorm, Fig. 20: how much four settings matter, one at a time and beside CHUNK_SIZE."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import msgspec

from anabranch.scheduler.awareness import Passive
from papers._experiment import Experiment
from papers._lab import Lab, Outcome, Trial
from papers._result import Result, Row
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
_Sweep = Callable[[System], Mapping[str, System | None]]
"""Returns a variant of a system for each value; None where the scenario is refused."""

_CHUNK_ELEMENTS = (_M // 4, _M // 2, _M, 2 * _M, 4 * _M, 8 * _M, 16 * _M)
_UPDATE_TIMES_S = (1.0, 5.0, 20.0, 60.0, 180.0)
_PROBE_ELEMENTS = (_M // 100, _M // 10, _M // 2, _M, 2 * _M, 4 * _M)
_PROBE_CHUNKS = (1, 4, 16, 32, 64)
_REFUSED = "refused"


def _chunk_sizes(system: System) -> Mapping[str, System | None]:
    return {
        f"{elements / _M:g} M": setting.in_chunks_of(system, elements)
        for elements in _CHUNK_ELEMENTS
    }


def _of_awareness(field: str, values: Mapping[str, float]) -> _Sweep:
    """Return a sweep over one field of the awareness; `values` are by their text in rows."""

    def systems(system: System) -> Mapping[str, System | None]:
        assert isinstance(system.awareness, Passive)
        found = {
            written: msgspec.structs.replace(system.awareness, **{field: value})
            for written, value in values.items()
        }
        return {
            written: replace(system, awareness=each) if _measures(each, system) else None
            for written, each in found.items()
        }

    return systems


def _measures(awareness: Passive, system: System) -> bool:
    """Return whether chunks are large enough to be measured; else the scenario is refused."""
    return (awareness.probe_chunk_elements or 0) <= system.chunk_elements


_UPDATE_TIME = _of_awareness("update_time_s", {f"{each:g} s": each for each in _UPDATE_TIMES_S})
_PROBE_SIZE = _of_awareness(
    "probe_chunk_elements", {f"{each / _M:g} M": each for each in _PROBE_ELEMENTS}
)
_PROBE_NUM = _of_awareness("probe_chunks", {f"{each}": each for each in _PROBE_CHUNKS})
_NO_CHUNK_IS_AS_LARGE = (
    "ours are cut evenly, most a little below CHUNK_SIZE: from there on next to nothing is "
    "measured, and beyond it a scenario is refused"
)
_SWEEPS: Mapping[str, tuple[_Sweep, str, str]] = {
    "CHUNK_SIZE": (
        _chunk_sizes,
        "best 0.5 .. 1 M, far worse above",
        "more chunks, finer shares and shorter waits at each hop, until the network is full",
    ),
    "UPDATE_TIME": (
        _UPDATE_TIME,
        "best 5 s",
        "a look takes no time here, and news of a plan none to travel",
    ),
    "PROBE_CHUNK_SIZE": (_PROBE_SIZE, "0.01 .. 4 M, then collapse", _NO_CHUNK_IS_AS_LARGE),
    "PROBE_CHUNK_NUM": (_PROBE_NUM, "4 .. 32", ""),
}
_JOINT = ("UPDATE_TIME", "PROBE_CHUNK_SIZE", "PROBE_CHUNK_NUM")  # each beside CHUNK_SIZE


def _cases(lab: Lab) -> dict[str, Mapping[str, System | None]]:
    """Return the sweeps by their names in rows; each has a system for each value."""
    found: dict[str, Mapping[str, System | None]] = {}
    for sweep, (systems, _, _) in _SWEEPS.items():
        found[sweep] = systems(PRO)
        if not lab.quick and not sweep.startswith("PROBE"):  # ours has no probes
            found[f"{sweep}, ours"] = systems(OUR_PRO)
    for sweep in _JOINT:
        systems = _SWEEPS[sweep][0]
        for elements in _CHUNK_ELEMENTS[1:-1:2] if lab.quick else _CHUNK_ELEMENTS[:-1]:
            # All else is as in Table II. Probes scale with the chunks, unless they are swept.
            chunked = replace(PRO, chunk_elements=elements)
            if sweep != "PROBE_CHUNK_SIZE":
                chunked = setting.in_chunks_of(PRO, elements)
            found[f"{sweep}, CHUNK_SIZE {elements / _M:g} M"] = systems(chunked)
    if lab.quick:
        found = {case: dict(list(swept.items())[::2]) for case, swept in found.items()}
    return found


def _make(lab: Lab) -> Result:
    cases = _cases(lab)
    trials = setting.dynamic_trials(lab, (MXNET, UNMEASURED))
    for case, swept in cases.items():
        for value, system in swept.items():
            if system is not None:
                trials += _trials(lab, system, case, value)
    outcomes = lab.measure(trials)
    star = setting.chosen(outcomes, system=MXNET.name)
    rows = [
        Row(case, paper, _curve(outcomes, star, case, swept), why)
        for case, swept in cases.items()
        for _, paper, why in (_SWEEPS[case.partition(",")[0]],)
    ]
    rows.append(
        Row(
            "what a refused one would come to: nothing is measured",
            "collapse",
            setting.over(star, setting.chosen(outcomes, system=UNMEASURED.name)),
            "the plan stays that of equal rates, which awareness begins with",
        )
    )
    return Result(tuple(rows), (setting.dynamics_note(lab),))


def _trials(lab: Lab, system: System, case: str, value: str) -> list[Trial]:
    return setting.dynamic_trials(lab, (system,), case=case, value=value)


def _curve(
    outcomes: Sequence[Outcome], star: Sequence[Outcome], case: str, values: Mapping[str, object]
) -> str:
    """Return the speed-up over the star at each value of a sweep."""

    def at(value: str) -> str:
        found = setting.chosen(outcomes, case=case, value=value)
        return setting.ratio(star, found, times) if found else _REFUSED

    return "; ".join(f"{value}: {at(value)}" for value in values)


EXPERIMENT = Experiment(
    "netstorm/fig20",
    "CHUNK_SIZE, UPDATE_TIME, PROBE_CHUNK_SIZE and PROBE_CHUNK_NUM, alone and beside CHUNK_SIZE",
    _make,
)
