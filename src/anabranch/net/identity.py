"""Proofs of identity: a message that only a holder of a secret can have written, and only now.

A first message carries a proof: the HMAC-SHA256, under a secret, of the other end's challenge and
of the message. Callers prove who they are, and so does a site that sends on a connection that was
offered to it. So the secret is never sent, a message that was changed on its way does not match its
proof, and a proof means nothing on any other connection.

The run's token is the secret of those who may join. From a secret of its own that the scheduler
makes for each run, it derives one for each site, with which that site resumes its conversation, and
from each site's one for every neighbour's lane to it. Each site is told its own, and those of its
lanes: it can speak as itself only. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TypeVar

from msgspec.structs import replace

from anabranch.net.messages import Hello, Join, Offer, PipeRequest, Resume, StatusRequest, encode

CHALLENGE_BYTES = 16
_PROOF_BYTES = 16
_Proven = TypeVar("_Proven", bound=Hello | Join | Offer | PipeRequest | Resume | StatusRequest)


def derive(secret: bytes, site: int) -> bytes:
    """Return a secret for a site, which reveals neither this one nor another site's."""
    return hmac.digest(secret, b"site %d" % site, hashlib.sha256)


def proven(message: _Proven, secret: bytes, challenge: bytes) -> _Proven:
    """Return the message with its proof.

    Args:
        message: what to say; its own proof, if it has one, is replaced.
        secret: what the other end knows, too.
        challenge: the other end's, see :class:`anabranch.net.network.Connection`.
    """
    said = challenge + encode(replace(message, proof=b""))
    return replace(message, proof=hmac.digest(secret, said, hashlib.sha256)[:_PROOF_BYTES])


def is_proven(message: _Proven, secret: bytes, challenge: bytes) -> bool:
    """Return whether the message's proof was made with this secret, for this challenge.

    >>> join = proven(Join(b"", "paris", "10.0.0.1", 7700), b"secret", b"challenge")
    >>> is_proven(join, b"secret", b"challenge"), is_proven(join, b"secret", b"another")
    (True, False)
    """
    return hmac.compare_digest(message.proof, proven(message, secret, challenge).proof)
