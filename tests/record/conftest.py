"""Runs that never happened: a small overlay, two plans for it, and the events of runs on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from anabranch.overlay import Link, Overlay, Site
from anabranch.overlay import dumps as dump_overlay
from anabranch.plan import Plan, Tree, link_load
from anabranch.plan import dumps as dump_plan
from anabranch.record import (
    Evaluated,
    Event,
    EventLog,
    LinkBytes,
    RoundDone,
    RunEnded,
    RunStarted,
)

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
def write_log(tmp_path: Path) -> Callable[[str, Iterable[Event]], Path]:
    """Return a function that writes events to a log of the given name and returns its path."""

    def write(name: str, events: Iterable[Event]) -> Path:
        path = tmp_path / f"{name}.db"
        with EventLog.create(path) as log:
            log.append(events)
        return path

    return write
