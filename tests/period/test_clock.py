"""What a site knows of others' steps, and how far ahead it may be."""

from __future__ import annotations

import pytest

from anabranch.period import VectorClock
from anabranch.period._clock import FINISHED


def test_a_site_makes_as_many_steps_ahead_of_the_slowest_as_it_may() -> None:
    clock = VectorClock(1, sites=3, most_ahead=2)
    made = 0
    while clock.may_step():
        clock.step()
        made += 1
    assert made == clock.steps == 2
    assert clock.hear((1, 0, 0))
    assert not clock.may_step()  # the third has made none
    assert clock.hear((1, 0, 1))
    assert clock.may_step()


def test_without_a_bound_it_never_waits() -> None:
    clock = VectorClock(0, sites=2)
    for _ in range(100):
        assert clock.may_step()
        clock.step()


@pytest.mark.parametrize("how", ["gone", "it has finished"])
def test_a_site_that_makes_no_more_steps_is_not_waited_for(how: str) -> None:
    clock = VectorClock(0, sites=2, most_ahead=1)
    clock.step()
    assert not clock.may_step()
    if how == "gone":
        clock.gone(1)
    else:
        other = VectorClock(1, sites=2, most_ahead=1)
        other.finish()
        assert clock.hear(other.known)
    assert clock.may_step()


def test_news_are_more_steps_of_other_sites_alone() -> None:
    clock = VectorClock(0, sites=3)
    clock.step()
    assert clock.hear((0, 2, 1))
    assert clock.known == (1, 2, 1)
    assert not clock.hear((0, 2, 1))
    assert not clock.hear((5, 1, 1))  # what others believe of this one is not news to it
    assert clock.known == (1, 2, 1)


@pytest.mark.parametrize("known", [(0, 0), (0, 0, 0, 0), (0, -1, 0), (0, 0, FINISHED + 1)])
def test_a_clock_that_cannot_be_is_refused_and_changes_nothing(known: tuple[int, ...]) -> None:
    clock = VectorClock(0, sites=3)
    with pytest.raises(ValueError, match=f"a clock of {len(known)} sites, must hold 3"):
        clock.hear(known)
    assert clock.known == (0, 0, 0)
    assert clock.hear((0, FINISHED, 0))
