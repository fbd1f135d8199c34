"""Frees what a WeakSet holds in one thread, while another one iterates over it."""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


def free_amid(look: Callable[[], object], drop: Callable[[], object]) -> None:
    """Look in this thread, and drop in another one.

    A WeakSet that is dropped from has seen that it is not iterated over, and removes the object
    after the look's first item. Where there is no WeakSet, one call follows the other.

    Args:
        look: may iterate over a WeakSet.
        drop: frees an object that it may hold.
    """
    removing, goes_on = threading.Event(), threading.Event()

    def remove_late() -> None:
        sys.settrace(_before("discard", lambda: (removing.set(), goes_on.wait(10))))
        drop()
        sys.settrace(None)
        removing.set()

    def let_remove() -> None:
        goes_on.set()
        dropping.join()

    dropping = threading.Thread(target=remove_late)
    dropping.start()
    removing.wait(10)
    before = sys.gettrace()
    sys.settrace(_before("yield", let_remove))
    try:
        look()
    finally:
        sys.settrace(before)
        let_remove()


def _before(word: str, call: Callable[[], object]) -> Callable[[FrameType, str, Any], Any]:
    """Return a trace that calls a function ahead of each line with a word, in WeakSet's file."""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.endswith("_weakrefset.py"):
            return None
        if event == "line" and word in linecache.getline(file, frame.f_lineno):
            call()
        return trace

    return trace
