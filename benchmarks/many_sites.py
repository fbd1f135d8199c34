"""Up to how many sites an emulated WAN with delay is honest, and at which rates. Needs root.

    python benchmarks/many_sites.py                # some ten minutes
    python benchmarks/many_sites.py --only 25      # overlays of 25 sites alone, nothing is written

Sparse overlays of drawn rates exchange a buffer over packed trees, each site a process in a network
namespace. Each network is emulated three times: its links do not delay, delay by 1 to 6 ms, or
delay as much and lose 0.02 %. Where the first comes much nearer to the limit than the others, the
emulation of delay is what is measured. A round's time is a median, and so is what is told of
several runs, which are made in turns.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

import common
from anabranch.log import read_events, summarise
from anabranch.overlay import Overlay, dumps, load, random_sparse
from anabranch.plan import limit_s
from anabranch_lab.run.launch import run_locally

LATENCIES_S = 0.001, 0.006
LOSS = 0.0002
# Sites, how many times as fast as drawn, and the megabytes of the buffer.
NETWORKS = (
    (9, 1.0, 16),
    (16, 1.0, 16),
    (25, 0.25, 16),
    (25, 1.0, 16),
)


def drawn(sites: int, times: float) -> Overlay:
    """Draw a network: rates of 20 to 155 Mbit/s times a factor, a latency for each pair."""
    overlay = random_sparse(sites, 0, loss=LOSS)
    rng = np.random.default_rng([sites, 1])
    latencies_s: dict[frozenset[int], float] = {}
    for link in overlay:
        pair = frozenset((link.source, link.target))
        if pair not in latencies_s:
            latencies_s[pair] = float(rng.uniform(*LATENCIES_S))
    links = (
        replace(
            link,
            rate_bps=times * link.rate_bps,
            latency_s=latencies_s[frozenset((link.source, link.target))],
        )
        for link in overlay
    )
    return replace(overlay, name=f"{sites} sites", links=tuple(links))


def at_once(overlay: Overlay) -> Overlay:
    links = (replace(link, latency_s=0.0, loss=0.0) for link in overlay)
    return replace(overlay, links=tuple(links))


def lossless(overlay: Overlay) -> Overlay:
    return replace(overlay, links=tuple(replace(link, loss=0.0) for link in overlay))


WAYS: dict[str, Callable[[Overlay], Overlay]] = {
    "at once": at_once,
    "1 to 6 ms": lossless,
    "1 to 6 ms, 0.02 % lost": lambda overlay: overlay,
}


def exchanged(overlay: Overlay, elements: int, rounds: int) -> dict[str, float]:
    """Exchange a buffer some times over an emulated overlay, and say how that went."""
    cpu_s = common.machine_cpu_s()
    began_s: list[float] = []

    def sample() -> None:
        if not began_s and log.exists() and any(True for _ in read_events(log)):
            began_s.append(common.machine_cpu_s())

    with tempfile.TemporaryDirectory() as folder:
        path, log = Path(folder, "scenario.toml"), Path(folder, "run.db")
        Path(folder, "overlay.toml").write_text(dumps(overlay))
        path.write_text(
            f'overlay = "overlay.toml"\nstop.rounds = {rounds}\nroute = {{kind = "packed"}}\n'
            f'task = {{kind = "exchange", elements = {elements}}}\n'
        )
        shared = load(str(Path(folder, "overlay.toml")))
        run_locally(path, 0, shared, log, None, sample, emulate=True)
        cpu_s = common.machine_cpu_s() - (began_s[0] if began_s else cpu_s)
        run = summarise(event for _, event in read_events(log))
    assert run.checksums_agree
    assert len(run.round_s) == rounds
    round_s = median(run.round_s)
    return {
        "round_s": round_s,
        "share_of_limit": limit_s(overlay, 4 * elements) / round_s,
        "relay_busy": run.relay_busy or 0.0,
        "cpu_s_per_round": cpu_s / rounds,
    }


def spread(runs: list[dict[str, float]]) -> dict[str, dict[str, float | list[float]]]:
    return {figure: common.spread([run[figure] for run in runs]) for figure in runs[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", type=int, help="overlays of so many sites")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", choices=list(WAYS), help="this one alone")
    parser.add_argument("--mb", type=int, help="buffers of this size alone")
    options = parser.parse_args()
    results = []
    heads = ["sites", "links", "Gbit/s", "MB", "links' way"]
    heads += ["round, s", "share of limit", "relay busy", "machine's CPU s a round"]
    print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for sites, times, mb in NETWORKS:
        if options.only not in (None, sites) or options.mb not in (None, mb):
            continue
        overlay = drawn(sites, times)
        total_bps = sum(link.rate_bps for link in overlay)
        names = [name for name in WAYS if options.way in (None, name)]
        found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for _ in range(options.repeats):
            for name in names:
                found[name].append(exchanged(WAYS[name](overlay), mb * 250_000, options.rounds))
        for name, runs in found.items():
            told = spread(runs)
            print(
                f"| {sites} | {len(overlay.links)} | {total_bps / 1e9:.2f} | {mb} | {name} | "
                + " | ".join(f"{told[f]['median']:.2f} {told[f]['all']}" for f in told)
                + " |",
                flush=True,
            )
            results.append(
                {
                    "sites": sites,
                    "links": len(overlay.links),
                    "total_bps": total_bps,
                    "size_bytes": mb * 1_000_000,
                    "way": name,
                    **told,
                }
            )
    if options.only is options.mb is options.way is None:
        common.write("many_sites", seed=0, rounds=options.rounds, results=results)


if __name__ == "__main__":
    main()
