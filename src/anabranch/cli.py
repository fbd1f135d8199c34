"""The command line. Each command reads its input, calls the rooms that do the work, and prints.

Exit codes: 0 all went well, 1 a run failed, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from importlib.resources import as_file, files
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.tree import Tree as TextTree

from anabranch import __version__
from anabranch import overlay as overlays
from anabranch import plan as plans
from anabranch._typed_toml import listed, nearest, tag_of
from anabranch.emulate import EmulationError, check_emulable
from anabranch.net.errors import NetError, RunAborted
from anabranch.net.network import Address
from anabranch.overlay import Overlay, OverlayError, UniformRates
from anabranch.pace import PACES
from anabranch.plan import PLANNERS, AnyPlanner, Fapt, FromFile, Plan, PlanError, Prediction
from anabranch.record import LogError, fingerprint, read_events, tables, units
from anabranch.record.runs import name_apart, pair_up, read_run
from anabranch.run import scenario as scenarios
from anabranch.run.checkpoints import CheckpointError, Course, Files, plan_course
from anabranch.run.checkpoints import find as find_checkpoint
from anabranch.run.launch import BEGAN, TOKEN_VARIABLE, run_locally
from anabranch.run.progress import LiveRun
from anabranch.run.replay import ReplayError
from anabranch.run.replay import replay as replay_log
from anabranch.run.scenario import Scenario, ScenarioError

if TYPE_CHECKING:
    from anabranch.experiments import Row
    from anabranch.group import Service

_T = TypeVar("_T")

app = typer.Typer(
    name="anabranch",
    help="Train one PyTorch model across sites joined by slow, uneven, changing networks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_console = Console() if sys.stdout.isatty() else Console(width=120)  # files do not wrap
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_ALEXNET_MB = 244.403
_UNKNOWN_BPS = 100e6  # taken for every link's rate until it is measured
_PACES = {tag_of(pace): pace for pace in PACES}
_ROUTES = {tag_of(planner): planner for planner in PLANNERS if not issubclass(planner, FromFile)}


def main() -> NoReturn:
    """Run the command line."""
    try:
        app()
    except (
        OverlayError,
        PlanError,
        ScenarioError,
        LogError,
        EmulationError,
        CheckpointError,
    ) as error:
        _fail(error, 2)
    except (NetError, OSError, ValueError, ArithmeticError) as error:
        _fail(error, 1)
    sys.exit(0)


def _fail(error: Exception, code: int) -> NoReturn:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(code)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"anabranch {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which release.")
    ] = False,
) -> None:
    pass


OutOption = Annotated[Path, typer.Option("--out", help="Folder for the logs and the report.")]
DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", help="Where the official data-set files are.", exists=True, file_okay=False
    ),
]


# --- demo and run ------------------------------------------------------------------------------


@app.command()
def demo(out: OutOption = Path("runs")) -> None:
    """Train on nine sites of this machine, over packed trees, FAPT's and a star; write a report."""
    with ExitStack() as stack:
        path = stack.enter_context(as_file(files("anabranch.run") / "demo.toml"))
        _run([path], _folder(out, "demo"), None)


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


@app.command()
def run(
    scenario: ScenariosArgument,
    out: OutOption = Path("runs"),
    data_dir: DataOption = None,
    emulate: EmulateOption = False,
    checkpoint_every: SaveOption = None,
    resume: ResumeOption = None,
) -> None:
    """Run scenarios on this machine: real processes, real TCP, links held to their rates."""
    folder = _folder(out, scenario[0].stem)
    _run(scenario, folder, data_dir, emulate, checkpoint_every, resume)


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
    folder = _folder(out, scenario[0].stem)
    runs, saved = _resumed(_planned(loaded, folder), checkpoint_every, resume)
    execute = partial(_simulate, save_every=checkpoint_every, resume=saved)
    for log in _run_all(runs, execute, data_dir, folder):
        _console.print(f"{log}: event log {fingerprint(log)}", soft_wrap=True)


@app.command()
def twin(
    scenario: ScenariosArgument,
    out: OutOption = Path("runs"),
    data_dir: DataOption = None,
    emulate: EmulateOption = False,
) -> None:
    """Run scenarios in both worlds, and compare: does the simulation tell the truth?"""
    from anabranch.record.report import write_twin_report

    loaded = [_Loaded(path) for path in scenario]
    for each in loaded:
        each.check_simulable()
        each.check_real(emulate)
        each.check_twin()
    folder = _folder(out, scenario[0].stem)
    pairs = []
    for simulated, measured in zip(
        _planned(loaded, folder / "simulated"), _planned(loaded, folder / "measured"), strict=True
    ):
        simulated.log.parent.mkdir(parents=True, exist_ok=True)
        measured.log.parent.mkdir(parents=True, exist_ok=True)
        _simulate(simulated, data_dir)
        _run_locally(measured, data_dir, emulate)
        pairs.append((simulated.log, measured.log))
    rows = [
        twin.row for twin in pair_up((read_run(ours), read_run(theirs)) for ours, theirs in pairs)
    ]
    _console.print(tables.twins(rows).for_terminal(tables.twin_errors(rows)))
    report_path = folder / "report.html"
    write_twin_report(pairs, report_path)
    _console.print(f"report: {report_path}", soft_wrap=True)


def _folder(out: Path, stem: str) -> Path:
    """Return a folder that is not there yet, named after what runs and the present second."""
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
) -> None:
    loaded = [_Loaded(path) for path in paths]  # complains before anything runs
    for each in loaded:
        each.check_real(emulate)
    runs, saved = _resumed(_planned(loaded, folder), save_every, resume)
    execute = partial(_run_locally, emulate=emulate, save_every=save_every, resume=saved)
    _run_all(runs, execute, data_dir, folder)


def _resumed(
    runs: list[_Run], save_every: int | None, resume: Path | None
) -> tuple[list[_Run], Path | None]:
    """Return which runs are to be made, and the folder of the round to go on after.

    Raises:
        ScenarioError: a run cannot be saved or resumed.
        CheckpointError: a run cannot go on from there.
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
    from anabranch.record.report import write_report

    folder.mkdir(parents=True)
    failure: RunAborted | None = None
    for run in runs:
        try:
            execute(run, data_dir)
        except RunAborted as error:
            failure = RunAborted(f"{run.title}: {error}")
            break
    logs = [run.log for run in runs if run.log.exists() and any(read_events(run.log))]
    if logs:
        _print_results(logs)
        report_path = folder / "report.html"
        write_report(logs, report_path)
        _console.print(f"report: {report_path}", soft_wrap=True)
    if failure is not None:
        raise failure
    return logs


def _print_results(logs: Sequence[Path]) -> None:
    runs = name_apart([read_run(log) for log in logs])
    for table in (tables.paces(runs), tables.results(runs)):
        if table.rows:
            _console.print(table.for_terminal())


@dataclass(frozen=True, slots=True)
class _Run:
    """One route of one scenario, and where its log goes."""

    path: Path
    route: int
    scenario: Scenario
    overlay: Overlay
    log: Path

    @property
    def title(self) -> str:
        """What it is called while it runs."""
        label = self.scenario.label or self.path.stem
        routes = tag_of(self.scenario.routes[0])
        return f"{label}, {routes} ({self.overlay.size} sites)"


class _Loaded:
    """A scenario file, read and checked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.scenario, self.overlay = scenarios.load(path)

    def check_real(self, emulate: bool) -> None:
        """Check that it runs with real processes."""
        self._check(scenarios.check_real, self.scenario, self.overlay, emulate)
        if emulate:
            check_emulable(self.overlay)

    def check_simulable(self) -> None:
        """Check that it runs in simulation."""
        self._check(scenarios.check_simulable, self.scenario)

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
    from anabranch.run.simulate import simulate

    rounds = run.scenario.stop.rounds
    with _ending_on_interrupt(), _console.status(f"{run.title}, simulated") as status:
        unused = simulate(
            run.scenario,
            run.overlay,
            run.log,
            data_dir,
            lambda round: status.update(f"{run.title}, simulated: round {round} of {rounds}"),
            save_every,
            resume,
        )
    for label in unused:
        _console.print(f"{run.title}: the run ended before this fault: {label}", soft_wrap=True)


def _run_locally(
    run: _Run,
    data_dir: Path | None,
    emulate: bool,
    save_every: int | None = None,
    resume: Path | None = None,
) -> None:
    if not _console.is_terminal:
        _console.print(f"{run.title}, {run.scenario.stop.rounds} rounds")
    with _ending_on_interrupt(), LiveRun(run.title, run.log, _console) as live:
        run_locally(
            *(run.path, run.route, run.overlay, run.log, data_dir, live.tick),
            emulate=emulate,
            seed=run.scenario.seed,
            save_every=save_every,
            resume=resume,
        )


@contextmanager
def _ending_on_interrupt() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end what the block does in good order, and then this command."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        raise typer.Exit(130) from None


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


# --- plan --------------------------------------------------------------------------------------


@app.command()
def plan(
    overlay: Annotated[str, typer.Argument(help="A built-in overlay's name, or a file.")],
    roots: Annotated[
        int | None, typer.Option(help="Roots of the FAPT; all sites if not given.", min=1)
    ] = None,
    size_mb: Annotated[
        float,
        typer.Option("--size-mb", help="Buffer in megabytes; AlexNet's if not given.", min=1e-6),
    ] = _ALEXNET_MB,
    chunk_elements: Annotated[int, typer.Option(help="The most elements of a chunk.", min=1)] = 1
    << 18,
    rate: Annotated[
        str | None,
        typer.Option(
            help="For graph files without capacities: bit/s, as 100e6, or a range drawn per "
            "direction, as 20e6..155e6."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of rates drawn from a range.")] = 0,
    default_latency_s: Annotated[
        float | None, typer.Option(help="For graph files without positions: seconds one way.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Also draw the plans into this page.")] = None,
    route: Annotated[
        str | None,
        typer.Option(
            help=f"Whose trees to draw, {listed(_ROUTES)}; packed if not given, or fapt where "
            "--roots is."
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Write that plan to this file, for scenarios with route.kind = file."),
    ] = None,
) -> None:
    """Plan trees for an overlay: draw them, predict the round, and compare with the limit."""
    network = overlays.load(overlay, _rate(rate, seed), default_latency_s=default_latency_s)
    route = route or ("packed" if roots is None else "fapt")
    if route not in _ROUTES:
        near = nearest(route, _ROUTES) or f"give one of {listed(_ROUTES)}"
        raise typer.BadParameter(f"--route {route}: no such route; {near}")
    planners = list(_planners(network.size if roots is None else roots))
    planned = [each.plan(network) for each in planners]
    by_kind = {tag_of(each): found for each, found in zip(planners, planned, strict=True)}
    chosen = by_kind[route]
    size_bytes = size_mb * 1e6
    limit_s = plans.limit_s(network, size_bytes)
    _console.print(
        f"{network.name}: {network.size} sites, {len(network.links)} directed links; "
        f"{units.size(size_bytes)} in chunks of {units.size(4 * chunk_elements)}"
    )
    _console.print(_predictions(network, planned, size_bytes, 4 * chunk_elements, limit_s))
    _console.print(
        f"physical limit: {units.seconds(limit_s)} a round, no plan on these links is faster"
    )
    _console.print(f"{chosen.label}:")
    for tree in _draw(network, chosen):
        _console.print(tree)
    if save is not None:
        save.write_text(f"{plans.dumps(chosen)}\n", encoding="utf-8")
        _console.print(f"saved: {save}", soft_wrap=True)
    if html is not None:
        from anabranch.record.report import write_plan_page

        write_plan_page(network, planned, html)
        _console.print(f"drawn: {html}", soft_wrap=True)


def _planners(roots: int) -> Iterator[AnyPlanner]:
    """Yield a planner of each kind; FAPT with one root, and then with so many."""
    for planner in _ROUTES.values():
        if planner is Fapt:
            yield from (Fapt(roots=count) for count in sorted({1, roots}))
        else:
            yield planner()


def _rate(text: str | None, seed: int) -> float | UniformRates | None:
    if text is None:
        return None
    try:
        low, dots, high = text.partition("..")
        return UniformRates(float(low), float(high), seed) if dots else float(low)
    except ValueError as error:
        raise typer.BadParameter(f"--rate {text}: give bit/s, or low..high ({error})") from None


def _predictions(
    network: Overlay, planned: list[Plan], size_bytes: float, chunk_bytes: float, limit_s: float
) -> Table:
    table = Table()
    for heading in ("route", "round", "speed-up", "of the limit", "paper's metric", "busiest link"):
        table.add_column(heading, justify="left" if heading in ("route",) else "right")
    first_s: float | None = None
    for each in planned:
        predicted = plans.predict(each, network, size_bytes, chunk_bytes=chunk_bytes)
        first_s = first_s or predicted.contention_s
        table.add_row(
            each.label,
            units.seconds(predicted.contention_s),
            units.times(first_s / predicted.contention_s if first_s else None),
            units.percent(limit_s / predicted.contention_s if first_s else None),
            units.seconds(predicted.paper_s),
            _bottleneck(network, predicted),
        )
    return table


def _bottleneck(network: Overlay, predicted: Prediction) -> str:
    if predicted.bottleneck_port is not None:
        site, way = predicted.bottleneck_port
        return f"{network.sites[site].name}, {way}"
    if predicted.bottleneck is not None:
        return "->".join(network.sites[site].name for site in predicted.bottleneck)
    return ""


def _draw(network: Overlay, planned: Plan) -> list[TextTree]:
    drawn = []
    for tree in planned.trees:
        mirrored = tree.up == tree.down
        ways = (("", tree.up),) if mirrored else ((" up", tree.up), (" down", tree.down))
        for way, parents in ways:
            title = f"[bold]{network.sites[tree.root].name}[/bold]{way}, share {tree.share:.1%}"
            branches = {tree.root: TextTree(title)}
            children = tree.children(parents)
            queue = [tree.root]
            while queue:
                site = queue.pop(0)
                for child in children[site]:
                    hop = (child, site) if way != " down" else (site, child)
                    path = planned.path(*hop)
                    via = [network.sites[relay].name for relay in path[1:-1]]
                    text = network.sites[child].name + (f" via {', '.join(via)}" if via else "")
                    branches[child] = branches[site].add(text)
                    queue.append(child)
            drawn.append(branches[tree.root])
    return drawn


# --- reproduce ---------------------------------------------------------------------------------


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
        Path, typer.Option("--out", help="Folder for tables, as JSON and CSV, and scenarios.")
    ] = Path("runs"),
    jobs: Annotated[
        int | None, typer.Option(help="Simulations at once; one a core if not given.", min=1)
    ] = None,
    emulate: EmulateOption = False,
) -> None:
    """Make a paper's table or figure again, beside the paper's numbers; in simulation."""
    from anabranch import experiments

    if experiment is None or list_them:
        for each in experiments.EXPERIMENTS.values():
            _console.print(f"{each.name}  {each.title}", soft_wrap=True)
        return
    try:
        wanted = experiments.find(experiment)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    left_out = [each for each in wanted if emulate and not each.emulable]
    wanted = [each for each in wanted if each not in left_out]
    if not wanted:
        raise typer.BadParameter(f"{experiment} runs in simulation only; leave --emulate out")
    if left_out:
        names = ", ".join(each.name for each in left_out)
        _console.print(f"left out, for they run in simulation only: {names}", soft_wrap=True)
    folder = _folder(out, f"reproduce-{experiment.replace('/', '-')}")
    with _ending_on_interrupt(), _console.status("") as status:
        lab = experiments.Lab(
            folder / "scenarios",
            quick=quick,
            seed=seed,
            jobs=jobs or os.cpu_count() or 1,
            emulate=emulate,
            on_trial=lambda ended, of: status.update(f"{ended} of {of} runs"),
        )
        for each in wanted:
            result = each.make(lab)
            written = experiments.write_result(
                each.name, each.title, result, folder, seed=seed, quick=quick, emulated=emulate
            )
            _console.print(_side_by_side(f"{each.name}: {each.title}", result.rows))
            for note in result.notes:
                _console.print(note, soft_wrap=True)
            for path in written:
                _console.print(f"written: {path}", soft_wrap=True)


def _side_by_side(title: str, rows: Iterable[Row]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("", "paper", "ours", "what differs, and why"):
        table.add_column(heading)
    for row in rows:
        table.add_row(row.what, row.paper, row.ours, row.why)
    return table


# --- report ------------------------------------------------------------------------------------


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Event logs, or folders of them.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
) -> None:
    """Write a report of one run, or of several side by side."""
    from anabranch.record.report import write_report

    logs = _logs(runs)
    _print_results(logs)
    write_report(logs, out)
    _console.print(f"report: {out}", soft_wrap=True)


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
        _console.print(
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


# --- one process of a run ----------------------------------------------------------------------


InsecureOption = Annotated[
    bool,
    typer.Option(
        "--insecure", help="Allow addresses off this machine: traffic is not encrypted yet."
    ),
]


@app.command()
def scheduler(
    scenario: Annotated[
        Path | None, typer.Argument(help="A scenario's file; a group of any sites if not given.")
    ] = None,
    log: Annotated[Path | None, typer.Option(help="The event log to create.")] = None,
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
            help=f"For a group: where aggregates travel, {listed(_ROUTES)}; packed if not given. "
            "With parameters, as fapt,roots=3. With a scenario: which of its routes, from 0."
        ),
    ] = "",
    measure: Annotated[
        bool,
        typer.Option(help="For a group: take all links for equal until they are measured."),
    ] = False,
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
    listen: Annotated[
        str, typer.Option(help="host:port; port 0 takes a free one.")
    ] = "127.0.0.1:0",
    stop_with_stdin: Annotated[bool, typer.Option(hidden=True)] = False,
    emulated: Annotated[bool, typer.Option(hidden=True)] = False,
    insecure: InsecureOption = False,
    checkpoint_every: SaveOption = None,
    after_round: Annotated[
        int, typer.Option(help="The round whose checkpoints every site resumes from.", min=0)
    ] = 0,
) -> None:
    """Run a scheduler, of a group or of a scenario; sites join it by address and token.

    The token is $ANABRANCH_TOKEN. A group's sites are processes that call `anabranch.join(...)`.
    """
    address = _address(listen, insecure)
    if scenario is None:
        _serve_group(_service(overlay, sites, route, measure, pace, updates), address, log)
        return
    from anabranch.run.control import run_scheduler

    for option, given in (("--overlay", overlay), ("--sites", sites), ("--pace", pace)):
        if given is not None:
            raise typer.BadParameter(f"{option} is for a group; the scenario says it itself")
    if log is None:
        raise typer.BadParameter("--log is missing: the event log of the run")
    if route and not route.isdigit():
        raise typer.BadParameter(f"--route {route}: with a scenario, give the number of its route")
    loaded, network = scenarios.load(scenario)
    runs, index = loaded.runs(), int(route or 0)
    if index >= len(runs):
        raise typer.BadParameter(f"--route {index}: {scenario} has routes 0..{len(runs) - 1}")
    run_scheduler(
        runs[index],
        network,
        _token(),
        address,
        log,
        lambda at: print(f"{at[0]}:{at[1]}", flush=True),
        stop_with_stdin,
        emulated,
        lambda: print(BEGAN, flush=True) if stop_with_stdin else None,
        Course(after_round=after_round, save_every=checkpoint_every),
    )


def _service(
    overlay: str | None,
    sites: str | None,
    route: str,
    measure: bool,
    pace: str | None,
    updates: int,
) -> Service:
    """Return what a group is served with, as options say."""
    from anabranch.group import Service
    from anabranch.scheduler.awareness import Passive

    if (overlay is None) == (sites is None):
        raise typer.BadParameter(
            "give a scenario's file, or --overlay FILE, or --sites NAME,NAME,... for a group"
        )
    if sites is not None:
        network, measure = _complete(sites), True
    else:
        assert overlay is not None
        network = overlays.load(overlay, unknown_rate_bps=_UNKNOWN_BPS if measure else None)
    planner = _value("--route", route or "packed", _ROUTES)
    if pace is not None:
        rule = _value("--pace", pace, _PACES)
        return Service(network, planner, None, adaptive=False, pace=rule, updates=updates)
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
        return msgspec.convert(table, known[kind], strict=False)
    except msgspec.ValidationError as error:
        raise typer.BadParameter(f"{option} {text}: {error}") from None


def _complete(names: str) -> Overlay:
    """Return an overlay of these sites, each linked with each; its rates say nothing."""
    sites = tuple(overlays.Site(name.strip()) for name in names.split(","))
    links = tuple(
        overlays.Link(source, target, _UNKNOWN_BPS)
        for source in range(len(sites))
        for target in range(len(sites))
        if source != target
    )
    return Overlay("group", sites, links)


def _serve_group(service: Service, address: Address, log: Path | None) -> None:
    from anabranch.group._serve import serve

    def listening(at: Address) -> None:
        names = ", ".join(site.name for site in service.overlay.sites)
        print(f"{at[0]}:{at[1]}", flush=True)
        print(f"waiting for {names}", file=sys.stderr, flush=True)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    serve(service, _token(), address, log, listening, say)


@app.command()
def site(
    name: Annotated[str, typer.Argument(help="This site's name in the overlay.")],
    scheduler: Annotated[str, typer.Option(help="The scheduler's host:port.")],
    host: Annotated[str, typer.Option(help="Where other sites reach this one.")] = "127.0.0.1",
    data_dir: DataOption = None,
    threads: Annotated[
        int | None, typer.Option(help="For torch; its own choice if not given.")
    ] = None,
    insecure: InsecureOption = False,
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
) -> None:
    """Take part in a run as one site; needs the run's token in $ANABRANCH_TOKEN."""
    from anabranch.run.worker import run_site

    address = _address(scheduler, insecure)
    _check_host(host, insecure)
    files = Files(data=data_dir, weights=weights, checkpoints=checkpoints, resume=resume)
    run_site(name, address, _token(), host, files, threads)


def _token() -> str:
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        raise typer.BadParameter(
            f"set ${TOKEN_VARIABLE} to the run's shared secret, the same for the scheduler and "
            "every site"
        )
    return token


def _address(text: str, insecure: bool) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise typer.BadParameter(f"{text!r} is not host:port")
    _check_host(host, insecure)
    return host, int(port)


def _check_host(host: str, insecure: bool) -> None:
    if host not in _LOOPBACK and not insecure:
        raise typer.BadParameter(
            f"{host} is off this machine, and traffic would be neither encrypted nor "
            "authenticated beyond a shared token; say --insecure if the network is trusted"
        )
