"""When a target is reached, and what it took, where sites' models differ."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from anabranch.log import summarise
from anabranch.log.events import Evaluated, LinkBytes, ReachedBy, RoundDone, RunStarted
from anabranch.log.target import Target

# (seconds, site, accuracy): the first is there at 2 s, the mean at 4, all at 6.
SEEN = [
    *[(1.0, 0, 0.5), (1.0, 1, 0.5), (2.0, 0, 0.9), (3.0, 1, 0.7), (4.0, 0, 0.92)],
    *[(4.0, 1, 0.88), (5.0, 0, 0.6), (6.0, 0, 0.91), (6.0, 1, 0.9)],
]


def evaluated(step: int | None = 1) -> list[Evaluated]:
    return [
        Evaluated(at_s=at_s, site=site, round=1, accuracy=accuracy, step=step)
        for at_s, site, accuracy in SEEN
    ]


@pytest.mark.parametrize(("reached_by", "at_s"), [("first", 2.0), ("mean", 4.0), ("all", 6.0)])
def test_the_first_the_mean_or_all(
    reached_by: ReachedBy, at_s: float, start: Callable[..., RunStarted]
) -> None:
    rule = Target(0.9, reached_by, sites=2)
    assert next(each.at_s for each in evaluated() if rule.is_reached(each)) == at_s
    links = [
        LinkBytes(at_s=end_s, source=0, target=1, seconds=1.0, payload_bytes=100)
        for end_s in (1.0, 2.0, 3.0, 4.0, 5.5, 6.0, 7.0)
    ]
    run = summarise([start(reached_by=reached_by), *links, *evaluated()])
    assert run.time_to_accuracy_s(0.9) == at_s
    # At 2 and at 4 s whole intervals; the one that ends at 5.5 s began later than 4 s.
    assert run.bytes_to_accuracy(0.9) == {2.0: 200, 4.0: 400, 6.0: 600}[at_s]
    assert run.bytes_to_accuracy(0.99) is None


@pytest.mark.parametrize(("window_s", "at_s"), [(0.0, 2.0), (1.5, 5.0), (2.5, 6.0)])
def test_the_mean_of_a_window_must_be_there(
    window_s: float, at_s: float, start: Callable[..., RunStarted]
) -> None:
    seen = [0.5, 0.92, 0.7, 0.88, 0.94, 0.99]
    told = [
        Evaluated(at_s=float(second), site=0, round=second, accuracy=accuracy)
        for second, accuracy in enumerate(seen, 1)
    ]
    rule = Target(0.9, "first", sites=1, window_s=window_s)
    assert next(each.at_s for each in told if rule.is_reached(each)) == at_s
    assert summarise([start(window_s=window_s), *told]).time_to_accuracy_s(0.9) == at_s


def test_a_window_has_the_same_evaluations_for_the_summary_as_for_the_rule_that_ended_the_run(
    start: Callable[..., RunStarted],
) -> None:
    # A round ends after its model is evaluated. By the ends 0.8 would be in the last window too.
    made_s, ends_s, seen = (1.0, 2.0, 4.1), (1.3, 2.3, 4.2), (0.7, 0.8, 0.9)
    told = [
        Evaluated(at_s=at_s, site=0, round=round, accuracy=accuracy)
        for round, (at_s, accuracy) in enumerate(zip(made_s, seen, strict=True), 1)
    ]
    done = [
        RoundDone(at_s=at_s, site=site, round=round, version=1, seconds=1.0, checksum=None)
        for round, at_s in enumerate(ends_s, 1)
        for site in range(4)
    ]
    rule = Target(0.9, "first", sites=1, window_s=2.0)
    assert [rule.is_reached(each) for each in told] == [False, False, True]
    run = summarise([start(window_s=2.0), *told, *done])
    assert run.time_to_accuracy_s(0.9) == 4.2


def test_a_window_of_losses_holds_out_a_single_low_one() -> None:
    rule = Target(0.1, "all", sites=2, is_loss=True, window_s=2.0)
    told = [(0, 0.3, 1.0), (1, 0.05, 1.0), (0, 0.05, 2.0), (0, 0.1, 3.0)]
    assert [rule.is_reached_by(*each) for each in told] == [False, False, False, True]


def test_a_site_that_comes_back_has_an_empty_window() -> None:
    rule = Target(0.9, "first", sites=1, window_s=60.0)
    assert not rule.is_reached_by(0, 0.5, 1.0)
    rule.lost(0)
    rule.joined(0)
    assert rule.is_reached_by(0, 0.95, 2.0)


def test_a_model_that_all_share_reaches_it_for_all() -> None:
    rule = Target(0.9, "all", sites=9)
    assert [rule.is_reached(each) for each in evaluated(step=None)[:3]] == [False, False, True]


def test_an_interval_counts_as_far_as_it_was_over(start: Callable[..., RunStarted]) -> None:
    sent = LinkBytes(at_s=4.0, source=0, target=1, seconds=4.0, payload_bytes=100)
    run = summarise([start(), sent, *evaluated()])
    assert run.bytes_to_accuracy(0.9) == 50


def test_a_site_that_comes_back_counts_again() -> None:
    rule = Target(0.9, "all", sites=2)
    rule.lost(1)
    rule.joined(1)
    [seen, *_] = evaluated()
    assert not rule.is_reached(seen)


def test_sites_that_are_exactly_there_reach_it_in_the_mean() -> None:
    rule = Target(0.9, "mean", sites=9)
    seen = [Evaluated(at_s=1.0, site=site, round=1, accuracy=0.9, step=1) for site in range(9)]
    assert [rule.is_reached(each) for each in seen] == [False] * 8 + [True]
