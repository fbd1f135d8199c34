"""A local search for a forest, from several starts; ``_forest_moves`` has the steps.

1. **Start** from the sites in order of compute time, of distance to the server, and of the sum of
   both, cut at the widest gaps into few or many trees. The search keeps the best starts.
2. **Descend**: take the best move of a site while one helps. Then take the best merger, split or
   swap, and try moves again, until no change helps.
3. **Kick** the best forest: move the sites of some trees, and a few other sites, to random trees.
   Descend, and keep the result if it is better.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from anabranch._typed_toml import Table
from anabranch.plan._forest import Forest, grown
from anabranch.plan._forest_exact import best_partition
from anabranch.plan._forest_groups import Bools, GroupCosts
from anabranch.plan._forest_moves import Neighbourhood, parts_at_gaps
from anabranch.plan._forest_problem import ForestProblem

_EXACT_SITES = 10  # up to here the exact search is as fast
_STARTS = 4
_KICKS = 300
_KICKED_PAIRS = 1_200_000  # most kicks times pairs of sites; a descent takes as long as its pairs
_DISSOLVED = 10
_OTHERS = 8
_HELPS = 1e-9  # the part of the objective that a change must save; well above rounding


class LocalForest(Table, frozen=True, kw_only=True, tag_field="kind", tag="local"):
    """A local search from several starts; up to 10 sites, the exact search.

    Args:
        seed: of the kicks.
    """

    seed: int = 0

    def search(self, problem: ForestProblem) -> Forest:
        """Return the best forest found."""
        groups = GroupCosts(problem)
        if groups.size <= _EXACT_SITES:
            return grown(problem, groups, best_partition(problem, groups))
        return grown(problem, groups, local_optimum(problem, groups, self.seed))


def local_optimum(problem: ForestProblem, groups: GroupCosts, seed: int) -> Bools:
    """Return the groups of the best forest that the local search finds, as rows of places."""
    rng = np.random.default_rng(seed)
    starts = sorted(
        _starts(groups), key=lambda members: Neighbourhood(problem, groups, members).cost
    )
    best, members = min(
        (_descended(problem, groups, start) for start in starts[:_STARTS]),
        key=lambda found: found[0],
    )
    for _ in range(min(_KICKS, _KICKED_PAIRS // groups.size**2)):
        cost, found = _descended(problem, groups, _kicked(rng, members))
        if cost < best * (1 - _HELPS):
            best, members = cost, found
    return members


def _starts(groups: GroupCosts) -> Iterator[Bools]:
    """Yield different forests as rows of places."""
    seen = set()
    for key_s in groups.orders_s:
        order = np.argsort(key_s, kind="stable")
        trees = 1
        while trees <= groups.size:
            tree = np.zeros(groups.size, dtype=np.intp)
            for part in parts_at_gaps(order, key_s, trees - 1):
                tree[part] += 1
            members = np.arange(trees)[:, None] == tree
            if members.tobytes() not in seen:
                seen.add(members.tobytes())
                yield members
            trees = trees + 1 if trees < 8 else 3 * trees // 2


def _descended(problem: ForestProblem, groups: GroupCosts, members: Bools) -> tuple[float, Bools]:
    """Return objective and groups of a forest that no change improves."""
    while True:
        here = Neighbourhood(problem, groups, members)
        for change in (here.moved, here.merged, here.split, here.swapped):
            cost, members = change()
            if cost < here.cost * (1 - _HELPS):
                break
        else:
            return here.cost, here.members


def _kicked(rng: np.random.Generator, members: Bools) -> Bools:
    """Return a forest with up to four trees' sites, and some others, moved to random trees."""
    trees, n = members.shape
    chosen = rng.choice(trees, size=min(trees, int(rng.integers(1, 5))), replace=False)
    dissolved = rng.permutation(members[chosen].any(axis=0).nonzero()[0])[:_DISSOLVED]
    others = rng.choice(n, size=int(rng.integers(min(n, _OTHERS) + 1)), replace=False)
    sites = np.union1d(dissolved, others)
    found = np.vstack([members, np.zeros(n, dtype=bool)])
    found[:, sites] = np.arange(trees + 1)[:, None] == rng.integers(trees + 1, size=len(sites))
    return found[found.any(axis=1)]
