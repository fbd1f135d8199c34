"""A conversation that outlives its connections: what a broken one lost is said again.

Each side counts what it has said and what it has heard, and keeps what the other may not have heard
yet. When a connection has broken and another was made, both say how much they have heard, and each
says the rest again: so every message is heard once and in order, whatever was on its way. Pure: who
connects again, and when to give up, is decided elsewhere.
"""

from __future__ import annotations

from collections import deque

from anabranch.net.errors import OutOfPlaceMessage
from anabranch.net.messages import Ack, Message
from anabranch.net.network import Connection

# The other side may forget what was heard; telling it so this often bounds what it keeps.
_TELL_EVERY = 64


class Session:
    """One side of a conversation.

    Args:
        connection: the first.

    Attributes:
        connection: the present one, if there is one.
        heard: how many messages have come.
    """

    def __init__(self, connection: Connection | None) -> None:
        self.connection = connection
        self._said = 0
        self._unheard: deque[Message] = deque()  # the latest that were said
        self.heard = 0

    @property
    def all_heard(self) -> bool:
        """Whether the other side is known to have heard everything."""
        return not self._unheard

    def post(self, message: Message) -> None:
        """Say something, now or when there is a connection again."""
        self._said += 1
        self._unheard.append(message)
        if self.connection is not None:
            self.connection.post(message)

    def count(self) -> None:
        """Take note that a message has come."""
        self.heard += 1
        if self.heard % _TELL_EVERY == 0:
            self.tell()

    def tell(self) -> None:
        """Tell the other side how much was heard."""
        if self.connection is not None:
            self.connection.post(Ack(self.heard))

    def acknowledged(self, heard: int) -> None:
        """Forget what the other side has heard.

        Raises:
            OutOfPlaceMessage: it cannot have heard so many.
        """
        if not self._said - len(self._unheard) <= heard <= self._said:
            raise OutOfPlaceMessage(
                f"the peer says that it has heard {heard} messages, where {self._said} were said "
                f"and all but {len(self._unheard)} acknowledged"
            )
        for _ in range(len(self._unheard) - (self._said - heard)):
            self._unheard.popleft()

    def cut(self) -> None:
        """Take note that the connection is gone."""
        self.connection = None

    def go_on(self, connection: Connection, heard: int) -> None:
        """Go on over another connection.

        Args:
            connection: to the same peer.
            heard: how many messages it says it has heard.

        Raises:
            OutOfPlaceMessage: it cannot have heard so many.
        """
        self.acknowledged(heard)
        self.connection = connection
        for message in self._unheard:
            connection.post(message)


def patience_s(longest_s: float) -> float:
    """Return how long a broken connection may take to come back before the site counts as lost.

    Args:
        longest_s: the longest that a round or an iteration has taken so far.

    >>> patience_s(0.1), patience_s(60.0)
    (5.0, 120.0)
    """
    return max(LEAST_PATIENCE_S, 2.0 * longest_s)


LEAST_PATIENCE_S = 5.0
"""What a path that comes up again, or a process that was busy, may take."""
