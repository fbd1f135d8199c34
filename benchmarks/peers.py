"""Other systems' all-reduce in the same namespaces: gloo, torchft and hivemind, where installed.

    python benchmarks/peers.py                   # three sites behind ports, 16 MiB; needs root
    python benchmarks/peers.py --only hivemind

Each is asked for the sum or mean of one float32 buffer, as its documentation says, and timed from a
barrier that all have passed until the last has the result. What it does before that, such as
finding each other, is not counted, but for up to half a second of hivemind's. The barrier, and
what a peer lets us choose, is on links that nothing holds. Gloo's ring follows the order of ranks:
`best_ring` finds the order that suits an overlay.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from itertools import permutations

import numpy as np
import numpy.typing as npt

import common
from anabranch.overlay import Link, Overlay, Site
from anabranch.plan import limit_s
from anabranch.plan._ring_order import best_order
from anabranch_lab.emulate import emulated
from anabranch_lab.emulate._layout import next_hops

PORT = 29500
LONG = timedelta(hours=1)

Buffer = npt.NDArray[np.float32]
Prepare = Callable[[Buffer], Callable[[], Buffer]]
"""Gets ready to all-reduce a buffer, and returns what does it: returns the mean, or the sum."""


def three_ports() -> Overlay:
    """Three sites at 100, 50 and 25 Mbit/s each way, on one port each."""
    rates_bps = 100e6, 50e6, 25e6
    sites = tuple(
        Site(f"site-{rate_bps / 1e6:.0f}", uplink_bps=rate_bps, downlink_bps=rate_bps)
        for rate_bps in rates_bps
    )
    links = tuple(Link(i, j, 1e9) for i in range(3) for j in range(3) if i != j)
    return Overlay("three ports", sites, links)


@dataclass(frozen=True)
class Rank:
    """What one process of a peer is told."""

    peer: str
    rank: int
    size: int
    elements: int
    rounds: int
    store: str
    control_address: str
    address: str
    bandwidth_mbps: float | None = None  # that a peer is told it has


@contextmanager
def gloo(told: Rank) -> Iterator[Prepare]:
    """torch.distributed's backend for CPUs."""
    import torch
    import torch.distributed as dist

    store = f"tcp://{told.store}:{PORT + 1}"
    dist.init_process_group(
        "gloo", init_method=store, rank=told.rank, world_size=told.size, timeout=LONG
    )

    def prepare(buffer: Buffer) -> Callable[[], Buffer]:
        def go() -> Buffer:
            dist.all_reduce(torch.from_numpy(buffer))
            return buffer

        return go

    yield prepare
    dist.destroy_process_group()


@contextmanager
def torchft(told: Rank) -> Iterator[Prepare]:
    """Replicas of one rank each, over its gloo; the quorum is found before the clock starts."""
    import torch
    from torch.distributed import TCPStore
    from torchft import Manager, ProcessGroupGloo
    from torchft.coordination import LighthouseServer

    # It gives peers the host's name to be reached by, which namespaces have in common.
    socket.gethostname = lambda: told.control_address
    if told.rank == 0:
        lighthouse = LighthouseServer(bind=f"{told.store}:{PORT + 2}", min_replicas=told.size)
    store = TCPStore(told.control_address, PORT + 3, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=LONG),
        load_state_dict=lambda state: None,
        state_dict=dict,
        min_replica_size=told.size,
        use_async_quorum=False,
        init_sync=False,
        timeout=LONG,
        quorum_timeout=LONG,
        rank=0,
        world_size=1,
        store_addr=told.control_address,
        store_port=store.port,
        lighthouse_addr=f"http://{told.store}:{PORT + 2}",
        replica_id=f"site-{told.rank}",
        hostname=told.control_address,
    )

    def prepare(buffer: Buffer) -> Callable[[], Buffer]:
        manager.start_quorum()

        def go() -> Buffer:
            manager.allreduce(torch.from_numpy(buffer)).wait()
            assert manager.should_commit()
            return buffer

        return go

    yield prepare
    manager.shutdown(wait=False)
    if told.rank == 0:
        lighthouse.shutdown()


@contextmanager
def hivemind(told: Rank) -> Iterator[Prepare]:
    """Its averager, with all defaults but the bandwidth; it begins while it finds its group.

    Its nodes come one after the other: of dozens of processes that start at once on a few cores
    some are not ready in the time that it gives its daemons and its first contacts.
    """
    import torch
    from hivemind import DHT
    from hivemind.averaging import DecentralizedAverager
    from hivemind.utils import get_dht_time
    from torch.distributed import TCPStore

    store = TCPStore(told.store, PORT + 1, is_master=told.rank == 0, wait_for_workers=False)
    here = {"host_maddrs": [f"/ip4/{told.address}/tcp/0"], "start": True}
    if told.rank == 0:
        dht = DHT(**here)
        store.set("first", str(dht.get_visible_maddrs()[0]))
    else:
        store.wait([f"{told.rank - 1} is there"], LONG)
        dht = DHT(initial_peers=[store.get("first").decode()], **here)
    averager = DecentralizedAverager(
        [torch.zeros(told.elements)],
        dht,
        start=True,
        prefix="site",
        target_group_size=told.size,
        min_group_size=told.size,
        bandwidth=told.bandwidth_mbps,
    )
    store.set(f"{told.rank} is there", "")

    def prepare(buffer: Buffer) -> Callable[[], Buffer]:
        with averager.get_tensors() as (tensor,):
            tensor.copy_(torch.from_numpy(buffer))
        control = averager.step(
            wait=False, require_trigger=True, scheduled_time=get_dht_time() + 10, timeout=3600
        )

        def go() -> Buffer:
            control.allow_allreduce()
            control.result()
            with averager.get_tensors() as (tensor,):
                mean: Buffer = tensor.numpy().copy()
                return mean

        return go

    yield prepare
    averager.shutdown()
    dht.shutdown()


PEERS: dict[str, tuple[str, Callable[[Rank], AbstractContextManager[Prepare]]]] = {
    "gloo": ("torch", gloo),
    "torchft": ("torchft-nightly", torchft),
    "hivemind": ("hivemind", hivemind),
}


def take_part(told: Rank) -> None:
    """Be one process of a peer; print how long each round took it."""
    import torch
    from torch.distributed import TCPStore

    torch.set_num_threads(1)
    store = TCPStore(
        told.store, PORT, is_master=told.rank == 0, wait_for_workers=False, timeout=LONG
    )

    def barrier(name: str) -> None:
        if store.add(name, 1) == told.size:
            store.set(f"{name} passed", "1")
        store.wait([f"{name} passed"], LONG)

    mean = (told.size - 1) / 2
    times_s = []
    with PEERS[told.peer][1](told) as prepare:
        for number in range(told.rounds):
            go = prepare(np.full(told.elements, told.rank, np.float32))
            barrier(f"round {number}")
            began_s = time.perf_counter()
            result = go()
            times_s.append(time.perf_counter() - began_s)
            right = np.isclose(result, mean) | np.isclose(result, told.size * mean)
            assert right.all(), f"{told.peer} returned {result[~right][0]}"
        barrier("end")
    print(json.dumps(times_s), flush=True)
    # The store lives in rank 0, which therefore leaves last.
    if told.rank:
        store.set(f"{told.rank} has left", "")
    else:
        store.wait([f"{rank} has left" for rank in range(1, told.size)], LONG)


def installed(peer: str) -> str | None:
    """Return a peer's version; None where it is not installed."""
    try:
        return version(PEERS[peer][0])
    except PackageNotFoundError:
        return None


def best_ring(overlay: Overlay) -> tuple[int, ...]:
    """Return the order of sites, by rank, in which gloo's ring is quickest.

    It is the order of our own ring, but that each rank sends to the one before it, and over the
    ways that packets are forwarded.

    >>> best_ring(three_ports())
    (2, 1, 0)
    """
    hops = next_hops(overlay)

    def way(source: int, target: int) -> list[int]:
        passed = [source]
        while passed[-1] != target:
            passed.append(hops[passed[-1], target])
        return passed

    ways = {pair: way(*pair) for pair in permutations(range(overlay.size), 2)}
    return best_order(overlay, ways)[::-1]


def all_reduce(
    peer: str,
    overlay: Overlay,
    elements: int,
    rounds: int,
    order: Sequence[int] | None = None,
    congestion_control: str = "cubic",
    declares: bool = False,
) -> dict[str, object]:
    """Let a peer all-reduce a buffer over an emulated overlay.

    Sites forward what others send each other, for peers know nothing of an overlay's links.

    Args:
        peer: a key of `PEERS`.
        overlay: the links.
        elements: of the buffer.
        rounds: how often.
        order: the site of each rank; left out, that of the overlay.
        congestion_control: of all connections; where links delay nothing our lanes ask for cubic
            too.
        declares: tell each process the bandwidth that its site has, which hivemind shares the
            buffer out by.
    """
    sites = tuple(range(overlay.size)) if order is None else tuple(order)
    with emulated(overlay, forwarding=True, congestion_control=congestion_control) as wan:
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": wan.interface, "OMP_NUM_THREADS": "1"}
        wan.begin()
        processes: list[subprocess.Popen[str]] = []
        try:
            for rank, site in enumerate(sites):
                first, own = wan.control_addresses[sites[0]], wan.control_addresses[site]
                told = Rank(
                    *(peer, rank, overlay.size, elements, rounds, first, own, wan.addresses[site]),
                    bandwidth_mbps=bandwidth_mbps(overlay, site) if declares else None,
                )
                command = [sys.executable, __file__, "--rank", json.dumps(asdict(told))]
                processes.append(
                    wan.popen(
                        site,
                        command,
                        stdout=subprocess.PIPE,
                        text=True,
                        env=environment,
                        start_new_session=True,
                    )
                )
            said = _answers(peer, processes)
        finally:
            _end(processes)
    answers = [json.loads(each.strip().rpartition("\n")[2]) for each in said]
    # A round lasts until its last process has the result.
    rounds_s = [max(column) for column in zip(*answers, strict=True)]
    return {
        "version": installed(peer),
        "order": [overlay.sites[site].name for site in sites],
        "congestion_control": congestion_control,
        "round_s": common.spread(rounds_s),
    }


def bandwidth_mbps(overlay: Overlay, site: int) -> float:
    """Return what a site can send and receive at once, the less of the two, Mbit/s.

    >>> bandwidth_mbps(three_ports(), 1)
    50.0
    """
    here = overlay.sites[site]
    sent_bps = math.fsum(link.rate_bps for link in overlay.links if link.source == site)
    received_bps = math.fsum(link.rate_bps for link in overlay.links if link.target == site)
    ports_bps = [each for each in (here.uplink_bps, here.downlink_bps) if each is not None]
    return min(sent_bps, received_bps, *ports_bps) / 1e6


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    """End processes and what they started, as hivemind's daemons, which hold their pipes open."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _answers(peer: str, processes: list[subprocess.Popen[str]]) -> list[str]:
    """Return what each process said, once all have ended.

    Raises:
        RuntimeError: one failed; others, which may be waiting for it, are ended.
    """
    with ThreadPoolExecutor(len(processes)) as pool:
        said = [pool.submit(process.communicate) for process in processes]
        for done in as_completed(said):
            rank = said.index(done)
            if code := processes[rank].returncode:
                _end(processes)
                raise RuntimeError(f"{peer}: rank {rank} ended with {code}; see what it printed")
    return [each.result()[0] for each in said]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=list(PEERS))
    parser.add_argument("--elements", type=int, default=(16 << 20) // 4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        take_part(Rank(**json.loads(options.rank)))
        return
    overlay = three_ports()
    print(f"limit: {limit_s(overlay, 4 * options.elements):.2f} s")
    for peer in options.only or PEERS:
        if installed(peer):
            row = all_reduce(peer, overlay, options.elements, options.rounds)
            print(f"{peer}: {row['round_s']} s", flush=True)
        else:
            print(f"{peer} is not installed: pip install {PEERS[peer][0]}")


if __name__ == "__main__":
    main()
