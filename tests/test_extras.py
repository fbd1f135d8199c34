"""What uses no extra runs without its libraries; a command that lacks one says what to install."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = {"scikit-learn": "sklearn", "prometheus-client": "prometheus_client"}
ADAPTERS = {"flower", "metrics", "torch"}
# Tries to import what is named after `--`, where the libraries named before it cannot be.
WITHOUT = """
import sys
from importlib import import_module

at = sys.argv.index("--")
sys.modules.update(dict.fromkeys(sys.argv[1:at]))
for name in sys.argv[at + 1:]:
    import_module(name)
assert not any(each.startswith("anabranch_lab") for each in sys.modules)
"""
COMMAND = """
import sys

at = sys.argv.index("--")
for each in sys.argv[1:at]:
    sys.modules[each] = None
sys.argv = ["anabranch", *sys.argv[at + 1:]]
from anabranch.cli import main
main()
"""


def extra(name: str) -> list[str]:
    """Return the modules of an extra's libraries."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    libraries = [each.partition(">")[0] for each in project["optional-dependencies"][name]]
    return [MODULES.get(each, each) for each in libraries]


def runtime() -> list[str]:
    """Return the runtime's modules, but for those that are there for libraries of other extras."""
    source = ROOT / "src"
    names = []
    for file in sorted((source / "anabranch").rglob("*.py")):
        parts = file.relative_to(source).with_suffix("").parts
        if not ADAPTERS & set(parts) and parts[-1] != "__main__":
            names.append(".".join(part for part in parts if part != "__init__"))
    return names


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
    )


def test_the_runtime_loads_without_the_libraries_of_the_lab_and_of_metrics() -> None:
    done = run(WITHOUT, *extra("lab"), *extra("metrics"), "--", *runtime())
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["scheduler", "status", "certs"])
def test_the_runtime_s_commands_load_nothing_of_the_lab(command: str) -> None:
    done = run(COMMAND, "anabranch_lab", *extra("lab"), "--", command, "--help")
    assert done.returncode == 0, done.stderr
    assert "Usage: anabranch" in done.stdout


def test_a_command_that_lacks_a_library_says_what_to_install(tmp_path: Path) -> None:
    graph = tmp_path / "graph.gml"
    graph.write_text("graph []")
    done = run(COMMAND, *extra("lab"), "--", "plan", str(graph))
    assert done.returncode == 2, done.stderr
    assert done.stderr.endswith("; pip install 'anabranch[lab]'\n"), done.stderr


@pytest.mark.parametrize(("library", "name"), [("sklearn", "digits-fapt"), ("plotly", "routes")])
def test_a_run_that_lacks_a_library_says_so_before_it_runs(
    library: str, name: str, tmp_path: Path
) -> None:
    scenario = ROOT / "examples" / "scenarios" / f"{name}.toml"
    out = tmp_path / "out"
    done = run(COMMAND, library, "--", "simulate", str(scenario), "--out", str(out))
    assert done.returncode == 2, done.stderr
    assert done.stderr.endswith("; pip install 'anabranch[lab]'\n"), done.stderr
    assert not out.exists()


def test_a_scheduler_that_is_to_show_metrics_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANABRANCH_TOKEN", "secret")
    command = ("scheduler", "--sites", "a,b", "--metrics", "7701")
    done = run(COMMAND, *extra("metrics"), "--", *command)
    assert done.returncode == 2, done.stderr
    assert "anabranch[metrics]" in done.stderr, done.stderr
