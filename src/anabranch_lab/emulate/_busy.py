"""How busy a relay was while it carried data. Pure."""

from __future__ import annotations

_WINDOW_S = 0.1


class BusyShare:
    """Counts the bytes that a relay carried, and how busy it was meanwhile.

    A relay is busy whenever it does not rest. Time in which other processes had the cores counts as
    busy, since packets are late then too.

    Each window of a tenth of a second is weighted by its bytes. So the share is that of the
    exchanges, however long the sites compute between them.

    Args:
        now_s: the time.

    >>> load = BusyShare(0.0)
    >>> load.carried(1000), load.rested(0.025), load.look(0.1)  # a window with data, 3/4 busy
    (None, None, None)
    >>> load.rested(10.0), load.look(10.1)  # and a long one without
    (None, None)
    >>> load.share
    0.75
    """

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._rest_s = 0.0
        self._window_bytes = 0
        self._bytes = 0
        self._busy_bytes = 0.0

    @property
    def share(self) -> float:
        """How busy it was, in [0, 1]; 0 before it has carried anything."""
        return self._busy_bytes / self._bytes if self._bytes else 0.0

    def carried(self, size_bytes: int) -> None:
        """Count a packet."""
        self._window_bytes += size_bytes

    def rested(self, seconds: float) -> None:
        """Count a rest."""
        self._rest_s += seconds

    def look(self, now_s: float) -> None:
        """End the window if it is long enough."""
        window_s = now_s - self._since_s
        if window_s < _WINDOW_S:
            return
        busy = max(0.0, 1.0 - self._rest_s / window_s)
        self._bytes += self._window_bytes
        self._busy_bytes += busy * self._window_bytes
        self._since_s, self._rest_s, self._window_bytes = now_s, 0.0, 0

    def dumps(self) -> str:
        """Return the share as a line of text; ``share_of`` reads the last of several."""
        return f"{self.share:.4f}\n"


def share_of(lines: str) -> float | None:
    """Return the share in the last whole line; None if there is no whole line."""
    whole = lines.split("\n")[:-1]
    return float(whole[-1]) if whole else None
