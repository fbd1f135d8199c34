"""One synchronisation cycle of an aggregation tree (HAAF, section 4, eq. 11 to 13).

The cycle begins when the server sends the parameters to the root. They pass down the tree. Each
site computes once it has them. It sends to its parent when it has computed and all its children's
sums have come:

    T_send(v) = max( t_v + T_start(v), max over children n of ( T_send(n) + d_trans(n -> v) ) ).

So a site waits for its children (blocked in synchronising) or for its own computation (blocked in
computing), whichever lasts longer. The period is ``T_send(root) + d_trans(root)``, with the
transfer from the root to the server. The latency is the time from the first site's sending to the
end of the period: the longest wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from anabranch.plan._delay import root_first
from anabranch.plan._forest_problem import ForestProblem
from anabranch.plan._model import NO_PARENT, Plan, PlanError, link_of


@dataclass(frozen=True, slots=True)
class Cycle:
    """The times of a cycle, in seconds since the server sent the parameters to the root.

    Args:
        start_s: for each site of the tree, by index, when it has the parameters (T_start).
        receive_s: for each site with children, when the last child's sum has come (T_recv).
        send_s: for each site, when it sends to its parent, or the root to the server (T_send).
        period_s: when the server has the tree's sum (d_k, eq. 12).
        latency_s: the time from the first site's sending until then (l_k, eq. 13).
    """

    start_s: Mapping[int, float]
    receive_s: Mapping[int, float]
    send_s: Mapping[int, float]
    period_s: float
    latency_s: float


def cycle(problem: ForestProblem, plan: Plan) -> Cycle:
    """Return the times of one cycle of a plan's only tree.

    Args:
        problem: network, server, compute times and size.
        plan: one tree over sites that train. Parameters follow its way down and gradients its way
            up. An edge takes the sum of its route's links. Root and server use the fastest way
            between them, unless the server is the tree's root.

    Raises:
        PlanError: several trees, a site in the tree that does not train, or a missing link.

    A root next to the server, and a slower site behind it; 1 s for each transfer:

    >>> from anabranch.overlay import Link, Overlay, Site
    >>> from anabranch.plan import Tree
    >>> links = [Link(*pair, rate_bps=8.0) for pair in ((0, 1), (1, 0), (1, 2), (2, 1))]
    >>> line = Overlay("line", (Site("server"), Site("a"), Site("b")), tuple(links))
    >>> problem = ForestProblem(line, server=0, compute_s={1: 1.0, 2: 4.0}, size_bytes=1.0)
    >>> times = cycle(problem, Plan(1, (Tree(1, 1.0, (-2, -1, 1), (-2, -1, 1)),)))
    >>> times.start_s[2], times.send_s[2], times.receive_s[1], times.period_s, times.latency_s
    (2.0, 6.0, 7.0, 8.0, 2.0)
    """
    if len(plan.trees) != 1:
        raise PlanError(f"the plan has {len(plan.trees)} trees; give a plan of one tree")
    (tree,) = plan.trees
    is_served = tree.root == problem.server and tree.root not in problem.compute_s
    if idle := plan.members - problem.compute_s.keys() - ({tree.root} if is_served else set()):
        raise PlanError(
            f"site {min(idle)} of the tree does not train; leave it out, or give its compute time"
        )

    def edge_s(source: int, target: int) -> float:
        hops = list(pairwise(plan.path(source, target)))
        for hop in hops:
            link_of(problem.overlay, *hop)
        return float(sum(problem.hop_s[hop] for hop in hops))

    start_s = {tree.root: float(problem.paths.down[problem.server, tree.root])}
    for site in root_first(tree, tree.down)[1:]:
        parent = tree.down[site]
        start_s[site] = start_s[parent] + edge_s(parent, site)
    receive_s: dict[int, float] = {}
    send_s: dict[int, float] = {}
    for site in reversed(root_first(tree, tree.up)[is_served:]):
        done_s = problem.compute_s[site] + start_s[site]
        send_s[site] = max(done_s, receive_s.get(site, done_s))
        parent = tree.up[site]
        if parent != NO_PARENT:
            came_s = send_s[site] + edge_s(site, parent)
            receive_s[parent] = max(came_s, receive_s.get(parent, came_s))
    if is_served:
        period_s = receive_s[tree.root]
    else:
        period_s = send_s[tree.root] + float(problem.paths.up[problem.server, tree.root])
    latency_s = period_s - min(send_s.values())
    return Cycle(start_s, receive_s, send_s, period_s, latency_s)
