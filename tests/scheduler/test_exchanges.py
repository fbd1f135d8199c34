"""Rounds: one plan version each, fixed at the first request; checksums must agree."""

from __future__ import annotations

from dataclasses import replace

import pytest
from anabranch.scheduler.rounds import RoundBook

from anabranch.net.errors import OutOfPlaceMessage
from anabranch.plan import Plan, Tree

FIRST = Plan(1, (Tree(0, 1.0, (-1, 0), (-1, 0)),))
SECOND = replace(FIRST, version=2)


def test_a_round_keeps_the_version_of_its_first_request() -> None:
    book = RoundBook(2, FIRST)
    assert book.grant(0, 1) == (FIRST, False)
    book.issue(SECOND)
    assert book.grant(1, 1) == (FIRST, False)
    assert book.grant(1, 2) == (SECOND, True)
    assert book.grant(0, 2) == (SECOND, True)


def test_a_plan_is_sent_to_a_site_once() -> None:
    book = RoundBook(1, FIRST)
    book.issue(SECOND)
    assert book.grant(0, 1) == (SECOND, True)
    assert book.grant(0, 2) == (SECOND, False)


@pytest.mark.parametrize("round", [0, 2, -1])
def test_a_round_out_of_order_is_refused(round: int) -> None:
    book = RoundBook(2, FIRST)
    with pytest.raises(OutOfPlaceMessage, match="site 0 asks"):
        book.grant(0, round)


def test_versions_rise() -> None:
    with pytest.raises(ValueError, match="versions rise"):
        RoundBook(1, SECOND).issue(FIRST)


def test_models_that_differ_are_noticed_once_all_have_said() -> None:
    book = RoundBook(3, FIRST)
    for site in range(3):
        book.grant(site, 1)
    assert book.ended(0, 1, 1, 77) is None
    assert book.ended(2, 1, 1, 78) is None
    wrong = book.ended(1, 1, 1, 77)
    assert wrong is not None
    assert "round 1" in wrong
    assert "sites [2]" in wrong


def test_models_that_agree_raise_no_complaint() -> None:
    book = RoundBook(2, FIRST)
    for site in range(2):
        book.grant(site, 1)
    assert [book.ended(site, 1, 1, 5) for site in range(2)] == [None, None]


def test_a_site_ends_a_round_once_and_only_its_own() -> None:
    book = RoundBook(2, FIRST)
    book.grant(0, 1)
    book.ended(0, 1, 1, None)
    with pytest.raises(OutOfPlaceMessage):
        book.ended(0, 1, 1, None)
    with pytest.raises(OutOfPlaceMessage):
        book.ended(1, 1, 1, None)
