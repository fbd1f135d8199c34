"""Reports in words, tables and figures: one HTML file that opens anywhere, offline.

The pages' text is in ``templates/``. A round lasts at least as long as the plan's busiest link
needs to carry its load, so a report names that link, its load and its rate.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from anabranch.log import units
from anabranch.log.by_site import Spread, spread_of
from anabranch.overlay import Overlay
from anabranch.plan import Plan, steady_rate_bps
from anabranch_lab.reports import tables
from anabranch_lab.reports._known_rates import known_rates
from anabranch_lab.reports._losses import loss_curve
from anabranch_lab.reports._twin import round_ratios, worst_row
from anabranch_lab.reports.runs import (
    Run,
    Twin,
    distinct,
    fastest_and_baseline,
    name_apart,
    pair_up,
    read_run,
    read_runs,
)


def write_report(logs: Sequence[Path], out: Path) -> None:
    """Write a report of one run, or of several side by side, as a self-contained HTML page.

    Args:
        logs: event logs of runs, finished or not.
        out: the page, overwritten if it exists.

    Raises:
        LogError: a log cannot be read, or does not say what ran.
        ValueError: no log is given.
        OSError: the page cannot be written.
    """
    if not logs:
        raise ValueError("a report needs at least one event log")
    out.write_text(report_page(read_runs(logs)), encoding="utf-8")


def report_page(runs: Sequence[Run]) -> str:
    """Return the report of one run or more, as HTML."""
    runs = name_apart(runs)
    fastest, baseline = fastest_and_baseline(runs)
    curves = {run.name: loss_curve(run.summary.steps) for run in runs}
    return _page(
        "report.html.j2",
        runs=runs,
        alike=len({run.work for run in runs}) == 1,
        fastest=fastest,
        baseline=baseline,
        ratio=None if baseline is fastest else tables.speed_up(fastest, baseline),
        worlds=Counter(run.summary.started.world for run in runs),
        drawn=[drawn for run in runs for drawn in _first_and_last(run)],
        losses={name: curve for name, curve in curves.items() if curve is not None},
        splits=_splits(runs),
        spreads=_spreads(runs),
    )


def _splits(runs: Sequence[Run]) -> list[tuple[str, Run]]:
    """Return the first run of each split of the samples, named by all runs with that split."""
    alike: dict[str, list[Run]] = {}
    for run in runs:
        if run.summary.labels:
            alike.setdefault(str((run.summary.sites, run.summary.labels)), []).append(run)
    if len(alike) == 1:
        return [("", found[0]) for found in alike.values()]
    return [(", ".join(run.name for run in found), found[0]) for found in alike.values()]


def _spreads(runs: Sequence[Run]) -> list[tuple[str, Spread]]:
    """Return the spread of accuracy over sites, named by all runs with that spread."""
    alike: dict[Spread, list[str]] = {}
    for run in runs:
        spread = spread_of(run.summary.site_accuracy.values())
        if spread is not None:
            alike.setdefault(spread, []).append(run.name)
    return [(", ".join(names), spread) for spread, names in alike.items()]


_Drawn = tuple[str, Overlay, Plan, str]  # name, rates, plan, note


def _first_and_last(run: Run) -> list[_Drawn]:
    """Return the first plan and the last one that a round ran under."""
    versions = run.summary.plan_versions
    ran = f"Rounds ran under plan versions {', '.join(map(str, versions))}"
    note = f"{ran}; this is version {run.plan.version}." if len(versions) > 1 else ""
    first_until_s = min((event.at_s for event in run.summary.plans), default=math.inf)
    known = known_rates(run.summary, run.overlay, first_until_s)
    drawn = [(run.name, known, run.plan, note)]
    for event, plan in zip(run.summary.plans, run.issued, strict=True):
        if plan.version in versions[-1:]:
            note = f"Issued at {units.seconds(event.at_s)}, drawn with the rates of that moment."
            name = f"{run.name}, plan {plan.version}"
            known = known_rates(run.summary, run.overlay.at(event.at_s), event.at_s)
            drawn.append((name, known, plan, note))
    return drawn


def write_twin_report(pairs: Sequence[tuple[Path, Path]], out: Path) -> None:
    """Write how well simulated and measured runs agree, as a self-contained HTML page.

    Args:
        pairs: for each route its log of the simulated run, and its log of the measured one.
        out: the page, overwritten if it exists.

    Raises:
        LogError: a log cannot be read, does not say what ran, or the two logs of a pair are not
            one scenario simulated and measured; see `anabranch_lab.reports.compare`.
        ValueError: no pair is given.
        OSError: the page cannot be written.
    """
    if not pairs:
        raise ValueError("a twin's report needs at least one pair of event logs")
    twins = pair_up([(read_run(simulated), read_run(measured)) for simulated, measured in pairs])
    out.write_text(twin_page(twins), encoding="utf-8")


def twin_page(twins: Sequence[Twin]) -> str:
    """Return the report of one route or more in both worlds, as HTML."""
    worst = worst_row([twin.row for twin in twins])
    ratios = [
        round_ratios(twin.simulated.summary, twin.measured.summary)
        for twin in twins
        if twin.row is worst
    ]
    return _page(
        "twin.html.j2",
        twins=twins,
        rows=[twin.row for twin in twins],
        runs=[run for twin in twins for run in (twin.simulated, twin.measured)],
        worst=worst,
        ratios=sorted((ratio, number) for number, ratio in ratios[0].items()) if ratios else [],
        alike=len({twin.simulated.work for twin in twins}) == 1,
        emulated=all(twin.measured.summary.started.world == "emulated" for twin in twins),
    )


def write_plan_page(overlay: Overlay, plans: Sequence[Plan], out: Path) -> None:
    """Write plans for one overlay as a self-contained HTML page: drawings and shares.

    Args:
        overlay: of the plans.
        plans: at least one.
        out: the page, overwritten if it exists.

    Raises:
        PlanError: a plan does not fit the overlay.
        ValueError: no plan is given.
        OSError: the page cannot be written.
    """
    if not plans:
        raise ValueError("a plan page needs at least one plan")
    names = distinct([plan.label or f"plan {plan.version}" for plan in plans])
    named = dict(zip(names, plans, strict=True))
    rates_bps = {name: steady_rate_bps(plan, overlay) for name, plan in named.items()}
    fastest = max(rates_bps, key=lambda name: rates_bps[name])
    page = _page(
        "plan.html.j2",
        overlay=overlay,
        named=named,
        fastest=fastest,
        rate_bps=rates_bps[fastest],
        drawn=[(name, overlay, plan, "") for name, plan in named.items()],
    )
    out.write_text(page, encoding="utf-8")


def _page(template: str, **values: object) -> str:
    from anabranch_lab.reports._page import render  # imports plotly, which is slow

    return render(template, values)
