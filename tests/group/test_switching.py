"""The switch interval is short while a call is under way, and the program's own otherwise."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import anabranch
from anabranch.group._thread import _SHORT_S, LoopThread, _Switching, switching


class Later:
    """Keeps the functions that shall be called later."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def __call__(self, seconds: float, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def come(self) -> None:
        """Call them."""
        while self.calls:
            self.calls.pop(0)()


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    before_s = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before_s)


def test_the_interval_is_short_from_the_first_call_to_the_end_of_the_last() -> None:
    switching = _Switching()
    sys.setswitchinterval(0.004)
    switching.begin()
    switching.begin()
    assert sys.getswitchinterval() == pytest.approx(_SHORT_S)
    later = Later()
    switching.end(later)
    assert sys.getswitchinterval() == pytest.approx(_SHORT_S)
    assert not later.calls
    switching.end(later)
    later.come()
    assert sys.getswitchinterval() == pytest.approx(0.004)


def test_the_interval_stays_short_between_calls_that_follow_one_another() -> None:
    switching, later = _Switching(), Later()
    sys.setswitchinterval(0.004)
    for _ in range(3):
        switching.begin()
        switching.end(later)
        assert sys.getswitchinterval() == pytest.approx(_SHORT_S)
    switching.begin()
    later.come()
    assert sys.getswitchinterval() == pytest.approx(_SHORT_S), "a call is under way"
    switching.end(later)
    *earlier, last = later.calls
    for call in earlier:
        call()
    assert sys.getswitchinterval() == pytest.approx(_SHORT_S), "the last call has just ended"
    last()
    assert sys.getswitchinterval() == pytest.approx(0.004)


def test_what_the_program_sets_after_a_call_stays() -> None:
    switching, later = _Switching(), Later()
    sys.setswitchinterval(0.004)
    switching.begin()
    switching.end(later)
    sys.setswitchinterval(0.003)
    switching.begin()
    assert sys.getswitchinterval() == pytest.approx(_SHORT_S)
    switching.end(later)
    later.come()
    assert sys.getswitchinterval() == pytest.approx(0.003)
    sys.setswitchinterval(_SHORT_S + 1e-7)
    switching.begin()
    switching.end(later)
    later.come()
    assert sys.getswitchinterval() == pytest.approx(_SHORT_S)


@pytest.mark.parametrize("own_s", [0.00005, 0.002])
def test_what_the_program_sets_meanwhile_stays_and_a_shorter_one_is_kept(own_s: float) -> None:
    switching = _Switching()
    if own_s < _SHORT_S:
        sys.setswitchinterval(own_s)
        switching.begin()
        assert sys.getswitchinterval() == pytest.approx(own_s)
    else:
        switching.begin()
        sys.setswitchinterval(own_s)
    later = Later()
    switching.end(later)
    later.come()
    assert sys.getswitchinterval() == pytest.approx(own_s)


def test_a_groups_calls_put_the_interval_back() -> None:
    sys.setswitchinterval(0.004)
    with anabranch.local(2) as groups:
        handles = [group.all_reduce(np.ones(4, np.float32), async_op=True) for group in groups]
        assert sys.getswitchinterval() == pytest.approx(_SHORT_S)
        for handle in handles:
            handle.wait()
        deadline = time.monotonic() + 60
        while sys.getswitchinterval() < 0.0039 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert sys.getswitchinterval() == pytest.approx(0.004), "put back while the group is open"
        handles = [group.all_reduce(np.ones(4, np.float32), async_op=True) for group in groups]
    assert sys.getswitchinterval() == pytest.approx(0.004)


def test_the_interval_does_not_drift() -> None:
    switching, later = _Switching(), Later()
    for microseconds in range(1, 1000):
        sys.setswitchinterval(microseconds * 1e-6 + 1e-7)
        before_s = sys.getswitchinterval()
        switching.begin()
        switching.end(later)
        later.come()
        assert sys.getswitchinterval() == before_s


def test_a_call_that_ends_with_its_loop_puts_the_interval_back() -> None:
    sys.setswitchinterval(0.004)
    thread = LoopThread("closed")
    switching.begin()
    thread.close()
    switching.end(thread.later)
    assert sys.getswitchinterval() == pytest.approx(0.004)


FORKED = """
import os, sys
from anabranch.group._thread import switching
sys.setswitchinterval(0.004)
switching.begin()
read, write = os.pipe()
if not os.fork():
    found = sys.getswitchinterval()
    switching.begin()
    switching.end(lambda _, call: call())
    os.write(write, f"{found:.4f} {sys.getswitchinterval():.4f}".encode())
    os._exit(0)
os.wait()
print(os.read(read, 100).decode(), f"{sys.getswitchinterval():.4f}")
"""


def test_a_forked_process_has_the_programs_interval_and_no_calls() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["0.0040", "0.0040", "0.0001"]
