"""NetStorm, Fig. 14: trees with one root, each at every root; chunks, and symmetric links.

The paper does not say which site is the root. A balanced tree ignores the links' rates, so its root
matters most. See the rows with FAPT at the root that Algorithm 1 chooses, and the other tree at any
root.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from anabranch.overlay import Overlay, Trace
from anabranch.plan import Fapt
from anabranch.scheduler.awareness import Oracle
from anabranch.site.neighbourhood import MOST_CHUNK_ELEMENTS
from anabranch_lab.run.scenario import Stop
from papers._experiment import Experiment
from papers._lab import Lab, Outcome, Trial, seconds
from papers._result import Result, Row
from papers.netstorm import _setting as setting
from papers.netstorm._setting import (
    CHUNK_ELEMENTS,
    MLNET,
    MXNET,
    STD_GATED,
    TSENGINE,
    System,
    following,
    gain,
    times,
)

_FAPT = System("FAPT", Fapt(roots=1))
_TREES = (MXNET, MLNET, TSENGINE, _FAPT)
_ADAPTIVE = following(_FAPT)
_OTHERS_ADAPTIVE = (
    following(_FAPT, STD_GATED),
    following(TSENGINE),
    following(TSENGINE, STD_GATED),
)
_ORACLE = replace(_FAPT, name="FAPT, oracle", awareness=Oracle(least_gain=0.0))
_CHOSEN = "chosen"


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


def drawn_once(overlay: Overlay) -> Overlay:
    """Return a changing overlay in which both directions of a link have the rates of one.

    So links are as uneven as before; means of two draws would be less uneven.
    """
    traces: dict[frozenset[int], Trace] = {}
    links = []
    for link in overlay.links:
        assert link.trace is not None  # all links of a dynamic network change
        trace = traces.setdefault(frozenset((link.source, link.target)), link.trace)
        links.append(replace(link, rate_bps=trace.rates_bps[0], trace=trace))
    return replace(overlay, name=f"{overlay.name}-symmetric", links=tuple(links))


def _roots(lab: Lab) -> tuple[str, ...]:
    """Return the roots at which one-root systems are tried, beside the root that each chooses."""
    return () if lab.emulate else setting.roots(lab)


def _at_roots(lab: Lab, systems: Iterable[System]) -> list[tuple[str, System]]:
    """Return systems at each root, and at the root that they choose, each with its root."""
    return [
        (root, system if root == _CHOSEN else setting.rooted(system, root))
        for system in systems
        for root in (_CHOSEN, *_roots(lab))
    ]


def _static_cases(lab: Lab) -> dict[str, list[Trial]]:
    """Return the four trees on static networks, by case; later cases vary the first one."""

    def trials(case: str, overlay: Overlay, elements: int) -> list[Trial]:
        trees = [setting.in_chunks_of(tree, elements) for tree in _TREES]
        return [
            setting.trial(lab, tree, overlay, Stop(rounds=3), {"case": case, "root": root})
            for root, tree in _at_roots(lab, trees)
        ]

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


def _dynamic_cases(lab: Lab) -> dict[str, list[Trial]]:
    """Return the trees on dynamic networks, the adaptive ones too."""
    systems = _at_roots(lab, (*_TREES, _ADAPTIVE, *_OTHERS_ADAPTIVE))
    if lab.emulate:
        return {"dynamic": _dynamic_trials(lab, "dynamic", systems)}
    case = "dynamic, symmetric links"
    alike = _dynamic_trials(lab, case, _at_roots(lab, (*_TREES, _ADAPTIVE)))
    return {
        "dynamic": _dynamic_trials(lab, "dynamic", [*systems, (_CHOSEN, _ORACLE)]),
        case: [replace(each, overlay=drawn_once(each.overlay)) for each in alike],
    }


def _dynamic_trials(lab: Lab, case: str, systems: Iterable[tuple[str, System]]) -> list[Trial]:
    return [
        trial
        for root, system in systems
        for trial in setting.dynamic_trials(lab, (system,), case=case, root=root)
    ]


def _make(lab: Lab) -> Result:
    static, dynamic = _static_cases(lab), _dynamic_cases(lab)
    outcomes = lab.measure(
        [trial for trials in (*static.values(), *dynamic.values()) for trial in trials]
    )
    rows = []
    for case in (*static, *dynamic):
        found = setting.chosen(outcomes, case=case)
        rows += _trees(found, case, bool(_roots(lab)))
        if case in dynamic:
            rows += _adaptive(found, case, bool(_roots(lab)))
    return Result(tuple(rows), (setting.dynamics_note(lab),))


def _of(found: list[Outcome], system: System) -> list[Outcome]:
    """Return the runs of a system at the root that it chooses."""
    return setting.chosen(found, system=system.name, root=_CHOSEN)


def _by_root(found: list[Outcome], system: System) -> dict[str, list[Outcome]]:
    """Return the runs of a system at its best, median and worst root."""
    runs = setting.chosen(found, system=system.name)
    return setting.ranked([each for each in runs if each.labels["root"] != _CHOSEN])


def _trees(found: list[Outcome], case: str, by_root: bool) -> list[Row]:
    papers = dict.fromkeys((MXNET.name, MLNET.name, TSENGINE.name), "")
    if case.startswith("static"):
        papers = {MXNET.name: "6.7x", MLNET.name: "+210 %", TSENGINE.name: "better"}
    star, fapt = _of(found, MXNET), _of(found, _FAPT)
    rows = [
        Row(f"{case}: {tree.name} over star", papers[MXNET.name] if tree is _FAPT else "", over)
        for tree in _TREES[1:]
        for over in (setting.over(star, _of(found, tree)),)
    ]
    for tree in _TREES[:-1]:
        write = times if tree is MXNET else gain
        if tree is not MXNET:
            rows.append(
                Row(
                    f"{case}: FAPT over {tree.name}",
                    papers[tree.name],
                    setting.ratio(_of(found, tree), fapt, write),
                    "each at the root it chooses",
                )
            )
        if not by_root:
            continue
        others, fapts = _by_root(found, tree), _by_root(found, _FAPT)
        rows += [
            Row(
                f"{case}: FAPT over {tree.name}, by the other's root",
                papers[tree.name],
                setting.by_rank(others, dict.fromkeys(others, fapt), write),
                "FAPT at the root that Algorithm 1 chooses",
            ),
            Row(
                f"{case}: FAPT over {tree.name}, by the root of each",
                papers[tree.name],
                setting.by_rank(others, fapts, write),
            ),
        ]
    if by_root:
        rows += [_seconds_by_root(found, case, tree) for tree in _TREES]
    return rows


def _seconds_by_root(found: list[Outcome], case: str, system: System) -> Row:
    ranks = _by_root(found, system)
    return Row(
        f"{case}: {system.name}, seconds a round by its root",
        "",
        "; ".join(f"{rank} {seconds(runs):.1f} s" for rank, runs in ranks.items()),
    )


def _adaptive(found: list[Outcome], case: str, by_root: bool) -> list[Row]:
    systems = [
        each
        for each in (_ADAPTIVE, *_OTHERS_ADAPTIVE, _ORACLE)
        if setting.chosen(found, system=each.name)
    ]
    star, balanced, still = (_of(found, each) for each in (MXNET, MLNET, _FAPT))
    adaptive = _of(found, _ADAPTIVE)
    rows = [
        *(
            Row(f"{case}: {each.name} over star", "", setting.over(star, _of(found, each)))
            for each in systems
        ),
        Row(
            f"{case}: adaptive FAPT over static balanced tree",
            "+70 %",
            setting.ratio(balanced, adaptive, gain),
            "each at the root it chooses, at first",
        ),
        Row(f"{case}: adaptive FAPT over static FAPT", "", setting.ratio(still, adaptive, gain)),
    ]
    if by_root:
        others = _by_root(found, MLNET)
        rows.append(
            Row(
                f"{case}: adaptive FAPT over static balanced tree, by the other's root",
                "+70 %",
                setting.by_rank(others, dict.fromkeys(others, adaptive), gain),
            )
        )
        rows += [_seconds_by_root(found, case, each) for each in systems if each is not _ORACLE]
    return rows


EXPERIMENT = Experiment(
    "netstorm/fig14",
    "trees with one root, each at every root: star, balanced, spanning, FAPT, static and dynamic",
    _make,
    emulable=True,
)
