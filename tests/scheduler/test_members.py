"""Members: who may join, and who not."""

from __future__ import annotations

import pytest

from anabranch.net.errors import OutOfPlaceMessage, PeerError, UnauthorisedPeer
from anabranch.net.messages import Join
from anabranch.overlay import Link, Overlay, Site
from anabranch.scheduler.members import Members

PAIR = Overlay("pair", (Site("a"), Site("b")), (Link(0, 1, 1e6), Link(1, 0, 1e6)))


def test_addresses_are_known_once_everybody_has_joined() -> None:
    members = Members(PAIR, "secret")
    assert members.admit(Join("secret", "b", "127.0.0.1", 7)) == 1
    assert members.missing == [0]
    assert members.admit(Join("secret", "a", "127.0.0.1", 8)) == 0
    assert not members.missing
    assert members.addresses == (("127.0.0.1", 8), ("127.0.0.1", 7))


@pytest.mark.parametrize(
    ("join", "error", "named"),
    [
        (Join("guess", "a", "h", 1), UnauthorisedPeer, "token"),
        (Join("sécret", "a", "h", 1), UnauthorisedPeer, "token"),
        (Join("secret", "c", "h", 1), UnauthorisedPeer, "no site 'c'"),
        (Join("secret", "b", "h", 1), UnauthorisedPeer, "joined already"),
        (Join("secret", "a", "h", 1, 99), OutOfPlaceMessage, "wire version 99"),
    ],
)
def test_who_does_not_belong_is_refused_by_name(
    join: Join, error: type[PeerError], named: str
) -> None:
    members = Members(PAIR, "secret")
    members.admit(Join("secret", "b", "127.0.0.1", 7))
    with pytest.raises(error, match=named):
        members.admit(join)
    assert members.missing == [0]


def test_only_who_is_gone_may_join_again_as_another_life() -> None:
    members = Members(PAIR, "secret")
    for name in "ab":
        members.admit(Join("secret", name, "127.0.0.1", 7))
    with pytest.raises(UnauthorisedPeer, match="joined already"):
        members.admit(Join("secret", "b", "127.0.0.1", 9), gone={0})
    assert members.admit(Join("secret", "b", "127.0.0.1", 9), gone={1}) == 1
    assert members.addresses == (("127.0.0.1", 7), ("127.0.0.1", 9))
    assert members.incarnations == (0, 1)
