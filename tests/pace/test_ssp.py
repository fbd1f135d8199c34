"""How far ahead, and how stale at worst."""

from __future__ import annotations

from itertools import product

import pytest

from anabranch.pace import Ssp
from tests.pace.world import live


@pytest.mark.parametrize("lead", [0, 1, 3])
def test_a_fast_worker_waits_once_its_lead_exceeds_the_bound(lead: int) -> None:
    story = live(
        Ssp(lead=lead), lambda worker, k: (1.0, 10.0)[worker], [(0.0, 0), (0.0, 1)], (), 9.5
    )
    assert story.went[0] == [float(k) for k in range(lead + 1)]


@pytest.mark.parametrize("lead", [0, 1, 2])
def test_the_bound_on_staleness_is_the_worst_case(lead: int) -> None:
    """Among all timings of two workers, in steps of their own, one reaches it and none exceeds."""
    worst = 0
    for choice in product((1.0, 2.5, 20.0), repeat=2 * (lead + 2)):
        times = choice[: lead + 2], choice[lead + 2 :]

        def takes(worker: int, k: int, times: tuple[tuple[float, ...], ...] = times) -> float:
            return times[worker][(k - 1) % len(times[worker])]

        story = live(Ssp(lead=lead), takes, [(0.0, 0), (0.0, 1)])
        worst = max(worst, *(each.missed for each in story.applied))
    assert worst == Ssp(lead=lead).staleness_bound(2) == 2 * lead + 1


def test_whoever_waited_for_one_that_leaves_goes_on() -> None:
    story = live(
        Ssp(lead=0), lambda worker, k: (1.0, 50.0)[worker], [(0.0, 0), (0.0, 1)], [(7.25, 1)], 9.5
    )
    assert story.went[0] == [0.0, 7.25, 8.25, 9.25]


def test_a_negative_lead_is_refused() -> None:
    with pytest.raises(ValueError, match="a lead of -1 iterations; give 0 or more"):
        Ssp(lead=-1)
