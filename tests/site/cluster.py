"""A scheduler and its sites in one event loop, over any network."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from anabranch.net.errors import PeerError
from anabranch.net.messages import RoundEnded
from anabranch.net.network import Address, Connection, Network
from anabranch.overlay import Overlay
from anabranch.plan import Plan
from anabranch.scheduler.server import Scheduler
from anabranch.site.agent import Round, SiteAgent

TOKEN = "secret"
Floats = npt.NDArray[np.float32]


class Witness:
    """Remembers what the scheduler observed."""

    def __init__(self) -> None:
        self.refusals: list[PeerError] = []
        self.rounds: list[tuple[int, int]] = []

    def joined(self, site: int, address: Address) -> None: ...

    def started(self, buffer_elements: int) -> None: ...

    def round_ended(self, site: int, ended: RoundEnded) -> None:
        self.rounds.append((site, ended.round))

    def reported(self, site: int, events: tuple[bytes, ...]) -> None: ...

    def refused(self, site: int | None, error: PeerError) -> None:
        self.refusals.append(error)


class Cluster:
    """One run, started; ``agents`` are in order of site index."""

    def __init__(self, scheduler: Scheduler, agents: list[SiteAgent], witness: Witness) -> None:
        self.scheduler = scheduler
        self.agents = agents
        self.witness = witness
        self.refusals: list[PeerError] = []

    @classmethod
    async def start(
        cls,
        network: Network,
        overlay: Overlay,
        plan: Plan,
        *,
        chunk_elements: int = 64,
        buffer_elements: int = 4096,
        shaped: bool = False,
    ) -> Cluster:
        witness = Witness()
        scheduler = Scheduler(network, overlay, plan, TOKEN, "work", witness)
        address = await scheduler.listen(("127.0.0.1", 0))
        cluster = cls(scheduler, [], witness)

        def refused(sender: int | None, error: PeerError) -> None:
            cluster.refusals.append(error)

        for site in overlay.sites:
            cluster.agents.append(
                SiteAgent(network, network, site.name, TOKEN, ("127.0.0.1", 0), refused)
            )
        await asyncio.gather(*(agent.join(address) for agent in cluster.agents))
        await asyncio.gather(
            *(agent.start(chunk_elements, buffer_elements, shaped) for agent in cluster.agents)
        )
        return cluster

    async def all_reduce(
        self, buffers: Sequence[Floats], weights: Sequence[float] | None = None
    ) -> list[Round]:
        weights = [1.0] * len(buffers) if weights is None else weights
        return await asyncio.gather(
            *(
                agent.all_reduce(buffer, weight)
                for agent, buffer, weight in zip(self.agents, buffers, weights, strict=True)
            )
        )

    def connection(self, source: int, target: int) -> Connection:
        """Return the connection under a lane, to misuse it."""
        plane = self.agents[source]._plane
        assert plane is not None
        connection = plane._lanes[target]._connection
        assert connection is not None
        return connection

    async def leave(self) -> None:
        await asyncio.gather(*(agent.leave() for agent in self.agents))
        await self.scheduler.finished()
