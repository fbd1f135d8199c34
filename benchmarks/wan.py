"""All-reduce over an emulated WAN: every route, and other systems, in the same namespaces.

    python benchmarks/wan.py                 # all settings, some hours; needs root
    python benchmarks/wan.py --only sparse   # or small, far, complete, ports, small_rings, ...

Each site is a process in a network namespace, and the kernel holds every link (and, in ``ports``,
every site's port) to its rate. Seconds a round, share of the physical limit, speed-up over the
first row; and what it costs: CPU seconds of all processes for a gigabyte over a link, starting up
not counted, and the most memory of a site. The settings of rings (``far`` ones with delay and loss,
``large`` ones of 61 M, without stars) have five rounds of each: packed trees, our own ring, stars;
gloo, its ranks in the order of sites and in the best order for a ring, over cubic and, but for
``large_rings``, over bbr; hivemind as it is and told what bandwidth each site has, but for
``large_far_rings``. There gloo over cubic in the order of sites has one round. On a machine with
other work, `chrt -r 5 python benchmarks/wan.py` lets all of it go before that work; the results say
so (``real_time``). Not `chrt -f`, under which a process that waits busily keeps its core from
others.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import common
import peers
from anabranch.log import LinkBytes, read_events, summarise
from anabranch.overlay import Overlay, dumps, internet2_9, load, random_complete
from anabranch.plan import limit_s
from anabranch_lab.run.launch import run_locally

TICKS_PER_S = os.sysconf("SC_CLK_TCK")

STAR_MEDIAN = 'route = {kind = "star", hub = "dc4"}'
STAR_BEST = 'route = {kind = "star"}'
PACKED = 'route = {kind = "packed"}'
RING = 'route = {kind = "ring"}'
ROUTES = {
    "star, median hub": STAR_MEDIAN,
    "star, best hub": STAR_BEST,
    "balanced": 'route = {kind = "balanced"}',
    "mst": 'route = {kind = "mst"}',
    "ring": RING,
    "fapt, 1 root": 'route = {kind = "fapt", roots = 1}',
    "fapt, 9 roots": 'route = {kind = "fapt"}',
    "fapt, 9 roots, auxiliary": 'route = {kind = "fapt"}\nauxiliary = {}\nchunk_elements = 65536',
    "packed": PACKED,
}


@dataclass(frozen=True)
class Rival:
    """Another system, and how it is run.

    Args:
        peer: a key of `peers.PEERS`.
        rounds: how many.
        best_ring: put ranks in the order that is best for a ring; else, in that of sites.
        congestion_control: of its connections.
        declares: tell it what bandwidth each site has.
    """

    peer: str
    rounds: int
    best_ring: bool = False
    congestion_control: str = "cubic"
    declares: bool = False


@dataclass(frozen=True)
class Setting:
    """An overlay, a buffer, and what is to be compared on it.

    Args:
        overlay: sites and links.
        elements: of the buffer.
        routes: by name, as lines of a scenario.
        rounds: of packed trees and rings; of the other routes half as many.
        peers: other systems, by name.
        least_rounds: of any route.
    """

    overlay: Overlay
    elements: int
    routes: Mapping[str, str]
    rounds: int
    peers: Mapping[str, Rival]
    least_rounds: int = 1


def sparse(latency_s: float, loss: float) -> Overlay:
    overlay = internet2_9()
    links = tuple(replace(link, latency_s=latency_s, loss=loss) for link in overlay.links)
    return replace(overlay, links=links)


def settings() -> dict[str, Callable[[], Setting]]:
    large, small = 61_000_000, 6_100_000
    few = {name: ROUTES[name] for name in ("star, best hub", "fapt, 9 roots", "packed")}
    choices = {
        "packed, dealt by share": PACKED + '\ndeal = {kind = "by-share"}',
        "packed, bbr": PACKED + '\ncongestion_control = "bbr"',
    }
    complete = random_complete(9, 0, low_bps=20e6, high_bps=155e6, latency_s=0.0, loss=0.0)
    hub = {"star, median hub": STAR_MEDIAN.replace("dc4", complete.sites[4].name)}
    # torchft's all-reduce is gloo's, as the smaller settings show.
    once = {peer: Rival(peer, 1) for peer in ("gloo", "hivemind")}
    all_peers = {peer: Rival(peer, 3) for peer in peers.PEERS}
    rings = {
        "gloo, ranks in the order of sites": Rival("gloo", 5),
        "gloo, best ring": Rival("gloo", 5, best_ring=True),
    }
    over_both = {
        f"{name}, {control}": replace(ring, congestion_control=control)
        for name, ring in rings.items()
        for control in ("cubic", "bbr")
    }
    slowest = {"gloo, ranks in the order of sites, cubic": Rival("gloo", 1)}  # a quarter of an hour
    hivemind = {
        "hivemind": Rival("hivemind", 5),
        "hivemind, bandwidths declared": Rival("hivemind", 5, declares=True),
    }
    first = ("packed", "ring", "star, best hub", "star, median hub")
    fair = {name: ROUTES[name] for name in first}
    fair_far = {**fair, "packed, bbr": choices["packed, bbr"]}
    return {
        "sparse": lambda: Setting(sparse(0.0, 0.0), large, ROUTES | choices, 3, once),
        "small": lambda: Setting(sparse(0.0, 0.0), small, ROUTES, 4, all_peers),
        "far": lambda: Setting(sparse(0.03, 0.0002), large, without_stars(few), 3, {}),
        "complete": lambda: Setting(complete, large, hub | few, 3, once),
        "ports": lambda: Setting(peers.three_ports(), (16 << 20) // 4, few, 4, all_peers),
        "small_rings": lambda: Setting(sparse(0.0, 0.0), small, fair, 5, over_both | hivemind, 5),
        "far_rings": lambda: Setting(
            sparse(0.03, 0.0002), small, fair_far, 5, over_both | hivemind, 5
        ),
        "large_rings": lambda: Setting(
            sparse(0.0, 0.0), large, without_stars(fair), 5, rings | hivemind, 5
        ),
        "large_far_rings": lambda: Setting(
            sparse(0.03, 0.0002), large, without_stars(fair), 5, over_both | slowest, 5
        ),
    }


def without_stars(routes: Mapping[str, str]) -> dict[str, str]:
    return {name: lines for name, lines in routes.items() if not name.startswith("star")}


def measure(setting: Setting, lines: str, rounds: int) -> dict[str, object]:
    """Run a scenario, each site in a namespace of its own."""
    pids: dict[str, int] = {}
    peaks: dict[str, int] = {}
    cpu_s: dict[str, float] = {}
    started_s: dict[str, float] = {}  # what starting up had cost when the run began

    def sample() -> None:
        for name, pid in pids.items():
            peaks[name] = max(peaks.get(name, 0), common.peak_memory_bytes(pid))
            cpu_s[name] = max(cpu_s.get(name, 0.0), process_cpu_s(pid))
        if not started_s and cpu_s and log.exists() and any(True for _ in read_events(log)):
            started_s.update(cpu_s)

    with tempfile.TemporaryDirectory() as folder:
        path, log = Path(folder, "scenario.toml"), Path(folder, "run.db")
        Path(folder, "overlay.toml").write_text(dumps(setting.overlay))
        path.write_text(
            f'overlay = "overlay.toml"\nstop.rounds = {rounds}\n{lines}\n'
            f'task = {{kind = "exchange", elements = {setting.elements}}}\n'
        )
        overlay = load(str(Path(folder, "overlay.toml")))
        run_locally(path, 0, overlay, log, None, sample, pids.update, emulate=True)
        events = [event for _, event in read_events(log)]
    run = summarise(iter(events))
    assert run.checksums_agree
    assert len(run.round_s) == rounds
    moved = sum(event.payload_bytes for event in events if isinstance(event, LinkBytes))
    return {
        "round_s": common.spread(run.round_s),
        "trees": len(json.loads(run.started.plan_json)["trees"]),
        "cpu_s_per_gb": sum(cpu_s[name] - started_s[name] for name in cpu_s) / (moved / 1e9),
        "peak_site_memory_bytes": max(
            peak for name, peak in peaks.items() if name != "the scheduler"
        ),
    }


def process_cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def compare(name: str, setting: Setting) -> dict[str, object]:
    """Measure everything in a setting, and print it as it comes."""
    least_s = limit_s(setting.overlay, 4 * setting.elements)
    print(f"\n{name}: {setting.overlay.name}, {setting.elements:,} float32, limit {least_s:.2f} s")
    load_average = os.getloadavg()
    rows: dict[str, dict[str, object]] = {}
    for route, lines in setting.routes.items():
        is_full = route.startswith(("packed", "ring"))
        rounds = setting.rounds if is_full else setting.rounds // 2
        rounds = max(setting.least_rounds, rounds)
        rows[route] = measure(setting, lines, rounds)
        show(route, rows, least_s)
    for label, rival in setting.peers.items():
        if not peers.installed(rival.peer):
            print(f"  {rival.peer} is not installed, so it is left out")
            continue
        try:
            rows[label] = peers.all_reduce(
                rival.peer,
                setting.overlay,
                setting.elements,
                rival.rounds,
                peers.best_ring(setting.overlay) if rival.best_ring else None,
                rival.congestion_control,
                rival.declares,
            )
        except RuntimeError as error:  # hours of the others' rounds are not to be lost
            print(f"  {label}: {error}", flush=True)
            rows[label] = {"failed": str(error)}
        else:
            show(label, rows, least_s)
    return {
        "overlay": setting.overlay.name,
        "elements": setting.elements,
        "limit_s": least_s,
        "load_average_before": load_average,
        "rows": rows,
    }


def show(route: str, rows: dict[str, dict[str, object]], least_s: float) -> None:
    row = rows[route]
    round_s: float = row["round_s"]["median"]  # type: ignore[index]
    row["share_of_limit"] = least_s / round_s
    first_s: float = next(iter(rows.values()))["round_s"]["median"]  # type: ignore[index]
    row["over_first"] = first_s / round_s
    cost = f", {row['cpu_s_per_gb']:.2f} CPU s/GB" if "cpu_s_per_gb" in row else ""
    trees = f", {row['trees']} trees" if "trees" in row else ""
    print(
        f"  {route}: {round_s:.2f} s, {least_s / round_s:.1%} of the limit, "
        f"{first_s / round_s:.2f}x the first{trees}{cost}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=list(settings()))
    options = parser.parse_args()
    for name, make in settings().items():
        if options.only is None or name in options.only:
            common.write(f"wan_{name}", seed=0, **compare(name, make()))


if __name__ == "__main__":
    main()
