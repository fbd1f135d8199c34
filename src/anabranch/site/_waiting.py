"""What a site says while it waits: a wait of seconds is no news, one of a minute needs a word."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SAID_AFTER_S = 1.5
SAID_AGAIN_S = 15.0


@contextmanager
def saying(say: Callable[[str], None] | None, what: Callable[[], str]) -> Iterator[None]:
    """Say what the block waits for, once that takes long, and ever more seldom while it lasts.

    Args:
        say: called with each line; None to say nothing.
        what: returns the line, as things stand then.
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
