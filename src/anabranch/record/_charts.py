"""The figures of reports and plan pages, each in its section, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from anabranch.overlay import Overlay
from anabranch.plan import Plan
from anabranch.record import _pace_figures, _page, figures, units
from anabranch.record._losses import loss_curve
from anabranch.record._runs import Run


def library() -> str:
    """Return the JavaScript that the sections here rely on; a page needs it once."""
    return figures.library()


def drawings(runs: Sequence[Run]) -> str:
    """Return each run's first plan, drawn, and the last one that a round ran under."""
    return drawn_plans([plan for run in runs for plan in _first_and_last(run)])


def _first_and_last(run: Run) -> list[tuple[str, Overlay, Plan, str]]:
    drawn = [(run.name, run.overlay, run.plan, _versions(run))]
    ran = run.summary.plan_versions
    for event, plan in zip(run.summary.plans, run.issued, strict=True):
        if ran and plan.version == ran[-1]:
            note = f"Issued at {units.seconds(event.at_s)}, drawn with the rates of that moment."
            drawn.append(
                (f"{run.name}, plan {plan.version}", run.overlay.at(event.at_s), plan, note)
            )
    return drawn


def _versions(run: Run) -> str:
    versions = run.summary.plan_versions
    if len(versions) < 2:
        return ""
    ran = ", ".join(map(str, versions))
    return f"Rounds ran under plan versions {ran}; this is version {run.plan.version}."


def drawn_plans(plans: Sequence[tuple[str, Overlay, Plan, str]]) -> str:
    """Return plans drawn side by side, each given as (name, overlay, plan, note)."""
    return _page.section(
        "Trees",
        "Each tree has a colour and the share of the buffer it carries; arrows lead to its root "
        "(the way down mirrors them, or is dotted where it does not). Grey width is how busy a "
        "link is; red is the busiest. Numbers are rates in Mbit/s, of both directions where they "
        "differ. Larger dots are roots. Click a tree to hide it.",
        _page.grid(
            *(
                _page.card(
                    figures.to_html(figures.trees(overlay, plan), f"trees-{index}"), name, note
                )
                for index, (name, overlay, plan, note) in enumerate(plans)
            )
        ),
    )


def measurements(runs: Sequence[Run]) -> list[str]:
    """Return the sections on what was measured."""
    summaries = {run.name: run.summary for run in runs}
    timed = {name: summary for name, summary in summaries.items() if summary.rounds}
    limited = {name: run for name, run in timed.items() if run.share_of_limit is not None}
    evaluated = {name: summary for name, summary in summaries.items() if summary.accuracy}

    rounds = (
        figures.to_html(figures.round_times(timed), "round-times")
        if timed
        else _missing("No round was completed by all sites, so there are no round times.")
    )
    limits = (
        figures.to_html(figures.limits(limited), "limits")
        if limited
        else _missing(
            "No run completed a round, held its links to the overlay's rates and had the physical "
            "limit computed, so nothing can be compared with it."
        )
    )
    accuracy = (
        figures.to_html(figures.accuracy(evaluated), "accuracy")
        if evaluated
        else _missing(
            "No run evaluated its model: these were communication-only runs, or ended too early."
        )
    )
    unevaluated = [name for name in summaries if name not in evaluated]
    accuracy_note = f"Not evaluated: {', '.join(unevaluated)}." if evaluated and unevaluated else ""
    busy = [
        _page.card(
            figures.to_html(figures.utilisation(run.summary, run.overlay), f"links-{index}")
            if run.summary.links
            else _missing("The log has no record of what its links carried."),
            run.name,
        )
        for index, run in enumerate(runs)
    ]
    of_rounds = [
        _page.section(
            "Round times",
            "Every completed round is a dot; boxes span the middle half.",
            _page.card(rounds),
        ),
        _page.section(
            "How near the physical limit",
            "The limit is the shortest round that any plan could reach on this overlay.",
            _page.card(limits),
        ),
    ]
    paced = [run for run in runs if run.summary.pace is not None]
    return [
        *(_paces(paced) if paced else []),
        *(of_rounds if len(paced) < len(runs) else []),
        _page.section(
            "How busy the links were",
            "Payload given to each link, as a share of what its rate allows.",
            _page.grid(*busy),
        ),
        *_losses(runs),
        _page.section(
            "Accuracy", "On held-out data, against time.", _page.card(accuracy, "", accuracy_note)
        ),
    ]


def _losses(runs: Sequence[Run]) -> list[str]:
    """Return the section on training losses; nothing where no run has any."""
    found = {run.name: loss_curve(run.summary.steps) for run in runs}
    curves = {name: curve for name, curve in found.items() if curve is not None}
    if not curves:
        return []
    return [
        _page.section(
            "Loss",
            "In training, the mean over the workers: of their latest steps, a fiftieth of the "
            "run's, and one of each worker at least.",
            _page.grid(
                _page.card(
                    figures.to_html(figures.loss(curves, "time"), "loss-time"), "Against time"
                ),
                _page.card(
                    figures.to_html(figures.loss(curves, "iterations"), "loss-iterations"),
                    "Against iterations",
                ),
            ),
        )
    ]


def _paces(runs: Sequence[Run]) -> list[str]:
    """Return the sections on who went on when."""
    phases, spread = [], []
    for index, run in enumerate(runs):
        drawn = figures.to_html(_pace_figures.phases(run.summary), f"phases-{index}")
        phases.append(_page.card(drawn, run.name))
        phases.append(_page.card(*_ports(run, index)))
        drawn = figures.to_html(_pace_figures.gaps(run.summary), f"gaps-{index}")
        spread.append(_page.card(drawn, run.name))
        drawn = figures.to_html(_pace_figures.staleness(run.summary), f"missed-{index}")
        spread.append(_page.card(drawn, run.name))
    return [
        _page.section(
            "Who did what when",
            "The first iterations of each worker, from its permission to the next; and meanwhile "
            "how busy the servers' ports were, in with updates and out with models, as finely as "
            "sites wrote down what links carried (sample_every_s).",
            _page.grid(*phases),
        ),
        _page.section(
            "How far apart, and how stale",
            "Updates that come at once share the servers' ports; one that missed many of others "
            "was computed on an old model.",
            _page.grid(*spread),
        ),
    ]


def _ports(run: Run, index: int) -> tuple[str, str, str]:
    """Return the card on servers' ports: its content, heading and note."""
    heading = f"{run.name}: servers' ports"
    if not run.summary.links:
        return _missing("The log has no record of what its links carried."), heading, ""
    drawn = figures.to_html(
        _pace_figures.ports(run.summary, run.overlay, run.plan), f"ports-{index}"
    )
    if run.summary.started.shaped:
        return drawn, heading, ""
    note = "Links were not held to the overlay's rates, so what the ports could carry is not known."
    return drawn, heading, note


def _missing(sentence: str) -> str:
    """Return what stands in a figure's place."""
    return f'<p class="missing">{escape(sentence)}</p>'
