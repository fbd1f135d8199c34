"""Ways fall silent, in one direction or both, between processes and real kernels."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from anabranch.overlay import Link, Overlay, Site, dumps
from anabranch_lab.cli import app
from anabranch_lab.emulate import Direction, Emulation, emulated

from ..emulate.sockets import emulates
from ..every import every

NAMES = ("paris", "austin", "tokyo", "lima")
OVERLAY = Overlay(
    "four",
    tuple(map(Site, NAMES)),
    tuple(Link(a, b, 50e6) for a, b in permutations(range(4), 2)),
)
SITE = Path(__file__).parent / "way_cut_site.py"


class Lines:
    """What a process prints, as it comes."""

    def __init__(self, stream: Any) -> None:
        self._changed = threading.Condition()
        self._lines: list[str] = []
        self._has_ended = False
        threading.Thread(target=self._follow, args=(stream,), daemon=True).start()

    def _follow(self, stream: Any) -> None:
        for line in stream:
            with self._changed:
                self._lines.append(line.strip())
                self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def first(self, count: int) -> list[str]:
        """Wait for so many lines; fewer where the process has ended."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._lines) >= count or self._has_ended, 100)
            return [*self._lines]


def start(wan: Emulation, folder: Path, tls: str, stack: ExitStack) -> tuple[Any, list[Any]]:
    environment = {**os.environ, "ANABRANCH_TOKEN": "cut"}

    def run(site: int | None, command: list[str], **streams: Any) -> subprocess.Popen[str]:
        process = wan.popen(site, [sys.executable, *command], env=environment, text=True, **streams)
        stack.enter_context(process)  # closes its streams, once it has ended
        stack.callback(process.kill)
        return process

    (folder / "overlay.toml").write_text(dumps(OVERLAY))
    options = ["--overlay", str(folder / "overlay.toml"), "--log-format", "text"]
    options += ["--tls", tls] if tls else ["--insecure"]
    listen = ["--listen", f"{wan.control_address}:0"]
    pipe = subprocess.PIPE
    scheduler = run(
        None, ["-m", "anabranch", "scheduler", *options, *listen], stdout=pipe, stderr=pipe
    )
    assert scheduler.stdout is not None
    address = scheduler.stdout.readline().strip()
    sites = [
        run(i, [str(SITE), address, name, wan.addresses[i], tls], stdin=pipe, stdout=pipe)
        for i, name in enumerate(NAMES)
    ]
    return scheduler, sites


def certificates(folder: Path) -> str:
    made = CliRunner().invoke(app, ["certs", "--sites", ",".join(NAMES), "--out", str(folder)])
    assert made.exit_code == 0, made.output
    return str(folder)


def play(
    cuts: Sequence[Callable[[Emulation], None]], folder: Path, tls: str, rounds_after: int = 5
) -> list[str]:
    """Cut one thing after another while rounds are made; check each element at each site.

    Args:
        cuts: each is made once the sites have made so many rounds since the one before.
        folder: for the scheduler's files.
        tls: the folder with the certificates; empty for none.
        rounds_after: how many rounds each cut is followed by.

    Returns:
        What the scheduler said from each cut to the next, or to the end.
    """
    with ExitStack() as stack:
        wan = stack.enter_context(emulated(OVERLAY))
        wan.begin()
        scheduler, sites = start(wan, folder, tls, stack)
        said, rounds = Lines(scheduler.stderr), [Lines(each.stdout) for each in sites]
        before = [len(each.first(3)) for each in rounds]
        assert min(before) >= 3
        begins = []
        for cut in cuts:
            begins.append(len(said.first(0)))
            cut(wan)
            before = [
                len(lines.first(count + rounds_after))
                for lines, count in zip(rounds, before, strict=True)
            ]
        for each in sites:
            each.stdin.close()
        assert [each.wait(60) for each in sites] == [0] * len(sites)
        assert scheduler.wait(60) == 0
        for lines in rounds:
            found = [json.loads(line) for line in lines.first(10**6)]
            assert len(found) >= 3 + len(cuts) * rounds_after
            assert {tuple(each["sums"]) for each in found} == {(15.0,)}
            assert {tuple(each["sites"]) for each in found} == {NAMES}
        words = said.first(10**6)
    assert not any("lost" in line for line in words)
    return ["\n".join(words[begin:end]) for begin, end in pairwise([*begins, len(words)])]


@emulates
@pytest.mark.timeout(240)
def test_a_site_whose_way_is_cut_goes_on_through_a_neighbour_and_each_round_is_exact(
    tmp_path: Path,
) -> None:
    """One site after another loses its way, until only that of the first is whole."""
    tls = certificates(tmp_path / "certs")
    cuts: dict[str, Sequence[Direction]] = {
        "tokyo": ("to", "from"),
        "austin": ("to",),
        "lima": ("from",),
    }
    said = play(
        [
            partial(Emulation.cut_control, site=NAMES.index(name), directions=directions)
            for name, directions in cuts.items()
        ],
        tmp_path,
        tls,
    )
    whole = [*NAMES]
    for name, words in zip(cuts, said, strict=True):
        whole.remove(name)
        through = "|".join(whole)
        assert re.search(f"{name} is connected again, through ({through}): its own way", words)


@emulates
@pytest.mark.timeout(240)
def test_where_a_link_carries_nothing_in_one_direction_rounds_go_round_the_pair(
    tmp_path: Path,
) -> None:
    cuts = [(1, 2), (3, 0)]
    said = play(
        [partial(Emulation.cut, source=source, target=target) for source, target in cuts],
        tmp_path,
        tls="",
    )
    for pair, words in zip(cuts, said, strict=True):
        [line] = re.findall("nothing crosses the links between .*", words)
        assert every(NAMES[site] in line for site in pair), line
