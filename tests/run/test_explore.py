"""Faults at random moments, and an oracle; ``anabranch explore`` looks for longer."""

from __future__ import annotations

import pytest

from anabranch.run import explore
from anabranch.run.explore import make_case, minimised
from anabranch.scheduler.repair import Unsettled

# Cases that once broke something: a lost site alone had asked; a broadcast from a lost site; a
# source that reported a part of what it has.
FOUND = (9, 10, 70, 81, 161, 281, 693)


@pytest.mark.parametrize("seed", FOUND)
def test_what_was_found_stays_mended(seed: int) -> None:
    assert explore.explore(make_case(seed)).violations == ()


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_no_fault_breaks_a_promise(first: int) -> None:
    found = [explore.explore(make_case(seed)) for seed in range(first, first + 20)]
    assert [each.violations for each in found] == [()] * 20
    assert sum(each.repaired for each in found) > 3


@pytest.mark.slow
@pytest.mark.parametrize("first", range(10_000, 10_800, 100))
def test_no_fault_breaks_a_promise_in_a_minute(first: int) -> None:
    for seed in range(first, first + 100):
        assert explore.explore(make_case(seed)).violations == (), seed


def test_the_oracle_sees_a_contribution_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Unsettled, "_contribute", lambda self, again, sites: None)
    for seed in range(100):
        case = make_case(seed)
        if violations := explore.explore(case).violations:
            break
    assert "is not the result of" in violations[0]
    smaller = minimised(case)
    assert explore.explore(smaller).violations
    assert len(smaller.faults) == 1
    assert len(smaller.calls) <= len(case.calls)
