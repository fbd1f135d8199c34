"""Push and pull at one site: its updates go to the servers, its model comes from them. Pure.

The roots of a plan's trees are its servers: each holds the chunks dealt to its trees
(`partition`). A push is a reduction whose root is a server's step, and a pull
is a spread from there. Where each worker moves by itself, both have one contributor and one
receiver; under a barrier all workers contribute to one reduction and receive from one spread, and
in a forest those of one tree, which has a :class:`Served` of its own.

**Workers that die, under a barrier or in a tree.** With each loss that the scheduler tells of, an
*epoch* of contributors ends: all sums of the update under way are void, and every worker that is
left pushes its update again. Time is lost, and in every whole sum each update of that epoch's
workers is there once. A site that hears of an epoch from a neighbour first keeps such sums, and
passes none on before it knows who contributes. A worker that comes back does so between two
updates, and then nothing is void.

One update of all is under way at a time: a worker pushes the next only once it has the model that
the last whole sums made, and no sum is whole before it has passed here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from anabranch.exchange._spread import Spread
from anabranch.exchange.actions import (
    Action,
    ChunkFinished,
    Drained,
    ModelArrived,
    Receipt,
    Stray,
    Total,
    UpdateArrived,
)
from anabranch.exchange.arithmetic import Buffer, arithmetic
from anabranch.exchange.partition import ServerPartition
from anabranch.exchange.reduction import Reduction, Room, other_chunk, other_terms
from anabranch.exchange.terms import Terms
from anabranch.net.errors import DuplicateMessage, OutOfPlaceMessage
from anabranch.net.messages import ChunkMessage, PartialSum, Result
from anabranch.plan import Chunk, Plan, places_down, places_up

Own = tuple[int, Buffer, float]  # an update's number, its elements and its weight


class Served:
    """One site's part in push and pull.

    It is one class since updates and models pass the same chunks in the same epochs.

    Args:
        site: this site.
        plan: the one plan that everything travels along.
        chunks: its deal of the model.
        terms: of every exchange.
        partition: the part of the model that this site serves; None where it serves none.
        added_up: the workers whose updates are added up on the way; none where each travels alone.
        first: the update that they begin with.
        is_later: whether another process of this site took part before this one.

    Attributes:
        epoch: how many times it has changed who contributes; 0 where each update travels alone.
    """

    def __init__(
        self,
        site: int,
        plan: Plan,
        chunks: Sequence[Chunk],
        terms: Terms,
        partition: ServerPartition | None,
        added_up: Sequence[int] = (),
        first: int = 1,
        is_later: bool = False,
    ) -> None:
        self._site = site
        self._plan = plan
        self._chunks = chunks
        self._terms = terms.code
        self._arithmetic = arithmetic(terms.op, terms.wire)
        self._partition = partition
        self._room = Room(2 * sum(chunk.elements for chunk in chunks))
        self._is_barrier = bool(added_up)
        self._by_nodes = len(added_up) > 1  # models that are under way go on as workers are lost
        self._workers = frozenset(added_up)  # that contribute, as far as this site has heard
        self.epoch = 0
        # Under a barrier the one update that is under way; the one before the first at first.
        self._before = first - 1
        self._sums = self._reduction(self._before, 0)
        self._own: Own | None = None  # that this site has pushed last
        self._has_added = False  # that to these sums
        self._lone: dict[tuple[int, int], Reduction] = {}  # at a server, by (worker, update)
        self._pulls: dict[int, tuple[Spread, Buffer]] = {}  # by update
        self._is_later = is_later
        self._first = 1  # update of this process; what comes for earlier ones is another's
        self._returning: Buffer | None = None  # for the first model of one that has come back
        self._passing: Spread | None = None  # of a model that only passes here
        self._passed = self._before  # the update that the last such model was for
        self._oldest = 0  # no earlier epoch's models are of use
        self._early: list[tuple[Result, memoryview]] = []  # of epochs not heard of
        self._is_retired = False
        self._writing: Counter[int] = Counter()  # chunks of models that are coming, by who sends

    # --- pushes

    def push(self, update: int, buffer: Buffer, weight: float) -> list[Action]:
        """Send an update to the servers.

        Args:
            update: counted from 1.
            buffer: the gradients; must not change before everything has left, and under a barrier
                before the next model has come.
            weight: what the update counts, > 0.
        """
        for before in [each for each in self._pulls if each <= update]:
            del self._pulls[before]
        self._own = update, buffer, weight
        if self._is_barrier:
            actions: list[Action] = []
            if update > self._sums.exchange:
                actions = self._renew(update, self._sums.epoch)
            return actions + self._add_own()
        alone = self._reduction(update, 0)
        root = _Step(self._partition, ((self._site, update),), self._room)
        alone.begin(self._plan, len(self._chunks), root, frozenset({self._site}))
        return alone.deal(self._chunks) + alone.contribute(buffer, weight)

    def _reduction(self, update: int, epoch: int) -> Reduction:
        return Reduction(self._site, update, self._terms, self._room, epoch)

    def _renew(self, update: int, epoch: int) -> list[Action]:
        """Begin to add up an update, or the same one again: what has come is void."""
        self._sums.release()
        self._sums, self._has_added = self._reduction(update, epoch), False
        return self._begin_sums() if epoch == self.epoch else []

    def _begin_sums(self) -> list[Action]:
        self._sums.begin(
            self._plan, len(self._chunks), self._together(self._sums.exchange), self._workers
        )
        return self._sums.deal(self._chunks)

    def _together(self, update: int) -> _Step:
        """Return what takes the sums of an update of every worker."""
        updates = tuple((worker, update) for worker in sorted(self._workers))
        return _Step(self._partition, updates, self._room)

    def _add_own(self) -> list[Action]:
        """Add this site's update, if it is part of the sums that are formed now."""
        counts = (
            self._own is not None
            and self._own[0] == self._sums.exchange
            and self._sums.epoch == self.epoch
            and not self._has_added
        )
        if not counts:
            return []
        assert self._own is not None
        self._has_added = True
        _, buffer, weight = self._own
        return self._sums.contribute(buffer, weight)

    def change_epoch(self, epoch: int, workers: Sequence[int], update: int) -> list[Action]:
        """Add up the updates of these workers; all sums of before are void.

        Args:
            epoch: how many times it has changed who contributes.
            workers: who does from now on.
            update: which update of each worker is under way; a worker that has pushed it does so
                again.

        Raises:
            OutOfPlaceMessage: it is no news, nothing is added up here, or this site holds a sum of
                that epoch that cannot be.
        """
        if not self._is_barrier:
            raise OutOfPlaceMessage("an epoch of sums, where each update travels alone")
        if epoch <= self.epoch:
            raise OutOfPlaceMessage(f"epoch {epoch} begins, where {self.epoch} already has")
        if not self._workers.issuperset(workers):  # some are back: the others had the last model
            self._oldest, self._passed = epoch, max(self._passed, update - 1)
        self.epoch, self._workers = epoch, frozenset(workers)
        if epoch > self._sums.epoch:
            actions = self._renew(max(update, self._sums.exchange), epoch)
        elif epoch == self._sums.epoch:
            actions = self._begin_sums()
        else:
            actions = []
        actions += self._add_own()
        if self._returning is not None and self._site in workers:
            self.expect(update, self._returning)
            self._returning = None
        passing = [] if self._passing is None else [self._passing]
        for spread in [*passing, *(spread for spread, _ in self._pulls.values())]:
            spread.reach(epoch, self._workers)
        early = [each for each in self._early if each[0].epoch <= epoch]
        self._early = [each for each in self._early if each[0].epoch > epoch]
        for message, payload in early:
            self._room.left += len(payload) // self._arithmetic.item_bytes
            actions += self._receive_early(message, payload)
        return actions

    # --- pulls

    def come_back(self, first: int, buffer: Buffer) -> None:
        """Await the model at a site that takes part again, as another process.

        Args:
            first: the update that it will compute first; under a barrier none is earlier.
            buffer: overwritten chunk by chunk as the model comes.
        """
        self._first = first
        if self._is_barrier:
            self._returning = buffer
        else:
            self.expect(first, buffer)

    def expect(self, update: int, buffer: Buffer) -> None:
        """Await the model that an update will be computed on; it ends by :class:`ModelArrived`.

        Args:
            update: counted from 1.
            buffer: overwritten chunk by chunk as the model comes.
        """
        receivers = self._workers if self._is_barrier else frozenset({self._site})
        self._pulls[update] = self._spread(update, buffer, receivers), buffer

    def _spread(self, update: int, buffer: Buffer | None, receivers: frozenset[int]) -> Spread:
        spread = Spread(
            self._site, update, self._terms, self._room, self.epoch, by_nodes=self._by_nodes
        )
        spread.begin(self._plan, len(self._chunks), buffer, receivers)
        spread.deal(self._chunks)
        return spread

    def discard(self, updates: Sequence[tuple[int, int]]) -> None:
        """Expect no more of updates, as (worker, which), that will never be part of the model."""
        for update in updates:
            self._lone.pop(update, None)

    def serve(self, pulls: Sequence[tuple[int, int]]) -> list[Action]:
        """Send this site's part of the model, as it is now.

        Args:
            pulls: its receivers, as (worker, the update that the worker will compute on it).
        """
        partition = self._partition
        assert partition is not None
        if not pulls:
            return []
        if self._is_barrier:
            (together,) = {update for _, update in pulls}  # all go on with the same one
            pulled = self._pulls.get(together)
            if pulled is None:
                spread, buffer = self._spread(together, None, self._workers), None
            else:
                spread, buffer = pulled
            served = [(together, spread, buffer)]
        else:
            served = []
            for worker, update in pulls:
                if worker == self._site:
                    served.append((update, *self._pulls[update]))
                else:
                    served.append((update, self._spread(update, None, frozenset({worker})), None))
        actions: list[Action] = []
        for index, parameters in partition.snapshot().items():
            chunk, payload = self._chunks[index], self._arithmetic.encode(parameters)
            for update, spread, buffer in served:
                if buffer is not None and self._arithmetic.has_numbers:
                    buffer.write(chunk.start, parameters)
                actions += self._count(update, spread, spread.start(chunk, payload, None))
        return actions

    def _count(self, update: int, spread: Spread, actions: list[Action]) -> list[Action]:
        """Say when a model is here; a chunk of it is not worth a word."""
        passed: list[Action] = []
        for action in actions:
            if not isinstance(action, ChunkFinished):
                passed.append(action)
            elif update in self._pulls and spread.held == len(self._chunks):
                passed.append(ModelArrived(update))
        return passed

    # --- what comes

    def receive(self, message: ChunkMessage, payload_bytes: int) -> Receipt:
        """Return where a chunk of an update or of a model goes.

        Raises:
            PeerError: it is not due, comes from a site that it cannot come from, or has come
                before; see also :class:`Reduction` and :class:`Spread`.
        """
        if self._is_retired:
            return Receipt(message)
        if message.terms != self._terms:
            raise other_terms(message)
        if message.version != self._plan.version or not 0 <= message.chunk < len(self._chunks):
            raise other_chunk(message, self._plan, len(self._chunks))
        if isinstance(message, PartialSum):
            if self._is_barrier:
                return self._receive_sum(message, payload_bytes)
            return self._receive_update(message, payload_bytes)
        assert isinstance(message, Result)
        receipt = self._receive_model(message, payload_bytes)
        self._writing[_sender(message)] += receipt.target is not None
        return receipt

    def received(self, receipt: Receipt) -> list[Action]:
        """Act on a payload that is all there."""
        message, owner, kept = receipt.message, receipt.owner, receipt.into
        if isinstance(message, Result) and receipt.target is not None:
            self._writing[_sender(message)] -= 1
        if self._is_retired:
            return self._if_quiet()
        if isinstance(kept, _Kept):
            if message.epoch > self.epoch:
                self._early.append((kept.message, kept.payload))
                return []
            self._room.left += len(kept.payload) // self._arithmetic.item_bytes
            return self._receive_early(kept.message, kept.payload)
        if isinstance(owner, Spread):
            return self._count(message.exchange, owner, owner.received(receipt))
        if not isinstance(owner, Reduction):
            return []  # it is void
        if self._is_barrier:
            if owner is not self._sums:
                return []
            return owner.received(receipt)
        update = message.path[0], message.exchange
        if self._lone.get(update) is not owner:
            return []
        actions = owner.received(receipt)
        if any(isinstance(action, UpdateArrived) for action in actions):
            del self._lone[update]
        return actions

    def gone(self, neighbour: int) -> list[Action]:
        """Expect no more of what a neighbour was sending: its connection has broken."""
        del self._writing[neighbour]
        return self._if_quiet() if self._is_retired else []

    def retire(self) -> None:
        """Take nothing more from now on: its workers are in other groups."""
        self._is_retired = True
        self._sums.release()
        self._own, self._returning, self._passing = None, None, None
        self._lone.clear()
        self._pulls.clear()
        self._early.clear()

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is being written for it into memory that others may use now."""
        return not self._writing.total()

    def _if_quiet(self) -> list[Action]:
        return [Drained()] if self.is_quiet else []

    def _receive_update(self, message: PartialSum, payload_bytes: int) -> Receipt:
        partition = self._partition
        if partition is None:
            raise OutOfPlaceMessage("an update for this site, which serves no part of the model")
        update = message.path[0], message.exchange
        if partition.has_forgotten(update):
            return Receipt(message)  # it was on its way
        if partition.has_settled(update) or partition.is_here((update,)):
            raise DuplicateMessage(
                f"chunk {message.chunk} of update {update[1]} of site {update[0]}"
            )
        alone = self._lone.get(update)
        if alone is None:
            alone = self._reduction(update[1], 0)
            root = _Step(partition, (update,), self._room)
            alone.begin(self._plan, len(self._chunks), root, frozenset({update[0]}))
            alone.deal(self._chunks)
        receipt = alone.receive(message, payload_bytes)
        self._lone[update] = alone
        return receipt

    def _receive_sum(self, message: PartialSum, payload_bytes: int) -> Receipt:
        if message.epoch < self._sums.epoch:
            return Receipt(message)  # its sender hears of the loss too, and sends another
        if 0 < message.exchange < self._first:
            return Receipt(message)  # for an earlier process of this site
        self._check_due(message)
        sums = self._sums
        if (message.exchange, message.epoch) != (sums.exchange, sums.epoch):
            sums = self._reduction(message.exchange, message.epoch)
            if message.epoch == self.epoch:
                root = self._together(message.exchange)
                sums.begin(self._plan, len(self._chunks), root, self._workers)
                sums.deal(self._chunks)
        receipt = sums.receive(message, payload_bytes)
        if sums is not self._sums:
            self._sums.release()
            self._sums, self._has_added = sums, False
        return receipt

    def _check_due(self, message: PartialSum) -> None:
        now, name = self._sums.exchange, f"the sum of chunk {message.chunk} of update "
        name += f"{message.exchange} from site {message.path[0]}"
        # Two updates may be under way, as seen from here, and each site is lost once at most in
        # one; between them some may come back together.
        if message.epoch > self.epoch + 2 * self._plan.size:
            raise OutOfPlaceMessage(f"{name}, of epoch {message.epoch}, where {self.epoch} is now")
        if message.exchange < now:
            raise DuplicateMessage(f"{name}, where update {now} is under way")
        if message.epoch > self._sums.epoch:
            return  # those who took part in between may have made updates that did not pass here
        due = now if now > self._before and not self._sums.is_complete else now + 1
        if message.exchange > due:
            raise OutOfPlaceMessage(f"{name}, where update {now} is under way")

    def _receive_model(self, message: Result, payload_bytes: int) -> Receipt:
        if not self._is_barrier:
            if message.exchange < self._first:
                return Receipt(message)
            spread = self._expected(message.exchange)
        elif message.epoch < self._oldest:
            return Receipt(message)
        elif message.epoch > self.epoch:
            self._room.take(
                payload_bytes // self._arithmetic.item_bytes,
                f"chunk {message.chunk} of the model for update {message.exchange}",
            )
            kept = _Kept(message, memoryview(bytearray(payload_bytes)))
            return Receipt(message, target=kept.payload, into=kept)
        elif self._site in self._workers:
            if message.exchange < self._first:
                return Receipt(message)  # for an earlier process of this site
            spread = self._expected(message.exchange)
        else:
            passing = self._to_pass(message)
            if passing is None:
                return Receipt(message)  # for a worker that was lost
            spread = passing
        receipt = spread.receive(message, payload_bytes)
        if self._is_barrier and self._site not in self._workers:
            self._passing, self._passed = spread, message.exchange
        return receipt

    def _expected(self, update: int) -> Spread:
        pulled = self._pulls.get(update)
        if pulled is None:
            awaited = ", ".join(map(str, self._pulls)) or "none"
            raise OutOfPlaceMessage(f"the model for update {update}, where {awaited} is awaited")
        return pulled[0]

    def _to_pass(self, message: Result) -> Spread | None:
        """Return the part of a site that only passes a model on; None where it need not."""
        places = places_down(self._plan, self._site, self._workers, self._by_nodes)
        if not places[self._chunks[message.chunk].tree].paths_down:
            return None
        name = f"chunk {message.chunk} of the model for update {message.exchange}"
        if message.exchange < self._passed:
            raise DuplicateMessage(name)
        if message.exchange > self._latest_due:
            if self._is_later and self._passing is None:
                return None  # for an earlier process of this site, without which it is void
            raise OutOfPlaceMessage(f"{name}, where that for {self._passed} was the last")
        spread = self._passing
        if spread is None or spread.exchange != message.exchange:
            spread = self._spread(message.exchange, None, self._workers)
        return spread

    @property
    def _latest_due(self) -> float:
        """The latest update whose model may pass here.

        None comes for an update that workers compute on the model that they have, so that is known
        only where their sums pass here too.
        """
        up = places_up(self._plan, self._site, self._workers)
        if not any(place.children for place in up):
            return math.inf
        return max(self._passed, self._sums.exchange, 1) + 1

    def _receive_early(self, message: Result, payload: memoryview) -> list[Action]:
        """Act on a chunk that came under an epoch not heard of then."""
        try:
            receipt = self._receive_model(message, len(payload))
        except (OutOfPlaceMessage, DuplicateMessage) as error:
            return [Stray(message.path[0], str(error))]
        if receipt.target is not None:
            receipt.target[:] = payload
        return self.received(receipt)


def _sender(message: ChunkMessage) -> int:
    """Return the neighbour that a chunk comes from, whose path ends here."""
    return message.path[-2]


class _Step:
    """At a server: a step of its part of the model, taken with these updates when all are here."""

    def __init__(
        self, partition: ServerPartition | None, updates: tuple[tuple[int, int], ...], room: Room
    ) -> None:
        self._partition = partition
        self._updates = updates
        self._room = room

    def take(self, total: Total) -> list[Action]:
        """See :class:`anabranch.exchange.reduction.Root`."""
        assert self._partition is not None  # this site is the root
        here = self._partition.take(self._updates, total)
        if total.is_scratch:
            self._room.scratch.give(total.values)
        return [UpdateArrived(*update) for update in here]


class _Kept:
    """A chunk of a model of an epoch that this site has not heard of."""

    def __init__(self, message: Result, payload: memoryview) -> None:
        self.message = message
        self.payload = payload
