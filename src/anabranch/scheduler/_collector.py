"""The scheduler's belief about each link, from reports of sites. Pure: times are arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from anabranch.net.throughput import Estimate
from anabranch.overlay import Basis, Overlay

Pair = tuple[int, int]

# Now and then a report is off by a factor: a receiver that was held up reads chunks all at once.
# Over delay and loss, a connection rests now and then, and its link seems slow for up to a second.
_LEAST_REPORTS = 3
_QUANTILE = 0.75
_WINDOW_S = 4.0
_MOST_REPORTS = 64
_FULL = 0.1  # a port is full if its links' rates add up to its own within this share
# A belief within this share of the given rate counts as given; otherwise other links moved it.
_AS_GIVEN = 0.01


@dataclass(slots=True)
class _Reading:
    """The latest measurements of a link.

    Args:
        at_s: the time of the last measurement.
        rate_bps: the rate that they show, see ``_steady_bps``.
        latest: the measurements, as (time, rate).
        shares_port: whether the rate may be only the link's share of a port.
    """

    at_s: float
    rate_bps: float
    latest: tuple[tuple[float, float], ...]
    shares_port: bool = False


class Collector:
    """One belief for each link: its measurement, or the last known rate, which fades with age.

    **Outliers and dips.** Of the measurements of four seconds, the third quartile counts; of three,
    the middle one; of fewer, the newest. Most links are measured four times a second. Then a fall
    counts once it has lasted for three seconds, and a rise after one.

    **Forgetting.** Only links in use are measured. A link that was slow once would not be used
    again, so not measured, and so be believed slow for ever. Each such link loads the others, until
    a few links carry all data. So a belief that is not renewed moves towards the typical rate,
    which is the median of the links in use. After ``forget_s`` it has moved two thirds of the way,
    on a logarithmic scale. The link then looks better than the worse half of those in use, so a
    plan uses it, and it is measured. To forget a fast link costs little: no tree used it.

    **Ports.** Links that share a site's port show their share of it while they send together. If
    the rates measured within ``together_s`` add up to the port's rate, within a tenth, they are
    lower bounds only: a higher known rate still holds. A sum far above the port's rate cannot have
    been carried at once, so each link was measured alone. Links behind a full port are forgotten
    like unused ones.

    Args:
        initial: the belief before any measurement; its traces are not used.
        forget_s: the time constant with which an old belief fades, seconds, > 0; infinite for
            never.
        since_s: when ``initial`` was known to hold; ``-math.inf`` if it is only an assumption,
            which counts for nothing once any link is measured.
        together_s: the longest distance of measurements that count as one moment, seconds, >= 0.

    Raises:
        ValueError: an argument outside its range.
    """

    def __init__(
        self,
        initial: Overlay,
        *,
        forget_s: float = 3600.0,
        since_s: float = 0.0,
        together_s: float = 10.0,
    ) -> None:
        if not forget_s > 0 or not together_s >= 0 or not since_s < math.inf:
            raise ValueError(
                f"forget_s is {forget_s:g}, since_s {since_s:g} and together_s {together_s:g}; "
                "give forget_s > 0, together_s >= 0 and a since_s in the past"
            )
        self._initial = initial
        self._forget_s = forget_s
        self._together_s = together_s
        self._known = {(link.source, link.target): (since_s, link.goodput_bps) for link in initial}
        self._seen: dict[Pair, _Reading] = {}
        self._latency_s: dict[Pair, float] = {}

    def measured(self, source: int, target: int, estimate: Estimate, now_s: float) -> None:
        """Take a measurement of a link, made just now.

        Raises:
            ValueError: there is no such link.
        """
        pair = source, target
        check_link(self._initial, source, target)
        before = self._seen.get(pair)
        if before is not None:
            self._known[pair] = self._settled(pair, before)
        latest = () if before is None else before.latest
        latest = tuple(each for each in latest if each[0] >= now_s - _WINDOW_S)
        latest = (*latest[-_MOST_REPORTS + 1 :], (now_s, estimate.rate_bps))
        self._seen[pair] = _Reading(now_s, _steady_bps(latest), latest)
        if estimate.latency_s is not None:
            self._latency_s[pair] = estimate.latency_s
        sites, overlay = self._initial.sites, self._initial
        self._note_if_full(
            sites[source].uplink_bps, [(source, other) for other in overlay.targets[source]], now_s
        )
        self._note_if_full(
            sites[target].downlink_bps,
            [(other, target) for other in overlay.sources[target]],
            now_s,
        )

    @property
    def measured_links(self) -> frozenset[Pair]:
        """The links that were measured, as (source, target)."""
        return frozenset(self._seen)

    def measured_since(self, since_s: float) -> dict[int, float]:
        """Return the rates measured after a moment, bit/s, by the link's place in the overlay."""
        found = {}
        for index, link in enumerate(self._initial.links):
            seen = self._seen.get((link.source, link.target))
            if seen is not None and seen.at_s > since_s and not seen.shares_port:
                found[index] = seen.rate_bps
        return found

    def _note_if_full(self, port_bps: float | None, pairs: list[Pair], now_s: float) -> None:
        if port_bps is None:
            return
        seen = [self._seen[pair] for pair in pairs if pair in self._seen]
        seen = [each for each in seen if each.at_s >= now_s - self._together_s]
        if abs(sum(each.rate_bps for each in seen) / port_bps - 1) <= _FULL:
            for each in seen:
                each.shares_port = True

    def _settled(self, pair: Pair, seen: _Reading) -> tuple[float, float]:
        """Return when a link's rate was last known, and the rate, with its latest measurements."""
        known = self._known[pair]
        return (
            known if seen.shares_port and seen.rate_bps < known[1] else (seen.at_s, seen.rate_bps)
        )

    def belief(self, now_s: float, kept: Callable[[float], float] = lambda age_s: 1.0) -> Overlay:
        """Return the network as believed: the initial sites and links, without traces.

        Args:
            now_s: the moment.
            kept: returns the part in [0, 1] of a deviation from the typical rate that is still
                believed, for its age in seconds.

        A link's ``goodput_bps`` is the rate believed; its latency is the last measured, or else
        the initial one; its loss is the initial one.
        """
        last = dict(self._known)
        for pair, latest in self._seen.items():
            last[pair] = self._settled(pair, latest)
        typical_bps = self._typical_bps(last)
        links = []
        for link in self._initial:
            pair = link.source, link.target
            at_s, rate_bps = last[pair]
            if typical_bps is not None:
                age_s = max(0.0, now_s - at_s)
                part = 0.0
                if age_s < math.inf:
                    part = math.exp(-age_s / self._forget_s) * kept(age_s)
                rate_bps = rate_bps**part * typical_bps ** (1 - part)
            seen = self._seen.get(pair)
            if seen is not None and seen.shares_port:
                rate_bps = max(rate_bps, seen.rate_bps)
            is_as_given = math.isclose(rate_bps, link.goodput_bps, rel_tol=_AS_GIVEN)
            unmeasured: Basis = link.basis if is_as_given else "assumed"
            links.append(
                replace(
                    link,
                    rate_bps=rate_bps / (1 - link.loss),
                    latency_s=self._latency_s.get(pair, link.latency_s),
                    trace=None,
                    basis=unmeasured if seen is None else "measured",
                )
            )
        return replace(self._initial, links=tuple(links))

    def _typical_bps(self, last: Mapping[Pair, tuple[float, float]]) -> float | None:
        """Return the median rate of the links in use; None before any measurement."""
        if not self._seen:
            return None
        newest_s = max(seen.at_s for seen in self._seen.values())
        return median(
            last[pair][1]
            for pair, seen in self._seen.items()
            if seen.at_s >= newest_s - self._forget_s
        )


class Latest:
    """The last measurement of each link, unchanged (NetStorm, Algorithm 2, line 1).

    No measurement is an outlier, none is forgotten, and a link's share of a port counts as its
    rate. A link that was never measured keeps its initial rate.

    Args:
        initial: the belief before any measurement; its traces are not used.
    """

    def __init__(self, initial: Overlay) -> None:
        self._initial = initial
        self._seen: dict[Pair, Estimate] = {}

    def measured(self, source: int, target: int, estimate: Estimate, now_s: float) -> None:
        """See :meth:`Collector.measured`."""
        check_link(self._initial, source, target)
        self._seen[source, target] = estimate

    @property
    def measured_links(self) -> frozenset[Pair]:
        """The links that were measured, as (source, target)."""
        return frozenset(self._seen)

    def belief(self, now_s: float) -> Overlay:
        """Return the network as believed: see :meth:`Collector.belief`."""
        links = []
        for link in self._initial:
            seen = self._seen.get((link.source, link.target))
            if seen is None:
                links.append(replace(link, trace=None))
                continue
            latency_s = link.latency_s if seen.latency_s is None else seen.latency_s
            rate_bps = seen.rate_bps / (1 - link.loss)
            links.append(
                replace(link, rate_bps=rate_bps, latency_s=latency_s, trace=None, basis="measured")
            )
        return replace(self._initial, links=tuple(links))


def check_link(overlay: Overlay, source: int, target: int) -> None:
    """Check that an overlay has a measured link.

    Raises:
        ValueError: the overlay lacks the link.
    """
    if overlay.link(source, target) is None:
        raise ValueError(
            f"no link {source}->{target} in overlay {overlay.name!r}, so it cannot have been "
            "measured; report links of the overlay"
        )


def _steady_bps(latest: Sequence[tuple[float, float]]) -> float:
    """Return a high one of the latest reports; the newest, where there are fewer than three."""
    if len(latest) < _LEAST_REPORTS:
        return latest[-1][1]
    rates_bps = sorted(rate_bps for _, rate_bps in latest)
    return rates_bps[int(_QUANTILE * (len(rates_bps) - 1))]


def equal_rates(overlay: Overlay, rate_bps: float | None = None) -> Overlay:
    """Return the overlay with one rate for all links: a belief that knows only the links.

    Args:
        overlay: its sites, latencies and losses are kept; traces are dropped.
        rate_bps: goodput of every link, bit/s; None for the median of the overlay's. Plans depend
            on ratios only, so this sets nothing but the scale of predicted times.

    >>> from anabranch.overlay import internet2_9
    >>> {round(link.goodput_bps) for link in equal_rates(internet2_9(), 1e8)}
    {100000000}
    """
    if rate_bps is None:
        rate_bps = median(link.goodput_bps for link in overlay) if overlay.links else 0.0
    return replace(
        overlay,
        links=tuple(
            replace(link, rate_bps=rate_bps / (1 - link.loss), trace=None, basis="assumed")
            for link in overlay
        ),
    )
