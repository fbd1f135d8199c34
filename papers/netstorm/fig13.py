"""NetStorm, Fig. 13: the whole system against MXNET, MLNET and TSEngine, each at every root.

The paper's figure is of training time with evaluation, which we leave out. The paper does not say
which site is the root of a baseline's tree, so this script tries all nine. Beside our star it also
makes worse stars, a step at a time. One sends the model up whole before it comes down. One has
connections that packet loss slows.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from statistics import median

from anabranch import plan as plans
from anabranch.overlay import Link, Overlay
from anabranch.site.neighbourhood import MOST_CHUNK_ELEMENTS
from anabranch_lab.run.scenario import Stop
from papers._experiment import Experiment
from papers._lab import Lab, Outcome, Trial, seconds
from papers._result import Result, Row
from papers.netstorm import _setting as setting
from papers.netstorm._setting import (
    LITE,
    MLNET,
    MXNET,
    OUR_PRO,
    OUR_PRO_256_KB,
    PACKED,
    PRO,
    PRO_DISJOINT,
    STD_GATED,
    TSENGINE,
    System,
    following,
    times,
)

_BASELINES = {"MXNET": MXNET, "MLNET": MLNET, "TSEngine": TSENGINE}
_SYSTEMS = (*_BASELINES.values(), PRO, PRO_DISJOINT, OUR_PRO, OUR_PRO_256_KB, PACKED)
_ADAPTIVE_TREE = following(TSENGINE, STD_GATED)
_WHOLE = replace(MXNET, name="star, whole model", chunk_elements=MOST_CHUNK_ELEMENTS)
_ROUNDS = Stop(rounds=3)  # the first has no round before it to overlap with
_PAPER = {"static": "9.2x", "dynamic": "6.5x"}

_SEGMENT_BYTES = 1448


def cubic_bps(rtt_s: float, loss: float) -> float:
    """Return the rate at which one connection under CUBIC settles, bit/s.

    Args:
        rtt_s: round-trip time, > 0.
        loss: share of packets lost, > 0.

    Source: RFC 9438, Fig. 3 and eq. 5: windows of CUBIC (C = 0.4, beta = 0.7) and of Reno,
    whichever is larger.

    >>> round(cubic_bps(0.06, 0.0002) / 1e6, 1)
    16.7
    """
    segments = max(1.054 * math.pow(rtt_s / loss, 0.75), math.sqrt(1.5 / loss))
    return 8 * _SEGMENT_BYTES * segments / rtt_s


def one_connection_each(overlay: Overlay) -> Overlay:
    """Return the overlay with links no faster than one connection over each gets.

    Args:
        overlay: with latencies and losses > 0.
    """
    return replace(
        overlay,
        name=f"{overlay.name}-cubic",
        links=tuple(
            replace(link, rate_bps=min(link.rate_bps, cubic_bps(2 * link.latency_s, link.loss)))
            for link in overlay.links
        ),
    )


def hub_and_spokes(overlay: Overlay, hub: int) -> Overlay:
    """Return the overlay of a star in which every site has one connection to the hub.

    A connection runs from end to end over the fastest path. Along the path latencies add up, and
    losses combine. Connections that share a link do not slow each other here, which flatters the
    star.
    """
    star = plans.star(overlay, hub=hub)
    links = []
    for site in range(overlay.size):
        for source, target in ((site, hub), (hub, site)) if site != hub else ():
            path = [overlay.link(*hop) for hop in pairwise(star.path(source, target))]
            hops = [link for link in path if link is not None]
            latency_s = sum(link.latency_s for link in hops)
            loss = 1 - math.prod(1 - link.loss for link in hops)
            rate_bps = min(*(link.rate_bps for link in hops), cubic_bps(2 * latency_s, loss))
            links.append(Link(source, target, rate_bps, latency_s, loss))
    return Overlay(f"hub-{overlay.sites[hub].name}-cubic", overlay.sites, tuple(links))


def _at_roots(lab: Lab) -> list[Trial]:
    """Return each baseline at each root, and worse static stars."""
    overlay = setting.reference()
    trials = []
    for root in setting.roots(lab):
        baselines = [setting.rooted(system, root) for system in _BASELINES.values()]
        trials += setting.dynamic_trials(lab, baselines, root=root)
        whole = setting.rooted(_WHOLE, root)
        trials += [_trial(lab, each, overlay, "links", root) for each in (*baselines, whole)]
        seen = hub_and_spokes(overlay, overlay.index(root))
        trials += [_trial(lab, each, seen, "connections", root) for each in (baselines[0], whole)]
    trials.append(_trial(lab, LITE, one_connection_each(overlay), "connections", "every site"))
    return trials


def _trial(lab: Lab, system: System, overlay: Overlay, over: str, root: str) -> Trial:
    return setting.trial(lab, system, overlay, _ROUNDS, {"network": over, "root": root})


def _draws(lab: Lab) -> list[Trial]:
    """Return star and multi-root trees on static networks with other rates."""
    networks = setting.drawn(3 if lab.quick else 20, lab.seed)
    return [
        setting.trial(lab, system, overlay, _ROUNDS, {"network": "static draw", "draw": number})
        for number, overlay in enumerate(networks)
        for system in (MXNET, LITE)
    ]


def _make(lab: Lab) -> Result:
    trials = setting.static_trials(lab, _SYSTEMS, root="chosen")
    trials += setting.dynamic_trials(lab, (*_SYSTEMS, _ADAPTIVE_TREE), root="chosen")
    if not lab.emulate:
        trials += _at_roots(lab) + _draws(lab)
    outcomes = lab.measure(trials)
    rows = [*_comparison(outcomes, "static"), *_comparison(outcomes, "dynamic")]
    if not lab.emulate:
        rows += [row for network in _PAPER for row in _over_each_root(outcomes, network)]
        rows += _worse_stars(outcomes)
    return Result(tuple(rows), (setting.dynamics_note(lab),))


def _comparison(outcomes: list[Outcome], network: str) -> list[Row]:
    found = setting.chosen(outcomes, network=network, root="chosen")

    def against_star(system: System) -> str:
        star, fast = (setting.chosen(found, system=each.name) for each in (MXNET, system))
        return setting.over(star, fast)

    rows = [
        Row(f"{network}: MXNET, star", "1x", against_star(MXNET), "at the best hub for its start"),
        Row(f"{network}: MLNET, balanced tree", "drawn only", against_star(MLNET), "so its root"),
        Row(
            f"{network}: TSEngine, spanning tree",
            "drawn only",
            against_star(TSENGINE),
            "planned once, for the first rates" if network == "dynamic" else "",
        ),
    ]
    if network == "dynamic":
        rows.append(
            Row(
                "dynamic: TSEngine, adaptive",
                "drawn only",
                against_star(_ADAPTIVE_TREE),
                "told the first rates, with forecasts and a plan gate: see fig14",
            )
        )
    return [
        *rows,
        Row(
            f"{network}: NetStorm pro",
            _PAPER[network],
            against_star(PRO),
            "not known; that Algorithm 3 finds hardly any auxiliary path is not why: see below",
        ),
        Row(
            f"{network}: the same, disjoint paths",
            "",
            against_star(PRO_DISJOINT),
            "those that the text asks for, each pair's on their own",
        ),
        Row(f"{network}: pro, ours", "", against_star(OUR_PRO), "disjoint paths, our awareness"),
        Row(
            f"{network}: pro, ours, chunks of 256 kB",
            "",
            against_star(OUR_PRO_256_KB),
            "bounds (2, 5): see fig17",
        ),
        Row(f"{network}: packed trees, ours", "", against_star(PACKED), "chunks of 1 MB, aware"),
    ]


def _over_each_root(outcomes: list[Outcome], network: str) -> list[Row]:
    """Return the whole system's speed-up over each baseline, as the baseline's root gets worse."""
    fast = setting.chosen(outcomes, network=network, root="chosen", system=PRO.name)
    over = "links" if network == "static" else network
    rows = []
    for name, system in _BASELINES.items():
        found = setting.chosen(outcomes, network=over, system=system.name)
        slow = setting.ranked([each for each in found if each.labels["root"] != "chosen"])
        rows.append(
            Row(
                f"{network}: NetStorm pro over {name}, by its root",
                _PAPER[network] if system is MXNET else "drawn only",
                setting.by_rank(slow, dict.fromkeys(slow, fast), times),
                "the paper does not say which site is the root",
            )
        )
    return rows


def _worse_stars(outcomes: list[Outcome]) -> list[Row]:
    """Return how the speed-up over the star grows as the star gets worse."""
    draws = setting.chosen(outcomes, network="static draw")
    ratios = sorted(
        seconds(draws, draw=draw, system=MXNET.name) / seconds(draws, draw=draw, system=LITE.name)
        for draw in {each.labels["draw"] for each in draws}
    )

    def by_hub(network: str, star: System, fast: list[Outcome]) -> str:
        stars = setting.ranked(setting.chosen(outcomes, network=network, system=star.name))
        return setting.by_rank(stars, dict.fromkeys(stars, fast), times)

    pro = setting.chosen(outcomes, network="static", system=PRO.name)
    slow = setting.chosen(outcomes, network="connections", system=LITE.name)
    return [
        Row(
            f"static, {len(ratios)} other draws of rates: MR-FAPT over star",
            "",
            f"{times(median(ratios))} ({times(ratios[0])} to {times(ratios[-1])})",
            "the star's hub is the best of nine",
        ),
        Row(
            "static: NetStorm pro over a star whose model goes up whole before it comes down",
            "9.2x",
            by_hub("links", _WHOLE, pro),
            "our star's two ways overlap, chunk by chunk",
        ),
        Row(
            "static: MR-FAPT over star, one connection each",
            "9.2x",
            by_hub("connections", MXNET, slow),
            "at most RFC 9438's rate, so that loss slows long paths most; a round of "
            f"MR-FAPT takes {seconds(slow):.0f} s (paper's Fig. 16: 66 s)",
        ),
        Row("static: and whole", "9.2x", by_hub("connections", _WHOLE, slow)),
    ]


EXPERIMENT = Experiment(
    "netstorm/fig13",
    "the whole system against MXNET, MLNET and TSEngine, static and dynamic",
    _make,
    emulable=True,
)
