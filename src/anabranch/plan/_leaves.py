"""Sites that only receive, beside a plan among others. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from anabranch.overlay import Link
from anabranch.plan._model import Plan


def with_leaves(plan: Plan, links: Iterable[Link], leaves: Collection[int]) -> Plan | None:
    """Return a plan whose trees span some further sites, below which there is none.

    Each gets the trees' results from members that it has a link with, as evenly as the links'
    rates allow: a leaf's links are full when all of the result has come.

    Args:
        plan: among others.
        links: that may be used.
        leaves: the further sites.

    Returns:
        None where one of them has no link from a member and back.

    >>> from anabranch.plan import Tree
    >>> ways = [(-1, 0, -2), (1, -1, -2)]
    >>> two = Plan(1, tuple(Tree(root, 0.5, way, way) for root, way in enumerate(ways)))
    >>> links = [Link(a, b, 1e6) for a, b in [(0, 2), (2, 0), (1, 2), (2, 1)]]
    >>> [tree.down for tree in with_leaves(two, links, {2}).trees]
    [(-1, 0, 0), (1, -1, 1)]
    """
    rates_bps = {(link.source, link.target): link.rate_bps for link in links}
    trees = list(plan.trees)
    for leaf in sorted(leaves):
        near = {
            source: rate_bps
            for (source, target), rate_bps in sorted(rates_bps.items())
            if target == leaf and source in plan.members and (leaf, source) in rates_bps
        }
        if not near:
            return None
        shares = dict.fromkeys(near, 0.0)  # of the result, that come over each
        for index in sorted(range(len(trees)), key=lambda index: -trees[index].share):
            tree = trees[index]
            # When its link would be free again; where that is alike, a root has the result first.
            ends = ((shares[site] + tree.share) / near[site] for site in near)
            *_, parent = min(zip(ends, (site != tree.root for site in near), near, strict=True))
            shares[parent] += tree.share
            up, down = list(tree.up), list(tree.down)
            up[leaf] = down[leaf] = parent
            trees[index] = replace(tree, up=tuple(up), down=tuple(down))
    return replace(plan, trees=tuple(trees))
