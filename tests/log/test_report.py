"""Pages: what they say, that they load nothing, and that names in them are only names."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from anabranch.log import (
    FaultInjected,
    LinkBytes,
    LinkMeasured,
    PlanIssued,
    ProceedAsked,
    RunEnded,
    SiteLost,
    UpdateApplied,
    UpdateCame,
    WorkerWent,
)
from anabranch.overlay import Overlay, Site
from anabranch.plan import Plan, PlanError, Tree
from anabranch_lab.reports import _page, write_plan_page, write_report, write_twin_report
from anabranch_lab.reports.report import report_page, twin_page
from anabranch_lab.reports.runs import Run, pair_up

EVIL = "</script><script>alert(1)</script><!--"


class Reader(HTMLParser):
    """Reads a page as a browser does: its words, its tables, and what it would load."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words = ""
        self.headings: list[str] = []
        self.loads: list[str] = []
        self.scripts: list[str] = []
        self._inside: list[str] = []
        # Plain signs, so that the tests can be typed.
        self.feed(page.replace("\N{MULTIPLICATION SIGN}", "x").replace("\N{EN DASH}", "-"))
        assert self._inside == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [f"{tag} {key}" for key, _ in attrs if key in ("src", "href", "srcset")]
        if tag == "script":
            self.scripts.append("")
        if tag not in ("meta", "br"):
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._inside.pop() == tag

    def handle_data(self, data: str) -> None:
        if "script" in self._inside:
            self.scripts[-1] += data
        elif "style" not in self._inside and data.strip():
            self.words = f"{self.words} {' '.join(data.split())}"
            if self._inside[-1] in ("h1", "h2", "th"):
                self.headings.append(" ".join(data.split()))


@pytest.fixture(autouse=True)
def small_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave plotly's four megabytes of JavaScript out of the pages."""
    monkeypatch.setattr(_page, "get_plotlyjs", lambda: "library")


def report(*runs: Run) -> Reader:
    return Reader(report_page(runs))


def test_the_verdict_names_the_fastest_the_baseline_and_the_reason(run, read, packed: Plan) -> None:
    page = report(
        read("star", run(round_s=(4, 4, 4), predicted_s=5.0)),
        read("packed", run(packed, round_s=(2, 2, 2.5))),
    )
    assert page.headings[0] == "packed: 2.00x as fast as star"
    for words in (
        "2 local runs on overlay square: 4 sites, 12 directed links, a buffer of 10 MB",
        "packed takes 2.00 s a round, star 4.00 s (medians of 3 and 3 rounds)",
        # 10 MB over 40 Mbit/s take 2 s. Both packed trees cross the links between Perth and Kyoto.
        "Under star that is Lima → Oslo , which carries 1.00 x the buffer (10 MB) at 40 Mbit/s: "
        "2.00 s.",
        "Kyoto → Perth , which carries 1.00 x the buffer (10 MB) at 80 Mbit/s: 1.00 s.",
        "less than 1.00 s; packed reaches 50 % of that physical limit",
    ):
        assert words in page.words
    sections = ["Results", "Why: the busiest link under each plan", "Trees", "Round times"]
    assert set(sections) <= set(page.headings)
    assert not {"Mind", "Pace", "Network awareness", "What happened"} & set(page.headings)


def test_a_small_buffer_s_share_of_the_limit_is_explained_by_latency(
    run, read, packed: Plan, overlay: Overlay
) -> None:
    links = tuple(replace(link, latency_s=0.3) for link in overlay.links)
    far = replace(overlay, links=links)
    page = report(read("packed", run(packed, on=far, round_s=(2, 2, 2))))
    assert (  # the second tree's way down has two hops
        "Whatever its size, a buffer takes 0.900 s from the farthest site to a root and back, 45 % "
        "of a round here: one as small as 10 MB stays below the limit for that"
    ) in page.words
    assert "Whatever its size" not in report(read("star", run(round_s=(4, 4, 4)))).words


def test_who_holds_which_labels_is_drawn_and_how_good_the_model_is_for_each_site(
    labelled, run, read
) -> None:
    page = report(read("star", labelled))
    assert {"Who holds which labels", "Accuracy by site"} <= set(page.headings)
    assert "star: 50.0 to 60.0 %, a variance of 25 percentage points squared." in page.words
    assert not {"Who holds which labels", "Accuracy by site"} & set(
        report(read("star", run())).headings
    )


def test_the_same_split_is_drawn_once(labelled, read) -> None:
    once, again = report_page([read("a", labelled)]), report_page([read(n, labelled) for n in "ab"])
    shown = "samples of label %{x}"
    assert once.count(shown) == again.count(shown) == 1
    assert again.count("a variance of 25") == 1


def test_a_page_is_one_file_that_loads_nothing(
    run, write_log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    out = tmp_path / "report.html"
    write_report([write_log("star", run())], out)
    text = out.read_text(encoding="utf-8")
    assert len(text) < 6_000_000
    assert "default-src 'none'" in text
    assert not re.search(r"@import|url\(", text[: text.index("</style>")])
    page = Reader(text)
    assert page.loads == []
    assert sum(len(script) > 1_000_000 for script in page.scripts) == 1


def test_the_same_log_gives_the_same_page(run, read) -> None:
    assert report_page([read("star", run())]) == report_page([read("star", run())])


def test_one_run_is_reported_alone(run, read) -> None:
    page = report(read("star", run()))
    assert page.headings[0] == "star: 3.00 s a round"
    assert "median of 3 rounds" in page.words


def test_a_star_may_be_the_fastest(run, read, packed: Plan) -> None:
    runs = [read("star", run(round_s=(1, 1))), read("packed", run(packed, round_s=(4, 4)))]
    assert report(*runs).headings[0] == "star: 4.00x as fast as packed"


def test_runs_of_different_work_are_not_compared(run, read) -> None:
    page = report(read("a", run(label="a")), read("b", run(label="b", buffer_bytes=1000)))
    assert page.headings[0] == "2 runs of different work"
    assert "2 local runs" in page.words
    assert "on overlay" not in page.words


def test_what_is_not_known_is_told_in_a_figure_s_place(run, read) -> None:
    silent = read("star", run(target_accuracy=None, limit_s=None, accuracy=())[:1])
    page = report(silent)
    assert page.headings[0] == "No round was completed"
    for words in (
        "there are no round times",
        "nothing can be compared with it",
        "no record of what its links carried",
        "No run evaluated its model",
    ):
        assert words in page.words


def test_what_went_wrong_is_said_first(run, read) -> None:
    lost = SiteLost(at_s=9.25, site=3, detail="connection reset")
    page = report(read("star", [*run()[:-1], lost, RunEnded(at_s=9.25, error="Perth died")]))
    assert page.headings[1] == "Mind"
    assert "star: the run ended with an error: Perth died." in page.words
    assert "What happened" in page.headings


def test_a_run_that_ended_early_on_purpose_did_not_fail(run, read) -> None:
    reason = "target accuracy 0.9 reached after 3 rounds"
    page = report(read("star", [*run()[:-1], RunEnded(at_s=9.0, error=None, reason=reason)]))
    assert f"star ended early, on purpose: {reason}." in page.words
    assert "Mind" not in page.headings


def test_the_worlds_of_the_runs_are_named(run, read) -> None:
    runs = [read(world, run(label=world, world=world)) for world in ("emulated", "simulated")]
    assert "1 emulated run, 1 simulated run on overlay square" in report(*runs).words


def test_a_run_that_measured_its_network_is_held_against_the_truth(aware, read) -> None:
    page = report(read("star", aware()))
    assert (
        "10 measurements of 2 of the 12 links. Measured rates are 5.0 % from the true ones at the "
        "median and 10 % at the worst (Lima → Oslo at 20.0 s: 9 Mbit/s measured, 10 Mbit/s true). "
        "Left out: 1 measurement that came first after a change of a link's rate and may hold "
        "chunks of before it, up to 150 % off. The scheduler planned again once."
    ) in page.words
    assert "star, plan 3" in page.words
    assert "Issued at 12.0 s, drawn with the rates of that moment." in page.words
    assert {"Plans issued, and why", "Which links held rounds up"} <= set(page.headings)


def test_a_run_that_measured_and_kept_its_plan_says_so(aware, read) -> None:
    kept = [event for event in aware(shaped=False) if not isinstance(event, PlanIssued)]
    page = report(read("star", kept))
    assert "No plan was issued after the first." in page.words
    assert "so no true rate is known" in page.words
    assert "Plans issued, and why" not in page.headings


def test_measurements_that_may_hold_both_rates_only_are_not_called_wrong(aware, read) -> None:
    mixed = [e for e in aware() if not isinstance(e, LinkMeasured) or (e.at_s == 12.0 and e.source)]
    page = report(read("star", mixed))
    assert "1 measurement of 1 of the 12 links. Every measurement was the first" in page.words


def test_waiting_is_told_without_awareness_too(aware, read) -> None:
    silent = [e for e in aware() if not isinstance(e, (LinkMeasured, PlanIssued))]
    headings = report(read("star", silent)).headings
    assert "Which links held rounds up" in headings
    assert "Network awareness" not in headings


def test_runs_with_servers_have_sections_of_their_own(start, run, read) -> None:
    worker = {"site": 1, "update": 1}
    served = [
        start(),
        WorkerWent(at_s=0.0, samples=8, **worker),
        ProceedAsked(at_s=3.0, samples=8, compute_s=2.0, **worker),
        UpdateCame(at_s=3.5, **worker),
        UpdateApplied(at_s=4.0, version=1, missed=0, **worker),
        WorkerWent(at_s=4.0, samples=8, site=1, update=2),
        LinkBytes(at_s=4.0, source=1, target=0, seconds=4.0, payload_bytes=10_000_000),
        RunEnded(at_s=4.0, error=None),
    ]
    page = report(read("served", served), read("rounds", run(label="rounds")))
    assert page.headings[0] == "star: 4.00 s an iteration"
    assert (
        "Under star a worker begins an iteration every 4.00 s, of which it waits 0.500 s for "
        "permission. 1 update became part of the model; one missed 0 of others at most."
    ) in page.words
    assert "rounds all-reduces: a round every 3.00 s (median)." in page.words
    assert {"Pace", "Phases of each worker", "Round times"} <= set(page.headings)
    alone = report(read("served", served[:2]))
    assert alone.headings[0] == "No iteration was completed"
    assert "star completed no iteration." in alone.words
    assert "Round times" not in alone.headings


def test_names_from_a_log_cannot_bring_a_script(aware, read, changing: Overlay) -> None:
    hostile = replace(changing, name=EVIL, sites=(Site(EVIL), *changing.sites[1:]))
    changes = {
        "label": EVIL,
        "task": EVIL,
        "versions": {EVIL: EVIL},
        "sites": [EVIL, "Lima", "Kyoto", "Perth"],
    }
    events = aware(on=hostile, **changes)
    faults = [FaultInjected(at_s=1.0, fault=EVIL, detail=EVIL), RunEnded(at_s=22.0, error=EVIL)]
    page = report(read("evil", [*events[:-1], *faults]))
    assert not any(script.startswith("alert(1)") for script in page.scripts)
    assert page.words.count(EVIL) > 10


def test_no_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one"):
        write_report([], tmp_path / "report.html")
    with pytest.raises(ValueError, match="at least one pair"):
        write_twin_report([], tmp_path / "twin.html")


def test_a_plan_page_draws_plans_and_names_the_fastest(
    overlay: Overlay, star: Plan, packed: Plan, tmp_path: Path
) -> None:
    out = tmp_path / "plan.html"
    write_plan_page(overlay, [star, packed, replace(star, label=""), replace(star, label="")], out)
    page = Reader(out.read_text(encoding="utf-8"))
    assert page.loads == []
    assert "packed synchronises 80 Mbit/s of the buffer, more than any other plan" in page.words
    assert {"Busiest links", "Trees", "Shares", "plan 1", "plan 1 #2"} <= set(page.headings)


def test_a_plan_page_needs_plans_that_fit(overlay: Overlay, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one plan"):
        write_plan_page(overlay, [], tmp_path / "plan.html")
    with pytest.raises(PlanError):
        write_plan_page(
            overlay, [Plan(1, (Tree(0, 1.0, (-1, 0), (-1, 0)),))], tmp_path / "plan.html"
        )


@pytest.fixture
def twins(run, read):
    """Return a function that reports routes, each as (label, round times of both worlds)."""

    def make(*routes, more=(), measured_idle_s: float = 0.0, world="local", **changes) -> Reader:
        pairs = []
        for label, simulated_s, measured_s in routes:
            simulated = run(round_s=simulated_s, label=label, world="simulated", **changes)
            measured = run(
                round_s=measured_s, label=label, idle_s=measured_idle_s, world=world, **changes
            )
            measured = [*measured[:-1], *more, measured[-1]]
            pairs.append((read("simulated", simulated), read("measured", measured)))
        return Reader(twin_page(pair_up(pairs)))

    return make


def test_a_twin_that_agrees_says_so_first(twins) -> None:
    page = twins(("star", (4, 4, 4), (4.2, 4.2, 4.2)), ("packed", (2, 2, 2), (2.02, 1.98, 1.98)))
    assert page.loads == []
    assert page.headings[0] == "Simulated and measured within 5.0 % on all 2 routes"
    assert "2 routes, simulated and measured, on overlay square: 4 sites" in page.words
    assert "that of star (simulated 4.00 s a round, measured 4.20 s)" in page.words
    assert "the median over 2 routes is 3.0 %; every route is within 10 %" in page.words
    assert "Every link carried exactly the same number of payload bytes" in page.words
    assert "How far apart" in page.headings
    assert "Mind" not in page.headings


def test_a_twin_that_does_not_agree_names_the_worst_route(twins) -> None:
    page = twins(("star", (4, 4, 4), (4.2, 4.2, 4.2)), ("packed", (2, 2, 2), (2, 2.5, 3)))
    assert page.headings[0] == "Not within 10 %: packed takes 1.250x its simulated time per round"
    assert "1 of 2 routes are more than 10 % apart" in page.words
    assert "packed measured between 1.00x (round 0) and 1.50x (round 2)" in page.words


def test_a_twin_counts_the_time_between_exchanges(twins) -> None:
    page = twins(("star", (4, 4), (4, 4)), measured_idle_s=1.0, world="emulated")
    assert page.headings[0] == "Not within 10 %: star takes 1.250x its simulated time per round"
    assert "simulated 4.00 s a round, measured 5.00 s" in page.words
    assert "1 route, simulated and measured over emulated links, on overlay" in page.words


def test_a_twin_of_one_route_is_told_alone(twins) -> None:
    page = twins(("star", (4,), (4.2,)))
    assert page.headings[0] == "star: simulated and measured within 5.0 %"
    assert (
        "star : simulated 4.00 s a round, measured 4.20 s. The error is 5.0 %, not more than"
        in (page.words)
    )
    assert "How far apart" not in page.headings
    assert {"star, simulated", "star, measured"} <= set(page.headings)


def test_a_twin_lists_links_that_did_not_carry_the_same(twins) -> None:
    more = [LinkBytes(at_s=8.0, source=0, target=1, seconds=1.0, payload_bytes=7)]
    page = twins(("star", (4, 4), (4, 4)), more=more)
    assert "Links did not carry the same in both worlds under star" in page.words
    assert "Links that did not carry the same" in page.headings


def test_a_twin_tells_what_went_wrong_in_either_world(twins) -> None:
    lost = SiteLost(at_s=8.0, site=3, detail="silent")
    page = twins(("star", (4, 4), (4,)), more=[lost])
    assert "star, measured: Perth was lost at 8.00 s: silent." in page.words
    assert "star: the simulated run completed 2 rounds and the measured one 1" in page.words


def test_a_twin_without_rounds_says_so(twins) -> None:
    page = twins(("a", (), (4,)), ("b", (4,), (4,)), accuracy=())
    assert page.headings[0] == "Simulated and measured within 0 % on 1 of 2 routes"
    assert "so not compared: a." in page.words
    page = twins(("c", (), ()), accuracy=())
    assert "No route completed a round in both worlds" in page.words
    assert "neither log says what links carried" in page.words


def test_names_in_a_twin_cannot_bring_a_script(twins) -> None:
    fault = FaultInjected(at_s=1.0, fault=EVIL, detail=EVIL)
    page = twins((EVIL, (4, 4), (9, 4)), more=[fault], task=EVIL, versions={EVIL: EVIL})
    assert not any(script.startswith("alert(1)") for script in page.scripts)
    assert page.words.count(EVIL) > 5


def test_a_twin_is_written_from_its_logs(run, write_log, tmp_path: Path) -> None:
    simulated, measured = write_log("s", run(world="simulated")), write_log("m", run())
    write_twin_report([(simulated, measured)], tmp_path / "twin.html")
    text = (tmp_path / "twin.html").read_text(encoding="utf-8")
    assert "star: simulated and measured within 0 %" in text


def test_importing_the_record_does_not_import_plotly() -> None:
    code = "import sys, anabranch.log; sys.exit('plotly' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
