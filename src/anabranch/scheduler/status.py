"""How a run stands, from what its scheduler knows. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass

from anabranch.net.addresses import OUTBOUND_ONLY, show
from anabranch.overlay import Overlay
from anabranch.plan import Plan, link_load
from anabranch.record.status import LinkStatus, Phase, SiteState, SiteStatus, Status
from anabranch.scheduler.tally import Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a scheduler knows at a moment. Sites are indices.

    Attributes:
        overlay: the run's.
        believed: what is believed of its links.
        measured: links that were measured, as (source, target).
        plan: in force.
        running_s: since the run began; None before.
        is_over: whether it has ended.
        returning: sites that a scheduler which was started again awaits.
        addresses: where each site takes connections; no host where that is not known.
        here: sites that have joined and are not given up.
        newcomers: those of them that are no members yet.
        disconnected: those of them whose connection broke.
        lost: sites that the run goes on without.
        left: sites that have left in good order.
        calls: how many calls each member of all sites' channel has made.
        exchanges, exchanged_bytes: see :class:`anabranch.record.status.Status`.
        tally: see there.
    """

    overlay: Overlay
    believed: Overlay
    measured: Collection[tuple[int, int]]
    plan: Plan
    running_s: float | None
    is_over: bool
    returning: Set[int]
    addresses: Sequence[tuple[str, int]]
    here: Set[int]
    newcomers: Set[int]
    disconnected: Set[int]
    lost: Set[int]
    left: Set[int]
    calls: Mapping[int, int]
    exchanges: int
    exchanged_bytes: int
    tally: Tally


def status_of(known: Known) -> Status:
    """Return how a run stands."""
    names = [site.name for site in known.overlay.sites]
    states = {site: _state(known, site) for site in range(known.overlay.size)}
    tally = known.tally
    return Status(
        overlay=known.overlay.name,
        phase=_phase(known),
        running_s=known.running_s or 0.0,
        plan=known.plan.label,
        plan_version=known.plan.version,
        replans=tally.replans,
        exchanges=known.exchanges,
        exchanged_bytes=known.exchanged_bytes,
        updates=tally.updates,
        losses=tally.losses,
        refused=tally.refused,
        sites=tuple(_site(known, site, state) for site, state in states.items()),
        waits_for=tuple(names[site] for site in _awaited(known, states)),
        links=_links(known, names),
    )


def _phase(known: Known) -> Phase:
    if known.is_over:
        return "over"
    if known.returning:
        return "resuming"
    return "waiting" if known.running_s is None else "running"


def _state(known: Known, site: int) -> SiteState:
    if site in known.left:
        return "left"
    if site in known.newcomers:
        return "joining"
    if site in known.disconnected:
        return "disconnected"
    if site in known.lost:
        return "lost" if known.addresses[site][0] else "awaited"
    if site not in known.here:
        return "awaited"
    return "joined" if known.running_s is None else "member"


def _awaited(known: Known, states: Mapping[int, SiteState]) -> list[int]:
    """Return whom the others wait for."""
    if known.is_over:
        return []
    if known.returning:
        return sorted(known.returning)
    if known.running_s is None:
        return [site for site, state in states.items() if state in ("awaited", "disconnected")]
    latest = max(known.calls.values(), default=0)
    return sorted(site for site, calls in known.calls.items() if calls < latest)


def _site(known: Known, site: int, state: SiteState) -> SiteStatus:
    host, port = known.addresses[site]
    loss, step = known.tally.loss.get(site, (None, None))
    return SiteStatus(
        name=known.overlay.sites[site].name,
        state=state,
        address=show((host, port)) if host and host != OUTBOUND_ONLY else None,
        loss=loss if loss is not None and math.isfinite(loss) else None,
        loss_step=step,
    )


def _links(known: Known, names: Sequence[str]) -> tuple[LinkStatus, ...]:
    used, measured = link_load(known.plan).keys(), {*known.measured}
    return tuple(
        LinkStatus(
            source=names[link.source],
            target=names[link.target],
            rate_bps=link.rate_bps,
            latency_s=link.latency_s,
            is_measured=(link.source, link.target) in measured,
            is_used=(link.source, link.target) in used,
        )
        for link in known.believed.links
        if (link.source, link.target) in used or (link.source, link.target) in measured
    )
