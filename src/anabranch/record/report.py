"""Reports in words, tables and figures: one HTML file that opens anywhere, offline.

A report says which run was fastest and why. A long round lasts as long as the plan's busiest link
needs to carry its load, so the reason is that link, its load and its rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from anabranch.overlay import Overlay
from anabranch.plan import Plan, steady_rate_bps
from anabranch.record import _awareness_page, _page, _tables, _twin_page, _words, units
from anabranch.record._runs import distinct, name_apart, read


def write_report(logs: Sequence[Path], out: Path) -> None:
    """Write a report of one run, or of several side by side, as a self-contained HTML page.

    Args:
        logs: event logs, of finished runs or not; the first is what the others are compared with.
        out: the page, written over if it is there.

    Raises:
        LogError: a log cannot be read, or does not say what ran.
        ValueError: no log is given.
        OSError: the page cannot be written.
    """
    if not logs:
        raise ValueError("a report needs at least one event log")
    runs = name_apart([read(path) for path in logs])
    from anabranch.record import _charts  # imports plotly, which is slow

    title, verdict = _words.verdict(runs)
    body = [
        _words.header(title, [*verdict, *_words.endings(runs)], _words.kicker(runs)),
        _words.problems(runs),
        _tables.results(runs),
        _tables.paces(runs),
        _tables.reasons(runs),
        _charts.drawings(runs),
        *_charts.measurements(runs),
        *_awareness_page.sections(runs),
        _tables.happenings(runs),
        _tables.what_ran(runs),
    ]
    out.write_text(_page.page(title, "\n".join(body), _charts.library()), encoding="utf-8")


def write_twin_report(pairs: Sequence[tuple[Path, Path]], out: Path) -> None:
    """Write how well simulated and measured runs agree, as a self-contained HTML page.

    Args:
        pairs: for each route its log of the simulated run, and its log of the measured one.
        out: the page, written over if it is there.

    Raises:
        LogError: a log cannot be read, does not say what ran, or the two logs of a pair are not
            one scenario simulated and measured; see `anabranch.record.compare`.
        ValueError: no pair is given.
        OSError: the page cannot be written.
    """
    if not pairs:
        raise ValueError("a twin's report needs at least one pair of event logs")
    twins = _twin_page.read_twins(pairs)
    runs = [run for twin in twins for run in twin.runs]
    from anabranch.record import figures  # imports plotly, which is slow

    title, verdict = _twin_page.verdict(twins)
    body = [
        _words.header(title, [*verdict, *_words.endings(runs)], _twin_page.kicker(twins)),
        _twin_page.problems(twins),
        _twin_page.results(twins),
        _twin_page.differing_links(twins),
        _twin_page.overview(twins),
        *_twin_page.routes(twins),
        _tables.happenings(runs),
        _tables.what_ran(runs),
    ]
    out.write_text(_page.page(title, "\n".join(body), figures.library()), encoding="utf-8")


def write_plan_page(overlay: Overlay, plans: Sequence[Plan], out: Path) -> None:
    """Write plans for one overlay as a self-contained HTML page: drawings and shares.

    Args:
        overlay: what the plans are for.
        plans: at least one.
        out: the page, written over if it is there.

    Raises:
        PlanError: a plan does not fit the overlay.
        ValueError: no plan is given.
        OSError: the page cannot be written.
    """
    if not plans:
        raise ValueError("a plan page needs at least one plan")
    from anabranch.record import _charts  # imports plotly, which is slow

    names = distinct([plan.label or f"plan {plan.version}" for plan in plans])
    named = dict(zip(names, plans, strict=True))
    title = f"Plans for {overlay.name}"
    rates_bps = {name: steady_rate_bps(plan, overlay) for name, plan in named.items()}
    fastest = max(rates_bps, key=lambda name: rates_bps[name])
    verdict = (
        f"Once its trees are full, <strong>{escape(fastest)}</strong> synchronises "
        f"{units.rate(rates_bps[fastest])} of the buffer"
        f"{', more than any other plan here' if len(named) > 1 else ''}."
    )
    kicker = f"{overlay.size} sites, {len(overlay.links)} directed links"
    body = [
        _words.header(title, [verdict], kicker),
        _tables.plans(overlay, named),
        _charts.drawn_plans([(name, overlay, plan, "") for name, plan in named.items()]),
        _tables.shares(overlay, named),
    ]
    out.write_text(_page.page(title, "\n".join(body), _charts.library()), encoding="utf-8")
