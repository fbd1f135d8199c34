"""Run an experiment's scenarios, and return their outcomes."""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import partial
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, median
from time import process_time
from typing import Any, TypeVar, cast

import msgspec

from anabranch import overlay as overlays
from anabranch._typed_toml import listed, nearest
from anabranch.log import Event, RunSummary, UnknownEvent, UpdateApplied, read_events, summarise
from anabranch.log.events import REACHED_BY, StepDone
from anabranch.log.pacing import Iteration
from anabranch.net.errors import RunAborted
from anabranch.overlay import Overlay
from anabranch.plan import loads as load_plan
from anabranch_lab.emulate import check_emulable
from anabranch_lab.run.launch import run_locally
from anabranch_lab.run.scenario import Scenario, check_real, loads
from anabranch_lab.run.scenario.tasks import Train
from anabranch_lab.run.simulate import simulate
from papers._record import Ran, Record, Store, default, written

Label = str | int | float
Made = TypeVar("Made")
CURVE_POINTS = 120


@dataclass(frozen=True, slots=True)
class Trial:
    """One run to make.

    Args:
        labels: distinguish it from the experiment's other runs, such as its system.
        scenario: what runs, with one route; the lab names its overlay when it writes the file.
        overlay: the network.
        loss: the bound of :attr:`Outcome.loss_fell_s`; None: no such bound.
        without: fields of the outcome that the experiment does not use and does not record.

    Raises:
        ValueError: an outcome has no such field, or each needs it.
    """

    labels: Mapping[str, Label]
    scenario: Scenario
    overlay: Overlay
    loss: float | None = None
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.without:
            if name not in _DEFAULTS:
                near = nearest(name, _DEFAULTS) or f"there are {listed(_DEFAULTS)}"
                raise ValueError(f"no outcome can be without {name!r}; {near}")


@dataclass(frozen=True, slots=True)
class WorkerOutcome:
    """The outcome of one worker of a run with servers; means over its later half of iterations.

    Args:
        iteration_s: from one permission to the next, seconds.
        blocked_s: the part of it that the worker waited for permission, seconds.
        samples: of a batch.
        compute_s: the part of it that the worker computed, seconds.
    """

    iteration_s: float
    blocked_s: float
    samples: float
    compute_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run.

    Args:
        labels: the trial's.
        scenario_file: the scenario, for ``anabranch simulate`` or ``anabranch run``.
        rounds: how many were completed.
        total_s: when the last round ended, seconds since the run began.
        round_s: seconds from one round's end to the next. For a run that fills a given time it is
            the mean. For a run with a given number of rounds it is the median; its network does not
            change.
        plans: how many came after the first.
        at_once, blocked_s, push_s, pull_s: of a run with servers, see
            :class:`anabranch.log.pacing.PaceSummary`; there ``round_s`` is the mean time of an
            iteration, and ``rounds`` is the least over the workers.
        workers: of a run with servers, by name; those that ended an iteration.
        reached_s: of a run that trains to a target accuracy: when an evaluation first reached it,
            seconds since the run began; None: never.
        reached_updates: of such a run, how many updates each worker had in the model by then, on
            average.
        accuracy: the last evaluated one; None: no evaluation.
        look_s: seconds from one evaluation to the next, on average; None: no evaluation.
        trees: of the first plan's forest; None: no forest.
        accuracy_by_site: the last one of each site, by name; see :mod:`anabranch.log.by_site`.
        missed: of a run with servers, how many updates of others an update missed, on average.
        steps: of a run that averages models, local steps of a site, on average.
        reached_by: of a run whose sites' models differ, when the target was reached, seconds, by
            the rules of :mod:`anabranch.log.target`; None: never.
        sent_bytes: of a run to a target, the payload of all links until ``reached_s``, bytes.
        sent_by: of a run with ``reached_by``, the payload of all links until the target was
            reached by each rule, bytes.
        curve: of a run with servers or ``reached_by``, or without target: (seconds, mean accuracy
            over the sites) of each evaluated step; with servers, of `CURVE_POINTS` at most.
        loss_fell_s: of a trial with a loss: when the mean loss of an iteration's steps had been
            below it in 10 iterations running, seconds; None: never.
        gaps: of a run with servers, see :class:`anabranch.log.pacing.PaceSummary`.
        aborted: why it ended early, such as a loss that is not a number; None: it did not.
    """

    labels: Mapping[str, Label]
    scenario_file: str
    rounds: int
    total_s: float
    round_s: float
    plans: int
    at_once: float | None = None
    blocked_s: float | None = None
    push_s: float | None = None
    pull_s: float | None = None
    workers: Mapping[str, WorkerOutcome] = field(default_factory=dict)
    reached_s: float | None = None
    reached_updates: float | None = None
    accuracy: float | None = None
    look_s: float | None = None
    trees: int | None = None
    accuracy_by_site: Mapping[str, float] = field(default_factory=dict)
    missed: float | None = None
    steps: float | None = None
    sent_bytes: int | None = None
    reached_by: Mapping[str, float | None] = field(default_factory=dict)
    sent_by: Mapping[str, int | None] = field(default_factory=dict)
    curve: tuple[tuple[float, float], ...] = ()
    loss_fell_s: float | None = None
    gaps: tuple[float, ...] = ()
    aborted: str | None = None


_DEFAULTS = {
    each.name: default(each)
    for each in fields(Outcome)
    if default(each) is not MISSING and each.name != "aborted"
}


class Lab:
    """Runs trials; each scenario runs once on each network, however often it is wanted.

    Args:
        folder: for the files of scenarios and overlays and, for real runs, event logs; None: no
            files, where ``kept`` has all runs.
        quick: make small experiments, which costs precision.
        seed: the first of the seeds of drawn networks.
        jobs: how many simulations run at once, each in a separate process.
        emulate: run real processes between network namespaces instead, one trial after another.
        data_dir: where data sets are.
        kept: keeps runs as they end, and has those that need not be made again. None: keep none.
        on_trial: called before trials run and as they end, with the number of ended trials and of
            all trials.

    Raises:
        ValueError: `jobs` is less than 1.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        quick: bool = False,
        seed: int = 0,
        jobs: int = 1,
        emulate: bool = False,
        data_dir: Path | None = None,
        kept: Store | None = None,
        on_trial: Callable[[int, int], None] = lambda ended, of: None,
    ) -> None:
        if jobs < 1:
            raise ValueError(f"{jobs} jobs run nothing; give at least 1")
        self.folder = folder
        self.quick = quick
        self.seed = seed
        self.emulate = emulate
        self.data_dir = data_dir
        self._jobs = jobs
        self._on_trial = on_trial
        self.record = Record()
        """All runs that were asked for."""
        self._kept = kept
        self._known: dict[str, Ran[Outcome]] = {}
        self._overlays: dict[Overlay, Path] = {}
        self._texts: dict[Overlay, str] = {}

    def seeds(self, count: int) -> range:
        """Return so many seeds from the first on; one where the lab is quick."""
        return range(self.seed, self.seed + (1 if self.quick else count))

    def measure(
        self, trials: Sequence[Trial], simulated: bool = False, may_abort: bool = False
    ) -> list[Outcome]:
        """Run trials and return their outcomes, in order.

        Args:
            trials: what to run.
            simulated: simulate them even where this lab emulates.
            may_abort: a run may end early, such as with a loss that is not a number; its outcome
                says why in ``aborted``, and has neither target nor accuracy.

        Raises:
            RunAborted: a run ended early, and may not.
            ScenarioError: a scenario cannot run in this world.
            EmulationError: this machine cannot emulate an overlay.
        """
        # The papers' models of time have no distance between scheduler and sites.
        trials = [replace(each, scenario=each.scenario.beside_its_scheduler()) for each in trials]
        emulate = self.emulate and not simulated
        settings = [self._settings(trial, emulate) for trial in trials]
        texts = [written(each, set()) for each in settings]
        wanted: dict[str, tuple[Any, Trial]] = {}
        for text, what, trial in zip(texts, settings, trials, strict=True):
            if text not in self._known:
                wanted.setdefault(text, (what, trial))
        if emulate:
            for _, trial in wanted.values():
                check_real(trial.scenario, trial.overlay, emulated=True)
                check_emulable(trial.overlay)
        files = {text: self._write(trial) for text, (_, trial) in wanted.items()}

        def know(text: str, ran: Ran[Outcome]) -> None:
            file = files[text]
            if file is not None:
                ran = Ran(replace(ran.made, scenario_file=file.name), ran.cpu_s)
            self._known[text] = ran
            self._record(*wanted[text], ran)

        left = []
        for text, (what, _) in wanted.items():
            ran = self._kept.find(what, Outcome) if self._kept else None
            if ran is None:
                left.append(text)
            else:
                know(text, ran)
        self._on_trial(0, len(left))
        made = self._run([(wanted[text][1], files[text]) for text in left], emulate)
        for ended, (text, ran) in enumerate(zip(left, made, strict=True), 1):
            know(text, ran)
            if self._kept:
                self._kept.add(wanted[text][0], ran)
            self._on_trial(ended, len(left))
        outcomes = []
        for text, what, trial in zip(texts, settings, trials, strict=True):
            ran = self._known[text]
            self._record(what, trial, ran)
            outcomes.append(replace(_used(trial, ran.made), labels=trial.labels))
        aborted = [each.aborted for each in outcomes if each.aborted is not None]
        if aborted and not may_abort:
            raise RunAborted(aborted[0])
        return outcomes

    def map(self, make: Callable[..., Made], jobs: Sequence[Any], kind: type[Made]) -> list[Made]:
        """Return a function's result for each job, several at once; it also gets ``data_dir``.

        Args:
            make: a function of a module, so that other processes can import it.
            jobs: the arguments, one for each call: structs, dataclasses, numbers and texts, also in
                tuples, that say all that the result depends on.
            kind: of the results.
        """
        settings = [(_name(make), job) for job in jobs]
        kept = self._kept
        found = [kept.find(each, kind) if kept else None for each in settings]
        left = [number for number, each in enumerate(found) if each is None]
        timed = partial(_timed, partial(make, data_dir=self.data_dir))
        self._on_trial(0, len(left))
        with ProcessPoolExecutor(self._jobs, get_context("spawn")) as pool:
            mapped = pool.map if self._jobs > 1 else map
            made = mapped(timed, [jobs[number] for number in left])
            for ended, (number, ran) in enumerate(zip(left, made, strict=True), 1):
                found[number] = ran
                if kept:
                    kept.add(settings[number], ran)
                self._on_trial(ended, len(left))
        ended_runs = cast(list[Ran[Made]], found)
        for each, run in zip(settings, ended_runs, strict=True):
            self.record.add(each, run)
        return [run.made for run in ended_runs]

    def _record(self, what: tuple[Any, ...], trial: Trial, ran: Ran[Outcome]) -> None:
        """Record what a trial uses of its run, beside what others use."""
        made = replace(_used(trial, ran.made), labels=trial.labels)
        self.record.add(what, replace(ran, made=made))

    def _settings(self, trial: Trial, emulate: bool) -> tuple[Any, ...]:
        """Return all that a trial's outcome depends on, except the code."""
        text = self._texts.get(trial.overlay)
        if text is None:
            text = self._texts[trial.overlay] = overlays.dumps(trial.overlay)
        return "emulated" if emulate else "simulated", trial.scenario, text, trial.loss

    def _run(
        self, new: Sequence[tuple[Trial, Path | None]], emulate: bool
    ) -> Iterator[Ran[Outcome]]:
        timed = partial(_timed, partial(_emulated if emulate else _simulated, self.data_dir))
        if emulate or self._jobs == 1 or len(new) < 2:
            yield from (timed(trial, file) for trial, file in new)
            return
        # Forking would copy locks that other threads hold at that moment.
        with ProcessPoolExecutor(self._jobs, get_context("spawn")) as pool:
            yield from pool.map(timed, *zip(*new, strict=True))

    def _write(self, trial: Trial) -> Path | None:
        """Write a trial's scenario to a file, and its overlay unless it has a file already."""
        if self.folder is None:
            return None
        overlay = self._overlays.get(trial.overlay)
        if overlay is None:
            overlay = _write_new(
                self.folder, f"overlay-{trial.overlay.name}", overlays.dumps(trial.overlay)
            )
            self._overlays[trial.overlay] = overlay
        name = "-".join(map(str, trial.labels.values()))
        text = scenario_toml(msgspec.structs.replace(trial.scenario, overlay=overlay.name))
        loads(text, name)  # checks that the file can be run
        return _write_new(self.folder, name, text)


def _timed(make: Callable[..., Made], *of: Any) -> Ran[Made]:
    """Return what a call makes, and the CPU time that it takes."""
    began_s = process_time()
    made = make(*of)
    return Ran(made, process_time() - began_s)


def _name(make: Callable[..., Any]) -> tuple[Any, ...]:
    """Return what distinguishes functions and their bound arguments."""
    if isinstance(make, partial):
        return _name(make.func), make.args, make.keywords
    return (f"{make.__module__}.{make.__qualname__}",)


def chosen(outcomes: Iterable[Outcome], **labels: Label) -> list[Outcome]:
    """Return the outcomes that have these labels, in order."""
    return [each for each in outcomes if labels.items() <= each.labels.items()]


def events_of(
    scenario: Scenario, overlay: Overlay, data_dir: Path | None
) -> Iterator[Event | UnknownEvent]:
    """Simulate a scenario, and yield the events of its log."""
    with tempfile.TemporaryDirectory(prefix="anabranch-") as folder:
        log = Path(folder, "run.db")
        simulate(scenario.beside_its_scheduler(), overlay, log, data_dir)
        yield from (event for _, event in read_events(log))


def seconds(outcomes: Iterable[Outcome], **labels: Label) -> float:
    """Return the seconds a round took in the runs with these labels.

    For several runs it is their mean, weighted by rounds. So for runs of equal length it is their
    total time over their total number of rounds.

    Raises:
        ValueError: no run has these labels.
    """
    found = chosen(outcomes, **labels)
    if not found:
        raise ValueError(f"no run has the labels {labels}")
    return sum(each.round_s * each.rounds for each in found) / sum(each.rounds for each in found)


def scenario_toml(scenario: Scenario) -> str:
    """Return a scenario as TOML without defaults; `anabranch_lab.run.scenario.loads` reads it."""
    defaults = {
        field.encode_name: field.default for field in msgspec.structs.fields(type(scenario))
    }
    values = {
        key: value
        for key, value in msgspec.structs.asdict(scenario).items()
        if value != defaults[key]
    }
    return "".join(f"{key} = {_toml(msgspec.to_builtins(each))}\n" for key, each in values.items())


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        items = (f"{key} = {_toml(each)}" for key, each in value.items() if each is not None)
        return f"{{ {', '.join(items)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)  # TOML and JSON write these values alike


def _write_new(folder: Path, name: str, text: str) -> Path:
    """Write a TOML file under a name that is not taken, and return its path."""
    stem = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")
    folder.mkdir(parents=True, exist_ok=True)
    path = next(
        path
        for number in count(1)
        if not (path := folder / f"{stem}{'' if number == 1 else f'-{number}'}.toml").exists()
    )
    path.write_text(text, encoding="utf-8")
    return path


def _simulated(data_dir: Path | None, trial: Trial, file: Path | None) -> Outcome:
    # The log is not kept, since the same scenario gives the same log, byte for byte.
    with tempfile.TemporaryDirectory(prefix="anabranch-") as folder:
        log = Path(folder, "run.db")
        try:
            simulate(trial.scenario, trial.overlay, log, data_dir)
        except RunAborted as error:
            return Outcome(trial.labels, "", 0, 0.0, 0.0, 0, aborted=str(error))
        return _outcome(trial, "" if file is None else file.name, log)


def _emulated(data_dir: Path | None, trial: Trial, file: Path | None) -> Outcome:
    assert file is not None  # only a lab without files has all its runs already
    log = file.with_suffix(".db")
    run_locally(file, 0, trial.overlay, log, data_dir, emulate=True, seed=trial.scenario.seed)
    return _outcome(trial, file.name, log)


def _used(trial: Trial, outcome: Outcome) -> Outcome:
    """Return an outcome without the fields that its experiment does not use."""
    return replace(outcome, **{name: _DEFAULTS[name] for name in trial.without})


def _outcome(trial: Trial, file: str, log: Path) -> Outcome:
    events = [event for _, event in read_events(log)]
    run = summarise(events)
    target = trial.scenario.task.target_accuracy
    if run.pace is not None:
        assert run.pace.iteration_s is not None  # experiments have several iterations
        rounds = min(len(series) for series in run.pace.iterations.values())
        return Outcome(
            trial.labels,
            file,
            rounds,
            run.total_s,
            run.pace.iteration_s,
            0,
            run.pace.at_once,
            run.pace.blocked_s,
            run.pace.push_s,
            run.pace.pull_s,
            {
                trial.overlay.sites[site].name: _worker(series)
                for site, series in run.pace.iterations.items()
                if any(each.next_s is not None for each in series)
            },
            *_reached(trial, run, events),
            run.final_accuracy,
            run.accuracy[-1].at_s / len(run.accuracy) if run.accuracy else None,
            len(load_plan(run.started.plan_json).groups) or None,
            {run.sites[site]: accuracy for site, accuracy in run.site_accuracy.items()},
            run.pace.mean_missed,
            sent_bytes=None if target is None else run.bytes_to_accuracy(target),
            curve=thinned(_curve(run)),
            loss_fell_s=_loss_fell_s(trial, run, len(run.pace.iterations)),
            gaps=run.pace.gaps,
        )
    rounds, total_s = len(run.rounds), run.rounds[-1].at_s if run.rounds else run.total_s
    fills_time = trial.scenario.stop.after_s is not None
    round_s = total_s / max(1, rounds) if fills_time else median(run.interval_s)
    done = Outcome(trial.labels, file, rounds, total_s, round_s, len(run.plans))
    if target is not None:
        done = replace(
            done,
            reached_s=run.time_to_accuracy_s(target),
            reached_updates=_rounds_until(run, run.time_to_accuracy_s(target)),
            sent_bytes=run.bytes_to_accuracy(target),
            accuracy=run.final_accuracy,
            loss_fell_s=_loss_fell_s(trial, run, len(run.sites)),
        )
    elif isinstance(trial.scenario.task, Train):
        done = replace(done, accuracy=run.final_accuracy, curve=_curve(run))
    if target is not None and trial.scenario.has_local_steps:
        # Sites whose models differ go on until these are averaged, though the time is over.
        ends_s = trial.scenario.stop.after_s or math.inf
        reached = {rule: run.time_to_accuracy_s(target, rule) for rule in REACHED_BY}
        in_time = {rule for rule, at_s in reached.items() if at_s is not None and at_s <= ends_s}
        if (done.reached_s or 0.0) > ends_s:
            done = replace(done, reached_s=None, reached_updates=None, sent_bytes=None)
        done = replace(
            done,
            steps=len(run.steps) / len(run.sites),
            reached_by={rule: reached[rule] if rule in in_time else None for rule in REACHED_BY},
            sent_by={
                rule: run.bytes_to_accuracy(target, rule) if rule in in_time else None
                for rule in REACHED_BY
            },
            curve=_curve(run),
        )
    return done


def _reached(
    trial: Trial, run: RunSummary, events: Sequence[Event | UnknownEvent]
) -> tuple[float | None, float | None]:
    target = trial.scenario.task.target_accuracy
    reached_s = None if target is None else run.time_to_accuracy_s(target)
    if reached_s is None or run.pace is None:
        return None, None
    applied = (event.at_s for event in events if isinstance(event, UpdateApplied))
    return reached_s, sum(at_s <= reached_s for at_s in applied) / len(run.pace.iterations)


def _curve(run: RunSummary) -> tuple[tuple[float, float], ...]:
    return tuple((point.at_s, point.accuracy) for point in run.accuracy)


def thinned(
    curve: Sequence[tuple[float, float]], most: int = CURVE_POINTS
) -> tuple[tuple[float, float], ...]:
    """Return at most so many points of a curve, evenly spaced, its last one included.

    >>> thinned([(1.0, 0.1), (2.0, 0.2), (3.0, 0.3), (4.00004, 0.4)], most=2)
    ((2.0, 0.2), (4.0, 0.4))
    """
    every = -(-len(curve) // most)
    kept = curve[(len(curve) - 1) % every :: every] if curve else ()
    return tuple((round(at_s, 4), round(accuracy, 5)) for at_s, accuracy in kept)


def _rounds_until(run: RunSummary, at_s: float | None) -> float | None:
    return None if at_s is None else sum(each.at_s <= at_s for each in run.rounds)


def _loss_fell_s(trial: Trial, run: RunSummary, workers: int) -> float | None:
    return None if trial.loss is None else fell_s(run.steps, workers, trial.loss)


def fell_s(
    steps: Sequence[StepDone], workers: int, below: float, running: int = 10
) -> float | None:
    """Return when the loss had been below a bound in `running` iterations running, or None.

    An iteration is as many steps as there are workers. They need not be of different workers: under
    some paces a few workers make most steps.
    """
    told = [(step.at_s, step.loss) for step in steps if step.loss is not None]
    since = 0
    for first in range(0, len(told) - workers + 1, workers):
        iteration = told[first : first + workers]
        since = since + 1 if fmean(loss for _, loss in iteration) < below else 0
        if since == running:
            return iteration[-1][0]
    return None


def _worker(series: Sequence[Iteration]) -> WorkerOutcome:
    ended = [(each, each.next_s - each.went_s) for each in series if each.next_s is not None]
    later = ended[len(ended) // 2 :]
    return WorkerOutcome(
        fmean(took_s for _, took_s in later),
        fmean(each.blocked_s for each, _ in later),
        fmean(each.samples for each, _ in later),
        fmean(each.compute_s for each, _ in later),
    )
