"""Users' text is data: no name, label, path or message is read as markup or as a command."""

from __future__ import annotations

import ast
import html
import io
import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from anabranch import overlay as overlays
from anabranch import plan as plans
from anabranch._text import say, visible
from anabranch.log.console import Line, logfmt
from anabranch.log.metrics import exposition
from anabranch.log.status import (
    AwaitedSite,
    LinkStatus,
    SiteStatus,
    Status,
    headline,
    loads,
    sites_table,
)
from anabranch.log.status import dumps as status_dumps
from anabranch.log.terminal import Bar, Branch, Terminal, shown, table
from anabranch.overlay import Link, Overlay, Site, dumps
from anabranch.overlay._trace_file import read_trace
from anabranch.plan import FromFile, Plan, Tree
from anabranch_lab.run.scenario import load as load_scenario
from tests.every import every
from tests.test_cli import Done, anabranch

from .parsed import nodes

SOURCE = Path(__file__).parent.parent / "src" / "anabranch"
HOSTILE = "-[/] gpu[west] :smile: <script>alert(1)</script> \"'\x1b[99m\x9b\x7f\n$x$ \\ %{y} {0} é"
SHOWN = visible(HOSTILE)


def test_control_characters_are_written_as_json_writes_them_and_all_else_stays() -> None:
    assert (
        HOSTILE.translate({0x1B: "\\u001b", 0x9B: "\\u009b", 0x7F: "\\u007f", 0x0A: "\\n"}) == SHOWN
    )
    assert visible(SHOWN) == SHOWN
    assert visible("\u202e\u2028\udc80") == "\\u202e\\u2028\\udc80"
    assert visible("é 日本 👩‍🔬 \N{NO-BREAK SPACE}") == "é 日本 👩‍🔬 \N{NO-BREAK SPACE}"
    assert visible("a\nb\x1b", keep="\n") == "a\nb\\u001b"


def test_a_line_of_any_text_is_one_line_that_any_stream_takes() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    say(f"{HOSTILE}\udc80", out)
    out.seek(0)
    assert out.read() == f"{SHOWN}\\udc80\n"


@pytest.mark.parametrize("colours", [False, True])
def test_a_terminal_shows_every_text_as_it_is(colours: bool) -> None:
    to = io.StringIO()
    terminal = Terminal(file=to, width=400, force_terminal=colours, highlight=False)
    terminal.print(HOSTILE, soft_wrap=True)
    terminal.print(table([HOSTILE], [[HOSTILE]], title=HOSTILE, caption=HOSTILE))
    branch = Branch(HOSTILE, "bold")
    branch.add(HOSTILE).add(HOSTILE)
    terminal.print(branch)
    terminal.print(shown(HOSTILE, "bold"))
    with terminal.working(HOSTILE) as entitle:
        entitle(f"again {HOSTILE}")
    with Bar(HOSTILE, "rounds", terminal) as bar:
        bar.show(1, 2, f", {HOSTILE}", HOSTILE, table([HOSTILE], []))
        terminal.print(HOSTILE, soft_wrap=True)
    said = to.getvalue()
    assert "\x1b[99m" not in said
    assert "\x9b" not in said
    assert said.count(SHOWN) >= (16 if colours else 10)
    assert ("\x1b" in said) == colours


def test_what_is_made_for_a_terminal_is_safe_on_any_console_of_rich() -> None:
    to = io.StringIO()
    console = Console(file=to, width=400)
    console.print(table([HOSTILE], [[HOSTILE]], title=HOSTILE, caption=HOSTILE))
    console.print(Branch(HOSTILE))
    assert to.getvalue().count(SHOWN) == 5
    assert "\x1b" not in to.getvalue()


def hostile_overlay(folder: Path) -> Path:
    sites = (Site(HOSTILE), Site(f"{HOSTILE}2"), Site("10"))
    pairs = [(0, 1), (1, 0), (1, 2), (2, 1), (0, 2), (2, 0)]
    links = tuple(Link(source, target, 1e8, 0.001) for source, target in pairs)
    path = folder / "[bold]overlay :smile:\x1b[99m.toml"
    path.write_text(dumps(Overlay(HOSTILE, sites, links)), encoding="utf-8")
    return path


def hostile_scenario(folder: Path, more: str = "") -> Path:
    overlay = hostile_overlay(folder)
    name = json.dumps(HOSTILE).replace("\x7f", "\\u007f")
    path = folder / "[bold]scenario :smile:\x1b[99m.toml"
    path.write_text(
        f"overlay = {json.dumps(overlay.name)}\nlabel = {name}\n"
        f'route = [{{kind = "star", hub = {name}}}, {{kind = "packed"}}]\n'
        'task = {kind = "exchange", elements = 1000}\nstop.rounds = 2\n' + more,
        encoding="utf-8",
    )
    return path


def check_safe(done: Done, name: str = SHOWN) -> None:
    """Fail where a command read text as markup, passed a control character on, or left it out."""
    said = done.stdout + done.stderr
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", said)
    for word in name.split():  # a table may break a cell between them
        assert word in said


def check_page(path: Path) -> None:
    """Fail where a page holds users' text as markup, of HTML or of plotly."""
    page = path.read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "\\u003cscript\\u003ealert" not in page  # of plotly, which reads a dialect of HTML
    assert html.escape("<script>alert(1)") in page


def test_plan_draws_hostile_names_as_they_are(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    done = anabranch("plan", str(hostile_overlay(tmp_path)), "--html", str(page))
    assert done.returncode == 0, done.stderr
    check_safe(done)
    check_page(page)


def test_a_hostile_name_passes_through_simulation_report_export_and_replay(tmp_path: Path) -> None:
    fault = f'[[fault]]\nkind = "pause"\nsite = {json.dumps(HOSTILE)}\nat_s = 900.0\nfor_s = 1.0\n'
    scenario = hostile_scenario(tmp_path, fault.replace("\x7f", "\\u007f"))
    done = anabranch("simulate", str(scenario), "--out", str(tmp_path / "runs"))
    assert done.returncode == 0, done.stderr
    check_safe(done)
    assert "the run ended before this fault" in done.stdout
    [page] = (tmp_path / "runs").rglob("report.html")
    check_page(page)
    logs = sorted(map(str, page.parent.glob("*.db")))
    again = tmp_path / "[bold] again\x1b[99m.html"
    done = anabranch("report", *logs, "--out", str(again))
    assert done.returncode == 0, done.stderr
    check_safe(done)
    check_page(again)
    check_safe(anabranch("export", logs[0], "--jsonl", str(tmp_path / "\x1b[99m.jsonl")), "")
    done = anabranch("replay", *logs)
    assert done.returncode == 2 or done.returncode == 1
    check_safe(done, "")


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "{}.toml"),
        ("plan", "internet2-9", "--route", "{}"),
        ("plan", "internet2-9", "--rate", "{}"),
        ("simulate", "{}"),
        ("simulate", "examples/scenarios/quickstart.toml", "--out", "README.md", "--{}"),
        ("report", "{}.db"),
        ("report", "{}"),
        ("export", "{}.db"),
        ("replay", "{}.db"),
        ("certs", "--sites", "{},{}"),
        ("status", "{}:1"),
        ("scheduler", "--sites", "a,b", "--route", "{}"),
        ("scheduler", "--overlay", "{}"),
        ("scheduler", "{}", "--log", "x.db"),
        ("site", "{}", "--scheduler", "{}"),
        ("reproduce", "{}"),
        ("{}",),
        ("--{}",),
    ],
)
def test_an_argument_that_is_refused_is_shown_without_control_characters(
    arguments: tuple[str, ...],
) -> None:
    hostile = "\x1b[99m[/][bold]:smile:\udc80"
    done = anabranch(*(each.replace("{}", hostile) for each in arguments))
    assert done.returncode != 0
    check_safe(done, "")


@pytest.mark.parametrize("name", ["overlay.toml", "scenario.toml", "graph.gml", "graph.graphml"])
def test_a_file_that_is_refused_is_quoted_without_control_characters(
    name: str, tmp_path: Path
) -> None:
    key = '"\\u001b[99m[/]"'
    text = {
        "overlay.toml": f'name = "x"\n{key} = 1\n',
        "scenario.toml": f'overlay = "internet2-9"\n[{key}]\n',
        "graph.gml": 'graph [ node [ id 0 label "\x1b[99m" ] node [ id 0 label "\x1b[99m" ] ]',
        "graph.graphml": "<graphml>&#x9b;<\x1b[99m",
    }[name]
    path = tmp_path / name
    path.write_text(text)
    done = anabranch("simulate" if name.startswith("scenario") else "plan", str(path))
    assert done.returncode == 2
    check_safe(done, "")


def test_status_shows_hostile_names_as_they_are() -> None:
    status = Status(
        overlay=HOSTILE,
        phase="running",
        running_s=1.0,
        plan=HOSTILE,
        plan_version=1,
        sites=(SiteStatus(name=HOSTILE, state="member", address=HOSTILE),),
        waits=(AwaitedSite(site=HOSTILE, seconds=1.0, at=HOSTILE, waiting=(HOSTILE,)),),
        links=(
            LinkStatus(
                source=HOSTILE,
                target="b",
                rate_bps=1.0,
                latency_s=0.0,
                basis="given",
                is_used=True,
            ),
        ),
    )
    to = io.StringIO()
    terminal = Terminal(file=to, width=400)
    terminal.print(headline(status), soft_wrap=True)
    terminal.print(sites_table(status).for_terminal())
    assert to.getvalue().count(SHOWN) >= 5
    assert loads(visible(status_dumps(status).decode()).encode()) == status
    lines = exposition(status).splitlines()
    sample = re.compile(r'[a-z_]+(\{([a-z]+="([^"\\\n]|\\["\\n])*",?)+\})? [-+\w.]+')
    samples = [line for line in lines if not line.startswith("#")]
    assert len(samples) > 10
    assert every(map(sample.fullmatch, samples))


def test_a_line_for_machines_is_one_line_without_control_characters() -> None:
    to = io.StringIO()
    line = Line("joined", f"{HOSTILE} joined", fields={"site": HOSTILE})
    say(logfmt(line, datetime(2026, 1, 2, tzinfo=UTC)), to)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", to.getvalue())
    assert to.getvalue().count("\n") == 1
    [text] = re.findall(r'site=("(?:[^"\\]|\\.)*")', to.getvalue())
    assert json.loads(text) == HOSTILE


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "twin"])
def test_sites_of_hostile_names_run_as_processes(command: str, tmp_path: Path) -> None:
    done = anabranch(command, str(hostile_scenario(tmp_path)), "--out", str(tmp_path / "runs"))
    assert done.returncode == 0, done.stderr
    check_safe(done)
    [page] = (tmp_path / "runs").rglob("report.html")
    check_page(page)


ENCODED = {
    "overlay.toml": 'name = "é"\nsite = [{name = "é"}]\n',
    "scenario.toml": 'overlay = "internet2-9"\nlabel = "é"\nstop.rounds = 1\n'
    'task = {kind = "exchange", elements = 8}\n',
    "graph.gml": 'graph [\n  node [ id 0 label "é" ]\n]\n',
    "graph.graphml": '<graphml><graph edgedefault="undirected"><node id="é"/></graph></graphml>',
    "trace.csv": "time_s,rate_bps\n0,1e6\n",
    "plan.json": plans.dumps(Plan(1, (Tree(0, 1.0, (-1,), (-1,)),), label="é")),
}


def read_as(path: Path) -> object:
    """Read a user's file by its name."""
    if path.suffix == ".csv":
        return read_trace(path)
    if path.suffix == ".json":
        return FromFile(path=str(path)).plan(Overlay("alone", (Site("a"),), ()))
    return load_scenario(path) if path.stem == "scenario" else overlays.load(path)


@pytest.mark.parametrize("name", ENCODED)
def test_a_byte_order_mark_and_any_ends_of_lines_are_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(ENCODED[name], encoding="utf-8", newline="\n")
    plain = read_as(path)
    for newline in ("\n", "\r\n"):
        path.write_text(ENCODED[name], encoding="utf-8-sig", newline=newline)
        assert read_as(path) == plain


@pytest.mark.parametrize("name", ENCODED)
def test_a_wrong_encoding_is_named_with_the_file_and_the_fix(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(b"\n" + ENCODED[name].replace("time", "tim\xe9").encode("latin-1"))
    if path.suffix == ".graphml":  # XML says its own encoding
        with pytest.raises(ValueError, match=r"graph.graphml is not a graphml graph"):
            read_as(path)
        return
    with pytest.raises(ValueError, match=rf"{name}:\d: byte 0xe9 is not UTF-8; save"):
        read_as(path)
    path.write_text(ENCODED[name], encoding="utf-16")
    with pytest.raises(ValueError, match=rf"{name} is UTF-16; save it as UTF-8"):
        read_as(path)
    path.write_text(ENCODED[name], encoding="utf-16-le")
    with pytest.raises(ValueError, match=rf"{name} holds zero bytes, as UTF-16"):
        read_as(path)


def calls(file: Path) -> set[str]:
    """Return the names of the functions and methods that a file calls."""
    called = [node.func for node in nodes(file) if isinstance(node, ast.Call)]
    names = {each.id for each in called if isinstance(each, ast.Name)}
    return names | {f".{each.attr}" for each in called if isinstance(each, ast.Attribute)}


def imports(file: Path) -> set[str]:
    """Return the packages that a file imports."""
    found = nodes(file)
    names = [alias.name for node in found if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in found if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


def test_one_module_prints_and_one_draws_with_rich() -> None:
    files = {file.relative_to(SOURCE).as_posix(): file for file in SOURCE.rglob("*.py")}
    assert {name for name, file in files.items() if "print" in calls(file)} == {"_text.py"}
    assert {name for name, file in files.items() if "rich" in imports(file)} == {"log/terminal.py"}
    others = [name for name in files if name != "log/terminal.py"]
    assert not {name for name in others if ".status" in calls(files[name]) and "cli" in name}


def test_one_module_reads_text_files() -> None:
    of_text = {".read_text", ".readlines"}
    found = {file.name for file in SOURCE.rglob("*.py") if calls(file) & of_text}
    assert not found
