"""The relay between its devices, with sockets for devices: no root is needed."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from anabranch.overlay import Link, Overlay, Site, internet2_9
from anabranch_lab.emulate._busy import BusyShare, share_of
from anabranch_lab.emulate._layout import Layout
from anabranch_lab.emulate._relay import relay
from anabranch_lab.emulate._wiring import Line, Wiring, wire

PLAIN = struct.pack("=BBHHHH", 0, 0, 0, 0, 0, 0)
TRIANGLE = Overlay(
    "triangle",
    (Site("a"), Site("b"), Site("c")),
    (
        *(Link(0, 1, 8e6, latency_s=0.01, loss=0.1), Link(1, 0, 8e6, latency_s=0.02, loss=0.2)),
        *(Link(1, 2, 8e6, latency_s=0.03), Link(2, 0, 8e6, latency_s=0.04, loss=0.3)),
    ),
)


@contextmanager
def relaying(
    *lines: Line, tell: Callable[[BusyShare], None] = lambda load: None
) -> Iterator[list[socket.socket]]:
    """Relay between as many devices as there are lines; yield the kernel's side of each."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in lines]
    for ours, kernels in pairs:
        ours.setblocking(False)
        kernels.settimeout(5)
    until, stop = os.pipe()
    wiring = Wiring(tuple(("", "") for _ in lines), lines)
    opened = [ours.fileno() for ours, _ in pairs]
    thread = threading.Thread(target=relay, args=(wiring, opened, until, tell))
    thread.start()
    try:
        yield [kernels for _, kernels in pairs]
    finally:
        os.close(stop)
        thread.join(5)
        assert not thread.is_alive()
        os.close(until)
        for ours, kernels in pairs:
            ours.close()
            kernels.close()


def test_packets_arrive_in_order_their_delay_later() -> None:
    with relaying(Line(0, 1, 0.03, 0.0, 0), Line(1, 0, 0.01, 0.0, 0)) as (here, there):
        for payload in range(20):
            here.send(PLAIN + bytes([payload]))
        sent_s = time.monotonic()
        assert [there.recv(1 << 16)[-1] for _ in range(20)] == list(range(20))
        took_s = time.monotonic() - sent_s
        assert took_s > 0.028
        there.send(PLAIN + b"back")
        sent_s = time.monotonic()
        assert here.recv(1 << 16).endswith(b"back")
        assert time.monotonic() - sent_s > 0.009


def test_a_shorter_line_is_not_held_up_by_a_longer_one() -> None:
    with relaying(Line(0, 1, 3600.0, 0.0, 0), Line(1, 0, 0.005, 0.0, 0)) as (here, there):
        here.send(PLAIN + b"late")
        there.send(PLAIN + b"soon")
        assert here.recv(1 << 16).endswith(b"soon")


def test_a_line_loses_its_share_and_the_same_ones_each_time() -> None:
    found = []
    for _ in range(2):
        with relaying(Line(0, 1, 0.001, 0.5, 3), Line(1, 0, 0.001, 0.0, 0)) as (here, there):
            for payload in range(100):
                here.send(PLAIN + bytes([payload]))
            here.send(PLAIN)  # in case the last was lost, so that there is an end to wait for
            there.settimeout(0.3)
            arrived = []
            try:
                while True:
                    arrived.append(there.recv(1 << 16)[-1])
            except TimeoutError:
                found.append(arrived)
    assert found[0] == found[1]
    assert 30 < len(found[0]) < 71


def test_every_pair_has_two_lines_with_the_delay_and_loss_of_their_links() -> None:
    layout = Layout(TRIANGLE, "x", "relay")
    wiring = wire(layout, seed=4)
    named = {
        (wiring.devices[line.source], wiring.devices[line.target]): (line.delay_s, line.loss)
        for line in wiring.lines
    }
    assert named == {
        (("x-0", "to1"), ("x-1", "to0")): (0.01, 0.1),
        (("x-1", "to0"), ("x-0", "to1")): (0.02, 0.2),
        (("x-1", "to2"), ("x-2", "to1")): (0.03, 0.0),
        (("x-2", "to1"), ("x-1", "to2")): (0.03, 0.0),  # no link back: as late, and loses nothing
        (("x-2", "to0"), ("x-0", "to2")): (0.04, 0.3),
        (("x-0", "to2"), ("x-2", "to0")): (0.04, 0.0),
    }


def test_no_two_lines_lose_the_same_packets() -> None:
    wiring = wire(Layout(internet2_9(), "x", "relay"), seed=1)
    assert len({line.seed for line in wiring.lines}) == len(wiring.lines)


def test_wiring_survives_the_way_to_the_process() -> None:
    wiring = wire(Layout(TRIANGLE, "x", "relay"), seed=4)
    assert "\n" not in wiring.dumps()
    assert Wiring.loads(wiring.dumps()) == wiring


def test_a_relay_tells_how_busy_it_was() -> None:
    told: list[float] = []
    with relaying(
        Line(0, 1, 0.001, 0.0, 0),
        Line(1, 0, 0.001, 0.0, 0),
        tell=lambda load: told.append(load.share),
    ) as (here, there):
        until_s = time.monotonic() + 1.5
        while time.monotonic() < until_s:
            here.send(PLAIN + b"data")
            there.recv(1 << 16)
    assert told
    assert 0.0 < told[-1] <= 1.0


def test_a_load_is_that_of_the_windows_with_data() -> None:
    load = BusyShare(0.0)
    now_s = 0.0
    for rest_s, size_bytes in ((0.02, 300), (0.1, 0), (0.06, 100)):
        load.carried(size_bytes)
        load.rested(rest_s)
        now_s += 0.1
        load.look(now_s)
    assert load.share == pytest.approx((0.8 * 300 + 0.4 * 100) / 400)
    assert share_of(load.dumps() + load.dumps() + "0.9") == pytest.approx(load.share, abs=1e-4)
    assert share_of("0.9") is None
