"""Run an experiment's scenarios, and return their outcomes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import process_time
from typing import Any, TypeVar, cast

import msgspec

from anabranch import overlay as overlays
from anabranch.log import Event, UnknownEvent, read_events
from anabranch.net.errors import RunAborted
from anabranch.overlay import Overlay
from anabranch_lab.emulate import check_emulable
from anabranch_lab.run.launch import run_locally
from anabranch_lab.run.scenario import Scenario, check_real, loads
from anabranch_lab.run.simulate import simulate
from papers._outcome import outcome_of
from papers._record import Ran, Record, Store, written
from papers._scenario_file import scenario_toml, write_new
from papers._trial import Outcome, Trial, used

Made = TypeVar("Made")


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
            self._record(*wanted[text], ran)  # at once: a store may end the script after a run

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
            outcomes.append(replace(used(trial, ran.made), labels=trial.labels))
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
        made = replace(used(trial, ran.made), labels=trial.labels)
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
            overlay = write_new(
                self.folder, f"overlay-{trial.overlay.name}", overlays.dumps(trial.overlay)
            )
            self._overlays[trial.overlay] = overlay
        name = "-".join(map(str, trial.labels.values()))
        text = scenario_toml(msgspec.structs.replace(trial.scenario, overlay=overlay.name))
        loads(text, name)  # checks that the file can be run
        return write_new(self.folder, name, text)


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


def events_of(
    scenario: Scenario, overlay: Overlay, data_dir: Path | None
) -> Iterator[Event | UnknownEvent]:
    """Simulate a scenario, and yield the events of its log."""
    with tempfile.TemporaryDirectory(prefix="anabranch-") as folder:
        log = Path(folder, "run.db")
        simulate(scenario.beside_its_scheduler(), overlay, log, data_dir)
        yield from (event for _, event in read_events(log))


def _simulated(data_dir: Path | None, trial: Trial, file: Path | None) -> Outcome:
    # The log is not kept, since the same scenario gives the same log, byte for byte.
    with tempfile.TemporaryDirectory(prefix="anabranch-") as folder:
        log = Path(folder, "run.db")
        try:
            simulate(trial.scenario, trial.overlay, log, data_dir)
        except RunAborted as error:
            return Outcome(trial.labels, "", 0, 0.0, 0.0, 0, aborted=str(error))
        return outcome_of(trial, "" if file is None else file.name, log)


def _emulated(data_dir: Path | None, trial: Trial, file: Path | None) -> Outcome:
    assert file is not None  # only a lab without files has all its runs already
    log = file.with_suffix(".db")
    run_locally(file, 0, trial.overlay, log, data_dir, emulate=True, seed=trial.scenario.seed)
    return outcome_of(trial, file.name, log)
