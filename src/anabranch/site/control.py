"""A site's connection to the scheduler: one session over one connection after another.

States, and what moves them::

    join --Welcome--> connected --lost--> reconnecting --Resumed, Restarted--> connected
                          |                     `-- patience is over --> aborted
                          `-- Abort, Refusal, a malformed message -----> aborted;  close --> closed

While reconnecting, messages are kept in the session, and sent later. `_ways` chooses the order of
direct attempts and of pipes through neighbours. After an abort every call raises its error.

Messages are of two kinds. An answer that one call awaits goes into a queue (``expect``). All others
go to ``told`` at once. Only this class knows which is which (``hear``).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from anabranch._text import visible
from anabranch.net.addresses import show
from anabranch.net.deadline import within
from anabranch.net.errors import (
    LeftOut,
    LinkError,
    NetError,
    OutOfPlaceMessage,
    PeerError,
    RunAborted,
    SilentWay,
    UnauthorisedPeer,
)
from anabranch.net.frames import DISCARD, Sink
from anabranch.net.identity import proven
from anabranch.net.messages import (
    Abandon,
    Abort,
    Ack,
    Admitted,
    Advance,
    AnyMessage,
    Auxiliary,
    CallMade,
    Departed,
    Dispatched,
    EpochChanged,
    ExchangeFailed,
    Failed,
    Gathered,
    GatherFailed,
    Grant,
    Interrupt,
    Join,
    Lease,
    LeaseOver,
    LinkCut,
    LinkProbe,
    Message,
    ModelsDiffer,
    NoMoreRounds,
    PaceOver,
    Patience,
    Proceed,
    Reform,
    Refusal,
    Rejoined,
    Repair,
    RequestAwaited,
    Restarted,
    Resume,
    Resumed,
    Settled,
    Shutdown,
    SiteAwaited,
    SiteGone,
    Stack,
    StackRequest,
    Start,
    Stopping,
    Subgrouped,
    TimeReply,
    Welcome,
    Withdrawn,
)
from anabranch.net.network import Address, Connection, ControlNetwork
from anabranch.net.pipe import End
from anabranch.net.session import LEAST_PATIENCE_S, Session
from anabranch.net.tcp import CONTROL_SILENCE_S
from anabranch.net.tls import SCHEDULER, TlsError, checked, connect_to
from anabranch.site._carrying import Carrying
from anabranch.site._stacks import stacks
from anabranch.site._waiting import saying
from anabranch.site._ways import Attempt, Ways

M = TypeVar("M", bound=Message)
_log = logging.getLogger("anabranch")

# How long a site with a broken lane waits for the scheduler's error before it reports its own.
# Only the wording of an error depends on it.
_VERDICT_S = 2.0
# Between attempts to connect again, doubled each time.
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.2
_ATTEMPTS = 3  # unanswered attempts that fit into the patience


class Neighbours(Protocol):
    """The neighbours through which a site may reach the scheduler."""

    def that_may_pipe(self) -> Sequence[int]:
        """Return the neighbours that can be asked for a pipe now, by index, in order of choice."""

    async def ask_for_pipe(self, neighbour: int, end: End) -> Connection:
        """Connect to a neighbour, and ask it to pipe that connection to the scheduler.

        Raises:
            NetError: it cannot be reached, or another site answers.
        """

    def name(self, neighbour: int) -> str:
        """Return a neighbour's index and name."""


class RoundsOver(Exception):
    """The scheduler has ended the run in good order; it grants no further rounds.

    Args:
        reason: why it ended; empty if the scheduler gave no reason.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Control:
    """A site's side of its session with the scheduler.

    It is one class since a session has one state, whichever connection carries it.

    Args:
        network: the network to the scheduler.
        token: the run's shared secret.
        told: called with each message that ``expect`` does not return.
        failed: called once, with the error, when the run has ended early for this site.

    Attributes:
        neighbours: the neighbours through which it may reach the scheduler; None before it has
            lanes.
    """

    def __init__(
        self,
        network: ControlNetwork,
        token: str,
        told: Callable[[AnyMessage], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._network = network
        self._carrying = Carrying(network)
        self.neighbours: Neighbours | None = None
        self._through: int | None = None  # the neighbour that pipes the connection; None for none
        self._token = token
        self._told = told
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._answers: asyncio.Queue[AnyMessage | Exception] = asyncio.Queue()
        self._aborted: asyncio.Future[None] = self._loop.create_future()
        self._scheduler: Address
        self._say: Callable[[str], None] | None = None
        self._why_away = ""  # why the last attempt to connect again failed
        self._why_not_carried: dict[str, None] = {}  # neighbours' different errors, in order
        self._site: int | None = None  # None before every site has joined
        self._incarnation = 0
        self._secret = b""
        self._session: Session | None = None
        self._patience_s = LEAST_PATIENCE_S  # from the scheduler's latest Patience
        self._least_patience_s = 0.0
        self._joins_until_s = -math.inf
        # May be under way when nothing is delayed any more.
        self._flushing: asyncio.TimerHandle | None = None
        self._resumed = asyncio.Event()
        self._reconnecting: asyncio.Task[None] | None = None  # while there is no connection
        self._closed = False

    @property
    def is_over(self) -> bool:
        """Whether the run has ended early for this site."""
        return self._aborted.done()

    @property
    def is_open(self) -> bool:
        """Whether there is a session that is open, or may be resumed."""
        return self._session is not None and not self.is_over

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection."""
        return self.is_open and self._reconnecting is None

    @property
    def patience_s(self) -> float:
        """How long this site may be disconnected, as the scheduler told last; seconds."""
        return self._patience_s

    def carry(self, source: int, connection: Connection) -> End:
        """See :meth:`anabranch.site._carrying.Carrying.take`."""
        is_direct = self.is_connected and self._through is None
        return self._carrying.take(source, connection, self._scheduler if is_direct else None)

    async def finish_carrying(self) -> None:
        """See :meth:`anabranch.site._carrying.Carrying.finish`."""
        await self._carrying.finish()

    def wait_longer(self, patience_s: float) -> None:
        """Try for at least so long to reach a lost scheduler, since it may be restarted."""
        self._least_patience_s = patience_s

    async def join(
        self,
        scheduler: Address,
        introduce: Callable[[tuple[str, str]], Awaitable[Join]],
        patience_s: float = 0.0,
        say: Callable[[str], None] | None = None,
    ) -> Welcome:
        """Join a run, and wait until every site has joined.

        Args:
            scheduler: the scheduler's address.
            introduce: returns the Join message, given the connection's two addresses.
            patience_s: how long to try while nothing answers, or while the scheduler is lost again
                before all sites have joined.
            say: called with lines for the operator if joining, or a later reconnect, takes long;
                None for none.

        Raises:
            LinkError: the scheduler cannot be reached.
            PeerError: the listener is no scheduler of this release.
            RunAborted: it refused this site, or the run ended before it began.
        """
        self._scheduler, self._say = scheduler, say
        self._joins_until_s = self._loop.time() + patience_s
        gone: LinkError | None = None
        while True:
            left_s = max(0.0, self._joins_until_s - self._loop.time())
            connection = await self._connect_first(scheduler, left_s)
            try:
                join = await introduce(connection.hosts)
            except BaseException:
                connection.close()
                raise
            connection.post(proven(join, self._token.encode(), connection.their_challenge))
            self._session = Session(connection)
            try:
                with saying(say, lambda: f"joined at {show(scheduler)}; waits for the others"):
                    welcome = await self.expect(Welcome)
                break
            except LinkError as error:
                gone = error
            self._answers.get_nowait()  # ``expect`` keeps an error for the next call
            if self._loop.time() > self._joins_until_s:
                raise RunAborted(f"the scheduler is gone: {gone}")
            await asyncio.sleep(_LONGEST_PAUSE_S)
        self._site = welcome.site
        self._secret = welcome.secret
        self._incarnation = welcome.incarnations[welcome.site]
        return welcome

    async def _connect_first(self, scheduler: Address, patience_s: float) -> Connection:
        """Try until the scheduler answers; raise any error but a LinkError at once."""
        until_s, pause_s = self._loop.time() + patience_s, _FIRST_PAUSE_S
        why = "nothing answers"

        def waits() -> str:
            left_s = max(0.0, until_s - self._loop.time())
            return f"no scheduler at {show(scheduler)}: {why}; tries for {left_s:.0f} s more"

        with saying(self._say, waits):
            while True:
                try:
                    return await connect_to(self._network, scheduler, _Inbound(self), SCHEDULER)
                except LinkError as error:
                    if self._loop.time() + pause_s > until_s:
                        raise
                    why = str(error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def tell(self, line: str) -> None:
        """Print a line for the site's operator, if ``join`` was given ``say``."""
        if self._say is not None:
            self._say(visible(line))  # it contains text from other processes

    def post(self, message: Message) -> None:
        """Send a message, without waiting."""
        assert self._session is not None, "join() comes first"
        self._session.post(message)

    def post_delayed(self, message: Message, within_s: float) -> None:
        """Send a message with the next one, or within some seconds; no caller awaits an answer.

        Args:
            message: the message.
            within_s: the longest delay.
        """
        assert self._session is not None, "join() comes first"
        self._session.post(message, is_delayed=True)
        if self._flushing is None:
            self._flushing = self._loop.call_later(within_s, self.flush)

    def flush(self) -> None:
        """Send the messages that wait for the next one."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        if self._session is not None:
            self._session.flush()

    def say(self, message: Message) -> None:
        """Like ``post``, but raise the error that ended the run early, if there is one."""
        if self._aborted.done():
            self._aborted.result()
        self.post(message)

    async def expect(self, *kinds: type[M]) -> M:
        """Return the scheduler's next answer, which is of one of these kinds.

        Raises:
            RunAborted: the run has ended, or the answer is of another kind.
        """
        answer = await self._answers.get()
        if isinstance(answer, Exception):
            self._answers.put_nowait(answer)  # for the next call
            raise answer
        for kind in kinds:
            if isinstance(answer, kind):
                return answer
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise RunAborted(f"the scheduler said {type(answer).__name__}, not {wanted}")

    async def ended_early(self) -> None:
        """Wait until the run ends early, and raise the error that ended it."""
        await asyncio.shield(self._aborted)

    def fail_with(self, future: asyncio.Future[Any]) -> None:
        """Fail a future with the error that ended the run early."""
        error = self._aborted.exception()
        assert error is not None
        future.set_exception(error)
        future.exception()  # mark as retrieved, so that asyncio does not warn

    async def verdict(self, error: Exception) -> Exception:
        """Return the scheduler's error for a failure, or this site's own if none arrives soon."""
        with suppress(TimeoutError):
            async with within(_VERDICT_S):
                await asyncio.wait({self._aborted})
        if self._aborted.done():
            verdict = self._aborted.exception()
            assert isinstance(verdict, Exception)
            return verdict
        return RunAborted(str(error))

    async def said(self) -> None:
        """Wait while this site is reconnecting, so that posted messages can leave."""
        if self._reconnecting is not None:
            await asyncio.wait({self._reconnecting})

    def close(self) -> None:
        """Close; no pending call gets an error."""
        self._closed = True
        self._carrying.stop()
        if self._reconnecting is not None:
            self._reconnecting.cancel()
        self.flush()
        if self._session is not None and self._session.connection is not None:
            self._session.tell()
            self._session.connection.close()

    # --- inside

    def hear(self, message: AnyMessage, connection: Connection | None) -> None:
        """Act on a message of the scheduler; ``connection`` is None for the first connection."""
        assert self._session is not None
        match message:
            case Ack():
                self._session.acknowledged(message.count)
                return
            case Resumed() if self._session.connection is None and connection is not None:
                self._session.go_on(connection, message.heard)
                self._resumed.set()
                return
            case Restarted() if self._session.connection is None and connection is not None:
                self._session = Session(connection)
                self._resumed.set()
                self._told(message)
                return
            case Refusal():
                # The scheduler does not know this process; it may accept the site's next one.
                is_unknown = message.error == UnauthorisedPeer.__name__
                kind = LeftOut if is_unknown else RunAborted
                self._abort(kind(f"the scheduler refused this site: {message.detail}"))
                return
        self._session.count()
        match message:
            case (
                Abandon()
                | Admitted()
                | Advance()
                | Auxiliary()
                | RequestAwaited()
                | CallMade()
                | Dispatched()
                | EpochChanged()
                | ExchangeFailed()
                | Withdrawn()
                | Gathered()
                | GatherFailed()
                | Grant()
                | Lease()
                | LeaseOver()
                | Interrupt()
                | LinkCut()
                | LinkProbe()
                | NoMoreRounds()
                | Reform()
                | Rejoined()
                | Repair()
                | Settled()
                | SiteGone()
                | Stopping()
                | Subgrouped()
                | TimeReply()
            ):
                self._told(message)
            case SiteAwaited():
                waited = f"has waited {message.seconds:.1f} s for {message.site} at {message.at}"
                _log.warning("this site %s", visible(waited))
            case ModelsDiffer():
                _log.warning("%s", visible(message.reason))
            case StackRequest():
                self.post(Stack(message.asker, stacks()))
            case Patience():
                self._patience_s = message.seconds
            case Welcome() | Start() | Proceed() | PaceOver() | Shutdown() | Departed():
                self._answers.put_nowait(message)
            case Abort():
                self._abort((LeftOut if message.goes_on else RunAborted)(message.reason))
            case _:
                raise OutOfPlaceMessage(f"a {type(message).__name__} from the scheduler")

    def goes_over(self, connection: Connection | None) -> bool:
        """Return whether the session uses this connection now; None stands for the first one."""
        current = None if self._session is None else self._session.connection
        return connection is None or current is connection

    def refused(self, error: PeerError) -> None:
        """Abort, because this site refused a message of the scheduler."""
        if self.is_open:
            self.post(Failed(f"it refused a message of the scheduler's: {error}"))
        self._abort(error)

    def lost(self, error: Exception) -> None:
        """Act on the end of the connection: connect again, if this site has joined."""
        if self._closed or self.is_over:
            return
        if isinstance(error, PeerError):
            self._abort(RunAborted(f"the scheduler at {show(self._scheduler)}: {error}"))
            return
        may_join_again = self._loop.time() < self._joins_until_s
        if self._site is None and isinstance(error, LinkError) and may_join_again:
            self._answers.put_nowait(error)
            return
        if self._site is None or not isinstance(error, LinkError):
            kind = LeftOut if isinstance(error, LinkError) else RunAborted
            self._abort(kind(f"the scheduler is gone: {error}"))
            return
        assert self._session is not None
        self._session.cut()
        self._carrying.stop()
        if self._reconnecting is None:
            self._reconnecting = self._loop.create_task(
                self._connect_again(error), name="connect to the scheduler again"
            )

    async def _connect_again(self, why: Exception) -> None:
        """Try until the scheduler answers, or patience is over."""
        longest_s = max(self._patience_s, self._least_patience_s)
        if isinstance(why, SilentWay):
            # The scheduler's patience begins only once it has declared the connection silent.
            longest_s += CONTROL_SILENCE_S
        ways = Ways(self._loop.time(), self._patience_s / _ATTEMPTS)
        until_s, self._why_away = self._loop.time() + longest_s, str(why)
        self._why_not_carried = {}

        def waits() -> str:
            where, left_s = show(self._scheduler), max(0.0, until_s - self._loop.time())
            return f"lost the scheduler at {where}: {self._why_away}; tries for {left_s:.0f} s more"

        try:
            with saying(self._say, waits):
                async with within(longest_s):
                    while True:
                        near = [] if self.neighbours is None else self.neighbours.that_may_pipe()
                        attempt = ways.next(self._loop.time(), near)
                        await asyncio.sleep(attempt.pause_s)
                        if await self._answers_on_another(attempt):
                            break
            if attempt.through is not None and not self.is_over:
                way = self._way(attempt)
                self.tell(f"{way}the scheduler at {show(self._scheduler)} is reached again")
        except TimeoutError:
            answers = "; ".join(self._why_not_carried)
            asked = f"; neighbours that were asked for a way there: {answers}" if answers else ""
            self._abort(LeftOut(f"the scheduler is gone: {why}{asked}"))
        finally:
            self._reconnecting = None

    async def _answers_on_another(self, attempt: Attempt) -> bool:
        """Connect once; return whether the session has been resumed there."""
        assert self._session is not None
        assert self._site is not None
        until_s = self._loop.time() + attempt.within_s
        receiver = _Inbound(self)
        self._resumed.clear()
        try:
            async with within(attempt.within_s):
                connection = receiver.connection = await self._reach(attempt.through, receiver)
        except (NetError, TlsError, TimeoutError) as error:
            # Not final: the scheduler may return, or this site's certificate is being renewed.
            why = str(error) or f"nothing answered in {attempt.within_s:g} s"
            self._why_away = self._way(attempt) + why
            if attempt.through is not None:
                self._why_not_carried[why] = None
            return False
        self._through = attempt.through
        resume = Resume(
            b"", self._site, self._session.heard, self._incarnation, through=attempt.through
        )
        connection.post(proven(resume, self._secret, connection.their_challenge))
        either: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(self._resumed.wait()),
            asyncio.ensure_future(receiver.closed.wait()),
        ]
        try:
            with suppress(TimeoutError):
                async with within(max(0.0, until_s - self._loop.time())):
                    await asyncio.wait(
                        [*either, self._aborted], return_when=asyncio.FIRST_COMPLETED
                    )
            # Not `_resumed`: the session may have been resumed, and the connection lost again.
            return self._session.connection is connection or self.is_over
        finally:
            for task in either:
                task.cancel()
            if self._session.connection is not connection:
                connection.close()

    def _way(self, attempt: Attempt) -> str:
        """Return a prefix for messages that names an attempt's way; empty for the direct one."""
        if attempt.through is None or self.neighbours is None:
            return ""
        return f"through {self.neighbours.name(attempt.through)}: "

    async def _reach(self, through: int | None, receiver: _Inbound) -> Connection:
        """Connect to the scheduler, directly or through a neighbour."""
        if through is None:
            return await connect_to(self._network, self._scheduler, receiver, SCHEDULER)
        assert self.neighbours is not None
        end = End()
        try:
            end.connection = await self.neighbours.ask_for_pipe(through, end)
            await end.opened
            peer = f"{show(self._scheduler)} through {self.neighbours.name(through)}"
            connection = await self._network.connect_through(end, peer, receiver)
            return checked(connection, SCHEDULER)
        except BaseException:
            end.cut()
            raise

    def _abort(self, error: Exception) -> None:
        if not self._aborted.done():
            self._aborted.set_exception(error)
            self._aborted.exception()  # mark as retrieved, so that asyncio does not warn
            self._answers.put_nowait(error)
            self._failed(error)


class _Inbound:
    """Receives the scheduler's messages over one connection."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self.connection: Connection | None = None  # None for the first connection
        self.closed = asyncio.Event()

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        self._control.hear(message, self.connection)
        return DISCARD

    def on_refused(self, message: AnyMessage, error: PeerError) -> None:
        self._control.refused(error)

    def on_closed(self, error: Exception | None) -> None:
        self.closed.set()
        if error is not None and self._control.goes_over(self.connection):
            self._control.lost(error)
