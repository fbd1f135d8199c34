"""Exchanges at one site: reduce up to the roots, turn there, spread down. Pure.

Several go on at once, of different sizes and over different plans. Each is one object, made when
it begins here or when a neighbour that is ahead sends the first of its data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from anabranch.exchange._spread import Spread
from anabranch.exchange.actions import Action, Receipt
from anabranch.exchange.arithmetic import Buffer, in_one_piece
from anabranch.exchange.reduction import Reduction, Room
from anabranch.exchange.terms import Terms
from anabranch.net.errors import DuplicateMessage, OutOfPlaceMessage
from anabranch.net.messages import ChunkMessage, PartialSum, Result
from anabranch.plan import Chunk, Plan

_MOST_ENDED = 4096  # exchanges remembered as ended, beyond those without a gap
_MOST_STOPPED = 1024


class Exchange:
    """One site's part in one exchange.

    Args:
        site: this site.
        number: the exchange's.
        terms: their code, see :class:`anabranch.exchange.terms.Terms`.
        room: for what comes before its chunk is dealt.
        is_repairable: whether, until all of its result is here, every element of the buffer must
            have either the result or this site's own contribution.

    Attributes:
        number, terms: see above.
        reduction, spread: the two halves; the second one takes what is whole in the first.
        dealt: how many of the chunks have a tree.
    """

    def __init__(
        self, site: int, number: int, terms: int, room: Room, is_repairable: bool = False
    ) -> None:
        self.number = number
        self.reduction = Reduction(site, number, terms, room, overwrites=not is_repairable)
        self.spread = Spread(site, number, terms, room, lands_in_order=is_repairable)
        self.terms = terms
        self._site = site
        self._total = 0
        self.dealt = 0

    def begin(
        self,
        plan: Plan,
        chunks: Sequence[Chunk],
        total: int,
        buffer: Buffer,
        weight: float,
        source: int | None = None,
        receivers: frozenset[int] | None = None,
        followers: frozenset[int] = frozenset(),
    ) -> list[Action]:
        """Take part, with this site's contribution.

        Args:
            plan: the one plan that every member runs this exchange under.
            chunks: those whose trees are known, in order from the first.
            total: how many chunks the buffer has.
            buffer: what is contributed, and overwritten by the result.
            weight: of the contribution, > 0.
            source: the only contributor, whose elements the others get; None where all contribute.
            receivers: whose buffers the result goes to; None for every member but a source.
            followers: members that contribute nothing, where there is no source.

        Raises:
            OutOfPlaceMessage: early data was added to a sum, and does not belong there.
        """
        self._total = total
        buffer = in_one_piece(buffer)
        contributors = plan.members - followers if followers else None
        if source is not None:
            contributors = frozenset({source})
        if source is not None and receivers is None:
            receivers = plan.members - {source}
        contributes = contributors is None or self._site in contributors
        own_sums = self.reduction.sums if contributes else None
        self.reduction.begin(plan, total, self.spread, contributors)
        self.spread.begin(plan, total, buffer, receivers, own_sums)
        actions: list[Action] = []
        if contributes:  # no result can be whole without this site's part
            actions += self.spread.drop_early("a result before this site's sum has left")
        actions += self.deal(chunks)
        if contributes:
            actions += self.reduction.contribute(buffer, weight)
        return actions

    def deal(self, chunks: Sequence[Chunk]) -> list[Action]:
        """Take in the next chunks and the trees that carry them.

        Raises:
            OutOfPlaceMessage: see ``begin``; or for a tree that the plan has not got.
        """
        self.dealt += len(chunks)
        return self.reduction.deal(chunks) + self.spread.deal(chunks)

    @property
    def is_complete(self) -> bool:
        """Whether this site has all results, and has passed on all that it has to."""
        return self.reduction.is_complete and self.spread.is_complete

    @property
    def all_dealt(self) -> bool:
        """Whether all of them have."""
        return self.dealt == self._total

    @property
    def done_share(self) -> float:
        """The part of the chunks whose result is here, in [0, 1]."""
        return self.spread.held / self._total if self._total else 0.0


class Exchanges:
    """The exchanges that go on at one site.

    Args:
        site: this site.
        room: elements of early data that it may hold, over all of them.
        are_repairable: whether they are; see :class:`Exchange`.

    Attributes:
        active: those that go on, by number.
    """

    def __init__(self, site: int, room: int, are_repairable: bool = False) -> None:
        self._site = site
        self._are_repairable = are_repairable
        self.room = Room(room)
        self.active: dict[int, Exchange] = {}
        self._ended_up_to = 0  # every exchange up to this one
        self._ended: set[int] = set()  # and these
        self._void: set[int] = set()  # the latest of those that were stopped

    def open(self, number: int, terms: Terms) -> Exchange:
        """Return an exchange that is to begin here.

        Raises:
            OutOfPlaceMessage: data of other terms has come already.
            ValueError: it has ended here.
        """
        code = terms.code
        early = self.active.get(number)
        if early is None:
            if self._has_ended(number):
                raise ValueError(f"exchange {number} has ended")
            early = self.active[number] = self._new(number, code)
        elif early.reduction.terms != code:
            raise OutOfPlaceMessage(
                f"exchange {number} is a {terms} here, and another one at a neighbour: the sizes, "
                "types or operations differ"
            )
        return early

    def _new(self, number: int, code: int) -> Exchange:
        return Exchange(self._site, number, code, self.room, self._are_repairable)

    def receive(self, message: ChunkMessage, payload_bytes: int) -> Receipt:
        """Return where a chunk goes; hand the receipt back to its owner.

        Raises:
            PeerError: see :class:`Reduction` and :class:`Spread`; also for an exchange that has
                ended here.
        """
        number = message.exchange
        exchange = self.active.get(number)
        if exchange is None:
            if number in self._void:
                return Receipt(message)
            if number < 1 or self._has_ended(number):
                raise DuplicateMessage(f"chunk {message.chunk} of exchange {number}, which is over")
            if payload_bytes == 0:
                raise OutOfPlaceMessage(f"chunk {message.chunk} of exchange {number} is empty")
            exchange = self._new(number, message.terms)
        if isinstance(message, PartialSum):
            receipt = exchange.reduction.receive(message, payload_bytes)
        else:
            receipt = exchange.spread.receive(cast("Result", message), payload_bytes)
        self.active[number] = exchange
        return receipt

    def stop(self, number: int) -> None:
        """Forget an exchange, begun here or not, of which more may come: that is thrown away."""
        self._void.add(number)
        if len(self._void) > _MOST_STOPPED:
            self._void.remove(min(self._void))
        self.end(number)

    def _has_ended(self, number: int) -> bool:
        return number <= self._ended_up_to or number in self._ended

    def end(self, number: int) -> None:
        """Forget an exchange, begun here or not: whatever comes of it from now on is refused."""
        exchange = self.active.pop(number, None)
        if exchange is not None:
            exchange.reduction.release()
            exchange.spread.release()
        self._ended.add(number)
        if len(self._ended) > _MOST_ENDED:
            self._ended_up_to = max(self._ended_up_to, min(self._ended))
            self._ended = {each for each in self._ended if each > self._ended_up_to}
        while self._ended_up_to + 1 in self._ended:
            self._ended_up_to += 1
            self._ended.discard(self._ended_up_to)
