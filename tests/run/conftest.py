"""How the processes of real runs start."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest

from anabranch_lab.run import launch

from ..forked import Forked


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `run_locally` fork its processes, in place of starting commands."""
    names = {name: getattr(subprocess, name) for name in ("PIPE", "DEVNULL", "TimeoutExpired")}
    monkeypatch.setattr(launch, "subprocess", SimpleNamespace(Popen=Forked, **names))
