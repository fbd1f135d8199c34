"""The physical limit: the fastest all-reduce that any plan can reach on an overlay.

All-reduce by trees sends each bit of the buffer up an in-arborescence to some root and down an
out-arborescence from it. A steady schedule is thus a packing of triples (root, way up, way down)
whose rates add up, on every directed link, to no more than its goodput ``c``. Its rate is the sum
of the triples' rates, and rounds approach it as chunks get small against the buffer.

Split every link into ``u`` for ways up and ``d`` for ways down, ``u + d = c``, and let ``lam[r]``
be the rate of root r. Join a super-root to every site r by an arc of capacity ``lam[r]``. By
Edmonds' branching theorem, ways down with these root rates exist at the total rate
``x = sum(lam)`` if and only if enough capacity enters every set X of sites. With all arcs reversed,
the same holds for the ways up:

    d(into X) + lam(X) >= x    and    u(out of X) + lam(X) >= x    for every set X of sites.

Any pairing of a root's ways up and down will do, so the greatest x is the optimum of a linear
program in d and lam. Its rows, two for each set, are made as they are needed: solve with some rows,
find violated rows by minimum cuts between the super-root and each site, add those, solve again. The
solution with some rows is an upper bound, but a bad guide: it sits in a corner that most of the
missing rows would cut off. So the search keeps a feasible point too, and looks for rows that the
point half way between the two violates ("in-out separation", Ben-Ameur and Neto 2007). Where there
is none, that point is feasible, and the gap has halved. The answer is exact but for rounding:
relative 1e-6, up to about a thousand links.

A port adds a row: the sum of ``u + d`` over its links is no more than its rate. Its links cannot
all be full then, so ``u + d = c - s``, with a variable ``s`` for each link's unused rate. Only
links at a port whose rate is below their total goodput have an ``s``.

Now let every link be as fast one way as the other. A triple that climbs and descends one spanning
tree takes its rate once from each direction of each edge. Packing such triples is packing spanning
trees, and x is the strength of the graph (Tutte; Nash-Williams)

    x = min over partitions P of the sites of  c(P) / (|P| - 1),

with c(P) the goodput, *in one direction*, of all pairs that P parts. Full duplex adds no factor:
the second direction carries the way down. Triples whose two ways use different trees are no faster:
each way needs ``|P| - 1`` arcs between the parts, and both directions together offer ``2 c(P)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from anabranch.overlay import Overlay
from anabranch.plan._load import Port, port_bps, steady_rate_bps
from anabranch.plan._model import Plan

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.intp]
_Row = tuple[bool, tuple[int, ...]]  # a way (True is up) and the sites of a set X, in order
_Terms = tuple[_Ints, _Floats, float]  # of a row: columns, their values, the bound of the sum

_ALL_SETS_OF = 10  # sites; more have too many sets
_TOLERANCE = 1e-7  # relative to x; HiGHS is no more exact
_FLOW_UNITS = 2**30  # x in scipy's integer flows: as fine as int32 allows


def limit_rate_bps(overlay: Overlay) -> float:
    """Return the highest rate of all-reduce, buffer bits per second; infinite on a single site.

    Traced links count at their rate of time 0, see :meth:`Overlay.at`. Latency does not count here:
    see :func:`least_latency_s`.
    """
    if overlay.size == 1:
        return float("inf")
    program = _Program(overlay)
    feasible, bound = program.idle(), program.solve()
    while program.rate(bound) - program.rate(feasible) > _TOLERANCE * program.rate(bound):
        middle = (feasible + bound) / 2
        violated = set(program.violated(middle))
        if not violated:
            feasible = middle
            if next(program.violated(bound), None) is None:
                break
        elif violated <= program.rows:
            break  # rows that hold within the solver's tolerance
        else:
            program.rows |= violated
            bound = program.solve()
    return program.rate(bound) * program.unit_bps


def limit_s(overlay: Overlay, size_bytes: float, rate_bps: float | None = None) -> float:
    """Return a lower bound on the seconds of an all-reduce of ``size_bytes``.

    It is the largest of three times: the buffer at the limit's rate, a single bit, and the buffer
    out of a set of sites. Latencies are those of the start.

    Args:
        overlay, size_bytes: see above.
        rate_bps: an upper bound on the limit's rate, where the limit takes too long to compute;
            None to compute the limit.
    """
    if rate_bps is None:
        rate_bps = limit_rate_bps(overlay)
    if overlay.size == 1:
        return 0.0
    bits = 8 * size_bytes
    return max(bits / rate_bps, least_latency_s(overlay), _least_across_s(overlay, bits))


def least_latency_s(overlay: Overlay) -> float:
    """Return the fewest seconds that an all-reduce of a single bit takes.

    Some site adds the bit up, and sends the result to all sites. The bound is the least, over every
    site that could do so, of the latency from the farthest site plus the latency to the farthest.

    For a buffer, this and the time at the limit's rate do not add up: while some bits go up, the
    links carry others down.
    """
    apart_s = _apart_s(overlay)
    return float((apart_s.max(axis=0) + apart_s.max(axis=1)).min())


def _least_across_s(overlay: Overlay, bits: float) -> float:
    """Return the seconds in which a buffer leaves any set of sites and reaches the others.

    Take a site u of a set, and a site v outside. Each bit of u's contribution, alone or in a sum,
    crosses the links out of the set on its way to v. They carry a buffer in ``bits / rate``
    seconds. A link is of no use before u's bits reach it, nor once it is too late for them to reach
    v. So a round takes ``bits / rate`` and the latency from u to v, for the farthest such pair.
    """
    inside = _sets(overlay.size)
    goodput_bps, apart_s = overlay.goodput_matrix_bps(), _apart_s(overlay)
    sites = range(overlay.size)
    uplinks_bps = [port_bps(overlay, (site, "uplink")) for site in sites]
    downlinks_bps = [port_bps(overlay, (site, "downlink")) for site in sites]
    sent_bps = np.where(inside, np.minimum(~inside @ goodput_bps.T, uplinks_bps), 0.0)
    received_bps = np.where(inside, 0.0, np.minimum(inside @ goodput_bps, downlinks_bps))
    rate_bps = np.minimum(sent_bps.sum(axis=1), received_bps.sum(axis=1))
    farthest_s = np.zeros(len(inside))
    for site, from_s in enumerate(apart_s):
        has = np.flatnonzero(inside[:, site])
        reached_s = np.where(inside[has], 0.0, from_s).max(axis=1)
        farthest_s[has] = np.maximum(farthest_s[has], reached_s)
    return float((bits / rate_bps + farthest_s).max())


def _sets(size: int) -> npt.NDArray[np.bool_]:
    """Return sets of sites, shape (sets, size): all; of many sites, those of one or all but one."""
    if size > _ALL_SETS_OF:
        one = np.eye(size, dtype=bool)
        return np.concatenate([one, ~one])
    return np.array([*product((False, True), repeat=size)][1:-1])


def _apart_s(overlay: Overlay) -> _Floats:
    """Return the latency from each site to each other one, over the best links."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    links = list(overlay)
    ends = [each.source for each in links], [each.target for each in links]
    # Sparse, since in a dense table a latency of 0 would be no link.
    table = csr_array(([each.latency_s for each in links], ends), shape=(overlay.size,) * 2)
    return np.asarray(dijkstra(table))


def share_of_limit(plan: Plan, overlay: Overlay) -> float:
    """Return a plan's steady rate over the limit's, in (0, 1]; 1 on a single site.

    Raises:
        PlanError: the plan uses a link that the overlay lacks.
    """
    if overlay.size == 1:
        return 1.0
    return steady_rate_bps(plan, overlay) / limit_rate_bps(overlay)


class _Program:
    """The linear program of m links and n sites; k of the links are at a port that may fill up.

    A *point* is (d of each link, lam of each site, s of each of the k), shape (m + n + k,).
    Rates are in units of ``unit_bps``: the least, over all sites, of what one can receive or send.
    All of x passes each site in and out, so x <= 1, and no link is of use beyond 2.
    """

    def __init__(self, overlay: Overlay) -> None:
        matrix_bps = overlay.goodput_matrix_bps()
        self._n = overlay.size
        self._source, self._target = np.nonzero(matrix_bps)
        self._m = len(self._source)
        goodput_bps = matrix_bps[self._source, self._target]
        ports: list[tuple[Port, _Ints]] = []  # with the links that share them
        for site in range(self._n):
            ports.append(((site, "uplink"), np.flatnonzero(self._source == site)))
            ports.append(((site, "downlink"), np.flatnonzero(self._target == site)))
        self.unit_bps = min(
            min(float(goodput_bps[edges].sum()), port_bps(overlay, port)) for port, edges in ports
        )
        self._capacity = np.minimum(goodput_bps / self.unit_bps, 2.0)
        rated = [(edges, port_bps(overlay, port) / self.unit_bps) for port, edges in ports]
        self._ports = [(edges, most) for edges, most in rated if most < self._capacity[edges].sum()]
        self._shared = np.zeros(self._m, dtype=bool)  # the k links
        for edges, _ in self._ports:
            self._shared[edges] = True
        self._s_column = self._m + self._n - 1 + np.cumsum(self._shared)  # of each of the k
        sites = range(self._n)
        ones = [(site,) for site in sites] + [(*sites[:site], *sites[site + 1 :]) for site in sites]
        self.rows: set[_Row] = {(up, some) for up in (False, True) for some in ones}

    def rate(self, point: _Floats) -> float:
        return float(self._parts(point)[1].sum())

    def idle(self) -> _Floats:
        """Return a feasible point of rate 0: each link slowed to fit its ports, then halved."""
        used = np.ones(self._m)
        for edges, most in self._ports:
            used[edges] = np.minimum(used[edges], most / self._capacity[edges].sum())
        used *= self._capacity
        unused = (self._capacity - used)[self._shared]
        return np.concatenate([used / 2, np.zeros(self._n), unused])

    def solve(self) -> _Floats:
        """Return a best point under the present rows."""
        from scipy.optimize import linprog  # here, because it takes most of a second to import
        from scipy.sparse import csr_array

        rows = [self._cut_terms(*row) for row in sorted(self.rows)] + self._port_terms()
        columns, values, limits = zip(*rows, strict=True)
        ends = np.cumsum([0, *map(len, columns)])
        k = int(self._shared.sum())
        shape = len(rows), self._m + self._n + k
        table = csr_array((np.concatenate(values), np.concatenate(columns), ends), shape=shape)
        gain = np.concatenate([np.zeros(self._m), np.ones(self._n), np.zeros(k)])
        most = [*self._capacity, *[np.inf] * self._n, *self._capacity[self._shared]]
        result = linprog(  # type: ignore[call-overload]  # the stubs know no sparse tables
            -gain, A_ub=table, b_ub=limits, bounds=[(0.0, top) for top in most], method="highs-ds"
        )
        assert result.status == 0, result.message  # bounded, and idle() is feasible
        return np.asarray(result.x)

    def _cut_terms(self, up: bool, some: tuple[int, ...]) -> _Terms:
        """Return X's row: d(into X) or (c - s - d)(out of X) >= lam(all but X) = x - lam(X)."""
        inside = np.zeros(self._n, dtype=bool)
        inside[list(some)] = True
        crossing = inside[self._source] != inside[self._target]
        edges = np.flatnonzero(crossing & (inside[self._source] == up))
        others = self._m + np.flatnonzero(~inside)
        unused = self._s_column[edges[self._shared[edges]]] if up else others[:0]
        columns = np.concatenate([edges, others, unused])
        values = np.ones(len(columns))
        values[: len(edges)] = 1.0 if up else -1.0
        return columns, values, float(self._capacity[edges].sum()) if up else 0.0

    def _port_terms(self) -> list[_Terms]:
        """Return the rows (c - s)(links of a port) <= its rate, and those of c - s - d = u >= 0."""
        rows: list[_Terms] = []
        for edges, most in self._ports:
            least = float(self._capacity[edges].sum()) - most
            rows.append((self._s_column[edges], np.full(len(edges), -1.0), -least))
        for edge in np.flatnonzero(self._shared):
            both = np.array([edge, self._s_column[edge]])
            rows.append((both, np.ones(2), float(self._capacity[edge])))
        return rows

    def _parts(self, point: _Floats) -> tuple[_Floats, _Floats, _Floats]:
        """Return a point's d, its lam, and u = c - s - d, shapes (m,), (n,) and (m,)."""
        d, lam, s = np.split(point, [self._m, self._m + self._n])
        u = self._capacity - d
        u[self._shared] -= s
        return d, lam, u

    def violated(self, point: _Floats) -> Iterator[_Row]:
        """Yield the rows that a point violates most, at most one for each way and site."""
        d, lam, u = self._parts(point)
        from scipy.sparse import csgraph, csr_array

        enough = _FLOW_UNITS * (1 - _TOLERANCE) - self._m / 2  # the flows' caps are rounded
        for up in (False, True):
            near, far = (self._target, self._source) if up else (self._source, self._target)
            capacity = np.concatenate([u if up else d, lam])
            units = np.rint(capacity * (_FLOW_UNITS / lam.sum())).clip(0, _FLOW_UNITS)
            tails = np.concatenate([near, np.full(self._n, self._n)])  # n is the super-root
            heads = np.concatenate([far, np.arange(self._n)])
            shape = self._n + 1, self._n + 1
            arcs = csr_array((units.astype(np.int32), (tails, heads)), shape=shape)
            for site in range(self._n):
                flow = csgraph.maximum_flow(arcs, self._n, site)
                if flow.flow_value < enough:
                    yield up, self._cut_off(arcs - flow.flow)

    def _cut_off(self, residual: csr_array) -> tuple[int, ...]:
        """Return the sites that the super-root no longer reaches."""
        from scipy.sparse import csgraph

        residual.eliminate_zeros()
        reached = csgraph.breadth_first_order(residual, self._n, return_predecessors=False)
        return tuple(sorted({*range(self._n)} - {*reached.tolist()}))
