"""The best order of sites round a ring.

All sites send the same amount, so a ring is as slow as its slowest *resource*, a link or a port:
the one of most ``crossings / rate``. A site's data to its neighbour crosses the links of the whole
way between them, the ports at its ends, and the ports of its relays. Without relays every order
crosses each port once, and the best order is the bottleneck travelling salesman's tour over
directed links. With relays, ways share links. Of equally quick orders, the one of least latency all
round is best.

Up to nine sites the search tries all orders. Beyond, it improves greedy walks in steps:

- A step parts two neighbours, first those whose resources are the slowest. It then closes the ring
  by exchanging the two parts before and behind a cut, or by reversing a part (as Or-3opt and 2-opt
  do): about n * n / 2 orders. The search estimates all of them at the loads of the present order,
  and computes the few that look best.
- Steps first lower the sum over resources of ``(crossings / rate) ** 16``, which the slowest
  resource dominates. Then they lower the latency, while no resource may become slower than the
  slowest was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, permutations

import numpy as np
import numpy.typing as npt

from anabranch.overlay import Overlay
from anabranch.plan._load import port_bps
from anabranch.plan._model import link_of

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.intp]
_Price = Callable[[_Floats], _Floats]  # of resources, by their crossings / rate

_MOST_EXACT = 9  # sites of which all orders are tried: 40,320
_MOST_STARTS, _STARTS_OF_ALL = (
    6,
    400,
)  # greedy walks; fewer for larger overlays, as each takes longer
_STEEP = 16
_FORBIDDEN = 1e6  # the price of twice the slowest resource's time, in latencies all round
_WORKED_OUT = 8  # moves of a step to compute
_EQUAL = 1e-9  # relative


def best_order(
    overlay: Overlay, ways: Mapping[tuple[int, int], Sequence[int]], *, both_ways: bool = False
) -> tuple[int, ...]:
    """Return the order in which a ring is quickest, each site sending to the next.

    Up to nine sites, the best of all orders; beyond, an order that no move above improves.

    Args:
        overlay: n sites; links count at their goodput of time 0.
        ways: for ordered pairs of sites, all sites on the way from one to the other, both included.
            A pair without a link needs a way. A pair with a link and no way uses the link.
        both_ways: whether each site sends as much to the one before it, too.

    Returns:
        All sites, site 0 first.
    """
    n = overlay.size
    if n <= 2:
        return tuple(range(n))
    search = _Search(overlay, ways, both_ways)
    if n <= _MOST_EXACT:
        others = np.array(list(permutations(range(1, n))))
        return search.best(np.insert(others, 0, 0, axis=1))
    count = max(1, min(_MOST_STARTS, _STARTS_OF_ALL // n))
    starts = np.linspace(0, n - 1, count).astype(int).tolist()
    return search.best(np.array([search.improved(search.walk(start)) for start in starts]))


class _Search:
    """The costs of orders of n >= 3 sites, and a search for cheaper orders.

    Resources are in order: links as the overlay has them, uplinks, downlinks. An order is an array
    of all sites, shape (n,); the ordered pair of sites (s, t) has the number ``s * n + t``.
    """

    def __init__(
        self,
        overlay: Overlay,
        ways: Mapping[tuple[int, int], Sequence[int]],
        both_ways: bool,
    ) -> None:
        from scipy.sparse import csr_array  # here, because it takes half a second to import

        n, m = overlay.size, len(overlay.links)
        self._n = n
        number = {(link.source, link.target): i for i, link in enumerate(overlay.links)}
        self._latency_s = np.zeros(n * n)  # of each pair
        pairs: list[int] = []
        crossed: list[int] = []
        for source, target in permutations(range(n), 2):
            way = ways.get((source, target), (source, target))
            resources = [number[hop] for hop in pairwise(way)]
            resources += [first + relay for relay in way[1:-1] for first in (m, m + n)]
            latency_s = sum(link_of(overlay, *hop).latency_s for hop in pairwise(way))
            back = [target * n + source] if both_ways else []
            for pair in (source * n + target, *back):
                self._latency_s[pair] += latency_s
                pairs += [pair] * len(resources)
                crossed += resources
        self._crossings = csr_array(
            (np.ones(len(crossed)), (pairs, crossed)), shape=(n * n, m + 2 * n)
        )
        # The ports at the ends of a way are crossed in any order.
        self._always = np.repeat([0.0, 2.0 if both_ways else 1.0], [m, 2 * n])
        rates_bps = [link.goodput_bps for link in overlay.links]
        rates_bps += [port_bps(overlay, (site, "uplink")) for site in range(n)]
        rates_bps += [port_bps(overlay, (site, "downlink")) for site in range(n)]
        self._s_per_bit = 1 / np.array(rates_bps)

    def _pairs(self, orders: _Ints) -> _Ints:
        """Return the numbers of all neighbours."""
        return orders * self._n + np.roll(orders, -1, axis=-1)

    def _loads(self, orders: _Ints) -> _Floats:
        """Return how often each resource is crossed, shape (orders, resources)."""
        from scipy.sparse import csr_array

        count, n = orders.shape
        ends = np.arange(count + 1) * n
        neighbours = csr_array(
            (np.ones(count * n), self._pairs(orders).ravel(), ends), shape=(count, n * n)
        )
        return np.asarray((neighbours @ self._crossings).toarray() + self._always)

    def _busy(self, orders: _Ints) -> _Floats:
        """Return each resource's crossings / rate, shape (orders, resources)."""
        return self._loads(orders) * self._s_per_bit

    def _round_s(self, orders: _Ints) -> _Floats:
        """Return the latency all round, shape (orders,)."""
        return np.asarray(self._latency_s[self._pairs(orders)].sum(axis=1))

    def best(self, orders: _Ints) -> tuple[int, ...]:
        """Return the first of the quickest orders of least latency, turned to begin at site 0."""
        slowest = self._busy(orders).max(axis=1)
        quick = orders[slowest <= (1 + _EQUAL) * slowest.min()]
        round_s = self._round_s(quick)
        found = quick[np.flatnonzero(round_s <= (1 + _EQUAL) * round_s.min())[0]]
        return tuple(np.roll(found, -int(np.argmin(found))).tolist())

    def walk(self, start: int) -> _Ints:
        """Return the order of a walk that always takes the cheapest site left."""
        price = (self._s_per_bit / self._s_per_bit.max()) ** _STEEP
        cost = (self._crossings @ price).reshape(self._n, self._n)
        order = [start]
        while len(order) < self._n:
            cost[:, order[-1]] = np.inf
            order.append(int(np.argmin(cost[order[-1]])))
        return np.array(order)

    def improved(self, order: _Ints) -> _Ints:
        """Return an order improved in steps: first a quicker ring, then less latency."""
        slowest = float(self._busy(order[None]).max())
        order = self._descend(order, lambda busy: (busy / slowest) ** _STEEP, 0.0)
        most = (1 + _EQUAL) * float(self._busy(order[None]).max())
        round_s = float(self._round_s(order[None])[0])
        if not round_s:
            return order

        def too_slow(busy: _Floats) -> _Floats:
            return _FORBIDDEN * np.maximum(busy / most - 1, 0.0)

        return self._descend(order, too_slow, 1 / round_s)

    def _descend(self, order: _Ints, price: _Price, second: float) -> _Ints:
        """Return the order after all steps that lower the price of its resources and seconds."""
        while (better := self._step(order, price, second)) is not None:
            order = better
        return order

    def _step(self, order: _Ints, price: _Price, second: float) -> _Ints | None:
        """Return a cheaper order one move away; it parts the dearest neighbours first."""

        def cost(orders: _Ints) -> _Floats:
            of_servers = np.asarray(price(self._busy(orders)).sum(axis=1))
            return of_servers + second * self._round_s(orders)

        n, now = self._n, float(cost(order[None])[0])
        load = self._loads(order[None])[0]
        here = price(load * self._s_per_bit)
        one_more = price((load + 1) * self._s_per_bit) - here
        one_less = here - price(np.maximum(load - 1, 0.0) * self._s_per_bit)
        own = self._pairs(order)
        estimate = np.asarray(self._crossings @ one_more)  # of each pair
        estimate[own] = self._crossings[own] @ one_less
        estimate += second * self._latency_s
        for place in np.argsort(-estimate[own], kind="stable").tolist():
            if estimate[own[place]] <= _EQUAL * now:
                break
            path = np.roll(order, -place - 1)  # begins behind the cut
            near = _mended(path, estimate.reshape(n, n)[np.ix_(path, path)])
            costs = cost(near)
            if costs.min() < (1 - _EQUAL) * now:
                return np.asarray(near[np.argmin(costs)])
        return None


def _mended(path: _Ints, cost: _Floats) -> _Ints:
    """Return the few rings that look cheapest, of those that do not join the path's ends.

    Args:
        path: all sites, shape (n,), more than four.
        cost: of going from one to another, both in the order of the path, shape (n, n).
    """
    n = len(path)
    ahead, back = np.diagonal(cost, 1), np.diagonal(cost, -1)
    turned = np.concatenate([[0.0], np.cumsum(back - ahead)])  # of the first 1, 2, ... n sites
    # Cut behind i and, later, behind j; the parts A, B, C are joined as A, C, B.
    exchange = cost[:-1, 1:] + cost[-1, 1:, None] + cost[:-1, 0] - ahead[:, None] - ahead
    exchange[np.tri(n - 1, dtype=bool)] = np.inf
    # Cut behind j: reverse the first of the two parts, or the second.
    first = turned[:-1] + cost[-1, :-1] + cost[0, 1:] - ahead
    second = turned[-1] - turned[1:] + cost[:-1, -1] + cost[1:, 0] - ahead
    change = np.concatenate([exchange.ravel(), first, second])
    moves = np.argpartition(change, _WORKED_OUT)[:_WORKED_OUT]
    moves = moves[np.argsort(change[moves], kind="stable")]
    return np.array([_move(path, int(move)) for move in moves])


def _move(path: _Ints, number: int) -> _Ints:
    """Return the ring of the move with this place in `_mended`'s array of changes."""
    i, j = divmod(number, len(path) - 1)
    first, second = path[: j + 1], path[j + 1 :]
    if i == len(path) - 1:
        return np.concatenate([first[::-1], second])
    if i == len(path):
        return np.concatenate([first, second[::-1]])
    return np.concatenate([path[: i + 1], second, path[i + 1 : j + 1]])
