"""Push and pull at one site: updates go to the servers, models come from them. Pure.

The roots of a plan's trees are its servers: each holds the chunks dealt to its trees
(`partition`). A push is a reduction whose root is a server; a pull is a spread from a server. Both
use the same two halves as an all-reduce::

    worker --push--> Reduction --PartialSum--> ... server: partition.take --> UpdateArrived
    worker <-------- Spread <-----Result------ ... server: serve (the scheduler's Advance)
      `--> ModelArrived

There are two modes. The pace chooses, and a :class:`Served` has one for life.

**Each update alone** (``added_up`` is empty). A reduction has one contributor, and a spread has one
receiver. At a server, an update (worker, number) passes through these states::

    unknown --first chunk--> in ``_lone`` --last chunk--> in the partition --> settled
                                  `--- discard (the pace gives it up) ----------^

A repeated chunk of an update that is in the partition, or settled, is refused as a duplicate.

**Added up** (a barrier, or a tree of a forest). All workers contribute to one reduction ``_sums``
and receive from one spread. One update is under way at a time: a worker pushes the next only after
it has the model that the last sums made. ``_sums`` is replaced in three cases: this site pushes a
later update; a sum of the next update, or of a later epoch, arrives; or the epoch changes.

**Epochs**, where updates are added up. A lost worker's part cannot be subtracted from a sum. The
scheduler announces each loss as a new epoch: all sums under way are void, and the remaining workers
push again. Neighbours may hear of an epoch earlier or later than this site::

    message's epoch   a sum                                a chunk of a model
    before _oldest    discarded                            discarded: its receivers have the model
    past              discarded: its sender pushes again   like the present
    present           added                                into the buffer, or passed on
    future            added, but passed on only once       kept, within ``Room``
                      ``change_epoch`` names the workers

A worker that returns does so between two updates, so no sum is void. The epoch of its return
becomes ``_oldest``.

**Retired** (its group was dissolved). It discards all that arrives. Payloads that are being written
into this site's model must end first; then ``Drained`` follows.

**What must never happen.** An update counts twice in a sum, or in two sums that both complete. A
sum of one epoch completes with the contributors of another. A model overwrites gradients that are
still to be sent: ``push`` says how long they must stay unchanged.
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

Own = tuple[int, Buffer, float]  # this site's update: its number, elements and weight


class Served:
    """One site's part in push and pull, as a worker, a server, a relay, or several of these.

    It is one class since pushes and pulls have the same chunks and epochs.

    Args:
        site: this site's index.
        plan: the one plan along which updates and models travel.
        chunks: the plan's deal of the model.
        terms: the terms of every push and pull.
        partition: the part of the model that this site serves; None where it serves none.
        added_up: the workers whose updates are added up on the way; empty where each travels alone.
        first: the number of their first update.
        is_later: whether an earlier process of this site has had this part.

    Attributes:
        epoch: how often the set of contributors has changed; 0 where each update travels alone.
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
        self._by_nodes = len(added_up) > 1  # so that a loss changes no parent
        self._workers = frozenset(added_up)  # the contributors of this epoch
        self.epoch = 0
        # The sums of the update under way, where updates are added up. Before the first push they
        # are those of the update before the first, which no worker contributes to.
        self._before = first - 1
        self._sums = self._reduction(self._before, 0)
        self._own: Own | None = None  # this site's latest push
        self._has_added = False  # whether `_own` is in `_sums`
        self._lone: dict[tuple[int, int], Reduction] = {}  # at a server, by (worker, update)
        self._pulls: dict[int, tuple[Spread, Buffer]] = {}  # models awaited here, by update
        self._is_later = is_later
        self._first = 1  # this process's first update; earlier ones were another process's
        self._returning: Buffer | None = None  # for the first model after this worker returned
        self._passing: Spread | None = None  # of a model that this site only passes on
        self._passed = self._before  # the update that the last such model was for
        self._oldest = 0  # models of earlier epochs are void
        self._early: list[tuple[Result, memoryview]] = []  # chunks of models of future epochs
        self._is_retired = False
        self._writing: Counter[int] = Counter()  # payloads in arrival, by the sending neighbour

    # --- pushes

    def push(self, update: int, buffer: Buffer, weight: float) -> list[Action]:
        """Send an update to the servers.

        Args:
            update: its number, counted from 1.
            buffer: the gradients; must not change before all messages have left. Where updates are
                added up, not before the next model has arrived, since a new epoch sends them again.
            weight: the update's weight, > 0.
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
        """Begin the sums of an update, or begin them again; all sums so far are void."""
        self._sums.release()
        self._sums, self._has_added = self._reduction(update, epoch), False
        return self._begin_sums() if epoch == self.epoch else []

    def _begin_sums(self) -> list[Action]:
        self._sums.begin(
            self._plan, len(self._chunks), self._together(self._sums.exchange), self._workers
        )
        return self._sums.deal(self._chunks)

    def _together(self, update: int) -> _Step:
        """Return the root that takes the sums of this update of all workers."""
        updates = tuple((worker, update) for worker in sorted(self._workers))
        return _Step(self._partition, updates, self._room)

    def _add_own(self) -> list[Action]:
        """Add this site's update to the sums, if it belongs there and is not in them yet."""
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
        """Begin an epoch: add up the updates of these workers; earlier epochs' sums are void.

        Args:
            epoch: how often the set of contributors has changed.
            workers: the contributors from now on.
            update: the update of each worker that is under way. A worker that has pushed it
                contributes it again.

        Raises:
            OutOfPlaceMessage: the epoch is not a later one; each update travels alone here; or a
                sum of that epoch contains data that does not belong to it.
        """
        if not self._is_barrier:
            raise OutOfPlaceMessage("an epoch of sums, where each update travels alone")
        if epoch <= self.epoch:
            raise OutOfPlaceMessage(f"epoch {epoch} begins, where {self.epoch} already has")
        if not self._workers.issuperset(workers):
            # A worker has returned, so this is between two updates: the others have the last model.
            self._oldest, self._passed = epoch, max(self._passed, update - 1)
        self.epoch, self._workers = epoch, frozenset(workers)
        if epoch > self._sums.epoch:
            actions = self._renew(max(update, self._sums.exchange), epoch)
        elif epoch == self._sums.epoch:  # a neighbour that heard of the epoch first has sent some
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
            self._room.left += self._arithmetic.wire.elements_of(len(payload))
            actions += self._receive_early(message, payload)
        return actions

    # --- pulls

    def come_back(self, first: int, buffer: Buffer) -> None:
        """Await the model at a worker that has returned, as another process.

        Args:
            first: the number of its first update. Where updates are added up, no worker is at an
                earlier one.
            buffer: overwritten chunk by chunk as the model arrives.
        """
        self._first = first
        if self._is_barrier:
            self._returning = buffer
        else:
            self.expect(first, buffer)

    def expect(self, update: int, buffer: Buffer) -> None:
        """Await the model for computing an update; :class:`ModelArrived` tells its arrival.

        Args:
            update: the update's number, counted from 1.
            buffer: overwritten chunk by chunk as the model arrives.
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
        """Drop updates, as (worker, number), that will never be part of the model."""
        for update in updates:
            self._lone.pop(update, None)

    def serve(self, pulls: Sequence[tuple[int, int]]) -> list[Action]:
        """Send this site's part of the model, as it is now.

        Args:
            pulls: the receivers, as (worker, number of the update that it will compute on it).
        """
        partition = self._partition
        assert partition is not None
        if not pulls:
            return []
        if self._is_barrier:
            (together,) = {update for _, update in pulls}  # all workers are at the same update
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
        """Replace the reports of finished chunks by one report of a finished model."""
        passed: list[Action] = []
        for action in actions:
            if not isinstance(action, ChunkFinished):
                passed.append(action)
            elif update in self._pulls and spread.held == len(self._chunks):
                passed.append(ModelArrived(update))
        return passed

    # --- chunks that arrive

    def receive(self, message: ChunkMessage, payload_bytes: int) -> Receipt:
        """Return where a chunk of an update or of a model goes.

        Raises:
            PeerError: the chunk is not due, comes from the wrong site, or is a repetition; see also
                :class:`Reduction` and :class:`Spread`.
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
        """Act on a complete payload."""
        message, owner, kept = receipt.message, receipt.owner, receipt.into
        if isinstance(message, Result) and receipt.target is not None:
            self._writing[_sender(message)] -= 1
        if self._is_retired:
            return self._if_quiet()
        if isinstance(kept, _EarlyChunk):
            if message.epoch > self.epoch:
                self._early.append((kept.message, kept.payload))
                return []
            self._room.left += self._arithmetic.wire.elements_of(len(kept.payload))
            return self._receive_early(kept.message, kept.payload)
        if isinstance(owner, Spread):
            return self._count(message.exchange, owner, owner.received(receipt))
        if not isinstance(owner, Reduction):
            return []  # void
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
        """Drop the payloads that a neighbour was sending: its connection has broken."""
        del self._writing[neighbour]
        return self._if_quiet() if self._is_retired else []

    def retire(self) -> None:
        """Discard all that arrives from now on: the workers are in other groups."""
        self._is_retired = True
        self._sums.release()
        self._own, self._returning, self._passing = None, None, None
        self._lone.clear()
        self._pulls.clear()
        self._early.clear()

    @property
    def is_quiet(self) -> bool:
        """Whether no payload is being written for it. Another group may use the memory then."""
        return not self._writing.total()

    def _if_quiet(self) -> list[Action]:
        return [Drained()] if self.is_quiet else []

    def _receive_update(self, message: PartialSum, payload_bytes: int) -> Receipt:
        partition = self._partition
        if partition is None:
            raise OutOfPlaceMessage("an update for this site, which serves no part of the model")
        update = message.path[0], message.exchange
        if partition.has_forgotten(update):
            return Receipt(message)  # the worker died; this was in flight
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
            return Receipt(message)  # void; its sender hears of the new epoch, and sends again
        if 0 < message.exchange < self._first:
            return Receipt(message)  # meant for an earlier process of this site
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
        # A bound, so that a malformed epoch cannot void the sums. Neighbours are at most one update
        # ahead. In each of the two updates every site is lost at most once; returns between the
        # updates come together, as one epoch.
        if message.epoch > self.epoch + 2 * self._plan.size:
            raise OutOfPlaceMessage(f"{name}, of epoch {message.epoch}, where {self.epoch} is now")
        if message.exchange < now:
            raise DuplicateMessage(f"{name}, where update {now} is under way")
        if message.epoch > self._sums.epoch:
            return  # workers of epochs in between may have made updates that did not pass here
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
                self._arithmetic.wire.elements_of(payload_bytes),
                f"chunk {message.chunk} of the model for update {message.exchange}",
            )
            kept = _EarlyChunk(message, memoryview(bytearray(payload_bytes)))
            return Receipt(message, target=kept.payload, into=kept)
        elif self._site in self._workers:
            if message.exchange < self._first:
                return Receipt(message)  # meant for an earlier process of this site
            spread = self._expected(message.exchange)
        else:
            passing = self._to_pass(message)
            if passing is None:
                return Receipt(message)  # its receivers are lost
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
        """Return the spread of a model that this site only passes on; None to discard the chunk."""
        places = places_down(self._plan, self._site, self._workers, self._by_nodes)
        if not places[self._chunks[message.chunk].tree].paths_down:
            return None
        name = f"chunk {message.chunk} of the model for update {message.exchange}"
        if message.exchange < self._passed:
            raise DuplicateMessage(name)
        if message.exchange > self._latest_due:
            if self._is_later and self._passing is None:
                return None  # its way led through an earlier process of this site, so it is void
            raise OutOfPlaceMessage(f"{name}, where that for {self._passed} was the last")
        spread = self._passing
        if spread is None or spread.exchange != message.exchange:
            spread = self._spread(message.exchange, None, self._workers)
        return spread

    @property
    def _latest_due(self) -> float:
        """The latest update whose model may pass through this site; infinity if unknown.

        This site knows which update is under way only if sums pass through it too. Models alone do
        not tell: none is sent for an update that workers compute on the model they have.
        """
        up = places_up(self._plan, self._site, self._workers)
        if not any(place.children for place in up):
            return math.inf
        return max(self._passed, self._sums.exchange, 1) + 1

    def _receive_early(self, message: Result, payload: memoryview) -> list[Action]:
        """Act on a chunk of a model that was kept until its epoch began here."""
        try:
            receipt = self._receive_model(message, len(payload))
        except (OutOfPlaceMessage, DuplicateMessage) as error:
            return [Stray(message.path[0], str(error))]
        if receipt.target is not None:
            receipt.target[:] = payload
        return self.received(receipt)


def _sender(message: ChunkMessage) -> int:
    """Return the neighbour that sent a chunk to this site, the end of its path."""
    return message.path[-2]


class _Step:
    """At a server: the root of sums, which puts their chunks into the server's partition."""

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


class _EarlyChunk:
    """A chunk of a model, of an epoch that has not begun here yet."""

    def __init__(self, message: Result, payload: memoryview) -> None:
        self.message = message
        self.payload = payload
