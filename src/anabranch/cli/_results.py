"""Commands that read what runs left: report, replay."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from anabranch.cli._app import app, console
from anabranch.cli._runs import print_results
from anabranch.record import LogError, read_events, units
from anabranch.run.replay import ReplayError
from anabranch.run.replay import replay as replay_log


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Event logs, or folders of them.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
) -> None:
    """Write a report of one run, or of several side by side."""
    from anabranch.record.report import write_report

    logs = _logs(runs)
    print_results(logs)
    write_report(logs, out)
    console.print(f"report: {out}", soft_wrap=True)


@app.command()
def replay(
    runs: Annotated[
        list[Path], typer.Argument(help="Event logs of runs with servers, or folders.")
    ],
) -> None:
    """Play runs' logs to fresh paces: do they decide alike? Names the first event that differs."""
    for log in _logs(runs):
        try:
            done = replay_log(read_events(log))
        except ReplayError as error:
            raise ReplayError(f"{log}: {error}") from None
        console.print(
            f"{log}: told {units.count(done.told, 'thing')} again, {done.pace} makes the same "
            f"{units.count(done.decided, 'decision')}",
            soft_wrap=True,
        )


def _logs(paths: Iterable[Path]) -> list[Path]:
    logs = [
        log for path in paths for log in (sorted(path.glob("*.db")) if path.is_dir() else [path])
    ]
    if not logs:
        raise LogError(f"no event log in {', '.join(map(str, paths))}; give what a run wrote")
    return logs
