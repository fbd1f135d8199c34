"""The books: what an update missed, and a pace that breaks its word."""

from __future__ import annotations

import pytest

from anabranch.pace import Applied, Asp, Bsp, Ledger, Step


def begun(ledger: Ledger, workers: int) -> Ledger:
    for worker in range(workers):
        ledger.joined()
        ledger.enter(Step(proceed=(worker,)))
    return ledger


def test_an_update_misses_what_became_part_of_the_model_since_its_worker_pulled() -> None:
    ledger = begun(Ledger(Asp()), 2)
    for update in ((0, 1), (1, 1)):
        ledger.pushed(update)
    assert ledger.enter(Step(((0, 1),), (0,))) == (Applied((0, 1), 1, 0),)
    ledger.pushed((0, 2))
    assert ledger.enter(Step(((0, 2),), (0,))) == (Applied((0, 2), 2, 0),)
    assert ledger.enter(Step(((1, 1),), (1,))) == (Applied((1, 1), 3, 2),)
    assert ledger.version == 3


def test_updates_of_one_step_do_not_miss_each_other() -> None:
    ledger = begun(Ledger(Bsp()), 3)
    updates = tuple((worker, 1) for worker in range(3))
    for update in updates:
        ledger.pushed(update)
    assert [each.missed for each in ledger.enter(Step(updates, (0, 1, 2)))] == [0, 0, 0]


def test_a_pace_that_breaks_its_word_is_found_out() -> None:
    ledger = begun(Ledger(Bsp()), 2)
    with pytest.raises(AssertionError, match="has not come"):
        ledger.enter(Step(((0, 1),)))
    for update in ((0, 1), (1, 1)):
        ledger.pushed(update)
    ledger.enter(Step(((0, 1),)))
    with pytest.raises(AssertionError, match="settled before"):
        ledger.enter(Step(((0, 1),)))
    with pytest.raises(AssertionError, match="missed 1 of others, the staleness bound is 0"):
        ledger.enter(Step(((1, 1),)))


def test_what_a_worker_computes_ahead_misses_no_update_of_its_own() -> None:
    ledger = begun(Ledger(Asp(), ahead=1), 2)
    for update in ((0, 1), (0, 2), (1, 1)):
        ledger.pushed(update)
    for number, update in enumerate(((0, 1), (1, 1), (0, 2)), 1):
        missed = 0 if number == 1 else 1  # one of the other's, though (0, 2) missed (0, 1) too
        assert ledger.enter(Step((update,))) == (Applied(update, number, missed),)
