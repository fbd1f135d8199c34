"""Commands that are one process of a scenario's run: host, site."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from anabranch._text import say
from anabranch.cli.commands import app
from anabranch.cli.options import (
    FormatOption,
    InsecureOption,
    JournalOption,
    ListenOption,
    MetricsOption,
    ProgressOption,
    StandbyOption,
    StdinOption,
    TlsOption,
    address_given,
    check_host,
    check_standby,
    credentials,
    listening,
    sayer,
    tell_doubts,
    token_given,
    watching,
)
from anabranch.net.addresses import is_wildcard
from anabranch.net.tls import SCHEDULER, identity_of
from anabranch.scheduler.watching import PROGRESS_S
from anabranch_lab.cli.runs import DataOption, SaveOption
from anabranch_lab.run import scenario as scenarios
from anabranch_lab.run.checkpoints import Course, Files
from anabranch_lab.run.launch import BEGAN


@app.command()
def host(
    scenario: Annotated[Path, typer.Argument(help="The scenario's file.")],
    log: Annotated[Path, typer.Option(help="The event log to create.")],
    route: Annotated[int, typer.Option(help="Which of the scenario's routes, from 0.", min=0)] = 0,
    journal: JournalOption = None,
    standby: StandbyOption = False,
    listen: ListenOption = "127.0.0.1:0",
    progress_every: ProgressOption = PROGRESS_S,
    metrics: MetricsOption = None,
    log_format: FormatOption = "auto",
    stop_with_stdin: StdinOption = False,
    emulated: Annotated[bool, typer.Option(hidden=True)] = False,
    insecure: InsecureOption = False,
    tls: TlsOption = None,
    checkpoint_every: SaveOption = None,
    after_round: Annotated[
        int, typer.Option(help="The round whose checkpoints every site resumes from.", min=0)
    ] = 0,
) -> None:
    """Run a scenario's scheduler, for sites on several machines; each is an `anabranch site`.

    The token is $ANABRANCH_TOKEN.
    """
    from anabranch.group.serve import Process
    from anabranch_lab.run.control import run_scheduler

    address = address_given(listen, insecure or tls is not None)
    check_standby(standby, journal, address)
    loaded, network = scenarios.load(scenario)
    runs = loaded.runs()
    if route >= len(runs):
        raise typer.BadParameter(f"--route {route}: {scenario} has routes 0..{len(runs) - 1}")
    tell, watches = sayer(log_format, sys.stderr), watching(progress_every, metrics)
    if stop_with_stdin:  # a launcher reads this process's last line as the reason of its end
        tell, watches = (lambda line: None), replace(watches, progress_s=None)
    tell_doubts(network, loaded.doubts, tell)
    process = Process(
        token_given(),
        address,
        log,
        listening,
        tell,
        credentials(tls, SCHEDULER),
        journal,
        standby,
        stop_with_stdin,
        watches,
    )
    run_scheduler(
        runs[route],
        network,
        process,
        emulated,
        lambda: say(BEGAN) if stop_with_stdin else None,
        Course(after_round=after_round, save_every=checkpoint_every),
    )


@app.command()
def site(
    name: Annotated[str, typer.Argument(help="This site's name in the overlay.")],
    scheduler: Annotated[str, typer.Option(help="The scheduler's host:port.")],
    host: Annotated[
        str | None,
        typer.Option(
            help="Where this site takes connections of others; 0.0.0.0: everywhere. Not given: the "
            "address from which it reaches the scheduler."
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="Likewise; 0 takes a free one.", min=0, max=65535)] = 0,
    advertise: Annotated[
        str | None,
        typer.Option(help="The host, by name or number, at which others reach it; --host if not."),
    ] = None,
    outbound_only: Annotated[
        bool,
        typer.Option(
            "--outbound-only",
            help="No other site can connect to this one, as behind NAT: it makes all connections "
            "itself.",
        ),
    ] = False,
    patience: Annotated[
        float, typer.Option(help="Seconds to try where no scheduler answers yet.", min=0.0)
    ] = 60.0,
    data_dir: DataOption = None,
    threads: Annotated[
        int | None, typer.Option(help="For torch; its own choice if not given.")
    ] = None,
    insecure: InsecureOption = False,
    tls: TlsOption = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            help="Where the final weights go, if this site writes them: the overlay's first does, "
            "or the servers together, on a disk that they share."
        ),
    ] = None,
    checkpoints: Annotated[
        Path | None, typer.Option(help="Folder for this site's checkpoints.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Folder of the round to go on after, such as round-000020.")
    ] = None,
    stop_with_stdin: StdinOption = False,
) -> None:
    """Run one site of a run; needs the run's token in $ANABRANCH_TOKEN."""
    from anabranch_lab.run.worker import run_site

    insecure = insecure or tls is not None
    address = address_given(scheduler, insecure)
    for each in filter(None, (host, advertise)):
        check_host(each, insecure)
    if outbound_only and (host, port, advertise) != (None, 0, None):
        raise typer.BadParameter(
            "--outbound-only takes no connections, so give no --host, --port or --advertise"
        )
    if advertise is None and host is not None and is_wildcard(host):
        raise typer.BadParameter(f"--host {host} is all addresses; say by --advertise which one")
    files = Files(data=data_dir, weights=weights, checkpoints=checkpoints, resume=resume)
    listen = None if outbound_only else (host, port)
    run_site(
        name,
        address,
        token_given(),
        listen,
        files,
        threads,
        stop_with_stdin,
        advertise,
        patience,
        credentials(tls, identity_of(name)),
    )
