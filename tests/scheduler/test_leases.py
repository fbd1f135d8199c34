"""Leases at the scheduler: which numbers are leased, when, and what a loss or an end does then."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from anabranch.exchange.terms import Op
from anabranch.net.errors import OutOfPlaceMessage
from anabranch.net.messages import (
    AskAhead,
    ExchangeEnded,
    ExchangeFailed,
    ExchangeRequest,
    Gather,
    Grant,
    Holding,
    Interrupt,
    Lease,
    LeaseOver,
    Repair,
    Settled,
    Signature,
)
from anabranch.plan import Plan
from anabranch.scheduler._channels import Channels
from anabranch.scheduler.calls._end import Last
from anabranch.scheduler.calls._leases import Cut, LeasedNumbers, Leases
from anabranch.scheduler.calls._outcome import Outcome

from ..every import every
from .test_channels import PLAN, SECOND, SMALL

SITES = range(4)
OTHER = Signature(op=Op.SUM, wire=0, elements=100)


def make(most_bytes: float = math.inf) -> Channels:
    def chunking(plan: Plan, elements: int) -> int:
        return max(1, elements // 10)

    def dispatching(plan: Plan, elements: int, chunk: int, trip_s: float) -> tuple[int, int]:
        return 10, 4

    return Channels(
        lambda site: f"site {site}",
        4,
        PLAN,
        most_bytes,
        chunking,
        dispatching,
        repairs=True,
        returns_early=True,
        leases=True,
    )


def ask(
    channels: Channels, site: int, number: int, signature: Signature = SMALL, leased: bool = False
) -> Outcome:
    return channels.request(site, ExchangeRequest(0, number, signature, is_leased=leased))


def exchange(channels: Channels, number: int, signature: Signature = SMALL) -> list[Lease]:
    """Make an exchange at all sites, to its end; return the leases that site 0 gets."""
    leases = []
    for site in SITES:
        said = ask(channels, site, number, signature).say
        leases += [each for who, each in said if isinstance(each, Lease) and not who]
    elements = signature.elements
    for site in SITES:
        channels.hold(site, Holding(0, number, 0, ((0, elements),)))
    for site in SITES:
        channels.ended(
            site, ExchangeEnded(0, number, 1, 0.01, None, round_trip_s=0.06, every_s=0.01)
        )
    return leases


def leased(channels: Channels) -> Lease:
    """Make exchanges until there is a lease, and return it."""
    for number in range(1, 9):
        if leases := exchange(channels, number):
            return leases[0]
    pytest.fail("no lease")


def test_after_three_exchanges_in_a_row_the_next_ones_are_leased_to_all() -> None:
    channels = make()
    assert not exchange(channels, 1)
    assert not exchange(channels, 2)
    (lease,) = exchange(channels, 3)
    assert (lease.first, lease.count, lease.settles) == (4, 29, True)
    (size,) = lease.sizes
    assert (size.elements, size.version, size.plan_json, size.chunk_elements) == (100, 1, "", 10)
    assert size.trees is not None
    assert len(size.trees) == 4


def test_a_member_that_asks_gets_the_grant_that_the_lease_fixes() -> None:
    channels = make()
    lease = leased(channels)
    begun = ask(channels, 2, lease.first, leased=True)
    assert not [each for _, each in begun.say if isinstance(each, Grant)]
    assert begun.began, "the first to begin is written down"
    (said,) = ask(channels, 1, lease.first).say
    grant = said[1]
    assert isinstance(grant, Grant)
    assert (grant.exchange, grant.version) == (lease.first_exchange, 1)
    assert grant.trees == lease.sizes[0].trees


def test_an_end_that_is_told_with_what_is_held_counts_at_the_settlement() -> None:
    channels = make()
    ended = ExchangeEnded(0, 1, 1, 0.01, None, round_trip_s=0.06, every_s=0.01)
    for site in SITES:
        ask(channels, site, 1)
    for site in SITES:
        outcome = channels.hold(site, Holding(0, 1, 0, ((0, 100),), ended))
        assert outcome.ended == ([(each, ended) for each in SITES] if site == 3 else [])
        assert channels.all.held.numbers == [1]


@pytest.mark.parametrize(
    "ended",
    [
        ExchangeEnded(0, 1, 2, 0.01, None),  # another version
        ExchangeEnded(0, 2, 1, 0.01, None),
        ExchangeEnded(1, 1, 1, 0.01, None),
    ],
)
def test_an_end_that_does_not_fit_what_is_held_is_its_senders_fault(ended: ExchangeEnded) -> None:
    channels = make()
    for site in SITES:
        ask(channels, site, 1)
    with pytest.raises(OutOfPlaceMessage, match="ends"):
        channels.hold(2, Holding(0, 1, 0, ((0, 100),), ended))


def test_an_end_that_was_told_before_a_loss_is_void() -> None:
    channels = make()
    ended = ExchangeEnded(0, 1, 1, 0.01, None)
    for site in SITES:
        ask(channels, site, 1)
    channels.hold(0, Holding(0, 1, 0, ((0, 100),), ended))
    channels.lose({3}, SECOND)
    said = [channels.hold(site, Holding(0, 1, 1, ((0, 100),))) for site in (0, 1, 2)]
    said += [channels.hold(site, Holding(0, 1, 1, ((0, 100),))) for site in (0, 1, 2)]
    assert not any(outcome.ended for outcome in said)


RECALLED = [(site, LeaseOver(0, is_void=False)) for site in SITES]


def test_a_new_plan_is_for_the_numbers_after_those_that_members_have_begun() -> None:
    channels = make()
    lease = leased(channels)
    assert channels.issue(SECOND).say == RECALLED
    ask(channels, 2, lease.first, leased=True)  # begun before it heard of that
    (said,) = ask(channels, 1, lease.first).say
    assert isinstance(said[1], Grant)
    assert said[1].version == 1
    for site in SITES:
        (said,) = ask(channels, 3, lease.first + site).say
        assert isinstance(said[1], Grant)
        assert said[1].version == 1, "a member that has not answered may have begun it"
        channels.lease_ended(site, 0)
    say = ask(channels, 3, lease.first + 4).say
    (grant,) = [each for _, each in say if isinstance(each, Grant)]
    assert grant.version == 2
    leases = [each for _, each in say if isinstance(each, Lease)]
    assert [each.first for each in leases] == [lease.first + 5] * 4
    assert [each.sizes[0].version for each in leases] == [2] * 4
    assert every(bool(each.sizes[0].plan_json) == (who != 3) for who, each in say[1:])


def test_leases_under_a_new_plan_are_not_recalled_twice() -> None:
    channels = make()
    leased(channels)
    assert channels.issue(SECOND).say
    assert not channels.issue(replace(SECOND, version=3)).say
    assert not channels.close("it is over").say
    for site in SITES:
        assert channels.books.why_closed is None
        channels.lease_ended(site, 0)
    assert channels.books.why_closed == "it is over"


def test_an_answer_to_an_earlier_recall_does_not_count_for_a_later_one() -> None:
    channels = make()
    leased(channels)
    assert channels.issue(SECOND).say
    channels.lose((3,), replace(SECOND, version=3))
    for site in (0, 1, 2):
        channels.lease_ended(site, 0)  # to the first recall
    channels.close("it is over")
    assert channels.books.why_closed is None, "the answers to the second are yet to come"
    for site in (0, 1, 2):
        channels.lease_ended(site, 0)
    assert channels.books.why_closed == "it is over"


def test_an_answer_that_nobody_asked_for_changes_nothing() -> None:
    channels = make()
    leased(channels)
    channels.lease_ended(0, 0)
    channels.issue(SECOND)
    for site in SITES[1:]:
        channels.lease_ended(site, 0)
    channels.close("it is over")
    assert channels.books.why_closed is None


def test_a_size_that_is_new_to_a_lease_has_the_latest_plan_and_the_leased_number() -> None:
    channels = make()
    lease = leased(channels)
    channels.books.issue(SECOND)
    grants = [each for _, each in ask(channels, 0, lease.first, Signature(0, 0, 7)).say]
    assert isinstance(grants[0], Grant)
    assert (grants[0].exchange, grants[0].version) == (lease.first_exchange, 2)


def test_a_leased_number_is_not_granted_ahead() -> None:
    channels = make()
    lease = leased(channels)
    assert not channels.ask_ahead(1, AskAhead(0, lease.first, OTHER)).say
    ask(channels, 2, lease.first, leased=True)
    assert ask(channels, 1, lease.first).say, "the call gets its grant"


def test_terms_that_differ_fail_though_one_member_has_begun() -> None:
    channels = make()
    lease = leased(channels)
    ask(channels, 2, lease.first, leased=True)
    said = ask(channels, 1, lease.first, OTHER, leased=True).say
    failed = [each for _, each in said if isinstance(each, ExchangeFailed)]
    assert len(failed) == 4
    assert every(each.exchange == lease.first_exchange for each in failed)
    assert "site 2 calls for a mean" in failed[0].reason
    assert "site 1 calls for a sum" in failed[0].reason


def test_a_loss_ends_leases_and_interrupts_what_members_may_have_begun() -> None:
    channels = make()
    lease = leased(channels)
    said = channels.lose((3,), SECOND).say
    assert [(who, each) for who, each in said if isinstance(each, LeaseOver)] == [
        (site, LeaseOver(0, is_void=True)) for site in (0, 1, 2)
    ]
    begun = ask(channels, 2, lease.first, leased=True).say
    interrupts = [each for _, each in begun if isinstance(each, Interrupt)]
    assert len(interrupts) == 3
    assert interrupts[0].exchanges == (lease.first_exchange,)
    asked = [each for who, each in ask(channels, 1, lease.first).say if who == 1]
    assert isinstance(asked[0], Grant)
    assert asked[0].is_interrupted
    ask(channels, 0, lease.first)
    outcome = Outcome()
    for site in (0, 1, 2):
        outcome = channels.hold(site, Holding(0, lease.first, 1, ()))
    assert [each.version for _, each in outcome.say if isinstance(each, Repair)] == [2, 2, 2]


def test_no_lease_follows_a_loss_a_gathering_or_the_end_at_once() -> None:
    channels = make()
    leased(channels)
    channels.lose((3,), SECOND)
    book = channels.books.all
    assert not book.leases.last
    book.leases.in_a_row = 3
    channels.gather(0, Gather(0, 1, b""))
    assert not book.leases.in_a_row


def test_the_last_exchange_is_set_once_members_have_ended_their_leases() -> None:
    channels = make()
    lease = leased(channels)
    said = channels.close("it is over").say
    assert said == [(site, LeaseOver(0, is_void=False)) for site in SITES]
    ask(channels, 2, lease.first, leased=True)  # begun before it heard of that
    for site in SITES[:-1]:
        assert not channels.lease_ended(site, 0).is_to_remember
        assert channels.books.why_closed is None
    assert channels.lease_ended(3, 0).is_to_remember
    assert channels.books.lasts == (lease.first + 1,)


@pytest.mark.parametrize("is_lost", [True, False])
def test_the_end_waits_for_no_member_that_is_gone(is_lost: bool) -> None:
    channels = make()
    leased(channels)
    channels.close("it is over")
    for site in SITES[:-1]:
        channels.lease_ended(site, 0)
    assert channels.books.why_closed is None
    _ = channels.lose((3,), SECOND) if is_lost else channels.leave(3)
    assert channels.books.why_closed == "it is over"


def test_after_a_loss_the_end_waits_until_members_have_told_what_they_had_begun() -> None:
    channels = make()
    lease = leased(channels)
    channels.lose((3,), SECOND)
    channels.close("it is over")
    for site in (0, 1):
        channels.lease_ended(site, 0)
    assert channels.books.why_closed is None
    ask(channels, 2, lease.first, leased=True)
    channels.lease_ended(2, 0)
    assert channels.books.lasts == (lease.first + 1,)


def test_the_last_of_a_bounded_number_is_never_leased() -> None:
    channels = make()
    channels.bound(6, "six rounds are over")
    assert channels.all.end.bound == Last(6, "six rounds are over")
    lease = leased(channels)
    assert lease.first + lease.count == 6


def test_an_admission_forgets_leases() -> None:
    channels = make()
    leased(channels)
    for site in SITES:
        channels.gather(site, Gather(0, 1, b"", admits=True))
    channels.admit(1, (), SITES, PLAN)
    assert channels.all.leases.of(4) is None


def test_leases_are_found_by_number_and_void_ones_too() -> None:
    leases = Leases()
    leases.add(LeasedNumbers(4, 6, 10, {1: Cut(PLAN, 1, None)}), 3)
    leases.add(LeasedNumbers(7, 9, 20, {}), 4)
    found = leases.of(5)
    assert found is not None
    assert found.exchange_of(5) == 11
    assert leases.of(10) is None
    leases.add(LeasedNumbers(10, 9, 30, {}), 6)
    assert leases.of(5) is None, "all members have asked for it"
    assert leases.last == 9
    leases.end()
    assert leases.last == 0
    void = leases.of(8)
    assert void is not None
    assert void.is_void


def test_no_lease_overlaps_one_of_which_members_may_have_begun_more() -> None:
    channels = make()
    lease = leased(channels)
    channels.lose((3,), SECOND)
    for number in range(lease.first, lease.first + 4):
        said = ask(channels, 0, number, leased=True).say
        assert not [each for _, each in said if isinstance(each, Lease)]
    assert channels.all.held[lease.first + 3].exchange == lease.first_exchange + 3
    for site in (0, 1, 2):
        channels.lease_ended(site, 0)
    grant = ask(channels, 0, lease.first + 4).say[0][1]
    assert isinstance(grant, Grant)
    assert grant.exchange >= lease.first_exchange + lease.count, "its number is a new one"
    assert not grant.is_interrupted


def test_a_result_names_a_lost_site_that_contributed_under_a_lease_unheard() -> None:
    channels = make()
    lease = leased(channels)
    channels.lose((3,), SECOND)
    for site in (0, 1, 2):
        ask(channels, site, lease.first, leased=True)
    for site, held in ((0, ((0, 100),)), (1, ((0, 100),)), (2, ())):
        channels.hold(site, Holding(0, lease.first, 1, held))
    outcome = Outcome()
    for site in (0, 1, 2):
        outcome = channels.hold(site, Holding(0, lease.first, 1, ((0, 100),)))
    settled = outcome.say[0][1]
    assert isinstance(settled, Settled)
    assert [each.sites for each in settled.contributions] == [(0, 1, 2, 3)]


def test_a_lease_that_is_not_used_is_recalled() -> None:
    channels = make()
    lease = leased(channels)
    channels.books.open((0, 1), (0, 1))
    channels.books.counter.latest += 2000
    over: list[int] = []
    for number in range(1, 9):
        for site in (0, 1):
            said = channels.request(site, ExchangeRequest(1, number, SMALL)).say
            over += [who for who, each in said if each == LeaseOver(0, is_void=False)]
        for site in (0, 1):
            channels.hold(site, Holding(1, number, 0, ((0, 100),)))
            ended = ExchangeEnded(1, number, 1, 0.01, None, round_trip_s=0.06, every_s=0.01)
            channels.ended(site, ended)
    assert over == [0, 1, 2, 3]
    for site in SITES:
        channels.lease_ended(site, 0)
    assert channels.all.leases.of(lease.first) is None


def test_nothing_is_leased_once_calls_can_end_no_more() -> None:
    channels = make()
    for number in (1, 2):
        exchange(channels, number)
    ask(channels, 0, 3)
    channels.gather(1, Gather(0, 1, b""))
    assert channels.all.order.limit is not None
    channels.all.leases.in_a_row = 3
    assert not [each for _, each in ask(channels, 0, 4).say if isinstance(each, Lease)]
