"""A group over a simulated network, in virtual time; what benchmarks share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from anabranch.group import Service
from anabranch.group.async_group import AsyncGroup, Door, Ports, join
from anabranch.log import events
from anabranch.plan import Plan
from anabranch_lab.sim.network import SimulatedNetwork

TOKEN = "virtual"
ADDRESS = "127.0.0.1", 0


class Log:
    """The scheduler's log, which keeps nothing."""

    def began(self, buffer_elements: int, plan: Plan) -> None: ...

    def write(self, *happened: events.Event) -> None: ...


async def run(
    service: Service,
    control_s: float,
    program: Callable[[AsyncGroup], Awaitable[object]],
    comes: Callable[[int], Awaitable[object]] | None = None,
) -> None:
    """Run a program at each site of a group, to its end.

    Args:
        service: of the group.
        control_s: one way between the scheduler and each site, seconds.
        program: of each site, which has joined and started.
        comes: waited for before a site, given by its index, joins.
    """
    loop = asyncio.get_running_loop()
    network = SimulatedNetwork(loop, service.overlay, seed=0, control_latency_s=control_s)  # type: ignore[arg-type]
    scheduler = service.scheduler(network.control(None), TOKEN, Log())
    address = await scheduler.listen(ADDRESS)

    async def live(site: int) -> None:
        if comes is not None:
            await comes(site)
        door = Door(address, service.overlay.sites[site].name, TOKEN, ADDRESS)
        group = await join(Ports(network.control(site), network.lanes(site)), door)
        await group.start(group.settings.transport(), network.lanes(site))
        await program(group)
        await group.leave()
        await group.close()

    network.begin()
    await asyncio.gather(*map(live, range(service.overlay.size)))
    await scheduler.finished()
    await scheduler.close()
