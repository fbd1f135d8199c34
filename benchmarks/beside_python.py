"""Exchanges beside a thread that computes in Python without a pause, and what that thread loses.

    python benchmarks/beside_python.py    # not by chrt: such a thread would keep a core

Two processes of this machine average 25 MB and 4 floats, with nothing beside them and beside such a
thread, at one of them or at both. The thread counts, alone and while calls are under way. Turns
alternate. The group runs in the process that calls, or in a helper process: buffers are then copied
to memory that both share, and back.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from statistics import median
from typing import Any, Literal

import numpy as np

import common
from anabranch import Group, Service, spawn
from anabranch.overlay import random_complete

CASES = {"25 MB": (6_250_000, 8), "4 floats": (4, 100)}  # elements, calls a turn
LARGEST_BYTES = 4 * 6_250_000
SHORT_S, USUAL_S = 0.0001, 0.005  # the switch interval of a caller with a helper, and after it

Where = Literal["in the process", "in a helper"]
Rows = dict[str, list[float]]


class Counting:
    """A thread that counts without a pause, and what it counted."""

    def __init__(self) -> None:
        self.counted = 0
        self._over = False
        self._thread = threading.Thread(target=self._count)

    def __enter__(self) -> Counting:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._thread.join()

    def rate_a_s(self, meanwhile: Callable[[], object]) -> float:
        """Return how much it counts a second while this thread does something."""
        before, began_s = self.counted, time.perf_counter()
        meanwhile()
        return (self.counted - before) / (time.perf_counter() - began_s)

    def _count(self) -> None:
        while not self._over:
            self.counted += 1


def calls_s(call: Callable[[], object], calls: int) -> float:
    """Return the seconds of some calls, one after another, at this site."""
    began_s = time.perf_counter()
    for _ in range(calls):
        call()
    return time.perf_counter() - began_s


def measure_call(
    call: Callable[[], object], barrier: Callable[[], object], calls: int, turns: int, busy: bool
) -> Rows:
    """Return the seconds of a call alone and beside, and the thread's share, in each turn."""
    rows: Rows = {"alone_s": [], "beside_s": [], "thread_share": []}
    calls_s(call, calls)
    for _ in range(turns):
        barrier()
        rows["alone_s"].append(calls_s(call, calls) / calls)
        if not busy:
            barrier()
            rows["beside_s"].append(calls_s(call, calls) / calls)
            continue
        with Counting() as counting:
            alone_a_s = counting.rate_a_s(partial(time.sleep, 0.5))
            barrier()
            began_s = time.perf_counter()
            beside_a_s = counting.rate_a_s(partial(calls_s, call, calls))
            rows["beside_s"].append((time.perf_counter() - began_s) / calls)
            rows["thread_share"].append(beside_a_s / alone_a_s)
    return rows


def measure(group: Group, turns: int, where: Where, both: bool) -> dict[str, Rows]:
    """Return the rows of each case at this site."""
    busy = both or group.rank == 0
    if where == "in a helper":
        return help_with(group, turns, busy)
    found = {}
    for case, (elements, calls) in CASES.items():
        call = partial(group.all_reduce, np.ones(elements, np.float32))
        found[case] = measure_call(call, group.barrier, calls, turns, busy)
    return found


def help_with(group: Group, turns: int, busy: bool) -> dict[str, Rows]:
    """Make the calls of another process, which has the buffers and the thread."""
    shared = SharedMemory(create=True, size=LARGEST_BYTES)
    spawned = multiprocessing.get_context("spawn")
    ours, theirs = spawned.Pipe()
    caller = spawned.Process(target=be_helped, args=(theirs, shared.name, turns, busy))
    caller.start()
    while isinstance(asked := ours.recv(), int):
        if asked:
            group.all_reduce(np.ndarray(asked, np.float32, buffer=shared.buf))
        else:
            group.barrier()
        ours.send(None)
    group.settle()
    caller.join()
    shared.close()
    shared.unlink()
    found: dict[str, Rows] = asked
    return found


def be_helped(helper: Connection, name: str, turns: int, busy: bool) -> None:
    """Measure calls that a helper makes: a number of elements, 0 for a barrier; then the rows."""
    shared = SharedMemory(name)
    found = {}

    def ask(elements: int) -> None:
        helper.send(elements)
        helper.recv()

    def call(own: Any) -> None:
        sys.setswitchinterval(SHORT_S)
        there = np.ndarray(own.shape, np.float32, buffer=shared.buf)
        np.copyto(there, own)
        ask(own.size)
        np.copyto(own, there)

    for case, (elements, calls) in CASES.items():
        buffer = np.ones(elements, np.float32)
        found[case] = measure_call(partial(call, buffer), partial(ask, 0), calls, turns, busy)
        sys.setswitchinterval(USUAL_S)
    helper.send(found)
    shared.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--dry", action="store_true", help="write no file")
    options = parser.parse_args()
    overlay = random_complete(2, 0, low_bps=1e10, high_bps=1e10, latency_s=0.0, loss=0.0)
    rows: dict[str, Any] = {}
    wheres: tuple[Where, ...] = ("in the process", "in a helper")
    for both in (False, True):
        for where in wheres:
            service = Service(overlay, awareness=None)
            answers = spawn(measure, service, [options.turns, where, both])
            for case in CASES:
                threads = "both" if both else "one"
                rows[f"{case}, thread at {threads}, {where}"] = summary(case, answers)
                print(f"{case}, thread at {threads}, {where}: {said(case, answers)}")
    if not options.dry:
        common.write("beside_python", seed=0, turns=options.turns, cases=rows)


def summary(case: str, answers: list[dict[str, Rows]]) -> dict[str, Any]:
    """Return a case's figures; a call lasts until its last site has the result."""
    each = {
        key: [max(pair) for pair in zip(*(own[case][key] for own in answers), strict=True)]
        for key in ("alone_s", "beside_s")
    }
    return {
        "alone_ms": common.spread([1e3 * took for took in each["alone_s"]]),
        "beside_ms": common.spread([1e3 * took for took in each["beside_s"]]),
        "speed_beside": median(each["alone_s"]) / median(each["beside_s"]),
        "thread_share": common.spread(
            [share for own in answers for share in own[case]["thread_share"]]
        ),
    }


def said(case: str, answers: list[dict[str, Rows]]) -> str:
    """Return a case's figures, for the terminal."""
    found = summary(case, answers)
    return (
        f"{found['alone_ms']['median']:.2f} ms alone, {found['beside_ms']['median']:.2f} ms beside "
        f"({found['speed_beside']:.2f}); the thread keeps {found['thread_share']['median']:.2f}"
    )


if __name__ == "__main__":
    main()
