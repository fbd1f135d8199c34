"""A group of real processes that loses one: the others go on, and know what they have."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..forked import Forked

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]  # processes

PROGRAM = """
import sys
import numpy as np
import anabranch

with anabranch.join() as group:
    for number in range(10_000):
        tensor = np.full(1_000_000, 2.0 ** group.rank, np.float32)
        handle = group.all_reduce(tensor, op="sum", async_op=True)
        handle.wait()
        if number == 5:
            print("begun", flush=True)
        if len(group.sites) == 2:
            break
    print(*group.sites, group.rank, group.size)
    for start, stop, names in handle.contributors or [(0, 1_000_000, group.sites)]:
        expected = sum({"a": 1.0, "b": 2.0, "c": 4.0}[name] for name in names)
        assert (tensor[start:stop] == expected).all(), (start, stop, names)
    assert group.all_gather(group.site) == [*group.sites]
"""

AVERAGES = """
import hashlib
import numpy as np
import anabranch

with anabranch.join() as group:
    model, own = np.zeros(1_000_000, np.float32), np.random.default_rng(group.rank)
    average = group.average(
        model, every=2, outer=anabranch.Outer(), delay={delay}, fragments={fragments}
    )
    named = set()
    while average.begun < 30:
        model += own.standard_normal(len(model), np.float32)
        if average.step() and average.latest.contributors:
            named |= {{names for *_, names in average.latest.contributors}}
        if average.begun == 5:
            print("begun", flush=True)
    average.finish()
    assert named <= {{("a", "b", "c"), ("a", "c")}}, named
    print(*group.sites, hashlib.sha256(model).hexdigest())
"""

SUMS_UNTIL = """
import pathlib
import numpy as np
import anabranch

with anabranch.join() as group:
    print("begun", flush=True)
    is_over = np.zeros(1, np.float32)
    while not is_over.any():
        is_over[:] = pathlib.Path("{over}").exists()
        group.all_reduce(is_over)
"""


@pytest.fixture
def group() -> Iterator[Callable[..., list[Forked]]]:
    """Return what starts a group of three, whose scheduler comes first; all end with the test."""
    started: list[Forked] = []

    def start(*options: str, program: str = PROGRAM) -> list[Forked]:
        environment = {**os.environ, "ANABRANCH_TOKEN": "told"}
        scheduler = Forked(
            [sys.executable, "-m", "anabranch", "scheduler", "--sites", "a,b,c", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        started.append(scheduler)
        assert scheduler.stdout is not None
        environment["ANABRANCH_SCHEDULER"] = scheduler.stdout.readline().strip()
        started.extend(
            Forked(
                [sys.executable, "-c", program],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**environment, "ANABRANCH_SITE": name},
            )
            for name in "abc"
        )
        for site in started[1:]:
            assert site.stdout is not None
            assert site.stdout.readline() == "begun\n"
        return started

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_others_complete_what_was_under_way(
    group: Callable[..., list[Forked]], number: signal.Signals
) -> None:
    scheduler, a, lost, c = group("--stillness", "2")
    lost.send_signal(number)
    for site, rank in ((a, 0), (c, 1)):
        out, err = site.communicate()
        assert site.returncode == 0, err
        assert out == f"a c {rank} 2\n"
    _, told = scheduler.communicate()
    assert scheduler.returncode == 0, told
    assert "b is lost: site 1 (b) died" in told


def test_who_was_given_up_for_its_silence_is_told_why(
    group: Callable[..., list[Forked]], tmp_path: Path
) -> None:
    program = SUMS_UNTIL.format(over=tmp_path / "over")
    scheduler, a, silent, c = group("--stillness", "2", program=program)
    assert scheduler.stderr is not None
    silent.send_signal(signal.SIGSTOP)
    assert any("b is lost" in line for line in scheduler.stderr)
    silent.send_signal(signal.SIGCONT)
    _, err = silent.communicate()
    assert "LeftOut" in err
    assert "given up, and the others go on without it: site 1 (b) died" in err
    assert "join again" in err
    (tmp_path / "over").touch()
    for site in (a, c):
        _, err = site.communicate()
        assert site.returncode == 0, err


HOLDS_ITS_LOCK = """
import ctypes
import numpy as np
import anabranch

with anabranch.join() as group:
    group.all_reduce(np.ones(3, np.float32))
    print("begun", flush=True)
    if group.site == "b":
        ctypes.PyDLL(None).usleep(4_000_000)  # with the interpreter's lock, as PyDLL calls
    group.all_reduce(np.ones(3, np.float32))
    print(*group.sites)
"""


@pytest.mark.parametrize("secured", [False, True])
def test_a_site_whose_interpreter_stands_still_is_no_lost_site(
    group: Callable[..., list[Forked]], secured: bool, tmp_path: Path
) -> None:
    options = ["--silence", "0.5"]
    program = HOLDS_ITS_LOCK
    if secured:  # over TCP; else over shared memory
        certs = [sys.executable, "-m", "anabranch", "certs", "--sites", "a,b,c"]
        subprocess.run([*certs, "--out", tmp_path], check=True, capture_output=True)
        options += ["--tls", str(tmp_path)]
        program = program.replace("join()", f"join(tls={str(tmp_path)!r})")
    scheduler, *sites = group(*options, program=program)
    for site in sites:
        out, err = site.communicate()
        assert site.returncode == 0, err
        assert out == "a b c\n"
    _, told = scheduler.communicate()
    assert "lost" not in told
    assert scheduler.returncode == 0, told


def test_a_scheduler_that_stood_still_twice_gives_no_site_up(
    group: Callable[..., list[Forked]], tmp_path: Path
) -> None:
    program = SUMS_UNTIL.format(over=tmp_path / "over")
    scheduler, *sites = group("--journal", str(tmp_path / "journal.db"), program=program)
    for _ in range(2):  # each time for longer than it waits for a site
        scheduler.send_signal(signal.SIGSTOP)
        time.sleep(8.0)
        scheduler.send_signal(signal.SIGCONT)
        time.sleep(0.08)
    (tmp_path / "over").touch()
    for site in sites:
        _, err = site.communicate()
        assert site.returncode == 0, err
    _, told = scheduler.communicate()
    assert "is lost" not in told
    assert scheduler.returncode == 0, told


@pytest.mark.parametrize("options", [["--on-loss", "abort"], ["--least-sites", "3"]])
def test_a_group_may_end_instead(group: Callable[..., list[Forked]], options: list[str]) -> None:
    scheduler, a, lost, c = group(*options)
    lost.kill()
    for site in (a, c):
        _, err = site.communicate()
        assert site.returncode == 1
        assert "RunAborted: site 1 (b) died" in err
    assert scheduler.wait() != 0


@pytest.mark.parametrize(("on_loss", "delay", "fragments"), [("complete", 2, 2), ("retry", 0, 1)])
def test_those_left_average_on_and_end_with_one_model(
    group: Callable[..., list[Forked]], on_loss: str, delay: int, fragments: int
) -> None:
    program = AVERAGES.format(delay=delay, fragments=fragments)
    _, a, lost, c = group("--on-loss", on_loss, program=program)
    lost.kill()
    told = []
    for site in (a, c):
        out, err = site.communicate()
        assert site.returncode == 0, err
        told.append(out.replace("begun\n", ""))
    assert told[0].startswith("a c ")
    assert told[0] == told[1]
