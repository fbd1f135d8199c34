"""Fault scripts, as data: a scenario's ``[[fault]]`` entries, and the actions they become.

Pure. ``script`` resolves names and refuses what can never happen; whoever runs the scenario
carries the actions out, and keeps a `Factors` for those that overlap.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

from msgspec import Meta

from anabranch._typed_toml import Table
from anabranch.overlay import Overlay, OverlayError


class FaultError(ValueError):
    """A fault that cannot happen as scripted; the message names the entry, the key and the fix."""


# TOML has inf and nan; a bound keeps both out.
_FINITE = sys.float_info.max
_Moment = Annotated[float, Meta(ge=0, le=_FINITE)]
_Duration = Annotated[float, Meta(gt=0, le=_FINITE)]
_Round = Annotated[int, Meta(ge=1)]
_Slower = Annotated[float, Meta(gt=1, le=_FINITE)]
_Offset = Annotated[float, Meta(ge=-_FINITE, le=_FINITE)]
_Drift = Annotated[float, Meta(gt=-1, le=1)]


class _Triggered(Table, frozen=True, kw_only=True):
    """What every fault has: exactly one of these says when it happens.

    Args:
        at_s: seconds since the run began; or
        round: the moment when the first site asks for this round; the first is 1.
    """

    at_s: _Moment | None = None
    round: _Round | None = None


class KillFault(_Triggered, frozen=True, kw_only=True, tag_field="kind", tag="kill"):
    """A site's process dies.

    Args:
        site: its name.
        for_s: until it is started again; None for ever.
    """

    site: str
    for_s: _Duration | None = None


class PauseFault(_Triggered, frozen=True, kw_only=True, tag_field="kind", tag="pause"):
    """A site's process stands still, and then goes on.

    Args:
        site: its name.
        for_s: for how long.
    """

    site: str
    for_s: _Duration


class CutFault(_Triggered, frozen=True, kw_only=True, tag_field="kind", tag="cut"):
    """Links carry nothing. The control network is not one of them: who is cut off can say so.

    (``disconnect`` breaks that one.)

    Args:
        link: from which site to which, that direction only; or
        pair: two sites, both directions; or
        site: all links from and to it.
        for_s: for how long; None for ever.
    """

    link: tuple[str, str] | None = None
    pair: tuple[str, str] | None = None
    site: str | None = None
    for_s: _Duration | None = None


class DisconnectFault(_Triggered, frozen=True, kw_only=True, tag_field="kind", tag="disconnect"):
    """A site's connection to the scheduler breaks, and what is on its way with it.

    Args:
        site: its name.
        for_s: for how long it cannot be made again; 0, the default, for no time at all.
    """

    site: str
    for_s: _Moment = 0.0


class SlowFault(_Triggered, frozen=True, kw_only=True, tag_field="kind", tag="slow"):
    """A site computes slower, or links carry less.

    Args:
        site: whose computing; or
        link: from which site to which, that direction only; or
        pair: two sites, both directions.
        factor: how many times as long the same work or the same bytes take.
        for_s: for how long; None for ever.
    """

    site: str | None = None
    link: tuple[str, str] | None = None
    pair: tuple[str, str] | None = None
    factor: _Slower
    for_s: _Duration | None = None


class ClockFault(_Triggered, frozen=True, kw_only=True, tag_field="kind", tag="clock"):
    """A site's clock goes wrong; the time that things take does not change.

    Args:
        site: its name.
        offset_s: what the clock jumps by, seconds.
        drift: seconds it gains each second from then on, such as 5e-5; negative where it loses.
    """

    site: str
    offset_s: _Offset = 0.0
    drift: _Drift = 0.0


Fault = KillFault | PauseFault | CutFault | DisconnectFault | SlowFault | ClockFault


@dataclass(frozen=True, slots=True)
class Kill:
    """The site's process dies; it is started again after ``for_s`` seconds, None for never."""

    site: int
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """The site's process stands still for ``for_s`` seconds, then goes on."""

    site: int
    for_s: float


@dataclass(frozen=True, slots=True)
class Disconnect:
    """The site loses the scheduler, and cannot reach it for ``for_s`` seconds."""

    site: int
    for_s: float


@dataclass(frozen=True, slots=True)
class LinkFactor:
    """Multiply the rates of links.

    Args:
        links: (source, target) of each, as indices of sites.
        rate_factor: of each link's rate: 0 is cut, 0.25 takes four times as long.
        for_s: for how long; None for ever.
    """

    links: tuple[tuple[int, int], ...]
    rate_factor: float
    for_s: float | None


@dataclass(frozen=True, slots=True)
class ComputeFactor:
    """Multiply the time that a site's work takes.

    Args:
        site: its index.
        time_factor: 4 takes four times as long.
        for_s: for how long; None for ever.
    """

    site: int
    time_factor: float
    for_s: float | None


@dataclass(frozen=True, slots=True)
class ClockStep:
    """Add to what a site's clock is wrong by, and to what it drifts by.

    Args:
        site: its index.
        offset_s: seconds it jumps by.
        drift: seconds a second that it gains from now on, beside what it gained before.
    """

    site: int
    offset_s: float
    drift: float


Action = Kill | Pause | Disconnect | LinkFactor | ComputeFactor | ClockStep


@dataclass(frozen=True, slots=True)
class Scripted:
    """What happens, and when.

    Args:
        action: what to do.
        label: in words, for the log, such as ``cut dc1->dc2 for 30 s``.
        at_s: seconds since the run began; or None, and then
        round: when the first site asks for this round, counted from 1; or None.
    """

    action: Action
    label: str
    at_s: float | None
    round: int | None


def script(
    faults: Sequence[Fault], overlay: Overlay, *, rounds: int | None = None
) -> tuple[Scripted, ...]:
    """Return what a scenario's faults do on an overlay, in the order they are written.

    Args:
        faults: the ``[[fault]]`` entries.
        overlay: knows the sites and links that they name.
        rounds: how many rounds the run has at most; None where nobody knows.

    Raises:
        FaultError: an entry (named ``fault[2]``; the first is 0) without exactly one moment or
            exactly one thing that it happens to, one that names no site or link of the overlay,
            one in a round that never comes, or one that changes nothing.

    >>> from anabranch.overlay import Link, Site
    >>> two = Overlay("two", (Site("a"), Site("b")), (Link(0, 1, 1e6), Link(1, 0, 1e6)))
    >>> [cut] = script([CutFault(link=("a", "b"), for_s=30.0, at_s=60.0)], two)
    >>> cut.label
    'cut a->b for 30 s'
    >>> cut.action
    LinkFactor(links=((0, 1),), rate_factor=0.0, for_s=30.0)
    """
    found = []
    for i, fault in enumerate(faults):
        entry = f"fault[{i}]"
        _only(entry, at_s=fault.at_s, round=fault.round)
        if rounds is not None and fault.round is not None and fault.round > rounds:
            raise FaultError(
                f"{entry}.round: round {fault.round} never comes, the run has {rounds}; give one "
                f"of 1 to {rounds}"
            )
        action, label = _act(fault, entry, overlay)
        found.append(Scripted(action, label, fault.at_s, fault.round))
    return tuple(found)


def _act(fault: Fault, entry: str, overlay: Overlay) -> tuple[Action, str]:
    """Return what a fault does, and its label."""

    def site(name: str) -> int:
        return _site(name, f"{entry}.site", overlay)

    match fault:
        case KillFault():
            lasting = _lasting(fault.for_s)
            return Kill(site(fault.site), fault.for_s), f"kill {fault.site}{lasting}"
        case PauseFault():
            label = f"pause {fault.site}{_lasting(fault.for_s)}"
            return Pause(site(fault.site), fault.for_s), label
        case DisconnectFault():
            lasting = _lasting(fault.for_s or None)
            return Disconnect(site(fault.site), fault.for_s), f"disconnect {fault.site}{lasting}"
        case CutFault():
            _only(entry, link=fault.link, pair=fault.pair, site=fault.site)
            if fault.site is None:
                links, where = _links(fault, entry, overlay)
            else:
                index = site(fault.site)
                links = tuple(
                    (k.source, k.target) for k in overlay if index in (k.source, k.target)
                )
                where = f"every link of {fault.site}"
            return LinkFactor(links, 0.0, fault.for_s), f"cut {where}{_lasting(fault.for_s)}"
        case SlowFault():
            _only(entry, site=fault.site, link=fault.link, pair=fault.pair)
            lasting = f" {fault.factor:g}x{_lasting(fault.for_s)}"
            if fault.site is not None:
                slow = ComputeFactor(site(fault.site), fault.factor, fault.for_s)
                return slow, f"slow {fault.site}{lasting}"
            links, where = _links(fault, entry, overlay)
            return LinkFactor(links, 1 / fault.factor, fault.for_s), f"slow {where}{lasting}"
        case ClockFault():
            if not (fault.offset_s or fault.drift):
                raise FaultError(
                    f"{entry}: a clock with neither offset_s nor drift is right; give one of them"
                )
            wrong = [f"jump {fault.offset_s:+g} s"] if fault.offset_s else []
            wrong += [f"gain {fault.drift:+g} s/s"] if fault.drift else []
            label = f"clock of {fault.site}: {', '.join(wrong)}"
            return ClockStep(site(fault.site), fault.offset_s, fault.drift), label


def _only(entry: str, **keys: object) -> None:
    """Raise FaultError unless exactly one of the keys was given."""
    given = [key for key, value in keys.items() if value is not None]
    if len(given) != 1:
        *others, last = keys
        raise FaultError(
            f"{entry}: give exactly one of {', '.join(others)} and {last}; "
            f"it has {' and '.join(given) or 'none'}"
        )


def _site(name: str, key: str, overlay: Overlay) -> int:
    try:
        return overlay.index(name)
    except OverlayError as error:
        raise FaultError(f"{key}: {error}") from None


def _links(
    fault: CutFault | SlowFault, entry: str, overlay: Overlay
) -> tuple[tuple[tuple[int, int], ...], str]:
    """Return the links that a fault's ``link`` or ``pair`` names, and words for them."""
    key = f"{entry}.link" if fault.pair is None else f"{entry}.pair"
    names = fault.link or fault.pair
    assert names is not None
    a, b = (_site(name, f"{key}[{i}]", overlay) for i, name in enumerate(names))
    links = ((a, b),) if fault.pair is None else ((a, b), (b, a))
    for source, target in links:
        if overlay.link(source, target) is None:
            at, to = overlay.sites[source].name, overlay.sites[target].name
            has = ", ".join(overlay.sites[each].name for each in overlay.targets[source])
            raise FaultError(
                f"{key}: no link {at}->{to} in overlay {overlay.name!r}; {at} has links to "
                f"{has or 'no site'}"
            )
    return links, ("->" if fault.pair is None else "<->").join(names)


def _lasting(for_s: float | None) -> str:
    return "" if for_s is None else f" for {for_s:g} s"


_Key = TypeVar("_Key", bound=Hashable)


class Factors(Generic[_Key]):
    """The factors in force, each on its key (a link or a site), where faults may overlap.

    What holds for a key is the product of its factors: a link slowed twice is slower still, a
    cut link (0) stays cut whatever else ends, and once all have ended it is exactly 1 again.

    >>> rates = Factors[tuple[int, int]]()
    >>> rates.begin((0, 1), 0.25)
    0.25
    >>> rates.begin((0, 1), 0.0)
    0.0
    >>> rates.end((0, 1), 0.25), rates.end((0, 1), 0.0)
    (0.0, 1.0)
    """

    def __init__(self) -> None:
        self._in_force: dict[_Key, list[float]] = {}

    def begin(self, key: _Key, factor: float) -> float:
        """Put one more factor in force; return what holds for the key now."""
        self._in_force.setdefault(key, []).append(factor)
        return self.current(key)

    def end(self, key: _Key, factor: float) -> float:
        """Take back a factor that was begun; return what holds for the key now.

        Raises:
            FaultError: no such factor is in force.
        """
        in_force = self._in_force.get(key, [])
        if factor not in in_force:
            raise FaultError(
                f"factor {factor:g} of {key!r} is not in force; end what was begun, once"
            )
        in_force.remove(factor)
        if not in_force:
            del self._in_force[key]
        return self.current(key)

    def current(self, key: _Key) -> float:
        """Return the product of the key's factors in force, 1 where there is none."""
        # sorted, so that it depends on which are in force, not on which began first
        return math.prod(sorted(self._in_force.get(key, ())), start=1.0)
