"""`anabranch certs`: what it makes is what TLS asks for, and it can be called again."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from typer.testing import CliRunner

from anabranch.cli._certs import _certificate, _write
from anabranch.net.tls import SCHEDULER, Credentials, identity_of
from anabranch_lab.cli import app

x509 = pytest.importorskip("cryptography.x509", reason="the extra anabranch[tls] is not installed")


def made(folder: Path, sites: str) -> None:
    result = CliRunner().invoke(app, ["certs", "--sites", sites, "--out", str(folder)])
    assert result.exit_code == 0, result.output


def test_each_process_has_what_it_needs_and_keys_are_its_owner_s(tmp_path: Path) -> None:
    made(tmp_path / "certs", "paris, new york")
    for identity in (SCHEDULER, identity_of("paris"), identity_of("new york")):
        Credentials(tmp_path / "certs", identity).check()
    assert {file.stat().st_mode & 0o777 for file in tmp_path.rglob("*.key")} == {0o600}


def test_a_later_call_keeps_the_authority(tmp_path: Path) -> None:
    made(tmp_path, "paris")
    authority = (tmp_path / "ca.pem").read_text()
    paris = (tmp_path / "site-paris.pem").read_text()
    made(tmp_path, "paris,lyon")
    assert (tmp_path / "ca.pem").read_text() == authority
    assert (tmp_path / "site-paris.pem").read_text() != paris
    for name in ("paris", "lyon"):
        Credentials(tmp_path, identity_of(name)).context(ssl.Purpose.CLIENT_AUTH)


def test_a_name_that_is_empty_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["certs", "--sites", "paris,", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert not list(tmp_path.iterdir())


def refused(folder: Path, *more: str) -> str:
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    result = CliRunner().invoke(app, ["certs", "--sites", "paris", "--out", str(folder), *more])
    assert result.exit_code == 2
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    return " ".join(result.output.split())


@pytest.mark.parametrize("half", ["ca.key", "ca.pem"])
def test_half_an_authority_is_not_replaced(tmp_path: Path, half: str) -> None:
    made(tmp_path, "paris")
    (tmp_path / half).rename(tmp_path / "moved")
    said = refused(tmp_path)
    assert half in said
    assert "put it back" in said


def test_no_certificate_outlives_its_authority(tmp_path: Path) -> None:
    made(tmp_path, "paris")
    assert "give at most 3649, or" in refused(tmp_path, "--days", "3650")
    assert (
        CliRunner()
        .invoke(app, ["certs", "--sites", "lyon", "--out", str(tmp_path), "--days", "3649"])
        .exit_code
        == 0
    )
    ends = [
        x509.load_pem_x509_certificate((tmp_path / f"{name}.pem").read_bytes()).not_valid_after_utc
        for name in ("site-lyon", "ca")
    ]
    assert ends == sorted(ends)
    assert "--days" in refused(tmp_path, "--days", "400000")


def test_an_authority_that_has_ended_signs_nothing(tmp_path: Path) -> None:
    authority = _certificate("anabranch:authority", 0, None)
    _write(tmp_path, "ca", *authority)
    said = refused(tmp_path)
    assert "make new certificates" in said
    assert "at most" not in said
