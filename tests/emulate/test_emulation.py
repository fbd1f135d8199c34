"""Emulated overlays on this machine's kernel: links keep what they say, and nothing is left."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from anabranch.overlay import Link, Overlay, Site, Trace
from anabranch_lab.emulate import Emulation, EmulationError, check_emulable, emulated
from anabranch_lab.emulate._emulation import carry_out
from anabranch_lab.emulate._layout import Batch
from tests.emulate.sockets import PORT, connect, datagrams, emulates, goodputs_bps, inside
from tests.every import every

CHAIN = Overlay(
    "chain",
    (Site("a"), Site("b"), Site("c")),
    (Link(0, 1, 40e6), Link(1, 0, 20e6), Link(1, 2, 30e6), Link(2, 1, 30e6)),
)


_LEAST = 0.5  # of its rate, that a busy link carries
_TRIES = 10  # until the machine's other work leaves a measurement alone


def between(latency_s: float = 0.0, loss: float = 0.0, rate_bps: float = 50e6) -> Overlay:
    """Return two sites whose links are alike."""
    links = (Link(0, 1, rate_bps, latency_s, loss), Link(1, 0, rate_bps, latency_s, loss))
    return Overlay("pair", (Site("a"), Site("b")), links)


def fits(found_bps: float, rate_bps: float) -> bool:
    """Whether a busy link carried what it may have, in a second, on a machine with other work too.

    TCP takes that long to find a rate, and hands over in one piece what it got before it filled a
    gap; how well links keep their rates, ``benchmarks/emulation.py`` says.
    """
    return _LEAST * rate_bps < found_bps < 1.35 * rate_bps


def carried_bps(
    connected: Callable[[], list[tuple[socket.socket, socket.socket]]],
    rates_bps: Sequence[float],
    seconds: float,
) -> list[float]:
    """Return what connections carried; measure again where other work held them up."""
    for _ in range(_TRIES):
        found_bps = goodputs_bps(connected(), seconds)
        if all(fits(found, rate) for found, rate in zip(found_bps, rates_bps, strict=True)):
            break
    return found_bps


def namespaces_of(pid: int) -> list[str]:
    folder = Path("/run/netns")
    return [path.name for path in folder.glob(f"anabranch-{pid}-*")] if folder.is_dir() else []


def rate_bps(wan: Emulation, source: int, target: int) -> float:
    """Return what the kernel says that a link is held to."""
    command = ["tc", "-n", wan.inside(source)[-1], "class", "show", "dev", f"to{target}"]
    words = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    number = words[words.index("rate") + 1]
    unit = {"Kbit": 1e3, "Mbit": 1e6}
    return next(
        float(number.removesuffix(name)) * of for name, of in unit.items() if name in number
    )


@emulates
def test_every_link_keeps_its_rate_while_all_are_busy() -> None:
    with emulated(CHAIN, congestion_control="cubic") as wan:
        assert wan.way == "plain"
        found_bps = carried_bps(
            lambda: [connect(wan, link.source, link.target) for link in CHAIN],
            [link.rate_bps for link in CHAIN],
            seconds=1.0,
        )
    for link, goodput_bps in zip(CHAIN, found_bps, strict=True):
        assert fits(goodput_bps, link.rate_bps)


@emulates
def test_a_link_takes_a_new_rate_while_it_is_busy() -> None:
    with emulated(CHAIN) as wan:
        wan.set_rates([(0, 1, 10e6)])
        (found_bps,) = carried_bps(lambda: [connect(wan, 0, 1)], [10e6], seconds=0.6)
    assert fits(found_bps, 10e6)


@emulates
def test_traces_count_from_the_beginning_of_the_run() -> None:
    trace = Trace((0.0, 0.2, 0.4), (8e6, 16e6, 4e6))
    changing = replace(CHAIN, links=(Link(0, 1, 8e6, trace=trace), *CHAIN.links[1:]))
    framing = 1514 / 1448
    with emulated(changing) as wan:
        assert rate_bps(wan, 0, 1) == pytest.approx(8e6 * framing, rel=1e-3)
        began_s = time.monotonic()
        wan.begin()
        while rate_bps(wan, 0, 1) != pytest.approx(16e6 * framing, rel=1e-3):
            wan.check()
        assert time.monotonic() - began_s > 0.19
        while rate_bps(wan, 0, 1) != pytest.approx(4e6 * framing, rel=1e-3):
            wan.check()
        assert time.monotonic() - began_s > 0.39


@emulates
def test_sites_without_a_link_reach_each_other_only_if_others_forward() -> None:
    with emulated(CHAIN) as wan, pytest.raises(OSError, match="unreachable"):
        connect(wan, 0, 2)
    with emulated(CHAIN, forwarding=True) as wan:
        (found_bps,) = carried_bps(lambda: [connect(wan, 0, 2)], [30e6], seconds=0.6)
    assert fits(found_bps, 30e6)  # of the slower link on the way


@emulates
def test_a_one_way_link_has_a_way_back() -> None:
    links = (Link(0, 1, 10e6), Link(1, 2, 10e6), Link(2, 0, 10e6))
    with emulated(Overlay("ring", CHAIN.sites, links)) as wan:
        (found_bps,) = carried_bps(lambda: [connect(wan, 0, 1)], [10e6], seconds=0.6)
    assert fits(found_bps, 10e6)


@emulates
@pytest.mark.parametrize(
    ("port", "latency_s"), [("uplink", 0.0), ("downlink", 0.0), ("downlink", 0.005)]
)
def test_links_share_a_capped_port_evenly(port: str, latency_s: float) -> None:
    sites = (Site("a"), Site("b", **{f"{port}_bps": 20e6}), Site("c"))
    links = tuple(replace(link, rate_bps=30e6, latency_s=latency_s) for link in CHAIN)
    with emulated(Overlay("capped", sites, links), congestion_control="cubic") as wan:
        ways = [(1, 0), (1, 2)] if port == "uplink" else [(0, 1), (2, 1)]
        both_bps = carried_bps(lambda: [connect(wan, *way) for way in ways], [10e6, 10e6], 0.8)
        (alone_bps,) = carried_bps(lambda: [connect(wan, *ways[0])], [20e6], seconds=0.6)
    assert fits(sum(both_bps), 20e6)
    assert both_bps[0] == pytest.approx(both_bps[1], rel=0.5)
    assert fits(alone_bps, 20e6)


@emulates
def test_a_slow_link_leaves_its_share_of_the_port_to_the_others() -> None:
    sites = (Site("a"), Site("b", uplink_bps=40e6), Site("c"))
    links = (Link(0, 1, 60e6), Link(1, 0, 10e6), Link(1, 2, 60e6), Link(2, 1, 60e6))
    # On links without delay bbr may leave a part of what it shares unused.
    with emulated(Overlay("capped", sites, links), congestion_control="cubic") as wan:
        slow_bps, fast_bps = carried_bps(
            lambda: [connect(wan, 1, 0), connect(wan, 1, 2)], [10e6, 30e6], seconds=1.0
        )
    assert fits(slow_bps, 10e6)
    assert fits(fast_bps, 30e6)


@emulates
@pytest.mark.parametrize("latency_s", [0.0, 0.005])
def test_a_cut_link_loses_in_silence_until_it_is_healed(latency_s: float) -> None:
    with emulated(between(latency_s)) as wan:
        here, there = datagrams(wan, 0), datagrams(wan, 1)
        with here, there:
            there.settimeout(2)
            here.sendto(b"first", (wan.addresses[1], PORT))
            assert there.recv(100) == b"first"
            wan.cut(0, 1)
            here.sendto(b"lost", (wan.addresses[1], PORT))
            there.sendto(b"the way back is whole", (wan.addresses[0], PORT))
            here.settimeout(2)
            assert here.recv(100) == b"the way back is whole"
            with pytest.raises(ValueError, match="is cut already"):
                wan.cut(0, 1)
            wan.heal(0, 1)
            with pytest.raises(ValueError, match="is not cut"):
                wan.heal(0, 1)
            here.sendto(b"second", (wan.addresses[1], PORT))
            assert there.recv(100) == b"second"


@emulates
def test_connections_between_sites_use_the_congestion_control_that_is_asked_for() -> None:
    with emulated(CHAIN, congestion_control="reno") as wan:
        here, there = connect(wan, 0, 1)
        with here, there:
            chosen = here.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    assert chosen.rstrip(b"\0") == b"reno"


@emulates
def test_every_site_reaches_the_scheduler_at_once() -> None:
    with emulated(between(latency_s=60.0)) as wan:
        address = wan.control_address
        with inside(wan, None, lambda: socket.create_server((address, PORT))):
            for site in range(2):
                inside(wan, site, lambda: socket.create_connection((address, PORT), 30)).close()


def least_delay_s(here: socket.socket, there: socket.socket, to: tuple[str, int]) -> float:
    """Return the least delay of ten packets: other work of this machine holds some of them up."""
    found_s = []
    for _ in range(10):
        sent_s = time.monotonic()
        here.sendto(b"there", to)
        there.recv(100)
        found_s.append(time.monotonic() - sent_s)
    return min(found_s)


@emulates
def test_links_delay_in_both_directions() -> None:
    links = (Link(0, 1, 50e6, latency_s=0.04), Link(1, 0, 50e6, latency_s=0.01))
    with emulated(Overlay("pair", (Site("a"), Site("b")), links)) as wan:
        here, there = datagrams(wan, 0), datagrams(wan, 1)
        with here, there:
            there_s = least_delay_s(here, there, (wan.addresses[1], PORT))
            back_s = least_delay_s(there, here, (wan.addresses[0], PORT))
    assert there_s > 0.039
    assert 0.009 < back_s < there_s - 0.02


@emulates
def test_links_lose_their_share_of_packets() -> None:
    with emulated(between(latency_s=0.001, loss=0.1)) as wan:
        assert wan.way == "relay"
        here, there = datagrams(wan, 0), datagrams(wan, 1)
        with here, there:
            arrived = 0
            for _ in range(10):
                for _ in range(100):
                    here.sendto(bytes(20), (wan.addresses[1], PORT))
                there.settimeout(0.1)
                try:
                    while there.recv(100):
                        arrived += 1
                except TimeoutError:
                    continue
    assert 850 < arrived < 950  # 900 expected, 5 deviations either way


@emulates
def test_what_arrives_over_links_that_lose_is_what_was_sent() -> None:
    sent = random.Random(1).randbytes(4_000_000)
    with emulated(between(latency_s=0.003, loss=0.01, rate_bps=100e6)) as wan:
        here, there = connect(wan, 0, 1)
        with here, there:
            thread = threading.Thread(target=here.sendall, args=(sent,))
            thread.start()
            arrived = bytearray()
            there.settimeout(60)  # other work may hold the relay up
            while len(arrived) < len(sent):
                arrived += there.recv(1 << 20)
            thread.join()
    assert arrived == sent


@emulates
def test_a_site_keeps_its_processes_and_they_end_with_the_emulation() -> None:
    with emulated(between()) as wan:
        program = "import socket, sys; print(socket.if_nameindex()); sys.stdin.read()"
        command = [sys.executable, "-c", program]
        process = wan.popen(0, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        named = process.stdout.readline()
        assert every(each in named for each in (wan.interface, "to1", "control"))
        assert "eth0" not in named
    assert process.returncode == -signal.SIGKILL
    process.stdin.close()
    process.stdout.close()


@emulates
def test_nothing_is_left_whatever_happens_inside() -> None:
    relays = []

    def interrupted() -> None:
        with emulated(between(latency_s=0.01)) as wan:
            relays.append(Path("/proc", str(wan.relay_pid)))
            assert relays[0].exists()
            assert namespaces_of(os.getpid())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not namespaces_of(os.getpid())
    assert not relays[0].exists()


@emulates
def test_a_relay_that_dies_is_noticed() -> None:
    with emulated(between(latency_s=0.01)) as wan:
        wan.check()
        assert wan.relay_pid is not None
        os.kill(wan.relay_pid, signal.SIGKILL)
        os.waitid(os.P_PID, wan.relay_pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(EmulationError, match="the relay between the sites has ended"):
            wan.check()


def runs(process: Path) -> bool:
    """Whether a process, by its folder in /proc, has yet to end."""
    try:
        return "Z" not in (process / "stat").read_text().rpartition(")")[2]
    except (FileNotFoundError, ProcessLookupError):
        return False


@emulates
def test_what_a_killed_process_left_is_cleared_away_by_the_next_emulation() -> None:
    program = (
        "import sys; from anabranch_lab.emulate import emulated; from anabranch.overlay import *\n"
        "links = (Link(0, 1, 1e6, 0.01), Link(1, 0, 1e6, 0.01))\n"
        "with emulated(Overlay('pair', (Site('a'), Site('b')), links)) as wan:\n"
        "    print(wan.relay_pid, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        relay = Path("/proc", process.stdout.readline().strip())
        assert len(namespaces_of(process.pid)) == 3
        process.kill()
        process.wait()
        while runs(relay):  # it ends with the process that started it
            time.sleep(0.01)
        with emulated(between()):
            assert not namespaces_of(process.pid)
            assert len(namespaces_of(os.getpid())) == 3


@emulates
def test_two_emulations_do_not_meet() -> None:
    with emulated(between(rate_bps=10e6)) as one, emulated(between(rate_bps=20e6)) as other:
        slow_bps, fast_bps = carried_bps(
            lambda: [connect(one, 0, 1), connect(other, 0, 1)], [10e6, 20e6], seconds=0.6
        )
    assert fits(slow_bps, 10e6)
    assert fits(fast_bps, 20e6)


@emulates
def test_a_command_that_the_kernel_refuses_is_named() -> None:
    with pytest.raises(EmulationError, match=r"`ip link set nobody up` failed: .*nobody"):
        carry_out([Batch("ip", None, ("link show lo", "link set nobody up"))])


def test_without_root_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(EmulationError, match=r"need root.*run without --emulate"):
        check_emulable(between())


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(EmulationError, match=r"need `ip`.*install iproute2"):
        check_emulable(between())


@emulates
def test_the_relay_runs_ahead_of_the_sites_and_says_how_busy_it_was() -> None:
    with emulated(between(latency_s=0.002, loss=0.01, rate_bps=50e6)) as wan:
        assert wan.relay_pid is not None
        assert os.sched_getscheduler(wan.relay_pid) == os.SCHED_RR
        carried_bps(lambda: [connect(wan, 0, 1)], [50e6], seconds=1.5)
        assert wan.relay_busy is not None
        assert 0.0 < wan.relay_busy <= 1.0
    with emulated(CHAIN) as plain:
        assert plain.relay_busy is None
