"""Errors between processes, by the cause that can be mended: the peer, the network, the run."""

from __future__ import annotations

from anabranch._text import visible

_LONGEST_REASON = 10_000


class NetError(Exception):
    """Base of all errors between processes.

    A reason may contain a peer's text, and goes to logs and terminals. So control characters are
    escaped, and the middle of a very long reason is left out.
    """

    def __init__(self, reason: str) -> None:
        shown = visible(reason, keep="\n\t")
        if len(shown) > _LONGEST_REASON:
            shown = f"{shown[: _LONGEST_REASON // 2]} ... {shown[-_LONGEST_REASON // 2 :]}"
        super().__init__(shown)


class LinkError(NetError):
    """The network failed: a connection could not be made, or it broke."""


class SilentWay(LinkError):
    """The network drops all data to or from the peer, which may not have noticed it yet."""


class PeerError(NetError):
    """The other end violated the protocol."""


class MalformedMessage(PeerError):
    """Bytes that are not a message of this protocol."""


class OtherRelease(PeerError):
    """The other end runs a release that speaks another protocol; the message names both."""


class OversizedMessage(PeerError):
    """A message that announces more bytes than the receiver allows."""


class OutOfPlaceMessage(PeerError):
    """A well-formed message that is not due here and now."""


class DuplicateMessage(PeerError):
    """A message that was already counted."""


class UnauthorisedPeer(PeerError):
    """A peer that does not know the run's token, or claims another identity than its own."""


class UntrustedPeer(PeerError):
    """One end speaks TLS and the other does not, or one does not trust the other's certificate.

    Further attempts fail too, until an operator changes the configuration.
    """


class RunAborted(NetError):
    """The run ended early, at every site; the message names the site or error that caused it."""


class LeftOut(RunAborted):
    """The run may continue without this site, which may join again."""


class EndedWithout(RunAborted):
    """The run has ended in good order, while this site was still waiting for its admission."""
