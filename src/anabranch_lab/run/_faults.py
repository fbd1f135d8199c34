"""Fault scripts, as data: a scenario's ``[[fault]]`` entries, and the actions they become.

Pure. ``script`` resolves names and refuses faults that can never happen; ``play`` says when each
action is due. A simulation carries the actions out itself, and keeps a `Factors` for those that
overlap. In a real run every site derives the same script and carries out the actions of its own
process. `link_factors` gives the rates of its links.

Outages and sleep are drawn from the scenario's seed, one period after another, until the run ends.
Each link, pair or site has its own random stream, so that both worlds draw the same.
"""

from __future__ import annotations

import heapq
import math
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Generic, Literal, TypeVar

import numpy as np
from msgspec import Meta

from anabranch._typed_toml import Table, tag_of
from anabranch.overlay import Overlay, OverlayError


class FaultError(ValueError):
    """A fault cannot happen as scripted; the message names the entry, the key and the fix."""


# TOML has inf and nan; a bound keeps both out.
_FINITE = sys.float_info.max
_Moment = Annotated[float, Meta(ge=0, le=_FINITE)]
_Duration = Annotated[float, Meta(gt=0, le=_FINITE)]
_Round = Annotated[int, Meta(ge=1)]
_Slower = Annotated[float, Meta(gt=1, le=_FINITE)]
_Offset = Annotated[float, Meta(ge=-_FINITE, le=_FINITE)]
_Drift = Annotated[float, Meta(gt=-1, le=1)]


class _Triggered(Table, frozen=True, kw_only=True):
    """The moment of a fault, given by exactly one of these.

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
        for_s: seconds until it is started again; None: never.
    """

    site: str
    for_s: _Duration | None = None


class PauseFault(_Triggered, frozen=True, kw_only=True, tag_field="kind", tag="pause"):
    """A process stands still, and then continues.

    Args:
        site: the name of the process's site; or
        scheduler: true for the scheduler's process.
        for_s: how long it stands still, seconds.
    """

    site: str | None = None
    scheduler: bool = False
    for_s: _Duration


class CutFault(_Triggered, frozen=True, kw_only=True, tag_field="kind", tag="cut"):
    """Links carry nothing. A site that is cut off can still tell the scheduler.

    The control network is not among the links: ``disconnect`` breaks that.

    Args:
        link: source and target, that direction only; or
        pair: two sites, both directions; or
        site: all links from and to it.
        for_s: for how long, seconds; None: forever.
    """

    link: tuple[str, str] | None = None
    pair: tuple[str, str] | None = None
    site: str | None = None
    for_s: _Duration | None = None


class DisconnectFault(_Triggered, frozen=True, kw_only=True, tag_field="kind", tag="disconnect"):
    """A site's connection to the scheduler breaks, and messages on their way are lost.

    After half a second the site connects through a neighbour, if one reaches the scheduler.

    Args:
        site: its name.
        for_s: how long no new direct connection can be made, seconds; 0: it can be made at once.
    """

    site: str
    for_s: _Moment = 0.0


class SlowFault(_Triggered, frozen=True, kw_only=True, tag_field="kind", tag="slow"):
    """A site computes slower, or links carry less.

    Args:
        site: the site that computes slower; or
        link: source and target, that direction only; or
        pair: two sites, both directions.
        factor: how many times as long the same work or the same bytes take.
        for_s: for how long, seconds; None: forever.
    """

    site: str | None = None
    link: tuple[str, str] | None = None
    pair: tuple[str, str] | None = None
    factor: _Slower
    for_s: _Duration | None = None


class ClockFault(_Triggered, frozen=True, kw_only=True, tag_field="kind", tag="clock"):
    """A site's clock goes wrong; durations do not change.

    Args:
        site: its name.
        offset_s: how far the clock jumps, seconds.
        drift: seconds the clock gains each second from then on, such as 5e-5; negative: it loses.
    """

    site: str
    offset_s: _Offset = 0.0
    drift: _Drift = 0.0


class PartitionFault(_Triggered, frozen=True, kw_only=True, tag_field="kind", tag="partition"):
    """Links between groups of sites carry nothing; those within a group are as they were.

    Args:
        groups: names of sites; the unnamed sites together are one more group.
        for_s: seconds until it heals; None: never.
    """

    groups: tuple[tuple[str, ...], ...]
    for_s: _Duration | None = None


class _Drawn(Table, frozen=True, kw_only=True):
    """The keys of a fault that comes and goes throughout a run, by a renewal process.

    Args:
        distribution: of the length of each period: ``exponential`` with the mean given, or
            ``fixed``, always the mean.
        until_s: when the fault stops for good, seconds since the run began; None: never.
    """

    distribution: Literal["exponential", "fixed"] = "exponential"
    until_s: _Duration | None = None


class OutagesFault(_Drawn, frozen=True, kw_only=True, tag_field="kind", tag="outages"):
    """Links carry nothing now and then. When the run begins they are up.

    Args:
        link: source and target, that direction only; or
        pair: two sites, both directions together; or
        site: all links from and to it together; or
        all: true for every linked pair of sites, each pair independently.
        up_s: how long links are up before an outage, on average.
        down_s: how long an outage lasts, on average.
    """

    link: tuple[str, str] | None = None
    pair: tuple[str, str] | None = None
    site: str | None = None
    all: bool = False
    up_s: _Duration
    down_s: _Duration


class SleepFault(_Drawn, frozen=True, kw_only=True, tag_field="kind", tag="sleep"):
    """A site's process stands still now and then. When the run begins it is awake.

    Args:
        site: its name.
        awake_s: how long it is awake before it sleeps, on average.
        asleep_s: how long it sleeps, on average.
    """

    site: str
    awake_s: _Duration
    asleep_s: _Duration


Fault = (
    KillFault
    | PauseFault
    | CutFault
    | DisconnectFault
    | SlowFault
    | ClockFault
    | PartitionFault
    | OutagesFault
    | SleepFault
)


@dataclass(frozen=True, slots=True)
class Kill:
    """The site's process dies, and is started again after ``for_s`` seconds; None: never."""

    site: int
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """A site's process stands still for ``for_s`` seconds; site None: the scheduler's."""

    site: int | None
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
        rate_factor: of each link's rate: at 0 the link is cut, at 0.25 bytes take four times as
            long.
        for_s: for how long, seconds; None: forever.
    """

    links: tuple[tuple[int, int], ...]
    rate_factor: float
    for_s: float | None


@dataclass(frozen=True, slots=True)
class ComputeFactor:
    """Multiply the time that a site's work takes.

    Args:
        site: its index.
        time_factor: at 4 the work takes four times as long.
        for_s: for how long, seconds; None: forever.
    """

    site: int
    time_factor: float
    for_s: float | None


@dataclass(frozen=True, slots=True)
class ClockStep:
    """Add to the error of a site's clock, and to its drift.

    Args:
        site: its index.
        offset_s: how far the clock jumps, seconds.
        drift: added to the clock's drift from now on, seconds per second.
    """

    site: int
    offset_s: float
    drift: float


Action = Kill | Pause | Disconnect | LinkFactor | ComputeFactor | ClockStep


@dataclass(frozen=True, slots=True)
class Renewal:
    """A renewal process: good periods without the fault and bad periods with it take turns.

    Args:
        good_s: the mean length of a good period, seconds.
        bad_s: the mean length of a bad period, seconds.
        distribution: ``exponential``, or ``fixed``.
        until_s: when the bad periods stop for good, seconds since the run began; inf: never.
        stream: seeds of the draws, integers >= 0.
    """

    good_s: float
    bad_s: float
    distribution: Literal["exponential", "fixed"]
    until_s: float
    stream: tuple[int, ...]

    def bad(self) -> Iterator[tuple[float, float]]:
        """Yield the beginning and the length of each bad period, seconds.

        >>> from itertools import islice
        >>> [*islice(Renewal(5.0, 1.0, "fixed", math.inf, (0,)).bad(), 2)]
        [(5.0, 1.0), (11.0, 1.0)]
        >>> [*Renewal(5.0, 1.0, "fixed", 11.5, (0,)).bad()]
        [(5.0, 1.0), (11.0, 0.5)]
        """
        rng = np.random.default_rng(self.stream)

        def next_s(mean_s: float) -> float:
            return mean_s if self.distribution == "fixed" else float(rng.exponential(mean_s))

        at_s = next_s(self.good_s)
        while at_s < self.until_s:
            for_s = next_s(self.bad_s)
            yield at_s, min(for_s, self.until_s - at_s)
            at_s += for_s + next_s(self.good_s)


@dataclass(frozen=True, slots=True)
class Scripted:
    """A scripted action, and when it happens.

    Exactly one of `at_s`, `round` and `renewal` is given.

    Args:
        action: what to do.
        label: text for the log, such as ``cut dc1->dc2 for 30 s``.
        at_s: when it happens, seconds since the run began.
        round: it happens when the first site asks for this round, counted from 1.
        renewal: draws the moments at which it happens, and for how long each time.
        kind: of the fault, as the scenario spells it.
    """

    action: Action
    label: str
    at_s: float | None
    round: int | None
    renewal: Renewal | None = None
    kind: str = ""

    @property
    def for_s(self) -> float | None:
        """How long the action lasts, seconds; None: forever."""
        return None if isinstance(self.action, ClockStep) else self.action.for_s

    def moments(self) -> Iterator[tuple[float, Scripted]]:
        """Yield each moment of the action by the clock, with the action of that moment.

        Moments are seconds since the run began, and rise. An action of a round yields none.
        """
        if self.at_s is not None:
            yield self.at_s, self
        elif self.renewal is not None:
            for at_s, for_s in self.renewal.bad():
                assert isinstance(self.action, LinkFactor | Pause)
                action, label = replace(self.action, for_s=for_s), f"{self.label} for {for_s:.3g} s"
                yield at_s, replace(self, action=action, label=label, at_s=at_s, renewal=None)


def play(
    moments: Iterator[tuple[float, Scripted]],
    at: Callable[[float, Callable[[Scripted], None], Scripted], object],
    happen: Callable[[Scripted], None],
) -> None:
    """Call `happen` with each action at its moment; draw the next action only then.

    Args:
        moments: see `Scripted.moments`.
        at: schedules a call at a moment, seconds since the run began.
        happen: carries out an action.
    """

    def next_one(what: Scripted) -> None:
        happen(what)
        play(moments, at, happen)

    for at_s, what in moments:
        at(at_s, next_one, what)
        return


def link_factors(
    scripted: Sequence[Scripted], link: tuple[int, int]
) -> Iterator[tuple[float, float]]:
    """Yield how scripted actions change a link's rate; draw each action only when asked for it.

    Actions that happen in a round, and not at a moment, are left out.

    Args:
        scripted: the script.
        link: source and target, as indices of sites.

    Yields:
        The moment, seconds since the run began, never falling, and the factor of the link's rate
        from then on. Before the first moment it is 1.

    >>> cut = Scripted(LinkFactor(((0, 1),), 0.0, 2.0), "cut", at_s=5.0, round=None)
    >>> [*link_factors([cut], (0, 1))], [*link_factors([cut], (1, 0))]
    ([(5.0, 0.0), (7.0, 1.0)], [])
    """
    concerned = [
        each.moments()
        for each in scripted
        if isinstance(each.action, LinkFactor) and link in each.action.links
    ]
    factors: Factors[tuple[int, int]] = Factors()
    ends: list[tuple[float, float]] = []  # a heap of (end of a factor, the factor)
    for at_s, what in heapq.merge(*concerned, key=lambda moment: moment[0]):
        while ends and ends[0][0] <= at_s:
            end_s, factor = heapq.heappop(ends)
            yield end_s, factors.end(link, factor)
        assert isinstance(what.action, LinkFactor)
        if what.action.for_s is not None:
            heapq.heappush(ends, (at_s + what.action.for_s, what.action.rate_factor))
        yield at_s, factors.begin(link, what.action.rate_factor)
    while ends:
        end_s, factor = heapq.heappop(ends)
        yield end_s, factors.end(link, factor)


def script(
    faults: Sequence[Fault], overlay: Overlay, *, rounds: int | None = None, seed: int = 0
) -> tuple[Scripted, ...]:
    """Return what a scenario's faults do on an overlay, in the order they are written.

    A fault of ``all`` pairs of sites becomes one action for each pair.

    Args:
        faults: the ``[[fault]]`` entries.
        overlay: has the sites and links that they name.
        rounds: how many rounds the run has at most; None where unknown.
        seed: of the draws, >= 0.

    Raises:
        FaultError: an entry is invalid; the message names it as ``fault[2]``, counted from 0. The
            entry does not have exactly one moment or exactly one target; or it names no site or
            link of the overlay; or its round never comes; or it changes nothing.

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
        entry, kind = f"fault[{i}]", tag_of(fault)
        if isinstance(fault, OutagesFault | SleepFault):
            renewal = _renewal(fault, (seed, i))
            for action, label in _drawn(fault, entry, overlay):
                of_its_own = replace(renewal, stream=(*renewal.stream, *_ends(action)))
                found.append(Scripted(action, label, None, None, of_its_own, kind))
            continue
        _only(entry, at_s=fault.at_s, round=fault.round)
        if rounds is not None and fault.round is not None and fault.round > rounds:
            raise FaultError(
                f"{entry}.round: round {fault.round} never comes, the run has {rounds}; give one "
                f"of 1 to {rounds}"
            )
        what, label = _act(fault, entry, overlay)
        found.append(Scripted(what, label, fault.at_s, fault.round, None, kind))
    return tuple(found)


def _renewal(fault: OutagesFault | SleepFault, stream: tuple[int, ...]) -> Renewal:
    if isinstance(fault, OutagesFault):
        good_s, bad_s = fault.up_s, fault.down_s
    else:
        good_s, bad_s = fault.awake_s, fault.asleep_s
    until_s = math.inf if fault.until_s is None else fault.until_s
    return Renewal(good_s, bad_s, fault.distribution, until_s, stream)


def _ends(action: LinkFactor | Pause) -> tuple[int, ...]:
    """Return the numbers that give an action's draws a stream apart from others of its entry."""
    if isinstance(action, LinkFactor):
        return action.links[0]
    assert action.site is not None  # sites sleep
    return (action.site,)


def _drawn(
    fault: OutagesFault | SleepFault, entry: str, overlay: Overlay
) -> Iterator[tuple[LinkFactor | Pause, str]]:
    """Yield each independent action of a drawn fault, and its label."""
    if isinstance(fault, SleepFault):
        yield Pause(_site(fault.site, f"{entry}.site", overlay), 0.0), f"sleep of {fault.site}"
        return
    _only(entry, link=fault.link, pair=fault.pair, site=fault.site, all=fault.all or None)
    if not fault.all:
        links, where = _links(fault, entry, overlay)
        yield LinkFactor(links, 0.0, None), f"outage of {where}"
        return
    names = overlay.names
    of_pairs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for link in overlay:
        ends = min(link.source, link.target), max(link.source, link.target)
        of_pairs.setdefault(ends, []).append((link.source, link.target))
    for (a, b), both in sorted(of_pairs.items()):
        yield LinkFactor(tuple(both), 0.0, None), f"outage of {names[a]}<->{names[b]}"


def _act(
    fault: KillFault
    | PauseFault
    | CutFault
    | DisconnectFault
    | SlowFault
    | ClockFault
    | PartitionFault,
    entry: str,
    overlay: Overlay,
) -> tuple[Action, str]:
    """Return what a fault does, and its label."""

    def site(name: str) -> int:
        return _site(name, f"{entry}.site", overlay)

    match fault:
        case KillFault():
            lasting = _lasting(fault.for_s)
            return Kill(site(fault.site), fault.for_s), f"kill {fault.site}{lasting}"
        case PauseFault():
            _only(entry, site=fault.site, scheduler=fault.scheduler or None)
            label = f"pause {fault.site or 'the scheduler'}{_lasting(fault.for_s)}"
            who = None if fault.site is None else site(fault.site)
            return Pause(who, fault.for_s), label
        case DisconnectFault():
            lasting = _lasting(fault.for_s or None)
            return Disconnect(site(fault.site), fault.for_s), f"disconnect {fault.site}{lasting}"
        case CutFault():
            _only(entry, link=fault.link, pair=fault.pair, site=fault.site)
            links, where = _links(fault, entry, overlay)
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
        case PartitionFault():
            links, where = _between(fault.groups, f"{entry}.groups", overlay)
            return LinkFactor(links, 0.0, fault.for_s), f"partition {where}{_lasting(fault.for_s)}"


def _between(
    groups: Sequence[Sequence[str]], key: str, overlay: Overlay
) -> tuple[tuple[tuple[int, int], ...], str]:
    """Return the links between groups of sites, and the groups as text."""
    group_of: dict[int, int] = {}
    for g, names in enumerate(groups):
        for i, name in enumerate(names):
            site = _site(name, f"{key}[{g}][{i}]", overlay)
            if site in group_of:
                raise FaultError(f"{key}[{g}][{i}]: {name} is in a group already; name it once")
            group_of[site] = g
    links = tuple(
        (link.source, link.target)
        for link in overlay
        if group_of.get(link.source) != group_of.get(link.target)
    )
    if not links:
        raise FaultError(
            f"{key}: no link of overlay {overlay.name!r} leads from one group to another, so "
            "nothing is parted; name some sites of those that have links, and not all in one group"
        )
    others = [each.name for i, each in enumerate(overlay.sites) if i not in group_of]
    return links, " | ".join(", ".join(names) for names in [*groups, others] if names)


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
    fault: CutFault | SlowFault | OutagesFault, entry: str, overlay: Overlay
) -> tuple[tuple[tuple[int, int], ...], str]:
    """Return the links that a fault's ``link``, ``pair`` or ``site`` names, and their text."""
    if fault.site is not None:
        site = _site(fault.site, f"{entry}.site", overlay)
        own = tuple((k.source, k.target) for k in overlay if site in (k.source, k.target))
        if not own:
            raise FaultError(f"{entry}.site: {fault.site} has no links; leave the fault out")
        return own, f"every link of {fault.site}"
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
    """The factors in force on each key (a link or a site), where faults may overlap.

    A key's factor is the product of those in force. A link slowed twice is slower still. A cut link
    (0) stays cut whatever else ends. Once all factors have ended, it is exactly 1 again.

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
        """Put one more factor in force; return the key's product now."""
        self._in_force.setdefault(key, []).append(factor)
        return self.current(key)

    def end(self, key: _Key, factor: float) -> float:
        """End a factor that was begun; return the key's product now.

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
        # sorted, so that the product does not depend on the order in which factors began
        return math.prod(sorted(self._in_force.get(key, ())), start=1.0)
