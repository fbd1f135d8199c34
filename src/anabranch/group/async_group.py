"""A site's part in a group, for programs in an event loop: here, and only here, a site starts.

:class:`anabranch.Group` is a blocking face over it, in a thread of its own; a scenario's site is a
program over it, in any world. It knows no thread and no clock but the loop's.

    join()  ->  start()  ->  calls  ->  leave()
       \\__________\\_________\\____->  fail() or close()

Between ``join`` and ``start`` a program makes what it will exchange, and the network on which it
connects to others. A site that joins a group that goes on is let in by its first ``admit``.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar, Unpack

import msgspec

from anabranch import overlay as overlays
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
from anabranch.site.agent import Gossips, SiteAgent, Transport
from anabranch.site.collectives import Round
from anabranch.site.control import RoundsOver
from anabranch.site.meter import Meter
from anabranch.site.serving import ServedModel

T = TypeVar("T")

_LOOKS_EVERY_S = 0.5  # for a reason to wait no longer


@dataclass(frozen=True, slots=True)
class Door:
    """How a site comes into a group.

    Args:
        scheduler: where that listens.
        name: the site's.
        token: the group's secret.
        listen: where it takes connections of others; without a host, on the address from which it
            reaches the scheduler; port 0 takes a free one. None where no other site can connect to
            this one, as behind NAT: it makes all connections itself.
        advertise: where others find it; None for where it listens.
        patience_s: how long to try where no scheduler answers.
        gives_up: is called every half second while others are waited for, in a thread of its own;
            what it returns, unless None, is why this site waits no longer. None for no such reason.
        say: called with a line where the scheduler, or the others, take long; None for none.
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
    """The world that a site lives in.

    Args:
        control: the network to the scheduler.
        data: the network on which other sites reach this one.
        clock: this site's clock, seconds, by which links are measured; the loop's time if not
            given.
    """

    control: ControlNetwork
    data: Network
    clock: Callable[[], float] | None = None


def _is_nothing_to(*_: Any) -> None:
    """Hear something of which a program makes nothing."""


@dataclass(frozen=True, slots=True)
class Hears:
    """What a program hears between its calls; each is called in the loop.

    Args:
        refused: of each message from another site that was refused: (site or None, error).
        progressed: of each message that this site has sent to another; None to hear of none.
        moved: where a neighbour is that died and is back, as another process.
        lost: which site is lost while the others go on, and why.
    """

    refused: Callable[[int | None, PeerError], None] = _is_nothing_to
    progressed: Callable[[], None] | None = None
    moved: Callable[[int, Address], None] = _is_nothing_to
    lost: Callable[[int, str], None] = _is_nothing_to


class Exchanging(TypedDict, total=False):
    """How an exchange is made; see :meth:`anabranch.site.collectives.Collectives.exchange`."""

    more: bool
    channel: int
    calls: bool
    unfit: str
    model: Model | None


async def join(ports: Ports, door: Door, hears: Hears | None = None) -> AsyncGroup:
    """Join a group, and wait until it begins: once all its sites have joined, or enough of them.

    Raises:
        LinkError: the scheduler cannot be reached.
        RunAborted: it refused this site, or the run ended before it began; or ``gives_up`` said so.
            Or sites gossip, and this one comes later.
        PeerError: what listens there is no scheduler, or one end does not trust the other.
        ValueError: other sites would not find this one where it listens.
    """
    hears = hears or Hears()
    agent = SiteAgent(
        ports.control,
        ports.data,
        door.name,
        door.token,
        door.listen,
        hears.progressed,
        hears.refused,
        clock=ports.clock,
        moved=hears.moved,
        advertise=door.advertise,
        told_lost=hears.lost,
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
    """A site's part in a group; :func:`join` makes one.

    Args:
        agent: this site's, which has joined.
        welcome: what the scheduler said then.

    Attributes:
        agent: see above; what a program asks it beside calls.
        welcome: see above.
        settings: how all sites send, measure, serve and gossip.
        meter: of the links to this site; None where they are not measured, and before ``start``.
        index: this site's place in the overlay.
        overlay: the sites and the links between them.
        names: of all sites, by index.
        has_started: whether calls may be made.
    """

    def __init__(self, agent: SiteAgent, welcome: Welcome) -> None:
        self.agent = agent
        self.welcome = welcome
        self.settings = _settings.loads(welcome.work)
        self.meter: Meter | None = None
        self.index = welcome.site
        self.overlay = overlays.loads(welcome.overlay_toml)
        self.names = [site.name for site in self.overlay.sites]
        self.has_started = False
        self._loop = asyncio.get_running_loop()
        self._handing_on: set[asyncio.Task[None]] = set()  # the state, while the group goes on

    @property
    def is_back(self) -> bool:
        """Whether a model is served here that was served before this process of the site came.

        One that computes nothing has made no updates before.
        """
        return not self.welcome.is_new and (bool(self.welcome.updates) or self.agent.came_late)

    @property
    def first_plan(self) -> plans.Plan:
        """The plan that held when this site joined."""
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

        What is made by the group's settings, they make: see
        :meth:`anabranch.group._settings.Settings.transport` and those beside it.
        """
        self.meter = self.settings.meter(elements)
        await self.agent.start(transport, lanes, self.meter, served, elements, samples, gossips)
        self.has_started = True

    # --- exchanges; those whose end a program tells itself are the agent's, as gatherings are

    async def exchange(
        self, buffer: Buffer, terms: Terms, weight: float = 1.0, **more: Unpack[Exchanging]
    ) -> Round:
        """Take part in an exchange, and tell the scheduler that its result is in use here.

        Args:
            buffer, terms, weight, more: see
                :meth:`anabranch.site.collectives.Collectives.exchange`.
        """
        done = await self.agent.exchange(buffer, terms, weight, **more)
        await self.agent.round_ended(done, None)
        return done

    async def agree_on(self, what: Sequence[Any], called: str) -> int:
        """Return the first member, once all have called this with the same.

        Args:
            what: numbers and strings.
            called: what a site does by it, in words.

        Raises:
            ValueError: another site's is something else; names it.
        """
        said = await self.agent.gather(msgspec.msgpack.encode(what))
        for site, each in zip(said.members, map(msgspec.msgpack.decode, said.values), strict=True):
            if each != what:
                raise ValueError(
                    f"{self.names[site]} {called} {each}, this site {what}; give the same at "
                    "every site"
                )
        return min(said.members)

    # --- who joins later

    async def hand_over(self, admitted: Admitted, offer: Offer | None) -> HandedOver:
        """Hand the state of training to newcomers, or get it as one of them.

        See :func:`anabranch.group.hand_over.hand_over`. What a holder sends while the group goes
        on is sent before this site leaves.
        """
        handed = await hand_over(self.agent, self.names, admitted, offer)
        if handed.sending is not None:
            self._handing_on.add(handed.sending)
            handed.sending.add_done_callback(self._handing_on.discard)
        return handed

    # --- a model that is served

    async def serve_alike(self, model: Floats, what: Sequence[Any]) -> None:
        """Let every site begin from the same model, by the same rule; after ``start``.

        Args:
            model: as it is served; overwritten by the first member's.
            what: the rule, the same at every site.

        Raises:
            ValueError: another site's rule is another one; names it.
        """
        if self.is_back:
            return  # the servers have the model, and send it
        called = (
            "serves (optimizer, learning rate, momentum, elements, of which float buffers, "
            "integers)"
        )
        first = await self.agree_on(what, called)
        await self.exchange(Flat(model), Terms(Op.COPY, Wire.FLOAT32, len(model), source=first))
        self.agent.reload()
        await self.agent.gather(b"")  # no server takes a step before all have that model

    async def pull(self) -> Proceed | None:
        """Wait until this site may compute an update; the model is in its memory then.

        Returns:
            Which update; None where there is none to compute, and the model is the last one, if
            this site is one of those that get it.
        """
        try:
            return await self.agent.permission()
        except RoundsOver:
            if self.index in self.agent.last_receivers:
                await self.agent.last_model()
            return None

    async def has_last_model(self, model: Floats) -> bool:
        """Return whether the final model is in this site's memory: it was sent, or served here."""
        return self.index in self.agent.last_receivers or self.agent.serves_whole(model)

    # --- what a site tells of itself, and its end

    def report_loss(self, loss: float, step: int, samples: int) -> None:
        """Tell the scheduler of a step's loss."""
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
        """Tell the scheduler how good this site's model is after a step."""
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
        """Wait until the state of training is where it was sent to."""
        await asyncio.gather(*self._handing_on, return_exceptions=True)

    async def leave(self) -> bool:
        """Send what others wait for, say that this site has finished, and wait for the others.

        Returns:
            Whether the others go on without this site, and it has not waited for their end.
        """
        await self.has_handed_on()
        if self.agent.gossips:
            await self.agent.gossiping.finish()  # no other waits for further steps of this one
        return await self.agent.leave()

    async def fail(self, error: Exception) -> None:
        """Tell the others why this site cannot go on, and close."""
        await self.agent.fail(error)
        await self.close()

    async def close(self) -> None:
        """Close every connection, without a word to the others."""
        self.agent.close()
        for sends in self._handing_on:
            sends.cancel()
        await self.has_handed_on()


async def _unless(gives_up: Callable[[], str | None] | None, doing: Coroutine[Any, Any, T]) -> T:
    """Do something, until there is a reason to give it up.

    Raises:
        RunAborted: there is; says which.
    """
    if gives_up is None:
        return await doing
    task = asyncio.get_running_loop().create_task(doing)
    try:
        while True:
            done, _ = await asyncio.wait({task}, timeout=_LOOKS_EVERY_S)
            if done:
                return task.result()
            if (why := await asyncio.to_thread(gives_up)) is not None:
                raise RunAborted(why)
    finally:
        task.cancel()
