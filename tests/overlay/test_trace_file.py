"""Traces from files: read as they stand, or refused with their file, line and the fix."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from anabranch.overlay import OverlayError, Trace, dumps, load, loads

OVERLAY = """
name = "pair"
site = [{name = "a"}, {name = "b"}]
[[link]]
from = "a"
to = "b"
latency_s = 0.01
trace_file = "there.csv"
back_trace_file = "files/back.csv"
"""
THERE = "time_s,rate_bps\n0,2e6\n180,5e6\n\n"


@pytest.fixture
def overlay(tmp_path: Path) -> Path:
    (tmp_path / "files").mkdir()
    (tmp_path / "there.csv").write_text(THERE)
    (tmp_path / "files" / "back.csv").write_text("time_s, rate_bps\r\n0, 1e6\r\n")
    path = tmp_path / "pair.toml"
    path.write_text(OVERLAY)
    return path


def test_a_trace_is_read_from_a_file_beside_the_overlay(overlay: Path) -> None:
    found = load(overlay)
    there, back = found
    assert (there.rate_bps, there.trace) == (2e6, Trace((0.0, 180.0), (2e6, 5e6)))
    assert (back.rate_bps, back.trace) == (1e6, Trace((0.0,), (1e6,)))
    assert loads(dumps(found)) == found  # as sites get it


def test_a_file_that_has_changed_is_read_again(overlay: Path) -> None:
    assert load(overlay).links[0].rate_bps == 2e6
    (overlay.parent / "there.csv").write_text("time_s,rate_bps\n0,3e6\n")
    assert load(overlay).links[0].rate_bps == 3e6


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "there.csv:1: a trace begins with the line time_s,rate_bps"),
        ("0,2e6\n", "there.csv:1: a trace begins with the line time_s,rate_bps"),
        ("time_s,rate_bps\n", "there.csv: no rate; give at least the one from time 0 on"),
        ("time_s,rate_bps\n1,2e6\n", "there.csv:2: the first time is 1 s; begin at 0"),
        ("time_s,rate_bps\n0,2e6\n5,fast\n", "there.csv:3: '5,fast' is not two numbers"),
        ("time_s,rate_bps\n0,2e6,7\n", "there.csv:2: '0,2e6,7' is not two numbers"),
        ("time_s,rate_bps\n0,2e6\n\n0,3e6\n", "there.csv:4: time 0 s follows 0 s; give finite"),
        ("time_s,rate_bps\n0,2e6\ninf,3e6\n", "there.csv:3: time inf s follows 0 s; give finite"),
        ("time_s,rate_bps\n0,2e6\nnan,3e6\n", "there.csv:3: time nan s follows 0 s; give finite"),
        ("time_s,rate_bps\n0,nan\n", "there.csv:2: rate nan bit/s; give a finite one > 0"),
        ("time_s,rate_bps\n0,2e6\n5,0\n", "there.csv:3: a rate of 0; leave the line out, and scri"),
    ],
)
def test_a_bad_trace_is_refused_with_its_file_and_line(
    text: str, complaint: str, overlay: Path
) -> None:
    (overlay.parent / "there.csv").write_text(text)
    with pytest.raises(OverlayError, match=rf"link\[0\]\.trace_file: .*{re.escape(complaint)}"):
        load(overlay)


def test_a_trace_that_is_not_there_is_named(overlay: Path) -> None:
    (overlay.parent / "there.csv").unlink()
    with pytest.raises(OverlayError, match=r"link\[0\]\.trace_file: cannot read .*there\.csv: "):
        load(overlay)


def test_a_trace_file_needs_a_folder_and_a_link_without_another_trace(tmp_path: Path) -> None:
    with pytest.raises(OverlayError, match=r"link\[0\]\.trace_file: its path counts from .*; give"):
        loads(OVERLAY)
    both = OVERLAY + "trace = {starts_s = [0], rates_bps = [1]}\n"
    with pytest.raises(
        OverlayError, match=r"link\[0\]\.trace_file: there is a trace too; keep one"
    ):
        loads(both, folder=tmp_path)
    rated = OVERLAY + "rate_bps = 1e6\n"
    with pytest.raises(OverlayError, match=r"link\[0\]\.rate_bps: there is a trace too"):
        loads(rated, folder=tmp_path)
