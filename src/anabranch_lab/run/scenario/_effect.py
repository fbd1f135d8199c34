"""Keys that have no effect beside the others: name each, with what would give it an effect.

A key with its default value counts as not given. `tests/run/scenario` changes every key of small
scenarios, one at a time, and looks whether the run changes. `test_every_key.py` fails for a key
that changes none of them, and so finds the next key without effect.
"""

from __future__ import annotations

from collections.abc import Iterator

from anabranch.fleet import Compute, SiteCompute
from anabranch.pace import Asp, FedAvg, FedBuff
from anabranch.period import EveryStep
from anabranch.scheduler.paced import Serve
from anabranch_lab.run.scenario._model import LEAST_SITES, Scenario
from anabranch_lab.run.scenario.tasks import Exchange, Train
from anabranch_lab.tasks.sampling import Shuffled


def without_effect(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Yield each given key that has no effect, with the reason and the fix."""
    yield from _of_compute(scenario)
    yield from _of_pace(scenario)
    task, stop = scenario.task, scenario.stop
    if stop.reached_by != "first" and task.target_accuracy is None:
        yield "stop.reached_by", "there is no target; give task.target_accuracy, or leave it out"
    if stop.window_s and task.target_accuracy is None:
        yield "stop.window_s", "there is no target; give task.target_accuracy, or leave it out"
    if task.target_accuracy is not None and scenario.simulation.tensors == "sizes":
        yield (
            "task.target_accuracy",
            "nothing is learnt where simulation.tensors is sizes; leave one of them out",
        )
    if scenario.least_sites != LEAST_SITES:
        if scenario.is_served:
            yield (
                "least_sites",
                "where the model is served, the others go on without a worker in any case; leave "
                "it out",
            )
        elif scenario.on_loss == "abort":
            yield (
                "least_sites",
                'on_loss = "abort" ends the run at the first loss; give on_loss = "complete" or '
                '"retry", or leave it out',
            )


def without_numbers(scenario: Scenario) -> Iterator[str]:
    """Yield each key of training that is given in a run whose chunks have only sizes.

    Such a run times a training scenario unchanged, so it warns of these keys and accepts them.
    """
    task, pace = scenario.task, scenario.pace
    if scenario.simulation.tensors != "sizes" or isinstance(task, Exchange):
        return
    if isinstance(task, Train):
        usual = Train(learning_rate=task.learning_rate)
        for key in (
            "optimiser",
            "schedule",
            "momentum",
            "partition",
            "evaluate_every",
            "evaluate_every_s",
            "evaluate_samples",
        ):
            if getattr(task, key) != getattr(usual, key):
                yield f"task.{key}"
    if scenario.sampling != Shuffled():
        yield "sampling"
    if scenario.serve is not None and scenario.serve.mixes != Serve().mixes:
        yield "serve.mixes"
    if isinstance(pace, Asp | FedBuff) and pace.share != type(pace)().share:
        yield "pace.share"


def _of_pace(scenario: Scenario) -> Iterator[tuple[str, str]]:
    pace = scenario.pace
    if isinstance(pace, FedAvg) and pace.sample == 1 and pace.seed != FedAvg().seed:
        yield (
            "pace.seed",
            "all clients are in each round, so none is drawn; give pace.sample below 1, or leave "
            "it out",
        )
    mixes = scenario.serve.mixes if scenario.serve is not None else Serve().mixes
    if isinstance(scenario.task, Exchange):
        no_model = "an exchange has no model that is trained; leave it out, or give another task"
        if mixes != Serve().mixes:
            yield "serve.mixes", no_model
        if isinstance(pace, Asp | FedBuff) and pace.share != type(pace)().share:
            yield "pace.share", no_model


def _of_compute(scenario: Scenario) -> Iterator[tuple[str, str]]:
    compute, samples = scenario.compute, scenario.task.batch_size
    takes_time = compute is not None and samples > 0
    if compute is not None:
        tables: dict[str, Compute | SiteCompute] = {"compute": compute}
        tables |= {f"compute.sites.{name}": own for name, own in compute.sites.items()}
        if compute.gini and compute.samples_per_s is None:
            yield "compute.gini", "it is of the sites' speeds; give compute.samples_per_s"
        if samples and compute.samples_per_s is None and not compute.fixed_s:
            yield (
                "compute",
                "it does not say how long a batch takes; give samples_per_s, or fixed_s where that "
                "does not go by samples",
            )
        has_work = samples > 0 or any(table.fixed_s for table in tables.values())
        for path, table in tables.items():
            if not samples and table.samples_per_s is not None:
                yield (
                    f"{path}.samples_per_s",
                    "a step has no samples; give task.batch_size, or compute.fixed_s for work "
                    "without samples, or leave it out",
                )
            for key in ("jitter", "slowdowns"):
                if getattr(table, key, None) is not None and not has_work:
                    yield f"{path}.{key}", "a step has no work; give task.batch_size or fixed_s"
        takes_time = has_work or any(table.added_delay is not None for table in tables.values())
    elif isinstance(scenario.task, Exchange) and samples:
        yield (
            "task.batch_size",
            "nothing says how long samples take; give compute.samples_per_s, or leave it out",
        )
    is_idle = isinstance(scenario.task, Exchange) and not takes_time
    if is_idle and not isinstance(scenario.period, EveryStep):
        yield (
            "period",
            "an exchange computes nothing between two of them; give task.batch_size and [compute], "
            "or leave it out",
        )
