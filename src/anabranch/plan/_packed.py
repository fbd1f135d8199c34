"""Packed trees: many trees that together use the links as the limit says they can be used.

The limit (:mod:`anabranch.plan._limit`) packs triples (root, way up, way down) on directed links.
This planner finds few triples that come near it, and shallow ones, because depth costs time while
the pipeline fills. It looks for the shortest round of a buffer of so many ``bits``,

    minimise  bits * z + sum of share * fill    with    load(server) <= rate(server) * z,

over triples and their shares. A *server* is a link or a port, ``z`` the seconds for a bit of the
buffer once the pipeline is full, and a triple's ``fill`` the time of one chunk from the farthest
leaf to the root and out to the farthest leaf, each hop a latency and a transfer.

Over all triples this is too large a linear program, so it is solved over some of them:

1. **Draw triples by load.** A server's price is ``(load + 1/2) / rate``, with the load of all
   triples drawn so far, so loads even out (as in the packings of Garg and Könemann, FOCS 1998).
   One site after the other is the root of a cheap way up and a cheap way down.
2. **Share out** the buffer among them by the linear program. What a bit more rate at each server
   would be worth, its dual values, are better prices: draw a triple at every root by those, and
   share out again. No triple over all can be cheaper than the cheapest at its root, which bounds
   the best of all rounds from below; we stop when near the bound.
3. **Drop** the trees of least share while the others do nearly as well.

**A cheap way** is first the very cheapest: an arborescence by Edmonds' algorithm. That is deep
where depth costs nothing, so it is then *lightened*: each site looks for the parent of the least
``price + weight * seconds from the root`` among the sites nearer to the root than itself, which
cannot close a circle; then distances are measured again, a few times over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import csc_array

from anabranch.overlay import Overlay
from anabranch.plan._load import port_bps
from anabranch.plan._model import NO_PARENT, Plan, PlanError, Tree

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.intp]

_FILL = 0.005  # of a round, at the least, where the size of the buffer is not known
_GAP = 0.02  # between a round and the bound on the best of all rounds, when near enough
_ROUNDS = 5  # of drawing by dual values
_WORSE = 0.01  # by how much a round may be longer for the sake of fewer trees
_TOLL = 0.03  # by how much a round may be longer for the sake of trees that are in use
_LIGHTER = 8  # looks for a lighter parent; nearly all ways are at rest after three


def packed(
    overlay: Overlay,
    *,
    size_bytes: float | None = None,
    chunk_bytes: float = 2**18,
    version: int = 1,
    previous: Plan | None = None,
    trace=None, mix=(1.0,), rounds=_ROUNDS, gap=_GAP, worse=_WORSE,count=None,fillp=_FILL,stall=None,
) -> Plan:
    n = overlay.size
    if n == 1:
        return Plan(version, (Tree(0, 1.0, (NO_PARENT,), (NO_PARENT,)),), label="packed, 1 tree")
    net = _Servers(overlay, chunk_bytes)
    kept = net.kept(previous) if previous is not None else []
    bound = net.least_z
    if size_bytes is None:
        per = fillp * bound / net.least_fill_s.min()
    else:
        per = net.unit_bps / (8 * size_bytes)
    count = count or max(64, n + 2 * net.links // (n - 1))
    pool = list(dict.fromkeys(kept + net.draw(count, per, mix)))
    low = bound + per * net.least_fill_s.min()
    old = set(kept)
    def costs(ts):
        return np.array([per * t.fill_s + (_TOLL * bound if old and t not in old else 0) for t in ts])
    last = math.inf
    if trace is not None: trace += [("drawn", len(pool))]
    for k in range(rounds + 1):
        c = costs(pool)
        z, shares, prices = net.share_out(pool, c)
        obj = z + float(c @ shares)
        if k == rounds: break
        if trace is not None: trace += [(round(obj,4), round(z,4), round(low,4))]
        if obj <= (1 + gap) * low: break
        if stall is not None and obj > (1-stall)*last: break
        last = obj
        worth, found = net.priced(prices, per)
        low = max(low, worth)
        if obj <= (1 + gap) * low: break
        new = [t for t in dict.fromkeys(found) if t not in set(pool)]
        if not new: break
        pool = [t for t, y in zip(pool, shares.tolist(), strict=True) if y or t in old] + new
    if trace is not None: trace += [("low", round(low,4), int((shares>0).sum()))]
    best = obj
    chosen = [(t, y) for t, y in zip(pool, shares.tolist(), strict=True) if y]
    k = 0
    while len(chosen) > 1:
        chosen.sort(key=lambda c: -c[1])
        trial = [t for t, _ in chosen[: len(chosen) - max(1, len(chosen) // 8)]]
        c = costs(trial)
        z, shares, _ = net.share_out(trial, c)
        k += 1
        if z + float(c @ shares) > (1 + worse) * best:
            break
        chosen = [(t, y) for t, y in zip(trial, shares.tolist(), strict=True) if y]
    if trace is not None: trace += [("prunes", k)]
    chosen.sort(key=lambda c: (c[0].root, c[0].up, c[0].down))
    total = math.fsum(y for _, y in chosen)
    trees = tuple(Tree(t.root, y / total, t.up, t.down) for t, y in chosen)
    return Plan(version, trees, label=f"packed, {len(trees)} tree{'s' if len(trees) > 1 else ''}")


@dataclass(frozen=True, slots=True)
class _Triple:
    root: int
    up: tuple[int, ...]
    down: tuple[int, ...]
    fill_s: float


class _Servers:
    def __init__(self, overlay: Overlay, chunk_bytes: float) -> None:
        n = self._n = overlay.size
        goodput = overlay.goodput_matrix_bps()
        self._joined = goodput > 0
        self.links = int(self._joined.sum())
        self._uplink = np.array([port_bps(overlay, (i, "uplink")) for i in range(n)])
        self._downlink = np.array([port_bps(overlay, (i, "downlink")) for i in range(n)])
        hop = np.minimum(goodput, np.minimum(self._uplink[:, None], self._downlink))
        latency = np.zeros((n, n))
        for link in overlay:
            latency[link.source, link.target] = link.latency_s
        with np.errstate(divide="ignore"):
            self._hop_s = latency + 8 * chunk_bytes / hop
        out = np.minimum(goodput.sum(axis=1), self._uplink)
        into = np.minimum(goodput.sum(axis=0), self._downlink)
        self.unit_bps = float(min(out.min(), into.min()))
        self._capacity = np.minimum(goodput / self.unit_bps, 2.0)
        self._uplink = self._uplink / self.unit_bps
        self._downlink = self._downlink / self.unit_bps
        self._column = np.full((n, n), -1)
        self._column[self._joined] = np.arange(self.links)
        self._rates = np.concatenate([self._capacity[self._joined], self._uplink, self._downlink])
        out = np.minimum(self._capacity.sum(axis=1), self._uplink).sum()
        into = np.minimum(self._capacity.sum(axis=0), self._downlink).sum()
        self.least_z = max(1.0, 2 * (n - 1) / out, 2 * (n - 1) / into)
        from scipy.sparse.csgraph import dijkstra
        near = dijkstra(csc_array(np.where(self._joined, self._hop_s, 0)))
        self.least_fill_s = near.max(axis=0) + near.max(axis=1)

    def kept(self, previous: Plan) -> list[_Triple]:
        if previous.size != self._n:
            raise PlanError("size")
        out = []
        for tree in previous.trees:
            up, down = np.array(tree.up), np.array(tree.down)
            v = np.flatnonzero(up >= 0)
            if not self._joined[v, up[v]].all():
                continue
            v = np.flatnonzero(down >= 0)
            if not self._joined[down[v], v].all():
                continue
            out.append(self._triple(tree.root, up, down))
        return out

    def _triple(self, root: int, up: _Ints, down: _Ints) -> _Triple:
        fill = from_root(up, root, self._hop_s.T).max() + from_root(down, root, self._hop_s).max()
        u, d = up.copy(), down.copy()
        u[root] = d[root] = NO_PARENT
        return _Triple(root, tuple(u.tolist()), tuple(d.tolist()), float(fill))

    def draw(self, count: int, per: float, mix) -> list[_Triple]:
        n = self._n
        load = np.zeros((n, n))
        uplink, downlink = np.zeros(n), np.zeros(n)
        sites = np.arange(n)
        found = []
        with np.errstate(divide="ignore"):
            cost = 1 / self._capacity
        for k in range(count):
            root = k % n
            ways = []
            for up in (False, True):
                price = (load + 0.5) * cost
                price += ((uplink + 0.5) / self._uplink)[:, None]
                price += (downlink + 0.5) / self._downlink
                hop_s = self._hop_s
                if up:
                    price, hop_s = price.T, hop_s.T
                way = cheapest(price, root)
                v = np.flatnonzero(sites != root)
                total = price[way[v], v].sum()
                weight = mix[k % len(mix)] * per * total / (self.least_z / 2)
                way = lighten(way, price, hop_s, root, weight)
                ways.append(way)
                s, t = (v, way[v]) if up else (way[v], v)
                load[s, t] += 1
                uplink += np.bincount(s, minlength=n)
                downlink += np.bincount(t, minlength=n)
            found.append(self._triple(root, ways[1], ways[0]))
        return found

    def priced(self, prices: _Floats, per: float) -> tuple[float, list[_Triple]]:
        n = self._n
        price = np.full((n, n), np.inf)
        price[self._joined] = prices[: self.links]
        price += prices[self.links : self.links + n, None]
        price += prices[self.links + n :]
        v = np.arange(n)
        found, worth = [], np.inf
        for root in range(n):
            ways, total = [], per * self.least_fill_s[root]
            for p, h in ((price.T, self._hop_s.T), (price, self._hop_s)):
                way = cheapest(p, root)
                w = np.delete(v, root)
                total += p[way[w], w].sum()
                ways.append(lighten(way, p, h, root, per))
            worth = min(worth, total)
            found.append(self._triple(root, *ways))
        return float(worth), found

    def share_out(self, triples: Sequence[_Triple], costs: _Floats):
        n, k = self._n, len(triples)
        rows, cols = [], []
        for up in (False, True):
            ways = np.array([t.up if up else t.down for t in triples])
            c, v = np.nonzero(ways >= 0)
            s, t = (v, ways[c, v]) if up else (ways[c, v], v)
            rows += [self._column[s, t], self.links + s, self.links + n + t]
            cols += [c, c, c]
        row, column = np.concatenate(rows), np.concatenate(cols)
        rates = self._rates
        busy = rates < np.inf
        place = np.cumsum(busy) - 1
        keep = busy[row]
        row, column = row[keep], column[keep]
        m = int(busy.sum())
        table = csc_array(
            (
                np.concatenate([1 / rates[row], np.full(m, -1.0)]),
                (np.concatenate([place[row], np.arange(m)]), np.concatenate([column, np.full(m, k)])),
            ),
            shape=(m, k + 1),
        )
        whole = csc_array(np.array([[1.0] * k + [0.0]]))
        result = linprog(
            np.concatenate([costs, [1.0]]), A_ub=table, b_ub=np.zeros(m), A_eq=whole, b_eq=[1.0],
            method="highs-ds",
        )
        assert result.status == 0, result.message
        y = np.where(result.x[:k] > 1e-6, result.x[:k], 0.0)
        y /= y.sum()
        load = np.bincount(row, weights=y[column] / rates[row])
        prices = np.zeros(len(rates))
        prices[busy] = np.maximum(-result.ineqlin.marginals, 0.0) / rates[busy]
        return float(load.max()), y, prices


def lighten(way, price: _Floats, hop_s: _Floats, root: int, weight: float) -> _Ints:
    far_s = from_root(way, root, hop_s)
    fixed = price + weight * hop_s
    for _ in range(_LIGHTER):
        worth = fixed + weight * far_s[:, None]
        worth = np.where(far_s[:, None] < far_s, worth, np.inf)
        worth[:, root] = 0
        new = worth.argmin(axis=0)
        new[root] = root
        if (new == way).all():
            break
        way = new
        far_s = from_root(way, root, hop_s)
    return way


def from_root(way: _Ints, root: int, hop_s: _Floats) -> _Floats:
    above = way.copy()
    above[root] = root
    sites = np.arange(len(way))
    far = hop_s[above, sites]
    far[root] = 0
    while (above != root).any():
        far = far + far[above]
        above = above[above]
    return far


def cheapest(price: _Floats, root: int) -> _Ints:
    n = len(price)
    table = price.T.copy()
    np.fill_diagonal(table, np.inf)
    source = table.argmin(axis=1).tolist()
    dues = table[np.arange(n), source].tolist()
    into = list(table)
    inner = [None] * n
    comp = list(range(n))
    members = [[v] for v in range(n)]
    NEW, ON, DONE = 0, 1, 2
    state = [NEW] * n
    state[root] = DONE
    sites = np.arange(n)
    for start in range(n):
        v = comp[start]
        if state[v] == DONE:
            continue
        path = []
        while True:
            state[v] = ON
            path.append(v)
            u = comp[source[v]]
            if state[u] == DONE:
                break
            if state[u] == NEW:
                v = u
                continue
            k = path.index(u)
            ring = path[k:]
            del path[k:]
            saved = np.array([into[c] for c in ring])
            saved -= np.array([dues[c] for c in ring])[:, None]
            row = saved.argmin(axis=0)
            low = saved[row, sites]
            mem = [x for c in ring for x in members[c]]
            low[mem] = np.inf
            v = len(into)
            into.append(low)
            inner.append([ring[i] for i in row.tolist()])
            members.append(mem)
            s = int(low.argmin())
            source.append(s)
            dues.append(float(low[s]))
            state.append(ON)
            for x in mem:
                comp[x] = v
        for c in path:
            state[c] = DONE
    way = [root] * n
    entered = [False] * len(into)
    for c in range(len(into) - 1, -1, -1):
        if entered[c] or c == root:
            continue
        s = source[c]
        x = c
        while True:
            entered[x] = True
            if x < n:
                way[x] = s
                break
            x = inner[x][s]
    return np.array(way)
