"""A site's process: one site of a run, in real time over TCP.

The process carries out the scripted faults of its own site: it changes the rates of the site's
links, and it kills or stops itself.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from anabranch.fleet import ComputeModel
from anabranch.net.addresses import ListenAt
from anabranch.net.errors import RunAborted
from anabranch.net.messages import Welcome
from anabranch.net.network import Address, ControlNetwork, Network
from anabranch.net.shaping import Course, ShapedNetwork
from anabranch.net.stdin import at_end_of_stdin
from anabranch.net.tcp import LANE_SILENCE_S, Networks
from anabranch.net.tls import Credentials
from anabranch.overlay import Link, Overlay
from anabranch.site.neighbourhood import LIMITS as DATA_LIMITS
from anabranch_lab.run._faults import Kill, Pause, Scripted, link_factors, play
from anabranch_lab.run._site import Passing, take_part
from anabranch_lab.run._standing_still import stand_still
from anabranch_lab.run.checkpoints import Files
from anabranch_lab.run.scenario import Scenario, compute_model, script_of

T = TypeVar("T")
_log = logging.getLogger("anabranch")

# The event loop and the thread that trains share the interpreter. At the default of 5 ms the loop
# would wait that long for each turn.
_SWITCH_INTERVAL_S = 0.0005


def run_site(
    name: str,
    scheduler: Address,
    token: str,
    listen: ListenAt | None,
    files: Files,
    threads: int | None = None,
    stop_with_stdin: bool = False,
    advertise: str | None = None,
    patience_s: float = 0.0,
    credentials: Credentials | None = None,
) -> None:
    """Run one site of a run until the run ends.

    Args:
        name: this site's name in the run's overlay.
        scheduler: the scheduler's address, where the site joins.
        token: the run's shared secret.
        listen: where this site accepts connections of other sites; see :class:`SiteAgent`.
        files: where this site reads and writes.
        threads: how many torch uses; None: torch chooses.
        stop_with_stdin: end when standard input closes, so that this process cannot outlive its
            parent.
        advertise: the host at which other sites find this one; None: the host of ``listen``.
        patience_s: how long to retry while no scheduler answers.
        credentials: for TLS; None: no TLS.

    Raises:
        RunAborted: the run ended early; names the site or the cause.
        LinkError: the scheduler cannot be reached.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    if threads is not None:
        # Torch reads this variable at import, which comes later, and only where a task needs torch.
        os.environ["OMP_NUM_THREADS"] = str(threads)
    gc.freeze()  # modules stay loaded, so each collection would scan them in vain
    try:
        asyncio.run(
            _run(
                name,
                scheduler,
                token,
                files,
                stop_with_stdin,
                listen,
                advertise,
                patience_s,
                credentials,
            )
        )
    except asyncio.CancelledError:
        raise RunAborted("the process that started the run is gone") from None


async def _run(
    name: str,
    scheduler: Address,
    token: str,
    files: Files,
    stop_with_stdin: bool,
    listen: ListenAt | None,
    advertise: str | None,
    patience_s: float,
    credentials: Credentials | None,
) -> None:
    # A launcher that started this process prints such lines itself.
    say = None if stop_with_stdin else _log.warning
    world = _RealWorld(listen, advertise, patience_s, credentials, say)
    part = asyncio.ensure_future(take_part(world, name, scheduler, token, files))
    if stop_with_stdin:
        at_end_of_stdin(part.cancel)
    await part


class _RealWorld:
    """See :class:`anabranch_lab.run._site.World`."""

    def __init__(
        self,
        listen: ListenAt | None,
        advertise: str | None,
        patience_s: float,
        credentials: Credentials | None,
        say: Callable[[str], None] | None,
    ) -> None:
        self._networks = Networks(DATA_LIMITS, credentials)
        self.control: ControlNetwork = self._networks.control
        self.data: Network = self._networks.data
        self.listen = listen
        self.advertise = advertise
        self.patience_s = patience_s
        self.say = say
        self.strands = 1
        self._loop = asyncio.get_running_loop()
        self._model: ComputeModel | None = None
        self._site: int
        self._began: asyncio.Future[float]
        self._is_followed = False  # an earlier incarnation has scheduled the scripted faults
        # By the address that it leads to: each link from this site, and the link back.
        self._links: dict[Address, tuple[Link, Link | None]] = {}
        self._overlay: Overlay

    def clock_s(self) -> float:
        return self._loop.time()

    def enter(
        self, scenario: Scenario, overlay: Overlay, welcome: Welcome, began: asyncio.Future[float]
    ) -> Network:
        self._site, self._began = welcome.site, began
        self._model = compute_model(scenario, overlay)
        self._overlay = overlay
        for site, address in welcome.addresses.items():
            self.moved(site, address)
        if scenario.shaped and self.listen is None:
            raise RunAborted(
                "--outbound-only is for sites on machines of their own, and this run holds links "
                "to their rates on one; say shaped = false in the scenario"
            )
        wait_s = LANE_SILENCE_S if scenario.wait_s is None else scenario.wait_s
        scripted = script_of(scenario, overlay)
        if not self._is_followed:
            self._is_followed = True
            began.add_done_callback(lambda began: self._follow(scripted, began))
        if scenario.shaped:
            self._networks.data.give_up_after(wait_s)
            return ShapedNetwork(
                self.data,
                self._links,
                scenario.seed,
                began,
                lambda link: Course(link_factors(scripted, link)),
                connect_s=wait_s,
            )
        lanes, self.strands = self._networks.lanes(
            overlay, welcome.site, welcome.addresses, wait_s, wait_s, scenario.congestion_control
        )
        return lanes

    def _follow(self, scripted: Sequence[Scripted], began: asyncio.Future[float]) -> None:
        """Schedule the scripted kills and pauses of this site's process."""
        if began.cancelled():
            return
        began_s = began.result()

        def at(at_s: float, callback: Callable[[Scripted], None], what: Scripted) -> None:
            self._loop.call_at(began_s + at_s, callback, what)

        for each in scripted:
            if isinstance(each.action, Kill | Pause) and each.action.site == self._site:
                play(each.moments(), at, _carry_out)

    def moved(self, site: int, address: Address) -> None:
        link = self._overlay.link(self._site, site)
        if link is not None:
            self._links[address] = link, self._overlay.link(site, self._site)
        self._networks.moved(site, address)

    def sizes_only(self, scenario: Scenario) -> bool:
        return False

    def round_begins(self, round: int) -> None:
        pass

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def compute(
        self, step: int, samples: int, do: Callable[[], T], passing: Passing, client: int | None
    ) -> T:
        start_s = self._loop.time()
        done = await self._loop.run_in_executor(None, do)
        if self._model is not None:
            began_s = await self._began
            who = self._site if client is None else client
            takes_s = self._model.step_s(who, step, samples, start_s - began_s)
            async with passing:
                await asyncio.sleep(start_s + takes_s - self._loop.time())
        return done


def _carry_out(what: Scripted) -> None:
    """Kill this process, or pause it."""
    match what.action:
        case Kill():
            os.kill(os.getpid(), signal.SIGKILL)
        case Pause(for_s=for_s):
            stand_still(for_s)
