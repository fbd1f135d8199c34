"""A book's answers to calls, as values; `_answering` turns them into messages. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from anabranch.net.messages import Signature
from anabranch.plan import Plan
from anabranch.scheduler.calls._leases import Cut


class Kind(IntEnum):
    """The kind of a call."""

    EXCHANGE = 0
    GATHER = 1
    ADMIT = 2


@dataclass(frozen=True, slots=True)
class Granted:
    """A site may begin an exchange.

    Args:
        site: the site.
        number: of the exchange, among those of its channel.
        exchange: the number that its chunks carry.
        plan: the plan of the exchange.
        lacks: whether the site has yet to get that plan.
        is_first: whether no other member was granted the exchange before.
        is_last: whether all members are granted it now.
        signature: the terms of the exchange.
        attempt: the number of the site's earlier requests for it that it withdrew.
        is_leased: whether the site has begun it already.
        cut: how its chunks go, if a lease has fixed that.
        is_void: whether its lease is void, so that it is interrupted as it begins.
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
    is_leased: bool = False
    cut: Cut | None = None
    is_void: bool = False


@dataclass(frozen=True, slots=True)
class TakenBack:
    """Every member that was granted an exchange ahead made another call; none has begun it.

    Args:
        number, exchange: as in :class:`Granted`.
    """

    number: int
    exchange: int


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Members asked for different exchanges under one number; it ends without a result.

    Args:
        number, exchange: as in :class:`Granted`; ``exchange`` is 0 if it had not begun.
        sites: two members that disagree.
        signatures: the terms that each asked for.
        tell: the members to tell: those that know the channel.
    """

    number: int
    exchange: int
    sites: tuple[int, int]
    signatures: tuple[Signature, Signature]
    tell: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a site.

    Args:
        site: the site.
        kind: of the call.
        what: the terms of an exchange, or the purpose of a gathering in words.
    """

    site: int
    kind: Kind
    what: Signature | str = ""


@dataclass(frozen=True, slots=True)
class MixedKinds:
    """Members made calls of two kinds in the same place, so that neither can end.

    Args:
        call: the place, from 1.
        made: the calls of two sites, in the order of their kinds.
        exchanges, gatherings: how many of each come before that place, and can still end.
    """

    call: int
    made: tuple[Call, Call]
    exchanges: int
    gatherings: int


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A site's call cannot end.

    Args:
        site, number, exchange: as in :class:`Granted`; ``exchange`` is 0 if it had not begun.
        gathers: whether the call is a gathering.
        reason: why it cannot end.
    """

    site: int
    number: int
    exchange: int
    gathers: bool
    reason: str


@dataclass(frozen=True, slots=True)
class AllGathered:
    """Every member has given its value to a gathering.

    Args:
        number: of the gathering.
        values: the values, in the order of the members.
        admits: whether the gathering admits newcomers.
        heard: the latest gathering up to which every member has heard all values.
    """

    number: int
    values: tuple[bytes, ...]
    admits: bool
    heard: int


Answer = Granted | TakenBack | Disagreement | MixedKinds | Abandoned | AllGathered
"""A consequence of a call, a withdrawal or a loss, in a book."""
