"""A scheduler and its sites in one event loop, over a simulated network or TCP."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from anabranch.exchange.arithmetic import Flat
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.log import events
from anabranch.net.errors import PeerError
from anabranch.net.network import Address, Connection, ControlNetwork, Listener, Network, Receiver
from anabranch.net.pipe import End
from anabranch.net.shaping import Course, ShapedNetwork
from anabranch.net.tcp import TcpNetwork, wait_closed
from anabranch.net.tls import SCHEDULER, Credentials, identity_of
from anabranch.overlay import Link, Overlay, Site
from anabranch.plan import Plan
from anabranch.scheduler._planning import Planners
from anabranch.scheduler.awareness import Awareness
from anabranch.scheduler.losses import Repairs
from anabranch.scheduler.memory import Journal
from anabranch.scheduler.pacing import PaceBook
from anabranch.scheduler.served_pace import LastTo
from anabranch.scheduler.server import Scheduler
from anabranch.site.agent import SiteAgent, Transport
from anabranch.site.meter import Meter
from anabranch.site.neighbourhood import LIMITS
from anabranch.site.round import Round
from anabranch.site.serving import ServedModel
from anabranch_lab.sim.loop import VirtualLoop
from anabranch_lab.sim.network import SimulatedNetwork

TOKEN = "secret"
CERTIFICATES = Path(__file__).parent.parent / "net" / "certs" / "ours"
# The sites that have certificates there.
PAIR = Overlay("pair", (Site("a"), Site("b")), (Link(0, 1, 1e9), Link(1, 0, 1e9)))
Floats = npt.NDArray[np.float32]
Kind = TypeVar("Kind", bound=events.Event)


class Ports(Protocol):
    """The ways of all sites and the scheduler into a network."""

    def control(self, site: int | None) -> ControlNetwork:
        """Return a site's port towards the scheduler; None for the scheduler's own."""

    def lanes(self, site: int) -> Network:
        """Return a site's port towards other sites."""


def simulated(
    overlay: Overlay, connect_s: float = 4.0, control_latency_s: float = 0.0
) -> SimulatedNetwork:
    """Return the ports of a simulated network in the running loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return SimulatedNetwork(
        loop, overlay, seed=0, control_latency_s=control_latency_s, connect_s=connect_s
    )


class Tcp:
    """The ports of real TCP on this machine, which are all alike; see :class:`Ports`."""

    def __init__(self) -> None:
        self._network = TcpNetwork(LIMITS)

    def control(self, site: int | None) -> ControlNetwork:
        return self._network

    def lanes(self, site: int) -> Network:
        return self._network


class _Certified:
    """A port that shows one certificate where it is called, and may show another where it calls."""

    heads_go_ahead = TcpNetwork.heads_go_ahead

    def __init__(self, calls_as: str, is_called_as: str) -> None:
        self._calling, self._called = (
            TcpNetwork(LIMITS, credentials=Credentials(CERTIFICATES, identity))
            for identity in (calls_as, is_called_as)
        )

    async def connect(self, address: Address, receiver: Receiver) -> Connection:
        return await self._calling.connect(address, receiver)

    def adopt(self, connection: Connection, address: Address) -> Connection:
        return self._calling.adopt(connection, address)

    async def listen(self, address: Address, welcome: Callable[[Connection], Receiver]) -> Listener:
        return await self._called.listen(address, welcome)

    async def connect_through(self, end: End, peer: str, receiver: Receiver) -> Connection:
        return await self._calling.connect_through(end, peer, receiver)

    async def pipe_to(self, address: Address, end: End) -> None:
        await self._calling.pipe_to(address, end)


class Tls:
    """The ports of TCP with certificates, of :data:`PAIR`; see :class:`Ports`.

    Args:
        scheduler: the identity in the scheduler's certificate.
        called: the identities in the certificates that sites show where they are called, by site;
            their own where it says none.
    """

    def __init__(self, scheduler: str = SCHEDULER, called: Mapping[int, str] | None = None) -> None:
        self._scheduler = scheduler
        self._called = called or {}

    def control(self, site: int | None) -> ControlNetwork:
        own = self._scheduler if site is None else identity_of(PAIR.sites[site].name)
        return _Certified(own, own)

    def lanes(self, site: int) -> Network:
        own = identity_of(PAIR.sites[site].name)
        return _Certified(own, self._called.get(site, own))


def make_agent(
    ports: Ports,
    site: int,
    name: str,
    token: str = TOKEN,
    refused: Callable[[int | None, PeerError], None] = lambda sender, error: None,
    moved: Callable[[int, Address], None] = lambda site, address: None,
    takes_calls: bool = True,
) -> SiteAgent:
    """Return an agent in the running loop, at a site's ports and under a name."""
    control, data = ports.control(site), ports.lanes(site)
    listen = ("127.0.0.1", 0) if takes_calls else None
    return SiteAgent(control, data, name, token, listen, lambda: None, refused, moved=moved)


async def all_reduce(
    agent: SiteAgent, buffer: Floats, weight: float = 1.0, more: bool = False, channel: int = 0
) -> Round:
    """Let a site take part in a mean over the members of a channel."""
    terms = Terms(Op.MEAN, Wire.FLOAT32, len(buffer))
    return await agent.exchange(Flat(buffer), terms, weight, more, channel)


@dataclass(frozen=True)
class Decided:
    """What a pace decided at once: updates, as (worker, which), and who goes on with which."""

    applied: list[tuple[int, int]]
    discarded: list[tuple[int, int]]
    went: list[tuple[int, int]]


class Witness:
    """A log that keeps what the scheduler writes down.

    Attributes:
        writes: the events of each write; what a pace decides at once is written at once.
        has_joined: set, by site, when it has.
        has_begun: set, by round, when the first site has asked for it.
    """

    def __init__(self) -> None:
        self.writes: list[tuple[events.Event, ...]] = []
        self.has_joined: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)
        self.has_begun: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)

    def began(self, buffer_elements: int, plan: Plan) -> None: ...

    def write(self, *happened: events.Event) -> None:
        self.writes.append(happened)
        for event in happened:
            match event:
                case events.SiteJoined():
                    self.has_joined[event.site].set()
                case events.RoundBegan():
                    self.has_begun[event.round].set()

    def of(self, kind: type[Kind]) -> list[Kind]:
        """Return the events of one kind, in order."""
        return [event for written in self.writes for event in written if isinstance(event, kind)]

    @property
    def decisions(self) -> list[Decided]:
        """What the pace decided, in order."""
        decided = []
        for written in self.writes:
            applied = [(e.site, e.update) for e in written if isinstance(e, events.UpdateApplied)]
            gone = [(e.site, e.update) for e in written if isinstance(e, events.UpdateDiscarded)]
            went = [(e.site, e.update) for e in written if isinstance(e, events.WorkerWent)]
            if applied or gone or went:
                decided.append(Decided(applied, gone, went))
        return decided

    @property
    def refusals(self) -> list[events.MessageRefused]:
        """The messages that the scheduler refused."""
        return self.of(events.MessageRefused)


class Cluster:
    """One run, started; ``agents`` are in order of site index."""

    def __init__(
        self,
        ports: Ports,
        scheduler: Scheduler,
        address: Address,
        witness: Witness,
        begin: Callable[[SiteAgent, Network], Awaitable[None]],
        shaped: bool,
        outbound_only: Collection[int],
        course: Callable[[tuple[int, int]], Course],
    ) -> None:
        self.ports = ports
        self.scheduler = scheduler
        self.address = address
        self.agents: list[SiteAgent] = []
        self.witness = witness
        self.refusals: list[PeerError] = []
        self._begin = begin
        self._shaped = shaped
        self._outbound_only = outbound_only
        self._course = course

    async def join(self, site: int) -> SiteAgent:
        """Let a site, or another process of it, join the run."""
        links: dict[Address, tuple[Link, Link | None]] = {}
        overlay = self.scheduler.overlay

        def moved(other: int, address: Address) -> None:
            if (link := overlay.link(site, other)) is not None:
                links[address] = link, overlay.link(other, site)

        def refused(sender: int | None, error: PeerError) -> None:
            self.refusals.append(error)

        name = overlay.sites[site].name
        takes_calls = site not in self._outbound_only
        agent = make_agent(
            self.ports, site, name, refused=refused, moved=moved, takes_calls=takes_calls
        )
        await agent.join(self.address)
        for other, address in agent.welcome.addresses.items():
            moved(other, address)
        lanes = self.ports.lanes(site)
        if self._shaped:
            lanes = ShapedNetwork(lanes, links, 0, agent.began, self._course)
        await self._begin(agent, lanes)
        return agent

    @classmethod
    async def start(
        cls,
        ports: Ports,
        overlay: Overlay,
        plan: Plan,
        *,
        chunk_elements: int = 64,
        room_elements: int = 1 << 16,
        shaped: bool = False,
        strands: int = 1,
        meter: Callable[[], Meter] | None = None,
        awareness: Awareness | None = None,
        pacing: PaceBook | None = None,
        served: Callable[[int], ServedModel] | None = None,
        repairs: Repairs | None = None,
        planners: Planners | None = None,
        joining: Collection[int] | None = None,
        journal: Journal | None = None,
        outbound_only: Collection[int] = (),
        samples: Sequence[int] | None = None,
        last_to: LastTo = "none",
        course: Callable[[tuple[int, int]], Course] = lambda link: Course(),
        leases: bool = False,
    ) -> Cluster:
        """Start a run; ``shaped`` holds its lanes to the overlay's rates and latencies.

        Then ``course`` says what is left of the rate of a link.

        Where not all sites are ``joining``, it begins without the others. Those that are
        ``outbound_only`` take no connections. Sites say how many ``samples`` they train on.
        """
        witness = Witness()
        scheduler = Scheduler(
            ports.control(None),
            overlay,
            plan,
            TOKEN,
            "work",
            lambda plan, elements: chunk_elements,
            witness,
            awareness,
            pacing=pacing,
            last_to=last_to,
            repairs=repairs,
            journal=journal,
            planners=planners,
            leases=leases,
        )
        address = await scheduler.listen(("127.0.0.1", 0))

        async def begin(agent: SiteAgent, lanes: Network) -> None:
            own = None if served is None else served(agent.welcome.site)
            await agent.start(
                Transport(chunk_elements, chunk_elements, room_elements, strands, leases=leases),
                lanes,
                None if meter is None else meter(),
                own,
                0 if own is None else len(own.model),
                0 if samples is None else samples[agent.welcome.site],
            )

        cluster = cls(ports, scheduler, address, witness, begin, shaped, outbound_only, course)
        sites = range(overlay.size) if joining is None else joining
        cluster.agents = list(await asyncio.gather(*map(cluster.join, sites)))
        return cluster

    async def all_reduce(
        self, buffers: Sequence[Floats], weights: Sequence[float] | None = None
    ) -> list[Round]:
        weights = [1.0] * len(buffers) if weights is None else weights
        return await asyncio.gather(
            *(
                all_reduce(agent, buffer, weight)
                for agent, buffer, weight in zip(self.agents, buffers, weights, strict=True)
            )
        )

    def connection(self, source: int, target: int) -> Connection:
        """Return the connection under a lane, to misuse it."""
        plane = self.agents[source]._plane
        assert plane is not None
        return plane.lanes._lanes[target]._connections[0]

    async def end(self) -> None:
        """End what failed, so that no connection outlives the loop."""
        for agent in self.agents:
            agent.close()
        await self.scheduler.close()
        await wait_closed()

    async def leave(self, dead: Collection[int] = ()) -> None:
        alive = [agent for site, agent in enumerate(self.agents) if site not in dead]
        await asyncio.gather(*(agent.leave() for agent in alive))
        await self.scheduler.finished()
        await self.scheduler.close()
