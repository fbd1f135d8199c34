"""The star: one hub gathers from every site and answers every site (parameter server, MXNET)."""

from __future__ import annotations

from typing import ClassVar

from anabranch._typed_toml import Table
from anabranch.overlay import Overlay
from anabranch.plan._fapt import check_site
from anabranch.plan._load import rate_under_bps
from anabranch.plan._model import NO_PARENT, Plan, Tree
from anabranch.plan._planner import CHUNK_ELEMENTS, named_or_kept
from anabranch.plan._routes import hub_load, relay_routes


class Star(Table, frozen=True, kw_only=True, tag_field="kind", tag="star"):
    """Every site talks to one hub.

    Args:
        hub: a site's name; None for the best.
    """

    hub: str | None = None
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
        hub = named_or_kept(overlay, self.hub, previous)
        return star(overlay, hub=hub, version=version)


def star(overlay: Overlay, *, hub: int | None = None, version: int = 1) -> Plan:
    """Plan a star: each site talks to the hub over its link, or its shortest relay route.

    Relays forward every site's copy and do not add up, so a link near the hub carries the buffer
    once for each site behind it.

    Args:
        overlay: n sites.
        hub: a site index; None for the hub of the highest steady rate, ties to the lowest index.
        version: the plan's.

    Raises:
        PlanError: ``hub`` is no site.
    """
    if hub is not None:
        return _star(overlay, check_site(overlay, hub, "hub"), version)
    hubs = range(overlay.size)
    best = max(hubs, key=lambda site: rate_under_bps(hub_load(overlay, site), overlay))
    return _star(overlay, best, version)


def _star(overlay: Overlay, hub: int, version: int) -> Plan:
    others = [site for site in range(overlay.size) if site != hub]
    parents = tuple(NO_PARENT if site == hub else hub for site in range(overlay.size))
    routes = relay_routes(overlay, ((site, hub) for site in others))
    routes |= relay_routes(overlay, ((hub, site) for site in others))
    label = f"star at {overlay.sites[hub].name}"
    return Plan(version, (Tree(hub, 1.0, parents, parents),), routes, label)
