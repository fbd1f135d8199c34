"""Every benchmark starts: what it imports is there, and it answers --help before it measures."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted(path.stem for path in BENCHMARKS.glob("*.py") if "def main" in path.read_text())


@pytest.mark.parametrize("name", SCRIPTS)
def test_answers_help_and_measures_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "wiring":
        pytest.importorskip("pyroute2", reason="a rival of this benchmark alone")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(BENCHMARKS / f"{name}.py"), run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage:")
