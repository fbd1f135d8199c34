"""Options and checks shared by commands that run one process of a run or a group."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, TextIO, TypeVar

import typer

from anabranch._text import say
from anabranch._typed_toml import TomlError, converted, listed, nearest, tag_of
from anabranch.group.place import TOKEN_VARIABLE
from anabranch.log.console import Line, logfmt
from anabranch.net.addresses import is_loopback, parse, show
from anabranch.net.network import Address
from anabranch.net.tls import Credentials, TlsError
from anabranch.overlay import Overlay
from anabranch.plan import PLANNERS, FromFile
from anabranch.scheduler.watching import Watching

_T = TypeVar("_T")

# Routes by the kind that a command names.
ROUTES = {tag_of(planner): planner for planner in PLANNERS if not issubclass(planner, FromFile)}

InsecureOption = Annotated[
    bool,
    typer.Option(
        "--insecure", help="Allow addresses off this machine without --tls: nothing is encrypted."
    ),
]
TlsOption = Annotated[
    Path | None,
    typer.Option(
        "--tls", help="Folder of this process's certificate and key, as `anabranch certs` makes it."
    ),
]
ListenOption = Annotated[str, typer.Option(help="host:port; port 0 takes a free one.")]
JournalOption = Annotated[
    Path | None,
    typer.Option(
        help="A file by which a restarted scheduler finds its sites, after it was killed or "
        "stopped (SIGTERM). Restart it with the same options. Not where the model is served, "
        "sites gossip, or a loss ends the run."
    ),
]
StandbyOption = Annotated[
    bool,
    typer.Option(
        help="Wait while another scheduler has the journal, and take over when that one is gone; "
        "with the same options, and a port in --listen."
    ),
]
ProgressOption = Annotated[
    float, typer.Option(help="Seconds between two lines of progress; 0 for none.", min=0.0)
]
FormatOption = Annotated[
    str,
    typer.Option(
        help="How lines are written: text, or logfmt with a UTC time; auto is text on a "
        "terminal and logfmt elsewhere."
    ),
]
MetricsOption = Annotated[
    str | None,
    typer.Option(
        help="host:port where Prometheus finds metrics, at /metrics; a port alone is on this "
        "machine only. Any host that reaches it may read them."
    ),
]
StdinOption = Annotated[bool, typer.Option(hidden=True)]


def tell_doubts(overlay: Overlay, doubts: Sequence[str], tell: Callable[[Line], None]) -> None:
    """Write the sources of an overlay's figures, and doubtful figures."""
    for sentence in overlay.provenance:
        tell(Line("overlay", sentence))
    for doubt in (*overlay.doubts, *doubts):
        tell(Line("doubt", doubt, "warning"))


def credentials(folder: Path | None, identity: str) -> Credentials | None:
    """Return a process's TLS credentials; None without a folder of certificates.

    Raises:
        typer.BadParameter: the folder's files are not usable.
    """
    if folder is None:
        return None
    found = Credentials(folder, identity)
    try:
        found.check()
    except TlsError as error:
        raise typer.BadParameter(f"--tls: {error}") from None
    return found


def listening(at: Address) -> None:
    """Print the scheduler's address, for the program that has started it."""
    say(show(at))


def sayer(log_format: str, to: TextIO) -> Callable[[Line], None]:
    """Return a function that writes lines as text for people, or as logfmt for machines."""
    if log_format not in ("auto", "text", "logfmt"):
        raise typer.BadParameter(f"--log-format {log_format}: give auto, text or logfmt")
    if log_format == "text" or (log_format == "auto" and to.isatty()):
        return lambda line: say(line.text, to)
    return lambda line: say(logfmt(line, datetime.now(UTC)), to)


def check_standby(standby: bool, journal: Path | None, listen: Address) -> None:
    """Check that a scheduler can stand by.

    Raises:
        typer.BadParameter: it cannot; names the option, and what to give.
    """
    if standby and journal is None:
        raise typer.BadParameter("--standby needs --journal, the other scheduler's")
    if standby and not listen[1]:
        raise typer.BadParameter(
            f"--listen {show(listen)}: with --standby give a port, where sites look for either"
        )


def metrics_at(text: str) -> Address:
    """Return the address of the metrics; a port alone is on this machine only.

    Raises:
        typer.BadParameter: the text is no address, or prometheus-client is not installed.
    """
    if find_spec("prometheus_client") is None:
        raise typer.BadParameter(
            "--metrics needs the package prometheus-client; pip install 'anabranch[metrics]'"
        )
    try:
        return parse(f"127.0.0.1:{text}" if text.isdigit() else text)
    except ValueError as error:
        raise typer.BadParameter(f"--metrics: {error}") from None


def watching(progress_every_s: float, metrics: str | None) -> Watching:
    """Return how to report on a run: its progress lines and its metrics."""
    return Watching(progress_every_s or None, None if metrics is None else metrics_at(metrics))


def token_given() -> str:
    """Return the run's token."""
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        raise typer.BadParameter(
            f"set ${TOKEN_VARIABLE} to the run's shared secret, the same for the scheduler and "
            "every site"
        )
    return token


def address_given(text: str, insecure: bool) -> Address:
    """Return an address; off this machine only if ``insecure``.

    Raises:
        typer.BadParameter: the text is no address, or the address is not allowed.
    """
    try:
        address = parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    check_host(address[0], insecure)
    return address


def check_host(host: str, insecure: bool) -> None:
    """Check that a host is on this machine, or that ``insecure`` allows others.

    Raises:
        typer.BadParameter: it is off this machine; says what to give.
    """
    if not is_loopback(host) and not insecure:
        raise typer.BadParameter(
            f"{host} is off this machine, and traffic would be neither encrypted nor "
            "authenticated beyond a shared token; give --tls, or say --insecure if the network is "
            "trusted"
        )


def value_of(option: str, text: str, known: Mapping[str, type[_T]]) -> _T:
    """Return the value for KIND or KIND,KEY=VALUE,...; keys are those of scenario files.

    Raises:
        typer.BadParameter: an unknown kind, or a key or value that the kind does not take.
    """
    kind, *given = text.split(",")
    if kind not in known:
        near = nearest(kind, known) or f"give one of {listed(known)}"
        raise typer.BadParameter(f"{option} {text}: no such kind; {near}")
    table: dict[str, object] = {"kind": kind}
    for each in given:
        key, equals, value = each.partition("=")
        if not equals:
            raise typer.BadParameter(f"{option} {text}: {each!r} is not KEY=VALUE")
        table[key] = value
    try:
        return converted(table, known[kind], strict=False)
    except TomlError as error:
        raise typer.BadParameter(f"{option} {text}: {error}") from None
