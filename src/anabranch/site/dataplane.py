"""A site's data plane: its lanes, what comes in on others' lanes, and the rounds they serve."""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numpy as np

from anabranch.net.errors import (
    DuplicateMessage,
    LinkError,
    MalformedMessage,
    OutOfPlaceMessage,
    PeerError,
    UnauthorisedPeer,
)
from anabranch.net.frames import DISCARD, Limits, Sink
from anabranch.net.messages import (
    AnyMessage,
    ChunkMessage,
    Credit,
    Hello,
    Mean,
    Message,
    Parameters,
    PartialSum,
    Push,
    Refusal,
    Stamp,
    TimeReply,
    TimeRequest,
    UpdateSum,
)
from anabranch.net.network import Address, Connection, Network, Receiver
from anabranch.overlay import Overlay
from anabranch.plan import Chunk, Plan, cut, deal
from anabranch.site.accumulator import Floats
from anabranch.site.aggregation import Aggregation, Send
from anabranch.site.arithmetic import Arithmetic
from anabranch.site.lane import Lane, Path, relay_window
from anabranch.site.multipath import Fork
from anabranch.site.partition import ServerPartition
from anabranch.site.pushpull import PushPull

T = TypeVar("T")

MOST_CHUNK_ELEMENTS = 1 << 26
MOST_STRANDS = 16
_LONGEST_S = 1e12  # any clock's time is less
LIMITS = Limits(message_bytes=1 << 16, payload_bytes=4 * MOST_CHUNK_ELEMENTS)


@dataclass(frozen=True, slots=True)
class DataPlaneConfig:
    """What every site of a run must agree on, and who this one is.

    Args:
        site: this site's index.
        overlay: sites and links; only along its links do sites connect.
        addresses: (host, port) of every site, by index.
        incarnations: of every site, by index, see :class:`anabranch.net.messages.Welcome`; all 0
            where left out.
        token: the run's shared secret.
        chunk_elements: the most elements of a chunk.
        buffer_elements: the largest buffer a round may have.
        strands: connections of each lane.
        primary_busy_bound: chunks at which a primary path counts as busy, see
            :mod:`anabranch.site.multipath`.
        auxiliary_queue_length: chunks that an auxiliary path takes.
        stamped: whether chunks carry what is needed to measure links.
    """

    site: int
    overlay: Overlay
    addresses: tuple[Address, ...]
    token: str
    chunk_elements: int
    buffer_elements: int
    strands: int = 1
    primary_busy_bound: int = 2
    auxiliary_queue_length: int = 1
    stamped: bool = False
    incarnations: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.chunk_elements <= MOST_CHUNK_ELEMENTS:
            raise ValueError(
                f"chunk_elements is {self.chunk_elements}, must be in 1..{MOST_CHUNK_ELEMENTS}"
            )

    def name(self, site: int) -> str:
        """Return a site's index and name, for error messages."""
        return f"site {site} ({self.overlay.sites[site].name})"


class Owner(Protocol):
    """What a data plane tells the site it belongs to, and asks of it."""

    def progressed(self) -> None:
        """A message has been sent."""

    def refused(self, sender: int | None, error: PeerError) -> None:
        """A message was refused; the sender is None where it could not be told."""

    def failed(self, error: Exception) -> None:
        """The data plane is useless from now on; said once."""

    def cut_off(self, neighbour: int, incarnation: int, error: Exception) -> None:
        """A lane to or from an incarnation of a neighbour has ended; it may be that it died."""

    def advanced(self, round: int, aggregation: Aggregation) -> None:
        """One more chunk of a round is finished here."""

    def stamp(self, backlogged: bool) -> Stamp:
        """Return the stamp of a chunk that leaves now."""

    def arriving(self, source: int, stamp: Stamp, size_bytes: int) -> Callable[[], None]:
        """A neighbour's chunk begins to arrive; call what is returned when all of it has."""

    def tell_time(self, request: TimeRequest) -> TimeReply:
        """Answer a child that asks for the time."""

    def hear_time(self, reply: TimeReply) -> None:
        """Take the answer of a parent that was asked."""


class DataPlane:
    """Moves chunks between this site and its neighbours.

    Args:
        network: connects to the neighbours.
        config: see there.
        arithmetic: what is done to the elements of a round.
        owner: the site it belongs to.
    """

    def __init__(
        self, network: Network, config: DataPlaneConfig, arithmetic: Arithmetic, owner: Owner
    ) -> None:
        self.config = config
        self._network = network
        self._arithmetic = arithmetic
        self.owner = owner
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lanes: dict[int, Lane] = {}
        self._forks: dict[tuple[int, int], Fork] = {}  # where chunks may take several paths
        self._inbound: dict[int, dict[int, Connection]] = {}  # by neighbour and strand
        # Connections that have not said Hello; in order, as closing them is seen by others.
        self.unauthenticated: dict[Connection, None] = {}
        self._rounds: dict[int, tuple[Aggregation, asyncio.Event]] = {}
        self._rounds_done = 0
        self._cuts: tuple[tuple[int, int], ...] = ()  # of the round whose deal goes on
        self._relaying: Counter[tuple[Path, int]] = (
            Counter()
        )  # held, by route and sender's incarnation
        self.pushpull: PushPull | None = None  # in a run with servers
        self._lost: set[int] = set()  # neighbours whose lanes have ended
        self._addresses = [*config.addresses]
        self._incarnations = [*(config.incarnations or [0] * config.overlay.size)]
        self._sent_bytes: Counter[int] = Counter()  # to earlier incarnations of each neighbour

    # --- rounds

    async def all_reduce(
        self,
        round: int,
        plan: Plan,
        buffer: Floats,
        weight: float,
        trees: tuple[int, ...] | None = None,
    ) -> tuple[int, int | None] | None:
        """Replace a buffer by its weighted mean over all sites.

        Args:
            round: one more than the last.
            plan: the one plan every site runs this round under.
            buffer: flat float32, contiguous, writable, of the same length at every site.
            weight: of this site's contribution, > 0.
            trees: of the first chunks, where the deal goes on during the round (``dealt``); None
                where all chunks are dealt by share.

        Returns:
            The tree of the chunk that was finished last here, and the neighbour that sent it.

        Raises:
            LinkError, PeerError: the round cannot be completed.
        """
        if round != self._rounds_done + 1:
            raise ValueError(f"round {round} cannot follow round {self._rounds_done}")
        aggregation, finished = self._round(round)
        for target in plan.next_hops[self.config.site]:
            self._lane(target)
        if trees is None:
            chunks = deal(plan, len(buffer), self.config.chunk_elements)
            total = len(chunks)
        else:
            self._cuts = cut(len(buffer), self.config.chunk_elements)
            chunks, total = self._deal(0, trees), len(self._cuts)
        try:
            self._report(round, aggregation.begin(plan, chunks, buffer, weight, total))
        except PeerError as error:
            self.fail(error)
            raise
        await self.unless_failed(finished.wait())
        while busy := next((lane for lane in self._lanes.values() if lane.holds_own), None):
            await self.unless_failed(busy.own_sent())
        self._rounds_done = round
        self._cuts = ()
        del self._rounds[round]
        return aggregation.latest

    def dealt(self, round: int, trees: tuple[int, ...]) -> None:
        """Take the trees of the next chunks of the round in progress, in order.

        Raises:
            OutOfPlaceMessage: it is not in progress, or is dealt beforehand.
        """
        if round <= self._rounds_done:
            return  # its buffer was shorter than the largest that the scheduler deals for
        if round != self._rounds_done + 1 or not self._cuts:
            raise OutOfPlaceMessage(f"chunks of round {round}, which is not being dealt here")
        aggregation, _ = self._round(round)
        try:
            misfits = aggregation.go_on(self._deal(aggregation.dealt, trees))
        except PeerError as error:
            self.fail(error)
            return
        self._report(round, misfits)

    def _deal(self, first: int, trees: tuple[int, ...]) -> tuple[Chunk, ...]:
        """Return the next chunks; trees beyond the buffer's last chunk are for longer buffers."""
        bounds = self._cuts[first : first + len(trees)]
        return tuple(
            Chunk(index, tree, start, stop)
            for index, (tree, (start, stop)) in enumerate(zip(trees, bounds, strict=False), first)
        )

    def _report(self, round: int, misfits: list[tuple[int, str]]) -> None:
        for child, wrong in misfits:
            error = OutOfPlaceMessage(f"early data of round {round}: {wrong}")
            self.owner.refused(child, error)

    def _round(self, round: int) -> tuple[Aggregation, asyncio.Event]:
        if round not in self._rounds:
            finished = asyncio.Event()
            aggregation = Aggregation(
                self.config.site,
                round,
                self.config.buffer_elements,
                self._arithmetic,
                self._send,
                finished.set,
                lambda: self.owner.advanced(round, aggregation),
            )
            self._rounds[round] = aggregation, finished
        return self._rounds[round]

    def push_and_pull(
        self,
        plan: Plan,
        chunks: Sequence[Chunk],
        partition: ServerPartition | None,
        added_up: Sequence[int] = (),
    ) -> PushPull:
        """Exchange by push and pull, under this plan, instead of in rounds.

        Args:
            plan: the same at every site.
            chunks: its deal of the model.
            partition: what this site serves of it.
            added_up: the workers whose updates are added up on the way; none where each travels
                alone.
        """
        self.pushpull = PushPull(
            self.config.site, plan, chunks, self._arithmetic, self._send, partition, added_up
        )
        return self.pushpull

    async def unless_failed(self, awaitable: Awaitable[T]) -> T:
        """Await something; raise the data plane's failure if that comes first."""
        task = asyncio.ensure_future(awaitable)
        try:
            either: list[asyncio.Future[Any]] = [task, self._failure]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                self._failure.result()
            return task.result()
        finally:
            task.cancel()

    def fail(self, error: Exception) -> None:
        """End the round in progress, and every later one, with this error."""
        if self._set_failure(error):
            self.owner.failed(error)

    def _set_failure(self, error: Exception) -> bool:
        """Take note of a failure; return whether it is the first."""
        if self._failure.done():
            return False
        self._failure.set_exception(error)
        self._failure.exception()  # somebody may never ask: that is no reason for a warning
        return True

    # --- sending

    def _send(self, send: Send) -> None:
        path = send.message.path
        fork = self._forks.get((path[0], path[-1])) if path[0] == self.config.site else None
        if fork is None:
            self._put(send)
        else:
            fork.add(send)

    def _put(self, send: Send) -> None:
        path = send.message.path
        to = path[path.index(self.config.site) + 1]
        if to in self._lost:
            # Nobody is there to take it; what counts it goes on as if it had been sent.
            asyncio.get_running_loop().call_soon(send.sent)
        else:
            self._lane(to).put(send)

    def use_auxiliary(self, paths: Mapping[tuple[int, int], tuple[Path, ...]]) -> None:
        """Let chunks take these paths, by (source, target), from now on, and no other ones."""
        config = self.config
        for source, target in paths:
            if source == config.site and (source, target) not in self._forks:
                self._forks[source, target] = Fork(
                    config.primary_busy_bound, config.auxiliary_queue_length, self._put
                )
        for ends, fork in self._forks.items():
            fork.use(paths.get(ends, ()))

    def check_auxiliary(self, paths: Mapping[tuple[int, int], tuple[Path, ...]]) -> None:
        """Check that these paths can be used.

        Raises:
            OutOfPlaceMessage: one passes a site twice, or where no link is.
        """
        for several in paths.values():
            for path in several:
                linked = all(self.config.overlay.link(*hop) is not None for hop in pairwise(path))
                if not linked or len(set(path)) != len(path):
                    raise OutOfPlaceMessage(f"auxiliary path {path} is no path over links")

    def _credited(self, path: Path) -> None:
        fork = self._forks.get((path[0], path[-1])) if path[0] == self.config.site else None
        if fork is not None:
            fork.credited(path)

    def _lane(self, target: int) -> Lane:
        if target not in self._lanes:
            window = self._relay_window(self.config.site, target)
            incarnation = self._incarnations[target]
            self._lanes[target] = Lane(
                self.config.site,
                f"lane {self.config.name(self.config.site)} -> {self.config.name(target)}",
                lambda strand: self._connect(target, incarnation, strand),
                window,
                self.owner.progressed,
                lambda error: self._lane_ended(
                    target, incarnation, self._lane_error(target, error)
                ),
                self.config.strands,
                self.owner.stamp if self.config.stamped else None,
                self._credited,
            )
        return self._lanes[target]

    def _lane_ended(self, neighbour: int, incarnation: int, error: Exception) -> None:
        """Fail; but where the model is served, a worker may die and the others go on."""
        if incarnation < self._incarnations[neighbour]:
            return  # another process is there now
        if neighbour not in self._lost and not self._failure.done():
            self._lost.add(neighbour)
            if self.pushpull is None:
                self._set_failure(error)
            elif neighbour in self._lanes:
                self._lanes[neighbour].drop()
            self.owner.cut_off(neighbour, incarnation, error)

    def returned(self, neighbour: int, incarnation: int, address: Address) -> None:
        """Lead lanes to another process of a neighbour that died, and take its."""
        self._incarnations[neighbour], self._addresses[neighbour] = incarnation, address
        self._lost.add(neighbour)  # while what waits for the old one is dropped
        lane = self._lanes.pop(neighbour, None)
        if lane is not None:
            self._sent_bytes[neighbour] += lane.payload_bytes
            lane.drop()
        for connection in self._inbound.pop(neighbour, {}).values():
            connection.close()
        self._lost.discard(neighbour)

    def _lane_error(self, target: int, error: Exception) -> Exception:
        return LinkError(
            f"{self.config.name(self.config.site)} lost its lane to {self.config.name(target)}: "
            f"{error}"
        )

    async def _connect(self, target: int, incarnation: int, strand: int) -> Connection:
        site = self.config.site
        receiver = _Outbound(self, target, incarnation)
        connection = await self._network.connect(self._addresses[target], receiver)
        hello = Hello(self.config.token, site, target, strand, self._incarnations[site])
        await connection.send(hello)
        return connection

    def post(self, target: int, message: Message) -> None:
        """Send a message without payload to a neighbour, beside the queue; opens its lane."""
        self._lane(target).post(message)

    def sent_bytes(self) -> dict[int, int]:
        """Return the payload bytes sent so far to each neighbour."""
        sent = self._sent_bytes.copy()
        for target, lane in self._lanes.items():
            sent[target] += lane.payload_bytes
        return dict(sent)

    # --- receiving

    def welcome(self, connection: Connection) -> Receiver:
        """Take a new connection; its first message must be a valid Hello."""
        self.unauthenticated[connection] = None
        return _Inbound(self, connection)

    def admit(self, hello: Hello, connection: Connection) -> int:
        """Check a Hello; return the neighbour it comes from.

        Raises:
            UnauthorisedPeer: a wrong token, or no neighbour of this site.
        """
        config = self.config
        if not hmac.compare_digest(hello.token.encode(), config.token.encode()):
            raise UnauthorisedPeer(f"{connection.peer} does not know the run's token")
        if hello.target != config.site:
            raise UnauthorisedPeer(
                f"{connection.peer} looks for site {hello.target}, this is site {config.site}"
            )
        if config.overlay.link(hello.source, config.site) is None:
            raise UnauthorisedPeer(
                f"{connection.peer} says it is site {hello.source}, which has no link to this one"
            )
        if hello.incarnation != self._incarnations[hello.source]:
            raise UnauthorisedPeer(
                f"{connection.peer} says it is incarnation {hello.incarnation} of site {hello.source}, "
                f"which is in incarnation {self._incarnations[hello.source]}"
            )
        strands = self._inbound.setdefault(hello.source, {})
        if hello.strand in strands or not 0 <= hello.strand < MOST_STRANDS:
            raise UnauthorisedPeer(
                f"{connection.peer} says it is strand {hello.strand} of site {hello.source}, which "
                "is connected already or cannot be"
            )
        strands[hello.strand] = connection
        return hello.source

    def on_chunk(self, sender: int, message: ChunkMessage, payload_bytes: int) -> Sink:
        """Return where a chunk from a neighbour goes: into a round, or on to the next hop."""
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
            sink = self._relay(sender, message, payload_bytes, path[here + 1])
        else:
            sink = self._take(message, payload_bytes)
        if message.stamp is not None and self.config.stamped:
            take_note = self.owner.arriving(sender, message.stamp, payload_bytes)
            sink.done = _both(take_note, sink.done)
        return sink

    def _take(self, message: ChunkMessage, payload_bytes: int) -> Sink:
        if isinstance(message, Push | UpdateSum | Parameters):
            if self.pushpull is None:
                raise OutOfPlaceMessage("an update or a model, in a run that goes in rounds")
            if isinstance(message, Push):
                return self.pushpull.on_push(message, payload_bytes)
            if isinstance(message, UpdateSum):
                return self.pushpull.on_sum(message, payload_bytes)
            return self.pushpull.on_parameters(message, payload_bytes)
        if message.round <= self._rounds_done:
            raise DuplicateMessage(f"chunk {message.chunk} of round {message.round}, which is over")
        if message.round > self._rounds_done + 2:
            raise OutOfPlaceMessage(
                f"chunk {message.chunk} of round {message.round}, but this site is at "
                f"{self._rounds_done + 1}"
            )
        aggregation, _ = self._round(message.round)
        if isinstance(message, PartialSum):
            return aggregation.on_partial_sum(message, payload_bytes)
        assert isinstance(message, Mean)
        return aggregation.on_mean(message, payload_bytes)

    def _relay(self, sender: int, message: ChunkMessage, payload_bytes: int, to: int) -> Sink:
        config = self.config
        if config.overlay.link(config.site, to) is None:
            raise OutOfPlaceMessage(f"path {message.path} goes on to site {to}, but no link does")
        if not 0 < payload_bytes <= 4 * config.chunk_elements:
            raise OutOfPlaceMessage(f"a chunk to relay has {payload_bytes} bytes")
        incarnation = self._incarnations[sender]
        held = message.path, incarnation
        if self._relaying[held] >= self._relay_window(sender, config.site):
            raise OutOfPlaceMessage(f"more chunks for {message.path} than the relay window allows")
        self._relaying[held] += 1
        payload = memoryview(np.empty(payload_bytes, np.uint8).data)

        def sent() -> None:
            self._relaying[held] -= 1
            if not self._relaying[held]:
                del self._relaying[held]
            if incarnation < self._incarnations[sender]:
                return
            for connection in self._inbound.get(sender, {}).values():
                connection.post(Credit(message.path))
                break  # any strand will do

        return Sink(target=payload, done=lambda: self._put(Send(message, payload, sent=sent)))

    def _relay_window(self, source: int, target: int) -> int:
        """Return how many chunks of one route the first may have at the second."""
        overlay = self.config.overlay
        there, back = overlay.link(source, target), overlay.link(target, source)
        assert there is not None  # plans are checked against the overlay, paths on arrival
        return relay_window(there, back, 4 * self.config.chunk_elements)

    def on_credit(self, sender: int, message: Credit) -> None:
        """Take note that a neighbour has relayed a chunk."""
        path, site = message.path, self.config.site
        if (site, sender) not in pairwise(path[:-1]):
            raise OutOfPlaceMessage(f"a credit for {path}, on which it does not relay for us")
        self._lane(sender).credit(path)

    def on_refusal(self, sender: int, refusal: Refusal) -> None:
        """Act on a neighbour's refusal of what this site sent.

        A duplicate was counted before, and what this site never sent harms nobody; but a round
        whose data was refused cannot end, so it ends here and now, by name.
        """
        error = PeerError(
            f"{self.config.name(sender)} refused a message of {self.config.name(self.config.site)}"
            f": {refusal.detail}"
        )
        self.owner.refused(sender, error)
        needed = self._lane(sender).has_sent(refusal.chunk)
        if refusal.error == UnauthorisedPeer.__name__ or (
            needed and refusal.error != DuplicateMessage.__name__
        ):
            self.fail(error)

    def refuse(self, sender: int | None, error: PeerError) -> None:
        """Report a refused message."""
        self.owner.refused(sender, error)

    def lost(self, sender: int, incarnation: int, error: Exception) -> None:
        """Take note that a neighbour's lane has ended."""
        name = self.config.name(sender)
        self._lane_ended(sender, incarnation, LinkError(f"the lane from {name} ended: {error}"))

    def no_longer_heard(self, target: int, incarnation: int, error: Exception) -> None:
        """Take note that the lane to a neighbour has ended."""
        name = self.config.name(target)
        self._lane_ended(target, incarnation, LinkError(f"the lane to {name} ended: {error}"))

    def close(self) -> None:
        """Close every connection."""
        for lane in self._lanes.values():
            lane.close()
        inbound = [each for strands in self._inbound.values() for each in strands.values()]
        for connection in [*inbound, *self.unauthenticated]:
            connection.close()


def _both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        first()
        second()

    return call


class _Inbound:
    """Receives what a neighbour sends on its lane to this site."""

    def __init__(self, plane: DataPlane, connection: Connection) -> None:
        self._plane = plane
        self._connection = connection
        self._sender: int | None = None  # until a valid Hello
        self._incarnation = 0

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        if self._sender is None:
            if not isinstance(message, Hello):
                raise UnauthorisedPeer(f"{self._connection.peer} did not say Hello")
            self._sender = self._plane.admit(message, self._connection)
            self._incarnation = message.incarnation
            self._connection.trust()
            self._plane.unauthenticated.pop(self._connection, None)
            return DISCARD
        if isinstance(message, ChunkMessage):
            return self._plane.on_chunk(self._sender, message, payload_bytes)
        if isinstance(message, TimeRequest):
            self._connection.post(self._plane.owner.tell_time(message))
            return DISCARD
        raise OutOfPlaceMessage(f"a {type(message).__name__} on a lane")

    def on_refused(self, message: AnyMessage, error: PeerError) -> None:
        self._plane.refuse(self._sender, error)
        about = None
        if isinstance(message, ChunkMessage):
            about = message.round, message.version, message.chunk
        self._connection.post(Refusal(type(error).__name__, str(error), about))
        if self._sender is None:
            self._connection.close()

    def on_closed(self, error: Exception | None) -> None:
        self._plane.unauthenticated.pop(self._connection, None)
        if self._sender is None:
            if isinstance(error, PeerError):
                self._plane.refuse(None, error)
        elif error is not None:
            self._plane.lost(self._sender, self._incarnation, error)


class _Outbound:
    """Receives what a neighbour answers on this site's lane to it."""

    def __init__(self, plane: DataPlane, target: int, incarnation: int) -> None:
        self._plane = plane
        self._target = target
        self._incarnation = incarnation

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        if isinstance(message, Credit):
            self._plane.on_credit(self._target, message)
        elif isinstance(message, Refusal):
            self._plane.on_refusal(self._target, message)
        elif isinstance(message, TimeReply):
            self._plane.owner.hear_time(message)
        else:
            raise OutOfPlaceMessage(f"a {type(message).__name__} in answer to a lane")
        return DISCARD

    def on_refused(self, message: AnyMessage, error: PeerError) -> None:
        self._plane.refuse(self._target, error)

    def on_closed(self, error: Exception | None) -> None:
        if error is not None:
            self._plane.no_longer_heard(self._target, self._incarnation, error)
