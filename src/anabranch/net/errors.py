"""What can go wrong between processes, by who can act on it: the peer or the network."""

from __future__ import annotations

from anabranch._text import visible

_LONGEST_REASON = 10_000


class NetError(Exception):
    """Something between two processes went wrong.

    Other ends have a say in the reason, and it goes to logs and terminals: control characters are
    escaped, and of a very long one the middle is left out.
    """

    def __init__(self, reason: str) -> None:
        shown = visible(reason, keep="\n\t")
        if len(shown) > _LONGEST_REASON:
            shown = f"{shown[: _LONGEST_REASON // 2]} ... {shown[-_LONGEST_REASON // 2 :]}"
        super().__init__(shown)


class LinkError(NetError):
    """The network failed: a connection could not be made, or it broke."""


class SilentWay(LinkError):
    """Nothing crosses the way to the peer any more, which may not know of it yet."""


class PeerError(NetError):
    """The other end did something it may not do."""


class MalformedMessage(PeerError):
    """Bytes that are not a message of this protocol."""


class OtherRelease(PeerError):
    """The other end runs a release that speaks another protocol; the message names both."""


class OversizedMessage(PeerError):
    """A message that announces more bytes than the receiver allows."""


class OutOfPlaceMessage(PeerError):
    """A well-formed message that has no meaning here and now."""


class DuplicateMessage(PeerError):
    """A message that was already counted."""


class UnauthorisedPeer(PeerError):
    """A peer that does not know the run's token, or claims another identity than its own."""


class UntrustedPeer(PeerError):
    """One end speaks TLS and the other does not, or one does not believe the other's certificate.

    Another attempt fails alike, until a person changes something.
    """


class RunAborted(NetError):
    """The run ended early, everywhere; the message says who or what caused it."""


class LeftOut(RunAborted):
    """The run may go on without this site, which may join again."""


class EndedWithout(RunAborted):
    """The run has ended in good order without this site, which waited to be let in."""
