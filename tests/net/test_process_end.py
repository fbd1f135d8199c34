"""The end of a process of this machine, as the kernel tells it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from anabranch.net.process_end import when_ended

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
LIMIT_S = 60.0


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as child:
        try:
            yield child
        finally:
            child.kill()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("is_waited_for", [False, True])
@pytest.mark.parametrize("is_over", [False, True])
def test_the_end_of_a_process_is_told_once(process, is_over, is_waited_for):
    async def play() -> None:
        before = descriptors()
        if is_over:
            process.kill()
            if is_waited_for:
                process.wait()
        ended = asyncio.Event()
        end = when_ended(process.pid, ended.set)
        if not is_over:
            await asyncio.sleep(0)
            assert not ended.is_set()
            process.kill()
        await asyncio.wait_for(ended.wait(), LIMIT_S)
        assert descriptors() == before
        end()

    asyncio.run(play())


def test_a_watch_that_is_ended_tells_nothing_and_leaves_no_descriptor(process):
    async def play() -> None:
        told: list[str] = []
        before = descriptors()
        ends = [when_ended(process.pid, lambda: told.append("lives")), when_ended(None, told.clear)]
        assert descriptors() == before + 1
        for end in (*ends, *ends):
            end()
        assert descriptors() == before
        process.kill()
        process.wait()
        when_ended(process.pid, lambda: told.append("gone"))()
        await asyncio.sleep(0.01)
        assert told == []

    asyncio.run(play())
