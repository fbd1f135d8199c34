"""A process's part in a group: its event loop, its agent, and the model that is served."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any, TypeVar

import msgspec

from anabranch import overlay as overlays
from anabranch import plan as plans
from anabranch._text import say
from anabranch.group import _exit, _settings
from anabranch.group._packed import MOST_COUNTED
from anabranch.group._served_memory import ServedMemory
from anabranch.group._thread import LoopThread
from anabranch.group._whole import Whole
from anabranch.group.hand_over import HandedOver, Offer, hand_over
from anabranch.net.addresses import ListenAt
from anabranch.net.errors import PeerError, RunAborted
from anabranch.net.frames import CONTROL_LIMITS
from anabranch.net.messages import Admitted
from anabranch.net.network import Address
from anabranch.net.silence import LANE_HEARTBEAT_S
from anabranch.net.tcp import CONTROL_SILENCE_S, LANE_SILENCE_S, TcpNetwork, lane_network
from anabranch.net.tls import Credentials
from anabranch.record import events
from anabranch.site.agent import SiteAgent, Transport
from anabranch.site.arithmetic import Flat
from anabranch.site.collectives import RunEnded
from anabranch.site.control import RoundsOver
from anabranch.site.meter import Meter
from anabranch.site.neighbourhood import LIMITS as DATA_LIMITS
from anabranch.site.partition import Mixing
from anabranch.site.reduction import weight_of
from anabranch.site.serving import ServedModel
from anabranch.site.terms import Op, Terms, Wire

T = TypeVar("T")

_log = logging.getLogger("anabranch")
_LOOKS_EVERY_S = 0.5  # for a reason to wait no longer
NOT_IN = (
    "this site joins a group that goes on; call group.admit(...) first (its group.index is known "
    "before, its rank is not)"
)


async def now(call: Callable[[], Any]) -> Any:
    """Call a function in the loop that this is run in."""
    return call()


async def ending(awaitable: Any) -> Any:
    """Say to a program that no further exchange is held."""
    try:
        return await awaitable
    except RoundsOver as over:
        raise RunEnded(over.reason or "all sites have finished") from None


async def _unless(gives_up: Callable[[], str | None] | None, doing: Coroutine[Any, Any, T]) -> T:
    """Do something, until there is a reason to give it up.

    Raises:
        RunAborted: there is; says which.
    """
    task = asyncio.get_running_loop().create_task(doing)
    try:
        while gives_up is not None:
            done, _ = await asyncio.wait({task}, timeout=_LOOKS_EVERY_S)
            if done:
                break
            if (why := await asyncio.to_thread(gives_up)) is not None:
                raise RunAborted(why)
        return await task
    finally:
        task.cancel()


@dataclass(frozen=True, slots=True)
class Door:
    """How a site comes into a group.

    Args:
        scheduler: where that listens.
        name: the site's.
        token: the group's secret.
        listen: where it takes connections of others, see :class:`SiteAgent`.
        advertise: where others find it; None for where it listens.
        credentials: for TLS; None for none.
        patience_s: how long to try where no scheduler answers.
        gives_up, say: see :func:`anabranch.group._group.join_at`.
    """

    scheduler: Address
    name: str
    token: str
    listen: ListenAt | None
    advertise: str | None
    credentials: Credentials | None
    patience_s: float
    gives_up: Callable[[], str | None] | None
    say: Callable[[str], None] | None


class Member:
    """This process's part in a group: its event loop, its agent, and what was measured.

    Args:
        door: how it comes in.

    Attributes:
        ended: fails by what ends the group before its time; is cancelled where this site leaves.
        whole: tells of members that are lost while the others go on.

    Raises:
        LinkError, RunAborted: see :func:`anabranch.join`.
    """

    def __init__(self, door: Door) -> None:
        # Halves are converted by it, in the loop's thread, which must not stand still for seconds
        # while it is imported there: other sites would give this one up.
        import torch  # noqa: F401

        self._credentials = door.credentials
        self.thread = LoopThread(f"anabranch {door.name}")
        self._closed = False
        self._why = ""  # an error that ended this site's part
        self._process = os.getpid()
        self._started = False
        self.whole = Whole()
        self.steps_told = 0  # that the scheduler was told a loss of
        self._served: ServedMemory | None = None
        self._under_way: set[Future[Any]] = set()  # calls
        self._handing_on: set[asyncio.Task[None]] = set()  # the state, while others go on
        self._closing = threading.RLock()  # held where the loop's thread is not to end
        self._leaving: Future[None] | None = None
        try:
            self.thread.run(self._join(door))
        except BaseException:
            self.thread.close()
            raise
        self.ended = self.thread.submit(self.agent.ended_early())
        _exit.opened(self)

    async def _join(self, door: Door) -> None:
        self.agent = SiteAgent(
            TcpNetwork(
                CONTROL_LIMITS,
                least_silence_s=CONTROL_SILENCE_S,
                credentials=door.credentials,
                ends_with_way=True,
            ),
            TcpNetwork(
                DATA_LIMITS,
                credentials=door.credentials,
                heartbeat_s=LANE_HEARTBEAT_S,
            ),
            door.name,
            door.token,
            door.listen,
            None,
            _refused,
            advertise=door.advertise,
            told_lost=self.whole.lost,
        )
        try:
            joining = self.agent.join(door.scheduler, door.patience_s, door.say)
            welcome = await _unless(door.gives_up, joining)
            self.index = welcome.site
            self.overlay = overlays.loads(welcome.overlay_toml)
            self.first_plan = plans.loads(welcome.plan_json)
            self._settings = _settings.loads(welcome.work)
            self.agent.wait_for_scheduler(self._settings.away_s)
            self._addresses = welcome.addresses
            self.meter: Meter | None = None
            if not self._settings.workers:
                await self._start(None)
        except BaseException as error:
            if isinstance(error, Exception):
                await self.agent.fail(error)
            self.agent.close()
            raise

    async def _start(self, served: ServedModel | None) -> None:
        settings = self._settings
        if settings.measuring is not None:
            self.meter = settings.measuring.meter()
        lanes, strands = lane_network(
            DATA_LIMITS,
            self.overlay,
            self.index,
            self._addresses,
            self._credentials,
            settings.silence_s or LANE_SILENCE_S,
            settings.stillness_s,
        )
        transport = Transport(
            settings.least_chunk_elements,
            settings.most_chunk_elements,
            max(settings.under_way_bytes // 4, settings.most_chunk_elements),
            strands,
            settings.auxiliary,
            kept_elements=settings.under_way_bytes // 4,
        )
        elements = 0 if served is None else len(served.model)
        try:
            await self.agent.start(transport, lanes, self.meter, served, elements)
        except RoundsOver:
            raise RunAborted("the group has ended, before it let this site in") from None
        self._started = True

    @property
    def assumes_rates(self) -> bool:
        return self._settings.assumes_rates

    @cached_property
    def limit_rate_bps(self) -> float:
        return plans.limit_rate_bps(self.overlay)

    @property
    def is_over(self) -> bool:
        """See :attr:`anabranch.group._group.Group.is_over`."""
        return self.agent.is_refused or (self._served is not None and self._served.is_over)

    def check_open(self) -> None:
        if self._closed:
            raise RunAborted(": ".join(filter(None, ("this site has left the group", self._why))))
        if os.getpid() != self._process:
            raise RunAborted("this process was forked and has no part in the group; join() in it")

    def report_loss(self, loss: float, step: int, samples: int) -> None:
        """Tell the scheduler of a step's loss; in the loop's thread."""
        began_s = self.agent.began.result()
        told = events.StepDone(
            at_s=max(0.0, asyncio.get_running_loop().time() - began_s),
            site=self.index,
            round=step,
            loss=loss if math.isfinite(loss) else None,
            samples=samples,
            compute_s=0.0,
        )
        self.agent.report((events.encode(told).encode(),))

    def begin(self, call: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a call in the loop; others are let in, and this site leaves, once it has ended."""
        future = self.thread.submit(call)
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        return future

    def hand_over(self, admitted: Admitted, offer: Offer | None) -> HandedOver:
        """See :func:`anabranch.group.hand_over.hand_over`; this site leaves once all is sent."""

        async def hand() -> HandedOver:
            names = [site.name for site in self.overlay.sites]
            handed = await hand_over(self.agent, names, admitted, offer)
            if handed.sending is not None:
                self._handing_on.add(handed.sending)
                handed.sending.add_done_callback(self._handing_on.discard)
            return handed

        handed: HandedOver = self.thread.run(ending(hand()))
        return handed

    def agent_for_exchanges(self) -> SiteAgent:
        self.check_open()
        if not self._started:
            raise ValueError("this group serves a model; call group.serve(parameters, ...) first")
        if self.agent.is_new:
            raise ValueError(NOT_IN)
        if self._is_back:
            raise ValueError(
                "this site is back, and takes part by pull() and push() alone; exchanges are for "
                "those who have been there from the beginning"
            )
        return self.agent

    @property
    def _is_back(self) -> bool:
        """Whether this is another process of a site that took part before, in serving a model."""
        return bool(self.agent.welcome.updates)

    def agent_for_admission(self) -> SiteAgent:
        """Return the agent, once calls of this site have ended."""
        self.check_open()
        if not self.agent.welcome.repairs:
            raise ValueError(
                "admit() lets no site in here: where a model is served, a site that comes calls "
                "serve(), pull() and push(); with --on-loss abort the scheduler refuses it"
            )
        wait(self._under_way.copy())
        return self.agent

    def serve(
        self,
        parameters: list[Any],
        buffers: list[Any],
        learning_rate: float,
        momentum: float,
        optimizer: str,
    ) -> None:
        from anabranch.learn.optimisers import Adam, Optimiser, Sgd

        self.check_open()
        settings = self._settings
        if not settings.workers:
            raise ValueError(
                "this group's scheduler has no pace; start it with `anabranch scheduler --pace "
                "KIND` to serve a model"
            )
        if self._served is not None or self._started:
            raise ValueError("serve() is called once")
        learning_rate, momentum = float(learning_rate), float(momentum)
        if optimizer not in ("sgd", "adam"):
            raise ValueError(f"optimizer is {optimizer!r}, must be one of sgd, adam")
        rule: Optimiser
        rule = Adam(learning_rate) if optimizer == "adam" else Sgd(learning_rate, momentum)
        held = ServedMemory(parameters, buffers)
        groups = (settings.added_up,) if settings.added_up else ()
        averaged, largest = held.averaged_elements, held.largest_elements
        served = ServedModel(
            held.model,
            rule.start,
            settings.workers,
            groups,
            settings.ahead,
            mixing=Mixing(averaged_elements=averaged, largest_elements=largest),
            comes_later=True,
        )
        what = [optimizer, learning_rate, momentum, len(held.model), averaged, largest]
        self.thread.run(ending(self._serve(served, what)))
        self._served = held

    async def _serve(self, served: ServedModel, what: list[Any]) -> None:
        """Start, and let every site begin from the same model, by the same rule."""
        await self._start(served)
        if self._is_back:
            return  # the servers have the model, and send it
        said = await self.agent.gather(msgspec.msgpack.encode(what))
        for site, each in zip(said.members, map(msgspec.msgpack.decode, said.values), strict=True):
            if each != what:
                name = self.overlay.sites[site].name
                raise ValueError(
                    f"{name} serves (optimizer, learning rate, momentum, elements, of which float "
                    f"buffers, integers) {each}, this site {what}; give the same at every site"
                )
        terms = Terms(Op.COPY, Wire.FLOAT32, len(served.model), source=min(said.members))
        done = await self.agent.exchange(Flat(served.model), terms)
        await self.agent.round_ended(done, None)
        self.agent.reload()
        await self.agent.gather(b"")  # no server takes a step before all have that model

    def pull(self) -> bool:
        served = self._serving()
        if served.permission is not None:
            raise ValueError("pull() comes after a push(): the last update is not pushed yet")
        if served.is_over:
            return False
        try:
            served.permission = self.thread.run(self.agent.permission())
        except RoundsOver:
            served.is_over = True
            self.thread.run(ending(self.agent.last_model()))
        served.write()
        served.pulled_s = time.perf_counter()
        return not served.is_over

    def push(self, gradients: list[Any], samples: int, weight: float, refuses_nan: bool) -> None:
        served = self._serving()
        if served.permission is None:
            raise ValueError("push() comes after a pull() that returned True, once")
        weight = weight_of(weight)
        if not isinstance(samples, Integral) or not 0 <= samples <= MOST_COUNTED:
            raise ValueError(f"samples is {samples!r}, must be a number of samples")
        served.fill(gradients, refuses_nan)
        compute_s = time.perf_counter() - served.pulled_s
        permission, served.permission = served.permission, None

        async def push() -> None:
            self.agent.push(permission, served.gradients, weight, int(samples), compute_s)

        self.thread.run(push())

    def _serving(self) -> ServedMemory:
        self.check_open()
        if self._served is None:
            raise ValueError("no model is served; call group.serve(parameters, ...) first")
        return self._served

    def close(self, error: BaseException | None) -> None:
        """Leave once this site's calls have ended; or at once, with an error that others are told.

        The error may come from another thread, while the first call waits.
        """
        if os.getpid() != self._process:  # a fork has no loop's thread
            return
        with self._closing:
            leaving = None if self._closed else self.begin_to_leave(error)
            if leaving is None:
                if error is not None and not self._why and self._leaving is not None:
                    self._fails_by(error)
                    self.thread.run(self.agent.fail(RuntimeError(self._why)))
                    self._leaving.cancel()
                return
        try:
            _exit.wait_until_left(leaving)
        except CancelledError:
            raise RunAborted(self._why) from None
        finally:
            self.end()

    def begin_to_leave(self, error: BaseException | None) -> Future[None] | None:
        """See :class:`anabranch.group._exit.Leaver`; once, whatever thread it is called from."""
        if os.getpid() != self._process:
            return None
        with self._closing:
            if not self._closed:
                self._closed = True
                if error is None and not self._started:
                    error = RunAborted("it left before it called serve()")
                if error is None:
                    self._leaving = self.thread.submit(self._leave())
                else:
                    self._fails_by(error)
                    self._leaving = self.thread.submit(self.agent.fail(RuntimeError(self._why)))
            return self._leaving

    def end(self) -> None:
        """See :class:`anabranch.group._exit.Leaver`."""
        if os.getpid() == self._process:
            with self._closing:
                self._leaving = None
                self.thread.close()
        _exit.ended(self)

    def _fails_by(self, error: BaseException) -> None:
        self._why = ": ".join(filter(None, (type(error).__name__, str(error))))

    async def _leave(self) -> None:
        try:
            under_way = map(asyncio.wrap_future, self._under_way.copy())
            await asyncio.gather(*under_way, *self._handing_on, return_exceptions=True)
            if await self.agent.leave():
                _log.warning(
                    "%s: this site has left, and the others go on without it: its model is not the "
                    "one that they train from here on",
                    self.overlay.sites[self.index].name,
                )
        finally:
            self.agent.close()


def _refused(sender: int | None, error: PeerError) -> None:
    """Print why an unauthenticated peer was refused; what a member does wrong ends the group."""
    if sender is None:
        say(f"anabranch: refused a connection: {error}", sys.stderr)
