"""When a process of this machine has ended, as the kernel knows.

A connection that its other end closed may belong to a process that lives and connects again. Over a
network nothing but time tells that from a process that died. Within one machine the kernel does.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable


def when_ended(process: int | None, told: Callable[[], None]) -> Callable[[], None]:
    """Call back in the running loop, once a process has ended; at once where it has.

    A process that has ended and that its parent has not yet waited for has ended all the same.

    Args:
        process: its number; None where it is not known, which calls nothing.
        told: what to call.

    Returns:
        What ends the watch, before or after that.
    """
    if process is None:
        return _nothing
    loop = asyncio.get_running_loop()
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return loop.call_soon(told).cancel
    except OSError:  # no descriptor is left, or the kernel is older
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
    """There is nothing to end."""
