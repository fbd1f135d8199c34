"""NetStorm, Fig. 1f: the delay of a star, a balanced tree, a spanning tree and FAPT.

The paper only draws the figure's overlay of 14 sites. The text gives the delays of one of its four
trees, the balanced one. This script adds these up again by eq. 2. It compares the four trees on
random overlays of 14 sites in two ways. By eq. 2, no chunk waits for another on a link. In
simulation the model is one chunk, as in eq. 2, and results come down too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from statistics import median

from anabranch.overlay import Link, Overlay, Site, random_sparse
from anabranch.plan import NO_PARENT, Fapt, Plan, Tree, up_delays_s_per_bit
from anabranch_lab.run.scenario import Stop
from papers._experiment import Experiment
from papers._lab import Lab
from papers._result import Result, Row
from papers._trial import chosen
from papers.netstorm import _setting as setting
from papers.netstorm._setting import MLNET, MXNET, TSENGINE, System, times

_SITES = 14
_LITERAL = System("FAPT, leaf to root", Fapt(roots=1, quality="leaf-to-root"))
_OURS = System("FAPT, both ways", Fapt(roots=1))
_RANKS = ("best", "median", "worst")
_OTHERS = (MXNET, MLNET, TSENGINE)
# Fig. 1c by the text of III-A: the senders to each site, and units of time for a unit of data. For
# a subtree the text gives only the delay; here all links into its first site have that delay.
_INTO_ROOT = {2: 24, 3: 15, 4: 18, 5: 50}
_SUBTREES = {2: ({6, 7, 8}, 24), 3: ({9, 14}, 20), 4: ({10, 11, 13}, 23), 5: ({12}, 7)}


def printed_delays() -> dict[int, float]:
    """Return the delays of Fig. 1c's balanced tree and its subtrees by eq. 2, by their first site.

    >>> printed_delays()[1]
    57.0
    """
    parents = [NO_PARENT] * _SITES
    delays = {(site, 1): delay for site, delay in _INTO_ROOT.items()}
    for site, (below, delay) in _SUBTREES.items():
        delays |= {(other, site): delay for other in below}
    links = []
    for (site, parent), delay in delays.items():
        parents[site - 1] = parent - 1
        child, above = site - 1, parent - 1
        links += [Link(child, above, 1 / delay), Link(above, child, 1 / delay)]
    sites = tuple(Site(f"v{number + 1}") for number in range(_SITES))
    tree = Tree(0, 1.0, tuple(parents), tuple(parents))
    found = up_delays_s_per_bit(Plan(1, (tree,)), tree, Overlay("fig-1c", sites, tuple(links)))
    return {site: round(found[site - 1], 9) for site in (1, *_SUBTREES)}


@lru_cache
def _networks(first: int, count: int) -> list[Overlay]:
    drawn = ((seed, random_sparse(_SITES, seed)) for seed in range(first, first + count))
    return [replace(overlay, name=f"{overlay.name}-{seed}") for seed, overlay in drawn]


def _delay(system: System, overlay: Overlay) -> float:
    """Return the delay of a system's tree by eq. 2, s/bit."""
    plan = system.route.plan(overlay)
    (tree,) = plan.trees
    return up_delays_s_per_bit(plan, tree, overlay)[tree.root]


def _ranks(system: System, overlay: Overlay) -> Mapping[str, float]:
    """Return the least, median and largest delay over all roots, by eq. 2, s/bit."""
    found = [_delay(setting.rooted(system, site.name), overlay) for site in overlay.sites]
    return dict(zip(_RANKS, (min(found), median(found), max(found)), strict=True))


def _spread(ratios: Sequence[float]) -> str:
    return f"{times(median(ratios))}, {times(min(ratios))} to {times(max(ratios))}"


def _by_equation(networks: Sequence[Overlay], seeds: str) -> list[Row]:
    systems = (*_OTHERS, _OURS)
    ranks = {system.name: [_ranks(system, each) for each in networks] for system in systems}

    def over_fapt(name: str, rank: str) -> str:
        pairs = zip(ranks[name], ranks[_OURS.name], strict=True)
        return _spread([other[rank] / fapt[rank] for other, fapt in pairs])

    best = [each["best"] for each in ranks[_OURS.name]]

    def over_best(system: System) -> str:
        delays = [_delay(system, each) for each in networks]
        return _spread([delay / least for delay, least in zip(delays, best, strict=True)])

    return [
        *(
            Row(
                f"eq. 2: delay of the {system.name} over FAPT's, by the root of each",
                "drawn only",
                "; ".join(f"{rank} {over_fapt(system.name, rank)}" for rank in _RANKS),
                "a star sends along fastest paths too, and eq. 2 has no chunk wait for another's"
                if system is MXNET
                else "",
                seeds=seeds,
            )
            for system in _OTHERS
        ),
        Row(
            "eq. 2: FAPT at the root that a reading chooses, over its best root",
            "",
            over_best(_OURS),
            "literal: leaf to root, which is eq. 2; ours: up and down, which a round needs",
            literal=over_best(_LITERAL),
            seeds=seeds,
        ),
    ]


def _make(lab: Lab) -> Result:
    delays = printed_delays()
    networks = _networks(lab.seed, 3 if lab.quick else 20)
    seeds = f"{len(networks)} drawn overlays"
    rows = [
        Row(
            "eq. 2, the balanced tree of Fig. 1c: subtrees v2, v3, v4, v5, and all",
            "24, 20, 23, 7, and 57",
            f"{setting.listed(f'{delays[site]:g}' for site in _SUBTREES)}, and {delays[1]:g}",
            "the text gives no more of the figure's links",
        ),
        *_by_equation(networks, seeds),
    ]
    outcomes = lab.measure(
        [
            setting.trial(
                lab,
                replace(setting.whole(system), name=system.name),
                overlay,
                Stop(rounds=3),
                {"network": "static", "draw": number},
            )
            for number, overlay in enumerate(networks)
            for system in (*_OTHERS, _LITERAL, _OURS)
        ]
    )

    def over(slow: System, fast: System) -> str:
        slow_runs = chosen(outcomes, system=slow.name)
        return setting.ratio(slow_runs, chosen(outcomes, system=fast.name), times)

    rows += [
        Row(
            f"a round, up and down, the model one chunk: FAPT over the {system.name}",
            "drawn only",
            over(system, _OURS),
            "each at the root it chooses",
            literal=over(system, _LITERAL),
            seeds=seeds,
        )
        for system in _OTHERS
    ]
    rows.append(
        Row(
            "the same: FAPT up and down over leaf to root",
            "",
            over(_LITERAL, _OURS),
            "the two readings of w(T)",
            seeds=seeds,
        )
    )
    return Result(tuple(rows))


EXPERIMENTS = (
    Experiment(
        "netstorm/fig01", "the delay of a star, a balanced tree, a spanning tree and FAPT", _make
    ),
)
