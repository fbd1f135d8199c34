"""Processes of a group whose functions use no PyTorch: what goes wrong in one is named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch
from anabranch import Group, RunAborted
from anabranch.log.journal import Journal

from ..threads import Threads

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # processes
SITES = 3


def fail_at_one(group: Group) -> None:
    if group.rank == 1:
        raise LookupError("no shard for this site")
    group.barrier()


def test_a_function_that_raises_is_named_with_its_traceback() -> None:
    with pytest.raises(RunAborted) as told:
        anabranch.spawn(fail_at_one, SITES)
    text = str(told.value)
    assert text.startswith("site1 failed:")
    assert "LookupError: no shard for this site" in text
    assert "in fail_at_one" in text


def exchange_arrays(group: Group) -> tuple[bool, float, float]:
    values = np.full(1000, group.rank + 0.5, np.float32)
    halves = values.astype(np.float16)
    group.all_reduce(values, wire="bfloat16")
    group.all_reduce(halves)
    group.broadcast(halves)
    return "torch" in sys.modules, float(values[0]), float(halves[0])


def test_a_process_that_exchanges_arrays_loads_no_pytorch() -> None:
    assert anabranch.spawn(exchange_arrays, SITES) == [(False, 1.5, 1.5)] * SITES


def die_with_a_child_at_one(group: Group, folder: str) -> None:
    group.all_reduce(np.ones(5, np.float32))  # over lanes: whose other end goes is missed at once
    if group.rank == 1:
        if not os.fork():  # as a data loader's worker
            until_s = time.monotonic() + 60.0
            while (Path(folder) / "not over").exists() and time.monotonic() < until_s:
                time.sleep(0.1)
            (Path(folder) / "not over").unlink(missing_ok=True)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    group.barrier()


@pytest.mark.usefixtures("spawned_by_fork")
def test_a_process_that_dies_is_missed_though_a_child_of_it_lives_on(tmp_path: Path) -> None:
    not_over = tmp_path / "not over"
    not_over.touch()
    with pytest.raises(RunAborted, match="site1"):
        anabranch.spawn(die_with_a_child_at_one, SITES, [str(tmp_path)])
    not_over.unlink()  # the child has not: it still waits for this


def give_back(group: Group, *arguments: Any) -> tuple[int, Any]:
    return group.rank, arguments


def test_results_come_by_rank_and_arguments_go_to_all() -> None:
    assert anabranch.spawn(give_back, 2, ["a", 1]) == [(0, ("a", 1)), (1, ("a", 1))]


def fork_and_call(group: Group) -> int:
    process = os.fork()
    if not process:
        try:
            group.barrier()
        except RunAborted as error:
            os._exit(7 if "was forked" in str(error) else 1)
        os._exit(0)
    status = os.waitpid(process, 0)[1]
    group.barrier()
    return os.waitstatus_to_exitcode(status)


@pytest.mark.usefixtures("spawned_by_fork")
def test_a_process_that_was_forked_is_told_that_it_has_no_part_in_the_group() -> None:
    assert anabranch.spawn(fork_and_call, 2) == [7, 7]


def scheduler(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "anabranch", "scheduler", "--sites", "a,b,c", *options]
    return subprocess.Popen(
        [*command, "--journal", str(folder / "journal")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "ANABRANCH_TOKEN": "standing by"},
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_scheduler_that_stands_by_takes_the_place_of_one_that_is_gone(
    number: signal.Signals, tmp_path: Path
) -> None:
    gone, over = threading.Event(), threading.Event()

    def train(name: str) -> list[float]:
        means = []
        with anabranch.join(address, name, token="standing by") as group:
            for step in range(60):
                if step == 20:
                    gone.set()
                if step == 30:
                    assert over.wait(60)
                values = np.full(1000, float(step + group.rank), np.float32)
                group.all_reduce(values)
                means.append(float(values[0]))
        return means

    with ExitStack() as stack:
        pool = stack.enter_context(Threads(SITES))  # left last, once the processes are gone

        def start(*options: str) -> subprocess.Popen[str]:
            process = stack.enter_context(scheduler(tmp_path, *options))
            stack.callback(process.kill)
            return process

        first = start()
        assert first.stdout is not None
        address = first.stdout.readline().strip()
        others = [start("--standby", "--listen", address) for _ in range(3)]
        for each in others:
            assert each.stderr is not None
            assert "standing by" in each.stderr.readline()
        sites = [pool.submit(train, name) for name in ("a", "b", "c")]
        assert gone.wait(60)
        first.send_signal(number)
        # A group that goes on has not ended: what started the scheduler is to start it again.
        assert first.wait(60) == {signal.SIGKILL: -9, signal.SIGTERM: 143}[number]
        over.set()
        assert first.stderr is not None
        said = first.stderr.read()
        assert ("event=terminated" in said) == (number == signal.SIGTERM)
        assert "event=ended" not in said
        assert [each.result() for each in sites] == [[step + 1.0 for step in range(60)]] * SITES
        told = [each.communicate(timeout=60)[1] for each in others]
        assert [each.returncode for each in others] == [0, 0, 0]
        assert sum("this one goes on" in text for text in told) == 1
        assert sum("the group has ended" in text for text in told) == 2


def test_one_that_stands_by_says_at_once_that_it_could_not_write_its_log(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal"):  # which another scheduler has
        options = "--standby", "--listen", "127.0.0.1:1", "--log", str(tmp_path / "no" / "log.db")
        with scheduler(tmp_path, *options) as process:
            said = process.communicate(timeout=60)[1]
    assert process.returncode == 2
    assert "there is no folder" in said
    assert "standing by" not in said


class Cannot:
    """What cannot be sent, or cannot be read again."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __reduce__(self) -> tuple[Any, ...]:
        if self.where == "here":
            raise LookupError("not this one")
        return eval, ("1/0",)


def return_at_one(group: Group, where: str) -> Any:
    return Cannot(where) if group.rank == 1 else None


@pytest.mark.parametrize(("where", "why"), [("here", "not this one"), ("there", "by zero")])
@pytest.mark.usefixtures("spawned_by_fork")
def test_a_result_that_cannot_be_sent_is_named(where: str, why: str) -> None:
    with pytest.raises(RunAborted, match=rf"(?s)site1.*{why}"):
        anabranch.spawn(return_at_one, 2, [where])


NO_FILE = """
import numpy as np, anabranch

class Found:
    def __init__(self, total):
        self.total = total

scale = 10.0

def train(group):
    total = np.full(2, scale * (1 + group.rank), np.float32)
    group.all_reduce(total, op="sum")
    return Found(total)

if __name__ == "__main__":
    found = anabranch.spawn(train, 2)
    print([isinstance(each, Found) for each in found], [each.total.tolist() for each in found])
"""
PRINTED = "[True, True] [[30.0, 30.0], [30.0, 30.0]]"


def test_functions_of_a_program_without_a_file_are_run() -> None:
    done = subprocess.run([sys.executable, "-"], input=NO_FILE, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == (PRINTED, "")


def test_functions_of_a_notebook_are_run() -> None:
    kernels = pytest.importorskip("jupyter_client.manager")
    pytest.importorskip("ipykernel")
    said: list[str] = []

    def hear(message: dict[str, Any]) -> None:
        content = message["content"]
        said.append(content.get("text") or "\n".join(content.get("traceback", [])))

    manager, client = kernels.start_new_kernel(kernel_name="python3")
    try:
        client.execute_interactive(NO_FILE, timeout=200, output_hook=hear)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert PRINTED in "".join(said)


def test_what_cannot_be_sent_to_a_process_is_refused_before_any_starts() -> None:
    with pytest.raises(TypeError, match=r"an argument cannot be sent .*lock"):
        anabranch.spawn(give_back, 2, [threading.Lock()])


MEMBERS = """
import sys
import numpy as np
import anabranch
from concurrent.futures import ThreadPoolExecutor

def resident_bytes():
    with open("/proc/self/status") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

def take_part(group):
    for _ in range(3):
        group.all_reduce(np.ones(1000, np.float32))

def used(members):
    with anabranch.local(members) as groups, ThreadPoolExecutor(members) as pool:
        list(pool.map(take_part, groups))
        return resident_bytes()

first = used(2)  # imports count once
print((used(26) - first) / 24)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_member_takes_at_most_ten_megabytes() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMBERS], capture_output=True, text=True, timeout=120, check=True
    )
    assert 0 < float(done.stdout) < 10e6
