"""A pace's figures from its events."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.log import (
    Event,
    ProceedAsked,
    SiteLost,
    UpdateApplied,
    UpdateCame,
    UpdateDiscarded,
    WorkerWent,
)
from anabranch.log.events import ClientBarred
from anabranch.log.pacing import Iteration, PaceSummary, summarise_pace


def iteration(site: int, update: int, went_s: float, missed: int) -> list[Event]:
    """One iteration: pulls for 1 s, computes for 2 s, pushes for 0.5 s, and is applied 0.5 s on."""
    return [
        WorkerWent(at_s=went_s, site=site, update=update, samples=8),
        ProceedAsked(at_s=went_s + 3.0, site=site, update=update, samples=8, compute_s=2.0),
        UpdateCame(at_s=went_s + 3.5, site=site, update=update),
        UpdateApplied(at_s=went_s + 4.0, site=site, update=update, version=1, missed=missed),
    ]


def test_phases_waits_gaps_and_staleness_come_from_the_events() -> None:
    happened = [
        *iteration(0, 1, 0.0, 0),
        *iteration(1, 1, 2.0, 1),
        *iteration(0, 2, 4.0, 1),
        UpdateDiscarded(at_s=9.0, site=1, update=2),
        *(
            ClientBarred(at_s=at_s, client=client)
            for at_s, client in ((9.1, 7), (9.2, 8), (9.3, 7))
        ),
    ]
    pace = summarise_pace(sorted(happened, key=lambda event: event.at_s))
    assert pace is not None
    assert pace.iterations[0][0] == Iteration(1, 8, 0.0, 3.0, 3.5, 2.0, 4.0)
    first = pace.iterations[0][0]
    assert (first.pull_s, first.push_s, first.blocked_s) == (1.0, 0.5, 0.5)
    assert pace.iterations[1][0].blocked_s == 0.0  # its last
    assert pace.iteration_s == 4.0
    assert pace.blocked_s == 0.5
    assert pace.push_s == 0.5
    assert pace.pull_s == 1.0
    assert pace.gaps_s == (2.0, 2.0)
    assert pace.at_once == 0.0
    assert pace.missed == {0: 1, 1: 2}
    assert pace.mean_missed == pytest.approx(2 / 3)
    assert (pace.updates, pace.discarded, pace.barred) == (3, 1, 2)


def test_updates_of_one_step_are_made_at_once() -> None:
    happened = [event for site in range(4) for event in iteration(site, 1, 0.0, 0)]
    happened += [WorkerWent(at_s=4.0, site=site, update=2, samples=8) for site in range(4)]
    pace = summarise_pace(happened)
    assert pace is not None
    assert pace.at_once == 1.0
    assert pace.gaps == 21 * (0.0,)


def test_gaps_have_a_distribution_in_iterations() -> None:
    happened = [e for site, at_s in enumerate([0.0, 0.4, 1.0]) for e in iteration(site, 1, at_s, 0)]
    assert summarise_pace(happened).gaps == ()  # type: ignore[union-attr]
    happened.append(WorkerWent(at_s=4.0, site=0, update=2, samples=8))
    pace = summarise_pace(happened)
    assert pace is not None
    assert pace.iteration_s == 4.0
    assert pace.gaps[0] == pytest.approx(0.1)
    assert pace.gaps[20] == pytest.approx(0.15)


def test_a_workers_first_model_is_there_and_no_pull_is_counted() -> None:
    pace = summarise_pace(iteration(0, 1, 0.0, 0))
    assert pace is not None
    assert (pace.push_s, pace.pull_s) == (0.5, None)


def test_a_run_without_servers_has_no_pace() -> None:
    assert summarise_pace([]) is None


def test_the_time_that_a_worker_was_dead_belongs_to_no_iteration() -> None:
    died = SiteLost(at_s=5.0, site=0, detail="died", goes_on=True)
    pace = summarise_pace([*iteration(0, 1, 0.0, 0), died, *iteration(0, 2, 90.0, 0)])
    assert pace is not None
    assert [each.next_s for each in pace.iterations[0]] == [None, None]


class Watched(dict[int, list[Iteration]]):
    """Iterations that count how often they are looked through."""

    looks = 0

    def values(self) -> Any:
        self.looks += 1
        return super().values()


def test_a_run_of_many_gaps_is_looked_through_once() -> None:
    whole = Iteration(1, 4, went_s=0.0, asked_s=1.0, came_s=2.0, compute_s=1.0, next_s=4.0)
    iterations = Watched({0: [whole]})
    pace = PaceSummary(iterations, gaps_s=50 * (1.0,), missed={}, discarded=0)
    assert pace.at_once == 0.0
    assert iterations.looks == 1
    assert pace.gaps == 21 * (0.25,)
    assert iterations.looks == 2
