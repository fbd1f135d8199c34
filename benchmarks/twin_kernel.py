"""The twin check against links that the kernel holds, not the sender. Needs root and iproute2.

    python benchmarks/twin_kernel.py

Each site is a process in a network namespace of its own, each link a veth pair whose two directions
are held to their rates by HTB. Nothing of the project's shapes anything, so this tells whether the
simulation's links are like real ones: with socket buffers, acknowledgements, and a congestion
control, which ``--congestion-control`` chooses. The kernel delays nothing here, so neither does the
simulation.
"""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

import common
from anabranch.overlay import Overlay, dumps, internet2_9, random_complete, random_geographic
from anabranch.record import RunSummary, read_events, summarise
from anabranch.run.launch import TOKEN_VARIABLE
from anabranch.run.scenario import load
from anabranch.run.simulate import simulate

ROUTES = {
    "star": 'kind = "star"',
    "balanced": 'kind = "balanced"',
    "mst": 'kind = "mst"',
    "fapt, every root": 'kind = "fapt"',
}
MTU = 1500
PREFIX = f"ab{os.getpid()}"
CONTROL = "10.78.0.254"


def ip(*words: object, namespace: str | None = None, tool: str = "ip") -> None:
    inside = ["ip", "netns", "exec", namespace] if namespace else []
    subprocess.run([*inside, tool, *map(str, words)], check=True, capture_output=True)


@contextmanager
def emulated(overlay: Overlay, congestion_control: str) -> Iterator[list[str]]:
    """Make a namespace for each site and one for the scheduler; yield their names."""
    names = [f"{PREFIX}-{site}" for site in range(overlay.size)] + [f"{PREFIX}-ctl"]
    with ExitStack() as stack:
        for name in names:
            ip("netns", "add", name)
            stack.callback(ip, "netns", "delete", name)
            ip("link", "set", "lo", "up", namespace=name)
        *sites, control = names
        ip("link", "add", "bridge", "type", "bridge", namespace=control)
        ip("addr", "add", f"{CONTROL}/24", "dev", "bridge", namespace=control)
        ip("link", "set", "bridge", "up", namespace=control)
        for site, name in enumerate(sites):
            ip("addr", "add", f"10.77.0.{site + 1}/32", "dev", "lo", namespace=name)
            veth(name, "control", control, f"to{site}")
            ip("addr", "add", f"10.78.0.{site + 1}/24", "dev", "control", namespace=name)
            ip("link", "set", f"to{site}", "master", "bridge", namespace=control)
        for link in overlay:
            if link.source < link.target:
                veth(sites[link.source], f"to{link.target}", sites[link.target], f"to{link.source}")
        for link in overlay:
            at, device = sites[link.source], f"to{link.target}"
            there, here = f"10.77.0.{link.target + 1}/32", f"10.77.0.{link.source + 1}"
            how = ("src", here, "congctl", congestion_control)
            ip("route", "add", there, "dev", device, *how, namespace=at)
            hold(at, device, link.goodput_bps)
        yield names


def veth(here: str, device: str, there: str, back: str) -> None:
    """Join two namespaces by a pair of devices."""
    ip("link", "add", device, "netns", here, "type", "veth", "peer", back, "netns", there)
    ip("link", "set", device, "up", namespace=here)
    ip("link", "set", back, "up", namespace=there)


def hold(namespace: str, device: str, goodput_bps: float) -> None:
    """Hold what leaves a device to a rate of payload."""
    rate = f"{round(goodput_bps * (MTU + 14) / (MTU - 52))}bit"
    queue_bytes = max(128 * 1024, round(0.05 * goodput_bps / 8))
    htb = ("dev", device, "parent", "1:", "classid", "1:1", "htb", "rate", rate, "ceil", rate)
    more = ("burst", 1600, "cburst", 1600, "quantum", 60000)
    root = ("dev", device, "root", "handle", "1:", "htb", "default", 1)
    ip("qdisc", "add", *root, namespace=namespace, tool="tc")
    ip("class", "add", *htb, *more, namespace=namespace, tool="tc")
    fifo = ("dev", device, "parent", "1:1", "bfifo", "limit", queue_bytes)
    ip("qdisc", "add", *fifo, namespace=namespace, tool="tc")


def measure(scenario: Path, overlay: Overlay, log: Path, congestion_control: str) -> None:
    """Run a scenario with a process in each namespace."""
    environment = {**os.environ, TOKEN_VARIABLE: secrets.token_hex(8)}
    with emulated(overlay, congestion_control) as names, ExitStack() as stack:

        def start(namespace: str, *words: str, **options: object) -> subprocess.Popen[str]:
            command = ["ip", "netns", "exec", namespace, sys.executable, "-m", "anabranch", *words]
            process = subprocess.Popen(command, env=environment, text=True, **options)  # type: ignore[call-overload]
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process  # type: ignore[no-any-return]

        scheduler = start(
            names[-1],
            *("scheduler", str(scenario), "--log", str(log)),
            *("--listen", f"{CONTROL}:0", "--insecure"),
            stdout=subprocess.PIPE,
        )
        assert scheduler.stdout is not None
        address = scheduler.stdout.readline().strip()
        for index, (site, name) in enumerate(zip(overlay.sites, names, strict=False)):
            options = ("--scheduler", address, "--host", f"10.77.0.{index + 1}", "--insecure")
            start(name, "site", site.name, *options, "--threads", "1")
        if scheduler.wait(600) != 0:
            raise RuntimeError("the run failed; see above")


def compare(
    overlay: Overlay, route: str, elements: int, rounds: int, congestion_control: str
) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "scenario.toml")
        Path(folder, "overlay.toml").write_text(dumps(overlay))
        path.write_text(
            f'overlay = "overlay.toml"\nchunk_elements = {1 << 16}\nshaped = false\n'
            f"stop.rounds = {rounds}\nroute = {{{ROUTES[route]}}}\n"
            f'task = {{kind = "exchange", elements = {elements}}}\n'
        )
        logs = Path(folder, "simulated.db"), Path(folder, "measured.db")
        simulate(load(path)[0], overlay, logs[0])
        measure(path, overlay, logs[1], congestion_control)
        simulated, measured = (per_round_s(log) for log in logs)
    return {
        "overlay": overlay.name,
        "route": route,
        "elements": elements,
        "simulated_s": simulated,
        "measured_s": measured,
        "measured_over_simulated": measured / simulated,
    }


def per_round_s(log: Path) -> float:
    run: RunSummary = summarise(event for _, event in read_events(log))
    assert run.checksums_agree is not False
    assert run.median_interval_s is not None
    return run.median_interval_s


def at_once(overlay: Overlay) -> Overlay:
    """Return the overlay with links that delay nothing."""
    return replace(overlay, links=tuple(replace(link, latency_s=0.0) for link in overlay))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--congestion-control", default="cubic", help="or bbr, where there is")
    options = parser.parse_args()
    results = []
    print("| overlay | route | elements | simulated, s | measured, s | measured / simulated |")
    print("| --- | --- | --- | --- | --- | --- |")
    for overlay in (internet2_9(), random_geographic(6, 2), random_complete(5, 1)):
        for route in ROUTES:
            for elements in (1_000_000, 4_000_000):
                result = compare(
                    at_once(overlay), route, elements, options.rounds, options.congestion_control
                )
                results.append(result)
                print(
                    f"| {overlay.name} | {route} | {elements:,} | {result['simulated_s']:.3f} | "
                    f"{result['measured_s']:.3f} | {result['measured_over_simulated']:.3f} |",
                    flush=True,
                )
    errors = [abs(float(result["measured_over_simulated"]) - 1) for result in results]  # type: ignore[arg-type]
    print(f"{len(errors)} settings: error {median(errors):.1%} median, {max(errors):.1%} worst")
    common.write(
        f"twin_kernel_{options.congestion_control}",
        seed=0,
        rounds=options.rounds,
        median_error=median(errors),
        worst_error=max(errors),
        results=results,
    )


if __name__ == "__main__":
    main()
