"""What can go wrong between processes, by who can act on it: the peer or the network."""

from __future__ import annotations


class NetError(Exception):
    """Something between two processes went wrong."""


class LinkError(NetError):
    """The network failed: a connection could not be made, or it broke."""


class PeerError(NetError):
    """The other end did something it may not do."""


class MalformedMessage(PeerError):
    """Bytes that are not a message of this protocol."""


class OversizedMessage(PeerError):
    """A message that announces more bytes than the receiver allows."""


class OutOfPlaceMessage(PeerError):
    """A well-formed message that has no meaning here and now."""


class DuplicateMessage(PeerError):
    """A message that was already counted."""


class UnauthorisedPeer(PeerError):
    """A peer that does not know the run's token, or speaks as somebody else."""


class RunAborted(NetError):
    """The run ended early, everywhere; the message says who or what caused it."""
