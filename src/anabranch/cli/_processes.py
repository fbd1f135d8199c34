"""Commands that are one process of a run or a group: scheduler, site."""

from __future__ import annotations

import os
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO, TypeVar

import typer

from anabranch import overlay as overlays
from anabranch._text import say
from anabranch._typed_toml import TomlError, converted, listed, nearest, tag_of
from anabranch.cli._app import app
from anabranch.cli._plans import ROUTES
from anabranch.cli._runs import DataOption, MetricsOption, SaveOption, metrics_at
from anabranch.net.addresses import is_loopback, is_wildcard, parse, show
from anabranch.net.network import Address
from anabranch.net.silence import STILLNESS_S
from anabranch.net.tls import SCHEDULER, Credentials, TlsError, identity_of
from anabranch.overlay import Overlay
from anabranch.pace import PACES
from anabranch.plan import ForestRoute
from anabranch.record.console import Line, logfmt
from anabranch.run import scenario as scenarios
from anabranch.run.checkpoints import Course, Files
from anabranch.run.launch import BEGAN, TOKEN_VARIABLE
from anabranch.scheduler.watching import PROGRESS_S, Watching

if TYPE_CHECKING:
    from anabranch.group import Service

_T = TypeVar("_T")
OnError = typing.Literal["lose", "abort"]
OnLoss = typing.Literal["complete", "retry", "abort"]
_GROUP_ROUTES = {kind: each for kind, each in ROUTES.items() if each is not ForestRoute}
_PACES = {tag_of(pace): pace for pace in PACES}


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


@app.command()
def scheduler(
    scenario: Annotated[
        Path | None, typer.Argument(help="A scenario's file; a group of any sites if not given.")
    ] = None,
    log: Annotated[Path | None, typer.Option(help="The event log to create.")] = None,
    group: Annotated[
        Path | None,
        typer.Option(
            help="For a group: a TOML file of all its settings, by a scenario's keys, in place of "
            "the options below that are for a group."
        ),
    ] = None,
    overlay: Annotated[
        str | None,
        typer.Option(help="For a group: a built-in overlay or a file; links may lack rates."),
    ] = None,
    sites: Annotated[
        str | None,
        typer.Option(help="For a group without an overlay: names, as paris,austin; measured."),
    ] = None,
    route: Annotated[
        str,
        typer.Option(
            help=f"For a group: where aggregates travel, {listed(_GROUP_ROUTES)}; packed if not "
            "given. With parameters, as fapt,roots=3. With a scenario: which of its routes, from 0."
        ),
    ] = "",
    measure: Annotated[
        bool,
        typer.Option(help="For a group: take all links for equal until they are measured."),
    ] = False,
    keep_plan: Annotated[
        bool,
        typer.Option(
            "--keep-plan",
            help="With --overlay: its rates are facts, so that no link is measured and the first "
            "plan stays.",
        ),
    ] = False,
    links_bps: Annotated[
        float | None,
        typer.Option(
            help="With --sites: the rate of every link, which then counts, and is not measured.",
            min=1.0,
        ),
    ] = None,
    pace: Annotated[
        str | None,
        typer.Option(
            help=f"For a group whose roots serve the model: {listed(_PACES)}; with parameters, as "
            "ssp,lead=3."
        ),
    ] = None,
    updates: Annotated[
        int, typer.Option(help="How many each worker makes, where the model is served.", min=1)
    ] = 1,
    model_mb: Annotated[
        float | None,
        typer.Option(
            help="With --pace: the model's size in megabytes, which its route is planned for.",
            min=1e-6,
        ),
    ] = None,
    on_loss: Annotated[
        str,
        typer.Option(
            help="What becomes of a group's exchanges when a site or link is lost: complete them "
            "among those left, retry them from the beginning, or abort."
        ),
    ] = "complete",
    on_error: Annotated[
        str,
        typer.Option(
            help="What becomes of a group when an exception, or Ctrl-C, ends a site's part: lose "
            "that site, as if it had died, or abort."
        ),
    ] = "lose",
    least_sites: Annotated[
        int, typer.Option(help="With fewer sites left than these, a group ends.", min=1)
    ] = 2,
    begin_with: Annotated[
        int | None,
        typer.Option(
            help="How many sites a group begins with, all if not given; others join later.", min=1
        ),
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option(
            help="A file by which a scheduler that was killed or stopped (SIGTERM), and is started "
            "again with the same options, finds its sites. Not where the model is served, sites "
            "gossip, or a loss ends the run."
        ),
    ] = None,
    standby: Annotated[
        bool,
        typer.Option(
            help="Wait while another scheduler has the journal, and go on when it is gone; with "
            "the same options, and a port in --listen."
        ),
    ] = False,
    stillness: Annotated[
        float,
        typer.Option(
            help="Seconds that a group's site may say nothing while its machine answers, at least: "
            "as when one call holds its interpreter's lock.",
            min=0.1,
        ),
    ] = STILLNESS_S,
    silence: Annotated[
        float | None,
        typer.Option(
            help="Seconds of silence, at least, after which a site or link of a group is lost; "
            "2 if not given, where the others go on without it.",
            min=0.5,
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option(help="host:port; port 0 takes a free one.")
    ] = "127.0.0.1:0",
    progress_every: Annotated[
        float, typer.Option(help="Seconds between two lines of progress; 0 for none.", min=0.0)
    ] = PROGRESS_S,
    metrics: MetricsOption = None,
    log_format: Annotated[
        str,
        typer.Option(
            help="How lines are written: text, or logfmt with a UTC time; auto is text on a "
            "terminal and logfmt elsewhere."
        ),
    ] = "auto",
    stop_with_stdin: Annotated[bool, typer.Option(hidden=True)] = False,
    emulated: Annotated[bool, typer.Option(hidden=True)] = False,
    insecure: InsecureOption = False,
    tls: TlsOption = None,
    checkpoint_every: SaveOption = None,
    after_round: Annotated[
        int, typer.Option(help="The round whose checkpoints every site resumes from.", min=0)
    ] = 0,
) -> None:
    """Run a scheduler, of a group or of a scenario; sites join it by address and token.

    The token is $ANABRANCH_TOKEN. A group's sites are processes that call `anabranch.join(...)`.
    """
    address = address_given(listen, insecure or tls is not None)
    credentials = _credentials(tls, SCHEDULER)
    tell = _sayer(log_format, sys.stderr)
    watching = Watching(progress_every or None, None if metrics is None else metrics_at(metrics))
    if standby and journal is None:
        raise typer.BadParameter("--standby needs --journal, the other scheduler's")
    if standby and not address[1]:
        raise typer.BadParameter(
            f"--listen {listen}: with --standby give a port, where sites look for either"
        )
    if group is not None:
        said = (scenario, overlay, sites, route, measure, keep_plan, links_bps, pace, model_mb)
        usual = updates, on_loss, on_error, least_sites, begin_with, silence, stillness
        if any(said) or usual != (1, "complete", "lose", 2, None, None, STILLNESS_S):
            raise typer.BadParameter(
                f"--group {group}: the file says it all; leave the scenario and the options out "
                "that are for a group"
            )
    if scenario is None:
        if group is not None:
            service = _from_file(group)
            on_loss, begin_with = service.on_loss, service.begin_with
        else:
            service = _service(
                overlay, sites, route, measure, keep_plan, links_bps, pace, updates, model_mb
            )
            if on_loss not in typing.get_args(OnLoss):
                raise typer.BadParameter(f"--on-loss {on_loss}: give complete, retry or abort")
            if on_error not in typing.get_args(OnError):
                raise typer.BadParameter(f"--on-error {on_error}: give lose or abort")
            service = replace(
                service,
                on_error=typing.cast("OnError", on_error),
                on_loss=typing.cast("OnLoss", on_loss),
                least_sites=least_sites,
                begin_with=begin_with,
                silence_s=silence,
                stillness_s=stillness,
            )
        asked = "--begin-with" if group is None else f"--group {group}: begin_with"
        if begin_with is not None and on_loss == "abort":
            raise typer.BadParameter(f"{asked} is not for a group that a loss ends (abort)")
        if begin_with is not None and begin_with > service.overlay.size:
            raise typer.BadParameter(
                f"{asked} {begin_with}: the overlay has {service.overlay.size} sites"
            )
        if journal is not None and not service.repairs:
            raise typer.BadParameter("--journal is not for a group with --on-loss abort or --pace")
        _tell_of(service.overlay, (), tell)
        from anabranch.group.serve import Process, serve

        process = Process(
            token_given(),
            address,
            log,
            _listening,
            tell,
            credentials,
            journal,
            standby,
            stop_with_stdin,
            watching,
        )
        serve(service.listening_at(address), process)
        return
    from anabranch.group.serve import Process
    from anabranch.run.control import run_scheduler

    for option, given in (("--overlay", overlay), ("--sites", sites), ("--pace", pace)):
        if given is not None:
            raise typer.BadParameter(f"{option} is for a group; the scenario says it itself")
    if begin_with is not None:
        raise typer.BadParameter("--begin-with is for a group, not for a scenario's run")
    if log is None:
        raise typer.BadParameter("--log is missing: the event log of the run")
    if route and not route.isdigit():
        raise typer.BadParameter(f"--route {route}: with a scenario, give the number of its route")
    loaded, network = scenarios.load(scenario)
    runs, index = loaded.runs(), int(route or 0)
    if index >= len(runs):
        raise typer.BadParameter(f"--route {index}: {scenario} has routes 0..{len(runs) - 1}")
    if not stop_with_stdin:
        _tell_of(network, loaded.doubts, tell)
    process = Process(
        token_given(),
        address,
        log,
        _listening,
        # What a process says that another has started ends with its account.
        (lambda line: None) if stop_with_stdin else tell,
        credentials,
        journal,
        standby,
        stop_with_stdin,
        replace(watching, progress_s=None) if stop_with_stdin else watching,
    )
    run_scheduler(
        runs[index],
        network,
        process,
        emulated,
        lambda: say(BEGAN) if stop_with_stdin else None,
        Course(after_round=after_round, save_every=checkpoint_every),
    )


def _tell_of(overlay: Overlay, doubts: Sequence[str], tell: Callable[[Line], None]) -> None:
    """Say where an overlay's figures come from, and which values are doubtful."""
    for sentence in overlay.provenance:
        tell(Line("overlay", sentence))
    for doubt in (*overlay.doubts, *doubts):
        tell(Line("doubt", doubt, "warning"))


def _from_file(path: Path) -> Service:
    from anabranch.group import group_file

    try:
        return group_file.load(path)
    except (TomlError, overlays.OverlayError) as error:
        raise typer.BadParameter(f"--group: {error}") from None


def _service(
    overlay: str | None,
    sites: str | None,
    route: str,
    measure: bool,
    keep_plan: bool,
    links_bps: float | None,
    pace: str | None,
    updates: int,
    model_mb: float | None,
) -> Service:
    """Return what a group is served with, as options say."""
    from anabranch.group import Service
    from anabranch.group.group_file import UNKNOWN_BPS, complete
    from anabranch.scheduler.awareness import Passive
    from anabranch.scheduler.deal import ByShare

    if overlay is not None and sites is not None:
        raise typer.BadParameter("--sites is not with --overlay, which names its sites itself")
    if overlay is None and sites is None:
        raise typer.BadParameter(
            "give a scenario's file, or --overlay FILE, or --sites NAME,NAME,... for a group"
        )
    if keep_plan and (overlay is None or measure):
        raise typer.BadParameter("--keep-plan is for --overlay, and not with --measure")
    if links_bps is not None and sites is None:
        raise typer.BadParameter("--links-bps is for --sites; an overlay's links have their rates")
    if sites is not None:
        network, measure = complete(sites.split(","), links_bps), True
    else:
        assert overlay is not None
        network = overlays.load(overlay, unknown_rate_bps=UNKNOWN_BPS if measure else None)
    planner = _value("--route", route or "packed", _GROUP_ROUTES)
    if pace is not None:
        rule = _value("--pace", pace, _PACES)
        return Service(
            network,
            planner,
            None,
            pace=rule,
            updates=updates,
            model_elements=None if model_mb is None else max(1, round(model_mb * 1e6 / 4)),
        )
    if model_mb is not None:
        raise typer.BadParameter(
            "--model-mb is for --pace; a group without one plans for the size of each exchange"
        )
    if links_bps is not None:
        return Service(network, planner, None, deal=ByShare())
    if keep_plan:
        return Service(network, planner, None)
    awareness = Passive(start="equal" if measure else "overlay")
    return Service(network, planner, awareness)


def _value(option: str, text: str, known: Mapping[str, type[_T]]) -> _T:
    """Return what KIND or KIND,KEY=VALUE,... stands for, keys as scenario files spell them."""
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


def _credentials(folder: Path | None, identity: str) -> Credentials | None:
    if folder is None:
        return None
    credentials = Credentials(folder, identity)
    try:
        credentials.check()
    except TlsError as error:
        raise typer.BadParameter(f"--tls: {error}") from None
    return credentials


def _listening(at: Address) -> None:
    say(show(at))


def _sayer(log_format: str, to: TextIO) -> Callable[[Line], None]:
    """Return what writes lines for people, or for machines that collect them."""
    if log_format not in ("auto", "text", "logfmt"):
        raise typer.BadParameter(f"--log-format {log_format}: give auto, text or logfmt")
    if log_format == "text" or (log_format == "auto" and to.isatty()):
        return lambda line: say(line.text, to)
    return lambda line: say(logfmt(line, datetime.now(UTC)), to)


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
    stop_with_stdin: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Take part in a run as one site; needs the run's token in $ANABRANCH_TOKEN."""
    from anabranch.run.worker import run_site

    insecure = insecure or tls is not None
    address = address_given(scheduler, insecure)
    for each in filter(None, (host, advertise)):
        _check_host(each, insecure)
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
        _credentials(tls, identity_of(name)),
    )


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
    """Return an address; off this machine only where that is allowed."""
    try:
        address = parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    _check_host(address[0], insecure)
    return address


def _check_host(host: str, insecure: bool) -> None:
    if not is_loopback(host) and not insecure:
        raise typer.BadParameter(
            f"{host} is off this machine, and traffic would be neither encrypted nor "
            "authenticated beyond a shared token; give --tls, or say --insecure if the network is "
            "trusted"
        )
