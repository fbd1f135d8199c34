"""Looks at plans: as often as they should be, while anything happens, and not all the time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest

from anabranch.overlay import Overlay, Trace, internet2_9
from anabranch.plan import Plan, fapt
from anabranch.scheduler._policy import Policy, Replan
from anabranch.scheduler._replan_loop import ReplanLoop
from anabranch.scheduler.awareness import Awareness
from anabranch_lab.sim.loop import VirtualLoop, run_virtually

CHANGE_S = 10.0
OVERLAY = internet2_9()
SLOWED = replace(
    OVERLAY,
    links=tuple(
        replace(link, trace=Trace((0.0, CHANGE_S), (link.rate_bps, 3e6)))
        if (link.source, link.target) == (0, 2)
        else link
        for link in OVERLAY.links
    ),
)
SIZE_BYTES = 100_000_000
Paths = tuple[tuple[int, ...], ...]


class Watch:
    """A replan loop over a network that changes, with what it did and found.

    Args:
        look_s: how long a look takes.
        wrong: what a look raises, if anything.
    """

    def __init__(self, look_s: float = 0.0, wrong: Exception | None = None) -> None:
        self.looked_s: list[float] = []
        self.found: list[tuple[float, Replan | None, Paths]] = []
        self.failed: list[str] = []
        self._look_s = look_s
        self._wrong = wrong
        plan = fapt(SLOWED, roots=9)
        policy = Policy(plan, SLOWED.at(0.0), self._plan)
        awareness = Awareness(1.0, policy, self._search, lambda elements: 1 << 16, None, SLOWED)
        self.replan_loop = ReplanLoop(awareness, SIZE_BYTES, 0.0, self._take, self.failed.append)

    async def hear(self, until_s: float, every_s: float = 0.25) -> None:
        """Let something happen again and again."""
        loop = asyncio.get_running_loop()
        while loop.time() < until_s:
            self.replan_loop.look_in_time()
            await asyncio.sleep(every_s)

    def _plan(self, network: Overlay, version: int, previous: Plan) -> Plan:
        return fapt(network, roots=9, version=version)

    def _search(self, network: Overlay, plan: Plan) -> Mapping[tuple[int, int], Paths]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.looked_s.append(loop.time())
        loop._now_s += self._look_s  # nothing else lets time pass while an executor works
        if self._wrong is not None:
            raise self._wrong
        return {(0, 1): ((0, 3, 1),)}

    def _take(self, replan: Replan | None, paths: Paths) -> None:
        self.found.append((asyncio.get_running_loop().time(), replan, paths))


def test_looks_are_an_update_time_apart_while_anything_happens() -> None:
    async def scenario() -> None:
        watch = Watch()
        await watch.hear(5.1)
        await asyncio.sleep(20.0)
        # The one that was due when things ceased to happen is still held.
        assert watch.looked_s == pytest.approx([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
        watch.replan_loop.look_in_time()
        await asyncio.sleep(0.1)
        assert len(watch.looked_s) == 7

    run_virtually(scenario())


def test_each_look_tells_of_a_better_plan_and_of_auxiliary_paths() -> None:
    async def scenario() -> None:
        watch = Watch()
        await watch.hear(20.0)
        replans = [(when_s, replan) for when_s, replan, _ in watch.found if replan is not None]
        assert len(replans) == 1
        when_s, replan = replans[0]
        assert CHANGE_S <= when_s <= CHANGE_S + 1.0
        assert replan.plan.version == 2
        assert {paths for _, _, paths in watch.found} == {((0, 3, 1),)}

    run_virtually(scenario())


def test_after_a_long_look_the_pause_is_twenty_times_as_long() -> None:
    async def scenario() -> None:
        watch = Watch(look_s=0.5)
        await watch.hear(30.0)
        assert watch.looked_s[:3] == pytest.approx([1.0, 1.5 + 10.0, 12.0 + 10.0])

    run_virtually(scenario())


def test_a_look_that_fails_is_told_and_is_the_last() -> None:
    async def scenario() -> None:
        watch = Watch(wrong=ValueError("no such path"))
        await watch.hear(5.0)
        assert watch.failed == ["the scheduler failed to plan: ValueError: no such path"]
        assert watch.found == []

    run_virtually(scenario())


def test_there_is_no_look_once_it_is_closed() -> None:
    async def scenario() -> None:
        watch = Watch()
        await watch.hear(1.6)
        watch.replan_loop.close()
        await watch.hear(5.0)
        assert watch.looked_s == pytest.approx([1.0])

    run_virtually(scenario())
