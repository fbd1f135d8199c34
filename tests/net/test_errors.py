"""Errors: what another end says cannot reach into a terminal, or fill it."""

from __future__ import annotations

import pytest

from anabranch.net.errors import NetError, PeerError, RunAborted


@pytest.mark.parametrize("kind", [NetError, PeerError, RunAborted])
def test_control_characters_are_escaped_and_lines_stay(kind: type[NetError]) -> None:
    error = kind("a\x1b[2J\x07\x9b1m\u202e\r\nTraceback:\n\tline é 日本")
    assert str(error) == "a\\u001b[2J\\u0007\\u009b1m\\u202e\\r\nTraceback:\n\tline é 日本"


def test_of_a_very_long_reason_both_ends_stay() -> None:
    reason = str(NetError("beginning" + 100_000 * "x" + "end"))
    assert len(reason) < 10_010
    assert reason.startswith("beginning")
    assert reason.endswith("xend")
    assert " ... " in reason
    assert str(NetError(10_000 * "x")) == 10_000 * "x"
