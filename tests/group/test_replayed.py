"""The log of a group whose model is served says its pace, and a fresh pace decides the same."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import anabranch
from anabranch.group._thread import LoopThread
from anabranch.group.log import RunLog
from anabranch.log import EventLog, read_events
from anabranch.log.console import Console
from anabranch.log.events import RunEnded, RunStopping
from anabranch.net.addresses import show
from anabranch.net.frames import CONTROL_LIMITS
from anabranch.net.tcp import TcpNetwork
from anabranch.overlay import Link, Overlay, Site
from anabranch.pace import AnyPace, Asp, Bsp, FedBuff, R2sp
from anabranch.plan import Star
from anabranch.scheduler.deal import ByShare
from anabranch.scheduler.server import Scheduler
from anabranch.scheduler.stop_rules import StopRules
from anabranch_lab.run.replay import ReplayError, replay

NAMES = ("s0", "s1", "s2")
HERE = ("127.0.0.1", 0)


def service(pace: AnyPace | None, **other: object) -> anabranch.Service:
    links = tuple(Link(a, b, 1e9, 0.001) for a in range(3) for b in range(3) if a != b)
    overlay = Overlay("three", tuple(map(Site, NAMES)), links)
    updates = 1 if pace is None else 6
    return anabranch.Service(
        overlay, Star(hub="s0"), awareness=None, deal=ByShare(), pace=pace, updates=updates, **other
    )


@contextmanager
def logged(served: anabranch.Service, path: Path) -> Iterator[str]:
    """Run a group's scheduler that writes a log, to the group's end; yield its address."""
    thread = LoopThread("scheduler")
    console = Console(list(NAMES), lambda line: None)

    async def start() -> tuple[EventLog, RunLog, Scheduler, str]:
        log = EventLog.create(path)
        run_log = RunLog(log, served.run_started, console)
        scheduler = served.scheduler(TcpNetwork(CONTROL_LIMITS), "t", run_log)
        return log, run_log, scheduler, show(await scheduler.listen(HERE))

    log, run_log, scheduler, address = thread.run(start())

    async def end() -> None:
        await scheduler.finished()
        run_log.ended(None, scheduler)
        await scheduler.close()
        log.close()

    try:
        yield address
        thread.run(end())
    finally:
        thread.close()


def train(address: str, name: str, begins: threading.Event | None = None) -> None:
    if begins is not None:
        assert begins.wait(20)
    with anabranch.join(address, name, token="t") as group:
        parameter = torch.zeros(100)
        group.serve([parameter], learning_rate=0.1)
        while group.pull():
            group.push([torch.ones(100)])


@pytest.mark.parametrize(
    "pace",
    [Bsp(), Asp(), R2sp(relaxation=0.0), FedBuff(size=2)],
    ids=["bsp", "asp", "r2sp", "buff"],
)
def test_a_served_groups_log_is_replayed(pace: AnyPace, tmp_path: Path) -> None:
    with logged(service(pace), tmp_path / "run.db") as address, ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda name: train(address, name), NAMES))
    done = replay([*read_events(tmp_path / "run.db")])
    assert done.decided >= 2 * 3 * 6
    assert done.told >= 2 * 3 * 6


@pytest.mark.parametrize("pace", [Bsp(), Asp()], ids=["bsp", "asp"])
def test_one_that_comes_later_is_replayed_too(pace: AnyPace, tmp_path: Path) -> None:
    begun, there = threading.Event(), threading.Event()

    def first(name: str) -> None:
        with anabranch.join(address, name, token="t") as group:
            parameter = torch.zeros(100)
            group.serve([parameter], learning_rate=0.1)
            made = 0
            while group.pull():
                made += 1
                if made == 3:
                    begun.set()
                    assert there.wait(20)
                group.push([torch.ones(100)])

    def later() -> None:
        assert begun.wait(20)
        with anabranch.join(address, "s2", token="t") as group:
            parameter = torch.zeros(100)
            group.serve([parameter], learning_rate=0.1)
            there.set()
            while group.pull():
                group.push([torch.ones(100)])

    served = service(pace, begin_with=2)
    with logged(served, tmp_path / "run.db") as address, ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(first, "s0"), pool.submit(first, "s1"), pool.submit(later)]
        for call in calls:
            call.result()
    assert replay([*read_events(tmp_path / "run.db")]).decided >= 2 * 2 * 6


def test_a_group_without_a_pace_says_that_no_pace_decided(tmp_path: Path) -> None:
    def reduce(name: str) -> None:
        with anabranch.join(address, name, token="t") as group:
            group.all_reduce([torch.ones(10)])

    with logged(service(None), tmp_path / "run.db") as address, ThreadPoolExecutor(3) as pool:
        list(pool.map(reduce, NAMES))
    happened = [*read_events(tmp_path / "run.db")]
    with pytest.raises(ReplayError, match="names no pace: its sites all-reduced"):
        replay(happened)


def test_a_served_group_ends_by_its_stop_rule_and_its_log_says_why(tmp_path: Path) -> None:
    path = tmp_path / "group.db"
    served = service(Asp(), stop=StopRules(after_s=0.3))
    served = replace(served, updates=1_000_000)
    with logged(served, path) as address, ThreadPoolExecutor(3) as pool:
        for each in [pool.submit(train, address, name) for name in NAMES]:
            each.result()
    found = [event for _, event in read_events(path)]
    assert isinstance(found[-1], RunEnded)
    assert (found[-1].error, found[-1].reason) == (None, "0.3 s are over")
    assert [event.reason for event in found if isinstance(event, RunStopping)] == ["0.3 s are over"]
    assert replay(read_events(path)).decided
