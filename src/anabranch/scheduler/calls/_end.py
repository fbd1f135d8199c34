"""Which exchange of a channel is the last one. Pure.

Two things set one: the run is stopped, or the number of exchanges is bounded from the first. The
bound moves while some exchanges turn out not to count. The lower of both holds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Last:
    """The last exchange that is held.

    Args:
        number: which.
        why: no further one is.
    """

    number: int
    why: str


class End:
    """The end of a channel's exchanges.

    Attributes:
        closed: the last exchange since the run is stopped; None where it is not.
        bound: the last one where their number is bounded; None where it is not.
    """

    def __init__(self) -> None:
        self.closed: Last | None = None
        self.bound: Last | None = None

    @property
    def last(self) -> Last | None:
        """The last exchange that is held; None where more may follow."""
        ends = [each for each in (self.closed, self.bound) if each is not None]
        return min(ends, key=lambda each: each.number, default=None)

    def close(self, number: int, why: str) -> None:
        """Hold no exchange after this one; where that was decided before, it stays so."""
        if self.closed is None:
            self.closed = Last(number, why)

    def holds(self, number: int) -> bool:
        """Return whether an exchange is held, or may be."""
        last = self.last
        return last is None or number <= last.number
