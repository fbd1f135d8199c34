"""The interpreter ends, whatever members of groups are left in its process."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

import anabranch
from anabranch.group import _exit

from ..every import every


class Mate:
    """A member that has left once all of its mates have begun to."""

    def __init__(self, mates: list[Mate]) -> None:
        self.left: Future[None] = Future()
        self.began = self.has_ended = False
        self._mates = mates
        mates.append(self)

    def begin_to_leave(self, error: BaseException | None) -> Future[None] | None:
        self.began = True
        if all(each.began for each in self._mates):
            for each in self._mates:
                if not each.left.done():
                    each.left.set_result(None)
        return None if self.has_ended else self.left

    def end(self) -> None:
        self.has_ended = True


def test_members_of_one_process_each_begin_to_leave_before_any_is_waited_for() -> None:
    for leave in (_exit.leave_together, _exit.leave_quietly):
        mates: list[Mate] = []
        for _ in range(3):
            Mate(mates)
        leave(mates, None)
        assert every(each.has_ended for each in mates)
        leave(mates, None)  # they have left


def test_the_wait_at_the_end_is_bounded_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_exit, "EXIT_S", 0.01)
    mates: list[Mate] = []
    here, _ = Mate(mates), Mate(mates)  # the other is on another machine, and goes on
    _exit.leave_quietly([here], None)
    assert here.has_ended
    assert [each.getMessage() for each in caplog.records] == [
        "the interpreter ends, and waits for other sites to leave no longer than 0.01 s"
    ]


def test_what_leaving_fails_by_is_told_to_who_closes_and_not_at_the_end() -> None:
    class Broken(Mate):
        def begin_to_leave(self, error: BaseException | None) -> Future[None] | None:
            failed: Future[None] = Future()
            failed.set_exception(anabranch.RunAborted("site 1 died"))
            return failed

    for leave in (_exit.leave_together, _exit.leave_quietly):
        mates: list[Mate] = []
        Broken(mates)
        Broken(mates)
        if leave is _exit.leave_together:
            with pytest.raises(anabranch.RunAborted, match="site 1 died"):
                leave(mates, None)
        else:
            leave(mates, None)
        assert every(each.has_ended for each in mates)


def test_a_thread_that_closes_lets_the_others_leave_where_only_it_keeps_the_interpreter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_exit, "_LOOK_S", 0.01)
    mates: list[Mate] = []
    one, other = Mate(mates), Mate(mates)
    one.begin_to_leave(None)
    _exit.opened(other)
    try:
        with ThreadPoolExecutor(1) as pool:
            closing = pool.submit(_exit.wait_until_left, one.left)
            with pytest.raises(TimeoutError):
                closing.result(0.1)
            assert not other.began  # a program runs yet
            monkeypatch.setattr(_exit, "_only_closers_are_left", lambda: True)
            closing.result(20)
        assert other.began
    finally:
        _exit.ended(other)


def test_members_that_wait_for_one_another_leave_with_the_block() -> None:
    with anabranch.local(3) as groups:
        pass
    for group in groups:
        with pytest.raises(anabranch.RunAborted, match="has left the group"):
            group.barrier()


BEGIN = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
import anabranch

members = anabranch.local(2)
one, other = members.__enter__()
"""
PROGRAMS = {
    "nothing is closed": "sys.exit(0)",
    "a thread closes one": "threading.Thread(target=one.close).start()",
    "a daemon closes one": "threading.Thread(target=one.close, daemon=True).start()",
    "a pool closes one": "pool = ThreadPoolExecutor(1); pool.submit(one.close)",
    "a call is under way": "import numpy as np; one.all_reduce(np.ones(9, 'f'), async_op=True)",
    "it fails": "raise SystemExit(3)",
}


@pytest.mark.slow
@pytest.mark.parametrize("end", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_ends_whatever_it_has_not_closed(end: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BEGIN + end], stderr=subprocess.PIPE, text=True
    ) as program:
        try:
            _, said = program.communicate(timeout=50)  # well below what the end may wait for
        finally:
            program.kill()
    assert program.returncode == (3 if "3" in end else 0), said
    assert said == ""
