"""A site's data plane: receives on neighbours' lanes, and decides what follows when a lane ends.

**Plugs.** Three kinds of traffic share the lanes: exchanges, a served model, and letters (gossip).
Each has a :class:`Plug`. The op in a chunk's terms names the plug::

    neighbour's lane --_Inbound--> on_chunk --this site is the receiver--> plug.receive -> Sink
                                      `------ another site is ------------> Relays --> next lane
    this site's lane --_Outbound-- answers: Credit, Refusal, TimeReply

**In charge.** One plug at a time decides the :class:`Fate` of lanes that end. Exchanges are in
charge first. A served model replaces them once it is made. Gossip replaces them while it runs;
then exchanges average the models.

**The end of a lane.** Both ends notice it, and may report it more than once. Only the first report
on a neighbour's latest incarnation counts, until that neighbour returns.

**What must never happen.**

- A failure is replaced by a later one: the first error is the cause, and all callers get it.
- A message before a valid Hello is acted on, or a chunk with a path that does not lead here from
  its sender.
- A refused chunk is ignored by its sender while an exchange needs it: the exchange would never end.
  ``on_refusal`` fails the data plane by name instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from anabranch.exchange.terms import OPS, Op, op_of
from anabranch.net.errors import (
    DuplicateMessage,
    LinkError,
    MalformedMessage,
    OutOfPlaceMessage,
    PeerError,
    UnauthorisedPeer,
)
from anabranch.net.frames import DISCARD, Sink
from anabranch.net.messages import (
    AnyMessage,
    BurstChunk,
    BurstHeard,
    ChunkMessage,
    Credit,
    Hello,
    Letter,
    LetterEnds,
    LetterTaken,
    Offer,
    PartialSum,
    PipeRequest,
    Refusal,
    StepsKnown,
    TimeReply,
    TimeRequest,
)
from anabranch.net.network import Address, Connection, Network, Receiver
from anabranch.net.refusals import RefusalLimit
from anabranch.site._connections import Connections
from anabranch.site._instruments import Instruments
from anabranch.site._lanes import Lanes, Relays
from anabranch.site.neighbourhood import DataPlaneConfig, Neighbourhood

if TYPE_CHECKING:
    from anabranch.site._bursts import Bursts

T = TypeVar("T")

_LONGEST_S = 1e12  # any clock's time is less


class Fate(Enum):
    """What follows when a lane ends."""

    LOSE = "the neighbour counts as lost, and its messages end as if they had been sent"
    REMAKE = "the lane is made again; the other end makes its own"
    FAIL = "the data plane has failed, and every call raises the error"


class Plug(Protocol):
    """Takes one kind of traffic of the data plane.

    Attributes:
        fate: what follows when a lane ends while this plug is in charge.
    """

    fate: Fate

    def receive(self, message: ChunkMessage, payload_bytes: int) -> Sink:
        """Return where a chunk goes.

        Raises:
            PeerError: the chunk is malformed, repeated or out of place.
        """

    def repeated(self, message: ChunkMessage) -> bool:
        """Return whether a repeated chunk may have falsified a sum or result in progress."""

    def lane_ended(self, neighbour: int) -> None:
        """Act on the end of a lane to or from a neighbour, while in charge."""


class GossipPlug(Plug, Protocol):
    """Takes letters, and the messages without payload that belong to gossip."""

    def hear(self, sender: int, message: AnyMessage) -> None:
        """Act on a neighbour's message.

        Raises:
            PeerError: the message is malformed, or out of place.
        """


class Owner(Protocol):
    """The site that a data plane belongs to, as the data plane sees it.

    Attributes:
        progressed: called each time a message has ended, sent or not; or None.
    """

    progressed: Callable[[], None] | None

    def refused(self, sender: int | None, error: PeerError) -> None:
        """A message was refused; the sender is None where it is unknown."""

    def failed(self, error: Exception) -> None:
        """The data plane has failed; called once."""

    def cut_off(self, neighbour: int, incarnation: int, error: Exception) -> None:
        """A lane to or from an incarnation of a neighbour has ended; the neighbour may be dead."""

    def silent(self, neighbour: int, incarnation: int, is_silent: bool) -> None:
        """An incarnation of a neighbour is silent for unusually long, or is heard again."""

    def carry(self, source: int, connection: Connection) -> Receiver:
        """Pipe a neighbour's connection to the scheduler; return its receiver from now on."""


class DataPlane:
    """Moves chunks between this site and its neighbours, for the plugs that they belong to.

    Args:
        network: connects to the neighbours.
        config: see :class:`DataPlaneConfig`.
        owner: the site it belongs to.
        instruments: stamp chunks that leave, and measure those that arrive.

    Attributes:
        config, owner, instruments: see above.
        neighbourhood: the state of the neighbours.
        lanes: the lanes from this site.
        connections: makes and offers connections.
        bursts: measure links as the group begins; None where they do not.
    """

    def __init__(
        self, network: Network, config: DataPlaneConfig, owner: Owner, instruments: Instruments
    ) -> None:
        self.config = config
        self.owner = owner
        self.instruments = instruments
        self._loop = asyncio.get_running_loop()
        self._failure: Exception | None = None
        # Cancelled by a failure, in order: a set's order would differ from run to run.
        self._waiting: dict[asyncio.Future[Any], None] = {}
        self.neighbourhood = Neighbourhood(config)
        self.connections = Connections(
            network,
            config,
            self.neighbourhood,
            lambda target, incarnation: _Outbound(self, target, incarnation),
            lambda neighbour: _Inbound(self, called=neighbour),
            self._silent,
        )
        self.lanes = Lanes(
            config,
            self.neighbourhood,
            self.connections.make,
            self._broken,
            owner.progressed,
            instruments.stamp if config.stamped else None,
        )
        self._relays = Relays(config, self.neighbourhood, self.lanes.put, self.connections.answer)
        self._refusals = RefusalLimit()
        self._plugs: list[Plug] = [_Unplugged("a chunk, where no exchange can run")] * OPS
        self.bursts: Bursts | None = None
        self._plugs[Op.STEP] = _Unplugged("an update or a model, where no model is served")
        self._gossip: GossipPlug | None = None
        self._in_charge: Plug = self._plugs[Op.MEAN]
        self._remakes = False  # a lane may be made again, now or by a neighbour that is late

    # --- plugs

    def put_in_charge(self, plug: Plug, *ops: Op) -> Plug:
        """Put a plug in charge, and route chunks of these ops to it.

        Returns:
            The plug that was in charge before.
        """
        for op in ops:
            self._plugs[op] = plug
        before, self._in_charge = self._in_charge, plug
        self._remakes |= plug.fate is Fate.REMAKE
        return before

    def gossip(self, plug: GossipPlug) -> Plug:
        """Route letters to a plug, before it is in charge; return the plug in charge.

        Neighbours may gossip already: their letters, and lanes that they make again, are accepted.
        """
        self._gossip = plug
        self._remakes = True
        return self._in_charge

    # --- failure

    def check(self) -> None:
        """Raise the error of this data plane, if it has failed."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)  # else it would grow with each call

    async def unless_failed(self, awaitable: Awaitable[T]) -> T:
        """Return the awaitable's result; raise the data plane's failure if that comes first."""
        awaited = asyncio.ensure_future(awaitable)
        self._waiting[awaited] = None
        try:
            self.check()
            found = await awaited
            self.check()  # it may have failed after what was awaited, and before this task's turn
            return found
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                self.check()  # the failure has cancelled what was awaited
            raise
        finally:
            self._waiting.pop(awaited, None)
            awaited.cancel()

    def fail(self, error: Exception) -> None:
        """End every exchange in progress, and every later one, with this error."""
        if self._set_failure(error):
            self.owner.failed(error)

    def _set_failure(self, error: Exception) -> bool:
        """Record a failure; return whether it is the first."""
        if self._failure is not None:
            return False
        self._failure = error
        for awaited in self._waiting:
            awaited.cancel()
        return True

    # --- neighbours that come and go

    def cut(self, neighbour: int) -> None:
        """Close all connections with a neighbour; it counts as lost."""
        self.neighbourhood.lose(neighbour)
        if self.bursts is not None:
            self.bursts.lost(neighbour)
        self.lanes.drop(neighbour)
        self.connections.close_inbound(neighbour)
        self.connections.drop_offers(neighbour)

    def returned(self, neighbour: int, incarnation: int, address: Address) -> None:
        """Open lanes again to a neighbour that can be reached, perhaps as another process."""
        known = self.neighbourhood
        is_another = incarnation != known.incarnations[neighbour]
        known.returned(neighbour, incarnation, address)
        self.lanes.forget(neighbour)
        self.connections.returned(neighbour, is_another)
        known.found(neighbour)
        self.connections.offer(neighbour)

    def _silent(self, neighbour: int, incarnation: int, is_silent: bool) -> None:
        if self._in_charge.fate is not Fate.REMAKE:
            self.owner.silent(neighbour, incarnation, is_silent)

    def _broken(self, target: int, incarnation: int, error: Exception) -> None:
        """Act on an error of sending on the lane to a neighbour."""
        name = self.config.name
        lost = f"{name(self.config.site)} lost its lane to {name(target)}: {error}"
        self._lane_ended(target, incarnation, LinkError(lost))

    def lost(self, sender: int, incarnation: int, error: Exception) -> None:
        """Act on the end of a neighbour's lane to this site.

        Where lanes are made again, the neighbour does that at its end.
        """
        if self._in_charge.fate is not Fate.REMAKE:
            self._lane_ended(sender, incarnation, self._cut_error(sender, self.config.site, error))

    def no_longer_heard(self, target: int, incarnation: int, error: Exception) -> None:
        """Act on the end of the lane to a neighbour, noticed while receiving its answers."""
        self._lane_ended(target, incarnation, self._cut_error(self.config.site, target, error))

    def _cut_error(self, source: int, target: int, error: Exception) -> LinkError:
        ends = f"{self.config.name(source)} to {self.config.name(target)}"
        return LinkError(f"the lane from {ends} ended, says site {self.config.site}: {error}")

    def _lane_ended(self, neighbour: int, incarnation: int, error: Exception) -> None:
        """Apply the fate that the plug in charge has for lanes that end."""
        known, plug = self.neighbourhood, self._in_charge
        if known.is_earlier(neighbour, incarnation):
            return
        if plug.fate is Fate.REMAKE:
            if self.lanes.forget(neighbour):
                plug.lane_ended(neighbour)
            return
        if neighbour in known.lost or self._failure is not None:
            return
        known.lose(neighbour)
        if self.bursts is not None:
            self.bursts.lost(neighbour)
        self.connections.drop_offers(neighbour)
        if plug.fate is Fate.FAIL:
            self._set_failure(error)
        else:
            self.lanes.drop(neighbour)
        plug.lane_ended(neighbour)
        self.owner.cut_off(neighbour, incarnation, error)

    # --- receiving

    def welcome(self, connection: Connection) -> Receiver:
        """Return the receiver of a new connection; the first message tells its purpose."""
        return _Inbound(self, connection)

    def admit(self, hello: Hello, connection: Connection) -> int:
        """See :meth:`anabranch.site._connections.Connections.admit`."""
        return self.connections.admit(hello, connection, self._remakes)

    def carry(self, request: PipeRequest, connection: Connection) -> Receiver:
        """Pipe a neighbour's connection to the scheduler; return its receiver from now on.

        Raises:
            UnauthorisedPeer: the sender is not a neighbour of this site.
        """
        self.connections.check_pipe(request, connection)
        return self.owner.carry(request.source, connection)

    def on_chunk(self, sender: int, message: ChunkMessage, payload_bytes: int) -> Sink:
        """Return where a chunk from a neighbour goes: to its plug, or on to the next hop."""
        path, site = message.path, self.config.site
        if site not in path[1:] or len(set(path)) != len(path):
            raise OutOfPlaceMessage(f"path {path} does not lead here")
        here = path.index(site)
        if path[here - 1] != sender:
            raise OutOfPlaceMessage(f"path {path} does not come here from site {sender}")
        if (stamp := message.stamp) is not None:
            times_s = stamp.sent_s, stamp.offset_s or 0.0
            if not all(abs(each_s) < _LONGEST_S for each_s in times_s):
                raise MalformedMessage(f"a chunk is stamped with {times_s} s")
        if type(message) is BurstChunk:
            if self.bursts is None:
                raise OutOfPlaceMessage("a burst, where links are not measured by bursts")
            return self.bursts.receive(sender, message, payload_bytes)
        if here < len(path) - 1:
            sink = self._relays.receive(sender, message, payload_bytes, path[here + 1])
        else:
            sink = self._plug_of(message).receive(message, payload_bytes)
        if stamp is not None and self.config.stamped:
            take_note = self.instruments.arriving(sender, stamp, payload_bytes)
            sink.done = _both(take_note, sink.done)
        return sink

    def _plug_of(self, message: ChunkMessage) -> Plug:
        if type(message) is not Letter:
            return self._plugs[message.terms % OPS]
        if self._gossip is None:
            raise OutOfPlaceMessage("a letter, where no sites gossip")
        return self._gossip

    def said(self, sender: int, message: LetterEnds | LetterTaken | StepsKnown) -> None:
        """Pass a neighbour's message to the gossip plug."""
        if self._gossip is None:
            raise OutOfPlaceMessage(f"a {type(message).__name__}, where no sites gossip")
        self._gossip.hear(sender, message)

    def on_refusal(self, sender: int, refusal: Refusal) -> None:
        """Act on a neighbour's refusal of a message from this site.

        Refusals of duplicates, and of chunks that this lane did not send, block no exchange. Any
        other refused chunk does, so this fails.
        """
        error = PeerError(
            f"{self.config.name(sender)} refused a message of {self.config.name(self.config.site)}"
            f": {refusal.detail}"
        )
        self.owner.refused(sender, error)
        needed = self.lanes.lane(sender).has_sent(refusal.chunk)
        if refusal.error == UnauthorisedPeer.__name__ or (
            needed and refusal.error != DuplicateMessage.__name__
        ):
            self.fail(error)

    def repeated(self, sender: int, message: ChunkMessage) -> None:
        """Act on a repeated chunk: fail where it may have falsified a result."""
        if self._plug_of(message).repeated(message):
            what = "sum" if isinstance(message, PartialSum) else "result"
            self.fail(
                DuplicateMessage(
                    f"the {what} of {self.config.name(message.path[0])} for chunk {message.chunk} "
                    f"of exchange {message.exchange} came twice, the second time over the lane of "
                    f"{self.config.name(sender)}"
                )
            )

    def refuse(self, sender: int | None, error: PeerError) -> None:
        """Report a refused message."""
        if sender is not None:
            self.owner.refused(sender, error)
        elif reported := self._refusals.admit(error, self._loop.time()):
            self.owner.refused(None, reported)

    def close(self) -> None:
        """Close every connection."""
        self.lanes.close()
        self.connections.close()


class _Unplugged:
    """In place of a plug that this site does not have: refuses every chunk.

    Args:
        what: describes such a chunk in the error.
    """

    fate = Fate.FAIL

    def __init__(self, what: str) -> None:
        self._what = what

    def receive(self, message: ChunkMessage, payload_bytes: int) -> Sink:
        op_of(message.terms)  # raises a more precise error for terms that name no op
        raise OutOfPlaceMessage(self._what)

    def repeated(self, message: ChunkMessage) -> bool:
        return False

    def lane_ended(self, neighbour: int) -> None:
        pass


def _both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        first()
        second()

    return call


class _Inbound:
    """Receives the messages of a neighbour's lane to this site.

    The first message tells a connection's purpose. Hello: a lane. Offer: the neighbour accepts no
    connections, so it opened this one for this site's lane to it. PipeRequest: a pipe to the
    scheduler.

    Args:
        plane: this site's data plane.
        connection: the connection; None until it is made, where this site makes it.
        called: the neighbour to which this site offers the connection; None where it came in.

    Attributes:
        connection: see above.
        taken: set to True when a neighbour's lane takes the connection; to False if it is closed
            before that.
    """

    def __init__(
        self,
        plane: DataPlane,
        connection: Connection | None = None,
        called: int | None = None,
    ) -> None:
        self._plane = plane
        self.connection = connection
        self._called = called
        self.taken: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._sender: int | None = None  # None before a valid Hello
        self._incarnation = 0
        # After an Offer: the neighbour, and the receiver of its answers to this site's lane.
        self._offer: tuple[int, Receiver] | None = None
        self._pipe: Receiver | None = None  # after a PipeRequest

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        assert self.connection is not None
        if self._offer is not None:
            return self._offer[1].on_message(message, payload_bytes)
        if self._pipe is not None:
            return self._pipe.on_message(message, payload_bytes)
        if self._sender is None:
            self._introduced(message, self.connection)
            return DISCARD
        if isinstance(message, ChunkMessage):
            return self._plane.on_chunk(self._sender, message, payload_bytes)
        if isinstance(message, TimeRequest):
            self.connection.post(self._plane.instruments.tell_time(message))
            return DISCARD
        if isinstance(message, LetterEnds | LetterTaken | StepsKnown):
            self._plane.said(self._sender, message)
            return DISCARD
        raise OutOfPlaceMessage(f"a {type(message).__name__} on a lane")

    def _introduced(self, message: AnyMessage, connection: Connection) -> None:
        """Act on the first message, which names the sender and the connection's purpose."""
        plane = self._plane
        if isinstance(message, Offer) and self._called is None:
            self._offer = message.source, plane.connections.take_offer(message, connection)
        elif isinstance(message, PipeRequest) and self._called is None:
            self._pipe = plane.carry(message, connection)
        elif isinstance(message, Hello) and self._called in (None, message.source):
            self._sender = plane.admit(message, connection)
            self._incarnation = message.incarnation
            self.taken.set_result(True)
        elif isinstance(message, Refusal) and self._called is not None:
            return  # the neighbour closes the connection; it may take the next one
        elif isinstance(message, Refusal):
            raise UnauthorisedPeer(
                f"{connection.peer} does not accept this process as the site that it called: "
                f"{message.detail}"
            )
        else:
            raise UnauthorisedPeer(f"{connection.peer} did not say Hello")
        connection.trust()

    def on_refused(self, message: AnyMessage, error: PeerError) -> None:
        assert self.connection is not None
        if self._offer is not None:
            self._offer[1].on_refused(message, error)
            return
        if self._pipe is not None:
            self._pipe.on_refused(message, error)
            return
        self._plane.refuse(self._sender, error)
        about = None
        if isinstance(message, ChunkMessage):
            about = message.exchange, message.version, message.chunk
        self.connection.post(Refusal(type(error).__name__, str(error), about))
        if self._sender is None:
            self.connection.close()
        elif isinstance(message, ChunkMessage) and isinstance(error, DuplicateMessage):
            self._plane.repeated(self._sender, message)

    def on_closed(self, error: Exception | None) -> None:
        if not self.taken.done():
            self.taken.set_result(False)
        if self._offer is not None:
            assert self.connection is not None
            if not self._plane.connections.withdrawn(self._offer[0], self.connection):
                self._offer[1].on_closed(error)
        elif self._pipe is not None:
            self._pipe.on_closed(error)
        elif self._sender is not None:
            if error is not None:
                self._plane.lost(self._sender, self._incarnation, error)
        elif isinstance(error, PeerError) and self._called is None:
            assert self.connection is not None
            self._plane.refuse(None, type(error)(f"{self.connection.peer}: {error}"))


class _Outbound:
    """Receives a neighbour's answers on this site's lane to it."""

    def __init__(self, plane: DataPlane, target: int, incarnation: int) -> None:
        self._plane = plane
        self._target = target
        self._incarnation = incarnation

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        if isinstance(message, Credit):
            self._plane.lanes.credit(self._target, message.path)
        elif isinstance(message, Refusal):
            self._plane.on_refusal(self._target, message)
        elif isinstance(message, TimeReply):
            self._plane.instruments.hear_time(message)
        elif isinstance(message, BurstHeard) and self._plane.bursts is not None:
            self._plane.bursts.heard(self._target, message.chunk)
        else:
            raise OutOfPlaceMessage(f"a {type(message).__name__} in answer to a lane")
        return DISCARD

    def on_refused(self, message: AnyMessage, error: PeerError) -> None:
        self._plane.refuse(self._target, error)

    def on_closed(self, error: Exception | None) -> None:
        if error is not None:
            self._plane.no_longer_heard(self._target, self._incarnation, error)
