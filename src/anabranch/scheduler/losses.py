"""What a group has lost for good or for now, and plans for what is left. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from anabranch import plan as plans
from anabranch.overlay import Overlay, OverlayError
from anabranch.plan import Packed, Plan, PlanError, remainder

Planner = Callable[[Overlay, int, Plan | None], Plan]
"""Plans for what is left: called with its overlay, the plan's version, and the plan before, None
where that was another network's."""

Paths = Mapping[tuple[int, int], tuple[tuple[int, ...], ...]]


def or_packed(planner: Planner, elements: int | None = None) -> Planner:
    """Return a planner that falls back to packed trees where another one's hub is lost.

    Args:
        planner: the other one.
        elements: of the buffer; None where that is not known.
    """

    def plan(overlay: Overlay, version: int, previous: Plan | None) -> Plan:
        try:
            return planner(overlay, version, previous)
        except (OverlayError, PlanError) as error:
            found = Packed().plan(overlay, version=version, elements=elements)
            return replace(found, label=f"{found.label}, since {error}")

    return plan


@dataclass(frozen=True, slots=True)
class Repairs:
    """How all-reduces go on without what is lost.

    Args:
        planner: plans for what is left.
        least_sites: with fewer than these the run ends.
        begin_with: how many sites it begins with; None for all. Others may join later.
        retries: whether an exchange is begun again among those left; else what has come of its
            result counts.
    """

    planner: Planner
    least_sites: int = 2
    begin_with: int | None = None
    retries: bool = False


@dataclass(frozen=True)
class Losses:
    """Sites and links of an overlay that a group goes on without.

    Args:
        lost: sites that take no part any more.
        cut: links that nothing crosses, as (source, target).
        relays: sites that have left, and without which others would not reach one another.
    """

    lost: frozenset[int] = frozenset()
    cut: frozenset[tuple[int, int]] = frozenset()
    relays: frozenset[int] = frozenset()

    def further(
        self,
        overlay: Overlay,
        sites: Collection[int] = (),
        links: Collection[tuple[int, int]] = (),
        departed: Collection[int] = (),
    ) -> Losses:
        """Return these losses and further ones, and what follows from them.

        Args:
            overlay: the whole network.
            sites: that are lost.
            links: that are cut.
            departed: sites that have left, and relay if they have to.

        Returns:
            Losses whose ``lost`` has the sites that the largest part does not reach any more, too.

        >>> from anabranch.overlay import Link, Site
        >>> links = [Link(a, b, 1e6) for a, b in [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)]]
        >>> chain = Overlay("chain", tuple(Site(name) for name in "abcd"), tuple(links))
        >>> sorted(Losses().further(chain, sites={1}).lost)
        [0, 1]
        >>> left = Losses().further(chain, departed={1})
        >>> sorted(left.lost), sorted(left.relays), sorted(left.members(4))
        ([], [1], [0, 2, 3])
        """
        everyone = frozenset(range(overlay.size))
        gone, cut = self.lost | {*sites}, self.cut | {*links}
        quiet = (self.relays | {*departed}) - gone
        members = everyone - gone - quiet
        if not members:
            return Losses(everyone, cut)
        reached = {*remainder(overlay, gone | quiet, cut).sites}
        if not members <= reached:
            reached = {*remainder(overlay, gone, cut).sites}
        return Losses(everyone - reached, cut, quiet & reached)

    def healed(self, links: Collection[tuple[int, int]]) -> Losses:
        """Return these losses without some links."""
        return replace(self, cut=self.cut - {*links})

    def returned(
        self, overlay: Overlay, sites: Collection[int], links: Collection[tuple[int, int]] = ()
    ) -> Losses:
        """Return these losses without some sites, as far as the others reach them.

        Args:
            overlay: the whole network.
            sites: that are there again.
            links: that are cut nevertheless.

        >>> from anabranch.overlay import Link, Site
        >>> links = [Link(a, b, 1e6) for a, b in [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)]]
        >>> chain = Overlay("chain", tuple(Site(name) for name in "abcd"), tuple(links))
        >>> without_c = Losses(lost=frozenset({0, 1, 2})).returned(chain, {0, 1})
        >>> sorted(without_c.lost), sorted(without_c.returned(chain, {0, 1, 2}).lost)
        ([0, 1, 2], [])
        """
        back = {*sites}
        cut = frozenset(ends for ends in self.cut if not back & {*ends}) | {*links}
        everyone = frozenset(range(overlay.size))
        here = everyone - self.lost
        reached = {*remainder(overlay, self.lost - back, cut, around=min(here)).sites}
        return Losses(everyone - reached, cut, self.relays & reached).further(overlay)

    def members(self, size: int) -> frozenset[int]:
        """Return the sites that exchange, of an overlay of this size."""
        return frozenset(range(size)) - self.lost - self.relays

    def plan(
        self, overlay: Overlay, version: int, planner: Planner, previous: Plan | None = None
    ) -> Plan:
        """Return a plan among the members.

        Args:
            overlay: the whole network, as it is believed to be.
            version: the plan's.
            planner: see :data:`Planner`.
            previous: a plan of the same losses; None where there is none.
        """
        rest = remainder(overlay, self.lost, self.cut)
        before = None if previous is None else rest.narrow(previous)
        plan = rest.widen(planner(rest.overlay, version, before))
        return plans.restrict(plan, self.members(overlay.size)) if self.relays else plan

    def plan_beside(
        self, overlay: Overlay, version: int, planner: Planner, followers: Collection[int]
    ) -> Plan | None:
        """Return a plan among the members but some, to which these are added as leaves.

        Args:
            overlay, version, planner: as for ``plan``.
            followers: members that nothing is to wait for, as they contribute nothing.

        Returns:
            None where the others reach one another, or these, over them alone.
        """
        rest = self.further(overlay, sites=followers)
        followers = self.members(overlay.size) & {*followers}
        if rest.members(overlay.size) != self.members(overlay.size) - followers:
            return None
        if not rest.members(overlay.size):
            return None
        usable = remainder(overlay, self.lost | self.relays, self.cut)
        links = [
            replace(link, source=usable.sites[link.source], target=usable.sites[link.target])
            for link in usable.overlay
        ]
        return plans.with_leaves(rest.plan(overlay, version, planner), links, followers)

    def search(
        self, overlay: Overlay, plan: Plan, search: Callable[[Overlay, Plan], Paths]
    ) -> Paths:
        """Return a plan's auxiliary paths over what is left, as ``search`` finds them."""
        rest = remainder(overlay, self.lost, self.cut)
        narrow = rest.narrow(replace(plan, auxiliary={}))
        return rest.widen(replace(narrow, auxiliary=search(rest.overlay, narrow))).auxiliary
