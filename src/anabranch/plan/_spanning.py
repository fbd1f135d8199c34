"""The maximum-throughput spanning tree, which TSEngine, the paper's MST baseline, builds.

The tree grows from its root, each time by the fastest link between the tree and a site outside
(Prim's rule). The way up uses links *into* the tree, the way down links *out of* it. By the cut
argument, no tree at that root has a faster slowest link, on either way. Where both directions of
every link are equally fast, this is the maximum spanning tree.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from anabranch._typed_toml import Table
from anabranch.overlay import Overlay
from anabranch.plan._fapt import check_site, fastest_paths
from anabranch.plan._model import NO_PARENT, Plan, Tree
from anabranch.plan._planner import CHUNK_ELEMENTS, named_or_kept


class Spanning(Table, frozen=True, kw_only=True, tag_field="kind", tag="mst"):
    """The maximum-throughput spanning tree.

    Args:
        root: a site's name; None for the best.
    """

    root: str | None = None
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
        root = named_or_kept(overlay, self.root, previous)
        return spanning(overlay, root=root, version=version)


def spanning(overlay: Overlay, *, root: int | None = None, version: int = 1) -> Plan:
    """Plan the maximum-throughput spanning tree.

    Args:
        overlay: n sites.
        root: a site index; None for the site of highest FAPT quality, the root of a single-root
            FAPT, so that the two trees compare.
        version: the plan's.

    Returns:
        One tree; all its edges are links. Among equally fast links it grows by the link to the
        lowest site outside, from the parent that joined the tree first.

    Raises:
        PlanError: ``root`` is no site.
    """
    root = fastest_paths(overlay).best_root if root is None else check_site(overlay, root, "root")
    goodput_bps = overlay.goodput_matrix_bps()
    up, down = _grow(goodput_bps.T, root), _grow(goodput_bps, root)
    label = f"spanning tree at {overlay.sites[root].name}"
    return Plan(version, (Tree(root, 1.0, up, down),), label=label)


def _grow(goodput_bps: npt.NDArray[np.float64], root: int) -> tuple[int, ...]:
    """Return each site's parent; ``goodput_bps[inside, outside]`` is the joining link's goodput."""
    parent = np.full(len(goodput_bps), root)
    fastest_bps = goodput_bps[root].copy()  # from the tree to each site; -1 for a site in the tree
    fastest_bps[root] = -1.0
    inside = np.zeros(len(goodput_bps), dtype=bool)
    inside[root] = True
    for _ in range(len(goodput_bps) - 1):
        site = int(np.argmax(fastest_bps))
        inside[site] = True
        fastest_bps[site] = -1.0
        faster = (goodput_bps[site] > fastest_bps) & ~inside
        parent[faster] = site
        fastest_bps[faster] = goodput_bps[site][faster]
    parent[root] = NO_PARENT
    return tuple(parent.tolist())
