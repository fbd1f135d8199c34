"""Members whose models differ, and contributions that are not finite, over real connections."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import anabranch
from anabranch import ExchangeError, Group, Outer
from anabranch.exchange.terms import Wire
from anabranch.group import _alike
from anabranch.group._local import _complete, _serving
from anabranch.group.blocking_group import join_at
from anabranch.group.place import Place
from anabranch.group.tensors import find_not_finite

from ..every import every

SITES = 3


@pytest.fixture
def groups() -> Iterator[tuple[Group, ...]]:
    with anabranch.local(SITES) as groups:
        yield groups


def at_each(groups: tuple[Group, ...], call: Callable[[Group], Any]) -> list[Any]:
    """Call this with every group, each in a thread of its own; return the results by rank."""
    with ThreadPoolExecutor(len(groups)) as pool:
        return list(pool.map(call, groups))


def error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except (ExchangeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


# --- models


ONE_AT_A_TIME = threading.Lock()


def net(rank: int) -> torch.nn.Module:
    with ONE_AT_A_TIME:  # sites are threads, and share the generator
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    model.register_buffer("cache", torch.zeros(1 + rank), persistent=False)
    return model


def test_models_that_are_alike_pass(groups: tuple[Group, ...]) -> None:
    at_each(groups, lambda group: group.verify(net(group.rank)))
    at_each(groups, lambda group: group.verify(np.arange(5)))


def test_a_model_that_differs_is_named_at_every_site(groups: tuple[Group, ...]) -> None:
    def run(group: Group) -> str:
        model = net(group.rank)
        if group.rank == 1:
            model[1].running_mean[2] += 1e-7
            model[1].num_batches_tracked += 1
        found = error_of(lambda: group.verify(model))
        group.broadcast(model)
        group.verify(model)
        return found

    wanted = "site1's 1.running_mean is not site0's (2 of 7 tensors)"
    assert every(wanted in each for each in at_each(groups, run))


def test_models_of_other_layers_are_named(groups: tuple[Group, ...]) -> None:
    def run(group: Group) -> str:
        tensors = [torch.zeros(2)] * (1 + (group.rank == 2))
        return error_of(lambda: group.verify(tensors))

    assert every("site2 has 2 tensors, site0 1" in each for each in at_each(groups, run))


@pytest.mark.parametrize(
    "kind", [torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint8]
)
def test_one_bit_of_any_type_is_noticed(kind: torch.dtype) -> None:
    one = torch.zeros(5, dtype=kind)
    other = one.clone()
    assert _alike.digests_of({"a": one}) == _alike.digests_of({"a": other})
    other.view(torch.uint8)[3 * one.element_size()] ^= 1
    assert _alike.digests_of({"a": one}) != _alike.digests_of({"a": other})
    turned = torch.arange(6).to(kind).reshape(2, 3).t()
    assert _alike.digests_of({"a": turned}) == _alike.digests_of({"a": turned.contiguous()})


def test_what_cannot_be_compared_is_named() -> None:
    for given in (3, torch.eye(2).to_sparse()):
        with pytest.raises(ValueError, match=r"bias is a .*; give dense tensors"):
            _alike.digests_of({"bias": given})


@pytest.fixture
def joined() -> Iterator[tuple[Group, ...]]:
    """Return a group whose sites have joined as `anabranch.join` does."""
    service = anabranch.Service(_complete(2), awareness=None)
    with _serving(service) as (address, token), ThreadPoolExecutor(2) as pool:

        def join(name: str) -> Group:
            return join_at(Place(scheduler=address, site=name, token=token), hints=True)

        groups = tuple(pool.map(join, ("site0", "site1")))
        yield groups
        list(pool.map(lambda group: group.close(), groups))


def test_a_mean_before_models_are_made_alike_is_said_once_at_each_site(
    joined: tuple[Group, ...], caplog: pytest.LogCaptureFixture
) -> None:
    def run(group: Group) -> None:
        for _ in range(2):
            group.all_reduce(torch.ones(2))

    with caplog.at_level(logging.WARNING, "anabranch"):
        at_each(joined, run)
    said = sorted(each.getMessage() for each in caplog.records)
    assert [each.split(":")[0] for each in said] == ["site0", "site1"]
    assert every(
        "call group.broadcast(model) before, or group.verify(model)" in each for each in said
    )


@pytest.mark.parametrize("made", ["broadcast", "verify", "admit", "average"])
def test_nothing_is_said_where_a_call_has_made_models_alike(
    joined: tuple[Group, ...], caplog: pytest.LogCaptureFixture, made: str
) -> None:
    def run(group: Group) -> None:
        model = torch.nn.Linear(2, 2)
        torch.nn.init.zeros_(model.weight)
        torch.nn.init.zeros_(model.bias)
        if made == "admit":
            group.admit(model.state_dict())
        elif made == "average":
            group.average(model, every=1)
        else:
            getattr(group, made)(model)
        group.all_reduce(torch.ones(2))

    with caplog.at_level(logging.WARNING, "anabranch"):
        at_each(joined, run)
    assert not caplog.records


def test_a_site_that_leaves_earlier_is_told_that_the_others_go_on(
    groups: tuple[Group, ...], caplog: pytest.LogCaptureFixture
) -> None:
    def run(group: Group) -> None:
        for _ in range(2 if group.site == "site0" else 4):
            group.all_reduce(torch.ones(2))
        group.close()

    with caplog.at_level(logging.WARNING, "anabranch"):
        at_each(groups, run)
    (said,) = [each.getMessage() for each in caplog.records]
    assert said.startswith("site0: this site has left, and the others go on without it")


def test_nothing_is_said_where_all_leave_after_the_same_call(
    groups: tuple[Group, ...], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "anabranch"):
        at_each(groups, lambda group: (group.all_reduce(torch.ones(2)), group.close()))
    assert not caplog.records


# --- contributions that are not finite


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
def test_what_is_not_finite_is_found(value: float, kind: torch.dtype) -> None:
    wire = {torch.float32: Wire.FLOAT32, torch.float16: Wire.FLOAT16, torch.bfloat16: Wire.BFLOAT16}
    largest = torch.full((700,), torch.finfo(kind).max, dtype=kind)
    parts = [largest, -largest, torch.zeros(0, dtype=kind)]
    bits = [each if kind == torch.float32 else each.view(torch.int16) for each in parts]
    assert find_not_finite([each.numpy() for each in bits], wire[kind]) is None
    parts[1][[5, 600]] = value
    assert find_not_finite([each.numpy() for each in bits], wire[kind]) == (1, 2)


@pytest.mark.parametrize("op", ["mean", "sum"])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_one_nan_fails_the_call_by_name_and_the_group_goes_on(
    groups: tuple[Group, ...], op: Any, at: int
) -> None:
    def run(group: Group) -> tuple[str, list[float], float]:
        tensors = [torch.ones(4), torch.full((3,), float(group.rank))]
        if group.rank == at:
            tensors[1][1] = np.nan
        said = error_of(lambda: group.all_reduce(tensors, op=op))
        after = torch.ones(2)
        group.all_reduce(after, op="sum")
        return said, tensors[0].tolist(), after[0].item()

    for said, before, after in at_each(groups, run):
        assert said.startswith(
            f"ExchangeError: site {at} (site{at}) has 1 NaN or infinite elements"
        )
        assert "in tensor 1" in said
        assert (before, after) == ([1.0] * 4, 3.0)


def test_one_nan_fails_a_call_that_was_promised_and_the_group_goes_on(
    groups: tuple[Group, ...],
) -> None:
    def run(group: Group) -> tuple[list[str], list[float]]:
        values, said = np.ones(4, np.float32), []
        for step in range(5):
            if group.rank == 1:
                values[2] = np.nan if step == 2 else 1.0
            said.append(error_of(partial(group.all_reduce, values, more=step < 4)))
        group.barrier()
        return said, values.tolist()

    for said, values in at_each(groups, run):
        assert [each == "nothing" for each in said] == [True, True, False, True, True]
        assert said[2].startswith("ExchangeError: site 1 (site1) has 1 NaN or infinite elements")
        assert values == [1.0] * 4


def test_all_sites_with_nan_and_calls_under_way_fail_too(groups: tuple[Group, ...]) -> None:
    def run(group: Group) -> list[str]:
        tensors = [torch.full((5,), float("nan") if place == 1 else 1.0) for place in range(3)]
        handles = [group.all_reduce(each, async_op=True) for each in tensors]
        return [error_of(handle.wait) for handle in handles]

    for first, second, third in at_each(groups, run):
        assert (first, third) == ("nothing", "nothing")
        assert "NaN or infinite" in second


def test_extremes_and_what_is_allowed_are_exchanged_all_the_same(
    groups: tuple[Group, ...],
) -> None:
    def run(group: Group) -> list[float]:
        largest = torch.tensor([np.inf if group.rank == 1 else 0.0])
        group.all_reduce(largest, op="max")
        least = torch.tensor([-np.inf if group.rank == 1 else 0.0])
        group.all_reduce(least, op="min")
        group.on_nan = "allow"
        mean = torch.tensor([np.inf if group.rank == 1 else 0.0])
        group.all_reduce(mean)
        part = group.subgroup(group.sites)
        assert part.on_nan == "allow"
        return [largest.item(), least.item(), mean.item()]

    assert at_each(groups, run) == [[np.inf, -np.inf, np.inf]] * SITES


def test_a_model_that_has_become_nan_spoils_no_average(groups: tuple[Group, ...]) -> None:
    def run(group: Group) -> tuple[str, list[float]]:
        model = torch.nn.Linear(2, 2, bias=False)
        model.register_buffer("mask", torch.tensor([-np.inf, 0.0]))
        torch.nn.init.ones_(model.weight)
        average = group.average(model, every=1, outer=Outer())
        assert average.step()
        with torch.no_grad():
            if group.rank == 2:
                model.weight[0, 0] = np.nan
        return error_of(average.step), model.weight[1].tolist()

    for said, weights in at_each(groups, run):
        assert said.startswith("ExchangeError: site 2 (site2) has 1 NaN or infinite elements")
        assert weights == [1.0, 1.0]


def test_what_is_done_with_nan_is_one_of_two() -> None:
    with pytest.raises(ValueError, match="on_nan is 'skip', must be 'raise' or 'allow'"):
        anabranch.join("127.0.0.1:1", "a", token="t", on_nan="skip")  # type: ignore[arg-type]
