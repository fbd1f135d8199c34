"""A process that delays packets and loses some of them, where the kernel cannot.

    python -m anabranch_lab.emulate._relay

The relay reads a `Wiring` as one line of JSON from standard input. It opens both ends of every pair
of links as TUN devices, prints ``ready``, and relays until standard input closes. It does not limit
rates: the kernel does so before packets reach the relay. Each second it prints a line that says how
busy it is (`BusyShare`): a relay that is always busy delays packets longer than the network would.

The kernel hands over the bytes that TCP sent at once, up to 64 KB, as one packet. Its header gives
the length of its segments (``IFF_VNET_HDR``). The kernel takes such packets back too, which makes a
relay in Python fast enough. Loss hits single segments, as in a network, so the relay cuts a packet
that loses one in two around it.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import select
import struct
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from anabranch._text import say
from anabranch_lab.emulate._busy import BusyShare
from anabranch_lab.emulate._segments import MOST_BYTES, Losses, segments, without
from anabranch_lab.emulate._wiring import READY, Wiring

_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_TUNSETOFFLOAD = 0x400454D0
_IFF_TUN = 0x0001
_IFF_NO_PI = 0x1000
_IFF_VNET_HDR = 0x4000
_CHECKSUM_AND_TSO = 0x01 | 0x02 | 0x04 | 0x08  # of IPv4, of IPv6, and with ECN
# While there are packets, the relay handles them this often, many at a time: a wake-up for each
# would take most of a core. A delay may be wrong by this much.
_TICK_S = 0.0005
# A network does not wait for the sites' computing. So the relay runs as soon as it wakes up, ahead
# of all processes without a real-time priority. With niceness alone it would wait for its turn
# while it holds packets.
_PRIORITY = 20
_SAY_S = 1.0  # between two lines about the load


def open_devices(devices: Sequence[tuple[str, str]]) -> list[int]:
    """Make TUN devices in namespaces, and return their descriptors.

    Raises:
        OSError: the kernel has no TUN, or denies it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    opened = []
    for namespace, name in devices:
        with open(f"/run/netns/{namespace}", "rb") as there:
            if libc.setns(there.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
        tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
        fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
        fcntl.ioctl(tun, _TUNSETOFFLOAD, _CHECKSUM_AND_TSO)
        opened.append(tun)
    return opened


def relay(
    wiring: Wiring, opened: Sequence[int], until: int, tell: Callable[[BusyShare], None]
) -> None:
    """Relay packets until a descriptor becomes readable.

    Args:
        wiring: what to do.
        opened: its devices' descriptors.
        until: the descriptor.
        tell: called with the load so far, at most once a second.
    """
    poll = select.epoll()
    poll.register(until, select.EPOLLIN)
    ways = {}
    for line in wiring.lines:
        ways[opened[line.source]] = (
            opened[line.target],
            line.delay_s - _TICK_S / 2,  # on average a packet waits half a tick to be read
            Losses(line.loss, line.seed),
            line.loss > 0,
        )
        poll.register(opened[line.source], select.EPOLLIN)
    flying: list[tuple[float, int, int, bytes]] = []  # due, order, to, packet
    order = 0
    load = BusyShare(time.monotonic())
    said_s = 0.0
    read, write, push, pop, now = os.read, os.write, heapq.heappush, heapq.heappop, time.monotonic
    while True:
        if flying:
            ready = poll.poll(0)
            now_s = now()
        else:
            before_s = now()
            ready = poll.poll(None)
            now_s = now()
            load.rested(now_s - before_s)
        for source, _ in ready:
            if source == until:
                return
            target, delay_s, losses, lossy = ways[source]
            due_s = now_s + delay_s
            try:
                while True:
                    packet = read(source, MOST_BYTES)
                    order += 1
                    if lossy and (lost := losses.of(segments(packet))):
                        for part in without(packet, lost):
                            push(flying, (due_s, order, target, part))
                            order += 1
                    else:
                        push(flying, (due_s, order, target, packet))
            except BlockingIOError:
                pass
        now_s = now()
        while flying and flying[0][0] <= now_s:
            _, _, target, packet = pop(flying)
            load.carried(len(packet))
            try:
                write(target, packet)
            except OSError:  # its device is down: the packet is lost, as on a network
                continue
        now_s = now()
        load.look(now_s)
        if now_s - said_s >= _SAY_S:
            said_s = now_s
            tell(load)
        if flying and (rest_s := min(_TICK_S, flying[0][0] - now_s)) > 0.0:
            time.sleep(rest_s)
            load.rested(rest_s)  # a longer sleep means that others had the core, which is busy


def main() -> None:
    """Relay by the `Wiring` on standard input, until it closes."""
    wiring = Wiring.loads(sys.stdin.readline())
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_PRIORITY))
    opened = open_devices(wiring.devices)
    say(READY)
    os.set_blocking(sys.stdout.fileno(), False)
    relay(wiring, opened, sys.stdin.fileno(), _tell)


def _tell(load: BusyShare) -> None:
    # Without a reader the pipe fills up. The relay must not block, and later lines replace this.
    with suppress(BlockingIOError):
        os.write(sys.stdout.fileno(), load.dumps().encode())


if __name__ == "__main__":
    main()
