"""Addresses: what people write is understood, or refused with how to write it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.net.addresses import is_loopback, is_wildcard, parse, show


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
