"""Every table of runs, twins and plans, for terminals and pages.

A table for both has one list of columns: a terminal shows those marked brief, a page all. A column
that is empty in every row is left out of both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from anabranch.log import units
from anabranch.log.by_site import Spread, spread_of
from anabranch.log.columns import Column, Table
from anabranch.log.events import UpdateApplied
from anabranch.log.pacing import Iteration, PaceSummary
from anabranch.overlay import Overlay
from anabranch.plan import NO_PARENT, Plan, steady_rate_bps
from anabranch_lab.reports._awareness import blockers, tree_change
from anabranch_lab.reports._ports import WAYS, mean_use
from anabranch_lab.reports._twin import AGREEMENT, TwinRow, median_error, worst_row
from anabranch_lab.reports.runs import (
    Bottleneck,
    Run,
    TreeSpan,
    Twin,
    bottleneck,
    fastest_and_baseline,
)

_LISTED_PLANS = 40  # of each run
_LISTED_WAITS = 12  # of each run
_LISTED_SITES = 40  # of each run
_LISTED_LINKS = 40  # of each twin


_RELAY: Column[Run] = Column(
    "relay busy", lambda run: units.percent(run.summary.relay_busy), brief=True
)


def results(runs: Sequence[Run]) -> Table:
    """Return runs that all-reduce side by side; runs with servers are left out.

    - ``exchange`` is the median time of a round's exchange at its slowest site, ``worst`` the
      longest.
    - ``speed-up`` is of the exchange, over the baseline of the report's headline, where both runs
      did the same work (see ``fastest_and_baseline``).
    - ``predicted``, and ``limit``, the share of the physical limit, hold for the network at the
      beginning of the run.
    - ``per round`` is the median time from the end of one round to the end of the next, computing
      included.
    - ``to target`` is the time until the target accuracy was first reached.
    - ``relay busy`` is how busy the relay of emulated links was while it carried data. If it was
      busier than ``anabranch.log.summary.MOST_BUSY``, there is no ``limit``.

    Sites that gossip have only one round, at the end, which is not counted.
    """
    runs = [run for run in runs if run.summary.pace is None]

    baseline: Run | None = None
    if len(runs) > 1:  # a run alone does not compare with itself
        _, baseline = fastest_and_baseline([run for run in runs if run.work == runs[0].work])

    def rounds(run: Run) -> str:
        if run.summary.started.gossips:
            return units.NONE
        return f"{len(run.summary.rounds)}/{run.summary.started.rounds}"

    def computing_s(run: Run) -> float | None:
        return median(run.summary.compute_s) if run.summary.compute_s else None

    columns: tuple[Column[Run], ...] = (
        *_RUN,
        Column("rounds", rounds, brief=True),
        Column("exchange", lambda run: units.seconds(run.summary.median_round_s), brief=True),
        Column("worst", lambda run: units.seconds(max(run.summary.round_s, default=None)), True),
        Column("speed-up", lambda run: units.times(speed_up(run, baseline)), brief=True),
        Column("predicted", _predicted, brief=True),
        Column("over predicted", lambda run: units.times(run.summary.measured_over_predicted)),
        Column("limit", lambda run: units.percent(run.summary.share_of_limit), brief=True),
        Column("per round", lambda run: units.seconds(run.summary.median_interval_s), brief=True),
        _RELAY,
        Column("computing", lambda run: units.seconds(computing_s(run))),
        *_OUTCOME,
    )
    return Table.of(columns, runs)


def speed_up(run: Run | None, baseline: Run | None) -> float | None:
    """Return the baseline's exchange time over a run's; None if it is unknown."""
    if run is None or baseline is None or run.work != baseline.work:
        return None
    median_s, base_s = run.summary.median_round_s, baseline.summary.median_round_s
    return base_s / median_s if base_s and median_s else None


def paces(runs: Sequence[Run]) -> Table:
    """Return runs with servers side by side; runs that all-reduce are left out.

    - ``iteration`` is the mean time from one permission of a worker to its next. Its parts are
      ``pulling``, ``computing``, ``pushing`` and ``blocked``, the wait for permission.
    - ``at once`` is the share of updates whose gap to the update before is tiny, compared with an
      iteration.
    - ``missed`` is how many updates of others an update missed, on average and at most.
    - ``barred`` is how many outliers were found among clients, or among workers that stand for
      themselves.
    - ``ports`` is how busy the servers' ports were, in and out, on average over the run: a share of
      their capacity, or a rate where links were not held to the overlay's rates.
    """

    def pace(run: Run) -> PaceSummary:
        assert run.summary.pace is not None
        return run.summary.pace

    def phase(name: str) -> Callable[[Run], str]:
        def cell(run: Run) -> str:
            lasted_s = [getattr(each, name) for each in pace(run).whole]
            return units.seconds(fmean(lasted_s) if lasted_s else None)

        return cell

    def missed(run: Run) -> str:
        mean = pace(run).mean_missed
        return units.NONE if mean is None else f"{mean:.1f}, {max(pace(run).missed)}"

    def ports(run: Run) -> str:
        uses = [mean_use(run.summary, run.overlay, run.plan, way) for way in WAYS]
        return ", ".join(str(use or units.NONE) for use in uses) if any(uses) else units.NONE

    columns: tuple[Column[Run], ...] = (
        *_RUN,
        Column("updates", lambda run: str(pace(run).updates), brief=True),
        Column("discarded", lambda run: str(pace(run).discarded), brief=True),
        Column("barred", lambda run: str(pace(run).barred or units.NONE), brief=True),
        Column("iteration", lambda run: units.seconds(pace(run).iteration_s), brief=True),
        Column("pulling", phase("pull_s")),
        Column("computing", phase("compute_s")),
        Column("pushing", phase("push_s")),
        Column("blocked", phase("blocked_s"), brief=True),
        Column("at once", lambda run: units.percent(pace(run).at_once), brief=True),
        Column("missed", missed, brief=True),
        Column("ports", ports, brief=True),
        Column("predicted", _predicted),
        Column("whole run", lambda run: units.seconds(run.summary.total_s), brief=True),
        _RELAY,
        *_OUTCOME,
    )
    return Table.of(columns, [run for run in runs if run.summary.pace is not None])


@dataclass(frozen=True)
class _Tree:
    """A tree of a run's forest, and the iterations and steps of its first worker."""

    run: Run
    span: TreeSpan
    series: Sequence[Iteration]
    steps: Sequence[UpdateApplied]

    @property
    def place(self) -> str:
        """The worker that alone sends to the server; else the roots of the trees."""
        group = self.span.group
        roots = dict.fromkeys(tree.root for tree in group.plan.trees)
        tree = group.plan.trees[0]
        (child, *more) = tree.children(tree.up)[tree.root] or [tree.root]
        if len(group.plan.trees) > 1 or more or tree.root in group.workers:
            return ", ".join(map(self.name, roots))
        return self.name(child)

    def name(self, site: int) -> str:
        """Return a site's name."""
        return self.run.overlay.sites[site].name


def forests(runs: Sequence[Run]) -> Table:
    """Return the trees of runs whose workers move in groups.

    - ``period`` is the mean time from one permission of a tree's first worker to its next.
    - ``missed`` is how many updates of other trees one of its updates missed, on average.
    - ``factor`` is the least and the greatest factor of its steps, where a rule weighs updates.
    """
    rows = []
    for run in runs:
        pace = run.summary.pace
        for span in () if pace is None else run.trees:
            assert pace is not None
            first = span.group.workers[0]
            steps = pace.steps_of(first, span.from_s, span.until_s)
            series = [
                each
                for each in pace.iterations.get(first, ())
                if span.from_s <= each.went_s < span.until_s
            ]
            rows.append(_Tree(run, span, series, steps))
    changed = any(len({row.span.from_s for row in rows if row.run is run}) > 1 for run in runs)

    def workers(tree: _Tree) -> str:
        return ", ".join(map(tree.name, tree.span.group.workers))

    def formed(tree: _Tree) -> str:
        return units.seconds(tree.span.from_s) if changed else units.NONE

    def period_s(tree: _Tree) -> float | None:
        lasted = [each.next_s - each.went_s for each in tree.series if each.next_s is not None]
        return fmean(lasted) if lasted else None

    def missed(tree: _Tree) -> str:
        return f"{fmean(each.missed for each in tree.steps):.1f}" if tree.steps else units.NONE

    def factor(tree: _Tree) -> str:
        found = [each.factor for each in tree.steps if each.factor is not None]
        return f"{min(found):.3g} to {max(found):.3g}" if found else units.NONE

    columns: tuple[Column[_Tree], ...] = (
        Column("tree at", lambda tree: tree.place, brief=True, number=False),
        Column("route", lambda tree: tree.run.name if len(runs) > 1 else units.NONE, number=False),
        Column("workers", workers, brief=True, number=False),
        Column("formed", formed, brief=True),
        Column("period", lambda tree: units.seconds(period_s(tree)), brief=True),
        Column("updates", lambda tree: str(len(tree.steps)), brief=True),
        Column("missed", missed, brief=True),
        Column("factor", factor, brief=True),
    )
    return Table.of(columns, rows)


def accuracy_by_site(runs: Sequence[Run]) -> Table:
    """Return each site's latest accuracy, the least accurate site of each run first.

    See `anabranch.log.by_site`. ``labels`` is how many of the classes a site has samples of.
    ``commonest`` is its commonest class, with that class's share of its samples. Runs with equal
    rows share one row, such as the same training over several routes.
    """
    shown, more = [], []
    for run in runs:
        accuracy = run.summary.site_accuracy
        sites = sorted(accuracy, key=lambda site: accuracy[site])
        shown += [(run, site) for site in sites[:_LISTED_SITES]]
        more += _more(run.name, len(sites) - _LISTED_SITES, "site")

    def held(row: tuple[Run, int]) -> Sequence[int]:
        run, site = row
        return run.summary.labels[site]

    def labels(row: tuple[Run, int]) -> str:
        return f"{sum(count > 0 for count in held(row))} of {len(held(row))}"

    def commonest(row: tuple[Run, int]) -> str:
        most = max(held(row))
        return f"{held(row).index(most)}, {units.percent(most / sum(held(row)))}"

    columns: tuple[Column[tuple[Run, int]], ...] = (
        Column("site", lambda row: row[0].site(row[1]), brief=True, number=False),
        Column("route", lambda row: row[0].name if len(runs) > 1 else units.NONE, number=False),
        Column("samples", lambda row: f"{sum(held(row)):,}", brief=True),
        Column("labels", labels),
        Column("commonest", commonest),
        Column("accuracy", lambda row: _accuracy(row[0].summary.site_accuracy[row[1]]), brief=True),
    )
    return replace(_folded(Table.of(columns, shown), "route", len(runs)), more=more)


def _folded(table: Table, heading: str, of: int) -> Table:
    """Merge the rows of a table that differ only in one column; the merged row lists its cells.

    Args:
        table: any table.
        heading: of that column.
        of: a merged row of so many cells says "all" instead of listing them.
    """
    if heading not in table.headings:
        return table
    column = table.headings.index(heading)
    cells: dict[tuple[str, ...], list[str]] = {}
    for row in table.rows:
        cells.setdefault((*row[:column], *row[column + 1 :]), []).append(row[column])
    rows = [
        [*row[:column], f"all {of}" if len(found) == of else ", ".join(found), *row[column:]]
        for row, found in cells.items()
    ]
    return replace(table, rows=rows)


def _predicted(run: Run) -> str:
    return units.seconds(run.summary.started.predicted_s if run.summary.started.shaped else None)


def _accuracy(value: float | None) -> str:
    return units.NONE if value is None else f"{100 * value:.1f} %"


def _of_sites(run: Run, which: Callable[[Spread], float]) -> str:
    spread = spread_of(run.summary.site_accuracy.values())
    return units.NONE if spread is None else _accuracy(which(spread))


def _variance(run: Run) -> str:
    spread = spread_of(run.summary.site_accuracy.values())
    return units.NONE if spread is None else f"{spread.variance:.3g} points²"


def _to_target(run: Run) -> str:
    target = run.summary.started.target_accuracy
    if target is None:
        return units.NONE
    reached_s = run.summary.time_to_accuracy_s(target)
    return "not reached" if reached_s is None else units.seconds(reached_s)


def _bytes_to_target(run: Run) -> str:
    target = run.summary.started.target_accuracy
    sent = None if target is None else run.summary.bytes_to_accuracy(target)
    return units.NONE if sent is None else units.size(sent)


def _checksums(run: Run) -> str:
    checked = units.count(run.summary.checked_rounds, "round")
    if run.summary.checksums_agree is None:
        return "not recorded"
    if run.summary.checksums_agree:
        return f"equal in {checked}"
    return f"DIFFER in {len(run.summary.disputes)} of {checked}"


_RUN: tuple[Column[Run], ...] = (
    Column("route", lambda run: run.name, brief=True, number=False),
    Column("sites", lambda run: str(len(run.summary.sites))),
)
_OUTCOME: tuple[Column[Run], ...] = (
    Column("accuracy", lambda run: _accuracy(run.summary.final_accuracy), brief=True),
    Column("best", lambda run: _accuracy(run.summary.best_accuracy)),
    Column("worst site", lambda run: _of_sites(run, lambda spread: spread.least), brief=True),
    Column("best site", lambda run: _of_sites(run, lambda spread: spread.most)),
    Column("sites' variance", lambda run: _variance(run)),
    Column("target", lambda run: units.percent(run.summary.started.target_accuracy)),
    Column("to target", _to_target, brief=True),
    Column("bytes to target", _bytes_to_target),
    Column("checksums", _checksums, number=False),
)


def twins(rows: Sequence[TwinRow]) -> Table:
    """Return both worlds side by side, a row for each route.

    ``error`` is the difference of the measured and simulated times per round, over the simulated.
    """

    def rounds(row: TwinRow) -> str:
        ours, theirs = row.simulated_rounds, row.measured_rounds
        return str(ours) if ours == theirs else f"{ours} and {theirs}"

    def payload(row: TwinRow) -> str:
        if row.bytes_agree is None:
            return "not recorded"
        if row.bytes_agree:
            return f"equal, {units.size(row.simulated_bytes)}"
        return f"DIFFERS on {units.count(len(row.differing_links), 'link')}"

    def checksums(row: TwinRow) -> str:
        if row.checksums_agree is None:
            return "not recorded"
        across = {None: "", True: ", and in both worlds", False: "; other values in each world"}
        agree = f"equal on all sites{across[row.same_results]}"
        return agree if row.checksums_agree else "DIFFER between sites"

    agrees = {None: units.NONE, True: "yes", False: "NO"}
    within = f"within {units.percent(AGREEMENT)}"
    columns: tuple[Column[TwinRow], ...] = (
        Column("route", lambda row: row.label, brief=True, number=False),
        Column("simulated", lambda row: units.seconds(row.simulated_s), brief=True),
        Column("measured", lambda row: units.seconds(row.measured_s), brief=True),
        Column("measured/simulated", lambda row: units.ratio(row.measured_over_simulated), True),
        Column("error", lambda row: units.percent(row.error), brief=True),
        Column(within, lambda row: agrees[row.agrees], number=False),
        Column("predicted", lambda row: units.seconds(row.predicted_s)),
        Column("rounds", rounds),
        Column("payload", payload, number=False),
        Column("checksums", checksums, number=False),
    )
    return Table.of(columns, rows)


def twin_errors(rows: Sequence[TwinRow]) -> str:
    """Return the errors over all routes, as a table's caption."""
    worst = worst_row(rows)
    worst_error = units.percent(worst.error if worst else None)
    return f"median, worst error: {units.percent(median_error(rows))}, {worst_error}"


def differing_links(twins: Sequence[Twin]) -> Table:
    """Return the links whose payload differs between the worlds, largest difference first."""
    cells, more = [], []
    for twin in twins:
        row = twin.row
        recorded = row.differing_links.items() if row.bytes_recorded else ()
        links = sorted(recorded, key=lambda item: -abs(item[1][1] - item[1][0]))
        cells += [
            (
                row.label,
                twin.simulated.link(pair),
                f"{ours:,}",
                f"{theirs:,}",
                f"{theirs - ours:+,}",
            )
            for pair, (ours, theirs) in links[:_LISTED_LINKS]
        ]
        more += _more(row.label, len(links) - _LISTED_LINKS, "link")
    headings = ("route", "link", "simulated, bytes", "measured, bytes", "difference")
    return Table(headings, cells, numbers=(2, 3, 4), more=more)


def _more(name: str, number: int, what: str) -> list[str]:
    return [f"{name}: {units.count(number, f'more {what}')} not listed."] if number > 0 else []


def reasons(runs: Sequence[Run]) -> Table:
    """Return the busiest link under each run's first plan, and how long it needs for a round."""
    rows = []
    for run in runs:
        started, busiest = run.summary.started, run.bottleneck
        needs_s = busiest.seconds(started.buffer_bytes) if busiest else None
        paper_s = None if started.assumes_rates else started.paper_s
        times_s = (needs_s, paper_s, started.limit_s)
        rows.append((*_busiest(run.name, run.plan, busiest), *map(units.seconds, times_s)))
    headings = (*_BUSIEST, "time it needs", "path-sum formula", "physical limit")
    return Table(headings, rows, numbers=(1, 2, 4, 5, 6, 7, 8))


def plans(overlay: Overlay, named: Mapping[str, Plan]) -> Table:
    """Return each plan's busiest link and the rate that the plan can sustain."""
    rows = [
        (
            *_busiest(name, plan, bottleneck(overlay, plan)),
            units.rate(steady_rate_bps(plan, overlay)),
        )
        for name, plan in named.items()
    ]
    return Table((*_BUSIEST, "sustained rate"), rows, numbers=(1, 2, 4, 5, 6))


_BUSIEST = ("route", "trees", "roots", "busiest link", "its rate", "its load, a round")


def _busiest(name: str, plan: Plan, found: Bottleneck | None) -> tuple[str, ...]:
    link = None
    if found is not None:
        measured = ", measured" if found.basis == "measured" else ""
        rate = f"{units.rate(found.rate_bps)}{measured}"
        link = found.name, rate, units.buffers(found.load)
    roots = len({tree.root for tree in plan.trees})
    return name, str(len(plan.trees)), str(roots), *(link or (units.NONE,) * 3)


def shares(overlay: Overlay, named: Mapping[str, Plan]) -> Table:
    """Return every tree of every plan: its root, its share and how deep it is."""
    rows = []
    for name, plan in named.items():
        for number, tree in enumerate(plan.trees, start=1):
            root, depths = overlay.sites[tree.root].name, (_depth(tree.up), _depth(tree.down))
            rows.append((name, str(number), root, units.percent(tree.share), *map(str, depths)))
    headings = ("route", "tree", "root", "share", "edges up", "edges down")
    return Table(headings, rows, numbers=(1, 3, 4, 5))


def _depth(parents: Sequence[int]) -> int:
    """Return the number of edges between the root and the farthest site."""
    deepest = 0
    for site in range(len(parents)):
        depth = 0
        while (site := parents[site]) != NO_PARENT:
            depth += 1
        deepest = max(deepest, depth)
    return deepest


def plans_issued(runs: Sequence[Run]) -> Table:
    """Return the plans of the runs that planned again, each run's first one before the others."""
    rows, more = [], []
    for run in runs:
        events, started = run.summary.plans, run.summary.started
        if not events:
            continue
        predicted = units.seconds(started.predicted_s if started.shaped else None)
        trees = units.count(len(run.plan.trees), "tree")
        listed = [(run.plan, 0.0, "the first plan", predicted, trees)]
        for event, before, plan in zip(events, (run.plan, *run.issued), run.issued, strict=False):
            predicted = (
                "-"
                if event.before_s is None or event.after_s is None
                else f"{units.seconds(event.before_s)} → {units.seconds(event.after_s)}"
            )
            trees = str(tree_change(before, plan))
            if plan.groups:
                trees = f"a forest of {len(plan.groups)}"
            listed.append((plan, event.at_s, event.why, predicted, trees))
        for plan, at_s, *words in listed[: 1 + _LISTED_PLANS]:
            took_s = [done.seconds for done in run.summary.rounds if done.version == plan.version]
            ran = str(len(took_s)), units.seconds(median(took_s) if took_s else None)
            rows.append((run.name, units.seconds(at_s), str(plan.version), *words, *ran))
        more += _more(run.name, len(events) - _LISTED_PLANS, "plan")
    headings = ("route", "issued", "plan", "why", "predicted round, old plan → new", "trees")
    ran = ("rounds under it", "their median")
    return Table((*headings, *ran), rows, numbers=(1, 2, 4, 6, 7), words=(3,), more=more)


def waits(runs: Sequence[Run]) -> Table:
    """Return the links on which rounds waited, those where most waiting began first."""
    rows, more = [], []
    for run in runs:
        found, waits = blockers(run.summary), run.summary.waits
        listed = [
            (run.link((each.source, each.target)), len(each.began), each.median_s, each.passed_on)
            for each in found[:_LISTED_WAITS]
        ]
        more += _more(run.name, len(found) - _LISTED_WAITS, "link")
        if unknown := sum(wait.began is None for wait in waits):
            listed.append(("own sending, or unknown", unknown, None, 0))
        for link, began, median_s, passed_on in listed:
            share, took = units.percent(began / len(waits)), units.seconds(median_s)
            rows.append((run.name, link, str(began), share, took, str(passed_on)))
    headings = ("route", "message waited for", "rounds it held up", "share of rounds")
    medians = ("their median", "rounds it passed waiting on")
    return Table((*headings, *medians), rows, numbers=(2, 3, 4, 5), more=more)


def happenings(runs: Sequence[Run]) -> Table:
    """Return faults injected, sites lost and back, and early ends, in order of time."""
    found = []
    for run in runs:
        summary, name = run.summary, run.name
        found += [
            (each.at_s, name, "over" if each.over else "injected", each.detail)
            for each in summary.faults
        ]
        found += [
            (each.at_s, name, f"{run.site(each.site)} was lost", each.detail)
            for each in summary.lost
        ]
        found += [
            (each.at_s, name, f"{run.site(each.site)} took part again", f"at {each.address}")
            for each in summary.returned
        ]
        if summary.reason is not None:
            found.append((summary.total_s, name, "ended", summary.reason))
    found.sort(key=lambda row: row[0])
    rows = [(name, units.seconds(at_s), what, detail) for at_s, name, what, detail in found]
    return Table(("route", "at", "what", "detail"), rows, numbers=(1,))


def what_ran(runs: Sequence[Run]) -> Table:
    """Return the data needed to repeat each run."""
    rows = []
    for run in runs:
        started = run.summary.started
        versions = ", ".join(f"{name} {found}" for name, found in sorted(started.versions.items()))
        what = (run.name, started.task, started.model, str(started.seed))
        sizes = (units.size(started.buffer_bytes), f"{started.chunk_elements:,} elements")
        where = (started.world, started.started_at or units.NONE, versions, run.path.name)
        rows.append((*what, *sizes, *where))
    headings = ("route", "task", "model", "seed", "buffer", "chunk", "world")
    return Table((*headings, "started", "versions", "log"), rows, numbers=(3, 4, 5))
