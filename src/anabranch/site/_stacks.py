"""Returns the stacks of this process's Python threads, for an operator of a site that is late."""

from __future__ import annotations

import sys
import threading
import traceback

MOST_CHARACTERS = 1 << 16
"""The most characters that a site reports; a longer text is cut at its end."""


def stacks() -> str:
    """Return the stack of each Python thread, the main thread's first, the innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    frames = sorted(sys._current_frames().items(), key=lambda each: each[0] != main)
    told = [
        f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in frames
    ]
    return "\n".join(told)[:MOST_CHARACTERS]
