"""Served models over a data plane: the plug for workers that push and pull, and for servers.

The pure part (`exchange.served`) moves updates and models. This part holds the conversation with
the scheduler, which decides when a worker may proceed and what becomes part of the model.

**A worker's loop**, with the scheduler (S) and the servers::

    permission()   <- Proceed(update, pulls)      S permits an update; pulls: a new model comes
                   wait for that model             ModelArrived sets ``_models_here[update]``
    (compute)
    push()         -> ProceedRequest              asks S for update + 1 + ahead, and awaits
                   -> chunks to the servers       that update's model (``expect``)
    until PaceOver: RoundsOver, then ``last_model`` for workers that get the final model

- ``ahead`` > 0: a worker computes that many updates before it gets a model with its latest one.
  Pulls and pushes then use separate memory (``_rooms``), since they overlap with computing.
- ``_back`` takes the place of ``_models_here`` for the first model of a worker that has returned:
  the scheduler has not told yet which update it is for.
- ``abandon``: S gives up updates that are late. ``push`` then sends the request alone. Models that
  will never come (``_never``) are marked as here, so that the wait for them ends.

**A server**: an update that has arrived is reported (``UpdateReceived``). An ``Advance`` from S
names the updates to apply, those to discard, and the workers that get the model. S decides the
order, so all servers take the same steps.

**Groups** of a forest each have a plan and a :class:`Served` part, named by the plan's version. A
``Reform`` replaces some: their parts are retired, and ``Reformed`` is sent once they are quiet.

**What must never happen.**

- A model overwrites the memory that a worker computes on. So ``push`` awaits the next model, after
  the update was computed; with ``ahead`` the model goes into a room.
- ``Reformed`` is sent while a retired part's payload still arrives in the model's memory: S would
  let the new group write there too.
- Chunks for an earlier process of this site are refused. Their senders do not know yet, so they are
  discarded (``_since``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np

from anabranch import plan as plans
from anabranch.exchange.actions import Action, Drained, ModelArrived, Receipt, Send, UpdateArrived
from anabranch.exchange.arithmetic import Flat, Floats, Sized
from anabranch.exchange.partition import AS_UPDATES, Mixing, Rule, ServerPartition
from anabranch.exchange.served import Served
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.net.errors import (
    LinkError,
    MalformedMessage,
    OutOfPlaceMessage,
    PeerError,
    RunAborted,
)
from anabranch.net.frames import Sink
from anabranch.net.messages import (
    Abandon,
    Advance,
    Agreed,
    ChunkMessage,
    EpochChanged,
    PaceOver,
    Proceed,
    ProceedRequest,
    Reform,
    Reformed,
    UpdateReceived,
    Welcome,
)
from anabranch.plan import Plan, deal
from anabranch.site._dataplane import DataPlane, Fate
from anabranch.site.control import Control, RoundsOver


@dataclass(frozen=True, slots=True)
class ServedModel:
    """How the roots of the plan's trees serve a model; the same at every site of a run.

    Args:
        model: the initial model, shape (elements,), alike at all sites; pulls overwrite it.
        make_rule: given a number of elements, makes the rule that changes a part of the model of
            that size by gradients; None leaves the numbers out.
        workers: the number of sites that push updates.
        added_up: those sites, where the pace is a barrier and their updates are added up on the
            way; empty otherwise. Ignored where the plan has groups: each adds up its own.
        ahead: how many updates a worker may compute before it gets a model with its latest update.
            If > 0, pulls and pushes take separate memory: ``2 * (1 + ahead)`` models.
        wire: the format of elements on the wire.
        asks_norm: whether servers report the norm of each update.
        mixing: how a step combines its updates.
        comes_later: whether the model arrives later; nothing is served before ``reload``.
    """

    model: Floats
    make_rule: Callable[[int], Rule] | None
    workers: int
    added_up: tuple[int, ...] = ()
    ahead: int = 0
    wire: Wire = Wire.FLOAT32
    asks_norm: bool = False
    mixing: Mixing = AS_UPDATES
    comes_later: bool = False


class Serving:
    """One site's side of a served model; a plug of its data plane, and in charge of it.

    Args:
        scheduler: the connection to the scheduler.
        plane: the site's data plane, not used yet.
        welcome: the scheduler's welcome: this site's index, and whether it has returned.
        plan: the plan of the run; each of its groups has another plan.
        served: see :class:`ServedModel`.
        chunk_elements: the most elements of a chunk.

    Attributes:
        settled: the number of updates that have become part of the model here, or never will.
        last_receivers: the workers that get the final model.
        partition: the part of the model that this site serves; None where it serves none.
    """

    fate = Fate.LOSE

    def __init__(
        self,
        scheduler: Control,
        plane: DataPlane,
        welcome: Welcome,
        plan: Plan,
        served: ServedModel,
        chunk_elements: int,
    ) -> None:
        self._scheduler = scheduler
        self._plane = plane
        self._site = welcome.site
        self._model = served.model
        self._ahead = served.ahead
        self._wire = served.wire
        self._models_here: dict[int, asyncio.Event] = {}  # set on arrival; by update
        self._back: asyncio.Event | None = None  # the first model after this worker returned
        self._never: list[asyncio.Event] = []  # of models that will never come
        self._abandoned = 0  # this worker's updates up to this one are abandoned
        self._passing: asyncio.Timeout | None = None  # while modelled computing time passes
        self.settled = 0
        self.last_receivers: tuple[int, ...] = ()
        self._settling: tuple[int, asyncio.Event] | None = None  # see ``settle``
        self._rooms: list[tuple[Floats, Floats]] = []  # memory of (pull, push), where ahead > 0
        if served.ahead and served.make_rule is not None:
            self._rooms = [
                (np.empty_like(served.model), np.empty_like(served.model))
                for _ in range(1 + served.ahead)
            ]
        self.partition: ServerPartition | None = None
        chunks = deal(plan, len(served.model), chunk_elements)
        own = [chunk for chunk in chunks if plan.trees[chunk.tree].root == welcome.site]
        if own:
            elements = sum(chunk.elements for chunk in own)
            rule = None if served.make_rule is None else served.make_rule(elements)
            self.partition = ServerPartition(own, served.model, rule, served.workers, served.mixing)
        self._asks_norm = served.asks_norm
        self._waits = served.comes_later
        self._waiting: list[Advance] = []  # kept until ``reload``
        terms = Terms(Op.STEP, served.wire, len(served.model))
        is_later = welcome.incarnations[welcome.site] > 0
        self._part = partial(Served, welcome.site, chunks=chunks, terms=terms, is_later=is_later)
        self._only = plan.version  # of the only part, where there are no groups
        self._version_of: dict[int, int] = {}  # the version of its group's plan, by worker
        self._parts: dict[int, Served] = {}  # by plan version, where this site is a member
        self._retired: list[Served] = []  # parts with payloads still arriving
        self._reformed: int | None = None  # the plan to confirm once those are quiet
        ways = [(group.plan, group.workers) for group in plan.groups] or [(plan, served.added_up)]
        for way, together in ways:
            self._take_part(way, together)
        self._known = {**self._parts}  # and the retired ones, whose chunks may still arrive
        self._since = plan.version  # chunks of earlier plans are for an earlier process
        plane.put_in_charge(self, Op.STEP)
        adds_up = plan.groups or served.added_up
        if not adds_up and not welcome.updates and plan.version in self._parts:
            # A worker that gets its first permission later than others may begin on a later model.
            self._models_here[1] = asyncio.Event()
            self._own_part.expect(1, self._memory(self._room(1, 0, served.model)))
        if welcome.updates and (not plan.groups or welcome.site in self._version_of):
            first = welcome.updates + 1
            self._back = asyncio.Event()
            self._own_part.come_back(first, self._memory(self._room(first, 0, served.model)))

    def _take_part(self, way: Plan, group: tuple[int, ...], first: int = 1) -> None:
        self._version_of |= dict.fromkeys(group, way.version)
        if self._site in way.members:
            self._parts[way.version] = self._part(
                plan=way, partition=self.partition, added_up=group, first=first
            )

    @property
    def _own_part(self) -> Served:
        """The part of this worker's group."""
        return self._parts[self._version_of.get(self._site, self._only)]

    def reload(self) -> None:
        """Begin to serve the model in this site's memory; call it before the first push."""
        if self.partition is not None:
            self.partition.load(self._model)
        self._waits = False
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            self.advance(message)

    def _memory(self, elements: Floats) -> Flat | Sized:
        return Sized(len(elements)) if self._wire == Wire.SIZES else Flat(elements)

    def _room(self, update: int, which: int, otherwise: Floats) -> Floats:
        """Return the memory of an update's pull (0) or push (1); ``otherwise`` if it has none."""
        return self._rooms[update % len(self._rooms)][which] if self._rooms else otherwise

    # --- as a plug; see anabranch.site._dataplane.Plug

    def receive(self, message: ChunkMessage, payload_bytes: int) -> Sink:
        """Return where a chunk of an update or of a model goes.

        Chunks of plans before this process's first are for an earlier process, and are discarded.
        """
        served = self._known.get(message.version)
        if served is None and message.version < self._since:
            return Sink()
        if served is None:
            raise OutOfPlaceMessage(
                f"an update or a model under plan version {message.version}, where "
                f"{sorted(self._known)} are in use"
            )
        receipt = served.receive(message, payload_bytes)
        return Sink(receipt.target, receipt.piece, partial(self._received, served, receipt))

    def _received(self, served: Served, receipt: Receipt) -> None:
        self._act(served.received(receipt))

    def repeated(self, message: ChunkMessage) -> bool:
        """Return False: an update that is sent again is counted once."""
        return False

    def lane_ended(self, neighbour: int) -> None:
        """Drop the payloads that a neighbour was sending."""
        for served in self._known.values():
            self._act(served.gone(neighbour))

    def _act(self, actions: Sequence[Action]) -> None:
        """Execute actions of the pure part."""
        for action in actions:
            if isinstance(action, Send):
                self._plane.lanes.routes[action.message.path](action)
            else:
                assert isinstance(action, UpdateArrived | ModelArrived | Drained)
                self._happened(action)

    def _happened(self, what: UpdateArrived | ModelArrived | Drained) -> None:
        """Act on an update or a model that has arrived, or on a retired part that is quiet."""
        if isinstance(what, Drained):
            self._say_if_quiet()
        elif isinstance(what, UpdateArrived):
            epoch = self._parts[self._version_of.get(what.worker, self._only)].epoch
            norm: float | None = None
            if self._asks_norm and self.partition is not None:
                norm = self.partition.squared_norm((what.worker, what.update))
            self._scheduler.post(UpdateReceived(what.worker, what.update, epoch, norm))
        elif what.update in self._models_here:
            self._models_here[what.update].set()
        elif self._back is not None:
            self._back.set()

    async def permission(self) -> Proceed:
        """Wait until this worker may compute its next update, and has the model for it.

        Raises:
            RoundsOver: the scheduler grants no further updates.
            RunAborted: the run ended early; names the site or error that caused it.
        """
        while (permission := await self._permission()).update <= self._abandoned:
            # Abandoned while the model was arriving: skip it, and ask for the next.
            self._ask(permission, permission.samples, 0.0)
        return permission

    async def _permission(self) -> Proceed:
        answer = await self._scheduler.expect(Proceed, PaceOver)
        if isinstance(answer, PaceOver):
            self.last_receivers = answer.receivers
            raise RoundsOver
        assert isinstance(answer, Proceed)
        here = self._models_here.get(answer.update, self._back)
        if answer.pulls:
            if here is None:
                raise RunAborted(f"the scheduler let update {answer.update} pull, which is not due")
            await self._here(here)
        self._models_here.pop(answer.update, None)
        self._back = None
        if not answer.pulls:
            return answer
        if self._rooms:
            self._model[:] = self._room(answer.update, 0, self._model)
        return answer

    async def settle(self, updates: int) -> None:
        """Wait until ``settled`` is at least ``updates``."""
        if self.settled < updates:
            self._settling = updates, asyncio.Event()
            await self._settling[1].wait()
            self._settling = None

    async def last_model(self) -> None:
        """Wait for the final model, which servers send at the end.

        If its way here is lost meanwhile, this site is removed from ``last_receivers``.

        Raises:
            RunAborted: the run ended early; names the site or error that caused it.
        """
        update = min(self._models_here, default=0)
        here = self._models_here.get(update, self._back)
        assert here is not None  # a worker always awaits the model for its next update
        await self._here(here)
        if here in self._never:
            self.last_receivers = tuple(each for each in self.last_receivers if each != self._site)
        elif self._rooms and update:
            self._model[:] = self._room(update, 0, self._model)

    async def _here(self, model: asyncio.Event) -> None:
        try:
            await self._plane.unless_failed(model.wait())
        except (LinkError, PeerError, RunAborted) as error:
            raise await self._scheduler.verdict(error) from error

    def abandon(self, message: Abandon) -> None:
        """Abandon this worker's updates up to ``message.update`` that are not pushed yet."""
        self._abandoned = message.update
        if not message.model_comes:
            due = [here for each, here in self._models_here.items() if each <= message.update]
            due += [] if self._back is None else [self._back]
            self._never = [here for here in due if not here.is_set()]
            for here in self._never:
                here.set()  # ends the wait in ``permission`` or ``last_model``
        if self._passing is not None:
            self._passing.reschedule(0.0)

    @asynccontextmanager
    async def unless_abandoned(self, permission: Proceed) -> AsyncIterator[None]:
        """Run the body, which waits for as long as an update takes to compute.

        The body ends early, without an error, when the update is abandoned. It may only wait,
        because it is cancelled.
        """
        is_abandoned = permission.update <= self._abandoned
        try:
            async with asyncio.timeout(0.0 if is_abandoned else None) as self._passing:
                yield
        except TimeoutError:
            if self._passing is None or not self._passing.expired():
                raise
        finally:
            self._passing = None

    def push(
        self,
        permission: Proceed,
        gradients: Floats,
        weight: float,
        samples: int,
        compute_s: float,
        loss: float | None = None,
    ) -> bool:
        """Send the update that this worker was permitted to compute, and ask for the next.

        Args:
            permission: from ``permission``.
            gradients: shape (elements,). Where no worker computes ahead, they must not change
                before the next permission; otherwise they are copied.
            weight: the update's weight, > 0.
            samples: the number of samples in its batch.
            compute_s: how long it took to compute.
            loss: the batch's loss, if there is one.

        Returns:
            Whether the update is sent; if it is abandoned, only the request is.
        """
        update = permission.update
        self._ask(permission, samples, compute_s, loss)
        if update <= self._abandoned:
            return False
        if self._rooms:
            room = self._room(update, 1, gradients)
            room[:] = gradients
            gradients = room
        self._act(self._own_part.push(update, self._memory(gradients), weight))
        return True

    def _ask(
        self, permission: Proceed, samples: int, compute_s: float, loss: float | None = None
    ) -> None:
        """Ask for the next update, and await the model for it."""
        then = permission.update + 1 + self._ahead
        self._scheduler.post(ProceedRequest(permission.update, samples, compute_s, loss))
        self._models_here[then] = asyncio.Event()
        self._own_part.expect(then, self._memory(self._room(then, 0, self._model)))

    def advance(self, message: Advance) -> None:
        """Take a step of the model, and send the model to the workers named.

        Raises:
            OutOfPlaceMessage: this site serves no part of the model.
        """
        if self.partition is None:
            raise OutOfPlaceMessage("a step of the model, of which this site serves no part")
        if self._waits:
            self._waiting.append(message)
            return
        self.partition.deprecate(message.deprecated)
        agreement = self.partition.apply(message.apply, message.factors, message.share)
        if agreement is not None:
            of_each = agreement.dots, agreement.squared_norms
            self._scheduler.post(Agreed(message.apply, *of_each, agreement.squared_norm))
        self.partition.discard(message.discard)
        self.partition.uncount(message.uncounted)
        self.settled += len(message.apply) + len(message.discard)
        if self._settling is not None and self.settled >= self._settling[0]:
            self._settling[1].set()
        self.partition.pulls([worker for worker, _ in message.pulls])
        for version, part in self._parts.items():
            part.discard(message.discard)
            pulls = [
                each
                for each in message.pulls
                if self._version_of.get(each[0], self._only) == version
            ]
            self._act(part.serve(pulls))

    def reform(self, message: Reform, has_begun: bool) -> Plan:
        """Replace the groups by those of a new plan; groups of both plans are unchanged.

        Args:
            message: the new plan, and the next update of each group.
            has_begun: whether this site has been admitted. If not, it awaits its first model like
                a worker that has returned.

        Returns:
            The plan.

        Raises:
            MalformedMessage: it does not have one next update for each group.
        """
        plan = plans.loads(message.plan_json)
        if len(message.updates) != len(plan.groups) or min(message.updates, default=0) < 1:
            raise MalformedMessage(
                f"{len(plan.groups)} groups that go on with updates {message.updates}"
            )
        kept = {group.plan.version for group in plan.groups}
        retired = [part for version, part in self._parts.items() if version not in kept]
        gone = {worker for worker, version in self._version_of.items() if version not in kept}
        if self.partition is not None:
            self.partition.forget(gone)
        self._parts = {each: part for each, part in self._parts.items() if each in kept}
        self._version_of = {each: of for each, of in self._version_of.items() if each not in gone}
        for group, update in zip(plan.groups, message.updates, strict=True):
            if group.plan.version in self._known or group.workers[0] in self._version_of:
                continue
            self._take_part(group.plan, group.workers, update)
            if self._site not in group.workers:
                continue
            self._models_here, self._back = {}, None
            if has_begun:
                self._models_here[update] = asyncio.Event()
                self._own_part.expect(update, self._memory(self._model))
            else:
                self._back = asyncio.Event()
                self._own_part.come_back(update, self._memory(self._model))
        self._known |= self._parts
        for part in retired:
            part.retire()
        self._retired += retired
        self._reformed = plan.version
        self._say_if_quiet()
        return plan

    def _say_if_quiet(self) -> None:
        """Confirm the new groups once no retired part has payloads arriving in the model."""
        self._retired = [part for part in self._retired if not part.is_quiet]
        if self._reformed is not None and not self._retired:
            self._scheduler.post(Reformed(self._reformed))
            self._reformed = None

    def change_epoch(self, message: EpochChanged) -> None:
        """See :meth:`anabranch.exchange.served.Served.change_epoch`."""
        part = self._parts.get(message.version)
        if part is not None:
            self._act(part.change_epoch(message.epoch, message.workers, message.round))
