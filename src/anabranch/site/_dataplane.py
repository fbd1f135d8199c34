"""A site's data plane: what comes in on others' lanes, and what becomes of lanes that end.

What moves over lanes is of three kinds, and each has a :class:`Plug`: exchanges, a served model,
and letters of sites that gossip. A chunk says by the op in its terms which of them it is for. One
plug at a time is *in charge*: it says what becomes of a lane that has ended. Exchanges are first. A
served model takes over once it is there. Gossip takes over while it goes on, and then hands back to
exchanges, by which all models become their mean.

A lane ends at both ends, as each notices, and may be reported more than once. Only the first report
of a neighbour's latest incarnation counts, until that neighbour returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, Protocol, TypeVar

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

T = TypeVar("T")

_LONGEST_S = 1e12  # any clock's time is less


class Fate(Enum):
    """What becomes of a lane that has ended, and of what waited for it."""

    LOSE = "the neighbour counts as lost, and what waited ends as if it had been sent"
    REMAKE = "the lane is made again; the other end makes its own"
    FAIL = "the data plane is useless from then on"


class Plug(Protocol):
    """What one kind of message on lanes is for.

    Attributes:
        fate: what becomes of a lane that ends while this is in charge.
    """

    fate: Fate

    def receive(self, message: ChunkMessage, payload_bytes: int) -> Sink:
        """Return where a chunk goes.

        Raises:
            PeerError: it cannot be.
        """

    def repeated(self, message: ChunkMessage) -> bool:
        """Return whether a chunk that has come again may have spoilt something that goes on."""

    def lane_ended(self, neighbour: int) -> None:
        """Act on the end of a lane to or from a neighbour, while in charge."""


class GossipPlug(Plug, Protocol):
    """What letters are for."""

    def hear(self, sender: int, message: AnyMessage) -> None:
        """Act on what a neighbour says.

        Raises:
            PeerError: it cannot be.
        """


class Owner(Protocol):
    """What a data plane tells the site it belongs to, and asks of it.

    Attributes:
        progressed: the data plane calls this with each message that it has sent; or None.
    """

    progressed: Callable[[], None] | None

    def refused(self, sender: int | None, error: PeerError) -> None:
        """A message was refused; the sender is None where it could not be told."""

    def failed(self, error: Exception) -> None:
        """The data plane is useless from now on; said once."""

    def cut_off(self, neighbour: int, incarnation: int, error: Exception) -> None:
        """A lane to or from an incarnation of a neighbour has ended; it may be that it died."""

    def silent(self, neighbour: int, incarnation: int, is_silent: bool) -> None:
        """An incarnation of a neighbour is silent for unusually long; or speaks again."""

    def carry(self, source: int, connection: Connection) -> Receiver:
        """Pipe a neighbour's connection to the scheduler; return what hears it from now on."""


class DataPlane:
    """Moves chunks between this site and its neighbours, for the plugs that they belong to.

    Args:
        network: connects to the neighbours.
        config: see there.
        owner: the site it belongs to.
        instruments: stamp chunks that leave, and measure those that come.

    Attributes:
        config, owner, instruments: see above.
        neighbourhood: what is known of the neighbours.
        lanes: what leaves this site.
        connections: what lanes are made of.
    """

    def __init__(
        self, network: Network, config: DataPlaneConfig, owner: Owner, instruments: Instruments
    ) -> None:
        self.config = config
        self.owner = owner
        self.instruments = instruments
        self._loop = asyncio.get_running_loop()
        self._failure: asyncio.Future[None] = self._loop.create_future()
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
        self._plugs: list[Plug] = [_Unplugged("data that is for nothing here")] * OPS
        self._plugs[Op.STEP] = _Unplugged("an update or a model, which nothing serves here")
        self._gossip: GossipPlug | None = None
        self._in_charge: Plug = self._plugs[Op.MEAN]
        self._remakes = False  # a lane may be made again, now or by a neighbour that is late

    # --- plugs

    def put_in_charge(self, plug: Plug, *ops: Op) -> Plug:
        """Let a plug say what becomes of lanes that end, and take what comes of these ops.

        Returns:
            The plug that was in charge.
        """
        for op in ops:
            self._plugs[op] = plug
        before, self._in_charge = self._in_charge, plug
        self._remakes |= plug.fate is Fate.REMAKE
        return before

    def gossip(self, plug: GossipPlug) -> Plug:
        """Take letters, and lanes of neighbours that gossip already; return the plug in charge."""
        self._gossip = plug
        self._remakes = True
        return self._in_charge

    # --- failure

    def check(self) -> None:
        """Raise what this data plane has failed by, if it has."""
        if self._failure.done():
            self._failure.result()

    async def unless_failed(self, awaitable: Awaitable[T]) -> T:
        """Await something; raise the data plane's failure if that comes first."""
        task = asyncio.ensure_future(awaitable)
        try:
            either: list[asyncio.Future[Any]] = [task, self._failure]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            self.check()
            return task.result()
        finally:
            task.cancel()

    def fail(self, error: Exception) -> None:
        """End every exchange in progress, and every later one, with this error."""
        if self._set_failure(error):
            self.owner.failed(error)

    def _set_failure(self, error: Exception) -> bool:
        """Take note of a failure; return whether it is the first."""
        if self._failure.done():
            return False
        self._failure.set_exception(error)
        self._failure.exception()  # mark as retrieved, so that asyncio does not warn
        return True

    # --- neighbours that come and go

    def cut(self, neighbour: int) -> None:
        """Send nothing to a neighbour any more, and take nothing from it."""
        self.neighbourhood.lose(neighbour)
        self.lanes.drop(neighbour)
        self.connections.close_inbound(neighbour)
        self.connections.drop_offers(neighbour)

    def returned(self, neighbour: int, incarnation: int, address: Address) -> None:
        """Lead lanes to a neighbour that can be reached again, perhaps as another process."""
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
        """Take note that this site could not send on its lane to a neighbour."""
        name = self.config.name
        lost = f"{name(self.config.site)} lost its lane to {name(target)}: {error}"
        self._lane_ended(target, incarnation, LinkError(lost))

    def lost(self, sender: int, incarnation: int, error: Exception) -> None:
        """Take note that a neighbour's lane has ended; it makes that again itself, if it is to."""
        if self._in_charge.fate is not Fate.REMAKE:
            self._lane_ended(sender, incarnation, self._cut(sender, self.config.site, error))

    def no_longer_heard(self, target: int, incarnation: int, error: Exception) -> None:
        """Take note that the lane to a neighbour has ended."""
        self._lane_ended(target, incarnation, self._cut(self.config.site, target, error))

    def _cut(self, source: int, target: int, error: Exception) -> LinkError:
        ends = f"{self.config.name(source)} to {self.config.name(target)}"
        return LinkError(f"the lane from {ends} ended, says site {self.config.site}: {error}")

    def _lane_ended(self, neighbour: int, incarnation: int, error: Exception) -> None:
        """Do with a lane that has ended as the plug in charge has it."""
        known, plug = self.neighbourhood, self._in_charge
        if known.is_earlier(neighbour, incarnation):
            return
        if plug.fate is Fate.REMAKE:
            if self.lanes.forget(neighbour):
                plug.lane_ended(neighbour)
            return
        if neighbour in known.lost or self._failure.done():
            return
        known.lose(neighbour)
        self.connections.drop_offers(neighbour)
        if plug.fate is Fate.FAIL:
            self._set_failure(error)
        else:
            self.lanes.drop(neighbour)
        plug.lane_ended(neighbour)
        self.owner.cut_off(neighbour, incarnation, error)

    # --- receiving

    def welcome(self, connection: Connection) -> Receiver:
        """Take a new connection; its first message must be a valid Hello."""
        return _Inbound(self, connection)

    def admit(self, hello: Hello, connection: Connection) -> int:
        """See :meth:`anabranch.site._connections.Connections.admit`."""
        return self.connections.admit(hello, connection, self._remakes)

    def carry(self, request: PipeRequest, connection: Connection) -> Receiver:
        """Check who asks for a pipe to the scheduler; return what hears it from now on.

        Raises:
            UnauthorisedPeer: not a neighbour of this site.
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
        """Hear what a neighbour says, where sites gossip."""
        if self._gossip is None:
            raise OutOfPlaceMessage(f"a {type(message).__name__}, where no sites gossip")
        self._gossip.hear(sender, message)

    def on_refusal(self, sender: int, refusal: Refusal) -> None:
        """Act on a neighbour's refusal of what this site sent.

        A duplicate was counted before, and what this site never sent does no harm; but an
        exchange whose data was refused cannot end, so it ends here and now, by name.
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
        """Take note that a chunk has come again: fail, where that may have spoilt a result."""
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
    """Takes what is for a plug that this site has not got: it refuses all of it.

    Args:
        what: such a chunk is, in words.
    """

    fate = Fate.FAIL

    def __init__(self, what: str) -> None:
        self._what = what

    def receive(self, message: ChunkMessage, payload_bytes: int) -> Sink:
        op_of(message.terms)  # or they name none
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
    """Receives what a neighbour sends on its lane to this site.

    Args:
        plane: this site's.
        connection: which; where this site makes it, as soon as it is made.
        called: the neighbour to which this site offers it; None where it came in.

    Attributes:
        connection: see above.
        taken: whether a neighbour's lane has taken the connection that this site offers it.
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
        self._sender: int | None = None  # until a valid Hello
        self._incarnation = 0
        # Where the neighbour has offered the connection for this site's lane to it: who, and what
        # hears its answers.
        self._offer: tuple[int, Receiver] | None = None
        self._pipe: Receiver | None = None  # where it has asked for a pipe to the scheduler

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
        """Hear who speaks, and what the connection is for."""
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
            return  # it closes the connection, and may take the next
        elif isinstance(message, Refusal):
            raise UnauthorisedPeer(
                f"{connection.peer} does not take this process for the site that it called: "
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
    """Receives what a neighbour answers on this site's lane to it."""

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
        else:
            raise OutOfPlaceMessage(f"a {type(message).__name__} in answer to a lane")
        return DISCARD

    def on_refused(self, message: AnyMessage, error: PeerError) -> None:
        self._plane.refuse(self._target, error)

    def on_closed(self, error: Exception | None) -> None:
        if error is not None:
            self._plane.no_longer_heard(self._target, self._incarnation, error)
