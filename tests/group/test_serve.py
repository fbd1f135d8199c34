"""How a group's scheduler ends, and what its journal says to the next one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

import anabranch
from anabranch import Group, RunAborted
from anabranch.group._local import _complete
from anabranch.group.serve import Process, serve
from anabranch.log import LogError
from anabranch.log.journal import Journal
from anabranch.net.addresses import show

WHY = "site 1 (site1) failed: KeyError: 'no such file'"


def run(journal: Path, part: Callable[[Group], None]) -> list[Future[None]]:
    """Serve a group of two sites with a journal; return how each site's part ended.

    Raises:
        RunAborted, LogError: as ``serve`` does.
    """
    parts: list[Future[None]] = []

    def live(name: str, address: str) -> None:
        with anabranch.join(address, name, token="t") as group:
            part(group)

    with ThreadPoolExecutor(2) as pool:

        def listening(at: tuple[str, int]) -> None:
            parts.extend(pool.submit(live, name, show(at)) for name in ("site0", "site1"))

        service = anabranch.Service(_complete(2), awareness=None)
        say = lambda line: None  # noqa: E731
        process = Process("t", ("127.0.0.1", 0), None, listening, say, journal=journal)
        serve(service.listening_at(process.listen), process)
    return parts


def fail_at_1(group: Group) -> None:
    group.barrier()
    if group.index == 1:
        raise KeyError("no such file")
    with pytest.raises(RunAborted):
        group.barrier()


def interrupt_at_1(group: Group) -> None:
    group.barrier()
    if group.index == 1:
        os.kill(os.getpid(), signal.SIGINT)  # of the scheduler, which is this process too
    with pytest.raises(RunAborted):  # a barrier may end before the main thread hears of the signal
        group.ended.result()


def test_a_group_that_an_error_ended_is_not_begun_again_from_its_journal(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with pytest.raises(RunAborted) as ended:
        run(journal, fail_at_1)
    assert str(ended.value) == WHY
    for _ in range(2):  # however often it is started again
        with pytest.raises(LogError, match=r"ended early: site 1 .*; remove that file to begin"):
            run(journal, Group.barrier)
    journal.unlink()
    assert [part.exception() for part in run(journal, Group.barrier)] == [None, None]


def test_a_group_that_ended_well_or_was_interrupted_leaves_its_journal_to_another(
    tmp_path: Path,
) -> None:
    journal = tmp_path / "journal"
    run(journal, Group.barrier)
    with pytest.raises(RunAborted, match="the scheduler was interrupted"):
        run(journal, interrupt_at_1)
    with Journal(journal) as read:
        assert (read.had_ended, read.why_ended) == (True, None)
    run(journal, Group.barrier)


@pytest.mark.parametrize("on_loss", ["complete", "abort"])
def test_the_silence_that_is_asked_for_counts_also_where_the_group_ends_with_a_loss(
    on_loss: Literal["complete", "abort"],
) -> None:
    service = anabranch.Service(_complete(2), awareness=None, on_loss=on_loss)
    usual_s = service.settings(may_be_restarted=False).silence_s
    assert usual_s == (2.0 if on_loss == "complete" else None)
    asked = replace(service, silence_s=30.0)
    assert asked.settings(may_be_restarted=False).silence_s == 30.0
