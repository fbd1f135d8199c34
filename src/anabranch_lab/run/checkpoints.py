"""Checkpoints of a run: what each site saves after certain rounds, and how a run resumes from it.

A run's checkpoints are in one folder. ``round-000020/site-3.safetensors`` holds the state from
which site 3 resumes after round 20. Each site writes its whole state into its own file, since sites
may share no disk. So one machine holds as many copies of the model as it has sites. A run can
resume after a round if the files of all sites exist.

A site saves before it contributes to the next round. So once the next round has ended, the files
are complete, and older ones can go: each site keeps two.
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
# These keys change how long rounds take or how many there are, but no number of the model.
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
    """A run cannot resume from a checkpoint; names the file, and what is wrong."""


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """Which rounds of a scenario a run makes, and after which of them it saves.

    Args:
        after_round: the round that the run resumes after; 0: from the beginning.
        save_every: rounds between two checkpoints; None: no checkpoints.
    """

    after_round: int = 0
    save_every: int | None = None


WHOLE = Course()
"""All rounds, and no checkpoints."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What the sites of a scenario run; the scheduler sends it with its settings.

    Args:
        scenario: what runs.
        course: which of its rounds.
        most_strands: the most connections of a lane; None: as many as suit its path.
    """

    scenario: Scenario
    course: Course = WHOLE
    most_strands: int | None = None


@dataclass(frozen=True, slots=True)
class Files:
    """Where a site's process reads and writes.

    Args:
        data: where data sets are.
        weights: the file for the final weights, the same at every site. One site writes it, or the
            servers together. None: no weights are written.
        checkpoints: the folder to save checkpoints in.
        resume: the folder of the round that the run resumes after.
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
    """Return the round of a folder of checkpoints.

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
        place: a round's folder, the folder that contains it, a run's log, or the folder of one run.

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
    """Return the sites whose files are missing; ``every site`` if there is no file at all."""
    files = sorted(folder.glob("site-*.safetensors"))
    if not files:
        return ["every site"]
    names = _About.read(files[0]).sites
    return [name for site, name in enumerate(names) if not _path(folder, site).is_file()]


@dataclass(frozen=True, slots=True)
class _About:
    """The description that a checkpoint carries."""

    path: Path
    round: int
    site: int
    sites: tuple[str, ...]
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
            tuple(json.loads(texts["sites"])),
            json.loads(texts["scenario"]),
        )

    def check(self, round: int, site: int, sites: tuple[str, ...], scenario: Scenario) -> None:
        """Check that a site of this run can resume from it."""
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
    """Return the keys of a scenario, and of its tables, that change the numbers of its model."""
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


def check(folder: Path, scenario: Scenario, sites: tuple[str, ...]) -> None:
    """Check, before a run begins, that it can resume from a round's checkpoints.

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
        scenario, overlay: what runs, and on which network.
        save_every: rounds between two checkpoints; None: no checkpoints.
        resume: the folder of the round to resume after; None: begin at the first round.

    Raises:
        ScenarioError: the scenario cannot be saved or resumed; names the key, and what to do.
        CheckpointError: the run cannot resume from there; names the file or the key.
    """
    course = Course(after_round=0 if resume is None else round_of(resume), save_every=save_every)
    check_course(scenario, course)
    if resume is not None:
        check(resume, scenario, overlay.names)
    return course


def check_course(scenario: Scenario, course: Course) -> None:
    """Check that a scenario can be saved and resumed, if its course does so.

    Raises:
        ScenarioError: it cannot; names the key, and what to do.
        CheckpointError: the scenario has no round after the one that it resumes after.
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
    """Work that can resume from a state, alone or with a site's local steps."""

    def state_dict(self) -> State:
        """See :class:`anabranch.train.work.Work`."""

    def load_state_dict(self, state: State) -> None:
        """See :class:`anabranch.train.work.Work`."""


class Keeper:
    """Saves and restores the state of one site.

    Args:
        job: what the run does.
        files: where this site reads and writes.
        site: its index.
        sites: the names of all sites.

    Raises:
        CheckpointError: the run saves checkpoints, and this site has no folder for them.
    """

    def __init__(self, job: Job, files: Files, site: int, sites: tuple[str, ...]) -> None:
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
        """Load the state from which the run resumes into work.

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
        """Return whether to save after a round."""
        every = self._job.course.save_every
        return every is not None and round % every == 0

    def save(self, work: Resumable, round: int) -> None:
        """Save this site's state after a round, and remove its older files."""
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
    """Write the weights of work, under the names that its model gives them."""
    from anabranch_lab.tasks.states import save_weights

    save_weights(path, work.state_dict()["model"])
