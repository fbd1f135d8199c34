"""Sites that gossip: in simulation, under outages, and as processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from anabranch.log import RunSummary, read_events, summarise
from anabranch.log.events import StepDone
from anabranch.net.errors import RunAborted
from anabranch.overlay import Link, Overlay, Site, dumps, random_complete
from anabranch.site._connections import Connections
from anabranch_lab.run.checkpoints import Course, check_course, weights_of
from anabranch_lab.run.launch import run_locally
from anabranch_lab.run.scenario import Scenario, ScenarioError, loads
from anabranch_lab.run.simulate import simulate
from tests.seeds import slow_after

COMPLETE = random_complete(5, 0, low_bps=50e6, high_bps=100e6, latency_s=0.02)
RING = Overlay(
    "ring",
    tuple(Site(f"site{i}") for i in range(5)),
    tuple(
        Link(i, (i + step) % 5, 50e6, 0.02 + 0.03 * i, latency_drift_s=0.01)
        for i in range(5)
        for step in (1, 4)
    ),
)
# Each site pulls towards a point of its own, with the same curvature: plain SGD on all of them ends
# at the points' mean, from wherever it begins, and so does every scheme that keeps the mean.
PULLS = """
import numpy as np

class Work:
    make_rule = None

    def __init__(self, context):
        drawn = np.random.default_rng(context.site)
        self.goal = drawn.normal(size=100).astype(np.float32)
        begins = drawn.normal(size=100).astype(np.float32) * context.options["apart"]
        self.model = begins + np.float32(0)  # at 0 and nowhere at -0, which has other bits
        self.buffer = np.zeros(100, np.float32)
        self.rate = np.float32(context.options["rate"])

    def local_step(self, samples):
        self.buffer[:] = self.model - self.goal

    def apply(self, round):
        self.model -= self.rate * self.buffer

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
overlay = "overlay.toml"
chunk_elements = 30
seed = %d
%s
[stop]
rounds = %d
[task]
kind = "own"
factory = "pulls_%s:make"
options = {apart = %s, rate = %s}
[compute]
samples_per_s = 1000
jitter = {kind = "lognormal", cv = 0.5}
"""


class Ground:
    """A folder with the work's module, whose name no other test's has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = f"{abs(hash(str(folder)))}"
        (folder / f"pulls_{self.name}.py").write_text(PULLS)

    def text(self, more: str, rounds: int, rate: float, apart: float, seed: int = 0) -> str:
        return TEXT % (seed, more, rounds, self.name, float(apart), float(rate))

    def scenario(
        self, more: str, rounds: int, rate: float, apart: float, seed: int = 0
    ) -> Scenario:
        found = loads(self.text(more, rounds, rate, apart, seed))
        task = type(found.task)(
            factory=f"pulls_{self.name}:make",
            folder=str(self.folder),
            options={"apart": float(apart), "rate": float(rate)},
        )
        return type(found)(
            **{name: getattr(found, name) for name in found.__struct_fields__ if name != "task"},
            task=task,
        )


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


def drawn(apart: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of the goals, and of the models at the beginning."""
    goals, models = [], []
    for site in range(5):
        draw = np.random.default_rng(site)
        goals.append(draw.normal(size=100))
        models.append(draw.normal(size=100) * apart)
    return np.mean(goals, axis=0), np.mean(models, axis=0)


def run(ground: Ground, overlay: Overlay, scenario: Scenario) -> tuple[RunSummary, np.ndarray]:
    log = ground.folder / f"run-{len([*ground.folder.glob('*.db')])}.db"
    simulate(scenario, overlay, log)
    done = summarise(event for _, event in read_events(log))
    assert done.error is None
    assert not done.refused
    assert done.checksums_agree is not False
    return done, load_file(weights_of(log))["weights"]


RULES = ["pairs", "push-sum"]


@pytest.mark.parametrize("overlay", [COMPLETE, RING], ids=["complete", "ring"])
@pytest.mark.parametrize("rule", RULES)
def test_the_mean_of_models_that_learn_nothing_is_kept(
    rule: str, overlay: Overlay, ground: Ground
) -> None:
    gossip = f'gossip = {{rule = "{rule}", peers = {{kind = "random", share = 0.5}}}}'
    _, before = drawn(apart=1.0)
    _, found = run(ground, overlay, ground.scenario(gossip, rounds=40, rate=0.0, apart=1.0))
    assert found == pytest.approx(before, abs=2e-5)


AVERAGES = [
    'period = {kind = "every-step"}',
    'period = {kind = "every", steps = 4}',
    'period = {kind = "moved", by = 0.05, most_steps = 8}',
    'period = {kind = "every", steps = 4}\naverage = {delay = 3}',
    'period = {kind = "every", steps = 4}\naverage = {fragments = 2, delay = 2}',
    'period = {kind = "every", steps = 2}\naverage = {outer = {learning_rate = 0.5}}',
]
GOSSIP = [
    "gossip = {}",
    'gossip = {peers = {kind = "latency"}, most_ahead = 4}',
    'gossip = {}\nperiod = {kind = "every", steps = 3}',
    'gossip = {}\nperiod = {kind = "moved", by = 0.02, most_steps = 8}',
    'gossip = {}\nmerge = {kind = "staleness", a = 0.5}',
    'gossip = {rule = "push-sum", most_ahead = 4}',
]


@pytest.mark.parametrize("scheme", slow_after(2, AVERAGES))
def test_averages_come_to_plain_sgds_solution_on_a_convex_task(scheme: str, ground: Ground) -> None:
    goal, _ = drawn(apart=0.0)
    rounds = 20 if "steps = 4" in scheme else 60
    _, found = run(ground, RING, ground.scenario(scheme, rounds, rate=0.2, apart=0.0))
    assert found == pytest.approx(goal, abs=2e-3)


@pytest.mark.parametrize("scheme", slow_after(1, GOSSIP))
def test_gossip_comes_to_plain_sgds_solution_on_a_convex_task(scheme: str, ground: Ground) -> None:
    # Sites end at different times, and who steps last pulls the mean once more: by its rate.
    goal, _ = drawn(apart=0.0)
    errors = []
    for rate in (0.08, 0.02):
        steps = round(5 / rate / (3 if "every" in scheme else 1))
        _, found = run(ground, RING, ground.scenario(scheme, steps, rate, apart=0.0))
        errors.append(float(np.abs(found - goal).max()))
    assert errors[1] < 0.15
    assert errors[1] < errors[0]


@pytest.mark.parametrize("bound", slow_after(1, [1, 3]))
@pytest.mark.parametrize("seed", range(4))
def test_no_site_is_further_ahead_than_the_bound(bound: int, seed: int, ground: Ground) -> None:
    slow = f"gossip = {{most_ahead = {bound}}}\n" + (
        'fault = [{kind = "slow", site = "site2", factor = 5.0, at_s = 0.1, for_s = 2.0},'
        '{kind = "cut", site = "site4", at_s = 0.5, for_s = 1.0}]'
    )
    done, _ = run(ground, RING, ground.scenario(slow, 40, rate=0.05, apart=0.0, seed=seed))
    finished = [0] * 5
    furthest = 0
    for step in done.steps:
        finished[step.site] += 1
        furthest = max(furthest, finished[step.site] - min(finished))
    assert finished == [40] * 5
    assert 1 <= furthest <= bound


@pytest.mark.parametrize("rule", RULES)
def test_all_go_on_while_split_and_come_together_again(rule: str, ground: Ground) -> None:
    # Two parts of a ring that is cut in two places, from 0.3 s on for one second.
    cut = ", ".join(
        f'{{kind = "cut", pair = ["site{a}", "site{b}"], at_s = 0.3, for_s = 1.0}}'
        for a, b in ((1, 2), (4, 0))
    )
    more = f'gossip = {{rule = "{rule}"}}\nfault = [{cut}]'
    _, before = drawn(apart=1.0)
    done, found = run(ground, RING, ground.scenario(more, 60, rate=0.0, apart=1.0))
    split = [step.site for step in done.steps if 0.4 < step.at_s < 1.2]
    assert {*split} == {*range(5)}, "some site stood still"
    assert found == pytest.approx(before, abs=2e-5)


@pytest.mark.parametrize("bound", ["", ", most_ahead = 2"])
def test_the_others_go_on_without_a_site_that_dies(bound: str, ground: Ground) -> None:
    more = (
        f'gossip = {{rule = "pairs"{bound}}}\non_loss = "complete"\n'
        'fault = [{kind = "kill", site = "site3", at_s = 0.4}]'
    )
    done, _ = run(ground, RING, ground.scenario(more, 40, rate=0.05, apart=0.0))
    by_site = [sum(step.site == site for step in done.steps) for site in range(5)]
    assert by_site[3] < 40
    assert [*by_site[:3], by_site[4]] == [40] * 4


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_six_processes_gossip_through_outages_and_a_partition(ground: Ground) -> None:
    sites = tuple(Site(f"site{i}") for i in range(6))
    links = tuple(Link(i, j, 50e6, 0.02) for i in range(6) for j in range(6) if i != j)
    overlay = Overlay("six", sites, links)
    more = (
        'gossip = {most_ahead = 60}\nwait_s = 120\nfault = [{kind = "partition", '
        'groups = [["site0", "site1", "site2"]], at_s = 1.0, for_s = 4.0}, '
        '{kind = "outages", all = true, up_s = 4.0, down_s = 1.0, until_s = 8.0}]'
    )
    path = ground.folder / "scenario.toml"
    path.write_text(ground.text(more, rounds=150, rate=0.0, apart=1.0))
    (ground.folder / "overlay.toml").write_text(dumps(overlay))
    run_locally(path, 0, overlay, ground.folder / "run.db")
    done = summarise(event for _, event in read_events(ground.folder / "run.db"))
    assert {fault.fault for fault in done.faults} == {"partition", "outages"}
    assert not done.refused
    assert len(done.steps) == 6 * 150
    assert {step.site for step in done.steps if 1.5 < step.at_s < 4.5} == {*range(6)}
    found = load_file(weights_of(ground.folder / "run.db"))["weights"]
    models = [np.random.default_rng(site).normal(size=(2, 100))[1] for site in range(6)]
    assert found == pytest.approx(np.mean(models, axis=0), abs=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.usefixtures("forked")
def test_processes_gossip_and_keep_the_mean(rule: str, ground: Ground) -> None:
    path = ground.folder / "scenario.toml"
    gossip = f'gossip = {{rule = "{rule}", most_ahead = 5}}'
    path.write_text(ground.text(gossip, rounds=20, rate=0.0, apart=1.0))
    (ground.folder / "overlay.toml").write_text(dumps(RING))
    run_locally(path, 0, RING, ground.folder / "run.db")
    done = summarise(event for _, event in read_events(ground.folder / "run.db"))
    assert done.checksums_agree
    assert not done.refused
    steps = [event for event in done.steps if isinstance(event, StepDone)]
    assert len(steps) == 100
    _, before = drawn(apart=1.0)
    found = load_file(weights_of(ground.folder / "run.db"))["weights"]
    assert found == pytest.approx(before, abs=2e-5)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('pace = {kind = "asp"}', "pace: sites that gossip wait for no others"),
        ("serve = {}", "serve: sites that gossip"),
        ('period = {kind = "every", steps = 2}\naverage = {delay = 1}', "average: sites that"),
        ('merge = {kind = "fairness"}', 'merge.kind: "fairness" weighs by losses'),
    ],
)
def test_what_gossip_does_not_go_with_is_named(more: str, said: str, ground: Ground) -> None:
    with pytest.raises(ScenarioError, match=said):
        ground.scenario("gossip = {}\n" + more, 5, 0.1, 0.0)


def test_gossip_is_not_saved(ground: Ground) -> None:
    with pytest.raises(ScenarioError, match="gossip: some model is always on its way"):
        check_course(ground.scenario("gossip = {}", 5, 0.1, 0.0), Course(save_every=2))


def test_sites_that_wait_for_the_bound_hear_that_the_run_has_ended(ground: Ground) -> None:
    more = 'gossip = {most_ahead = 2}\nfault = [{kind = "kill", site = "site1", at_s = 0.1}]'
    with pytest.raises(RunAborted, match=r"site1\) died"):
        run(ground, RING, ground.scenario(more, 10, rate=0.0, apart=1.0))


def test_a_site_lost_in_the_last_average_does_not_scale_the_model(ground: Ground) -> None:
    gossip = 'gossip = {rule = "push-sum"}\non_loss = "complete"\n%s'
    alike = Ground(ground.folder)
    module = ground.folder / f"pulls_{ground.name}.py"
    drawn_model = 'drawn.normal(size=100).astype(np.float32) * context.options["apart"]'
    module.write_text(PULLS.replace(drawn_model, "np.ones(100, np.float32)"))
    whole, _ = run(alike, COMPLETE, alike.scenario(gossip % "", 6, rate=0.0, apart=1.0))
    for early_s in (0.005, 0.01, 0.02):
        kill = f'fault = [{{kind = "kill", site = "site3", at_s = {whole.total_s - early_s}}}]'
        _, found = run(alike, COMPLETE, alike.scenario(gossip % kill, 6, rate=0.0, apart=1.0))
        assert found == pytest.approx(np.ones(100), abs=1e-5)


@pytest.mark.slow
def test_letters_of_a_site_that_is_given_up_are_thrown_away(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connections, "that_may_pipe", lambda self: [])  # or it would not be
    more = (
        'gossip = {}\non_loss = "complete"\n'
        'fault = [{kind = "disconnect", site = "site1", at_s = 0.5, for_s = 60.0}]'
    )
    done, _ = run(ground, COMPLETE, ground.scenario(more, 600, rate=0.0, apart=1.0))
    assert done.total_s < 25.0  # no site waits for its answers
