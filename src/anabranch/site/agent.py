"""A site in a run: it joins the scheduler, asks for rounds, takes part in them, and reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from anabranch import overlay as overlays
from anabranch import plan as plans
from anabranch.net.errors import LinkError, OutOfPlaceMessage, PeerError, RunAborted
from anabranch.net.frames import DISCARD, Sink
from anabranch.net.messages import (
    Abort,
    AnyMessage,
    Failed,
    Farewell,
    Join,
    Leave,
    Message,
    NoMoreRounds,
    Ready,
    Refusal,
    Report,
    RoundEnded,
    RoundGrant,
    RoundRequest,
    Start,
    Welcome,
)
from anabranch.net.network import Address, Connection, Listener, Network, Receiver
from anabranch.plan import Plan
from anabranch.site.accumulator import Floats
from anabranch.site.aggregation import LEAST_WEIGHT, MOST_WEIGHT
from anabranch.site.arithmetic import Arithmetic
from anabranch.site.dataplane import DataPlane, DataPlaneConfig

M = TypeVar("M", bound=Message)

# How long a site whose lane broke waits for the scheduler to say who is at fault, before it gives
# its own account. Only the wording of an error depends on it.
_VERDICT_S = 2.0


class RoundsOver(Exception):
    """The scheduler ended the run in good order: the round that was asked for will not be."""


@dataclass(frozen=True, slots=True)
class Round:
    """What a site knows of a round it took part in: its number, plan version and duration."""

    round: int
    version: int
    seconds: float


class _FromScheduler:
    """Receives what the scheduler says: answers go to a queue, the end of the run does not wait."""

    def __init__(self, aborted: Callable[[Exception], None]) -> None:
        self.answers: asyncio.Queue[AnyMessage | Exception] = asyncio.Queue()
        self._aborted = aborted

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        if isinstance(message, Abort):
            self._aborted(RunAborted(message.reason))
        elif isinstance(message, Refusal):
            self._aborted(RunAborted(f"the scheduler refused this site: {message.detail}"))
        elif isinstance(message, Welcome | Start | RoundGrant | NoMoreRounds | Farewell):
            self.answers.put_nowait(message)
        else:
            raise OutOfPlaceMessage(f"a {type(message).__name__} from the scheduler")
        return DISCARD

    def on_refused(self, message: AnyMessage, error: PeerError) -> None:
        self._aborted(error)

    def on_closed(self, error: Exception | None) -> None:
        if error is not None:
            self._aborted(RunAborted(f"the scheduler is gone: {error}"))


class SiteAgent:
    """One site's side of a run.

    Args:
        control: the network to the scheduler.
        data: the network on which other sites reach this one.
        name: this site's name in the overlay.
        token: the run's shared secret.
        listen: where to take other sites' lanes; port 0 takes a free one.
        progressed: called whenever a message has been sent to another site.
        refused: told of each message from another site that was refused: (site or None, error).

    Attributes:
        began: the loop's time when the run began, once it has.
    """

    def __init__(
        self,
        control: Network,
        data: Network,
        name: str,
        token: str,
        listen: Address,
        progressed: Callable[[], None],
        refused: Callable[[int | None, PeerError], None],
    ) -> None:
        self._control = control
        self._data = data
        self._name = name
        self._token = token
        self._listen = listen
        self._progressed = progressed
        self._refused = refused
        self._loop = asyncio.get_running_loop()
        self._aborted: asyncio.Future[None] = self._loop.create_future()
        self.began: asyncio.Future[float] = self._loop.create_future()
        self._inbox = _FromScheduler(self._abort)
        self._listener: Listener | None = None
        self._connection: Connection | None = None  # to the scheduler
        self._plane: DataPlane | None = None
        self._plan: Plan
        self._round = 0
        self.welcome: Welcome

    async def join(self, scheduler: Address) -> Welcome:
        """Join a run and wait until every site has.

        Returns:
            What the scheduler says: who this site is and what the work is.

        Raises:
            LinkError: the scheduler cannot be reached.
            RunAborted: it refused this site, or the run ended before it began.
        """
        self._listener = await self._data.listen(self._listen, self._on_lane)
        self._connection = await self._control.connect(scheduler, self._inbox)
        host, port = self._listener.address
        await self._send(Join(self._token, self._name, host, port))
        self.welcome = await self._expect(Welcome)
        self._plan = plans.loads(self.welcome.plan_json)
        return self.welcome

    async def start(
        self, chunk_elements: int, buffer_elements: int, arithmetic: Arithmetic, lanes: Network
    ) -> None:
        """Say that this site is ready, and wait until every site is.

        Args:
            chunk_elements: the most elements of a chunk; the same at every site.
            buffer_elements: the largest buffer a round of this run has.
            arithmetic: what is done to elements; the same at every site.
            lanes: the network on which this site connects to others.
        """
        config = DataPlaneConfig(
            site=self.welcome.site,
            overlay=overlays.loads(self.welcome.overlay_toml),
            addresses=self.welcome.addresses,
            token=self._token,
            chunk_elements=chunk_elements,
            buffer_elements=buffer_elements,
        )
        self._plane = DataPlane(
            lanes, config, arithmetic, self._progressed, self._refused, self._on_data_plane_failed
        )
        await self._send(Ready(buffer_elements))
        await self._expect(Start)
        self.began.set_result(self._loop.time())

    async def all_reduce(self, buffer: Floats, weight: float = 1.0) -> Round:
        """Replace a buffer by its weighted mean over all sites; one round.

        Args:
            buffer: flat float32, contiguous, writable, the same length at every site.
            weight: of this site's contribution, > 0.

        Raises:
            ValueError: not such a buffer or weight.
            RoundsOver: there is no further round; the buffer is as it was.
            RunAborted: the run ended early; names who or what caused it.
        """
        assert self._plane is not None, "start() comes first"
        _check_buffer(buffer, weight, self._plane.config.buffer_elements)
        began_s = self._loop.time()
        self._round += 1
        await self._send(RoundRequest(self._round))
        grant = await self._expect(RoundGrant, NoMoreRounds)
        if isinstance(grant, NoMoreRounds):
            raise RoundsOver
        assert isinstance(grant, RoundGrant)
        if grant.round != self._round:
            raise RunAborted(f"the scheduler granted round {grant.round}, not {self._round}")
        if grant.plan_json:
            self._plan = plans.loads(grant.plan_json)
        try:
            await self._plane.all_reduce(self._round, self._plan, buffer, weight)
        except (LinkError, PeerError, RunAborted) as error:
            raise await self._verdict(error) from error
        return Round(self._round, grant.version, self._loop.time() - began_s)

    async def round_ended(self, done: Round, checksum: int | None) -> None:
        """Tell the scheduler that a round's result is in use here."""
        await self._send(RoundEnded(done.round, done.version, done.seconds, checksum))

    def report(self, events: tuple[bytes, ...]) -> None:
        """Send encoded events to the run's log; does not wait."""
        assert self._connection is not None, "join() comes first"
        self._connection.post(Report(events))

    async def leave(self) -> None:
        """Say that this site has finished, wait until every site has, and close."""
        await self._send(Leave())
        await self._expect(Farewell)
        self.close()

    async def fail(self, error: Exception) -> None:
        """Tell the scheduler that this site cannot go on, which ends the run, and close."""
        if self._connection is not None and not self._aborted.done():
            self._connection.post(Failed(str(error) or type(error).__name__))
        self.close()

    def close(self) -> None:
        """Close every connection; no error reaches anyone."""
        if self._listener is not None:
            self._listener.close()
        if self._plane is not None:
            self._plane.close()
        if self._connection is not None:
            self._connection.close()

    def sent_bytes(self) -> dict[int, int]:
        """Return the payload bytes sent so far to each neighbour."""
        return {} if self._plane is None else self._plane.sent_bytes()

    # --- inside

    def _on_lane(self, connection: Connection) -> Receiver:
        # A site is ready before any other opens a lane to it, so who comes earlier is a stranger.
        return _Stranger(connection) if self._plane is None else self._plane.welcome(connection)

    def _abort(self, error: Exception) -> None:
        if not self._aborted.done():
            self._aborted.set_exception(error)
            self._aborted.exception()  # somebody may never ask: no reason for a warning
            self._inbox.answers.put_nowait(error)
            if self._plane is not None:
                self._plane.fail(error)

    def _on_data_plane_failed(self, error: Exception) -> None:
        if self._connection is not None and not self._aborted.done():
            self._connection.post(Abort(str(error)))

    async def _verdict(self, error: Exception) -> Exception:
        """Return the scheduler's account of a failure, or our own if it gives none."""
        await asyncio.wait({self._aborted}, timeout=_VERDICT_S)
        if self._aborted.done():
            verdict = self._aborted.exception()
            assert isinstance(verdict, Exception)
            return verdict
        return RunAborted(str(error))

    async def _send(self, message: Message) -> None:
        if self._aborted.done():
            self._aborted.result()
        assert self._connection is not None, "join() comes first"
        try:
            await self._connection.send(message)
        except LinkError as error:
            raise await self._verdict(error) from error

    async def _expect(self, *kinds: type[M]) -> M:
        answer = await self._inbox.answers.get()
        if isinstance(answer, Exception):
            self._inbox.answers.put_nowait(answer)  # for whoever asks next
            raise answer
        for kind in kinds:
            if isinstance(answer, kind):
                return answer
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise RunAborted(f"the scheduler said {type(answer).__name__}, not {wanted}")


class _Stranger:
    """Receives a connection that comes before lanes are due: it hears nothing and is closed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        raise OutOfPlaceMessage("no lanes are due yet")

    def on_refused(self, message: AnyMessage, error: PeerError) -> None:
        self._connection.close()

    def on_closed(self, error: Exception | None) -> None:
        pass


def _check_buffer(buffer: Floats, weight: float, most: int) -> None:
    if (
        not isinstance(buffer, np.ndarray)
        or buffer.dtype != np.float32
        or buffer.ndim != 1
        or not buffer.flags.c_contiguous
        or not buffer.flags.writeable
    ):
        raise ValueError(
            "all_reduce takes a flat, contiguous, writable float32 array; got "
            f"{getattr(buffer, 'dtype', type(buffer).__name__)} of shape "
            f"{getattr(buffer, 'shape', '?')}"
        )
    if len(buffer) > most:
        raise ValueError(f"the buffer has {len(buffer)} elements, this run allows {most}")
    if not len(buffer):
        raise ValueError("the buffer is empty; a round without data would not wait for anybody")
    if not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
        raise ValueError(
            f"weight is {weight:g}, must be in {LEAST_WEIGHT:g}..{MOST_WEIGHT:g}; scale all weights"
        )
