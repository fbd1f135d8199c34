"""What many clients cost in simulation: 10,000 registered, 1,000 connected, sizes alone.

    chrt -r 10 python benchmarks/clients.py

Seconds of a round with its share of the set-up, and the peak of memory. A round is one update of
each connection. Every run is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import common
from anabranch.log import UpdateApplied, UpdateDiscarded, WorkerWent, read_events
from anabranch.overlay import Link, Overlay, Site
from anabranch_lab.run.scenario import loads
from anabranch_lab.run.simulate import simulate

REGISTERED, CONNECTED, ROUNDS = 10_000, 1_000, 3
ELEMENTS = 1_700_000  # a small convolutional network of federated learning
PACES = {
    "fl-r2sp": 'kind = "fl-r2sp", groups = 63, give_up_after = 2, deadline_s = 60',
    "fedavg": 'kind = "fedavg", fraction = 0.75, give_up_after = 2, deadline_s = 60',
    "fedbuff": 'kind = "fedbuff", size = 100',
}


def overlay() -> Overlay:
    """Return a server of 10 Gbit/s and clients of 100."""
    sites = [Site("server", uplink_bps=10e9, downlink_bps=10e9)]
    sites += [Site(f"client{number}") for number in range(CONNECTED)]
    ways = [way for k in range(1, CONNECTED + 1) for way in ((0, k), (k, 0))]
    links = tuple(Link(*way, 100e6, 0.02) for way in ways)
    return Overlay("clients", tuple(sites), links)


def run(pace: str, seed: int) -> dict[str, float]:
    """Simulate; return what it took."""
    vanish = "" if pace == "fedbuff" else "vanish = 0.01, "
    scenario = loads(
        f'overlay = "made here"\nseed = {seed}\nstop.rounds = {ROUNDS}\npace = {{{PACES[pace]}}}\n'
        f"chunk_elements = 1_000_000\nsample_every_s = 1000\n"
        'route = {kind = "star", hub = "server"}\nserve = {only = ["server"]}\n'
        f"clients = {{registered = {REGISTERED}, {vanish}"
        "away = {awake_s = 600, asleep_s = 300}}\n"
        f'task = {{kind = "exchange", elements = {ELEMENTS}, batch_size = 32}}\n'
        'compute = {samples_per_s = 32, gini = 0.2, added_delay = {kind = "lognormal", mu = -2, '
        "sigma = 1}}\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "run.db")
        began_s = time.perf_counter()
        simulate(scenario, overlay(), log)
        took_s = time.perf_counter() - began_s
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        events = [event for _, event in read_events(log)]
    went = [event.client for event in events if isinstance(event, WorkerWent)]
    return {
        "round_s": took_s / ROUNDS,
        "peak_memory_mb": peak_bytes / 1e6,
        "simulated_s": events[-1].at_s,
        "updates": len(went),
        "clients": len({*went}),
        "applied": sum(isinstance(event, UpdateApplied) for event in events),
        "discarded": sum(isinstance(event, UpdateDiscarded) for event in events),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--pace", choices=PACES, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.pace:
        print(json.dumps(run(options.pace, options.seed)))
        return
    results = {}
    for pace in PACES:
        found = []
        for repeat in range(options.repeats):
            command = [sys.executable, __file__, "--pace", pace]
            command += ["--seed", str(options.seed + repeat)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found.append(json.loads(done.stdout))
        results[pace] = {key: common.spread([each[key] for each in found]) for key in found[0]}
        told = ", ".join(f"{key} {each['median']:,.4g}" for key, each in results[pace].items())
        print(f"{pace}: {told}", flush=True)
    common.write("clients", seed=options.seed, repeats=options.repeats, results=results)


if __name__ == "__main__":
    main()
