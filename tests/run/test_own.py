"""Code of a user's own in a scenario: the same in both worlds, and errors that name it."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from anabranch.log import Evaluated, read_events, summarise
from anabranch.net.errors import RunAborted
from anabranch.overlay import dumps, random_complete
from anabranch.train.work import Context
from anabranch_lab.run._own import OwnWork, WorkError, make_own_work
from anabranch_lab.run.checkpoints import weights_of
from anabranch_lab.run.launch import run_locally
from anabranch_lab.run.scenario import ScenarioError, load, loads
from anabranch_lab.run.simulate import simulate

from ..every import every

SITES = random_complete(2, 0, low_bps=50e6, high_bps=100e6, latency_s=0.001)
GOOD = '''
import random
import numpy as np
import torch

class Work:
    """The mean of random numbers; no torch module at all."""

    def __init__(self, context):
        self.context = context
        self.mean = np.full(3, torch.rand(()).item(), np.float32)
        self.buffer = np.zeros(3, np.float32)

    def local_step(self, samples):
        drawn = random.random() + np.random.rand() + torch.rand(()).item()
        self.buffer[:] = drawn * samples * self.context.options.get("scale", 1)
        return None

    def apply(self, round):
        self.mean += self.buffer / round

    def evaluate(self):
        return float(self.mean[0])

    def state_dict(self):
        return {"model": {"mean": self.mean}}

    def load_state_dict(self, state):
        self.mean[:] = state["model"]["mean"]

def make(context):
    return Work(context)
'''


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget what a test imported, and where from."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("mine"):
            del sys.modules[name]


def made(folder: Path, text: str = GOOD, site: int = 0, factory: str = "mine:make") -> OwnWork:
    (folder / "mine.py").write_text(text)
    return make_own_work(factory, folder, Context(site, f"site{site}", 2, 5, None, {}))


def scenario(folder: Path, text: str = GOOD, more: str = "") -> Path:
    (folder / "code").mkdir()
    (folder / "code" / "mine.py").write_text(text)
    (folder / "overlay.toml").write_text(dumps(SITES))
    path = folder / "scenario.toml"
    path.write_text(
        'overlay = "overlay.toml"\nstop.rounds = 6\ncompute.samples_per_s = 1000\n[task]\n'
        f'kind = "own"\nfactory = "mine:make"\nfolder = "code"\nbatch_size = 4\n'
        f"evaluate_every = 2\noptions.scale = 0.5\n{more}"
    )
    return path


def results(log: Path) -> tuple[dict[str, bytes], list[tuple[int, float]]]:
    """Return the weights that a run left, and what its evaluations found."""
    arrays = load_file(weights_of(log))
    seen = [event for _, event in read_events(log) if isinstance(event, Evaluated)]
    assert every(event.by_class is None for event in seen)  # whether there are classes is not known
    return (
        {name: array.tobytes() for name, array in arrays.items()},
        [(each.round, each.accuracy) for each in seen],
    )


@pytest.mark.slow
def test_own_code_does_the_same_in_both_worlds_bit_for_bit(tmp_path: Path) -> None:
    path = scenario(tmp_path)
    simulated, measured = tmp_path / "simulated.db", tmp_path / "measured.db"
    simulate(*load(path), simulated)
    run_locally(path, 0, SITES, measured)
    assert results(simulated) == results(measured)
    weights, seen = results(simulated)
    assert list(weights) == ["mean"]
    assert [round for round, _ in seen] == [2, 4, 6]
    run = summarise(event for _, event in read_events(measured))
    assert (run.started.task, run.started.model) == ("own", "mine:make")


def test_each_site_draws_its_own_numbers_and_leaves_everyone_else_s_alone(tmp_path: Path) -> None:
    def outside() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    def draw(interrupted: bool) -> tuple[object, list[bytes]]:
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(1)
        works = [made(tmp_path, site=site) for site in range(2)]
        assert works[0].evaluate() == works[1].evaluate()  # models begin alike
        drawn = []
        for _ in range(3):
            for work in works:
                if interrupted:
                    outside()
                work.local_step(2)
                drawn.append(work.buffer.tobytes())
        return outside(), drawn

    left, drawn = draw(interrupted=False)
    assert len(set(drawn)) == len(drawn)
    assert draw(interrupted=True)[1] == drawn
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(1)
    assert outside() == left


def test_what_was_drawn_is_part_of_the_state(tmp_path: Path) -> None:
    first, second = (made(tmp_path) for _ in range(2))
    first.local_step(2)
    state = first.state_dict()
    first.local_step(2)
    second.load_state_dict(state)
    second.local_step(2)
    assert first.buffer.tobytes() == second.buffer.tobytes()


def test_how_often_a_model_is_evaluated_changes_no_training(tmp_path: Path) -> None:
    text = GOOD.replace("return float(self.mean[0])", "return random.random()")
    first, second = (made(tmp_path, text) for _ in range(2))
    assert first.evaluate() == first.evaluate()
    for work in (first, second):
        work.local_step(2)
    assert first.buffer.tobytes() == second.buffer.tobytes()


METHODS = GOOD.partition("def make")[0]
BAD = {
    "import nothing_there": r"importing mine failed at \S+mine\.py:1: ModuleNotFo",
    "make = 1": r"that is int, not a function",
    "def mak(context): ...": r"\S+mine\.py has no make; did you mean 'mak'\?",
    "def make(context):\n    return 1 / 0": r"the factory failed at \S+mine\.py:2: ZeroDivi",
    "def make(context):\n    raise SystemExit(0)": r"the factory failed .*: SystemExit",
    "def make(context):\n    return 5": "returned int, which has no method local_step",
    METHODS.replace("def apply", "def aply")
    + "make = Work": "returned Work, which has no method apply; give",
    METHODS.replace("self.buffer =", "self.bufer =")
    + "make = Work": "returned Work, which has no buffer",
    METHODS.replace("np.zeros(3, np.float32)", "np.zeros(3)")
    + "make = Work": r"buffer must be .* not a float64 array of shape \(3,\)",
    METHODS.replace("np.zeros(3, np.float32)", "torch.zeros(3)")
    + "make = Work": "buffer must be .* not Tensor",
    METHODS.replace('"model": ', '"modell": ')
    + "make = Work": "state_dict must return a dict whose entry 'mod",
    METHODS.replace('"mean": self', '"mean": {1}, "s": self')
    + "make = Work": r"state_dict: model\.mean is set",
}


@pytest.mark.parametrize("text", BAD)
def test_code_that_cannot_be_used_is_named_before_the_run_begins(text: str, tmp_path: Path) -> None:
    with pytest.raises(WorkError, match=f"^task.factory: mine:make: {BAD[text]}"):
        made(tmp_path, text)


WORSE = {
    ("return None", "return float('nan')"): "local_step returned loss nan",
    ("return None", "raise KeyError('x')"): r"local_step failed at \S+mine\.py:17: KeyError: 'x'",
    ("self.mean += self.buffer / round", "return -1"): "apply returned -1; give a checksum",
    ("return float(self.mean[0])", "return float('inf')"): "evaluate returned inf",
    ("return None", "self.buffer = np.zeros(4, np.float32)"): "buffer has 4 elements, not 3 as at",
}


@pytest.mark.parametrize("change", WORSE)
def test_code_that_fails_ends_the_run_by_name(change: tuple[str, str], tmp_path: Path) -> None:
    path = scenario(tmp_path, GOOD.replace(*change))
    named = rf"site . \(site.\) failed: task\.factory: mine:make: {WORSE[change]}"
    with pytest.raises(RunAborted, match=named):
        simulate(*load(path), tmp_path / "run.db")


def test_a_gradient_that_is_no_number_is_named_where_it_was_computed(tmp_path: Path) -> None:
    spoils = "self.buffer[1:] = np.nan if self.context.site else 0.0\n        return None"
    path = scenario(tmp_path, GOOD.replace("return None", spoils))
    named = r"site 1 \(\w+\) failed: after step 0, 2 of 3 elements .* the first at index 1 \(nan\)"
    with pytest.raises(RunAborted, match=named):
        simulate(*load(path), tmp_path / "run.db")


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_real_run_names_the_code_too(tmp_path: Path) -> None:
    path = scenario(tmp_path, "def make(context):\n    return 1 / 0")
    with pytest.raises(RunAborted, match=r"mine:make: the factory failed at \S+mine\.py:2: Zero"):
        run_locally(path, 0, SITES, tmp_path / "run.db")


def test_sites_whose_models_differ_end_the_run(tmp_path: Path) -> None:
    drifts = GOOD.replace(
        "self.mean += self.buffer / round", "return round + self.context.site * (round == 3)"
    )
    with pytest.raises(RunAborted, match="round 3"):
        simulate(*load(scenario(tmp_path, drifts)), tmp_path / "run.db")


def test_a_module_that_is_not_there_and_one_that_is_hidden_are_named(tmp_path: Path) -> None:
    context = Context(0, "a", 1, 0, None, {})
    with pytest.raises(WorkError, match=f"there is no module minus, neither in {tmp_path} nor"):
        make_own_work("minus:make", tmp_path, context)
    (tmp_path / "json.py").write_text("")
    with pytest.raises(WorkError, match=r"json\.py is hidden by json of .*json.__init__\.py; give"):
        make_own_work("json:make", tmp_path, context)


SERVED = METHODS + (
    "from anabranch.train.optimisers import Sgd\n"
    "def make(context):\n"
    "    work = Work(context)\n"
    "    work.model, work.make_rule = work.mean, Sgd(0.1).start\n"
    "    return work\n"
)


NORMALISED = '''
import numpy as np
from anabranch.train.optimisers import Sgd

class Work:
    """A parameter, and a running variance that falls towards .1 with each step."""

    averaged_elements = 1

    def __init__(self):
        self.model = np.ones(2, np.float32)
        self.buffer = np.zeros(2, np.float32)
        self.make_rule = Sgd(1.0).start
        self.least = 1.0

    def local_step(self, samples):
        self.least = min(self.least, float(self.model[1]))
        self.buffer[:] = 0.01, np.nan
        self.model[1] += 0.5 * (0.1 - self.model[1])
        self.buffer[1] = 0.0

    def apply(self, round):
        self.model[0] -= self.buffer[0]

    def evaluate(self):
        return min(self.least, float(self.model[1]))

    def state_dict(self):
        return {"model": {"all": self.model}}

    def load_state_dict(self, state):
        self.model[:] = state["model"]["all"]

def make(context):
    return Work()
'''


@pytest.mark.parametrize(
    "more",
    [
        '[pace]\nkind = "asp"\n',
        '[pace]\nkind = "bsp"\n[serve]\n',
        '[pace]\nkind = "fedbuff"\nsize = 1\n[period]\nkind = "every"\nsteps = 3\n',
        '[pace]\nkind = "asp"\nshare = 0.6\n[serve]\nmixes = "models"\n'
        '[period]\nkind = "every"\nsteps = 3\n',
        '[pace]\nkind = "r2sp"\n',
    ],
    ids=["asp", "bsp served", "fedbuff", "fedasync", "r2sp"],
)
def test_what_own_code_says_is_no_parameter_is_never_added_up(tmp_path: Path, more: str) -> None:
    path = scenario(tmp_path, NORMALISED, more)
    simulate(*load(path), tmp_path / "run.db")
    seen = [event for _, event in read_events(tmp_path / "run.db")]
    figures = [event.accuracy for event in seen if isinstance(event, Evaluated)]
    assert figures
    assert min(figures) >= 0.1 - 1e-6
    assert max(figures) < 1.0


def test_an_outer_optimiser_does_not_step_on_buffers_of_own_code(tmp_path: Path) -> None:
    steps = '[period]\nkind = "every"\nsteps = 3\n'
    outer = f"{steps}[average.outer]\nlearning_rate = 0.7\nmomentum = 0.9\n"
    with pytest.raises(RunAborted, match="outer would step on the buffers that averaged_elements"):
        simulate(*load(scenario(tmp_path, NORMALISED, outer)), tmp_path / "run.db")


@pytest.mark.parametrize(
    ("begins", "outer", "said"),
    [
        ("context.site", "[average.outer]\n", "models of sites were not alike before this average"),
        ("context.site", "", ""),  # a plain mean makes them alike
        ("1.0", "[average.outer]\n", ""),
    ],
)
def test_an_outer_optimiser_needs_models_that_begin_alike(
    tmp_path: Path, begins: str, outer: str, said: str
) -> None:
    code = NORMALISED.replace("averaged_elements = 1", "averaged_elements = 0")
    code = code.replace("def __init__(self)", "def __init__(self, context)")
    code = code.replace("np.ones(2, np.float32)", f"np.full(2, {begins}, np.float32)")
    code = code.replace("return Work()", "return Work(context)")
    path = scenario(tmp_path, code, f'[period]\nkind = "every"\nsteps = 3\n{outer}')
    with pytest.raises(RunAborted, match=said) if said else nullcontext():
        simulate(*load(path), tmp_path / "run.db")


def test_servers_hold_the_model_of_own_code_that_lets_them(tmp_path: Path) -> None:
    path = scenario(tmp_path, SERVED, '[pace]\nkind = "asp"\n')
    simulate(*load(path), tmp_path / "run.db")
    (tmp_path / "code" / "mine.py").write_text(GOOD)
    del sys.modules["mine"]
    with pytest.raises(RunAborted, match=r"mine:make: has no model and make_rule.*pace = "):
        simulate(*load(path), tmp_path / "again.db")


ONE_AT_A_TIME = '''
import time
import numpy as np
from anabranch.train.optimisers import Sgd

class Work:
    """Fails where it is called while it computes, or its model changes then."""

    def __init__(self):
        self.model, self.buffer = np.zeros(3, np.float32), np.zeros(3, np.float32)
        self.make_rule = Sgd(1.0).start
        self.computes = False

    def compute(self):
        assert not self.computes, "two threads compute at once"
        self.computes, model = True, self.model.copy()
        time.sleep(0.01)
        assert (self.model == model).all(), "another thread writes the model"
        self.computes = False

    def local_step(self, samples):
        self.compute()
        self.buffer[:] = 1.0

    def apply(self, round):
        pass  # servers step

    def evaluate(self):
        self.compute()
        return 0.5

    def state_dict(self):
        return {"model": {"all": self.model}}

    def load_state_dict(self, state):
        self.model[:] = state["model"]["all"]

def make(context):
    return Work()
'''


@pytest.mark.slow
def test_a_worker_that_serves_the_model_does_not_evaluate_it_during_a_step(tmp_path: Path) -> None:
    more = 'pace = {kind = "asp"}\nroute = {kind = "star", hub = "site0"}\n'
    path = scenario(tmp_path, ONE_AT_A_TIME)
    text = path.read_text().replace("evaluate_every = 2", "evaluate_every = 1")
    path.write_text(more + text.replace("stop.rounds = 6", "stop.rounds = 40"))
    run_locally(path, 0, SITES, tmp_path / "run.db")
    seen = [event for _, event in read_events(tmp_path / "run.db")]
    assert sum(isinstance(event, Evaluated) for event in seen) > 1


def test_without_numbers_own_code_has_its_size(tmp_path: Path) -> None:
    path = scenario(tmp_path, more='[simulation]\ntensors = "sizes"\n')
    simulate(*load(path), tmp_path / "run.db")
    run = summarise(event for _, event in read_events(tmp_path / "run.db"))
    assert run.started.buffer_bytes == 12
    assert not weights_of(tmp_path / "run.db").exists()


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ('factory = "train"', "task.factory: 'train' names no function; give module:function"),
        ('factory = "a.train:make"', None),
        ('factory = "train.py:make"', "task.factory: .* names no function; give train:make"),
        ('factory = "a b:make"', "task.factory: 'a b:make' names no function"),
        ('factory = "a:b"\noptions.rate = nan', "task.options.rate: must be a finite number"),
        ('factory = "a:b"\noptions.on = [{day = 2026-01-01}]', r"task.options.on\[0\].day: dates"),
        ('factory = "a:b"\nbatch_size = 0', "task.batch_size"),
        ("", "task.factory: this key is required"),
    ],
)
def test_a_scenario_s_keys_are_checked(keys: str, named: str | None) -> None:
    text = f'overlay = "x"\nstop.rounds = 1\n[task]\nkind = "own"\n{keys}\n'
    if named is None:
        loads(text)
        return
    with pytest.raises(ScenarioError, match=named):
        loads(text)
