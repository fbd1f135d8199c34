"""Fastest aggregation path trees (NetStorm, Section IV, Algorithms 1 and 2).

The tree of least delay for a given root is the union of the fastest paths between the root and
every other site (eq. 2 and 3): a shortest-path tree under ``w_trans = 1 / goodput``. Where links
are asymmetric there are two such trees for each root, one of fastest paths *to* it for the way up
and one of fastest paths *from* it for the way down.

A root's quality is 1 / delay (IV-A). The paper has undirected links, and its delay w is of the way
up alone, from the leaves to the root (eq. 2). Where links are asymmetric there are two readings:
``leaf-to-root`` takes eq. 2 to the letter, and ``both-ways`` adds the way down, which a round needs
too. On symmetric links it is half of ``leaf-to-root`` for every root, so that order and shares are
the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from anabranch._typed_toml import Table
from anabranch.overlay import Overlay
from anabranch.plan._model import NO_PARENT, Plan, PlanError, Tree
from anabranch.plan._planner import CHUNK_ELEMENTS
from anabranch.plan._shortest import shortest_paths

Quality = Literal["both-ways", "leaf-to-root"]


class Fapt(Table, frozen=True, kw_only=True, tag_field="kind", tag="fapt"):
    """Fastest aggregation path trees, one for each root.

    Args:
        roots: how many of the best, or the names of the sites; None for every site.
        shares: how replanning shares the buffer among the roots: by their quality in the ``newest``
            plan, or always by their quality in the ``first`` plan. The paper computes quality
            while it chooses the roots, which it does once (Algorithm 1, lines 1 to 5).
        quality: which delay of a root's trees counts for its choice and its share, on links that
            differ by direction: ``both-ways`` up and down, or ``leaf-to-root`` up alone (eq. 2).
    """

    roots: int | tuple[str, ...] | None = None
    shares: Literal["newest", "first"] = "newest"
    quality: Quality = "both-ways"
    deep: ClassVar[bool] = False
    by_size: ClassVar[bool] = False

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
        # Two trees share a root where one's root left and the other's took its place.
        share: dict[int, float] = {}
        for tree in () if previous is None else previous.trees:
            share[tree.root] = share.get(tree.root, 0.0) + tree.share
        roots: int | list[int]
        if isinstance(self.roots, tuple):
            roots = [overlay.index(name) for name in self.roots]
        elif previous is not None:
            roots = [*share]
        else:
            roots = overlay.size if self.roots is None else self.roots
        plan = fapt(overlay, roots=roots, version=version, quality=self.quality)
        if self.shares == "newest" or share.keys() != {tree.root for tree in plan.trees}:
            return plan
        return replace(
            plan, trees=tuple(replace(tree, share=share[tree.root]) for tree in plan.trees)
        )


@dataclass(frozen=True, slots=True)
class FastestPaths:
    """All fastest paths of an overlay, both ways, as trees (n sites).

    Args:
        up_parent: shape (n, n); row r holds the tree of fastest paths to root r.
        down_parent: shape (n, n); row r holds the tree of fastest paths from root r.
        quality_bps: shape (n,), 1 / the delay that counts, bit/s; infinite in an overlay of one
            site.
    """

    up_parent: npt.NDArray[np.int32]
    down_parent: npt.NDArray[np.int32]
    quality_bps: npt.NDArray[np.float64]

    @property
    def best_root(self) -> int:
        """The root of highest quality, the lowest index among equals."""
        return int(np.argmax(self.quality_bps))


def fastest_paths(overlay: Overlay, quality: Quality = "both-ways") -> FastestPaths:
    """Find the fastest paths between all pairs of sites (Algorithm 1, line 7).

    Args:
        overlay: n sites.
        quality: see :class:`Fapt`.

    Of equal paths, see :func:`anabranch.plan._shortest.shortest_paths`.
    """
    if overlay.size == 1:
        alone = np.full((1, 1), NO_PARENT, dtype=np.int32)
        return FastestPaths(alone, alone, np.full(1, np.inf))
    goodput_bps = overlay.goodput_matrix_bps()
    fastest_bps = goodput_bps.max()
    with np.errstate(divide="ignore"):
        w_trans = fastest_bps / goodput_bps  # relative; inf where there is no link
    paths = shortest_paths(w_trans)
    delay = paths.up.max(axis=1)
    if quality == "both-ways":
        delay = delay + paths.down.max(axis=1)
    return FastestPaths(paths.up_parent, paths.down_parent, fastest_bps / delay)


def fapt(
    overlay: Overlay,
    *,
    roots: int | Sequence[int] = 1,
    version: int = 1,
    quality: Quality = "both-ways",
) -> Plan:
    """Plan one fastest aggregation path tree for each root (Algorithm 2).

    Args:
        overlay: n sites; traced links count at their rate of time 0, see :meth:`Overlay.at`.
        roots: how many roots to choose, by highest quality, ties to the lowest index; or the
            roots themselves. The paper chooses them in the first round only, because a new root
            would need its part of the model moved to it.
        version: the plan's.
        quality: see :class:`Fapt`.

    Returns:
        Trees in order of ``roots``, root i with share ``q_i / sum of q`` (IV-C). All edges are
        links, so there are no routes.

    Raises:
        PlanError: fewer than one or more than n roots, an unknown site, or a site given twice.
    """
    paths = fastest_paths(overlay, quality)
    chosen = _choose(overlay, paths, roots)
    of_chosen = paths.quality_bps[chosen]
    shares = of_chosen / of_chosen.sum() if overlay.size > 1 else np.ones(1)
    trees = tuple(
        Tree(root, share, tuple(up), tuple(down))
        for root, share, up, down in zip(
            chosen,
            shares.tolist(),
            paths.up_parent[chosen].tolist(),
            paths.down_parent[chosen].tolist(),
            strict=True,
        )
    )
    plural = "s" if len(trees) > 1 else ""
    return Plan(version, trees, label=f"fapt, {len(trees)} root{plural}")


def _choose(overlay: Overlay, paths: FastestPaths, roots: int | Sequence[int]) -> list[int]:
    n = overlay.size
    if isinstance(roots, int):
        if not 1 <= roots <= n:
            raise PlanError(f"cannot choose {roots} roots of {n} sites; ask for 1 to {n}")
        return [int(site) for site in np.argsort(-paths.quality_bps, kind="stable")[:roots]]
    chosen = [check_site(overlay, root, "root") for root in roots]
    if not chosen or len(set(chosen)) != len(chosen):
        raise PlanError(f"roots {chosen} must be one or more different sites")
    return chosen


def check_site(overlay: Overlay, site: int, role: str) -> int:
    """Return ``site``, or raise PlanError where the overlay has no site of that index."""
    if not 0 <= site < overlay.size:
        raise PlanError(f"{role} {site} is not a site; give an index in 0..{overlay.size - 1}")
    return site
