"""Refusals of unauthenticated callers: few are reported, and none goes uncounted."""

from __future__ import annotations

from anabranch.net.errors import PeerError, UnauthorisedPeer
from anabranch.net.refusals import RefusalLimit

from ..every import every


def test_a_flood_is_reported_twenty_times_at_once_and_then_once_in_ten_seconds() -> None:
    limit = RefusalLimit()
    error = UnauthorisedPeer("no token")
    reported = [limit.admit(error, i / 1000) for i in range(100_000)]  # 1,000 in a second
    said = [each for each in reported if each is not None]
    assert len(said) == 20 + 9
    assert every(type(each) is UnauthorisedPeer for each in said)
    assert str(said[20]) == "no token (and 9980 refusals before it)"
    last = limit.admit(error, 200.0)
    assert last is not None
    counted = sum(int(str(each).split()[3]) for each in [*said[20:], last])
    assert counted + len(said) + 1 == 100_001


def test_quiet_time_is_saved_up_but_no_further_than_twenty() -> None:
    limit = RefusalLimit()
    error = PeerError("?")
    assert every(limit.admit(error, 1e6) is error for _ in range(20))
    assert limit.admit(error, 1e6) is None
    assert limit.admit(error, 1e6 + 9.9) is None
    assert limit.admit(error, 1e6 + 10.1) is not None
    assert limit.admit(error, 1e6 + 10.2) is None
