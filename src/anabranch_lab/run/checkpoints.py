"""Checkpoints of a run: what each site saves every so many rounds, and how a run goes on from it.

A run's checkpoints are in one folder: ``round-000020/site-3.safetensors`` is what site 3 goes on
from after round 20. Each site writes its whole state into a file of its own, since sites may share
no disk; so on one machine there are as many copies of the model as sites. A round can be resumed
when the files of all sites are there. A site saves before it contributes to the next round, so
once that round has ended the files are complete, and older ones can go: each site keeps two.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from anabranch._typed_toml import BadInput
from anabranch.overlay import Overlay
from anabranch.period import Every
from anabranch.train.work import State, Work
from anabranch_lab.run.scenario import Scenario, ScenarioError, encode

_FOLDER_SUFFIX = ".checkpoints"
_FORMAT = "1"
_KEPT = 2
# Keys that change how long rounds take or how many there are, and no number of the model.
_FREE = (
    "label",
    "stop",
    "compute",
    "fault",
    "simulation",
    "congestion_control",
    "sample_every_s",
    "shaped",
    "task.folder",
    "task.evaluate_every",
    "task.target_accuracy",
)


class CheckpointError(BadInput):
    """A checkpoint that a run cannot go on from; names the file, and what is wrong."""


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """Which rounds of a scenario a run makes, and after which of them it saves.

    Args:
        after_round: the round that it goes on after; 0 from the beginning.
        save_every: rounds between two checkpoints; None for none.
    """

    after_round: int = 0
    save_every: int | None = None


WHOLE = Course()
"""All rounds, and no checkpoints."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What the sites of a scenario run; the scheduler tells them beside its settings.

    Args:
        scenario: what runs.
        course: which of its rounds.
        most_strands: connections of a lane; None for what suits its way.
    """

    scenario: Scenario
    course: Course = WHOLE
    most_strands: int | None = None


@dataclass(frozen=True, slots=True)
class Files:
    """Where a site's process reads and writes.

    Args:
        data: where data sets are.
        weights: the file for the final weights, the same at every site: one writes it, or the
            servers together; None leaves none.
        checkpoints: the folder to save checkpoints in.
        resume: the folder of the round that the run goes on after.
    """

    data: Path | None = None
    weights: Path | None = None
    checkpoints: Path | None = None
    resume: Path | None = None


def weights_of(log: Path) -> Path:
    """Return where a run on this machine leaves its weights, beside its log."""
    return log.with_suffix(".safetensors")


def checkpoints_of(log: Path) -> Path:
    """Return where a run on this machine leaves its checkpoints, beside its log."""
    return log.with_suffix(_FOLDER_SUFFIX)


def round_of(folder: Path) -> int:
    """Return the round that a folder has the checkpoints of.

    Raises:
        CheckpointError: its name is not such a folder's.
    """
    match = re.fullmatch(r"round-(\d+)", folder.name)
    if match is None:
        raise CheckpointError(f"{folder} is no round's checkpoints; name a folder round-...")
    return int(match[1])


def _path(folder: Path, site: int) -> Path:
    return folder / f"site-{site}.safetensors"


def find(place: Path) -> Path:
    """Return the folder of the newest round that all sites have saved.

    Args:
        place: such a folder itself, the one it is in, a run's log, or the folder of one run.

    Raises:
        CheckpointError: there is none, or the checkpoints of more than one run.
    """
    if place.suffix == ".db":
        place = checkpoints_of(place)
    if not place.is_dir():
        raise CheckpointError(f"{place} is not there, so no run can go on from it")
    if re.fullmatch(r"round-\d+", place.name):
        return place
    if place.suffix != _FOLDER_SUFFIX:
        found = sorted(place.glob(f"*{_FOLDER_SUFFIX}"))
        if len(found) != 1:
            names = ", ".join(each.name for each in found) or "none"
            raise CheckpointError(f"{place} has the checkpoints of {names}; name those of one run")
        [place] = found
    rounds = sorted((each for each in place.glob("round-*") if each.is_dir()), key=round_of)
    for folder in reversed(rounds):
        if not _missing(folder):
            return folder
    raise CheckpointError(f"{place} has no round that all sites have saved")


def _missing(folder: Path) -> list[str]:
    """Return the sites whose files are not there; all of them where there is no file at all."""
    files = sorted(folder.glob("site-*.safetensors"))
    if not files:
        return ["every site"]
    names = _About.read(files[0]).sites
    return [name for site, name in enumerate(names) if not _path(folder, site).is_file()]


@dataclass(frozen=True, slots=True)
class _About:
    """What a checkpoint says of itself."""

    path: Path
    round: int
    site: int
    sites: list[str]
    scenario: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> _About:
        from anabranch_lab.tasks.states import StateError, read_about

        try:
            texts = read_about(path)
        except StateError as error:
            raise CheckpointError(f"checkpoint {error}") from None
        if texts.get("checkpoint") != _FORMAT:
            raise CheckpointError(f"{path} is no checkpoint that this release wrote")
        return cls(
            path,
            int(texts["round"]),
            int(texts["site"]),
            json.loads(texts["sites"]),
            json.loads(texts["scenario"]),
        )

    def check(self, round: int, site: int, sites: list[str], scenario: Scenario) -> None:
        """Check that a site of this run can go on from it."""
        if self.sites != sites:
            raise CheckpointError(
                f"checkpoint {self.path} is of the sites {', '.join(self.sites)}, and this run has "
                f"{', '.join(sites)}; resume with the overlay it was saved under"
            )
        if self.site != site:
            raise CheckpointError(
                f"checkpoint {self.path} is of site {self.sites[self.site]}, not {sites[site]}"
            )
        if self.round != round:
            raise CheckpointError(
                f"checkpoint {self.path} is of round {self.round}, not of round {round}"
            )
        was, now = _numbers_of(self.scenario), _numbers_of(json.loads(encode(scenario)))
        for key in sorted(was | now):
            if was.get(key) != now.get(key):
                raise CheckpointError(
                    f"checkpoint {self.path} is of another scenario: its {key} is "
                    f"{_shown(was.get(key))}, here it is {_shown(now.get(key))}; resume with the "
                    "scenario it was saved under"
                )


def _numbers_of(scenario: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a scenario that its numbers depend on, with those of its tables."""
    flat: dict[str, Any] = {}
    for key, value in scenario.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{below}": each for below, each in value.items()}
        else:
            flat[key] = value
    return {
        key: value
        for key, value in flat.items()
        if key not in _FREE and key.partition(".")[0] not in _FREE
    }


def _shown(value: Any) -> str:
    return "not given" if value is None else json.dumps(value)


def check(folder: Path, scenario: Scenario, sites: list[str]) -> None:
    """Check, before a run begins, that it can go on from a round's checkpoints.

    Raises:
        CheckpointError: it cannot; names the file or the key, and what is wrong.
    """
    round = round_of(folder)
    if missing := _missing(folder):
        raise CheckpointError(f"{folder} is incomplete: {missing[0]} has saved nothing there")
    for site in range(len(sites)):
        _About.read(_path(folder, site)).check(round, site, sites, scenario)


def plan_course(
    scenario: Scenario, overlay: Overlay, save_every: int | None, resume: Path | None
) -> Course:
    """Return the course of a run, checked.

    Args:
        scenario, overlay: what runs, and where.
        save_every: rounds between two checkpoints; None for none.
        resume: the folder of the round to go on after; None to begin at the first.

    Raises:
        ScenarioError: the scenario cannot be saved or resumed; names the key, and what to do.
        CheckpointError: the run cannot go on from there; names the file or the key.
    """
    course = Course(after_round=0 if resume is None else round_of(resume), save_every=save_every)
    check_course(scenario, course)
    if resume is not None:
        check(resume, scenario, [site.name for site in overlay.sites])
    return course


def check_course(scenario: Scenario, course: Course) -> None:
    """Check that a scenario can be saved and resumed, where that is asked for.

    Raises:
        ScenarioError: it cannot; names the key, and what to do.
        CheckpointError: it has no round after the one that it goes on from.
    """
    if course != WHOLE and scenario.is_served:
        key = "serve" if scenario.serve is not None else "pace"
        raise ScenarioError(
            f"{key}: only runs whose sites all-reduce can be saved and resumed, not those whose "
            "model servers hold; leave --checkpoint-every and --resume out, or have pace.kind = "
            '"bsp" and no [serve]'
        )
    if course != WHOLE and scenario.gossip is not None:
        raise ScenarioError(
            "gossip: some model is always on its way, and a checkpoint holds none; leave "
            "--checkpoint-every and --resume out"
        )
    average, period = scenario.average, scenario.period
    steps = period.steps if isinstance(period, Every) else 1
    if course != WHOLE and average is not None and average.delay * average.fragments >= steps:
        raise ScenarioError(
            "average.delay: some average is always on its way, and a checkpoint holds none; leave "
            "--checkpoint-every and --resume out, or give a delay that ends before the next "
            "average begins"
        )
    if course.after_round >= scenario.stop.rounds:
        raise CheckpointError(
            f"the run goes on after round {course.after_round}, and stop.rounds is "
            f"{scenario.stop.rounds}: nothing is left to do; give more rounds"
        )


class Resumable(Protocol):
    """What goes on from a state: work, or a site's local steps with it."""

    def state_dict(self) -> State:
        """See :class:`anabranch.train.work.Work`."""

    def load_state_dict(self, state: State) -> None:
        """See :class:`anabranch.train.work.Work`."""


class Keeper:
    """Saves what one site goes on from, and brings it back there.

    Args:
        job: what the run does.
        files: where this site reads and writes.
        site: its index.
        sites: the names of all.

    Raises:
        CheckpointError: checkpoints are asked for, and this site was not told where.
    """

    def __init__(self, job: Job, files: Files, site: int, sites: list[str]) -> None:
        self._job = job
        self._files = files
        self._site = site
        self._sites = sites
        self._saved: list[Path] = []  # rounds' folders, oldest first
        course = job.course
        if course.save_every is not None and files.checkpoints is None:
            raise CheckpointError(
                f"site {sites[site]} is to save every {course.save_every} rounds, and does not "
                "know where; give it --checkpoints"
            )
        if (course.after_round > 0) != (files.resume is not None):
            raise CheckpointError(
                f"the run goes on after round {course.after_round}, and site {sites[site]} was "
                f"told {'nothing of that' if files.resume is None else f'--resume {files.resume}'};"
                " where the scheduler has --after-round, give --resume to every site, else to none"
            )

    def resume(self, work: Resumable) -> None:
        """Bring work to where the run goes on.

        Raises:
            CheckpointError: the checkpoint is damaged, or of another run.
        """
        folder = self._files.resume
        if folder is None:
            return
        from anabranch_lab.tasks.states import StateError, load_state

        path = _path(folder, self._site)
        _About.read(path).check(
            self._job.course.after_round, self._site, self._sites, self._job.scenario
        )
        try:
            state = load_state(path)
        except StateError as error:
            raise CheckpointError(f"checkpoint {error}") from None
        try:
            work.load_state_dict(state)
        except KeyError as error:
            raise CheckpointError(f"checkpoint {path} holds no {error}") from None
        except ValueError as error:
            raise CheckpointError(f"checkpoint {path}: {error}") from None

    def is_due(self, round: int) -> bool:
        """Return whether a round is to be saved."""
        every = self._job.course.save_every
        return every is not None and round % every == 0

    def save(self, work: Resumable, round: int) -> None:
        """Save what this site goes on from after a round, and remove what is no longer needed."""
        from anabranch_lab.tasks.states import save_state

        assert self._files.checkpoints is not None
        folder = self._files.checkpoints / f"round-{round:06}"
        about = {
            "checkpoint": _FORMAT,
            "round": str(round),
            "site": str(self._site),
            "sites": json.dumps(self._sites),
            "scenario": encode(self._job.scenario),
        }
        save_state(_path(folder, self._site), work.state_dict(), about)
        self._saved.append(folder)
        for old in self._saved[:-_KEPT]:
            _path(old, self._site).unlink(missing_ok=True)
            if not any(old.iterdir()):
                shutil.rmtree(old, ignore_errors=True)  # another site may be first
        del self._saved[:-_KEPT]


def leave_weights(work: Work, path: Path) -> None:
    """Write the weights of work, by the names that its model gives them."""
    from anabranch_lab.tasks.states import save_weights

    save_weights(path, work.state_dict()["model"])
