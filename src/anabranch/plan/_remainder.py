"""The remainder of a network without lost sites and links, and plans for it. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from anabranch.overlay import Overlay
from anabranch.plan._model import ABSENT, Group, Plan, Tree


@dataclass(frozen=True)
class Remainder:
    """The sites of an overlay that still reach one another, as a smaller overlay.

    Args:
        sites: their indices in the whole overlay, rising. A site's place in this tuple is its index
            in ``overlay``.
        size: number of sites in the whole overlay.
        overlay: those sites, and the links left among them.
    """

    sites: tuple[int, ...]
    size: int
    overlay: Overlay

    def widen(self, plan: Plan) -> Plan:
        """Return a plan for the remainder as one for the whole; the other sites are no members.

        >>> from anabranch.overlay import Link, Site
        >>> links = tuple(Link(a, b, 1e6) for a in range(3) for b in range(3) if a != b)
        >>> rest = remainder(Overlay("three", (Site("a"), Site("b"), Site("c")), links), {1})
        >>> rest.widen(Plan(2, (Tree(0, 1.0, (-1, 0), (-1, 0)),))).trees[0].up
        (-1, -2, 0)
        """
        return Plan(
            plan.version,
            tuple(
                Tree(
                    self.sites[tree.root],
                    tree.share,
                    self._widen_parents(tree.up),
                    self._widen_parents(tree.down),
                )
                for tree in plan.trees
            ),
            {self._ends(ends): self._path(path) for ends, path in plan.routes.items()},
            plan.label,
            {
                self._ends(ends): tuple(self._path(path) for path in paths)
                for ends, paths in plan.auxiliary.items()
            },
            tuple(
                Group(self._path(group.workers), self.widen(group.plan)) for group in plan.groups
            ),
        )

    def narrow(self, plan: Plan) -> Plan:
        """Return a plan for the whole, whose members are these sites, as one for the remainder."""
        place = {site: index for index, site in enumerate(self.sites)}

        def parents(wide: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(place.get(wide[site], wide[site]) for site in self.sites)

        def path(wide: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(place[site] for site in wide)

        return Plan(
            plan.version,
            tuple(
                Tree(place[tree.root], tree.share, parents(tree.up), parents(tree.down))
                for tree in plan.trees
            ),
            {(place[a], place[b]): path(way) for (a, b), way in plan.routes.items()},
            plan.label,
            {
                (place[a], place[b]): tuple(path(way) for way in ways)
                for (a, b), ways in plan.auxiliary.items()
            },
            tuple(Group(path(group.workers), self.narrow(group.plan)) for group in plan.groups),
        )

    def _widen_parents(self, parents: tuple[int, ...]) -> tuple[int, ...]:
        wide = [ABSENT] * self.size
        for site, parent in zip(self.sites, parents, strict=True):
            wide[site] = self.sites[parent] if parent >= 0 else parent
        return tuple(wide)

    def _path(self, path: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self.sites[site] for site in path)

    def _ends(self, ends: tuple[int, int]) -> tuple[int, int]:
        return self.sites[ends[0]], self.sites[ends[1]]


def remainder(
    overlay: Overlay,
    lost: Collection[int],
    cut: Collection[tuple[int, int]] = (),
    around: int | None = None,
) -> Remainder:
    """Return the largest part of a network whose sites still reach one another, both ways.

    Args:
        overlay: the whole.
        lost: sites.
        cut: lost links, as (source, target).
        around: a site that is not lost: return the part that holds it, whatever its size.

    Of parts of equal size, the one with the lowest index is returned. At least one site must be
    left.
    """
    links = [
        link
        for link in overlay
        if not {link.source, link.target} & {*lost} and (link.source, link.target) not in cut
    ]
    targets: list[list[int]] = [[] for _ in range(overlay.size)]
    sources: list[list[int]] = [[] for _ in range(overlay.size)]
    for link in links:
        targets[link.source].append(link.target)
        sources[link.target].append(link.source)
    best: set[int] = set()
    waiting = {site for site in range(overlay.size) if site not in lost}
    if around is not None:
        waiting = {around}
    while waiting:
        first = min(waiting)
        part = _reached(first, targets) & _reached(first, sources)
        waiting -= part
        if len(part) > len(best):
            best = part
    sites = tuple(sorted(best))
    place = {site: index for index, site in enumerate(sites)}
    kept = tuple(
        replace(link, source=place[link.source], target=place[link.target])
        for link in links
        if link.source in place and link.target in place
    )
    rest = Overlay(overlay.name, tuple(overlay.sites[site] for site in sites), kept)
    return Remainder(sites, overlay.size, rest)


def _reached(first: int, next_of: list[list[int]]) -> set[int]:
    reached, waiting = {first}, [first]
    while waiting:
        for site in next_of[waiting.pop()]:
            if site not in reached:
                reached.add(site)
                waiting.append(site)
    return reached
