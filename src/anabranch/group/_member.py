"""A process's membership in a group: the event loop's thread, and the served model."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future, wait
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from anabranch import plan as plans
from anabranch._text import say
from anabranch.exchange.reduction import weight_of
from anabranch.group import _exit
from anabranch.group._packed import count_of, number_of
from anabranch.group._served_memory import ServedMemory
from anabranch.group._thread import LoopThread, switching
from anabranch.group._whole import Whole
from anabranch.group.async_group import AsyncGroup, Callbacks, Door, Ports, join
from anabranch.net.errors import PeerError, RunAborted
from anabranch.net.tcp import BY_ROUND_TRIP, LANE_SILENCE_S, Networks
from anabranch.net.tls import Credentials
from anabranch.site.agent import Gossips
from anabranch.site.control import RoundsOver
from anabranch.site.neighbourhood import LIMITS as DATA_LIMITS
from anabranch.site.round import RunEnded
from anabranch.site.serving import ServedModel

if TYPE_CHECKING:
    from anabranch.group._gossip import ModelGossip
    from anabranch.group._settings import Settings
    from anabranch.train.schedules import AnySchedule

T = TypeVar("T")

_log = logging.getLogger("anabranch")
NOT_IN = (
    "this site joins a running group; call group.admit(...) first (group.index is known before "
    "that, group.rank is not)"
)


async def now(call: Callable[[], Any]) -> Any:
    """Call a function in the loop that runs this coroutine."""
    return call()


def _left(why: str) -> RunAborted:
    return RunAborted(": ".join(filter(None, ("this site has left the group", why))))


async def _ending(call: Awaitable[T], check_open: Callable[[], None]) -> T:
    """Await a call; say why it has no result if the run is over, or this site has left."""
    try:
        return await call
    except RoundsOver as over:
        raise RunEnded(over.reason or "all sites have finished") from None
    except asyncio.CancelledError:
        check_open()  # the end of the loop cancels it once this site has left
        raise


class Member:
    """This process's membership in a group; a thread runs its event loop.

    Args:
        door: how this site joins.
        credentials: for TLS; None for plain TCP.

    Attributes:
        site: the membership as coroutines see it, which run in the loop.
        ended: fails with the error that ends the group early; is cancelled once this site leaves.
        whole: fails its futures when a member is lost while the others continue.
        gossip: the model that gossips. None before ``gossip``, and in other groups.
        over: the channels that hold no further exchange, as far as completed waits show.

    Raises:
        LinkError, RunAborted: see :func:`anabranch.join`.
    """

    def __init__(self, door: Door, credentials: Credentials | None) -> None:
        self._networks = Networks(DATA_LIMITS, credentials)
        self.thread = LoopThread(f"anabranch {door.name}", lambda: _left(self._why))
        self._closed = False
        self._why = ""  # the error with which this site left
        self._process = os.getpid()
        self.whole = Whole()
        self.over: set[int] = set()
        self.steps_told = 0  # the last step with a reported loss
        self._served: ServedMemory | None = None
        self.gossip: ModelGossip | None = None
        self._under_way: set[Future[Any]] = set()  # calls
        self._closing = threading.RLock()  # while held, the loop's thread does not end
        self._leaving: Future[None] | None = None
        try:
            self.site = self.thread.run(self._join(door))
        except BaseException:
            self.thread.close()
            raise
        self.ended = self.thread.submit(self.site.agent.ended_early())
        _exit.opened(self)

    async def _join(self, door: Door) -> AsyncGroup:
        networks = self._networks
        callbacks = Callbacks(_refused, moved=networks.moved, lost=self.whole.lost)
        site = await join(Ports(networks.control, networks.data), door, callbacks)
        try:
            self._settings = site.settings
            if self._settings.job_json:
                raise RunAborted(
                    "this scheduler runs a scenario, whose sites are started by `anabranch site`; "
                    "start one for a group by `anabranch scheduler --overlay FILE`"
                )
            if not self._settings.workers and not self._settings.gossip_json:
                await self.start(site)
        except BaseException as error:
            if isinstance(error, Exception):
                await site.fail(error)
            await site.close()
            raise
        return site

    async def start(
        self,
        site: AsyncGroup,
        served: ServedModel | None = None,
        gossips: Gossips | None = None,
    ) -> None:
        """Start this site, which exchanges, serves a model, or gossips; in the loop."""
        settings = self._settings
        lanes, strands = self._networks.lanes(
            site.overlay,
            site.index,
            site.welcome.addresses,
            settings.silence_s or LANE_SILENCE_S,
            settings.stillness_s,
            BY_ROUND_TRIP if settings.assumes_rates else None,
        )
        elements = 0 if served is None else len(served.model)
        transport = settings.transport(elements, strands)
        try:
            await site.start(transport, lanes, served, elements, gossips=gossips)
        except RoundsOver:
            raise RunAborted("the group ended before it let this site in") from None

    @property
    def first_members(self) -> tuple[int, ...]:
        """The group's members when this site joins; where a model is served, all sites."""
        if self._settings.workers:
            return tuple(range(self.site.overlay.size))
        return tuple(sorted(self.site.first_plan.members))

    @property
    def assumes_rates(self) -> bool:
        return self._settings.assumes_rates

    @cached_property
    def limit_rate_bps(self) -> float:
        return plans.limit_rate_bps(self.site.overlay)

    def is_over(self, channel: int) -> bool:
        """See :attr:`anabranch.group.blocking_group.Group.is_over`."""
        if self._served is not None and self._served.is_over:
            return True
        if self.gossip is not None and self.gossip.has_stopped:
            return True
        return not self.over.isdisjoint({0, channel})

    def check_open(self) -> None:
        if self._closed:
            raise _left(self._why)
        if os.getpid() != self._process:
            raise RunAborted("this process was forked and has no part in the group; join() in it")

    def check_started(self) -> None:
        """Check that this site has started.

        Raises:
            RunAborted: this site has left; says why.
            ValueError: another call has to come first; names it.
        """
        self.check_open()
        if not self.site.has_started:
            does = "gossips" if self._settings.gossip_json else "serves a model"
            raise ValueError(f"this group {does}; call {self._first_call} first")

    def begin(self, call: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a call in the loop; ``admit`` and ``close`` wait for its end."""
        try:
            future = self.thread.submit(_ending(call, self.check_open))
        except RunAborted:
            call.close()
            raise
        switching.begin()
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        future.add_done_callback(lambda _: switching.end(self.thread.later))
        return future

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call in the loop, and wait for its end."""
        try:
            return self.thread.run(_ending(call, self.check_open))
        except RunAborted:
            call.close()  # another thread may have closed the loop before the call began
            raise

    def for_exchanges(self) -> AsyncGroup:
        """Return this site's membership, if it may exchange.

        Raises:
            RunAborted, ValueError: this site may not exchange; says why.
        """
        self.check_started()
        if self.site.agent.gossips:
            raise ValueError(
                "this group gossips; other calls come after each member has called finish() of the "
                "ModelGossip that group.gossip() returned"
            )
        if self.site.agent.is_new:
            raise ValueError(NOT_IN)
        if self.site.is_back:
            raise ValueError(
                "this site is back, and may call only pull() and push(); exchanges are for sites "
                "that have been present since the group began"
            )
        return self.site

    def for_admission(self) -> AsyncGroup:
        """Return this site's membership, once this site's calls have ended.

        Raises:
            RunAborted, ValueError: the group can admit no site; says why.
        """
        self.check_open()
        if self._settings.gossip_json:
            raise ValueError("admit() admits no site here: sites that gossip begin together")
        if not self.site.welcome.repairs:
            raise ValueError(
                "admit() admits no site here: where a model is served, a new site calls serve(), "
                "pull() and push(); with --on-loss abort the scheduler refuses new sites"
            )
        wait(self._under_way.copy())
        return self.site

    def serve(
        self,
        parameters: list[Any],
        buffers: list[Any],
        learning_rate: float,
        momentum: float,
        optimizer: str,
        schedule: AnySchedule | None,
    ) -> None:
        from anabranch.train.optimisers import Adam, Optimiser, Sgd
        from anabranch.train.schedules import AnySchedule, Constant, scheduled

        self.check_open()
        settings = self._settings
        if not settings.workers:
            raise ValueError(
                "this group's scheduler has no pace; start it with `anabranch scheduler --pace "
                "KIND` to serve a model"
            )
        if self._served is not None or self.site.has_started:
            raise ValueError("serve() is called once")
        learning_rate, momentum = float(learning_rate), float(momentum)
        if optimizer not in ("sgd", "adam"):
            raise ValueError(f"optimizer is {optimizer!r}, must be one of sgd, adam")
        schedule = Constant() if schedule is None else schedule
        if not isinstance(schedule, AnySchedule):
            raise ValueError(
                f"schedule is {schedule!r}, must be a value of anabranch.train.schedules, such as "
                "Cosine(steps=500), or None"
            )
        what_steps = [optimizer, learning_rate, momentum, msgspec.to_builtins(schedule)]
        rule: Optimiser
        rule = Adam(learning_rate) if optimizer == "adam" else Sgd(learning_rate, momentum)
        rule = scheduled(rule, schedule)
        plain = ["sgd", 1.0, 0.0, msgspec.to_builtins(Constant())]
        if settings.mixes != "updates" and what_steps != plain:
            raise ValueError(
                f"this group's servers mix {settings.mixes}: a worker pushes its change of the "
                "pulled model, so give learning_rate=1.0, and no momentum or schedule"
            )
        held = ServedMemory(parameters, buffers)
        averaged, largest = held.averaged_elements, held.largest_elements
        merge = settings.merge
        held.asks_loss = merge is not None and merge.asks_loss
        served = settings.served_model(held.model, rule.start, averaged, largest, comes_later=True)
        what = [*what_steps, len(held.model), averaged, largest]

        async def serve() -> None:
            await self.start(self.site, served)
            await self.site.serve_alike(held.model, what)

        self.run(serve())
        self._served = held

    @property
    def _first_call(self) -> str:
        """The call that starts this site in a group that serves or gossips."""
        if self._settings.gossip_json:
            return "group.gossip(model, every=...)"
        return "group.serve(parameters, ...)"

    def for_gossip(self) -> Settings:
        """Return the group's settings, if it gossips and this site has not started.

        Raises:
            RunAborted, ValueError: this site cannot start to gossip; says why.
        """
        self.check_open()
        if not self._settings.gossip_json:
            raise ValueError(
                "this group's scheduler does not gossip; serve the group with gossip=Gossip(...), "
                "or [gossip] in its file, or call group.average(model, every=...)"
            )
        if self.site.has_started:
            raise ValueError("gossip() is called once")
        return self._settings

    @property
    def batch_size(self) -> int | None:
        """See :attr:`anabranch.group.blocking_group.Group.batch_size`."""
        permission = None if self._served is None else self._served.permission
        return None if permission is None else permission.samples or None

    def pull(self) -> bool:
        served = self._serving()
        if served.permission is not None:
            raise ValueError("pull() comes after a push(): the last update is not pushed yet")
        if served.is_over:
            return False
        served.permission = self.run(self.site.pull())
        served.is_over = served.permission is None
        if served.is_over and not self.run(self.site.has_last_model(served.model)):
            _log.warning(
                "%s: the run is over, and its last model is not sent to this site: the parameters "
                "hold an earlier one",
                self.site.names[self.site.index],
            )
        else:
            served.write()
        served.pulled_s = self.site.now_s()
        return not served.is_over

    def push(
        self,
        gradients: list[Any],
        samples: int,
        weight: float,
        loss: float | None,
        refuses_nan: bool,
    ) -> None:
        served = self._serving()
        if served.permission is None:
            raise ValueError("push() comes after a pull() that returned True, once")
        weight, samples = weight_of(weight), count_of("samples", samples, 0)
        should_be = "a finite number"
        told = None if loss is None else number_of("loss", loss, should_be)
        if told is not None and not math.isfinite(told):
            raise ValueError(f"loss is {loss!r}, must be {should_be}")
        if told is None and served.asks_loss:
            raise ValueError("this group's merge rule weighs by losses; give push(..., loss=...)")
        served.fill(gradients, refuses_nan)
        compute_s = self.site.now_s() - served.pulled_s
        permission, served.permission = served.permission, None
        what = permission, served.gradients, weight, samples, compute_s, told
        self.thread.run(now(partial(self.site.agent.push, *what)))

    def _serving(self) -> ServedMemory:
        self.check_open()
        if self._served is None:
            raise ValueError("no model is served; call group.serve(parameters, ...) first")
        return self._served

    def close(self, error: BaseException | None) -> None:
        """Leave once this site's calls have ended; with an error leave at once, and report it.

        While one thread waits here, another may call this with an error.
        """
        if os.getpid() != self._process:  # a fork has no loop's thread
            return
        with self._closing:
            leaving = None if self._closed else self.begin_to_leave(error)
            if leaving is None:
                if error is not None and not self._why and self._leaving is not None:
                    self._fails_by(error)
                    self.thread.run(self.site.fail(RuntimeError(self._why)))
                    self._leaving.cancel()
                return
        try:
            _exit.wait_until_left(leaving)
        except CancelledError:
            raise RunAborted(self._why) from None
        finally:
            self.end()

    def begin_to_leave(self, error: BaseException | None) -> Future[None] | None:
        """See :class:`anabranch.group._exit.Leaver`; any thread may call this, several times."""
        if os.getpid() != self._process:
            return None
        with self._closing:
            if not self._closed:
                self._closed = True
                if error is None and not self.site.has_started:
                    error = RunAborted(f"it left before it called {self._first_call}")
                if error is None:
                    self._leaving = self.thread.submit(self._leave())
                else:
                    self._fails_by(error)
                    self._leaving = self.thread.submit(self.site.fail(RuntimeError(self._why)))
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
            await asyncio.gather(*under_way, return_exceptions=True)
            if await self.site.leave():
                _log.warning(
                    "%s: this site has left, and the others go on without it: from here on "
                    "their model differs from this site's",
                    self.site.names[self.site.index],
                )
        finally:
            await self.site.close()


def _refused(sender: int | None, error: PeerError) -> None:
    """Print why an unauthenticated peer was refused; a member's fault ends the group instead."""
    if sender is None:
        say(f"anabranch: refused a connection: {error}", sys.stderr)
