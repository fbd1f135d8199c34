"""The examples: every one of them runs as its first lines say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.record import read_events, summarise

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("scenarios/*.toml")), ids=lambda p: p.name)
def test_an_example_scenario_runs(path: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "anabranch", "run", str(path), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    (log,) = tmp_path.glob("*/*.db")
    run = summarise(event for _, event in read_events(log))
    assert len(run.rounds) == run.started.rounds
    assert run.checksums_agree
    target = run.started.target_accuracy
    if target is not None:
        assert run.time_to_accuracy_s(target) is not None


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("overlays/*.toml")), ids=lambda p: p.name)
def test_an_example_overlay_is_planned(path: Path) -> None:
    command = [sys.executable, "-m", "anabranch", "plan", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "physical limit" in done.stdout
