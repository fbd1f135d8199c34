"""The port to the network: connections that carry messages, whatever is below them.

In a real run TCP implements it (:mod:`anabranch.net.tcp`); in a simulation a model of links does
(:mod:`anabranch_lab.sim.network`). Code above the port cannot tell which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from anabranch.net.errors import PeerError
from anabranch.net.frames import Sink
from anabranch.net.messages import AnyMessage, Message

if TYPE_CHECKING:
    from anabranch.net import pipe

Address = tuple[str, int]
Payload = memoryview | bytes


def frozen(payload: Payload) -> Payload:
    """Return the same bytes in memory that cannot change: the payload itself if it cannot."""
    return payload if memoryview(payload).readonly else bytes(payload)


class Receiver(Protocol):
    """Takes the events of a connection; calls never overlap."""

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        """Return where the message's payload goes; raise PeerError to refuse the message."""

    def on_refused(self, message: AnyMessage, error: PeerError) -> None:
        """Act on a message that ``on_message`` refused; its payload is being discarded."""

    def on_closed(self, error: Exception | None) -> None:
        """Act, once, on the connection's end; the error is None if this side closed it."""


class Connection(Protocol):
    """A stream of messages to one peer, in order.

    Attributes:
        own_challenge: this end's challenge, with which the other end proves its identity, see
            :mod:`anabranch.net.identity`; new for each connection.
        identity: the other end's identity in its certificate, see :mod:`anabranch.net.tls`; None
            without one.
    """

    own_challenge: bytes
    identity: str | None

    @property
    def process(self) -> int | None:
        """The process at the other end, also after the connection's end; None over a network."""

    @property
    def peer(self) -> str:
        """The other end's address, for error messages."""

    @property
    def hosts(self) -> tuple[str, str]:
        """The addresses of this end and of the other; loopback where memory is shared."""

    @property
    def their_challenge(self) -> bytes:
        """The other end's challenge; empty before its greeting has arrived."""

    async def send(
        self, message: Message, payload: Payload = b"", head_first: bool = False
    ) -> None:
        """Send a message; return when the next may be sent and the payload's memory is free.

        Args:
            message: the message.
            payload: the bytes that follow it.
            head_first: whether the message leaves in a packet of its own, so that the peer can
                measure when the payload began. It costs both sides about as much as a message.

        Raises:
            LinkError: the connection is gone.
        """

    def post(self, message: Message) -> None:
        """Send a message without payload soon, after a send in progress; never waits."""

    def post_payload(self, message: Message, payload: Payload) -> bool:
        """Post a message with a small payload, which is copied; return False if it has to wait."""

    def tell_silence(self, told: Callable[[bool], None]) -> None:
        """Call back with True while the peer is unusually silent, and once with False after that.

        The callback with True repeats at every heartbeat. If the silence becomes too long, the
        connection ends.
        """

    def bear(self, silence_s: float) -> None:
        """Set the least silence that ends the connection, if above the network's own minimum."""

    def fall_silent(self, is_mute: Callable[[], bool], is_deaf: Callable[[], bool]) -> None:
        """Model links that are silent at times.

        Args:
            is_mute: returns whether this end sends no heartbeats now.
            is_deaf: returns whether arriving data is not counted now, as if the peer were silent.
        """

    def trust(self) -> None:
        """Accept messages of full size from now on; before that only small ones are accepted."""

    def close(self) -> None:
        """Close, sending what is buffered first; the receiver hears no more messages."""


class Listener(Protocol):
    """Accepts connections of peers at one address."""

    @property
    def address(self) -> Address:
        """The address."""

    def close(self) -> None:
        """Accept no more connections, and close those that their receivers have not trusted."""


class Network(Protocol):
    """Makes connections.

    Attributes:
        heads_go_ahead: whether a message is delivered before its payload has arrived; otherwise
            both are delivered at once.
    """

    heads_go_ahead: bool

    async def connect(self, address: Address, receiver: Receiver) -> Connection:
        """Connect to a listener.

        Raises:
            LinkError: no process answers there.
            PeerError: who answers does not speak this protocol, or another version of it.
        """

    def adopt(self, connection: Connection, address: Address) -> Connection:
        """Return a connection that a peer has made, as if it had been made to its address."""

    async def listen(self, address: Address, welcome: Callable[[Connection], Receiver]) -> Listener:
        """Listen; ``welcome`` is called with each new connection and returns its receiver."""


class ControlNetwork(Network, Protocol):
    """A network to the scheduler, if necessary through another site's pipe.

    See :mod:`anabranch.net.pipe`.
    """

    async def connect_through(self, end: pipe.End, peer: str, receiver: Receiver) -> Connection:
        """Connect to the process at the other end of an open pipe.

        Args:
            end: this side's.
            peer: the process at the other end, for error messages.
            receiver: the connection's receiver.

        Raises:
            LinkError: nothing answers there.
            PeerError: what answers does not speak this protocol, or another version of it.
        """

    async def pipe_to(self, address: Address, end: pipe.End) -> None:
        """Connect to a listener, and pipe between that connection and ``end`` from now on.

        Raises:
            LinkError: no process answers there.
        """
