"""The status of a running run, as its scheduler reports it. Pure.

A scheduler makes a `Status` on request. `anabranch status`, the scheduler's lines of progress and
its metrics all show the same value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Literal, get_args

import msgspec

from anabranch.log import units
from anabranch.log.columns import Column, Table
from anabranch.overlay import Basis

Phase = Literal["waiting", "running", "resuming", "over"]
"""``waiting``: the scheduler awaits sites. ``running``: the run has begun. ``resuming``: a
restarted scheduler awaits the run's sites. ``over``: the run has ended."""

SiteState = Literal["awaited", "joined", "member", "joining", "disconnected", "lost", "left"]
"""``awaited``: not connected yet. ``joined``: connected, and the run has not begun. ``member``: a
member. ``joining``: connected, and not a member yet. ``disconnected``: its connection broke, and it
may reconnect. ``lost``: the run continues without it. ``left``: left in good order."""
SITE_STATES: tuple[SiteState, ...] = get_args(SiteState)


class SiteStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A site.

    Attributes:
        name: in the overlay.
        state: see `SiteState`.
        address: where it accepts connections, ``host:port``; None where that is unknown, or it
            accepts none.
        through: the name of the site that pipes its connection to the scheduler; None where the
            connection is direct.
        loss: the latest that it reported; None for none. With a ``loss_step``, None is a loss that
            is not finite, which JSON cannot hold.
        loss_step: the step, update or round of that loss.
        accuracy: the latest that it measured of its model; None for none.
        accuracy_step: the step or round of that accuracy.
    """

    name: str
    state: SiteState
    address: str | None = None
    through: str | None = None
    loss: float | None = None
    loss_step: int | None = None
    accuracy: float | None = None
    accuracy_step: int | None = None


class LinkStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A link that the plan in force uses, or that was measured.

    Attributes:
        source, target: names of sites.
        rate_bps: its given or measured rate; None where the rate is only assumed.
        basis: the source of the rate.
        latency_s: one way; None where neither an overlay nor a measurement gives it.
        is_used: whether the plan in force sends over it.
    """

    source: str
    target: str
    rate_bps: float | None
    basis: Basis
    latency_s: float | None
    is_used: bool


class AwaitedSite(msgspec.Struct, frozen=True, kw_only=True):
    """A site that others wait for.

    Attributes:
        site: its name.
        seconds: how long the others have waited.
        at: the call that it has not made, in words.
        waiting: names of the sites that have made this call.
    """

    site: str
    seconds: float
    at: str
    waiting: tuple[str, ...] = ()


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """A run at a moment. Counts begin at 0 in a restarted scheduler.

    Attributes:
        overlay: its name.
        phase: see `Phase`.
        running_s: since the run began; 0 before.
        plan: the plan in force, in words.
        plan_version: its version, from 1.
        replans: plans issued after the first.
        exchanges: finished exchanges, of all sites and of subgroups: some member has the result.
        exchanged_bytes: of the buffers of those exchanges, once each, as they travel.
        incomplete: those exchanges whose results lack contributions of members.
        updates: updates that became part of a served model.
        losses: how many times a site was lost.
        refused: refused messages.
        sites: all of the overlay, in its order.
        waits: sites that the others wait for, the longest awaited first.
        links: see `LinkStatus`.
    """

    overlay: str
    phase: Phase
    running_s: float
    plan: str
    plan_version: int
    replans: int = 0
    exchanges: int = 0
    exchanged_bytes: int = 0
    incomplete: int = 0
    updates: int = 0
    losses: int = 0
    refused: int = 0
    sites: tuple[SiteStatus, ...] = ()
    waits: tuple[AwaitedSite, ...] = ()
    links: tuple[LinkStatus, ...] = ()

    @property
    def members(self) -> int:
        """How many sites are members, or will be once the run begins."""
        return sum(site.state in ("member", "joined") for site in self.sites)

    @property
    def waits_for(self) -> tuple[str, ...]:
        """Names of the sites that the others wait for."""
        return tuple(sorted({wait.site for wait in self.waits}))


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Status)


def dumps(status: Status) -> bytes:
    """Return a status as JSON; ``loads`` reads it."""
    return _encoder.encode(status)


def loads(data: bytes) -> Status:
    """Return the status of a text that ``dumps`` wrote.

    Raises:
        ValueError: the text is not one.
    """
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise ValueError(f"no status of a run: {error}") from None


def headline(status: Status) -> str:
    """Return a status in a sentence or two.

    >>> headline(Status(overlay="group", phase="waiting", running_s=0, plan="star",
    ...                 plan_version=1,
    ...                 waits=(AwaitedSite(site="tokyo", seconds=14, at="its first call"),)))
    'group is waiting; plan 1 (star); 0 exchanges; waits 14.0 s for tokyo at its first call'
    """
    since = f" for {units.seconds(status.running_s)}" if status.phase == "running" else ""
    parts = [
        f"{status.overlay} is {status.phase}{since}",
        f"plan {status.plan_version} ({status.plan})",
        _done(status),
    ]
    parts += [
        f"waits {units.seconds(wait.seconds)} for {wait.site} at {wait.at}" for wait in status.waits
    ]
    return "; ".join(parts)


def awaited(wait: AwaitedSite) -> str:
    """Return a wait as a sentence.

    >>> awaited(AwaitedSite(site="tokyo", seconds=14, at="call 7 (an exchange)",
    ...                     waiting=("paris", "austin")))
    'paris, austin have waited 14.0 s for tokyo at call 7 (an exchange)'
    """
    have = "has" if len(wait.waiting) == 1 else "have"
    waited = units.seconds(wait.seconds)
    return f"{', '.join(wait.waiting)} {have} waited {waited} for {wait.site} at {wait.at}"


def _done(status: Status) -> str:
    counts = [(status.updates, "update"), (status.exchanges, "exchange")]
    said = [units.count(number, noun) for number, noun in counts if number]
    size = f", {units.size(status.exchanged_bytes)}" if status.exchanged_bytes else ""
    lacking = f", {status.incomplete} without all contributions" if status.incomplete else ""
    return " and ".join(said or ["0 exchanges"]) + size + lacking


def progress(before: Status, now: Status, seconds: float) -> str | None:
    """Return the progress since an earlier status of the same run; None for no news.

    Args:
        before, now: the two statuses.
        seconds: between them, > 0.
    """
    exchanges, updates = now.exchanges - before.exchanges, now.updates - before.updates
    # While exchanges end, some site is always behind for a moment: that is no news.
    waits_for = () if exchanges or updates else now.waits_for
    is_news = exchanges or updates or waits_for != before.waits_for
    if not is_news or now.phase != "running":
        return None
    parts = [_done(now)]
    if updates:
        parts.append(f"{updates / seconds:.3g} updates/s")
    if exchanges:
        rate = units.size((now.exchanged_bytes - before.exchanged_bytes) / seconds)
        parts.append(f"{exchanges / seconds:.3g} exchanges/s, {rate}/s")
    parts.append(units.count(now.members, "member"))
    losses = [loss for site in now.sites if (loss := latest_loss(site)) is not None]
    if losses:
        parts.append(f"mean loss {fmean(losses):.4g}")
    if waits_for:
        parts.append(f"waits for {', '.join(waits_for)}")
    return "; ".join(parts)


def latest_loss(site: SiteStatus) -> float | None:
    """Return the last loss that a site reported, NaN for one that is not finite."""
    return math.nan if site.loss is None and site.loss_step is not None else site.loss


def _loss(site: SiteStatus) -> str:
    loss = latest_loss(site)
    return units.NONE if loss is None else f"{loss:.4g} at {site.loss_step}"


def _accuracy(site: SiteStatus) -> str:
    if site.accuracy is None:
        return units.NONE
    return f"{site.accuracy:.4g} at {site.accuracy_step}"


def _reached(site: SiteStatus) -> str:
    return units.NONE if site.through is None else f"through {site.through}"


_SITE_COLUMNS: Sequence[Column[SiteStatus]] = (
    Column("site", lambda site: site.name, brief=True, number=False),
    Column("state", lambda site: site.state, brief=True, number=False),
    Column("reached", _reached, brief=True, number=False),
    Column("address", lambda site: site.address or units.NONE, brief=True, number=False),
    Column("loss", _loss, brief=True),
    Column("accuracy", _accuracy, brief=True),
)


def _rate(link: LinkStatus) -> str:
    return units.NONE if link.rate_bps is None else units.rate(link.rate_bps)


_LINK_COLUMNS: Sequence[Column[LinkStatus]] = (
    Column("link", lambda link: f"{link.source}->{link.target}", brief=True, number=False),
    Column("rate", _rate, brief=True),
    Column("latency", lambda link: units.seconds(link.latency_s), brief=True),
    Column("rate is", lambda link: link.basis, brief=True, number=False),
    Column(
        "plan",
        lambda link: "sends over it" if link.is_used else units.NONE,
        brief=True,
        number=False,
    ),
)


def sites_table(status: Status) -> Table:
    """Return the table of a status's sites."""
    return Table.of(_SITE_COLUMNS, status.sites)


def links_table(status: Status) -> Table:
    """Return the table of a status's links."""
    return Table.of(_LINK_COLUMNS, status.links)
