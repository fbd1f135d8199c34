"""`make dist`: a wheel with all files of the package, which runs where the source is not."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email import message_from_string
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import anabranch

from .parsed import nodes

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
PACKAGES = "anabranch", "anabranch_lab"
SCENARIO = """
overlay = "internet2-9"
route.kind = "star"
stop.rounds = 1
task = {kind = "exchange", elements = 10_000}
"""

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("dist")]


def run(*command: object, at: Path) -> str:
    """Run a command that sees this environment's variables, but not where its modules are."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "ANABRANCH"))}
    done = subprocess.run(
        list(map(str, command)), cwd=at, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build as `make dist` does: the sdist of this tree, and the wheel of that sdist."""
    pytest.importorskip("build", reason="make has not brought this environment up to date")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, at=ROOT)
    return folder


def test_make_dist_installs_what_builds_and_nothing_else(tmp_path: Path) -> None:
    plan = run("make", "--dry-run", "--always-make", f"VENV={tmp_path / 'new'}", "dist", at=ROOT)
    installed = [
        line.split("constraints.txt")[1].split() for line in plan.splitlines() if "pip" in line
    ]
    assert installed == [["build", "hatchling"]]


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def test_the_wheel_has_every_file_of_the_package_and_no_other(built: Path) -> None:
    with zipfile.ZipFile(only(built, "*.whl")) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    ours = {
        file
        for package in PACKAGES
        for file in (SOURCE / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert names == {file.relative_to(SOURCE).as_posix() for file in ours}
    assert {"anabranch/py.typed", "anabranch_lab/py.typed", "anabranch_lab/run/demo.toml"} <= names
    assert "anabranch_lab/reports/templates/report.html.j2" in names


def test_the_sdist_has_what_the_tests_and_documents_need(built: Path) -> None:
    with tarfile.open(only(built, "*.tar.gz")) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"LICENSE", "README.md", "Makefile", "constraints.txt", "mkdocs.yml"} <= names
    for folder in ("papers", "tests", "docs", "examples", "benchmarks"):
        for file in (ROOT / folder).rglob("*.py"):
            assert file.relative_to(ROOT).as_posix() in names


@pytest.mark.parametrize("package", PACKAGES)
def test_the_wheel_names_every_package_that_is_imported(built: Path, package: str) -> None:
    with zipfile.ZipFile(only(built, "*.whl")) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = message_from_string(wheel.read(name).decode())
    needed = metadata.get_all("Requires-Dist") or []
    tools = re.compile(r"extra == ['\"](dev|docs)")
    named = {re.split(r"[^\w.-]", each)[0].lower() for each in needed if not tools.search(each)}
    imported = set()
    for file in (SOURCE / package).rglob("*.py"):
        for node in nodes(file):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.partition(".")[0])
    homes = packages_distributions()
    for module in imported - sys.stdlib_module_names - {*PACKAGES}:
        homes_of = {each.lower().replace("_", "-") for each in homes.get(module, [module])}
        assert homes_of & named, f"{module} is imported, and pyproject.toml does not name it"


def test_the_wheel_runs_in_an_environment_without_the_source(built: Path, tmp_path: Path) -> None:
    """Not as new as a user's: dependencies are those of this environment, by a path.

    To fetch them again, with torch, would take minutes. So whether they can be installed from the
    wheel's metadata is not shown here; that they are all named is, above. Our own files come from
    the wheel alone: this environment's `.pth` files are not read, one of which leads to the source.
    """
    fresh, away = tmp_path / "venv", tmp_path / "empty"
    away.mkdir()
    venv.create(fresh, with_pip=False, symlinks=True)
    python, script = fresh / "bin" / "python", fresh / "bin" / "anabranch"
    wheel = only(built, "*.whl")
    pip = (
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "--python",
        python,
        "--disable-pip-version-check",
    )
    run(*pip, "install", "--no-index", "--no-deps", wheel, at=away)
    site = Path(
        run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", at=away).strip()
    )
    others = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "dependencies.pth").write_text("\n".join(sorted(others)) + "\n")

    place = run(python, "-c", "import anabranch; print(anabranch.__file__)", at=away)
    assert Path(place.strip()).is_relative_to(site)
    assert run(script, "--version", at=away) == f"anabranch {anabranch.__version__}\n"
    assert "packed" in run(script, "plan", "internet2-9", "--html", "plan.html", at=away)
    (away / "tiny.toml").write_text(SCENARIO)
    assert "star" in run(script, "simulate", "tiny.toml", at=away)
    for page in (away / "plan.html", *away.glob("runs/**/*.html")):
        assert "<html" in page.read_text("utf-8")  # the templates are there
