"""Emulated links against what they are set to, and what they cost. Needs root and iproute2.

    python benchmarks/emulation.py

Every site is a process in a network namespace of its own that sends on all its links at once, so
all links of an overlay are busy while they are measured.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import common
from anabranch.overlay import Overlay, internet2_9, random_complete, random_sparse
from anabranch_lab.emulate import Emulation, emulated

PORT = 5000
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
WARM_S = 3.0
MEASURED_S = 5.0
ASKED_S = 0.5  # before the end, while there is a connection to ask the kernel about
PINGS = 50
SO_RCVBUFFORCE = 33  # which the socket module does not name
DATAGRAMS = 100_000


# --- one site: it sends on all its links, and counts what it receives --------------------------


@dataclass(frozen=True)
class Order:
    """What one site is to do: send to targets from the start on, and count from begin to end."""

    host: str
    targets: list[str]
    sources: int
    congestion_control: str
    begin_s: float
    end_s: float


def flood(order: Order) -> None:
    """Do what is ordered; print how many bytes came from each source, and how each lane fared."""
    os.nice(-10)  # other work on this machine is not what is measured
    received: dict[str, int] = {}
    lanes: dict[str, dict[str, float]] = {}

    def take(connection: socket.socket, source: str) -> None:
        buffer, count = bytearray(1 << 18), 0
        while (more := connection.recv_into(buffer)) and (now_s := time.monotonic()) < order.end_s:
            if now_s >= order.begin_s:
                count += more
        received[source] = count
        connection.close()

    def give(target: str) -> None:
        with socket.socket() as connection:
            control = order.congestion_control.encode()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control)
            connection.connect((target, PORT))
            data = bytes(1 << 18)
            try:
                while time.monotonic() < order.end_s - ASKED_S:
                    connection.sendall(data)
                lanes[target] = lane(connection)
                while True:
                    connection.sendall(data)  # the target hangs up when it has counted
            except OSError:
                return

    with socket.create_server((order.host, PORT), backlog=order.sources) as server:
        print("listening", flush=True)
        sys.stdin.readline()
        threads = [threading.Thread(target=give, args=(target,)) for target in order.targets]
        for thread in threads:
            thread.start()
        for _ in range(order.sources):
            connection, (source, _) = server.accept()
            threads.append(threading.Thread(target=take, args=(connection, source)))
            threads[-1].start()
        for thread in threads:
            thread.join()
    print(json.dumps([received, lanes]), flush=True)


def lane(connection: socket.socket) -> dict[str, float]:
    """Return what the kernel knows of a connection (struct tcp_info)."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    (retransmitted,) = struct.unpack_from("=I", info, 100)
    least_rtt_us, _, sent = struct.unpack_from("=III", info, 148)
    return {"least_rtt_s": least_rtt_us / 1e6, "sent": sent, "retransmitted": retransmitted}


# --- all sites ---------------------------------------------------------------------------------


def flooded(
    wan: Emulation, overlay: Overlay, congestion_control: str, measured_s: float = MEASURED_S
) -> dict[str, object]:
    """Keep all links busy, and say what they carried and what that cost."""
    begin_s = time.monotonic() + 2.0 + WARM_S
    processes: list[subprocess.Popen[str]] = []
    for site in range(overlay.size):
        order = Order(
            host=wan.addresses[site],
            targets=[wan.addresses[target] for target in overlay.targets[site]],
            sources=len(overlay.sources[site]),
            congestion_control=congestion_control,
            begin_s=begin_s,
            end_s=begin_s + measured_s,
        )
        command = [sys.executable, __file__, "--flood", json.dumps(asdict(order))]
        processes.append(wan.popen(site, command, stdin=-1, stdout=-1, text=True))
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    time.sleep(max(0.0, begin_s - time.monotonic()))
    began = common.machine_cpu_s(), process_cpu_s(wan.relay_pid)
    time.sleep(measured_s)
    ended = common.machine_cpu_s(), process_cpu_s(wan.relay_pid)
    site_of = {address: site for site, address in enumerate(wan.addresses)}
    ratios, lanes = [], []
    for target, process in enumerate(processes):
        received, sent = json.loads(process.communicate()[0])
        lanes += sent.values()
        for source, count in received.items():
            link = overlay.link(site_of[source], target)
            assert link is not None
            ratios.append(8 * count / measured_s / link.goodput_bps)
    assert len(ratios) == len(overlay.links)
    wan.check()
    cores, relay_cores = ((b - a) / measured_s for a, b in zip(began, ended, strict=True))
    return {
        "congestion_control": congestion_control,
        "worst": min(ratios),
        "median": median(ratios),
        "best": max(ratios),
        "cores": cores,
        "relay_cores": relay_cores,
        "relay_busy": wan.relay_busy,
        "least_rtt_s": median(lane["least_rtt_s"] for lane in lanes),
        "sent_again": sum(each["retransmitted"] for each in lanes) / sum(e["sent"] for e in lanes),
    }


def process_cpu_s(pid: int | None) -> float:
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def rate_changes_s(wan: Emulation, overlay: Overlay) -> float:
    """Return how long it takes to give all links new rates at once: the median of nine times."""
    times_s = []
    for number in range(9):
        began_s = time.perf_counter()
        wan.set_rates(
            [(link.source, link.target, link.rate_bps * (2 + number)) for link in overlay]
        )
        times_s.append(time.perf_counter() - began_s)
    wan.set_rates([(link.source, link.target, link.rate_bps) for link in overlay])
    return median(times_s)


def measure(
    overlay: Overlay, delays: bool, congestion_control: str, repeats: int
) -> dict[str, object]:
    """Make an overlay and flood it some times; the best flood tells of the links, not of others."""
    floods = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        with emulated(overlay, delays=delays) as wan:
            made_s = time.perf_counter() - began_s
            floods.append(flooded(wan, overlay, congestion_control))
            changes_s = rate_changes_s(wan, overlay)
            way = wan.way
            began_s = time.perf_counter()
        removed_s = time.perf_counter() - began_s
    best = max(floods, key=lambda each: float(each["median"]))  # type: ignore[arg-type]
    total_bps = sum(link.goodput_bps for link in overlay)
    busy = "" if best["relay_busy"] is None else f"{100 * float(best['relay_busy']):.0f} %"  # type: ignore[arg-type]
    print(
        f"| {overlay.name} | {len(overlay.links)} | {total_bps / 1e9:.2f} | {way} | "
        f"{congestion_control} | {best['worst']:.3f} | {best['median']:.3f} | "
        f"{1e3 * float(best['least_rtt_s']):.1f} | {best['cores']:.2f} | "  # type: ignore[arg-type]
        f"{best['relay_cores']:.2f} | {busy} | {1e3 * made_s:.0f} | {1e3 * changes_s:.0f} |",
        flush=True,
    )
    return {
        "overlay": overlay.name,
        "links": len(overlay.links),
        "total_bps": total_bps,
        "way": way,
        "set_up_s": made_s,
        "all_rates_changed_s": changes_s,
        "taken_down_s": removed_s,
        "best": best,
        "floods": floods,
    }


# --- delay and loss of one link ----------------------------------------------------------------


def echo(host: str) -> None:
    """Send small datagrams back; count large ones, and say how many on being asked."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
        here.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 26)
        here.bind((host, PORT))
        count = 0
        print("listening", flush=True)
        while True:
            data, sender = here.recvfrom(2048)
            count += len(data) > 10
            if len(data) <= 10:
                here.sendto(str(count).encode(), sender)


def ping(host: str, target: str) -> None:
    """Print the round trips of small datagrams, and how many of many larger ones arrive."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
        here.bind((host, PORT))
        here.settimeout(1.0)
        trips_s: list[float] = []
        while len(trips_s) < PINGS:
            sent_s = time.perf_counter()
            here.sendto(b"?", (target, PORT))
            try:
                here.recv(100)
                trips_s.append(time.perf_counter() - sent_s)
            except TimeoutError:
                continue
        for number in range(DATAGRAMS):
            here.sendto(bytes(100), (target, PORT))
            if number % 20 == 0:
                time.sleep(0.001)  # 20,000 a second: less than the link, and what one process takes
        time.sleep(0.5)
        while True:
            here.sendto(b"?", (target, PORT))
            try:
                arrived = int(here.recv(100))
                break
            except TimeoutError:
                continue
    print(json.dumps([trips_s, arrived]), flush=True)


def delay_and_loss(overlay: Overlay) -> dict[str, float]:
    """Measure one link there and back while nothing else is sent."""
    there = overlay.links[0]
    back = overlay.link(there.target, there.source)
    assert back is not None
    with emulated(overlay) as wan:
        host, target = wan.addresses[there.source], wan.addresses[there.target]
        server = wan.popen(
            there.target, [sys.executable, __file__, "--echo", target], stdout=-1, text=True
        )
        assert server.stdout is not None
        server.stdout.readline()
        command = [sys.executable, __file__, "--ping", host, target]
        client = wan.popen(there.source, command, stdout=-1, text=True)
        trips_s, arrived = json.loads(client.communicate()[0])
    found = {
        "set_round_trip_s": there.latency_s + back.latency_s,
        "median_round_trip_s": median(trips_s),
        "worst_round_trip_s": max(trips_s),
        "set_loss": there.loss,
        "datagrams": DATAGRAMS,
        "lost": DATAGRAMS - arrived,
    }
    print(
        f"round trip {1e3 * found['median_round_trip_s']:.2f} ms (worst "
        f"{1e3 * found['worst_round_trip_s']:.2f}) of {1e3 * found['set_round_trip_s']:.0f}; lost "
        f"{found['lost']} of {DATAGRAMS:,} datagrams, expected {DATAGRAMS * there.loss:.0f}"
    )
    return found


def a_quarter_of(overlay: Overlay) -> Overlay:
    """Return the same overlay with a quarter of its links' rates."""
    links = tuple(replace(link, rate_bps=link.rate_bps / 4) for link in overlay)
    return replace(overlay, name=f"{overlay.name}, a quarter of the rates", links=links)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--many-sites", action="store_true", help="25 sites alone")
    parser.add_argument("--flood", help=argparse.SUPPRESS)
    parser.add_argument("--echo", help=argparse.SUPPRESS)
    parser.add_argument("--ping", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.flood:
        return flood(Order(**json.loads(options.flood)))
    if options.echo:
        return echo(options.echo)
    if options.ping:
        return ping(*options.ping)
    overlays = internet2_9(), random_complete(9, 0)
    far = replace(random_sparse(25, 0, degree=4, latency_s=0.003), name="sparse, 25 sites")
    print(
        "| overlay | links | Gbit/s | way | congestion control | worst | median | least RTT, ms | "
        "cores | relay's cores | relay busy | set-up, ms | all rates changed, ms |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    if options.many_sites:
        results = [
            measure(overlay, True, "bbr", options.repeats) for overlay in (far, a_quarter_of(far))
        ]
        common.write("emulation_many_sites", seed=0, results=results)
        return
    results = [
        measure(overlay, delays, congestion_control, options.repeats)
        for overlay in overlays
        for delays, congestion_control in ((False, "cubic"), (False, "bbr"), (True, "bbr"))
    ]
    results.append(measure(a_quarter_of(overlays[1]), True, "bbr", options.repeats))
    lossless = replace(
        overlays[1],
        name="complete-9, no loss",
        links=tuple(replace(link, loss=0.0) for link in overlays[1]),
    )
    results.append(measure(lossless, True, "cubic", options.repeats))
    results.append(measure(overlays[0], True, "cubic", 1))
    common.write("emulation", seed=0, results=results, one_link=delay_and_loss(overlays[0]))


if __name__ == "__main__":
    main()
