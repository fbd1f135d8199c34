"""Batches that are stated for each site: their time, and their weight wherever sites meet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from anabranch.log import RunSummary, read_events, summarise
from anabranch.log.events import StepDone
from anabranch.overlay import random_complete
from anabranch.plan import ForestRoute
from anabranch_lab.run.checkpoints import weights_of
from anabranch_lab.run.scenario import Scenario, ScenarioError, loads, with_compute_times
from anabranch_lab.run.scenario._checks import check
from anabranch_lab.run.simulate import simulate

SITES = random_complete(3, 0, low_bps=50e6, high_bps=100e6, latency_s=0.001)
SAMPLES = [10, 4, 10]  # site1's batch is stated, and the others' are the task's
# Each site's gradient is its own number, so one step moves a model of zeros to minus their mean.
NUMBERS = """
import numpy as np
from anabranch.train.optimisers import Sgd

class Work:
    make_rule = Sgd(1.0).start

    def __init__(self, context):
        self.own = context.site + 1
        self.model = np.zeros(40, np.float32)
        self.buffer = np.zeros(40, np.float32)

    def local_step(self, samples):
        self.buffer[:] = self.own

    def apply(self, round):
        self.model -= self.buffer

    def evaluate(self):
        return 0.0

    def state_dict(self):
        return {"model": {"weights": self.model}}

    def load_state_dict(self, state):
        self.model[:] = state["model"]["weights"]

def make(context):
    return Work(context)
"""
TEXT = """
overlay = "unused"
%s
[load]
kind = "stated"
samples = {site1 = 4}
[stop]
rounds = 1
[task]
kind = "own"
factory = "%s:make"
folder = "%s"
batch_size = 10
[compute]
samples_per_s = 100
"""


def run(more: str, folder: Path) -> tuple[RunSummary, np.ndarray]:
    module = f"numbers_{abs(hash(str(folder)))}"
    (folder / f"{module}.py").write_text(NUMBERS)
    simulate(loads(TEXT % (more, module, folder)), SITES, folder / "run.db")
    done = summarise(event for _, event in read_events(folder / "run.db"))
    assert done.error is None
    return done, load_file(weights_of(folder / "run.db"))["weights"]


@pytest.mark.parametrize(
    "more",
    [
        "",
        'period = {kind = "every", steps = 1}',
        'gossip = {rule = "pairs"}',
        'gossip = {rule = "push-sum"}',
    ],
    ids=["all-reduce", "average", "pairs", "push-sum"],
)
def test_a_site_weighs_in_proportion_to_its_batch_without_servers(
    more: str, tmp_path: Path
) -> None:
    done, model = run(more, tmp_path)
    expected = -np.dot(SAMPLES, [1, 2, 3]) / sum(SAMPLES)
    assert model == pytest.approx(np.full(40, expected), rel=1e-5)
    steps = {each.site: each for each in done.steps if isinstance(each, StepDone)}
    assert [steps[site].samples for site in range(3)] == SAMPLES
    assert [steps[site].compute_s for site in range(3)] == pytest.approx([0.1, 0.04, 0.1])


def test_a_served_model_goes_as_far_as_the_stated_batches_over_the_usual_one(
    tmp_path: Path,
) -> None:
    done, model = run('route = {kind = "star"}\nserve = {}', tmp_path)
    expected = -np.dot([1.0, 0.4, 1.0], [1, 2, 3]) / 3
    assert model == pytest.approx(np.full(40, expected), rel=1e-5)
    assert sorted(each.samples for each in done.steps) == sorted(SAMPLES)


def text(more: str = "", site: str = "site1") -> str:
    return (
        'overlay = "unused"\nstop.rounds = 2\ncompute.samples_per_s = 100\n'
        'task = {kind = "train", model = "softmax", learning_rate = 0.1, batch_size = 10}\n'
        f'load = {{kind = "stated", samples = {{{site} = 4}}}}\n{more}'
    )


def test_a_forest_is_formed_for_the_stated_batches() -> None:
    scenario: Scenario = loads(text('route = {kind = "forest"}\npace = {kind = "asp"}'))
    (route,) = scenario.routes
    assert isinstance(route, ForestRoute)
    assert with_compute_times(route, scenario, SITES).compute_s == pytest.approx(
        {"site0": 0.1, "site1": 0.04, "site2": 0.1}
    )


def test_a_stated_batch_of_no_site_is_named() -> None:
    with pytest.raises(ScenarioError, match=r"load\.samples: the overlay has no site 'site9'"):
        check(loads(text(site="site9")), SITES)


def test_gossip_that_scales_gradients_needs_sgd() -> None:
    gossip = text('gossip = {rule = "pairs"}')
    loads(gossip)
    with pytest.raises(ScenarioError, match=r'task\.optimiser = "adam" undoes'):
        loads(gossip.replace("batch_size", 'optimiser = "adam", batch_size'))


def test_an_exchange_has_nothing_that_a_stated_batch_weighs() -> None:
    exchange = 'task = {kind = "exchange", elements = 8, batch_size = 9}\n'
    lines = text().splitlines()
    with pytest.raises(ScenarioError, match="load: stated batches weigh gradients and models"):
        loads("\n".join([*lines[:2], lines[2], exchange, lines[4]]))
