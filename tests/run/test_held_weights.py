"""What servers hold becomes the final weights, the last step included."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from anabranch.overlay import Link, Overlay, Site
from anabranch.plan import fapt
from anabranch.train.optimisers import Sgd
from anabranch.train.work import State
from anabranch_lab.run._held_weights import HeldWeights, WeightsError
from anabranch_lab.run.checkpoints import weights_of
from anabranch_lab.run.scenario import loads
from anabranch_lab.run.simulate import simulate

from ..every import every

TRIANGLE = Overlay(
    "triangle",
    (Site("a"), Site("b"), Site("c")),
    tuple(Link(i, j, 80e6, 0.001) for i in range(3) for j in range(3) if i != j),
)


def trained(folder: Path, name: str, rounds: int, more: str) -> dict[str, np.ndarray]:
    text = (
        f'overlay = "x"\nstop.rounds = {rounds}\nchunk_elements = 100\n'
        "compute.samples_per_s = 1000\n"
        'task = {kind = "train", data = "digits", model = "softmax", learning_rate = 0.5}\n'
    )
    log = folder / f"{name}.db"
    simulate(loads(text + more), TRIANGLE, log)
    assert sorted(each.name for each in folder.glob(f"{name}.*safe*")) == [f"{name}.safetensors"]
    return load_file(weights_of(log))


def far(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    assert list(a) == list(b) == ["1.bias", "1.weight"]
    return max(float(np.abs(a[name] - b[name]).max()) for name in a)


@pytest.mark.parametrize("route", ['{kind = "star"}', '{kind = "fapt"}', '{kind = "packed"}'])
def test_servers_leave_what_sites_that_all_reduce_leave(route: str, tmp_path: Path) -> None:
    together = trained(tmp_path, "together", 5, f"route = {route}")
    before = trained(tmp_path, "before", 4, f"route = {route}")
    for name, serve in (("served", "serve = {}"), ("ahead", "serve = {ahead = true}")):
        served = trained(tmp_path, name, 5, f"route = {route}\n{serve}")
        if name == "served":
            assert far(served, together) < 1e-5 < 1e-2 < far(before, together)
        else:  # the first updates are computed on an older model
            assert far(served, together) > 1e-3


def test_an_asynchronous_pace_leaves_weights_too(tmp_path: Path) -> None:
    one = trained(tmp_path, "one", 5, 'route = {kind = "fapt"}\npace = {kind = "asp"}')
    two = trained(tmp_path, "two", 5, 'route = {kind = "star"}\npace = {kind = "asp"}')
    assert every(np.isfinite(each).all() for each in [*one.values(), *two.values()])


class Served:
    """A model of ten numbers."""

    def __init__(self) -> None:
        self.model = np.arange(10, dtype=np.float32)
        self.buffer = np.zeros(10, np.float32)
        self.make_rule = Sgd(1.0).start

    def local_step(self, samples: int) -> None: ...
    def apply(self, round: int) -> None: ...
    def evaluate(self) -> float:
        return 0.0

    def state_dict(self) -> State:
        return {"model": {"all": self.model}}

    def load_state_dict(self, state: State) -> None: ...


def test_parts_are_put_in_their_places_whether_they_have_changed_or_not(tmp_path: Path) -> None:
    plan = fapt(TRIANGLE, roots=3)
    path = tmp_path / "weights.safetensors"
    parts = [HeldWeights(Served(), plan, 3, site) for site in range(3)]
    held = np.concatenate([np.arange(10, dtype=np.float32)[each] for each in parts[1]._places[1]])
    parts[1].make_rule(len(held))(held, np.full(len(held), 100, np.float32), 1.0)
    names = ["a", "b", "c"]
    for part in parts[:2]:
        part.leave(path)
    with pytest.raises(WeightsError, match=r"weights that c serves is missing: .*part-2"):
        parts[0].gather(path, names)
    parts[2].leave(path)
    for part in parts:
        part.gather(path, names)
    found = load_file(path)["all"]
    expected = np.arange(10, dtype=np.float32)
    for place in parts[1]._places[1]:
        expected[place] -= 100
    assert found.tolist() == expected.tolist()
    assert [each.name for each in tmp_path.iterdir()] == ["weights.safetensors"]
