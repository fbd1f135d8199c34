"""A scheduler's process as people and machines watch it: its lines, and what it answers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import anabranch
from tests.every import every
from tests.test_cli import anabranch as command

from ..threads import Threads

pytestmark = pytest.mark.slow  # processes

TOKEN = "watched"
CERTIFICATES = Path(__file__).parent.parent / "net" / "certs" / "ours"


@contextmanager
def scheduler(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a scheduler of two sites; yields its process and its address."""
    running = subprocess.Popen(
        [sys.executable, "-m", "anabranch", "scheduler", "--sites", "a,b", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "ANABRANCH_TOKEN": TOKEN},
    )
    try:
        assert running.stdout is not None
        yield running, running.stdout.readline().strip()
    finally:
        running.kill()
        running.communicate()


def pairs(line: str) -> dict[str, str]:
    """Read a line of logfmt."""
    found = re.findall(r'(\w+)=(?:"((?:[^"\\]|\\.)*)"|(\S*))', line)
    return {key: quoted or bare for key, quoted, bare in found}


def until_progress(lines: Iterator[dict[str, str]]) -> Iterator[dict[str, str]]:
    """Yield lines up to one that says that three exchanges have a result."""
    for line in lines:
        yield line
        if line["event"] == "progress" and line["exchanges"] == "3":
            return


def test_a_scheduler_is_asked_how_its_group_stands_and_says_it_where_no_terminal_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANABRANCH_TOKEN", TOKEN)
    # However busy this machine is, no site is to seem lost.
    watched = ("--progress-every", "0.2", "--metrics", "0", "--silence", "30")
    with Threads(1) as pool, scheduler(*watched) as (running, address):
        done = command("status", address, "--json")
        assert done.returncode == 0, done.stderr
        waiting = json.loads(done.stdout)
        assert waiting["phase"] == "waiting"
        assert {wait["site"] for wait in waiting["waits"]} == {"a", "b"}
        assert running.stderr is not None
        lines = map(pairs, running.stderr)
        said = [next(lines) for _ in range(2)]
        assert [line["event"] for line in said] == ["metrics", "waiting"]
        assert said[0]["address"].startswith("127.0.0.1:")
        with urllib.request.urlopen(f"http://{said[0]['address']}", timeout=10) as page:
            assert 'anabranch_sites{state="awaited"} 2.0' in page.read().decode()

        def take_part(name: str) -> None:
            with anabranch.join(address, name, token=TOKEN) as group:
                for _ in range(3):
                    group.all_reduce(np.ones(1000, np.float32))
                    group.report_loss(0.5 + group.rank)
                group.report_accuracy(0.75)
                group.barrier()
                if group.rank == 0:
                    told = command("status", address)
                    assert told.returncode == 0, told.stderr
                    assert re.search(r"group is running .* 3 exchanges, 12 kB", told.stdout)
                    assert re.search(
                        r"a +member +127\.0\.0\.1:\d+ +0\.5 at 3 +0\.75 at 3", told.stdout
                    )
                    said.extend(until_progress(lines))
                group.barrier()

        other = pool.submit(take_part, "b")
        take_part("a")  # here, as the command redirects this thread's output
        other.result()
        said.extend(lines)
        assert running.wait(30) == 0
    kinds = [line["event"] for line in said]
    assert kinds[2:4] == ["joined", "joined"]
    assert kinds[-1] == "ended"
    assert every(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", line["time"]) for line in said)


def test_who_does_not_know_the_token_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with scheduler("--log-format", "text") as (_, address):
        in_the_clear = command("status", "10.0.0.1:1", "--token", TOKEN)
        assert in_the_clear.returncode == 2
        assert "10.0.0.1 is off this machine" in in_the_clear.stderr
        refused = command("status", address, "--token", "another")
        assert refused.returncode == 1
        assert "asks how the run stands, without its token" in refused.stderr


def test_with_certificates_any_process_of_the_run_may_ask() -> None:
    with scheduler("--tls", str(CERTIFICATES)) as (_, address):
        done = command("status", address, "--token", TOKEN, "--tls", str(CERTIFICATES), "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["plan_version"] == 1


def test_a_late_site_is_named_where_others_wait_and_tells_its_stack(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ANABRANCH_TOKEN", TOKEN)
    awaited = threading.Event()

    def think_long() -> None:
        awaited.wait()

    with Threads(2) as pool, scheduler("--silence", "30") as (running, address):

        def take_part(name: str) -> None:
            with anabranch.join(address, name, token=TOKEN) as group:
                if name == "b":
                    think_long()
                group.barrier()

        sites = [pool.submit(take_part, name) for name in "ab"]
        try:
            assert running.stderr is not None
            line = next(each for each in map(pairs, running.stderr) if each["event"] == "awaited")
            told = command("status", address, "--stack", "b")
        finally:
            awaited.set()
        for site in sites:
            site.result()
    assert (line["site"], line["waiting"], line["at"]) == ("b", "a", "call 1 (a gathering)")
    assert "for b at call 1 (a gathering)" in told.stdout
    assert "in think_long" in told.stdout
    assert any("for b at call 1" in record.getMessage() for record in caplog.records)
