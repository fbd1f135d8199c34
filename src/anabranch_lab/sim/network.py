"""The simulated network: all connections live in one loop, and flows model the links.

A message that a lane sends becomes a flow over its link, and over the capped ports of its two
sites. Flows share by max-min fairness (:mod:`anabranch_lab.sim._fluid`). A link's capacity is its
goodput ``rate * (1 - loss)``, multiplied by the faults in force. ``send`` returns when the last
byte has left; the message arrives one latency later, whole and in order. A connection takes no time
to make. Over a cut link no connection is made.

The model simplifies posts (credits, refusals) and all traffic between sites and the scheduler: they
take the latency that their link has at the start, but no bandwidth. A cut link holds posts, and the
news that an end has closed, until it is whole again. The control network breaks only for a
disconnected site. A connection that is silent for longer than ``wait_s``, because a link is cut or
its other end sleeps, ends at both ends at once.

Hosts can die and sleep. A dead host's connections close, as the kernel closes those of a killed
process. A sleeping host is like a stopped process. Messages that were handed to its network
interface leave; incoming messages wait. Its tasks and timers wait too, if they were made
``in_process``. When it wakes up, overdue timers run before it receives messages, as in asyncio's
loop.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from functools import partial
from itertools import count

from anabranch.net import pipe
from anabranch.net.errors import LinkError, NetError, PeerError
from anabranch.net.frames import DISCARD, PREFIX_BYTES, Sink
from anabranch.net.messages import AnyMessage, Message, encode
from anabranch.net.network import Address, Connection, Payload, Receiver, frozen
from anabranch.overlay import Latency, Overlay
from anabranch_lab.sim._fluid import Flow, Fluid
from anabranch_lab.sim.loop import VirtualLoop, process_of

_CONNECT_S = 4.0  # the real networks give up a connection without an answer after this

Pair = tuple[int, int]


class _Way:
    """The path of messages from one end of a connection to the other.

    Args:
        resources: those that its flows use; empty where messages take no bandwidth.
        latency_s: returns the latency of the next sent message, seconds.
        post_s: latency of posts, seconds.
    """

    __slots__ = ("cut", "cuts", "held", "latency_s", "post_s", "resources")

    def __init__(
        self, resources: tuple[int, ...], latency_s: Callable[[], float], post_s: float
    ) -> None:
        self.resources = resources
        self.latency_s = latency_s
        self.post_s = post_s
        self.cut = False
        self.cuts = 0  # how often it was cut so far
        self.held: list[Callable[[], None]] = []  # posts, until the link is whole again

    def when_whole(self, callback: Callable[[], None]) -> None:
        """Call back now, or once the link is no longer cut."""
        if self.cut:
            self.held.append(callback)
        else:
            callback()

    def mend(self) -> None:
        """End the cut, and send the held posts in order."""
        self.cut = False
        held, self.held = self.held, []
        for callback in held:
            callback()


class Host:
    """A machine in the network: awake, asleep, or dead.

    Args:
        name: for error messages.
        loop: keeps the time.
    """

    def __init__(self, name: str, loop: VirtualLoop) -> None:
        self.name = name
        self._loop = loop
        self.dead = False
        self.asleep = False
        self.sleeps = 0  # how often it was put to sleep so far
        self._backlog: list[tuple[Callable[..., object], tuple[object, ...]]] = []
        self._waking: asyncio.Handle | None = None  # timers run, and no message is received yet

    def act(self, callback: Callable[..., object], *args: object) -> None:
        """Call back now, or when the host wakes up; never once it is dead."""
        if self.asleep:
            self._backlog.append((callback, args))
        elif not self.dead:
            before = process_of.set(self)
            try:
                callback(*args)
            finally:
                process_of.reset(before)

    @contextmanager
    def in_process(self) -> Iterator[None]:
        """Assign tasks and timers made in the block to this host: they wait while it sleeps."""
        before = process_of.set(self)
        try:
            yield
        finally:
            process_of.reset(before)

    async def awake(self) -> None:
        """Return at once, or when the host wakes up."""
        if self.asleep:
            up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._backlog.append((_settle, (up,)))
            await up

    @property
    def stands_still(self) -> bool:
        """Whether the host is asleep, and not about to wake up."""
        return self.asleep and self._waking is None

    def sleep(self) -> None:
        """Stand still until woken."""
        self.asleep = True
        if self._waking is not None:
            self._waking.cancel()
            self._waking = None
        self._loop.stand_still(self)

    def wake(self) -> None:
        """Run, in order, what waited: timers and tasks, then incoming messages."""
        self._loop.go_on(self)
        self._waking = self._loop.call_soon(self._hear, context=Context())

    def die(self) -> None:
        """Receive and do nothing more."""
        self.dead = True
        self._loop.go_on(self)

    def _hear(self) -> None:
        self._waking = None
        self.asleep = False
        backlog, self._backlog = self._backlog, []
        for callback, args in backlog:
            self.act(callback, *args)


def _steady_way(latency_s: float) -> _Way:
    """Return a way without bandwidth and with a constant latency."""
    return _Way((), lambda: latency_s, latency_s)


def _settle(future: asyncio.Future[None], error: Exception | None = None) -> None:
    if not future.done():
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


class SimulatedNetwork:
    """The links between the sites of an overlay, and a control network beside them.

    It is one class since each fault it plays (a death, a sleep, a cut, a silence) acts on the same
    ends and flows.

    Args:
        loop: keeps the time.
        overlay: sites and links; rate traces count from ``begin``.
        seed: of latencies that drift.
        control_latency_s: one way between the scheduler and any site, seconds.
        wait_s: how long a connection may be silent, seconds.
        unusual_s: a silence of this length is reported as unusual, seconds.
        connect_s: how long to wait for a new connection, seconds.

    Attributes:
        sites: the hosts, by index.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        overlay: Overlay,
        seed: int,
        control_latency_s: float,
        wait_s: float = math.inf,
        unusual_s: float = math.inf,
        connect_s: float = _CONNECT_S,
    ) -> None:
        self.loop = loop
        self.sites = [Host(site.name, loop) for site in overlay.sites]
        self.scheduler = Host("scheduler", loop)
        self._overlay = overlay
        self._fluid: Fluid[_End] = Fluid()
        self._rates_bps = {(link.source, link.target): link.goodput_bps for link in overlay}
        self._factors: dict[Pair, float] = {}
        self._wait_s = wait_s
        self._unusual_s = unusual_s
        self._connect_s = None if math.isinf(connect_s) else connect_s
        self._severed: set[Pair] = set()
        self._ways = self._lay_links(seed)
        self._control = _steady_way(control_latency_s)
        self._cut_off: set[Host] = set()  # from the scheduler
        self._listeners: dict[Address, tuple[Host, Callable[[Connection], Receiver]]] = {}
        self._ports = count(1)
        self._ends: dict[_End, None] = {}  # open, in order of making
        self._unsettled = False
        self._armed_s = math.inf  # when the next check of the flows is due
        loop.explain.append(self._explain)

    def _lay_links(self, seed: int) -> dict[Pair, _Way]:
        add, sites = self._fluid.add_resource, self._overlay.sites
        up = [None if site.uplink_bps is None else add(site.uplink_bps) for site in sites]
        down = [None if site.downlink_bps is None else add(site.downlink_bps) for site in sites]
        ways = {}
        for link in self._overlay:
            used = (add(link.goodput_bps), up[link.source], down[link.target])
            resources = tuple(resource for resource in used if resource is not None)
            way = _Way(resources, Latency(link, seed).next_s, link.latency_s)
            ways[link.source, link.target] = way
        return ways

    def lanes(self, site: int) -> Port:
        """Return a site's port on the overlay's links."""
        return Port(self, self.sites[site], site)

    def control(self, site: int | None) -> Port:
        """Return a site's port on the control network; None: the scheduler's."""
        return Port(self, self.scheduler if site is None else self.sites[site], None)

    # --- what changes the network

    def begin(self) -> None:
        """Begin the links' rate traces."""
        began_s = self.loop.time()
        for link in self._overlay:
            if link.trace is not None:
                pieces = zip(link.trace.starts_s, link.trace.rates_bps, strict=True)
                for start_s, rate_bps in pieces:
                    pair, goodput_bps = (link.source, link.target), rate_bps * (1.0 - link.loss)
                    self.loop.at(began_s + start_s, self._set_rate, pair, goodput_bps)

    def _set_rate(self, pair: Pair, goodput_bps: float) -> None:
        self._rates_bps[pair] = goodput_bps
        self._apply(pair)

    def scale(self, pair: Pair, factor: float) -> None:
        """Multiply a link's rate by ``factor`` from now on; 0 cuts the link, 1 restores it."""
        self._factors[pair] = factor
        self._apply(pair)
        way = self._ways[pair]
        if factor:
            if way.cut:
                self._speak(lambda end: end.way is way)
            way.mend()
        elif not way.cut:
            way.cut = True
            cuts = way.cuts = way.cuts + 1
            self._fall_silent(lambda: way.cut and way.cuts == cuts, lambda end: end.way is way)

    def _apply(self, pair: Pair) -> None:
        capacity_bps = self._rates_bps[pair] * self._factors.get(pair, 1.0)
        self._fluid.set_capacity(self._ways[pair].resources[0], capacity_bps)
        self._touch()

    def kill(self, site: int | None) -> None:
        """Kill a host: it receives and does nothing more, and its peers lose their connections.

        Args:
            site: its index; None: the scheduler's host.
        """
        host = self.scheduler if site is None else self.sites[site]
        host.die()
        for address in [at for at, (whose, _) in self._listeners.items() if whose is host]:
            del self._listeners[address]
        for end in [end for end in self._ends if end.host is host]:
            end.vanish()

    def put_to_sleep(self, site: int | None) -> None:
        """Stop a host until `wake`.

        Args:
            site: its index; None: the scheduler's host.
        """
        host = self.scheduler if site is None else self.sites[site]
        if not host.stands_still:
            host.sleep()
            sleeps = host.sleeps = host.sleeps + 1
            self._fall_silent(
                lambda: host.asleep and host.sleeps == sleeps, lambda end: end.host is host
            )

    def wake(self, site: int | None) -> None:
        """Wake a host that was put to sleep."""
        host = self.scheduler if site is None else self.sites[site]
        host.wake()
        self._speak(lambda end: end.host is host)

    def _fall_silent(self, still: Callable[[], bool], says: Callable[[_End], bool]) -> None:
        """Report ends that are silent from now on, and end their connections, after their times.

        Args:
            still: returns whether they are still silent.
            says: returns whether an end is one of the silent ones.
        """

        def act(what: Callable[[_End], None]) -> None:
            if still():
                for end in [end.other for end in self._ends if says(end)]:
                    what(end)

        def tell(end: _End) -> None:
            end.host.act(end.notice, True)

        def give_up(end: _End) -> None:
            end.give_up(self._wait_s)

        for after_s, what in ((self._unusual_s, tell), (self._wait_s, give_up)):
            if after_s < math.inf:
                self.loop.at(self.loop.time() + after_s, act, what)

    def _speak(self, says: Callable[[_End], bool]) -> None:
        """Report ends that are no longer silent."""
        if self._unusual_s < math.inf:
            for end in [end.other for end in self._ends if says(end)]:
                end.host.act(end.notice, False)

    def revive(self, site: int | None) -> None:
        """Replace a dead host by a new one; ports on it must be made again."""
        if site is None:
            assert self.scheduler.dead
            self.scheduler = Host(self.scheduler.name, self.loop)
            return
        dead = self.sites[site]
        assert dead.dead
        host = self.sites[site] = Host(dead.name, self.loop)
        if dead in self._cut_off:
            self._cut_off.add(host)

    def disconnect(self, site: int) -> None:
        """Break a host's connection to the scheduler; refuse new ones.

        Messages on their way are lost. Both ends learn of it one control latency later.
        """
        host = self.sites[site]
        self._cut_off.add(host)
        for end in [end for end in self._ends if end.host is host and end.way is self._control]:
            end.break_off()

    def reconnect(self, site: int) -> None:
        """Accept connections of a host to the scheduler again."""
        self._cut_off.discard(self.sites[site])

    def sever(self, one: int, other: int) -> None:
        """Break all connections over the links between two hosts; refuse new ones."""
        self._severed |= {(one, other), (other, one)}
        ways = [self._ways[pair] for pair in ((one, other), (other, one)) if pair in self._ways]
        for end in [end for end in self._ends if end.way in ways]:
            end.break_off()

    def join(self, one: int, other: int) -> None:
        """Accept new connections between two hosts again."""
        self._severed -= {(one, other), (other, one)}

    def hush(self, one: int, other: int, are_silent: bool) -> None:
        """Silence the links between two hosts, or release the messages that waited.

        Connections stay. Their ends are told of the silence, or of its end, at once.
        """
        pairs = [pair for pair in ((one, other), (other, one)) if pair in self._ways]
        for pair in pairs:
            self.scale(pair, 0.0 if are_silent else 1.0)
        ways = [self._ways[pair] for pair in pairs]
        for end in [end for end in self._ends if end.way in ways]:
            end.host.act(end.notice, are_silent)

    # --- flows

    def carry(self, end: _End, resources: tuple[int, ...], size_bytes: int) -> Flow[_End]:
        """Start a flow now; ``end.left`` is called when its last byte has left."""
        self._touch()
        return self._fluid.start(resources, 8.0 * size_bytes, end)

    def drop(self, flow: Flow[_End]) -> None:
        """End a flow before its time."""
        self._fluid.cancel(flow)
        self._touch()

    def _touch(self) -> None:
        if not self._unsettled:
            self._unsettled = True
            self.loop.at_end_of_instant(self._settle_flows)

    def _settle_flows(self) -> None:
        self._unsettled = False
        self._fluid.settle(self.loop.time())
        next_s = self._fluid.next_s
        if next_s < self._armed_s:
            self._armed_s = next_s
            self.loop.at(next_s, self._look)

    def _look(self) -> None:
        now_s = self.loop.time()
        if self._armed_s <= now_s:
            self._armed_s = math.inf
        for flow in self._fluid.finish(now_s):
            flow.token.left()
        self._touch()

    # --- connections

    async def until_whole(self, port: Port, address: Address) -> None:
        """Wait while a link of a new connection is cut, for `connect_s` at most.

        Raises:
            LinkError: a link is still cut then.
        """
        host, _ = self._listeners.get(address, (None, None))
        if host is None:
            return
        for way in self._way(port.site, host):
            if way.cut:
                whole: asyncio.Future[None] = self.loop.create_future()
                way.when_whole(partial(_settle, whole))
                await asyncio.wait({whole}, timeout=self._connect_s)
            if way.cut:
                raise LinkError(
                    f"cannot connect to {address[0]}:{address[1]}: nothing answered in "
                    f"{self._connect_s:g} s"
                )

    def connect(self, port: Port, address: Address, receiver: Receiver) -> _End:
        """Make a connection from a port; see :class:`Port`."""
        if address not in self._listeners:
            raise LinkError(f"cannot connect to {address[0]}:{address[1]}: no host listens there")
        host, welcome = self._listeners[address]
        if port.site is None and port.host in self._cut_off:
            raise LinkError(f"cannot connect to {address[0]}:{address[1]}: nothing leads there")
        there, back = self._way(port.site, host)
        caller, called = _End(self, port.host, host, there), _End(self, host, port.host, back)
        caller.other, called.other = called, caller
        caller.receiver = receiver
        called.receiver = welcome(called)
        self._ends[caller] = self._ends[called] = None
        return caller

    def _way(self, source: int | None, host: Host) -> tuple[_Way, _Way]:
        """Return a connection's ways there and back."""
        if source is None:
            return self._control, self._control
        target = self.sites.index(host)
        if (source, target) not in self._ways or (source, target) in self._severed:
            raise LinkError(f"no link leads from {self.sites[source].name} to {host.name}")
        there = self._ways[source, target]
        return there, self._ways.get((target, source)) or _steady_way(there.post_s)

    def listen(
        self, port: Port, address: Address, welcome: Callable[[Connection], Receiver]
    ) -> _Listener:
        """Listen on a port; see :class:`Port`."""
        address = port.host.name, address[1] or next(self._ports)
        self._listeners[address] = port.host, welcome
        return _Listener(address, lambda: self._listeners.pop(address, None))

    def forget(self, end: _End) -> None:
        """Take note that an end is closed."""
        self._ends.pop(end, None)

    def _explain(self) -> list[str]:
        stalled = [flow.token for flow in self._fluid.stalled()]
        asleep = [host.name for host in self.sites if host.asleep]
        return [
            *(f"nothing moves from {end.host.name} to {end.peer_host.name}" for end in stalled),
            *(f"{name} is stopped" for name in asleep),
        ]


class Port:
    """A host's access to the network; see :class:`anabranch.net.network.Network`.

    Args:
        network: the network.
        host: the port's host.
        site: the host's index if this port is on the overlay, None if on the control network.
    """

    heads_go_ahead = False

    def __init__(self, network: SimulatedNetwork, host: Host, site: int | None) -> None:
        self._network = network
        self.host = host
        self.site = site

    async def connect(self, address: Address, receiver: Receiver) -> Connection:
        """See :meth:`anabranch.net.network.Network.connect`."""
        await self._network.until_whole(self, address)
        return self._network.connect(self, address, receiver)

    def adopt(self, connection: Connection, address: Address) -> Connection:
        """See :meth:`anabranch.net.network.Network.adopt`."""
        return connection

    async def listen(
        self, address: Address, welcome: Callable[[Connection], Receiver]
    ) -> _Listener:
        """See :meth:`anabranch.net.network.Network.listen`."""
        return self._network.listen(self, address, welcome)

    async def connect_through(self, end: pipe.End, peer: str, receiver: Receiver) -> Connection:
        """See :meth:`anabranch.net.network.ControlNetwork.connect_through`."""
        assert isinstance(end.connection, _End)
        end.connection.receiver = receiver
        return end.connection

    async def pipe_to(self, address: Address, end: pipe.End) -> None:
        """See :meth:`anabranch.net.network.ControlNetwork.pipe_to`."""
        assert isinstance(end.connection, _End)
        there = await self.connect(address, _Spliced(end.connection, end))
        end.connection.receiver = _Spliced(there, end)


class _Spliced:
    """Forwards messages of one connection of a pipe to its other connection.

    Args:
        other: the pipe's other connection.
        end: the pipe's end at the site that carries it.
    """

    def __init__(self, other: Connection, end: pipe.End) -> None:
        self._other = other
        self._end = end

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        self._other.post(message)
        return DISCARD

    def on_refused(self, message: AnyMessage, error: PeerError) -> None:
        raise AssertionError("a pipe refuses nothing")

    def on_closed(self, error: Exception | None) -> None:
        self._other.close()
        self._end.ended.set()


class _Listener:
    def __init__(self, address: Address, forget: Callable[[], object]) -> None:
        self.address = address
        self._forget = forget

    def close(self) -> None:
        self._forget()


class _End:
    """One end of a connection; see :class:`anabranch.net.network.Connection`."""

    other: _End
    receiver: Receiver
    own_challenge = their_challenge = b""  # no peer has to prove who it is
    identity: str | None = None
    process: int | None = None  # a simulated site is no process
    hosts = "127.0.0.1", "127.0.0.1"  # simulated addresses are names; a site may listen on any

    def __init__(
        self,
        network: SimulatedNetwork,
        host: Host,
        peer_host: Host,
        way: _Way,
    ) -> None:
        self.host = host
        self.peer_host = peer_host
        self._network = network
        self._loop = network.loop
        self.way = way
        self._open = True
        self._blocked = False  # incoming messages are lost
        self._flow: Flow[_End] | None = None  # of the send in progress
        self._sending: tuple[Message, Payload, asyncio.Future[None]]
        self._one_at_a_time = asyncio.Lock()
        self._posted: list[Message] = []  # posts that wait for the end of the send in progress
        self._arrives_s = 0.0  # of the last message: no later one may overtake it
        self._tell_silence: Callable[[bool], None] | None = None

    @property
    def peer(self) -> str:
        return self.peer_host.name

    def trust(self) -> None:
        """Do nothing: all processes of a simulation are trusted."""

    def tell_silence(self, told: Callable[[bool], None]) -> None:
        self._tell_silence = told

    def bear(self, silence_s: float) -> None:
        """Do nothing: all connections of a simulation bear the same silence."""

    def fall_silent(self, is_mute: Callable[[], bool], is_deaf: Callable[[], bool]) -> None:
        """Do nothing: a simulated end sends no heartbeats, and the network models silence."""

    def notice(self, is_silent: bool) -> None:
        """Take note that the other end is silent, or no longer silent."""
        if self._open and self._tell_silence is not None:
            self._tell_silence(is_silent)

    async def send(
        self, message: Message, payload: Payload = b"", head_first: bool = False
    ) -> None:
        async with self._one_at_a_time:
            await self.host.awake()
            if not self._open:
                raise LinkError(f"the connection to {self.peer} is gone")
            if not self.way.resources:
                self._fly(message, payload)
                return
            done: asyncio.Future[None] = self._loop.create_future()
            self._sending = message, payload, done
            size_bytes = PREFIX_BYTES + len(encode(message)) + len(payload)
            self._flow = self._network.carry(self, self.way.resources, size_bytes)
            try:
                await done
            except asyncio.CancelledError:
                self.close()  # over TCP the next message would continue a message cut short
                raise

    def left(self) -> None:
        """Take note that the last byte of the message being sent has left."""
        message, payload, done = self._sending
        self._flow = None
        self._fly(message, payload)
        posted, self._posted = self._posted, []
        for each in posted:
            self.post(each)
        self.host.act(_settle, done)

    def _fly(self, message: Message, payload: Payload) -> None:
        # The link keeps a copy of messages on their way, so that the sender may reuse its memory.
        self._arrives_s = max(self._arrives_s, self._loop.time() + self.way.latency_s())
        self._loop.at(self._arrives_s, self.other.arrive, message, frozen(payload))

    def post(self, message: Message) -> None:
        if self._flow is not None:
            self._posted.append(message)
        elif self._open and self.host.stands_still:
            self.host.act(self.post, message)
        elif self._open and not self.host.dead:  # also by a timer that runs as the host wakes up
            with self.host.in_process():
                self.way.when_whole(lambda: self._post(message))

    def post_payload(self, message: Message, payload: Payload) -> bool:
        return False  # each payload takes time on the links

    def _post(self, message: Message) -> None:
        self._arrives_s = max(self._arrives_s, self._loop.time() + self.way.post_s)
        self._loop.at(self._arrives_s, self.other.arrive, message, b"")

    def arrive(self, message: AnyMessage, payload: Payload) -> None:
        """Deliver a message to this end."""
        if self.host.asleep:
            self.host.act(self.arrive, message, payload)
            return
        if not self._open or self._blocked:
            return
        before = process_of.set(self.host)
        try:
            try:
                sink = self.receiver.on_message(message, len(payload))
            except PeerError as error:
                self.receiver.on_refused(message, error)
                return
            if sink.target is not None:
                sink.target[:] = payload
            elif sink.piece is not None and payload:
                sink.piece(0, memoryview(payload))
            sink.done()
        except Exception as error:  # a bug of ours ends the connection, as over TCP
            if not isinstance(error, NetError):
                what = f"{self.host.name} failed on a {type(message).__name__}"
                self._loop.call_exception_handler({"message": what, "exception": error})
            self._shut()
            self._tell_other()
            self.receiver.on_closed(error)
        finally:
            process_of.reset(before)

    # --- the end

    def close(self) -> None:
        if self._open:
            self._shut()
            self._loop.call_soon(self.host.act, self.receiver.on_closed, None)
            self._tell_other()

    def break_off(self) -> None:
        """Lose the messages on their way, and tell both ends that they are closed."""
        self._blocked = self.other._blocked = True
        for end in (self, self.other):
            self._loop.at(self._loop.time() + end.way.post_s, end.host.act, end.lose)

    def vanish(self) -> None:
        """Close without telling this side, which is dead."""
        self._shut()
        self._tell_other()

    def give_up(self, wait_s: float) -> None:
        """Close both ends at once, since the other end was silent for `wait_s`."""
        if self._open:
            self._shut()
            self.host.act(
                self.receiver.on_closed, LinkError(f"{self.peer} has said nothing for {wait_s:g} s")
            )
            self.other.host.act(self.other.lose)

    def _shut(self) -> None:
        self._open = False
        self._network.forget(self)
        if self._flow is not None:
            self._network.drop(self._flow)
            self._flow = None
            error = LinkError(f"the connection to {self.peer} is gone")
            self.host.act(_settle, self._sending[2], error)

    def _tell_other(self) -> None:
        self.way.when_whole(self._close_other)

    def _close_other(self) -> None:
        lost_s = max(self._arrives_s, self._loop.time() + self.way.post_s)
        self._loop.at(lost_s, self.other.host.act, self.other.lose)

    def lose(self) -> None:
        """Take note that the other end is closed."""
        if self._open:
            self._shut()
            self.receiver.on_closed(LinkError(f"{self.peer} closed the connection"))
