"""The consequences of a message about calls, as values. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from anabranch.net.messages import ExchangeEnded, Message


@dataclass(frozen=True, slots=True)
class Began:
    """An exchange has begun: a member was the first to be granted it, under this plan version."""

    channel: int
    number: int
    version: int
    site: int
    elements: int


@dataclass(frozen=True, slots=True)
class Repaired:
    """An interrupted exchange is settled.

    Args:
        channel, number: of the exchange.
        members: the sites that hold its result.
        reduced, spread: the numbers of elements reduced again, and spread from a holder.
        interrupted: the generation at which it was settled.
    """

    channel: int
    number: int
    members: tuple[int, ...]
    reduced: int
    spread: int
    interrupted: int


@dataclass(slots=True)
class Outcome:
    """The consequences of a message.

    Attributes:
        repaired: interrupted exchanges that are settled now.
        ended: what members had to tell at the settlement of an exchange.
        say: the messages to send, each with its site, in order.
        began: exchanges that begin.
        wrong: why the run must end; empty if it need not.
        is_to_remember: whether a restart needs to know of it: an exchange is repaired or withdrawn,
            or is a transfer of the state. The journal is written before the messages are sent.
        over: why an exchange is refused; empty if none is.
        admission: the gathering by which all members admit newcomers, and the members that have the
            state of training; None for none.
    """

    say: list[tuple[int, Message]] = field(default_factory=list)
    began: list[Began] = field(default_factory=list)
    repaired: list[Repaired] = field(default_factory=list)
    ended: list[tuple[int, ExchangeEnded]] = field(default_factory=list)
    wrong: str = ""
    is_to_remember: bool = False
    over: str = ""
    admission: tuple[int, frozenset[int]] | None = None
