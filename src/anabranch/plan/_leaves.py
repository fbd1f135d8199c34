"""Leaves: sites added below a plan's members, with no site below them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from anabranch.overlay import Link
from anabranch.plan._model import Plan


def with_leaves(plan: Plan, links: Iterable[Link], leaves: Collection[int]) -> Plan | None:
    """Return a plan whose trees span some further sites as leaves.

    Each leaf gets the trees' results from members that it has a link with, in proportion to the
    links' rates as far as the trees' shares allow. So all its links finish at about the same time.

    Args:
        plan: of the other sites.
        links: the links to choose from.
        leaves: the further sites.

    Returns:
        None where a leaf has no link from a member and back.

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
        shares = dict.fromkeys(near, 0.0)  # the part of the result that comes over each link
        for index in sorted(range(len(trees)), key=lambda index: -trees[index].share):
            tree = trees[index]
            # When each link would be free again. In a tie, the root: it has the result first.
            ends = ((shares[site] + tree.share) / near[site] for site in near)
            *_, parent = min(zip(ends, (site != tree.root for site in near), near, strict=True))
            shares[parent] += tree.share
            up, down = list(tree.up), list(tree.down)
            up[leaf] = down[leaf] = parent
            trees[index] = replace(tree, up=tuple(up), down=tuple(down))
    return replace(plan, trees=tuple(trees))
