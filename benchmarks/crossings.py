"""How often a chunk's way, from a call of ``all_reduce`` to its result, leads from file to file.

    python benchmarks/crossings.py

Two sites in one process, over TCP and through shared memory. A profiler counts calls from one file
of anabranch into another; an exchange of many chunks less one of few, over the chunks, leaves what
each costs: up a link and down again. Returns are not counted, since they do not lead on.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import numpy as np

import anabranch
import common
from anabranch.net import _shared_memory as shared_memory
from anabranch.net._shared_memory import is_possible
from anabranch.overlay import Link, Overlay, Site
from anabranch.plan import Packed
from anabranch.scheduler.deal import ByShare

CHUNK_ELEMENTS = 1 << 16
FEW, MANY = 16, 80
HERE = str(Path(anabranch.__file__).parent)
PAIR = Overlay("pair", (Site("root"), Site("leaf")), (Link(0, 1, 1e9), Link(1, 0, 1e9)))
Call = tuple[str, str, str]


class Profiler:
    """Counts calls between files while it is told to."""

    def __init__(self) -> None:
        self.calls: Counter[Call] = Counter()
        self.is_on = False

    def hook(self, frame: FrameType, event: str, argument: object) -> None:
        """See :func:`sys.setprofile`."""
        before = frame.f_back
        if not self.is_on or event != "call" or before is None:
            return
        source, target = before.f_code.co_filename, frame.f_code.co_filename
        if source != target and source.startswith(HERE) and target.startswith(HERE):
            code = frame.f_code
            name = code.co_qualname if sys.version_info >= (3, 11) else code.co_name
            self.calls[source[len(HERE) + 1 :], target[len(HERE) + 1 :], name] += 1


def count(chunks: int) -> Counter[Call]:
    """Return the calls between files of one exchange of so many chunks."""
    service = anabranch.Service(
        PAIR,
        Packed(),
        awareness=None,
        deal=ByShare(),
        least_chunk_elements=CHUNK_ELEMENTS,
    )
    profiler = Profiler()
    threading.setprofile(profiler.hook)
    try:
        with anabranch.local(service) as groups, ThreadPoolExecutor(2) as pool:
            buffers = [np.ones(CHUNK_ELEMENTS * chunks, np.float32) for _ in groups]
            for is_counted in (False, True):  # the first opens connections
                profiler.is_on = is_counted
                list(pool.map(lambda group, buffer: group.all_reduce(buffer), groups, buffers))
                profiler.is_on = False
    finally:
        threading.setprofile(None)
    return profiler.calls


def main() -> None:
    common.no_options(__doc__)
    ways: dict[str, object] = {}
    for way in ("over TCP", "shared memory"):
        if way == "over TCP":
            shared_memory.is_possible = lambda: False
        else:
            shared_memory.is_possible = is_possible
        few, many = count(FEW), count(MANY)
        rows = {call: (many[call] - few[call]) / (MANY - FEW) for call in many}
        for (source, target, name), times in sorted(rows.items(), key=lambda row: -row[1]):
            if times > 0.1:
                print(f"{times:5.2f}  {source} -> {target}: {name}")
        total = sum(rows.values())
        print(f"{way}: {total:.1f} calls between files a chunk of {CHUNK_ELEMENTS} elements")
        ways[way] = {
            "calls_between_files": total,
            "calls": {" -> ".join(call): times for call, times in rows.items() if times > 0.1},
        }
    common.write("crossings", seed=0, chunk_elements=CHUNK_ELEMENTS, results=ways)


if __name__ == "__main__":
    main()
