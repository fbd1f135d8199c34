"""A run for tables and pages: the summary of its log, with its overlay and plans."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from anabranch.log import units
from anabranch.log.events import (
    Event,
    RunEnded,
    RunStarted,
    SchedulerRestarted,
    UnknownEvent,
)
from anabranch.log.store import LogError, read_events
from anabranch.log.summary import RunSummary, summarise
from anabranch.overlay import Basis, Overlay
from anabranch.overlay import loads as load_overlay
from anabranch.plan import NO_PARENT, Group, Plan, link_load, port_bps, port_load
from anabranch.plan import loads as load_plan
from anabranch_lab.reports._known_rates import known_rates
from anabranch_lab.reports._twin import TwinRow, compare


@dataclass(frozen=True)
class TreeSpan:
    """A tree of a forest, and when it was in force: seconds since the run began."""

    group: Group
    from_s: float
    until_s: float  # infinite: to the end of the run


@dataclass(frozen=True)
class Run:
    """The contents of one run's log."""

    name: str  # unique among the runs of a report
    path: Path  # of the log
    summary: RunSummary  # of its events
    overlay: Overlay  # from its first event
    plan: Plan
    issued: tuple[Plan, ...]  # the plans issued later, as in the summary

    @classmethod
    def of(cls, events: Iterable[Event | UnknownEvent], path: Path) -> Run:
        """Sum up the events of one log.

        Raises:
            LogError: the first event, or a plan, is inconsistent.
        """
        try:
            summary = summarise(events)
            overlay = load_overlay(summary.started.overlay_toml)
            plan = load_plan(summary.started.plan_json)
            issued = tuple(load_plan(event.plan_json) for event in summary.plans)
            for each in (plan, *issued):
                each.check_fits(overlay)
            if summary.sites != overlay.names:
                raise ValueError("the run's sites are not those of its overlay")
        except LogError:
            raise
        except ValueError as error:
            raise LogError(f"{path}: {error}") from error
        return cls(summary.label, path, summary, overlay, plan, issued)

    @property
    def work(self) -> tuple[str, int, bool]:
        """Runs with equal values have comparable round times."""
        started = self.summary.started
        return started.overlay_toml, started.buffer_bytes, started.shaped

    @property
    def measured_network(self) -> bool:
        """Whether the run measured links, or planned again."""
        return bool(self.summary.measured or self.summary.plans)

    @property
    def trees(self) -> list[TreeSpan]:
        """The trees of the run's forests, in the order in which they were formed."""
        plans = {plan.version: plan for plan in (self.plan, *self.issued)}
        eras = [(0.0, self.plan)]
        eras += [(each.at_s, plans[each.version]) for each in self.summary.formed]
        spans: dict[int, TreeSpan] = {}  # by the version of the tree's own plan
        ends_s = [*(at_s for at_s, _ in eras[1:]), math.inf]
        for (from_s, plan), until_s in zip(eras, ends_s, strict=True):
            for group in plan.groups:
                before = spans.get(group.plan.version)
                since_s = from_s if before is None else before.from_s
                spans[group.plan.version] = TreeSpan(group, since_s, until_s)
        return list(spans.values())

    @property
    def latency_s(self) -> float:
        """The part of a round's time that no size changes: latency to a root and back."""
        delay_s = {(link.source, link.target): link.latency_s for link in self.overlay.links}

        def farthest_s(ways: Iterable[Sequence[int]]) -> float:
            return max((sum(delay_s[hop] for hop in pairwise(way)) for way in ways), default=0.0)

        plan, members = self.plan, self.plan.members
        return max(
            (
                farthest_s(plan.way_up(tree, site) for site in members)
                + farthest_s(plan.way_down(tree, site) for site in members)
                for tree in range(len(plan.trees))
            ),
            default=0.0,
        )

    @property
    def bottleneck(self) -> Bottleneck | None:
        """The busiest link or port of the first plan; None if a rate that it uses is assumed."""
        known = known_rates(self.summary, self.overlay)
        basis = {(link.source, link.target): link.basis for link in known.links}
        if any(basis[pair] == "assumed" for pair in link_load(self.plan)):
            return None
        return bottleneck(known, self.plan)

    def site(self, index: int) -> str:
        """Return a site's name, or a placeholder for an index without a name in the log."""
        names = self.summary.sites
        return names[index] if 0 <= index < len(names) else f"site {index}"

    def link(self, pair: tuple[int, int]) -> str:
        """Return the name of a link, or of two neighbours in a tree."""
        return f"{self.site(pair[0])} → {self.site(pair[1])}"

    def problems(self) -> list[str]:
        """Return caveats that a reader must know before trusting the figures, a clause each."""
        run = self.summary
        found = [] if run.error is None else [f"the run ended with an error: {run.error}"]
        if not run.ended:
            found.append(
                f"the log stops at {units.seconds(run.total_s)} without an end: the run is still "
                "going or was killed"
            )
        found += [
            f"{self.site(lost.site)} was lost at {units.seconds(lost.at_s)}: {lost.detail}"
            for lost in run.lost
            if lost.detail != run.error
        ]
        found += [
            f"{self.site(back.site)} took part again from {units.seconds(back.at_s)} on"
            for back in run.returned
        ]
        if run.faults:
            kinds = units.tally(Counter(fault.fault for fault in run.faults if not fault.over))
            found.append(f"a script injected faults, so times include them: {kinds}")
        found += [
            f"the result of round {dispute.round} is not the same everywhere: "
            f"{', '.join(map(self.site, dispute.sites))} differ from the others"
            for dispute in run.disputes
        ]
        lanes = {each.site: (each.strands, each.why) for each in run.transports}
        found += [
            f"the lanes of {units.count(sites, 'site')} have "
            f"{units.count(strands, 'connection')} each, because {why}"
            for (strands, why), sites in sorted(Counter(lanes.values()).items())
        ]
        if run.refused:
            found.append(f"messages were refused: {units.tally(run.refused)}")
        if run.unknown:
            found.append(f"events of another release are left out: {units.tally(run.unknown)}")
        if run.started.shaped and not run.links_held:
            found.append(
                f"the relay of the emulated links was {units.percent(run.relay_busy)} busy while "
                "it carried data, so times are this machine's more than the network's, and "
                "predictions and the physical limit do not apply; take fewer sites, lower rates "
                "or links without delay"
            )
        if not run.started.shaped:
            found.append(
                "links were not held to the overlay's rates, so predictions and the physical "
                "limit do not apply"
            )
        return found


def read_run(path: Path) -> Run:
    """Read one log.

    Raises:
        LogError: it cannot be read, or its first event or a plan is inconsistent.
    """
    return Run.of((event for _, event in read_events(path)), path)


def read_runs(paths: Iterable[Path]) -> list[Run]:
    """Read logs, and join the logs of one run whose scheduler was started again.

    Raises:
        LogError: a log cannot be read, or its first event or a plan is inconsistent.
    """
    logs = [(path, [event for _, event in read_events(path)]) for path in paths]
    joined: list[tuple[Path, list[Event | UnknownEvent]]] = []
    # In order of time. Simulated runs have no date, and no log continues them.
    for path, events in sorted(logs, key=lambda log: _started_at(log[1])):
        before = next((log for log in reversed(joined) if _continues(events, log[1])), None)
        if before is None:
            joined.append((path, events))
        else:
            before[1][:] = [each for each in before[1] if not isinstance(each, RunEnded)]
            before[1].extend(events[1:])
    order = {path: number for number, (path, _) in enumerate(logs)}
    joined.sort(key=lambda log: order[log[0]])
    return [Run.of(events, path) for path, events in joined]


def _started_at(events: Sequence[Event | UnknownEvent]) -> str:
    first = events[0] if events else None
    return (first.started_at or "") if isinstance(first, RunStarted) else ""


def _continues(
    events: Sequence[Event | UnknownEvent], before: Sequence[Event | UnknownEvent]
) -> bool:
    """Return whether a log's events continue the run of an earlier log."""
    if not events or not before:
        return False
    first, earlier = events[0], before[0]
    return (
        isinstance(first, RunStarted)
        and isinstance(earlier, RunStarted)
        and first.started_at is not None
        and _is_later_part(events)
        and (first.task, first.overlay_toml, first.buffer_bytes)
        == (earlier.task, earlier.overlay_toml, earlier.buffer_bytes)
        and events[1].at_s >= before[-1].at_s
    )


def _is_later_part(events: Sequence[Event | UnknownEvent]) -> bool:
    """Return whether a log begins with a restart, so that its run began in another log."""
    return len(events) > 1 and isinstance(events[1], SchedulerRestarted)


@dataclass(frozen=True)
class Twin:
    """One route in both worlds, and their comparison; the row's label is unique."""

    simulated: Run
    measured: Run
    row: TwinRow

    @property
    def problem(self) -> str | None:
        """A caveat for readers who compare totals, or None."""
        row = self.row
        if row.simulated_rounds == row.measured_rounds:
            return None
        return (
            f"{row.label}: the simulated run completed "
            f"{units.count(row.simulated_rounds, 'round')} and the measured one "
            f"{row.measured_rounds}, so their totals are not of the same work"
        )


def pair_up(pairs: Iterable[tuple[Run, Run]]) -> list[Twin]:
    """Compare pairs of runs, simulated and measured.

    Raises:
        LogError: the two runs of a pair cannot be compared; see `anabranch_lab.reports.compare`.
    """
    twins = []
    for simulated, measured in pairs:
        try:
            row = compare(simulated.summary, measured.summary)
        except ValueError as error:
            raise LogError(f"{simulated.path} and {measured.path}: {error}") from error
        twins.append(Twin(simulated, measured, row))
    names = distinct(twin.row.label for twin in twins)
    return [
        Twin(
            replace(twin.simulated, name=f"{name}, simulated"),
            replace(twin.measured, name=f"{name}, measured"),
            replace(twin.row, label=name),
        )
        for name, twin in zip(names, twins, strict=True)
    ]


def name_apart(runs: Sequence[Run]) -> list[Run]:
    """Give every run a unique name: its label, with its file where labels are repeated."""
    count = Counter(run.summary.label for run in runs)
    names = distinct(
        [run.name if count[run.name] == 1 else f"{run.name} ({run.path.stem})" for run in runs]
    )
    return [replace(run, name=name) for name, run in zip(names, runs, strict=True)]


def distinct(names: Iterable[str]) -> list[str]:
    """Return names, with a number added to each repeated one.

    >>> distinct(["star", "mst", "star"])
    ['star', 'mst', 'star #2']
    """
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return found


@dataclass(frozen=True)
class Bottleneck:
    """The link or port that limits a plan's rounds."""

    name: str  # of the link, or of the site and its port
    load: float  # buffers it carries in a round
    rate_bps: float  # its goodput when the run begins
    pair: tuple[int, int] | None = None  # the link; None for a port
    basis: Basis = "given"  # of the rate

    def seconds(self, buffer_bytes: int) -> float:
        """Return how long it needs to carry one round, seconds."""
        return 8 * buffer_bytes * self.load / self.rate_bps


def bottleneck(overlay: Overlay, plan: Plan) -> Bottleneck | None:
    """Return the busiest link or port; None for a plan without links."""
    load, names = link_load(plan), overlay.names
    used = [
        Bottleneck(
            f"{names[pair[0]]} → {names[pair[1]]}", carried, link.goodput_bps, pair, link.basis
        )
        for link in overlay
        if (carried := load.get(pair := (link.source, link.target))) is not None
    ]
    used += [
        Bottleneck(f"{names[port[0]]}, {port[1]}", carried, port_bps(overlay, port))
        for port, carried in port_load(plan, overlay).items()
    ]
    return max(used, key=lambda each: each.load / each.rate_bps, default=None)


def fastest_and_baseline(runs: Sequence[Run]) -> tuple[Run | None, Run | None]:
    """Return the run with the shortest exchange, and the baseline for comparisons.

    The baseline is the first star that is not the fastest run. Without such a star it is the
    slowest run. Both are None if no run has completed a round.
    """
    timed = [(run, s) for run in runs if (s := run.summary.median_round_s) is not None]
    fastest, _ = min(timed, key=lambda pair: pair[1], default=(None, 0.0))
    slowest, _ = max(timed, key=lambda pair: pair[1], default=(None, 0.0))
    stars = [run for run, _ in timed if is_star(run.plan) and run is not fastest]
    return fastest, stars[0] if stars else slowest


def is_star(plan: Plan) -> bool:
    """Return whether every site exchanges the whole buffer with one root: the usual baseline."""
    root = plan.trees[0].root
    return all({tree.root, *tree.up, *tree.down} <= {root, NO_PARENT} for tree in plan.trees)
