"""Groups in virtual time: each site is a program over an `AsyncGroup`, in a simulated network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from anabranch.group import Service
from anabranch.group.async_group import AsyncGroup, Callbacks, Door, Ports, join
from anabranch.log import events
from anabranch.net.errors import PeerError
from anabranch.net.network import Network
from anabranch.overlay import Link, Overlay, Site
from anabranch.plan import Plan
from anabranch.site.agent import Transport
from anabranch_lab.sim.loop import run_virtually
from anabranch_lab.sim.network import SimulatedNetwork

Program = Callable[[AsyncGroup], Awaitable[Any]]
Start = Callable[[AsyncGroup, Network], Awaitable[bool]]
CONTROL_S = 0.05  # one way to the scheduler


class Log:
    """What the scheduler writes down."""

    def __init__(self) -> None:
        self.events: list[events.Event] = []

    def began(self, buffer_elements: int, plan: Plan) -> None:
        """See :class:`anabranch.scheduler.run.Log`."""

    def write(self, *happened: events.Event) -> None:
        """See :class:`anabranch.scheduler.run.Log`."""
        self.events += happened


def complete(sites: int, rate_bps: float = 1e9, latency_s: float = 0.001) -> Overlay:
    """Return an overlay in which each site has a link to each other."""
    pairs = [(one, other) for one in range(sites) for other in range(sites) if one != other]
    links = (Link(*pair, rate_bps, latency_s=latency_s) for pair in pairs)
    return Overlay("complete", tuple(Site(f"s{site}") for site in range(sites)), tuple(links))


async def at_once(group: AsyncGroup, lanes: Network) -> bool:
    """Start a site's part as soon as it has joined."""
    await group.start(Transport(1024, 1024, 1 << 20), lanes)
    return True


async def as_told(group: AsyncGroup, lanes: Network) -> bool:
    """Start a site's part as its scheduler tells."""
    await group.start(group.settings.transport(), lanes)
    return True


def run(
    *programs: Program,
    service: Service | None = None,
    start: Start = at_once,
    truth: Overlay | None = None,
    log: Log | None = None,
    control_s: float = CONTROL_S,
) -> list[Any]:
    """Run a program at each site of a group, each to its end; return what they return.

    Args:
        programs: one for each site.
        service: of the group; one that all-reduces if not given.
        start: starts a site's part, on its network; returns False where the site is lost before.
        truth: the network as it is; None for what the service believes.
        log: of the scheduler.
        control_s: one way to the scheduler.

    Raises:
        Exception: what a program raises, or the scheduler.
    """
    service = service or Service(complete(len(programs)), awareness=None)
    truth, log = truth or service.overlay, log or Log()
    return run_virtually(_run(programs, service, start, truth, log, control_s))


async def _run(
    programs: tuple[Program, ...],
    service: Service,
    start: Start,
    truth: Overlay,
    log: Log,
    control_s: float,
) -> list[Any]:
    loop = asyncio.get_running_loop()
    network = SimulatedNetwork(loop, truth, seed=1, control_latency_s=control_s)  # type: ignore[arg-type]
    with network.scheduler.in_process():
        scheduler = service.scheduler(network.control(None), "token", log)
        address = await scheduler.listen(("scheduler", 0))

    async def live(site: int, program: Program) -> Any:
        def refused(sender: int | None, error: PeerError) -> None:
            raise AssertionError(f"site {site} refused a message of site {sender}") from error

        name = service.overlay.sites[site].name
        door = Door(address, name, "token", (network.sites[site].name, 0))
        group = await join(
            Ports(network.control(site), network.lanes(site)), door, Callbacks(refused)
        )
        try:
            if not await start(group, network.lanes(site)):
                return None
            returned = await program(group)
            await group.leave()
        finally:
            await group.close()
        return returned

    network.begin()
    lives = []
    for site, program in enumerate(programs):
        with network.sites[site].in_process():
            lives.append(loop.create_task(live(site, program)))
    try:
        returned = await asyncio.gather(*lives)
        await scheduler.finished()
    finally:
        await scheduler.close()
    return list(returned)


def alike(sites: int, program: Program, *arguments: Any) -> list[Any]:
    """Run one program at each of some sites."""
    return run(*(partial(program, *arguments) for _ in range(sites)))
