"""Detects the end of standard input, which shows the end of the process that writes it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable


def at_end_of_stdin(call: Callable[[], object]) -> None:
    """Call back from the running loop when standard input closes."""
    loop, stdin = asyncio.get_running_loop(), sys.stdin.fileno()

    def look() -> None:
        if not os.read(stdin, 1):
            loop.remove_reader(stdin)
            call()

    loop.add_reader(stdin, look)
