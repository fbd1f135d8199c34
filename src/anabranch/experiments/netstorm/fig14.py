"""NetStorm, Fig. 14: trees with one root, and what they owe to chunks and to symmetric links."""

from __future__ import annotations

from dataclasses import replace

from anabranch.experiments._experiment import Experiment
from anabranch.experiments._lab import Lab, Outcome, Trial, seconds
from anabranch.experiments._result import Result, Row
from anabranch.experiments.netstorm import _setting as setting
from anabranch.experiments.netstorm._setting import (
    CHUNK_ELEMENTS,
    MLNET,
    MXNET,
    TSENGINE,
    System,
    following,
    gain,
    times,
)
from anabranch.overlay import Overlay
from anabranch.plan import Fapt
from anabranch.run.scenario import Stop
from anabranch.scheduler.awareness import Oracle
from anabranch.site.dataplane import MOST_CHUNK_ELEMENTS

_FAPT = System("FAPT", Fapt(roots=1))
_TREES = (MXNET, MLNET, TSENGINE, _FAPT)
_ADAPTIVE = (following(TSENGINE), following(_FAPT))
_ORACLE = replace(_FAPT, name="FAPT, oracle", awareness=Oracle(least_gain=0.0))


def symmetric(overlay: Overlay) -> Overlay:
    """Return the overlay with the same rate both ways on every link: the mean of the two."""

    def rate_bps(source: int, target: int) -> float:
        link = overlay.link(source, target)
        assert link is not None  # every link of the paper's network goes both ways
        return link.rate_bps

    return replace(
        overlay,
        name=f"{overlay.name}-symmetric",
        links=tuple(
            replace(
                link,
                rate_bps=(link.rate_bps + rate_bps(link.target, link.source)) / 2,
            )
            for link in overlay.links
        ),
    )


def _cases(lab: Lab) -> dict[str, list[Trial]]:
    """Return the four trees on static networks, by what is other than in the first case."""

    def trials(case: str, overlay: Overlay, elements: int) -> list[Trial]:
        about = {"network": "static", "case": case}
        stop = Stop(rounds=3)
        trees = [setting.in_chunks_of(tree, elements) for tree in _TREES]
        return [setting.trial(lab, tree, overlay, stop, about) for tree in trees]

    reference = setting.reference()
    found = {"static": trials("static", reference, CHUNK_ELEMENTS)}
    if not lab.emulate:
        for case, overlay, elements in (
            ("static, symmetric links", symmetric(reference), CHUNK_ELEMENTS),
            ("static, the whole model one chunk", reference, MOST_CHUNK_ELEMENTS),
            ("static, both", symmetric(reference), MOST_CHUNK_ELEMENTS),
            ("static, chunks of 1 MB", reference, 1 << 18),
        ):
            found[case] = trials(case, overlay, elements)
    return found


def _make(lab: Lab) -> Result:
    cases = _cases(lab)
    changing = (*_TREES, *_ADAPTIVE) if lab.emulate else (*_TREES, *_ADAPTIVE, _ORACLE)
    outcomes = lab.measure(
        [trial for trials in cases.values() for trial in trials]
        + setting.dynamic_trials(lab, changing)
    )
    rows = [row for case in cases for row in _static(outcomes, case)]
    rows += _dynamic(outcomes, changing)
    return Result(tuple(rows), tuple(outcomes), (setting.dynamics_note(lab),))


def _static(outcomes: list[Outcome], case: str) -> list[Row]:
    took_s = {tree.name: seconds(outcomes, case=case, system=tree.name) for tree in _TREES}
    star_s, fapt_s = took_s[MXNET.name], took_s[_FAPT.name]
    first = case == "static"
    rows = [
        Row(f"{case}: {name} over star", "", f"{times(star_s / round_s)} ({round_s:.1f} s)")
        for name, round_s in took_s.items()
        if name not in (MXNET.name, _FAPT.name)
    ]
    return [
        *rows,
        Row(
            f"{case}: FAPT over star",
            "6.7x",
            f"{times(star_s / fapt_s)} ({fapt_s:.1f} s)",
            "our star is better than theirs: see fig13" if first else "",
        ),
        Row(
            f"{case}: FAPT over balanced tree",
            "+210 %",
            gain(took_s[MLNET.name] / fapt_s),
            "ours moves chunk by chunk, over links whose two directions differ: see below"
            if first
            else "",
        ),
        Row(
            f"{case}: FAPT over spanning tree",
            "better",
            gain(took_s[TSENGINE.name] / fapt_s),
            "with chunks the slowest link counts, which a spanning tree spares; FAPT adds delays "
            "up, as if the model travelled whole"
            if first
            else "",
        ),
    ]


def _dynamic(outcomes: list[Outcome], systems: tuple[System, ...]) -> list[Row]:
    took_s = {each.name: seconds(outcomes, network="dynamic", system=each.name) for each in systems}
    star_s, adaptive_s = took_s[MXNET.name], took_s[following(_FAPT).name]
    rows = [
        Row(f"dynamic: {name} over star", "", f"{times(star_s / round_s)} ({round_s:.1f} s)")
        for name, round_s in took_s.items()
        if name != MXNET.name
    ]
    return [
        *rows,
        Row(
            "dynamic: adaptive FAPT over static balanced tree",
            "+70 %",
            gain(took_s[MLNET.name] / adaptive_s),
        ),
        Row("dynamic: adaptive FAPT over static FAPT", "", gain(took_s[_FAPT.name] / adaptive_s)),
    ]


EXPERIMENT = Experiment(
    "netstorm/fig14",
    "trees with one root: star, balanced, spanning, FAPT, static and dynamic",
    _make,
    emulable=True,
)
