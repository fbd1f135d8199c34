"""Commands that read the logs of runs: report, replay, export."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from anabranch.cli.commands import app, console
from anabranch.log import LogError, read_events, summarise, units
from anabranch_lab.cli.runs import print_results
from anabranch_lab.reports import export as exporting
from anabranch_lab.run.replay import ReplayError
from anabranch_lab.run.replay import replay as replay_log


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Event logs, or folders of them.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
) -> None:
    """Write a report of one run, or of several side by side."""
    from anabranch_lab.reports.report import write_report

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
    """Replay runs' logs to fresh paces, and compare decisions; name the first that differs."""
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


@app.command()
def export(
    runs: Annotated[list[Path], typer.Argument(help="Event logs of runs, or folders of them.")],
    tensorboard: Annotated[
        Path | None,
        typer.Option(
            help="Folder for TensorBoard, a folder in it for each run; needs tensorboard."
        ),
    ] = None,
    jsonl: Annotated[
        Path | None,
        typer.Option(help="File of JSON lines for one run, with the keys of Weights & Biases."),
    ] = None,
) -> None:
    """Write the rounds of runs for other tools: losses, accuracy, times."""
    logs = _logs(runs)
    if tensorboard is None and jsonl is None:
        raise typer.BadParameter("give --tensorboard FOLDER or --jsonl FILE")
    if jsonl is not None and len(logs) > 1:
        raise typer.BadParameter(f"--jsonl takes one run, and these are {len(logs)}")
    writer_of = None if tensorboard is None else _tensorboard_writer()
    for log in logs:
        run = summarise(event for _, event in read_events(log))
        began = run.started.started_at
        began_s = None if began is None else datetime.fromisoformat(began).timestamp()
        rows = exporting.rows(run, began_s)
        if jsonl is not None:
            jsonl.write_bytes(exporting.as_json_lines(rows))
            console.print(f"{jsonl}: {units.count(len(rows), 'round')}", soft_wrap=True)
        if tensorboard is not None and writer_of is not None:
            _write_tensorboard(rows, writer_of(str(tensorboard / log.stem)))
            said = f"{tensorboard / log.stem}: {units.count(len(rows), 'round')}"
            console.print(said, soft_wrap=True)


def _tensorboard_writer() -> Callable[[str], Any]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise typer.BadParameter(
            "--tensorboard needs the package tensorboard; pip install 'anabranch[tensorboard]'"
        ) from None
    return SummaryWriter


def _write_tensorboard(rows: Iterable[exporting.Row], writer: Any) -> None:
    for row in rows:
        step, at_s = row["_step"], row.get("_timestamp", row["_runtime"])
        for key, value in row.items():
            if not key.startswith("_"):
                writer.add_scalar(key, value, step, walltime=at_s)
    writer.close()


def _logs(paths: Iterable[Path]) -> list[Path]:
    logs = [
        log for path in paths for log in (sorted(path.glob("*.db")) if path.is_dir() else [path])
    ]
    if not logs:
        raise LogError(f"no event log in {', '.join(map(str, paths))}; give what a run wrote")
    return logs
