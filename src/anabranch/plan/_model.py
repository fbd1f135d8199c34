"""A plan as data: its trees, the share of the buffer that each carries, and the ways it flows."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import TypeVar, cast

from anabranch._typed_toml import BadInput
from anabranch.overlay import Link, Overlay

T = TypeVar("T")

NO_PARENT = -1
ABSENT = -2
"""In place of a parent: the site is no member of the tree."""

_Children = tuple[tuple[int, ...], ...]  # of each site, in order of index


class PlanError(BadInput):
    """A plan that cannot be used; the message names the tree and the site."""


@dataclass(frozen=True, slots=True)
class Tree:
    """One aggregation tree: partial sums climb ``up`` to the root, the mean descends ``down``.

    Args:
        root: the site that divides by the total weight.
        share: the part of the buffer this tree carries, in (0, 1].
        up: for each site, the site it sends its partial sum to; ``NO_PARENT`` at the root,
            ``ABSENT`` where the tree does not span the site.
        down: for each site, the site it gets the result from, likewise.

    The two ways may differ: on asymmetric links the fastest way in is not the fastest way out.

    Raises:
        PlanError: a share outside (0, 1], a way that does not lead every site to the root.
    """

    root: int
    share: float
    up: tuple[int, ...]
    down: tuple[int, ...]

    def __post_init__(self) -> None:
        if not (0 < self.share <= 1 + 1e-9 and math.isfinite(self.share)):
            raise PlanError(f"tree at {self.root} has share {self.share:g}, outside (0, 1]")
        for way, parents in (("up", self.up), ("down", self.down)):
            _check_reaches_root(self.root, parents, way)

    def children(self, parents: Sequence[int]) -> list[list[int]]:
        """Return each site's children under ``up`` or ``down``, in order of index."""
        found: list[list[int]] = [[] for _ in parents]
        for site, parent in enumerate(parents):
            if parent >= 0:
                found[parent].append(site)
        return found


def _check_reaches_root(root: int, parents: tuple[int, ...], way: str) -> None:
    n = len(parents)
    if not 0 <= root < n or parents[root] != NO_PARENT:
        raise PlanError(f"tree at {root}: the root must be a site with no parent on its way {way}")
    walk = [NO_PARENT] * n  # the walk that passed each site, by its start
    walk[root] = root
    for start in range(n):
        site = start
        while walk[site] == NO_PARENT and parents[start] != ABSENT:
            walk[site] = start
            above = parents[site]
            if not 0 <= above < n or parents[above] == ABSENT:
                raise PlanError(f"tree at {root}: site {site} has no way {way} to the root")
            if walk[above] == start and above != root:
                raise PlanError(f"tree at {root}: the way {way} runs in a circle through {above}")
            site = above


@dataclass(frozen=True)
class Group:
    """Workers whose updates are summed on their way to servers; not an ``anabranch.Group``.

    Args:
        workers: by index, in rising order; at least one.
        plan: the way of their updates and of the model; it spans the workers and the servers.

    Raises:
        PlanError: there is no worker, or the plan does not span one.
    """

    workers: tuple[int, ...]
    plan: Plan

    def __post_init__(self) -> None:
        outside = {*self.workers} - self.plan.members
        if not self.workers or outside or [*self.workers] != sorted({*self.workers}):
            raise PlanError(
                f"a group of workers {list(self.workers)}, whose plan spans "
                f"{sorted(self.plan.members)}: give workers of the plan, in rising order"
            )


@dataclass(frozen=True)
class Plan:
    """A version and the trees that one round's data follows.

    The first call computes `next_hops`, and each value under `cached`, and the plan keeps it: many
    sites may share one plan and ask again and again.

    Args:
        version: rises with every plan the scheduler issues; a round runs under exactly one.
        trees: at least one, shares summing to 1; several may have the same root.
        routes: for a tree edge ``(source, target)`` without a link, the whole path
            ``(source, relay, ..., target)``. Relays forward and never aggregate.
        label: for titles and logs, such as ``"fapt, 9 roots"``.
        auxiliary: for tree neighbours ``(source, target)``, further paths for a message beside
            :meth:`path`, fastest first: over relays, or the direct link where the primary path is
            a route. No round needs them, so neither `hops` nor `next_hops` counts them.
        groups: where servers hold the model and workers form groups, each at its own pace (HAAF).
            Each worker is in one group. The groups' plans have different versions. They deal the
            model's chunks to the same servers as this plan, which spans all sites. Empty where all
            workers follow this plan.

    Raises:
        PlanError: no tree, trees of different sizes, shares that do not sum to 1, a route that
            is no simple path over relays, an auxiliary path that is no simple path or is the
            primary or another auxiliary path of its pair, or groups that share a worker or a
            version, or have other roots or shares.
    """

    version: int
    trees: tuple[Tree, ...]
    routes: Mapping[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    label: str = ""
    auxiliary: Mapping[tuple[int, int], tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    groups: tuple[Group, ...] = ()

    def __post_init__(self) -> None:
        if not self.trees:
            raise PlanError("a plan needs at least one tree")
        if len({len(tree.up) for tree in self.trees} | {len(tree.down) for tree in self.trees}) > 1:
            raise PlanError("the trees of a plan must span the same sites")
        if len({_members(way) for tree in self.trees for way in (tree.up, tree.down)}) > 1:
            raise PlanError("the trees of a plan must span the same sites, both ways")
        total = math.fsum(tree.share for tree in self.trees)
        if not math.isclose(total, 1.0, abs_tol=1e-6):
            raise PlanError(f"the shares of a plan's trees sum to {total:g}, not 1")
        for (source, target), path in self.routes.items():
            if len(path) < 3 or path[0] != source or path[-1] != target:
                raise PlanError(
                    f"route {source}->{target} is {path}: it must start and end there and pass at "
                    "least one relay"
                )
            self._check_simple("route", path)
        for (source, target), paths in self.auxiliary.items():
            self._check_auxiliary(source, target, paths)
        self._check_groups()

    def _check_groups(self) -> None:
        workers = [worker for group in self.groups for worker in group.workers]
        if len({*workers}) < len(workers):
            raise PlanError(f"groups hold workers {sorted(workers)}; put each worker in one group")
        versions = {self.version, *(group.plan.version for group in self.groups)}
        if len(versions) <= len(self.groups):
            raise PlanError(f"the plans of groups need different versions, not {sorted(versions)}")
        dealt = {
            tuple((tree.root, tree.share) for tree in plan.trees)
            for plan in (self, *(group.plan for group in self.groups))
        }
        if len(dealt) > 1:
            raise PlanError(f"the plans of groups have other roots or shares: {sorted(dealt)}")

    def _check_simple(self, kind: str, path: tuple[int, ...]) -> None:
        if len(set(path)) != len(path):
            raise PlanError(f"{kind} {path[0]}->{path[-1]} passes a site twice: {path}")
        if min(path) < 0 or max(path) >= self.size:
            raise PlanError(f"{kind} {path[0]}->{path[-1]} leaves sites 0..{self.size - 1}: {path}")

    def _check_auxiliary(
        self, source: int, target: int, paths: tuple[tuple[int, ...], ...]
    ) -> None:
        name = f"auxiliary path {source}->{target}"
        if not paths:
            raise PlanError(f"{name} is an empty list; leave the pair out")
        for path in paths:
            if len(path) < 2 or path[0] != source or path[-1] != target:
                raise PlanError(f"{name} is {path}: it must start and end there")
            self._check_simple("auxiliary path", path)
            if path == self.path(source, target):
                raise PlanError(f"{name} is the primary path {path} again; leave it out")
        if len(set(paths)) != len(paths):
            raise PlanError(f"{name} is given twice: {paths}; keep one")

    @property
    def size(self) -> int:
        """Number of sites of the plan's overlay."""
        return len(self.trees[0].up)

    @cached_property
    def members(self) -> frozenset[int]:
        """The sites that the trees span; others may relay."""
        return _members(self.trees[0].up)

    @property
    def all_auxiliary(self) -> dict[tuple[int, int], tuple[tuple[int, ...], ...]]:
        """The auxiliary paths of this plan and of its groups'."""
        plans = (self, *(group.plan for group in self.groups))
        return {ends: paths for plan in plans for ends, paths in plan.auxiliary.items()}

    @property
    def auxiliary_relays(self) -> set[int]:
        """The sites that this plan's auxiliary paths pass between their ends."""
        return {site for paths in self.auxiliary.values() for path in paths for site in path[1:-1]}

    def path(self, source: int, target: int) -> tuple[int, ...]:
        """Return the sites a message between two tree neighbours passes, both ends included."""
        return self.routes.get((source, target), (source, target))

    def way_up(self, tree: int, site: int) -> tuple[int, ...]:
        """Return the sites that a message passes from a site up a tree to its root, ends included.

        Every hop is a link. Where the edges' routes pass a site twice, the way leaves out the loop
        between.

        >>> tree = Tree(0, 1.0, up=(-1, 0, 1), down=(-1, 0, 1))
        >>> Plan(1, (tree,), routes={(2, 1): (2, 0, 1)}).way_up(0, 2)
        (2, 0)
        """
        if ("up", tree, site) not in self._ways:
            self._ways["up", tree, site] = self._way(site, self.trees[tree].up, self.path)
        return self._ways["up", tree, site]

    def way_down(self, tree: int, site: int) -> tuple[int, ...]:
        """Return the sites that a message passes from a tree's root down to a site."""

        def upwards(site: int, parent: int) -> tuple[int, ...]:
            return self.path(parent, site)[::-1]

        if ("down", tree, site) not in self._ways:
            way = self._way(site, self.trees[tree].down, upwards)
            self._ways["down", tree, site] = way[::-1]
        return self._ways["down", tree, site]

    @cached_property
    def _ways(self) -> dict[tuple[str, int, int], tuple[int, ...]]:
        return {}  # a cache: a site needs its way for every chunk

    def cached(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value kept under this key, or make it and keep it."""
        if key not in self._worked_out:
            self._worked_out[key] = make()
        return cast(T, self._worked_out[key])

    @cached_property
    def _worked_out(self) -> dict[Hashable, object]:
        return {}

    def _way(
        self, site: int, parents: tuple[int, ...], path: Callable[[int, int], tuple[int, ...]]
    ) -> tuple[int, ...]:
        way = [site]
        while parents[site] >= 0:
            for passed in path(site, parents[site])[1:]:
                if passed in way:
                    del way[way.index(passed) :]
                way.append(passed)
            site = parents[site]
        return tuple(way)

    @cached_property
    def next_hops(self) -> _Children:
        """For each site, the next sites on its links, for relayed messages too, in index order."""
        found: list[set[int]] = [set() for _ in range(self.size)]
        for source, target in {hop for _, hop in self.hops()}:
            found[source].add(target)
        return tuple(tuple(sorted(targets)) for targets in found)

    def hops(self) -> Iterator[tuple[Tree, tuple[int, int]]]:
        """Yield every (tree, directed link) that a round uses, once for each use."""
        for tree in self.trees:
            for site, parent in enumerate(tree.up):
                if parent >= 0:
                    path = self.path(site, parent)
                    for hop in pairwise(path):
                        yield tree, hop
            for site, parent in enumerate(tree.down):
                if parent >= 0:
                    path = self.path(parent, site)
                    for hop in pairwise(path):
                        yield tree, hop

    def check_fits(self, overlay: Overlay) -> None:
        """Raise PlanError if this plan spans other sites or uses a link the overlay lacks.

        Auxiliary paths count: their links must exist too.
        """
        if self.size != overlay.size:
            raise PlanError(f"the plan spans {self.size} sites, the overlay {overlay.size}")
        for hop in dict.fromkeys(hop for _, hop in self.hops()):  # trees share many hops
            link_of(overlay, *hop)
        for group in self.groups:
            group.plan.check_fits(overlay)
        for paths in self.auxiliary.values():
            for path in paths:
                for hop in pairwise(path):
                    link_of(overlay, *hop)


def _members(parents: tuple[int, ...]) -> frozenset[int]:
    return frozenset(site for site, parent in enumerate(parents) if parent != ABSENT)


def link_of(overlay: Overlay, source: int, target: int) -> Link:
    """Return the link that a plan uses from one site to another.

    Raises:
        PlanError: the overlay has no such link.
    """
    link = overlay.link(source, target)
    if link is None:
        n = overlay.size
        names = [overlay.sites[i].name if 0 <= i < n else f"site {i}" for i in (source, target)]
        raise PlanError(
            f"the plan uses {names[0]}->{names[1]}, which has no link in overlay {overlay.name!r}; "
            "plan again for this overlay"
        )
    return link


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of elements of the flat buffer and the tree that carries it.

    Args:
        index: its place in the order of sending, from 0.
        tree: index into the plan's trees.
        start, stop: elements ``[start, stop)``.

    Attributes:
        elements: how many.
    """

    index: int
    tree: int
    start: int
    stop: int
    elements: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "elements", self.stop - self.start)


def deal(plan: Plan, elements: int, chunk_elements: int) -> tuple[Chunk, ...]:
    """Cut a buffer into chunks and deal them to the plan's trees by share.

    Each tree gets one run of ``share * elements`` elements, cut evenly into chunks of at most
    ``chunk_elements``. The order of sending takes the trees in turn, each in proportion to its
    share. The deal follows from the arguments alone, so every site derives the same deal without a
    message. (NetStorm, IV-C: chunks are allocated to roots in proportion to quality.)

    Args:
        plan: whose trees share the buffer.
        elements: length of the flat buffer, >= 0.
        chunk_elements: the most elements a chunk may have, >= 1.

    Returns:
        The chunks in order of sending; together they cover ``[0, elements)`` once.

    >>> plan = Plan(1, (Tree(0, 0.5, (-1, 0), (-1, 0)), Tree(1, 0.5, (1, -1), (1, -1))))
    >>> [(c.tree, c.start, c.stop) for c in deal(plan, 8, 2)]
    [(0, 0, 2), (1, 4, 6), (0, 2, 4), (1, 6, 8)]
    """
    return _deal(tuple(tree.share for tree in plan.trees), elements, chunk_elements)


def holders(plan: Plan, elements: int) -> tuple[int, ...]:
    """Return the roots that get a part of a buffer, in the order of the trees.

    A root may get no part of a small buffer.

    >>> plan = Plan(1, (Tree(0, 0.9, (-1, 0), (-1, 0)), Tree(1, 0.1, (1, -1), (1, -1))))
    >>> holders(plan, 2), holders(plan, 10)
    ((0,), (0, 1))
    """
    carried = {chunk.tree for chunk in deal(plan, elements, max(1, elements))}
    return tuple(dict.fromkeys(plan.trees[tree].root for tree in sorted(carried)))


@lru_cache(maxsize=8)  # every site of a simulation asks for the same deal in every round
def _deal(shares: tuple[float, ...], elements: int, chunk_elements: int) -> tuple[Chunk, ...]:
    if elements < 0 or chunk_elements < 1:
        raise ValueError(
            f"cannot deal {elements} elements in chunks of {chunk_elements}: give elements >= 0 "
            "and chunk_elements >= 1"
        )
    cuts: list[tuple[float, int, int, int]] = []  # (place in the order, tree, start, stop)
    sent_share, start = 0.0, 0
    for index, share in enumerate(shares):
        sent_share += share
        last = index == len(shares) - 1
        stop = elements if last else min(elements, round(elements * sent_share))
        count = -(-(stop - start) // chunk_elements)
        for k in range(count):
            low = start + (stop - start) * k // count
            high = start + (stop - start) * (k + 1) // count
            cuts.append(((k + 0.5) / count, index, low, high))
        start = stop
    cuts.sort()
    return tuple(Chunk(i, tree, low, high) for i, (_, tree, low, high) in enumerate(cuts))
