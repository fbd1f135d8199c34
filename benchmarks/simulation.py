"""How fast the simulated world is: its loop, its network, whole rounds, and many sites.

    chrt -r 10 python benchmarks/simulation.py

Every figure is the median of several runs, each in a process of its own, so that the peak of
memory is its own too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import common
from anabranch.overlay import Link, Overlay, Site, internet2_9, random_complete, random_sparse
from anabranch_lab.run.scenario import loads
from anabranch_lab.run.simulate import simulate
from anabranch_lab.sim.loop import VirtualLoop, run_virtually

ELEMENTS = 61_100_840
# A small convolutional network of federated learning, in chunks of a million elements.
CLIENT_ELEMENTS = 1_700_000

Figures = dict[str, float]


def loop_events() -> Figures:
    """A thousand tasks that sleep, each for its own while."""

    async def sleeper(number: int) -> None:
        for _ in range(500):
            await asyncio.sleep(0.001 + number * 1e-6)

    async def main() -> int:
        await asyncio.gather(*(sleeper(number) for number in range(1000)))
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        return loop.handled

    began_s = time.perf_counter()
    handled = run_virtually(main())
    return {"events_per_s": handled / (time.perf_counter() - began_s)}


def rounds(overlay: Overlay, route: str, elements: int, chunk_elements: int, count: int) -> Figures:
    """Rounds without numbers over one route: seconds a round, messages a second, memory."""
    scenario = loads(
        f'overlay = "made here"\nchunk_elements = {chunk_elements}\nstop.rounds = {count}\n'
        f'route = {{{route}}}\ntask = {{kind = "exchange", elements = {elements}}}\n'
    )
    began: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        start_s = time.perf_counter()
        simulate(
            scenario,
            overlay,
            Path(folder, "run.db"),
            on_round=lambda round, loss: began.append(time.perf_counter()),
        )
        end_s = time.perf_counter()
    first_s, total_s = began[0], end_s - start_s
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "round_s": (end_s - first_s) / count,
        "whole_run_s": total_s,
        "rounds": count,
        "peak_memory_mb": peak_bytes / 1e6,
    }


def nine_sites() -> Figures:
    """61 M float32, 9 roots, internet2-9, chunks of 2**18 elements."""
    figures = rounds(internet2_9(), 'kind = "fapt"', ELEMENTS, 1 << 18, 10)
    # Each chunk climbs eight tree edges and descends eight, and no edge needs a relay here.
    messages = 16 * -(-ELEMENTS // (1 << 18))
    return {**figures, "messages_per_s": messages / figures["round_s"]}


def fifty_sparse() -> Figures:
    """61 M float32, 10 roots, 50 sites on a sparse overlay."""
    return rounds(random_sparse(50, 1), 'kind = "fapt", roots = 10', ELEMENTS, 1 << 18, 3)


def fifty_complete() -> Figures:
    """61 M float32, 10 roots, 50 sites on a complete overlay."""
    return rounds(random_complete(50, 1), 'kind = "fapt", roots = 10', ELEMENTS, 1 << 18, 3)


def fifty_capped() -> Figures:
    """The same with every site's port capped, so that all flows share with each other."""
    overlay = random_complete(50, 1)
    sites = tuple(Site(s.name, uplink_bps=1e9, downlink_bps=1e9) for s in overlay.sites)
    capped = Overlay(overlay.name, sites, overlay.links)
    return rounds(capped, 'kind = "fapt", roots = 10', ELEMENTS, 1 << 18, 3)


def clients(count: int) -> Figures:
    """Return the figures of one round of clients with one server."""
    generator = random.Random(0)
    sites = [Site("server", uplink_bps=10e9, downlink_bps=10e9)]
    links = []
    for client in range(1, count + 1):
        sites.append(Site(f"client{client}"))
        rate_bps = generator.uniform(20e6, 100e6)
        links += [Link(client, 0, rate_bps, 0.02), Link(0, client, rate_bps, 0.02)]
    overlay = Overlay("clients", tuple(sites), tuple(links))
    return rounds(overlay, 'kind = "star", hub = "server"', CLIENT_ELEMENTS, 1_000_000, 1)


def thousand_clients() -> Figures:
    """One round of 1,000 clients with one server, whose port they share."""
    return clients(1000)


def three_thousand_clients() -> Figures:
    """The same with 3,000 clients."""
    return clients(3000)


CASES: dict[str, Callable[[], Figures]] = {
    case.__name__: case
    for case in (
        loop_events,
        nine_sites,
        fifty_sparse,
        fifty_complete,
        fifty_capped,
        thousand_clients,
        three_thousand_clients,
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(CASES[options.case]()))
        return
    results = {}
    for name, case in CASES.items():
        found = []
        for _ in range(options.repeats):
            command = [sys.executable, __file__, "--case", name]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found.append(json.loads(done.stdout))
        results[name] = {key: common.spread([each[key] for each in found]) for key in found[0]}
        figures = ", ".join(
            f"{key} {spread['median']:,.4g}" for key, spread in results[name].items()
        )
        print(f"{name}: {figures}   ({case.__doc__})", flush=True)
    common.write("simulation", seed=0, repeats=options.repeats, results=results)


if __name__ == "__main__":
    main()
