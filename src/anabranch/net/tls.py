"""Mutual TLS 1.3: who a process is, by a certificate that both ends' authority has signed.

A folder holds what one process needs: the authority's certificate (``ca.pem``), and its own with
its key, named after it (``site-paris.pem`` and ``site-paris.key``, or ``scheduler.pem`` and
``scheduler.key``). ``anabranch certs`` makes them for a group. The files are read for each
connection, so that renewed ones are used without a restart.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from anabranch.net.errors import UnauthorisedPeer

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


def said_by(certificate: Mapping[str, Any]) -> str:
    """Return the identity in a peer's certificate, as ``SSLSocket.getpeercert`` tells it."""
    names = [name for kind, name in certificate.get("subjectAltName", ()) if kind == "URI"]
    return names[0] if len(names) == 1 else ""


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
            f"{peer} has the certificate of {file_name(found) or 'nobody'}, not of "
            f"{file_name(expected)}"
        )
