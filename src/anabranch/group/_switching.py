"""How soon a thread that computes in Python lets the event loop's thread have its turn.

Python's threads share one lock. A thread that computes keeps it for the switch interval, 5 ms by
default, each time that the loop's thread wants it; and that thread wants it for every chunk. So the
interval is shorter while a call is under way, and is put back after the last one.
"""

from __future__ import annotations

import sys
import threading

_SHORT_S = 0.0002


class _Switching:
    """Counts the calls of this process that are under way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0
        self._usual_s = self._short_s = 0.0

    def begin(self) -> None:
        """Take note of a call, and shorten the interval for the first one."""
        with self._lock:
            self._calls += 1
            if self._calls == 1:
                self._usual_s = sys.getswitchinterval()
                _set(min(self._usual_s, _SHORT_S))
                self._short_s = sys.getswitchinterval()

    def end(self) -> None:
        """Take note of a call's end, and put the interval back after the last one."""
        with self._lock:
            self._calls -= 1
            # The program may have set another one meanwhile, which stays.
            if not self._calls and sys.getswitchinterval() == self._short_s:
                _set(self._usual_s)


def _set(seconds: float) -> None:
    # Python cuts off what is below a microsecond, so a value that was read would shrink each time.
    sys.setswitchinterval(seconds + 1e-7)


switching = _Switching()
