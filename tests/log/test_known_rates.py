"""What a report shows of a group's links: given, measured and assumed rates look different."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from anabranch.cli._scheduler import _service
from anabranch.group import _local
from anabranch.log import Event, EventLog, LinkMeasured, RunEnded, RunStarted, SchedulerRestarted
from anabranch.overlay import Overlay, loads
from anabranch.plan import Plan
from anabranch_lab.reports import _plan_figure, tables
from anabranch_lab.reports._known_rates import known_rates
from anabranch_lab.reports.report import report_page
from anabranch_lab.reports.runs import Run, read_runs

MakeRun = Callable[..., list[Event]]
GROUP = {"shaped": False, "task": "group", "limit_s": None}


def measured(source: int, target: int, rate_bps: float, at_s: float) -> LinkMeasured:
    return LinkMeasured(
        at_s=at_s,
        site=target,
        source=source,
        target=target,
        rate_bps=rate_bps,
        latency_s=None,
        chunks=9,
    )


def with_events(events: Sequence[Event], *more: Event) -> Run:
    first, *rest = events
    return Run.of([first, *more, *rest], Path("group.db"))


def labels(run: Run, plan: Plan) -> set[str]:
    """Return the texts of rates in the drawing of a plan."""
    figure = _plan_figure.trees(known_rates(run.summary, run.overlay), plan)
    sites = {f"<b>{site.name}</b>" for site in run.overlay.sites}
    return {note.text for note in figure.layout.annotations} - sites


def test_a_placeholder_is_no_rate_anywhere(run: MakeRun, star: Plan) -> None:
    group = with_events(run(**GROUP, assumes_rates=True))
    assert labels(group, star) == {"?"}
    assert group.bottleneck is None
    [row] = tables.reasons([group]).rows
    assert not any("bit/s" in cell for cell in row)
    page = report_page([group])
    assert "Mbit/s at" not in page
    assert "80 Mbit/s" not in page
    assert "rate assumed" in page


def test_measured_rates_are_marked_and_the_others_stay_assumed(run: MakeRun, star: Plan) -> None:
    some = (measured(1, 0, 12e6, 1.0), measured(0, 1, 34e6, 2.0))
    group = with_events(run(**GROUP, assumes_rates=True), *some)
    assert labels(group, star) == {"?", "<b>12</b>", "<b>34</b>"}
    assert group.bottleneck is None  # a link that counts is assumed
    every = [measured(a, b, 5e6, 3.0) for a in range(4) for b in range(4) if a != b]
    group = with_events(run(**GROUP, assumes_rates=True), *some, *every)
    assert labels(group, star) == {"<b>5</b>"}
    assert group.bottleneck is not None
    assert group.bottleneck.basis == "measured"
    [row] = tables.reasons([group]).rows
    assert "5 Mbit/s, measured" in row
    assert "at 5 Mbit/s, as measured" in report_page([group])


def test_rates_that_an_overlay_gives_are_not_marked(run: MakeRun, star: Plan) -> None:
    group = with_events(run(**GROUP), measured(1, 0, 12e6, 1.0))
    assert labels(group, star) == {"80", "<b>12</b>"}
    held = with_events(run(), measured(1, 0, 12e6, 1.0))
    assert labels(held, star) == {"80", "40"}  # the true rates are known


def test_what_was_measured_later_is_not_known_before(run: MakeRun, overlay: Overlay) -> None:
    group = with_events(run(**GROUP, assumes_rates=True), measured(1, 0, 12e6, 5.0))
    for at_s, basis in ((4.0, "assumed"), (5.0, "measured")):
        link = known_rates(group.summary, overlay, at_s).link(1, 0)
        assert link is not None
        assert link.basis == basis


def test_a_run_alone_is_not_compared_with_itself(run: MakeRun) -> None:
    alone = with_events(run())
    assert "speed-up" not in tables.results([alone]).headings
    both = [replace(alone, name="a"), replace(alone, name="b")]
    assert "speed-up" in tables.results(both).headings


@pytest.fixture
def parts(run: MakeRun, tmp_path: Path) -> list[Path]:
    """Two logs of one group: its scheduler was killed in round 3, and started again."""
    first, *rounds = run(**GROUP, round_s=(1.0, 1.0, 1.0, 1.0))
    assert isinstance(first, RunStarted)
    again = msgspec.structs.replace(first, started_at="2030-01-02T03:04:08Z")
    rounds = [each for each in rounds if not isinstance(each, RunEnded)]
    early = [each for each in rounds if each.at_s <= 2.0]
    late = [each for each in rounds if each.at_s > 2.0]
    back = SchedulerRestarted(at_s=2.0, awaited=[0, 1, 2, 3])
    logs = {
        "a.db": [first, *early, RunEnded(at_s=2.0, error="the scheduler was interrupted")],
        "b.db": [again, back, *late, RunEnded(at_s=4.0, error=None)],
    }
    paths = []
    for name, events in logs.items():
        with EventLog.create(tmp_path / name) as log:
            log.append(events)
        paths.append(tmp_path / name)
    return paths


@pytest.mark.parametrize("order", [1, -1])
def test_the_logs_of_a_scheduler_that_was_started_again_are_one_run(
    order: int, parts: list[Path]
) -> None:
    [joined] = read_runs(parts[::order])
    assert [done.round for done in joined.summary.rounds] == [0, 1, 2, 3]
    assert (joined.summary.error, joined.summary.total_s) == (None, 4.0)
    assert joined.path == parts[0]


def test_logs_of_other_runs_stay_apart(parts: list[Path], run: MakeRun, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    first, *rounds = run(**{**GROUP, "task": "other"}, round_s=(1.0,))
    with EventLog.create(other) as log:
        log.append([first, *rounds])
    assert [each.path for each in read_runs([other, *parts])] == [other, parts[0]]
    [alone] = read_runs(parts[1:])
    assert [done.round for done in alone.summary.rounds] == [2, 3]


@pytest.mark.parametrize(
    ("options", "assumed"),
    [
        ({"sites": "a,b"}, True),
        ({"sites": "a,b", "pace": "asp"}, True),
        ({"sites": "a,b", "links_bps": 1e9}, False),
        ({"overlay": "internet2-9"}, False),
        ({"overlay": "internet2-9", "measure": True}, True),
    ],
)
def test_a_group_without_stated_rates_assumes_them(
    options: dict[str, object], assumed: bool
) -> None:
    usual = dict.fromkeys(("overlay", "sites", "links_bps", "pace", "model_mb"))
    others = {"route": "packed", "measure": False, "keep_plan": False, "updates": 1}
    service = _service(**{**usual, **others, **options})  # type: ignore[arg-type]
    assert service.assumes_rates == assumed


def test_a_group_of_this_machine_assumes_its_rates() -> None:
    assert _local._service(2).assumes_rates


def test_a_link_without_a_rate_is_not_given_any() -> None:
    ends = 'from = "a", to = "b", back_rate_bps = 1e6, latency_s = 0'
    text = f'name = "two"\nsite = [{{name = "a"}}, {{name = "b"}}]\nlink = [{{{ends}}}]'
    assert [link.basis for link in loads(text, unknown_rate_bps=1e8)] == ["assumed", "given"]
