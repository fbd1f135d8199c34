"""A group of three sites in one process: every call of the public API, over real connections."""

from __future__ import annotations

import asyncio
import concurrent.futures
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
import torch

import anabranch
from anabranch import ExchangeError, Group, RunAborted
from anabranch.group import _exit, _settings
from anabranch.group._local import _complete, _serving
from anabranch.group._member import Member
from anabranch.group._thread import LoopThread
from anabranch.group.blocking_group import Handle, join_at
from anabranch.group.log import RunLog
from anabranch.group.place import Place
from anabranch.group.service import Serving
from anabranch.log.console import Console, Line
from anabranch.net.addresses import show
from anabranch.net.frames import CONTROL_LIMITS
from anabranch.net.messages import EpochChanged, Join, Message
from anabranch.net.network import Connection
from anabranch.net.session import Session
from anabranch.net.tcp import TcpNetwork
from anabranch.net.tls import SCHEDULER, Credentials
from anabranch.overlay import Link, Overlay, Site, _toml
from anabranch.pace import AnyPace, Asp, Bsp, FedBuff
from anabranch.plan import Auxiliary, Fapt, Star
from anabranch.scheduler._presence import Presence
from anabranch.scheduler.awareness import Passive
from anabranch.scheduler.deal import ByShare
from anabranch.scheduler.server import Scheduler
from anabranch.site._call import Call
from anabranch.train.schedules import Cosine, Steps

from ..every import every
from ..threads import Threads, at_each

SITES = 3
WEIGHTS = (1.0, 2.0, 5.0)


@pytest.fixture
def groups() -> Iterator[tuple[Group, ...]]:
    with anabranch.local(SITES) as groups:
        yield groups


@pytest.fixture(scope="module")
def same_groups() -> Iterator[tuple[Group, ...]]:
    """Groups of tests after which they go on as before."""
    with anabranch.local(SITES) as groups:
        yield groups


def random_tensors(
    elements: int = 10_000, dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(elements, generator=generator).to(dtype) for _ in range(SITES)]


def same(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return a tensor that all of these equal, to the last bit."""
    assert every(torch.equal(tensors[0], each) for each in tensors)
    return tensors[0]


# --- all_reduce


def test_who_is_who(groups: tuple[Group, ...]) -> None:
    assert [group.rank for group in groups] == [0, 1, 2]
    assert {group.size for group in groups} == {3}
    assert {group.sites for group in groups} == {("site0", "site1", "site2")}
    assert [group.site for group in groups] == ["site0", "site1", "site2"]
    assert repr(groups[1]) == "<anabranch.Group of site0, site1, site2, at site1>"


@pytest.mark.parametrize("elements", [1, 2, 10_000, 300_000])
def test_the_mean_is_the_weighted_mean_in_place_and_alike_everywhere(
    groups: tuple[Group, ...], elements: int
) -> None:
    tensors = random_tensors(elements)
    right = sum(weight * t.double() for weight, t in zip(WEIGHTS, tensors, strict=True)) / 8.0
    handles = at_each(
        groups, lambda group: group.all_reduce(tensors[group.rank], weight=WEIGHTS[group.rank])
    )
    assert torch.allclose(same(tensors).double(), right, rtol=1e-5, atol=1e-6)
    assert {handle.result.round for handle in handles} == {1}


def test_tensors_that_chunks_keep_to_have_the_same_mean_and_must_be_alike_at_every_site() -> None:
    service = anabranch.Service(
        overlay_of(SITES), Fapt(), awareness=None, deal=ByShare(cut="tensors"), chunk_elements=64
    )

    def run(name: str) -> tuple[list[torch.Tensor], str]:
        with anabranch.join(address, name, token=token) as group:
            shapes = [(3, 50), (1,), (0,), (7, 9)]
            tensors = [torch.full(shape, float(group.rank)) for shape in shapes]
            group.all_reduce(tensors, weight=WEIGHTS[group.rank])
            whole = torch.ones(20)
            with pytest.raises(ExchangeError) as refused:
                group.all_reduce([whole[:9], whole[9:]] if group.rank else [whole])
            return tensors, str(refused.value)

    with Threads(SITES) as pool, _serving(service) as (address, token):
        ends = pool.each(run, ("s0", "s1", "s2"))
    mean = (2.0 + 2 * 5.0) / sum(WEIGHTS)
    for tensors, refused in ends:
        for tensor in tensors:
            assert torch.equal(tensor, torch.full_like(tensor, mean))
        assert "s0) calls for a mean of 20 elements in tensors of 20 (" in refused
        assert ") calls for a mean of 20 elements in tensors of 9, 11 (" in refused


def test_sum_max_and_min(groups: tuple[Group, ...]) -> None:
    tensors = [torch.tensor([float(rank), -float(rank), 1.0]) for rank in range(SITES)]
    largest, least = ([tensor.clone() for tensor in tensors] for _ in "12")
    at_each(groups, lambda group: group.all_reduce(tensors[group.rank], op="sum"))
    at_each(groups, lambda group: group.all_reduce(largest[group.rank], op="max"))
    at_each(groups, lambda group: group.all_reduce(least[group.rank], op="min"))
    assert same(tensors).tolist() == [3.0, -3.0, 3.0]
    assert same(largest).tolist() == [2.0, 0.0, 1.0]
    assert same(least).tolist() == [0.0, -2.0, 1.0]


def test_the_least_is_kept_among_positive_numbers_whatever_the_weights(
    groups: tuple[Group, ...],
) -> None:
    tensors = [torch.tensor([1.0 + rank, torch.inf, -torch.inf]) for rank in range(SITES)]
    at_each(
        groups,
        lambda group: group.all_reduce(tensors[group.rank], op="min", weight=WEIGHTS[group.rank]),
    )
    assert same(tensors).tolist() == [1.0, torch.inf, -torch.inf]


def test_the_largest_is_kept_among_negative_numbers(groups: tuple[Group, ...]) -> None:
    tensors = [torch.full((5,), -1.0 - rank) for rank in range(SITES)]
    at_each(groups, lambda group: group.all_reduce(tensors[group.rank], op="max"))
    assert same(tensors).tolist() == [-1.0] * 5


def test_integers_are_added_up_in_a_byte_each(groups: tuple[Group, ...]) -> None:
    drawn = torch.Generator().manual_seed(0)
    tensors = [torch.randint(-42, 43, (10_000,), generator=drawn).float() for _ in range(SITES)]
    right, largest = sum(tensors), [each.clone() for each in tensors]
    least = [each.clone() for each in tensors]
    at_each(groups, lambda group: group.all_reduce(tensors[group.rank], op="sum", wire="int8"))
    assert torch.equal(same(tensors), torch.as_tensor(right))
    expected = torch.stack(largest).amax(0)
    at_each(groups, lambda group: group.all_reduce(largest[group.rank], op="max", wire="int8"))
    assert torch.equal(same(largest), expected)
    expected = torch.stack(least).amin(0)
    at_each(groups, lambda group: group.all_reduce(least[group.rank], op="min", wire="int8"))
    assert torch.equal(same(least), expected)


@pytest.mark.parametrize(
    ("values", "how", "message"),
    [
        ([1.0, 43.0], {"op": "sum"}, r"element 1 is 43; int8 carries integers from -42 to 42 here"),
        ([1.5], {"op": "sum"}, r"element 0 is 1\.5"),
        ([torch.nan], {"op": "max"}, r"element 0 is nan; .* from -127 to 127"),
        ([torch.inf], {"op": "min"}, r"element 0 is inf; .* from -127 to 127"),
        ([1.0], {"op": "mean"}, "op must be sum, max or min"),
        ([1.0], {"op": "sum", "weight": 2.0}, "weight 1"),
    ],
)
def test_what_is_no_integer_is_refused_before_anything_is_sent(
    groups: tuple[Group, ...], values: list[float], how: dict[str, Any], message: str
) -> None:
    for group in groups:
        with pytest.raises(ValueError, match=message):
            group.all_reduce(torch.tensor(values), wire="int8", **how)


@pytest.mark.parametrize(
    ("wire", "rounding"), [("float32", 2**-23), ("float16", 2**-10), ("bfloat16", 2**-7)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_any_type_travels_in_any_format(
    groups: tuple[Group, ...], wire: Any, rounding: float, dtype: torch.dtype
) -> None:
    tensors = random_tensors(5000, dtype)
    right = torch.stack([tensor.double() for tensor in tensors]).mean(0)
    at_each(groups, lambda group: group.all_reduce(tensors[group.rank], wire=wire))
    found = same(tensors)
    assert found.dtype == dtype
    own = torch.finfo(dtype).eps
    assert float((found.double() - right).abs().max()) <= 12 * max(rounding, own)


def test_gradients_may_come_from_a_generator(groups: tuple[Group, ...]) -> None:
    models = [torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)) for _ in groups]
    for rank, model in enumerate(models):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, float(rank))
    at_each(groups, lambda group: group.all_reduce(p.grad for p in models[group.rank].parameters()))
    for model in models:
        assert every((p.grad == 1.0).all() for p in model.parameters() if p.grad is not None)


def test_many_small_tensors_go_as_one(groups: tuple[Group, ...]) -> None:
    tensors = [
        [torch.full((1 + index % 7,), float(rank * index)) for index in range(500)]
        for rank in range(SITES)
    ]
    at_each(groups, lambda group: group.all_reduce(tensors[group.rank]))
    for own in tensors:
        assert every((each == float(index)).all() for index, each in enumerate(own))
    assert len(groups[0].stats.rounds) == 1


def test_tensors_that_are_not_contiguous_get_the_result_too(groups: tuple[Group, ...]) -> None:
    bases = [torch.full((20, 30), float(rank)) for rank in range(SITES)]
    at_each(groups, lambda group: group.all_reduce(bases[group.rank].t()[::2]))
    for rank, base in enumerate(bases):
        assert (base[:, ::2] == 1.0).all()
        assert (base[:, 1::2] == float(rank)).all()


def test_arrays_of_numpy(groups: tuple[Group, ...]) -> None:
    arrays = [np.full((3, 2), rank, np.float32) for rank in range(SITES)]
    at_each(groups, lambda group: group.all_reduce(arrays[group.rank]))
    assert every((array == 1.0).all() for array in arrays)


def test_several_are_under_way_at_once(groups: tuple[Group, ...]) -> None:
    tensors = [
        [torch.full((1000 * (count + 1),), float(rank + count)) for count in range(20)]
        for rank in range(SITES)
    ]
    handles = [
        [group.all_reduce(each, async_op=True) for each in tensors[group.rank]] for group in groups
    ]
    for own in handles:
        for handle in reversed(own):
            handle.wait(60)
            assert handle.done
    for own_tensors in tensors:
        assert every((each == 1.0 + count).all() for count, each in enumerate(own_tensors))
    assert [done.round for done in sorted(groups[0].stats.rounds, key=lambda r: r.round)] == list(
        range(1, 21)
    )


def test_waiting_has_an_end_and_the_exchange_goes_on(groups: tuple[Group, ...]) -> None:
    tensors = random_tensors(10)
    first = groups[0].all_reduce(tensors[0], async_op=True)
    with pytest.raises(TimeoutError):
        first.wait(0.05)
    assert not first.done
    for group in groups[1:]:
        group.all_reduce(tensors[group.rank], async_op=True)
    first.wait(60)
    assert first.done
    assert first.result.seconds > 0.0


# --- broadcast, gather, barrier


@pytest.mark.parametrize("root", [0, 2, "site1"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_broadcast_overwrites_the_others(
    groups: tuple[Group, ...], root: int | str, dtype: torch.dtype
) -> None:
    tensors = random_tensors(70_000, dtype)
    rank = root if isinstance(root, int) else groups[0].sites.index(root)
    right = tensors[rank].clone()
    at_each(groups, lambda group: group.broadcast(tensors[group.rank], root=root))
    assert torch.equal(same(tensors), right)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_broadcast_keeps_every_bit_also_of_what_is_no_number(
    groups: tuple[Group, ...], dtype: torch.dtype
) -> None:
    every = torch.arange(-(1 << 15), 1 << 15).to(torch.int16)  # every pattern of two bytes
    tensors = [(every + rank).clone().view(dtype) for rank in range(SITES)]
    at_each(groups, lambda group: group.broadcast(tensors[group.rank], root=1))
    for tensor in tensors:
        assert torch.equal(tensor.view(torch.int16), every + 1)


def test_members_that_broadcast_different_halves_are_told_so(groups: tuple[Group, ...]) -> None:
    def broadcast(group: Group) -> None:
        dtype = torch.bfloat16 if group.rank == 2 else torch.float16
        with pytest.raises(ExchangeError, match="bfloat16 on the wire"):
            group.broadcast(torch.ones(5, dtype=dtype))

    at_each(groups, broadcast)


@pytest.mark.parametrize(
    "weight", [np.float64(2), np.float32(2), np.float16(2), np.int64(2), 2, Fraction(2)]
)
def test_a_weight_may_be_any_number(groups: tuple[Group, ...], weight: Any) -> None:
    tensors = [torch.full((5,), float(rank)) for rank in range(SITES)]
    at_each(
        groups,
        lambda group: group.all_reduce(
            tensors[group.rank], weight=True if group.rank == 0 else weight
        ),
    )
    assert same(tensors).tolist() == pytest.approx([6 / 5] * 5)


def test_who_leaves_waits_for_its_calls_that_the_others_have_begun() -> None:
    arrays = [np.full(1_000_000, rank, np.float32) for rank in range(SITES)]
    with anabranch.local(SITES) as groups:
        handles = [group.all_reduce(arrays[group.rank], async_op=True) for group in groups]
    for array, handle in zip(arrays, handles, strict=True):
        handle.wait()
        assert (array == 1.0).all()


def test_who_leaves_with_a_call_that_nobody_else_makes_is_told_so() -> None:
    with anabranch.local(SITES) as groups:
        handle = groups[1].all_reduce(np.ones(10, np.float32), async_op=True)
    with pytest.raises(ExchangeError, match="has left, and not made this call"):
        handle.wait()


def test_values_are_gathered_by_rank(groups: tuple[Group, ...]) -> None:
    def gather(group: Group) -> list[list[Any]]:
        values = [{"rank": group.rank, "loss": 0.5}, [group.site, b"x"], None]
        return [group.all_gather(value) for value in values]

    for first, second, third in at_each(groups, gather):
        assert first == [{"rank": rank, "loss": 0.5} for rank in range(SITES)]
        assert second == [[f"site{rank}", b"x"] for rank in range(SITES)]
        assert third == [None] * SITES


def test_a_value_that_cannot_be_gathered_is_refused_at_once(groups: tuple[Group, ...]) -> None:
    with pytest.raises(TypeError, match="tensors are exchanged by all_reduce or broadcast"):
        groups[0].all_gather(torch.ones(2))
    with pytest.raises(ValueError, match="cannot be gathered"):
        groups[0].all_gather(1 << 70)
    with pytest.raises(TypeError, match="weight is 'much', must be a number"):
        groups[0].all_reduce(torch.ones(2), weight="much")  # type: ignore[arg-type]
    assert at_each(groups, lambda group: group.all_gather(group.rank)) == [[0, 1, 2]] * SITES


def test_a_value_that_is_too_large_is_refused_and_the_group_goes_on(
    groups: tuple[Group, ...],
) -> None:
    with pytest.raises(ValueError, match="at most"):
        groups[0].all_gather(bytes(2 << 20))
    assert at_each(groups, lambda group: group.all_gather(group.rank)) == [[0, 1, 2]] * SITES


def test_a_barrier_lets_no_site_through_before_the_last_has_come(
    groups: tuple[Group, ...],
) -> None:
    came: list[int] = []
    others = threading.Semaphore(0)

    def come(group: Group) -> int:
        is_last = group.rank == SITES - 1
        for _ in range(SITES - 1 if is_last else 0):
            others.acquire()  # until they are about to wait
        came.append(group.rank)
        others.release()
        group.barrier()
        return len(came)

    assert at_each(groups, come) == [SITES] * SITES


# --- some of the members


def test_a_subgroup_exchanges_among_its_members_alone(groups: tuple[Group, ...]) -> None:
    inner = groups[0], groups[2]
    subgroups = tuple(at_each(inner, lambda group: group.subgroup(["site2", "site0"])))
    assert [(each.rank, each.size, each.sites) for each in subgroups] == [
        (0, 2, ("site0", "site2")),
        (1, 2, ("site0", "site2")),
    ]
    tensors = [torch.full((50_000,), 1.0), torch.full((50_000,), 4.0)]
    at_each(subgroups, lambda group: group.all_reduce(tensors[group.rank], op="sum"))
    assert every((tensor == 5.0).all() for tensor in tensors)
    at_each(subgroups, lambda group: group.broadcast(tensors[group.rank].fill_(7.0), root="site2"))
    assert at_each(subgroups, lambda group: group.all_gather(group.site)) == [
        ["site0", "site2"],
        ["site0", "site2"],
    ]
    nested = at_each(subgroups, lambda group: group.subgroup([group.site]))
    alone = torch.tensor([3.0])
    nested[0].all_reduce(alone)
    assert alone.tolist() == [3.0]
    whole = random_tensors(10)
    at_each(groups, lambda group: group.all_reduce(whole[group.rank]))
    same(whole)


def test_exchanges_of_all_and_of_some_may_be_under_way_at_once(groups: tuple[Group, ...]) -> None:
    pairs = [("site0", "site1"), ("site1", "site2")]

    def play(group: Group) -> list[float]:
        mine = [group.subgroup(pair) for pair in pairs if group.site in pair]
        tensors = [torch.full((20_000,), float(group.rank)) for _ in range(1 + len(mine))]
        handles = [
            each.all_reduce(tensor, op="sum", async_op=True)
            for each, tensor in zip([*mine, group], tensors, strict=True)
        ]
        for handle in handles:
            handle.wait(60)
        return [float(tensor[0]) for tensor in tensors]

    assert at_each(groups, play) == [[1.0, 3.0], [1.0, 3.0, 3.0], [3.0, 3.0]]


# --- what is known


def test_an_exchange_has_a_share_of_the_limit_where_rates_are_given() -> None:
    with anabranch.local(anabranch.Service(overlay_of(2), awareness=None)) as groups:
        at_each(groups, lambda group: group.all_reduce(torch.ones(100)))
        shares = [group.stats.share_of_limit for group in groups]
    assert every(share is not None and share > 0 for share in shares)


@pytest.mark.parametrize(
    ("step", "samples", "wrong"),
    [(-1, 1, "step is -1"), (1.5, 1, "step is 1.5"), (1, 0, "samples is 0")],
)
def test_a_loss_of_no_step_is_refused(
    groups: tuple[Group, ...], step: int, samples: int, wrong: str
) -> None:
    with pytest.raises(ValueError, match=f"{wrong}, must be an integer from {samples < 1:d} to"):
        groups[0].report_loss(0.5, step, samples)
    groups[0].report_loss(0.5, step=0)  # as loops count
    groups[0].report_loss(float("nan"))  # training has diverged, which ends nothing
    groups[0].report_loss(torch.ones(1, requires_grad=True).sum())
    at_each(groups, Group.barrier)


def test_stats_tell_what_was_sent_and_how_long_it_took(groups: tuple[Group, ...]) -> None:
    before = groups[0].stats
    assert before.rounds == ()
    assert before.share_of_limit is None
    tensors = random_tensors(300_000)
    at_each(groups, lambda group: group.all_reduce(tensors[group.rank]))
    stats = [group.stats for group in groups]
    assert {stat.rounds[0].size_bytes for stat in stats} == {1_200_000}
    assert every(stat.share_of_limit is None for stat in stats)  # its rates are only assumed
    for group, stat in zip(groups, stats, strict=True):
        assert set(stat.sent_bytes) <= {*group.sites} - {group.site}
    # Each site but a chunk's root sends it once up; each root sends it to the others.
    assert sum(sum(stat.sent_bytes.values()) for stat in stats) >= 4 * 1_200_000


# --- what goes wrong


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda g: g.all_reduce(torch.ones(2), op="median"), "op is 'median'"),
        (lambda g: g.all_reduce(torch.ones(2), wire="int4"), "wire is 'int4'"),
        (lambda g: g.all_reduce(torch.ones(2), weight=0.0), "weight"),
        (lambda g: g.all_reduce(torch.ones(2), weight=float("nan")), "weight"),
        (lambda g: g.all_reduce(torch.ones(2), weight=10**400), "weight is inf"),
        (lambda g: g.report_loss(1.0, step=2**63), "step is"),
        (lambda g: g.report_accuracy(0.5, step=-1), "step is -1"),
        (lambda g: g.report_accuracy(90.0), "accuracy is 90.0, must be a number from 0 to 1"),
        (lambda g: g.report_accuracy(float("nan")), "accuracy is nan"),
        (lambda g: g.report_accuracy(10**400), "accuracy is 1000"),
        (lambda g: g.report_accuracy("0.5"), "accuracy is '0.5'"),
        (lambda g: g.report_loss("0.5"), "loss is '0.5', must be a number"),
        (lambda g: g.report_loss(b"1"), "loss is b'1', must be a number"),
        (lambda g: g.report_loss(None), "loss is None, must be a number"),
        (lambda g: g.report_loss(1j), "loss is 1j, must be a number"),
        (lambda g: g.report_loss(torch.zeros(2)), "loss is tensor.*, must be a number"),
        (lambda g: g.all_reduce([torch.ones(2), None]), "tensor 1 is None"),
        (lambda g: g.all_reduce(None), "tensor 0 is None"),
        (lambda g: g.all_reduce(torch.nn.Linear(2, 2)), "tensor 0 is a Linear"),
        (lambda g: g.all_reduce(torch.ones(2), op=["mean"]), "op is \\['mean'\\]"),
        (lambda g: g.broadcast(torch.ones(2), root=1.0), "root 1.0 is no rank"),
        (lambda g: g.subgroup(["site0", 1]), "1 is no member"),
        (lambda g: g.broadcast(torch.ones(2), root=3), "root 3 is no rank"),
        (lambda g: g.broadcast(torch.ones(2), root="paris"), "'paris' is no member"),
        (lambda g: g.subgroup(["site1"]), "this site, 'site0', is not among"),
        (lambda g: g.subgroup(["site0", "paris"]), "'paris' is no member"),
        (lambda g: g.pull(), "no model is served"),
        (lambda g: g.serve([torch.ones(2)], learning_rate=0.1), "no pace"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_sent(
    same_groups: tuple[Group, ...], wrong: Callable[[Group], object], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        wrong(same_groups[0])
    tensors = random_tensors(10)
    at_each(same_groups, lambda group: group.all_reduce(tensors[group.rank]))
    same(tensors)


@pytest.mark.parametrize(
    ("odd", "named"),
    [
        ({"tensors": torch.full((11,), 7.0)}, "mean of 11 elements"),
        ({"tensors": torch.full((10,), 7.0), "op": "sum"}, "sum of 10 elements"),
        ({"tensors": torch.full((10,), 7.0), "wire": "bfloat16"}, "bfloat16 on the wire"),
    ],
)
def test_members_that_disagree_are_named_and_the_group_goes_on(
    groups: tuple[Group, ...], odd: dict[str, Any], named: str
) -> None:
    tensors = [torch.full((10,), 7.0) for _ in range(SITES)]

    def call(group: Group) -> str:
        with pytest.raises(ExchangeError) as told:
            group.all_reduce(**(odd if group.rank == 1 else {"tensors": tensors[group.rank]}))
        return str(told.value)

    (reason,) = set(at_each(groups, call))
    assert named in reason
    assert "mean of 10 elements (float32 on the wire)" in reason
    assert "site 1 (site1)" in reason
    assert every((tensor == 7.0).all() for tensor in [*tensors, odd["tensors"]])
    again = random_tensors(10)
    at_each(groups, lambda group: group.all_reduce(again[group.rank]))
    same(again)


def test_one_of_several_that_are_under_way_fails_alone(groups: tuple[Group, ...]) -> None:
    def play(group: Group) -> list[bool]:
        sizes = [10, 20 + (group.rank == 2), 30]
        tensors = [torch.full((size,), float(group.rank)) for size in sizes]
        handles = [group.all_reduce(tensor, async_op=True) for tensor in tensors]
        handles[0].wait(60)
        with pytest.raises(ExchangeError):
            handles[1].wait(60)
        handles[2].wait(60)
        return [bool((tensor == 1.0).all()) for tensor in tensors[::2]]

    assert at_each(groups, play) == [[True, True]] * SITES


def test_a_site_that_waits_at_a_barrier_while_others_exchange_is_named_to_all(
    groups: tuple[Group, ...],
) -> None:
    tensors = random_tensors()
    before = [tensor.clone() for tensor in tensors]

    def call(group: Group) -> str:
        exchange = partial(group.all_reduce, tensors[group.rank])
        with pytest.raises(ExchangeError) as caught:
            (group.barrier if group.rank == 1 else exchange)()
        return str(caught.value)

    (reason,) = set(at_each(groups, call))
    assert re.match(r"site [02] \(site[02]\) exchanges a .* and site 1 \(site1\) gathers", reason)
    assert every(map(torch.equal, tensors, before))
    pair = at_each(groups[1:], lambda group: group.subgroup(["site1", "site2"]))
    at_each(tuple(pair), lambda group: group.all_reduce(tensors[group.rank]))


def test_a_site_may_leave_and_the_others_go_on() -> None:
    with anabranch.local(SITES) as groups:
        tensors = random_tensors()
        at_each(groups, lambda group: group.all_reduce(tensors[group.rank]))
        pair = at_each(groups[:2], lambda group: group.subgroup(["site0", "site1"]))
        first = groups[0].all_reduce(tensors[0], async_op=True)
        groups[2].close()  # returns as the others go on without it
        second = groups[1].all_reduce(tensors[1], async_op=True)
        first.wait()
        second.wait()
        assert torch.equal(tensors[0], tensors[1])
        assert at_each(groups[:2], lambda group: group.all_gather(group.rank)) == [[0, 1]] * 2
        assert [each.sites for each in (*groups[:2], *pair)] == [("site0", "site1")] * 4


def test_who_calls_after_a_site_has_left_is_told_so_where_none_may_be_lost() -> None:
    service = anabranch.Service(overlay_of(SITES), awareness=None, deal=ByShare(), on_loss="abort")
    with Threads(3) as pool, anabranch.local(service) as groups:
        tensors = random_tensors()
        at_each(groups, lambda group: group.all_reduce(tensors[group.rank]))
        waiting = groups[0].all_reduce(tensors[0], async_op=True)
        leaving = pool.submit(groups[2].close)
        for call in (waiting.wait, groups[1].barrier, lambda: groups[1].all_gather(5)):
            with pytest.raises(ExchangeError, match=r"site 2 \(s2\) has left"):
                call()
        assert not leaving.done()
        pool.each(lambda group: group.close(), groups[:2])
        leaving.result()


def test_subgroups_of_the_same_members_have_orders_of_their_own(groups: tuple[Group, ...]) -> None:
    def calls(group: Group) -> list[float]:
        one, other = (group.subgroup(group.sites, name=name) for name in ("one", "other"))
        values = [np.full(5, group.rank + add, np.float32) for add in (0, 10)]
        order = [(one, values[0]), (other, values[1])]
        handles = [
            each.all_reduce(value, op="sum", async_op=True)
            for each, value in (order if group.rank else reversed(order))
        ]
        for handle in handles:
            handle.wait()
        assert one.subgroup(group.sites, name="one")._channel == one._channel
        return [float(value[0]) for value in values]

    total = sum(range(len(groups)))
    assert at_each(groups, calls) == [[total, total + 10 * len(groups)]] * len(groups)


def test_a_subgroup_with_a_long_name_is_refused(groups: tuple[Group, ...]) -> None:
    with pytest.raises(ValueError, match="name has 201 characters"):
        groups[0].subgroup(groups[0].sites, name=201 * "a")


def test_sites_that_name_different_subgroups_are_told_so(groups: tuple[Group, ...]) -> None:
    def call(group: Group) -> str:
        members = ["site0", "site1"] if group.rank == 0 else ["site0", "site1", "site2"]
        with pytest.raises(ExchangeError) as caught:
            group.subgroup(members).all_reduce(torch.ones(10))
        return str(caught.value)

    (reason,) = set(at_each(groups, call))
    assert "asks for a subgroup of site 0 (site0), site 1 (site1);" in reason


class Ended(NamedTuple):
    """How a site's part ended where one of three fails: by what, and who is left."""

    error: str
    sites: tuple[str, ...]
    mean: float


def fail_at_1(group: Group, error: BaseException) -> Ended:
    tensor = torch.full((1000,), float(group.rank))
    try:
        with group:
            group.barrier()
            if group.rank == 1:
                raise error
            group.all_reduce(tensor)
    except (KeyError, ValueError, KeyboardInterrupt, RunAborted) as ended:
        return Ended(f"{type(ended).__name__}: {ended}", group.sites, float(tensor[0]))
    return Ended("", group.sites, float(tensor[0]))


SAID = "site 1 (site1) failed: KeyError: 'no such file'"


@pytest.mark.parametrize(
    "error", [KeyError("no such file"), KeyboardInterrupt(), ValueError("\x1b[2J, and\nmore")]
)
@pytest.mark.parametrize("on_loss", ["complete", "retry"])
def test_a_site_that_an_exception_ends_is_lost_and_the_others_say_why(
    error: BaseException, on_loss: Literal["complete", "retry"], caplog: pytest.LogCaptureFixture
) -> None:
    service = anabranch.Service(_complete(SITES), awareness=None, on_loss=on_loss)
    with Threads(SITES) as pool, _serving(service) as (address, token):

        def play(name: str) -> Ended:
            return fail_at_1(anabranch.join(address, name, token=token), error)

        ends = pool.each(play, ["site0", "site1", "site2"])
    assert ends[1].error == f"{type(error).__name__}: {error}"
    for other in (ends[0], ends[2]):
        assert other == Ended("", ("site0", "site2"), 1.0)
    said = ": ".join(filter(None, (type(error).__name__, str(error))))
    why = "site 1 (site1) failed: " + said.replace("\x1b", r"\u001b").replace("\n", r"\n")
    told = [each.getMessage() for each in caplog.records if why in each.getMessage()]
    assert sorted(told) == [f"site0: {why}; the others go on", f"site2: {why}; the others go on"]


@pytest.mark.parametrize(
    "how", [{"on_error": "abort"}, {"on_loss": "abort"}, {"least_sites": SITES}]
)
def test_an_exception_at_one_site_ends_a_group_that_is_told_so_and_is_named_to_the_others(
    how: dict[str, Any],
) -> None:
    with anabranch.local(anabranch.Service(_complete(SITES), awareness=None, **how)) as groups:
        ends = at_each(groups, lambda group: fail_at_1(group, KeyError("no such file")))
    assert ends[1].error.startswith("KeyError")
    for other in (ends[0], ends[2]):
        assert other.error == f"RunAborted: {SAID}"


@pytest.mark.parametrize("on_error", ["lose", "abort"])
def test_what_goes_wrong_inside_one_site_ends_its_part_and_the_group_as_it_is_told(
    on_error: Literal["lose", "abort"], monkeypatch: pytest.MonkeyPatch
) -> None:
    until_held = Call.until_held

    async def is_broken_at_1(call: Call, *given: Any) -> Any:
        if call._exchanging.site == 1:
            raise ZeroDivisionError("as none has thought of")
        return await until_held(call, *given)

    def play(group: Group) -> str:
        try:
            group.all_reduce(torch.ones(1000))
            group.close()
        except (ZeroDivisionError, RunAborted) as raised:
            with pytest.raises(RunAborted):
                group.close()
            return str(raised)
        return ""

    monkeypatch.setattr(Call, "until_held", is_broken_at_1)
    service = anabranch.Service(_complete(SITES), awareness=None, on_error=on_error)
    with anabranch.local(service) as groups:
        said = at_each(groups, play)
    assert said[1] == "as none has thought of"
    for each in (said[0], said[2]):
        if on_error == "lose":
            assert each == ""
        else:
            assert "site 1 (site1) failed: ZeroDivisionError: as none has thought of" in each


def test_an_error_ends_a_site_that_waits_to_leave() -> None:
    with Threads(1) as pool, anabranch.local(2) as (one, other):
        handle = one.all_reduce(torch.ones(1000), async_op=True)  # which the other never makes
        closing = pool.submit(one.close)
        error = RuntimeError("it was late")
        one.__exit__(RuntimeError, error, None)
        with suppress(RunAborted):  # or the error was there first
            closing.result(20)
        assert handle.done
        for call in (other.barrier, other.close):
            with pytest.raises(RunAborted, match=r"site 0 .* failed: RuntimeError: it was late"):
                call()


def test_a_program_that_ends_after_its_group_did_says_nothing_more() -> None:
    def play(group: Group) -> None:
        if group.rank == 1:
            with pytest.raises(KeyError), group:
                raise KeyError("no such file")
        with pytest.raises(RunAborted):
            group.barrier()
        _exit.leave_quietly([group._member], None)

    service = anabranch.Service(_complete(SITES), awareness=None, on_error="abort")
    with anabranch.local(service) as groups:
        at_each(groups, play)


def test_threads_that_wait_for_one_call_all_return_once_it_is_written() -> None:
    written, goes_on = threading.Event(), threading.Event()

    class Slow:
        def finish(self) -> None:
            goes_on.wait(10)
            written.set()

    future: Future[Any] = Future()
    future.set_result(None)
    handle = Handle(future, Slow(), [], lambda done: None, lambda done: done)  # type: ignore[arg-type]

    def wait() -> bool:
        handle.wait()
        return written.is_set()

    with Threads(2) as pool:
        calls = [pool.submit(wait) for _ in range(2)]
        concurrent.futures.wait(calls, timeout=0.1, return_when=FIRST_COMPLETED)
        goes_on.set()
        assert every(each.result(10) for each in calls)


def test_after_its_end_a_group_says_so() -> None:
    with anabranch.local(2) as groups:
        pass
    with pytest.raises(RunAborted, match="has left the group"):
        groups[0].barrier()
    with pytest.raises(RunAborted, match="has left the group"):
        groups[1].all_reduce(torch.ones(2))


def test_a_call_that_a_close_overtakes_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with anabranch.local(2) as groups:
        pass
    # A thread has found the group open, and another thread closes it before the call begins.
    monkeypatch.setattr(Member, "check_open", lambda self: None)
    for call in (
        lambda group: group.stats,
        lambda group: group.begin_gather(b""),
        Group.barrier,
        lambda group: group.all_reduce(torch.ones(2)),
    ):
        with pytest.raises(RunAborted, match="has left the group"):
            call(groups[0])


@pytest.mark.parametrize("behind_nat", [None, "s0", "s2"])
@pytest.mark.parametrize("pace", [Bsp(), Asp()], ids=["bsp", "asp"])
def test_a_served_model_begins_as_rank_0_has_it_and_ends_alike_everywhere(
    pace: AnyPace, behind_nat: str | None
) -> None:
    service = anabranch.Service(overlay_of(3), awareness=None, deal=ByShare(), pace=pace, updates=5)

    def train(group: Group) -> torch.Tensor:
        parameter = torch.ones(1000) * (1.0 if group.rank == 0 else 9.0)
        group.serve([parameter], learning_rate=0.1, momentum=0.5)
        while group.pull():
            group.push([torch.full((1000,), group.rank + 1.0)])
        assert not group.pull()
        return parameter

    def join_and_train(name: str) -> torch.Tensor:
        with anabranch.join(address, name, token=token, outbound_only=name == behind_nat) as group:
            return train(group)

    with Threads(3) as pool, _serving(service) as (address, token):
        ends = pool.each(join_and_train, ("s0", "s1", "s2"))
    assert every(torch.equal(end, ends[0]) for end in ends)
    if isinstance(pace, Bsp):
        expected = torch.ones(1000)
        sgd = torch.optim.SGD([expected], lr=0.1, momentum=0.5)
        for _ in range(5):
            expected.grad = torch.full((1000,), 2.0)
            sgd.step()
        torch.testing.assert_close(ends[0], expected)


@pytest.mark.parametrize("pace", [Bsp(), Asp()], ids=["bsp", "asp"])
def test_servers_follow_a_learning_rate_schedule(pace: AnyPace) -> None:
    service = anabranch.Service(overlay_of(3), awareness=None, deal=ByShare(), pace=pace, updates=4)

    def join_and_train(name: str) -> torch.Tensor:
        with anabranch.join(address, name, token=token) as group:
            parameter = torch.zeros(1000)
            group.serve([parameter], learning_rate=0.5, schedule=Steps(every=2, factor_each=0.1))
            while group.pull():
                group.push([torch.ones(1000)])
            return parameter

    with Threads(3) as pool, _serving(service) as (address, token):
        ends = pool.each(join_and_train, ("s0", "s1", "s2"))
    assert every(torch.equal(end, ends[0]) for end in ends)
    if isinstance(pace, Bsp):  # else each of 12 updates is a step
        torch.testing.assert_close(ends[0], torch.full((1000,), -(0.5 + 0.5 + 0.05 + 0.05)))
    else:
        steps = sum(0.5 * 0.1**k for k in range(6) for _ in range(2)) / 3
        torch.testing.assert_close(ends[0], torch.full((1000,), -steps))


def test_a_schedule_of_another_kind_is_refused() -> None:
    service = anabranch.Service(
        overlay_of(2), awareness=None, deal=ByShare(), pace=Bsp(), updates=1
    )

    def join_and_serve(name: str) -> None:
        with anabranch.join(address, name, token=token) as group:
            group.serve([torch.zeros(9)], learning_rate=0.5, schedule="cosine")  # type: ignore[arg-type]

    refused = pytest.raises(ValueError, match="schedule is 'cosine', must be a value of")
    with Threads(2) as pool, _serving(service) as (address, token), refused:
        pool.each(join_and_serve, ("s0", "s1"))


def test_sites_that_serve_by_different_schedules_are_refused() -> None:
    service = anabranch.Service(
        overlay_of(2), awareness=None, deal=ByShare(), pace=Bsp(), updates=1
    )

    def join_and_serve(name: str) -> None:
        with anabranch.join(address, name, token=token) as group:
            schedule = Cosine(steps=9) if group.rank else None
            group.serve([torch.zeros(9)], learning_rate=0.5, schedule=schedule)

    refused = pytest.raises((ValueError, RunAborted), match=r"schedule.*cosine")
    with Threads(2) as pool, _serving(service) as (address, token), refused:
        pool.each(join_and_serve, ("s0", "s1"))


@pytest.mark.parametrize("pace", [Bsp(), Asp(), FedBuff(size=2)], ids=["bsp", "asp", "fedbuff"])
def test_buffers_of_a_served_model_stay_between_what_sites_push(pace: AnyPace) -> None:
    """As gradients, variances that only ever fall towards .1 would come below it."""
    service = anabranch.Service(overlay_of(3), awareness=None, deal=ByShare(), pace=pace, updates=5)

    def train(group: Group) -> list[torch.Tensor]:
        parameter, variance = torch.zeros(100), torch.ones(4, 2)
        seen, flags = torch.tensor(0), np.zeros(2, np.int32)
        buffers = [seen, variance, flags]
        group.serve([parameter], buffers=buffers, learning_rate=0.1)
        pulled = []
        while group.pull():
            pulled.append(variance.clone())
            variance.mul_(0.5).add_(0.05)
            seen += 1 + group.rank
            flags[group.rank % 2] = 1
            group.push([torch.ones(100)])
        assert len(pulled) > 2
        assert every(((each >= 0.1) & (each <= 1.0)).all() for each in pulled)
        return [parameter, variance, seen.double(), torch.from_numpy(flags).double()]

    with Threads(3) as pool, _serving(service) as (address, token):

        def join_and_train(name: str) -> list[torch.Tensor]:
            with anabranch.join(address, name, token=token) as group:
                return train(group)

        ends = pool.each(join_and_train, ("s0", "s1", "s2"))
    for end in ends:
        assert every(torch.equal(one, other) for one, other in zip(end, ends[0], strict=True))
    _, variance, seen, flags = ends[0]
    assert ((variance >= 0.1) & (variance < 0.6)).all()
    assert seen >= 5
    if isinstance(pace, Bsp):  # added up on the way, so that the mean alone comes
        assert seen == 10
        assert variance.flatten().tolist() == pytest.approx([0.1 + 0.9 / 32] * 8)
    else:
        assert flags.tolist() == [1, 1]


def test_a_count_that_float32_does_not_hold_is_no_buffer_to_serve() -> None:
    service = anabranch.Service(overlay_of(1), awareness=None, deal=ByShare(), pace=Asp())
    with (
        _serving(service) as (address, token),
        anabranch.join(address, "s0", token=token) as group,
        pytest.raises(ValueError, match="holds 16777217; integers up to 16777216 are served"),
    ):
        group.serve([torch.zeros(1)], buffers=[torch.tensor((1 << 24) + 1)], learning_rate=0.1)


def served_from_s0(pace: AnyPace, **other: Any) -> anabranch.Service:
    """Return what serves three sites of which the first alone holds the model."""
    return anabranch.Service(
        overlay_of(3),
        Star(hub="s0"),
        awareness=None,
        deal=ByShare(),
        pace=pace,
        updates=20,
        **other,
    )


def pull_and_push(group: Group, parameter: torch.Tensor, updates: int | None = None) -> int:
    """Make updates until there is no further one, or so many, and one more is due; count them."""
    made = 0
    while group.pull():
        if made == updates:
            break
        group.push([torch.ones_like(parameter)])
        made += 1
    return made


@pytest.mark.parametrize("how", ["leaves", "dies"])
@pytest.mark.parametrize("pace", [Bsp(), Asp()], ids=["bsp", "asp"])
def test_the_others_go_on_without_a_worker_and_it_may_come_back(pace: AnyPace, how: str) -> None:
    gone, back = threading.Event(), threading.Event()

    def train(name: str) -> tuple[int, torch.Tensor]:
        parameter = torch.zeros(1000)
        with anabranch.join(address, name, token=token) as group:
            group.serve([parameter], learning_rate=0.1)
            if name == "s2":
                pull_and_push(group, parameter, 3)
                if how == "dies":
                    die(group)
            else:
                made = pull_and_push(group, parameter, 3)  # under a barrier s2 needs them
                assert gone.wait(30)
                group.push([torch.ones(1000)])
                made += 1 + pull_and_push(group, parameter, 1)
                assert back.wait(30)
                group.push([torch.ones(1000)])
                return made + 1 + pull_and_push(group, parameter), parameter
        gone.set()
        parameter.fill_(torch.nan)
        with anabranch.join(address, name, token=token) as group:
            group.serve([parameter], learning_rate=0.1)
            back.set()
            with pytest.raises(ValueError, match="this site is back"):
                group.barrier()
            assert group.pull()
            group.push([torch.ones(1000)])
            return 1 + pull_and_push(group, parameter), parameter

    with Threads(3) as pool, _serving(served_from_s0(pace)) as (address, token):
        ends = pool.each(train, ("s0", "s1", "s2"))
    assert [made for made, _ in ends[:2]] == [20, 20]
    assert 1 <= ends[2][0] <= 16
    assert every(torch.equal(parameter, ends[0][1]) for _, parameter in ends)


@pytest.mark.parametrize(
    ("who", "pace", "other"),
    [
        ("s0", Asp(), {}),
        ("s1", Asp(), {"on_loss": "abort"}),
        ("s2", Bsp(), {"least_sites": 3}),
    ],
    ids=["it serves", "as asked", "too few are left"],
)
@pytest.mark.parametrize("dies", [True, False], ids=["dies", "leaves"])
def test_a_site_without_which_a_served_model_cannot_go_on_ends_the_group_by_name(
    who: str, pace: AnyPace, other: dict[str, Any], dies: bool
) -> None:
    gone = threading.Event()

    def train(group: Group) -> str:
        parameter = torch.zeros(1000)
        group.serve([parameter], learning_rate=0.1)
        if group.site != who:
            pull_and_push(group, parameter, 0)
            assert gone.wait(30)
            group.push([torch.ones(1000)])
            return ended(lambda: pull_and_push(group, parameter))
        pull_and_push(group, parameter, 0)
        if dies:
            die(group)
        else:
            ended(group.close)
        gone.set()
        return f"({who}) died" if dies else f"({who}) left before the run was over"

    with pytest.raises(RunAborted), anabranch.local(served_from_s0(pace, **other)) as groups:
        told = at_each(groups, train)
    why = told.pop(int(who[1]))
    assert every(why in each for each in told), told


@pytest.mark.parametrize("pace", [Bsp(), Asp()], ids=["bsp", "asp"])
def test_a_served_model_begins_with_those_it_needs_and_others_come_later(pace: AnyPace) -> None:
    begun, back = threading.Event(), threading.Event()
    service = served_from_s0(pace, begin_with=2)

    def train(name: str) -> tuple[int, torch.Tensor]:
        parameter = torch.full((1000,), float(name[1]))
        if name == "s2":
            assert begun.wait(30)
        with anabranch.join(address, name, token=token) as group:
            group.serve([parameter], learning_rate=0.1)
            if name == "s2":
                back.set()
                return pull_and_push(group, parameter), parameter
            made = pull_and_push(group, parameter, 5)
            begun.set()
            assert back.wait(30)
            group.push([torch.ones(1000)])
            return made + 1 + pull_and_push(group, parameter), parameter

    with Threads(3) as pool, _serving(service) as (address, token):
        ends = pool.each(train, ("s0", "s1", "s2"))
    assert [made for made, _ in ends[:2]] == [20, 20]
    assert 1 <= ends[2][0] < 20
    assert every(torch.equal(parameter, ends[0][1]) for _, parameter in ends)


@pytest.mark.parametrize("pace", [Bsp(), Asp()], ids=["bsp", "asp"])
def test_who_comes_while_the_first_prepare_their_parts_joins_once_the_model_is_served(
    pace: AnyPace, monkeypatch: pytest.MonkeyPatch
) -> None:
    welcomed, come = threading.Event(), threading.Event()
    admit = Presence.join

    def join(self: Presence, message: Join, connection: Connection) -> int:
        site = admit(self, message, connection)
        if message.name == "s2":
            come.set()
        return site

    monkeypatch.setattr(Presence, "join", join)
    told: list[tuple[Session, EpochChanged]] = []
    post = Session.post

    def hear(self: Session, message: Message) -> None:
        if isinstance(message, EpochChanged):
            told.append((self, message))
        post(self, message)

    monkeypatch.setattr(Session, "post", hear)

    def train(name: str) -> tuple[int, torch.Tensor]:
        parameter = torch.full((1000,), float(name[1]))
        if name == "s2":
            assert welcomed.wait(30)
        with anabranch.join(address, name, token=token) as group:
            welcomed.set()
            assert come.wait(30)
            group.serve([parameter], learning_rate=0.1)
            return pull_and_push(group, parameter), parameter

    service = served_from_s0(pace, begin_with=2)
    with Threads(3) as pool, _serving(service) as (address, token):
        ends = pool.each(train, ("s0", "s1", "s2"))
    assert [made for made, _ in ends[:2]] == [20, 20]
    assert 1 <= ends[2][0] < 20  # it was not there for the first
    assert every(torch.equal(parameter, ends[0][1]) for _, parameter in ends)
    news = {(id(session), changed.version, changed.epoch) for session, changed in told}
    assert len(news) == len(told) == (6 if pace.barrier else 0)  # to each site, once


def test_the_site_that_serves_the_model_is_awaited_though_enough_others_are_there() -> None:
    others = threading.Event()
    joined: list[str] = []

    def hear(line: Line) -> None:
        if " joined" in line.text:
            joined.append(line.text)
        if len(joined) == 2:
            others.set()

    def train(name: str) -> int:
        if name == "s0":
            assert others.wait(30)
        with anabranch.join(address, name, token="t") as group:
            parameter = torch.zeros(10)
            group.serve([parameter], learning_rate=0.1)
            return pull_and_push(group, parameter)

    service = served_from_s0(Asp(), begin_with=2)
    with Threads(3) as pool, served_aloud(service, hear) as address:
        assert pool.each(train, ("s0", "s1", "s2")) == [20, 20, 20]


def test_a_call_of_all_fails_without_a_worker_and_the_model_is_served_on() -> None:
    gone = threading.Event()

    def train(group: Group) -> int:
        parameter = torch.zeros(1000)
        group.serve([parameter], learning_rate=0.1)
        if group.rank == 2:
            pull_and_push(group, parameter, 0)
            die(group)
            gone.set()
            return 0
        assert gone.wait(30)
        with pytest.raises(anabranch.ExchangeError, match="s2"):
            group.barrier()
        with pytest.raises(anabranch.ExchangeError, match="s2"):
            group.all_reduce(torch.ones(3))
        made = pull_and_push(group, parameter)
        one = group.subgroup(["s0", "s1"]).all_gather(made)
        assert one == [20, 20]
        return made

    with anabranch.local(served_from_s0(Asp())) as groups:
        assert at_each(groups, train)[:2] == [20, 20]


def ended(call: Callable[[], object]) -> str:
    """Return what a call says of the group's end."""
    with pytest.raises(RunAborted) as aborted:
        call()
    return str(aborted.value)


def test_a_rule_that_cannot_be_served_leaves_the_model_unserved() -> None:
    service = anabranch.Service(
        overlay_of(2), awareness=None, deal=ByShare(), pace=Asp(), updates=1
    )

    def serve(group: Group) -> None:
        with pytest.raises(ValueError, match="learning"):
            group.serve([torch.ones(3)], learning_rate=-1.0)
        with pytest.raises(ValueError, match="give the same at every site"):
            group.serve([torch.ones(3)], learning_rate=np.float32(0.5 + group.rank))
        with pytest.raises(ValueError, match="no model is served"):
            group.pull()
        with pytest.raises(ValueError, match="serve\\(\\) is called once"):
            group.serve([torch.ones(3)], learning_rate=0.5)

    with pytest.raises(RunAborted, match="left before"), anabranch.local(service) as groups:
        at_each(groups, serve)


def test_who_leaves_before_it_serves_is_named_to_the_others() -> None:
    service = anabranch.Service(
        overlay_of(2), awareness=None, deal=ByShare(), pace=Asp(), updates=1
    )

    def serve(group: Group) -> str:
        if group.rank:
            group.close()
            return ""
        return ended(lambda: group.serve([torch.ones(3)], learning_rate=0.5))

    with anabranch.local(service) as groups:
        told = at_each(groups, serve)
    assert (
        "s1) failed: RunAborted: it left before it called group.serve(parameters, ...)" in told[0]
    )


@pytest.mark.parametrize("samples", [-1, 0.5])
def test_a_push_of_no_number_of_samples_is_refused_and_the_run_goes_on(samples: Any) -> None:
    service = anabranch.Service(
        overlay_of(1), awareness=None, deal=ByShare(), pace=Asp(), updates=1
    )
    with anabranch.local(service) as (group,):
        group.serve([torch.ones(3)], learning_rate=0.5)
        while group.pull():
            with pytest.raises(ValueError, match="samples is"):
                group.push([torch.ones(3)], samples=samples)
            group.push([torch.ones(3)], samples=3, weight=np.float32(2.0))


def test_a_push_of_nan_is_refused_unless_it_is_allowed() -> None:
    service = anabranch.Service(
        overlay_of(1), awareness=None, deal=ByShare(), pace=Asp(), updates=1
    )
    with anabranch.local(service) as (group,):
        group.serve([torch.ones(2), torch.ones(3)], learning_rate=0.5)
        odd = [torch.ones(2), torch.tensor([1.0, np.nan, np.inf])]
        while group.pull():
            with pytest.raises(ValueError, match="gradient 1 has 2 NaN or infinite elements"):
                group.push(odd)
            group.on_nan = "allow"
            group.push(odd)


def test_a_worker_to_which_the_last_model_is_not_sent_waits_for_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    serving = Serving(last_to="one")
    service = anabranch.Service(
        overlay_of(2), awareness=None, deal=ByShare(), pace=Asp(), updates=2, serving=serving
    )
    with anabranch.local(service) as groups:

        def run(group: Group) -> float:
            weights = torch.zeros(3)
            group.serve([weights], learning_rate=1.0)
            while group.pull():
                group.push([torch.ones(3)])
            return weights[0].item()

        assert -2.0 in at_each(groups, run)
    (said,) = [each.getMessage() for each in caplog.records]
    assert "its last model is not sent to this site" in said


def die(group: Group) -> None:
    """Be gone without a word, as the end of a process is."""

    async def cut() -> None:
        group._member.site.agent.close()

    group._member.thread.run(cut())
    group._member._closed = True
    group._member.thread.close()


def test_who_is_there_changes_with_a_call_that_was_waited_for_and_not_before() -> None:
    with anabranch.local(3) as groups:
        stay = groups[:2]
        values = [np.ones(3, np.float32) for _ in stay]
        handles = [
            group.all_reduce(each, async_op=True) for group, each in zip(stay, values, strict=True)
        ]
        gathered = [group.begin_gather(b"") for group in stay]
        die(groups[2])
        for told in gathered:
            assert set(told.result(30)) == {"site0", "site1"}
        for group in stay:
            assert (group.sites, group.size) == (("site0", "site1", "site2"), 3)
        for group, handle in zip(stay, handles, strict=True):
            handle.wait(30)
            assert (group.sites, group.size) == (("site0", "site1"), 2)
    assert [group.rank for group in stay] == [0, 1]


def test_the_same_memory_twice_is_refused_by_name() -> None:
    tensor = torch.zeros(5)
    with anabranch.local(1) as (group,), pytest.raises(ValueError, match="0 and 1 share memory"):
        group.all_reduce([tensor, tensor])


def overlay_of(sites: int) -> Overlay:
    links = [Link(a, b, 1e9) for a in range(sites) for b in range(sites) if a != b]
    return Overlay("all", tuple(Site(f"s{index}") for index in range(sites)), tuple(links))


def test_a_group_of_one_is_a_group() -> None:
    with anabranch.local(1) as (group,):
        tensor = torch.tensor([1.0, 2.0])
        group.all_reduce(tensor, weight=3.0)
        group.broadcast(tensor)
        group.barrier()
        assert tensor.tolist() == [1.0, 2.0]


# --- joining


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({}, "scheduler is not given"),
        ({"scheduler": "127.0.0.1:1"}, "site is not given"),
        ({"scheduler": "127.0.0.1:1", "site": "paris"}, "token is not given"),
        ({"scheduler": "paris", "site": "paris", "token": "t"}, "not host:port"),
        ({"scheduler": "paris:70000", "site": "paris", "token": "t"}, "not host:port"),
        ({"scheduler": "paris:0", "site": "paris", "token": "t"}, "the port that it printed"),
        ({"scheduler": "10.0.0.1:1", "site": "paris", "token": "t"}, "off this machine"),
    ],
)
def test_what_is_missing_to_join_is_named(
    arguments: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("ANABRANCH_SCHEDULER", "ANABRANCH_SITE", "ANABRANCH_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ValueError, match=named):
        anabranch.join(**arguments)


@pytest.mark.parametrize("wildcard", ["0.0.0.0", "::"])
def test_a_site_that_listens_everywhere_has_to_say_where_others_find_it(wildcard: str) -> None:
    with pytest.raises(ValueError, match="give advertise="):
        anabranch.join("127.0.0.1:1", "paris", token="t", host=wildcard, insecure=True)


def test_sites_are_found_where_they_say() -> None:
    service = anabranch.Service(overlay_of(2), awareness=None, deal=ByShare())

    def take_part(name: str) -> float:
        with anabranch.join(
            address, name, token=token, host="0.0.0.0", advertise="localhost", insecure=True
        ) as group:
            array = np.full(1000, float(group.rank), np.float32)
            group.all_reduce(array)
            return float(array[0])

    with Threads(2) as pool, _serving(service) as (address, token):
        assert pool.each(take_part, ("s0", "s1")) == [0.5, 0.5]


def test_sites_that_nobody_can_connect_to_exchange_through_one_that_takes_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = anabranch.Service(overlay_of(3), awareness=None, deal=ByShare())
    listen, listeners = TcpNetwork.listen, []

    async def listened(network: TcpNetwork, *to: Any) -> Any:
        listeners.append(await listen(network, *to))
        return listeners[-1]

    monkeypatch.setattr(TcpNetwork, "listen", listened)

    def take_part(name: str) -> list[float]:
        with anabranch.join(address, name, token=token, outbound_only=name != "s1") as group:
            results = []
            for call in range(3):
                array = np.full(100_000, float(call * group.rank), np.float32)
                group.all_reduce(array)
                results.append(float(array[-1]))
            return results

    with Threads(3) as pool, _serving(service) as (address, token):
        assert pool.each(take_part, ("s0", "s1", "s2")) == [[0.0, 1.0, 2.0]] * 3
    assert len(listeners) == 2  # the scheduler, and s1: at the others no connection can be made


def test_a_site_that_takes_no_connections_says_nothing_of_where_it_does() -> None:
    with pytest.raises(ValueError, match="give no host, port or advertise"):
        anabranch.join("127.0.0.1:1", "paris", token="t", outbound_only=True, port=7)


CERTIFICATES = Path(__file__).parent.parent / "net" / "certs" / "ours"


def test_a_group_over_tls_exchanges_and_a_site_speaks_only_as_itself(tmp_path: Path) -> None:
    for file in CERTIFICATES.iterdir():
        shutil.copy(file, tmp_path)
    for ending in ("pem", "key"):  # what a's machine has, under b's name
        shutil.copy(tmp_path / f"site-a.{ending}", tmp_path / f"site-b.{ending}")
    overlay = Overlay("pair", (Site("a"), Site("b")), (Link(0, 1, 1e9), Link(1, 0, 1e9)))
    service = anabranch.Service(overlay, awareness=None, deal=ByShare())
    said: list[Line] = []
    credentials = Credentials(CERTIFICATES, SCHEDULER)

    def take_part(name: str) -> torch.Tensor:
        behind_nat = name == "b"
        with anabranch.join(
            address, name, token="t", tls=CERTIFICATES, outbound_only=behind_nat
        ) as group:
            tensor = torch.full((300_000,), float(group.rank))
            group.all_reduce(tensor)
            return tensor

    with Threads(2) as pool, served_aloud(service, said.append, credentials) as address:
        with pytest.raises(RunAborted, match="has the certificate of site-a, not of site-b"):
            anabranch.join(address, "b", token="t", tls=tmp_path)
        for tensor in pool.each(take_part, ("a", "b")):
            assert torch.equal(tensor, torch.full((300_000,), 0.5))
    assert any("has the certificate of site-a" in line.text for line in said)


@contextmanager
def served_aloud(
    service: anabranch.Service, say: Callable[[Line], None], credentials: Credentials | None = None
) -> Iterator[str]:
    """Serve a group as the command does, and wait for its end; yield its address."""
    thread = LoopThread("scheduler")

    async def start() -> tuple[Scheduler, str]:
        console = Console([site.name for site in service.overlay.sites], say)
        log = RunLog(None, service.run_started, console)
        network = TcpNetwork(CONTROL_LIMITS, credentials=credentials)
        scheduler = service.scheduler(network, "t", log)
        return scheduler, show(await scheduler.listen(("127.0.0.1", 0)))

    scheduler, address = thread.run(start())

    async def end() -> None:
        scheduler.abort("the test has ended")
        await scheduler.close()

    try:
        yield address
        thread.run(asyncio.wait_for(scheduler.finished(), 30))
    finally:
        thread.run(end())
        thread.close()


def test_certificates_that_are_not_there_are_named_before_anybody_is_called(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no .*ca\.pem"):
        anabranch.join("10.0.0.1:1", "paris", token="t", tls=tmp_path)


def test_who_joins_waits_no_longer_than_there_is_reason_to() -> None:
    service = anabranch.Service(overlay_of(SITES))
    with Threads(SITES) as pool, _serving(service) as (address, token):
        place = Place(scheduler=address, site="s0", token=token)
        with pytest.raises(RunAborted, match="the others are late"):
            join_at(place, gives_up=lambda: "the others are late")
        # That has not ended the group: the site may come again.
        places = [Place(scheduler=address, site=f"s{each}", token=token) for each in range(SITES)]
        groups = pool.each(join_at, places)
        pool.each(Group.close, groups)


def test_a_scheduler_that_is_not_there_is_named() -> None:
    with pytest.raises(anabranch.LinkError, match=re.escape("127.0.0.1:1")):
        anabranch.join("127.0.0.1:1", "paris", token="t", patience_s=0.0)


def test_sites_are_told_how_many_chunks_auxiliary_paths_take() -> None:
    asked = Auxiliary(primary_busy_bound=1, auxiliary_queue_length=5, when_full="primary")
    service = anabranch.Service(overlay_of(SITES), auxiliary=asked)
    told = _settings.loads(_settings.dumps(service.settings(may_be_restarted=False)))
    assert told.auxiliary == asked


def test_sites_are_told_how_to_measure_and_no_more_of_awareness() -> None:
    asked = Passive(estimator="chunk-mean", probe_chunks=7, update_time_s=2.0)
    service = anabranch.Service(overlay_of(SITES), awareness=asked)
    told = _settings.loads(_settings.dumps(service.settings(may_be_restarted=False)))
    assert told.measuring == asked.measuring()
    assert told.measuring.report_interval_s == 0.5
    unaware = anabranch.Service(overlay_of(SITES), awareness=None)
    assert unaware.settings(may_be_restarted=False).measuring is None


def test_a_model_is_broadcast_with_buffers_of_any_type(groups: tuple[Group, ...]) -> None:
    def run(group: Group) -> list[list[float]]:
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
        model.register_buffer("wide", torch.full((3,), group.rank + 0.1, dtype=torch.float64))
        model.register_buffer("flags", torch.full((5,), group.rank == 1))
        model.register_buffer("cache", torch.zeros(group.rank), persistent=False)
        model[1].num_batches_tracked.fill_(group.rank)
        group.broadcast(model, root=1)
        return [each.double().tolist() for each in model.state_dict().values()]

    found = at_each(groups, run)
    assert found[0] == found[1] == found[2]
    assert [1.1] * 3 in found[0]
    assert 1.0 in found[0]


def test_tensors_of_other_types_than_the_root_s_are_an_error(groups: tuple[Group, ...]) -> None:
    def run(group: Group) -> str:
        kind = torch.int64 if group.rank == 2 else torch.float64
        try:
            group.broadcast([torch.ones(2, dtype=kind), torch.ones(1)])
        except ValueError as error:
            return str(error)
        return "nothing"

    found = at_each(groups, run)
    assert found[:2] == ["nothing"] * 2
    assert "the source broadcasts tensors of other types or lengths" in found[2]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([torch.ones(2), "x"], "tensor 1 is a str"),
        ([torch.eye(2).to_sparse()], "tensor 0 is sparse"),
        ([np.array(["a"])], "array 0 cannot be broadcast"),
        ([], "there are no tensors to exchange"),
    ],
    ids=str,
)
def test_what_cannot_be_broadcast_is_named(given: list[Any], said: str) -> None:
    with anabranch.local(1) as (group,), pytest.raises(ValueError, match=said):
        group.broadcast(given)


def test_every_public_name_of_a_group_is_documented() -> None:
    page = (Path(__file__).parent.parent.parent / "docs/group.md").read_text("utf-8")
    names = [name for name in vars(Group) if not name.startswith("_")]
    assert len(names) > 10
    missing = [name for name in names if f"`{name}`" not in page and f"`{name}(" not in page]
    assert not missing


def test_the_sites_of_local_parse_the_overlay_that_all_are_sent_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed, make = [], _toml._make

    def slowly(text: str, unknown_rate_bps: float | None, folder: Path | None) -> Overlay:
        parsed.append(text)
        time.sleep(0.2)  # the other sites are welcomed meanwhile
        return make(text, unknown_rate_bps, folder)

    monkeypatch.setattr(_toml, "_make", slowly)
    service = anabranch.Service(replace(overlay_of(8), name=f"new-{time.time_ns()}"))
    with anabranch.local(service):
        pass
    assert len(parsed) == 1
