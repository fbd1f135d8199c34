"""What a site does in a step, apart from talking: gradients, or a buffer to exchange."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from anabranch.net.errors import RunAborted
from anabranch.run.scenario import Scenario
from anabranch.run.scenario.tasks import Exchange, Task, Train
from anabranch.site.partition import Rule
from anabranch.site.terms import Wire

if TYPE_CHECKING:
    from torch import nn

    from anabranch.learn import tasks

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How well a model does.

    Args:
        every: rounds between two looks.
        accuracy: computes the share of held-out samples that the model classifies rightly.
    """

    every: int
    accuracy: Callable[[], float]


class Work(Protocol):
    """One site's work. Its methods compute; they are called one at a time, from any thread.

    Attributes:
        buffer: what is exchanged, shape (elements,).
        wire: how its elements travel.
        model: what is learnt, shape (elements,); where it is served, pulls overwrite it.
        make_rule: makes what changes so many elements of it by gradients; None where nothing is
            learnt.
        samples: how many a step takes, where nobody says otherwise.
        evaluation: how well the model does, and when to ask; None where nothing is learnt.
    """

    buffer: Floats
    model: Floats
    make_rule: Callable[[int], Rule] | None
    wire: Wire
    samples: int
    evaluation: Evaluation | None

    def prepare(self, samples: int) -> float | None:
        """Fill the buffer with this site's contribution; return the loss, if there is one."""

    def apply(self, round: int) -> int | None:
        """Use the mean that the buffer now holds; return a checksum of the result, or None."""


def make_work(
    scenario: Scenario, site: int, sites: int, data_dir: Path | None, sizes_only: bool
) -> Work:
    """Return what one site does in each step of a scenario.

    Args:
        scenario: what to run.
        site: this site's index.
        sites: how many there are.
        data_dir: where data sets are.
        sizes_only: leave the numbers out.
    """
    if sizes_only:
        return _Sized(scenario, buffer_elements(scenario, data_dir))
    if isinstance(scenario.task, Train):
        return _Training(scenario, scenario.task, site, sites, data_dir)
    return _Exchanging(scenario.task, site, sites)


def buffer_elements(scenario: Scenario, data_dir: Path | None) -> int:
    """Return how many float32 a scenario's sites exchange each round."""
    task = scenario.task
    if isinstance(task, Exchange):
        return task.buffer_elements
    data = _load_task(task.data, data_dir)
    model = _build_model(task, data, seed=0)
    return sum(parameter.numel() for parameter in model.parameters())


@lru_cache(maxsize=1)  # the sites of a simulation share it
def _load_task(name: str, data_dir: Path | None) -> tasks.Task:
    from anabranch.learn.tasks import load_task

    return load_task(name, data_dir)


def _build_model(task: Train, data: tasks.Task, seed: int) -> nn.Module:
    from anabranch.learn.models import build_model

    return build_model(
        task.model,
        data.shape,
        data.classes,
        seed,
        hidden=task.hidden or None,
        vocabulary=data.vocabulary,
    )


class _Training:
    """Real gradients of a real model."""

    def __init__(
        self, scenario: Scenario, task: Train, site: int, sites: int, data_dir: Path | None
    ) -> None:
        from anabranch.learn.optimisers import Adam, Optimiser, Sgd
        from anabranch.learn.partition import partition_evenly
        from anabranch.learn.train import Trainer

        data = _load_task(task.data, data_dir)
        model = _build_model(task, data, scenario.seed)
        rate = task.learning_rate
        optimiser: Optimiser
        optimiser = Adam(rate) if task.optimiser == "adam" else Sgd(rate, task.momentum)
        self._trainer = Trainer(
            data,
            model,
            partition_evenly(len(data.train_labels), sites, scenario.seed)[site],
            optimiser,
            task.batch_size,
            seed=scenario.seed * sites + site,
        )
        self.buffer = self._trainer.flat.gradients
        self.model = self._trainer.flat.parameters
        self.make_rule: Callable[[int], Rule] | None = optimiser.start
        self.wire = Wire.FLOAT32
        self.samples = task.batch_size
        self.evaluation: Evaluation | None = Evaluation(task.evaluate_every, self._trainer.accuracy)

    def prepare(self, samples: int) -> float:
        return self._trainer.compute_gradients(samples)

    def apply(self, round: int) -> int:
        from anabranch.learn.checksum import checksum

        self._trainer.update()
        return checksum(self._trainer.flat.parameters)


class _Exchanging:
    """Numbers whose mean is known, exchanged and checked."""

    def __init__(self, task: Exchange, site: int, sites: int) -> None:
        self.buffer = np.empty(task.buffer_elements, np.float32)
        self.model = self.buffer  # nobody looks at what comes
        self.make_rule: Callable[[int], Rule] | None = None
        self.wire = Wire.FLOAT32
        self.samples = task.batch_size
        self.evaluation: Evaluation | None = None
        self._site = site
        self._sites = sites

    def prepare(self, samples: int) -> None:
        _fill(self.buffer, self._site)

    def apply(self, round: int) -> int:
        from anabranch.learn.checksum import checksum

        _check(self.buffer, self._sites, round)
        return checksum(self.buffer)


class _Sized:
    """No numbers, only their count."""

    def __init__(self, scenario: Scenario, elements: int) -> None:
        self.buffer, self.wire = _nothing(elements), Wire.SIZES
        self.model = self.buffer
        self.make_rule: Callable[[int], Rule] | None = None
        self.samples = scenario.task.batch_size
        self.evaluation: Evaluation | None = None

    def prepare(self, samples: int) -> None:
        pass

    def apply(self, round: int) -> None:
        pass


@lru_cache(maxsize=1)  # the sites of a simulation share it
def _nothing(elements: int) -> Floats:
    return np.zeros(elements, np.float32)


def describe(task: Task) -> tuple[str, str]:
    """Return what a task is about and what it exchanges, for people."""
    if isinstance(task, Train):
        return task.data, task.model
    return "exchange", task.profile or f"{task.elements} elements"


# What sites exchange when they compute nothing: whole numbers so small that float32 adds them up
# exactly, in any order, so the mean is known to the last bit.
_PATTERN = (np.arange(251 * 1024) % 251).astype(np.float32)


def _fill(buffer: Floats, site: int) -> None:
    for start in range(0, len(buffer), len(_PATTERN)):
        part = buffer[start : start + len(_PATTERN)]
        np.add(_PATTERN[: len(part)], np.float32(site), out=part)


def _check(buffer: Floats, sites: int, round: int) -> None:
    mean = (_PATTERN * sites + np.float32(sites * (sites - 1) // 2)) / np.float32(sites)
    for start in range(0, len(buffer), len(mean)):
        part = buffer[start : start + len(mean)]
        if not np.array_equal(part, mean[: len(part)]):
            raise RunAborted(
                f"round {round} gave a wrong mean, first in {start}..{start + len(part)}"
            )
