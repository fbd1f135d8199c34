"""The system that the predictions describe, event by event: an oracle, slow and plain.

A buffer is cut and dealt by ``deal``. Each directed link serves one message at a time at its
goodput, then the message takes the link's latency to arrive. Waiting messages go lowest chunk
first, the result of a chunk before its sum. Sites add up, relays forward whole messages, the root
turns round at once.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from anabranch.overlay import Overlay
from anabranch.plan import NO_PARENT, Plan, deal


@dataclass(frozen=True, slots=True, order=True)
class Message:
    """One chunk on its way between two tree neighbours; its order is its priority."""

    chunk: int
    climbs: bool
    path: tuple[int, ...]
    hop: int = 0

    @property
    def link(self) -> tuple[int, int]:
        return self.path[self.hop], self.path[self.hop + 1]


def round_s(
    plan: Plan, overlay: Overlay, elements: int, chunk_elements: int, element_bytes: int = 4
) -> float:
    """Return when the last site has the last chunk, seconds after all began."""
    chunks = deal(plan, elements, chunk_elements)
    trees = [plan.trees[chunk.tree] for chunk in chunks]
    down_children = [tree.children(tree.down) for tree in plan.trees]
    awaited = [[len(c) for c in tree.children(tree.up)] for tree in trees]
    queues: defaultdict[tuple[int, int], list[Message]] = defaultdict(list)
    busy: set[tuple[int, int]] = set()
    events: list[tuple[float, int, Message, bool]] = []  # (when, tie, message, has arrived)
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
            if queue and link not in busy:
                message = heappop(queue)
                edge = overlay.link(*link)
                assert edge is not None
                bits = 8 * element_bytes * chunks[message.chunk].elements
                sent_s = now_s + bits / edge.goodput_bps
                busy.add(link)
                heappush(events, (sent_s, next(tie), message, False))
                heappush(events, (sent_s + edge.latency_s, next(tie), message, True))

    for chunk in range(len(chunks)):
        for site, waiting in enumerate(awaited[chunk]):
            if not waiting:
                summed(chunk, site)
    now_s = 0.0
    dispatch(now_s)
    while events:
        now_s = events[0][0]
        while events and events[0][0] == now_s:  # all of one moment, then choose what goes next
            _, _, message, has_arrived = heappop(events)
            if has_arrived:
                arrived(message)
            else:
                busy.discard(message.link)
        dispatch(now_s)
    return now_s
