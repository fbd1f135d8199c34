"""Packed trees: many trees that together use nearly all that the links can carry.

The limit (:mod:`anabranch.plan._limit`) packs triples (root, way up, way down) on directed links.
This planner finds a few shallow triples that come near it; depth costs time while the pipeline
fills. It looks for the shortest round of a buffer of ``bits`` bits:

    minimise  bits * z + sum of share * fill    with    load(resource) <= rate(resource) * z.

A *resource* is a link or a port, and its *load* the sum of the shares that cross it. ``z`` is the
seconds for a bit of the buffer once the pipeline is full. A triple's *fill* is the seconds of one
chunk from the farthest leaf to the root and out to the farthest leaf; each hop costs a transfer and
a latency.

Over all triples this linear program is far too large, so the planner solves it over some:

1. **Draw triples by load.** A resource's price is ``((load + 1/2) / rate) ** 3``, with the load of
   all triples drawn so far. Each site in turn is the root of a cheap way up and a cheap way down.
   So loads even out, as in the packings of Garg and Könemann (FOCS 1998).
2. **Share out** the buffer among them by the program. Its dual values say what a little more rate
   of each resource is worth, and are better prices. Draw a triple at every root by those prices,
   and share out again. By duality, the price of the cheapest triple, with the least fill of its
   root, bounds every round from below. The search stops near that bound, or when a turn no longer
   helps.
3. **Drop** the trees of least share, while the others take hardly longer.

The stages and their results::

    draw by load ---> triples ---> share_out (linear program) ---> shares, z, prices
                                        ^                                  |
                                        +---- triples drawn by price <-----+   at most _TURNS times
                                        v
                                   with_fewer ---> Plan

A plan in use replaces the first draw; triples are drawn by load only if it is far from the bound.
Trees that are not in use cost ``stay`` extra, so those in use stay unless others save more.

The search for a cheap way finds the cheapest, which may be deep, and then makes it shallower
(:mod:`anabranch.plan._arborescence`). The shares are a vertex of the program, so there are no more
trees than busy resources.

What must never happen:

- *A tree crosses a pair of sites without a link.* Such hops have an infinite price. Trees of a
  previous plan that lost a link are left out.
- *The same input gives another plan.* Draws have no randomness, equal triples count once, and sorts
  are stable. So a simulation that runs again makes the same plans.
- *The search continues without a gain.* It ends within ``_NEAR`` of the bound, when a turn saves
  less than ``_HELPS``, or after ``_TURNS``. A turn's bound holds for all triples, drawn or not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from anabranch._typed_toml import Table
from anabranch.overlay import Overlay
from anabranch.plan._arborescence import cheapest_way, least_totals, lighten, seconds_from
from anabranch.plan._load import port_bps
from anabranch.plan._model import NO_PARENT, Plan, PlanError, Tree
from anabranch.plan._planner import CHUNK_ELEMENTS

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.intp]

# Parts of a round unless a unit is given; docs/mechanisms has the measurements.
_SHORT_FILL = 0.002  # what the least fill takes, where the buffer's size is unknown
_STEEP = 3  # power of the load in a price: at 1, busy ports are not spared enough
_NEAR = 0.02  # the search stops this far above the bound
_TURNS = 5  # most turns of drawing by dual values
_BOUND_TURNS = 20  # the same, for the bound alone
_HELPS = 0.003  # a turn that saves less is the last
_FEWER = 0.015  # how much longer a round may take with fewer trees
_STAY = 0.05  # how much longer a round may take with the trees in use
_LEAST_SHARE = 1e-6  # of the buffer; the solver's own tolerance is 1e-7

_MOST_ROOTS = 64  # roots to try in an overlay of more than _MANY sites
_MANY = 100  # sites
_BOUND_TRIPLES = 64  # to begin with; later turns draw more by price
_ELEMENT_BYTES = 4


class Packed(Table, frozen=True, kw_only=True, tag_field="kind", tag="packed"):
    """Trees packed so that together they use nearly all that the network can carry."""

    deep: ClassVar[bool] = True
    by_size: ClassVar[bool] = True

    def plan(
        self,
        overlay: Overlay,
        *,
        version: int = 1,
        previous: Plan | None = None,
        elements: int | None = None,
        chunk_elements: int = CHUNK_ELEMENTS,
    ) -> Plan:
        """See :class:`anabranch.plan.Planner`."""
        return packed(
            overlay,
            size_bytes=None if elements is None else _ELEMENT_BYTES * elements,
            chunk_bytes=_ELEMENT_BYTES * chunk_elements,
            version=version,
            previous=previous,
        )


def packed(
    overlay: Overlay,
    *,
    size_bytes: float | None = None,
    chunk_bytes: float = 2**18,
    version: int = 1,
    previous: Plan | None = None,
) -> Plan:
    """Plan packed trees: many trees whose rates add up to nearly the physical limit.

    Args:
        overlay: n sites. Traced links count at their rate of time 0, see :meth:`Overlay.at`;
            drifting latencies at their start; loss by goodput; each port as a resource.
        size_bytes: the buffer to make the round short for, > 0. The smaller it is, the more depth
            counts against rate. None for a buffer so large that rate counts most.
        chunk_bytes: the most bytes in a chunk, > 0; a smaller buffer is one chunk. A hop costs its
            transfer and the latency.
        version: the plan's.
        previous: a plan in use. Its trees stay where a round would be only a few per cent shorter
            without them; they get new shares. A tree that needs a link which the overlay lacks is
            left out.

    Returns:
        Trees in order of root, way up and way down; several may share a root. All their edges
        are links. In an overlay of one site, the tree is that site.

    Raises:
        PlanError: the previous plan spans other sites.
        ValueError: a size that is not positive.
    """
    n = overlay.size
    for name, given in (("size_bytes", size_bytes), ("chunk_bytes", chunk_bytes)):
        if given is not None and not 0 < given < math.inf:
            raise ValueError(f"{name} is {given:g}, which must be finite and > 0")
    if previous is not None and previous.size != n:
        raise PlanError(
            f"the previous plan spans {previous.size} sites, the overlay {n}; leave it out"
        )
    if n == 1:
        alone = _Triple(0, (NO_PARENT,), (NO_PARENT,), 0.0)
        return _plan(version, _Sharing((alone,), (1.0,), 0.0, np.zeros(0)))
    resources = _Resources(overlay, min(chunk_bytes, size_bytes or math.inf))
    least_fill_s = float(resources.least_fill_s.min())
    if size_bytes is None:
        second = _SHORT_FILL * resources.least_z / least_fill_s
    else:
        second = resources.unit_bps / (8 * size_bytes)
    used = frozenset(resources.triples_of(previous)) if previous is not None else frozenset()
    stay = _STAY * resources.least_z if used else 0.0

    def cost(triple: _Triple) -> float:
        return second * triple.fill_s + (0.0 if triple in used else stay)

    in_use = sorted(used, key=_order)
    # So each link of a full mesh is in about eight triples; with fewer, some would have no price.
    count = max(64, len(resources.roots) + 3 * resources.links // (n - 1))
    sharing = resources.share_out(in_use or resources.drawn_by_load(count, second), cost)
    bound = resources.least_z + second * least_fill_s
    for turn in range(_TURNS):
        if sharing.cost <= (1 + _NEAR) * bound + stay:
            break
        least, drawn = resources.drawn_by_price(sharing.prices, second)
        bound, before = max(bound, least), sharing.cost
        if sharing.cost <= (1 + _NEAR) * bound + stay:
            break
        if in_use and turn == 0:
            drawn = resources.drawn_by_load(count, second)
        sharing = resources.share_out([*in_use, *sharing.triples, *drawn], cost)
        if sharing.cost > (1 - _HELPS) * before:
            break
    return _plan(version, resources.with_fewer(sharing, used, cost))


def bound_rate_bps(overlay: Overlay) -> float:
    """Return a rate that no all-reduce exceeds, slightly above the limit's; bits per second.

    For overlays whose limit (:func:`anabranch.plan.limit_rate_bps`) takes minutes. By duality, at
    any prices of the links and ports, no packing of triples is faster than the sum of price times
    rate, divided by the price of the cheapest triple. Infinite on a single site.
    """
    if overlay.size == 1:
        return math.inf
    resources = _Resources(overlay, _ELEMENT_BYTES * CHUNK_ELEMENTS)
    triples = resources.drawn_by_load(_BOUND_TRIPLES, 0.0)
    bound = resources.least_z
    for _ in range(_BOUND_TURNS):
        sharing = resources.share_out(triples, _no_cost)
        if sharing.cost <= (1 + _NEAR) * bound:
            break
        least, drawn = resources.drawn_by_price(sharing.prices, 0.0)
        bound = max(bound, least / resources.worth(sharing.prices))
        # All triples stay, with a share or not: without some, prices could repeat in a cycle where
        # many sharings are equally good.
        triples += drawn
    return resources.unit_bps / bound


def _no_cost(triple: _Triple) -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class _Triple:
    """A root, the parents of both ways, ``NO_PARENT`` at the root, and the fill in seconds."""

    root: int
    up: tuple[int, ...]
    down: tuple[int, ...]
    fill_s: float


def _order(tree: _Triple | Tree) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    return tree.root, tree.up, tree.down


@dataclass(frozen=True, slots=True)
class _Sharing:
    """The triples that got a share, and their cost.

    Args:
        triples: at least one.
        shares: of each triple, > 0; they sum to 1.
        cost: z plus the sum of share * cost, in units of 1 / unit_bps.
        prices: what a little more rate of each resource would save: a dual solution, whose sum of
            price times rate is 1.
    """

    triples: tuple[_Triple, ...]
    shares: tuple[float, ...]
    cost: float
    prices: _Floats


def _plan(version: int, sharing: _Sharing) -> Plan:
    parts = zip(sharing.triples, sharing.shares, strict=True)
    trees = sorted((Tree(t.root, share, t.up, t.down) for t, share in parts), key=_order)
    plural = "s" if len(trees) > 1 else ""
    return Plan(version, tuple(trees), label=f"packed, {len(trees)} tree{plural}")


class _Resources:
    """The m links and 2n ports of an overlay of n >= 2 sites; a missing port has infinite rate.

    Resources are in order: links by source and target, uplinks, downlinks. Rates are in units of
    ``unit_bps``: the least, over all sites, of what one can receive or send. z is in units of
    1 / unit_bps. All of the buffer passes each site in and out, so z >= 1. A tree crosses a link at
    most twice, so no link is of use beyond 2.

    Attributes:
        roots: the sites at which to draw triples by load; of very many sites, those of least fill.
    """

    def __init__(self, overlay: Overlay, chunk_bytes: float) -> None:
        n = self._n = overlay.size
        goodput_bps = overlay.goodput_matrix_bps()
        self._joined = goodput_bps > 0
        self.links = int(self._joined.sum())
        uplink_bps = np.array([port_bps(overlay, (site, "uplink")) for site in range(n)])
        downlink_bps = np.array([port_bps(overlay, (site, "downlink")) for site in range(n)])
        out_bps, in_bps = goodput_bps.sum(axis=1), goodput_bps.sum(axis=0)
        # Ports that their links cannot fill never limit. They would only change which of several
        # optima the solver returns.
        uplink_bps[uplink_bps >= out_bps] = np.inf
        downlink_bps[downlink_bps >= in_bps] = np.inf
        out_bps, in_bps = np.minimum(out_bps, uplink_bps), np.minimum(in_bps, downlink_bps)
        self.unit_bps = float(min(out_bps.min(), in_bps.min()))
        link_rates = np.minimum(goodput_bps[self._joined] / self.unit_bps, 2.0)
        port_rates = np.concatenate([uplink_bps, downlink_bps]) / self.unit_bps
        self._rates = np.concatenate([link_rates, port_rates])
        self._number = np.full((n, n), -1)  # of each link
        self._number[self._joined] = np.arange(self.links)
        self._limited = np.isfinite(self._rates)

        latency_s = np.zeros((n, n))
        for link in overlay:
            latency_s[link.source, link.target] = link.latency_s
        ends_bps = np.minimum(uplink_bps[:, None], downlink_bps)
        with np.errstate(divide="ignore"):
            self._hop_s = latency_s + 8 * chunk_bytes / np.minimum(goodput_bps, ends_bps)
        from scipy.sparse import csgraph  # here, because it takes half a second to import

        apart_s = csgraph.dijkstra(np.where(self._joined, self._hop_s, 0.0))
        self.least_fill_s: _Floats = apart_s.max(axis=0) + apart_s.max(axis=1)  # of each root

        self.roots = [*range(n)]
        if n > _MANY:  # a way takes time in proportion to n squared
            nearest = np.argsort(self.least_fill_s, kind="stable")[:_MOST_ROOTS]
            self.roots = nearest.tolist()

        # Trees cross 2 (n - 1) links, and each leaves one site and enters one.
        all_bps = min(float(out_bps.sum()), float(in_bps.sum()))
        self.least_z = max(1.0, 2 * (n - 1) * self.unit_bps / all_bps)

    def triples_of(self, plan: Plan) -> list[_Triple]:
        """Return the trees of a plan all of whose edges are links."""
        found = []
        for tree in plan.trees:
            ways = np.array([tree.up, tree.down])
            ways[:, tree.root] = tree.root
            used = [self._joined[hop] for hop in self._hops(tree.root, ways[0], ways[1])]
            if all(joined.all() for joined in used):
                found.append(self._triple(tree.root, ways[0], ways[1]))
        return found

    def _hops(self, root: int, up: _Ints, down: _Ints) -> list[tuple[_Ints, _Ints]]:
        """Return the sources and targets of the links that each way crosses."""
        others = np.delete(np.arange(self._n), root)
        return [(others, up[others]), (down[others], others)]

    def _triple(self, root: int, up: _Ints, down: _Ints) -> _Triple:
        up_s = seconds_from(root, up, self._hop_s.T).max()
        down_s = seconds_from(root, down, self._hop_s).max()
        ways = np.array([up, down])
        ways[:, root] = NO_PARENT
        return _Triple(root, tuple(ways[0].tolist()), tuple(ways[1].tolist()), float(up_s + down_s))

    def drawn_by_load(self, count: int, second: float) -> list[_Triple]:
        """Return triples, roots in turn, each over resources on which those before put little load.

        Args:
            count: of triples.
            second: what one second of fill costs, in units of z.
        """
        load = np.zeros(len(self._rates))
        found = []
        for k in range(count):
            root = self.roots[k % len(self.roots)]
            ways = []
            for up in (False, True):
                price, hop_s = self._facing(up, ((load + 0.5) / self._rates) ** _STEEP)
                way = cheapest_way(price, root)
                if second:
                    # Scales prices so that both ways together cost z.
                    total = np.delete(price[way, np.arange(self._n)], root).sum()
                    weight = second * total / (self.least_z / 2)
                    way = lighten(way, price, hop_s, root, weight)
                source, target = self._hops(root, way, way)[0 if up else 1]
                np.add.at(load, self._crossed(source, target), 1.0)
                ways.append(way)
            found.append(self._triple(root, ways[1], ways[0]))
        return found

    def drawn_by_price(self, prices: _Floats, second: float) -> tuple[float, list[_Triple]]:
        """Return the least that any triple can cost at prices, and cheap triples at some roots.

        In an overlay of very many sites, those are the roots whose triples may be cheapest.

        Args:
            prices: of the resources; prices times rates sum to 1.
            second: what one second of fill costs, in units of z.
        """
        if self._n > _MANY:
            bounds = second * self.least_fill_s
            bounds += sum(least_totals(self._facing(up, prices)[0]) for up in (True, False))
            roots = np.argsort(bounds, kind="stable")[:_MOST_ROOTS].tolist()
            return float(bounds.min()), [self._cheap(root, prices, second)[1] for root in roots]
        drawn = [self._cheap(root, prices, second) for root in range(self._n)]
        return min(bound for bound, _ in drawn), [triple for _, triple in drawn]

    def _cheap(self, root: int, prices: _Floats, second: float) -> tuple[float, _Triple]:
        """Return the least that a triple at this root can cost, and a cheap one."""
        ways = []
        bound = second * float(self.least_fill_s[root])
        for up in (True, False):
            price, hop_s = self._facing(up, prices)
            way = cheapest_way(price, root)
            bound += float(np.delete(price[way, np.arange(self._n)], root).sum())
            ways.append(lighten(way, price, hop_s, root, second) if second else way)
        return bound, self._triple(root, ways[0], ways[1])

    def worth(self, prices: _Floats) -> float:
        """Return the sum of prices times rates: 1 but for rounding, for a sharing's prices."""
        return float(prices[self._limited] @ self._rates[self._limited])

    def _facing(self, up: bool, prices: _Floats) -> tuple[_Floats, _Floats]:
        """Return prices, with the ports', and times of the hops from parent (row) to child."""
        m, n = self.links, self._n
        price = np.full((n, n), np.inf)
        price[self._joined] = prices[:m]
        price += prices[m : m + n, None]
        price += prices[m + n :]
        return (price.T, self._hop_s.T) if up else (price, self._hop_s)

    def _crossed(self, source: _Ints, target: _Ints) -> _Ints:
        """Return the resources that hops cross, shape (3, hops)."""
        m = self.links
        return np.array([self._number[source, target], m + source, m + self._n + target])

    def share_out(self, triples: Sequence[_Triple], cost: Callable[[_Triple], float]) -> _Sharing:
        """Return the shares of least ``z + sum of share * cost``; equal triples count once."""
        from scipy.optimize import linprog
        from scipy.sparse import csc_array

        triples = list(dict.fromkeys(triples))
        costs = np.array([cost(triple) for triple in triples])
        k, m = len(triples), int(self._limited.sum())
        crossed, crossing = [], []
        for up in (False, True):
            ways = np.array([triple.up if up else triple.down for triple in triples])
            of, child = np.nonzero(ways != NO_PARENT)
            parent = ways[of, child]
            resources = self._crossed(child, parent) if up else self._crossed(parent, child)
            crossed.append(resources.ravel())
            crossing.append(np.tile(of, len(resources)))
        resource, column = np.concatenate(crossed), np.concatenate(crossing)
        fills = self._limited[resource]
        resource, column = resource[fills], column[fills]
        row = (np.cumsum(self._limited) - 1)[resource]  # one for each resource that can fill
        values = 1 / self._rates[resource]
        table = csc_array(  # adds up what falls on one place: a triple may cross a resource twice
            (
                np.concatenate([values, np.full(m, -1.0)]),
                (np.concatenate([row, np.arange(m)]), np.concatenate([column, np.full(m, k)])),
            ),
            shape=(m, k + 1),
        )
        result = linprog(  # type: ignore[call-overload]  # the stubs know no sparse tables
            np.append(costs, 1.0),
            A_ub=table,
            b_ub=np.zeros(m),
            A_eq=np.append(np.ones(k), 0.0)[None],
            b_eq=[1.0],
            method="highs-ds",
        )
        assert result.status == 0, result.message  # any shares are feasible, at some z
        shares = np.where(result.x[:k] > _LEAST_SHARE, result.x[:k], 0.0)
        shares /= math.fsum(shares.tolist())
        z = float(np.bincount(row, weights=values * shares[column]).max())
        prices = np.zeros(len(self._rates))
        prices[self._limited] = -result.ineqlin.marginals / self._rates[self._limited]
        return _Sharing(
            tuple(triple for triple, share in zip(triples, shares, strict=True) if share),
            tuple(shares[shares > 0].tolist()),
            z + float(costs @ shares),
            np.maximum(prices, 0.0),
        )

    def with_fewer(
        self, sharing: _Sharing, used: frozenset[_Triple], cost: Callable[[_Triple], float]
    ) -> _Sharing:
        """Return a sharing among fewer triples that costs hardly more, if any triple is new."""
        longest = (1 + _FEWER) * sharing.cost
        fewer = sharing
        while fewer.cost <= longest:
            sharing = fewer
            count = len(sharing.triples)
            if count == 1 or used.issuperset(sharing.triples):
                break
            light = set(np.argsort(sharing.shares, kind="stable")[: max(1, count // 6)].tolist())
            left = [triple for i, triple in enumerate(sharing.triples) if i not in light]
            fewer = self.share_out(left, cost)
        return sharing
