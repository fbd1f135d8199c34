"""Mutual TLS 1.3: a process proves its identity by a certificate signed by the group's authority.

A process has a folder with the authority's certificate (``ca.pem``), its own certificate, and its
key. The latter two are named after it (``site-paris.pem`` and ``site-paris.key``, or
``scheduler.pem`` and ``scheduler.key``). ``anabranch certs`` makes them for a group. The files are
read for each connection, so that renewed ones are used without a restart.

A :class:`Session` translates between plaintext and ciphertext; a connection moves the ciphertext. A
payload is encrypted in pieces of :data:`SEALED_BYTES`, one call each, and decrypted directly into
its target. asyncio's own TLS takes a call and two copies for each 16 KB.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from anabranch.net.errors import (
    LinkError,
    MalformedMessage,
    NetError,
    UnauthorisedPeer,
    UntrustedPeer,
)
from anabranch.net.frames import FIRST_BYTES, is_greeting
from anabranch.net.messages import Refusal
from anabranch.net.network import Address, Connection, Network, Receiver

SEALED_BYTES = 1 << 18
"""The most bytes that are encrypted at once, while the bytes before are being sent."""

RECORD_BYTES = 5 + (1 << 14) + 256
"""The largest record (RFC 8446, 5.2); an incomplete record cannot be read."""

_CERTIFICATE_REFUSED = "CERT", "UNKNOWN_CA"
"""Parts of the names of alerts by which the peer refuses this end's certificate."""

# Record type 21, version 3.3, 2 bytes: fatal, protocol_version (RFC 8446, 5.1 and 6.2). OpenSSL
# does not answer a stream without TLS, so that the peer would see an end without a reason.
_PROTOCOL_VERSION_ALERT = b"\x15\x03\x03\x00\x02\x02\x46"

_STAGING_BYTES = 1 << 19
_FIRST_STAGING_BYTES = 1 << 14  # before the peer is trusted: untrusted callers may be many

SCHEDULER = "anabranch:scheduler"
"""The identity of a scheduler: the URI in its certificate."""


class TlsError(ValueError):
    """Certificates that cannot be used; the message names the file."""


def identity_of(site: str) -> str:
    """Return the identity of a site: the URI in its certificate.

    >>> identity_of("paris"), identity_of("new york")
    ('anabranch:site:paris', 'anabranch:site:new%20york')
    """
    return f"anabranch:site:{quote(site, safe='')}"


def file_name(identity: str) -> str:
    """Return the name of an identity's files, without their suffixes.

    >>> file_name(identity_of("paris")), file_name(SCHEDULER)
    ('site-paris', 'scheduler')
    """
    return identity.removeprefix("anabranch:").replace(":", "-")


@dataclass(frozen=True)
class Credentials:
    """A process's certificate and key, and the authority that it trusts.

    Args:
        folder: the folder with the files.
        identity: the process's identity; see ``identity_of``.
    """

    folder: Path
    identity: str

    def check(self) -> None:
        """Check the files, by reading them once.

        Raises:
            TlsError: a file is missing or invalid.
        """
        self.context(ssl.Purpose.SERVER_AUTH)

    def context(self, purpose: ssl.Purpose) -> ssl.SSLContext:
        """Return the context for a connection.

        Args:
            purpose: ``SERVER_AUTH`` at the caller, ``CLIENT_AUTH`` at the callee.

        Raises:
            TlsError: see ``check``.
        """
        authority = self.folder / "ca.pem"
        name = file_name(self.identity)
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        for file in (authority, certificate, key):
            if not file.is_file():
                raise TlsError(f"there is no {file}; `anabranch certs` makes such files")
        side = (
            ssl.PROTOCOL_TLS_CLIENT
            if purpose is ssl.Purpose.SERVER_AUTH
            else ssl.PROTOCOL_TLS_SERVER
        )
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # certificates carry names of the overlay, not of hosts
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(authority)
            context.load_cert_chain(certificate, key)
        except (ssl.SSLError, OSError) as error:
            raise TlsError(
                f"{certificate}, its key and {authority} cannot be used: {error}"
            ) from None
        return context


class Session:
    """One end of an encrypted stream. No I/O: the caller passes the ciphertext in and out.

    Args:
        context: see :meth:`Credentials.context`.
        is_called: whether the peer made the connection.

    Attributes:
        staging: the memory for the next ciphertext.
        is_ready: whether the handshake is complete, as far as this end knows.
    """

    def __init__(self, context: ssl.SSLContext, is_called: bool) -> None:
        self._came, self._leaves = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ends = context.wrap_bio(self._came, self._leaves, server_side=is_called)
        self.staging = memoryview(bytearray(_FIRST_STAGING_BYTES))
        self.is_ready = False
        self._has_ended = False
        self._first = b""  # the first ciphertext bytes from the peer

    def trust(self) -> None:
        """Use a larger ``staging`` from now on."""
        self.staging = memoryview(bytearray(_STAGING_BYTES))

    def shake_hands(self) -> None:
        """Continue the handshake as far as the received bytes allow.

        Raises:
            UntrustedPeer: the peer speaks no TLS, or one end refuses the other's certificate.
            LinkError: the ciphertext was altered in transit.
        """
        try:
            self._ends.do_handshake()
            self.is_ready = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            if is_greeting(self._first):
                self._leaves.write(_PROTOCOL_VERSION_ALERT)
            raise _named(error, self._first) from error

    @property
    def identity(self) -> str:
        """The peer's identity, once the session is ready."""
        return said_by(self._ends.getpeercert() or {})

    def take(self, count: int) -> None:
        """Accept the first ``count`` bytes of ``staging``.

        Raises:
            LinkError: the peer has closed the stream before.
        """
        if len(self._first) < FIRST_BYTES:
            self._first = (self._first + bytes(self.staging[:count]))[:FIRST_BYTES]
        if self._has_ended:
            raise LinkError("the other end goes on after it has said that nothing follows")
        self._came.write(self.staging[:count])

    def read_into(self, memory: memoryview) -> int:
        """Decrypt received bytes into memory; return their number.

        Raises:
            LinkError: the ciphertext was altered in transit.
            UntrustedPeer: the peer refuses this end's certificate.
        """
        filled = 0
        try:
            while filled < len(memory):
                read = self._ends.read(len(memory) - filled, memory[filled:])  # at most one record
                count = cast(int, read)  # an int, since a buffer was passed
                if not count:
                    self._has_ended = True
                    break
                filled += count
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._has_ended = True
        except ssl.SSLError as error:
            raise _named(error, self._first) from error
        return filled

    def write(self, plain: memoryview | bytes) -> None:
        """Encrypt plaintext; ``to_send`` then returns the ciphertext.

        Raises:
            LinkError: the stream has ended.
        """
        try:
            self._ends.write(plain)
        except ssl.SSLError as error:
            raise LinkError(str(error)) from error

    def say_the_end(self) -> None:
        """Close this direction of the stream; ``to_send`` then returns the alert."""
        with suppress(ssl.SSLError):  # it asks for the peer's alert too, which we do not await
            self._ends.unwrap()

    def to_send(self) -> bytes:
        """Return the next ciphertext to send, in order; empty if there is none."""
        return self._leaves.read()


def _named(error: ssl.SSLError, first: bytes) -> NetError:
    """Return the named error for an error of OpenSSL, with the remedy. Pure.

    Args:
        error: from a handshake, or from the first read after it. In TLS 1.3 that read tells a
            caller that the callee refuses its certificate.
        first: the first bytes from the peer.
    """
    reason = error.reason or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return UntrustedPeer(
            f"the other end's certificate is not believed here ({error.verify_message}): it must "
            "be valid and signed by the authority in this process's ca.pem; make certificates for "
            "all processes by one `anabranch certs`"
        )
    if is_greeting(first):
        return UntrustedPeer(
            "the other end speaks without TLS, and this one has a certificate; give the other one "
            "its own (--tls FOLDER, or tls= of join), or start both without"
        )
    if "ALERT" in reason and any(part in reason for part in _CERTIFICATE_REFUSED):
        shown = reason.partition("ALERT_")[2].replace("_", " ").lower()
        return UntrustedPeer(
            f"the other end does not believe this process's certificate ({shown}): it must be "
            "valid and signed by the authority in the other end's ca.pem; make certificates for "
            "all processes by one `anabranch certs`"
        )
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return UntrustedPeer(
            "the other end shows no certificate, and every process of a run with TLS has one; give "
            "it its own by --tls FOLDER, or tls= of join"
        )
    if reason in ("UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION"):
        return UntrustedPeer("the other end does not speak TLS 1.3, and nothing older is taken")
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST"):
        return MalformedMessage(f"the other end does not speak TLS: it began with {first!r}")
    return LinkError(str(error))


def said_by(certificate: Mapping[str, Any]) -> str:
    """Return the identity in a peer's certificate, given as by ``SSLSocket.getpeercert``."""
    names = [name for kind, name in certificate.get("subjectAltName", ()) if kind == "URI"]
    return names[0] if len(names) == 1 else ""


async def connect_to(
    network: Network, address: Address, receiver: Receiver, identity: str
) -> Connection:
    """Connect to a peer, and check its identity before sending it anything.

    Args:
        network: the network that leads to it.
        address: the peer's address.
        receiver: takes the connection's events.
        identity: the expected identity, see ``check_identity``.

    Raises:
        LinkError: no process answers at the address.
        PeerError: the peer has another identity, or does not speak this protocol; the connection is
            closed.
    """
    return checked(await network.connect(address, receiver), identity)


def checked(connection: Connection, identity: str) -> Connection:
    """Return the connection, after a check of the peer's identity.

    Raises:
        PeerError: the peer has another identity; the connection is closed.
    """
    try:
        check_identity(connection.peer, connection.identity, identity)
    except UnauthorisedPeer as error:
        connection.post(Refusal(type(error).__name__, str(error)))  # so that the peer reports it
        connection.close()
        raise
    return connection


def check_identity(peer: str, found: str | None, expected: str) -> None:
    """Check a peer's identity; without TLS, peers have no identity, and all pass.

    Args:
        peer: its address.
        found: the identity in its certificate; None without TLS.
        expected: the expected identity.

    Raises:
        UnauthorisedPeer: the peer has another identity.
    """
    if found is not None and found != expected:
        raise UnauthorisedPeer(
            f"{peer} has the certificate of {file_name(found) or 'no site'}, not of "
            f"{file_name(expected)}"
        )
