"""What follows from a call, as values. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from anabranch.net.messages import Message


@dataclass(frozen=True, slots=True)
class Began:
    """A member was the first to ask for an exchange, which fixed its plan version."""

    channel: int
    number: int
    version: int
    site: int
    elements: int


@dataclass(frozen=True, slots=True)
class Repaired:
    """An exchange is settled that had been interrupted.

    Args:
        channel, number: which.
        members: who has its result.
        reduced, spread: how many elements were reduced again, and how many came from a holder.
        interrupted: how many times.
    """

    channel: int
    number: int
    members: tuple[int, ...]
    reduced: int
    spread: int
    interrupted: int


@dataclass(slots=True)
class Outcome:
    """What follows from a message.

    Attributes:
        repaired: exchanges that are settled and had been interrupted.
        say: what to say, and to which site, in order.
        began: exchanges that are held from now on.
        wrong: why the run must end; empty if it need not.
        is_to_remember: whether a scheduler that is started again needs to know of it: an exchange
            is completed that was interrupted, or hands the state on.
        over: why an exchange is refused that was asked for; empty where none is.
        admission: the gathering by which all members let further ones in, and which of them have
            the state of training; None for none.
    """

    say: list[tuple[int, Message]] = field(default_factory=list)
    began: list[Began] = field(default_factory=list)
    repaired: list[Repaired] = field(default_factory=list)
    wrong: str = ""
    is_to_remember: bool = False
    over: str = ""
    admission: tuple[int, frozenset[int]] | None = None
