"""Tables: what their cells say, and which columns a terminal shows."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from rich.console import Console

from anabranch.log import (
    Evaluated,
    FaultInjected,
    LinkBytes,
    PlanIssued,
    ProceedAsked,
    RoundDone,
    RunEnded,
    SiteJoined,
    SiteLost,
    UpdateApplied,
    UpdateCame,
    WorkerWent,
    units,
)
from anabranch.overlay import Overlay
from anabranch.plan import Plan
from anabranch_lab.reports import tables
from anabranch_lab.reports.runs import Run, fastest_and_baseline, pair_up
from anabranch_lab.reports.tables import Column, Table


def rows(table: Table) -> list[tuple[str, ...]]:
    """Return the cells in plain signs, so that the tests can be typed."""
    return [
        tuple(cell.replace(units.TIMES, "x").replace(units.NONE, "-") for cell in row)
        for row in table.rows
    ]


def by_heading(table: Table, row: int = 0) -> dict[str, str]:
    return dict(zip(table.headings, rows(table)[row], strict=True))


def test_a_column_without_anything_in_it_is_left_out() -> None:
    columns = (
        Column[int]("route", str, brief=True, number=False),
        Column[int]("none", lambda _: units.NONE, brief=True),
        Column[int]("some", lambda row: units.NONE if row else "x"),
        Column[int]("last", str, brief=True),
    )
    table = Table.of(columns, [0, 1])
    assert list(table.headings) == ["route", "some", "last"]
    assert (list(table.numbers), list(table.brief)) == ([1, 2], [0, 2])


def test_a_terminal_shows_the_brief_columns_of_the_page(run, read) -> None:
    table = tables.results([read("star", run())])
    console = Console(width=120)
    with console.capture() as captured:
        console.print(table.for_terminal("all of it"))
    headings, _, row, caption = (line for line in captured.get().splitlines() if line.strip())
    shown = ["route", "rounds", "exchange", "worst", "predicted", "limit", "per round"]
    assert set(shown) < set(table.headings)
    cells = by_heading(table)
    assert headings.split() == " ".join([*shown, "accuracy", "to target"]).split()
    assert (
        " ".join(row.split()).replace(units.TIMES, "x").startswith(" ".join(map(cells.get, shown)))
    )
    assert caption.strip() == "all of it"


def test_results_compare_runs(run, read, packed: Plan) -> None:
    star = run(round_s=(4, 4, 5), predicted_s=5.0, accuracy=(0.5, 0.6, 0.7), idle_s=1.0)
    table = tables.results(
        [read("a", star), read("b", run(packed, round_s=(2, 2, 2.5), predicted_s=1.6))]
    )
    assert by_heading(table, 0) == {
        "route": "star",
        "sites": "4",
        "rounds": "3/3",
        "exchange": "4.00 s",
        "worst": "5.00 s",
        "speed-up": "1.00x",
        "predicted": "5.00 s",
        "over predicted": "0.80x",
        "limit": "25 %",
        "per round": "5.00 s",
        "accuracy": "70.0 %",
        "best": "70.0 %",
        "target": "90 %",
        "bytes to target": "-",
        "to target": "not reached",
        "checksums": "equal in 3 rounds",
    }
    assert by_heading(table, 1) == {
        "route": "packed",
        "sites": "4",
        "rounds": "3/3",
        "exchange": "2.00 s",
        "worst": "2.50 s",
        "speed-up": "2.00x",
        "predicted": "1.60 s",
        "over predicted": "1.25x",
        "limit": "50 %",
        "per round": "2.00 s",
        "accuracy": "90.0 %",
        "best": "92.0 %",
        "target": "90 %",
        "bytes to target": "120 MB",
        "to target": "4.00 s",
        "checksums": "equal in 3 rounds",
    }


def test_runs_of_different_work_have_no_speed_up(run, read) -> None:
    runs = [read("a", run(label="a")), read("b", run(label="b", buffer_bytes=1000))]
    assert by_heading(tables.results(runs), 1)["speed-up"] == "-"


def test_predictions_do_not_hold_where_links_were_not_held_to_their_rates(run, read) -> None:
    headings = tables.results([read("a", run(shaped=False))]).headings
    assert not {"predicted", "over predicted", "limit"} & set(headings)
    emulated = by_heading(tables.results([read("a", run(world="emulated"))]))
    assert emulated["over predicted"] == "1.20x"


def test_checksums_that_differ_are_told(run, read) -> None:
    odd = RoundDone(at_s=9.0, site=2, round=1, version=1, seconds=4.0, checksum=99)
    cells = by_heading(tables.results([read("star", [*run(), odd])]))
    assert cells["checksums"] == "DIFFER in 1 of 3 rounds"


def test_any_beginning_of_a_log_has_results(run, read) -> None:
    events = run()[:-1]
    for length in range(1, len(events)):
        assert by_heading(tables.results([read("star", events[:length])]))["sites"] == "4"


@pytest.fixture
def served(start) -> list:
    """Two workers: pull 1 s, compute 2 s, push 0.5 s, wait 0.5 s; the servers add both at once."""
    events = [start(target_accuracy=None)]
    for update in (1, 2):
        for site in (0, 1):
            went_s = 4.0 * (update - 1)
            worker = {"site": site, "update": update}
            events += [
                WorkerWent(at_s=went_s, samples=8, **worker),
                ProceedAsked(at_s=went_s + 3.0, samples=8, compute_s=2.0, **worker),
                UpdateCame(at_s=went_s + 3.5, **worker),
                UpdateApplied(at_s=went_s + 4.0, version=update, missed=site, **worker),
            ]
    sent = LinkBytes(at_s=8.0, source=1, target=0, seconds=8.0, payload_bytes=50_000_000)
    return [*events, sent, RunEnded(at_s=8.0, error=None)]


def test_paces_have_phases_staleness_and_ports(served, read) -> None:
    table = tables.paces([read("star", served)])
    assert by_heading(table) == {
        "route": "star",
        "sites": "4",
        "updates": "4",
        "discarded": "0",
        "iteration": "4.00 s",
        "pulling": "1.00 s",
        "computing": "2.00 s",
        "pushing": "0.500 s",
        "blocked": "0.500 s",
        "at once": "67 %",
        "missed": "0.5, 1",
        "ports": "25 %, 0 %",  # 50 of 200 Mbit/s
        "predicted": "2.50 s",
        "whole run": "8.00 s",
        "checksums": "not recorded",
    }
    brief = [table.headings[index] for index in table.brief]
    assert brief[-2:] == ["ports", "whole run"]


def test_runs_with_servers_and_runs_that_all_reduce_are_in_tables_of_their_own(
    served, run, read
) -> None:
    runs = [read("bsp", served), read("star", run(label="rounds"))]
    assert [row[0] for row in tables.paces(runs).rows] == ["star"]
    assert [row[0] for row in tables.results(runs).rows] == ["rounds"]
    assert rows(tables.results(runs[:1])) == []


def test_sites_have_an_accuracy_each_the_least_accurate_first(labelled, read) -> None:
    table = tables.accuracy_by_site([read("star", labelled)])
    assert list(table.headings) == ["site", "samples", "labels", "commonest", "accuracy"]
    assert rows(table) == [
        ("Perth", "1,000", "1 of 2", "0, 100 %", "50.0 %"),
        ("Oslo", "400", "2 of 2", "0, 75 %", "60.0 %"),
    ]
    several = tables.accuracy_by_site([read(name, labelled) for name in "ab"])
    assert several.headings[1] == "route"
    assert rows(several) == [  # both ran the same
        ("Perth", "all 2", "1,000", "1 of 2", "0, 100 %", "50.0 %"),
        ("Oslo", "all 2", "400", "2 of 2", "0, 75 %", "60.0 %"),
    ]


def test_a_row_that_some_runs_have_alike_names_them(labelled, run, read) -> None:
    other = [each for each in labelled if not isinstance(each, Evaluated)]
    seen = [each for each in labelled if isinstance(each, Evaluated)][-1]
    other.append(msgspec.structs.replace(seen, by_class=[1.0, 1.0]))
    runs = [read("star", labelled), read("ring", other), read("tree", labelled)]
    runs = [replace(each, name=name) for each, name in zip(runs, ("a", "b", "c"), strict=True)]
    table = tables.accuracy_by_site(runs)
    assert [(row[0], row[1]) for row in table.rows] == [
        ("Perth", "a, c"),
        ("Oslo", "a, c"),
        ("Oslo", "b"),
        ("Perth", "b"),
    ]


def test_the_speed_up_is_over_what_the_headline_compares_with(run, read, packed: Plan) -> None:
    """Over the first run, the fastest one's would read 1.00x, and the star's 0.50x."""
    fast = read("a", run(packed, round_s=(2, 2, 2), label="packed"))
    slow = read("b", run(round_s=(4, 4, 4), label="star"))
    slower = read("c", run(packed, round_s=(8, 8, 8), label="other"))
    runs = [fast, slow, slower]
    assert fastest_and_baseline(runs) == (fast, slow)
    found = [by_heading(tables.results(runs), index)["speed-up"] for index in range(3)]
    assert found == ["2.00x", "1.00x", "0.50x"]


def test_a_page_shows_a_wide_table_in_two(run, read) -> None:
    columns = tuple(Column[int](f"c{k}", str, brief=k % 2 == 0, number=k > 0) for k in range(15))
    table = Table.of(columns, [7])
    brief, rest = table.for_page()
    assert list(brief.headings) == [f"c{k}" for k in range(0, 15, 2)]
    assert list(rest.headings) == ["c0", *(f"c{k}" for k in range(1, 15, 2))]
    assert list(brief.numbers) == [*range(1, 8)]
    assert Table.of(columns[:12], [7]).for_page()[0].headings == [f"c{k}" for k in range(12)]


def test_results_say_how_far_apart_sites_are(labelled, run, read) -> None:
    cells = by_heading(tables.results([read("star", labelled)]))
    assert (cells["worst site"], cells["best site"]) == ("50.0 %", "60.0 %")
    assert cells["sites' variance"] == "25 points²"
    assert "worst site" not in tables.results([read("star", run())]).headings
    assert not tables.accuracy_by_site([read("star", run())]).rows


def test_twins_are_compared_route_by_route(run, read, packed: Plan) -> None:
    runs = [
        (
            read("s", run(plan, round_s=simulated_s, label=plan.label, world="simulated")),
            read("m", [*run(plan, round_s=measured_s, label=plan.label), *more]),
        )
        for plan, simulated_s, measured_s, more in (
            (packed, (2, 2, 2), (2, 2.5, 3), ()),
            (
                packed,
                (4, 4, 4),
                (4.2, 4.2),
                [LinkBytes(at_s=9.0, source=0, target=1, seconds=1.0, payload_bytes=7)],
            ),
        )
    ]
    twins = pair_up(runs)
    table = tables.twins([twin.row for twin in twins])
    assert by_heading(table) == {
        "route": "packed",
        "simulated": "2.00 s",
        "measured": "2.50 s",
        "measured/simulated": "1.250x",
        "error": "25 %",
        "within 10 %": "NO",
        "predicted": "2.50 s",
        "rounds": "3",
        "payload": "equal, 180 MB",
        "checksums": "equal on all sites, and in both worlds",
    }
    other = by_heading(table, 1)
    assert (other["route"], other["rounds"], other["within 10 %"]) == (
        "packed #2",
        "3 and 2",
        "yes",
    )
    assert other["payload"].startswith("DIFFERS on ")
    assert tables.twin_errors([twin.row for twin in twins]) == "median, worst error: 15 %, 25 %"


def test_links_that_did_not_carry_the_same_are_listed(run, read) -> None:
    more = LinkBytes(at_s=9.0, source=0, target=1, seconds=1.0, payload_bytes=7)
    [twin] = pair_up([(read("s", run(world="simulated")), read("m", [*run(), more]))])
    assert rows(tables.differing_links([twin])) == [
        ("star", "Oslo → Lima", "30,000,000", "30,000,007", "+7")
    ]
    assert tables.twins([twin.row]).rows[0][-2] == "DIFFERS on 1 link"


def test_plans_are_listed_with_why_and_what_came_of_them(aware, read) -> None:
    assert rows(tables.plans_issued([read("star", aware())])) == [
        ("star", "0.00 s", "1", "the first plan", "2.50 s", "1 tree", "6", "2.00 s"),
        (
            "star",
            "12.0 s",
            "3",
            "Lima->Oslo fell from 40 to 25 Mbit/s",
            "3.20 s → 1.00 s",
            "2 of 2 new",
            "4",
            "1.00 s",
        ),
    ]


def test_plans_beyond_the_first_few_are_counted(aware, read) -> None:
    events = aware()
    [issued] = [event for event in events if isinstance(event, PlanIssued)]
    more = [
        msgspec.structs.replace(issued, version=3 + k, at_s=12.0 + k / 100) for k in range(1, 50)
    ]
    table = tables.plans_issued([read("star", [*events, *more])])
    assert len(table.rows) == 1 + 40  # the first plan is not one of those issued
    assert table.more == ["star: 10 more plans not listed."]


def test_links_that_held_rounds_up_are_counted(aware, read) -> None:
    assert rows(tables.waits([read("star", aware())])) == [
        ("star", "Lima → Oslo", "6", "60 %", "2.00 s", "0"),
        ("star", "Lima → Perth", "4", "40 %", "1.00 s", "0"),
        ("star", "Oslo → Perth", "0", "0 %", "-", "6"),
    ]


def test_rounds_that_waited_for_no_link_are_counted_too(start, read) -> None:
    done = [
        RoundDone(
            at_s=float(round),
            site=site,
            round=round,
            version=1,
            seconds=1.0,
            checksum=None,
            waited_for=0 if (site, round) == (3, 2) else None,
        )
        for round in (1, 2)
        for site in (3, 0, 1, 2)
    ]
    assert rows(tables.waits([read("star", [start(), *done])])) == [
        ("star", "Oslo → Perth", "1", "50 %", "1.00 s", "0"),
        ("star", "own sending, or unknown", "1", "50 %", "-", "0"),
    ]


def test_faults_losses_and_returns_are_in_order_of_time(run, read) -> None:
    happened = [
        FaultInjected(at_s=3.0, fault="cut", detail="cut Oslo->Lima for 2 s"),
        FaultInjected(at_s=5.0, fault="cut", detail="cut Oslo->Lima for 2 s", over=True),
        SiteLost(at_s=4.0, site=3, detail="it died", goes_on=True),
        SiteJoined(at_s=6.0, site=3, name="Perth", address="10.0.0.3:4711"),
    ]
    assert rows(tables.happenings([read("star", [*run(), *happened])])) == [
        ("star", "3.00 s", "injected", "cut Oslo->Lima for 2 s"),
        ("star", "4.00 s", "Perth was lost", "it died"),
        ("star", "5.00 s", "over", "cut Oslo->Lima for 2 s"),
        ("star", "6.00 s", "Perth took part again", "at 10.0.0.3:4711"),
    ]


def test_what_ran_can_be_repeated(run, read) -> None:
    assert by_heading(tables.what_ran([read("a", run(world="simulated", started_at=None))])) == {
        "route": "star",
        "task": "digits",
        "model": "mlp",
        "seed": "7",
        "buffer": "10 MB",
        "chunk": "65,536 elements",
        "world": "simulated",
        "started": "-",
        "versions": "anabranch 0.1.0, torch 2.13.0",
        "log": "a.db",
    }


def test_the_busiest_link_is_the_reason(run, read, overlay: Overlay, packed: Plan) -> None:
    runs: list[Run] = [read("a", run()), read("b", run(packed))]
    # 10 MB over 40 Mbit/s take 2 s. Both packed trees cross the links between Perth and Kyoto.
    assert [row[1:] for row in rows(tables.reasons(runs))] == [
        ("1", "1", "Lima → Oslo", "40 Mbit/s", "1.00 x the buffer", "2.00 s", "3.00 s", "1.00 s"),
        ("2", "2", "Kyoto → Perth", "80 Mbit/s", "1.00 x the buffer", "1.00 s", "3.00 s", "1.00 s"),
    ]
    assert rows(tables.plans(overlay, {"packed": packed})) == [
        ("packed", "2", "2", "Kyoto → Perth", "80 Mbit/s", "1.00 x the buffer", "80 Mbit/s")
    ]


def test_shares_have_a_row_for_each_tree(overlay: Overlay, packed: Plan) -> None:
    assert rows(tables.shares(overlay, {"packed": packed})) == [
        ("packed", "1", "Kyoto", "75 %", "1", "1"),
        ("packed", "2", "Perth", "25 %", "1", "2"),
    ]
