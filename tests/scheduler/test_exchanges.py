"""Exchanges: one plan version each, room for the bytes under way, and members that agree."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from msgspec import structs

from anabranch.net.errors import OutOfPlaceMessage
from anabranch.net.messages import Signature
from anabranch.plan import Plan, Tree
from anabranch.scheduler._exchanges import ExchangeBook
from anabranch.scheduler._plans_by_size import PlansBySize
from anabranch.scheduler.calls._answer import Abandoned, AllGathered, Answer, Disagreement, Granted
from anabranch.scheduler.calls._held import Counter
from anabranch.scheduler.calls._requests import Request
from anabranch.site.channel import KEPT_PLANS

from ..every import every

FIRST = Plan(1, (Tree(0, 1.0, (-1, 0), (-1, 0)),))
SECOND = replace(FIRST, version=2)
SMALL = Signature(op=0, wire=0, elements=100)
_ELEMENT_BYTES = 4


def book_of(
    members: Sequence[int], plan: Plan = FIRST, most_bytes: float = math.inf
) -> ExchangeBook:
    return ExchangeBook(members, PlansBySize(plan), Counter(most_bytes))


def ask(
    book: ExchangeBook, site: int, number: int, signature: Signature, refusal: str = ""
) -> tuple[Answer, ...] | None:
    return book.request(Request(site, number, signature), refusal)


def granted(book: ExchangeBook, site: int, number: int, signature: Signature = SMALL) -> Granted:
    """Return the only answer to a request that is granted at once."""
    answers = ask(book, site, number, signature)
    assert answers is not None
    (answer,) = answers
    assert isinstance(answer, Granted)
    return answer


def test_an_exchange_keeps_the_version_of_its_first_request() -> None:
    book = book_of([0, 1])
    assert granted(book, 0, 1) == Granted(0, 1, 1, FIRST, False, True, False, SMALL)
    book.plans.replace(SECOND, 0)
    assert granted(book, 1, 1) == Granted(1, 1, 1, FIRST, False, False, True, SMALL)
    assert granted(book, 1, 2) == Granted(1, 2, 2, SECOND, True, True, False, SMALL)
    assert granted(book, 0, 2) == Granted(0, 2, 2, SECOND, True, False, True, SMALL)


@pytest.mark.parametrize("waits_for", ["a plan", "room"])
def test_a_request_costs_the_same_however_many_wait(
    waits_for: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine members that made 500 calls at once have stopped their scheduler for minutes once."""
    looks = 0
    begin = ExchangeBook._begin

    def counted(self: ExchangeBook, request: Request) -> bool:
        nonlocal looks
        looks += 1
        return begin(self, request)

    monkeypatch.setattr(ExchangeBook, "_begin", counted)
    members, calls = range(3), 100
    plans = PlansBySize(FIRST, by_size=waits_for == "a plan")
    book = ExchangeBook(members, plans, Counter(_ELEMENT_BYTES * SMALL.elements))
    answers: list[Answer] = []
    for site in members:
        for number in range(1, calls + 1):
            answers += ask(book, site, number, SMALL) or ()
    assert looks <= 2 * len(members) * calls
    assert book.unplanned == ({SMALL.elements} if waits_for == "a plan" else set())
    plans.add(SECOND, SMALL.elements)
    answers += book.grant()
    assert {each.number for each in answers if isinstance(each, Granted)} == {*range(1, calls + 1)}


@pytest.mark.parametrize("first", [0, 1])
def test_an_exchange_with_an_unfit_contribution_fails_at_all_members(first: int) -> None:
    book = book_of([0, 1])
    if first:
        granted(book, 1, 1)
    found = ask(book, 0, 1, SMALL, "a has NaN")
    assert found == tuple(Abandoned(site, 1, first, False, "a has NaN") for site in (0, 1))
    if not first:
        assert ask(book, 1, 1, SMALL) == ()  # it was told before it asked
    for site in (0, 1):
        assert granted(book, site, 2).number == 2
    assert ask(book, 0, 3, SMALL, "a has NaN") != ()
    assert ask(book, 1, 3, SMALL, "b has NaN") == ()


def test_an_unfit_contribution_to_what_waits_fails_it_too() -> None:
    book = book_of([0, 1, 2])
    copied = Signature(op=4, wire=0, elements=100, source=0)
    assert ask(book, 1, 1, copied) == ()  # until all have asked
    found = ask(book, 0, 1, copied, "a has NaN")
    assert found == tuple(Abandoned(site, 1, 0, False, "a has NaN") for site in range(3))
    assert ask(book, 2, 1, copied) == ()
    assert granted(book, 2, 2).exchange == 1


def test_a_plan_is_sent_to_a_site_once() -> None:
    book = book_of([0])
    book.plans.replace(SECOND, 0)
    assert granted(book, 0, 1).lacks
    assert not granted(book, 0, 2).lacks


def test_a_site_that_was_told_the_plan_in_force_does_not_lack_it() -> None:
    book = book_of([0, 1])
    book.plans.replace(SECOND, 0)
    book.knowledge.tell_of_channel(1, book.plan)
    assert not granted(book, 1, 1).lacks
    assert granted(book, 0, 1).lacks


def test_a_site_keeps_the_plan_that_it_had_before() -> None:
    book = book_of([0, 1])
    granted(book, 0, 1)
    book.plans.replace(SECOND, 0)
    book.knowledge.tell_of_channel(1, book.plan)
    assert granted(book, 1, 1) == Granted(1, 1, 1, FIRST, False, False, True, SMALL)
    assert not granted(book, 1, 2).lacks


def test_a_plan_that_a_site_has_forgotten_is_sent_again() -> None:
    book = book_of([0, 1])
    granted(book, 0, 1)
    for version in range(2, 2 + KEPT_PLANS):
        book.plans.replace(replace(FIRST, version=version), 0)
        book.knowledge.tell_of_channel(1, book.plan)
    assert granted(book, 1, 1).plan == FIRST
    assert book.knowledge.tell(1, FIRST) == FIRST


def test_exchanges_of_an_order_of_size_wait_until_it_has_a_plan_which_it_keeps() -> None:
    small, large = (structs.replace(SMALL, elements=each) for each in (50, 5_000))
    book = ExchangeBook([0, 1], PlansBySize(FIRST, by_size=True), Counter(math.inf))
    assert ask(book, 0, 1, small) == ()
    assert book.unplanned == {50}
    book.plans.add(SECOND, 50)
    assert [answer.plan.version for answer in book.grant()] == [2]
    assert ask(book, 0, 2, large) == ()
    assert book.unplanned == {5_000}
    [next_small] = ask(
        book, 0, 3, structs.replace(SMALL, elements=60)
    )  # which need not wait for the large one
    assert next_small.plan is SECOND
    third = replace(FIRST, version=3)
    book.plans.add(third, 5_000)
    assert [answer.plan for answer in book.grant()] == [third]
    [back] = ask(book, 0, 4, small)
    assert (back.plan, back.lacks) == (SECOND, False)


def test_plans_of_other_sizes_are_forgotten_once_the_network_is_another() -> None:
    plans = PlansBySize(FIRST, by_size=True)
    plans.add(SECOND, 50)
    plans.add(replace(FIRST, version=3), 5_000)
    fourth = replace(FIRST, version=4)
    plans.replace(fourth, 5_000)
    assert plans.of(9_999) is fourth
    assert plans.of(50) is None
    assert plans.in_use == [fourth]


def test_two_orders_of_size_may_share_a_plan() -> None:
    plans = PlansBySize(FIRST, by_size=True)
    plans.add(SECOND, 50)
    plans.add(SECOND, 5_000)
    assert plans.of(50) is plans.of(5_000) is SECOND
    with pytest.raises(ValueError, match="versions rise"):
        plans.add(replace(FIRST, version=1), 500_000)


def test_several_exchanges_are_under_way_at_once() -> None:
    book = book_of([0, 1])
    for number in (1, 2, 3):
        granted(book, 0, number)
    assert book.latest == 3
    assert every(number in book.held for number in (1, 2, 3))
    for number in (1, 2, 3):
        granted(book, 1, number)
    for site, number in [(0, 3), (1, 3), (1, 1), (0, 2), (0, 1), (1, 2)]:
        assert book.ended(site, number, 1, 5) is None
    assert not any(number in book.held for number in (1, 2, 3))


@pytest.mark.parametrize("number", [0, 2, -1])
def test_an_exchange_out_of_order_is_refused(number: int) -> None:
    with pytest.raises(OutOfPlaceMessage, match="site 0 asks"):
        ask(book_of([0, 1]), 0, number, SMALL)


def test_a_site_that_is_no_member_is_refused() -> None:
    with pytest.raises(OutOfPlaceMessage, match="site 2 asks"):
        ask(book_of([0, 1]), 2, 1, SMALL)


def test_versions_rise() -> None:
    with pytest.raises(ValueError, match="versions rise"):
        book_of([0], SECOND).plans.replace(FIRST, 0)


def test_once_closed_only_what_was_asked_for_is_held() -> None:
    book = book_of([0, 1])
    granted(book, 0, 1)
    book.end.close(book.latest, "a rule")
    granted(book, 1, 1)
    assert ask(book, 0, 2, SMALL) is None
    assert ask(book, 1, 2, SMALL) is None


# --- room for bytes under way


def test_an_exchange_waits_until_there_is_room_for_its_bytes() -> None:
    book = book_of([0, 1], most_bytes=100 * _ELEMENT_BYTES)
    granted(book, 0, 1)
    assert ask(book, 0, 2, SMALL) == ()
    granted(book, 1, 1)
    assert book.grant() == ()
    book.ended(0, 1, 1, None)
    assert book.grant() == ()
    book.ended(1, 1, 1, None)
    (answer,) = book.grant()
    assert isinstance(answer, Granted)
    assert (answer.site, answer.number, answer.exchange) == (0, 2, 2)


def test_an_exchange_larger_than_the_room_goes_alone() -> None:
    book = book_of([0, 1], most_bytes=10)
    granted(book, 0, 1)
    assert ask(book, 0, 2, SMALL) == ()


def test_one_that_all_members_ask_for_begins_whatever_the_room() -> None:
    counter = Counter(100 * _ELEMENT_BYTES)
    pair = ExchangeBook([0, 1], PlansBySize(FIRST), counter)
    other = ExchangeBook([1, 2], PlansBySize(FIRST), counter)
    granted(pair, 0, 1)  # site 1 will only come to it after the other pair's
    assert ask(other, 1, 1, SMALL) == ()
    answers = ask(other, 2, 1, SMALL)
    assert answers is not None
    assert [answer.site for answer in answers if isinstance(answer, Granted)] == [1, 2]


def test_numbers_rise_over_all_books() -> None:
    counter = Counter(math.inf)
    one, other = (
        ExchangeBook([0], PlansBySize(FIRST), counter),
        ExchangeBook([1], PlansBySize(FIRST), counter),
    )
    assert granted(one, 0, 1).exchange == 1
    assert granted(other, 1, 1).exchange == 2
    assert granted(one, 0, 2).exchange == 3


@pytest.mark.parametrize("seed", range(30))
def test_members_that_ask_ahead_always_get_to_the_end(seed: int) -> None:
    """Whatever the order of requests and ends, sizes and overlapping books: no deadlock."""
    random_ = random.Random(seed)
    counter = Counter(random_.choice([1, 400, 1000]))
    books = [
        ExchangeBook(members, PlansBySize(FIRST), counter)
        for members in ((0, 1, 2), (0, 1), (1, 2))
    ]
    last = 6
    sizes = [[random_.randint(1, 200) for _ in range(last)] for _ in books]
    # Every site calls the exchanges of its books in an order of its own between books.
    calls = {
        site: random_.sample(
            [
                which
                for which, book in enumerate(books)
                if site in book.members
                for _ in range(last)
            ],
            k=last * sum(site in book.members for book in books),
        )
        for site in range(3)
    }
    asked = {(site, which): 0 for site in range(3) for which in range(3)}
    running: list[tuple[int, int, int]] = []  # (book, site, number)
    ended = 0

    def take(which: int, answers: tuple[Granted | Disagreement, ...] | None) -> None:
        assert answers is not None
        for answer in answers:
            assert isinstance(answer, Granted)
            running.append((which, answer.site, answer.number))

    while any(calls.values()) or running:
        sites = [site for site, left in calls.items() if left]
        if sites and (not running or random_.random() < 0.6):
            site = random_.choice(sites)
            which = calls[site].pop(0)
            asked[site, which] += 1
            number = asked[site, which]
            signature = Signature(0, 0, sizes[which][number - 1])
            take(which, ask(books[which], site, number, signature))
            continue
        which, site, number = running.pop(random_.randrange(len(running)))
        books[which].ended(site, number, 1, None)
        ended += 1
        for index, book in enumerate(books):
            take(index, book.grant())
    assert ended == last * sum(len(book.members) for book in books)
    assert counter.bytes_under_way == 0


# --- what members must agree on


def test_members_that_ask_for_different_things_are_both_named_and_the_book_goes_on() -> None:
    book = book_of([0, 1, 2], most_bytes=100 * _ELEMENT_BYTES)
    other = replace_elements(SMALL, 99)
    granted(book, 0, 1)
    granted(book, 2, 1)
    assert ask(book, 1, 1, other) == (Disagreement(1, 1, (0, 1), (SMALL, other), (0, 1, 2)),)
    assert 1 not in book.held
    assert [granted(book, site, 2).exchange for site in range(3)] == [2, 2, 2]


def test_a_member_that_asks_for_what_has_failed_is_not_answered_again() -> None:
    book = book_of([0, 1, 2])
    granted(book, 0, 1)
    ask(book, 1, 1, replace_elements(SMALL, 99))
    assert ask(book, 2, 1, SMALL) == ()


def replace_elements(signature: Signature, elements: int) -> Signature:
    return Signature(signature.op, signature.wire, elements, signature.source)


# --- how an exchange ends


def test_models_that_differ_are_noticed_once_all_have_said() -> None:
    book = book_of(range(3))
    for site in range(3):
        granted(book, site, 1)
    assert book.ended(0, 1, 1, 77) is None
    assert book.ended(2, 1, 1, 78) is None
    wrong = book.ended(1, 1, 1, 77)
    assert wrong is not None
    assert "round 1" in wrong
    assert "sites [2]" in wrong


def test_models_that_agree_raise_no_complaint() -> None:
    book = book_of([0, 1])
    for site in range(2):
        granted(book, site, 1)
    assert [book.ended(site, 1, 1, 5) for site in range(2)] == [None, None]


def test_a_site_ends_an_exchange_once_and_only_its_own_and_under_its_version() -> None:
    book = book_of([0, 1])
    granted(book, 0, 1)
    with pytest.raises(OutOfPlaceMessage, match="under version 2"):
        book.ended(0, 1, 2, None)
    book.ended(0, 1, 1, None)
    for site, number in [(0, 1), (1, 1), (0, 2)]:
        with pytest.raises(OutOfPlaceMessage, match="which it is not in"):
            book.ended(site, number, 1, None)


def test_a_broadcast_begins_once_all_members_have_asked_and_agree() -> None:
    book = book_of([0, 1, 2])
    broadcast = Signature(op=0, wire=0, elements=100, source=0)
    assert ask(book, 0, 1, broadcast) == ()
    assert ask(book, 2, 1, broadcast) == ()
    answers = ask(book, 1, 1, broadcast)
    assert answers is not None
    assert [answer.site for answer in answers if isinstance(answer, Granted)] == [0, 2, 1]


def test_a_broadcast_that_a_member_disagrees_on_overwrites_nothing() -> None:
    book = book_of([0, 1])
    assert ask(book, 0, 1, Signature(op=0, wire=0, elements=100, source=0)) == ()
    answers = ask(book, 1, 1, Signature(op=0, wire=0, elements=99, source=0))
    assert answers is not None
    assert isinstance(answers[-1], Disagreement)
    book = book_of([0, 1])
    assert ask(book, 0, 1, Signature(op=0, wire=0, elements=100, source=0)) == ()
    answers = ask(book, 1, 1, SMALL)  # an all-reduce
    assert answers is not None
    assert any(isinstance(answer, Disagreement) for answer in answers)


# --- members that are lost


def test_what_a_lost_member_alone_had_asked_for_is_the_others_too() -> None:
    book = book_of([0, 1])
    assert granted(book, 1, 1).is_first
    assert book.lose(1) == ()
    assert 1 in book.held
    assert not granted(book, 0, 1).is_first  # the exchange that is under way goes on
    assert book.ended(0, 1, 1, None) is None
    assert 1 not in book.held


def test_a_gathering_that_waits_for_a_lost_member_alone_is_whole() -> None:
    book = book_of([0, 1, 2], replace(FIRST, trees=(Tree(0, 1.0, (-1, 0, 0), (-1, 0, 0)),)))
    for site in (0, 2):
        assert book.gather(site, 1, b"%d" % site) == ()
    assert book.lose(1) == (AllGathered(1, (b"0", b"2"), admits=False, heard=0),)


def test_a_broadcast_from_a_lost_member_is_given_up() -> None:
    book = book_of([0, 1, 2], replace(FIRST, trees=(Tree(0, 1.0, (-1, 0, 0), (-1, 0, 0)),)))
    copy = structs.replace(SMALL, source=1)
    assert ask(book, 0, 1, copy) == ()
    answers = book.lose(1)
    assert {answer.site for answer in answers if isinstance(answer, Abandoned)} == {0, 2}
    assert ask(book, 2, 1, copy) == ()  # it has been told
    assert granted(book, 0, 2).is_first


def test_who_disagreed_with_a_lost_member_alone_may_go_on() -> None:
    book = book_of([0, 1])
    assert book.gather(1, 1, b"x") == ()
    assert book.lose(1) == ()
    assert granted(book, 0, 1).is_first


def test_a_site_has_the_plan_of_a_repair_from_then_on() -> None:
    book = book_of([0, 1])
    book.plans.replace(SECOND, 0)
    assert book.knowledge.tell(0, SECOND) is SECOND
    assert book.knowledge.tell(0, SECOND) is None
    assert not granted(book, 0, 1).lacks


def test_several_may_be_lost_at_once() -> None:
    book = book_of([0, 1, 2, 3])
    for site in (0, 1, 3):
        assert book.gather(site, 1, b"%d" % site) == ()
    assert book.lose(2, 3) == (AllGathered(1, (b"0", b"1"), admits=False, heard=0),)


def test_a_site_that_tells_no_checksum_differs_from_none() -> None:
    book = book_of([0, 1, 2])
    for site in (0, 1, 2):
        granted(book, site, 1)
        granted(book, site, 2)
    assert [book.ended(site, 1, 1, sum_of) for site, sum_of in enumerate((5, None, 5))][-1] is None
    wrong = [book.ended(site, 2, 1, sum_of) for site, sum_of in enumerate((None, 5, 6))][-1]
    assert wrong == "after round 2 the models of sites [1] differ from the others'"


def test_what_waits_for_another_exchange_is_kept_as_one_fails() -> None:
    book = book_of([0, 1], most_bytes=400)
    broadcast = Signature(4, 0, 100, source=0)
    assert ask(book, 0, 1, broadcast) == ()  # it waits for the other
    assert granted(book, 0, 2, Signature(0, 0, 1)).exchange == 1
    assert ask(book, 0, 3, SMALL) == ()  # it waits for room
    failed = ask(book, 1, 1, broadcast, "b has NaN")
    assert failed == tuple(Abandoned(site, 1, 0, False, "b has NaN") for site in (0, 1))
    assert granted(book, 1, 2, Signature(0, 0, 1)).exchange == 1
    assert ask(book, 1, 3, SMALL) == tuple(
        Granted(site, 3, 2, FIRST, False, site == 0, site == 1, SMALL) for site in (0, 1)
    )
    assert book.grant() == ()


def test_a_gathering_that_the_site_had_joined_which_left_ends_at_the_others() -> None:
    book = book_of([0, 1, 2])
    assert book.gather(2, 1, b"c") == ()
    assert book.leave(2, "it has left") == ()
    assert book.gather(0, 1, b"a") == ()
    assert book.gather(1, 1, b"b") == (AllGathered(1, (b"a", b"b", b"c"), False, 0),)
    assert book.gather(0, 2, b"") == (Abandoned(0, 2, 0, True, "it has left"),)
