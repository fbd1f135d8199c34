"""What a report says of runs that watched their network: how well, what they did, who held them up.

Nothing, where a log has no such events.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from anabranch.plan import Plan
from anabranch.record import _page, units
from anabranch.record._runs import Run
from anabranch.record.awareness import MeasuredRate, blockers, measured_rates, tree_change

_LISTED_PLANS = 40
_LISTED_LINKS = 12


def sections(runs: Sequence[Run]) -> list[str]:
    """Return the sections on awareness, on plans issued and on waiting: those there are."""
    aware = [run for run in runs if run.summary.measured or run.summary.plans]
    waiting = [run for run in runs if run.summary.waits]
    replanned = [run for run in runs if run.summary.plans]
    found = [(_awareness, aware), (_plans, replanned), (_held_up, waiting)]
    return [section(concerned) for section, concerned in found if concerned]


def _awareness(runs: Sequence[Run]) -> str:
    from anabranch.record import figures  # imports plotly, which is slow
    from anabranch.record._awareness_figure import awareness

    cards = [
        _page.card(
            figures.to_html(figure, f"awareness-{index}"), run.name, " ".join(_sentences(run))
        )
        for index, run in enumerate(runs)
        if (figure := awareness(run)) is not None
    ]
    return _page.section(
        "Network awareness",
        "Read downwards: a link's rate changes, the rate that its receiver measures on passing "
        "chunks follows, the scheduler issues a new plan (dashed), and round times answer. Point "
        "at a plan for its reason. Dots of rounds are filled and open in turn, plan by plan. The "
        "links drawn are those that changed most.",
        _page.grid(*cards),
    )


def _sentences(run: Run) -> list[str]:
    """Return what was measured, how far off it was, and how often the scheduler planned again."""
    summary = run.summary
    count = sum(map(len, summary.measured.values()))
    words = (
        [
            f"{units.count(count, 'measurement')} of {len(summary.measured)} of the "
            f"{len(run.overlay.links)} links."
        ]
        if count
        else ["No link was measured."]
    )
    rates = measured_rates(summary, run.overlay)
    if rates:
        words.append(_errors(run, rates))
    elif count:
        words.append("Links were not held to the overlay's rates, so no true rate is known.")
    plans = len(summary.plans)
    words.append(
        f"The scheduler planned again {_often(plans)}."
        if plans
        else "No plan was issued after the first."
    )
    return words


def _often(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _errors(run: Run, rates: Sequence[MeasuredRate]) -> str:
    plain = [rate for rate in rates if not rate.straddles]
    mixed = [rate for rate in rates if rate.straddles]
    if not plain:
        return (
            "Every measurement was the first after a change of its link's rate and may have passed "
            "before it, so none is held against the true rate."
        )
    worst = max(plain, key=lambda rate: rate.error)
    words = (
        f"Measured rates are {units.percent(median(rate.error for rate in plain))} from the true "
        f"ones at the median and {units.percent(worst.error)} at the worst "
        f"({run.link((worst.source, worst.target))} at {units.seconds(worst.at_s)}: "
        f"{units.rate(worst.measured_bps)} measured, {units.rate(worst.true_bps)} true)."
    )
    if mixed:
        words += (
            f" Left out: {units.count(len(mixed), 'measurement')} that came first after a change "
            "of a link's rate and may hold chunks of before it, up to "
            f"{units.percent(max(rate.error for rate in mixed))} off."
        )
    return words


def _plans(runs: Sequence[Run]) -> str:
    """Return the plans issued, each run's first one before them."""
    rows: list[tuple[str, ...]] = []
    for run in runs:
        summary = run.summary
        first = units.seconds(summary.started.predicted_s if summary.started.shaped else None)
        trees = units.count(len(run.plan.trees), "tree")
        rows.append(_plan_row(run, run.plan, 0.0, "the first plan", first, trees))
        before = run.plan
        listed = list(zip(summary.plans, run.issued, strict=True))[:_LISTED_PLANS]
        for event, plan in listed:
            predicted = f"{units.seconds(event.before_s)} → {units.seconds(event.after_s)}"
            trees = _trees(before, plan)
            rows.append(_plan_row(run, plan, event.at_s, event.why, predicted, trees))
            before = plan
        if more := len(summary.plans) - len(listed):
            rows.append((run.name, "", "", f"and {more} more", "", "", "", ""))
    headings = (
        "route",
        "issued",
        "plan",
        "why",
        "predicted round, old plan → new",
        "trees",
        "rounds under it",
        "their median",
    )
    return _page.section(
        "Plans issued, and why",
        "Predictions are for the network as the scheduler believed it to be at that moment. Rounds "
        "that had begun keep their plan; those under it are the completed ones.",
        _page.table(headings, rows, numbers=(1, 2, 4, 6, 7), words=(3,)),
    )


def _plan_row(
    run: Run, plan: Plan, at_s: float, why: str, predicted: str, trees: str
) -> tuple[str, ...]:
    took_s = [done.seconds for done in run.summary.rounds if done.version == plan.version]
    return (
        run.name,
        units.seconds(at_s),
        str(plan.version),
        why,
        predicted,
        trees,
        str(len(took_s)),
        units.seconds(median(took_s) if took_s else None),
    )


def _trees(before: Plan, plan: Plan) -> str:
    change = tree_change(before, plan)
    words = f"{change.added} of {change.trees} new"
    return f"{words}, {change.reweighted} re-weighted" if change.reweighted else words


def _held_up(runs: Sequence[Run]) -> str:
    rows: list[tuple[str, ...]] = []
    for run in runs:
        waits = run.summary.waits
        found = blockers(run.summary)
        rows += [
            (
                run.name,
                run.link((blocker.source, blocker.target)),
                str(len(blocker.began)),
                units.percent(len(blocker.began) / len(waits)),
                units.seconds(blocker.median_s),
                str(blocker.passed_on),
            )
            for blocker in found[:_LISTED_LINKS]
        ]
        if more := len(found[_LISTED_LINKS:]):
            rows.append((run.name, f"and {units.count(more, 'more link')}", "", "", "", ""))
        if unknown := sum(wait.began is None for wait in waits):
            share = units.percent(unknown / len(waits))
            rows.append((run.name, "own sending, or unknown", str(unknown), share, units.NONE, "0"))
    return _page.section(
        "Who held rounds up",
        "From the site that finished a round last, back along whose message each site waited for "
        "last: waiting began at the link where that chain ends, as a rule with the last sum to "
        "reach a root, and the links before it passed it on. Why that sum was late, it does not "
        "say.",
        _page.table(
            (
                "route",
                "message waited for",
                "rounds it held up",
                "share of rounds",
                "their median",
                "rounds it passed waiting on",
            ),
            rows,
            numbers=(2, 3, 4, 5),
        ),
    )
