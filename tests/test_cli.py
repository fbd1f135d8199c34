"""The command line: what it prints, and how it ends."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import threading
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from anabranch._typed_toml import tag_of
from anabranch.cli import main
from anabranch.group import serve as serve_module
from anabranch.group.service import Service
from anabranch.log import LogError, fingerprint, read_events, summarise, units
from anabranch.overlay import (
    Link,
    Overlay,
    Site,
    dumps,
    load,
    random_complete,
    random_geographic,
    random_sparse,
)
from anabranch.plan import PLANNERS, Packed, Plan, PlanError, Star, loads
from anabranch_lab.run.scenario import load as load_scenario
from anabranch_lab.run.simulate import simulate

from .every import every


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def anabranch(*arguments: str) -> Done:
    """Run a command in this process; an error that it does not handle is raised."""
    out, err, on_term = io.StringIO(), io.StringIO(), signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["anabranch", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    signal.signal(signal.SIGTERM, on_term)  # some commands set their own
    assert isinstance(ended.value.code, int)
    return Done(ended.value.code, out.getvalue(), err.getvalue())


def test_help_lists_the_commands() -> None:
    command = [sys.executable, "-m", "anabranch", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0
    for command in ("demo", "plan", "run", "simulate", "twin", "report", "replay", "export"):
        assert command in done.stdout
    for part in ("scheduler", "host", "site", "status"):
        assert part in done.stdout


def test_what_a_graph_file_lacks_is_told_in_options() -> None:
    cities = "examples/overlays/six-cities.gml"
    done = anabranch("plan", cities)
    assert done.returncode != 0
    assert "Lisbon->Madrid has no rate; give the rate" in done.stderr
    assert "--rate 155e6" in done.stderr
    done = anabranch("plan", cities, "--rate", "20e6..155e6", "--seed", "3")
    assert done.returncode == 0, done.stderr
    assert "six-cities: 6 sites, 18 directed links" in done.stdout


def test_plan_draws_trees_and_says_how_near_the_limit_they_are(tmp_path: Path) -> None:
    page, saved = tmp_path / "plan.html", tmp_path / "plan.json"
    options = ("--roots", "2", "--html", str(page), "--save", str(saved))
    done = anabranch("plan", "internet2-9", *options)
    assert done.returncode == 0, done.stderr
    assert "physical limit: 17.9 s" in done.stdout
    assert "dc4 up, share 50.1%" in done.stdout
    assert "star" in done.stdout
    assert page.stat().st_size > 1_000_000
    assert loads(saved.read_text()).label == "fapt, 2 roots"


def test_a_ring_of_very_many_sites_is_planned_where_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "line.toml"
    path.write_text(dumps(random_sparse(101, 0)))
    done = anabranch("plan", str(path))
    assert done.returncode == 0, done.stderr
    assert "a ring and a forest are planned for 101 sites only where --route asks" in done.stdout
    assert "\nring " not in done.stdout
    assert "physical limit: at least" in done.stdout
    assert "the limit is bounded" in done.stdout


@pytest.mark.slow
def test_a_network_of_150_sites_is_planned(tmp_path: Path) -> None:
    path = tmp_path / "large.toml"
    path.write_text(dumps(random_geographic(150, 0, neighbours=1)))
    done = anabranch("plan", str(path))
    assert done.returncode == 0, done.stderr
    for row in ("star at", "balanced 2-way tree", "spanning tree", "fapt, 150 roots", "packed, "):
        assert f"\n{row}" in done.stdout


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int | None]]:
    """Return which planners have planned, and for how many elements."""
    found: list[tuple[str, int | None]] = []
    for planner in PLANNERS:

        def plan(self: Any, overlay: Overlay, plan: Any = planner.plan, **given: Any) -> Plan:
            found.append((tag_of(type(self)), given.get("elements")))
            made: Plan = plan(self, overlay, **given)
            return made

        monkeypatch.setattr(planner, "plan", plan)
    return found


def test_every_planner_is_told_the_size_and_the_saved_plan_is_made_with_it(
    asked: list[tuple[str, int | None]], tmp_path: Path
) -> None:
    saved = tmp_path / "plan.json"
    done = anabranch("plan", "aws-8", "--size-mb", "0.0768", "--save", str(saved))
    assert done.returncode == 0, done.stderr
    assert {kind for kind, _ in asked} >= {"star", "mst", "ring", "fapt", "packed", "forest"}
    assert {elements for _, elements in asked} == {19_200}
    assert loads(saved.read_text()) == Packed().plan(load("aws-8"), elements=19_200)
    assert "give yours with --size-mb" not in done.stdout


def test_plan_says_which_size_it_assumes(asked: list[tuple[str, int | None]]) -> None:
    done = anabranch("plan", "internet2-9")
    assert "a buffer of 244 MB, AlexNet's: give yours with --size-mb" in done.stdout
    assert {elements for _, elements in asked} == {61_100_750}


def test_a_route_that_is_asked_for_is_planned_alone(asked: list[tuple[str, int | None]]) -> None:
    done = anabranch("plan", "internet2-9", "--route", "star")
    assert done.returncode == 0, done.stderr
    assert [kind for kind, _ in asked] == ["star"]
    assert "\nstar at dc2  " in done.stdout
    assert "packed" not in done.stdout


def test_plan_takes_a_routes_parameters_as_the_scheduler_does() -> None:
    done = anabranch("plan", "internet2-9", "--route", "star,hub=dc4")
    assert done.returncode == 0, done.stderr
    assert "\nstar at dc4  " in done.stdout


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--route", "star,hib=dc4"], "hib: no such key; did you mean 'hub'?"),
        (["--route", "sta"], "no such kind; did you mean 'star'?"),
        (["--route", "star", "--roots", "3"], "--roots 3 does not go with --route star"),
    ],
)
def test_plan_names_the_route_or_parameter_that_does_not_fit(
    options: list[str], named: str
) -> None:
    done = anabranch("plan", "internet2-9", *options)
    assert done.returncode != 0
    assert named in " ".join(done.stderr.replace("│", " ").split())


def test_plan_predicts_what_a_run_predicts_also_where_links_outrun_a_core(tmp_path: Path) -> None:
    pairs = permutations(range(4), 2)
    links = tuple(Link(*pair, 100e9, latency_s=0.001) for pair in pairs)
    fast = Overlay("fast", tuple(map(Site, "abcd")), links)
    path = tmp_path / "fast.toml"
    path.write_text(dumps(fast))
    done = anabranch("plan", str(path), "--size-mb", "244", "--route", "star")
    service = Service(fast, Star(), model_elements=61_000_000)
    predicted = units.seconds(service.run_started(61_000_000, None).predicted_s)
    assert f"star at a {predicted}" in " ".join(done.stdout.split())
    assert "a site's processor carries 20 Gbit/s each way" in done.stdout


def test_a_row_is_printed_before_the_next_plan_is_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def plan(self: Packed, overlay: Overlay, **given: Any) -> Plan:
        raise PlanError("this one is never found")

    monkeypatch.setattr(Packed, "plan", plan)
    done = anabranch("plan", "internet2-9")
    assert done.returncode == 2
    for row in ("star at dc2", "spanning tree", "fapt, 9 roots"):
        assert f"\n{row}" in done.stdout


BAD_TOML = {
    "disconnected.toml": ('site = [{name = "a"}, {name = "b"}]', "disconnected"),
    "zero.toml": (
        'site = [{name = "a"}, {name = "b"}]\n'
        'link = [{from = "a", to = "b", rate_bps = 0, latency_s = 0.0}]',
        "link[0].rate_bps",
    ),
    "key.toml": ('sites = [{name = "a"}]', "did you mean 'site'"),
    "syntax.toml": ("site = [", "line 2"),
}


@pytest.mark.parametrize("name", BAD_TOML)
def test_a_bad_overlay_ends_with_2_and_names_the_file_and_the_fault(
    name: str, tmp_path: Path
) -> None:
    text, named = BAD_TOML[name]
    path = tmp_path / name
    path.write_text(f'name = "x"\n{text}\n')
    done = anabranch("plan", str(path))
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert name in done.stderr
    assert named in done.stderr


def test_a_graph_file_without_rates_asks_for_them_and_takes_them(tmp_path: Path) -> None:
    path = tmp_path / "ring.gml"
    nodes = "".join(f'node [ id {i} label "n{i}" ]' for i in range(4))
    edges = "".join(f"edge [ source {i} target {(i + 1) % 4} ]" for i in range(4))
    path.write_text(f"graph [ {nodes} {edges} ]")
    done = anabranch("plan", str(path), "--default-latency-s", "0.01")
    assert done.returncode == 2
    assert "rate" in done.stderr
    for rate in ("100e6", "20e6..155e6"):
        done = anabranch("plan", str(path), "--default-latency-s", "0.01", "--rate", rate)
        assert done.returncode == 0, done.stderr
        assert "4 sites, 8 directed links" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["plan", "internet2"], "internet2-9"),
        (["plan", "internet2-9", "--roots", "10"], "10 roots"),
        (["plan", "internet2-9", "--roots", "0"], "--roots"),
        (["plan", "internet2-9", "--size-mb", "0"], "--size-mb"),
        (["plan", "internet2-9", "--chunk-elements", "0"], "--chunk-elements"),
        (["plan", "internet2-9", "--rate", "fast"], "bit/s"),
        (["run", "none.toml"], "none.toml"),
        (["report", "none.db"], "none.db"),
        (["replay", "none.db"], "none.db"),
        (["site", "a", "--scheduler", "example.org:1"], "--insecure"),
        (["site", "a", "--scheduler", "127.0.0.1"], "host:port"),
        (["site", "a", "--scheduler", "127.0.0.1:1", "--host", "0.0.0.0"], "--insecure"),
        (["site", "a", "--scheduler", "127.0.0.1:1"], "ANABRANCH_TOKEN"),
        (["dmeo"], "demo"),
    ],
)
def test_bad_input_ends_with_2_and_names_the_fix(arguments: list[str], named: str) -> None:
    done = anabranch(*arguments)
    assert done.returncode == 2
    assert named in " ".join(done.stderr.replace("│", " ").split())


@pytest.fixture
def two_routes(tmp_path: Path) -> Path:
    overlay = random_complete(3, 0, low_bps=50e6, high_bps=100e6, latency_s=0.001)
    (tmp_path / "overlay.toml").write_text(dumps(overlay))
    path = tmp_path / "two.toml"
    path.write_text(
        'overlay = "overlay.toml"\nstop.rounds = 3\n'
        '[[route]]\nkind = "star"\n[[route]]\nkind = "fapt"\n'
        '[task]\nkind = "exchange"\nelements = 10_000\n'
    )
    return path


@pytest.mark.parametrize("world", [pytest.param("run", marks=pytest.mark.slow), "simulate"])
def test_a_scenario_runs_once_for_each_route_and_is_reported(
    world: str, two_routes: Path, tmp_path: Path
) -> None:
    done = anabranch(world, str(two_routes), "--out", str(tmp_path / "runs"))
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    logs = ["1-two-star.db", "2-two-fapt.db"]
    assert sorted(path.name for path in folder.iterdir()) == [*logs, "report.html"]
    run = summarise(event for _, event in read_events(folder / logs[1]))
    assert run.label == "fapt, 3 roots"
    assert len(run.rounds) == 3
    again = anabranch("report", str(folder), "--out", str(tmp_path / "again.html"))
    assert again.returncode == 0
    assert "star" in again.stdout
    assert (tmp_path / "again.html").read_text().count("<html") == 1
    rows = tmp_path / "rows.jsonl"
    exported = anabranch("export", str(folder / logs[0]), "--jsonl", str(rows))
    assert exported.returncode == 0, exported.stderr
    assert [json.loads(line)["_step"] for line in rows.read_text().splitlines()] == [1, 2, 3]
    assert anabranch("export", str(folder), "--jsonl", str(rows)).returncode == 2  # two runs
    assert anabranch("export", str(folder)).returncode == 2  # to where?
    if world == "simulate":
        assert every(f"event log {fingerprint(folder / log)}" in done.stdout for log in logs)


@pytest.mark.filterwarnings("default")  # TensorBoard's own
def test_tensorboard_reads_what_is_exported_for_it(two_routes: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="pip install 'anabranch[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    loaded, overlay = load_scenario(two_routes)
    log = tmp_path / "one.db"
    simulate(loaded.runs()[0], overlay, log)
    done = anabranch("export", str(log), "--tensorboard", str(tmp_path / "board"))
    assert done.returncode == 0, done.stderr
    board = EventAccumulator(str(tmp_path / "board" / "one"))
    board.Reload()
    assert [each.step for each in board.Scalars("round/exchange_s")] == [1, 2, 3]


def test_one_route_of_several_is_resumed_from_its_checkpoint(
    two_routes: Path, tmp_path: Path
) -> None:
    done = anabranch(
        *("simulate", str(two_routes), "--out", str(tmp_path / "a"), "--checkpoint-every", "2")
    )
    assert done.returncode == 0, done.stderr
    [folder] = (tmp_path / "a").iterdir()
    again = ("simulate", str(two_routes), "--out", str(tmp_path / "b"), "--resume")
    done = anabranch(*again, str(folder / "2-two-fapt.db"))
    assert done.returncode == 0, done.stderr
    [log] = (tmp_path / "b").glob("*/*.db")
    run = summarise(event for _, event in read_events(log))
    assert run.label == "fapt, 3 roots, resumed after round 2"
    assert len(run.rounds) == 1
    done = anabranch(*again, str(folder))
    assert done.returncode == 2
    assert "1-two-star.checkpoints, 2-two-fapt.checkpoints; name those of one run" in done.stderr


def test_a_run_that_cannot_be_saved_is_refused_before_anything_runs(
    two_routes: Path, tmp_path: Path
) -> None:
    two_routes.write_text(f"serve = {{}}\n{two_routes.read_text()}")
    done = anabranch(
        *("run", str(two_routes), "--out", str(tmp_path / "a"), "--checkpoint-every", "2")
    )
    assert done.returncode == 2
    assert f"{two_routes}: serve: only runs whose sites all-reduce can be saved" in done.stderr
    assert not (tmp_path / "a").exists()


def test_a_log_is_replayed_or_it_is_said_why_not(two_routes: Path, tmp_path: Path) -> None:
    text = two_routes.read_text()
    log, of_rounds = tmp_path / "served.db", tmp_path / "rounds.db"
    two_routes.write_text(f'pace = {{kind = "asp"}}\n{text}')
    simulate(*load_scenario(two_routes), log)
    two_routes.write_text(text)
    simulate(*load_scenario(two_routes), of_rounds)
    done = anabranch("replay", str(log))
    assert done.returncode == 0, done.stderr
    assert "again, asp makes the same " in done.stdout
    done = anabranch("replay", str(of_rounds))
    assert done.returncode == 1
    assert "rounds.db: the log names no pace" in done.stderr


@pytest.mark.slow
def test_a_twin_runs_both_worlds_and_reports_how_far_apart_they_are(
    two_routes: Path, tmp_path: Path
) -> None:
    done = anabranch("twin", str(two_routes), "--out", str(tmp_path / "runs"))
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == [
        "measured",
        "report.html",
        "simulated",
    ]
    for heading in ("simulated", "measured", "measured/simulated", "error"):
        assert heading in done.stdout
    for route in ("star", "fapt, 3 roots"):
        assert route in done.stdout


@pytest.mark.parametrize(
    ("command", "more", "named"),
    [
        (
            "run",
            '[[fault]]\nkind = "kill"\nsite = "site1"\nround = 2',
            "fault[0].round: no real site knows",
        ),
        ("twin", "", "a twin needs links that keep their rates"),
        ("twin", "[simulation]\ncontrol_latency_s = 0.1", "control_latency_s: real processes"),
        ("simulate", '[[fault]]\nkind = "kill"\nsite = "sit1"\nround = 2', "did you mean 'site1'"),
        ("simulate", "[compute]\nsamples_per_sec = 1", "did you mean 'samples_per_s'"),
    ],
)
def test_what_a_world_cannot_do_is_refused_before_anything_runs(
    command: str, more: str, named: str, two_routes: Path, tmp_path: Path
) -> None:
    two_routes.write_text(f"{two_routes.read_text()}{more}\n")
    if not more:
        two_routes.write_text("shaped = false\n" + two_routes.read_text())
    done = anabranch(command, str(two_routes), "--out", str(tmp_path / "runs"))
    assert done.returncode == 2
    assert named in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_group_that_gossips_has_no_journal(tmp_path: Path) -> None:
    file = tmp_path / "group.toml"
    file.write_text('sites = ["a", "b"]\ngossip = {}\n')
    done = anabranch("scheduler", "--group", str(file), "--journal", str(tmp_path / "journal"))
    assert done.returncode == 2
    assert "--journal: neighbours that gossip" in " ".join(done.stderr.replace("│", " ").split())
    assert not (tmp_path / "journal").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--standby"], "--standby needs --journal"),
        (["--standby", "--journal", "j"], "--listen 127.0.0.1:0: with --standby give a port"),
        (["--journal", "j", "--on-loss", "abort"], "--journal is not for a group with --on-loss"),
        (["--away", "600"], "--away 600: without --journal FILE a scheduler that is started again"),
        (["--on-error", "retry"], "--on-error retry: give lose or abort"),
        (["--model-mb", "1"], "--model-mb is for --pace"),
        (["--updates", "5"], "--updates is for --pace"),
        (["--journal", "j", "--pace", "asp"], "--journal is not for a group with"),
        (["--begin-with", "3"], "--begin-with 3: the overlay has 2 sites"),
        (["--links-bps", "0"], "--links-bps"),
        (["--keep-plan"], "--keep-plan is for --overlay"),
        (["--pace", "ssp,bound=2"], "ssp,bound=2: bound: no such key; the keys here are lead"),
        (["--pace", "ssp,lead=x"], "ssp,lead=x: lead: must be an integer, not 'x'"),
        (["--pace", "bsp,lead=2"], "bsp,lead=2: lead: no such key; there are none here"),
        (["--route", "star,hib=a"], "star,hib=a: hib: no such key; did you mean 'hub'?"),
    ],
)
def test_a_scheduler_names_the_option_that_does_not_go_with_others(
    options: list[str], named: str
) -> None:
    done = anabranch("scheduler", "--sites", "a,b", *options)
    assert done.returncode == 2
    assert named in " ".join(done.stderr.replace("│", " ").split())


def test_sites_wait_for_a_scheduler_that_is_gone_as_long_as_an_option_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[Service] = []
    monkeypatch.setattr(serve_module, "serve", lambda service, process: served.append(service))
    monkeypatch.setenv("ANABRANCH_TOKEN", "t")
    given = ["scheduler", "--sites", "a,b", "--journal", str(tmp_path / "journal")]
    for options in ([], ["--away", "600"]):
        done = anabranch(*given, *options)
        assert done.returncode == 0, done.stderr
    assert [each.away_s for each in served] == [60.0, 600.0]


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["host", "SCENARIO"], "Missing option '--log'"),
        (["host", "SCENARIO", "--log", "run.db", "--route", "2"], "SCENARIO has routes 0..1"),
        (["host", "SCENARIO", "--log", "run.db", "--pace", "asp"], "No such option: --pace"),
        (["host", "SCENARIO", "--log", "run.db", "--standby"], "--standby needs --journal"),
        (["scheduler", "SCENARIO"], "unexpected extra argument"),
        (["scheduler"], "a scenario's scheduler is `anabranch host SCENARIO`"),
    ],
)
def test_a_group_s_scheduler_and_a_scenario_s_are_two_commands(
    command: list[str], named: str, two_routes: Path
) -> None:
    done = anabranch(*(str(two_routes) if each == "SCENARIO" else each for each in command))
    assert done.returncode == 2
    said = " ".join(done.stderr.replace("│", " ").split()).replace(" ", "")
    assert named.replace("SCENARIO has", f"{two_routes} has").replace(" ", "") in said


def test_settings_of_a_group_that_do_not_go_together_are_bad_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What starts a scheduler again that failed, as systemd does, does not try for ever."""
    monkeypatch.setenv("ANABRANCH_TOKEN", "t")
    done = anabranch("scheduler", "--sites", "a,b", "--least-sites", "3")
    assert done.returncode == 2
    assert "error: least_sites is 3, and there are 2 sites" in done.stderr


def test_the_links_of_an_overlay_have_their_own_rates() -> None:
    options = "--overlay", "internet2-9", "--links-bps", "1e9"
    done = anabranch("scheduler", *options)
    assert done.returncode == 2
    assert "--links-bps is for --sites" in " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.parametrize("command", ["run", "twin"])
def test_links_are_not_emulated_without_what_it_takes(
    command: str, two_routes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")  # for root, who alone may; others are told so
    done = anabranch(command, "--emulate", str(two_routes), "--out", str(tmp_path / "runs"))
    assert done.returncode == 2
    assert "error: emulated links need" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_simulated_run_that_a_fault_ends_fails_by_name(two_routes: Path, tmp_path: Path) -> None:
    fault = '[[fault]]\nkind = "kill"\nsite = "site1"\nround = 2\n'
    two_routes.write_text(two_routes.read_text() + fault)
    done = anabranch("simulate", str(two_routes), "--out", str(tmp_path / "runs"))
    assert done.returncode == 1
    assert "error: two, star (3 sites): site 1 (site1) died in round 2" in done.stderr
    assert "star at site" in done.stdout  # what was done before is reported all the same
    assert "report: " in done.stdout


def test_a_run_that_is_stopped_says_why(two_routes: Path, tmp_path: Path) -> None:
    text = two_routes.read_text().replace("rounds = 3", "rounds = 1000\nstop.after_s = 2.5")
    two_routes.write_text(text)
    done = anabranch("simulate", str(two_routes), "--out", str(tmp_path / "runs"))
    assert "ended: 2.5 s are over" in done.stdout
    [page] = (tmp_path / "runs").glob("*/report.html")
    assert "2.5 s are over" in page.read_text()


def has_events(log: Path) -> bool:
    try:
        return any(read_events(log))
    except LogError:  # it is just being created
        return False


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_simulation_ends_its_log(
    sign: signal.Signals, two_routes: Path, tmp_path: Path
) -> None:
    two_routes.write_text(two_routes.read_text().replace("rounds = 3", "rounds = 1_000_000"))
    command = [
        sys.executable,
        "-m",
        "anabranch",
        "simulate",
        str(two_routes),
        "--out",
        str(tmp_path),
    ]
    pause = threading.Event()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        try:
            while running.poll() is None and not any(map(has_events, tmp_path.glob("*/*.db"))):
                pause.wait(0.1)  # events are written a thousand at a time
            running.send_signal(sign)
            assert running.wait(30) == 130
        finally:
            running.kill()
        assert running.stderr is not None
        assert "error: interrupted" in running.stderr.read()
    (log,) = tmp_path.glob("*/*.db")
    run = summarise(event for _, event in read_events(log))
    assert run.error == "the run was interrupted"


@pytest.mark.slow
def test_a_run_that_fails_ends_with_1_and_says_why(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    (tmp_path / "overlay.toml").write_text(dumps(random_complete(2, 0)))
    (tmp_path / "mine.py").write_text("def make(context):\n    raise LookupError(context.site)\n")
    path.write_text(
        'overlay = "overlay.toml"\nstop.rounds = 1\n[route]\nkind = "star"\n'
        '[task]\nkind = "own"\nfactory = "mine:make"\nfolder = "."\nbatch_size = 1\n'
    )
    done = anabranch("run", str(path), "--out", str(tmp_path / "runs"))
    assert done.returncode == 1
    assert "mine:make" in done.stderr
    assert "LookupError" in done.stderr


DIGITS = """
overlay = "aws-8"
compute.samples_per_s = 1000
stop.rounds = 2
task = {kind = "train", model = "softmax", learning_rate = 0.1, batch_size = 16}
"""


@pytest.mark.parametrize("command", ["run", "simulate", "twin"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            DIGITS.replace("16}", "500}"),
            "task.partition: one of 8 sites gets 179 samples, fewer than",
        ),
        (
            DIGITS.replace("16}", '16, partition = {kind = "shards", per_site = 500}}'),
            "task.partition: cannot deal 1438 samples to 8 sites",
        ),
        (
            DIGITS.replace('"softmax"', '"bert-tiny"'),
            "model 'bert-tiny' reads tokens, and the task has none",
        ),
    ],
)
def test_data_that_cannot_be_used_are_told_before_a_run_begins(
    command: str, text: str, said: str, tmp_path: Path
) -> None:
    path, out = tmp_path / "few.toml", tmp_path / "runs"
    path.write_text(text)
    done = anabranch(command, str(path), "--out", str(out))
    assert done.returncode == 2
    assert said in done.stderr
    assert "few.toml: " in done.stderr
    assert not out.exists()


@pytest.mark.parametrize("command", ["run", "simulate"])
def test_more_clients_than_samples_are_told_before_a_run_begins(
    command: str, tmp_path: Path
) -> None:
    path, out = tmp_path / "many.toml", tmp_path / "runs"
    path.write_text(f'{DIGITS}clients.registered = 5000\npace = {{kind = "fedavg"}}\n')
    done = anabranch(command, str(path), "--out", str(out))
    assert done.returncode == 2
    assert "clients.registered: 5000, and each needs a sample" in done.stderr
    assert not out.exists()


def test_sites_that_gossip_are_shown_without_a_count_of_rounds(tmp_path: Path) -> None:
    path = tmp_path / "gossip.toml"
    path.write_text(f"{DIGITS}[gossip]\n")
    done = anabranch("simulate", str(path), "--out", str(tmp_path / "runs"))
    assert done.returncode == 0, done.stderr
    assert "rounds" not in done.stdout
    assert " 1/1 " not in done.stdout
    assert "accuracy" in done.stdout


@pytest.mark.parametrize(
    ("key", "value"),
    [("stop.rounds", "9223372036854775807"), ("task.batch_size", "2147483648")],
)
def test_a_count_that_no_run_can_hold_is_refused_by_its_key(
    key: str, value: str, tmp_path: Path
) -> None:
    path = tmp_path / "much.toml"
    path.write_text(
        DIGITS.replace("stop.rounds = 2", f"stop.rounds = {value}")
        if key == "stop.rounds"
        else DIGITS.replace("16}", f"{value}}}")
    )
    done = anabranch("simulate", str(path), "--out", str(tmp_path / "runs"))
    assert done.returncode == 2
    assert f"{key}: must be an integer <= 2147483647, not {value}" in done.stderr


@pytest.mark.parametrize("rate", ["1e-300", "1e300"])
def test_a_rate_that_no_link_has_is_refused_by_its_link(rate: str, tmp_path: Path) -> None:
    path = tmp_path / "slow.toml"
    path.write_text(
        'name = "slow"\nsite = [{name = "a"}, {name = "b"}]\n'
        f'link = [{{from = "a", to = "b", rate_bps = {rate}, back_rate_bps = 1e6, latency_s = 0}}]'
    )
    done = anabranch("plan", str(path))
    assert done.returncode == 2
    assert "link a->b has rate" in done.stderr
    assert "which must be within 0.001 and 1e+21" in done.stderr


def test_a_latency_that_is_rather_milliseconds_is_warned_about(tmp_path: Path) -> None:
    path = tmp_path / "ms.toml"
    path.write_text(
        'name = "ms"\nsite = [{name = "a"}, {name = "b"}]\n'
        'link = [{from = "a", to = "b", rate_bps = 1e6, back_rate_bps = 1e6, latency_s = 30}]'
    )
    scenario = tmp_path / "scenario.toml"
    scenario.write_text(
        f'overlay = "{path.name}"\nstop.rounds = 1\nsimulation.control_latency_s = 20\n'
        'task = {kind = "exchange", elements = 8}\n'
    )
    for command in (("plan", str(path)), ("simulate", str(scenario), "--out", str(tmp_path / "r"))):
        done = anabranch(*command)
        assert done.returncode == 0, done.stderr
        assert "warning: link a->b and 1 more links: a latency of 30 s; " in done.stderr
        assert "was it meant as ms?" in done.stderr
    assert "simulation.control_latency_s: 20 s; was it meant as ms?" in done.stderr


def test_a_simulation_of_sizes_says_which_keys_it_does_not_use(tmp_path: Path) -> None:
    path = tmp_path / "timed.toml"
    path.write_text(
        'overlay = "aws-8"\nroute.kind = "star"\nstop.rounds = 1\n'
        'simulation.tensors = "sizes"\ncompute.samples_per_s = 100\n'
        'task = {kind = "train", model = "softmax", learning_rate = 0.1, momentum = 0.9}\n'
    )
    done = anabranch("simulate", str(path), "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert 'simulation.tensors: "sizes" trains nothing; unused: task.momentum' in done.stderr
