"""Make papers' tables and figures again: ``python -m papers netstorm/fig14``, or check them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from papers import Row


import papers
from anabranch.cli.commands import console, ending_on_interrupt, run
from anabranch.log.terminal import Table, table
from anabranch_lab.cli.runs import DataOption, EmulateOption, new_folder
from anabranch_lab.tasks.kinds import DataError
from papers import _check, _scripts
from papers._check import RESULTS
from papers._kept import Outcomes
from papers._lines import dumps


class _ReproduceByDefault(TyperGroup):
    """Commands, of which ``reproduce`` need not be named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args != ["--help"] and (not args or args[0] not in self.commands):
            args = ["reproduce", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_ReproduceByDefault,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Make papers' tables and figures again, and check those that were made.",
)


@app.command()
def reproduce(
    experiment: Annotated[
        str | None,
        typer.Argument(
            help="Such as netstorm/fig14, or netstorm for all of a paper's; with --emulate, for "
            "those that can be emulated."
        ),
    ] = None,
    list_them: Annotated[bool, typer.Option("--list", help="Say what there is.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and shorter runs.")] = False,
    seed: Annotated[int, typer.Option(help="The first that networks are drawn with.", min=0)] = 0,
    out: Annotated[
        Path,
        typer.Option("--out", help="Folder for tables, as JSON, CSV and Markdown, and scenarios."),
    ] = Path("runs"),
    jobs: Annotated[
        int | None, typer.Option(help="Simulations at once; one a core if not given.", min=1)
    ] = None,
    kept: Annotated[
        Path | None,
        typer.Option(
            "--kept",
            help="Folder where what each run came to is kept, so that a command that was cut off "
            "goes on there; another release's, or other code's, are left alone.",
            file_okay=False,
        ),
    ] = None,
    emulate: EmulateOption = False,
    data_dir: DataOption = None,
) -> None:
    """Make a paper's table or figure again, beside the paper's numbers; in simulation."""
    if experiment is None or list_them:
        for each in _scripts.EXPERIMENTS.values():
            console.print(f"{each.name}  {each.title}", soft_wrap=True)
        return
    try:
        wanted = _scripts.find(experiment)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    left_out = [each for each in wanted if emulate and not each.emulable]
    wanted = [each for each in wanted if each not in left_out]
    if not wanted:
        raise typer.BadParameter(f"{experiment} runs in simulation only; leave --emulate out")
    if left_out:
        names = ", ".join(each.name for each in left_out)
        console.print(f"left out, for they run in simulation only: {names}", soft_wrap=True)
    folder = new_folder(out, f"reproduce-{experiment.replace('/', '-')}")
    with ending_on_interrupt(), console.working("") as entitle:
        lab = papers.Lab(
            folder / "scenarios",
            quick=quick,
            seed=seed,
            jobs=jobs or os.cpu_count() or 1,
            emulate=emulate,
            data_dir=data_dir,
            kept=None if kept is None else Outcomes(kept),
            on_trial=lambda ended, of: entitle(f"{ended} of {of} runs"),
        )
        for each in wanted:
            lab.record = papers.Record()
            result = each.make(lab)
            written = papers.write_result(each, result, lab, folder)
            console.print(_side_by_side(f"{each.name}: {each.title}", result.rows))
            for note in result.notes:
                console.print(note, soft_wrap=True)
            for path in written:
                console.print(f"written: {path}", soft_wrap=True)


@app.command()
def check(
    experiments: Annotated[
        list[str] | None, typer.Argument(help="Such as netstorm/fig14, or netstorm; all if none.")
    ] = None,
    results: Annotated[
        Path, typer.Option(help="Folder of the results' JSON.", exists=True, file_okay=False)
    ] = RESULTS,
    again: Annotated[
        bool, typer.Option("--again/--not-again", help="Make each one's smallest run again.")
    ] = True,
    write: Annotated[
        bool,
        typer.Option("--write", help="Write what scripts say otherwise now of the recorded runs."),
    ] = False,
    data_dir: DataOption = None,
) -> None:
    """Compare each result with what its script says now, and make its smallest run again."""
    try:
        chosen = list(_check.documents(results, experiments or ()))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    failed = 0
    for path, document in chosen:
        said = "its script says the same"
        try:
            wrong = list(_check.differences(document))
            if wrong and write:
                path.write_text(dumps(_check.said_anew(document)) + "\n", encoding="utf-8")
                said, wrong = f"written anew, since {wrong[0]}", []
        except papers.NotRecorded as error:
            wrong = [f"not of today's settings: {error}"]
        if again and not wrong:
            try:
                done = _check.again(document, data_dir)
            except DataError as error:
                done, wrong = None, [f"{said}; not made again: {error}"]
            if done is not None:
                said += f"; made again in {done.cpu_s:.1f} s: {done.about}"
                wrong += [f"{done.about}: {each}" for each in done.differs]
        failed += bool(wrong)
        console.print(f"{path.name}: {said if not wrong else wrong[0]}", soft_wrap=True)
        for each in wrong[1:5]:
            console.print(f"  {each}", soft_wrap=True)
    if failed:
        raise typer.Exit(1)


def _side_by_side(title: str, rows: Iterable[Row]) -> Table:
    cells = [(row.what, row.paper, row.literal, row.ours, row.seeds, row.why) for row in rows]
    heads = ("", "paper", "literal", "ours", "seeds", "what differs, and why")
    return table(heads, cells, title=title)


if __name__ == "__main__":
    run(app)
