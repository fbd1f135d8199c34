"""The accuracy that a run ends with is that of its final model, at every route and pace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from _pytest.mark.structures import ParameterSet
from safetensors.torch import load_file

from anabranch.log import Evaluated, read_events
from anabranch.overlay import dumps, random_complete
from anabranch_lab.run.checkpoints import weights_of
from anabranch_lab.run.scenario import load
from anabranch_lab.run.simulate import simulate
from anabranch_lab.tasks.kinds import load_task
from anabranch_lab.tasks.models import build_model
from tests.seeds import slow_after

SITES = random_complete(4, 0, low_bps=50e6, high_bps=100e6, latency_s=0.002)
PACES = {
    "all-reduce": "",
    "barrier": "pace = {kind = 'bsp'}\nserve.mixes = 'updates'",
    "asp": "pace = {kind = 'asp'}",
    "ssp": "pace = {kind = 'ssp', lead = 2}",
    "safa": "pace = {kind = 'safa', fraction = 0.5}",
    "safa's cache": "pace = {kind = 'safa', deadline_s = 0.3}\nserve.mixes = 'cache'\n"
    "period = {kind = 'every', steps = 2}",
    "r2sp": "pace = {kind = 'r2sp'}",
    "fedavg": "pace = {kind = 'fedavg', sample = 0.5}\nperiod = {kind = 'every', steps = 2}",
    "fedbuff": "pace = {kind = 'fedbuff', size = 3}\nperiod = {kind = 'every', steps = 2}",
    "fl-r2sp": "pace = {kind = 'fl-r2sp', groups = 2}\nperiod = {kind = 'every', steps = 2}",
    "ahead": "pace = {kind = 'asp'}\nserve.ahead = true",
    "averages": "period = {kind = 'every', steps = 3}",
    "gossip": "period = {kind = 'every', steps = 2}\ngossip = {rule = 'pairs'}",
}
ROUTES = {
    "star at the first worker": 'route = {kind = "star", hub = "site0"}',
    "star at another": 'route = {kind = "star", hub = "site2"}',
    "server alone": 'route = {kind = "star", hub = "site0"}\nserve.only = ["site0"]',
    "packed": 'route = {kind = "packed"}',
}
STOPS = {
    "rounds": "stop.rounds = 9",
    "evaluated round": "stop.rounds = 8\ntask.evaluate_every = 4",
    "time": "stop = {rounds = 1000, after_s = 0.9}",
    "target": "stop = {rounds = 1000, at_target = true}\n"
    "task.evaluate_every = 4\ntask.target_accuracy = 0.5",
    "told": "stop.rounds = 9\ntask.evaluate_every_s = 0.2",
}


def accuracy_of(log: Path) -> float:
    """Return the accuracy of the weights that a run left."""
    task = load_task("digits")
    model = build_model("softmax", task.shape, task.classes, seed=0)
    model.load_state_dict(load_file(weights_of(log)))
    with torch.inference_mode():
        found = model(task.held_out_inputs).argmax(-1)
    return float((found == task.held_out_labels).double().mean())


TASK = """
overlay = "overlay.toml"
compute.samples_per_s = 1000
task.kind = "train"
task.data = "digits"
task.model = "softmax"
task.learning_rate = 0.1
task.batch_size = 16
"""


def evaluated(folder: Path, pace: str, route: str, stop: str) -> list[Evaluated]:
    """Simulate a scenario; return what its log says of accuracy."""
    (folder / "overlay.toml").write_text(dumps(SITES))
    path = folder / "scenario.toml"
    path.write_text("\n".join((TASK, PACES[pace], ROUTES[route], STOPS[stop])))
    simulate(*load(path), folder / "run.db")
    seen = [event for _, event in read_events(folder / "run.db")]
    return [event for event in seen if isinstance(event, Evaluated)]


def check(folder: Path, seen: list[Evaluated]) -> None:
    assert seen
    last_s = max(event.at_s for event in seen)
    last = {round(event.accuracy, 9) for event in seen if event.at_s == last_s}
    assert last == {round(accuracy_of(folder / "run.db"), 9)}
    looks = Counter((event.site, event.round, event.step) for event in seen)
    assert set(looks.values()) == {1}, "no round is looked at twice"


def pairs(which: Iterable[str]) -> list[ParameterSet]:
    """Return paces with each of these where that can be; every other pair is fast."""
    return [
        pytest.param(pace, each, marks=[] if (i + j) % 2 == 0 else [pytest.mark.slow])
        for i, pace in enumerate(PACES)
        for j, each in enumerate(which)
        if PACES[pace].startswith("pace") or each not in ("server alone", "told")
    ]


@pytest.mark.parametrize(("pace", "route"), pairs(ROUTES))
def test_the_final_model_is_evaluated_over_every_route(
    pace: str, route: str, tmp_path: Path
) -> None:
    check(tmp_path, evaluated(tmp_path, pace, route, "rounds"))


@pytest.mark.slow
@pytest.mark.parametrize("route", slow_after(1, ["packed", "star at the first worker"]))
@pytest.mark.parametrize(("pace", "stop"), pairs(STOPS))
def test_the_final_model_is_evaluated_however_a_run_stops(
    pace: str, stop: str, route: str, tmp_path: Path
) -> None:
    check(tmp_path, evaluated(tmp_path, pace, route, stop))
