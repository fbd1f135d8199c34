"""What a message costs: processor time per chunk and per GB, by size of the chunks.

    python benchmarks/messages.py                          # the code in src/
    python benchmarks/messages.py --before ../old/src      # beside that of another checkout

Three settings, all over TCP on loopback, one process a site:

- ``lane``: one lane sends as fast as it can; the other process adds each chunk up;
- ``paced``: the same on a connection that the kernel holds to 100 Mbit/s, where bytes come a few
  at a time;
- ``all-reduce``: nine sites, nothing shaped, a star for each site.

Processor time is user and system of all processes, from the first chunk to the last. A line of
least squares through the points (a cost per byte and one per message) says what a message costs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import common
from anabranch.exchange.actions import Send
from anabranch.exchange.arithmetic import Accumulator, Flat
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.net.errors import PeerError
from anabranch.net.frames import CONTROL_LIMITS, DISCARD, Sink
from anabranch.net.messages import AnyMessage, PartialSum, Ready
from anabranch.net.network import Connection
from anabranch.net.tcp import TcpNetwork
from anabranch.overlay import dumps, random_complete
from anabranch.site._lane import Lane
from anabranch.site.agent import SiteAgent, Transport
from anabranch.site.neighbourhood import LIMITS
from anabranch_lab.run.launch import TOKEN_VARIABLE

SRC = Path(__file__).parents[1] / "src"
CHUNK_BYTES = tuple(1 << power for power in (14, 16, 18, 20, 22))
PACED_BPS = 100e6
LANE_BYTES, PACED_BYTES, ROUND_BYTES = 1 << 30, 1 << 25, 1 << 26
SITES, ROUNDS = 9, 3
_SO_MAX_PACING_RATE = 47  # Linux; Python's socket module does not name it


# --- two processes and a lane ----------------------------------------------------------------


class Summing:
    """Receives sums of chunks and adds each to a contribution of its own."""

    def __init__(self, connection: Connection, chunks: int, elements: int) -> None:
        self.connection = connection
        self._chunks = chunks
        self._elements = elements
        self._own = np.ones(max(elements, (1 << 26) // 4), np.float32)  # larger than a cache
        self._places = len(self._own) // elements
        self.done: asyncio.Future[Accumulator] = asyncio.get_running_loop().create_future()
        self._came = 0

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        if isinstance(message, Ready):
            self.connection.trust()
            return DISCARD
        assert isinstance(message, PartialSum)
        start = message.chunk % self._places * self._elements
        accumulator = Accumulator(self._elements)
        accumulator.add_own(self._own[start : start + self._elements], 1.0)

        def done() -> None:
            self._came += 1
            if self._came == self._chunks:
                self.done.set_result(accumulator)

        return Sink(piece=accumulator.take, done=done)

    def on_refused(self, message: AnyMessage, error: PeerError) -> None:
        raise error

    def on_closed(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("closed early"))


class Silent:
    """Receives nothing but the end of the connection."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        return DISCARD

    def on_refused(self, message: AnyMessage, error: PeerError) -> None: ...

    def on_closed(self, error: Exception | None) -> None:
        self.closed.set()


class PacedLoop(asyncio.SelectorEventLoop):
    """An event loop whose connections the kernel holds to a rate."""

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, int(PACED_BPS / 8))
        await super().sock_connect(sock, address)


async def receive(chunks: int, elements: int) -> None:
    receivers: list[Summing] = []
    connected = asyncio.Event()

    def welcome(connection: Connection) -> Summing:
        receivers.append(Summing(connection, chunks, elements))
        connected.set()
        return receivers[-1]

    listener = await TcpNetwork(LIMITS, shares_memory=False).listen(("127.0.0.1", 0), welcome)
    print(listener.address[1], flush=True)
    await connected.wait()
    began_s = time.process_time()
    (receiver,) = receivers
    last = await receiver.done
    receiver.connection.close()
    cpu_s = time.process_time() - began_s
    assert np.array_equal(last.sum, np.full(elements, 3.0, np.float32))
    print(cpu_s, flush=True)


async def send(port: int, chunks: int, elements: int) -> None:
    silent = Silent()

    async def connect(strand: int) -> Connection:
        connection = await TcpNetwork(LIMITS, shares_memory=False).connect(
            ("127.0.0.1", port), silent
        )
        await connection.send(Ready(elements))
        return connection

    def failed(error: Exception) -> None:
        raise error

    terms = Terms(Op.MEAN, Wire.FLOAT32, elements).code
    places = max(1, (1 << 26) // 4 // elements)
    payloads = [row.data.cast("B") for row in np.full((places, elements), 2.0, np.float32)]
    lane = Lane(0, "lane", connect, 2, failed)
    began_s = time.process_time()
    for chunk in range(chunks):
        lane.put(Send(PartialSum(1, 1, chunk, (0, 1), terms), payloads[chunk % places]))
    await silent.closed.wait()  # all must leave before the loop ends
    lane.close()
    print(time.process_time() - began_s, flush=True)


def lane_cpu_s(source: Path, chunk_bytes: int, total_bytes: int, paced: bool) -> float:
    """Return the CPU seconds of both processes."""
    command = [sys.executable, __file__, "--chunk-bytes", str(chunk_bytes)]
    command += ["--chunks", str(total_bytes // chunk_bytes), *(["--paced"] if paced else [])]
    with started(source, [*command, "--receive"]) as receiver:
        assert receiver.stdout is not None
        port = receiver.stdout.readline().strip()
        with started(source, [*command, "--send", port]) as sender:
            assert sender.stdout is not None
            return float(receiver.stdout.readline()) + float(sender.stdout.readline())


# --- nine sites --------------------------------------------------------------------------------


async def take_part(name: str, scheduler: str, chunk_bytes: int) -> None:
    buffer = np.ones(ROUND_BYTES // 4, np.float32)
    host, port = scheduler.split(":")
    lanes = TcpNetwork(LIMITS, shares_memory=False)
    agent = SiteAgent(
        TcpNetwork(CONTROL_LIMITS),
        lanes,
        name,
        os.environ[TOKEN_VARIABLE],
        ("127.0.0.1", 0),
        lambda: None,
        lambda *refused: None,
    )
    await agent.join((host, int(port)))
    elements = chunk_bytes // 4
    await agent.start(Transport(elements, elements, len(buffer)), lanes)
    terms = Terms(Op.MEAN, Wire.FLOAT32, len(buffer))
    began_s = 0.0
    for number in range(ROUNDS + 1):
        done = await agent.exchange(Flat(buffer), terms)
        await agent.round_ended(done, None)
        if number == 0:  # which opened connections
            began_s = time.process_time()
    cpu_s = time.process_time() - began_s
    assert bool((buffer == 1.0).all())
    await agent.leave()
    print(cpu_s, flush=True)


def all_reduce_cpu_s(source: Path, chunk_bytes: int) -> float:
    """Return the CPU seconds of all sites."""
    overlay = random_complete(SITES, 0, low_bps=1e9, high_bps=1e9, latency_s=0.0, loss=0.0)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "overlay.toml").write_text(dumps(overlay))
        Path(folder, "scenario.toml").write_text(
            f'overlay = "overlay.toml"\nstop.rounds = {ROUNDS + 1}\n'
            f"chunk_elements = {chunk_bytes // 4}\n"
            f'route = {{kind = "fapt", roots = {SITES}}}\n'
            f'task = {{kind = "exchange", elements = {ROUND_BYTES // 4}}}\n'
        )
        command = [sys.executable, "-m", "anabranch", "scheduler", f"{folder}/scenario.toml"]
        environment = {TOKEN_VARIABLE: secrets.token_hex(8)}
        with started(source, [*command, "--log", f"{folder}/run.db"], environment) as scheduler:
            assert scheduler.stdout is not None
            address = scheduler.stdout.readline().strip()
            command = [sys.executable, __file__, "--chunk-bytes", str(chunk_bytes)]
            command += ["--scheduler", address, "--name"]
            sites = [started(source, [*command, site.name], environment) for site in overlay.sites]
            processes = [site.__enter__() for site in sites]
            try:
                return sum(float(process.communicate()[0]) for process in processes)
            finally:
                for site in sites:
                    site.__exit__(None, None, None)


# --- all together -------------------------------------------------------------------------------


@contextmanager
def started(
    source: Path, command: Sequence[str], environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run a command on the code in ``source``; it does not outlive the block."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(source), **(environment or {})},
    )
    try:
        yield process
        process.wait()
    finally:
        process.kill()
        process.wait()


def measure(setting: str, source: Path, chunk_bytes: int) -> tuple[float, int]:
    """Return the CPU seconds of a setting, and the bytes that went over lanes."""
    if setting == "all-reduce":
        moved_bytes = 2 * (SITES - 1) * ROUND_BYTES * ROUNDS
        return all_reduce_cpu_s(source, chunk_bytes), moved_bytes
    total_bytes = PACED_BYTES if setting == "paced" else LANE_BYTES
    return lane_cpu_s(source, chunk_bytes, total_bytes, setting == "paced"), total_bytes


def line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Return CPU seconds per message and per GB, from CPU seconds per GB by size of chunks."""
    rows = np.array([(1e9 / size, 1.0) for size, _ in points])
    costs = np.array([cost for _, cost in points])
    # Relative errors count: the largest cost is a hundred times the smallest.
    weights = (1.0 / costs)[:, None]
    solution, *_ = np.linalg.lstsq(rows * weights, costs * weights[:, 0], rcond=None)
    return float(solution[0]), float(solution[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="the src folder of another checkout")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--settings", nargs="*", default=["lane", "paced", "all-reduce"])
    parser.add_argument("--sizes", nargs="*", type=int, default=list(CHUNK_BYTES))
    parser.add_argument("--dry", action="store_true", help="write no file")
    for hidden in ("--chunk-bytes", "--chunks", "--send"):
        parser.add_argument(hidden, type=int, help=argparse.SUPPRESS)
    for hidden in ("--paced", "--receive"):
        parser.add_argument(hidden, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    parser.add_argument("--scheduler", help=argparse.SUPPRESS)
    options = parser.parse_args()
    loop = PacedLoop if options.paced else asyncio.SelectorEventLoop
    with asyncio.Runner(loop_factory=loop) as runner:
        if options.receive:
            runner.run(receive(options.chunks, options.chunk_bytes // 4))
            return
        if options.send is not None:
            runner.run(send(options.send, options.chunks, options.chunk_bytes // 4))
            return
        if options.name is not None:
            runner.run(take_part(options.name, options.scheduler, options.chunk_bytes))
            return
    sources = {"after": SRC} if options.before is None else {"before": options.before, "after": SRC}
    results: dict[str, dict[str, object]] = {}
    for setting in options.settings:
        results[setting] = {}
        costs: dict[str, dict[int, list[float]]] = {
            label: {size: [] for size in options.sizes} for label in sources
        }
        for size in options.sizes:
            for _ in range(options.runs):
                for label, source in sources.items():  # in turn: both feel the same machine
                    cpu_s, moved_bytes = measure(setting, source.resolve(), size)
                    costs[label][size].append(cpu_s / (moved_bytes / 1e9))
        for label, by_size in costs.items():
            points = [(size, median(values)) for size, values in by_size.items()]
            per_message_s, per_gb_s = line(points)
            results[setting][label] = {
                "cpu_s_per_gb": {size: common.spread(values) for size, values in by_size.items()},
                "cpu_us_per_message": {size: cost * size / 1e3 for size, cost in points},
                "fit": {"cpu_us_per_message": per_message_s * 1e6, "cpu_s_per_gb": per_gb_s},
            }
            shown = ", ".join(f"{size >> 10} KB {cost:.2f}" for size, cost in points)
            print(
                f"{setting}, {label}: CPU s/GB in chunks of {shown}; "
                f"{per_message_s * 1e6:.0f} us a message and {per_gb_s:.2f} s a GB",
                flush=True,
            )
    if not options.dry:
        before = None if options.before is None else commit_of(options.before)
        common.write("messages", seed=0, commit_before=before, results=results)


def commit_of(folder: Path) -> str:
    command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
