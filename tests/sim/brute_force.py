"""The network of flows solved as plainly as can be: all flows, at every event, from scratch."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple


class Given(NamedTuple):
    """A flow, before anything is known of its fate."""

    start_s: float
    resources: tuple[int, ...]
    bits: float


class Change(NamedTuple):
    """Another capacity for a resource."""

    at_s: float
    resource: int
    capacity_bps: float


def fair_rates_bps(
    capacities_bps: Sequence[float], paths: Sequence[tuple[int, ...]]
) -> list[float]:
    """Return max-min fair rates by progressive filling."""
    rates_bps = [0.0] * len(paths)
    rising = set(range(len(paths)))
    while rising:
        level_bps, full = min(
            (
                (capacity_bps - sum(rates_bps[f] for f in users if f not in rising))
                / len(rising & users),
                resource,
            )
            for resource, capacity_bps in enumerate(capacities_bps)
            if (users := {f for f, path in enumerate(paths) if resource in path}) & rising
        )
        for f in sorted(rising):
            if full in paths[f]:
                rates_bps[f] = max(0.0, level_bps)
                rising.remove(f)
    return rates_bps


def finish_times_s(
    capacities_bps: Sequence[float], flows: Sequence[Given], changes: Sequence[Change] = ()
) -> list[float]:
    """Return when each flow finishes; infinite if it never does."""
    capacities_bps = list(capacities_bps)
    left_bits = [flow.bits for flow in flows]
    done_s = [inf if flow.bits > 0.0 else flow.start_s for flow in flows]
    events_s = sorted({flow.start_s for flow in flows} | {change.at_s for change in changes})
    now_s = events_s[0]
    while True:
        for change in changes:
            if change.at_s == now_s:
                capacities_bps[change.resource] = change.capacity_bps
        going = [f for f, flow in enumerate(flows) if flow.start_s <= now_s and done_s[f] == inf]
        rates_bps = fair_rates_bps(capacities_bps, [flows[f].resources for f in going])
        ends_s = {
            f: now_s + left_bits[f] / rate_bps
            for f, rate_bps in zip(going, rates_bps, strict=True)
            if rate_bps > 0.0
        }
        later_s = [at_s for at_s in events_s if at_s > now_s] + list(ends_s.values())
        if not later_s:
            return done_s
        next_s = min(later_s)
        for f, rate_bps in zip(going, rates_bps, strict=True):
            left_bits[f] -= rate_bps * (next_s - now_s)
            if ends_s.get(f, inf) <= next_s * (1 + 1e-12):
                done_s[f] = ends_s[f]
        now_s = next_s
