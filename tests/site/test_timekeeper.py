"""A site keeps the scheduler's time by the answers that it gets."""

from __future__ import annotations

import pytest

from anabranch.net.errors import MalformedMessage, OutOfPlaceMessage
from anabranch.net.messages import TimeReply, TimeRequest
from anabranch.site._timekeeper import Timekeeper


def test_a_site_that_does_not_know_the_time_says_so_and_is_not_believed() -> None:
    asked: list[TimeRequest] = []
    keeper = Timekeeper(lambda: 5.0, asked.append)
    keeper.begin()
    keeper.hear(TimeReply(5.0, 9.0, 9.0, float("inf")))
    assert keeper.offset_s() is None
    assert keeper.error_s() == float("inf")


def test_an_answer_that_cannot_be_is_refused() -> None:
    keeper = Timekeeper(lambda: 5.0, lambda request: None)
    keeper.begin()
    with pytest.raises(OutOfPlaceMessage, match="not asked for"):
        keeper.hear(TimeReply(4.0, 9.0, 9.0, 0.0))
    with pytest.raises(MalformedMessage, match="exchange"):
        keeper.hear(TimeReply(5.0, float("nan"), 9.0, 0.0))


def test_an_answer_that_took_longer_than_the_question_was_out_is_passed_over() -> None:
    now_s = 0.0
    keeper = Timekeeper(lambda: now_s, lambda request: None)
    keeper.begin()
    now_s = 0.1
    keeper.hear(TimeReply(0.0, 5.0, 5.10008, 0.0))
    assert keeper.offset_s() is None


def test_a_site_asks_often_at_first_and_then_seldom() -> None:
    now_s, asked = 0.0, list[TimeRequest]()
    keeper = Timekeeper(lambda: now_s, asked.append)
    keeper.begin()
    for _ in range(1000):
        if len(asked) and asked[-1].sent_s == now_s:
            keeper.hear(TimeReply(now_s - 0.0, 3.0 + now_s, 3.0 + now_s, 0.0))
        now_s += 0.1
        keeper.remember()
    assert keeper.offset_s() == pytest.approx(3.0)
    assert 20 < len(asked) < 60  # 100 s
