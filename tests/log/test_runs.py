"""Runs as reports show them: their names, and what a reader must know before trusting them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from anabranch.log import (
    FaultInjected,
    LinksEmulated,
    LogError,
    MessageRefused,
    PlanIssued,
    RoundDone,
    RunEnded,
    SiteJoined,
    SiteLost,
    TransportChosen,
    UnknownEvent,
    units,
)
from anabranch_lab.reports.runs import Run, name_apart, pair_up, read_run
from anabranch_lab.reports.tables import results


def test_all_is_well_needs_no_warning(run, read) -> None:
    assert read("star", run()).problems() == []


def test_what_went_wrong_is_named(run, read) -> None:
    happened = [
        RoundDone(at_s=9.0, site=2, round=1, version=1, seconds=4.0, checksum=99),
        *[MessageRefused(at_s=9.0, site=0, sender=2, error="Duplicate", detail="")] * 2,
        *(TransportChosen(at_s=0.1, site=s, strands=4, why="bbr is missing") for s in (0, 2)),
        SiteLost(at_s=4.0, site=3, detail="it died", goes_on=True),
        SiteJoined(at_s=6.0, site=3, name="Perth", address="10.0.0.3:4711"),
        SiteLost(at_s=9.0, site=3, detail="connection reset"),
        FaultInjected(at_s=3.0, fault="cut", detail="cut Oslo->Lima for 2 s"),
        FaultInjected(at_s=5.0, fault="cut", detail="cut Oslo->Lima for 2 s", over=True),
        FaultInjected(at_s=6.0, fault="cut", detail="cut Lima->Oslo"),
        UnknownEvent(at_s=2.0, kind="eclipse", data="{}", reason="unknown kind"),
        RunEnded(at_s=9.5, error="connection reset"),
    ]
    problems = read("star", [*run(shaped=False)[:-1], *happened]).problems()
    assert [problem.replace(units.TIMES, "x") for problem in problems] == [
        "the run ended with an error: connection reset",  # and not again as a loss
        "Perth was lost at 4.00 s: it died",
        "Perth took part again from 6.00 s on",
        "a script injected faults, so times include them: 2 x cut",
        "the result of round 1 is not the same everywhere: Kyoto differ from the others",
        "the lanes of 2 sites have 4 connections each, because bbr is missing",
        "messages were refused: 2 x Duplicate",
        "events of another release are left out: 1 x eclipse",
        "links were not held to the overlay's rates, so predictions and the physical limit do not "
        "apply",
    ]


def test_where_the_relay_was_too_busy_nothing_is_claimed_of_the_network(run, read) -> None:
    events = run(world="emulated")
    spare = read("spare", [*events, LinksEmulated(at_s=0.0, relay_busy=0.8)])
    busy = read("busy", [*events, LinksEmulated(at_s=0.0, relay_busy=0.81)])
    assert spare.problems() == []
    assert spare.summary.share_of_limit is not None
    [problem] = busy.problems()
    assert problem.startswith("the relay of the emulated links was 81 % busy")
    assert busy.summary.share_of_limit is None
    assert busy.summary.measured_over_predicted is None
    assert "relay busy" in results([spare, busy]).headings
    assert "relay busy" not in results([read("plain", events)]).headings
    simulated = read("s", run(world="simulated"))
    with pytest.raises(LogError, match="relay of the emulated links was 81 % busy"):
        pair_up([(simulated, busy)])


def test_a_killed_run_is_told_as_far_as_it_went(run, read) -> None:
    [problem] = read("star", run()[:-1]).problems()
    assert problem.startswith("the log stops at 9.00 s without an end")


def test_worlds_that_did_not_do_as_many_rounds_are_a_problem(run, read) -> None:
    simulated = read("s", run(round_s=(4, 4), world="simulated"))
    [twin] = pair_up([(simulated, read("m", run(round_s=(4,))))])
    assert twin.problem is not None
    assert "simulated run completed 2 rounds and the measured one 1" in twin.problem
    [same] = pair_up([(simulated, read("m", run(round_s=(4, 5))))])
    assert same.problem is None


def test_a_pair_that_is_no_twin_is_named(run, read) -> None:
    simulated, measured = read("s", run(world="simulated")), read("m", run())
    with pytest.raises(LogError, match=r"m\.db and s\.db: .*order"):
        pair_up([(measured, simulated)])


def test_runs_with_one_label_are_told_apart(run, read) -> None:
    runs = [read("monday", run()), read("tuesday", run()), read("star", run(label="mst"))]
    names = [each.name for each in name_apart(runs)]
    assert names == ["star (monday)", "star (tuesday)", "mst"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"overlay_toml": "= 3"}, ""),
        ({"plan_json": "{"}, ""),
        ({"sites": ["a", "b", "c", "d"]}, "not those of its overlay"),
    ],
)
def test_a_log_whose_first_event_makes_no_sense_is_named(
    run, read, change: dict[str, object], message: str
) -> None:
    with pytest.raises(LogError, match=rf"odd\.db: .*{message}"):
        read("odd", run(**change))


def test_a_plan_issued_that_makes_no_sense_is_named(aware, read) -> None:
    broken = [
        msgspec.structs.replace(event, plan_json="{") if isinstance(event, PlanIssued) else event
        for event in aware()
    ]
    with pytest.raises(LogError, match=r"odd\.db: "):
        read("odd", broken)


def test_a_log_is_read_from_its_file(run, read, write_log) -> None:
    path: Path = write_log("star", run())
    assert read_run(path) == Run.of(run(), path)
    with pytest.raises(LogError, match=r"empty\.db: the log is empty"):
        read_run(write_log("empty", []))
