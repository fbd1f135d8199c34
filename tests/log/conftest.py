"""Runs that never happened: a small overlay, two plans for it, and the events of runs on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from anabranch.log import (
    Evaluated,
    Event,
    EventLog,
    LabelsHeld,
    LinkBytes,
    LinkChanged,
    LinkMeasured,
    PlanIssued,
    RoundBegan,
    RoundDone,
    RunEnded,
    RunStarted,
)
from anabranch.overlay import Link, Overlay, Site, Trace
from anabranch.overlay import dumps as dump_overlay
from anabranch.plan import Plan, Tree, link_load
from anabranch.plan import dumps as dump_plan
from anabranch_lab.reports.runs import Run

BUFFER_BYTES = 10_000_000


@pytest.fixture
def overlay() -> Overlay:
    """Four sites, all joined both ways at 80 Mbit/s but for 40 Mbit/s from Lima to Oslo."""
    names = ("Oslo", "Lima", "Kyoto", "Perth")
    return Overlay(
        "square",
        tuple(Site(name) for name in names),
        tuple(
            Link(a, b, 40e6 if (a, b) == (1, 0) else 80e6)
            for a in range(4)
            for b in range(4)
            if a != b
        ),
    )


@pytest.fixture
def star() -> Plan:
    return Plan(1, (Tree(0, 1.0, (-1, 0, 0, 0), (-1, 0, 0, 0)),), label="star")


@pytest.fixture
def packed() -> Plan:
    """Two trees, neither of which climbs the slow link; one mirrors itself, the other does not."""
    return Plan(
        3,
        (
            Tree(2, 0.75, (2, 2, -1, 2), (2, 2, -1, 2)),
            Tree(3, 0.25, (3, 3, 3, -1), (3, 0, 3, -1)),
        ),
        label="packed",
    )


MakeStart = Callable[..., RunStarted]


@pytest.fixture
def start(overlay: Overlay, star: Plan) -> MakeStart:
    """Return a function that makes a run's first event; keywords change its fields."""

    def make(plan: Plan = star, on: Overlay = overlay, **changes: object) -> RunStarted:
        fields: dict[str, object] = {
            "at_s": 0.0,
            "label": plan.label,
            "overlay_toml": dump_overlay(on),
            "plan_json": dump_plan(plan),
            "sites": [site.name for site in on.sites],
            "buffer_bytes": BUFFER_BYTES,
            "chunk_elements": 65536,
            "shaped": True,
            "task": "digits",
            "model": "mlp",
            "seed": 7,
            "rounds": 3,
            "predicted_s": 2.5,
            "paper_s": 3.0,
            "limit_s": 1.0,
            "target_accuracy": 0.9,
            "versions": {"anabranch": "0.1.0", "torch": "2.13.0"},
            "started_at": "2030-01-02T03:04:05Z",
        }
        return RunStarted(**{**fields, **changes})  # type: ignore[arg-type]

    return make


MakeRun = Callable[..., list[Event]]


@pytest.fixture
def run(start: MakeStart, overlay: Overlay, star: Plan) -> MakeRun:
    """Return a function that makes the events of a whole run.

    Round r begins `idle_s` after the end of the one before, as sites compute. It ends `round_s[r]`
    later at the last site, and half as late at the others; keywords change the first event.
    """

    def make(
        plan: Plan = star,
        *,
        on: Overlay = overlay,
        round_s: Sequence[float] = (2.0, 4.0, 3.0),
        accuracy: Iterable[float] = (0.5, 0.92, 0.9),
        idle_s: float = 0.0,
        **changes: object,
    ) -> list[Event]:
        events: list[Event] = [start(plan, on, **changes)]
        now_s = 0.0
        points = iter(accuracy)
        for number, seconds in enumerate(round_s):
            now_s += idle_s
            for site in range(on.size):
                took_s = seconds if site == on.size - 1 else seconds / 2
                done = {"site": site, "round": number, "version": plan.version, "checksum": number}
                events.append(RoundDone(at_s=now_s + took_s, seconds=took_s, **done))
            now_s += seconds
            events += [
                LinkBytes(
                    at_s=now_s,
                    source=source,
                    target=target,
                    seconds=seconds,
                    payload_bytes=round(load * BUFFER_BYTES),
                )
                for (source, target), load in link_load(plan).items()
            ]
            events += [
                Evaluated(at_s=now_s, site=0, round=number, accuracy=value)
                for value in (next(points, None),)
                if value is not None
            ]
        return [*events, RunEnded(at_s=now_s, error=None)]

    return make


@pytest.fixture
def labelled(run: MakeRun) -> list[Event]:
    """The events of a run in which Oslo has two labels and Perth one, and the others say nothing.

    The model is right for half the samples of label 0 and for nine tenths of those of label 1.
    """
    first, *others = run(accuracy=())
    known = {"accuracy": 0.7, "by_class": [0.5, 0.9]}
    return [
        first,
        LabelsHeld(at_s=0.0, site=0, samples=[300, 100]),
        LabelsHeld(at_s=0.0, site=3, samples=[1000, 0]),
        *others[:-1],
        Evaluated(at_s=9.0, site=0, round=2, **known),  # type: ignore[arg-type]
        others[-1],
    ]


@pytest.fixture
def changing(overlay: Overlay) -> Overlay:
    """The overlay, but for Lima to Oslo, which falls from 40 to 10 Mbit/s at 10 s."""
    falls = Trace((0.0, 10.0), (40e6, 10e6))
    return replace(
        overlay,
        links=tuple(
            replace(link, trace=falls) if (link.source, link.target) == (1, 0) else link
            for link in overlay
        ),
    )


@pytest.fixture
def aware(start: MakeStart, changing: Overlay, star: Plan, packed: Plan) -> MakeRun:
    """Return a function that makes a run in which a link slows down and a new plan answers.

    Rounds of the star take 2 s, until Lima to Oslo falls to a quarter of its rate at 10 s: round 6
    takes 8 s. The packed plan, version 3, is issued at 12 s and takes 1 s a round. Receivers
    measure Lima to Oslo and back every 4 s, 5 % too low, but for a mixture of both rates at 12 s
    and 10 % too low at 20 s. Under the star Perth is last and waits for Oslo's result, and Oslo for
    Lima's sum; under the packed plan, Lima and Perth wait for each other. Keywords change the first
    event.
    """

    def make(on: Overlay = changing, **changes: object) -> list[Event]:
        events: list[Event] = [start(star, on, rounds=10, limit_s=None, **changes)]
        pointers = {
            star.version: {0: (1, 0), 1: (0, 0), 2: (0, 0), 3: (0, 0)},
            packed.version: {0: (3, 1), 1: (3, 1), 2: (3, 1), 3: (1, 0)},
        }
        now_s = 0.0
        for number, seconds in enumerate((2, 2, 2, 2, 2, 8, 1, 1, 1, 1), start=1):
            version = star.version if number <= 6 else packed.version
            events.append(RoundBegan(at_s=now_s, round=number, version=version, site=2))
            for site, (waited_for, tree) in pointers[version].items():
                took_s = seconds if site == 3 else seconds / 2
                events.append(
                    RoundDone(
                        at_s=now_s + took_s,
                        site=site,
                        round=number,
                        version=version,
                        seconds=took_s,
                        checksum=number,
                        waited_for=waited_for,
                        tree=tree,
                    )
                )
            now_s += seconds
        for at_s, rate_bps in ((4, 38e6), (8, 38e6), (12, 25e6), (16, 9.5e6), (20, 9e6)):
            for source, target, seen_bps in ((1, 0, rate_bps), (0, 1, 76e6)):
                events.append(
                    LinkMeasured(
                        at_s=at_s,
                        site=target,
                        source=source,
                        target=target,
                        rate_bps=seen_bps,
                        latency_s=0.03 if source else None,
                        chunks=12,
                    )
                )
        events.append(
            PlanIssued(
                at_s=12.0,
                version=packed.version,
                plan_json=dump_plan(packed),
                why="Lima->Oslo fell from 40 to 25 Mbit/s",
                changed=[LinkChanged(source=1, target=0, was_bps=40e6, now_bps=25e6)],
                before_s=3.2,
                after_s=1.0,
            )
        )
        first, *others = events
        return [
            first,
            *sorted(others, key=lambda event: event.at_s),
            RunEnded(at_s=now_s, error=None),
        ]

    return make


@pytest.fixture
def read() -> Callable[[str, Iterable[Event]], Run]:
    """Return a function that makes a report's run of events, as if read from a log of that name."""
    return lambda name, events: Run.of(events, Path(f"{name}.db"))


@pytest.fixture
def write_log(tmp_path: Path) -> Callable[[str, Iterable[Event]], Path]:
    """Return a function that writes events to a log of the given name and returns its path."""

    def write(name: str, events: Iterable[Event]) -> Path:
        path = tmp_path / f"{name}.db"
        with EventLog.create(path) as log:
            log.append(events)
        return path

    return write
