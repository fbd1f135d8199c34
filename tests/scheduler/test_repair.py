"""What completes an exchange that was interrupted, from what its members say they hold."""

from __future__ import annotations

from itertools import count

from anabranch.net.messages import Contribution, RepairPart
from anabranch.scheduler._repair import Unsettled

ALL = ((0, 100),)


def interrupted(source: int | None = None, left: tuple[int, ...] = (0, 1, 3)) -> Unsettled:
    """Return an exchange of four sites, of which some are left."""
    exchange = Unsettled(7, 100, range(4), None if source is None else {source})
    exchange.interrupt(left)
    return exchange


def test_it_is_settled_once_all_hold_it_all() -> None:
    exchange = Unsettled(7, 100, range(3), None)
    for site in range(3):
        assert not exchange.is_settled
        assert not exchange.hear(site, 0, ALL)
    assert exchange.is_settled
    assert exchange.is_whole


def test_what_nobody_holds_is_reduced_again_and_the_rest_spread() -> None:
    exchange = interrupted()
    assert not exchange.hear(0, 1, ((0, 40),))
    assert not exchange.hear(3, 1, ((10, 50),))
    assert exchange.hear(1, 1, ())
    numbers = count(8)
    assert exchange.mend(lambda: next(numbers)) == (
        RepairPart(8, None, (0, 1, 3), ((50, 100),)),
        RepairPart(9, 0, (1, 3), ((0, 40),)),
        RepairPart(10, 3, (0, 1), ((40, 50),)),
    )
    assert exchange.exchanges == (8, 9, 10)
    assert exchange.contributions == (
        Contribution(0, 50, (0, 1, 2, 3)),
        Contribution(50, 100, (0, 1, 3)),
    )
    assert exchange.repaired == (50, 50)
    for site in (0, 1, 3):
        assert not exchange.is_settled
        exchange.hear(site, 1, ALL)
    assert exchange.is_settled
    assert not exchange.is_whole


def test_what_was_said_before_the_interruption_does_not_count() -> None:
    exchange = Unsettled(7, 100, range(2), None)
    exchange.hear(0, 0, ALL)
    exchange.interrupt((0, 1))
    assert not exchange.hear(1, 0, ALL)
    assert not exchange.is_settled
    assert not exchange.hear(0, 1, ALL)
    assert not exchange.hear(2, 1, ALL)  # which is none of those left
    assert exchange.hear(1, 1, ALL)
    assert exchange.mend(lambda: 8) == ()


def test_a_second_loss_keeps_what_the_first_repair_has_reached() -> None:
    exchange = interrupted()
    for site in (0, 1, 3):
        exchange.hear(site, 1, ())
    exchange.mend(lambda: 8)
    exchange.interrupt((1, 3))
    exchange.hear(1, 2, ((0, 30),))
    assert exchange.hear(3, 2, ())
    numbers = count(9)
    assert exchange.mend(lambda: next(numbers)) == (
        RepairPart(9, None, (1, 3), ((30, 100),)),
        RepairPart(10, 1, (3,), ((0, 30),)),
    )
    assert exchange.contributions == (
        Contribution(0, 30, (0, 1, 3)),
        Contribution(30, 100, (1, 3)),
    )


def test_a_broadcast_goes_on_from_its_source_or_from_who_has_it() -> None:
    there = interrupted(source=1)
    for site in (0, 1, 3):
        there.hear(site, 1, ())
    assert there.mend(lambda: 8) == (RepairPart(8, 1, (0, 3), ALL),)
    lost = interrupted(source=2)
    for site, held in ((0, ((0, 60),)), (1, ((50, 100),)), (3, ())):
        lost.hear(site, 1, held)
    numbers = count(8)
    assert lost.mend(lambda: next(numbers)) == (
        RepairPart(8, 0, (1, 3), ((0, 60),)),
        RepairPart(9, 1, (0, 3), ((60, 100),)),
    )
    gone = interrupted(source=2)
    for site in (0, 1, 3):
        gone.hear(site, 1, ((0, 99),))
    assert gone.mend(lambda: 8) is None


def test_who_follows_contributes_nothing_and_gets_it_all() -> None:
    exchange = Unsettled(7, 100, range(4), None, followers={3})
    assert exchange.contributions == (Contribution(0, 100, (0, 1, 2)),)
    assert not exchange.is_whole
    exchange.interrupt((0, 1, 3))
    exchange.hear(0, 1, ())
    exchange.hear(1, 1, ((0, 40),))
    assert exchange.hear(3, 1, ((0, 50),))
    numbers = count(8)
    assert exchange.mend(lambda: next(numbers)) == (
        RepairPart(8, None, (0, 1, 3), ((50, 100),)),
        RepairPart(9, 3, (0, 1), ((0, 50),)),
    )
    assert exchange.contributions == (
        Contribution(0, 50, (0, 1, 2)),
        Contribution(50, 100, (0, 1)),
    )


def test_where_all_that_contributed_are_lost_nothing_completes_it() -> None:
    exchange = Unsettled(7, 100, range(4), None, followers={2, 3})
    exchange.interrupt((2, 3))
    exchange.hear(2, 1, ((0, 50),))
    assert exchange.hear(3, 1, ())
    assert exchange.mend(lambda: 8) is None
