"""How the members of this process leave as the interpreter ends, so that it always does.

A member that leaves waits until all others have left. So where several are in one process, each
begins to leave before any is waited for, and all are waited for no longer than `EXIT_S`.

The interpreter joins its threads before it calls what ``atexit`` was given. A thread that waits in
``close()`` for another member of this process would wait for ever, as nothing closes that one:
where only such threads keep the interpreter alive, they begin to leave for all.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
import time
from collections.abc import Collection, Iterable
from concurrent.futures import Future, wait
from typing import Protocol

EXIT_S = 60.0
"""How long the end of the interpreter waits for other sites to leave, at most."""

_LOOK_S = 0.2
_LATE = "the interpreter ends, and waits for other sites to leave no longer than %g s"
_log = logging.getLogger("anabranch")


class Leaver(Protocol):
    """A member, as the end of the interpreter sees it."""

    def begin_to_leave(self, error: BaseException | None) -> Future[None] | None:
        """Begin to leave, if that has not begun; return what is done at its end, None after it."""

    def end(self) -> None:
        """End its event loop, whatever still runs there."""


# Changed without a lock, which a fork might find held: each use is one step of the interpreter's.
_open: set[Leaver] = set()
_closers: set[threading.Thread] = set()  # that wait in close()


def opened(member: Leaver) -> None:
    """Take note of a member that has to leave before the interpreter ends."""
    _open.add(member)
    atexit.unregister(_leave_at_exit)
    atexit.register(_leave_at_exit)  # ahead of what was registered before this member joined


def ended(member: Leaver) -> None:
    """Take note of a member that has left."""
    _open.discard(member)


def wait_until_left(leaving: Future[None]) -> None:
    """Wait for a member to leave, in ``close()``.

    Raises:
        Exception: what leaving failed by.
    """
    me, until_s = threading.current_thread(), None
    _closers.add(me)
    try:
        while not wait([leaving], _LOOK_S).done:
            if not _only_closers_are_left():
                continue
            _begin_all([*_open], None)
            until_s = until_s or time.monotonic() + EXIT_S
            if time.monotonic() > until_s:
                _log.warning(_LATE, EXIT_S)
                return
        leaving.result()
    finally:
        _closers.discard(me)


def leave_together(members: Collection[Leaver], error: BaseException | None) -> None:
    """Let members leave that wait for one another.

    Raises:
        Exception: what the first of them failed by that did.
    """
    leaving = _begin_all(members, error)
    try:
        wait(leaving)
        for each in leaving:
            each.result()
    finally:
        for member in members:
            member.end()


def _only_closers_are_left() -> bool:
    """Return whether the main thread has ended, and all that are waited for are in close()."""
    main = threading.main_thread()
    # Pools join their threads at the main thread's end, which is over only afterwards.
    if main.is_alive() and not getattr(threading, "_SHUTTING_DOWN", False):
        return False
    alive = {thread for thread in threading.enumerate() if not thread.daemon and thread is not main}
    return alive <= _closers


def _begin_all(members: Iterable[Leaver], error: BaseException | None) -> list[Future[None]]:
    """Let members begin to leave; return those that have not left."""
    return [each for member in members if (each := member.begin_to_leave(error)) is not None]


def leave_quietly(members: Collection[Leaver], error: BaseException | None) -> None:
    """Let members leave as the interpreter ends, and wait for that no longer than `EXIT_S`.

    What leaving fails by is not told: a group that has ended has told its program at the program's
    last call.
    """
    if wait(_begin_all(members, error), EXIT_S).not_done:
        _log.warning(_LATE, EXIT_S)
    for member in members:
        member.end()


def _leave_at_exit() -> None:
    leave_quietly([*_open], getattr(sys, "last_value", None))  # what ended it, if anything did
