"""Members: who may join, and who not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from anabranch.net.errors import UnauthorisedPeer
from anabranch.net.identity import derive, proven
from anabranch.net.messages import Join, Resume
from anabranch.overlay import Link, Overlay, Site
from anabranch.scheduler._members import ABSENT, Members

HERE = b"challenge"
PAIR = Overlay("pair", (Site("a"), Site("b")), (Link(0, 1, 1e6), Link(1, 0, 1e6)))


def join(
    name: str,
    port: int,
    token: str = "secret",
    challenge: bytes = HERE,
    host: str = "127.0.0.1",
) -> Join:
    return proven(Join(b"", name, host, port), token.encode(), challenge)


def test_addresses_are_known_once_everybody_has_joined() -> None:
    members = Members(PAIR, "secret", b"of this run")
    assert members.admit(join("b", 7), HERE) == 1
    assert members.addresses[0] == ABSENT
    assert members.admit(join("a", 8), HERE) == 0
    assert members.addresses == (("127.0.0.1", 8), ("127.0.0.1", 7))


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (join("a", 1, "guess"), "token"),
        (join("a", 1, "sécret"), "token"),
        (join("a", 1, challenge=b"of an earlier run"), "token"),
        (replace(join("a", 1), port=2), "token"),
        (join("c", 1, "secret"), "no site 'c'"),
        (join("b", 1, "secret"), "joined already"),
    ],
)
def test_who_does_not_belong_is_refused_by_name(message: Join, named: str) -> None:
    members = Members(PAIR, "secret", b"of this run")
    members.admit(join("b", 7), HERE)
    with pytest.raises(UnauthorisedPeer, match=named):
        members.admit(message, HERE)
    assert members.addresses[0] == ABSENT


def test_only_who_is_gone_may_join_again_as_another_incarnation() -> None:
    members = Members(PAIR, "secret", b"of this run")
    for name in "ab":
        members.admit(join(name, 7), HERE)
    with pytest.raises(UnauthorisedPeer, match="joined already"):
        members.admit(join("b", 9), HERE, gone={0})
    assert members.admit(join("b", 9), HERE, gone={1}) == 1
    assert members.addresses == (("127.0.0.1", 7), ("127.0.0.1", 9))
    assert members.incarnations == (0, 1)


def test_a_site_goes_on_only_as_itself() -> None:
    members = Members(PAIR, "secret", b"of this run")
    members.admit(join("a", 7), HERE)
    mine, other = members.secret(0), members.secret(1)
    assert members.is_here(proven(Resume(b"", 0, 3), mine, HERE), HERE)
    assert not members.is_here(proven(Resume(b"", 0, 3), mine, HERE), b"another")
    assert not members.is_here(proven(Resume(b"", 0, 3), other, HERE), HERE)
    assert not members.is_here(proven(Resume(b"", 0, 3), b"secret", HERE), HERE)
    assert not members.is_here(proven(Resume(b"", 0, 3, 1), mine, HERE), HERE)
    assert not members.is_here(proven(Resume(b"", 1, 3), other, HERE), HERE)  # has not joined
    assert not members.is_here(proven(Resume(b"", 9, 3), members.secret(9), HERE), HERE)


def test_a_lane_s_secret_is_known_at_both_its_ends_and_nowhere_else() -> None:
    links = tuple(Link(site, (site + 1) % 4, 1e6) for site in range(4))
    circle = Overlay("circle", tuple(Site(name) for name in "abcd"), links)
    members = Members(circle, "secret", b"of this run")
    for site in range(4):  # also where the link leads back alone: it may offer a connection
        near = {(site + 1) % 4, (site - 1) % 4}
        expected = {other: derive(members.secret(other), site) for other in near}
        assert members.lane_secrets(site) == expected
    known = [secret for site in range(4) for secret in members.lane_secrets(site).values()]
    assert len({*known, *map(members.secret, range(4))}) == 12
    assert Members(circle, "secret", b"of another").secret(0) != members.secret(0)


@pytest.mark.parametrize("hidden_first", [True, False])
def test_a_site_on_loopback_and_one_of_another_machine_are_named_where_a_link_joins_them(
    hidden_first: bool,
) -> None:
    members = Members(PAIR, "secret", b"of this run")
    hidden = join("a", 7), False
    remote = join("b", 8, host="10.0.0.2"), True
    first, second = (hidden, remote) if hidden_first else (remote, hidden)
    members.admit(first[0], HERE, is_elsewhere=first[1])
    said = "site 'a' is found at 127.0.0.1 by its own machine alone, and site 'b' is on another"
    with pytest.raises(UnauthorisedPeer, match=said):
        members.admit(second[0], HERE, is_elsewhere=second[1])
    members.admit(join("ab"[hidden_first], 9, host="10.0.0.1"), HERE)


def test_a_site_on_loopback_and_one_of_another_machine_may_be_there_without_a_link() -> None:
    ends = [(0, 2), (2, 0), (1, 2), (2, 1)]
    chain = tuple(Link(source, target, 1e6) for source, target in ends)
    apart = Overlay("apart", (Site("a"), Site("b"), Site("c")), chain)
    members = Members(apart, "secret", b"of this run")
    members.admit(join("a", 7), HERE)
    members.admit(join("b", 8, host="10.0.0.2"), HERE, is_elsewhere=True)
    # One that takes no connections makes them: it need not be found.
    members = Members(PAIR, "secret", b"of this run")
    members.admit(join("a", 0, host=""), HERE)
    members.admit(join("b", 8, host="10.0.0.2"), HERE, is_elsewhere=True)
