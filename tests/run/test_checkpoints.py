"""A run that was killed and resumed ends with the same bits as one that never was."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import msgspec
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from anabranch.group.serve import Process
from anabranch.log import read_events, summarise
from anabranch.log.events import StepDone
from anabranch.net.errors import RunAborted
from anabranch.overlay import dumps, random_complete
from anabranch.pace import Asp
from anabranch_lab.run.checkpoints import (
    CheckpointError,
    Course,
    Files,
    Job,
    Keeper,
    checkpoints_of,
    find,
    round_of,
    weights_of,
)
from anabranch_lab.run.control import run_scheduler
from anabranch_lab.run.launch import run_locally
from anabranch_lab.run.scenario import Scenario, ScenarioError, Serve, Stop, load, loads
from anabranch_lab.run.scenario._model import Simulation
from anabranch_lab.run.simulate import simulate
from anabranch_lab.tasks.models import build_model
from anabranch_lab.tasks.states import load_state, save_state

SITES = random_complete(3, 0, low_bps=50e6, high_bps=100e6, latency_s=0.001)
SAVED_EVERY = 4
TASKS = {
    "momentum": 'data = "digits"\nmodel = "softmax"\nlearning_rate = 0.3\nmomentum = 0.9',
    "adam": 'data = "digits"\nmodel = "mlp"\nhidden = [8]\n'
    'optimiser = "adam"\nlearning_rate = 0.01',
    "resampled": 'data = "digits"\nmodel = "softmax"\nlearning_rate = 0.3\n'
    'partition = {kind = "dirichlet", alpha = 0.5}',
}
# In a chain a site adds up two contributions, and sums of more depend on which comes first.
CHAIN = 'route = {kind = "balanced", arity = 1}'
OWN = """
import torch
from torch import nn
from anabranch_lab.tasks._flat import FlatModel

class Work:
    def __init__(self, context):
        self.net = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 1))
        self.flat = FlatModel(self.net)
        self.buffer = self.flat.gradients
        self.optimiser = torch.optim.Adam(self.net.parameters(), 0.01)

    def local_step(self, samples):
        self.flat.zero_gradients()
        points = torch.randn(samples, 4)
        loss = (self.net(points) - points.sum(1, keepdim=True)).square().mean()
        loss.backward()
        return loss.item()

    def apply(self, round):
        self.optimiser.step()

    def evaluate(self):
        return 1 / (1 + torch.rand(()).item())

    def state_dict(self):
        return {"model": self.net.state_dict(), "optimiser": self.optimiser.state_dict()}

    def load_state_dict(self, state):
        self.net.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
"""


def scenario(
    folder: Path, task: str = "momentum", rounds: int = 10, route: str = CHAIN, fault: str = ""
) -> Path:
    (folder / "overlay.toml").write_text(dumps(SITES))
    module = f"model_{abs(hash(folder))}"  # a process imports a name once
    (folder / f"{module}.py").write_text(OWN)
    what = f'kind = "own"\nfactory = "{module}:Work"'
    if task != "own":
        what = f'kind = "train"\n{TASKS[task]}'
    sampling = 'sampling = {kind = "resampled", beta = 0.9}\n' if task == "resampled" else ""
    path = folder / "scenario.toml"
    path.write_text(
        f'overlay = "overlay.toml"\n{route}\nstop = {{rounds = {rounds}}}\nchunk_elements = 64\n'
        f"{sampling}compute = {{samples_per_s = 400}}\n[task]\n{what}\nbatch_size = 16\n"
        f"evaluate_every = 3\n{fault}"
    )
    return path


def simulated(
    path: Path, log: Path, save_every: int | None = None, resume: Path | None = None
) -> None:
    simulate(*load(path), log, save_every=save_every, resume=resume)


def killed(folder: Path, task: str = "momentum", route: str = CHAIN) -> Path:
    """Simulate a run whose site 1 dies in round 10, two rounds after a checkpoint; its log."""
    fault = '[[fault]]\nkind = "kill"\nsite = "site1"\nround = 10\n'
    log = folder / "killed.db"
    with pytest.raises(RunAborted, match="site1"):
        simulated(scenario(folder, task, 20, route, fault), log, SAVED_EVERY)
    return log


def weights(log: Path) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in load_file(weights_of(log)).items()}


@pytest.mark.parametrize("task", [*TASKS, "own"])
def test_a_simulated_run_that_was_killed_goes_on_bit_for_bit(task: str, tmp_path: Path) -> None:
    log = killed(tmp_path, task)
    assert not weights_of(log).exists()
    path = scenario(tmp_path, task, 20)
    whole, resumed, again = (tmp_path / f"{name}.db" for name in ("whole", "resumed", "again"))
    simulated(path, whole)
    assert not checkpoints_of(whole).exists()
    simulated(path, resumed, SAVED_EVERY, find(log))
    assert weights(resumed) == weights(whole)
    simulated(path, again, None, find(resumed).with_name("round-000016"))
    assert weights(again) == weights(whole)
    run = summarise(event for _, event in read_events(resumed))
    assert run.started.label.endswith("resumed after round 8")
    assert (run.started.rounds, len(run.rounds)) == (12, 12)
    before = summarise(event for _, event in read_events(whole))
    losses = [step.loss for step in before.steps if step.round > 8]
    assert [step.loss for step in run.steps] == losses


@pytest.mark.parametrize("route", ["star", "packed"])
def test_whatever_the_route_a_run_goes_on_with_the_same_model_and_samples(
    route: str, tmp_path: Path
) -> None:
    def steps(log: Path) -> list[StepDone]:
        done = summarise(event for _, event in read_events(log)).steps
        return sorted(done, key=lambda step: (step.round, step.site))

    chosen = f'route = {{kind = "{route}"}}'
    path = scenario(tmp_path, "adam", 10, chosen)
    whole, resumed = tmp_path / "whole.db", tmp_path / "resumed.db"
    simulated(path, whole, SAVED_EVERY)
    simulated(path, resumed, None, find(whole))
    again = [step.loss for step in steps(resumed) if step.round == 1]
    assert again == [step.loss for step in steps(whole) if step.round == 9]


def test_a_site_keeps_its_two_newest_checkpoints(tmp_path: Path) -> None:
    log = tmp_path / "run.db"
    simulated(scenario(tmp_path, rounds=14), log, 3)
    folders = sorted(checkpoints_of(log).iterdir())
    assert [folder.name for folder in folders] == ["round-000009", "round-000012"]
    for folder in folders:
        assert sorted(each.name for each in folder.iterdir()) == [
            f"site-{site}.safetensors" for site in range(SITES.size)
        ]


def test_weights_bear_the_names_of_the_model_and_fit_it(tmp_path: Path) -> None:
    log = tmp_path / "run.db"
    simulated(scenario(tmp_path, "adam"), log)
    with safe_open(weights_of(log), framework="pt") as file:
        read = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    model = build_model("mlp", (1, 8, 8), 10, seed=0, hidden=(8,))
    model.load_state_dict(read)


def test_an_exchange_leaves_no_weights_and_can_be_resumed(tmp_path: Path) -> None:
    text = 'overlay = "x"\nstop.rounds = 6\ntask = {kind = "exchange", elements = 999}'
    given = loads(text)
    log, after = tmp_path / "run.db", tmp_path / "after.db"
    simulate(given, SITES, log, save_every=4)
    simulate(given, SITES, after, resume=find(log))
    assert not weights_of(log).exists()
    assert len(summarise(event for _, event in read_events(after)).rounds) == 2


def test_the_newest_round_that_all_sites_have_saved_is_found(tmp_path: Path) -> None:
    log = killed(tmp_path)
    newest = checkpoints_of(log) / "round-000008"
    for place in (log, tmp_path, checkpoints_of(log), newest):
        assert find(place) == newest
    (newest / "site-2.safetensors").unlink()
    assert find(log).name == "round-000004"
    assert find(newest) == newest  # who asks for it gets it, and the check refuses it
    with pytest.raises(CheckpointError, match=r"round-000008 is incomplete: site2 has saved"):
        simulated(scenario(tmp_path, rounds=20), tmp_path / "new.db", resume=newest)
    shutil.rmtree(checkpoints_of(log) / "round-000004")
    with pytest.raises(CheckpointError, match="no round that all sites have saved"):
        find(log)
    shutil.copytree(checkpoints_of(log), tmp_path / "other.checkpoints")
    with pytest.raises(CheckpointError, match=r"killed\.checkpoints, other\.checkpoints; name"):
        find(tmp_path)
    with pytest.raises(CheckpointError, match=r"none\.checkpoints is not there"):
        find(tmp_path / "none.db")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            ("learning_rate = 0.3", "learning_rate = 0.2"),
            r"task\.learning_rate is 0\.3, here it is 0\.2",
        ),
        (("momentum = 0.9", ""), r"task\.momentum is 0\.9, here it is 0"),
        (
            ('kind = "balanced", arity = 1', 'kind = "star"'),
            r"route\.arity is 1, here it is not given",
        ),
        (("chunk_elements = 64", "seed = 1"), r"chunk_elements is 64, here it is not given"),
        (("rounds = 20", "rounds = 8"), r"stop\.rounds is 8: nothing is left"),
    ],
)
def test_a_resume_with_another_scenario_is_refused_by_the_key(
    change: tuple[str, str], named: str, tmp_path: Path
) -> None:
    log = killed(tmp_path)
    path = scenario(tmp_path, rounds=20)
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(CheckpointError, match=named):
        simulated(path, tmp_path / "new.db", resume=find(log))
    assert not (tmp_path / "new.db").exists()


def test_a_scheduler_that_is_to_go_on_after_the_last_round_is_refused(tmp_path: Path) -> None:
    """It sees no checkpoint: those are at the sites, which had nothing to do."""
    given, overlay = load(scenario(tmp_path, rounds=20))
    process = Process("t", ("127.0.0.1", 0), tmp_path / "run.db", lambda address: None)
    with pytest.raises(CheckpointError, match=r"after round 20, and stop\.rounds is 20: nothing"):
        run_scheduler(given, overlay, process, course=Course(after_round=20))
    assert not (tmp_path / "run.db").exists()


def test_what_changes_no_number_may_be_changed(tmp_path: Path) -> None:
    log = killed(tmp_path)
    path = scenario(tmp_path, rounds=9)
    text = path.read_text().replace("samples_per_s = 400", "samples_per_s = 300")
    path.write_text(f'label = "further"\n{text}')
    simulated(path, tmp_path / "new.db", resume=find(log))


def test_a_resume_with_other_sites_is_refused(tmp_path: Path) -> None:
    log = killed(tmp_path)
    given, _ = load(scenario(tmp_path, rounds=20))
    four = random_complete(4, 0, low_bps=1e6, high_bps=1e6)
    with pytest.raises(CheckpointError, match="of the sites site0, site1, site2, and this run has"):
        simulate(given, four, tmp_path / "new.db", resume=find(log))


def test_a_damaged_checkpoint_is_refused_by_name(tmp_path: Path) -> None:
    folder = find(killed(tmp_path))
    path = scenario(tmp_path, rounds=20)
    file = folder / "site-1.safetensors"
    good = file.read_bytes()

    def resume(name: str, error: type[Exception], match: str) -> None:
        with pytest.raises(error, match=match):
            simulated(path, tmp_path / f"{name}.db", resume=folder)

    file.write_bytes(good[: len(good) // 2])
    resume("cut", CheckpointError, r"site-1\.safetensors cannot be read")
    file.write_bytes(good[:-9] + bytes([good[-9] ^ 1]) + good[-8:])
    resume(
        "changed", RunAborted, r"site1\) failed: checkpoint .*site-1\.safetensors is not as it was"
    )
    file.write_bytes((folder / "site-0.safetensors").read_bytes())
    resume("moved", CheckpointError, r"site-1\.safetensors is of site site0, not site1")
    save_state(file, load_state(folder / "site-0.safetensors"), {})
    resume("strange", CheckpointError, r"site-1\.safetensors is no checkpoint")
    file.write_bytes(good)
    older = folder.with_name("round-000004") / "site-1.safetensors"
    file.write_bytes(older.read_bytes())
    resume("older", CheckpointError, r"site-1\.safetensors is of round 4, not of round 8")


def test_a_checkpoint_without_numbers_cannot_be_trained_on(tmp_path: Path) -> None:
    given, overlay = load(scenario(tmp_path))
    sizes = msgspec.structs.replace(given, simulation=Simulation(tensors="sizes"))
    simulate(sizes, overlay, tmp_path / "sizes.db", save_every=5)
    saved = find(tmp_path / "sizes.db").with_name("round-000005")
    with pytest.raises(RunAborted, match=r"checkpoint .*site-.\.safetensors holds no 'model'"):
        simulate(given, overlay, tmp_path / "run.db", resume=saved)


@pytest.mark.parametrize(
    ("key", "others"), [("pace", {"pace": Asp()}), ("serve", {"serve": Serve()})]
)
def test_runs_with_servers_are_refused_by_name(
    key: str, others: dict[str, object], tmp_path: Path
) -> None:
    given, overlay = load(scenario(tmp_path))
    served = msgspec.structs.replace(given, **others)
    with pytest.raises(ScenarioError, match=f"{key}: only runs whose sites all-reduce"):
        simulate(served, overlay, tmp_path / "run.db", save_every=1)


def test_a_site_that_was_told_another_thing_than_the_scheduler_says_so(tmp_path: Path) -> None:
    given = Scenario(overlay="x", stop=Stop(rounds=9), task=load(scenario(tmp_path))[0].task)

    def keeper(course: Course, files: Files) -> Keeper:
        return Keeper(Job(scenario=given, course=course), files, 1, ["a", "b"])

    with pytest.raises(
        CheckpointError, match="site b is to save every 2 rounds, and does not know"
    ):
        keeper(Course(save_every=2), Files())
    with pytest.raises(CheckpointError, match="after round 4, and site b was told nothing of that"):
        keeper(Course(after_round=4), Files())
    with pytest.raises(CheckpointError, match="after round 0, and site b was told --resume"):
        keeper(Course(), Files(resume=tmp_path))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_real_run_that_was_killed_goes_on_bit_for_bit(tmp_path: Path) -> None:
    path = scenario(tmp_path, "adam", rounds=24)
    whole, broken, resumed = (tmp_path / f"{name}.db" for name in ("whole", "broken", "resumed"))
    simulated(path, whole)  # gives the same bits
    pids: dict[str, int] = {}

    def kill_once_saved() -> None:
        if pids and len(list(checkpoints_of(broken).glob("round-*"))) > 1:
            os.kill(pids["site site1"], signal.SIGKILL)
            pids.clear()

    with pytest.raises(RunAborted, match="site1"):
        run_locally(
            *(path, 0, SITES, broken, None, kill_once_saved, pids.update), save_every=SAVED_EVERY
        )
    assert not weights_of(broken).exists()
    saved = find(broken)
    assert 0 < round_of(saved) < 24
    run_locally(path, 0, SITES, resumed, resume=saved)
    assert weights(resumed) == weights(whole)
    assert len(summarise(e for _, e in read_events(resumed)).rounds) == 24 - round_of(saved)
