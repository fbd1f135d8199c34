"""Exchanges beside a thread that computes in Python without a pause, and what that thread loses.

    python benchmarks/beside_python.py    # not by chrt: such a thread would keep a core

Two processes of this machine average 25 MB and 4 floats, with nothing beside them and beside such a
thread at each. The thread counts, alone and while calls are under way. Turns alternate.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np

import common
from anabranch import Group, Service, spawn
from anabranch.overlay import random_complete

CASES = {"25 MB": 6_250_000, "4 floats": 4}


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


def calls_s(group: Group, buffer: Any, calls: int) -> float:
    """Return the seconds of some calls, one after another, at this site."""
    began_s = time.perf_counter()
    for _ in range(calls):
        group.all_reduce(buffer)
    return time.perf_counter() - began_s


def measure(group: Group, turns: int) -> dict[str, Any]:
    """Return, by case, the seconds of a call alone and beside, and the thread's share."""
    found: dict[str, Any] = {}
    for case, elements in CASES.items():
        buffer = np.ones(elements, np.float32)
        calls = 8 if elements > 1000 else 100
        rows: dict[str, list[float]] = {"alone_s": [], "beside_s": [], "thread_share": []}
        calls_s(group, buffer, calls)
        for _ in range(turns):
            group.barrier()
            rows["alone_s"].append(calls_s(group, buffer, calls) / calls)
            with Counting() as counting:
                alone_a_s = counting.rate_a_s(partial(time.sleep, 0.5))
                group.barrier()
                began_s = time.perf_counter()
                beside_a_s = counting.rate_a_s(partial(calls_s, group, buffer, calls))
                took_s = time.perf_counter() - began_s
                rows["thread_share"].append(beside_a_s / alone_a_s)
                rows["beside_s"].append(took_s / calls)
        found[case] = rows
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--dry", action="store_true", help="write no file")
    options = parser.parse_args()
    overlay = random_complete(2, 0, low_bps=1e10, high_bps=1e10, latency_s=0.0, loss=0.0)
    answers = spawn(measure, Service(overlay, awareness=None), [options.turns])
    rows: dict[str, Any] = {}
    for case in CASES:
        each = {
            key: [max(pair) for pair in zip(*(own[case][key] for own in answers), strict=True)]
            for key in ("alone_s", "beside_s")
        }
        shares = [share for own in answers for share in own[case]["thread_share"]]
        alone_s, beside_s = median(each["alone_s"]), median(each["beside_s"])
        rows[case] = {
            "alone_ms": common.spread([1e3 * took for took in each["alone_s"]]),
            "beside_ms": common.spread([1e3 * took for took in each["beside_s"]]),
            "speed_beside": alone_s / beside_s,
            "thread_share": common.spread(shares),
        }
        print(
            f"{case}: {1e3 * alone_s:.2f} ms alone, {1e3 * beside_s:.2f} ms beside "
            f"({alone_s / beside_s:.2f}); the thread keeps {median(shares):.2f}"
        )
    if not options.dry:
        common.write("beside_python", seed=0, turns=options.turns, cases=rows)


if __name__ == "__main__":
    main()
