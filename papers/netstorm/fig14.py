"""NetStorm, Fig. 14: trees with one root, each at every root; whole models, and symmetric links.

The paper does not say which site is the root. A balanced tree ignores the links' rates, so its root
matters most. FAPT's root is the one of highest quality, by either reading of the paper's delay w(T)
(:mod:`anabranch.plan._fapt`). All static runs are made at each root; a reading only chooses one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache

from anabranch.overlay import Overlay, Trace
from anabranch.plan import Fapt
from anabranch.scheduler.awareness import Oracle
from anabranch_lab.run.scenario import Stop
from papers._experiment import Experiment
from papers._lab import Lab
from papers._result import Result, Row
from papers._trial import Outcome, Trial, chosen, seconds
from papers.netstorm import _setting as setting
from papers.netstorm._setting import (
    MLNET,
    MXNET,
    STD_GATED,
    TSENGINE,
    System,
    following,
    gain,
    times,
)

_FAPT = System("FAPT", Fapt(roots=1), cuts_tensors=True)
_LITERAL = replace(_FAPT, name="FAPT, leaf to root", route=Fapt(roots=1, quality="leaf-to-root"))
_READINGS = {"literal": _LITERAL, "ours": _FAPT}
_OTHERS = (MXNET, MLNET, TSENGINE)
_TREES = (*_OTHERS, _FAPT)
_ADAPTIVE = following(_FAPT)
_ADAPTIVE_TOO = (following(_FAPT, STD_GATED), following(TSENGINE), following(TSENGINE, STD_GATED))
_ORACLE = replace(_FAPT, name="FAPT, oracle", awareness=Oracle(least_gain=0.0))
_CHOSEN = "chosen"
_AUTHORS = "static, the rates in the authors' scripts"
_PAPER = {MXNET.name: "up to 6.7x", MLNET.name: "+210 %", TSENGINE.name: "better"}
_WHY = {
    MXNET.name: "not known; a worse hub makes some of it",
    MLNET.name: "the paper does not say which site is its root",
    TSENGINE.name: "eq. 2 has no chunks that follow one another: see the whole model one chunk",
}


@lru_cache(maxsize=64)
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


@lru_cache(maxsize=64)
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


def _case(
    lab: Lab, case: str, change: Callable[[Overlay], Overlay], systems: Iterable[System]
) -> list[Trial]:
    """Return static trees at each root; emulated, at the root that each chooses."""
    return [
        setting.trial(
            lab,
            system if root == _CHOSEN else setting.rooted(system, root),
            change(overlay),
            Stop(rounds=3),
            {"case": case, "network": "static", "root": root, "draw": draw},
        )
        for system in systems
        for draw, overlay in setting.static_networks(lab).items()
        for root in _static_roots(lab, system, change(overlay))
    ]


def _static_roots(lab: Lab, system: System, overlay: Overlay) -> tuple[str, ...]:
    """Return the roots at which a system is tried, those that the readings choose among them."""
    if lab.emulate:
        return (_CHOSEN,)
    chosen = _READINGS.values() if system.name == _FAPT.name else ()
    both = (*setting.roots(lab), *(_root(each, overlay) for each in chosen))
    return tuple(dict.fromkeys(both))


def _root(system: System, overlay: Overlay) -> str:
    """Return the root of a system's one tree."""
    (tree,) = system.route.plan(overlay).trees
    return overlay.sites[tree.root].name


def _static_cases(lab: Lab) -> dict[str, list[Trial]]:
    """Return the four trees on static networks, by case; later cases vary the first one."""
    if lab.emulate:
        return {"static": _case(lab, "static", _unchanged, (*_TREES, _LITERAL))}
    whole = [replace(setting.whole(tree), name=tree.name) for tree in _TREES]
    return {
        case: _case(lab, case, change, trees)
        for case, change, trees in (
            ("static", _unchanged, _TREES),
            ("static, symmetric links", symmetric, _TREES),
            ("static, the whole model one chunk", _unchanged, whole),
        )
    }


def _unchanged(overlay: Overlay) -> Overlay:
    return overlay


def _authors_draw(lab: Lab) -> list[Trial]:
    """Return the trees at the roots they choose, on the one draw in the authors' scripts."""
    return [
        setting.trial(
            lab,
            system,
            setting.reference(),
            Stop(rounds=3),
            {"case": _AUTHORS, "network": "one", "root": _CHOSEN},
        )
        for system in (*_TREES, _LITERAL)
    ]


def _dynamic_cases(lab: Lab) -> dict[str, list[Trial]]:
    """Return the trees on dynamic networks: four at each root, others at the root they choose."""
    chosen = (*_TREES, _LITERAL, _ADAPTIVE)
    others = (*_ADAPTIVE_TOO, *(() if lab.emulate else (_ORACLE,)))
    found = {"dynamic": _dynamic_trials(lab, "dynamic", _CHOSEN, (*chosen, *others))}
    for root in () if lab.emulate else setting.roots(lab):
        rooted = [setting.rooted(system, root) for system in _TREES]
        found["dynamic"] += _dynamic_trials(lab, "dynamic", root, rooted)
    if not lab.emulate:
        case = "dynamic, symmetric links"
        alike = _dynamic_trials(lab, case, _CHOSEN, chosen)
        found[case] = [replace(each, overlay=drawn_once(each.overlay)) for each in alike]
    return found


def _dynamic_trials(lab: Lab, case: str, root: str, systems: Iterable[System]) -> list[Trial]:
    return setting.dynamic_trials(lab, systems, case=case, root=root)


def _make(lab: Lab) -> Result:
    static, dynamic = _static_cases(lab), _dynamic_cases(lab)
    trials = [trial for cases in (static, dynamic) for each in cases.values() for trial in each]
    outcomes = lab.measure(trials + ([] if lab.emulate else _authors_draw(lab)))
    rows = []
    for case, of_case in static.items():
        found = chosen(outcomes, case=case)
        fapts = _readings(found, of_case)
        rows += _trees(found, case, fapts, setting.static_draws(lab))
        rows.append(_two_readings(case, fapts, setting.static_draws(lab)))
    if not lab.emulate:
        rows.append(_one_draw(chosen(outcomes, case=_AUTHORS)))
    for case in dynamic:
        found, seeds = chosen(outcomes, case=case), setting.drawn_networks(lab)
        fapts = {name: _of(found, each) for name, each in _READINGS.items()}
        rows += _trees(found, case, fapts, seeds)
        rows += _adaptive(found, case, seeds)
    return Result(tuple(rows), (setting.statics_note(lab), setting.dynamics_note(lab)))


def _readings(found: list[Outcome], trials: list[Trial]) -> dict[str, list[Outcome]]:
    """Return FAPT's static runs at the root that each reading of w(T) chooses."""
    if any(each.labels["root"] == _CHOSEN for each in found):
        return {name: chosen(found, system=each.name) for name, each in _READINGS.items()}
    overlays = {trial.labels["draw"]: trial.overlay for trial in trials}
    runs: dict[str, list[Outcome]] = {name: [] for name in _READINGS}
    for name, system in _READINGS.items():
        for draw, overlay in overlays.items():
            root = _root(system, overlay)
            runs[name] += chosen(found, system=_FAPT.name, root=root, draw=draw)
    return runs


def _of(found: list[Outcome], system: System) -> list[Outcome]:
    """Return the runs of a system at the root that it chooses."""
    return chosen(found, system=system.name, root=_CHOSEN)


def _by_root(found: list[Outcome], system: System) -> Mapping[str, list[Outcome]]:
    """Return a system's runs at its best, median and worst root, or at the one that it chooses."""
    runs = chosen(found, system=system.name)
    rooted = [each for each in runs if each.labels["root"] != _CHOSEN]
    return setting.ranked(rooted) if rooted else {"at the root it chooses": runs}


def _trees(
    found: list[Outcome], case: str, fapts: Mapping[str, list[Outcome]], seeds: str
) -> list[Row]:
    is_static, is_one_chunk = case.startswith("static"), case.endswith("one chunk")
    rows = []
    for tree in _OTHERS:
        write, slow = times if tree is MXNET else gain, _by_root(found, tree)
        literal, ours = (
            setting.by_rank(slow, dict.fromkeys(slow, runs), write) for runs in fapts.values()
        )
        paper = _PAPER[tree.name] if is_static else "better"
        is_as_the_papers = tree is TSENGINE and is_one_chunk
        rows.append(
            Row(
                f"{case}: FAPT over {tree.name}, by the {tree.name}'s root",
                paper,
                ours,
                "" if is_as_the_papers else _WHY[tree.name],
                literal=literal,
                seeds=seeds,
            )
        )
        fast = _by_root(found, _FAPT)
        if fast.keys() == slow.keys() and len(fast) > 1:
            rows.append(
                Row(
                    f"{case}: FAPT over {tree.name}, each at its best, median, worst root",
                    paper,
                    setting.by_rank(slow, fast, write),
                    "FAPT's own choice of a root is left out",
                    seeds=seeds,
                )
            )
    rows += [_over_star(found, case, tree, seeds) for tree in (MLNET, TSENGINE)]
    return [*rows, _seconds_by_root(found, case, _TREES, seeds)]


def _over_star(found: list[Outcome], case: str, tree: System, seeds: str) -> Row:
    slow, fast = _by_root(found, MXNET), _by_root(found, tree)
    told = setting.by_rank(slow, fast, times)
    if len(slow) > 1 and (star := _of(found, MXNET)):
        told += f"; at the roots they choose {setting.ratio(star, _of(found, tree), times)}"
    return Row(
        f"{case}: {tree.name} over star, each at its root",
        "faster",
        told,
        seeds=seeds,
    )


def _seconds_by_root(found: list[Outcome], case: str, systems: Iterable[System], seeds: str) -> Row:
    told = [
        f"{system.name} {', '.join(f'{seconds(runs):.1f}' for runs in ranks.values())}"
        for system in systems
        for ranks in (_by_root(found, system),)
    ]
    return Row(f"{case}: seconds a round, by root as above", "", "; ".join(told), seeds=seeds)


def _one_draw(found: list[Outcome]) -> Row:
    literal, ours = (
        "; ".join(
            f"{tree.name} {setting.ratio(_of(found, tree), _of(found, fapt), write)}"
            for tree in _OTHERS
            for write in (times if tree is MXNET else gain,)
        )
        for fapt in _READINGS.values()
    )
    return Row(
        f"{_AUTHORS}: FAPT over others, each at the root it chooses",
        "up to 6.7x; +210 %; better",
        ours,
        "one network, on which the two readings choose other roots",
        literal=literal,
        seeds="1 network",
    )


def _two_readings(case: str, fapts: Mapping[str, list[Outcome]], seeds: str) -> Row:
    literal, ours = fapts.values()
    roots = [[each.labels["root"] for each in runs] for runs in (literal, ours)]
    told = setting.ratio(literal, ours, gain)
    if _CHOSEN not in roots[0]:
        same = sum(one == other for one, other in zip(*roots, strict=True))
        told += f"; the same root in {same} of {len(roots[0])}"
    return Row(
        f"{case}: FAPT up and down over leaf to root",
        "",
        told,
        "the two readings of w(T); a difference inside the spread is none",
        seeds=seeds,
    )


def _adaptive(found: list[Outcome], case: str, seeds: str) -> list[Row]:
    star, balanced, still, adaptive = (
        _of(found, each) for each in (MXNET, MLNET, _FAPT, _ADAPTIVE)
    )
    others = _by_root(found, MLNET)
    told = [
        f"{each.name} {setting.ratio(star, runs, times)}"
        for each in (_ADAPTIVE, *_ADAPTIVE_TOO, _ORACLE)
        if (runs := _of(found, each))
    ]
    return [
        Row(
            f"{case}: adaptive FAPT over static balanced tree, by its root",
            "+70 %",
            setting.by_rank(others, dict.fromkeys(others, adaptive), gain),
            "FAPT at the root of equal rates, which both readings choose alike",
            seeds=seeds,
        )
        if len(others) > 1
        else Row(
            f"{case}: adaptive FAPT over static balanced tree",
            "+70 %",
            setting.ratio(balanced, adaptive, gain),
            "each at the root it chooses, at first",
            seeds=seeds,
        ),
        Row(
            f"{case}: adaptive FAPT over static FAPT",
            "",
            setting.ratio(still, adaptive, gain),
            seeds=seeds,
        ),
        Row(f"{case}: trees that follow the network, over star", "", "; ".join(told), seeds=seeds),
    ]


EXPERIMENTS = (
    Experiment(
        "netstorm/fig14",
        "trees with one root, at every root: star, balanced, spanning, FAPT, static and dynamic",
        _make,
        emulable=True,
    ),
)
