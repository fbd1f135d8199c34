"""Addresses: what people write is understood, or refused with how to write it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.net.addresses import (
    are_on_one_machine,
    host_to_listen_on,
    is_loopback,
    is_wildcard,
    parse,
    show,
)

HERE, THERE = "10.0.0.2", "10.0.0.1"


@pytest.mark.parametrize(
    "text",
    ["", "paris", "paris:", ":7700", "[]:7700", "paris:-1", "paris:65536", "paris:²", "a:b:1"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not host:port"):
        parse(text)


def test_ipv6_without_brackets_is_told_of_them() -> None:
    with pytest.raises(ValueError, match="write an IPv6 address in brackets"):
        parse("::1:7700")


@given(
    st.sampled_from(["10.0.0.1", "::1", "fe80::1%eth0", "paris.example.org"]),
    st.integers(0, 65535),
)
def test_what_is_shown_is_understood(host: str, port: int) -> None:
    assert parse(show((host, port))) == (host, port)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9", "::1", "::1%lo"])
def test_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["127.evil.example.org", "1270.0.0.1", "localhost.example", "::2"])
def test_not_this_machine_whatever_it_looks_like(host: str) -> None:
    assert not is_loopback(host)
    assert not is_wildcard(host)


@pytest.mark.parametrize(
    ("hosts", "listens_on"),
    [
        (("127.0.0.1", "127.0.0.1"), "127.0.0.1"),
        (("::1", "::1"), "127.0.0.1"),
        ((HERE, HERE), HERE),  # a scheduler of this machine, found at an address of the network
        ((HERE, THERE), HERE),
        (("fd00::2", "fd00::1"), "fd00::2"),
    ],
)
def test_a_site_listens_where_it_reaches_the_scheduler_from(
    hosts: tuple[str, str], listens_on: str
) -> None:
    assert host_to_listen_on(None, None, hosts) == listens_on
    assert host_to_listen_on(None, "paris.example.org", hosts) == listens_on
    assert host_to_listen_on("0.0.0.0", "paris.example.org", hosts) == "0.0.0.0"


@pytest.mark.parametrize(
    ("host", "advertise", "named"),
    [
        ("127.0.0.1", None, "host is '127.0.0.1'"),
        ("localhost", None, "host is 'localhost'"),
        ("::1", None, "host is '::1'"),
        ("0.0.0.0", "localhost", "advertise is 'localhost'"),
    ],
)
def test_loopback_is_not_offered_to_a_scheduler_elsewhere(
    host: str, advertise: str | None, named: str
) -> None:
    with pytest.raises(ValueError, match=f"{named}, where only .* on another machine, {THERE}; .*"):
        host_to_listen_on(host, advertise, (HERE, THERE))
    for hosts in ((HERE, HERE), ("127.0.0.1", "127.0.0.1")):
        assert are_on_one_machine(hosts)
        assert host_to_listen_on(host, advertise, hosts) == host
    assert host_to_listen_on("127.0.0.1", "paris", (HERE, THERE)) == "127.0.0.1"  # forwarded
