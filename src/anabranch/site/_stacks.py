"""Where the Python threads of this process are, for an operator who asks why a site is late."""

from __future__ import annotations

import sys
import threading
import traceback

MOST_CHARACTERS = 1 << 16
"""Of what a site tells; of more, the ends of the stacks that come first are kept."""


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
