"""No key of a scenario does nothing in silence: it changes the run, or it is refused by name."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from anabranch.log import read_events
from anabranch.log.events import RunStarted
from anabranch.overlay import Overlay, random_complete
from anabranch_lab.run.scenario import (
    Scenario,
    ScenarioError,
    check_simulable,
    loads,
    without_numbers,
)
from anabranch_lab.run.scenario._checks import check, check_keys
from anabranch_lab.run.simulate import simulate

EXCHANGE = 'overlay = "aws-8"\nstop.rounds = 2\ntask = {kind = "exchange", elements = 8}\n'
TRAIN = (
    'overlay = "aws-8"\nstop.rounds = 2\n'
    'task = {kind = "train", model = "softmax", learning_rate = 0.1}\n'
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            EXCHANGE + "compute.samples_per_s = 9",
            "compute.samples_per_s: a step has no samples; give task.batch_size, or",
        ),
        (
            EXCHANGE + 'compute = {fixed_s = 1, sites = {"a" = {samples_per_s = 9}}}',
            "compute.sites.a.samples_per_s: a step has no samples",
        ),
        (
            EXCHANGE + 'serve = {mixes = "models"}\npace = {kind = "asp"}',
            "serve.mixes: an exchange has no model that is trained; leave it out",
        ),
        (
            EXCHANGE + 'serve = {}\npace = {kind = "asp", share = 0.5}',
            "pace.share: an exchange has no model that is trained",
        ),
        (EXCHANGE + "compute.gini = 0.2", "compute.gini: it is of the sites' speeds; give"),
        (
            EXCHANGE + 'compute.jitter = {kind = "constant", delay_s = 2}',
            "compute.jitter: a step has no work; give task.batch_size or fixed_s",
        ),
        (TRAIN + "compute.sites = {}", "compute: it does not say how long a batch takes"),
        (EXCHANGE.replace("8}", "8, batch_size = 2}"), "task.batch_size: nothing says how long"),
        (EXCHANGE + 'period = {kind = "every", steps = 2}', "period: an exchange computes nothing"),
        (
            TRAIN + 'stop.reached_by = "all"',
            "stop.reached_by: there is no target; give task.target",
        ),
        (TRAIN + "stop.window_s = 9.0", "stop.window_s: there is no target; give task.target"),
        (
            TRAIN.replace("0.1}", '0.1, target_accuracy = 0.5}\nsimulation.tensors = "sizes"'),
            "task.target_accuracy: nothing is learnt where simulation.tensors is sizes",
        ),
        (EXCHANGE + "least_sites = 3", 'least_sites: on_loss = "abort" ends the run at the first'),
        (
            TRAIN + 'least_sites = 3\npace = {kind = "asp"}',
            "least_sites: where the model is served, the others go on without a worker",
        ),
        (TRAIN + 'pace = {kind = "fedavg", seed = 3}', "pace.seed: all clients are in each round"),
        (
            EXCHANGE + 'awareness = {kind = "passive", probe_chunks = 2}',
            "awareness.probe_chunks: only the chunk-mean estimator has probes",
        ),
    ],
)
def test_a_key_without_effect_is_refused_with_what_would_give_it_one(text: str, said: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        loads(text)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        EXCHANGE + "compute.fixed_s = 0.5",
        EXCHANGE + 'compute.added_delay = {kind = "constant", delay_s = 2}',
        EXCHANGE.replace("8}", "8, batch_size = 2}") + "compute.samples_per_s = 9",
        TRAIN + "compute.fixed_s = 0.5",
        EXCHANGE + 'least_sites = 3\non_loss = "retry"',
        TRAIN + 'pace = {kind = "fedavg", sample = 0.5, seed = 3}',
        EXCHANGE + 'awareness = {kind = "passive", estimator = "chunk-mean", probe_chunks = 2}',
        EXCHANGE + 'compute.fixed_s = 1\nperiod = {kind = "every", steps = 2}',
    ],
)
def test_a_key_with_effect_is_taken(text: str) -> None:
    loads(text)


def test_a_simulation_of_sizes_names_what_is_for_training() -> None:
    given = (
        TRAIN.replace("0.1", "0.1, momentum = 0.9, evaluate_every = 2, partition.kind = 'shards'")
        + 'sampling = {kind = "resampled"}\nserve = {mixes = "models"}\n'
        'pace = {kind = "asp", share = 0.5}\n'
    )
    assert not [*without_numbers(loads(given))]
    named = [*without_numbers(loads(given + 'simulation.tensors = "sizes"'))]
    assert named == [
        *("task.momentum", "task.partition", "task.evaluate_every"),
        *("sampling", "serve.mixes", "pace.share"),
    ]
    assert not [*without_numbers(loads(TRAIN + 'simulation.tensors = "sizes"'))]


OVERLAY = random_complete(3, 0)
BASES: dict[str, dict[str, Any]] = {
    "exchange": {
        "overlay": "three",
        "task": {"kind": "exchange", "elements": 300_000, "batch_size": 10},
        "stop": {"rounds": 3},
        "compute": {"samples_per_s": 100.0, "fixed_s": 0.1},
        "route": {"kind": "star"},
    },
    "bare exchange": {
        "overlay": "three",
        "task": {"kind": "exchange", "elements": 300_000},
        "stop": {"rounds": 3},
        "route": {"kind": "star"},
    },
    "train": {
        "overlay": "three",
        "task": {
            "kind": "train",
            "model": "softmax",
            "learning_rate": 0.1,
            "batch_size": 16,
            "evaluate_every": 2,
            "target_accuracy": 0.99,
        },
        "stop": {"rounds": 3, "at_target": True},
        "chunk_elements": 216,  # one more is a chunk less
        "compute": {"samples_per_s": 100.0},
        "route": {"kind": "star"},
    },
}
# What may change nothing here, and why.
EXCUSED = {
    "label": "is for titles",
    "graph": "an overlay that is given as a value is read from no file",
    "wait_s": "no site is silent",
    "seed": "nothing is drawn in an exchange",
    "congestion_control": "is for real connections",
    "shaped": "a simulation's links always are",
    "stop.after_s": "the run ends before that",
    "stop.at_target": "the target is not reached",
    "stop.reached_by": "likewise",
    "stop.window_s": "likewise",
    "task.target_accuracy": "likewise",
    "deal": "one tree has nothing to deal to",
    "awareness": "the network does not change",
    "auxiliary": "no path helps",
    "sample_every_s": "the run is shorter",
    "task.data": "needs files",
    "task.model": "others take minutes",
    "task.evaluate_samples": "takes all",
}


def alternatives(info: Any, now: Any) -> Iterator[Any]:
    """Yield other values of a key's type than the one that it has."""
    for kind in info.types if isinstance(info, inspect.UnionType) else (info,):
        match kind:
            case inspect.BoolType():
                yield not now
            case inspect.FloatType():
                most = kind.lt if kind.lt is not None else kind.le
                yield 0.3 if most is not None and most <= 1 else 1.5 * (now or 1.0)
            case inspect.IntType():
                yield 20_000 if now is None else now + 1
            case inspect.LiteralType():
                yield from (value for value in kind.values if value != now)


def changed(kind: Any, table: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a table with one key changed, for every key and table below, and the key's path."""
    structs = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    [struct] = [
        each
        for each in structs
        if isinstance(each, inspect.StructType)
        and (each.tag_field is None or each.tag == table.get(each.tag_field))
    ]
    for field in struct.fields:
        name, below = field.encode_name, f"{path}.{field.encode_name}" if path else field.name
        now = table.get(name, None if field.required else field.default)
        if isinstance(now, dict):
            for where, other in changed(field.type, now, below):
                yield where, {**table, name: other}
        else:
            for other in alternatives(field.type, now):
                yield below, {**table, name: other}


def behaviour(document: dict[str, Any], folder: Path, overlay: Overlay = OVERLAY) -> list[bytes]:
    """Return all that happens in a run, but for what the first event says of the scenario."""
    scenario = msgspec.convert(copy.deepcopy(document), Scenario)
    check_keys(scenario)
    check(scenario, overlay)
    check_simulable(scenario)
    log = folder / "run.db"
    log.unlink(missing_ok=True)
    simulate(scenario, overlay, log, None)
    events = [event for _, event in read_events(log)]
    return [msgspec.json.encode(event) for event in events if not isinstance(event, RunStarted)]


@pytest.mark.slow
@pytest.mark.parametrize("name", BASES)
def test_every_key_changes_the_run_or_is_refused(name: str, tmp_path: Path) -> None:
    usual, silent, effective = behaviour(BASES[name], tmp_path), set(), 0
    for path, document in changed(inspect.type_info(Scenario), BASES[name], ""):
        if path in EXCUSED or any(path.startswith(f"{key}.") for key in EXCUSED):
            continue
        try:
            found = behaviour(document, tmp_path)
        except ValueError:
            continue  # refused by name
        effective += 1
        if found == usual:
            silent.add(path)
    assert silent == set()
    assert effective >= 5
