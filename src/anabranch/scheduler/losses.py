"""The sites and links that a run continues without, and plans for the rest. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from anabranch import plan as plans
from anabranch.overlay import Overlay, OverlayError
from anabranch.plan import Packed, Plan, PlanError, remainder

Planner = Callable[[Overlay, int, Plan | None], Plan]
"""Plans for the rest of a network. Called with the rest's overlay, the plan's version, and the plan
before. The latter is None if it was for another network."""

Paths = Mapping[tuple[int, int], tuple[tuple[int, ...], ...]]


def or_packed(planner: Planner, elements: int | None = None) -> Planner:
    """Return a planner that uses packed trees where another planner finds no plan.

    A planner with a fixed hub or root finds none once that site is lost. The plan's label says so.

    Args:
        planner: the other planner.
        elements: of the buffer; None if that is not known.
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
    """How all-reduces continue after a loss.

    Args:
        planner: plans for the rest of the network.
        least_sites: the run ends with fewer sites.
        begin_with: the number of sites to begin with; None for all. Others may join later.
        retries: whether an interrupted exchange is reduced again as a whole among the remaining
            sites; otherwise the elements of its result that some site holds count.
        returns_early: whether a site's call may return before every member holds the result. Then
            the grant of an exchange tells that it is the last, and not its settlement.
    """

    planner: Planner
    least_sites: int = 2
    begin_with: int | None = None
    retries: bool = False
    returns_early: bool = False


@dataclass(frozen=True)
class Losses:
    """Sites and links of an overlay that a run continues without.

    Args:
        lost: sites that are no members and relay nothing.
        cut: links that nothing crosses, as (source, target).
        relays: sites that have left, and without which members would not reach one another.
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
        """Return these losses with further ones, and with the sites out of reach because of them.

        Args:
            overlay: the whole network.
            sites: the lost sites.
            links: the cut links.
            departed: sites that have left, and relay if members need them to.

        Returns:
            The losses; ``lost`` includes the sites that the largest part does not reach.

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
            sites: that are back.
            links: that are still cut.

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
        """Return the members of an overlay with ``size`` sites."""
        return frozenset(range(size)) - self.lost - self.relays

    def plan(
        self, overlay: Overlay, version: int, planner: Planner, previous: Plan | None = None
    ) -> Plan:
        """Return a plan among the members.

        Args:
            overlay: the whole network, as believed.
            version: of the plan.
            planner: see :data:`Planner`.
            previous: a plan for the same losses; None if there is none.
        """
        rest = remainder(overlay, self.lost, self.cut)
        before = None if previous is None else rest.narrow(previous)
        plan = rest.widen(planner(rest.overlay, version, before))
        return plans.restrict(plan, self.members(overlay.size)) if self.relays else plan

    def plan_beside(
        self, overlay: Overlay, version: int, planner: Planner, followers: Collection[int]
    ) -> Plan | None:
        """Return a plan among the other members, with followers added as leaves.

        A leaf relays nothing, so no sum waits for a follower that is behind.

        Args:
            overlay, version, planner: as for ``plan``.
            followers: members that contribute nothing.

        Returns:
            None if members reach one another, or a follower, only over a follower.
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
        """Return a plan's auxiliary paths over the rest of the network, found by ``search``."""
        rest = remainder(overlay, self.lost, self.cut)
        narrow = rest.narrow(replace(plan, auxiliary={}))
        return rest.widen(replace(narrow, auxiliary=search(rest.overlay, narrow))).auxiliary
