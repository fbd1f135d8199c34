"""The runs a report tells of: logs read, named, and what keeps their rounds from being shorter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from anabranch.overlay import Overlay
from anabranch.overlay import loads as load_overlay
from anabranch.plan import NO_PARENT, Plan, link_load, port_bps, port_load
from anabranch.plan import loads as load_plan
from anabranch.record.log import LogError, read_events
from anabranch.record.summary import RunSummary, summarise


@dataclass(frozen=True)
class Run:
    """One log, read.

    Args:
        name: unlike that of every other run in the report.
        path: of the log.
        summary: of its events.
        overlay, plan: what its first event holds as text.
        issued: the plans issued later, as in the summary.
    """

    name: str
    path: Path
    summary: RunSummary
    overlay: Overlay
    plan: Plan
    issued: tuple[Plan, ...]

    @property
    def work(self) -> tuple[str, int, bool]:
        """What must be equal for round times to compare."""
        started = self.summary.started
        return started.overlay_toml, started.buffer_bytes, started.shaped

    def site(self, index: int) -> str:
        """Return a site's name, or a stand-in where the log names a site it never introduced."""
        names = self.summary.sites
        return names[index] if 0 <= index < len(names) else f"site {index}"

    def link(self, pair: tuple[int, int]) -> str:
        """Return the name of a link, or of two neighbours in a tree."""
        return f"{self.site(pair[0])} → {self.site(pair[1])}"


def read(path: Path) -> Run:
    """Read one log.

    Raises:
        LogError: it cannot be read, or what its first event or a plan says makes no sense.
    """
    try:
        summary = summarise(event for _, event in read_events(path))
        overlay = load_overlay(summary.started.overlay_toml)
        plan = load_plan(summary.started.plan_json)
        issued = tuple(load_plan(event.plan_json) for event in summary.plans)
        for each in (plan, *issued):
            each.check_fits(overlay)
        if summary.sites != tuple(site.name for site in overlay.sites):
            raise ValueError("the run's sites are not those of its overlay")
    except LogError:
        raise
    except ValueError as error:
        raise LogError(f"{path}: {error}") from error
    return Run(summary.label, path, summary, overlay, plan, issued)


def name_apart(runs: Sequence[Run]) -> list[Run]:
    """Give every run a name of its own: its label, with its file where labels are repeated."""
    count = Counter(run.summary.label for run in runs)
    names = distinct(
        [run.name if count[run.name] == 1 else f"{run.name} ({run.path.stem})" for run in runs]
    )
    return [replace(run, name=name) for name, run in zip(names, runs, strict=True)]


def distinct(names: Iterable[str]) -> list[str]:
    """Return names with a number added to each that came before."""
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return found


@dataclass(frozen=True)
class Bottleneck:
    """The link or port that keeps a plan's rounds from being shorter.

    Args:
        name: of the link, or of the site and its port.
        load: buffers it carries in a round.
        rate_bps: its goodput when the run begins.
    """

    name: str
    load: float
    rate_bps: float

    def seconds(self, buffer_bytes: int) -> float:
        """Return how long it needs for one round, seconds."""
        return 8 * buffer_bytes * self.load / self.rate_bps


def bottleneck(overlay: Overlay, plan: Plan) -> Bottleneck | None:
    """Return the busiest link, or port where it is busier; None where a single site uses none."""
    load, names = link_load(plan), [site.name for site in overlay.sites]
    used = [
        Bottleneck(
            f"{names[link.source]} → {names[link.target]}",
            load[link.source, link.target],
            link.goodput_bps,
        )
        for link in overlay
        if (link.source, link.target) in load
    ]
    used += [
        Bottleneck(f"{names[port[0]]}, {port[1]}", carried, port_bps(overlay, port))
        for port, carried in port_load(plan, overlay).items()
    ]
    return max(used, key=lambda each: each.load / each.rate_bps, default=None)


def is_star(plan: Plan) -> bool:
    """Whether every site exchanges the whole buffer with one root: the usual baseline."""
    root = plan.trees[0].root
    return all({tree.root, *tree.up, *tree.down} <= {root, NO_PARENT} for tree in plan.trees)
