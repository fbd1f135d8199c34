"""What a site loads to exchange arrays: no scheduler, no planner, no report, no PyTorch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack

import pytest

from ..test_house import SERVING_FILES

TOKEN = "clients"
MOST_MODULES, MOST_IMPORTED = 98, 92
# Of these rooms a client needs a part; of those that are not named, nothing.
ROOMS = {"_lazy", "_text", "_typed_toml", "exchange", "group", "log", "net", "overlay", "plan"}
ROOMS |= {"site", "torch", "train"}
NEEDED = {
    "log": {"events"},  # a site reports its loss as an event
    # What a plan is, how it is read, and how chunks take their ways. No planner.
    "plan": {"_auxiliary", "_files", "_model", "_planner", "_reach", "_stream"},
    "overlay": {"_model", "_rates", "_toml", "_trace_file"},
    "torch": {"autoload"},  # which PyTorch itself loads
}
SERVING = {f"anabranch.group.{each}" for each in SERVING_FILES}
SLOW_LIBRARIES = {"cloudpickle", "cryptography", "jinja2", "networkx", "pandas", "plotly", "pooch"}
SLOW_LIBRARIES |= {"rich", "scipy", "sklearn", "sqlite3", "torch", "typer"}


def check(loaded: list[str]) -> set[str]:
    """Return our modules, none of which a client can do without."""
    assert not SLOW_LIBRARIES & set(loaded)
    ours = {name for name in loaded if name.partition(".")[0] == "anabranch"}
    assert not ours & SERVING
    parts = [name.split(".")[1:] for name in ours]
    assert {each[0] for each in parts if each} <= ROOMS
    for room, needed in NEEDED.items():
        assert {each[1] for each in parts if len(each) > 1 and each[0] == room} <= needed, room
    return ours


def loaded_by(code: str) -> list[str]:
    """Return what a process has loaded that runs this alone."""
    code = f"import json, sys, anabranch; {code}; print(json.dumps([*sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout))


def test_importing_join_loads_no_scheduler() -> None:
    assert len(check(loaded_by("anabranch.join"))) <= MOST_IMPORTED


def test_a_process_that_spawn_starts_loads_no_scheduler() -> None:
    loaded = set(loaded_by("import anabranch.group._spawned"))
    check([*(loaded - {"cloudpickle"})])  # by which functions are sent


TRAIN = """
import json, sys
import numpy as np
import anabranch
with anabranch.join(sys.argv[1], sys.argv[2]) as group:
    values = np.full(1_000_000, group.rank, np.float32)
    for _ in range(3):
        group.all_reduce(values)
    measures = group._member.site.meter is not None
    print(json.dumps([float(values[0]), measures, [*sys.modules]]))
"""


@pytest.mark.slow  # processes
def test_a_client_that_exchanges_and_measures_loads_no_scheduler() -> None:
    def start(*command: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "ANABRANCH_TOKEN": TOKEN}
        process = subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        stack.enter_context(process)
        stack.callback(process.kill)
        return process

    with ExitStack() as stack:
        scheduler = start("-m", "anabranch", "scheduler", "--sites", "a,b")
        assert scheduler.stdout is not None
        address = scheduler.stdout.readline().strip()
        sites = [start("-c", TRAIN, address, name) for name in ("a", "b")]
        told = [json.loads(site.communicate(timeout=90)[0]) for site in sites]
    for mean, measures, loaded in told:
        assert mean == 0.5
        assert measures
        assert len(check(loaded)) <= MOST_MODULES
