"""The command line: what it prints, and how it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.overlay import dumps, random_complete
from anabranch.record import read_events, summarise


def anabranch(
    *arguments: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "anabranch", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=env,
    )


def test_help_lists_the_commands() -> None:
    done = anabranch("--help")
    assert done.returncode == 0
    for command in ("demo", "plan", "run", "report", "scheduler", "site"):
        assert command in done.stdout


def test_plan_draws_trees_and_says_how_near_the_limit_they_are(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    done = anabranch("plan", "internet2-9", "--roots", "2", "--html", str(page))
    assert done.returncode == 0, done.stderr
    assert "physical limit: 17.8 s" in done.stdout
    assert "dc4 up, share 50.1%" in done.stdout
    assert "star" in done.stdout
    assert page.stat().st_size > 1_000_000


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
    assert "Traceback" not in done.stderr


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
    assert "Traceback" not in done.stderr


def test_a_run_and_its_report(tmp_path: Path) -> None:
    overlay = random_complete(3, 0, low_bps=50e6, high_bps=100e6, latency_s=0.001)
    (tmp_path / "overlay.toml").write_text(dumps(overlay))
    paths = []
    for kind in ("star", "fapt"):
        path = tmp_path / f"{kind}.toml"
        path.write_text(
            f'label = "{kind}"\noverlay = "overlay.toml"\nstop.rounds = 3\nroute.kind = "{kind}"\n'
            '[task]\nkind = "exchange"\nelements = 10_000\n'
        )
        paths.append(str(path))
    done = anabranch("run", *paths, "--out", str(tmp_path / "runs"))
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == [
        "1-star.db",
        "2-fapt.db",
        "report.html",
    ]
    run = summarise(event for _, event in read_events(folder / "2-fapt.db"))
    assert run.label == "fapt"
    assert len(run.rounds) == 3
    again = anabranch("report", str(folder), "--out", str(tmp_path / "again.html"))
    assert again.returncode == 0
    assert "star" in again.stdout
    assert (tmp_path / "again.html").read_text().count("<html") == 1


def test_a_run_that_fails_ends_with_1_and_says_why(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    (tmp_path / "overlay.toml").write_text(dumps(random_complete(2, 0)))
    path.write_text(
        'overlay = "overlay.toml"\nstop.rounds = 1\n[route]\nkind = "star"\n'
        '[task]\nkind = "train"\ndata = "digits"\nmodel = "mpl"\nlearning_rate = 0.1\n'
    )
    done = anabranch("run", str(path), "--out", str(tmp_path / "runs"))
    assert done.returncode == 1
    assert "failed: no model 'mpl'; did you mean 'mlp'?" in done.stderr
