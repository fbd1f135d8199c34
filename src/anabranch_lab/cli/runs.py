"""Commands that run scenarios: demo, run, simulate, twin."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from importlib.resources import as_file, files
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from anabranch._paths import parts_of
from anabranch._text import say
from anabranch._typed_toml import tag_of
from anabranch.cli.commands import app, console, ending_on_interrupt, tell_of
from anabranch.cli.options import MetricsOption, metrics_at
from anabranch.log import LogError, fingerprint, read_events
from anabranch.net.errors import RunAborted
from anabranch.overlay import Overlay
from anabranch_lab.emulate import check_emulable
from anabranch_lab.reports import tables
from anabranch_lab.reports.runs import name_apart, pair_up, read_run, read_runs
from anabranch_lab.run import scenario as scenarios
from anabranch_lab.run.checkpoints import CheckpointError, plan_course
from anabranch_lab.run.checkpoints import find as find_checkpoint
from anabranch_lab.run.launch import run_locally
from anabranch_lab.run.progress import LiveRun, eta_text, loss_text
from anabranch_lab.run.scenario import Scenario, ScenarioError

OutOption = Annotated[Path, typer.Option("--out", help="Folder for the logs and the report.")]
DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", help="Where the official data-set files are.", exists=True, file_okay=False
    ),
]


@app.command()
def demo(out: OutOption = Path("runs")) -> None:
    """Train on nine sites of this machine, over packed trees, FAPT's and a star; write a report."""
    with ExitStack() as stack:
        path = stack.enter_context(as_file(files("anabranch_lab.run") / "demo.toml"))
        _run([path], new_folder(out, "demo"), None)


ScenariosArgument = Annotated[
    list[Path], typer.Argument(help="Scenario files; each of their routes is a run.")
]


EmulateOption = Annotated[
    bool,
    typer.Option(
        "--emulate",
        help="Let the kernel hold the links, between network namespaces: with packets that are "
        "delayed and lost. Needs root and iproute2.",
    ),
]


SaveOption = Annotated[
    int | None,
    typer.Option(
        "--checkpoint-every", help="Rounds between two checkpoints; none if not given.", min=1
    ),
]


ResumeOption = Annotated[
    Path | None,
    typer.Option(
        "--resume",
        help="Go on from the newest checkpoint of a run, or of one of its rounds: its folder or "
        "its log. Of several routes, only the one that was saved is run.",
    ),
]


JournalOption = Annotated[
    bool,
    typer.Option(
        "--journal",
        help="Keep a journal beside each log, and start a scheduler again that is killed: the run "
        "goes on, and the log with -2 in its name has the rest.",
    ),
]


@app.command()
def run(
    scenario: ScenariosArgument,
    out: OutOption = Path("runs"),
    data_dir: DataOption = None,
    emulate: EmulateOption = False,
    checkpoint_every: SaveOption = None,
    resume: ResumeOption = None,
    metrics: MetricsOption = None,
    journal: JournalOption = False,
) -> None:
    """Run scenarios on this machine: real processes and connections, links held to their rates."""
    if metrics is not None:
        if metrics_at(metrics)[1] == 0:
            raise typer.BadParameter(f"--metrics {metrics}: give a port, so that they are found")
        if emulate:
            raise typer.BadParameter(
                "--metrics: with --emulate the scheduler is in a network namespace of its own, "
                "which Prometheus cannot reach; leave one out"
            )
    folder = new_folder(out, scenario[0].stem)
    _run(scenario, folder, data_dir, emulate, checkpoint_every, resume, metrics, journal)


@app.command()
def simulate(
    scenario: ScenariosArgument,
    out: OutOption = Path("runs"),
    data_dir: DataOption = None,
    checkpoint_every: SaveOption = None,
    resume: ResumeOption = None,
) -> None:
    """Run scenarios in virtual time: one process, modelled links and computing, scripted faults."""
    loaded = [_Loaded(path) for path in scenario]
    for each in loaded:
        each.check_simulable()
        if each.scenario.simulation.tensors != "sizes":
            each.check_data(data_dir)
    folder = new_folder(out, scenario[0].stem)
    runs, saved = _resumed(_planned(loaded, folder), checkpoint_every, resume)
    execute = partial(_simulate, save_every=checkpoint_every, resume=saved)
    for log in _run_all(runs, execute, data_dir, folder):
        console.print(f"{log}: event log {fingerprint(log)}", soft_wrap=True)


@app.command()
def twin(
    scenario: ScenariosArgument,
    out: OutOption = Path("runs"),
    data_dir: DataOption = None,
    emulate: EmulateOption = False,
) -> None:
    """Run scenarios in both worlds, and compare: does the simulation tell the truth?"""
    from anabranch_lab.reports.report import write_twin_report

    loaded = [_Loaded(path) for path in scenario]
    for each in loaded:
        each.check_simulable()
        each.check_real(emulate)
        each.check_twin()
        each.check_data(data_dir)
    folder = new_folder(out, scenario[0].stem)
    pairs = []
    for simulated, measured in zip(
        _planned(loaded, folder / "simulated"), _planned(loaded, folder / "measured"), strict=True
    ):
        simulated.log.parent.mkdir(parents=True, exist_ok=True)
        measured.log.parent.mkdir(parents=True, exist_ok=True)
        # Real processes on one machine have their scheduler on that machine too.
        _simulate(replace(simulated, scenario=simulated.scenario.beside_its_scheduler()), data_dir)
        _run_locally(measured, data_dir, emulate)
        pairs.append((simulated.log, measured.log))
    rows = [
        twin.row for twin in pair_up((read_run(ours), read_run(theirs)) for ours, theirs in pairs)
    ]
    console.print(tables.twins(rows).for_terminal(tables.twin_errors(rows)))
    report_path = folder / "report.html"
    write_twin_report(pairs, report_path)
    console.print(f"report: {report_path}", soft_wrap=True)


def new_folder(out: Path, stem: str) -> Path:
    """Return a new path of a folder for logs and a report, named after the run and the time.

    Raises:
        LogError: ``out`` is a file.
        ModuleNotFoundError: a package is missing that the report needs after the runs.
    """
    for library in ("plotly", "jinja2"):
        if find_spec(library) is None:
            raise ModuleNotFoundError(f"No module named {library!r}", name=library)
    if out.exists() and not out.is_dir():
        raise LogError(f"--out {out} is no folder; name one, or a new one")
    stamp = f"{stem}-{datetime.now():%Y%m%d-%H%M%S}"
    return next(
        folder
        for number in count(1)
        if not (folder := out / (stamp if number == 1 else f"{stamp}-{number}")).exists()
    )


def _run(
    paths: list[Path],
    folder: Path,
    data_dir: Path | None,
    emulate: bool = False,
    save_every: int | None = None,
    resume: Path | None = None,
    metrics: str | None = None,
    journal: bool = False,
) -> None:
    loaded = [_Loaded(path) for path in paths]  # all are checked before any runs
    for each in loaded:
        each.check_real(emulate)
        if journal:
            each.check_journal()
        each.check_data(data_dir)
    runs, saved = _resumed(_planned(loaded, folder), save_every, resume)
    execute = partial(
        _run_locally,
        emulate=emulate,
        save_every=save_every,
        resume=saved,
        metrics=metrics,
        journal=journal,
    )
    _run_all(runs, execute, data_dir, folder)


def _resumed(
    runs: list[_Run], save_every: int | None, resume: Path | None
) -> tuple[list[_Run], Path | None]:
    """Return the runs to make, and the folder of the round to resume after.

    Raises:
        ScenarioError: a run cannot be saved or resumed.
        CheckpointError: a run cannot resume from there.
    """
    saved = None if resume is None else find_checkpoint(resume)
    if saved is not None and len(runs) > 1:
        runs = [run for run in runs if run.log.stem == saved.parent.stem]
        if not runs:
            raise CheckpointError(
                f"{saved} is of {saved.parent.stem}, which is none of these runs; give the "
                "scenario of that one"
            )
    for run in runs:
        try:
            plan_course(run.scenario, run.overlay, save_every, saved)
        except ScenarioError as error:
            raise ScenarioError(f"{run.path}: {error}") from None
    return runs, saved


def _run_all(
    runs: Sequence[_Run],
    execute: Callable[[_Run, Path | None], None],
    data_dir: Path | None,
    folder: Path,
) -> list[Path]:
    """Run one after another until one fails; report those that ran, and return their logs.

    Raises:
        RunAborted: a run failed; its log is in the report too.
    """
    folder.mkdir(parents=True)
    for run in runs:
        try:
            execute(run, data_dir)
        except RunAborted as error:
            with suppress(OSError, LogError):  # a full disk has no room for a report either
                _report(runs, folder)
            raise RunAborted(f"{run.title}: {error}") from None
    return _report(runs, folder)


def _report(runs: Sequence[_Run], folder: Path) -> list[Path]:
    """Report the runs that ran, and return their logs."""
    from anabranch_lab.reports.report import write_report

    found = [log for run in runs for log in parts_of(run.log)]
    logs = [log for log in found if any(read_events(log))]
    if logs:
        print_results(logs)
        report_path = folder / "report.html"
        write_report(logs, report_path)
        console.print(f"report: {report_path}", soft_wrap=True)
    return logs


def print_results(logs: Sequence[Path]) -> None:
    """Print tables of the runs' results, and problems of each run."""
    runs = name_apart(read_runs(logs))
    for table in (tables.paces(runs), tables.forests(runs), tables.results(runs)):
        if table.rows:
            console.print(table.for_terminal())
    for run in runs:
        if run.summary.reason is not None:
            console.print(f"{run.name} ended: {run.summary.reason}", soft_wrap=True)
        if run.summary.started.shaped and not run.summary.links_held:
            console.print(f"{run.name}: {run.problems()[-1]}", soft_wrap=True)


@dataclass(frozen=True, slots=True)
class _Run:
    """One route of one scenario, and the path of its log."""

    path: Path
    route: int
    scenario: Scenario
    overlay: Overlay
    log: Path

    @property
    def title(self) -> str:
        """The run's title in the terminal."""
        label = self.scenario.label or self.path.stem
        routes = tag_of(self.scenario.routes[0])
        return f"{label}, {routes} ({self.overlay.size} sites)"


class _Loaded:
    """A scenario file, read and checked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.scenario, self.overlay = scenarios.load(path)
        tell_of(self.overlay)
        for doubt in self.scenario.doubts:
            say(f"warning: {path}: {doubt}", sys.stderr)

    def check_real(self, emulate: bool) -> None:
        """Check that it runs with real processes."""
        self._check(scenarios.check_real, self.scenario, self.overlay, emulate)
        if emulate:
            check_emulable(self.overlay)

    def check_journal(self) -> None:
        """Check that it can outlive its scheduler."""
        from anabranch_lab.run.control import check_journal

        self._check(check_journal, self.scenario)

    def check_simulable(self) -> None:
        """Check that it runs in simulation."""
        self._check(scenarios.check_simulable, self.scenario)
        if keys := ", ".join(scenarios.without_numbers(self.scenario)):
            where = f"{self.path}: simulation.tensors"
            say(f'warning: {where}: "sizes" trains nothing; unused: {keys}', sys.stderr)

    def check_data(self, data_dir: Path | None) -> None:
        """Check that its data can be loaded, dealt, and used by its model."""
        from anabranch_lab.run.work import check_data

        self._check(check_data, self.scenario, self.overlay, data_dir)

    def check_twin(self) -> None:
        """Check that it means the same in both worlds."""
        self._check(scenarios.check_twin, self.scenario)

    def _check(self, check: Callable[..., None], *arguments: object) -> None:
        try:
            check(*arguments)
        except ScenarioError as error:
            raise ScenarioError(f"{self.path}: {error}") from None


def _planned(loaded: Sequence[_Loaded], folder: Path) -> list[_Run]:
    """Return the scenarios' runs, one for each route, whose logs will be in a folder."""
    routes = [
        (each, index, scenario)
        for each in loaded
        for index, scenario in enumerate(each.scenario.runs())
    ]
    return [
        _Run(
            each.path,
            index,
            scenario,
            each.overlay,
            folder / f"{number}-{each.path.stem}-{tag_of(scenario.routes[0])}.db",
        )
        for number, (each, index, scenario) in enumerate(routes, 1)
    ]


def _simulate(
    run: _Run, data_dir: Path | None, save_every: int | None = None, resume: Path | None = None
) -> None:
    from anabranch_lab.run.simulate import simulate

    rounds, title, began_s = run.scenario.stop.rounds, f"{run.title}, simulated", monotonic()
    with ending_on_interrupt(), console.working(title) as entitle:

        def show(round: int, loss: float | None) -> None:
            each_s = (monotonic() - began_s) / max(round - 1, 1)
            left = eta_text((rounds - round + 1) * each_s if round > 1 else None)
            said = [f"{title}: round {round} of {rounds}{loss_text(loss)}", left]
            entitle(", ".join(filter(None, said)))

        unused = simulate(run.scenario, run.overlay, run.log, data_dir, show, save_every, resume)
    for label in unused:
        console.print(f"{run.title}: the run ended before this fault: {label}", soft_wrap=True)


def _run_locally(
    run: _Run,
    data_dir: Path | None,
    emulate: bool,
    save_every: int | None = None,
    resume: Path | None = None,
    metrics: str | None = None,
    journal: bool = False,
) -> None:
    if not console.is_terminal:
        console.print(f"{run.title}, {run.scenario.stop.rounds} rounds")
    with ending_on_interrupt(), LiveRun(run.title, run.log, console) as live:
        run_locally(
            run.path,
            run.route,
            run.overlay,
            run.log,
            data_dir,
            live.tick,
            emulate=emulate,
            seed=run.scenario.seed,
            save_every=save_every,
            resume=resume,
            metrics=metrics,
            journal=run.log.with_suffix(".journal") if journal else None,
        )
