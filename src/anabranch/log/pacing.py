"""The summary of a pace: the times of iterations and their parts, and updates' staleness. Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from statistics import fmean

from anabranch.log.events import (
    ClientBarred,
    Event,
    ProceedAsked,
    SiteLost,
    UnknownEvent,
    UpdateApplied,
    UpdateCame,
    UpdateDiscarded,
    WorkerWent,
)

# Two updates are simultaneous if the gap between them is at most this part of an iteration.
_AT_ONCE = 0.01


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration of one worker; moments are seconds since the run began."""

    update: int  # number among the worker's updates, from 1
    samples: int  # of its batch
    went_s: float  # when it could begin: it had permission, and the worker had computed the last
    asked_s: float  # when the worker had computed it, and its push began
    came_s: float  # when the servers had all of the update
    compute_s: float  # how long the worker computed
    # When the next iteration could begin; None for the worker's last, and where the worker was
    # lost before.
    next_s: float | None

    @property
    def pull_s(self) -> float:
        """How long the worker waited for the model."""
        return max(0.0, self.asked_s - self.went_s - self.compute_s)

    @property
    def push_s(self) -> float:
        """How long the update was on its way."""
        return self.came_s - self.asked_s

    @property
    def blocked_s(self) -> float:
        """How long the worker then waited for permission; 0 for its last, or if it went ahead."""
        return 0.0 if self.next_s is None else max(0.0, self.next_s - self.came_s)


@dataclass(frozen=True, slots=True)
class PaceSummary:
    """The summary of a run with servers."""

    # Each worker's iterations whose update came, by site, in order.
    iterations: Mapping[int, Sequence[Iteration]]
    # Seconds between one update that became part of the model and the next.
    gaps_s: tuple[float, ...]
    missed: Mapping[int, int]  # the count of updates, by how many updates of others they missed
    discarded: int  # the count of discarded updates
    applied: Sequence[UpdateApplied] = ()  # in order
    barred: int = 0  # how many clients or sites were ever barred as outliers

    @property
    def updates(self) -> int:
        """How many updates are part of the model."""
        return sum(self.missed.values())

    def steps_of(self, worker: int, from_s: float, until_s: float) -> list[UpdateApplied]:
        """Return a worker's updates that became part of the model in an interval, in order."""
        return [
            each for each in self.applied if each.site == worker and from_s <= each.at_s < until_s
        ]

    @property
    def whole(self) -> list[Iteration]:
        """The iterations whose worker got its permission."""
        every = chain.from_iterable(self.iterations.values())
        return [each for each in every if each.next_s is not None]

    @property
    def iteration_s(self) -> float | None:
        """Mean time from one permission to the next, seconds; None without two permissions."""
        return _mean(each.next_s - each.went_s for each in self.whole if each.next_s is not None)

    @property
    def blocked_s(self) -> float | None:
        """Mean time a worker waited for permission, seconds."""
        return _mean(each.blocked_s for each in self.whole)

    @property
    def push_s(self) -> float | None:
        """Mean time an update was on its way, seconds."""
        return _mean(each.push_s for each in chain.from_iterable(self.iterations.values()))

    @property
    def pull_s(self) -> float | None:
        """Mean time a worker waited for the model, seconds, without the first, which it has."""
        every = chain.from_iterable(self.iterations.values())
        return _mean(each.pull_s for each in every if each.update > 1)

    @property
    def mean_missed(self) -> float | None:
        """How many updates of others an update missed, on average."""
        if not self.updates:
            return None
        return sum(missed * count for missed, count in self.missed.items()) / self.updates

    @property
    def at_once(self) -> float | None:
        """The part of the gaps that are near 0 beside an iteration: contention (R²SP, Fig. 9)."""
        iteration_s = self.iteration_s
        if not self.gaps_s or iteration_s is None:
            return None
        return sum(gap_s <= _AT_ONCE * iteration_s for gap_s in self.gaps_s) / len(self.gaps_s)

    @property
    def gaps(self) -> tuple[float, ...]:
        """The distribution of the gaps, as parts of an iteration (R²SP, Fig. 9).

        The least, and the values that 5 %, 10 % ... 100 % of the gaps do not exceed; empty where
        there is no gap or no iteration.
        """
        iteration_s = self.iteration_s
        if not self.gaps_s or iteration_s is None:
            return ()
        ordered = sorted(self.gaps_s)
        last = len(ordered) - 1
        return tuple(ordered[round(last * part / 20)] / iteration_s for part in range(21))


def _mean(values_s: Iterable[float]) -> float | None:
    found = list(values_s)
    return fmean(found) if found else None


def summarise_pace(events: Iterable[Event | UnknownEvent]) -> PaceSummary | None:
    """Return the summary of a run's pace; None for a run without servers."""
    went: defaultdict[int, dict[int, WorkerWent]] = defaultdict(dict)
    asked: dict[tuple[int, int], ProceedAsked] = {}
    came: dict[tuple[int, int], UpdateCame] = {}
    applied: list[UpdateApplied] = []
    missed: Counter[int] = Counter()
    discarded = 0
    barred: set[int] = set()
    deaths: set[tuple[int, int]] = set()  # worker, and the number of its last permitted update
    for event in events:
        match event:
            case WorkerWent():
                went[event.site][event.update] = event
            case ProceedAsked():
                asked[event.site, event.update] = event
            case UpdateCame():
                came[event.site, event.update] = event
            case UpdateApplied():
                applied.append(event)
                missed[event.missed] += 1
            case UpdateDiscarded():
                discarded += 1
            case ClientBarred():
                barred.add(event.client)
            case SiteLost():
                deaths.add((event.site, max(went.get(event.site, ()), default=0)))
    if not went:
        return None

    def began_s(site: int, update: int) -> float:
        """Return when a worker, which may compute ahead, could begin an update."""
        before = asked.get((site, update - 1))
        return max(went[site][update].at_s, -math.inf if before is None else before.at_s)

    def next_s(site: int, update: int) -> float | None:
        """Return when the worker could begin the next update; None if it never did."""
        if (site, update) in deaths or update + 1 not in went[site]:
            return None
        return began_s(site, update + 1)

    iterations = {
        site: tuple(
            Iteration(
                update,
                begun.samples,
                began_s(site, update),
                asked[site, update].at_s,
                came[site, update].at_s,
                asked[site, update].compute_s,
                next_s(site, update),
            )
            for update, begun in sorted(by_update.items())
            if (site, update) in asked and (site, update) in came
        )
        for site, by_update in sorted(went.items())
    }
    gaps_s = tuple(after.at_s - before.at_s for before, after in pairwise(applied))
    return PaceSummary(
        iterations, gaps_s, dict(sorted(missed.items())), discarded, applied, len(barred)
    )
