"""Local SGD and DiLoCo by an optimiser's own steps, over real connections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import anabranch
from anabranch import DiLoCo, Group, LocalSGD, Outer, RunAborted
from anabranch.group._local import _complete, _serving

from ..every import every
from ..threads import Threads, at_each

SITES, RATE = 3, 0.001


@pytest.fixture
def groups() -> Iterator[tuple[Group, ...]]:
    with anabranch.local(SITES) as groups:
        yield groups


def net(seed: int) -> nn.Module:
    """Return a model with a buffer, and a parameter that needs no gradient."""
    layers = [nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 1)]
    generator = torch.Generator().manual_seed(seed)
    for layer in layers:
        for each in layer.parameters():
            nn.init.normal_(each, generator=generator)
    layers[2].bias.requires_grad_(False)
    return nn.Sequential(*layers)


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([each.detach().reshape(-1) for each in model.parameters()])


def step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, number: int) -> None:
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(100 * rank + number))
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def by_hand(group: Group, steps: int, outer: Outer | None, **how: Any) -> torch.Tensor:
    """Train with a `group.average` that is told of each step."""
    model = net(0)
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    needs = [each for each in model.parameters() if each.requires_grad]
    average = group.average(needs, outer=outer, **how)
    for number in range(steps):
        step(model, optimizer, group.rank, number)
        average.step()
    average.finish()
    return flat(model)


def in_a_block(group: Group, steps: int, outer: Outer | None, **how: Any) -> torch.Tensor:
    """Train in a block; sites begin with models of their own, and the first one's counts."""
    model = net(group.rank)
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    made = LocalSGD if outer is None else lambda *a, **k: DiLoCo(*a, outer=outer, **k)
    with made(model, optimizer, group, **how):
        for number in range(steps):
            step(model, optimizer, group.rank, number)
    before = flat(model)
    step(model, optimizer, group.rank, 0)  # which is this site's alone: no average waits for it
    assert not torch.equal(before, flat(model))
    return before


@pytest.mark.parametrize("outer", [None, Outer(learning_rate=0.5, momentum=0.8)])
@pytest.mark.parametrize("how", [{"every": 3}, {"every": 4, "fragments": 2, "delay": 1}])
def test_a_block_averages_as_steps_by_hand_do(groups, outer, how):
    wanted = at_each(groups, lambda group: by_hand(group, 10, outer, **how))
    found = at_each(groups, lambda group: in_a_block(group, 10, outer, **how))
    torch.testing.assert_close(found[0], wanted[0])  # a sum of three depends on who comes first
    assert every(torch.equal(each, found[0]) for each in found)


def test_sites_make_unequal_numbers_of_steps(groups):
    found = at_each(groups, lambda group: in_a_block(group, 4 + 3 * group.rank, None, every=2))
    assert every(torch.equal(each, found[0]) for each in found)


def test_averages_every_k_steps_of_an_optimiser(groups):
    def averages(group: Group) -> list[int]:
        model = net(0)
        optimizer = torch.optim.SGD(model.parameters(), RATE)
        with DiLoCo(model, optimizer, group, every=4) as block:
            begun = []
            for number in range(9):
                step(model, optimizer, group.rank, number)
                assert block.average is not None
                begun.append(block.average.begun)
        assert block.average is None
        return begun

    assert at_each(groups, averages) == [[0, 0, 0, 1, 1, 1, 1, 2, 2]] * SITES


def test_buffers_of_any_width_begin_alike(groups):
    def begins(group: Group) -> list[list[float]]:
        model = net(group.rank)
        model.register_buffer("wide", torch.full((3,), group.rank + 0.1, dtype=torch.float64))
        model.register_buffer("narrow", torch.full((2,), group.rank, dtype=torch.float16))
        model.register_buffer("flags", torch.full((5,), group.rank > 0))
        model.register_buffer("bytes", torch.full((3,), group.rank, dtype=torch.uint8))
        model.register_buffer("turned", torch.full((2, 4), group.rank, dtype=torch.int64).t())
        model.register_buffer("waves", torch.full((2,), 1j * group.rank, dtype=torch.complex128))
        model.get_submodule("1").num_batches_tracked.fill_(5 + group.rank)
        optimizer = torch.optim.SGD(model.parameters(), RATE)
        with LocalSGD(model, optimizer, group, every=5):
            pass
        return [each.to(torch.complex128).abs().reshape(-1).tolist() for each in model.buffers()]

    found = at_each(groups, begins)
    assert found[0] == found[1] == found[2]
    assert [0.1] * 3 in found[0]
    assert [5.0] in found[0]


def buffers(model: nn.Module) -> list[list[float]]:
    return [each.double().reshape(-1).tolist() for each in model.buffers()]


@pytest.mark.parametrize("outer", [None, Outer()])
@pytest.mark.parametrize("how", [{"every": 2}, {"every": 4, "fragments": 2, "delay": 4}])
@pytest.mark.parametrize("more", [0, 3])
def test_buffers_end_alike(groups, outer, how, more):
    def trains(group: Group) -> list[list[float]]:
        model = net(group.rank)
        model.register_buffer("cache", torch.zeros(1 + group.rank), persistent=False)
        optimizer = torch.optim.SGD(model.parameters(), RATE)
        made = LocalSGD if outer is None else partial(DiLoCo, outer=outer)
        with made(model, optimizer, group, **how):
            for number in range(9 + more * group.rank):
                step(model, optimizer, group.rank, number)
        assert len(model.cache) == 1 + group.rank  # no state has it
        del model.cache
        return buffers(model)

    def alone(rank: int) -> list[list[float]]:
        model = net(0)
        optimizer = torch.optim.SGD(model.parameters(), RATE)
        for number in range(9):
            step(model, optimizer, rank, number)
        return buffers(model)

    found = at_each(groups, trains)
    assert found[0] == found[1] == found[2]
    mean, variance, count = found[0]
    assert count == [9]  # the first member's
    assert min(variance) > 0
    if not more and "delay" not in how:  # near the mean of what sites would have by themselves
        apart = [alone(rank) for rank in range(SITES)]
        for place, each in enumerate((mean, variance)):
            wanted = torch.tensor([one[place] for one in apart]).mean(0)
            torch.testing.assert_close(torch.tensor(each), wanted, rtol=0.05, atol=0.05)


def test_buffers_are_weighted_as_the_model_is(groups):
    def trains(group: Group) -> float:
        model = net(0)
        optimizer = torch.optim.SGD(model.parameters(), RATE)
        with DiLoCo(model, optimizer, group, every=2, weight=1.0 + group.rank):
            model[1].running_mean.fill_(float(group.rank))
            optimizer.step()
        return model[1].running_mean[0].item()

    assert at_each(groups, trains) == [pytest.approx((0 * 1 + 1 * 2 + 2 * 3) / 6)] * SITES


@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
def test_buffers_may_travel_in_halves(groups, wire):
    def trains(group: Group) -> list[list[float]]:
        model = net(0)
        model.register_buffer("constant", torch.tensor([1 / 3]))
        optimizer = torch.optim.SGD(model.parameters(), RATE)
        with DiLoCo(model, optimizer, group, every=2, wire=wire):
            for number in range(4):
                step(model, optimizer, group.rank, number)
        assert model.constant.item() == torch.tensor(1 / 3).item()
        return buffers(model)

    found = at_each(groups, trains)
    assert found[0] == found[1] == found[2]


def fail(_: None) -> None:
    raise ZeroDivisionError("no samples")


HOWS = [{"every": 2}, {"every": 10, "fragments": 2, "delay": 4}, {"every": 4, "delay": 4}]


@pytest.mark.parametrize(
    ("error", "outer"),
    [(ZeroDivisionError("no samples"), None), (KeyboardInterrupt(), Outer())],
)
@pytest.mark.parametrize("how", HOWS)
def test_an_exception_in_the_block_is_that_site_s_loss_and_the_others_average_on(
    caplog, error, outer, how
):
    def trains(group: Group) -> tuple[torch.Tensor, tuple[str, ...], float]:
        model = net(group.rank)
        optimizer = torch.optim.SGD(model.parameters(), RATE)
        made = LocalSGD if outer is None else partial(DiLoCo, outer=outer)
        with suppress(type(error)), made(model, optimizer, group, **how) as block:
            for number in range(40):
                if group.site == "site1" and number == 13:
                    raise error
                step(model, optimizer, group.rank, number)
            average = block.average
        if group.site == "site1":
            with pytest.raises(RunAborted, match=f"has left the group: {type(error).__name__}"):
                group.all_reduce(torch.ones(1))
            return flat(model), (), 0.0
        fragments = how.get("fragments", 1)
        assert average.begun == (40 // how["every"] + 1) * fragments
        total = torch.tensor([1.0])
        group.all_reduce(total, op="sum")
        return flat(model), group.sites, total.item()

    service = anabranch.Service(_complete(SITES), awareness=None)
    with Threads(SITES) as pool, _serving(service) as (address, token):

        def plays(name: str) -> tuple[torch.Tensor, tuple[str, ...], float]:
            with anabranch.join(address, name, token=token) as group:
                return trains(group)

        one, _, other = pool.each(plays, ["site0", "site1", "site2"])
    assert torch.equal(one[0], other[0])
    assert one[1:] == other[1:] == (("site0", "site2"), 2.0)
    why = "site 1 (site1) failed: " + ": ".join(filter(None, (type(error).__name__, str(error))))
    said = sorted(each.getMessage() for each in caplog.records if why in each.getMessage())
    assert said == [f"site0: {why}; the others go on", f"site2: {why}; the others go on"]


@pytest.mark.parametrize("leaves_at", [{1: 13, 2: 17}, {0: 13, 1: 13, 2: 13}])
def test_where_too_few_sites_are_left_by_exceptions_all_have_an_error(groups, leaves_at):
    def trains(group: Group) -> str:
        rank, model = group.rank, net(0)
        optimizer = torch.optim.SGD(model.parameters(), RATE)
        try:
            with DiLoCo(model, optimizer, group, every=10, fragments=2, delay=4):
                for number in range(40):
                    step(model, optimizer, rank, number)
                    if leaves_at.get(rank) == number:
                        fail(None)
        except (ZeroDivisionError, RunAborted) as error:
            return type(error).__name__
        return "nothing"

    ends = at_each(groups, trains)
    if len(leaves_at) == SITES:
        assert every(each in ("ZeroDivisionError", "RunAborted") for each in ends)
        assert "ZeroDivisionError" in ends
    else:
        assert ends[0] == "RunAborted"
        assert ends[1] == "ZeroDivisionError"


def test_an_exception_in_the_block_ends_a_group_that_is_told_so():
    def trains(group: Group) -> str:
        model = net(0)
        optimizer = torch.optim.SGD(model.parameters(), RATE)
        try:
            with LocalSGD(model, optimizer, group, every=2):
                for number in range(6):
                    step(model, optimizer, group.rank, number)
                    if group.rank == 1 and number == 2:
                        fail(None)
        except (ZeroDivisionError, RunAborted) as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"

    service = anabranch.Service(_complete(SITES), awareness=None, on_error="abort")
    with anabranch.local(service) as groups:
        ends = at_each(groups, trains)
    said = "site 1 (site1) failed: ZeroDivisionError: no samples"
    assert ends == [f"RunAborted: {said}", "ZeroDivisionError: no samples", f"RunAborted: {said}"]


@pytest.mark.parametrize("how", ["memory", "weight"])
def test_an_error_of_one_site_s_own_is_that_site_s_loss(groups, how):
    def trains(group: Group) -> tuple[str, tuple[str, ...]]:
        model = net(0)
        optimizer = torch.optim.SGD(model.parameters(), RATE)
        try:
            with DiLoCo(model, optimizer, group, every=2) as block:
                for number in range(6):
                    if group.site == "site1" and number == 3 and how == "memory":
                        model[0].weight.data = model[0].weight.data.clone()
                    elif group.site == "site1" and number == 3:
                        block.average.weight = -1
                    step(model, optimizer, group.rank, number)
        except ValueError as error:
            return type(error).__name__, ()
        return "nothing", group.sites

    left = ("nothing", ("site0", "site2"))
    assert at_each(groups, trains) == [left, ("ValueError", ()), left]


def test_weights_may_be_clamped_and_frozen_at_the_end(groups):
    def trains(group: Group) -> torch.Tensor:
        model = net(0)
        optimizer = torch.optim.SGD(model.parameters(), RATE)
        with DiLoCo(model, optimizer, group, every=2):
            for number in range(4):
                step(model, optimizer, group.rank, number)
                with torch.no_grad():
                    for each in model.parameters():
                        each.clamp_(-0.5, 0.5)
                        if each.requires_grad:  # a little differs after the last step, too
                            each.mul_(1.0 + 1e-6 * group.rank)
            model.requires_grad_(False)
        return flat(model)

    found = at_each(groups, trains)
    assert every(torch.equal(each, found[0]) for each in found)


def test_a_model_that_does_not_train_is_refused(groups):
    model = net(0).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    with pytest.raises(ValueError, match="no parameter of the model needs a gradient"):
        LocalSGD(model, optimizer, groups[0], every=5).__enter__()


@pytest.mark.parametrize(
    ("model", "of", "said"),
    [
        (net(0), net(1), r"a parameter of shape \(7, 5\), in its group 0, that is none of the"),
        (net(0).double(), None, "0.weight is float64, and means are computed in float32"),
        (nn.Linear(2, 2, dtype=torch.complex64), None, "weight is complex64, and means are"),
        (net(0).bfloat16(), None, "0.weight is bfloat16, and small steps would be lost"),
        (None, net(0), "model is a NoneType"),
    ],
)
def test_a_model_and_an_optimizer_that_do_not_fit_are_refused(groups, model, of, said):
    optimizer = torch.optim.SGD((of or model).parameters(), RATE)
    with pytest.raises(ValueError, match=said):
        DiLoCo(model, optimizer, groups[0], every=5).__enter__()


def test_no_optimizer_is_refused(groups):
    with pytest.raises(ValueError, match="optimizer is a NoneType"):
        DiLoCo(net(0), None, groups[0], every=5).__enter__()


def unfrozen(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    model[2].bias.requires_grad_(True)
    return optimizer


def deeper(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    model.append(nn.Linear(1, 1))
    optimizer.add_param_group({"params": [*model[3].parameters()]})
    return optimizer


def replaced(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    model[0].weight = nn.Parameter(torch.zeros(7, 5))
    return optimizer


def swapped(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), RATE)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (unfrozen, "2.bias needs a gradient, and is no parameter that the model had"),
        (deeper, "3.weight needs a gradient"),
        (replaced, "0.weight needs a gradient"),
        (swapped, "models have changed in different ways, and no site has counted a step"),
    ],
)
def test_a_change_that_would_leave_models_different_is_named_at_every_site(groups, change, said):
    def trains(group: Group) -> None:
        model = net(0)
        optimizer = torch.optim.SGD(model.parameters(), RATE)
        with DiLoCo(model, optimizer, group, every=3):
            optimizer = change(model, optimizer)
            for number in range(2):
                step(model, optimizer, group.rank, number)

    def raises(group: Group) -> bool:
        with pytest.raises(ValueError, match=said):
            trains(group)
        return True

    assert at_each(groups, raises) == [True] * SITES
