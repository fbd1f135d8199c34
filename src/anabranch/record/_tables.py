"""The tables of reports and plan pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median

from anabranch.overlay import Overlay
from anabranch.plan import NO_PARENT, Plan, steady_rate_bps
from anabranch.record import _page, units
from anabranch.record._runs import Run, bottleneck
from anabranch.record.ports import WAYS, mean_use
from anabranch.record.summary import RunSummary, observed


def results(runs: Sequence[Run]) -> str:
    """Return the table that compares the runs."""
    first_s = runs[0].summary.median_round_s
    what = observed(run.summary for run in runs)
    rows = []
    for run in runs:
        summary = run.summary
        started = summary.started
        median_s = summary.median_round_s
        speed_up = first_s / median_s if first_s and median_s and run.work == runs[0].work else None
        rows.append(
            (
                run.name,
                str(len(summary.sites)),
                (
                    f"{len(summary.rounds)} of {started.rounds}"
                    if summary.pace is None
                    else units.count(summary.pace.updates, "update")
                ),
                units.seconds(median_s),
                units.times(speed_up),
                units.seconds(started.predicted_s if started.shaped else None),
                units.times(summary.measured_over_predicted),
                units.percent(summary.share_of_limit),
                units.seconds(median(summary.compute_s) if summary.compute_s else None),
                _accuracy(summary),
                _time_to_accuracy(summary),
                _checksums(summary),
            )
        )
    headings = (
        "route",
        "sites",
        "rounds",
        "median round",
        f"speed-up over {runs[0].name}",
        "predicted",
        f"{what} / predicted",
        "share of limit",
        "computing, a round",
        "final accuracy",
        "time to accuracy",
        "checksums",
    )
    return _page.section(
        "Results",
        "A round's time is that of its slowest site; medians are over the rounds that every site "
        "completed.",
        _page.table(headings, rows, numbers=range(1, 9)),
    )


def paces(runs: Sequence[Run]) -> str:
    """Return what paces came to; nothing where no run has servers."""
    rows = []
    for run in runs:
        pace = run.summary.pace
        if pace is None:
            continue
        whole = [each for series in pace.iterations.values() for each in series if each.next_s]
        rows.append(
            (
                run.name,
                str(pace.updates),
                str(pace.discarded),
                units.seconds(pace.iteration_s),
                *(
                    units.seconds(fmean(phase) if whole else None)
                    for phase in (
                        [each.pull_s for each in whole],
                        [each.compute_s for each in whole],
                        [each.push_s for each in whole],
                        [each.blocked_s for each in whole],
                    )
                ),
                units.percent(pace.at_once),
                *(
                    str(mean_use(run.summary, run.overlay, run.plan, way) or units.NONE)
                    for way in WAYS
                ),
                "-" if pace.mean_missed is None else f"{pace.mean_missed:.1f}",
                str(max(pace.missed, default=0)),
            )
        )
    if not rows:
        return ""
    headings = (
        "route",
        "updates",
        "discarded",
        "iteration",
        "pulling",
        "computing",
        "pushing",
        "waiting for permission",
        "updates at once",
        "servers' ports, in",
        "servers' ports, out",
        "missed",
        "missed at most",
    )
    return _page.section(
        "Pace: how workers went on",
        "Means over all iterations of all workers. An iteration lasts from one permission to the "
        "next. Updates are at once where nothing lies between them and the one before. Missed are "
        "the updates of others that became part of the model between a worker's pull and its own. "
        "Ports are as busy as is said on average over the run, all servers together: 100 % is all "
        "that they can carry.",
        _page.table(headings, rows, numbers=range(1, 13)),
    )


def _accuracy(summary: RunSummary) -> str:
    final, best = summary.final_accuracy, summary.best_accuracy
    if final is None or best is None:
        return "not evaluated"
    return f"{100 * final:.1f} %" + (f" (best {100 * best:.1f} %)" if best > final else "")


def _time_to_accuracy(summary: RunSummary) -> str:
    target = summary.started.target_accuracy
    if target is None:
        return "no target"
    reached_s = summary.time_to_accuracy_s(target)
    goal = units.percent(target)
    return f"{goal} not reached" if reached_s is None else f"{units.seconds(reached_s)} to {goal}"


def _checksums(summary: RunSummary) -> str:
    if summary.checksums_agree is None:
        return "not recorded"
    if summary.checksums_agree:
        return f"equal in {units.count(summary.checked_rounds, 'round')}"
    return f"DIFFER in {len(summary.disputes)} of {units.count(summary.checked_rounds, 'round')}"


def reasons(runs: Sequence[Run]) -> str:
    """Return what keeps each plan's rounds from being shorter."""
    rows = []
    for run in runs:
        started = run.summary.started
        link = bottleneck(run.overlay, run.plan)
        rows.append(
            (
                run.name,
                *_plan_cells(run.overlay, run.plan),
                units.seconds(link.seconds(started.buffer_bytes) if link else None),
                units.seconds(started.paper_s),
                units.seconds(started.limit_s),
            )
        )
    return _page.section(
        "Why: the busiest link under each plan",
        "Rates are those at the beginning of the run. The path-sum formula is the papers' "
        "prediction: it sums delays along a tree and does not see that trees share links.",
        _page.table(
            (*_PLAN_HEADINGS, "time it needs", "path-sum formula", "physical limit"),
            rows,
            numbers=(1, 2, 4, 5, 6, 7, 8),
        ),
    )


def plans(overlay: Overlay, named: Mapping[str, Plan]) -> str:
    """Return each plan's busiest link and the rate that follows."""
    rows = [
        (name, *_plan_cells(overlay, plan), units.rate(steady_rate_bps(plan, overlay)))
        for name, plan in named.items()
    ]
    return _page.section(
        "Busiest links",
        "The sustained rate is how much of the buffer a plan synchronises in a second once its "
        "trees are full: the busiest link's rate over its load.",
        _page.table((*_PLAN_HEADINGS, "sustained rate"), rows, numbers=(1, 2, 4, 5, 6)),
    )


_PLAN_HEADINGS = ("route", "trees", "roots", "busiest link", "its rate", "its load, a round")


def _plan_cells(overlay: Overlay, plan: Plan) -> tuple[str, ...]:
    """Return a plan's cells below `_PLAN_HEADINGS`, but for its name."""
    link = bottleneck(overlay, plan)
    return (
        str(len(plan.trees)),
        str(len({tree.root for tree in plan.trees})),
        link.name if link else units.NONE,
        units.rate(link.rate_bps) if link else units.NONE,
        units.buffers(link.load) if link else units.NONE,
    )


def shares(overlay: Overlay, named: Mapping[str, Plan]) -> str:
    """Return every tree of every plan: its root, share and depth."""
    rows = [
        (
            name,
            str(index + 1),
            overlay.sites[tree.root].name,
            units.percent(tree.share),
            str(_depth(tree.up)),
            str(_depth(tree.down)),
        )
        for name, plan in named.items()
        for index, tree in enumerate(plan.trees)
    ]
    return _page.section(
        "Shares",
        "What part of the buffer each tree carries, and how many tree edges the farthest site is "
        "from the root.",
        _page.table(
            ("route", "tree", "root", "share", "edges up", "edges down"), rows, numbers=(1, 3, 4, 5)
        ),
    )


def _depth(parents: Sequence[int]) -> int:
    """Return how many edges the farthest site is from the root."""
    deepest = 0
    for start in range(len(parents)):
        site, depth = parents[start], 0
        while site != NO_PARENT:
            site, depth = parents[site], depth + 1
        deepest = max(deepest, depth)
    return deepest


def what_ran(runs: Sequence[Run]) -> str:
    """Return what one needs to repeat each run."""
    rows = [
        (
            run.name,
            started.task,
            started.model,
            str(started.seed),
            units.size(started.buffer_bytes),
            f"{started.chunk_elements:,} elements",
            started.world,
            started.started_at or units.NONE,
            ", ".join(f"{name} {version}" for name, version in sorted(started.versions.items())),
            run.path.name,
        )
        for run in runs
        for started in (run.summary.started,)
    ]
    headings = (
        "route",
        "task",
        "model",
        "seed",
        "buffer",
        "chunk",
        "world",
        "started",
        "versions",
        "log",
    )
    return _page.section("What ran", "", _page.table(headings, rows, numbers=(3, 4, 5)))


def happenings(runs: Sequence[Run]) -> str:
    """Return what befell the runs: faults injected and sites lost; nothing where nothing did."""
    found = [
        (fault.at_s, run.name, "over" if fault.over else "injected", fault.detail)
        for run in runs
        for fault in run.summary.faults
    ]
    found += [
        (lost.at_s, run.name, f"{run.site(lost.site)} was lost", lost.detail)
        for run in runs
        for lost in run.summary.lost
    ]
    found += [
        (back.at_s, run.name, f"{run.site(back.site)} took part again", f"at {back.address}")
        for run in runs
        for back in run.summary.returned
    ]
    if not found:
        return ""
    rows = [
        (name, units.seconds(at_s), what, detail)
        for at_s, name, what, detail in sorted(found, key=lambda row: row[0])
    ]
    return _page.section(
        "What happened",
        "Faults that a script injected, sites that were lost, and those that came back, in order "
        "of time.",
        _page.table(("route", "at", "what", "detail"), rows, numbers=(1,)),
    )
