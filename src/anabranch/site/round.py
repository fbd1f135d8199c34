"""What a collective call returns and raises: the round of a finished exchange, and its errors."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from anabranch.net.errors import NetError
from anabranch.net.messages import Contribution


class ExchangeError(NetError):
    """An exchange or gathering ended without a result, at every member; the group continues."""


class RunEnded(ExchangeError):
    """The run has ended in good order before this call; the call's tensors are unchanged.

    Args:
        reason: why it ended, such as a stop rule.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"the run is over: {reason}; no further exchange is held")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Round:
    """A finished exchange, as one site saw it.

    Args:
        round: its number on the channel, from 1.
        version: the version of its plan.
        seconds: from the request to the result.
        tree: the tree of the chunk that was finished last here; None where there was none.
        waited_for: the neighbour that sent that chunk; None for no neighbour.
        channel: the channel's number; 0 for all sites.
        size_bytes: the size of the buffer in wire format.
        members: the channel's members when the exchange ended; empty if losses are not repaired.
        contributions: the contributors, by elements; together they cover the result. Empty where
            all members are in all elements.
        was_kept: whether this site followed when the others made this call: it has contributed
            nothing, and kept the result until its program made the call.
        is_last: whether this was the channel's last exchange.
        is_told: whether the scheduler has been told of its end.
        settlement: of a result that was returned before it was settled: the round once every member
            holds the result, which names the members. None for a result that is settled.
    """

    round: int
    version: int
    seconds: float
    tree: int | None = None
    waited_for: int | None = None
    channel: int = 0
    size_bytes: int = 0
    members: tuple[int, ...] = ()
    contributions: tuple[Contribution, ...] = ()
    was_kept: bool = False
    is_last: bool = False
    is_told: bool = False
    settlement: asyncio.Future[Round] | None = field(default=None, repr=False, compare=False)
