"""``anabranch certs``: a private authority, and a certificate for each process of a group."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anabranch._text import say
from anabranch.cli.commands import app
from anabranch.net.tls import SCHEDULER, file_name, identity_of

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

_CLOCKS_DIFFER = datetime.timedelta(hours=1)
_MOST_DAYS = 36_500
_AUTHORITY = 10  # times as long as the first certificates


@app.command()
def certs(
    sites: Annotated[str, typer.Option(help="The sites' names, as paris,austin.")],
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("certs"),
    days: Annotated[
        int, typer.Option(help="How long they are valid.", min=1, max=_MOST_DAYS)
    ] = 365,
) -> None:
    """Make an authority and certificates for a scheduler and its sites, for mutual TLS.

    Give each machine ca.pem, and the .pem and .key of the process that runs there. Keep ca.key: a
    later call uses it again, for more sites or to renew certificates. The authority lasts ten
    times as long as the first certificates.
    """
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise typer.BadParameter(
            "certificates are made by the package cryptography; pip install 'anabranch[tls]'"
        ) from None
    names = [name.strip() for name in sites.split(",")]
    if not all(names):
        raise typer.BadParameter(f"--sites {sites}: a name is empty")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise typer.BadParameter(f"--sites {sites}: {twice} is named twice")
    out.mkdir(parents=True, exist_ok=True)
    authority = _authority(out, days)
    for identity in (SCHEDULER, *map(identity_of, names)):
        _write(out, file_name(identity), *_certificate(identity, days, authority))
    say(f"{out}: ca.pem for all; {', '.join(('scheduler', *names))}, each its own")


_Pair = tuple["x509.Certificate", "ec.EllipticCurvePrivateKey"]


def _authority(folder: Path, days: int) -> _Pair:
    """Return the folder's authority, a new one if it has none.

    Raises:
        typer.BadParameter: the folder lacks the key or the certificate, the key is another
            program's, or the authority expires earlier than in ``days``.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    certificate, key = folder / "ca.pem", folder / "ca.key"
    if certificate.exists() != key.exists():
        there, gone = (certificate, key) if certificate.exists() else (key, certificate)
        raise typer.BadParameter(
            f"{there} exists, and {gone.name} does not: this authority needs both to make more "
            "certificates; put it back, or make new certificates for all with another --out"
        )
    if certificate.exists():
        loaded = load_pem_private_key(key.read_bytes(), None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise typer.BadParameter(f"{key} is no key that this command has made")
        authority = x509.load_pem_x509_certificate(certificate.read_bytes())
        left = authority.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
        if days > left.days:
            fewer = f"give at most {left.days}, or " if left.days > 0 else ""
            raise typer.BadParameter(
                f"--days {days}: the authority {certificate} ends on "
                f"{authority.not_valid_after_utc:%Y-%m-%d}; {fewer}make new certificates for all "
                "with another --out"
            )
        return authority, loaded
    pair = _certificate("anabranch:authority", _AUTHORITY * days, None)
    _write(folder, "ca", *pair)
    return pair


def _certificate(identity: str, days: int, authority: _Pair | None) -> _Pair:
    """Return a certificate and its key; a self-signed authority where ``authority`` is None."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    # A common name has 64 characters at most, and only people read it.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, identity[:64])])
    issuer, signing = (name, key) if authority is None else (authority[0].subject, authority[1])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity)]), critical=False
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()),
            critical=False,
        )
        .add_extension(
            x509.KeyUsage(
                digital_signature=True,
                key_cert_sign=authority is None,
                crl_sign=authority is None,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
    )
    return made.sign(signing, hashes.SHA256()), key


def _write(
    folder: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> None:
    """Write a certificate and its key, which only its owner may read; old ones are replaced."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    data = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    pem = certificate.public_bytes(Encoding.PEM)
    for ending, content, mode in ((".key", data, 0o600), (".pem", pem, 0o644)):
        new = folder / f"{name}{ending}.new"
        new.unlink(missing_ok=True)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
        new.replace(folder / f"{name}{ending}")
