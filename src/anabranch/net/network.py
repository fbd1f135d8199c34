"""The port through which protocols see the network: connections that carry messages.

A real run gets it from TCP (:mod:`anabranch.net.tcp`), a simulated one from a model of links
(:mod:`anabranch_lab.sim.network`). Nothing that uses it can tell which.
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
    """What a connection calls when something comes in; calls never overlap."""

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        """Return where the message's payload goes; raise PeerError to refuse the message."""

    def on_refused(self, message: AnyMessage, error: PeerError) -> None:
        """Hear of each message that ``on_message`` refused; its payload is being discarded."""

    def on_closed(self, error: Exception | None) -> None:
        """Hear, once, that the connection is gone, and why if it was not closed by this side."""


class Connection(Protocol):
    """A stream of messages to one peer, in order.

    Attributes:
        own_challenge: what this end asks the other to prove its identity by, see
            :mod:`anabranch.net.identity`; never the same again.
        identity: who the other end is by its certificate, see :mod:`anabranch.net.tls`; None where
            it has shown none.
    """

    own_challenge: bytes
    identity: str | None

    @property
    def process(self) -> int | None:
        """The process at the other end, also once the connection is gone.

        None where this machine's kernel does not know it: over a network.
        """

    @property
    def peer(self) -> str:
        """The other end's address, for error messages."""

    @property
    def hosts(self) -> tuple[str, str]:
        """The addresses of this end and of the other; loopback where memory is shared."""

    @property
    def their_challenge(self) -> bytes:
        """What the other end asks this one to prove its identity by; empty until it has spoken."""

    async def send(
        self, message: Message, payload: Payload = b"", head_first: bool = False
    ) -> None:
        """Send a message; return when the next may be sent and the payload's memory is free.

        Args:
            message: what to say.
            payload: what follows it.
            head_first: whether the message is to leave in a packet of its own, so that the peer can
                tell when the payload set out. It costs both sides about as much as a message.

        Raises:
            LinkError: the connection is gone.
        """

    def post(self, message: Message) -> None:
        """Send a message without payload soon, after a send in progress; never waits."""

    def tell_silence(self, told: Callable[[bool], None]) -> None:
        """Call back when the peer is silent for unusually long, and when it no longer is.

        While it is, the callback comes with every heartbeat. It may speak again; if it is silent
        for too long, the receiver hears that it is gone.
        """

    def bear(self, silence_s: float) -> None:
        """Give the peer up for no silence of less, nor of less than the network always bears."""

    def fall_silent(self, is_mute: Callable[[], bool], is_deaf: Callable[[], bool]) -> None:
        """Stand for links that are silent at times.

        Args:
            is_mute: whether this end says nothing of its own accord now.
            is_deaf: whether what comes counts for nothing now, as if the other end were silent.
        """

    def trust(self) -> None:
        """Take messages of full size from now on; until then a caller may send only small ones."""

    def close(self) -> None:
        """Close, sending what is buffered first; the receiver hears no more messages."""


class Listener(Protocol):
    """A place where peers connect."""

    @property
    def address(self) -> Address:
        """Where it listens."""

    def close(self) -> None:
        """Take no more connections, and close those that their receivers have not trusted."""


class Network(Protocol):
    """Makes connections.

    Attributes:
        heads_go_ahead: whether a message with a payload is handed over as soon as its head is in,
            while the link still carries the payload; otherwise both come at once.
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
    """A network that leads to the scheduler, where need be through another site's pipe.

    See :mod:`anabranch.net.pipe`.
    """

    async def connect_through(self, end: pipe.End, peer: str, receiver: Receiver) -> Connection:
        """Connect to the process at the other end of an open pipe.

        Args:
            end: this side's.
            peer: the process at the other end, for error messages.
            receiver: what hears it.

        Raises:
            LinkError: nothing answers there.
            PeerError: what answers does not speak this protocol, or another version of it.
        """

    async def pipe_to(self, address: Address, end: pipe.End) -> None:
        """Connect to a listener, and pipe between that connection and ``end`` from now on.

        Raises:
            LinkError: no process answers there.
        """
