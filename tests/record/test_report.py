from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from anabranch.overlay import Overlay, Site
from anabranch.plan import Plan, PlanError, Tree
from anabranch.record import (
    FaultInjected,
    LinkBytes,
    LinkMeasured,
    LogError,
    MessageRefused,
    PlanIssued,
    RoundDone,
    RunEnded,
    SiteJoined,
    SiteLost,
    TransportChosen,
    write_plan_page,
    write_report,
    write_twin_report,
)


class Reader(HTMLParser):
    """Reads a page as a browser does: its words, its tables, and what it would load."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words = ""
        self.rows: list[list[str]] = []
        self.loads: list[str] = []
        self.scripts: list[str] = []
        self._inside: list[str] = []
        # Plain signs, so that the tests can be typed.
        self.feed(page.replace("\N{MULTIPLICATION SIGN}", "x").replace("\N{EN DASH}", "-"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [f"{tag} {key}" for key, _ in attrs if key in ("src", "href", "srcset")]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag == "script":
            self.scripts.append("")
        if tag not in ("meta", "br"):
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._inside.pop() == tag

    def handle_data(self, data: str) -> None:
        if "script" in self._inside:
            self.scripts[-1] += data
        elif "style" not in self._inside:
            self.words += f" {data.strip()}" if data.strip() else ""
            if self.rows and {"td", "th"} & set(self._inside):
                self.rows[-1][-1] += data

    def row(self, name: str, heading: str) -> list[str]:
        """Return the row of a name in the table that has this heading."""
        start = next(i for i, row in enumerate(self.rows) if heading in row)
        return next(row for row in self.rows[start + 1 :] if row[0] == name)

    def cell(self, name: str, heading: str) -> str:
        head = next(row for row in self.rows if heading in row)
        return self.row(name, heading)[head.index(heading)]


def report(tmp_path: Path, *logs: Path) -> Reader:
    out = tmp_path / "report.html"
    write_report(logs, out)
    assert out.stat().st_size < 6_000_000
    return Reader(out.read_text(encoding="utf-8"))


@pytest.fixture
def page(run, write_log, tmp_path: Path, packed: Plan) -> Reader:
    """A report of a star with rounds of 4 s, its limit 1 s, and of a packed plan with 2 s."""
    star_log = write_log("star", run(round_s=(4, 4, 4), predicted_s=5.0, accuracy=(0.5, 0.6, 0.7)))
    packed_log = write_log("packed", run(packed, round_s=(2, 2, 2.5), predicted_s=1.6))
    return report(tmp_path, star_log, packed_log)


def test_the_verdict_names_the_fastest_and_the_baseline(page: Reader) -> None:
    assert "packed: 2.00x as fast as star" in page.words
    assert "packed takes 2.00 s a round, star 4.00 s (medians of 3 and 3 rounds)" in page.words


def test_the_verdict_gives_the_reason(page: Reader) -> None:
    # 10 MB over 40 Mbit/s take 2 s. Both packed trees cross the links between Perth and Kyoto.
    assert (
        "Under star that is Lima → Oslo , which carries 1.00 x the buffer (10 MB) at 40 Mbit/s: "
        "2.00 s."
    ) in page.words
    assert (
        "Kyoto → Perth , which carries 1.00 x the buffer (10 MB) at 80 Mbit/s: 1.00 s."
        in page.words
    )
    assert "less than 1.00 s; packed reaches 50 % of that physical limit" in page.words


@pytest.mark.parametrize(
    ("heading", "of_star", "of_packed"),
    [
        ("sites", "4", "4"),
        ("rounds", "3 of 3", "3 of 3"),
        ("median round", "4.00 s", "2.00 s"),
        ("speed-up over star", "1.00x", "2.00x"),
        ("predicted", "5.00 s", "1.60 s"),
        ("measured / predicted", "0.80x", "1.25x"),
        ("share of limit", "25 %", "50 %"),
        ("final accuracy", "70.0 %", "90.0 % (best 92.0 %)"),
        ("time to accuracy", "90 % not reached", "4.00 s to 90 %"),
        ("checksums", "equal in 3 rounds", "equal in 3 rounds"),
        ("busiest link", "Lima → Oslo", "Kyoto → Perth"),
        ("time it needs", "2.00 s", "1.00 s"),
        ("trees", "1", "2"),
        ("log", "star.db", "packed.db"),
    ],
)
def test_the_tables_say(page: Reader, heading: str, of_star: str, of_packed: str) -> None:
    assert (page.cell("star", heading), page.cell("packed", heading)) == (of_star, of_packed)


def test_nothing_is_loaded(page: Reader, tmp_path: Path) -> None:
    assert page.loads == []
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert not re.search(r"@import|url\(", text[: text.index("</style>")])


def test_the_library_is_there_once(page: Reader) -> None:
    assert sum(len(script) > 1_000_000 for script in page.scripts) == 1


def test_all_is_well_needs_no_warning(page: Reader) -> None:
    assert "Mind" not in page.words


def test_one_run_is_reported_alone(run, write_log, tmp_path: Path) -> None:
    page = report(tmp_path, write_log("star", run()))
    assert "star: 3.00 s a round" in page.words
    assert "median of 3 rounds" in page.words


def test_a_slower_run_than_the_star_is_told_as_such(
    run, write_log, tmp_path: Path, packed: Plan
) -> None:
    logs = [
        write_log("star", run(round_s=(1, 1))),
        write_log("packed", run(packed, round_s=(4, 4))),
    ]
    assert "star: 4.00x as fast as packed" in report(tmp_path, *logs).words


def test_communication_only_runs_say_so_in_place_of_accuracy(
    run, write_log, tmp_path: Path
) -> None:
    page = report(tmp_path, write_log("star", run(accuracy=(), target_accuracy=None)))
    assert "No run evaluated its model" in page.words
    assert page.cell("star", "final accuracy") == "not evaluated"
    assert page.cell("star", "time to accuracy") == "no target"


def test_runs_of_different_work_are_not_compared(run, write_log, tmp_path: Path) -> None:
    logs = [write_log("a", run(label="a")), write_log("b", run(label="b", buffer_bytes=1000))]
    page = report(tmp_path, *logs)
    assert "2 runs of different work" in page.words
    assert page.cell("b", "speed-up over a") == "-"


def test_runs_with_one_label_are_told_apart(run, write_log, tmp_path: Path) -> None:
    page = report(tmp_path, write_log("monday", run()), write_log("tuesday", run()))
    assert page.cell("star (monday)", "sites") == page.cell("star (tuesday)", "sites") == "4"


def test_a_killed_run_is_reported_as_far_as_it_went(run, write_log, tmp_path: Path) -> None:
    events = [event for event in run() if not isinstance(event, RunEnded)]
    page = report(tmp_path, write_log("star", events))
    assert "star: the log stops at 9.00 s without an end" in page.words


@pytest.mark.parametrize("length", [1, 4, 8])
def test_any_beginning_of_a_log_can_be_reported(run, write_log, tmp_path: Path, length) -> None:
    page = report(tmp_path, write_log("star", run()[:length]))
    assert page.cell("star", "sites") == "4"


def test_a_run_without_a_completed_round_says_so(run, write_log, tmp_path: Path) -> None:
    page = report(tmp_path, write_log("star", run()[:2]))
    assert "No round was completed" in page.words
    assert "there are no round times" in page.words
    assert "no record of what its links carried" in page.words


def test_what_went_wrong_is_said_first(run, write_log, tmp_path: Path) -> None:
    events = run()[:-1]
    odd = RoundDone(at_s=9.0, site=2, round=1, version=1, seconds=4.0, checksum=99)
    refused = MessageRefused(at_s=9.0, site=0, sender=2, error="DuplicateMessage", detail="")
    lanes = [
        TransportChosen(at_s=0.1, site=site, strands=4, why="bbr may not be set here")
        for site in (0, 2)
    ]
    ended = RunEnded(at_s=9.5, error="Perth was lost")
    page = report(tmp_path, write_log("star", [*events, *lanes, odd, refused, refused, ended]))
    assert "the lanes of 2 sites have 4 connections each, because bbr may" in page.words
    assert "the result of round 1 is not the same everywhere: Kyoto differ" in page.words
    assert "messages were refused: 2 x DuplicateMessage" in page.words
    assert "the run ended with an error: Perth was lost" in page.words
    assert page.cell("star", "checksums") == "DIFFER in 1 of 3 rounds"


def test_a_lost_site_is_told_with_when_and_why(run, write_log, tmp_path: Path) -> None:
    lost = SiteLost(at_s=9.25, site=3, detail="Perth died in round 4: connection reset")
    ended = RunEnded(at_s=9.25, error=lost.detail)
    page = report(tmp_path, write_log("star", [*run()[:-1], lost, ended]))
    assert page.words.count("Perth died in round 4") == 2  # as the error, and among what happened
    assert page.row("star", "detail")[1:] == ["9.25 s", "Perth was lost", lost.detail]


def test_a_site_that_came_back_is_told_of_too(run, write_log, tmp_path: Path) -> None:
    lost = SiteLost(at_s=4.0, site=3, detail="it died", goes_on=True)
    back = SiteJoined(at_s=6.0, site=3, name="Perth", address="10.0.0.3:4711")
    page = report(tmp_path, write_log("star", [*run()[:-1], lost, back, run()[-1]]))
    assert "star: Perth took part again from 6.00 s on." in page.words
    assert "at 10.0.0.3:4711" in page.words


def test_a_site_lost_without_an_error_is_a_problem_too(run, write_log, tmp_path: Path) -> None:
    lost = SiteLost(at_s=4.0, site=3, detail="silent for 2 s")
    page = report(tmp_path, write_log("star", [*run()[:-1], lost, run()[-1]]))
    assert "star: Perth was lost at 4.00 s: silent for 2 s." in page.words


def test_injected_faults_are_told(run, write_log, tmp_path: Path) -> None:
    faults = [
        FaultInjected(at_s=3.0, fault="cut", detail="cut Oslo->Lima for 2 s"),
        FaultInjected(at_s=5.0, fault="cut", detail="cut Oslo->Lima for 2 s", over=True),
        FaultInjected(at_s=4.0, fault="slow", detail="slow Kyoto 2x"),
        FaultInjected(at_s=6.0, fault="cut", detail="cut Lima->Oslo"),
    ]
    page = report(tmp_path, write_log("star", [*run()[:-1], *faults, run()[-1]]))
    assert "a script injected faults, so times include them: 2 x cut, 1 x slow" in page.words
    start = next(i for i, row in enumerate(page.rows) if "detail" in row)
    assert [row[1:] for row in page.rows[start + 1 : start + 5]] == [
        ["3.00 s", "injected", "cut Oslo->Lima for 2 s"],
        ["4.00 s", "injected", "slow Kyoto 2x"],
        ["5.00 s", "over", "cut Oslo->Lima for 2 s"],
        ["6.00 s", "injected", "cut Lima->Oslo"],
    ]


def test_a_run_that_ended_early_on_purpose_did_not_fail(run, write_log, tmp_path: Path) -> None:
    reason = "target accuracy 0.9 reached after 3 rounds"
    ended = RunEnded(at_s=9.0, error=None, reason=reason)
    page = report(tmp_path, write_log("star", [*run(rounds=50)[:-1], ended]))
    assert f"star ended early, on purpose: {reason}." in page.words
    assert page.cell("star", "rounds") == "3 of 50"
    assert "Mind" not in page.words


def test_simulated_runs_are_called_so_and_have_no_date(run, write_log, tmp_path: Path) -> None:
    changes = {"world": "simulated", "started_at": None, "limit_s": None}
    page = report(tmp_path, write_log("star", run(**changes)))
    assert "1 simulated run on overlay square" in page.words
    assert page.cell("star", "simulated / predicted") == "1.20x"
    assert page.cell("star", "world") == "simulated"
    assert page.cell("star", "started") == "-"
    assert page.cell("star", "share of limit") == page.cell("star", "physical limit") == "-"
    assert "nothing can be compared with it" in page.words


def test_a_report_of_both_worlds_counts_the_simulated_runs(run, write_log, tmp_path: Path) -> None:
    logs = [write_log("a", run(label="a")), write_log("b", run(label="b", world="simulated"))]
    assert "2 runs (1 simulated) on overlay square" in report(tmp_path, *logs).words


def test_runs_that_did_not_feel_the_overlay_are_not_held_against_its_limit(
    run, write_log, tmp_path: Path
) -> None:
    page = report(tmp_path, write_log("star", run(shaped=False)))
    assert page.cell("star", "share of limit") == "-"
    assert "links were not held to the overlay's rates" in page.words


@pytest.fixture
def aware_page(aware, write_log, tmp_path: Path) -> Reader:
    return report(tmp_path, write_log("star", aware()))


def test_measured_rates_are_held_against_true_ones_in_words(aware_page: Reader) -> None:
    assert "10 measurements of 2 of the 12 links." in aware_page.words
    assert (
        "Measured rates are 5.0 % from the true ones at the median and 10 % at the worst "
        "(Lima → Oslo at 20.0 s: 9 Mbit/s measured, 10 Mbit/s true). Left out: 1 measurement that "
        "came first after a change of a link's rate and may hold chunks of before it, up to 150 % "
        "off. The scheduler planned again once."
    ) in aware_page.words


def test_plans_are_listed_with_why_and_what_came_of_them(aware_page: Reader) -> None:
    start = next(i for i, row in enumerate(aware_page.rows) if "issued" in row)
    assert aware_page.rows[start + 1 : start + 3] == [
        ["star", "0.00 s", "1", "the first plan", "2.50 s", "1 tree", "6", "2.00 s"],
        [
            "star",
            "12.0 s",
            "3",
            "Lima->Oslo fell from 40 to 25 Mbit/s",
            "3.20 s → 1.00 s",
            "2 of 2 new",
            "4",
            "1.00 s",
        ],
    ]


def test_who_held_rounds_up_is_counted(aware_page: Reader) -> None:
    start = next(i for i, row in enumerate(aware_page.rows) if "rounds it held up" in row)
    assert aware_page.rows[start + 1 :][:3] == [
        ["star", "Lima → Oslo", "6", "60 %", "2.00 s", "0"],
        ["star", "Lima → Perth", "4", "40 %", "1.00 s", "0"],
        ["star", "Oslo → Perth", "0", "0 %", "-", "6"],
    ]


def test_the_last_plan_that_ran_is_drawn_beside_the_first(aware_page: Reader) -> None:
    assert "star, plan 3" in aware_page.words
    assert "Issued at 12.0 s, drawn with the rates of that moment." in aware_page.words


def test_a_run_that_watched_nothing_has_no_words_on_it(page: Reader) -> None:
    assert "Network awareness" not in page.words
    assert "Who held rounds up" not in page.words


def test_who_held_rounds_up_is_told_without_awareness_too(aware, write_log, tmp_path: Path) -> None:
    silent = [e for e in aware() if not isinstance(e, (LinkMeasured, PlanIssued))]
    page = report(tmp_path, write_log("star", silent))
    assert "Who held rounds up" in page.words
    assert "Network awareness" not in page.words


def test_rounds_that_nobody_else_held_up_are_counted_too(start, write_log, tmp_path: Path) -> None:
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
    page = report(tmp_path, write_log("star", [start(), *done]))
    assert ["star", "own sending, or unknown", "1", "50 %", "-", "0"] in page.rows
    assert ["star", "Oslo → Perth", "1", "50 %", "1.00 s", "0"] in page.rows


def test_a_run_that_measured_and_kept_its_plan_says_so(aware, write_log, tmp_path: Path) -> None:
    kept = [event for event in aware(shaped=False) if not isinstance(event, PlanIssued)]
    page = report(tmp_path, write_log("star", kept))
    assert "No plan was issued after the first." in page.words
    assert "so no true rate is known" in page.words
    assert not any("issued" in row for row in page.rows)


def test_measurements_that_may_hold_both_rates_only_are_not_called_wrong(
    aware, write_log, tmp_path: Path
) -> None:
    mixed = [e for e in aware() if not isinstance(e, LinkMeasured) or (e.at_s == 12.0 and e.source)]
    page = report(tmp_path, write_log("star", mixed))
    assert "1 measurement of 1 of the 12 links. Every measurement was the first" in page.words


def test_plans_beyond_the_first_few_are_counted(aware, write_log, tmp_path: Path) -> None:
    events = aware()
    [issued] = [event for event in events if isinstance(event, PlanIssued)]
    more = [
        msgspec.structs.replace(issued, version=3 + k, at_s=12.0 + k / 100) for k in range(1, 50)
    ]
    page = report(tmp_path, write_log("star", [*events[:-1], *more, events[-1]]))
    start = next(i for i, row in enumerate(page.rows) if "issued" in row)
    [last] = [row for row in page.rows[start:] if row[3].startswith("and ")]
    listed = page.rows[start + 1 : page.rows.index(last)]
    assert len(listed) == 1 + 40  # the first plan is not one of those issued
    assert last == ["star", "", "", "and 10 more", "", "", "", ""]


def test_a_plan_issued_that_makes_no_sense_is_named(aware, write_log, tmp_path: Path) -> None:
    broken = [
        msgspec.structs.replace(event, plan_json="{") if isinstance(event, PlanIssued) else event
        for event in aware()
    ]
    path = write_log("odd", broken)
    with pytest.raises(LogError, match=r"odd\.db: "):
        write_report([path], tmp_path / "report.html")


def test_runs_over_emulated_links_are_called_so(run, write_log, tmp_path: Path) -> None:
    emulated = write_log("a", run(label="a", world="emulated"))
    page = report(tmp_path, emulated)
    assert "1 emulated run on overlay square" in page.words
    assert page.cell("a", "world") == "emulated"
    assert page.cell("a", "measured / predicted") == "1.20x"
    others = [write_log(w, run(label=w, world=w)) for w in ("simulated", "local")]
    words = report(tmp_path, emulated, *others).words
    assert "3 runs (1 emulated, 1 simulated) on overlay square" in words


def test_names_from_a_log_cannot_bring_a_script(
    run, write_log, tmp_path: Path, overlay: Overlay
) -> None:
    evil = "</script><script>alert(1)</script>"
    hostile = replace(overlay, name=evil, sites=(Site(evil), *overlay.sites[1:]))
    lost = SiteLost(at_s=1.0, site=0, detail=evil)
    ended = RunEnded(at_s=1.0, error=evil)
    changes = {"label": evil, "task": evil, "model": evil, "versions": {evil: evil}}
    events = [*run(on=hostile, **changes)[:-1], lost, ended]
    page = report(tmp_path, write_log("evil", events))
    assert page.cell(evil, "task") == evil
    assert not any(script.startswith("alert(1)") for script in page.scripts)


def test_no_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one"):
        write_report([], tmp_path / "report.html")


def test_a_log_that_cannot_be_summed_up_is_named(write_log, tmp_path: Path) -> None:
    path = write_log("empty", [])
    with pytest.raises(LogError, match=r"empty\.db: the log is empty"):
        write_report([path], tmp_path / "report.html")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"overlay_toml": "= 3"}, ""),
        ({"plan_json": "{"}, ""),
        ({"sites": ["a", "b", "c", "d"]}, "not those of its overlay"),
    ],
)
def test_a_log_whose_first_event_makes_no_sense_is_named(
    run, write_log, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = write_log("odd", run(**change))
    with pytest.raises(LogError, match=rf"odd\.db: .*{message}"):
        write_report([path], tmp_path / "report.html")


def test_a_plan_page_lists_shares_and_busiest_links(
    overlay: Overlay, star: Plan, packed: Plan, tmp_path: Path
) -> None:
    out = tmp_path / "plan.html"
    write_plan_page(overlay, [star, packed], out)
    page = Reader(out.read_text(encoding="utf-8"))
    assert page.loads == []
    assert page.cell("packed", "sustained rate") == "80 Mbit/s"
    assert page.cell("star", "sustained rate") == "40 Mbit/s"
    assert "packed synchronises 80 Mbit/s" in page.words
    assert page.row("packed", "edges up") == ["packed", "1", "Kyoto", "75 %", "1", "1"]
    assert ["packed", "2", "Perth", "25 %", "1", "2"] in page.rows


def test_a_plan_page_tells_plans_without_labels_apart(
    overlay: Overlay, star: Plan, tmp_path: Path
) -> None:
    out = tmp_path / "plan.html"
    unnamed = replace(star, label="")
    write_plan_page(overlay, [unnamed, unnamed], out)
    page = Reader(out.read_text(encoding="utf-8"))
    assert page.cell("plan 1", "trees") == page.cell("plan 1 #2", "trees") == "1"


def test_a_plan_page_needs_plans_that_fit(overlay: Overlay, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one plan"):
        write_plan_page(overlay, [], tmp_path / "plan.html")
    with pytest.raises(PlanError):
        write_plan_page(
            overlay, [Plan(1, (Tree(0, 1.0, (-1, 0), (-1, 0)),))], tmp_path / "plan.html"
        )


@pytest.fixture
def twin_logs(run, write_log):
    """Return a function that writes a pair of logs, simulated and measured, for a route."""

    def write(
        name: str,
        simulated_s,
        measured_s,
        plan: Plan | None = None,
        more=(),
        measured_idle_s: float = 0.0,
        world: str = "local",
        **changes,
    ):
        plans = () if plan is None else (plan,)
        simulated = {"world": "simulated", "started_at": None, "limit_s": None, **changes}
        measured = run(
            *plans, round_s=measured_s, label=name, idle_s=measured_idle_s, world=world, **changes
        )
        return (
            write_log(
                f"{name}-simulated", run(*plans, round_s=simulated_s, label=name, **simulated)
            ),
            write_log(f"{name}-measured", [*measured[:-1], *more, measured[-1]]),
        )

    return write


def twin_report(tmp_path: Path, *pairs: tuple[Path, Path]) -> Reader:
    out = tmp_path / "twin.html"
    write_twin_report(pairs, out)
    assert out.stat().st_size < 6_000_000
    return Reader(out.read_text(encoding="utf-8"))


def test_a_twin_that_agrees_says_so_first(twin_logs, tmp_path: Path, packed: Plan) -> None:
    page = twin_report(
        tmp_path,
        twin_logs("star", (4, 4, 4), (4.2, 4.2, 4.2)),
        twin_logs("packed", (2, 2, 2), (2.02, 1.98, 1.98), packed),
    )
    assert page.loads == []
    assert "Simulated and measured within 5.0 % on all 2 routes" in page.words
    assert "that of star (simulated 4.00 s a round, measured 4.20 s)" in page.words
    assert "the median over 2 routes is 3.0 %; every route is within 10 %" in page.words
    assert "Every link carried exactly the same number of payload bytes" in page.words
    assert "Mind" not in page.words


@pytest.mark.parametrize(
    ("heading", "of_star", "of_packed"),
    [
        ("simulated, a round", "4.00 s", "2.00 s"),
        ("measured, a round", "4.20 s", "2.50 s"),
        ("measured / simulated", "1.050x", "1.250x"),
        ("error", "5.0 %", "25 %"),
        ("within 10 %", "yes", "NO"),
        ("predicted", "2.50 s", "2.50 s"),
        ("rounds", "3", "3"),
        ("payload", "equal, 180 MB", "equal, 180 MB"),
        ("checksums", *2 * ("equal on all sites, and in both worlds",)),
    ],
)
def test_a_twin_has_a_row_for_each_route(
    twin_logs, tmp_path: Path, packed: Plan, heading: str, of_star: str, of_packed: str
) -> None:
    page = twin_report(
        tmp_path,
        twin_logs("star", (4, 4, 4), (4.2, 4.2, 4.2)),
        twin_logs("packed", (2, 2, 2), (2, 2.5, 3), packed),
    )
    assert "Not within 10 %: packed takes 1.250x its simulated time per round" in page.words
    assert "1 of 2 routes are more than 10 % apart" in page.words
    assert "packed measured between 1.00x (round 0) and 1.50x (round 2)" in page.words
    assert page.cell("star", heading) == of_star
    assert page.cell("packed", heading) == of_packed


def test_a_twin_over_emulated_links_says_so(twin_logs, tmp_path: Path) -> None:
    page = twin_report(tmp_path, twin_logs("star", (4,), (4,), world="emulated"))
    assert "1 route, simulated and measured over emulated links, on overlay square" in page.words
    assert page.cell("star, measured", "world") == "emulated"


def test_a_twin_counts_the_time_between_exchanges(twin_logs, tmp_path: Path) -> None:
    page = twin_report(tmp_path, twin_logs("star", (4, 4), (4, 4), measured_idle_s=1.0))
    assert "Not within 10 %: star takes 1.250x its simulated time per round" in page.words
    assert "simulated 4.00 s a round, measured 5.00 s" in page.words
    assert "An error is how far a route's median measured time per round is from its" in page.words
    assert page.cell("star", "measured, a round") == "5.00 s"


def test_a_twin_of_one_route_is_told_alone(twin_logs, tmp_path: Path) -> None:
    page = twin_report(tmp_path, twin_logs("star", (4,), (4.2,)))
    assert "star: simulated and measured within 5.0 %" in page.words
    assert "How far apart" not in page.words
    assert page.cell("star, simulated", "started") == "-"
    assert page.cell("star, measured", "started") == "2030-01-02T03:04:05Z"


def test_a_twin_lists_links_that_did_not_carry_the_same(twin_logs, tmp_path: Path) -> None:
    more = LinkBytes(at_s=9.0, source=0, target=1, seconds=1.0, payload_bytes=7)
    page = twin_report(tmp_path, twin_logs("star", (4, 4), (4, 4), more=[more]))
    assert "Links did not carry the same in both worlds" in page.words
    assert page.cell("star", "payload") == "DIFFERS on 1 link"
    assert page.row("star", "difference") == [
        "star",
        "Oslo → Lima",
        "20,000,000",
        "20,000,007",
        "+7",
    ]


def test_a_twin_whose_worlds_did_not_do_as_many_rounds_is_a_problem(
    twin_logs, tmp_path: Path
) -> None:
    page = twin_report(tmp_path, twin_logs("star", (4, 4), (4,)))
    assert "simulated run completed 2 rounds and the measured one 1" in page.words
    assert page.cell("star", "rounds") == "2 and 1"


def test_a_twin_tells_what_went_wrong_in_either_world(twin_logs, tmp_path: Path) -> None:
    lost = SiteLost(at_s=8.0, site=3, detail="silent")
    page = twin_report(tmp_path, twin_logs("star", (4, 4), (4, 4), more=[lost]))
    assert "star, measured: Perth was lost at 8.00 s: silent." in page.words


def test_a_twin_without_rounds_says_so(twin_logs, tmp_path: Path) -> None:
    page = twin_report(tmp_path, twin_logs("a", (), (4,), accuracy=()), twin_logs("b", (4,), (4,)))
    assert "within 0 % on 1 of 2 routes" in page.words
    assert "so not compared: a." in page.words
    page = twin_report(tmp_path, twin_logs("c", (), (), accuracy=()))
    assert "No route completed a round in both worlds" in page.words
    assert "neither log says what links carried" in page.words


def test_a_pair_that_is_no_twin_is_named(twin_logs, tmp_path: Path) -> None:
    simulated, measured = twin_logs("star", (4,), (4,))
    with pytest.raises(LogError, match=r"star-measured\.db and .*star-simulated\.db: .*order"):
        write_twin_report([(measured, simulated)], tmp_path / "twin.html")
    with pytest.raises(ValueError, match="at least one pair"):
        write_twin_report([], tmp_path / "twin.html")


def test_names_in_a_twin_cannot_bring_a_script(twin_logs, tmp_path: Path) -> None:
    evil = "</script><script>alert(1)<!--"
    fault = FaultInjected(at_s=1.0, fault=evil, detail=evil)
    pairs = twin_logs("x", (4, 4), (9, 4), more=[fault], task=evil, versions={evil: evil})
    page = twin_report(tmp_path, pairs)
    assert not any(script.startswith("alert(1)") for script in page.scripts)


def test_importing_the_record_does_not_import_plotly() -> None:
    code = "import sys, anabranch.record; sys.exit('plotly' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
