"""Setting up emulated links by pyroute2, and by batches of ``ip`` and ``tc`` as we do. Needs root.

    pip install 'pyroute2==0.9.7'    # which nothing else of ours needs
    python benchmarks/wiring.py

Both make the same namespaces, devices, addresses, routes and queues, without delays and without
capped ports: those need a filter by device (``indev``), which pyroute2 does not build. ``bfifo`` is
none of its queues either, so its ``pfifo`` is registered under that name. Sets of both alternate.
"""

from __future__ import annotations

import argparse
import os
import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import version

from pyroute2 import IPRoute, config, netns
from pyroute2.netlink.rtnl import tcmsg
from pyroute2.netlink.rtnl.tcmsg import sched_pfifo

import common
from anabranch.overlay import Overlay, internet2_9, random_sparse
from anabranch_lab.emulate import emulated
from anabranch_lab.emulate._emulation import _remove
from anabranch_lab.emulate._layout import (
    _ETHERNET_BYTES,
    _IP_AND_TCP_BYTES,
    _LEAST_QUEUE_BYTES,
    _QUEUE_S,
    CONTROL,
    MTU_BYTES,
    SITE,
    Layout,
    device,
)

FRAMED = (MTU_BYTES + _ETHERNET_BYTES) / (MTU_BYTES - _IP_AND_TCP_BYTES)


def index(ns: IPRoute, name: str) -> int:
    """Return the number of a device, by which all that follows names it."""
    return int(ns.link_lookup(ifname=name)[0])


def up(ns: IPRoute, name: str, **more: int) -> None:
    ns.link("set", index=index(ns, name), state="up", **more)


def address(ns: IPRoute, name: str, host: str, bits: int) -> None:
    ns.addr("add", index=index(ns, name), address=host, prefixlen=bits)


def create(layout: Layout, inside: dict[str, IPRoute]) -> None:
    for site, name in enumerate(layout.namespaces):
        peer = {"ifname": device(site), "net_ns_fd": layout.control_namespace}
        inside[name].link("add", ifname=CONTROL, kind="veth", peer=peer)
    for a, b in layout.pairs:
        peer = {"ifname": device(a), "net_ns_fd": layout.namespaces[b]}
        inside[layout.namespaces[a]].link("add", ifname=device(b), kind="veth", peer=peer)


def configure(layout: Layout, inside: dict[str, IPRoute]) -> None:
    size, control = layout.overlay.size, inside[layout.control_namespace]
    up(control, "lo")
    control.link("add", ifname=CONTROL, kind="bridge")
    address(control, CONTROL, layout.control_address(size), 16)
    for site in range(size):
        up(control, device(site), master=index(control, CONTROL))
    up(control, CONTROL)
    for site, name in enumerate(layout.namespaces):
        ns = inside[name]
        up(ns, "lo")
        ns.link("add", ifname=SITE, kind="bridge")
        address(ns, SITE, layout.address(site), 32)
        up(ns, SITE)
        address(ns, CONTROL, layout.control_address(site), 16)
        up(ns, CONTROL)
        for other in layout._neighbours(site):
            up(ns, device(other))
            ns.route(
                "add",
                dst=f"{layout.address(other)}/32",
                oif=index(ns, device(other)),
                prefsrc=layout.address(site),
                scope="link",
            )


def hold(layout: Layout, inside: dict[str, IPRoute]) -> None:
    for site, name in enumerate(layout.namespaces):
        ns = inside[name]
        ns.tc("add", "clsact", index(ns, CONTROL))
        for other in layout._neighbours(site):
            to = index(ns, device(other))
            ns.tc("add", "clsact", to)
            if (link := layout.overlay.link(site, other)) is None:
                continue
            bytes_per_s = round(link.goodput_bps * FRAMED / 8)
            ns.tc("add", "htb", to, "1:", default="1:1")
            ns.tc(
                "add-class",
                "htb",
                to,
                "1:1",
                parent="1:",
                rate=bytes_per_s,
                ceil=bytes_per_s,
                burst=1600,
                cburst=1600,
                quantum=60000,
            )
            limit = max(_LEAST_QUEUE_BYTES, round(_QUEUE_S * link.goodput_bps / 8))
            ns.tc("add", "bfifo", to, "10:", parent="1:1", limit=limit)


def by_pyroute2(overlay: Overlay) -> float:
    """Return the seconds until an overlay's links are there."""
    prefix = f"anabranch-{os.getpid()}-{secrets.token_hex(2)}"
    layout = Layout(overlay, prefix, "plain")
    names = (*layout.namespaces, layout.control_namespace)
    with ExitStack() as stack:
        stack.callback(_remove, prefix)
        began_s = time.perf_counter()
        for name in names:
            netns.create(name)
        inside = {name: stack.enter_context(IPRoute(netns=name)) for name in names}
        create(layout, inside)
        configure(layout, inside)
        hold(layout, inside)
        return time.perf_counter() - began_s


def by_commands(overlay: Overlay) -> float:
    """Return the seconds until an overlay's links are there."""
    began_s = time.perf_counter()
    with emulated(overlay, delays=False):
        return time.perf_counter() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    tcmsg.plugins["bfifo"] = sched_pfifo
    config.default_communicate_timeout = 60  # seconds; 2 are too few on a busy machine
    ways: dict[str, Callable[[Overlay], float]] = {"commands": by_commands, "pyroute2": by_pyroute2}
    rows = []
    for overlay in (internet2_9(), random_sparse(25, seed=0)):
        times_s: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(options.runs):
            for way, set_up in ways.items():
                times_s[way].append(set_up(overlay))
        row = {"sites": overlay.size, "links": len(list(overlay))}
        rows.append(row | {f"{way}_s": common.spread(each) for way, each in times_s.items()})
        print(rows[-1], flush=True)
    common.write("wiring", seed=0, runs=options.runs, pyroute2=version("pyroute2"), results=rows)


if __name__ == "__main__":
    main()
