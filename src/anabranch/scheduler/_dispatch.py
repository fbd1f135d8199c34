"""Deals chunks to trees during the round. Pure: time is an argument.

A plan's shares follow the expected rates of its trees. If links turn out slower or faster, a deal
by share makes the whole round wait for one tree. So only a *window* of chunks is dealt by share
when the round begins. Each later chunk is dealt when another one has ended, to the tree that ended
it. A tree that lags then gets fewer chunks, and the links that it leaves idle serve others. A chunk
goes through three states::

    left ──dealt to a tree──▶ under way ──every member holds its mean──▶ ended
                                 ▲                                          │
                                 └──── the tree gets a free place ◀─────────┘
                                       in the window: the next chunk

Members move a chunk to *ended*: each says with `Progress` how many chunks of each tree it holds.
The dispatcher moves chunks to *under way*. Every member hears the trees of the new chunks in one
order, so all give the next chunk of the buffer to the same tree.

Near the end, a tree that is slow to carry even one chunk would make the round wait. A tree gets one
of the last chunks only if other trees would not end them all sooner. The estimate assumes that each
tree takes as long for a chunk as it last did, and begins one whenever one of its chunks ends.

An interrupted exchange gets no further chunk here: its repairs are dealt by share.

What must never happen:

- a chunk is dealt twice, or moved to another tree (members may have begun it);
- more chunks are under way than the window holds;
- two members see different deals.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from anabranch.net.errors import MalformedMessage, OutOfPlaceMessage
from anabranch.overlay import Overlay
from anabranch.plan import Plan, Tree, interleave, steady_rate_bps, subtree_delays

_LEAST_A_TREE = 4  # chunks under way
_SLACK = 4.0  # twice for chunks that wait for one another, and twice for smaller last chunks
# The most messages of a deal while a window's worth of chunks ends. Each goes to every member, so
# a message for each chunk would load the scheduler.
_DEALS_A_WINDOW = 16
_NEWEST = 0.3  # weight of the newest duration in a tree's moving average


def needed_window(
    plan: Plan,
    overlay: Overlay,
    chunk_bytes: int,
    chunks: int,
    round_trip_s: float,
    report_s: float = 0.0,
) -> int:
    """Return how many chunks must be under way for the plan to keep its links busy.

    A chunk takes the time up its tree and down, then a round trip to the scheduler. The plan's
    steady rate carries so many chunks in that time. The window is four times as large: chunks wait
    for one another, and the last ones are smaller. It also covers the time between two reports.
    Each tree has at least a few.

    Args:
        plan, overlay: the trees, and the links that carry them.
        chunk_bytes: of each chunk.
        chunks: of the buffer.
        round_trip_s: between a site and the scheduler.
        report_s: seconds between two reports of a site.
    """
    if len(plan.members) == 1:
        return chunks  # a lone member uses no link
    bits = 8.0 * chunk_bytes
    longest_s = max(_passage_s(plan, tree, overlay, bits) for tree in plan.trees)
    needed_s = _SLACK * (longest_s + round_trip_s) + report_s
    under_way = math.ceil(steady_rate_bps(plan, overlay) * needed_s / bits)
    return min(chunks, max(_LEAST_A_TREE * len(plan.trees), under_way))


def _passage_s(plan: Plan, tree: Tree, overlay: Overlay, bits: float) -> float:
    """Return how long a chunk takes from the last leaf to the root and back to the last leaf."""

    def edge_s(source: int, target: int) -> float:
        taken_s = 0.0
        for hop in pairwise(plan.path(source, target)):
            link = overlay.link(*hop)
            assert link is not None  # plans are checked against the overlay
            taken_s += link.latency_s + bits / link.goodput_bps
        return taken_s

    up_s = subtree_delays(tree, tree.up, edge_s)
    down_s = subtree_delays(tree, tree.down, lambda child, parent: edge_s(parent, child))
    return up_s[tree.root] + down_s[tree.root]


class Dispatcher:
    """Deals one round's chunks to the plan's trees.

    Args:
        shares: of the trees.
        members: the sites that report progress.
        chunks: the number of chunks of the round.
        window: the most chunks under way.

    Attributes:
        members: see above.
        first: the trees of the chunks that are dealt at the start, in order.

    >>> dispatcher = Dispatcher([0.5, 0.5], members=[0], chunks=6, window=4)
    >>> dispatcher.first
    (0, 1, 0, 1)
    >>> dispatcher.progress(0, (0, 1), now_s=1.0)
    (1,)
    """

    def __init__(
        self, shares: Sequence[float], members: Sequence[int], chunks: int, window: int
    ) -> None:
        self.members = tuple(members)
        self._rows = {site: row for row, site in enumerate(self.members)}
        self.first = interleave(shares, min(window, chunks))
        self._left = chunks - len(self.first)
        self._batch = max(1, len(self.first) // _DEALS_A_WINDOW)
        self._began_s: list[deque[float]] = [deque() for _ in shares]  # of chunks under way
        for tree in self.first:
            self._began_s[tree].append(math.inf)  # the scheduler does not know when sites begin
        self._dealt = np.bincount(self.first, minlength=len(shares))
        self._finished = np.zeros((len(self.members), len(shares)), dtype=np.int64)
        self._everywhere = np.zeros(len(shares), dtype=np.int64)
        self._first_s = math.inf  # of the first report: the first chunks had begun by then
        self._takes_s = [0.0] * len(shares)  # from a chunk's deal to its end; 0 where unknown
        self._free = [0] * len(shares)  # by tree, its places in the window that no chunk takes

    def progress(self, site: int, finished: Sequence[int], now_s: float) -> tuple[int, ...]:
        """Note the chunks that a site holds; return the trees of the chunks dealt now, in order.

        Args:
            site: the reporter.
            finished: by tree, the number of chunks whose mean it holds.
            now_s: the time.

        Raises:
            MalformedMessage: not one number for each tree.
            OutOfPlaceMessage: fewer chunks than before, or more than were dealt.
        """
        if len(finished) != len(self._dealt):
            raise MalformedMessage(f"progress of {len(finished)} trees of {len(self._dealt)}")
        row = self._rows[site]
        holds = np.asarray(finished)
        if (holds < self._finished[row]).any() or (holds > self._dealt).any():
            raise OutOfPlaceMessage(
                f"site {site} holds {tuple(finished)} chunks by tree, of {self._dealt.tolist()} "
                f"dealt and {self._finished[row].tolist()} held before"
            )
        self._finished[row] = holds
        self._first_s = min(self._first_s, now_s)
        everywhere = self._finished.min(axis=0)
        ended = everywhere - self._everywhere
        self._everywhere = everywhere
        for tree in np.flatnonzero(ended).tolist():
            for _ in range(int(ended[tree])):
                began_s = self._began_s[tree].popleft()
                if began_s < math.inf:
                    self._note(tree, now_s - began_s)
                self._free[tree] += 1
        if not self._left or not ended.any():
            return ()
        # A message to every member costs as much for one chunk as for many, so a few are collected.
        # With no chunk under way, no later report would deal them.
        under_way = int(self._dealt.sum() - everywhere.sum())
        if sum(self._free) < self._batch and under_way:
            return ()
        return self._deal(now_s)

    def _note(self, tree: int, seconds: float) -> None:
        known_s = self._takes_s[tree]
        self._takes_s[tree] = seconds if not known_s else known_s + _NEWEST * (seconds - known_s)

    def _deal(self, now_s: float) -> tuple[int, ...]:
        trees: list[int] = []
        while self._left:
            open_trees = [tree for tree, free in enumerate(self._free) if free]
            if not open_trees:
                break
            tree = min(open_trees, key=lambda tree: (self._expected_s(tree, now_s), tree))
            if not self._is_among_the_first(tree, now_s):
                break  # nor is any other tree: they are no faster
            self._free[tree] -= 1
            self._left -= 1
            self._dealt[tree] += 1
            self._began_s[tree].append(now_s)
            trees.append(tree)
        return tuple(trees)

    def _expected_s(self, tree: int, now_s: float) -> float:
        """Return how long a chunk takes on a tree: its average, or the age of its oldest chunk."""
        under_way = self._began_s[tree]
        began_s = self._first_s if under_way and under_way[0] == math.inf else math.inf
        if under_way:
            began_s = min(began_s, under_way[0])
        return max(self._takes_s[tree], now_s - began_s)

    def _is_among_the_first(self, tree: int, now_s: float) -> bool:
        """Return whether the other trees cannot end all chunks that are left before it ends one."""
        end_s = self._expected_s(tree, now_s)
        sooner = 0.0
        for other, under_way in enumerate(self._began_s):
            takes_s = self._expected_s(other, now_s)
            if other != tree and under_way and 0.0 < takes_s < end_s:
                sooner += (end_s - takes_s) * len(under_way) / takes_s
        return sooner < self._left
