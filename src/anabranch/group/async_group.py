"""A site's membership in a group, for programs in an event loop: every site starts here.

:class:`anabranch.Group` is the blocking interface over it, and runs it in a thread. A scenario's
site is a program over it, in real or virtual time. This file uses only the loop's thread and clock.

Theory of operation
-------------------

Each call of the program moves the site one state on::

    program      state        the scheduler and the other sites
    -------      -----        ---------------------------------
    join()    -> joined       Welcome: index, overlay, plan, settings, addresses, secrets
    start()   -> started      all are ready, the scheduler has told the start
    calls     -> started      exchanges, gatherings, served updates, letters
    leave()   -> closed       Leave; then Shutdown once all have finished, or Departed

    fail(e)   -> closed       Failed(e) tells the scheduler why; from any state
    close()   -> closed       no message: the scheduler finds the site lost; from any state

- **Joined.** The site has a name, an index and a session with the scheduler. It has no lanes yet.
  The program makes its buffers and the network of its lanes here, since both follow from the
  settings in the Welcome.
- **Started.** ``has_started`` is true, and calls may be made. A *newcomer* joined a running group:
  ``agent.is_new`` stays true until the members admit it, and it exchanges nothing before. A site
  that serves and *is back* gets the model from the servers.
- **Closed.** The connections are gone. To return, a program joins again.

What must never happen:

- *A join that fails leaves a connection or a listener open.* ``join`` closes the agent on every
  error, and reports each error but a cancellation to the scheduler.
- *The loop stands still in a program's callback.* ``gives_up`` may look at files or processes, so
  it runs in another thread. A loop that waits for it would miss heartbeats, and be given up.
- *The only copy of the state leaves.* A holder may still be sending the state to a newcomer when
  its program ends, so ``leave`` waits for those sends. ``fail`` and ``close`` cancel them.
- *A server takes a step before all sites have the first model.* ``serve_alike`` ends with a
  gathering that every site joins.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar, Unpack

import msgspec

from anabranch import plan as plans
from anabranch.exchange.arithmetic import Buffer, Flat, Floats
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.group import _settings
from anabranch.group.hand_over import HandedOver, Offer, hand_over
from anabranch.log import events
from anabranch.net.addresses import ListenAt
from anabranch.net.errors import PeerError, RunAborted
from anabranch.net.messages import Admitted, Model, Proceed, Welcome
from anabranch.net.network import Address, ControlNetwork, Network
from anabranch.site.agent import Gossips, SiteAgent, Transport, overlay_of
from anabranch.site.control import RoundsOver
from anabranch.site.meter import Meter
from anabranch.site.round import Round
from anabranch.site.serving import ServedModel

T = TypeVar("T")

_LOOKS_EVERY_S = 0.5  # between two calls of `gives_up`


@dataclass(frozen=True, slots=True)
class Door:
    """How a site joins a group.

    Args:
        scheduler: the scheduler's address.
        name: the site's.
        token: the group's secret.
        listen: (host, port) at which other sites connect to this one. Host None: the address from
            which this site reaches the scheduler. Port 0: a free one. None instead of the pair:
            no other site can connect, as behind NAT, so this site makes all connections.
        advertise: the host that others are told; None for the one of ``listen``.
        patience_s: how long to retry while no scheduler answers.
        gives_up: called every half second while this site waits to join, in another thread. It
            returns None, or the reason to stop waiting. None never stops.
        say: called with a line when the scheduler or the other sites take long; None for silence.
    """

    scheduler: Address
    name: str
    token: str
    listen: ListenAt | None
    advertise: str | None = None
    patience_s: float = 0.0
    gives_up: Callable[[], str | None] | None = None
    say: Callable[[str], None] | None = None


@dataclass(frozen=True, slots=True)
class Ports:
    """The networks and the clock of a site, real or simulated.

    Args:
        control: the network to the scheduler.
        data: the network on which other sites reach this one.
        clock: this site's clock, seconds, which times links; None for the loop's time.
    """

    control: ControlNetwork
    data: Network
    clock: Callable[[], float] | None = None


def _ignore(*_: Any) -> None:
    """Do nothing: the default callback."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Callbacks for events between a program's calls; each runs in the loop.

    Args:
        refused: a message from another site was refused: (site, or None if unknown, error).
        progressed: a message to another site has ended, sent or not; None for no such calls.
        moved: a neighbour died and came back as another process: (site, its new address).
        lost: a site was lost, and the others continue: (site, reason, admissions here before).
    """

    refused: Callable[[int | None, PeerError], None] = _ignore
    progressed: Callable[[], None] | None = None
    moved: Callable[[int, Address], None] = _ignore
    lost: Callable[[int, str, int], None] = _ignore


class Exchanging(TypedDict, total=False):
    """Options of an exchange; see :meth:`anabranch.site._collectives.Collectives.exchange`."""

    more: bool
    channel: int
    calls: bool
    unfit: str
    model: Model | None
    returns_early: bool


async def join(ports: Ports, door: Door, callbacks: Callbacks | None = None) -> AsyncGroup:
    """Join a group, and wait until all its sites have joined, or as many as it begins with.

    Raises:
        LinkError: the scheduler cannot be reached.
        RunAborted: the scheduler refused this site; the run ended before it began; ``gives_up``
            returned a reason; or the group's sites gossip, and have begun without this one.
        PeerError: the process at that address is no scheduler, or one end does not trust the other.
        ValueError: other sites could not reach the address on which this site would listen.
    """
    callbacks = callbacks or Callbacks()
    agent = SiteAgent(
        ports.control,
        ports.data,
        door.name,
        door.token,
        door.listen,
        callbacks.progressed,
        callbacks.refused,
        clock=ports.clock,
        moved=callbacks.moved,
        advertise=door.advertise,
        told_lost=callbacks.lost,
    )
    try:
        joining = agent.join(door.scheduler, door.patience_s, door.say)
        group = AsyncGroup(agent, await _unless(door.gives_up, joining))
        agent.wait_for_scheduler(group.settings.away_s)
        if group.settings.gossip_json and group.welcome.is_new:
            raise RunAborted(
                f"the group goes on without {door.name}: its sites gossip, and none joins later"
            )
        return group
    except BaseException as error:
        if isinstance(error, Exception):
            await agent.fail(error)
        agent.close()
        raise


class AsyncGroup:
    """A site's membership in a group; :func:`join` makes one.

    Args:
        agent: this site's, which has joined.
        welcome: the scheduler's answer to that.

    Attributes:
        agent: see above; programs also call it directly.
        welcome: see above.
        settings: how all sites send, measure, serve and gossip.
        meter: measures the links to this site; None where no link is measured, and before
            ``start``.
        index: this site's place in the overlay.
        overlay: the sites and the links between them.
        names: the sites' names, by index.
        has_started: whether calls may be made.
    """

    def __init__(self, agent: SiteAgent, welcome: Welcome) -> None:
        self.agent = agent
        self.welcome = welcome
        self.settings = _settings.loads(welcome.work)
        self.meter: Meter | None = None
        self.index = welcome.site
        self.overlay = overlay_of(welcome)
        self.names = self.overlay.names
        self.has_started = False
        self._loop = asyncio.get_running_loop()
        self._handing_on: set[asyncio.Task[None]] = set()  # sends of the state to newcomers

    @property
    def is_back(self) -> bool:
        """Whether an earlier process of this site served or trained the model.

        A server that computes nothing has no updates that would show this. For it, the agent knows
        that it came late.
        """
        return not self.welcome.is_new and (bool(self.welcome.updates) or self.agent.came_late)

    @property
    def first_plan(self) -> plans.Plan:
        """The plan at the time this site joined."""
        return plans.loads(self.welcome.plan_json)

    def now_s(self) -> float:
        """Return the loop's time; from any thread."""
        return self._loop.time()

    async def start(
        self,
        transport: Transport,
        lanes: Network,
        served: ServedModel | None = None,
        elements: int = 0,
        samples: int = 0,
        gossips: Gossips | None = None,
    ) -> None:
        """Wait until every site is ready; see :meth:`anabranch.site.agent.SiteAgent.start`.

        ``settings`` makes the transport and the served model: see
        :meth:`anabranch.group._settings.Settings.transport`.
        """
        self.meter = self.settings.meter(elements)
        await self.agent.start(transport, lanes, self.meter, served, elements, samples, gossips)
        self.has_started = True

    # --- exchanges; for gatherings, and for results that are used later, call the agent

    async def exchange(
        self, buffer: Buffer, terms: Terms, weight: float = 1.0, **more: Unpack[Exchanging]
    ) -> Round:
        """Make an exchange, and tell the scheduler that its result is in use here.

        Args:
            buffer, terms, weight, more: see :meth:`anabranch.site.agent.SiteAgent.exchange`.
        """
        done = await self.agent.exchange(buffer, terms, weight, **more)
        if done.settlement is None:  # else the scheduler is told at the settlement
            await self.agent.round_ended(done, None)
        return done

    async def agree_on(self, what: Sequence[Any], called: str) -> int:
        """Return the first member, once all members have called this with equal values.

        Args:
            what: the values, numbers and strings.
            called: a verb and the values' names, for the error.

        Raises:
            ValueError: another site's values differ; names the site.
        """
        said = await self.agent.gather(msgspec.msgpack.encode(what))
        for site, each in zip(said.members, map(msgspec.msgpack.decode, said.values), strict=True):
            if each != what:
                raise ValueError(
                    f"{self.names[site]} {called} {each}, this site {what}; give the same at "
                    "every site"
                )
        return min(said.members)

    # --- newcomers

    async def hand_over(self, admitted: Admitted, offer: Offer | None) -> HandedOver:
        """Send the state of training to newcomers, or receive it as one of them.

        See :func:`anabranch.group.hand_over.hand_over`. Sends run beside later calls, and end
        before this site leaves.
        """
        handed = await hand_over(self.agent, self.names, admitted, offer)
        if handed.sending is not None:
            self._handing_on.add(handed.sending)
            handed.sending.add_done_callback(self._handing_on.discard)
        return handed

    # --- a served model

    async def serve_alike(self, model: Floats, what: Sequence[Any]) -> None:
        """Give every site the first member's model, and check that all serve by one rule.

        Called after ``start``.

        Args:
            model: the served one; overwritten by the first member's.
            what: the rule, the same at every site.

        Raises:
            ValueError: another site's rule differs; names the site.
        """
        if self.is_back:
            return  # the servers have the model, and send it
        called = (
            "serves (optimizer, learning rate, momentum, schedule, elements, of which float "
            "buffers, integers)"
        )
        first = await self.agree_on(what, called)
        await self.exchange(Flat(model), Terms(Op.COPY, Wire.FLOAT32, len(model), source=first))
        self.agent.reload()
        await self.agent.gather(b"")  # no server takes a step before all have that model

    async def pull(self) -> Proceed | None:
        """Wait for permission to compute an update; the model is in memory then.

        Returns:
            The permission. None if no update is left: then memory holds the final model, if the
            scheduler sends it to this site.
        """
        try:
            return await self.agent.permission()
        except RoundsOver:
            if self.index in self.agent.last_receivers:
                await self.agent.last_model()
            return None

    async def has_last_model(self, model: Floats) -> bool:
        """Return whether this site's memory has the final model: received, or served here."""
        return self.index in self.agent.last_receivers or self.agent.serves_whole(model)

    # --- reports, and the end

    def report_loss(self, loss: float, step: int, samples: int) -> None:
        """Report a step's loss to the scheduler."""
        told = events.StepDone(
            at_s=self._since_began_s(),
            site=self.index,
            round=step,
            loss=loss if math.isfinite(loss) else None,
            samples=samples,
            compute_s=0.0,
        )
        self.agent.report((events.encode(told).encode(),))

    def report_accuracy(self, accuracy: float, step: int) -> None:
        """Report the accuracy of this site's model after a step to the scheduler."""
        told = events.Evaluated(
            at_s=self._since_began_s(),
            site=self.index,
            round=step,
            accuracy=accuracy,
            step=step,
        )
        self.agent.report((events.encode(told).encode(),))

    def _since_began_s(self) -> float:
        return max(0.0, self._loop.time() - self.agent.began.result())

    async def has_handed_on(self) -> None:
        """Wait until this site has sent the state to newcomers."""
        await asyncio.gather(*self._handing_on, return_exceptions=True)

    async def leave(self) -> bool:
        """Finish sends, tell the scheduler, and wait until every site has finished.

        Returns:
            True if the others continue without this site; then it does not wait for their end.
        """
        await self.has_handed_on()
        if self.agent.gossips:
            await self.agent.gossiping.finish()  # so that no site waits for this one's next step
        return await self.agent.leave()

    async def fail(self, error: Exception) -> None:
        """Tell the scheduler why this site cannot go on, and close."""
        await self.agent.fail(error)
        await self.close()

    async def close(self) -> None:
        """Close every connection, without a message to the scheduler."""
        self.agent.close()
        for sends in self._handing_on:
            sends.cancel()
        await self.has_handed_on()


async def _unless(gives_up: Callable[[], str | None] | None, doing: Coroutine[Any, Any, T]) -> T:
    """Return a coroutine's result, unless ``gives_up`` returns a reason first.

    Raises:
        RunAborted: ``gives_up`` returned a reason.
    """
    if gives_up is None:
        return await doing
    task = asyncio.get_running_loop().create_task(doing)
    try:
        while True:
            done, _ = await asyncio.wait({task}, timeout=_LOOKS_EVERY_S)
            if done:
                return task.result()
            # In another thread: it may block, and this loop has heartbeats to send.
            if (why := await asyncio.to_thread(gives_up)) is not None:
                raise RunAborted(why)
    finally:
        task.cancel()
