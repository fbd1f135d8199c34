"""Mutual TLS 1.3: who a process is, by a certificate that both ends' authority has signed.

A folder holds what one process needs: the authority's certificate (``ca.pem``), and its own with
its key, named after it (``site-paris.pem`` and ``site-paris.key``, or ``scheduler.pem`` and
``scheduler.key``). ``anabranch certs`` makes them for a group. The files are read for each
connection, so that renewed ones are used without a restart.

A :class:`Session` is between the bytes that travel and those that are meant; the connection with
one moves the former. So a payload is encrypted in pieces of :data:`SEALED_BYTES`, a call each, and
decrypted to where it belongs, where asyncio's own TLS takes a call and two copies for each 16 KB.
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
"""The most that is encrypted at once, while what was encrypted before is on its way."""

RECORD_BYTES = 5 + (1 << 14) + 256
"""The most of a record (RFC 8446, 5.2), of which nothing can be read before all of it is there."""

_CERTIFICATE_REFUSED = "CERT", "UNKNOWN_CA"
"""What alerts by which the other end refuses this one's certificate have in their names."""

# Record type 21, version 3.3, 2 bytes: fatal, protocol_version (RFC 8446, 5.1 and 6.2). OpenSSL
# answers nothing to what is no TLS, and the other end would see a connection that just ends.
_PROTOCOL_VERSION_ALERT = b"\x15\x03\x03\x00\x02\x02\x46"

_STAGING_BYTES = 1 << 19
_FIRST_STAGING_BYTES = 1 << 14  # while the other end is not trusted, and may be one of many

SCHEDULER = "anabranch:scheduler"
"""The identity of a scheduler, as the URI of its certificate says it."""


class TlsError(ValueError):
    """Certificates that cannot be used; the message names the file."""


def identity_of(site: str) -> str:
    """Return the identity of a site, as the URI of its certificate says it.

    >>> identity_of("paris"), identity_of("new york")
    ('anabranch:site:paris', 'anabranch:site:new%20york')
    """
    return f"anabranch:site:{quote(site, safe='')}"


def file_name(identity: str) -> str:
    """Return what the files of an identity are called, without their endings.

    >>> file_name(identity_of("paris")), file_name(SCHEDULER)
    ('site-paris', 'scheduler')
    """
    return identity.removeprefix("anabranch:").replace(":", "-")


@dataclass(frozen=True)
class Credentials:
    """A process's certificate and key, and the authority whose certificates it believes.

    Args:
        folder: where the files are.
        identity: whose; see ``identity_of``.
    """

    folder: Path
    identity: str

    def check(self) -> None:
        """Read the files once.

        Raises:
            TlsError: one is missing, or not what it should be.
        """
        self.context(ssl.Purpose.SERVER_AUTH)

    def context(self, purpose: ssl.Purpose) -> ssl.SSLContext:
        """Return what a connection is made with.

        Args:
            purpose: ``SERVER_AUTH`` for one that calls, ``CLIENT_AUTH`` for one that is called.

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
        context.check_hostname = False  # sites are known by their names in the overlay
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
    """One end of an encrypted stream. No I/O: ciphertext comes in and goes out by calls.

    Args:
        context: see :meth:`Credentials.context`.
        is_called: whether the other end made the connection.

    Attributes:
        staging: memory for what comes of the stream next.
        is_ready: whether each end has shown the other who it is, as far as this one knows.
    """

    def __init__(self, context: ssl.SSLContext, is_called: bool) -> None:
        self._came, self._leaves = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ends = context.wrap_bio(self._came, self._leaves, server_side=is_called)
        self.staging = memoryview(bytearray(_FIRST_STAGING_BYTES))
        self.is_ready = False
        self._has_ended = False
        self._first = b""  # of what has come

    def trust(self) -> None:
        """Take more at once from now on."""
        self.staging = memoryview(bytearray(_STAGING_BYTES))

    def shake_hands(self) -> None:
        """Go on with the handshake, as far as what has come allows.

        Raises:
            UntrustedPeer: the other end speaks no TLS, or one does not believe the other.
            LinkError: what came was changed on its way.
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
        """The other end's, once the session is ready."""
        return said_by(self._ends.getpeercert() or {})

    def take(self, count: int) -> None:
        """Take note that so many bytes were put into ``staging``.

        Raises:
            LinkError: the other end has said before that nothing follows.
        """
        if len(self._first) < FIRST_BYTES:
            self._first = (self._first + bytes(self.staging[:count]))[:FIRST_BYTES]
        if self._has_ended:
            raise LinkError("the other end goes on after it has said that nothing follows")
        self._came.write(self.staging[:count])

    def read_into(self, memory: memoryview) -> int:
        """Put what has come into memory, decrypted, and return how many bytes that was.

        Raises:
            LinkError: it was changed on its way.
            UntrustedPeer: the other end does not believe this one.
        """
        filled = 0
        try:
            while filled < len(memory):
                read = self._ends.read(len(memory) - filled, memory[filled:])  # of one record
                count = cast(int, read)  # into memory that was given
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
        """Encrypt what is meant; ``to_send`` has it then.

        Raises:
            LinkError: the stream has ended.
        """
        try:
            self._ends.write(plain)
        except ssl.SSLError as error:
            raise LinkError(str(error)) from error

    def say_the_end(self) -> None:
        """Say that nothing follows; ``to_send`` has it then."""
        with suppress(ssl.SSLError):  # it waits for the other end's word, which we do not
            self._ends.unwrap()

    def to_send(self) -> bytes:
        """Return what is to travel, after all that was returned before; empty for nothing."""
        return self._leaves.read()


def _named(error: ssl.SSLError, first: bytes) -> NetError:
    """Return what an error of OpenSSL's means, and what to do; pure.

    Args:
        error: of a handshake, or of the first read after it, by which a caller hears in TLS 1.3
            that its certificate is refused.
        first: the first bytes that came.
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
    """Return the identity in a peer's certificate, as ``SSLSocket.getpeercert`` tells it."""
    names = [name for kind, name in certificate.get("subjectAltName", ()) if kind == "URI"]
    return names[0] if len(names) == 1 else ""


async def connect_to(
    network: Network, address: Address, receiver: Receiver, identity: str
) -> Connection:
    """Connect to a peer, and make sure that it is the one meant before anything is said to it.

    Args:
        network: leads to it.
        address: where it listens.
        receiver: what hears it.
        identity: who it should be, see ``check_identity``.

    Raises:
        LinkError: no process answers there.
        PeerError: the peer is another, or does not speak this protocol; the connection is closed.
    """
    return checked(await network.connect(address, receiver), identity)


def checked(connection: Connection, identity: str) -> Connection:
    """Return a connection that was made, once it is sure to lead to the peer that is meant.

    Raises:
        PeerError: the peer is another; the connection is closed.
    """
    try:
        check_identity(connection.peer, connection.identity, identity)
    except UnauthorisedPeer as error:
        connection.post(Refusal(type(error).__name__, str(error)))  # so that it says so, too
        connection.close()
        raise
    return connection


def check_identity(peer: str, found: str | None, expected: str) -> None:
    """Check the identity of a connection's other end; without TLS there is none, and any passes.

    Args:
        peer: its address.
        found: the identity in its certificate; None for a connection without one.
        expected: who it should be.

    Raises:
        UnauthorisedPeer: it is another.
    """
    if found is not None and found != expected:
        raise UnauthorisedPeer(
            f"{peer} has the certificate of {file_name(found) or 'no site'}, not of "
            f"{file_name(expected)}"
        )
