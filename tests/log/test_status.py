"""A run's status as people and machines read it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from msgspec.structs import replace
from rich.console import Console as Terminal

from anabranch.log import events, units
from anabranch.log.console import Console, Line, logfmt
from anabranch.log.status import (
    AwaitedSite,
    LinkStatus,
    SiteStatus,
    Status,
    dumps,
    headline,
    links_table,
    loads,
    progress,
    sites_table,
)

RUNNING = Status(
    overlay="group",
    phase="running",
    running_s=120.0,
    plan="packed, 3 trees",
    plan_version=2,
    replans=1,
    exchanges=41,
    exchanged_bytes=41_000_000,
    incomplete=2,
    sites=(
        SiteStatus(
            name="paris",
            state="member",
            address="10.0.0.1:7701",
            loss=0.25,
            loss_step=40,
            accuracy=0.75,
            accuracy_step=39,
        ),
        SiteStatus(name="austin", state="member"),
        SiteStatus(name="tokyo", state="lost", address="10.0.0.3:7701"),
    ),
    waits=(
        AwaitedSite(site="austin", seconds=14.0, at="call 7 (an exchange)", waiting=("paris",)),
    ),
    links=(
        LinkStatus(
            source="paris",
            target="austin",
            rate_bps=155e6,
            basis="measured",
            latency_s=0.04,
            is_used=False,
        ),
        LinkStatus(
            source="austin",
            target="paris",
            rate_bps=None,
            basis="assumed",
            latency_s=None,
            is_used=True,
        ),
    ),
)


def test_a_status_is_read_as_it_was_written() -> None:
    assert loads(dumps(RUNNING)) == RUNNING


def test_what_is_no_status_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no status of a run"):
        loads(b'{"phase": "dancing"}')


def test_a_headline_says_how_far_it_is_and_who_is_awaited() -> None:
    assert headline(RUNNING) == (
        "group is running for 120 s; plan 2 (packed, 3 trees); 41 exchanges, 41 MB, "
        "2 without all contributions; waits 14.0 s for austin at call 7 (an exchange)"
    )


def test_tables_list_every_site_and_link() -> None:
    terminal = Terminal(width=120, record=True, file=None)
    with terminal.capture() as shown:
        terminal.print(sites_table(RUNNING).for_terminal())
        terminal.print(links_table(RUNNING).for_terminal())
    text = shown.get()
    assert "0.25 at 40" in text
    assert "10.0.0.3:7701" in text
    assert "paris->austin" in text
    assert "155 Mbit/s" in text
    assert "measured" in text


def test_progress_is_said_in_rates() -> None:
    later = replace(RUNNING, exchanges=61, exchanged_bytes=61_000_000)
    assert progress(RUNNING, later, 10.0) == (
        "61 exchanges, 61 MB, 2 without all contributions; 2 exchanges/s, 2 MB/s; "
        "2 members; mean loss 0.25"
    )
    diverged = replace(later, sites=(replace(RUNNING.sites[0], loss=None), *RUNNING.sites[1:]))
    assert (progress(RUNNING, diverged, 10.0) or "").endswith("2 members; mean loss nan")
    served = replace(RUNNING, updates=30)
    assert progress(RUNNING, served, 10.0) == (
        "30 updates and 41 exchanges, 41 MB, 2 without all contributions; 3 updates/s; "
        "2 members; mean loss 0.25"
    )


def test_where_nothing_ended_it_is_said_once_whom_others_wait_for() -> None:
    before = replace(RUNNING, waits=())
    assert (
        progress(before, RUNNING, 10.0)
        == "41 exchanges, 41 MB, 2 without all contributions; 2 members; mean loss 0.25; "
        "waits for austin"
    )
    assert progress(RUNNING, RUNNING, 10.0) is None
    waiting = replace(RUNNING, phase="waiting")
    assert progress(before, waiting, 10.0) is None


def test_a_console_says_progress_with_fields() -> None:
    said: list[Line] = []
    console = Console(["paris", "austin", "tokyo"], said.append)
    later = replace(RUNNING, exchanges=61, exchanged_bytes=61_000_000)
    assert console.progress(RUNNING, later, 10.0)
    assert not console.progress(later, later, 10.0)
    [line] = said
    assert line.fields["exchanges_per_s"] == 2.0
    assert "exchanges_per_s=2 bytes=61000000 members=2 plan=2" in logfmt(line, datetime.now(UTC))


def test_the_time_is_utc_wherever_the_clock_is() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678900, tzinfo=timezone(timedelta(hours=2)))
    assert (
        logfmt(Line("left", "x"), at) == "time=2026-01-02T01:04:05.678Z level=info event=left msg=x"
    )


def test_what_a_peer_has_written_stays_within_its_value() -> None:
    said: list[Line] = []
    console = Console(["paris"], said.append)
    detail = 'x" level=error\nevent=ended \\'
    console.tell(
        events.MessageRefused(
            at_s=0.0, site=None, sender=None, error="MalformedMessage", detail=detail
        )
    )
    text = logfmt(said[0], datetime(2026, 1, 2, tzinfo=UTC))
    assert text.count("\n") == 0
    assert text.endswith(r'msg="refused a message: x\" level=error\nevent=ended \\"')


def test_who_joined_and_who_is_awaited_is_a_field_each() -> None:
    said: list[Line] = []
    console = Console(["paris", "austin"], said.append)
    console.listening()
    console.tell(events.SiteJoined(at_s=0.0, site=0, name="paris", address="127.0.0.1:1"))
    console.ended("site 1 (austin) died")
    waiting, joined, ended = said
    assert waiting.fields == {"waits_for": "paris,austin"}
    assert joined.text == "paris joined from 127.0.0.1:1; waiting for austin"
    assert joined.fields == {"site": "paris", "address": "127.0.0.1:1", "waits_for": "austin"}
    assert (ended.event, ended.level) == ("ended", "error")


def test_a_long_wait_is_said_with_the_call_and_the_sites_that_wait() -> None:
    said: list[Line] = []
    Console(["paris", "austin"], said.append).awaited(RUNNING.waits[0])
    [line] = said
    assert line.text == "paris has waited 14.0 s for austin at call 7 (an exchange)"
    assert (line.event, line.level) == ("awaited", "warning")
    assert line.fields == {
        "site": "austin",
        "seconds": 14.0,
        "at": "call 7 (an exchange)",
        "waiting": "paris",
    }


def test_links_say_what_their_rates_rest_on_and_an_assumed_one_has_no_number() -> None:
    given = replace(RUNNING.links[0], source="tokyo", basis="given", rate_bps=80e6)
    shown = links_table(replace(RUNNING, links=(*RUNNING.links, given)))
    assert [*shown.headings[:4]] == ["link", "rate", "latency", "rate is"]
    assert [tuple(row[:4]) for row in shown.rows] == [
        ("paris->austin", "155 Mbit/s", "40.0 ms", "measured"),
        ("austin->paris", units.NONE, units.NONE, "assumed"),
        ("tokyo->austin", "80 Mbit/s", "40.0 ms", "given"),
    ]
