"""What a site computes in a step: the work of each task, ours and users' own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from anabranch.exchange.terms import Wire
from anabranch.net.errors import RunAborted
from anabranch.overlay import Overlay
from anabranch.train.averaging import Average
from anabranch.train.work import Context, ServableWork, State, Work, averaged_elements
from anabranch_lab.run._local_steps import LocalWork
from anabranch_lab.run._own import OwnWork, ServableOwnWork, make_own_work
from anabranch_lab.run._served_steps import ServedSteps
from anabranch_lab.run.scenario import Scenario, ScenarioError
from anabranch_lab.run.scenario.tasks import Exchange, Own, Task, Train
from anabranch_lab.tasks.partition import AnyPartition, Indices

if TYPE_CHECKING:
    import torch
    from torch import nn

    from anabranch.train.optimisers import Update
    from anabranch_lab.tasks import kinds as tasks

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one site does in a run.

    Args:
        work: computes the steps.
        wire: how the elements of its buffer travel.
        samples: how many a step takes, unless the pace says otherwise.
        evaluate_every: rounds between two evaluations; None where nothing is learnt.
        held: how many samples each site trains on, by index; empty if unknown.
        labels: how many samples of each class this site trains on; empty where its task has no
            classes, or no single label for each sample.
        own_state: the entries of the work's state that differ between sites.
        steps_of_update: returns how many local steps an update has, given the samples held and
            the samples of a step.
        training: the training, if the work is ours.
        tensors: the elements of each tensor in the buffer; empty if unknown.
        looks_when_told: whether a worker evaluates the model it pulls when the scheduler says so,
            instead of every ``evaluate_every`` rounds.
    """

    work: Work
    wire: Wire
    samples: int
    evaluate_every: int | None = None
    held: tuple[int, ...] = ()
    labels: tuple[int, ...] = ()
    own_state: tuple[str, ...] = ()
    steps_of_update: Callable[[int, int], int] = lambda held, samples: 1
    training: _Training | None = None
    looks_when_told: bool = False
    tensors: tuple[int, ...] = ()

    def steps_of(self, who: int, samples: int) -> int:
        """Return how many local steps of `samples` each an update of a site or client has."""
        return self.steps_of_update(self.held[who] if self.held else 0, samples)

    def evaluate(self) -> tuple[float, list[float | None] | None]:
        """Return the model's accuracy, and its accuracy for each class.

        A class without held-out samples has None. Without ``labels`` there is no list of classes.
        """
        if not self.labels:
            return self.work.evaluate(), None
        assert self.training is not None
        right, there = self.training.right_of_class()
        by_class = [
            int(of_class) / int(samples) if samples else None
            for of_class, samples in zip(right, there, strict=True)
        ]
        return int(right.sum()) / int(there.sum()), by_class

    def stand_for(self, client: int, update: int) -> float:
        """Train on the data of a registered client; return the client's weight by its samples.

        Args:
            client: its number.
            update: the number of its update, which seeds its draws.
        """
        if self.training is None:
            return 1.0
        self.training.stand_for(client, update)
        return self.held[client] * len(self.held) / sum(self.held)

    def complete_push(self) -> None:
        """Write elements that are no parameters into the buffer, for a push to a served model."""
        work = self.work
        if averaged := averaged_elements(work):
            assert isinstance(work, ServableOwnWork | ServedSteps)
            work.buffer[-averaged:] = work.model[-averaged:]

    def share_of(self, site: int, workers: Sequence[int]) -> float:
        """Return a site's weight by its samples; the mean over the sites that compute is 1.

        Raises:
            RunAborted: the number of samples of each site is unknown.
        """
        if not self.held:
            raise RunAborted(
                'merge.kind: weights by "data-size" need to know how many samples each site has; '
                'only task.kind = "train" says so'
            )
        if site not in workers:
            return 1.0
        return self.held[site] * len(workers) / sum(self.held[worker] for worker in workers)

    @property
    def learns(self) -> bool:
        """Whether the work has weights."""
        return self.evaluate_every is not None


def make_work(
    scenario: Scenario, site: int, names: tuple[str, ...], data_dir: Path | None, sizes_only: bool
) -> Assignment:
    """Return what one site does in each step of a scenario.

    Args:
        scenario: what to run.
        site: this site's index.
        names: of all sites.
        data_dir: where data sets are.
        sizes_only: chunks have sizes and no numbers.

    Raises:
        WorkError: the scenario's own code cannot be used; names the factory, and what is wrong.
    """
    task, steps = scenario.task, scenario.steps_of_update
    # Servers weigh a batch by its samples over the usual ones, so there all have the usual ones.
    samples = task.batch_size if scenario.is_served else scenario.samples_of(names[site])
    tensors = () if isinstance(task, Own) else _tensors(task)
    if sizes_only:
        elements = buffer_elements(scenario, names, data_dir)
        sized, wire = _Sized(_nothing(elements)), Wire.SIZES
        return Assignment(sized, wire, samples, steps_of_update=steps, tensors=tensors)
    if isinstance(task, Exchange):
        exchanging, wire = _Exchanging(task, site, len(names)), Wire.FLOAT32
        return Assignment(exchanging, wire, samples, steps_of_update=steps, tensors=tensors)
    work: _Training | OwnWork
    if isinstance(task, Train):
        work = _Training(scenario, task, site, names, data_dir)
    else:
        work = _make_own(scenario, task, site, names, data_dir)
    training = work if isinstance(work, _Training) else None
    held, labels = ((), ()) if training is None else (training.held, training.labels)
    rounds: Work = work
    if scenario.is_served and scenario.period.averages:
        own = servable(work, scenario)
        if training is None:
            rounds = ServedSteps(own, partial(steps, 0), scenario.average or Average())
        else:
            training.sends_each_step = False
            average = scenario.average or Average()
            rounds = ServedSteps(
                own, lambda samples: steps(training.samples_held, samples), average, training.spoil
            )
    return Assignment(
        rounds,
        Wire.FLOAT32,
        samples,
        task.evaluate_every,
        held,
        labels,
        work.own_state,
        steps,
        training,
        task.evaluate_every_s is not None,
        tensors,
    )


def _tensors(task: Train | Exchange) -> tuple[int, ...]:
    """Return the elements of each tensor of a task's buffer; empty if they are not known."""
    if isinstance(task, Exchange):
        return task.tensors
    return _model_tensors(task.data, task.model, task.hidden)


def buffer_elements(scenario: Scenario, names: tuple[str, ...], data_dir: Path | None) -> int:
    """Return how many float32 a scenario's sites exchange each round."""
    task = scenario.task
    if isinstance(task, Exchange):
        return task.buffer_elements
    if isinstance(task, Own):
        return len(_make_own(scenario, task, 0, names, data_dir).buffer)
    return sum(_model_tensors(task.data, task.model, task.hidden))


@cache  # the scheduler calls this for each plan
def _model_tensors(data: str, name: str, hidden: tuple[int, ...]) -> tuple[int, ...]:
    import torch

    from anabranch_lab.tasks.kinds import looks_of
    from anabranch_lab.tasks.models import build_model

    looks = looks_of(data)
    with torch.device("meta"):  # shapes only
        model = build_model(
            name,
            looks.shape,
            looks.classes,
            seed=0,
            hidden=hidden or None,
            vocabulary=looks.vocabulary,
        )
    return tuple(parameter.numel() for parameter in model.parameters())


def local_work(assigned: Assignment, scenario: Scenario, scale: float = 1.0) -> LocalWork:
    """Return a site's work together with the rules of its local steps and averages.

    Args:
        assigned: the site's.
        scenario: what runs.
        scale: multiplies the site's gradients.

    Raises:
        WorkError: its work has no model.
    """
    work = assigned.work
    if isinstance(work, OwnWork) and not isinstance(work, ServableOwnWork):
        raise work.error(
            "has no model and make_rule, which averages need; give them, or exchange the gradients "
            'of every step: period = {kind = "every-step"}'
        )
    assert isinstance(work, _Training | _Exchanging | _Sized | ServableOwnWork)
    stop = scenario.stop
    may_stop = scenario.gossip is None and (stop.after_s is not None or stop.at_target)
    average = scenario.average or Average()
    return LocalWork(work, scenario.period, average, assigned.learns, may_stop, scale)


def servable(work: Work, scenario: Scenario) -> ServableWork:
    """Return the work, if servers can hold its model.

    Raises:
        WorkError: they cannot.
    """
    if isinstance(work, OwnWork) and not isinstance(work, ServableOwnWork):
        raise work.error(
            "has no model and make_rule, which servers need; give them, or let the sites "
            'all-reduce: pace = {kind = "bsp"} and no [serve]'
        )
    assert isinstance(work, _Training | _Exchanging | _Sized | ServableOwnWork | ServedSteps)
    return work


@lru_cache(maxsize=1)  # the sites of a simulation share it
def _load_task(name: str, data_dir: Path | None) -> tasks.Task:
    from anabranch_lab.tasks.kinds import load_task

    return load_task(name, data_dir)


def _build_model(task: Train, data: tasks.Task, seed: int) -> nn.Module:
    from anabranch_lab.tasks.models import build_model

    return build_model(
        task.model,
        data.shape,
        data.classes,
        seed,
        hidden=task.hidden or None,
        vocabulary=data.vocabulary,
    )


def _make_own(
    scenario: Scenario, task: Own, site: int, names: tuple[str, ...], data_dir: Path | None
) -> OwnWork:
    context = Context(site, names[site], len(names), scenario.seed, data_dir, task.options)
    return make_own_work(task.factory, Path(task.folder), context)


_SPOILT = 0x5B0117  # gives the draws of adversaries a stream apart from others of the same seed
_MOST_UPDATES = 1 << 32  # of a client; keeps the seeds of different clients apart


@lru_cache(maxsize=1)  # the sites of a simulation share it
def _dealt(
    partition: AnyPartition, data: str, data_dir: Path | None, parts: int, seed: int, least: int
) -> tuple[Indices, ...]:
    labels = _load_task(data, data_dir).train_labels.numpy()
    return partition.deal(labels, parts, seed, least=least)


def _shards(
    scenario: Scenario, task: Train, names: tuple[str, ...], data_dir: Path | None
) -> tuple[Indices, ...]:
    """Return the samples of each worker, or of each registered client.

    Raises:
        ValueError: there are too few samples; names the key. Or the data cannot be loaded.
    """
    clients = scenario.clients
    parts, least = len(scenario.workers_named(names)), task.batch_size
    if clients is not None:
        parts, least = clients.registered, 1
    _load_task(task.data, data_dir)
    try:
        return _dealt(task.partition, task.data, data_dir, parts, scenario.seed, least)
    except ValueError as error:
        key, samples = "task.partition", len(_load_task(task.data, data_dir).train_labels)
        if clients is not None and parts > samples:
            key = f"clients.registered: {parts}, and each needs a sample"
        raise ValueError(f"{key}: {error}") from None


def check_data(scenario: Scenario, overlay: Overlay, data_dir: Path | None) -> None:
    """Check, before a run begins, that its data can be loaded, dealt, and used by its model.

    Raises:
        ScenarioError: names the key, and what to do.
    """
    task = scenario.task
    if not isinstance(task, Train):
        return
    try:
        data = _load_task(task.data, data_dir)
        _shards(scenario, task, overlay.names, data_dir)
        _build_model(task, data, scenario.seed)
    except ValueError as error:
        raise ScenarioError(str(error)) from None


class _Training:
    """Real gradients of a real model."""

    own_state = "waiting", "sampling", "dropout"

    def __init__(
        self,
        scenario: Scenario,
        task: Train,
        site: int,
        names: tuple[str, ...],
        data_dir: Path | None,
    ) -> None:
        from anabranch.train.optimisers import Adam, Optimiser, Sgd
        from anabranch.train.schedules import scheduled
        from anabranch_lab.tasks.train import Trainer

        data = _load_task(task.data, data_dir)
        model = _build_model(task, data, scenario.seed)
        labels = data.train_labels.numpy()
        clients = scenario.clients
        workers = scenario.workers_named(names)
        shards = _shards(scenario, task, names, data_dir)
        parts = len(shards)
        self._shards, self._seed = shards, scenario.seed
        self.labels: tuple[int, ...] = ()
        if clients is not None:
            self.held = tuple(map(len, shards))
            who = site % len(shards)  # until the scheduler names a client
        else:
            held = [0] * len(names)
            for worker, shard in zip(workers, shards, strict=True):
                held[worker] = len(shard)
            self.held = tuple(held)
            computes = site in workers
            who = workers.index(site) if computes else -1  # -1: no adversary, and no samples used
            if labels.ndim == 1:
                mine = labels[shards[who]] if computes else labels[:0]
                self.labels = tuple(np.bincount(mine, minlength=data.classes).tolist())
        rate = task.learning_rate
        optimiser: Optimiser
        optimiser = Adam(rate) if task.optimiser == "adam" else Sgd(rate, task.momentum)
        optimiser = scheduled(optimiser, task.schedule)
        self._trainer = Trainer(
            data,
            model,
            shards[who],
            optimiser,
            min(task.batch_size, len(shards[who])),
            seed=scenario.seed * len(names) + site,
            sampling=scenario.sampling,
        )
        self.buffer = self._trainer.flat.gradients
        self.model = self._trainer.flat.parameters
        self.make_rule: Callable[[int], Update] | None = optimiser.start
        self._adversaries = task.adversaries
        self._bad = frozenset[int]()
        if task.adversaries is not None:
            self._bad = frozenset(task.adversaries.who(parts, scenario.seed).tolist())
        self._who = who
        self._classes = data.classes
        self._labels = data.train_labels
        self._noise = np.random.default_rng((scenario.seed, site, _SPOILT))
        self.sends_each_step = True  # False: an update is of several steps
        if clients is None and who in self._bad:
            self._trainer.train_on(shards[who], scenario.seed * len(names) + site, self._wrong())
        self.evaluate = partial(self._trainer.accuracy, task.evaluate_samples)
        self.right_of_class = partial(self._trainer.right_of_class, task.evaluate_samples)
        self.state_dict = self._trainer.state_dict
        self.load_state_dict = self._trainer.load_state_dict

    def local_step(self, samples: int) -> float:
        loss = self._trainer.compute_gradients(samples)
        if self.sends_each_step:
            self.spoil(self.buffer)
        return loss

    def spoil(self, update: Floats) -> None:
        """Change a contribution in place, if this site or client is an adversary."""
        if self._adversaries is not None and self._who in self._bad:
            update[:] = self._adversaries.contribution(update, self._noise)

    def _wrong(self) -> torch.Tensor | None:
        """Return the labels that an adversary gives all samples."""
        import torch

        if self._adversaries is None:
            return None
        labels = self._adversaries.labels(self._labels.numpy(), self._classes)
        return torch.from_numpy(labels)

    @property
    def samples_held(self) -> int:
        """How many samples it trains on now."""
        return len(self._shards[self._who])

    def stand_for(self, client: int, update: int) -> None:
        """Train on another client's samples from now on."""
        self._who = client
        labels = self._wrong() if client in self._bad else None
        # One seed for each client and update, so that no two draw the same samples.
        seed = (self._seed * len(self._shards) + client) * _MOST_UPDATES + update
        self._trainer.train_on(self._shards[client], seed, labels)

    def apply(self, round: int) -> int:
        from anabranch.train.checksum import checksum

        self._trainer.update()
        return checksum(self._trainer.flat.parameters)


class _LearnsNothing:
    """Work without weights or state: each round is like the first."""

    def evaluate(self) -> float:
        raise AssertionError("there is nothing to evaluate")

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:
        pass


class _Exchanging(_LearnsNothing):
    """Exchange numbers whose mean is known, and check the mean."""

    def __init__(self, task: Exchange, site: int, sites: int) -> None:
        self.buffer = np.empty(task.buffer_elements, np.float32)
        self.model = self.buffer  # pulled values are not read
        self.make_rule: Callable[[int], Update] | None = None
        self._site = site
        self._sites = sites

    def local_step(self, samples: int) -> None:
        _fill(self.buffer, self._site)

    def apply(self, round: int) -> int:
        from anabranch.train.checksum import checksum

        _check(self.buffer, self._sites, round)
        return checksum(self.buffer)


class _Sized(_LearnsNothing):
    """Work whose chunks have only sizes."""

    def __init__(self, zeros: Floats) -> None:
        self.buffer = self.model = zeros
        self.make_rule: Callable[[int], Update] | None = None

    def local_step(self, samples: int) -> None:
        pass

    def apply(self, round: int) -> None:
        pass


@lru_cache(maxsize=1)  # the sites of a simulation share it
def _nothing(elements: int) -> Floats:
    return np.zeros(elements, np.float32)


def describe(task: Task) -> tuple[str, str]:
    """Return the data and the model of a task, as words for titles."""
    match task:
        case Train():
            return task.data, task.model
        case Own():
            return "own", task.factory
        case Exchange():
            return "exchange", task.profile or f"{task.elements} elements"


# Sites that compute nothing exchange these whole numbers. They are so small that float32 adds them
# exactly in any order, so the mean is known to the last bit.
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
