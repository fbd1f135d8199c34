"""How the members of this process leave as the interpreter ends, so that it cannot hang.

A member that leaves waits until all others have left. So if one process has several members, all of
them begin to leave before it waits for any. It waits no longer than `EXIT_S`.

The interpreter joins its threads before it calls ``atexit`` functions. A thread that waits in
``close()`` for another member of this process would wait for ever, since nothing closes that one.
If only such threads keep the interpreter alive, they begin to leave for all members.
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
    """The methods of a member that the end of the interpreter calls."""

    def begin_to_leave(self, error: BaseException | None) -> Future[None] | None:
        """Begin to leave, unless that has begun; return a future of the end, None after the end."""

    def end(self) -> None:
        """End the member's event loop, and all that still runs there."""


# Without a lock, which a fork might copy while it is held: each change is one atomic operation of
# the interpreter.
_open: set[Leaver] = set()
_closers: set[threading.Thread] = set()  # that wait in close()


def opened(member: Leaver) -> None:
    """Register a member, which has to leave before the interpreter ends."""
    _open.add(member)
    atexit.unregister(_leave_at_exit)
    atexit.register(_leave_at_exit)  # runs ahead of functions registered before this member joined


def ended(member: Leaver) -> None:
    """Forget a member that has left."""
    _open.discard(member)


def wait_until_left(leaving: Future[None]) -> None:
    """Wait for a member to leave, in ``close()``.

    Raises:
        Exception: the member could not leave in good order.
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
    """Make members leave that wait for one another.

    Raises:
        Exception: that of the first member that could not leave in good order.
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
    """Return whether the main thread has ended, and all threads that it joins are in close()."""
    main = threading.main_thread()
    # At the main thread's end, pools join their threads. It counts as alive until after that.
    if main.is_alive() and not getattr(threading, "_SHUTTING_DOWN", False):
        return False
    alive = {thread for thread in threading.enumerate() if not thread.daemon and thread is not main}
    return alive <= _closers


def _begin_all(members: Iterable[Leaver], error: BaseException | None) -> list[Future[None]]:
    """Make members begin to leave; return the futures of those that have not left."""
    return [each for member in members if (each := member.begin_to_leave(error)) is not None]


def leave_quietly(members: Collection[Leaver], error: BaseException | None) -> None:
    """Make members leave as the interpreter ends, and wait for that no longer than `EXIT_S`.

    It reports no error of leaving: if the group has ended, the program's last call raised that.
    """
    if wait(_begin_all(members, error), EXIT_S).not_done:
        _log.warning(_LATE, EXIT_S)
    for member in members:
        member.end()


def _leave_at_exit() -> None:
    leave_quietly([*_open], getattr(sys, "last_value", None))  # the error that ended the program
