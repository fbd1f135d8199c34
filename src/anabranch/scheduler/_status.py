"""Makes a run's status from a snapshot of its scheduler's state. Pure."""

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
class Snapshot:
    """The state of a scheduler at a moment. Sites are indices.

    Attributes:
        overlay: the run's overlay.
        believed: the overlay as believed.
        plan: the plan in force.
        running_s: seconds since the run began; None before.
        is_over: whether the run has ended.
        returning: the sites that a restarted scheduler awaits.
        addresses: the address at which each site takes connections; no host before it has joined.
        here: the sites that have joined and are not given up.
        newcomers: those of ``here`` that are not members yet.
        disconnected: those of ``here`` whose connection broke.
        through: by site, the neighbour that carries its connection, if one does.
        lost: the sites that the run continues without.
        left: the sites that have left in good order.
        stalls: the calls that some members have made and others have not.
        exchanges, exchanged_bytes, incomplete: see :class:`anabranch.log.status.Status`.
        tally: counts of events.
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


def status_of(snapshot: Snapshot, waits: Iterable[Wait] = ()) -> Status:
    """Return a run's status.

    Args:
        snapshot: the snapshot of the scheduler.
        waits: what :meth:`anabranch.scheduler._waits.Waits.look` returns for its stalls.
    """
    names = snapshot.overlay.names
    states = {site: _state(snapshot, site) for site in range(snapshot.overlay.size)}
    tally = snapshot.tally
    return Status(
        overlay=snapshot.overlay.name,
        phase=_phase(snapshot),
        running_s=snapshot.running_s or 0.0,
        plan=snapshot.plan.label,
        plan_version=snapshot.plan.version,
        replans=tally.replans,
        exchanges=snapshot.exchanges,
        exchanged_bytes=snapshot.exchanged_bytes,
        incomplete=snapshot.incomplete,
        updates=tally.updates,
        losses=tally.losses,
        refused=tally.refused,
        sites=tuple(_site(snapshot, site, state) for site, state in states.items()),
        waits=tuple(awaited_site(wait, names) for wait in waits),
        links=_links(snapshot, names),
    )


def _phase(snapshot: Snapshot) -> Phase:
    if snapshot.is_over:
        return "over"
    if snapshot.returning:
        return "resuming"
    return "waiting" if snapshot.running_s is None else "running"


def _state(snapshot: Snapshot, site: int) -> SiteState:
    if site in snapshot.left:
        return "left"
    if site in snapshot.newcomers:
        return "joining"
    if site in snapshot.disconnected:
        return "disconnected"
    if site in snapshot.lost:
        return "lost" if snapshot.addresses[site][0] else "awaited"
    if site not in snapshot.here:
        return "awaited"
    return "joined" if snapshot.running_s is None else "member"


def stalls(snapshot: Snapshot) -> list[Stall]:
    """Return the sites that others wait for now: to begin, to come back, or to make a call."""
    if snapshot.is_over:
        return []
    waiting = frozenset(snapshot.here - snapshot.disconnected - snapshot.returning)
    if snapshot.returning:
        what = "the scheduler's restart: it has not come back"
        return [Stall("restart", site, waiting, what) for site in sorted(snapshot.returning)]
    if snapshot.running_s is None:
        awaited = [*range(snapshot.overlay.size)]
        what = "the beginning: it has not joined"
        return [Stall("begin", site, waiting, what) for site in awaited if site not in waiting]
    return list(snapshot.stalls)


def awaited_site(wait: Wait, names: Sequence[str]) -> AwaitedSite:
    """Return a wait with the names of its sites."""
    return AwaitedSite(
        site=names[wait.stall.awaited],
        seconds=wait.seconds,
        at=wait.stall.what,
        waiting=tuple(names[site] for site in sorted(wait.stall.waiting)),
    )


def _site(snapshot: Snapshot, site: int, state: SiteState) -> SiteStatus:
    host, port = snapshot.addresses[site]
    loss, step = snapshot.tally.loss.get(site, (None, None))
    accuracy, after = snapshot.tally.accuracy.get(site, (None, None))
    through = snapshot.through.get(site) if state in ("member", "joining", "joined") else None
    return SiteStatus(
        name=snapshot.overlay.sites[site].name,
        state=state,
        address=show((host, port)) if host and host != OUTBOUND_ONLY else None,
        through=None if through is None else snapshot.overlay.sites[through].name,
        loss=loss if loss is not None and math.isfinite(loss) else None,
        loss_step=step,
        accuracy=accuracy,
        accuracy_step=after,
    )


def _links(snapshot: Snapshot, names: Sequence[str]) -> tuple[LinkStatus, ...]:
    used = link_load(snapshot.plan).keys()
    return tuple(
        LinkStatus(
            source=names[link.source],
            target=names[link.target],
            rate_bps=None if link.basis == "assumed" else link.rate_bps,
            basis=link.basis,
            latency_s=link.latency_s or None,
            is_used=(link.source, link.target) in used,
        )
        for link in snapshot.believed.links
        if (link.source, link.target) in used or link.basis == "measured"
    )
