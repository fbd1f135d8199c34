"""The paper's delay of a tree: the slowest path sum (NetStorm, eq. 1-3 and Theorem 1).

A site sends its sum when the last of its children's sums has come, so a subtree takes

    w(T_v) = max over children c of ( w(T_c) + w_trans(c, v) ),

which unrolls to the largest sum of transfer delays along any path from a leaf. The maximum contains
the waiting ("blockage") of eq. 1. ``w_trans`` is 1 / goodput, seconds per bit, in the direction
that the data flows: child to parent on the way up, parent to child on the way down. An edge over
relays costs the sum of its hops, since relays store and forward.

Delays per bit describe a buffer sent whole. :mod:`anabranch.plan._predict` describes chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from anabranch.overlay import Overlay
from anabranch.plan._model import NO_PARENT, Plan, Tree, link_of


def up_delays_s_per_bit(plan: Plan, tree: Tree, overlay: Overlay) -> tuple[float, ...]:
    """Return, for each site, how long its subtree takes to gather the sum at the site.

    Args:
        plan: for the relay routes.
        tree: one of the plan's trees.
        overlay: for the goodputs.

    Returns:
        Seconds per bit, one for each site: 0 at a leaf, the whole tree's delay at the root.

    Raises:
        PlanError: an edge or a route uses a link that the overlay lacks.
    """
    return subtree_delays(
        tree, tree.up, lambda child, parent: path_delay_s_per_bit(plan, overlay, child, parent)
    )


def down_delays_s_per_bit(plan: Plan, tree: Tree, overlay: Overlay) -> tuple[float, ...]:
    """Return, for each site, how long a result takes from the site to all of its subtree.

    Arguments, result and errors are those of :func:`up_delays_s_per_bit`.
    """
    return subtree_delays(
        tree, tree.down, lambda child, parent: path_delay_s_per_bit(plan, overlay, parent, child)
    )


def path_delay_s_per_bit(plan: Plan, overlay: Overlay, source: int, target: int) -> float:
    """Return the transfer delay between two tree neighbours, seconds per bit: its hops' sum.

    Raises:
        PlanError: a hop has no link.
    """
    hops = pairwise(plan.path(source, target))
    return sum(1.0 / link_of(overlay, *hop).goodput_bps for hop in hops)


def subtree_delays(
    tree: Tree, parents: Sequence[int], edge_delay: Callable[[int, int], float]
) -> tuple[float, ...]:
    """Return, for each site, the largest sum of edge delays between it and a leaf below it.

    Args:
        tree: whose root the walk starts from.
        parents: the tree's ``up`` or ``down``.
        edge_delay: called with (child, parent) once for each edge, in any unit.
    """
    delays = [0.0] * len(parents)
    for child in reversed(root_first(tree, parents)):
        parent = parents[child]
        if parent != NO_PARENT:
            delays[parent] = max(delays[parent], delays[child] + edge_delay(child, parent))
    return tuple(delays)


def root_first(tree: Tree, parents: Sequence[int]) -> list[int]:
    """Return the sites of a tree, every parent ahead of its children."""
    children = tree.children(parents)
    order = [tree.root]
    for site in order:  # the loop extends it
        order.extend(children[site])
    return order
