"""Push and pull in a run: a worker asks to go on, a server takes the steps it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from anabranch.net.errors import LinkError, OutOfPlaceMessage, PeerError, RunAborted
from anabranch.net.messages import (
    Advance,
    Came,
    Counted,
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
from anabranch.site.shard import Rule, Shard, Update


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
    """

    model: Floats
    make_rule: Callable[[int], Rule] | None
    workers: int
    added_up: tuple[int, ...] = ()


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
        self._loop = asyncio.get_running_loop()
        self._model_here = asyncio.Event()  # the model that the next update is computed on
        self._went_s: float | None = None  # when this worker was last let go on
        self._shard: Shard | None = None
        chunks = deal(plan, len(served.model), plane.config.chunk_elements)
        own = [chunk for chunk in chunks if plan.trees[chunk.tree].root == welcome.site]
        if own:
            elements = sum(chunk.elements for chunk in own)
            rule = None if served.make_rule is None else served.make_rule(elements)
            self._shard = Shard(own, served.model, rule, served.workers, self._came)
        self._pushpull = plane.push_and_pull(plan, chunks, self._shard, served.added_up)
        if welcome.updates:
            first = welcome.updates + 1
            self._pushpull.come_back(first, served.model, self._model_here.set)
        else:
            self._model_here.set()

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
        now_s = self._loop.time()
        if self._went_s is not None:
            self._scheduler.took(now_s - self._went_s)
        self._went_s = now_s
        try:
            await self._plane.unless_failed(self._model_here.wait())
        except (LinkError, PeerError, RunAborted) as error:
            raise await self._scheduler.verdict(error) from error
        return answer

    def push(
        self, permission: Proceed, gradients: Floats, weight: float, samples: int, compute_s: float
    ) -> None:
        """Send the update that this worker was permitted to compute, and ask to go on.

        Args:
            permission: see there.
            gradients: shape (elements,); must not change until the next permission.
            weight: what the update counts, > 0.
            samples: of its batch.
            compute_s: how long it took to compute.

        Raises:
            ValueError: not such a buffer or weight.
        """
        check_buffer(gradients, weight, len(self._model))
        self._scheduler.post(ProceedRequest(permission.update, samples, compute_s))
        self._model_here.clear()
        self._pushpull.push(permission.update, gradients, weight, self._model, self._model_here.set)

    def advance(self, message: Advance) -> None:
        """Take a step of the model, and send it to whom it says.

        Raises:
            OutOfPlaceMessage: this site serves no part of the model.
        """
        if self._shard is None:
            raise OutOfPlaceMessage("a step of the model, of which this site serves no part")
        self._shard.apply(message.apply)
        self._shard.discard(message.discard)
        self._pushpull.serve(message.pulls)

    def count(self, message: Counted) -> None:
        """See :meth:`anabranch.site.pushpull.PushPull.count`."""
        self._pushpull.count(message.epoch, message.workers, message.round)
