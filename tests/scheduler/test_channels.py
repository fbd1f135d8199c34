"""Channels: what members are told about exchanges, subgroups, gatherings and dispatch."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest

from anabranch import plan as plans
from anabranch.exchange.terms import Op, Wire
from anabranch.net.errors import OutOfPlaceMessage, OversizedMessage
from anabranch.net.messages import (
    MOST_GATHERED_BYTES,
    AskAhead,
    CallMade,
    ChannelSnapshot,
    Contribution,
    Dispatched,
    ExchangeEnded,
    ExchangeFailed,
    ExchangeRequest,
    Gather,
    Gathered,
    GatherFailed,
    Grant,
    Holding,
    Interrupt,
    Message,
    Model,
    ModelDigest,
    ModelsDiffer,
    NoMoreRounds,
    OpenExchange,
    Progress,
    RequestAwaited,
    Settled,
    Signature,
    SiteSnapshot,
    Subgrouped,
    Unfit,
    Withdrawn,
)
from anabranch.overlay import random_complete
from anabranch.plan import Plan, fapt
from anabranch.scheduler._channels import Channels
from anabranch.scheduler.calls._dealing import Dispatching
from anabranch.scheduler.calls._end import Last
from anabranch.scheduler.calls._outcome import Began, Outcome

from ..every import every

OVERLAY = random_complete(4, 0)
PLAN = fapt(OVERLAY, roots=4)
SECOND = fapt(OVERLAY, roots=2, version=2)
THIRD = fapt(OVERLAY, roots=2, version=3)
SMALL = Signature(op=0, wire=0, elements=100)


def make(
    most_bytes: float = math.inf, dispatching: Dispatching | None = None, repairs: bool = False
) -> Channels:
    def chunking(plan: Plan, elements: int) -> int:
        return max(1, elements // 10)

    return Channels(
        lambda site: f"site {site}", 4, PLAN, most_bytes, chunking, dispatching, repairs
    )


def request(
    channels: Channels, site: int, number: int, channel: int = 0, signature: Signature = SMALL
) -> Outcome:
    return channels.request(site, ExchangeRequest(channel, number, signature))


def end(
    channels: Channels,
    site: int,
    number: int,
    channel: int = 0,
    checksum: int | None = None,
    version: int = 1,
) -> Outcome:
    return channels.ended(site, ExchangeEnded(channel, number, version, 0.0, checksum))


# --- exchanges


def test_the_first_request_begins_an_exchange_and_each_is_granted() -> None:
    channels = make()
    first = request(channels, 2, 1)
    assert first.say == [(2, Grant(0, 1, 1, 1, "", 10))]
    assert first.began == [Began(0, 1, 1, 2, 100)]
    second = request(channels, 0, 1)
    assert second.say == [(0, Grant(0, 1, 1, 1, "", 10))]
    assert second.began == []
    assert channels.books.largest_elements == 100


def test_members_are_called_once_by_the_first_that_wants_it() -> None:
    channels = make()
    calls = ExchangeRequest(0, 1, SMALL, calls=True)
    said = [channels.request(site, calls).say for site in (1, 2)]
    quiet = request(channels, 0, 1).say
    assert not any(isinstance(each, RequestAwaited) for _, each in quiet)
    awaited = [
        [who for who, each in each_said if isinstance(each, RequestAwaited)] for each_said in said
    ]
    assert awaited == [[0, 2, 3], []]


def test_members_are_called_where_one_that_does_not_call_asks_first() -> None:
    channels = make()
    assert every(not isinstance(each, RequestAwaited) for _, each in request(channels, 0, 1).say)
    said = channels.request(3, ExchangeRequest(0, 1, SMALL, calls=True)).say
    assert [who for who, each in said if each == RequestAwaited(0, 1)] == [0, 1, 2]


def test_an_exchange_that_a_member_cannot_contribute_to_fails_at_all_once() -> None:
    channels = make()
    request(channels, 0, 1)
    request(channels, 1, 1)  # ahead of its call
    reason = "site 1 has 2 NaN elements"
    said = channels.refuse(1, Unfit(0, 1, "2 NaN elements")).say
    assert said == [(site, ExchangeFailed(0, 1, 1, reason)) for site in range(4)]
    assert request(channels, 2, 1).say == []  # which has heard of it
    request(channels, 2, 2)
    assert channels.refuse(1, Unfit(0, 1, "2 NaN elements")).say == []
    assert channels.books.counter.latest == 2


def test_an_exchange_that_waits_for_room_fails_as_one_that_has_begun() -> None:
    channels = make(most_bytes=400)
    request(channels, 0, 1)
    assert request(channels, 0, 2).say == []
    said = channels.refuse(0, Unfit(0, 2, "1 NaN")).say
    assert said == [(site, ExchangeFailed(0, 2, 0, "site 0 has 1 NaN")) for site in range(4)]


@pytest.mark.parametrize("number", [-1, 0, 2])
def test_a_site_refuses_no_exchange_that_it_has_not_asked_for(number: int) -> None:
    channels = make()
    request(channels, 0, 1)
    request(channels, 1, 1)
    request(channels, 1, 2)
    with pytest.raises(OutOfPlaceMessage, match=f"site 0 refuses exchange {number} after 1"):
        channels.refuse(0, Unfit(0, number, "1 NaN"))


def tell_model(
    channels: Channels, site: int, checksum: int, is_first: bool, number: int = 1
) -> None:
    channels.hear_model(site, ModelDigest(0, number, Model(1, checksum, is_first)))


def test_models_that_begin_unlike_fail_the_exchange_that_all_ask_for_then() -> None:
    channels = make()
    for site in range(4):
        tell_model(channels, site, 7 + site // 3, is_first=True)
        said = request(channels, site, 1).say
    assert {type(each) for _, each in said} == {ExchangeFailed}


def test_models_that_begin_unlike_fail_no_exchange_that_a_member_may_have_begun() -> None:
    channels = make()
    channels.ask_ahead(3, AskAhead(0, 1, SMALL))
    for site in range(4):
        tell_model(channels, site, 7 + site // 3, is_first=True)
        said = request(channels, site, 1).say
    assert said == [(site, ModelsDiffer(said[0][1].reason)) for site in range(4)]  # type: ignore[union-attr]


@pytest.mark.parametrize("number", [-1, 0, 1, 3])
def test_a_site_tells_its_model_beside_no_other_exchange_than_its_next(number: int) -> None:
    channels = make()
    request(channels, 0, 1)
    with pytest.raises(OutOfPlaceMessage, match=f"its model for exchange {number} after 1"):
        tell_model(channels, 0, 7, is_first=False, number=number)


# --- exchanges that are asked for ahead of their calls


def ask_ahead(
    channels: Channels, site: int, number: int, signature: Signature = SMALL, attempt: int = 0
) -> list[tuple[int, Message]]:
    return channels.ask_ahead(site, AskAhead(0, number, signature, attempt)).say


def exchanges(said: Iterable[tuple[int, Message]]) -> list[tuple[int, int]]:
    """Return which sites are granted which exchanges, where nothing else is said."""
    found = []
    for site, message in said:
        assert isinstance(message, Grant)
        found.append((site, message.exchange))
    return found


def test_what_is_asked_for_ahead_is_granted_and_its_call_needs_no_answer() -> None:
    channels = make()
    assert exchanges(ask_ahead(channels, 0, 1)) == [(0, 1)]
    assert request(channels, 0, 1).say == []
    assert exchanges(request(channels, 1, 1).say) == [(1, 1)]


def test_a_call_with_other_terms_waits_until_it_is_known_what_was_only_asked_for_ahead() -> None:
    channels = make()
    other = Signature(1, 0, 100)
    ask_ahead(channels, 0, 1)
    ask_ahead(channels, 1, 1)
    assert [request(channels, site, 1, signature=other).say for site in (2, 3)] == [[], []]
    assert request(channels, 0, 1, signature=other).say == []  # site 1 may have begun
    said = request(channels, 1, 1, signature=other).say
    assert exchanges(said) == [(2, 2), (3, 2), (0, 2), (1, 2)]


def test_a_call_that_was_asked_for_ahead_disagrees_with_those_that_waited_for_it() -> None:
    channels = make()
    ask_ahead(channels, 0, 1)
    assert request(channels, 2, 1, signature=Signature(1, 0, 100)).say == []
    reasons = {message.reason for _, message in request(channels, 0, 1).say}  # type: ignore[union-attr]
    assert len(reasons) == 1
    assert "site 0 calls for a mean" in min(reasons)
    assert "site 2 calls for a sum" in min(reasons)


def test_a_site_that_has_taken_back_what_it_asked_for_is_not_named_where_others_disagree() -> None:
    channels = make()
    channels.books.open((0, 1), (0, 1))
    ask_ahead(channels, 0, 1)
    request(channels, 1, 1)
    request(channels, 0, 1, channel=1)
    said = request(channels, 2, 1, signature=Signature(1, 0, 100)).say
    assert every("site 1 calls for a mean" in message.reason for _, message in said)  # type: ignore[union-attr]


@pytest.mark.parametrize("granted", [False, True])
def test_a_call_of_a_later_attempt_is_granted_with_that_attempt(granted: bool) -> None:
    channels = make()
    if granted:
        request(channels, 1, 1)
    ask_ahead(channels, 0, 1)
    ((_, grant),) = channels.request(0, ExchangeRequest(0, 1, SMALL, attempt=1)).say
    assert isinstance(grant, Grant)
    assert (grant.exchange, grant.attempt) == (1 if granted else 2, 1)


def test_what_is_taken_back_gives_its_room_to_what_waits() -> None:
    channels = make(most_bytes=400)
    channels.books.open((0, 1), (0, 1))
    ask_ahead(channels, 0, 1)
    assert request(channels, 1, 1, channel=1).say == []
    assert exchanges(request(channels, 0, 1, channel=1).say) == [(1, 2), (0, 2)]


def test_an_exchange_that_was_interrupted_and_taken_back_begins_anew() -> None:
    """Answers to its interruption, which come late, are none to a later one's."""
    channels = make(repairs=True)
    ask_ahead(channels, 0, 1)
    plan = plans.restrict(SECOND, (0, 1, 2))
    interrupts = [message for _, message in channels.lose({3}, plan).say]
    assert interrupts == [Interrupt(0, 1, 1, (1,))] * 3
    assert gather(channels, 0, 1).say == [(site, Withdrawn(0, 1)) for site in range(3)]
    for site in (1, 2):
        gather(channels, site, 1)
    ((_, grant),) = request(channels, 1, 1).say
    assert isinstance(grant, Grant)
    assert (grant.exchange, grant.is_interrupted) == (2, False)
    assert channels.hold(0, Holding(0, 1, 1, ())).say == []
    interrupts = [
        message
        for _, message in channels.lose({2}, plans.restrict(THIRD, (0, 1))).say
        if isinstance(message, Interrupt)
    ]
    assert interrupts == [Interrupt(0, 1, 2, (2,))] * 2


def test_a_restart_knows_nothing_of_an_exchange_that_was_interrupted_and_taken_back() -> None:
    """Else the next one of its number would be said to have its contributions."""
    channels = make(repairs=True)
    ask_ahead(channels, 0, 1)
    channels.lose({3}, plans.restrict(SECOND, (0, 1, 2)))
    outcome = gather(channels, 0, 1)
    assert outcome.is_to_remember
    assert channels.contributions == {}


def test_answers_to_an_interruption_are_none_to_that_of_the_exchange_after_next() -> None:
    channels = make(repairs=True)
    other = Signature(1, 0, 100)
    ask_ahead(channels, 0, 1)
    channels.lose({3}, plans.restrict(SECOND, (0, 1, 2)))  # generation 1
    channels.take_back(0)
    ask_ahead(channels, 0, 1, signature=other)
    channels.take_back(0)
    ask_ahead(channels, 0, 1)
    said = channels.lose({2}, plans.restrict(THIRD, (0, 1))).say
    assert [message for _, message in said] == [Interrupt(0, 1, 2, (3,))] * 2


def test_the_last_exchange_is_one_that_a_member_may_have_begun() -> None:
    channels = make()
    request(channels, 0, 1)
    ask_ahead(channels, 0, 2)
    channels.close("enough")
    assert request(channels, 0, 2).say == []
    for number in (1, 2):
        assert exchanges(request(channels, 1, number).say) == [(1, number)]
    assert request(channels, 1, 3).over == "enough"
    assert ask_ahead(channels, 0, 3) == [(0, NoMoreRounds(3, "enough"))]


def test_a_site_asks_ahead_for_one_exchange_once_and_no_other_than_its_next() -> None:
    channels = make()
    ask_ahead(channels, 0, 1)
    with pytest.raises(OutOfPlaceMessage, match="site 0 asks twice for exchange 1 ahead"):
        ask_ahead(channels, 0, 1)
    with pytest.raises(OutOfPlaceMessage, match="site 1 asks for exchange 2 after 0"):
        ask_ahead(channels, 1, 2)


def test_a_broadcast_that_is_asked_for_ahead_is_granted_once_it_is_called_for() -> None:
    channels = make()
    source = Signature(Op.COPY, Wire.FLOAT32, 100, 0)
    assert ask_ahead(channels, 0, 1, source) == []
    said = [request(channels, site, 1, signature=source).say for site in range(4)]
    assert said[:3] == [[], [], []]
    assert exchanges(said[3]) == [(site, 1) for site in range(4)]


def test_a_new_plan_goes_along_with_the_first_grant_under_it() -> None:
    channels = make()
    channels.books.issue(SECOND)
    ((_, grant),) = request(channels, 0, 1).say
    assert isinstance(grant, Grant)
    assert plans.loads(grant.plan_json) == SECOND
    ((_, grant),) = request(channels, 0, 2).say
    assert isinstance(grant, Grant)
    assert (grant.version, grant.plan_json) == (2, "")


def test_members_that_disagree_are_named_to_every_member_and_the_channel_goes_on() -> None:
    channels = make()
    request(channels, 0, 1)
    request(channels, 1, 1)
    outcome = request(channels, 2, 1, signature=Signature(1, 2, 100))
    assert [to for to, _ in outcome.say] == [0, 1, 2, 3]
    (failed,) = {message for _, message in outcome.say}
    assert isinstance(failed, ExchangeFailed)
    assert (failed.channel, failed.number, failed.exchange) == (0, 1, 1)
    assert "site 0 calls for a mean of 100 elements (float32 on the wire)" in failed.reason
    assert "site 2 calls for a sum of 100 elements (bfloat16 on the wire)" in failed.reason
    assert not outcome.wrong
    assert request(channels, 3, 1).say == []  # it was told
    for site in range(4):
        ((to, grant),) = request(channels, site, 2).say
        assert to == site
        assert isinstance(grant, Grant)


@pytest.mark.parametrize(
    "signature", [Signature(0, 0, 0), Signature(9, 0, 5), Signature(0, 9, 5), Signature(0, 0, -1)]
)
def test_what_cannot_be_exchanged_is_refused(signature: Signature) -> None:
    with pytest.raises(OutOfPlaceMessage, match="site 1 asks to exchange"):
        request(make(), 1, 1, signature=signature)


def test_when_all_have_ended_what_waited_for_room_is_granted_on_every_channel() -> None:
    channels = make(most_bytes=400)
    channel = subgroup(channels, (0, 1))
    assert subgroup(channels, (0, 1), 1) == channel
    for site in range(4):
        request(channels, site, 1)
    assert request(channels, 0, 1, channel).say == []
    for site in range(3):
        assert end(channels, site, 1).say == []
    outcome = end(channels, 3, 1)
    assert outcome.say == [(0, Grant(channel, 1, 2, 1, "", 10))]
    assert outcome.began == [Began(channel, 1, 1, 0, 100)]


def test_checksums_that_differ_are_wrong() -> None:
    channels = make()
    for site in range(4):
        request(channels, site, 1)
    outcomes = [end(channels, site, 1, checksum=site // 3) for site in range(4)]
    assert [bool(outcome.wrong) for outcome in outcomes] == [False, False, False, True]
    assert "sites [3]" in outcomes[-1].wrong


def test_once_closed_no_further_exchange_is_held() -> None:
    channels = make()
    channel = subgroup(channels, (0, 1))
    request(channels, 0, 1)
    channels.close("5 s are over")
    assert [type(said) for _, said in request(channels, 1, 1).say] == [Grant]
    assert request(channels, 0, 2).say == [(0, NoMoreRounds(2, "5 s are over"))]
    assert request(channels, 0, 1, channel).say == [(0, NoMoreRounds(1, "5 s are over", channel))]


@pytest.mark.parametrize("when", ["before it", "while it is asked for", "under way", "after it"])
def test_members_hear_with_a_result_that_it_is_the_last(when: str) -> None:
    channels = make(repairs=True)
    why = "5 s are over"
    if when == "before it":
        channels.close(why)
    request(channels, 0, 1)
    if when == "while it is asked for":
        channels.close(why)
    for site in (1, 2, 3):
        request(channels, site, 1)
    if when == "under way":
        channels.close(why)

    if when != "after it":
        assert {each.why_last for each in hold(channels, 1)} == {why}
        return
    assert {each.why_last for each in hold(channels, 1)} == {""}
    channels.close(why)
    for site in range(4):
        request(channels, site, 2)
    assert {each.why_last for each in hold(channels, 2)} == {why}
    assert request(channels, 0, 3).say == [(0, NoMoreRounds(3, why))]


def hold(channels: Channels, number: int) -> list[Settled]:
    """Let all sites hold an exchange's result; return what they hear of it."""
    said: list[Settled] = []
    for site in range(4):
        outcome = channels.hold(site, Holding(0, number, 0, ((0, 100),)))
        said += [each for _, each in outcome.say if isinstance(each, Settled)]
        end(channels, site, number)
    assert len(said) == 4
    return said


def test_no_more_rounds_are_held_than_these_however_many_are_asked_for_ahead() -> None:
    channels = make(repairs=True)
    why = "3 rounds are over"
    channels.bound(3, why)
    pair = subgroup(channels, (0, 1))
    for number in (1, 2, 3):
        assert request(channels, 0, number).over == ""
    refused = request(channels, 0, 4)
    assert (refused.say, refused.over) == ([(0, NoMoreRounds(4, why))], why)
    for number in (1, 2, 3):
        for site in (1, 2, 3):
            request(channels, site, number)
    told = [{each.why_last for each in hold(channels, number)} for number in (1, 2, 3)]
    assert told == [{""}, {""}, {why}]
    assert request(channels, 0, 1, pair).over == ""  # it goes on until the run is stopped


def test_where_a_loss_ends_the_run_members_hear_with_a_grant_that_it_is_the_last() -> None:
    channels = make()
    channels.books.tells_last = True

    def told(site: int, number: int) -> str:
        ((_, grant),) = request(channels, site, number).say
        assert isinstance(grant, Grant)
        return grant.why_last

    assert told(0, 1) == ""
    channels.close("5 s are over")
    assert [told(site, 1) for site in (1, 2, 3)] == [""] * 3  # as one of them was told before
    assert [told(site, 2) for site in range(4)] == ["5 s are over"] * 4
    assert request(channels, 0, 3).say == [(0, NoMoreRounds(3, "5 s are over"))]


def test_a_run_that_is_stopped_before_its_last_round_says_why() -> None:
    channels = make(repairs=True)
    channels.bound(3, "3 rounds are over")
    channels.close("5 s are over")
    for site in range(4):
        request(channels, site, 1)
    assert {each.why_last for each in hold(channels, 1)} == {"5 s are over"}


def test_what_hands_the_state_on_takes_no_round_also_after_a_restart() -> None:
    channels = make(repairs=True)
    channels.bound(2, "2 rounds are over")
    handed_on = Signature(op=4, wire=0, elements=100, receivers=(2,))
    for number, signature in ((1, SMALL), (2, handed_on)):
        outcomes = [request(channels, site, number, signature=signature) for site in range(4)]
        assert [each.is_to_remember for each in outcomes] == [signature is handed_on] + [False] * 3
    again = make(repairs=True)
    again.bound(2, "2 rounds are over")
    snapshot = SiteSnapshot((ChannelSnapshot(0, 1, 2, 0, (), (), ()),), is_new=False)
    again.restore(
        dict.fromkeys(range(4), snapshot),
        (),
        (),
        channels.latest_exchange,
        {},
        transfers=channels.following.transfers,
    )
    for each in (channels, again):
        assert request(each, 0, 3).over == ""
        assert each.following.round_of(3) == 2
        assert request(each, 0, 4).over == "2 rounds are over"


@pytest.mark.parametrize("repairs", [True, False])
def test_a_subgroup_that_is_first_asked_for_once_closed_has_a_last_call_too(repairs: bool) -> None:
    channels = make(repairs=repairs)
    why = "5 s are over"
    channels.close(why)
    late = subgroup(channels, (0, 1))
    if repairs:  # members hear it with the result of the one call that is held
        assert channels.books[late].end.last == Last(1, why)
        assert channels.books.why_last(late, 1) == why
        assert [type(said) for _, said in request(channels, 0, 1, late).say] == [Grant]
        assert request(channels, 0, 2, late).say == [(0, NoMoreRounds(2, why, late))]
    else:
        assert request(channels, 0, 1, late).say == [(0, NoMoreRounds(1, why, late))]


def test_a_late_subgroups_last_call_outlives_a_restart() -> None:
    channels = make(repairs=True)
    channels.close("a rule")
    late = subgroup(channels, (0, 1))
    again = make(repairs=True)
    snapshot = SiteSnapshot((ChannelSnapshot(0, 1, 0, 0, (), (), ()),), is_new=False)
    again.restore(
        dict.fromkeys(range(4), snapshot),
        (),
        channels.subgroups,
        channels.latest_exchange,
        channels.contributions,
        channels.books.lasts,
        "a rule",
    )
    assert [book.end.last for book in again.books] == [Last(1, "a rule")] * 2
    assert subgroup(again, (2, 3)) == late + 1
    assert again.books[late + 1].end.last == Last(1, "a rule")


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_member_that_a_restart_finds_without_its_subgroup_has_made_none_of_its_calls(
    has_begun: bool,
) -> None:
    channels = make(repairs=True)
    pair = subgroup(channels, (0, 1))
    request(channels, 0, 1, pair)
    exchange = (1, 10) if has_begun else (0, 0)
    called = OpenExchange(1, SMALL, 1, *exchange, 0, (1,), ())
    of_all = ChannelSnapshot(0, 1, 0, 0, (), (), ())
    snapshots = dict.fromkeys(range(4), SiteSnapshot((of_all,), is_new=False))
    of_pair = ChannelSnapshot(pair, 1, 1, 0, (called,), (), ())
    snapshots[0] = SiteSnapshot((of_all, of_pair), is_new=False)
    again = make(repairs=True)
    again.restore(snapshots, (), channels.subgroups, channels.latest_exchange, {})
    assert subgroup(again, (0, 1), 1) == pair
    assert [site for site, _ in request(again, 1, 1, pair).say] == [1]


# --- subgroups


def subgroup(channels: Channels, members: tuple[int, ...], site: int | None = None) -> int:
    site = members[0] if site is None else site
    ((to, message),) = channels.subgroup(site, members).say
    assert isinstance(message, Subgrouped)
    assert (to, message.members) == (site, members)
    assert plans.loads(message.plan_json).members == set(members)
    return message.channel


def test_a_subgroup_is_a_channel_of_its_own_and_the_same_for_each_member() -> None:
    channels = make()
    assert [subgroup(channels, (1, 3), site) for site in (1, 3, 1)] == [1, 1, 1]
    assert subgroup(channels, (0, 2)) == 2
    ((to, grant),) = request(channels, 3, 1, 1).say
    assert (to, grant) == (3, Grant(1, 1, 1, 1, "", 10))
    ((_, grant),) = request(channels, 3, 1).say  # each channel counts by itself
    assert grant == Grant(0, 1, 2, 1, "", 10)


def test_a_subgroup_runs_under_the_part_of_a_new_plan_that_spans_it() -> None:
    channels = make()
    channel = subgroup(channels, (1, 3))
    channels.books.issue(SECOND)
    ((_, grant),) = request(channels, 1, 1, channel).say
    assert isinstance(grant, Grant)
    assert plans.loads(grant.plan_json) == plans.restrict(SECOND, (1, 3))


def test_a_member_that_joins_its_subgroup_late_gets_the_plan_of_what_has_begun() -> None:
    channels = make()
    pair = subgroup(channels, (0, 1))
    request(channels, 0, 1, pair)
    channels.books.issue(SECOND)
    assert subgroup(channels, (0, 1), 1) == pair  # and gets the second plan
    ((_, grant),) = request(channels, 1, 1, pair).say
    assert isinstance(grant, Grant)
    assert plans.loads(grant.plan_json) == plans.restrict(PLAN, (0, 1))


@pytest.mark.parametrize("members", [(0, 2), (1, 9), (3, 1), (1, 1, 3), (), (-1, 1)])
def test_a_subgroup_that_cannot_be_is_refused(members: tuple[int, ...]) -> None:
    with pytest.raises(OutOfPlaceMessage, match="site 1 asks for a subgroup"):
        make().subgroup(1, members)


@pytest.mark.parametrize("channel", [1, 2, -1])
def test_a_site_that_is_no_member_of_a_channel_is_refused(channel: int) -> None:
    channels = make()
    subgroup(channels, (1, 3))
    with pytest.raises(OutOfPlaceMessage, match="site 0 is no member"):
        request(channels, 0, 1, channel)
    with pytest.raises(OutOfPlaceMessage, match="site 0 is no member"):
        channels.gather(0, Gather(channel, 1, b""))
    with pytest.raises(OutOfPlaceMessage, match="site 0 is no member"):
        end(channels, 0, 1, channel)


# --- small values


def test_values_are_handed_out_in_order_once_all_are_here() -> None:
    channels = make()
    channel = subgroup(channels, (0, 1, 3))
    assert channels.gather(3, Gather(channel, 1, b"c")).say == []
    assert channels.gather(3, Gather(channel, 2, b"z")).say == []
    assert channels.gather(0, Gather(channel, 1, b"a")).say == []
    outcome = channels.gather(1, Gather(channel, 1, b"b"))
    gathered = Gathered(channel, 1, (b"a", b"b", b"c"), (0, 1, 3))
    assert outcome.say == [(0, gathered), (1, gathered), (3, gathered)]


def test_a_site_gathers_once_and_not_too_much() -> None:
    channels = make()
    channels.gather(0, Gather(0, 1, b""))
    with pytest.raises(OutOfPlaceMessage, match="site 0 gathers 1 after 1"):
        channels.gather(0, Gather(0, 1, b""))
    with pytest.raises(OversizedMessage):
        channels.gather(1, Gather(0, 1, bytes(MOST_GATHERED_BYTES + 1)))


# --- calls that cannot end


def gather(channels: Channels, site: int, number: int, channel: int = 0) -> Outcome:
    return channels.gather(site, Gather(channel, number, b""))


def told(outcome: Outcome) -> list[tuple[int, type[Message]]]:
    """Return what is said to whom, failures with one reason."""
    failed = [each for _, each in outcome.say if isinstance(each, ExchangeFailed | GatherFailed)]
    assert len({each.reason for each in failed}) <= 1
    return [(to, type(message)) for to, message in outcome.say]


def reason(outcome: Outcome) -> str:
    message = outcome.say[-1][1]
    assert isinstance(message, ExchangeFailed | GatherFailed)
    return message.reason


@pytest.mark.parametrize("gathers_first", [False, True])
def test_who_exchanges_where_another_gathers_is_told_so_and_so_are_all_later_calls(
    gathers_first: bool,
) -> None:
    channels = make()
    pair = subgroup(channels, (0, 3))
    for site in range(4):  # calls 1 and 2 are alike
        request(channels, site, 1)
        gather(channels, site, 1)
    if gathers_first:
        assert gather(channels, 1, 2).say == []
        outcome = request(channels, 0, 2)
        assert sorted(told(outcome), key=str) == [(0, ExchangeFailed), (1, GatherFailed)]
    else:
        assert told(request(channels, 0, 2)) == [(0, Grant)]
        outcome = gather(channels, 1, 2)
        to_all = [(site, ExchangeFailed) for site in range(4)]  # its data may be everywhere
        assert sorted(told(outcome), key=str) == sorted([*to_all, (1, GatherFailed)], key=str)
    assert reason(outcome).startswith(
        "site 0 exchanges a mean of 100 elements (float32 on the wire) and site 1 gathers "
        "(all_gather or barrier) as call 3 of the same members"
    )
    assert told(request(channels, 2, 2)) == ([(2, ExchangeFailed)] if gathers_first else [])
    assert told(gather(channels, 3, 2)) == [(3, GatherFailed)]
    assert told(gather(channels, 2, 2)) == [(2, GatherFailed)]
    assert told(request(channels, 0, 1, pair)) == [(0, Grant)]  # others are not touched
    assert [told(end(channels, site, 1)) for site in range(4)] == [[]] * 4


def test_what_is_gathered_for_is_named_where_another_exchanges() -> None:
    channels = make()
    request(channels, 0, 1)
    outcome = channels.gather(1, Gather(0, 1, b"", what="all_reduce of 3 elements of float64"))
    assert "site 1 gathers (all_reduce of 3 elements of float64) as call 1" in reason(outcome)
    with pytest.raises(OversizedMessage, match="201 characters"):
        channels.gather(2, Gather(0, 1, b"", what=201 * "x"))


def test_calls_in_another_order_are_found_out_though_all_are_made() -> None:
    channels = make(most_bytes=0)
    request(channels, 0, 1)
    gather(channels, 0, 1)
    outcome = gather(channels, 1, 1)
    to_all = [(site, ExchangeFailed) for site in range(4)]
    gatherings = [(0, GatherFailed), (1, GatherFailed)]
    assert sorted(told(outcome), key=str) == sorted([*to_all, *gatherings], key=str)
    assert told(request(channels, 1, 1)) == []  # it was told


def test_what_needs_a_site_that_has_left_fails_and_what_it_asked_for_goes_on() -> None:
    channels = make()
    for site in range(4):
        assert told(request(channels, site, 1)) == [(site, Grant)]
    request(channels, 0, 2)
    gather(channels, 0, 1)
    request(channels, 1, 2)
    outcome = channels.leave(3)
    to_all = [(site, ExchangeFailed) for site in range(4)]
    assert sorted(told(outcome), key=str) == sorted([*to_all, (0, GatherFailed)], key=str)
    assert reason(outcome) == "site 3 has left, and not made this call"
    failed = outcome.say[0][1]
    assert isinstance(failed, ExchangeFailed)
    assert failed.exchange == 2  # what has come of it is given up, also where it was not asked for
    assert told(request(channels, 2, 2)) == []
    assert told(request(channels, 2, 3)) == [(2, ExchangeFailed)]
    assert told(gather(channels, 2, 1)) == [(2, GatherFailed)]
    assert [end(channels, site, 1).wrong for site in range(4)] == [""] * 4
    pair = subgroup(channels, (2, 3))  # also a channel that begins later
    assert told(request(channels, 2, 1, pair)) == [(2, ExchangeFailed)]
    assert told(request(channels, 0, 1, subgroup(channels, (0, 1)))) == [(0, Grant)]


def test_the_first_reason_counts_and_the_fewest_calls() -> None:
    channels = make()
    for site in range(4):
        request(channels, site, 1)
    request(channels, 0, 2)
    channels.leave(3)
    channels.leave(2)
    outcome = gather(channels, 0, 1)
    assert reason(outcome) == "site 3 has left, and not made this call"


def test_a_mix_among_those_who_stay_is_found_out_after_a_leave_too() -> None:
    channels = make()
    request(channels, 0, 1)
    channels.leave(0)
    request(channels, 2, 1)
    outcome = gather(channels, 1, 1)  # as call 1, where 0 and 2 exchange
    failed = [to for to, message in outcome.say if isinstance(message, ExchangeFailed)]
    assert 2 in failed
    assert told(request(channels, 3, 1)) == []


def test_failing_calls_leave_nothing_behind() -> None:
    channels = make()
    channels.leave(3)
    for number in range(1, 100):
        assert told(gather(channels, 0, number)) == [(0, GatherFailed)]
        assert told(request(channels, 1, number)) == [(1, ExchangeFailed)]
    assert not channels.all.order.begun


def test_members_that_would_broadcast_different_things_are_compared_before_any_is_granted() -> None:
    channels = make()
    broadcast = Signature(0, 0, 100, 0)
    for site in (0, 1, 3):
        assert request(channels, site, 1, signature=broadcast).say == []
    outcome = request(channels, 2, 1, signature=Signature(0, 0, 99, 0))
    assert told(outcome) == [(site, ExchangeFailed) for site in range(4)]
    assert "site 2 calls for a broadcast from 0 of 99 elements" in reason(outcome)
    for site in range(4):
        assert told(request(channels, site, 2)) == [(site, Grant)]


def test_who_does_not_know_of_a_channel_hears_of_its_failures_when_it_asks() -> None:
    channels = make()
    three = subgroup(channels, (0, 1, 2), 0)
    subgroup(channels, (0, 1, 2), 1)
    request(channels, 0, 1, three)
    outcome = request(channels, 1, 1, three, signature=Signature(0, 0, 99))
    assert told(outcome) == [(0, ExchangeFailed), (1, ExchangeFailed)]
    subgroup(channels, (0, 1, 2), 2)
    late = request(channels, 2, 1, three)
    assert told(late) == [(2, ExchangeFailed)]
    assert reason(late) == reason(outcome)


def test_sites_that_name_different_members_are_told_and_so_is_a_third() -> None:
    channels = make()
    pair = subgroup(channels, (0, 1), 0)
    assert told(request(channels, 0, 1, pair)) == [(0, Grant)]
    outcome = channels.subgroup(1, (0, 1, 2))
    assert told(outcome) == [(1, Subgrouped), (0, ExchangeFailed)]
    assert reason(outcome).startswith(
        "site 1 asks for a subgroup of site 0, site 1, site 2; "
        "site 0 asks for a subgroup of site 0, site 1; ask for the same"
    )
    subgrouped = outcome.say[0][1]
    assert isinstance(subgrouped, Subgrouped)
    assert told(request(channels, 1, 1, subgrouped.channel)) == [(1, ExchangeFailed)]
    three = subgroup(channels, (0, 1, 2), 2)
    assert told(gather(channels, 2, 1, three)) == [(2, GatherFailed)]
    assert told(request(channels, 3, 1)) == [(3, Grant)]


def test_subgroups_that_two_sites_share_are_asked_for_in_one_order_and_others_in_any() -> None:
    channels = make()
    for site, asked in [
        (0, (0, 1)),
        (0, (0, 2)),
        (2, (0, 2)),
        (1, (1, 2)),
        (1, (0, 1)),
        (2, (1, 2)),
        (0, (0, 1, 2)),
    ]:
        assert told(channels.subgroup(site, asked)) == [(site, Subgrouped)]


def restarted(channels: Channels) -> Channels:
    again = make(repairs=True)
    snapshot = SiteSnapshot((ChannelSnapshot(0, 1, 0, 0, (), (), ()),), is_new=False)
    snapshots = dict.fromkeys(channels.all.members, snapshot)
    lost = {*range(4)} - {*channels.all.members}
    again.restore(snapshots, lost, channels.subgroups, channels.latest_exchange, {})
    return again


def test_the_order_in_which_sites_asked_for_subgroups_outlives_a_restart() -> None:
    channels = make(repairs=True)
    subgroup(channels, (0, 1, 2), 1)
    again = restarted(channels)
    for members, site in (((1, 2), 1), ((0, 1, 2), 2), ((1, 2), 2)):
        again.subgroup(site, members)
    assert told(request(again, 2, 1, channel=2)) == [(2, Grant)]
    again = restarted(channels)
    subgroup(again, (1, 2), 2)
    again.subgroup(1, (1, 2))
    assert "ask for the same subgroups" in reason(request(again, 1, 1, channel=2))


def test_a_site_that_asks_again_for_a_subgroup_asks_in_the_same_order() -> None:
    channels = make(repairs=True)
    for members, site in (((0, 1), 0), ((0, 1), 0), ((0, 1, 2), 0), ((0, 1), 1), ((0, 1, 2), 1)):
        channels.subgroup(site, members)
    assert told(request(channels, 1, 1, channel=2)) == [(1, Grant)]


def test_a_site_that_is_let_in_after_a_restart_is_in_the_subgroups_that_begin_then() -> None:
    channels = make(repairs=True)
    lose(channels, 3)
    for site in (0, 1):
        channels.subgroup(site, (0, 1, 3))
    again = restarted(channels)
    version = again.all.plan.version + 1
    again.admit(1, [3], [0, 1, 2], fapt(OVERLAY, roots=1, version=version))
    assert [subgroup(again, (0, 1, 3), site) for site in (0, 3)] == [2, 2]


def test_a_member_before_an_admission_gets_a_channel_without_the_newcomer() -> None:
    channels = make(repairs=True)
    lose(channels, 3)
    ((_, opened),) = channels.subgroup(0, (0, 1, 3)).say
    assert isinstance(opened, Subgrouped)
    version = channels.all.plan.version + 1
    channels.admit(1, [3], [0, 1, 2], fapt(OVERLAY, roots=1, version=version))

    def ask(site: int, members: tuple[int, ...], without: tuple[int, ...] = ()) -> int:
        ((_, message),) = channels.subgroup(site, members, "", without).say
        assert isinstance(message, Subgrouped)
        return message.channel

    assert ask(1, (0, 1, 3), without=(3,)) == opened.channel, "which others have asked for"
    alone = ask(1, (1, 2, 3), without=(3,))
    assert channels.books.members(alone) == (1, 2)
    assert ask(2, (1, 2, 3), without=(3,)) == alone
    present = ask(2, (1, 2, 3))
    assert channels.books.members(present) == (1, 2, 3)
    assert [ask(site, (1, 2, 3)) for site in (3, 1)] == [present, present]
    with pytest.raises(OutOfPlaceMessage, match="site 3 asks for a subgroup"):
        channels.subgroup(3, (1, 2, 3), "", (3,))


def test_an_exchange_that_fails_makes_room_for_what_waits_elsewhere() -> None:
    channels = make(most_bytes=400)
    pair = subgroup(channels, (0, 1))
    request(channels, 0, 1)
    assert request(channels, 0, 1, pair).say == []
    outcome = request(channels, 1, 1, signature=Signature(1, 0, 100))
    assert told(outcome)[-1] == (0, Grant)
    assert [each.channel for each in outcome.began] == [pair]


# --- chunks dispatched while an exchange goes on


def dispatched() -> Channels:
    return make(dispatching=lambda plan, elements, chunk, round_trip_s: (100, 4 * len(plan.trees)))


def test_a_grant_names_the_first_trees_and_every_member_hears_of_the_next() -> None:
    channels = dispatched()
    channel = subgroup(channels, (0, 1))
    ((_, grant),) = request(channels, 0, 1, channel).say
    assert isinstance(grant, Grant)
    assert grant.trees is not None
    trees = len(plans.restrict(PLAN, (0, 1)).trees)
    assert len(grant.trees) == 4 * trees
    ((_, again),) = request(channels, 1, 1, channel).say
    assert isinstance(again, Grant)
    assert again.trees == grant.trees
    all_first = tuple(grant.trees.count(tree) for tree in range(trees))
    assert channels.progress(0, Progress(grant.exchange, all_first), 1.0).say == []
    outcome = channels.progress(1, Progress(grant.exchange, all_first), 1.0)
    assert [to for to, _ in outcome.say] == [0, 1]
    (more,) = {message for _, message in outcome.say}
    assert isinstance(more, Dispatched)
    assert more.exchange == grant.exchange
    assert more.trees


def test_a_window_is_for_the_longest_round_trip_that_a_member_tells() -> None:
    asked: list[float] = []

    def dispatching(
        plan: Plan, elements: int, chunk_elements: int, told_s: float
    ) -> tuple[int, int]:
        asked.append(told_s)
        return 10, 10

    channels = make(dispatching=dispatching)
    for number, trips_s in enumerate([(0.0, 0.0), (0.031, 0.002), (0.0308, 0.002)], 1):
        for site in range(4):
            request(channels, site, number)
        for site in range(4):
            told = ExchangeEnded(0, number, 1, 0.0, None, round_trip_s=trips_s[site % 2])
            channels.ended(site, told)
    request(channels, 0, 4)
    assert asked == [0.0, 0.03], "a round trip of one digit more makes no new cut"


def test_a_plan_is_asked_once_how_a_buffer_of_a_size_is_cut() -> None:
    asked: list[tuple[int, int]] = []

    def chunking(plan: Plan, elements: int) -> int:
        asked.append((plan.version, elements))
        return elements

    def dispatching(plan: Plan, elements: int, chunk_elements: int, _: float) -> tuple[int, int]:
        asked.append((plan.version, chunk_elements))
        return 10, 10

    channels = Channels(lambda site: f"site {site}", 4, PLAN, math.inf, chunking, dispatching)
    pair = subgroup(channels, (0, 1))

    def exchange(number: int, channel: int = 0, elements: int = 100) -> None:
        sites = (0, 1) if channel else range(4)
        for site in sites:
            request(channels, site, number, channel, Signature(0, 0, elements))
        version = channels.books.of(0, channel).plan.version
        for site in sites:
            end(channels, site, number, channel, version=version)

    exchange(1)
    exchange(2)
    assert asked == [(1, 100), (1, 100)]
    exchange(3, elements=7)
    exchange(4)
    assert asked[2:] == [(1, 7), (1, 7)]
    exchange(1, pair)
    exchange(2, pair)
    assert len(asked) == 6
    channels.books.issue(SECOND)
    exchange(5)
    assert asked[6:] == [(2, 100), (2, 100)]


def test_progress_of_an_exchange_that_has_ended_is_left_aside() -> None:
    channels = dispatched()
    for site in range(4):
        request(channels, site, 1)
    for site in range(4):
        end(channels, site, 1)
    assert channels.progress(0, Progress(1, (9,)), 1.0).say == []


def test_a_broadcast_is_dealt_beforehand() -> None:
    channels, broadcast = dispatched(), Signature(0, 0, 100, source=2)
    said = [
        message
        for site in channels.all.members
        for _, message in request(channels, site, 1, signature=broadcast).say
    ]
    assert len(said) == len(channels.all.members)
    assert every(isinstance(grant, Grant) and grant.trees is None for grant in said)


# --- members that follow


def test_members_that_follow_are_told_of_calls_and_contribute_nothing_to_them() -> None:
    channels = make(repairs=True)
    channels.following.sites = {3}
    first = request(channels, 1, 1)
    assert first.say[0] == (3, CallMade(1, 1, SMALL))
    channels.following.sites.clear()  # it is fixed by the first request
    asked = [request(channels, site, 1).say for site in (0, 2, 3)]
    grants = [grant for said in (first.say[1:], *asked) for _, grant in said]
    assert grants == [Grant(0, 1, 1, 1, "", 10, settles=True, followers=(3,))] * 4
    settled = [channels.hold(site, Holding(0, 1, 0, ((0, 100),))).say for site in range(4)][-1]
    assert [(site, told) for site, told in settled if site == 0] == [
        (0, Settled(0, 1, (0, 1, 2, 3), (Contribution(0, 100, (0, 1, 2)),)))
    ]
    for site in range(4):
        end(channels, site, 1)
    assert not channels.is_busy
    assert CallMade not in [type(told) for _, told in request(channels, 0, 2).say]


def test_a_member_that_follows_is_told_of_a_call_once_by_the_first_that_makes_it() -> None:
    channels = make(repairs=True)
    channels.following.sites = {3}
    called = [
        [told for _, told in request(channels, site, 1).say if isinstance(told, CallMade)]
        for site in (1, 2)
    ]
    assert called == [[CallMade(1, 1, SMALL)], []]


def test_a_member_that_follows_is_told_of_no_gathering_and_of_no_broadcast_of_its_own() -> None:
    channels = make(repairs=True)
    channels.following.sites = {3}
    channels.gather(0, Gather(0, 1, b""))
    assert channels.gather(1, Gather(0, 1, b"")).say == []
    for site in (2, 3):
        channels.gather(site, Gather(0, 1, b""))
    own = Signature(op=4, wire=0, elements=100, source=3)
    assert request(channels, 0, 1, signature=own).say == []
    others = Signature(op=4, wire=0, elements=100, source=1)
    assert request(channels, 0, 2, signature=others).say == [(3, CallMade(2, 3, others))]
    said = channels.gather(0, Gather(0, 2, b"state", admits=True)).say
    assert said == [(3, CallMade(2, 4, None))]


def test_no_site_is_let_in_while_one_follows_or_is_handed_the_state() -> None:
    channels = make(repairs=True)
    assert not channels.is_busy
    channels.following.sites = {3}
    assert channels.is_busy
    channels.lose({3}, SECOND)
    assert not channels.is_busy
    handed_on = Signature(op=4, wire=0, elements=100, receivers=(2,))
    for site in range(3):
        said = request(channels, site, 1, signature=handed_on)
        assert not [told for _, told in said.say if isinstance(told, CallMade)]
    assert channels.is_busy


def test_what_takes_more_than_the_room_waits_for_a_member_that_follows() -> None:
    channels = make(most_bytes=399, repairs=True)
    assert any(isinstance(told, Grant) for _, told in request(channels, 0, 1).say)
    channels = make(most_bytes=399, repairs=True)
    channels.following.sites = {3}
    for site in range(3):
        said = request(channels, site, 1).say
        assert not any(isinstance(told, Grant) for _, told in said)
    assert [site for site, _ in request(channels, 3, 1).say] == [0, 1, 2, 3]


def test_exchanges_that_hand_the_state_on_are_no_rounds() -> None:
    channels = make(repairs=True)
    handed_on = Signature(op=4, wire=0, elements=100, receivers=(2,))
    for number, signature in ((1, SMALL), (2, handed_on), (3, SMALL)):
        for site in (0, 1):
            request(channels, site, number, signature=signature)
    assert [channels.following.round_of(number) for number in (1, 2, 3)] == [1, None, 2]


def test_no_site_is_let_in_to_a_subgroup_nor_where_losses_end_the_run() -> None:
    channels = make(repairs=True)
    pair = subgroup(channels, (0, 1))
    for admits, channel in ((channels, pair), (make(), 0)):
        with pytest.raises(OutOfPlaceMessage, match="site 0 admits newcomers where none can join"):
            admits.gather(0, Gather(channel, 1, b"", admits=True))
    assert channels.gather(0, Gather(0, 1, b"", admits=True)).say == []


def test_an_end_that_was_said_before_its_failure_was_heard_harms_nothing() -> None:
    channels = make()
    request(channels, 0, 1)
    request(channels, 1, 1, signature=Signature(1, 2, 100))
    for site in (0, 1):
        assert end(channels, site, 1) == Outcome()
    with pytest.raises(OutOfPlaceMessage, match="ends exchange 2, which it is not in"):
        end(channels, 0, 2)


# --- subgroups that have lost all their members


def without_its_pair() -> tuple[Channels, int]:
    """Return channels with a subgroup whose members are lost."""
    channels = make(repairs=True)
    pair = subgroup(channels, (0, 1))
    lose(channels, 0, 1)
    assert channels.books.members(pair) == ()
    return channels, pair


def lose(channels: Channels, *sites: int) -> Outcome:
    left = set(range(4)) - channels.books.lost - {*sites}
    version = channels.all.plan.version + 1
    plan = fapt(OVERLAY, roots=1, version=version)
    return channels.lose(sites, plans.restrict(plan, left))


def test_a_run_is_stopped_though_a_subgroup_has_lost_all_its_members() -> None:
    channels, _ = without_its_pair()
    channels.close("the target is reached")
    assert channels.books.lasts == (1, 1)
    assert [type(said) for _, said in request(channels, 2, 1).say] == [Grant]
    assert request(channels, 2, 2).say == [(2, NoMoreRounds(2, "the target is reached"))]


def test_a_scheduler_is_started_again_though_a_subgroup_has_lost_all_its_members() -> None:
    channels, pair = without_its_pair()
    again = make(repairs=True)
    snapshots = {
        site: SiteSnapshot((ChannelSnapshot(0, 1, 0, 0, (), (), ()),), is_new=False)
        for site in (2, 3)
    }
    latest = channels.latest_exchange
    again.restore(snapshots, {0, 1}, channels.subgroups, latest, channels.contributions)
    assert again.books.members(pair) == ()
    assert told(request(again, 2, 1)) == [(2, Grant)]


def test_a_wrong_order_is_told_though_the_other_subgroup_has_lost_all_its_members() -> None:
    channels = make(repairs=True)
    lose(channels, 3)
    channels.subgroup(0, (0, 1, 3))
    version = channels.all.plan.version + 1
    channels.admit(1, [3], [0, 1, 2], fapt(OVERLAY, roots=1, version=version))
    lose(channels, 0, 1)
    assert told(channels.subgroup(3, (0, 3))) == [(3, Subgrouped)]
    assert "ask for the same subgroups" in reason(request(channels, 3, 1, channel=2))


def test_a_site_is_refused_that_asks_for_a_subgroup_which_began_while_it_was_lost() -> None:
    channels = make(repairs=True)
    lose(channels, 3)
    channels.subgroup(0, (0, 1, 3))
    version = channels.all.plan.version + 1
    channels.admit(1, [3], [0, 1, 2], fapt(OVERLAY, roots=1, version=version))
    with pytest.raises(OutOfPlaceMessage, match="excludes it; ask for one with another name"):
        channels.subgroup(3, (0, 1, 3))
    assert told(channels.subgroup(1, (0, 1, 3))) == [(1, Subgrouped)]
    assert told(channels.subgroup(3, (0, 1, 3), "again")) == [(3, Subgrouped)]


@pytest.mark.parametrize("is_lost", [False, True])
def test_calls_of_a_subgroup_fail_that_has_a_site_which_left(is_lost: bool) -> None:
    channels = make(repairs=True)
    channels.leave(3)
    if is_lost:  # as its connection breaks after it has left
        lose(channels, 3)
    channels.subgroup(2, (2, 3))
    assert reason(request(channels, 2, 1, channel=1)) == "site 3 has left, and not made this call"


def test_an_exchange_is_forgotten_that_is_given_up_where_no_member_knows_of_it() -> None:
    channels = make(repairs=True)
    pair = subgroup(channels, (0, 1), 1)
    request(channels, 1, 1, pair)
    lose(channels, 1)
    channels.leave(0)
    assert channels.contributions == {}
    assert channels.hold(0, Holding(pair, 1, 1, ())) == Outcome()


# --- sites that are let in


@pytest.mark.parametrize("is_level", [False, True])
def test_no_site_is_let_in_while_calls_are_under_way(is_level: bool) -> None:
    channels = make(repairs=True)
    lose(channels, 3)
    if is_level:  # all have asked for the exchange, and it is under way
        for site in range(3):
            request(channels, site, 1)
    else:
        gather(channels, 0, 1)
    version = channels.all.plan.version + 1
    outcome = channels.admit(2, [3], [0], fapt(OVERLAY, roots=1, version=version))
    assert outcome.wrong.startswith("sites are admitted while calls are under way; this is a bug")
    assert channels.books.members(0) == (0, 1, 2)


def test_a_channel_awaits_its_members_alone_and_those_that_have_made_fewer_calls() -> None:
    channels = make()
    pair = subgroup(channels, (0, 1))
    gather(channels, 0, 1, pair)
    assert [channels.books.awaiting(site) for site in range(3)] == [[], [pair], []]
    gather(channels, 2, 1)
    assert [channels.books.awaiting(site) for site in range(3)] == [[0], [0, pair], []]
