"""Tells the user what a site waits for, if the wait is long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SAID_AFTER_S = 1.5
SAID_AGAIN_S = 15.0


@contextmanager
def saying(say: Callable[[str], None] | None, what: Callable[[], str]) -> Iterator[None]:
    """Print what the block waits for: first after 1.5 s, then at intervals that double.

    Args:
        say: called with each line; None to print nothing.
        what: returns the line for the present state.
    """
    if say is None:
        yield
        return
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def tell(again_s: float) -> None:
        nonlocal timer
        say(what())
        timer = loop.call_later(again_s, tell, 2 * again_s)

    timer = loop.call_later(SAID_AFTER_S, tell, SAID_AGAIN_S)
    try:
        yield
    finally:
        timer.cancel()
