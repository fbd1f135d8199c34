"""One lane on loopback: 4 MB chunks received and summed, one process each side.

    python benchmarks/lane.py
    anabranch certs --sites a,b --out FOLDER && python benchmarks/lane.py --tls FOLDER

Measures what the data plane can move at best: the sender's lane, a connection, the frame reader,
and the accumulator, with nothing to wait for. With --tls also what is left of it under TLS, both in
turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import common
from anabranch.exchange.actions import Send
from anabranch.exchange.arithmetic import Accumulator
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.net.errors import PeerError
from anabranch.net.frames import DISCARD, Sink
from anabranch.net.messages import AnyMessage, PartialSum, Ready
from anabranch.net.network import Address, Connection
from anabranch.net.tcp import TcpNetwork
from anabranch.net.tls import Credentials, identity_of
from anabranch.site._lane import Lane
from anabranch.site.neighbourhood import LIMITS

ELEMENTS = 1 << 20
TERMS = Terms(Op.MEAN, Wire.FLOAT32, ELEMENTS).code
BUFFER_CHUNKS = 58  # both sides work through a buffer of AlexNet's size: nothing stays in a cache


class Summing:
    """Receives sums of chunks and adds each to a contribution of its own."""

    def __init__(self, connection: Connection, chunks: int) -> None:
        self.connection = connection
        self._chunks = chunks
        self._own = np.ones((BUFFER_CHUNKS, ELEMENTS), np.float32)
        self.done = asyncio.get_running_loop().create_future()
        self.began_s = self.ended_s = self.began_cpu_s = self.ended_cpu_s = 0.0
        self.last = Accumulator(0)

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        if isinstance(message, Ready):
            self.connection.trust()
            return DISCARD
        assert isinstance(message, PartialSum)
        if message.chunk == 0:
            self.began_s, self.began_cpu_s = time.perf_counter(), time.process_time()
        accumulator = Accumulator(ELEMENTS)
        accumulator.add_own(self._own[message.chunk % BUFFER_CHUNKS], 1.0)

        def done() -> None:
            if message.chunk == self._chunks - 1:
                self.last = accumulator
                self.ended_s, self.ended_cpu_s = time.perf_counter(), time.process_time()
                self.done.set_result(None)

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


def network(tls: Path | None, site: str) -> TcpNetwork:
    credentials = None if tls is None else Credentials(tls, identity_of(site))
    return TcpNetwork(LIMITS, shares_memory=False, credentials=credentials)


async def receive(chunks: int, tls: Path | None) -> None:
    receivers: list[Summing] = []
    connected = asyncio.Event()

    def welcome(connection: Connection) -> Summing:
        receivers.append(Summing(connection, chunks))
        connected.set()
        return receivers[-1]

    listener = await network(tls, "b").listen(("127.0.0.1", 0), welcome)
    print(listener.address[1], flush=True)
    await connected.wait()
    (receiver,) = receivers
    await receiver.done
    receiver.connection.close()
    assert np.array_equal(receiver.last.sum, np.full(ELEMENTS, 3.0, np.float32))
    seconds = receiver.ended_s - receiver.began_s
    cpu_s = receiver.ended_cpu_s - receiver.began_cpu_s
    print(json.dumps({"seconds": seconds, "cpu_s": cpu_s}), flush=True)


async def send(address: Address, chunks: int, tls: Path | None) -> float:
    silent = Silent()

    async def connect(strand: int) -> Connection:
        connection = await network(tls, "a").connect(address, silent)
        await connection.send(Ready(ELEMENTS))
        return connection

    def failed(error: Exception) -> None:
        raise error

    buffer = np.full((BUFFER_CHUNKS, ELEMENTS), 2.0, np.float32)
    lane = Lane(0, "lane", connect, 2, failed)
    began_s = time.process_time()
    for chunk in range(chunks):
        payload = memoryview(buffer[chunk % BUFFER_CHUNKS].data).cast("B")
        lane.put(Send(PartialSum(1, 1, chunk, (0, 1), TERMS), payload))
    await silent.closed.wait()  # all must leave before the loop ends
    cpu_s = time.process_time() - began_s
    lane.close()
    return cpu_s


def measure(chunks: int, tls: Path | None = None) -> tuple[float, float, float]:
    """Return GB/s, and CPU seconds per GB of the sender and of the receiver."""
    command = [sys.executable, __file__, "--receive", "--chunks", str(chunks)]
    if tls is not None:
        command += ["--tls", str(tls)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        port = int(receiver.stdout.readline())
        sender_cpu_s = asyncio.run(send(("127.0.0.1", port), chunks, tls))
        result = json.loads(receiver.stdout.readline())
    gigabytes = chunks * 4 * ELEMENTS / 1e9
    return gigabytes / result["seconds"], sender_cpu_s / gigabytes, result["cpu_s"] / gigabytes


def compare(chunks: int, runs: int, tls: Path) -> None:
    pairs = [(measure(chunks)[0], measure(chunks, tls)[0]) for _ in range(runs)]
    plain, secured = (common.spread(column) for column in zip(*pairs, strict=True))
    ratio = common.spread([under / over for over, under in pairs])
    print(f"plain {plain['median']:.2f} GB/s, TLS {secured['median']:.2f} GB/s")
    print(f"TLS over plain: {ratio['median']:.2f} (of {runs} pairs in turns: {ratio['all']})")
    common.write(
        "lane_tls",
        seed=0,
        chunk_bytes=4 * ELEMENTS,
        chunks=chunks,
        plain_gigabytes_per_s=plain,
        tls_gigabytes_per_s=secured,
        tls_over_plain=ratio,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=500)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--tls", type=Path, help="folder of certificates for sites a and b")
    parser.add_argument("--receive", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.receive:
        asyncio.run(receive(options.chunks, options.tls))
        return
    measure(50)  # warms the page cache and the processor up
    if options.tls is not None:
        compare(options.chunks, options.runs, options.tls)
        return
    runs = [measure(options.chunks) for _ in range(options.runs)]
    rates, sender_cpu, receiver_cpu = (common.spread(column) for column in zip(*runs, strict=True))
    print(
        f"received and summed: {rates['median']:.2f} GB/s (of {options.runs} runs: {rates['all']})"
    )
    print(
        f"CPU per GB: sender {sender_cpu['median']:.3f} s, receiver {receiver_cpu['median']:.3f} s"
    )
    common.write(
        "lane",
        seed=0,
        chunk_bytes=4 * ELEMENTS,
        chunks=options.chunks,
        gigabytes_per_s=rates,
        sender_cpu_s_per_gigabyte=sender_cpu,
        receiver_cpu_s_per_gigabyte=receiver_cpu,
    )


if __name__ == "__main__":
    main()
