"""An event loop over real sockets whose clock stands still but where nothing comes: then it jumps.

What a test waits for, a heartbeat or a silence, takes no time, and no busy machine makes a gap.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any

_KERNEL_S = 0.001  # what was sent within this machine has come by then


class _Jumping(selectors.DefaultSelector):
    """Attributes: ``now_s``, the time."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        found = super().select(_KERNEL_S)
        if not found:
            self.now_s += timeout
        return found


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _Jumping()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now_s


def run_jumping(play: Coroutine[Any, Any, None]) -> None:
    """Run this to its end, for a minute of that clock at most."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        runner.run(asyncio.wait_for(play, 60))
