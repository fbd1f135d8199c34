"""The command that plans: routes side by side, predicted and drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from anabranch import overlay as overlays
from anabranch import plan as plans
from anabranch._typed_toml import listed, tag_of
from anabranch.cli.commands import app, console, tell_of
from anabranch.cli.options import ROUTES, value_of
from anabranch.log import units
from anabranch.log.terminal import Bar, Branch, Rows
from anabranch.overlay import GraphLacks, Overlay, OverlayError, UniformRates
from anabranch.plan import (
    AnyPlanner,
    Fapt,
    ForestRoute,
    Plan,
    Prediction,
    Ring,
)
from anabranch.scheduler.chunking import ChunkRule

_ELEMENT_BYTES = 4
_ADVICE = {
    "rate": "give the rate of such links, bit/s: --rate 155e6, or drawn: --rate 20e6..155e6; or "
    "the attribute that holds it: --capacity bandwidth:Mbit/s",
    "latency": "give the latency of such links, seconds: --default-latency-s 0.03; or the "
    "attribute that holds it: --latency delay:ms; or a table: --latencies rtt.csv",
    "part": "add edges, or keep only that part: --largest-part",
}
_ALEXNET_MB = 244.403
_MOST_SITES_FOR_LIMIT = 60  # with more, the limit takes minutes, and a close bound replaces it
# With more sites, a ring's order or a forest's groups take longer than all other plans together.
_MOST_SITES_FOR_SEARCHES = 100


@app.command()
def plan(
    overlay: Annotated[str, typer.Argument(help="A built-in overlay's name, or a file.")],
    roots: Annotated[
        int | None, typer.Option(help="Roots of the FAPT; all sites if not given.", min=1)
    ] = None,
    size_mb: Annotated[
        float | None,
        typer.Option(
            "--size-mb",
            help=f"The buffer to plan for, megabytes; {_ALEXNET_MB}, AlexNet's, if not given.",
            min=1e-6,
        ),
    ] = None,
    chunk_elements: Annotated[
        int | None,
        typer.Option(help="The most elements of a chunk; what a run takes if not given.", min=1),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            help="For links without a rate in a graph file or table: bit/s, as 100e6, or a range "
            "drawn per direction, as 20e6..155e6."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of rates drawn from a range.")] = 0,
    default_latency_s: Annotated[
        float | None,
        typer.Option(help="For links without a latency in a graph file or table: seconds one way."),
    ] = None,
    capacity: Annotated[
        str,
        typer.Option(
            help="For graph files: the attribute that holds rates, and the unit of its numbers, as "
            "bandwidth:Mbit/s; the usual names are known."
        ),
    ] = "*",
    latency: Annotated[
        str, typer.Option(help="Likewise the attribute that holds latencies, as delay:ms.")
    ] = "*",
    latencies: Annotated[
        Path | None,
        typer.Option(help="For tables and folders: another one, that holds latencies."),
    ] = None,
    largest_part: Annotated[
        bool, typer.Option("--largest-part", help="Of a graph in several parts, keep the largest.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Also draw the plans into this page.")] = None,
    route: Annotated[
        str | None,
        typer.Option(
            help=f"Plan this one alone, {listed(ROUTES)}; with parameters, as fapt,roots=3. If not "
            "given, all are compared, and packed is drawn, or fapt where --roots is given."
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            help="Write the drawn plan to this file, for scenarios with route.kind = file."
        ),
    ] = None,
) -> None:
    """Plan trees for an overlay: draw them, predict the round, and compare with the limit."""
    try:
        network = overlays.load(
            overlay,
            _rate(rate, seed),
            default_latency_s=default_latency_s,
            largest_part=largest_part,
            capacity=capacity,
            latency=latency,
            latencies=latencies,
        )
    except GraphLacks as lacks:
        raise OverlayError(f"{lacks.said}; {_ADVICE[lacks.what]}") from None
    tell_of(network)
    alone = None if route is None else value_of("--route", route, ROUTES)
    if roots is not None and alone not in (None, Fapt()):
        raise typer.BadParameter(
            f"--roots {roots} does not go with --route {route}; parameters of a route follow its "
            "name, as fapt,roots=3"
        )
    elements = max(1, round((_ALEXNET_MB if size_mb is None else size_mb) * 1e6 / _ELEMENT_BYTES))
    assumed = ", AlexNet's: give yours with --size-mb" if size_mb is None else ""
    console.print(
        f"{network.name}: {network.size} sites, {len(network.links)} directed links; "
        f"a buffer of {units.size(_ELEMENT_BYTES * elements)}{assumed}"
    )
    planners = _planners(alone, network.size, roots)
    planned = _compare(network, planners, elements, chunk_elements)
    drawn = tag_of(alone) if alone is not None else ("packed" if roots is None else "fapt")
    by_kind = {tag_of(each): found for each, found in zip(planners, planned, strict=True)}
    chosen = by_kind[drawn]
    if route is None and network.size > _MOST_SITES_FOR_SEARCHES:
        console.print(
            f"a ring and a forest are planned for {network.size} sites only where --route asks"
        )
    console.print(f"{chosen.label}:")
    for way in [group.plan for group in chosen.groups] or [chosen]:
        for tree in _draw(network, way):
            console.print(tree)
    if save is not None:
        save.write_text(f"{plans.dumps(chosen)}\n", encoding="utf-8")
        console.print(f"saved: {save}", soft_wrap=True)
    if html is not None:
        from anabranch_lab.reports.report import write_plan_page

        write_plan_page(network, planned, html)
        console.print(f"drawn: {html}", soft_wrap=True)


def _planners(alone: AnyPlanner | None, sites: int, roots: int | None) -> list[AnyPlanner]:
    """Return a route's planner; without a route, a planner of each kind that takes no minutes.

    FAPT comes with one root, and then with `roots`; None: all sites.
    """
    found: list[AnyPlanner] = []
    for kind, planner in ROUTES.items():
        if alone is not None and kind != tag_of(alone):
            continue
        if planner is Fapt and alone in (None, Fapt()):
            most = sites if roots is None else roots
            found += [Fapt(roots=count) for count in sorted({1, most})]
        elif alone is not None:
            found.append(alone)
        elif planner not in (Ring, ForestRoute) or sites <= _MOST_SITES_FOR_SEARCHES:
            found.append(planner())
    return found


def _compare(
    network: Overlay, planners: Sequence[AnyPlanner], elements: int, chunk_elements: int | None
) -> list[Plan]:
    """Plan by each planner, and print its predicted round time as soon as it is known."""
    size_bytes, within_cores = _ELEMENT_BYTES * elements, plans.within_cores(network)
    is_exact = network.size <= _MOST_SITES_FOR_LIMIT
    planned: list[Plan] = []
    first_s: float | None = None
    with Bar("planning", "steps", console) as bar:
        bar.show(0, 1 + len(planners), ": the physical limit")
        bound_bps = None if is_exact else plans.bound_rate_bps(network)
        limit_s = plans.limit_s(network, size_bytes, bound_bps)
        least = "" if is_exact else "at least "
        console.print(
            f"physical limit: {least}{units.seconds(limit_s)} a round, "
            "no plan on these links is faster"
        )
        goodput_bps = network.goodput_matrix_bps()
        if max(goodput_bps.sum(0).max(), goodput_bps.sum(1).max()) > plans.CORE_BPS:
            console.print(
                f"but a site's processor carries {units.rate(plans.CORE_BPS)} each way, which "
                "plans respect"
            )
        if not is_exact:
            console.print(
                f"for {network.size} sites the limit is bounded, so a plan's share of it is at "
                "least what is said"
            )
        of_limit = "of limit" if is_exact else "of limit, at least"
        headings = "route", "round", "speed-up", of_limit, "paper's metric", "busiest link"
        rows = Rows(console, headings, numbers=range(1, 5))
        for number, each in enumerate(planners, 1):
            bar.show(number, 1 + len(planners), f": {tag_of(each)}")
            rule = ChunkRule(each.deep, chunk_elements)
            finest = rule.before_plan(elements)
            plan = each.plan(within_cores, elements=elements, chunk_elements=finest)
            planned.append(plan)
            if plan.groups:
                continue  # a forest holds no rounds of all sites
            chunk_bytes = _ELEMENT_BYTES * min(rule.under(plan, elements, within_cores), elements)
            predicted = plans.predict(plan, within_cores, size_bytes, chunk_bytes=chunk_bytes)
            round_s = predicted.contention_s
            first_s = first_s or round_s
            rows.add(
                plan.label,
                units.seconds(round_s),
                units.times(first_s / round_s if first_s else None),
                units.percent(limit_s / round_s if first_s else None),
                units.seconds(predicted.paper_s),
                _bottleneck(network, predicted),
            )
    return planned


def _rate(text: str | None, seed: int) -> float | UniformRates | None:
    if text is None:
        return None
    try:
        low, dots, high = text.partition("..")
        return UniformRates(float(low), float(high), seed) if dots else float(low)
    except ValueError as error:
        raise typer.BadParameter(f"--rate {text}: give bit/s, or low..high ({error})") from None


def _bottleneck(network: Overlay, predicted: Prediction) -> str:
    if predicted.bottleneck_port is not None:
        site, way = predicted.bottleneck_port
        return f"{network.sites[site].name}, {way}"
    if predicted.bottleneck is not None:
        return "->".join(network.sites[site].name for site in predicted.bottleneck)
    return ""


def _draw(network: Overlay, planned: Plan) -> list[Branch]:
    drawn = []
    for tree in planned.trees:
        mirrored = tree.up == tree.down
        ways = (("", tree.up),) if mirrored else ((" up", tree.up), (" down", tree.down))
        for way, parents in ways:
            title = f"{network.sites[tree.root].name}{way}, share {tree.share:.1%}"
            branches = {tree.root: Branch(title, "bold")}
            children = tree.children(parents)
            queue = [tree.root]
            while queue:
                site = queue.pop(0)
                for child in children[site]:
                    hop = (child, site) if way != " down" else (site, child)
                    path = planned.path(*hop)
                    via = [network.sites[relay].name for relay in path[1:-1]]
                    text = network.sites[child].name + (f" via {', '.join(via)}" if via else "")
                    branches[child] = branches[site].add(text)
                    queue.append(child)
            drawn.append(branches[tree.root])
    return drawn
