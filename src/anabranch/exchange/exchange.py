"""Exchanges at one site: reduce up to the roots, turn there, spread down. Pure.

**Data flow.** An exchange has two halves, which meet at the root of each chunk's tree::

    own elements --contribute--> Reduction --PartialSum--> parent
    children ------PartialSum------^   |
                                       | at the root: Total
                                       v
    parent ------Result--------> Spread --Result--> children
                                       `--> buffer: ChunkFinished

**States at one site.** A site knows a neighbour's exchange before its own program does, if that
neighbour is ahead. So an exchange begins by a call or by a message::

    unknown  --receive------------------> early      a neighbour is ahead
    unknown, early  --open, begin-------> begun      this site's program has called
    begun  --all chunks dealt and done--> complete
    complete  --end---------------------> ended
    early, begun  --stop----------------> stopped

- *early*: the site sums partial sums, and keeps results, without knowing the plan. ``Room`` bounds
  the elements that early data may take, over all exchanges of the site.
- *begun*: the plan and the buffer are known. Chunks are dealt to trees, at once or in several
  calls of ``deal``. Early data that does not fit the plan becomes a ``Stray``.
- *complete*: every result is in the buffer, and everything to pass on is in ``Send`` actions.
- *ended*: a later message of this exchange is a ``DuplicateMessage``, since its sender repeats it.
- *stopped*: a later message is discarded without an error, since its sender may not know yet.

**What must never happen.**

- A result overwrites this site's elements before the site's sum of them has begun to leave
  (``own_sums``): the sum would then contain the result.
- Data of other terms, of another plan version or of another size enters a sum.
- A late message makes an ended exchange begin again: it would hold room, and never complete. So
  the numbers of ended exchanges are remembered.
- Early data grows without bound: a neighbour that runs ahead would fill this site's memory.
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

# Numbers of ended exchanges that are remembered singly, since this site may skip some (another
# group's, say). Beyond this many, skipped numbers count as ended, too.
_MOST_ENDED = 4096
_MOST_STOPPED = 1024  # the highest numbers of stopped exchanges are remembered


class Exchange:
    """One site's part in one exchange.

    Args:
        site: this site's index.
        number: the exchange's number.
        terms: the code of its :class:`anabranch.exchange.terms.Terms`.
        room: bounds data that arrives before its chunk is dealt.
        is_repairable: whether the exchange can be repaired after a loss. If so, every element of
            the buffer always holds either the result or this site's own contribution.

    Attributes:
        number, terms: see above.
        reduction, spread: the two halves; at a root the spread takes the reduction's totals.
        dealt: the number of chunks that have a tree.
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
        """Begin the exchange here, with this site's contribution.

        Args:
            plan: the one plan under which every member runs this exchange.
            chunks: the first chunks, in order, as far as their trees are known.
            total: the number of chunks in the buffer.
            buffer: this site's contribution; the result overwrites it.
            weight: the contribution's weight, > 0.
            source: the only contributor, in a broadcast; None where all contribute.
            receivers: the sites whose buffers get the result. None for all members, without the
                source if there is one.
            followers: members that contribute nothing; only where there is no source.

        Raises:
            OutOfPlaceMessage: early data that does not belong to a sum was already added to it.
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
        if contributes:
            # Early results cannot contain this site's contribution, so they are false. They would
            # overwrite elements that have not left yet.
            actions += self.spread.drop_early("a result before this site's sum has left")
        actions += self.deal(chunks)
        if contributes:
            actions += self.reduction.contribute(buffer, weight)
        return actions

    def deal(self, chunks: Sequence[Chunk]) -> list[Action]:
        """Take in the next chunks and the trees that carry them.

        Raises:
            OutOfPlaceMessage: see ``begin``; or the plan does not have such a tree.
        """
        self.dealt += len(chunks)
        return self.reduction.deal(chunks) + self.spread.deal(chunks)

    @property
    def is_complete(self) -> bool:
        """Whether this site has all results, and has returned all that it must send."""
        return self.reduction.is_complete and self.spread.is_complete

    @property
    def all_dealt(self) -> bool:
        """Whether every chunk has a tree."""
        return self.dealt == self._total

    @property
    def done_share(self) -> float:
        """The share of the chunks whose result is here, in [0, 1]."""
        return self.spread.held / self._total if self._total else 0.0


class Exchanges:
    """All exchanges of one site, of different sizes and plans.

    Args:
        site: this site's index.
        room: the number of elements that early data may take, over all exchanges.
        are_repairable: whether exchanges can be repaired; see :class:`Exchange`.

    Attributes:
        active: early and begun exchanges, by number.
    """

    def __init__(self, site: int, room: int, are_repairable: bool = False) -> None:
        self._site = site
        self._are_repairable = are_repairable
        self.room = Room(room)
        self.active: dict[int, Exchange] = {}
        # Ended: every number up to `_ended_up_to`, and those in `_ended`. Exchanges may end out of
        # order; the set stays small because it is folded into the number once there is no gap.
        self._ended_up_to = 0
        self._ended: set[int] = set()
        self._void: set[int] = set()  # stopped

    def open(self, number: int, terms: Terms) -> Exchange:
        """Return the exchange of this number, made now if no early data has made it.

        Raises:
            OutOfPlaceMessage: early data has other terms.
            ValueError: the exchange has ended here.
        """
        code = terms.code
        early = self.active.get(number)
        if early is None:
            if self._has_ended(number):
                raise ValueError(f"exchange {number} has ended")
            early = self.active[number] = self._new(number, code)
        elif early.reduction.terms != code:
            raise OutOfPlaceMessage(
                f"exchange {number} is a {terms} here, but not at a neighbour: the sizes, types or "
                "operations differ"
            )
        return early

    def _new(self, number: int, code: int) -> Exchange:
        return Exchange(self._site, number, code, self.room, self._are_repairable)

    def receive(self, message: ChunkMessage, payload_bytes: int) -> Receipt:
        """Return where a chunk's payload goes. The caller returns the receipt to its owner.

        Raises:
            PeerError: see :class:`Reduction` and :class:`Spread`; or the exchange has ended here.
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
        # Only now: a refused message must not leave an exchange behind.
        self.active[number] = exchange
        return receipt

    def stop(self, number: int) -> None:
        """Forget an exchange, early or begun, and discard any later message of it."""
        self._void.add(number)
        if len(self._void) > _MOST_STOPPED:
            self._void.remove(min(self._void))
        self.end(number)

    def _has_ended(self, number: int) -> bool:
        return number <= self._ended_up_to or number in self._ended

    def end(self, number: int) -> None:
        """Forget an exchange, early or begun, and refuse any later message of it."""
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
