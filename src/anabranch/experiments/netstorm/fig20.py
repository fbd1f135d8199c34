"""NetStorm, Fig. 20: how much four settings matter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec

from anabranch.experiments._experiment import Experiment
from anabranch.experiments._lab import Lab, Outcome, Trial, seconds
from anabranch.experiments._result import Result, Row
from anabranch.experiments.netstorm import _setting as setting
from anabranch.experiments.netstorm._setting import (
    MXNET,
    OUR_PRO,
    PAPERS_AWARENESS,
    PRO,
    System,
    times,
)
from anabranch.scheduler.awareness import Passive

_Sweep = Callable[[System, Passive], Mapping[str, System]]

_M = 1_000_000
_CHUNK_ELEMENTS = (_M // 4, _M // 2, _M, 2 * _M, 4 * _M, 8 * _M, 16 * _M)
_UPDATE_TIMES_S = (1.0, 5.0, 20.0, 60.0, 180.0)
_PROBE_ELEMENTS = (_M // 100, _M // 10, _M // 2, _M)
_PROBE_CHUNKS = (1, 4, 16, 32, 64)


def _estimators(lab: Lab, sweep: str) -> Mapping[str, tuple[System, Passive]]:
    """Return those to try: ours takes every chunk, and as many as it needs."""
    found = {"paper's estimator": (PRO, PAPERS_AWARENESS)}
    if not lab.quick and not sweep.startswith("PROBE"):
        found["ours"] = OUR_PRO, Passive()
    return found


def _chunk_sizes(system: System, awareness: Passive) -> Mapping[str, System]:
    return {
        f"{elements / _M:g} M": setting.in_chunks_of(system, elements)
        for elements in _CHUNK_ELEMENTS
    }


def _of_awareness(field: str, values: Mapping[str, float]) -> _Sweep:
    """Return what varies one field of the awareness, with how each value is written."""

    def systems(system: System, awareness: Passive) -> Mapping[str, System]:
        return {
            written: replace(system, awareness=msgspec.structs.replace(awareness, **{field: value}))
            for written, value in values.items()
        }

    return systems


_SWEEPS = {
    "CHUNK_SIZE": (
        _chunk_sizes,
        "best 0.5 .. 1 M, far worse above",
        "more chunks, finer shares and shorter waits at each hop, until the network is full",
    ),
    "UPDATE_TIME": (
        _of_awareness("update_time_s", {f"{time_s:g} s": time_s for time_s in _UPDATE_TIMES_S}),
        "best 5 s",
        "a new plan costs next to nothing: rounds do not wait for it, and the same one is not sent "
        "again",
    ),
    "PROBE_CHUNK_SIZE": (
        _of_awareness(
            "probe_chunk_elements",
            {f"{elements / _M:g} M": elements for elements in _PROBE_ELEMENTS},
        ),
        "0.01 .. 4 M, then collapse",
        "nearly all our chunks have CHUNK_SIZE elements, so above it nothing would be measured: a "
        "scenario that asks for that is refused",
    ),
    "PROBE_CHUNK_NUM": (
        _of_awareness("probe_chunks", {f"{chunks}": chunks for chunks in _PROBE_CHUNKS}),
        "4 .. 32",
        "",
    ),
}


def _make(lab: Lab) -> Result:
    trials = setting.dynamic_trials(lab, (MXNET,))
    for sweep, (systems, _, _) in _SWEEPS.items():
        for estimator, (system, awareness) in _estimators(lab, sweep).items():
            found = systems(system, awareness)
            wanted = list(found)[::2] if lab.quick else list(found)
            for value in wanted:
                trials += _trials(lab, found[value], sweep, estimator, value)
    outcomes = lab.measure(trials)
    star_s = seconds(outcomes, system=MXNET.name)
    rows = [
        Row(
            f"{sweep}, {estimator}",
            paper,
            _curve(outcomes, star_s, sweep=sweep, estimator=estimator),
            why,
        )
        for sweep, (_, paper, why) in _SWEEPS.items()
        for estimator in _estimators(lab, sweep)
    ]
    return Result(tuple(rows), tuple(outcomes), (setting.dynamics_note(lab),))


def _trials(lab: Lab, system: System, sweep: str, estimator: str, value: str) -> list[Trial]:
    return setting.dynamic_trials(lab, (system,), sweep=sweep, estimator=estimator, value=value)


def _curve(outcomes: list[Outcome], star_s: float, **labels: str) -> str:
    """Return the speed-up over the star at each value of a sweep."""
    values = dict.fromkeys(
        str(each.labels["value"])
        for each in outcomes
        if all(each.labels.get(key) == wanted for key, wanted in labels.items())
    )
    return "; ".join(
        f"{value}: {times(star_s / seconds(outcomes, value=value, **labels))}" for value in values
    )


EXPERIMENT = Experiment(
    "netstorm/fig20", "CHUNK_SIZE, UPDATE_TIME, PROBE_CHUNK_SIZE and PROBE_CHUNK_NUM", _make
)
