"""``anabranch scheduler``: a group's scheduler."""

from __future__ import annotations

import sys
import typing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anabranch import overlay as overlays
from anabranch._typed_toml import TomlError, listed, tag_of
from anabranch.cli.commands import app
from anabranch.cli.options import (
    ROUTES,
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
    check_standby,
    credentials,
    listening,
    sayer,
    tell_doubts,
    token_given,
    value_of,
    watching,
)
from anabranch.net.silence import STILLNESS_S
from anabranch.net.tls import SCHEDULER
from anabranch.pace import PACES
from anabranch.scheduler.watching import PROGRESS_S

if TYPE_CHECKING:
    from anabranch.group import Service

OnError = typing.Literal["lose", "abort"]
OnLoss = typing.Literal["complete", "retry", "abort"]
_PACES = {tag_of(pace): pace for pace in PACES}


@app.command()
def scheduler(
    log: Annotated[Path | None, typer.Option(help="The event log to create.")] = None,
    group: Annotated[
        Path | None,
        typer.Option(
            help="A TOML file of the group's settings, with a scenario's keys, instead of options."
        ),
    ] = None,
    overlay: Annotated[
        str | None,
        typer.Option(help="A built-in overlay or a file; links may lack rates."),
    ] = None,
    sites: Annotated[
        str | None,
        typer.Option(help="Without an overlay: names, as paris,austin; links are measured."),
    ] = None,
    route: Annotated[
        str,
        typer.Option(
            help=f"Where aggregates travel, {listed(ROUTES)}; packed if not given. With "
            "parameters, as fapt,roots=3."
        ),
    ] = "",
    measure: Annotated[
        bool,
        typer.Option(help="Know no rates: a burst over each link measures it as the group begins."),
    ] = False,
    keep_plan: Annotated[
        bool,
        typer.Option(
            "--keep-plan",
            help="With --overlay: trust its rates; measure no link, and keep the first plan.",
        ),
    ] = False,
    links_bps: Annotated[
        float | None,
        typer.Option(
            help="With --sites: the rate of every link; links are not measured then.",
            min=1.0,
        ),
    ] = None,
    pace: Annotated[
        str | None,
        typer.Option(
            help=f"The pace of a group whose roots serve the model: {listed(_PACES)}; with "
            "parameters, as ssp,lead=3."
        ),
    ] = None,
    updates: Annotated[
        int, typer.Option(help="With --pace: updates that each worker makes.", min=1)
    ] = 1,
    model_mb: Annotated[
        float | None,
        typer.Option(
            help="With --pace: the model's size in megabytes, for the plan of its route.",
            min=1e-6,
        ),
    ] = None,
    on_loss: Annotated[
        str,
        typer.Option(
            help="When a site or link is lost: complete the group's exchanges among the other "
            "sites, retry them from the beginning, or abort the group."
        ),
    ] = "complete",
    on_error: Annotated[
        str,
        typer.Option(
            help="When an exception, or Ctrl-C, ends a site's part: lose that site, as if it had "
            "died, or abort the group."
        ),
    ] = "lose",
    least_sites: Annotated[
        int, typer.Option(help="With fewer sites left, a group ends.", min=1)
    ] = 2,
    begin_with: Annotated[
        int | None,
        typer.Option(
            help="How many sites a group begins with, all if not given; others join later.", min=1
        ),
    ] = None,
    journal: JournalOption = None,
    standby: StandbyOption = False,
    away: Annotated[
        float | None,
        typer.Option(
            help="With --journal: at least how many seconds a group's sites wait for a restart of "
            "a lost scheduler; 60 if not given.",
            min=0.1,
        ),
    ] = None,
    stillness: Annotated[
        float,
        typer.Option(
            help="At least how many seconds a group's site may be silent while its machine "
            "answers, as when one call holds its interpreter's lock.",
            min=0.1,
        ),
    ] = STILLNESS_S,
    silence: Annotated[
        float | None,
        typer.Option(
            help="At least how many seconds of silence lose a site or link of a group; 2 if not "
            "given, where the others continue without it.",
            min=0.5,
        ),
    ] = None,
    listen: ListenOption = "127.0.0.1:0",
    progress_every: ProgressOption = PROGRESS_S,
    metrics: MetricsOption = None,
    log_format: FormatOption = "auto",
    stop_with_stdin: StdinOption = False,
    insecure: InsecureOption = False,
    tls: TlsOption = None,
) -> None:
    """Run a group's scheduler; processes join it with `anabranch.join(...)`.

    The token is $ANABRANCH_TOKEN.
    """
    address = address_given(listen, insecure or tls is not None)
    check_standby(standby, journal, address)
    if group is None:
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
        if away is not None:
            service = replace(service, away_s=away)
    else:
        said = (overlay, sites, route, measure, keep_plan, links_bps, pace, model_mb)
        usual = updates, on_loss, on_error, least_sites, begin_with, silence, away, stillness
        if any(said) or usual != (1, "complete", "lose", 2, None, None, None, STILLNESS_S):
            raise typer.BadParameter(
                f"--group {group}: leave out the options that a group file has keys for"
            )
        service = _from_file(group)
    asked = "--begin-with" if group is None else f"--group {group}: begin_with"
    begin_with = service.begin_with
    if begin_with is not None and service.on_loss == "abort":
        raise typer.BadParameter(f"{asked} is not for a group that a loss ends (abort)")
    if begin_with is not None and begin_with > service.overlay.size:
        raise typer.BadParameter(
            f"{asked} {begin_with}: the overlay has {service.overlay.size} sites"
        )
    if away is not None and journal is None:
        raise typer.BadParameter(
            f"--away {away:g}: without --journal FILE a scheduler that is started again does not "
            "find its group"
        )
    if journal is not None and not service.repairs:
        raise typer.BadParameter("--journal is not for a group with --on-loss abort or --pace")
    if journal is not None and service.gossip is not None:
        from anabranch.group.checks import NO_JOURNAL

        raise typer.BadParameter(f"--{NO_JOURNAL}")
    tell = sayer(log_format, sys.stderr)
    tell_doubts(service.overlay, (), tell)
    from anabranch.group.serve import Process, serve

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
        watching(progress_every, metrics),
    )
    serve(service.listening_at(address), process)


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
    """Return a group's settings from the options."""
    from anabranch.group import Service
    from anabranch.group.group_file import UNKNOWN_BPS, complete
    from anabranch.scheduler.awareness import Passive
    from anabranch.scheduler.deal import ByShare

    if overlay is not None and sites is not None:
        raise typer.BadParameter("--sites is not for --overlay, whose file names the sites")
    if overlay is None and sites is None:
        raise typer.BadParameter(
            "give --overlay FILE, --sites NAME,NAME,... or --group FILE; a scenario's scheduler is "
            "`anabranch host SCENARIO`"
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
    planner = value_of("--route", route or "packed", ROUTES)
    if pace is not None:
        rule = value_of("--pace", pace, _PACES)
        return Service(
            network,
            planner,
            None,
            pace=rule,
            updates=updates,
            model_elements=None if model_mb is None else max(1, round(model_mb * 1e6 / 4)),
        )
    if updates != 1:
        raise typer.BadParameter(
            "--updates is for --pace; a group without one ends when its sites leave"
        )
    if model_mb is not None:
        raise typer.BadParameter(
            "--model-mb is for --pace; a group without one plans for the size of each exchange"
        )
    if links_bps is not None:
        return Service(network, planner, None, deal=ByShare())
    if keep_plan:
        return Service(network, planner, None)
    awareness = Passive(start="burst" if measure else "overlay")
    return Service(network, planner, awareness)
