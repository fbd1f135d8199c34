"""A session outlives its connections: a new one repeats the messages that a broken one lost. Pure.

Each side numbers the messages that it sends, by counting, and counts those that it receives. It
keeps a message until the other side has acknowledged it::

    1 .......... acknowledged .......... sent ......... said
                 |                        | ``_delayed``  |
                 | kept in ``_unacknowledged``            |

    connected --cut--> disconnected --go_on(connection, heard)-->  connected
                        post: kept     the rest is sent again

After a reconnect, each side tells how many messages it has received (``Resume``, ``Resumed``). The
other one drops those, and sends the rest again. So each message arrives once and in order, whatever
was in flight. An ``Ack`` after every 64 messages bounds what is kept.

``Ack``, heartbeats and greetings are not counted: they belong to a connection, not to the session.
The callers count: ``count`` for each other message that arrives.

This part makes no connection and has no timer. Which side reconnects, and when a site counts as
lost, is decided elsewhere (`site.control`, `scheduler._presence`).

**What must never happen.** A message is dropped before it is acknowledged; or the peer acknowledges
messages that were never sent, or fewer than before: both are refused, because the two counts have
then lost their common meaning.
"""

from __future__ import annotations

from collections import deque

from anabranch.net.errors import OutOfPlaceMessage
from anabranch.net.messages import Ack, Message
from anabranch.net.network import Connection

_TELL_EVERY = 64  # messages between two acknowledgements


class Session:
    """One side of a session.

    Args:
        connection: the first connection; None if it is yet to come.

    Attributes:
        connection: the present connection; None while disconnected.
        has_begun: whether there has been a connection.
        heard: how many messages have been received.
    """

    def __init__(self, connection: Connection | None) -> None:
        self.connection = connection
        self.has_begun = connection is not None
        self._said = 0
        self._unacknowledged: deque[Message] = deque()  # the latest messages, oldest first
        self._delayed: list[Message] = []  # the last of them, which leave with the next one
        self.heard = 0

    @property
    def all_heard(self) -> bool:
        """Whether the other side has acknowledged every message."""
        return not self._unacknowledged

    def post(self, message: Message, is_delayed: bool = False) -> None:
        """Send a message, once there is a connection.

        Args:
            message: the message.
            is_delayed: whether it waits for the next message, or for ``flush``.
        """
        self._said += 1
        self._unacknowledged.append(message)
        self._delayed.append(message)
        if not is_delayed:
            self.flush()

    def flush(self) -> None:
        """Send the delayed messages."""
        delayed, self._delayed = self._delayed, []
        if self.connection is not None:
            for message in delayed:
                self.connection.post(message)

    def count(self) -> None:
        """Count a received message, and acknowledge now and then."""
        self.heard += 1
        if self.heard % _TELL_EVERY == 0:
            self.tell()

    def tell(self) -> None:
        """Acknowledge all messages received so far."""
        if self.connection is not None:
            self.connection.post(Ack(self.heard))

    def acknowledged(self, heard: int) -> None:
        """Drop the messages that the other side has received.

        Args:
            heard: how many it has received in all.

        Raises:
            OutOfPlaceMessage: fewer than it acknowledged before, or more than were sent.
        """
        sent = self._said - len(self._delayed)
        if not self._said - len(self._unacknowledged) <= heard <= sent:
            raise OutOfPlaceMessage(
                f"the peer says that it has heard {heard} messages, where {sent} were sent "
                f"and all but {len(self._unacknowledged)} acknowledged"
            )
        for _ in range(len(self._unacknowledged) - (self._said - heard)):
            self._unacknowledged.popleft()

    def cut(self) -> None:
        """Note that the connection is lost; later messages are kept."""
        self.connection = None

    def go_on(self, connection: Connection, heard: int) -> None:
        """Continue over a new connection: send again what the peer has not received.

        Args:
            connection: a connection to the same peer.
            heard: how many messages the peer has received in all.

        Raises:
            OutOfPlaceMessage: see ``acknowledged``.
        """
        self.acknowledged(heard)
        self._delayed.clear()
        self.connection, self.has_begun = connection, True
        for message in self._unacknowledged:
            connection.post(message)


def patience_s(longest_s: float) -> float:
    """Return how long a site may be disconnected before it counts as lost, in seconds.

    Args:
        longest_s: the longest duration of a round or an iteration so far.

    >>> patience_s(0.1), patience_s(60.0)
    (5.0, 120.0)
    """
    return max(LEAST_PATIENCE_S, 2.0 * longest_s)


LEAST_PATIENCE_S = 5.0
"""The least patience: what a path needs to recover, or a busy process to answer. Seconds."""
