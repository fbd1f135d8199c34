"""Comm hooks: what is sent and what is kept are together what there was, the same at all ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from anabranch.torch import ddp_hooks
from anabranch.torch._works import Work
from anabranch.torch.ddp_hooks import InOrder, Int8, Mean, Residuals, TopK, hook
from tests.every import every
from tests.torch.ranks import run_ranks

RANKS = 3
STEPS = 6
BLOCK = 8
ELEMENTS = 3 * 40 + 40 + 40 + 1  # of the model below


@pytest.mark.parametrize("sites", [1, 2, 3, 9, 42])
def test_sums_of_quantised_values_stay_in_int8_and_lose_nothing(sites: int) -> None:
    levels = ddp_hooks.levels(sites)
    torch.manual_seed(sites)
    spread = 10.0 ** torch.randint(-30, 30, (1000,))  # blocks of one element each to all alike
    values = [torch.randn(1000) * spread for _ in range(sites)]
    largest = torch.stack([ddp_hooks.largest_by_block(each, 7) for each in values]).amax(0)
    total = torch.zeros(1000)
    for each in values:
        integers, left = ddp_hooks.quantised(each, torch.zeros(1000), largest, levels, 7)
        sent = ddp_hooks.dequantised(integers, largest, levels, 7)
        assert torch.equal(sent.double() + left.double(), each.double())  # to the bit
        total += integers
    assert total.abs().max() <= 127
    assert torch.equal(total, total.round())


def test_tiny_and_zero_blocks_are_kept_whole() -> None:
    values = torch.tensor([0.0, 0.0, 1e-45, -3e-45, 2e-39, -1e-38])
    largest = ddp_hooks.largest_by_block(values, 2)
    integers, left = ddp_hooks.quantised(values, torch.zeros(6), largest, 42, 2)
    sent = ddp_hooks.dequantised(integers, largest, 42, 2)
    assert torch.equal(sent + left, values)
    assert integers.abs().max() <= 42


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_a_block_that_is_not_finite_is_nan_for_all_and_keeps_its_residual(wrong: float) -> None:
    values, residual = torch.tensor([1.0, 2.0, wrong, 4.0]), torch.tensor([0.1, 0.2, 0.3, 0.4])
    largest = ddp_hooks.largest_by_block(values, 2)
    integers, left = ddp_hooks.quantised(values, residual, largest, 42, 2)
    assert integers.isfinite().all()
    assert torch.equal(left[2:], residual[2:])
    found = ddp_hooks.dequantised(integers, largest, 42, 2)
    assert found[:2].isfinite().all()
    assert found[2:].isnan().all()


def test_too_many_sites_for_int8_are_told_the_limit() -> None:
    with pytest.raises(ValueError, match="up to 42 sites"):
        ddp_hooks.levels(43)


@pytest.mark.parametrize("count", [1, 5, 20])
def test_the_largest_are_selected_and_added_up(count: int) -> None:
    rng = np.random.default_rng(count)
    rows = rng.standard_normal((3, 20)).astype(np.float32)
    expected = np.zeros(20, np.float32)
    for row in rows:
        indices = np.argsort(-np.abs(row))[:count]
        expected[indices] += row[indices]
    letters = [ddp_hooks.selected(torch.from_numpy(row), count) for row in rows]
    assert np.array_equal(ddp_hooks.added_up(letters, 20).numpy(), expected)


def test_residuals_move_with_their_parameters_to_other_buckets() -> None:
    a, b, c = (nn.Parameter(torch.zeros(size)) for size in (2, 3, 4))
    residuals = Residuals()
    residuals.of([a, b])[:] = torch.arange(5.0)
    residuals.of([c])[:] = 9.0
    assert residuals.of([a, b]).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert residuals.of([c, b]).tolist() == [9.0] * 4 + [2.0, 3.0, 4.0]
    assert residuals.of([a]).tolist() == [0.0, 1.0]
    residuals.of([c, b])[:] = 7.0
    assert residuals.of([c, b, a]).tolist() == [7.0] * 7 + [0.0, 1.0]
    assert not residuals.of([a, b, c]).requires_grad


def test_residuals_are_saved_by_name_and_go_on_in_any_buckets() -> None:
    first, again = (nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)) for _ in range(2))
    a, b, c, d = first.parameters()
    residuals, others = Residuals(), Residuals()
    residuals.of([d, c, b])[:] = torch.arange(7.0)
    state = residuals.state_dict(first)
    assert {name: tuple(each.shape) for name, each in state.items()} == {
        "0.bias": (3,),
        "1.weight": (1, 3),
        "1.bias": (1,),
    }
    residuals.of([d, c, b])[:] = -1.0  # what was saved stays
    others.of(list(again.parameters()))[:] = 5.0
    others.load_state_dict(again, state)
    a, b, c, d = again.parameters()
    assert others.of([a]).tolist() == [0.0] * 6
    assert others.of([b, c, d]).tolist() == [4.0, 5.0, 6.0, 1.0, 2.0, 3.0, 0.0]
    with pytest.raises(ValueError, match="residual of"):
        others.load_state_dict(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)), state)


def test_states_say_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="no process group of the backend anabranch"):
        Mean()
    with pytest.raises(ValueError, match="wire is 'int8'"):
        Mean(wire="int8")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"share is 0\.0"):
        TopK(share=0.0)
    mean = Mean.__new__(Mean)  # without a group: the weight is looked at when it is set
    with pytest.raises(ValueError, match="weight is 0"):
        mean.weight = 0
    mean.weight = torch.tensor(3)  # type: ignore[assignment]
    assert mean.weight == 3.0


class _Refusing:
    def start(self, bucket: object) -> Any:
        raise ValueError("no bucket for this one")


class _Bucket:
    def __init__(self, buffer: torch.Tensor) -> None:
        self._buffer = buffer

    def buffer(self) -> torch.Tensor:
        return self._buffer


@pytest.mark.parametrize(
    ("buffer", "said"),
    [
        (torch.zeros(2), "no bucket for this one"),
        (torch.zeros(2, dtype=torch.complex64), "gradients are complex64"),
    ],
)
def test_what_is_raised_in_a_hook_is_what_its_future_raises(
    buffer: torch.Tensor, said: str
) -> None:
    future = hook(_Refusing(), _Bucket(buffer))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=said):
        future.wait()


def test_a_bucket_without_elements_is_as_it_was() -> None:
    future = hook(_Refusing(), _Bucket(torch.zeros(0)))  # type: ignore[arg-type]
    assert future.wait().numel() == 0


def test_int8_wants_whole_elements_in_a_block() -> None:
    with pytest.raises(ValueError, match=r"block_elements is 1\.5"):
        Int8(block_elements=1.5)  # type: ignore[arg-type]


# --- error feedback, at one of three ranks of which the others' gradients are zero


class _Alone:
    """A process group, as hooks see it, whose other ranks have no gradients.

    Args:
        largest: the largest gradient of any other rank's, as those say.
    """

    def __init__(self, largest: float = 0.0) -> None:
        self.group = self
        self.membership = SimpleNamespace(names=("a", "b", "c"))
        self._largest = largest

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return RANKS

    def all_reduce(self, staged: list[torch.Tensor], **how: Any) -> None:
        if how.get("op") == "max":
            staged[0].clamp_(min=self._largest)

    def broadcast(self, staged: list[torch.Tensor], root: str, async_op: bool) -> None:
        if root != "a":
            count = len(staged[0]) // 2
            staged[0].copy_(ddp_hooks.selected(torch.full((50,), self._largest), count))

    def exchange(self, what: str, tensors: list[torch.Tensor], begin: Callable[..., Any]) -> Work:
        begin(tensors)
        work = Work(what)
        work.succeed(tensors)
        return work


class _Gradients:
    """A bucket of one parameter's gradients."""

    def __init__(self, parameter: nn.Parameter, gradients: torch.Tensor) -> None:
        self._parameter, self._gradients = parameter, gradients

    def buffer(self) -> torch.Tensor:
        return self._gradients

    def parameters(self) -> list[nn.Parameter]:
        return [self._parameter]


class _Halving:
    """A gradient scaler whose scale is another at each step."""

    def __init__(self) -> None:
        self.step = 0

    def get_scale(self) -> float:
        return 2.0 ** (10 - 3 * self.step)


LOSSY: dict[str, Callable[..., Any]] = {
    "int8": partial(Int8, block_elements=16),
    "top-k": partial(TopK, share=0.1),
}


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> _Alone:
    group = _Alone()
    monkeypatch.setattr(ddp_hooks, "backend_of", lambda given: group)
    return group


def _stepped(
    made: Callable[..., Any], scaler: _Halving | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what a hook makes of four steps' gradients, and what is left, without the scale."""
    state, parameter, found = made(scaler=scaler), nn.Parameter(torch.zeros(50)), []
    for step in range(4):
        scale = 1.0
        if scaler is not None:
            scaler.step = step
            scale = scaler.get_scale()
        bucket: Any = _Gradients(parameter, _given(step, 0) * scale)
        found.append(hook(state, bucket).wait() / scale)
    return torch.stack(found), state.residuals.of([parameter])


@pytest.mark.parametrize("kind", LOSSY)
def test_what_was_sent_and_what_is_left_are_all_gradients_that_there_were(
    kind: str, alone: _Alone
) -> None:
    found, left = _stepped(LOSSY[kind])
    given = torch.stack([_given(step, 0) for step in range(4)])
    assert every((RANKS * found - given).abs().amax(1) > 0.01)  # something was left at each step
    assert left.any()
    total = RANKS * found.double().sum(0) + left.double()
    assert (total - given.double().sum(0)).abs().max() < 1e-5


@pytest.mark.parametrize("kind", LOSSY)
def test_a_scale_that_changes_changes_no_bit_of_what_is_sent_and_left(
    kind: str, alone: _Alone
) -> None:
    plain, scaled = _stepped(LOSSY[kind]), _stepped(LOSSY[kind], _Halving())
    for without, with_scale in zip(plain, scaled, strict=True):
        assert torch.equal(without, with_scale)


@pytest.mark.parametrize("kind", LOSSY)
def test_a_step_with_an_infinity_at_another_rank_leaves_what_was_left(
    kind: str, alone: _Alone
) -> None:
    state, parameter = LOSSY[kind](), nn.Parameter(torch.zeros(50))
    hook(state, _Gradients(parameter, _given(0, 0))).wait()  # type: ignore[arg-type]
    before = state.residuals.of([parameter]).clone()
    alone._largest = torch.inf
    found = hook(state, _Gradients(parameter, _given(1, 0))).wait()  # type: ignore[arg-type]
    assert not found.isfinite().all()
    assert before.any()
    assert torch.equal(state.residuals.of([parameter]), before)


# --- over the backend


def _net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 40), nn.Tanh(), nn.Linear(40, 1))


def _samples(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(4 * (rank + 1), 3, generator=drawn)  # unequal batches
    return x, x.sum(1, keepdim=True).sin()


def _backward(model: nn.Module, step: int, rank: int) -> None:
    x, y = _samples(step, rank)
    nn.functional.mse_loss(model(x), y).backward()


def _gradient(model: nn.Module) -> torch.Tensor:
    return torch.cat(
        [each.grad.reshape(-1) for each in model.parameters() if each.grad is not None]
    )


def _trained(state: Any, call: Callable[..., Any], before: Callable[[int], None]) -> Any:
    """Return the gradients of each step, and what this rank alone would have had."""
    model = DistributedDataParallel(_net(), bucket_cap_mb=0.0004)  # several buckets
    model.register_comm_hook(state, call)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    rank = dist.get_rank()
    found, own = [], []
    for step in range(STEPS):
        before(step)
        alone = _net()
        alone.load_state_dict(model.module.state_dict())
        _backward(alone, step, rank)
        own.append(_gradient(alone))
        _backward(model, step, rank)
        found.append(_gradient(model))
        optimizer.step()
        optimizer.zero_grad()
    return torch.stack(found), torch.stack(own), [*model.parameters()]


def _left(state: Any, parameters: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([state.residuals.of([each]) for each in parameters])


def _weights_under(state: Any) -> tuple[nn.Parameter, DistributedDataParallel]:
    """Return 50 weights, and a model whose gradient of them is what it is given."""
    weights = nn.Parameter(torch.zeros(50))
    module = nn.Module()
    module.register_parameter("weights", weights)
    module.forward = lambda x: (weights * x).sum()  # type: ignore[method-assign]
    model = DistributedDataParallel(module)
    model.register_comm_hook(state, hook)
    return weights, model


def _two_steps() -> tuple[torch.Tensor, torch.Tensor]:
    """Return what int8 makes of two gradients in one block, and what is left, at one rank."""
    state = Int8(block_elements=16)
    weights, model = _weights_under(state)
    found = []
    for step in range(2):
        model(_given(step, dist.get_rank())).backward()
        assert weights.grad is not None
        found.append(weights.grad.clone())
        weights.grad = None
    return torch.stack(found), state.residuals.of([weights])


def _given(step: int, rank: int) -> torch.Tensor:
    return torch.randn(50, generator=torch.Generator().manual_seed(10 * step + rank))


def _scaled(made: Callable[..., Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what a hook makes of unscaled gradients, and of those that a scaler scales."""
    found = []
    for scaler in (None, _Halving()):
        state = made(scaler=scaler)
        weights, model = _weights_under(state)
        for step in range(3):
            scale = 1.0
            if scaler is not None:
                scaler.step = step
                scale = scaler.get_scale()
            (scale * model(_given(step, dist.get_rank()))).backward()
            assert weights.grad is not None
            found.append(weights.grad / scale)
            weights.grad = None
    return torch.stack(found[:3]), torch.stack(found[3:]), state.residuals.of([weights])


def _with_an_infinity() -> tuple[torch.Tensor, torch.Tensor]:
    """Return top-k's residual of this rank before and after a step with an infinity at another."""
    state = TopK(share=0.1)
    weights, model = _weights_under(state)
    left = []
    for step in range(2):
        given = _given(step, dist.get_rank())
        if step == 1 and dist.get_rank() == 1:
            given[3] = torch.inf
        model(given).backward()
        left.append(state.residuals.of([weights]).clone())
    return left[0], left[1]


def _all() -> dict[str, Any]:
    """Train over each hook in turn, at one rank."""
    from torch.distributed.algorithms.ddp_comm_hooks import (
        default_hooks,
        powerSGD_hook,
        quantization_hooks,
    )

    samples = 4.0 * (dist.get_rank() + 1)
    told: dict[str, Any] = {}

    def run(name: str, state: Any, call: Any = hook, weight: float | None = None) -> None:
        def before(step: int) -> None:
            if weight is not None:
                state.weight = weight

        found, own, parameters = _trained(state, call, before)
        has_residual = isinstance(state, Int8 | TopK)
        told[name] = found, own, _left(state, parameters) if has_residual else None

    run("mean", Mean())
    run("weighted", Mean(), weight=samples)
    run("bfloat16", Mean(wire="bfloat16"))
    run("float16", Mean(wire="float16", weight=2.0))
    run("int8", Int8(block_elements=BLOCK))
    run("top-k", TopK(share=0.1))
    power = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1
    )
    run("PowerSGD", InOrder(powerSGD_hook.powerSGD_hook, power))
    quantized = quantization_hooks.quantization_pertensor_hook  # which gathers
    run("torch's int8", InOrder(quantized, dist.group.WORLD))
    run("torch's fp16", None, default_hooks.fp16_compress_hook)
    # DDP refuses torch's bfloat16 hook by its name where there is no NCCL.
    run("torch's bf16", None, lambda state, bucket: default_hooks.bf16_compress_hook(state, bucket))
    told["int8's steps"] = _two_steps()
    told["infinity"] = _with_an_infinity()
    told["scaled"] = [_scaled(Int8), _scaled(partial(TopK, share=0.1))]
    group = ddp_hooks.backend_of().group
    integers = torch.tensor([-42.0, 0.0, 42.0])
    group.all_reduce(integers, op="sum", wire="int8")
    told["integers"] = integers.tolist()
    # Last: a rank ends the pass where its own callback ran, so ranks differ in what they called.
    plain = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=1)
    told["callback"] = _wrong(plain, powerSGD_hook.powerSGD_hook)
    return told


def _wrong(state: Any, call: Callable[..., Any]) -> str:
    """Return what is said of three backward passes by a hook that cannot be."""
    model = DistributedDataParallel(_net())
    model.register_comm_hook(state, call)
    try:
        for step in range(3):
            _backward(model, step, dist.get_rank())
    except RuntimeError as error:
        return str(error)
    return "nothing"


def _check_int8(told: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Check it against a computation by NumPy."""
    residual = np.zeros((RANKS, 50), np.float32)
    for step in range(2):
        values = np.stack([_given(step, rank).numpy() for rank in range(RANKS)]) + residual
        result = np.empty(50, np.float32)
        for start in range(0, 50, 16):
            part = values[:, start : start + 16]
            size = np.abs(part).max() / np.float32(127 // RANKS)
            steps = np.rint(part / size)
            result[start : start + 16] = steps.sum(0) * size / np.float32(RANKS)
            residual[:, start : start + 16] = part - steps * size
        for found, _ in told:
            assert np.array_equal(found[step].numpy(), result)
    for rank, (_, left) in enumerate(told):
        assert np.array_equal(left.numpy(), residual[rank])


@pytest.mark.slow
def test_hooks_over_the_backend() -> None:
    told = run_ranks(_all, RANKS)
    for each in told:
        before, after = each.pop("infinity")
        assert before.any()
        assert torch.equal(before, after)
        for plain, scaled, left in each.pop("scaled"):  # powers of two change no bit
            assert torch.equal(plain, scaled)
            assert left.abs().max() < 10.0
    names = [name for name in told[0] if len(told[0][name]) == 3 and name != "integers"]
    assert len(names) == 10
    for name in names:
        for each in told[1:]:
            assert torch.equal(each[name][0], told[0][name][0]), name  # the same bits
    own = {name: torch.stack([each[name][1] for each in told]).double() for name in names}
    found = {name: told[0][name][0].double() for name in names}  # (steps, elements)
    samples = torch.tensor([4.0, 8.0, 12.0], dtype=torch.float64)

    def far(name: str, expected: torch.Tensor) -> float:
        return float((found[name] - expected).abs().max())

    assert far("mean", own["mean"].mean(0)) < 1e-6
    weighted = torch.einsum("r,rse->se", samples / samples.sum(), own["weighted"])
    assert far("weighted", weighted) < 1e-6
    assert 0.0 < far("bfloat16", own["bfloat16"].mean(0)) < 0.05
    assert 0.0 < far("float16", own["float16"].mean(0)) < 0.005
    assert 0.0 < far("torch's bf16", own["torch's bf16"].mean(0)) < 0.05
    assert 0.0 < far("torch's fp16", own["torch's fp16"].mean(0)) < 0.005
    assert 0.0 < far("torch's int8", own["torch's int8"].mean(0)) < 0.05
    assert far("PowerSGD", own["PowerSGD"].mean(0)) > 0.0
    for name in ("int8", "top-k"):
        # All that was ever sent, and what is left at the sites, are all gradients that there were.
        left = torch.stack([each[name][2] for each in told]).double()
        assert far(name, own[name].mean(0)) > 0.0
        sent = RANKS * found[name].sum(0)
        assert (sent + left.sum(0) - own[name].sum((0, 1))).abs().max() < 1e-5
    # The others may hear first that this rank has called what they have not.
    assert any("InOrder(powerSGD_hook, state)" in each["callback"] for each in told)
    assert every(each["callback"] != "nothing" for each in told)
    for each in told:
        assert each["integers"] == [-126.0, 0.0, 126.0]
    _check_int8([each["int8's steps"] for each in told])
