"""The system that the predictions describe, event by event: an oracle, slow and plain.

A buffer is cut and dealt by ``deal``. Each directed link serves one message at a time at its
goodput, then the message takes the link's latency to arrive. Waiting messages go lowest chunk
first, the result of a chunk before its sum. Sites add up, relays forward whole messages, the root
turns round at once. Ports are shared max-min fairly by the links that are sending.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from anabranch.overlay import Overlay
from anabranch.plan import NO_PARENT, Plan, deal

Hop = tuple[int, int]


@dataclass(frozen=True, slots=True, order=True)
class Message:
    """One chunk on its way between two tree neighbours; its order is its priority."""

    chunk: int
    climbs: bool
    path: tuple[int, ...]
    hop: int = 0

    @property
    def link(self) -> Hop:
        return self.path[self.hop], self.path[self.hop + 1]


@dataclass(slots=True)
class Sending:
    """A message on a link, as of a moment; ``version`` counts how often its rate has changed."""

    message: Message
    left_bits: float
    now_s: float
    rate_bps: float = 0.0
    version: int = 0


def fair_rates_bps(overlay: Overlay, links: Collection[Hop]) -> dict[Hop, float]:
    """Share ports among links: raise all rates alike, and fix those that meet a limit."""
    limits = [(overlay.link(*hop).goodput_bps, [hop]) for hop in links]
    if all(site.uplink_bps is None and site.downlink_bps is None for site in overlay.sites):
        return {hop: goodput_bps for goodput_bps, [hop] in limits}
    for i, site in enumerate(overlay.sites):
        for end, most_bps in enumerate((site.uplink_bps, site.downlink_bps)):
            if most_bps is not None:
                limits.append((most_bps, [hop for hop in links if hop[end] == i]))
    rates_bps: dict[Hop, float] = {}
    while len(rates_bps) < len(links):
        shares = []
        for most_bps, hops in limits:
            free = [hop for hop in hops if hop not in rates_bps]
            if free:
                left_bps = most_bps - sum(rates_bps.get(hop, 0.0) for hop in hops)
                shares.append((left_bps / len(free), free))
        share_bps, free = min(shares)
        rates_bps |= dict.fromkeys(free, share_bps)
    return rates_bps


def round_s(
    plan: Plan, overlay: Overlay, elements: int, chunk_elements: int, element_bytes: int = 4
) -> float:
    """Return when the last site has the last chunk, seconds after all began."""
    chunks = deal(plan, elements, chunk_elements)
    trees = [plan.trees[chunk.tree] for chunk in chunks]
    down_children = [tree.children(tree.down) for tree in plan.trees]
    awaited = [[len(c) for c in tree.children(tree.up)] for tree in trees]
    queues: defaultdict[Hop, list[Message]] = defaultdict(list)
    sending: dict[Hop, Sending] = {}
    # (when, tie, message, None if it arrives or else the version by which it has been sent)
    events: list[tuple[float, int, Message, int | None]] = []
    tie = count()

    def summed(chunk: int, site: int) -> None:
        parent = trees[chunk].up[site]
        if parent == NO_PARENT:
            received(chunk, site)
        else:
            enqueue(Message(chunk, True, plan.path(site, parent)))

    def received(chunk: int, site: int) -> None:
        for child in down_children[chunks[chunk].tree][site]:
            enqueue(Message(chunk, False, plan.path(site, child)))

    def enqueue(message: Message) -> None:
        heappush(queues[message.link], message)

    def arrived(message: Message) -> None:
        if message.hop + 2 < len(message.path):
            enqueue(Message(message.chunk, message.climbs, message.path, message.hop + 1))
        elif message.climbs:
            site = message.path[-1]
            awaited[message.chunk][site] -= 1
            if awaited[message.chunk][site] == 0:
                summed(message.chunk, site)
        else:
            received(message.chunk, message.path[-1])

    def dispatch(now_s: float) -> None:
        for link, queue in queues.items():
            if queue and link not in sending:
                message = heappop(queue)
                bits = 8 * element_bytes * chunks[message.chunk].elements
                sending[link] = Sending(message, bits, now_s)
        for link, rate_bps in fair_rates_bps(overlay, sending).items():
            one = sending[link]
            if one.rate_bps != rate_bps:
                one.left_bits -= (now_s - one.now_s) * one.rate_bps
                one.now_s, one.rate_bps, one.version = now_s, rate_bps, one.version + 1
                sent_s = now_s + one.left_bits / rate_bps
                heappush(events, (sent_s, next(tie), one.message, one.version))

    for chunk in range(len(chunks)):
        for site, waiting in enumerate(awaited[chunk]):
            if not waiting:
                summed(chunk, site)
    now_s = end_s = 0.0  # an event that was superseded ends nothing
    dispatch(now_s)
    while events:
        now_s = events[0][0]
        while events and events[0][0] == now_s:  # all of one moment, then choose what goes next
            _, _, message, version = heappop(events)
            if version is None:
                arrived(message)
                end_s = now_s
                continue
            one = sending.get(message.link)
            if one is not None and (one.message, one.version) == (message, version):
                del sending[message.link]
                latency_s = overlay.link(*message.link).latency_s
                heappush(events, (now_s + latency_s, next(tie), message, None))
        dispatch(now_s)
    return end_s
