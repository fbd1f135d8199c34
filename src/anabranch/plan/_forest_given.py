"""A forest whose groups are known."""

from __future__ import annotations

from collections.abc import Collection

from anabranch._typed_toml import Table
from anabranch.plan._forest import Forest, forest
from anabranch.plan._forest_problem import ForestProblem


class GivenForest(Table, frozen=True, kw_only=True, tag_field="kind", tag="given"):
    """Given groups; Algorithm 2 chooses each group's tree.

    Args:
        groups: names of sites; each site that trains is in exactly one group.
    """

    groups: tuple[tuple[str, ...], ...]

    def among(self, names: Collection[str]) -> GivenForest:
        """Return these groups restricted to the named sites; groups left empty are dropped."""
        left = (tuple(name for name in group if name in names) for group in self.groups)
        return GivenForest(groups=tuple(group for group in left if group))

    def search(self, problem: ForestProblem) -> Forest:
        """Return the forest of these groups.

        Raises:
            OverlayError: a name is not a site's.
            PlanError: an empty group, or a site that is in none, in several, or does not train.
        """
        index = problem.overlay.index
        return forest(problem, [[index(name) for name in group] for group in self.groups])
