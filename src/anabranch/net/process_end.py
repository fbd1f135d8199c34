"""Detects the end of a process on this machine, with the kernel's help.

A peer whose connection has closed may still live, and connect again. Over a network only time tells
it from a dead process. Within one machine the kernel knows.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable


def when_ended(process: int | None, told: Callable[[], None]) -> Callable[[], None]:
    """Call back in the running loop when a process ends, or at once if it has ended.

    A zombie, for which its parent has not waited yet, counts as ended.

    Args:
        process: the process's ID; None if unknown, which never calls back.
        told: the callback.

    Returns:
        A function that ends the watch; it may be called before or after the callback.
    """
    if process is None:
        return _nothing
    loop = asyncio.get_running_loop()
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return loop.call_soon(told).cancel
    except OSError:  # no descriptor is left, or the kernel is too old
        return _nothing
    is_watched = True

    def end() -> None:
        nonlocal is_watched
        if is_watched:
            is_watched = False
            loop.remove_reader(descriptor)
            os.close(descriptor)

    def ended() -> None:
        end()
        told()

    loop.add_reader(descriptor, ended)
    return end


def _nothing() -> None:
    """Do nothing: no watch has begun."""
