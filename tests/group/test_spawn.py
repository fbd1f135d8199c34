"""Processes of a group: they train as one would alone, and what goes wrong in one is named."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import anabranch
from anabranch import Group, RunAborted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # each process imports PyTorch
SITES, BATCH, STEPS = 3, 8, 5


def make_model() -> torch.nn.Sequential:
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))


def make_batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the whole batch of a step; each site takes a part of it."""
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(SITES * BATCH, 6, generator=generator)
    labels = torch.randint(3, (SITES * BATCH,), generator=generator)
    return inputs, labels


def compute_gradients(model: torch.nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> None:
    model.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), labels).backward()


def parameters_of(model: torch.nn.Module) -> list[float]:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()


def train(group: Group, momentum: float) -> list[float]:
    model = make_model()
    if group.rank:
        for parameter in model.parameters():
            torch.nn.init.zeros_(parameter)  # rank 0's values are to be everyone's
    group.broadcast(model.parameters())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5, momentum=momentum)
    for step in range(STEPS):
        inputs, labels = make_batch(step)
        compute_gradients(model, inputs[group.rank :: group.size], labels[group.rank :: group.size])
        group.all_reduce(p.grad for p in model.parameters())
        optimiser.step()
    return parameters_of(model)


def test_sites_train_as_one_process_with_the_whole_batch_does() -> None:
    found = anabranch.spawn(train, SITES, [0.9])
    assert found[0] == found[1] == found[2]
    model = make_model()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for step in range(STEPS):
        compute_gradients(model, *make_batch(step))
        optimiser.step()
    assert found[0] == pytest.approx(parameters_of(model), rel=1e-4, abs=1e-5)


def fail_at_one(group: Group) -> None:
    if group.rank == 1:
        raise LookupError("no shard for this site")
    group.barrier()


def test_a_function_that_raises_is_named_with_its_traceback() -> None:
    with pytest.raises(RunAborted) as told:
        anabranch.spawn(fail_at_one, SITES)
    text = str(told.value)
    assert text.startswith("site1 failed:")
    assert "LookupError: no shard for this site" in text
    assert "in fail_at_one" in text


def die_at_one(group: Group) -> None:
    if group.rank == 2:
        os._exit(3)
    group.barrier()


def test_a_process_that_dies_is_named() -> None:
    with pytest.raises(RunAborted, match="site2"):
        anabranch.spawn(die_at_one, SITES)


def die_with_a_child_at_one(group: Group, folder: str) -> None:
    group.all_reduce(torch.ones(5))  # over lanes: whose other end goes is missed at once
    if group.rank == 1:
        if not os.fork():  # as a data loader's worker
            until_s = time.monotonic() + 60.0
            while (Path(folder) / "not over").exists() and time.monotonic() < until_s:
                time.sleep(0.1)
            (Path(folder) / "not over").unlink(missing_ok=True)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    group.barrier()


def test_a_process_that_dies_is_missed_though_a_child_of_it_lives_on(tmp_path: Path) -> None:
    not_over = tmp_path / "not over"
    not_over.touch()
    with pytest.raises(RunAborted, match="site1"):
        anabranch.spawn(die_with_a_child_at_one, SITES, [str(tmp_path)])
    not_over.unlink()  # the child has not: it still waits for this


def give_back(group: Group, *arguments: Any) -> tuple[int, Any]:
    return group.rank, arguments


def test_results_come_by_rank_and_arguments_go_to_all() -> None:
    assert anabranch.spawn(give_back, 2, ["a", 1]) == [(0, ("a", 1)), (1, ("a", 1))]


def fork_and_call(group: Group) -> int:
    process = os.fork()
    if not process:
        try:
            group.barrier()
        except RunAborted as error:
            os._exit(7 if "was forked" in str(error) else 1)
        os._exit(0)
    status = os.waitpid(process, 0)[1]
    group.barrier()
    return os.waitstatus_to_exitcode(status)


def test_a_process_that_was_forked_is_told_that_it_has_no_part_in_the_group() -> None:
    assert anabranch.spawn(fork_and_call, 2) == [7, 7]


class Cannot:
    """What cannot be sent, or cannot be read again."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __reduce__(self) -> tuple[Any, ...]:
        if self.where == "here":
            raise LookupError("not this one")
        return eval, ("1/0",)


def return_at_one(group: Group, where: str) -> Any:
    return Cannot(where) if group.rank == 1 else None


@pytest.mark.parametrize(("where", "why"), [("here", "not this one"), ("there", "by zero")])
def test_a_result_that_cannot_be_sent_is_named(where: str, why: str) -> None:
    with pytest.raises(RunAborted, match=rf"(?s)site1.*{why}"):
        anabranch.spawn(return_at_one, 2, [where])
