"""A site's data plane: its lanes, what comes in on others' lanes, and the rounds they serve."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from anabranch.net.addresses import takes_calls
from anabranch.net.deadline import within
from anabranch.net.errors import (
    DuplicateMessage,
    LinkError,
    MalformedMessage,
    NetError,
    OutOfPlaceMessage,
    PeerError,
    UnauthorisedPeer,
)
from anabranch.net.frames import DISCARD, Limits, Sink
from anabranch.net.identity import derive, is_proven, proven
from anabranch.net.messages import (
    AnyMessage,
    ChunkMessage,
    Credit,
    Hello,
    Letter,
    LetterEnds,
    LetterTaken,
    Message,
    Offer,
    PartialSum,
    PipeRequest,
    Refusal,
    Stamp,
    StepsKnown,
    TimeReply,
    TimeRequest,
)
from anabranch.net.network import Address, Connection, Network, Receiver
from anabranch.net.pipe import End
from anabranch.net.refusals import RefusalLimit
from anabranch.net.tls import TlsError, check_identity, connect_to, identity_of
from anabranch.overlay import Overlay
from anabranch.plan import Auxiliary, Chunk, Plan, cut, deal
from anabranch.site.actions import (
    Action,
    Held,
    LetterHere,
    ModelHere,
    Quiet,
    Receipt,
    Send,
    Stray,
    Unsent,
    UpdateHere,
)
from anabranch.site.arithmetic import Buffer, payload_without_numbers
from anabranch.site.exchange import Exchange, Exchanges
from anabranch.site.lane import Lane, Path, end, relay_window
from anabranch.site.multipath import Fork
from anabranch.site.offers import Offering, Offers
from anabranch.site.served import Served
from anabranch.site.terms import Op, Terms, has_numbers, op_of

if TYPE_CHECKING:
    from anabranch.site.letters import Letters

T = TypeVar("T")

MOST_CHUNK_ELEMENTS = 1 << 26
MOST_STRANDS = 16
_LONGEST_S = 1e12  # any clock's time is less
_PROBE_S = 3.0  # that a neighbour has to answer a probe, before it counts as out of reach
LIMITS = Limits(message_bytes=1 << 16, payload_bytes=4 * MOST_CHUNK_ELEMENTS)


@dataclass(frozen=True, slots=True)
class DataPlaneConfig:
    """What every site of a run must agree on, and who this one is.

    Args:
        site: this site's index.
        overlay: sites and links; only along its links do sites connect.
        addresses: (host, port) of every site, by index; those of sites that take no connections
            say so, see :mod:`anabranch.net.addresses`.
        incarnations: of every site, by index, see :class:`anabranch.net.messages.Welcome`; all 0
            where left out.
        secret: this site's own, see :mod:`anabranch.net.identity`.
        lane_secrets: of its lanes to other sites, by their index.
        chunk_elements: of a chunk, as relays reckon how many may be on their way.
        most_chunk_elements: of any chunk.
        room_elements: of data that may come before its exchange has begun here.
        strands: connections of each lane.
        auxiliary: how many chunks paths take, and what those beyond do; None for the defaults.
        stamped: whether chunks carry what is needed to measure links.
        repairs: whether exchanges that lose a lane wait to be repaired, instead of failing.
    """

    site: int
    overlay: Overlay
    addresses: tuple[Address, ...]
    secret: bytes
    lane_secrets: tuple[bytes, ...]
    chunk_elements: int
    most_chunk_elements: int
    room_elements: int
    strands: int = 1
    auxiliary: Auxiliary | None = None
    stamped: bool = False
    incarnations: tuple[int, ...] = ()
    repairs: bool = False

    def __post_init__(self) -> None:
        least, most = self.chunk_elements, self.most_chunk_elements
        if not 1 <= least <= most <= MOST_CHUNK_ELEMENTS:
            raise ValueError(
                f"chunks have {least} to {most} elements, must be in 1..{MOST_CHUNK_ELEMENTS}"
            )

    def name(self, site: int) -> str:
        """Return a site's index and name, for error messages."""
        return f"site {site} ({self.overlay.sites[site].name})"


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

    def advanced(self, exchange: Exchange) -> None:
        """One more chunk of an exchange is finished here."""

    def happened(self, what: UpdateHere | ModelHere | Quiet | LetterHere) -> None:
        """An update or a model is all here, where the model is served; or a neighbour's letter."""

    def said(self, sender: int, message: LetterEnds | LetterTaken | StepsKnown) -> None:
        """A neighbour says something, where sites gossip."""

    def carry(self, source: int, connection: Connection) -> Receiver:
        """Pipe a neighbour's connection to the scheduler; return what hears it from now on."""

    def stamp(self, backlogged: bool) -> Stamp:
        """Return the stamp of a chunk that leaves now."""

    def arriving(self, source: int, stamp: Stamp, size_bytes: int) -> Callable[[], None]:
        """A neighbour's chunk begins to arrive; call what is returned when all of it has."""

    def tell_time(self, request: TimeRequest) -> TimeReply:
        """Answer a child that asks for the time."""

    def hear_time(self, reply: TimeReply) -> None:
        """Take the answer of a parent that was asked."""


@dataclass(slots=True)
class _Running:
    """An exchange that this site takes part in, until its result is here."""

    exchange: Exchange
    cuts: tuple[tuple[int, int], ...]  # of an exchange whose dispatch goes on
    is_watched: bool  # the owner wants to know how far it is
    ended: asyncio.Future[None]
    is_spare: bool  # it uses what others leave of the lanes
    unsent: Unsent  # chunks of this site's making that refer to the buffer


class Interrupted(Exception):
    """An exchange was stopped before its end, to be repaired."""


class DataPlane:
    """Moves chunks between this site and its neighbours, and runs the exchanges they belong to.

    Args:
        network: connects to the neighbours.
        config: see there.
        owner: the site it belongs to.
    """

    def __init__(self, network: Network, config: DataPlaneConfig, owner: Owner) -> None:
        self.config = config
        self._network = network
        self.owner = owner
        self._loop = asyncio.get_running_loop()
        self._failure: asyncio.Future[None] = self._loop.create_future()
        self._lanes: dict[int, Lane] = {}
        self._forks: dict[tuple[int, int], Fork] = {}  # where chunks may take several paths
        self._inbound: dict[int, dict[int, Connection]] = {}  # by neighbour and strand
        self._refusals = RefusalLimit()
        self._exchanges = Exchanges(config.site, config.room_elements, config.repairs)
        self._running: dict[int, _Running] = {}
        self._relaying: Counter[tuple[Path, int]] = Counter()  # by route and sender's incarnation
        self._served: dict[int, Served] = {}  # where the model is, by the plan's version
        self._serves_since: int | None = None
        self._letters: Letters | None = None  # where sites gossip
        self._has_gossiped = False
        self._lost: set[int] = set()  # neighbours whose lanes have ended
        self._silent: dict[int, set[Connection]] = {}  # by neighbour: those that say nothing
        self._offers = Offers()  # of neighbours that take no connections
        self._offering = Offering()  # where this site takes none
        self._has_begun = False
        self._addresses = [*config.addresses]
        self._incarnations = [*(config.incarnations or [0] * config.overlay.size)]
        self._sent_bytes: Counter[int] = Counter()  # to earlier incarnations of each neighbour

    # --- exchanges

    async def exchange(
        self,
        number: int,
        terms: Terms,
        plan: Plan,
        buffer: Buffer,
        weight: float,
        chunk_elements: int,
        trees: tuple[int, ...] | None = None,
        is_watched: bool = True,
        receivers: frozenset[int] | None = None,
        followers: frozenset[int] = frozenset(),
        is_spare: bool = False,
    ) -> tuple[int, int | None] | None:
        """Take part in an exchange, to its end.

        Args:
            number: the exchange's.
            terms: the same at every member.
            plan: the one plan every member runs this exchange under.
            buffer: what is contributed; holds the result afterwards.
            weight: of this site's contribution, > 0.
            chunk_elements: the most elements of a chunk.
            trees: of the first chunks, where they are dispatched during the exchange
                (``dispatched``); None where all chunks are dealt by share.
            is_watched: whether to tell the owner of every chunk that is finished here.
            receivers: who gets the result; None for every member but a source.
            followers: members that contribute nothing, where there is no source.
            is_spare: whether it uses what other exchanges leave of the lanes.

        Returns:
            The tree of the chunk that was finished last here, and the neighbour that sent it.

        Raises:
            LinkError, PeerError: the exchange cannot be completed.
            Interrupted: it was stopped.
        """
        if self._failure.done():
            self._failure.result()
        for target in plan.next_hops[self.config.site]:
            self._lane(target)
        cuts: tuple[tuple[int, int], ...] = ()
        chunks: Sequence[Chunk]
        if trees is None:
            chunks = deal(plan, buffer.elements, chunk_elements)
            total = len(chunks)
        else:
            cuts = cut(plan, buffer.elements, chunk_elements)
            chunks, total = _next_chunks(cuts, 0, trees), len(cuts)
        try:
            exchange = self._exchanges.open(number, terms)
            ended = self._loop.create_future()
            unsent = Unsent(partial(_end_if_complete, exchange, ended))
            running = _Running(exchange, cuts, is_watched, ended, is_spare, unsent)
            self._running[number] = running
            ends = terms.source, receivers, followers
            actions = exchange.begin(plan, chunks, total, buffer, weight, *ends)
            self._act(actions, running)
        except PeerError as error:
            self.fail(error)
            raise
        try:
            await self.unless_failed(running.ended)
        except BaseException:
            self._exchanges.stop(number)  # neighbours that have not heard of it may still send
            raise
        finally:
            del self._running[number]
            self._exchanges.end(number)
        return exchange.spread.latest

    def give_up(self, number: int, error: Exception) -> None:
        """End an exchange with an error, as it ends everywhere; what still comes is thrown away."""
        self._exchanges.stop(number)
        running = self._running.get(number)
        if running is not None and not running.ended.done():
            running.ended.set_exception(error)

    def stop(self, number: int) -> list[tuple[int, int]]:
        """Stop an exchange, begun here or not; whatever comes of it from now on is thrown away.

        Returns:
            The elements whose result is here.
        """
        running = self._running.get(number)
        held: list[tuple[int, int]] = []
        if running is not None:
            held = running.exchange.spread.stop()
            if not running.ended.done():
                running.ended.set_exception(Interrupted())
            for each in self._forks.values():
                each.withdraw(number)
            for lane in [*self._lanes.values()]:  # what goes instead may open another
                for send in lane.withdraw(number):
                    end(send, self.owner.progressed)
                    path = send.message.path
                    fork = self._fork(path) if send.message.is_aux else None
                    if fork is not None and len(path) > 2:
                        self._put_all(fork.credited(path))
        self._exchanges.stop(number)
        return held

    def dispatched(self, number: int, trees: tuple[int, ...]) -> None:
        """Take the trees of the next chunks of an exchange, in order.

        Raises:
            OutOfPlaceMessage: it is dealt beforehand.
        """
        running = self._running.get(number)
        if running is None:
            return  # its buffer was shorter than the largest that the scheduler deals for
        if not running.cuts:
            raise OutOfPlaceMessage(f"chunks of exchange {number}, which was dealt beforehand")
        exchange = running.exchange
        chunks = _next_chunks(running.cuts, exchange.dealt, trees)
        try:
            self._act(exchange.deal(chunks), running)
        except PeerError as error:
            self.fail(error)

    def _act(self, actions: Sequence[Action], running: _Running | None = None) -> None:
        """Do what follows from a call or a message; of which exchange, if it goes on here."""
        for action in actions:
            if type(action) is Send:
                if running is not None:
                    running.unsent.count += 1
                    action.counted = running.unsent
                    action.is_spare = running.is_spare
                self._send(action)
            elif type(action) is Held:
                if running is not None and running.is_watched:
                    self.owner.advanced(running.exchange)
            elif type(action) is Stray:
                number = 0 if running is None else running.exchange.number
                error = OutOfPlaceMessage(f"early data of exchange {number}: {action.why}")
                self.owner.refused(action.sender, error)
            else:
                assert isinstance(action, UpdateHere | ModelHere | Quiet | LetterHere)
                self.owner.happened(action)
        if running is not None and not running.unsent.count:
            _end_if_complete(running.exchange, running.ended)

    def serve(self, served: dict[int, Served], since: int) -> None:
        """Take part in push and pull.

        Args:
            served: by the versions of the plans that this site moves by.
            since: the version of the plan that it began with. What still comes of others before
                it is for an earlier process of this site, and thrown away.
        """
        self._served, self._serves_since = served, since

    def gossip(self, letters: Letters | None) -> None:
        """Take in what neighbours send of their models, and let no lane that breaks end anything.

        Args:
            letters: what takes it in; None from when on nothing more comes.
        """
        self._has_gossiped = letters is None
        self._letters = letters

    def withdraw_letter(self, neighbour: int) -> list[int]:
        """Return the chunks of the letter to a neighbour that are not sent, and never will be."""
        lane = self._lanes.get(neighbour)
        if lane is None:
            return []
        withdrawn = lane.withdraw_letters()
        for send in withdrawn:
            end(send, self.owner.progressed)
        return [send.message.chunk for send in withdrawn]

    def act(self, actions: Sequence[Action]) -> None:
        """Do what follows from a push or a step of a served model, or send letters."""
        self._act(actions)

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
        """End every exchange in progress, and every later one, with this error."""
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
        fork = self._fork(send.message.path)
        if fork is None:
            self._put(send)
        else:
            send.then = self._has_left_fork
            self._put_all(fork.add(send))

    def _has_left_fork(self, send: Send) -> None:
        path = send.message.path
        self._put_all(self._forks[path[0], path[-1]].sent(send.message))

    def _fork(self, path: Path) -> Fork | None:
        """Return what chooses between this path, which begins here, and others; None: nothing."""
        return self._forks.get((path[0], path[-1])) if self._forks else None

    def _put_all(self, sends: Sequence[Send]) -> None:
        for send in sends:
            self._put(send)

    def _put(self, send: Send) -> None:
        path = send.message.path
        to = path[path.index(self.config.site) + 1]
        if to in self._lost:
            # Nothing there takes it; what counts it goes on as if it had been sent.
            self._loop.call_soon(end, send, self.owner.progressed)
        else:
            self._lane(to).put(send)

    def use_auxiliary(self, paths: Mapping[tuple[int, int], tuple[Path, ...]]) -> None:
        """Let chunks take these paths, by (source, target), from now on, and no other ones."""
        bounds = self.config.auxiliary or Auxiliary()
        for source, target in paths:
            if source == self.config.site and (source, target) not in self._forks:
                self._forks[source, target] = Fork(
                    bounds.primary_busy_bound,
                    bounds.auxiliary_queue_length,
                    waits=bounds.when_full == "wait",
                )
        for ends, fork in self._forks.items():
            self._put_all(fork.use(paths.get(ends, ())))

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

    def _lane(self, target: int) -> Lane:
        if target not in self._lanes:
            window = self._relay_window(self.config.site, target)
            incarnation = self._incarnations[target]
            self._lanes[target] = Lane(
                self.config.site,
                f"lane {self.config.name(self.config.site)} -> {self.config.name(target)}",
                lambda strand: self._connect(target, incarnation, strand),
                window,
                lambda error: self._lane_ended(
                    target, incarnation, self._lane_error(target, error)
                ),
                self.owner.progressed,
                self.config.strands,
                self.owner.stamp if self.config.stamped else None,
            )
        return self._lanes[target]

    def _lane_ended(self, neighbour: int, incarnation: int, error: Exception) -> None:
        """Fail, unless what was lost with it can be repaired, or belongs to a worker that died."""
        if incarnation < self._incarnations[neighbour]:
            return  # another process is there now
        if self._letters is not None:
            lane = self._lanes.pop(neighbour, None)
            if lane is not None:
                self._sent_bytes[neighbour] += lane.payload_bytes
                lane.drop()
                self.owner.cut_off(neighbour, incarnation, error)
            return
        if neighbour not in self._lost and not self._failure.done():
            self._lost.add(neighbour)
            self._silent.pop(neighbour, None)
            self._offers.drop(neighbour)
            self._offering.withdraw(neighbour)
            if self._serves_since is None and not self.config.repairs:
                self._set_failure(error)
            elif neighbour in self._lanes:
                self._lanes[neighbour].drop()
            for served in self._served.values():
                self._act(served.gone(neighbour))
            self.owner.cut_off(neighbour, incarnation, error)

    def _watch(self, connection: Connection, neighbour: int, incarnation: int) -> None:
        """Let the owner know when a neighbour is silent on any connection of a lane."""

        def told(is_silent: bool) -> None:
            if neighbour in self._lost or incarnation < self._incarnations[neighbour]:
                return
            silent = self._silent.setdefault(neighbour, set())
            was_silent = bool(silent)
            if is_silent:
                silent.add(connection)
            else:
                silent.discard(connection)
            if silent or was_silent:
                self.owner.silent(neighbour, incarnation, is_silent)

        connection.tell_silence(told)

    def cut(self, neighbour: int) -> None:
        """Send nothing to a neighbour any more, and take nothing from it."""
        self._lost.add(neighbour)
        self._silent.pop(neighbour, None)
        if neighbour in self._lanes:
            self._lanes[neighbour].drop()
        for connection in self._inbound.get(neighbour, {}).values():
            connection.close()
        self._offers.drop(neighbour)
        self._offering.withdraw(neighbour)

    def lost_neighbours(self) -> list[tuple[int, int]]:
        """Return the neighbours whose lanes have ended, and in which incarnation."""
        return [(site, self._incarnations[site]) for site in sorted(self._lost)]

    def neighbours(self) -> list[tuple[int, int]]:
        """Return the sites that links join this one with, and which of their processes is known."""
        site, link = self.config.site, self.config.overlay.link
        near = [each for each in range(self.config.overlay.size) if link(site, each)]
        return [(each, self._incarnations[each]) for each in near]

    def name(self, neighbour: int) -> str:
        """See :class:`anabranch.site.control.Neighbours`."""
        return self.config.name(neighbour)

    def that_may_pipe(self) -> list[int]:
        """See :class:`anabranch.site.control.Neighbours`; each site begins with another."""
        near = [each for each, _ in self.neighbours() if takes_calls(self._addresses[each])]
        there = [each for each in near if each not in self._lost and not self._silent.get(each)]
        site, size = self.config.site, self.config.overlay.size
        return sorted(there, key=lambda each: (each - site) % size)

    async def ask_for_pipe(self, neighbour: int, end: End) -> Connection:
        """See :class:`anabranch.site.control.Neighbours`."""
        connection = await self._call(neighbour, end)
        site, secret = self.config.site, self.config.lane_secrets[neighbour]
        request = PipeRequest(b"", site, neighbour, self._incarnations[site])
        connection.post(proven(request, secret, connection.their_challenge))
        return connection

    async def answers(self, neighbour: int) -> bool:
        """Return whether a neighbour answers on a connection that is made for that.

        One that takes no connections will say itself whether this one answers, if it can.
        """
        if not takes_calls(self._addresses[neighbour]):
            return takes_calls(self._addresses[self.config.site])
        try:
            async with within(_PROBE_S):
                receiver = _Probing()
                connection = await self._network.connect(self._addresses[neighbour], receiver)
        except (NetError, TlsError, TimeoutError):
            return False
        connection.close()
        return True

    def returned(self, neighbour: int, incarnation: int, address: Address) -> None:
        """Lead lanes to another process of a neighbour that died, and take its."""
        if incarnation != self._incarnations[neighbour]:
            self._offers.drop(neighbour)
        self._incarnations[neighbour], self._addresses[neighbour] = incarnation, address
        self._silent.pop(neighbour, None)
        self._lost.add(neighbour)  # while what waits for the old one is dropped
        lane = self._lanes.pop(neighbour, None)
        if lane is not None:
            self._sent_bytes[neighbour] += lane.payload_bytes
            lane.drop()
        for connection in self._inbound.pop(neighbour, {}).values():
            connection.close()
        self._offering.withdraw(neighbour)
        self._lost.discard(neighbour)
        self._offer(neighbour)

    def _lane_error(self, target: int, error: Exception) -> Exception:
        return LinkError(
            f"{self.config.name(self.config.site)} lost its lane to {self.config.name(target)}: "
            f"{error}"
        )

    async def _connect(self, target: int, incarnation: int, strand: int) -> Connection:
        address = self._addresses[target]
        if takes_calls(address):
            connection = await self._call(target, _Outbound(self, target, incarnation))
        else:
            offered = await self._offers.take(target, strand)
            connection = self._network.adopt(offered, address)
        await self._introduce(connection, Hello, target, strand)
        self._watch(connection, target, incarnation)
        return connection

    async def _call(self, target: int, receiver: Receiver) -> Connection:
        identity = identity_of(self.config.overlay.sites[target].name)
        return await connect_to(self._network, self._addresses[target], receiver, identity)

    async def _introduce(
        self, connection: Connection, how: type[Hello | Offer], target: int, strand: int
    ) -> None:
        """Say, first of all, who this site is."""
        site = self.config.site
        strands, incarnation = self.config.strands, self._incarnations[site]
        said = how(b"", site, target, strand, strands, incarnation)
        secret = self.config.lane_secrets[target]
        await connection.send(proven(said, secret, connection.their_challenge))

    # --- where this site takes no connections

    def begin(self) -> None:
        """Take note that all sites are ready for lanes."""
        self._has_begun = True
        for neighbour in range(self.config.overlay.size):
            self._offer(neighbour)

    def _offer(self, neighbour: int) -> None:
        """Offer a neighbour connections, if it can neither do without nor make them."""
        config = self.config
        needs_them = self._has_begun and not takes_calls(self._addresses[config.site])
        is_there = takes_calls(self._addresses[neighbour]) and neighbour not in self._lost
        if needs_them and is_there and config.overlay.link(neighbour, config.site) is not None:
            strands = range(config.strands)
            offers = (partial(self._offer_strand, neighbour, strand) for strand in strands)
            self._offering.keep(neighbour, *offers)

    async def _offer_strand(
        self, neighbour: int, strand: int
    ) -> tuple[Connection, asyncio.Future[bool]]:
        receiver = _Inbound(self, called=neighbour)
        connection = receiver.connection = await self._call(neighbour, receiver)
        await self._introduce(connection, Offer, neighbour, strand)
        return connection, receiver.taken

    def post(self, target: int, message: Message) -> None:
        """Send a message without payload to a neighbour, beside the queue; opens its lane."""
        self._lane(target).post(message)

    def say(self, target: int, message: Message) -> None:
        """Like ``post``, but not lost while the lane is being opened."""
        self._lane(target).say(message)

    def sent_bytes(self) -> dict[int, int]:
        """Return the payload bytes sent so far to each neighbour."""
        sent = self._sent_bytes.copy()
        for target, lane in self._lanes.items():
            sent[target] += lane.payload_bytes
        return dict(sent)

    # --- receiving

    def welcome(self, connection: Connection) -> Receiver:
        """Take a new connection; its first message must be a valid Hello."""
        return _Inbound(self, connection)

    def admit(self, hello: Hello, connection: Connection) -> int:
        """Check a Hello; return the neighbour it comes from.

        Raises:
            UnauthorisedPeer: not a neighbour of this site, or not on one of its lane's connections.
        """
        self._check(hello, connection, (hello.source, self.config.site))
        _check_strand(hello, connection)
        strands = self._inbound.setdefault(hello.source, {})
        if hello.strand in strands:
            if self._letters is None and not self._has_gossiped:
                raise _not_a_strand(hello, connection)
            strands[hello.strand].close()  # it has broken, and only the neighbour knows yet
        strands[hello.strand] = connection
        self._watch(connection, hello.source, hello.incarnation)
        return hello.source

    def offered(self, offer: Offer, connection: Connection) -> Receiver:
        """Check an offer; return what hears the answers on this site's lane from now on.

        Raises:
            UnauthorisedPeer: not a neighbour of this site, or it has offered that already.
        """
        self._check(offer, connection, (self.config.site, offer.source))
        _check_strand(offer, connection)
        if not self._offers.add(offer.source, offer.strand, connection):
            raise _not_a_strand(offer, connection)
        return _Outbound(self, offer.source, offer.incarnation)

    def carry(self, request: PipeRequest, connection: Connection) -> Receiver:
        """Check who asks for a pipe to the scheduler; return what hears it from now on.

        Raises:
            UnauthorisedPeer: not a neighbour of this site.
        """
        self._check(request, connection, (request.source, self.config.site))
        return self.owner.carry(request.source, connection)

    def withdrawn(self, neighbour: int, connection: Connection) -> bool:
        """Take note that a connection has ended; return whether it was offered, and not taken."""
        return self._offers.forget(neighbour, connection)

    def _check(
        self, hello: Hello | Offer | PipeRequest, connection: Connection, link: tuple[int, int]
    ) -> None:
        """Check who speaks, and that the link is there that the connection is to stand for."""
        config = self.config
        if 0 <= hello.source < config.overlay.size:
            expected = identity_of(config.overlay.sites[hello.source].name)
            check_identity(connection.peer, connection.identity, expected)
        if not is_proven(hello, derive(config.secret, hello.source), connection.own_challenge):
            raise UnauthorisedPeer(
                f"{connection.peer} says it is site {hello.source} of this run, and does not prove "
                "it"
            )
        if hello.target != config.site:
            raise UnauthorisedPeer(
                f"{connection.peer} looks for site {hello.target}, this is site {config.site}"
            )
        if config.overlay.link(*link) is None:
            raise UnauthorisedPeer(
                f"{connection.peer} says it is site {hello.source}, which has no link to this one"
            )
        if hello.incarnation != self._incarnations[hello.source]:
            raise UnauthorisedPeer(
                f"{connection.peer} says it is incarnation {hello.incarnation} of site "
                f"{hello.source}, which is in incarnation {self._incarnations[hello.source]}"
            )

    def on_chunk(self, sender: int, message: ChunkMessage, payload_bytes: int) -> Sink:
        """Return where a chunk from a neighbour goes: into an exchange, or on to the next hop."""
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
        if stamp is not None and self.config.stamped:
            take_note = self.owner.arriving(sender, stamp, payload_bytes)
            sink.done = _both(take_note, sink.done)
        return sink

    def _take(self, message: ChunkMessage, payload_bytes: int) -> Sink:
        if type(message) is Letter:
            if self._has_gossiped:
                return Sink()  # it was cut off while the others ended
            if self._letters is None:
                raise OutOfPlaceMessage("a letter, where no sites gossip")
            receipt = self._letters.receive(message, payload_bytes)
            return Sink(receipt.target, None, partial(self._letter_received, receipt))
        exchange = self._exchanges.active.get(message.exchange)
        if exchange is not None and message.terms == exchange.terms:  # so it is nearly always
            half = exchange.reduction if type(message) is PartialSum else exchange.spread
            receipt = half.receive(message, payload_bytes)  # type: ignore[arg-type]
        elif op_of(message.terms) != Op.STEP:
            receipt = self._exchanges.receive(message, payload_bytes)
        elif self._serves_since is None:
            raise OutOfPlaceMessage("an update or a model, which nothing serves here")
        else:
            served = self._served.get(message.version)
            if served is None and message.version < self._serves_since:
                return Sink()
            if served is None:
                raise OutOfPlaceMessage(
                    f"an update or a model under plan version {message.version}, where "
                    f"{sorted(self._served)} are in use"
                )
            receipt = served.receive(message, payload_bytes)
            done = partial(self._served_received, served, receipt)
            return Sink(receipt.target, receipt.piece, done)
        return Sink(receipt.target, receipt.piece, partial(self._received, receipt))

    def _received(self, receipt: Receipt) -> None:
        number = receipt.message.exchange
        if number in self._exchanges.active:  # else it has ended with an error
            assert receipt.owner is not None
            self._act(receipt.owner.received(receipt), self._running.get(number))

    def _letter_received(self, receipt: Receipt) -> None:
        assert self._letters is not None
        self._act(self._letters.received(receipt))

    def _served_received(self, served: Served, receipt: Receipt) -> None:
        self._act(served.received(receipt))

    def _relay(self, sender: int, message: ChunkMessage, payload_bytes: int, to: int) -> Sink:
        config = self.config
        if config.overlay.link(config.site, to) is None:
            raise OutOfPlaceMessage(f"path {message.path} goes on to site {to}, but no link does")
        if not 0 < payload_bytes <= 4 * config.most_chunk_elements:
            raise OutOfPlaceMessage(f"a chunk to relay has {payload_bytes} bytes")
        incarnation = self._incarnations[sender]
        held = message.path, incarnation
        if self._relaying[held] >= self._relay_window(sender, config.site):
            raise OutOfPlaceMessage(f"more chunks for {message.path} than the relay window allows")
        self._relaying[held] += 1
        target: memoryview | None = None
        if has_numbers(message.terms):
            payload = target = memoryview(np.empty(payload_bytes, np.uint8).data)
        else:
            payload = payload_without_numbers(payload_bytes)
        relayed = Send(message, payload, then=partial(self._give_credit, sender, incarnation))
        return Sink(target, done=partial(self._put, relayed))

    def _give_credit(self, sender: int, incarnation: int, relayed: Send) -> None:
        """Tell the hop before that a chunk has been passed on."""
        path = relayed.message.path
        held = path, incarnation
        self._relaying[held] -= 1
        if not self._relaying[held]:
            del self._relaying[held]
        if incarnation < self._incarnations[sender]:
            return
        for connection in self._inbound.get(sender, {}).values():
            connection.post(Credit(path))
            break  # any strand will do

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
        fork = self._fork(path) if path[0] == site else None
        if fork is not None:
            self._put_all(fork.credited(path))

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
        needed = self._lane(sender).has_sent(refusal.chunk)
        if refusal.error == UnauthorisedPeer.__name__ or (
            needed and refusal.error != DuplicateMessage.__name__
        ):
            self.fail(error)

    def repeated(self, sender: int, message: ChunkMessage) -> None:
        """Take note that a chunk has come again; in an all-reduce each is sent once.

        One of the two is not what its sender meant, and it may be the one that counted.
        """
        if op_of(message.terms) != Op.STEP and message.exchange in self._exchanges.active:
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
        elif reported := self._refusals.admit(error, asyncio.get_running_loop().time()):
            self.owner.refused(None, reported)

    def lost(self, sender: int, incarnation: int, error: Exception) -> None:
        """Take note that a neighbour's lane has ended; one that gossips will make it again."""
        if self._letters is not None:
            return
        self._lane_ended(sender, incarnation, self._cut(sender, self.config.site, error))

    def no_longer_heard(self, target: int, incarnation: int, error: Exception) -> None:
        """Take note that the lane to a neighbour has ended."""
        self._lane_ended(target, incarnation, self._cut(self.config.site, target, error))

    def _cut(self, source: int, target: int, error: Exception) -> LinkError:
        ends = f"{self.config.name(source)} to {self.config.name(target)}"
        return LinkError(f"the lane from {ends} ended, says site {self.config.site}: {error}")

    def close(self) -> None:
        """Close every connection."""
        for lane in self._lanes.values():
            lane.close()
        for strands in self._inbound.values():
            for connection in strands.values():
                connection.close()
        self._offers.close()
        self._offering.close()


def _check_strand(hello: Hello | Offer, connection: Connection) -> None:
    if not 0 <= hello.strand < hello.strands <= MOST_STRANDS:
        raise _not_a_strand(hello, connection)


def _not_a_strand(hello: Hello | Offer, connection: Connection) -> UnauthorisedPeer:
    return UnauthorisedPeer(
        f"{connection.peer} says it is strand {hello.strand} of {hello.strands} of site "
        f"{hello.source}, which is connected already or cannot be"
    )


def _end_if_complete(exchange: Exchange, ended: asyncio.Future[None]) -> None:
    if exchange.is_complete and not ended.done():
        ended.set_result(None)


def _next_chunks(
    cuts: tuple[tuple[int, int], ...], first: int, trees: tuple[int, ...]
) -> tuple[Chunk, ...]:
    """Return the next chunks; trees beyond the buffer's last chunk are for longer buffers."""
    bounds = cuts[first : first + len(trees)]
    return tuple(
        Chunk(index, tree, start, stop)
        for index, (tree, (start, stop)) in enumerate(zip(trees, bounds, strict=False), first)
    )


def _both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        first()
        second()

    return call


class _Probing:
    """Receives nothing: a connection that only shows that it can be made."""

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        return DISCARD

    def on_refused(self, message: AnyMessage, error: PeerError) -> None:
        pass

    def on_closed(self, error: Exception | None) -> None:
        pass


class _Inbound:
    """Receives what a neighbour sends on its lane to this site.

    Args:
        plane: this site's.
        connection: which; where this site makes it, as soon as it is made.
        called: the neighbour to which this site offers it; None where it came in.

    Attributes:
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
            if isinstance(message, Offer) and self._called is None:
                self._offer = message.source, self._plane.offered(message, self.connection)
            elif isinstance(message, PipeRequest) and self._called is None:
                self._pipe = self._plane.carry(message, self.connection)
            elif isinstance(message, Hello) and self._called in (None, message.source):
                self._sender = self._plane.admit(message, self.connection)
                self._incarnation = message.incarnation
                self.taken.set_result(True)
            elif isinstance(message, Refusal) and self._called is not None:
                return DISCARD  # it closes the connection, and may take the next
            elif isinstance(message, Refusal):
                raise UnauthorisedPeer(
                    f"{self.connection.peer} does not take this process for the site that it "
                    f"called: {message.detail}"
                )
            else:
                raise UnauthorisedPeer(f"{self.connection.peer} did not say Hello")
            self.connection.trust()
            return DISCARD
        if isinstance(message, ChunkMessage):
            return self._plane.on_chunk(self._sender, message, payload_bytes)
        if isinstance(message, TimeRequest):
            self.connection.post(self._plane.owner.tell_time(message))
            return DISCARD
        if isinstance(message, LetterEnds | LetterTaken | StepsKnown):
            self._plane.owner.said(self._sender, message)
            return DISCARD
        raise OutOfPlaceMessage(f"a {type(message).__name__} on a lane")

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
            if not self._plane.withdrawn(self._offer[0], self.connection):
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
