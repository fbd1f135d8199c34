"""What sites say when they come back to a scheduler that was started again."""

from __future__ import annotations

from anabranch.net.messages import Admitted, ChannelSnapshot, Leave, SiteSnapshot, encode
from anabranch.scheduler._restart import Returning


def snapshot(*answers: Admitted, asked: int = 0, is_new: bool = False) -> SiteSnapshot:
    encoded = tuple(encode(answer) for answer in answers)
    return SiteSnapshot((ChannelSnapshot(0, 1, asked, 0, (), (), encoded),), is_new)


ADMITTED = Admitted(4, 7, (0, 1, 2), (2,), (0, 1), "{}")


def test_all_must_say_how_far_they_are_and_what_else_is_said_waits() -> None:
    back = Returning({0, 1})
    assert not back.hear(0, Leave())
    assert not back.hear(0, snapshot(asked=3))
    assert not back.hear(0, snapshot(asked=5))  # once is enough
    assert back.hear(1, snapshot(asked=4))
    assert {site: each.channels[0].asked for site, each in back.snapshots.items()} == {0: 3, 1: 4}
    assert back.early == [(0, Leave()), (0, snapshot(asked=5))]


def test_a_site_that_was_let_in_is_as_far_as_the_members_were_then() -> None:
    back = Returning({0, 1, 2})
    back.hear(0, snapshot(asked=7))
    back.hear(1, snapshot(ADMITTED, asked=7))
    back.hear(2, snapshot(is_new=True))
    channel = back.snapshots[2].channels[0]
    assert (channel.asked, channel.gathered) == (7, 4)


def test_a_site_that_no_member_knows_to_be_in_is_left_out() -> None:
    back = Returning({0, 1, 3})
    back.hear(0, snapshot(ADMITTED))
    back.hear(3, snapshot(is_new=True))
    assert back.snapshots.keys() == {0}
