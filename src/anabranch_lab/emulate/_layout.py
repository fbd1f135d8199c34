"""The devices of an emulated overlay, as commands for ``ip`` and ``tc``. Pure.

Each site has a network namespace, in which a bridge without ports, ``site``, carries its address,
since some programs want an interface by name. Two devices join linked sites, ``toN`` in the
namespace of each. HTB limits the traffic that leaves a device to the rate of its link. The devices
are a veth pair. Where the kernel cannot delay or lose the packets as needed, they are the two ends
of a relay process. Every site also has a link without a limit to the control network.

A capped port is an IFB device that all links' traffic passes in one direction. There HTB limits the
sum, with a class for each link. So links share the port evenly, and one may use what another
leaves.

A cut link's packets are redirected to the bridge without ports, which drops them. ARP still passes:
if it failed, the kernel would report an unreachable host, in both directions, to waiting processes.

The numbers of HTB: with a burst of one packet a link never sends faster than its rate, so that even
a small message takes the right time. The quantum keeps the classes of a port fair, although the
kernel hands over up to 64 KB at once.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from anabranch._typed_toml import BadInput
from anabranch.overlay import Link, Overlay

Way = Literal["plain", "netem", "relay"]
"""How packets travel between sites: without delay; delayed by the kernel; or through a relay."""

Direction = Literal["to", "from"]
"""Of packets between a site and the control network: to or from the control network."""

_LINKS_A_CORE = 30
"""With more links, a lane's second connection costs the sites more time than it saves. A round of
16 MB over links of 1 to 6 ms took 1.97 s with two connections and 1.94 s with one on 23 links a
core. On 36 links a core it took 3.69 and 2.02 s (a run each, by hand)."""

SITE = "site"
CONTROL = "control"
MTU_BYTES = 1500
_IP_AND_TCP_BYTES = 52  # with the timestamps that Linux sends
_ETHERNET_BYTES = 14
_QUEUE_S = 0.05
_LEAST_QUEUE_BYTES = 128 * 1024
_HTB = "burst 1600b cburst 1600b quantum 60000"
_KERNELS_SHIFT = 9
_REDIRECT = "protocol ip u32 match u32 0 0 action mirred egress redirect dev"
_LOSE = f"{_REDIRECT} {SITE}"


def most_strands(overlay: Overlay, cores: int) -> int | None:
    """Return how many connections a lane may take at most, where all sites share some cores.

    Returns:
        1 where links are many; None where each lane may take as many as suit its path.
    """
    return 1 if len(list(overlay)) > _LINKS_A_CORE * cores else None


class EmulationError(BadInput):
    """An overlay cannot be emulated here; the message names what is missing, and what to do."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Commands for one run of a tool.

    Args:
        tool: ``ip`` or ``tc``.
        namespace: where they are carried out; None: the machine's own.
        lines: one command each.
    """

    tool: str
    namespace: str | None
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """Links that take new rates at one moment.

    Args:
        at_s: seconds since the run began.
        rates_bps: the new rate of each, by source and target.
    """

    at_s: float
    rates_bps: tuple[tuple[int, int, float], ...]


def changes(overlay: Overlay) -> list[Change]:
    """Return the changes of rates by the links' traces, in order, without the rates at the start.

    >>> from anabranch.overlay import Site, Trace
    >>> trace = Trace((0.0, 5.0), (2e6, 1e6))
    >>> links = (Link(0, 1, 2e6, trace=trace), Link(1, 0, 3e6))
    >>> changes(Overlay("pair", (Site("a"), Site("b")), links))
    [Change(at_s=5.0, rates_bps=((0, 1, 1000000.0),))]
    """
    found: dict[float, list[tuple[int, int, float]]] = {}
    for link in overlay:
        if link.trace is not None:
            for at_s, rate_bps in zip(
                link.trace.starts_s[1:], link.trace.rates_bps[1:], strict=True
            ):
                found.setdefault(at_s, []).append((link.source, link.target, rate_bps))
    return [Change(at_s, tuple(found[at_s])) for at_s in sorted(found)]


def next_hops(overlay: Overlay) -> dict[tuple[int, int], int]:
    """Return the neighbour through which each site reaches each other site, by (site, target).

    A path has the fewest links, and of those the least latency.

    >>> from anabranch.overlay import random_sparse
    >>> overlay = random_sparse(6, seed=1)
    >>> hops = next_hops(overlay)
    >>> all(hops[link.source, link.target] == link.target for link in overlay)
    True
    """
    hops = {}
    for target in range(overlay.size):
        seen: set[int] = set()
        # From the target backwards: a site's path is one link and its neighbour's best path.
        queue = [(0, 0.0, target, target)]
        while queue:
            links, latency_s, site, via = heapq.heappop(queue)
            if site in seen:
                continue
            seen.add(site)
            if site != target:
                hops[site, target] = via
            for source in overlay.sources[site]:
                link = overlay.link(source, site)
                assert link is not None
                heapq.heappush(queue, (links + 1, latency_s + link.latency_s, source, site))
    return hops


def device(site: int) -> str:
    """Return the name of the device that leads to a site."""
    return f"to{site}"


@dataclass(frozen=True)
class Layout:
    """The commands that make an overlay, and change it.

    Args:
        overlay: what to make.
        prefix: of the names of its namespaces.
        way: how packets travel between sites.
        forwarding: forward packets between sites without a link, through other sites, as IP does.
        congestion_control: of connections between sites; None: the machine's default.
    """

    overlay: Overlay
    prefix: str
    way: Way
    forwarding: bool = False
    congestion_control: str | None = None

    @cached_property
    def namespaces(self) -> tuple[str, ...]:
        """The sites' namespaces."""
        return tuple(f"{self.prefix}-{site}" for site in range(self.overlay.size))

    @property
    def control_namespace(self) -> str:
        """The scheduler's namespace."""
        return f"{self.prefix}-{CONTROL}"

    @cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The pairs of sites that a link joins, in at least one direction; smaller index first."""
        return tuple(
            sorted(
                {
                    (min(link.source, link.target), max(link.source, link.target))
                    for link in self.overlay
                }
            )
        )

    def address(self, site: int) -> str:
        """Return a site's address on the overlay."""
        return _address(77, site)

    def control_address(self, site: int) -> str:
        """Return a site's address on the control network; one past the last is the scheduler's."""
        return _address(78, site)

    # --- made

    def create(self) -> Batch:
        """Return the commands that make the namespaces, and the devices that join them."""
        lines = [f"netns add {name}" for name in (*self.namespaces, self.control_namespace)]
        lines += [
            f"link add {CONTROL} netns {name} type veth peer name {device(site)} "
            f"netns {self.control_namespace}"
            for site, name in enumerate(self.namespaces)
        ]
        if self.way != "relay":
            lines += [
                f"link add {device(b)} netns {self.namespaces[a]} type veth peer name {device(a)} "
                f"netns {self.namespaces[b]}"
                for a, b in self.pairs
            ]
        return Batch("ip", None, tuple(lines))

    def configure(self) -> list[Batch]:
        """Return the commands that give every namespace its addresses and routes."""
        control = [
            "link set lo up",
            f"link add {CONTROL} type bridge",
            f"address add {self.control_address(self.overlay.size)}/16 dev {CONTROL}",
            *(f"link set {device(site)} master {CONTROL} up" for site in range(self.overlay.size)),
            f"link set {CONTROL} up",
        ]
        batches = [Batch("ip", self.control_namespace, tuple(control))]
        hops = next_hops(self.overlay) if self.forwarding else {}
        for site, name in enumerate(self.namespaces):
            lines = [
                "link set lo up",
                f"link add {SITE} type bridge",
                f"address add {self.address(site)}/32 dev {SITE}",
                f"link set {SITE} up",
                f"address add {self.control_address(site)}/16 dev {CONTROL}",
                f"link set {CONTROL} up",
            ]
            for port in self._ports(site):
                lines += [f"link add {port} type ifb", f"link set {port} up"]
            neighbours = self._neighbours(site)
            lines += [f"link set {device(neighbour)} up" for neighbour in neighbours]
            routes = {neighbour: neighbour for neighbour in neighbours}
            routes |= {target: via for (source, target), via in hops.items() if source == site}
            how = f"src {self.address(site)}"
            if self.congestion_control is not None:
                how += f" congctl {self.congestion_control}"
            for target, via in sorted(routes.items()):
                hop = "" if target == via else f"via {self.address(via)} "
                onlink = "" if target == via else "onlink "
                lines.append(
                    f"route add {self.address(target)}/32 {hop}dev {device(via)} {onlink}{how}"
                )
            batches.append(Batch("ip", name, tuple(lines)))
        return batches

    def hold(self) -> list[Batch]:
        """Return the commands that limit every link and port to its rate."""
        batches = []
        for site, name in enumerate(self.namespaces):
            lines = [f"qdisc add dev {CONTROL} clsact"]
            for neighbour in self._neighbours(site):
                to = device(neighbour)
                lines.append(f"qdisc add dev {to} clsact")
                link = self.overlay.link(site, neighbour)
                if link is not None:
                    rate = self._rate(self._payload_bps(link, link.rate_bps))
                    lines += [
                        f"qdisc add dev {to} root handle 1: htb default 1",
                        f"class add dev {to} parent 1: classid 1:1 htb {rate} {_HTB}",
                        f"qdisc add dev {to} parent 1:1 handle 10: {self._queue(link)}",
                    ]
                elif self.way == "netem":
                    lines.append(
                        f"qdisc add dev {to} root handle 10: {self._back(neighbour, site)}"
                    )
            for port, port_bps in self._ports(site).items():
                lines += self._hold_port(site, port, port_bps)
            batches.append(Batch("tc", name, tuple(lines)))
        return batches

    def settings(self) -> dict[int, str]:
        """Return further settings inside sites' namespaces, by site, as shell scripts."""
        scripts = {}
        for site in range(self.overlay.size):
            lines = []
            if self.forwarding:  # as a router; the reverse path may use another device
                lines.append("echo 1 > /proc/sys/net/ipv4/ip_forward")
                lines.append(
                    "for each in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $each; done"
                )
            if self.way == "relay" and (shift := self._handover_shift(site)) is not None:
                setting = "/proc/sys/net/ipv4/tcp_tso_rtt_log"
                lines.append(f"if [ -e {setting} ]; then echo {shift} > {setting}; fi")
            if lines:
                scripts[site] = "; ".join(lines)
        return scripts

    def _handover_shift(self, site: int) -> int | None:
        """Return the shift that makes TCP hand over more at once on short round trips.

        TCP hands over the bytes that it sends in a millisecond, plus 64 KB halved once for each
        2^shift us of round trip. At 20 Mbit/s that is two packets at a time, and each time costs
        the relay work. This shift adds 8 or 16 KB to the shortest of a site's round trips, and
        less to longer ones. Older kernels have no such setting, so their relay has more to do.
        """
        round_trips_s = [
            sum(link.latency_s for link in (there, back) if link is not None)
            for neighbour in self._neighbours(site)
            for there, back in [
                (self.overlay.link(site, neighbour), self.overlay.link(neighbour, site))
            ]
        ]
        least_us = 1e6 * min(round_trips_s, default=0.0)
        return math.floor(math.log2(least_us / 2)) if least_us >= 3 * 2**_KERNELS_SHIFT else None

    # --- changed

    def set_rates(self, rates_bps: Iterable[tuple[int, int, float]]) -> list[Batch]:
        """Return the commands that give links, by source and target, new rates.

        Raises:
            KeyError: there is no such link.
        """
        lines: dict[str, list[str]] = {}
        for source, target, rate_bps in rates_bps:
            link, to = self._link(source, target), device(target)
            payload_bps = self._payload_bps(link, rate_bps)
            batch = lines.setdefault(self.namespaces[source], [])
            batch.append(
                f"class change dev {to} parent 1: classid 1:1 htb {self._rate(payload_bps)} {_HTB}"
            )
            if self.way != "netem":  # netem's queue is in packets, and long enough for any rate
                batch.append(f"qdisc change dev {to} parent 1:1 handle 10: {_fifo(payload_bps)}")
        return [Batch("tc", name, tuple(each)) for name, each in lines.items()]

    def cut(self, source: int, target: int) -> Batch:
        """Return the commands that make a link lose all packets from now on.

        Raises:
            KeyError: there is no such link.
        """
        self._link(source, target)
        line = f"filter add dev {device(target)} egress pref 1 {_LOSE}"
        return Batch("tc", self.namespaces[source], (line,))

    def heal(self, source: int, target: int) -> Batch:
        """Return the commands that undo ``cut``.

        Raises:
            KeyError: there is no such link.
        """
        self._link(source, target)
        line = f"filter delete dev {device(target)} egress pref 1"
        return Batch("tc", self.namespaces[source], (line,))

    def cut_control(self, site: int, directions: Collection[Direction]) -> Batch:
        """Return the commands that lose all packets of a site to or from the control network."""
        hooks = {"to": "egress", "from": "ingress"}
        lines = [f"filter add dev {CONTROL} {hooks[each]} pref 1 {_LOSE}" for each in directions]
        return Batch("tc", self.namespaces[site], tuple(lines))

    # --- details

    def _link(self, source: int, target: int) -> Link:
        link = self.overlay.link(source, target)
        if link is None:
            raise KeyError(f"no link leads from site {source} to site {target}")
        return link

    def _neighbours(self, site: int) -> list[int]:
        return sorted({*self.overlay.targets[site], *self.overlay.sources[site]})

    def _ports(self, site: int) -> dict[str, float]:
        """Return the rates of a site's capped ports, by the name of the port's device."""
        ports = {
            "uplink": self.overlay.sites[site].uplink_bps,
            "downlink": self.overlay.sites[site].downlink_bps,
        }
        return {name: port_bps for name, port_bps in ports.items() if port_bps is not None}

    def _hold_port(self, site: int, port: str, port_bps: float) -> list[str]:
        way = "egress" if port == "uplink" else "ingress"
        neighbours = self._neighbours(site)
        fair = self._rate(port_bps / len(neighbours), most_bps=port_bps)
        lines = [
            f"qdisc add dev {port} root handle 1: htb default 0",
            f"class add dev {port} parent 1: classid 1:1 htb {self._rate(port_bps)} {_HTB}",
        ]
        for number, neighbour in enumerate(neighbours, 2):
            to, minor = device(neighbour), f"{number:x}"
            lines += [
                f"class add dev {port} parent 1:1 classid 1:{minor} htb {fair} {_HTB}",
                f"qdisc add dev {port} parent 1:{minor} {_fifo(port_bps)}",
                f"filter add dev {port} parent 1: protocol ip u32 match u32 0 0 indev {to} "
                f"flowid 1:{minor}",
                f"filter add dev {to} {way} pref 2 {_REDIRECT} {port}",
            ]
        return lines

    def _payload_bps(self, link: Link, rate_bps: float) -> float:
        """Return a link's limit of payload; with a relay, lost packets use part of it."""
        return rate_bps if self.way == "relay" else rate_bps * (1.0 - link.loss)

    def _rate(self, payload_bps: float, most_bps: float | None = None) -> str:
        ceil_bps = payload_bps if most_bps is None else most_bps
        framing_bytes = 0 if self.way == "relay" else _ETHERNET_BYTES
        framed = (MTU_BYTES + framing_bytes) / (MTU_BYTES - _IP_AND_TCP_BYTES)
        return f"rate {_bits(payload_bps * framed)} ceil {_bits(ceil_bps * framed)}"

    def _queue(self, link: Link) -> str:
        if self.way != "netem":
            return _fifo(self._payload_bps(link, link.rate_bps))
        fastest_bps = max(link.trace.rates_bps) if link.trace is not None else link.rate_bps
        return _netem(link.latency_s, fastest_bps)

    def _back(self, source: int, target: int) -> str:
        """Return the queue of a direction without a link: the other link's latency, no limit."""
        link = self._link(source, target)
        return _netem(link.latency_s, link.rate_bps)


def _address(second: int, site: int) -> str:
    number = site + 1
    return f"10.{second}.{number >> 8}.{number & 255}"


def _bits(rate_bps: float) -> str:
    return f"{max(1, round(rate_bps))}bit"


def _fifo(payload_bps: float) -> str:
    return f"bfifo limit {max(_LEAST_QUEUE_BYTES, round(_QUEUE_S * payload_bps / 8))}"


def _netem(latency_s: float, rate_bps: float) -> str:
    packets = math.ceil((latency_s + _QUEUE_S) * rate_bps / 8 / MTU_BYTES) + 1000
    return f"netem delay {round(latency_s * 1e6)}us limit {packets}"


def needed_way(overlay: Overlay, kernel_delays: Callable[[], bool]) -> Way:
    """Return how an overlay's packets must travel.

    The kernel's netem delays well. But where a network loses one packet, netem loses up to 64 KB
    that the sender handed over at once. So loss needs the relay.

    Args:
        overlay: what to emulate.
        kernel_delays: returns whether the kernel has netem; called only if it matters.
    """
    if any(link.loss for link in overlay):
        return "relay"
    if any(link.latency_s for link in overlay):
        return "netem" if kernel_delays() else "relay"
    return "plain"


def check(overlay: Overlay) -> None:
    """Check that emulated links can do all that an overlay needs.

    Raises:
        EmulationError: names the link, and what to do.
    """
    for link in overlay:
        if link.latency_drift_s:
            raise EmulationError(
                f"link {overlay.label(link)} has a latency that drifts, which emulated links do "
                "not; leave latency_drift_s out, or run without --emulate"
            )
