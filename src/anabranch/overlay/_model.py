"""The network as data: sites, directed links, and how a link's rate changes over time.

This module does not depend on file formats or drawing. Constructors check every value, so the rest
of the code may trust it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from anabranch._typed_toml import BadInput

# Within these bounds any buffer takes a finite time, and sums of rates are exact enough.
_LEAST_BPS, _MOST_BPS = 1e-3, 1e21

_LIKELY_LATENCY_S = 5.0  # the latency at which the papers' slowest links begin

Basis = Literal["given", "measured", "assumed"]
"""The source of a link's rate. ``given``: an overlay or option states it. ``measured``: a run
measured it. ``assumed``: neither; it is a placeholder, or the rate of other links of the run."""


def is_doubtful_latency(latency_s: float) -> bool:
    """Return whether a latency, seconds one way, was probably meant as milliseconds."""
    return latency_s > _LIKELY_LATENCY_S


class OverlayError(BadInput):
    """An overlay that cannot be used: the message names the file, key or link, and the fix."""


class GraphLacks(OverlayError):
    """A graph file lacks a figure that an overlay needs, and no argument gives it.

    Args:
        said: what is missing, and where.
        what: ``rate``, ``latency`` or ``part``.
        advice: what to do, in terms of the reader's arguments.

    Attributes:
        said, what: see above.
    """

    def __init__(self, said: str, what: str, advice: str) -> None:
        super().__init__(f"{said}; {advice}")
        self.said = said
        self.what = what
        self._advice = advice

    def within(self, where: str) -> GraphLacks:
        """Return the same error with the file's name in front."""
        return GraphLacks(f"{where}: {self.said}", self.what, self._advice)


@dataclass(frozen=True, slots=True)
class Site:
    """A participant: a data centre, cluster or client.

    A site may have a *port* to the network that all its links share. The port then limits the sum
    of what they send, and the sum of what they receive. A port's rate counts goodput: loss belongs
    to links, and what a link sends again does not count against the port.

    Args:
        name: unique within its overlay; certificates and logs use it.
        latitude_deg, longitude_deg: its position, in [-90, 90] and [-180, 180], for drawing and for
            geographic latency; both None where unknown.
        uplink_bps: payload that all outgoing links may carry together, bit/s, > 0; None where
            only the links limit it.
        downlink_bps: the same for all incoming links.
    """

    name: str
    latitude_deg: float | None = None
    longitude_deg: float | None = None
    uplink_bps: float | None = None
    downlink_bps: float | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """One link's rate over time: piecewise constant.

    Args:
        starts_s: when each piece begins, seconds since the run began, rising, the first 0.
        rates_bps: the rate of each piece, bit/s, all positive.

    Raises:
        OverlayError: no piece, not one rate for each start, starts that do not rise from 0, or a
            rate that is not positive.

    >>> Trace((0.0, 180.0), (20e6, 155e6)).rate_bps(200.0)
    155000000.0
    """

    starts_s: tuple[float, ...]
    rates_bps: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.starts_s or len(self.starts_s) != len(self.rates_bps):
            raise OverlayError(
                f"a trace has {len(self.starts_s)} start times and {len(self.rates_bps)} rates; "
                "give the same number of each, at least one"
            )
        if self.starts_s[0] != 0:
            raise OverlayError(
                f"a trace starts at {self.starts_s[0]:g} s; say its rate from 0 s on"
            )
        for before_s, start_s in pairwise(self.starts_s):
            if not before_s < start_s < math.inf:
                raise OverlayError(
                    f"a trace has start {start_s:g} s after {before_s:g} s; give finite start "
                    "times that rise"
                )
        for rate_bps in self.rates_bps:
            if not _LEAST_BPS <= rate_bps <= _MOST_BPS:
                raise OverlayError(
                    f"a trace holds rate {rate_bps:g} bit/s, which must be within {_LEAST_BPS:g} "
                    f"and {_MOST_BPS:g}; model an outage as a fault, not as a rate"
                )

    def rate_bps(self, at_s: float) -> float:
        """Return the rate at a moment, bit/s; the last piece lasts for ever."""
        return self.rates_bps[max(0, bisect_right(self.starts_s, at_s) - 1)]


@dataclass(frozen=True, slots=True)
class Link:
    """A directed overlay edge.

    Args:
        source, target: indices into the overlay's sites.
        rate_bps: capacity, bit/s; with a trace, the trace's rate at time 0.
        latency_s: one-way delay of the first bit, seconds.
        loss: share of packets lost, in [0, 1).
        trace: the rate over time during a run, or None where it is constant.
        latency_drift_s: after each message the latency moves by a value drawn evenly from
            ``[-latency_drift_s, latency_drift_s]``, and never below 0; see `Latency`. Plans count
            the latency at the start.
        basis: the source of the rate.
    """

    source: int
    target: int
    rate_bps: float
    latency_s: float = 0.0
    loss: float = 0.0
    trace: Trace | None = None
    latency_drift_s: float = 0.0
    basis: Basis = "given"

    @property
    def goodput_bps(self) -> float:
        """Payload rate, bit/s: every lost packet is sent once more, so ``rate * (1 - loss)``."""
        return self.rate_bps * (1.0 - self.loss)


@dataclass(frozen=True)
class Overlay:
    """Sites and the directed links between them, strongly connected.

    Args:
        name: for titles and logs.
        sites: at least one; all other code names a site by its *index* in this tuple.
        links: at most one for each ordered pair.
        provenance: the sources of the links' figures, and the unused attributes of a file, in
            sentences for people; empty where the overlay states all of its figures.

    Raises:
        OverlayError: a repeated site name, half a position, an unknown site, a link to itself, a
            duplicate link, a rate that is not positive or not its trace's, a port that is not
            positive, a negative latency or drift, a loss outside [0, 1), or sites that cannot all
            reach each other.
    """

    name: str
    sites: tuple[Site, ...]
    links: tuple[Link, ...]
    provenance: tuple[str, ...] = field(default=(), repr=False, compare=False)
    _by_pair: Mapping[tuple[int, int], Link] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check_sites()
        by_pair: dict[tuple[int, int], Link] = {}
        for link in self.links:
            self._check_link(link)
            if (link.source, link.target) in by_pair:
                raise OverlayError(
                    f"link {self.label(link)} is given twice; keep one (add their rates if both "
                    "are real)"
                )
            by_pair[link.source, link.target] = link
        object.__setattr__(self, "_by_pair", by_pair)
        self._check_connected()

    @property
    def doubts(self) -> tuple[str, ...]:
        """Sentences on figures that are valid but probably a mistake."""
        slow = [link for link in self.links if is_doubtful_latency(link.latency_s)]
        if not slow:
            return ()
        others = f" and {len(slow) - 1} more links" if len(slow) > 1 else ""
        return (
            f"link {self.label(slow[0])}{others}: a latency of {slow[0].latency_s:g} s; latencies "
            "are seconds one way: was it meant as ms?",
        )

    def _check_sites(self) -> None:
        if not self.sites:
            raise OverlayError(f"overlay {self.name!r} has no site; give it at least one")
        seen: set[str] = set()
        for site in self.sites:
            if not site.name:
                raise OverlayError("a site has an empty name; name every site")
            if site.name in seen:
                raise OverlayError(f"site {site.name!r} is given twice; site names must be unique")
            seen.add(site.name)
            for key, port_bps in (("uplink", site.uplink_bps), ("downlink", site.downlink_bps)):
                if port_bps is not None and not _LEAST_BPS <= port_bps <= _MOST_BPS:
                    raise OverlayError(
                        f"site {site.name!r} has {key} {port_bps:g} bit/s, which must be within "
                        f"{_LEAST_BPS:g} and {_MOST_BPS:g}; leave it out where only the links "
                        "limit it"
                    )
            latitude_deg, longitude_deg = site.latitude_deg, site.longitude_deg
            if latitude_deg is None and longitude_deg is None:
                continue
            if latitude_deg is None or longitude_deg is None:
                raise OverlayError(
                    f"site {site.name!r} has half a position; give latitude_deg and "
                    "longitude_deg, or neither"
                )
            if not (-90 <= latitude_deg <= 90 and -180 <= longitude_deg <= 180):
                raise OverlayError(
                    f"site {site.name!r} is at latitude {latitude_deg:g}, longitude "
                    f"{longitude_deg:g}; give degrees in [-90, 90] and [-180, 180]"
                )

    def _check_link(self, link: Link) -> None:
        n = len(self.sites)
        if not (0 <= link.source < n and 0 <= link.target < n):
            raise OverlayError(
                f"link {link.source}->{link.target} names a site outside 0..{n - 1}; give indices "
                "into the overlay's sites"
            )
        if link.source == link.target:
            raise OverlayError(f"link {self.label(link)} joins a site to itself; leave it out")
        if not _LEAST_BPS <= link.rate_bps <= _MOST_BPS:
            raise OverlayError(
                f"link {self.label(link)} has rate {link.rate_bps:g} bit/s, which must be within "
                f"{_LEAST_BPS:g} and {_MOST_BPS:g}; leave the link out to model an outage"
            )
        if link.trace is not None and link.trace.rates_bps[0] != link.rate_bps:
            raise OverlayError(
                f"link {self.label(link)} has rate {link.rate_bps:g} bit/s but a trace that "
                f"starts at {link.trace.rates_bps[0]:g}; make them equal"
            )
        if not (link.latency_s >= 0 and math.isfinite(link.latency_s)):
            raise OverlayError(
                f"link {self.label(link)} has latency {link.latency_s:g} s, which must be finite "
                "and >= 0; give seconds, one way"
            )
        if not 0 <= link.latency_drift_s < math.inf:
            raise OverlayError(
                f"link {self.label(link)} has latency drift {link.latency_drift_s:g} s, which must "
                "be finite and >= 0; give the most that a message changes the latency, seconds"
            )
        if not 0 <= link.loss < 1:
            raise OverlayError(
                f"link {self.label(link)} has loss {link.loss:g}, which must be in [0, 1); "
                "0.0002 means 0.02 %"
            )

    def _check_connected(self) -> None:
        for neighbours, sense in ((self.targets, "reached from"), (self.sources, "heard by")):
            reached = {0}
            frontier = [0]
            while frontier:
                for site in neighbours[frontier.pop()]:
                    if site not in reached:
                        reached.add(site)
                        frontier.append(site)
            if len(reached) < len(self.sites):
                lost = [s.name for i, s in enumerate(self.sites) if i not in reached]
                raise OverlayError(
                    f"overlay {self.name!r} is disconnected: {', '.join(lost[:5])}"
                    f"{f' and {len(lost) - 5} more' if len(lost) > 5 else ''} cannot be {sense} "
                    f"{self.sites[0].name}; add a link or drop the site"
                )

    @property
    def size(self) -> int:
        """Number of sites."""
        return len(self.sites)

    @cached_property
    def targets(self) -> tuple[tuple[int, ...], ...]:
        """For each site, the sites it has a link to, in order of index."""
        return self._adjacency((link.source, link.target) for link in self.links)

    @cached_property
    def sources(self) -> tuple[tuple[int, ...], ...]:
        """For each site, the sites that have a link to it, in order of index."""
        return self._adjacency((link.target, link.source) for link in self.links)

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """For each site, the sites that a link joins it with in either direction, by index."""
        both = zip(self.targets, self.sources, strict=True)
        return tuple(tuple(sorted({*there, *back})) for there, back in both)

    def _adjacency(self, pairs: Iterable[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
        found: list[list[int]] = [[] for _ in self.sites]
        for a, b in pairs:
            found[a].append(b)
        return tuple(tuple(sorted(row)) for row in found)

    def link(self, source: int, target: int) -> Link | None:
        """Return the link from one site to another, or None where there is none."""
        return self._by_pair.get((source, target))

    def index(self, name: str) -> int:
        """Return the index of the site with this name.

        Raises:
            OverlayError: no site has this name; the message suggests the nearest.
        """
        try:
            return self._by_name[name]
        except KeyError:
            near = get_close_matches(name, self._by_name, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "; see its sites for the names"
            raise OverlayError(f"no site {name!r} in overlay {self.name!r}{hint}") from None

    @cached_property
    def _by_name(self) -> Mapping[str, int]:
        return {site.name: i for i, site in enumerate(self.sites)}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The sites' names, by index."""
        return tuple(site.name for site in self.sites)

    def label(self, link: Link) -> str:
        """Return a link's name for people: ``source->target`` in site names."""
        return f"{self.sites[link.source].name}->{self.sites[link.target].name}"

    def goodput_matrix_bps(self) -> npt.NDArray[np.float64]:
        """Return goodput from row to column, shape (n, n), bit/s; 0 where there is no link."""
        matrix = np.zeros((self.size, self.size))
        for link in self.links:
            matrix[link.source, link.target] = link.goodput_bps
        return matrix

    def at(self, time_s: float) -> Overlay:
        """Return the overlay with every traced link fixed at its rate of one moment."""
        return replace(
            self,
            links=tuple(
                link
                if link.trace is None
                else replace(link, rate_bps=link.trace.rate_bps(time_s), trace=None)
                for link in self.links
            ),
        )

    def __iter__(self) -> Iterator[Link]:
        return iter(self.links)
