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
from anabranch.record import _page, _tables, _words, units
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
        _words.header(title, verdict, _words.kicker(runs)),
        _words.problems(runs),
        _tables.results(runs),
        _tables.reasons(runs),
        _charts.drawings(runs),
        *_charts.measurements(runs),
        _tables.what_ran(runs),
    ]
    out.write_text(_page.page(title, "\n".join(body), _charts.library()), encoding="utf-8")


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
