"""Find each scheme's best settings and learning rate, many schemes at once, on seeds of their own.

A search is a generator: it yields the runs that it wants, and is sent their times. So the searches
of many schemes advance together, and a lab makes the runs of all side by side.

A run ends once it takes a quarter longer than the scheme's best run of its seed so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from papers._compare import or_never
from papers._lab import Lab
from papers._trial import Outcome, Trial

Setting = TypeVar("Setting", bound=Hashable)
Name = TypeVar("Name", bound=Hashable)

Make = Callable[[float, int, float], Trial]
"""Makes a run from a learning rate, a seed, and the time at which it ends without the target."""

_HIGHEST = 16  # times the first rate
_LOWEST = 1 / 16  # of the first rate
_PATIENCE = 1.25


@dataclass(frozen=True, slots=True)
class Wanted(Generic[Setting]):
    """A run that a search wants.

    Args:
        setting: of the scheme.
        rate: learning rate.
        seed: of the run.
        most_s: when it ends without the target.
    """

    setting: Setting
    rate: float
    seed: int
    most_s: float


@dataclass(frozen=True, slots=True)
class Tuned(Generic[Setting]):
    """A scheme's best setting and learning rate.

    Args:
        setting, rate: see :class:`Wanted`.
        times_s: time to the target with these, for each seed, seconds; infinite where no setting
            reached it with all seeds.
    """

    setting: Setting
    rate: float
    times_s: tuple[float, ...]

    @property
    def rate_told(self) -> str:
        """The learning rate, as text, and whether no rate reached the target."""
        missed = math.isinf(sum(self.times_s))
        return f"{self.rate:g}" + (" (the first tried: none got there)" if missed else "")


Search = Generator[list[Wanted[Setting]], list[float | None], Tuned[Setting]]


def search(
    settings: Sequence[Setting],
    first: float,
    seeds: Sequence[int],
    most_s: float,
) -> Search[Setting]:
    """Search a scheme's settings for the least mean time over seeds; each gets its own best rate.

    Rates are tried in factors of two, until both neighbours of the best one are worse. A setting
    begins with the best rate of earlier settings and with the first one: batches of other sizes may
    need other rates. It is given up where these and their neighbours all take much longer than the
    best setting does.

    Args:
        settings: tried in order.
        first: rate that is tried.
        seeds: of the runs.
        most_s: when a run ends in any case.
    """
    best = Tuned(settings[0], first, (math.inf,) * len(seeds))
    for setting in settings:
        best = yield from _rates(best, setting, first, seeds, most_s)
    return best


def _rates(
    best: Tuned[Setting],
    setting: Setting,
    first: float,
    seeds: Sequence[int],
    most_s: float,
) -> Search[Setting]:
    """Try rates of one setting; return the best of them, or the best so far."""
    own: dict[float, float] = {}  # times on all seeds, infinite if any fails
    is_first = math.isinf(sum(best.times_s))

    def attempt(rate: float) -> Search[Setting]:
        limits_s = [min(most_s, _PATIENCE * each_s) for each_s in best.times_s]
        told = yield [Wanted(setting, rate, *each) for each in zip(seeds, limits_s, strict=True)]
        times_s = tuple(map(or_never, told))
        own[rate] = sum(times_s)
        return Tuned(setting, rate, times_s) if own[rate] < sum(best.times_s) else best

    def none_reaches() -> bool:
        return not any(map(math.isfinite, own.values()))

    starts = best.rate, first
    for rate in dict.fromkeys(factor * start for factor in (1, 2, 0.5) for start in starts):
        if none_reaches():
            best = yield from attempt(rate)
    while is_first and none_reaches() and min(own) > _LOWEST * first:
        best = yield from attempt(min(own) / 2)
    while (neighbour := _untried_neighbour(own, first)) is not None:
        best = yield from attempt(neighbour)
    return best


def _untried_neighbour(own: Mapping[float, float], first: float) -> float | None:
    """Return a rate beside the best one, the higher first; None if none is left.

    >>> _untried_neighbour({0.4: 9.0}, 0.4), _untried_neighbour({0.4: 9.0, 0.8: 11.0}, 0.4)
    (0.8, 0.2)
    >>> _untried_neighbour({0.4: 9.0, 0.8: 11.0, 0.2: 12.0}, 0.4)
    """
    least_s = min(own.values())
    if math.isinf(least_s):
        return None
    best = [rate for rate, each_s in own.items() if each_s == least_s]
    beside = (rate for rate in (2 * max(best), min(best) / 2) if rate not in own)
    return next((rate for rate in beside if _LOWEST <= rate / first <= _HIGHEST), None)


def together(
    searches: Mapping[Name, Search[Setting]],
    times_s: Callable[[list[tuple[Name, Wanted[Setting]]]], Sequence[float | None]],
) -> dict[Name, Tuned[Setting]]:
    """Advance searches together, and return what each found.

    Args:
        searches: by name.
        times_s: makes the runs that searches of these names want, and returns when each reached its
            target, seconds; None where it did not.
    """
    found: dict[Name, Tuned[Setting]] = {}
    asked = {name: next(each) for name, each in searches.items()}
    while asked:
        flat = [(name, each) for name, wanted in asked.items() for each in wanted]
        times = iter(times_s(flat))
        told = {name: [next(times) for _ in wanted] for name, wanted in asked.items()}
        asked = {}
        for name, of in told.items():
            try:
                asked[name] = searches[name].send(of)
            except StopIteration as ended:
                found[name] = ended.value
    return {name: found[name] for name in searches}


def times_s(lab: Lab, trials: Sequence[Trial]) -> list[float | None]:
    """Return when each trial reached its target, seconds; None where it did not, or diverged."""
    return [run.reached_s for run in lab.measure(trials, may_abort=True)]


def best_rates(
    lab: Lab,
    makes: Mapping[Name, Make],
    first: Mapping[Name, float],
    seeds: Sequence[int],
    most_s: float = math.inf,
) -> tuple[dict[Name, Tuned[None]], dict[Name, list[Outcome]]]:
    """Return each scheme's best learning rate, and the outcomes of the runs that found it.

    Args:
        lab: runs the trials.
        makes: a scheme's runs, by its name.
        first: the rate with which its search begins.
        seeds: of the runs; none is measured.
        most_s: when a run ends in any case.
    """
    log: dict[Name, list[Outcome]] = {name: [] for name in makes}

    def run(wanted: list[tuple[Name, Wanted[None]]]) -> list[float | None]:
        trials = [makes[name](each.rate, each.seed, each.most_s) for name, each in wanted]
        outcomes = lab.measure(trials, may_abort=True)
        for (name, _), outcome in zip(wanted, outcomes, strict=True):
            log[name].append(outcome)
        return [each.reached_s for each in outcomes]

    def one(name: Name) -> Search[None]:
        return search([None], first[name], seeds, most_s)

    return together({name: one(name) for name in makes}, run), log
