"""The cost of a group of sites as one aggregation tree: Algorithms 1 and 2 of HAAF, in batches.

Algorithm 1's tree at root r is the union of the fastest ways between r and the other sites, so
times add up along fastest ways and eq. 11 and 12 unroll to

    d(r) = max over v of ( T_start(v) + t_v + up(v, r) ) + up(r, server),
    T_start(v) = down(server, r) + down(r, v),

over the sites v of the group: a site's term does not depend on the other members. A site sends
after all sites below it, so the first to send (eq. 13) is a leaf: a site through which no other
member sends to r. Only the set of leaves depends on the group as a whole. So the class keeps, for
each root and site, the set of sites whose way up passes the site, as bits. A site is a leaf where
that set and the group have no site in common.

Groups are rows of booleans over the sites that train, in order of index ("places"). Their costs
depend on the set alone: :meth:`GroupCosts.costs` remembers them. A local search asks for all groups
that differ by one site. :meth:`GroupCosts.additions` and :meth:`GroupCosts.removals` answer that at
once, in the time of a few single groups.

Legend of shapes: B groups, n sites that train, m sites of a group, W words of 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from anabranch.plan._forest_problem import ForestProblem
from anabranch.plan._shortest import ShortestPaths

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]
_Words = npt.NDArray[np.uint64]

_REMEMBERED = 1 << 13  # groups with all additions or removals: 26 MB at 200 sites
_BATCH = 1 << 20  # entries (group, root, site) in one array operation: 8 MiB an array


class Costs(NamedTuple):
    """Costs of groups; each array has one entry for each group.

    Args:
        latency_s: l_k (eq. 13) at the best root, in seconds.
        period_s: d_k (eq. 12) at that root.
        root: its place.
    """

    latency_s: Floats
    period_s: Floats
    root: Ints


class GroupCosts:
    """The costs of groups of a problem's sites; Algorithm 2 chooses each group's root.

    Of roots with equal latency, the lowest index is chosen.
    """

    def __init__(self, problem: ForestProblem) -> None:
        sites = np.array(problem.sites)
        paths, server = problem.paths, problem.server
        between = np.ix_(sites, sites)
        compute_s = np.array([problem.compute_s[site] for site in problem.sites], dtype=float)
        start_s = paths.down[server, sites][:, None] + paths.down[between]
        self.done_s: Floats = compute_s + start_s
        """When site v has computed under root r, shape (n, n): row r, column v."""
        self._at_root_s = self.done_s + paths.up[between]
        self._to_server_s = paths.up[server, sites]
        self.orders_s: tuple[Floats, ...] = (compute_s, start_s.diagonal(), self.done_s.diagonal())
        """Keys to sort sites by, shape (n,) each: compute time, seconds from the server, and their
        sum."""
        self._below = _below(paths, sites)
        self._known: dict[bytes, tuple[float, float, int]] = {}
        self._changed: dict[bytes, Floats] = {}

    @property
    def size(self) -> int:
        """Number of sites that train."""
        return len(self.done_s)

    def costs(self, groups: Bools) -> Costs:
        """Return what groups cost.

        Args:
            groups: shape (B, n), at least one site in each.
        """
        keys = [row.tobytes() for row in np.packbits(groups, axis=1)]
        new = {key: row for row, key in enumerate(keys) if key not in self._known}
        if new:
            fresh, names = groups[list(new.values())], list(new)
            sizes = fresh.sum(axis=1)
            for size in np.unique(sizes).tolist():
                alike = np.flatnonzero(sizes == size)
                step = max(1, _BATCH // size**2)
                for first in range(0, len(alike), step):
                    rows = alike[first : first + step]
                    found = self._costs(fresh[rows].nonzero()[1].reshape(-1, size))
                    each = zip(*(column.tolist() for column in found), strict=True)
                    self._known.update(zip((names[row] for row in rows), each, strict=True))
        latency_s, period_s, root = zip(*(self._known[key] for key in keys), strict=True)
        return Costs(np.array(latency_s), np.array(period_s), np.array(root))

    def _costs(self, groups: Ints) -> Costs:
        """Return the costs of groups of m sites each, as places in order, shape (B, m)."""
        pairs = groups[:, :, None] * self.size + groups[:, None, :]  # (B, m roots, m sites)
        inner = np.zeros(pairs.shape, dtype=bool)
        for below, mask in zip(self._below, self._words(groups), strict=True):
            inner |= (below.take(pairs) & mask[:, None, None]) != 0
        first_s = np.where(inner, np.inf, self.done_s.take(pairs)).min(axis=2)
        period_s = self._at_root_s.take(pairs).max(axis=2) + self._to_server_s[groups]
        latency_s = period_s - first_s
        row, best = np.arange(len(groups)), latency_s.argmin(axis=1)
        return Costs(latency_s[row, best], period_s[row, best], groups[row, best])

    def additions(self, group: Bools) -> Floats:
        """Return latency and period of a group with one more site, for each site, shape (2, n).

        Args:
            group: shape (n,); it may be empty.

        Returns:
            Infinite latency for the sites of the group.
        """
        return self._remembered(b"+" + group.tobytes(), lambda: self._additions(group))

    def removals(self, group: Bools) -> Floats:
        """Return latency and period of a group with one site less, for each site, shape (2, n).

        Args:
            group: shape (n,), at least two sites.

        Returns:
            Infinite latency for the sites outside the group.
        """
        return self._remembered(b"-" + group.tobytes(), lambda: self._removals(group))

    def _remembered(self, key: bytes, work_out: Callable[[], Floats]) -> Floats:
        if key not in self._changed:
            if len(self._changed) >= _REMEMBERED:
                self._changed.clear()
            self._changed[key] = work_out()
        return self._changed[key]

    def _additions(self, group: Bools) -> Floats:
        (inside,) = group.nonzero()
        if not len(inside):
            alone = self.costs(np.eye(self.size, dtype=bool))
            return np.array([alone.latency_s, alone.period_s])
        old_s, old_period_s = self._additions_at(inside)
        new_s, new_period_s = self._additions_as_root(inside)
        every = np.arange(self.size)
        best = old_s.argmin(axis=0)
        latency_s, period_s = old_s[best, every], old_period_s[best, every]
        better = (new_s < latency_s) | ((new_s == latency_s) & (every < inside[best]))
        latency_s, period_s = (
            np.where(better, new_s, latency_s),
            np.where(better, new_period_s, period_s),
        )
        latency_s[inside] = np.inf
        return np.array([latency_s, period_s])

    def _additions_at(self, inside: Ints) -> tuple[Floats, Floats]:
        """Return latency and period at each root of the group, (m, n), with each site added."""
        rows = np.arange(len(inside))
        within = np.ix_(inside, inside)
        inner = self._inner(inside)
        done_s = np.where(inner[:, inside], np.inf, self.done_s[within])
        leaf = done_s.argmin(axis=1)
        first_s = done_s[rows, leaf]
        done_s[rows, leaf] = np.inf
        second_s = done_s.min(axis=1)
        # A new site's way up passes at most one leaf, since no leaf is on another leaf's way up.
        # That leaf is then a leaf no more.
        passes = self._bits(inside, inside[leaf])
        others_s = np.where(passes, second_s[:, None], first_s[:, None])
        own_s = np.where(inner, np.inf, self.done_s[inside])
        last_s = self._at_root_s[within].max(axis=1)
        period_s = np.maximum(last_s[:, None], self._at_root_s[inside])
        period_s += self._to_server_s[inside][:, None]
        return period_s - np.minimum(others_s, own_s), period_s

    def _additions_as_root(self, inside: Ints) -> tuple[Floats, Floats]:
        """Return latency and period with each site added and made the root, (n,) each."""
        every = np.arange(self.size)
        inner = np.zeros((self.size, len(inside)), dtype=bool)
        for below, mask in zip(self._below, self._words(inside[None]), strict=True):
            inner |= (below[:, inside] & mask) != 0
        first_s = np.where(inner, np.inf, self.done_s[:, inside]).min(axis=1)
        last_s = self._at_root_s[:, inside].max(axis=1)
        period_s = np.maximum(last_s, self._at_root_s[every, every]) + self._to_server_s
        return period_s - first_s, period_s

    def _removals(self, group: Bools) -> Floats:
        (inside,) = group.nonzero()
        rows = np.arange(len(inside))
        within = np.ix_(inside, inside)
        own_s, at_root_s = self.done_s[within], self._at_root_s[within].copy()
        last = at_root_s.argmax(axis=1)
        last_s = at_root_s[rows, last]
        at_root_s[rows, last] = -np.inf
        next_s = at_root_s.max(axis=1)
        period_s = np.where(rows == last[:, None], next_s[:, None], last_s[:, None])
        period_s += self._to_server_s[inside][:, None]

        done_s = np.where(self._inner(inside)[:, inside], np.inf, own_s)
        leaf = done_s.argmin(axis=1)
        first_s = done_s[rows, leaf]
        done_s[rows, leaf] = np.inf
        left_s = np.where(rows == leaf[:, None], done_s.min(axis=1)[:, None], first_s[:, None])
        root, parent, child = self._only_children(inside)
        freed_s = np.full_like(left_s, np.inf)  # the parent becomes a leaf without its only child
        freed_s[root, child] = own_s[root, parent]
        latency_s = period_s - np.minimum(left_s, freed_s)
        latency_s[rows, rows] = np.inf  # the removed site cannot be the root

        best = latency_s.argmin(axis=0)
        found_s = np.array([[np.inf], [0.0]]).repeat(self.size, axis=1)
        found_s[:, inside] = latency_s[best, rows], period_s[best, rows]
        return found_s

    def _words(self, groups: Ints) -> _Words:
        """Return groups of places, (B, m), as bits, shape (W, B)."""
        rows = np.zeros((len(groups), 64 * len(self._below)), dtype=bool)
        rows[np.arange(len(groups))[:, None], groups] = True
        return _packed(rows).T

    def _bits(self, roots: Ints, sites: Ints) -> Bools:
        """Return whether each site's way up to root i passes site i, shape (roots, n)."""
        words = np.ascontiguousarray(self._below[:, roots, sites].T)
        return np.unpackbits(words.view(np.uint8), axis=1, count=self.size).astype(bool)

    def _inner(self, inside: Ints) -> Bools:
        """Return, for each root of a group and each site, whether a member is below it, (m, n)."""
        found = np.zeros((len(inside), self.size), dtype=bool)
        for below, mask in zip(self._below, self._words(inside[None]), strict=True):
            found |= (below[inside] & mask) != 0
        return found

    def _only_children(self, inside: Ints) -> tuple[Ints, Ints, Ints]:
        """Return each (root, site, the only one below it) of a group, as ranks in the group."""
        within = np.ix_(inside, inside)
        words, several = np.zeros((2, len(inside), len(inside)), dtype=np.int8)
        masks = self._words(inside[None])
        for below, mask in zip(self._below, masks, strict=True):
            word = below[within] & mask
            words += word != 0
            several |= (word & (word - np.uint64(1))) != 0
        root, parent = ((words == 1) & (several == 0)).nonzero()
        bits = np.ascontiguousarray((self._below[:, inside[root], inside[parent]] & masks).T)
        child = np.unpackbits(bits.view(np.uint8), axis=1).argmax(axis=1)
        return root, parent, inside.searchsorted(child)


def _packed(rows: Bools) -> _Words:
    """Return rows of booleans, a multiple of 64 long, as words."""
    return np.packbits(rows, axis=-1).view(np.uint64)


def _below(paths: ShortestPaths, sites: Ints) -> _Words:
    """Return, for each root r and site v, the sites whose way up to r passes v, (W, n, n)."""
    n, every = len(paths.up), np.arange(len(sites))
    places = np.zeros((n, 64 * -(-len(sites) // 64)), dtype=bool)
    places[sites, every] = True
    bits = _packed(places)  # one row a site of the overlay; all zero where it does not train
    parents = paths.up_parent[sites]
    below = np.zeros((len(sites), n, bits.shape[1]), dtype=np.uint64)
    farthest_first = np.argsort(-paths.up[sites], axis=1, kind="stable")
    for site in farthest_first.T[:-1]:  # one site for each root; the root itself comes last
        below[every, parents[every, site]] |= below[every, site] | bits[site]
    return np.ascontiguousarray(below[:, sites].transpose(2, 0, 1))
