"""Push and pull in a run: a worker asks to go on, a server takes the steps it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from anabranch.net.errors import LinkError, OutOfPlaceMessage, PeerError, RunAborted
from anabranch.net.messages import (
    Advance,
    Came,
    EpochChanged,
    NoMoreRounds,
    Proceed,
    ProceedRequest,
    Welcome,
)
from anabranch.plan import Plan, deal
from anabranch.site.accumulator import Floats
from anabranch.site.aggregation import check_buffer
from anabranch.site.control import Control, RoundsOver
from anabranch.site.dataplane import DataPlane
from anabranch.site.partition import Rule, ServerPartition, Update


@dataclass(frozen=True, slots=True)
class Served:
    """How a model is served by the roots of the plan's trees, the same at every site of a run.

    Args:
        model: as all sites have it at first, shape (elements,); pulls overwrite it.
        make_rule: makes what changes a part of the model of so many elements by gradients; None
            leaves the numbers out.
        workers: how many sites push updates.
        added_up: those sites, where the pace is a barrier: their updates are added up on the way.
            None where each travels alone.
        ahead: how many updates a worker may compute before the model comes that has its last one
            in. Pulls and pushes then have memory of their own: twice ``1 + ahead`` models more.
    """

    model: Floats
    make_rule: Callable[[int], Rule] | None
    workers: int
    added_up: tuple[int, ...] = ()
    ahead: int = 0


class Serving:
    """One site's side of a run whose model is served.

    Args:
        scheduler: what the site says to it and hears from it.
        plane: the site's data plane, which has exchanged nothing yet.
        welcome: says who this site is, and whether it has come back.
        plan: the one plan of the run.
        served: see there.
    """

    def __init__(
        self, scheduler: Control, plane: DataPlane, welcome: Welcome, plan: Plan, served: Served
    ) -> None:
        self._scheduler = scheduler
        self._plane = plane
        self._model = served.model
        self._ahead = served.ahead
        self._models_here: dict[int, asyncio.Event] = {}  # by the update that is computed on each
        self._back: asyncio.Event | None = None  # the first model of one that has come back
        self._rooms: list[tuple[Floats, Floats]] = []  # for pulls and pushes that are under way
        if served.ahead and served.make_rule is not None:
            self._rooms = [
                (np.empty_like(served.model), np.empty_like(served.model))
                for _ in range(1 + served.ahead)
            ]
        self._partition: ServerPartition | None = None
        chunks = deal(plan, len(served.model), plane.config.chunk_elements)
        own = [chunk for chunk in chunks if plan.trees[chunk.tree].root == welcome.site]
        if own:
            elements = sum(chunk.elements for chunk in own)
            rule = None if served.make_rule is None else served.make_rule(elements)
            self._partition = ServerPartition(own, served.model, rule, served.workers, self._came)
        self._pushpull = plane.push_and_pull(plan, chunks, self._partition, served.added_up)
        if welcome.updates:
            first, self._back = welcome.updates + 1, asyncio.Event()
            self._pushpull.come_back(first, self._room(first, 0, served.model), self._back.set)

    def _room(self, update: int, which: int, otherwise: Floats) -> Floats:
        """Return the memory of an update's pull (0) or push (1), if it is not what there is."""
        return self._rooms[update % len(self._rooms)][which] if self._rooms else otherwise

    def _came(self, update: Update) -> None:
        self._scheduler.post(Came(*update, epoch=self._pushpull.epoch))

    async def permission(self) -> Proceed:
        """Wait until this worker may go on, and has the model to go on with.

        Raises:
            RoundsOver: no worker goes on any more.
            RunAborted: the run ended early; names who or what caused it.
        """
        answer = await self._scheduler.expect(Proceed, NoMoreRounds)
        if isinstance(answer, NoMoreRounds):
            raise RoundsOver
        assert isinstance(answer, Proceed)
        here, self._back = self._models_here.pop(answer.update, self._back), None
        if not answer.pulls:
            return answer
        if here is None:
            raise RunAborted(f"the scheduler let update {answer.update} pull, which is not due")
        try:
            await self._plane.unless_failed(here.wait())
        except (LinkError, PeerError, RunAborted) as error:
            raise await self._scheduler.verdict(error) from error
        if self._rooms:
            self._model[:] = self._room(answer.update, 0, self._model)
        return answer

    def push(
        self, permission: Proceed, gradients: Floats, weight: float, samples: int, compute_s: float
    ) -> None:
        """Send the update that this worker was permitted to compute, and ask to go on.

        Args:
            permission: see there.
            gradients: shape (elements,); must not change until the next permission, where no
                worker computes ahead.
            weight: what the update counts, > 0.
            samples: of its batch.
            compute_s: how long it took to compute.

        Raises:
            ValueError: not such a buffer or weight.
        """
        check_buffer(gradients, weight, len(self._model))
        update, then = permission.update, permission.update + 1 + self._ahead
        self._scheduler.post(ProceedRequest(update, samples, compute_s))
        if self._rooms:
            room = self._room(update, 1, gradients)
            room[:] = gradients
            gradients = room
        here = self._models_here[then] = asyncio.Event()
        self._pushpull.expect(then, self._room(then, 0, self._model), here.set)
        self._pushpull.push(update, gradients, weight)

    def advance(self, message: Advance) -> None:
        """Take a step of the model, and send it to whom it says.

        Raises:
            OutOfPlaceMessage: this site serves no part of the model.
        """
        if self._partition is None:
            raise OutOfPlaceMessage("a step of the model, of which this site serves no part")
        self._partition.apply(message.apply)
        self._partition.discard(message.discard)
        self._pushpull.serve(message.pulls)

    def count(self, message: EpochChanged) -> None:
        """See :meth:`anabranch.site.pushpull.PushPull.count`."""
        self._pushpull.count(message.epoch, message.workers, message.round)
