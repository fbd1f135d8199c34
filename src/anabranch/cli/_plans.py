"""The command that plans: routes side by side, predicted and drawn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from anabranch import overlay as overlays
from anabranch import plan as plans
from anabranch._typed_toml import listed, nearest, tag_of
from anabranch.cli._app import app, console
from anabranch.overlay import GraphLacks, Overlay, OverlayError, UniformRates
from anabranch.plan import (
    PLANNERS,
    AnyPlanner,
    Fapt,
    ForestRoute,
    FromFile,
    Plan,
    Prediction,
    Ring,
)
from anabranch.record import units
from anabranch.record.terminal import Branch, Table, table

_ADVICE = {
    "rate": "give the rate of such edges, bit/s: --rate 155e6, or drawn: --rate 20e6..155e6",
    "latency": "give the latency of such edges, seconds: --default-latency-s 0.03",
    "part": "add edges, or keep only that part: --largest-part",
}
_ALEXNET_MB = 244.403
_MOST_SITES_FOR_LIMIT = 60  # beyond, it takes minutes: a bound that is hardly above it
_MOST_SITES_FOR_RING = 100  # beyond, to find an order takes longer than all the others together
ROUTES = {tag_of(planner): planner for planner in PLANNERS if not issubclass(planner, FromFile)}


@app.command()
def plan(
    overlay: Annotated[str, typer.Argument(help="A built-in overlay's name, or a file.")],
    roots: Annotated[
        int | None, typer.Option(help="Roots of the FAPT; all sites if not given.", min=1)
    ] = None,
    size_mb: Annotated[
        float,
        typer.Option("--size-mb", help="Buffer in megabytes; AlexNet's if not given.", min=1e-6),
    ] = _ALEXNET_MB,
    chunk_elements: Annotated[int, typer.Option(help="The most elements of a chunk.", min=1)] = 1
    << 18,
    rate: Annotated[
        str | None,
        typer.Option(
            help="For graph files without capacities: bit/s, as 100e6, or a range drawn per "
            "direction, as 20e6..155e6."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of rates drawn from a range.")] = 0,
    default_latency_s: Annotated[
        float | None, typer.Option(help="For graph files without positions: seconds one way.")
    ] = None,
    largest_part: Annotated[
        bool, typer.Option("--largest-part", help="Of a graph in several parts, keep the largest.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Also draw the plans into this page.")] = None,
    route: Annotated[
        str | None,
        typer.Option(
            help=f"Whose trees to draw, {listed(ROUTES)}; packed if not given, or fapt where "
            "--roots is."
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Write that plan to this file, for scenarios with route.kind = file."),
    ] = None,
) -> None:
    """Plan trees for an overlay: draw them, predict the round, and compare with the limit."""
    try:
        network = overlays.load(
            overlay,
            _rate(rate, seed),
            default_latency_s=default_latency_s,
            largest_part=largest_part,
        )
    except GraphLacks as lacks:
        raise OverlayError(f"{lacks.said}; {_ADVICE[lacks.what]}") from None
    route = route or ("packed" if roots is None else "fapt")
    if route not in ROUTES:
        near = nearest(route, ROUTES) or f"give one of {listed(ROUTES)}"
        raise typer.BadParameter(f"--route {route}: no such route; {near}")
    is_asked = route == tag_of(Ring) or network.size <= _MOST_SITES_FOR_RING
    planners = [
        each
        for each in _planners(network.size if roots is None else roots)
        if is_asked or not isinstance(each, Ring)
    ]
    elements = round(size_mb * 1e6 / 4)  # whose transfers a forest weighs; others plan for any
    planned = [
        each.plan(network, elements=elements if isinstance(each, ForestRoute) else None)
        for each in planners
    ]
    by_kind = {tag_of(each): found for each, found in zip(planners, planned, strict=True)}
    chosen = by_kind[route]
    size_bytes = size_mb * 1e6
    is_exact = network.size <= _MOST_SITES_FOR_LIMIT
    bound_bps = None if is_exact else plans.bound_rate_bps(network)
    limit_s = plans.limit_s(network, size_bytes, bound_bps)
    console.print(
        f"{network.name}: {network.size} sites, {len(network.links)} directed links; "
        f"{units.size(size_bytes)} in chunks of {units.size(4 * chunk_elements)}"
    )
    # A forest holds no rounds of all sites.
    of_all = [each for each in planned if not each.groups]
    share = "of the limit" if is_exact else "of the limit, at least"
    console.print(_predictions(network, of_all, size_bytes, 4 * chunk_elements, limit_s, share))
    if not is_asked:
        console.print(f"a ring is planned for {network.size} sites only where --route ring asks")
    whole = "" if is_exact else "at least "
    console.print(
        f"physical limit: {whole}{units.seconds(limit_s)} a round, no plan on these links is faster"
    )
    console.print(f"{chosen.label}:")
    for way in [group.plan for group in chosen.groups] or [chosen]:
        for tree in _draw(network, way):
            console.print(tree)
    if save is not None:
        save.write_text(f"{plans.dumps(chosen)}\n", encoding="utf-8")
        console.print(f"saved: {save}", soft_wrap=True)
    if html is not None:
        from anabranch.record.report import write_plan_page

        write_plan_page(network, planned, html)
        console.print(f"drawn: {html}", soft_wrap=True)


def _planners(roots: int) -> Iterator[AnyPlanner]:
    """Yield a planner of each kind; FAPT with one root, and then with so many."""
    for planner in ROUTES.values():
        if planner is Fapt:
            yield from (Fapt(roots=count) for count in sorted({1, roots}))
        else:
            yield planner()


def _rate(text: str | None, seed: int) -> float | UniformRates | None:
    if text is None:
        return None
    try:
        low, dots, high = text.partition("..")
        return UniformRates(float(low), float(high), seed) if dots else float(low)
    except ValueError as error:
        raise typer.BadParameter(f"--rate {text}: give bit/s, or low..high ({error})") from None


def _predictions(
    network: Overlay,
    planned: list[Plan],
    size_bytes: float,
    chunk_bytes: float,
    limit_s: float,
    share: str,
) -> Table:
    rows = []
    first_s: float | None = None
    for each in planned:
        predicted = plans.predict(each, network, size_bytes, chunk_bytes=chunk_bytes)
        first_s = first_s or predicted.contention_s
        rows.append(
            (
                each.label,
                units.seconds(predicted.contention_s),
                units.times(first_s / predicted.contention_s if first_s else None),
                units.percent(limit_s / predicted.contention_s if first_s else None),
                units.seconds(predicted.paper_s),
                _bottleneck(network, predicted),
            )
        )
    headings = ("route", "round", "speed-up", share, "paper's metric", "busiest link")
    return table(headings, rows, numbers=range(1, 5))


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
