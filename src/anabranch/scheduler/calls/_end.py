"""The last exchange of a channel. Pure.

A run that is stopped has a last exchange, and so has a run with a bounded number of exchanges. The
lower of the two holds. The bound rises with each transfer of the state, which does not count.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Last:
    """The last exchange of a channel.

    Args:
        number: of the exchange.
        why: the reason that none follows.
    """

    number: int
    why: str


class End:
    """The end of a channel's exchanges.

    Attributes:
        closed: the last exchange of a run that is stopped; None if it is not.
        bound: the last exchange where their number is bounded; None if it is not.
    """

    def __init__(self) -> None:
        self.closed: Last | None = None
        self.bound: Last | None = None

    @property
    def last(self) -> Last | None:
        """The last exchange; None if any number may follow."""
        ends = [each for each in (self.closed, self.bound) if each is not None]
        return min(ends, key=lambda each: each.number, default=None)

    def close(self, number: int, why: str) -> None:
        """Set the last exchange; an earlier decision stays."""
        if self.closed is None:
            self.closed = Last(number, why)

    def holds(self, number: int) -> bool:
        """Return whether an exchange may be held, since it is not after the last one."""
        last = self.last
        return last is None or number <= last.number
