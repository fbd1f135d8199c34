"""``anabranch status``: the status of a scheduler's run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from anabranch._text import say
from anabranch.cli.commands import app, console
from anabranch.cli.options import InsecureOption, address_given, token_given
from anabranch.log import status as statuses
from anabranch.net.tcp import TcpNetwork
from anabranch.net.tls import Credentials, TlsError


@app.command()
def status(
    address: Annotated[str, typer.Argument(help="The scheduler's host:port.")],
    token: Annotated[
        str | None,
        typer.Option(
            help="The run's shared secret; $ANABRANCH_TOKEN if not given. Other users of this "
            "machine cannot read that variable."
        ),
    ] = None,
    tls: Annotated[
        Path | None,
        typer.Option(
            "--tls", help="Folder of a certificate of the run: a site's or the scheduler's."
        ),
    ] = None,
    insecure: InsecureOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")] = False,
    stack: Annotated[
        str | None,
        typer.Option(metavar="SITE", help="Also print the stacks of this site's Python threads."),
    ] = None,
    patience: Annotated[
        float, typer.Option(help="Seconds to wait for the answer.", min=0.1)
    ] = 10.0,
) -> None:
    """Show a running scheduler's sites, the sites it waits for, and its progress."""
    from anabranch.net.frames import CONTROL_LIMITS
    from anabranch.scheduler.asking import ask

    if stack and as_json:
        raise typer.BadParameter("--json prints the status alone; ask for --stack without it")
    where = address_given(address, insecure or tls is not None)
    secret = token or token_given()
    network = TcpNetwork(CONTROL_LIMITS, credentials=None if tls is None else _credentials(tls))
    found, stacks = asyncio.run(ask(network, where, secret, patience, stack or ""))
    if as_json:
        say(statuses.dumps(found).decode())
        return
    console.print(statuses.headline(found), soft_wrap=True)
    console.print(statuses.sites_table(found).for_terminal())
    if found.links:
        console.print(statuses.links_table(found).for_terminal())
    if stacks:
        console.print(stacks, markup=False, highlight=False, soft_wrap=True)


def _credentials(folder: Path) -> Credentials:
    """Return the credentials of the first process, by name, whose key a folder has."""
    names = sorted(key.stem for key in folder.glob("*.key") if key.stem != "ca")
    if not names:
        raise typer.BadParameter(f"--tls {folder}: there is no key of a site or a scheduler")
    credentials = Credentials(folder, f"anabranch:{names[0].replace('-', ':', 1)}")
    try:
        credentials.check()
    except TlsError as error:
        raise typer.BadParameter(f"--tls: {error}") from None
    return credentials
