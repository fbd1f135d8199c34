"""Pause a real process, by SIGSTOP and SIGCONT, as a fault script says."""

from __future__ import annotations

import os
import subprocess


def stand_still(for_s: float) -> None:
    """Stop this process soon, and continue it `for_s` seconds later."""
    own = os.getpid()
    # A stopped process cannot continue itself. The child ends with the pause.
    subprocess.Popen(
        ["sh", "-c", f"kill -STOP {own}; sleep {for_s:.6f}; kill -CONT {own}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
