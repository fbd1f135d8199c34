"""From a fault to the next exact result: anabranch beside torchft, hivemind and gloo.

    sudo python benchmarks/faults.py                          # all that is installed, all faults
    sudo python benchmarks/faults.py --only torchft --fault kill   # the file keeps the others

Three sites, each pair joined by 50 Mbit/s each way, all-reduce 4 MiB of float32 in a loop. Each is
a process in a network namespace; what a system lets us put elsewhere, such as its coordinator, is
on a control network that no fault touches. After some rounds there is one fault, at a moment chosen
at random within a round:

    kill           all processes of site 2 are killed
    stop           all processes of site 2 are stopped: a host that falls silent
    silent links   all that site 2 sends and is sent between sites is lost; neither end is told
    pair cut       all between sites 1 and 2 is lost; both still reach site 0
    scheduler      our scheduler is killed, and another one stands by
    both           our scheduler and all processes of site 2 are killed, and another one stands by
    way cut        all between our scheduler and site 2 is lost; neither end is told
    way there cut  what site 2 sends to our scheduler is lost, and what it is sent comes
    way back cut   what our scheduler sends to site 2 is lost, and what it is sent comes
    one link cut   what site 2 sends to site 1 is lost, and what it is sent comes

Survivors are sites 0 and 1; after cuts of ways, of a pair or a link, and after the scheduler's
alone, all three, as no system has a reason to leave one out.
Site i contributes 2**i in every element, so each element of a sum, or of a mean times the number
that it was divided by, says whose contributions it has. A result is exact where every element is
that of a set of sites. Measured is the time from the fault until all survivors hold an exact result
of the same contributions: the next one, which may have been all but ready when the fault came, and
the first of a round that began after the fault. After 60 s we give up.

Peers have the settings that their documentation has for fault tolerance, once with timeouts of 2 s,
which is also our default where nothing answers, and once with their own; the file has them. Where
a call fails, a site calls again, as long as the system lets it; gloo does not.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import IO, Any

import numpy as np
import numpy.typing as npt

import common
from anabranch.overlay import Link, Overlay, Site, dumps
from anabranch_lab.emulate import Direction, Emulation, emulated
from peers import PEERS, PORT, installed

SITES = 3
RATE_BPS = 50e6
ELEMENTS = 1 << 20
GOOD_ROUNDS = 3  # before the fault
GIVE_UP_S = 60.0
START_S = 120.0
TOKEN = "faults"
ALL = frozenset(range(SITES))
FAULTS = {
    "kill": ALL - {2},
    "stop": ALL - {2},
    "silent links": ALL - {2},
    "pair cut": ALL,
    "scheduler": ALL,
    "both": ALL - {2},
    "way cut": ALL,
    "way there cut": ALL,
    "way back cut": ALL,
    "one link cut": ALL,
}
"""The survivors of each."""
WAYS: dict[str, Sequence[Direction]] = {
    "way cut": ("to", "from"),
    "way there cut": ("to",),
    "way back cut": ("from",),
}
"""In which directions each cut of a way loses packets."""
OURS = {"scheduler", "both", *WAYS}
"""Of our scheduler, which no other system has."""
STANDBY = {"scheduler", "both"}
"""Those for which another scheduler stands by."""

Buffer = npt.NDArray[np.float32]
Contributors = tuple[tuple[int, int, tuple[int, ...]], ...]
"""Whose contributions a result has: from which element to which, and the sites."""
Line = dict[str, Any]
Reduce = Callable[[Buffer], Line]
"""All-reduces a buffer in place. Returns what is added to the site's line: ``count``, by which
elements are to be multiplied, None where they are means of as many as they seem; and
``contributors``, where the system says whose they are."""


@dataclass(frozen=True)
class Told:
    """What one site's process is told."""

    system: str
    rank: int
    store: str
    control_address: str
    address: str
    scheduler: str


class Over(Exception):
    """The system cannot go on at this site."""


# --- the systems, at a site ----------------------------------------------------------------------


@contextmanager
def anabranch(told: Told) -> Iterator[Reduce]:
    """Ours, with all defaults."""
    from anabranch import RunAborted, join

    group = join(told.scheduler, f"site-{told.rank}", host=told.address, insecure=True)

    def reduce(buffer: Buffer) -> Line:
        try:
            handle = group.all_reduce(buffer, op="sum", async_op=True)
            handle.wait()
        except RunAborted as error:
            raise Over(f"RunAborted: {error}") from error
        return {
            "count": 1,
            "contributors": handle.contributors or [[0, len(buffer), [*group.sites]]],
        }

    with group:
        yield reduce


@contextmanager
def gloo(told: Told) -> Iterator[Reduce]:
    """torch.distributed's backend for CPUs: a group whose call failed is of no more use."""
    import torch
    import torch.distributed as dist

    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{told.store}:{PORT + 1}",
        rank=told.rank,
        world_size=SITES,
        timeout=timedelta(seconds=10),
    )

    def reduce(buffer: Buffer) -> Line:
        try:
            dist.all_reduce(torch.from_numpy(buffer))
        except RuntimeError as error:
            raise Over(f"{type(error).__name__}: {error}") from error
        return {"count": 1}

    yield reduce


def torchft(
    timeout_s: float, heartbeat_timeout_s: float, use_async_quorum: bool
) -> Callable[[Told], AbstractContextManager[Reduce]]:
    """Replicas of one rank each; the lighthouse and all managers are on the control network."""

    @contextmanager
    def take_part(told: Told) -> Iterator[Reduce]:
        import torch
        from torch.distributed import TCPStore
        from torchft import Manager, ProcessGroupGloo
        from torchft.coordination import LighthouseServer

        # It gives peers the host's name to be reached by, which namespaces have in common.
        socket.gethostname = lambda: told.control_address
        if told.rank == 0:
            lighthouse = LighthouseServer(  # noqa: F841  lives as long as the process
                bind=f"{told.store}:{PORT + 2}",
                min_replicas=2,
                join_timeout_ms=60_000,  # its program's; Python's 100 ms leaves out who is late
                heartbeat_timeout_ms=int(1000 * heartbeat_timeout_s),
            )
        store = TCPStore(told.control_address, PORT + 3, is_master=True, wait_for_workers=False)
        timeout = timedelta(seconds=timeout_s)
        manager = Manager(
            pg=ProcessGroupGloo(timeout=timeout),
            load_state_dict=lambda state: None,
            state_dict=dict,
            min_replica_size=2,
            use_async_quorum=use_async_quorum,
            init_sync=False,
            timeout=timeout,
            rank=0,
            world_size=1,
            store_addr=told.control_address,
            store_port=store.port,
            lighthouse_addr=f"http://{told.store}:{PORT + 2}",
            replica_id=f"site-{told.rank}",
            hostname=told.control_address,
        )

        def reduce(buffer: Buffer) -> Line:
            manager.start_quorum()
            manager.allreduce(torch.from_numpy(buffer)).wait()
            if not manager.should_commit():
                error = manager.errored()
                found = "it does not commit" if error is None else error.original_exception
                raise RuntimeError(str(found))
            return {"count": manager.num_participants()}

        yield reduce

    return take_part


def hivemind(
    chunk_timeout_s: float | None, matchmaking_s: float, request_timeout_s: float
) -> Callable[[Told], AbstractContextManager[Reduce]]:
    """Its averager; it has no coordinator, so all its traffic is on the overlay."""

    @contextmanager
    def take_part(told: Told) -> Iterator[Reduce]:
        import torch
        from hivemind import DHT
        from hivemind.averaging import DecentralizedAverager
        from torch.distributed import TCPStore

        store = TCPStore(told.store, PORT + 1, is_master=told.rank == 0, wait_for_workers=False)
        here = {"host_maddrs": [f"/ip4/{told.address}/tcp/0"], "start": True}
        if told.rank == 0:
            dht = DHT(**here)
            store.set("first", str(dht.get_visible_maddrs()[0]))
        else:
            dht = DHT(initial_peers=[store.get("first").decode()], **here)
        averager = DecentralizedAverager(
            [torch.zeros(ELEMENTS)],
            dht,
            start=True,
            prefix="site",
            target_group_size=SITES,
            min_group_size=2,
            next_chunk_timeout=chunk_timeout_s,
            min_matchmaking_time=matchmaking_s,
            request_timeout=request_timeout_s,
        )

        def reduce(buffer: Buffer) -> Line:
            with averager.get_tensors() as (tensor,):
                tensor.copy_(torch.from_numpy(buffer))
            averager.step(timeout=GIVE_UP_S)
            with averager.get_tensors() as (tensor,):
                np.copyto(buffer, tensor.numpy())
            return {"count": None}

        yield reduce

    return take_part


@dataclass(frozen=True)
class System:
    """A system with its settings.

    Args:
        make: takes part as a site.
        runs: of each fault, unless asked otherwise.
        settings: in words.
        peer: its name in `peers`; None for ours.
    """

    make: Callable[[Told], AbstractContextManager[Reduce]]
    runs: int
    settings: str
    peer: str | None = None


SYSTEMS = {
    "anabranch": System(anabranch, 5, "all defaults"),
    "torchft": System(
        torchft(2.0, 2.0, False),
        3,
        "min_replica_size 2, timeout 2 s, the lighthouse's heartbeat_timeout 2 s, no async quorum",
        "torchft",
    ),
    "torchft, its timeouts": System(
        torchft(60.0, 5.0, False),
        1,
        "min_replica_size 2, timeout 60 s and heartbeat_timeout 5 s (defaults), no async quorum",
        "torchft",
    ),
    "hivemind": System(
        hivemind(2.0, 2.0, 1.0),
        3,
        "min_group_size 2, next_chunk_timeout 2 s, min_matchmaking_time 2 s, request_timeout 1 s",
        "hivemind",
    ),
    "hivemind, its timeouts": System(
        hivemind(None, 5.0, 3.0),
        1,
        "min_group_size 2; next_chunk_timeout none, min_matchmaking_time 5 s, request_timeout 3 s "
        "(defaults)",
        "hivemind",
    ),
    "gloo": System(gloo, 1, "timeout 10 s", "gloo"),
}


def take_part(told: Told) -> None:
    """Be one site; print a line for each round, until the parent ends this process."""
    import torch

    torch.set_num_threads(1)
    with SYSTEMS[told.system].make(told) as reduce:
        number = 0
        while True:
            buffer = np.full(ELEMENTS, 2.0**told.rank, np.float32)
            line: Line = {"round": number, "began_at": time.monotonic(), "error": None}
            is_over = False
            try:
                line |= reduce(buffer)
            except Over as error:
                line["error"], is_over = str(error), True
            except Exception as error:
                line["error"] = f"{type(error).__name__}: {error}"
            line["at"] = time.monotonic()
            if line["error"] is None:
                line["distinct"] = stretches(buffer)
            print(json.dumps(line), flush=True)
            if is_over:
                return
            if line["error"] is not None:
                time.sleep(0.05)
            number += 1


def stretches(buffer: Buffer) -> list[tuple[int, int, float]]:
    """Return where equal elements stand, and what they are; at most a thousand stretches.

    >>> stretches(np.array([3, 3, 7], np.float32))
    [(0, 2, 3.0), (2, 3, 7.0)]
    """
    starts = [0, *(np.flatnonzero(np.diff(buffer)) + 1).tolist()][:1000]
    stops = [*starts[1:], len(buffer)]
    return [(i, j, float(buffer[i])) for i, j in zip(starts, stops, strict=True)]


# --- the parent ----------------------------------------------------------------------------------


def complete() -> Overlay:
    sites = tuple(Site(f"site-{i}") for i in range(SITES))
    links = tuple(Link(i, j, RATE_BPS) for i in range(SITES) for j in range(SITES) if i != j)
    return Overlay("three sites", sites, links)


WHOLE: Contributors = ((0, ELEMENTS, tuple(range(SITES))),)


def members(value: float, count: int | None) -> tuple[int, ...] | None:
    """Return whose contributions an element has; None where it is of no set of sites.

    >>> members(6.0, 1), members(2.5, None), members(2.0, 2), members(3.5, 1)
    ((1, 2), (0, 2), None, None)
    """
    if count is not None:
        total = value * count
        if abs(total - round(total)) > 1e-5 or not 0 < round(total) < 2**SITES:
            return None
        found = tuple(site for site in range(SITES) if round(total) >> site & 1)
        # A mean is over those whose contributions it has.
        return found if count in (1, len(found)) else None
    for size in range(1, SITES + 1):
        for sites in combinations(range(SITES), size):
            if math.isclose(value, sum(2**site for site in sites) / size, rel_tol=1e-6):
                return sites
    return None


def contributors(line: Line) -> Contributors | None:
    """Return whose contributions a round's result has; None where it is not exact."""
    found: list[tuple[int, int, tuple[int, ...]]] = []
    for start, stop, value in line["distinct"]:
        sites = members(value, line["count"])
        if sites is None:
            return None
        if found and found[-1][2] == sites:
            start = found.pop()[0]
        found.append((start, stop, sites))
    return tuple(found)


def claimed(line: Line) -> Contributors | None:
    """Return whose contributions the system says a result has; None where it does not say."""
    if line.get("contributors") is None:
        return None
    found: list[tuple[int, int, tuple[int, ...]]] = []
    for start, stop, names in sorted(line["contributors"]):
        sites = tuple(sorted(int(name.rpartition("-")[2]) for name in names))
        if found and found[-1][2] == sites and found[-1][1] == start:
            start = found.pop()[0]
        found.append((start, stop, sites))
    return tuple(found)


@dataclass
class Watched:
    """A site's process and what it said so far."""

    process: subprocess.Popen[str]
    stderr: IO[str]
    changed: threading.Condition
    lines: list[Line] = field(default_factory=list)
    has_ended: bool = False

    def follow(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            if text.startswith('{"round"'):
                with self.changed:
                    self.lines.append(json.loads(text))
                    self.changed.notify_all()
        with self.changed:
            self.has_ended = True
            self.changed.notify_all()

    def good(self) -> list[Line]:
        return [line for line in self.lines if line["error"] is None]

    def whole(self) -> list[Line]:
        """The rounds that have all sites' contributions."""
        return [line for line in self.good() if contributors(line) == WHOLE]

    def last_words(self) -> str:
        self.stderr.seek(0)
        said = self.stderr.read().strip().splitlines()
        return "\n".join(said[-3:])[-600:]


def first_agreed(
    sites: Sequence[Sequence[Line]], fault_at: float, begun_after: bool
) -> tuple[float, Contributors] | None:
    """Return when all sites first held an exact result of the same contributions, and of whose.

    Args:
        sites: the lines of each survivor, without errors.
        fault_at: results count that ended later.
        begun_after: and of these only those of rounds that also began later.
    """
    since = "began_at" if begun_after else "at"
    firsts: list[dict[Contributors, float]] = []
    for lines in sites:
        first: dict[Contributors, float] = {}
        for line in lines:
            if line[since] > fault_at and (found := contributors(line)) is not None:
                first.setdefault(found, line["at"])
        firsts.append(first)
    common_to_all = set(firsts[0]).intersection(*firsts[1:])
    if not common_to_all:
        return None
    return min((max(first[found] for first in firsts), found) for found in common_to_all)


def inside(wan: Emulation, site: int | None) -> list[int]:
    """Return the processes in a site's namespace."""
    command = ["ip", "netns", "pids", wan.inside(site)[-1]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [int(pid) for pid in done.stdout.split()]


def send(pids: Sequence[int], what: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, what)
        except ProcessLookupError:
            continue


def inject(wan: Emulation, fault: str, pids: Sequence[int]) -> None:
    if fault in WAYS:
        wan.cut_control(2, WAYS[fault])
    elif fault == "one link cut":
        wan.cut(2, 1)
    elif fault in ("kill", *STANDBY):
        send(pids, signal.SIGKILL)
    elif fault == "stop":
        send(pids, signal.SIGSTOP)
    else:
        for other in (0, 1) if fault == "silent links" else (1,):
            wan.cut(2, other)
            wan.cut(other, 2)


class NotStarted(Exception):
    """A system did not do the rounds before the fault; what its sites said."""


def run_once(system: str, fault: str, seed: int) -> dict[str, Any]:
    """Run a system until it has recovered from a fault, or until we give up.

    Raises:
        NotStarted: it has tried three times.
    """
    failed: list[str] = []
    while True:
        try:
            return attempt(system, fault, seed) | {"failed_starts": failed}
        except NotStarted as error:
            failed.append(str(error))
            print(f"{system}, {fault}: {error}", file=sys.stderr, flush=True)
            if len(failed) == 3:
                raise


def attempt(system: str, fault: str, seed: int) -> dict[str, Any]:
    chance = random.Random(f"{fault} {seed}")
    with ExitStack() as stack:
        wan = stack.enter_context(emulated(complete()))
        stack.callback(end_all, wan)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        wan.begin()
        scheduler = ""
        environment = {
            **os.environ,
            "GLOO_SOCKET_IFNAME": wan.interface,
            "OMP_NUM_THREADS": "1",
            "ANABRANCH_TOKEN": TOKEN,
        }
        scheduler_pids: list[int] = []
        if SYSTEMS[system].peer is None:
            options = ["--journal", str(folder / "journal")] if fault in STANDBY else []
            process, scheduler = start_scheduler(wan, folder, environment, options)
            scheduler_pids.append(process.pid)
        if fault in STANDBY:
            stand_by(wan, folder, environment, scheduler)
        changed = threading.Condition()
        sites = []
        for rank in range(SITES):
            own, first = wan.control_addresses[rank], wan.control_addresses[0]
            told = Told(system, rank, first, own, wan.addresses[rank], scheduler)
            command = [sys.executable, __file__, "--site", json.dumps(asdict(told))]
            stderr = stack.enter_context(tempfile.TemporaryFile("w+"))
            process = wan.popen(
                rank, command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment
            )
            sites.append(Watched(process, stderr, changed))
            threading.Thread(target=sites[-1].follow, daemon=True).start()
        found = watch(wan, fault, sites, changed, chance.random(), scheduler_pids)
        return found | {"seed": seed}


def start_scheduler(
    wan: Emulation, folder: Path, environment: dict[str, str], options: Sequence[str]
) -> tuple[subprocess.Popen[str], str]:
    """Start a scheduler; return it, and where it listens."""
    (folder / "overlay.toml").write_text(dumps(complete()))
    command = [*scheduler_command(folder), "--listen", f"{wan.control_address}:0", *options]
    with (folder / "scheduler").open("w") as stderr:
        process = wan.popen(
            None, command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment
        )
    assert process.stdout is not None
    address: str = process.stdout.readline().strip()
    if not address:
        raise RuntimeError(f"the scheduler ended: {(folder / 'scheduler').read_text()}")
    return process, address


def scheduler_command(folder: Path) -> list[str]:
    # A process that is stopped has as much time as the peers give it.
    command = [sys.executable, "-m", "anabranch", "scheduler", "--insecure", "--stillness", "2"]
    return [*command, "--overlay", str(folder / "overlay.toml")]


def stand_by(wan: Emulation, folder: Path, environment: dict[str, str], address: str) -> None:
    """Start another scheduler, and return once it waits for the first to be gone."""
    command = [*scheduler_command(folder), "--listen", address, "--standby"]
    command += ["--journal", str(folder / "journal")]
    with (folder / "standby").open("w") as stdout:
        process = wan.popen(
            None, command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment
        )
    assert process.stderr is not None
    said = process.stderr.readline()
    if "standing by" not in said:
        raise RuntimeError(f"the other scheduler does not stand by: {said}")


def end_all(wan: Emulation) -> None:
    """End every process in the namespaces, also what sites have started, also if stopped."""
    for _ in range(3):
        left = [pid for site in (*range(SITES), None) for pid in inside(wan, site)]
        if not left:
            return
        send(left, signal.SIGKILL)
        time.sleep(0.1)


def watch(
    wan: Emulation,
    fault: str,
    sites: Sequence[Watched],
    changed: threading.Condition,
    fraction: float,
    scheduler_pids: Sequence[int],
) -> dict[str, Any]:
    def have_begun() -> bool:
        return all(len(each.whole()) >= GOOD_ROUNDS for each in sites) or any(
            each.has_ended for each in sites
        )

    with changed:
        changed.wait_for(have_begun, START_S)
        if any(len(each.whole()) < GOOD_ROUNDS or each.has_ended for each in sites):
            said = [each.last_words() for each in sites]
            raise NotStarted(f"{GOOD_ROUNDS} rounds were not done in {START_S} s: {said}")
        ends = [line["at"] for line in sites[0].whole()][-GOOD_ROUNDS:]
        round_s = (ends[-1] - ends[0]) / (GOOD_ROUNDS - 1)
        not_whole = sum(len(each.good()) - len(each.whole()) for each in sites)
    pids = [*scheduler_pids] if fault in STANDBY else []
    if fault != "scheduler":
        pids += inside(wan, 2)
    time.sleep(fraction * round_s)
    fault_at = time.monotonic()
    inject(wan, fault, pids)
    injected_s = time.monotonic() - fault_at
    survivors = [sites[site] for site in sorted(FAULTS[fault])]

    def fresh() -> tuple[float, Contributors] | None:
        return first_agreed([each.good() for each in survivors], fault_at, begun_after=True)

    with changed:
        changed.wait_for(
            lambda: fresh() is not None or all(each.has_ended for each in survivors),
            fault_at + GIVE_UP_S - time.monotonic(),
        )
        watched_s = time.monotonic() - fault_at
        lines = [list(each.lines) for each in sites]
    good = [[line for line in own if line["error"] is None] for own in lines]
    of_survivors = [good[site] for site in sorted(FAULTS[fault])]
    row: dict[str, Any] = {
        "round_s": round(round_s, 3),
        "fault_at_share_of_round": round(fraction, 3),
        "injected_s": round(injected_s, 4),
        "watched_s": round(watched_s, 2),
        "not_of_all_before": not_whole,
    }
    for name, begun_after in (("next", False), ("begun_after", True)):
        found = first_agreed(of_survivors, fault_at, begun_after)
        row[f"{name}_s"] = None if found is None else round(found[0] - fault_at, 4)
        row[f"{name}_has"] = None if found is None else found[1]
        row[f"{name}_left_out"] = (
            None
            if found is None
            else [
                f"site-{site}"
                for site in range(SITES)
                if not all(site in stretch[2] for stretch in found[1])
            ]
        )
    # Where not all go on, perhaps two do.
    pairs = [first_agreed(pair, fault_at, True) for pair in combinations(of_survivors, 2)]
    soonest = min((found for found in pairs if found is not None), default=None)
    row["two_sites_s"] = None if soonest is None else round(soonest[0] - fault_at, 4)
    row["two_sites_have"] = None if soonest is None else soonest[1]
    after = [[line for line in own if line["at"] > fault_at] for own in lines]
    row["by_site"] = [
        {
            "results": [
                [
                    round(line["began_at"] - fault_at, 3),
                    round(line["at"] - fault_at, 3),
                    contributors(line),
                ]
                for line in own
                if line["error"] is None
            ][:5],
            "errors": len([line for line in own if line["error"] is not None]),
            "first_error": next(
                (
                    [round(line["at"] - fault_at, 3), line["error"][:600]]
                    for line in own
                    if line["error"] is not None
                ),
                None,
            ),
            "ended": each.has_ended,
        }
        for own, each in zip(after, sites, strict=True)
    ]
    row["not_exact"] = [
        {"site": site, **line}
        for site, own in enumerate(good)
        for line in own
        if contributors(line) is None
    ][:3]
    row["said_wrong"] = [
        {"site": site, **line}
        for site, own in enumerate(good)
        for line in own
        if claimed(line) not in (None, contributors(line))
    ][:3]
    for each in sites:
        if each.has_ended and each.process.poll() is not None and not each.lines[-1]["error"]:
            row.setdefault("last_words", []).append(each.last_words())
    return row


def spread(values: Sequence[float | None]) -> dict[str, Any]:
    """As `common.spread`, where None stands for longer than we waited."""
    middle = median(math.inf if value is None else value for value in values)
    return {"median": middle if math.isfinite(middle) else None, "all": list(values)}


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "next_s": spread([run["next_s"] for run in runs]),
        "begun_after_s": spread([run["begun_after_s"] for run in runs]),
        "round_s": common.spread([run["round_s"] for run in runs]),
        "two_sites_s": spread([run["two_sites_s"] for run in runs]),
        "left_out": [run["begun_after_left_out"] for run in runs],
        "all_exact": not any(run["not_exact"] for run in runs),
        "runs": list(runs),
    }


def seconds(value: float | None) -> str:
    return f"none in {GIVE_UP_S:.0f}" if value is None else f"{value:.2f}"


def show(results: dict[str, dict[str, Any]]) -> None:
    """Print a table: seconds, and how many times as long as ours."""
    print(f"\n{'fault':15}{'system':24}{'next, s':>11}{'begun after, s':>16}{'x':>7}  left out")
    for fault in FAULTS:
        ours = results.get("anabranch", {}).get("faults", {}).get(fault)
        for system, row in results.items():
            found = row["faults"].get(fault)
            if found is None:
                continue
            own_s = found["begun_after_s"]["median"]
            our_s = None if ours is None else ours["begun_after_s"]["median"]
            times = f"{own_s / our_s:.1f}" if own_s and our_s else "-"
            out = sorted(
                {", ".join(each) or "no site" for each in found["left_out"] if each is not None}
            )
            exact = "" if found["all_exact"] else "; NOT ALL EXACT"
            print(
                f"{fault:15}{system:24}{seconds(found['next_s']['median']):>11}"
                f"{seconds(own_s):>16}{times:>7}  {' / '.join(out) or '-'}{exact}"
            )


def write(name: str, row: dict[str, Any], seed: int, keep: bool) -> None:
    """Put a system's figures into the file, which keeps the others, and what faults it lacks."""
    path = common.RESULTS / "faults.json"
    systems = json.loads(path.read_text())["systems"] if path.exists() else {}
    if keep and name in systems:
        of = {each: systems[name][each] for each in ("version", "measured_at")}
        known = {fault: of | found for fault, found in systems[name]["faults"].items()}
        row = row | {"faults": known | row["faults"]}
    systems[name] = row
    common.write(
        "faults",
        seed=seed,
        sites=SITES,
        rate_bps=RATE_BPS,
        elements=ELEMENTS,
        give_up_s=GIVE_UP_S,
        systems={known: systems[known] for known in SYSTEMS if known in systems},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", action="append", choices=list(SYSTEMS))
    parser.add_argument("--fault", action="append", choices=list(FAULTS))
    parser.add_argument("--runs", type=int, help="of each fault; 5 of ours, 3 or 1 of peers")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--dry", action="store_true", help="write no file")
    parser.add_argument("--site", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.site:
        take_part(Told(**json.loads(options.site)))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends what was started
    results: dict[str, dict[str, Any]] = {}
    for name, system in SYSTEMS.items():
        if name not in (options.only or SYSTEMS):
            continue
        if system.peer is not None and installed(system.peer) is None:
            print(f"{name} is not installed: pip install {PEERS[system.peer][0]}")
            continue
        row = results[name] = {
            "version": common.commit() if system.peer is None else installed(system.peer),
            "settings": system.settings,
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "faults": {},
        }
        for fault in options.fault or FAULTS:
            if fault in OURS and system.peer is not None:
                continue
            runs = []
            for number in range(options.runs or system.runs):
                run = run_once(name, fault, options.first_seed + number)
                runs.append(run)
                print(
                    f"{name}, {fault}: next {seconds(run['next_s'])} s, begun after "
                    f"{seconds(run['begun_after_s'])} s, left out {run['begun_after_left_out']}"
                    + (", NOT EXACT" if run["not_exact"] else "")
                    + (", SAID WRONG" if run["said_wrong"] else ""),
                    flush=True,
                )
            of = {each: row[each] for each in ("version", "measured_at")}
            row["faults"][fault] = of | summary(runs)
        if not options.dry:
            write(name, row, options.first_seed, bool(options.only or options.fault))
    show(results)


if __name__ == "__main__":
    main()
