"""What a book answers to a call, as values. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from anabranch.net.messages import Signature
from anabranch.plan import Plan


class Kind(IntEnum):
    """What a call is, besides its number."""

    EXCHANGE = 0
    GATHER = 1
    ADMIT = 2


@dataclass(frozen=True, slots=True)
class Granted:
    """A site may begin an exchange.

    Args:
        site: which.
        number: of the exchange, among those of its members.
        exchange: the number that its chunks carry.
        plan: that it runs under.
        lacks: whether the site has not got that plan.
        is_first: whether no other member was granted it before.
        is_last: whether all members are granted it now.
        signature: what is exchanged.
        attempt: of the site to ask for it.
    """

    site: int
    number: int
    exchange: int
    plan: Plan
    lacks: bool
    is_first: bool
    is_last: bool
    signature: Signature
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class TakenBack:
    """All members that had asked for an exchange ahead have made another call; none has begun it.

    Args:
        number, exchange: as in :class:`Granted`.
    """

    number: int
    exchange: int


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Members asked for different things under one number; the exchange ends without a result.

    Args:
        number, exchange: as in :class:`Granted`; ``exchange`` is 0 where it had not begun.
        sites: the two that disagree.
        signatures: what each would exchange.
        tell: the members that know of the channel.
    """

    number: int
    exchange: int
    sites: tuple[int, int]
    signatures: tuple[Signature, Signature]
    tell: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Made:
    """A call that a site has made.

    Args:
        site: which.
        kind: of call.
        what: is exchanged, or what a gathering is for, in words.
    """

    site: int
    kind: Kind
    what: Signature | str = ""


@dataclass(frozen=True, slots=True)
class Mixed:
    """Members make calls of two kinds in the same place: neither can end.

    Args:
        call: the place, from 1.
        made: by two sites, in the order of their kinds.
        exchanges, gatherings: how many of each all members can still end.
    """

    call: int
    made: tuple[Made, Made]
    exchanges: int
    gatherings: int


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A site's call cannot end.

    Args:
        site, number, exchange: as in :class:`Granted`; ``exchange`` is 0 where it had not begun.
        gathers: whether the call gathers small values.
        reason: why.
    """

    site: int
    number: int
    exchange: int
    gathers: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Whole:
    """Every member has gathered.

    Args:
        number: of the gathering.
        values: the members' small values, in their order.
        admits: whether they let further members in.
        heard: the latest gathering up to which every member has heard the values.
    """

    number: int
    values: tuple[bytes, ...]
    admits: bool
    heard: int


Answer = Granted | TakenBack | Disagreement | Mixed | Abandoned | Whole
"""What follows from a call in its book."""
