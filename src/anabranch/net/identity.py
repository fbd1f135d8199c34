"""Proofs of identity: only a holder of a secret can write such a message, and only now. Pure.

A first message carries a proof: the HMAC-SHA256, under a secret, of the other end's challenge and
the message. Callers send one, and so does a site that sends on a connection that was offered to it.
The secret itself is never sent. A message that was altered in transit does not match its proof, and
a proof is invalid on any other connection.

The run's token is the secret that permits a site to join. For each run the scheduler makes another
secret. From this it derives one for each site, with which the site resumes its session. From a
site's secret it derives one for each neighbour's lane to that site. A site learns only its own
secret and those of its lanes, so it cannot impersonate another site.
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
    """Return a secret for a site; it reveals neither ``secret`` nor another site's secret."""
    return hmac.digest(secret, b"site %d" % site, hashlib.sha256)


def proven(message: _Proven, secret: bytes, challenge: bytes) -> _Proven:
    """Return the message with its proof.

    Args:
        message: the message; an earlier proof in it is replaced.
        secret: the secret, which the other end knows too.
        challenge: the other end's challenge, see :class:`anabranch.net.network.Connection`.
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
