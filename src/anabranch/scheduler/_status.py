"""How a run stands, from what its scheduler knows. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from anabranch.log.status import (
    AwaitedSite,
    LinkStatus,
    Phase,
    SiteState,
    SiteStatus,
    Status,
)
from anabranch.net.addresses import OUTBOUND_ONLY, show
from anabranch.overlay import Overlay
from anabranch.plan import Plan, link_load
from anabranch.scheduler._tally import Tally
from anabranch.scheduler._waits import Stall, Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a scheduler knows at a moment. Sites are indices.

    Attributes:
        overlay: the run's.
        believed: what is believed of its links.
        plan: in force.
        running_s: since the run began; None before.
        is_over: whether it has ended.
        returning: sites that a scheduler which was started again awaits.
        addresses: where each site takes connections; no host where that is not known.
        here: sites that have joined and are not given up.
        newcomers: those of them that are no members yet.
        disconnected: those of them whose connection broke.
        through: by site, the site that pipes its connection, where one does.
        lost: sites that the run goes on without.
        left: sites that have left in good order.
        stalls: calls that some members have made and others have not.
        exchanges, exchanged_bytes, incomplete: see :class:`anabranch.log.status.Status`.
        tally: see there.
    """

    overlay: Overlay
    believed: Overlay
    plan: Plan
    running_s: float | None
    is_over: bool
    returning: Set[int]
    addresses: Sequence[tuple[str, int]]
    here: Set[int]
    newcomers: Set[int]
    disconnected: Set[int]
    through: Mapping[int, int]
    lost: Set[int]
    left: Set[int]
    stalls: Sequence[Stall]
    exchanges: int
    exchanged_bytes: int
    incomplete: int
    tally: Tally


def status_of(known: Known, waits: Iterable[Wait] = ()) -> Status:
    """Return how a run stands.

    Args:
        known: what the scheduler knows.
        waits: what :meth:`anabranch.scheduler._waits.Waits.look` makes of ``stalls``.
    """
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
        incomplete=known.incomplete,
        updates=tally.updates,
        losses=tally.losses,
        refused=tally.refused,
        sites=tuple(_site(known, site, state) for site, state in states.items()),
        waits=tuple(awaited_site(wait, names) for wait in waits),
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


def stalls(known: Known) -> list[Stall]:
    """Return each site that others wait for now: to begin, to come back, or to make a call."""
    if known.is_over:
        return []
    waiting = frozenset(known.here - known.disconnected - known.returning)
    if known.returning:
        what = "the scheduler's restart: it has not come back"
        return [Stall("restart", site, waiting, what) for site in sorted(known.returning)]
    if known.running_s is None:
        awaited = [*range(known.overlay.size)]
        what = "the beginning: it has not joined"
        return [Stall("begin", site, waiting, what) for site in awaited if site not in waiting]
    return list(known.stalls)


def awaited_site(wait: Wait, names: Sequence[str]) -> AwaitedSite:
    """Return a wait by the names of its sites."""
    return AwaitedSite(
        site=names[wait.stall.awaited],
        seconds=wait.seconds,
        at=wait.stall.what,
        waiting=tuple(names[site] for site in sorted(wait.stall.waiting)),
    )


def _site(known: Known, site: int, state: SiteState) -> SiteStatus:
    host, port = known.addresses[site]
    loss, step = known.tally.loss.get(site, (None, None))
    accuracy, after = known.tally.accuracy.get(site, (None, None))
    through = known.through.get(site) if state in ("member", "joining", "joined") else None
    return SiteStatus(
        name=known.overlay.sites[site].name,
        state=state,
        address=show((host, port)) if host and host != OUTBOUND_ONLY else None,
        through=None if through is None else known.overlay.sites[through].name,
        loss=loss if loss is not None and math.isfinite(loss) else None,
        loss_step=step,
        accuracy=accuracy,
        accuracy_step=after,
    )


def _links(known: Known, names: Sequence[str]) -> tuple[LinkStatus, ...]:
    used = link_load(known.plan).keys()
    return tuple(
        LinkStatus(
            source=names[link.source],
            target=names[link.target],
            rate_bps=None if link.basis == "assumed" else link.rate_bps,
            basis=link.basis,
            latency_s=link.latency_s or None,
            is_used=(link.source, link.target) in used,
        )
        for link in known.believed.links
        if (link.source, link.target) in used or link.basis == "measured"
    )
