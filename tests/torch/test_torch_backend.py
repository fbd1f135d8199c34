"""The torch.distributed backend: collectives, subgroups, training, and what goes wrong."""

from __future__ import annotations

import inspect
import itertools
import math
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from typer.testing import CliRunner

from anabranch import overlay, plan
from anabranch.log import LinkMeasured, RunStarted, SiteJoined, read_events
from anabranch.overlay import Link, Overlay, Site
from anabranch.torch.backend import AnabranchProcessGroup, Options, group_of
from anabranch_lab.cli import app
from tests.every import every
from tests.torch import parity
from tests.torch.ranks import run_ranks

RANKS, STEPS = 3, 8
TOKEN = "0123456789abcdef"
WAYS = ["small buckets", "unused parameters", "no_sync"]


def collectives() -> list[str]:
    """Check each collective at a rank; return what is wrong."""
    rank, size = dist.get_rank(), dist.get_world_size()
    wrong = []

    def check(what: str, found: Any, wanted: Any) -> None:
        found, wanted = (torch.as_tensor(each) for each in (found, wanted))
        if not torch.equal(found.to(torch.float64), wanted.to(torch.float64)):
            wrong.append(f"{what}: {found}, should be {wanted}")

    kinds = torch.float32, torch.float16, torch.bfloat16, torch.int64
    for kind, (op, result) in itertools.product(
        kinds,
        {
            dist.ReduceOp.SUM: 1 + 2 + 3,
            dist.ReduceOp.MAX: 3,
            dist.ReduceOp.MIN: 1,
            dist.ReduceOp.PRODUCT: 6,
        }.items(),
    ):
        tensor = torch.full((5, 3), rank + 1).to(kind)
        dist.all_reduce(tensor, op)
        check(f"{op} of {kind}", tensor, torch.full((5, 3), result))
    tensor = torch.full((7,), float(rank))
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    check("mean", tensor, torch.ones(7))
    whole_mean = torch.tensor([rank, -rank, 5, 2 * rank + 1])
    dist.all_reduce(whole_mean, dist.ReduceOp.AVG)
    check("mean of integers", whole_mean, [1, -1, 5, 3])
    with pytest.raises(ValueError, match="all_reduce by AVG of bool"):
        dist.all_reduce(torch.ones(3, dtype=torch.bool), dist.ReduceOp.AVG)
    uneven = torch.tensor([3, rank // 2])
    with pytest.raises(ValueError, match="by AVG of int64, whose mean has a fraction here"):
        dist.all_reduce(uneven, dist.ReduceOp.AVG)
    check("mean that is refused", uneven, [3, rank // 2])
    with pytest.raises(ValueError, match="by AVG of uint8; convert to float32"):
        dist.all_reduce(torch.full((3,), 200, dtype=torch.uint8), dist.ReduceOp.AVG)
    tensor = torch.arange(12.0).view(3, 4).t()  # which is not contiguous
    dist.all_reduce(tensor)
    check("transposed", tensor, 3 * torch.arange(12.0).view(3, 4).t())
    for each in (torch.empty(0), torch.tensor(float("nan") if rank == 1 else 1.0)):
        dist.all_reduce(each)
    check("a nan is one", each.isnan(), True)
    bytes_ = torch.arange(5, dtype=torch.uint8) + rank
    dist.broadcast(bytes_, 2)
    check("five bytes", bytes_, torch.arange(5) + 2)
    for kind in (torch.bool, torch.complex64, torch.float64, torch.int16):
        tensor = torch.arange(6).to(kind) if rank == 1 else torch.zeros(6).to(kind)
        dist.broadcast(tensor, 1)
        wanted = torch.arange(6).to(kind)
        check(
            f"broadcast of {kind}",
            torch.view_as_real(tensor) if tensor.is_complex() else tensor,
            torch.view_as_real(wanted) if wanted.is_complex() else wanted,
        )
    for elements in (3, 100_000):  # by the scheduler, and by gloo
        parts = [torch.empty(elements) for _ in range(size)]
        dist.all_gather(parts, torch.full((elements,), float(rank)))
        check("all_gather", [part[-1] for part in parts], range(size))
    whole = torch.empty(2 * size)
    dist.all_gather_into_tensor(whole, torch.full((2,), float(rank)))
    check("all_gather_into_tensor", whole, [0, 0, 1, 1, 2, 2])
    part = torch.empty(2)
    dist.reduce_scatter_tensor(part, torch.arange(2.0 * size))
    check("reduce_scatter", part, size * torch.tensor([2.0 * rank, 2.0 * rank + 1]))
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    check("objects", [each["rank"] for each in objects], range(size))
    if rank == 0:
        dist.send(torch.ones(4), 2)
    elif rank == 2:
        got = torch.zeros(4)
        dist.recv(got, 0)
        check("recv", got, torch.ones(4))
    works = [dist.all_reduce(torch.full((1000,), float(i)), async_op=True) for i in range(20)]
    for number, work in reversed([*enumerate(works)]):
        work.wait()
        check("future", work.get_future().wait()[0][0], size * number)
    assert every(work.is_completed() and work.is_success() for work in works)
    many = [torch.full((100,), float(number)) for number in range(20)]
    with dist._coalescing_manager(async_ops=True) as coalesced:
        for each in many:
            dist.all_reduce(each)
    (as_one,) = coalesced.works
    as_one.wait()
    check("calls as one", [each[-1] for each in many], [size * number for number in range(20)])
    if rank == 1:  # without it no exchange ends, and `then` calls at once where one has
        for each in (0, 2):
            dist.recv(torch.ones(1), each)
    work = dist.all_reduce(torch.ones(9), async_op=True)
    other = dist.all_reduce(torch.ones(9), async_op=True)
    raised = []

    def calls(_: Any) -> None:
        for call in (other.wait, lambda: dist.all_reduce(torch.ones(3, dtype=torch.float64))):
            try:
                call()
            except RuntimeError as error:
                raised.append("in a callback of a future" in str(error))

    if rank != 1:
        mine = work.get_future().then(lambda _: work.is_completed() and work.wait())
        chained = work.get_future().then(calls)
        dist.send(torch.ones(1), 1)
        mine.wait()
        chained.wait()
        check("a callback may wait for its own work", mine.value(), True)
        check("and call nothing", len(raised) >= 1 and all(raised), True)
    other.wait()
    one, other = dist.new_group([0, 2]), dist.new_group([1, 2])
    for group, ranks in ((one, (0, 2)), (other, (1, 2))):
        if rank in ranks:
            tensor = torch.tensor([float(rank)])
            dist.all_reduce(tensor, group=group)
            check("subgroup", tensor, [sum(ranks)])
            dist.broadcast(tensor.fill_(rank), ranks[1], group=group)
            check("broadcast in a subgroup", tensor, [ranks[1]])
    check("backend", dist.get_backend() == "anabranch", True)
    for empty in (torch.empty(0), torch.empty(2, 0)):
        dist.broadcast(empty, 1)
    check("order after tensors without elements", _sum(1.0), size)
    strided(check)
    work = dist.all_reduce(torch.ones(3), async_op=True) if rank == 0 else None
    if work is not None:
        with pytest.raises(RuntimeError, match=r"not done in 0\.2 s; it continues"):
            work.wait(timedelta(seconds=0.2))
        dist.send(torch.ones(1), 1)
        work.wait()
    else:
        if rank == 1:
            dist.recv(torch.ones(1), 0)
        dist.all_reduce(torch.ones(3))
    check("order after a short wait", _sum(1.0), size)
    return wrong


def _sum(value: float, dtype: torch.dtype = torch.float32, **of: Any) -> float:
    tensor = torch.full((2,), value, dtype=dtype)
    dist.all_reduce(tensor, **of)
    return tensor[0].item()


def strided(check: Callable[[str, Any, Any], None]) -> None:
    """Check collectives that gloo carries, of tensors that are not contiguous."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def given(scale: int, kind: torch.dtype = torch.float64) -> torch.Tensor:
        return (scale * torch.arange(24)).view(4, 6).to(kind).t()[::2]  # shape (3, 4)

    def room(rows: int = 3) -> torch.Tensor:
        return torch.zeros(4, rows, dtype=torch.float64).t()

    base, total = given(1), size * (size + 1) // 2
    for kind in (torch.float64, torch.int64):
        tensor = given(rank + 1, kind)
        dist.all_reduce(tensor)
        check(f"all_reduce of strided {kind}", tensor, total * base)
    product = given(rank + 1, torch.float32)
    dist.all_reduce(product, dist.ReduceOp.PRODUCT)
    check("strided product", product, math.factorial(size) * base**size)
    tensor = given(rank + 1)
    dist.reduce(tensor, 1)
    if rank == 1:
        check("strided reduce", tensor, total * base)
    out = room()
    dist.scatter(out, [given(each + 1) for each in range(size)] if rank == 0 else None, 0)
    check("strided scatter", out, (rank + 1) * base)
    out = room()
    dist.reduce_scatter(out, [given(each + 1) for each in range(size)])
    check("strided reduce_scatter", out, size * (rank + 1) * base)
    out = room(3 * size)
    dist.all_to_all_single(out, torch.ones(3 * size, 4).double() * rank)
    check(
        "strided all_to_all_single", out, torch.arange(size).repeat_interleave(3)[:, None] + 0 * out
    )


def everything() -> tuple[list[str], dict[str, torch.Tensor]]:
    return collectives(), parity.ddp_ways(WAYS, STEPS)


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_collectives_are_right_and_ddp_makes_the_model_of_one_process():
    found = run_ranks(everything, RANKS)
    assert [wrong for wrong, _ in found] == [[]] * RANKS
    for way in WAYS:
        models = [each[way] for _, each in found]
        assert parity.compare(models, parity.alone(way, RANKS, STEPS)) < 1e-6


def both_ways() -> list[torch.Tensor]:
    found = [parity.hsdp(4, hooked) for hooked in (False, True)]
    # Two ranks of one machine are one site.
    os.environ["ANABRANCH_SITE"] = "west" if dist.get_rank() < 2 else "east"
    return [*found, *(parity.hsdp(4, hooked) for hooked in (False, True))]


def _restored(folder: Path) -> dict[str, float]:
    """Return sums of what was set from the first rank's or loaded, and of a call meanwhile."""
    rank = dist.get_rank()
    whole = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    found = {}
    for way, wrap in (("DDP", nn.parallel.DistributedDataParallel), ("FSDP", fully_shard)):
        model = nn.Linear(5, 3)
        saved = {name: torch.ones_like(each) for name, each in model.state_dict().items()}
        model = wrap(model)
        optimiser = torch.optim.AdamW(model.parameters())
        set_model_state_dict(model, saved if rank == 0 else {}, options=whole)
        model(torch.ones(2, 5)).sum().backward()
        optimiser.step()
        of_all = get_optimizer_state_dict(model, optimiser, options=whole)
        optimiser.zero_grad()
        anew = torch.optim.AdamW(model.parameters())
        set_optimizer_state_dict(model, anew, of_all if rank == 0 else {}, options=whole)
        state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
        found[way] = sum(each.sum().item() for each in state.values())
        moments = get_optimizer_state_dict(model, anew, options=whole)["state"].values()
        found[f"{way}'s moments"] = sum(each["exp_avg"].sum().item() for each in moments)
    mine = fully_shard(nn.Linear(5, 3)).state_dict()
    first = checkpoint.async_save({"model": mine}, checkpoint_id=folder / "alone")
    first.result()
    beside = dist.new_group(backend="gloo")
    saving = checkpoint.async_save(
        {"model": mine}, checkpoint_id=folder / "beside", process_group=beside
    )
    found["meanwhile"] = _sum(rank + 1.0)
    saving.result()
    for name in ("alone", "beside"):
        loaded = {each: torch.zeros_like(value) for each, value in mine.items()}
        checkpoint.load({"model": loaded}, checkpoint_id=folder / name)
        same = (torch.equal(loaded[each].full_tensor(), mine[each].full_tensor()) for each in mine)
        found[name] = float(all(same))
    return found


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_models_are_restored_from_the_first_rank_and_saved_meanwhile(tmp_path):
    for found in run_ranks(_restored, 2, tmp_path):
        # Of 18 elements that were 1, less Adam's first step, 0.001, and decay, 1e-5; and a tenth of
        # their gradients, which are 2 each.
        moments = {f"{way}'s moments": 18 * 0.2 for way in ("DDP", "FSDP")}
        right = {"DDP": 18 * 0.99899, "FSDP": 18 * 0.99899, "meanwhile": 3.0}
        assert found == pytest.approx(right | moments | {"alone": 1.0, "beside": 1.0}, rel=1e-6)


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_hsdp_of_two_sites_makes_the_model_of_one_process():
    if "backend_override" not in inspect.signature(init_device_mesh).parameters:
        pytest.skip(f"torch {torch.__version__} has meshes of one backend alone")
    found = run_ranks(both_ways, 4, backend="gloo")
    for models in zip(*found, strict=True):
        assert parity.compare([*models], parity.alone("default", 4, 4)) < 1e-6


def _told(call: Callable[[], Any]) -> str:
    try:
        return str(call())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _begins_anew() -> None:
    dist.init_process_group("anabranch", timeout=timedelta(seconds=30))


def _follow(what: str) -> None:
    """Wait, at any other rank, until rank 0 is so far: over the store, which outlives groups."""
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        store.set(what, "")
    store.wait([what])


def _first_error(call: Callable[[], Any]) -> str:
    """Return what a call that is made again and again is told first.

    A call returns once its result is here, which may be before another rank's failure is heard of.
    """
    for _ in range(3):
        said = _told(call)
        if said != "2.0":
            break
    return said


def _goes_wrong() -> dict[str, str]:
    """Return what this rank, of two, is told of what goes wrong; each time in a group anew."""
    rank = dist.get_rank()
    said = {"empty": _told(lambda: dist.all_reduce(torch.ones(0 if rank else 3)))}
    dist.destroy_process_group()
    _begins_anew()
    part = dist.new_group([0, 1], timeout=timedelta(seconds=1))
    if rank == 0:
        said["late in a subgroup"] = _told(lambda: _sum(1.0, group=part))
    _follow("late in a subgroup")
    said["later in a subgroup"] = _first_error(lambda: _sum(1.0, group=part))
    said["in the whole"] = _told(lambda: _sum(1.0))
    dist.destroy_process_group()
    _begins_anew()
    kinds = torch.zeros(4), torch.zeros(2, dtype=torch.float64)
    said["kinds"] = _told(lambda: dist.broadcast(kinds[rank], 0))
    gathered = [torch.zeros_like(kinds[rank]) for _ in range(2)]
    said["gathered"] = _told(lambda: dist.all_gather(gathered, kinds[rank]))
    dist.destroy_process_group()
    _begins_anew()
    dist.group.WORLD.set_timeout(timedelta(seconds=1))
    if rank == 0:
        said["late"] = _told(lambda: _sum(1.0))
    _follow("late")
    said["later"] = _first_error(lambda: _sum(1.0))
    said["by gloo"] = _told(lambda: _sum(1.0, torch.int64))
    dist.destroy_process_group()
    assert not dist.is_initialized()
    _begins_anew()
    said["anew"] = _told(lambda: _sum(1.0))
    dist.destroy_process_group()
    for name, variables in WRONG_AT_ONE.items():
        if rank == 1:
            os.environ.update(variables)
        said[name] = _told(_begins_anew)
        if rank == 1:
            for each in variables:
                del os.environ[each]
    _begins_anew()
    return said


WRONG_AT_ONE = {
    "token": {"ANABRANCH_TOKEN": "wrong"},
    "tls": {"ANABRANCH_TLS": "nowhere"},
    "options": {"ANABRANCH_INSECURE": "perhaps"},
    "gloo": {"GLOO_SOCKET_IFNAME": "nonexistent0"},
}


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_what_goes_wrong_is_told_at_all_ranks_and_a_program_can_begin_anew():
    found = run_ranks(_goes_wrong, 2)
    for said in found:
        assert "site 0 (rank0) exchanges a sum of 3 elements (float32 on the wire)" in said["empty"]
        assert "1 (rank1) gathers (all_reduce of 0 elements of float32)" in said["empty"]
        assert "all_reduce of 2 elements of float32: the timeout of 1 s is over" in said["later"]
        assert "this process group is over: " in said["by gloo"]
        assert said["anew"] == "2.0"
        assert "set $ANABRANCH_TLS for all ranks or for none" in said["tls"]
        assert "does not know the run's token" in said["token"]
        assert "$ANABRANCH_INSECURE is 'perhaps'" in said["options"]
        assert "the timeout of 1 s is over" in said["later in a subgroup"]
        assert "the timeout of 1 s is over" in said["in the whole"]
    assert "of tensors of other types or sizes" in found[1]["kinds"]
    assert "and rank 1 (rank1) calls all_gather of 2 elements of float64;" in found[0]["gathered"]
    for name in ("late", "late in a subgroup"):
        assert "the timeout of 1 s is over" in found[0][name]
    for name in ("token", "options", "gloo"):
        assert found[0][name].startswith("RunAborted: rank 1 failed: ")


def _calls_apart() -> dict[str, str]:
    """Return what this rank, of two, is told where each makes another call; each in a subgroup."""
    rank = dist.get_rank()
    ones, op = torch.ones, dist.ReduceOp

    def gathers(elements: int, group: Any) -> None:
        dist.all_gather([torch.zeros(elements) for _ in range(2)], ones(elements), group=group)

    calls: dict[str, Callable[[Any], Any]] = {
        "types": lambda group: dist.all_reduce(
            ones(3, dtype=(torch.float32, torch.int64)[rank]), group=group
        ),
        "operations": lambda group: dist.all_reduce(
            ones(3), (op.SUM, op.PRODUCT)[rank], group=group
        ),
        "sizes": lambda group: gathers((16_000, 20_000)[rank], group),
        "layouts": lambda group: dist.all_reduce(
            ones(3, 2) if rank == 0 else ones(3, 2).to_sparse(), group=group
        ),
        "calls": lambda group: (
            dist.barrier(group) if rank == 0 else dist.all_reduce(ones(3).double(), group=group)
        ),
    }
    return {name: _told(partial(call, dist.new_group())) for name, call in calls.items()}


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_ranks_whose_calls_go_by_different_carriers_are_told_at_once_and_by_name():
    both = {
        "types": ("a sum of 3 elements (float32", "all_reduce of 3 elements of int64 by SUM"),
        "operations": (
            "a sum of 3 elements (float32",
            "all_reduce of 3 elements of float32 by PRODUCT",
        ),
        "sizes": ("all_gather of 16000 elements", "all_gather of 20000 elements of float32"),
        "layouts": ("a sum of 6 elements (float32", "of float32 (torch.sparse_coo) by SUM"),
        "calls": ("barrier", "all_reduce of 3 elements of float64 by SUM"),
    }
    for said in run_ranks(_calls_apart, 2):  # else they wait for half an hour, the default timeout
        for name, (one, other) in both.items():
            for wanted in (one, other, "rank0", "rank1"):
                assert wanted in said[name]


def _is_left_waiting(how: str, waits_in: str) -> str:
    """Return what rank 0 is told, which waits by gloo for rank 1."""
    calls = {
        "all_reduce": lambda: dist.all_reduce(torch.ones(3).double()),
        "recv": lambda: dist.recv(torch.ones(3), 1),
        "recv from any": lambda: dist.recv(torch.ones(3)),
    }
    if dist.get_rank() == 0:
        return _told(calls[waits_in])
    time.sleep(0.5)  # until it waits; what is tested holds before, too
    if how == "dies":
        os._exit(3)
    if how == "fails":
        group_of().__exit__(RuntimeError, RuntimeError("out of luck"), None)
    return ""


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("waits_in", ["all_reduce", "recv", "recv from any"])
@pytest.mark.parametrize("how", ["destroys", "fails"])
def test_a_rank_that_leaves_ends_the_wait_of_another_in_a_call_by_gloo(how, waits_in):
    said, _ = run_ranks(_is_left_waiting, 2, how, waits_in, limit_s=60.0)
    if how == "fails":
        assert "out of luck" in said
        assert "rank1" in said
    elif waits_in == "all_reduce":
        assert "site 1 (rank1) has left, and not made this call" in said
    else:
        whose = "all other ranks have" if waits_in == "recv from any" else "rank 1: has"
        assert f"{whose} destroyed" in said


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_a_rank_that_dies_ends_the_wait_of_another_in_a_call_by_gloo():
    with pytest.raises(AssertionError, match="rank 1:\nits process died"):
        run_ranks(_is_left_waiting, 2, "dies", "recv", limit_s=60.0)


def _is_late() -> dict[str, str]:
    """Return what this rank is told of a receive that takes too long, and of later calls."""
    said = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it would say that this backend takes none
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=0.5))
    if dist.get_rank() == 0:
        said["recv"] = _told(lambda: dist.recv(torch.ones(3), 1))
        said["again"] = _told(lambda: dist.recv(torch.ones(3), 1))
    dist.group.WORLD.set_timeout(timedelta(seconds=60))
    _follow("late")
    said["by gloo"] = _told(lambda: _sum(1.0, torch.int64))
    said["exchanged"] = _told(lambda: _sum(1.0))
    return said


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_a_receive_that_takes_too_long_ends_gloo_at_both_ranks_and_exchanges_go_on():
    for said in run_ranks(_is_late, 2, limit_s=60.0):
        for name in {"recv", "again"} & {*said}:
            assert "recv from 1: the timeout of 0.5 s is over" in said[name]
        assert (
            "rank 0 (rank0) can make no gloo call: recv from 1: the timeout of 0.5 s"
            in said["by gloo"]
        )
        assert "destroy_process_group(), and begin anew" in said["by gloo"]
        assert said["exchanged"] == "2.0"


def _evaluates() -> list[str]:
    """Return what is wrong with gathering as evaluation loops do."""
    from accelerate import Accelerator

    rank, size = dist.get_rank(), dist.get_world_size()
    wrong = []

    def check(what: str, found: torch.Tensor, wanted: list[float]) -> None:
        if found.flatten().tolist() != wanted:
            wrong.append(f"{what}: {found}")

    for mode in (torch.inference_mode, torch.no_grad):
        with mode():
            for kind, elements in itertools.product((torch.float32, torch.int64), (2, 100_000)):
                outputs = [torch.zeros(elements, dtype=kind) for _ in range(size)]
                dist.all_gather(outputs, torch.full((elements,), rank).to(kind))
                check(f"all_gather of {kind}", torch.stack([each[-1] for each in outputs]), [0, 1])
            strided = torch.full((4, 3), rank + 1.0).t()
            dist.all_reduce(strided)
            check("all_reduce", strided[0], [3.0] * 4)
            for kind in (torch.uint8, torch.bfloat16):
                tensor = torch.full((5,), rank + 1).to(kind)
                dist.broadcast(tensor, 1)
                check(f"broadcast of {kind}", tensor, [2] * 5)
            accelerator = Accelerator(cpu=True)
            data = torch.utils.data.TensorDataset(torch.arange(5.0))
            batches = accelerator.prepare(torch.utils.data.DataLoader(data, batch_size=2))
            seen = [accelerator.gather_for_metrics(each) for (each,) in batches]
            check("gather_for_metrics", torch.cat(seen), [0, 1, 2, 3, 4])
            padded = accelerator.pad_across_processes(torch.ones(rank + 1))
            check("gather", accelerator.gather(padded), [1, 0, 1, 1])
            check("reduce", accelerator.reduce(torch.tensor(rank + 1.0)), [3.0])
    leaves = [torch.zeros(3, requires_grad=True) for _ in range(size)]
    dist.all_gather(leaves, torch.full((3,), float(rank)))
    check("leaves", leaves[1], [1.0] * 3)
    return wrong


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_evaluation_loops_gather_in_inference_mode():
    assert run_ranks(_evaluates, 2) == [[], []]


@contextmanager
def _scheduler(sites: str, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a scheduler of a group that goes on without sites that are lost; give its address."""
    command = [sys.executable, "-m", "anabranch", "scheduler", "--sites", sites, *options]
    environment = {**os.environ, "ANABRANCH_TOKEN": TOKEN}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as running:
        try:
            assert running.stdout is not None
            yield running, running.stdout.readline().strip()
        finally:
            running.kill()


def _waits_while_the_group_goes_on(scheduler: str) -> str:
    """Return what a rank is told of rank 1, whose part in the group ends while its process lives.

    So gloo's own connections to it stay.
    """
    rank = dist.get_rank()
    options = Options(scheduler=scheduler, token=TOKEN, site="abc"[rank], host="127.0.0.1")
    group = dist.new_group(backend="anabranch", pg_options=options)
    if rank == 1:
        group_of(group).__exit__(KeyError, KeyError("no such file"), None)
        said = ""
    else:
        said = _told(lambda: dist.recv(torch.ones(3), group=group))
        group_of(group).barrier()
    dist.barrier()  # no rank hears of another that destroys its group
    dist.destroy_process_group(group)
    return said


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_a_call_by_gloo_ends_with_a_rank_without_which_the_group_goes_on():
    with _scheduler("a,b,c") as (running, address):
        said = run_ranks(_waits_while_the_group_goes_on, 3, address, backend="gloo", limit_s=60.0)
        assert running.wait(20) == 0
    why = "RuntimeError: recv from any rank: site 1 (b) failed: KeyError: 'no such file'; this"
    assert [each.partition(" process group")[0] for each in said] == [why, "", why]


def _dies() -> None:
    if dist.get_rank() == 1:
        sys.stdout.flush()
        os._exit(3)
    dist.all_reduce(torch.ones(1000))


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_a_rank_that_dies_ends_the_others_by_name():
    with pytest.raises(AssertionError) as raised:
        run_ranks(_dies, RANKS)
    said = str(raised.value)
    assert "rank 1:\nits process died" in said
    assert said.count("rank1") >= 2, said  # the others name it


WRONG = [
    ({"ANABRANCH_OVERLAY": "internet2-9"}, "has 9 sites and there are 2 ranks"),
    ({"ANABRANCH_OVERLAY": "nowhere.toml"}, "overlay nowhere.toml"),
    ({"ANABRANCH_SITE": "paris"}, "ranks 0 and 1 both say that they are site 'paris'"),
    ({"ANABRANCH_INSECURE": "yes"}, "give 1 or 0"),
    ({"ANABRANCH_SCHEDULER": "127.0.0.1:1"}, "set $ANABRANCH_TOKEN to its own"),
    ({"ANABRANCH_ROUTE": "round"}, "before it listened"),
]


def _is_told() -> list[str]:
    """Return what this rank is told of each thing that is wrong; gloo's group stays."""
    said = []
    for variables, _ in WRONG:
        os.environ.update(variables)
        try:
            dist.new_group(backend="anabranch")
            said.append("nothing")
        except Exception as error:
            said.append(str(error))
        for name in variables:
            del os.environ[name]
    return said


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_what_cannot_be_is_named_at_all_ranks():
    for said in run_ranks(_is_told, 2, backend="gloo"):
        for (_, wanted), told in zip(WRONG, said, strict=True):
            assert wanted in told


def _as_told(folder: Path, scheduler: str) -> list[tuple[str, float]]:
    """Return the site and the sum of two ranks in groups that are told by three ways."""
    rank = dist.get_rank()
    said = {
        "overlay": str(folder / "known.toml"),
        "route": "star,hub=b",
        "log": str(folder / "environment.log"),
        "tls": str(folder / "certs"),
        "keep_plan": "1",
    }
    running = {"scheduler": scheduler, "token": TOKEN, "site": "ab"[rank], "host": "127.0.0.1"}
    found = []

    def sums(**options: Any) -> None:
        group = dist.new_group(backend="anabranch", **options)
        tensor = torch.full((1000,), rank + 1.0)
        dist.all_reduce(tensor, group=group)
        found.append((group_of(group).site, tensor[0].item()))
        dist.destroy_process_group(group)

    for options in (said, running):
        variables = {f"ANABRANCH_{name.upper()}": value for name, value in options.items()}
        os.environ.update(variables)
        sums()
        for name in variables:
            del os.environ[name]
    said |= {"log": str(folder / "options.log")}
    sums(pg_options=Options(**{**said, "keep_plan": True}))
    return found


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_what_the_environment_or_options_say_is_done(tmp_path):
    known = Overlay("known", (Site("a"), Site("b")), (Link(0, 1, 2e9), Link(1, 0, 2e9)))
    (tmp_path / "known.toml").write_text(overlay.dumps(known))
    certs = ["certs", "--sites", "a,b", "--out", str(tmp_path / "certs")]
    assert CliRunner().invoke(app, certs).exit_code == 0
    with _scheduler("a,b", "--log", str(tmp_path / "running.log")) as (running, address):
        found = run_ranks(_as_told, 2, tmp_path, address, backend="gloo")
        assert running.wait(20) == 0
    assert found == [[("a", 3.0)] * 3, [("b", 3.0)] * 3]
    for name in ("environment", "options"):
        events = [event for _, event in read_events(tmp_path / f"{name}.log")]
        started = next(event for event in events if isinstance(event, RunStarted))
        assert started.sites == ["a", "b"]
        assert overlay.loads(started.overlay_toml).links == known.links
        assert [tree.root for tree in plan.loads(started.plan_json).trees] == [1]
        assert not any(isinstance(event, LinkMeasured) for event in events)
    joined = [
        event for _, event in read_events(tmp_path / "running.log") if isinstance(event, SiteJoined)
    ]
    assert sorted(event.name for event in joined) == ["a", "b"]


# What a process group of torch 2.13 has that moves no tensors, or is for other backends alone.
OF_THE_BASE = {
    *("BackendType", "CUSTOM", "GLOO", "MPI", "NCCL", "UCC", "UNDEFINED", "XCCL"),
    *("_backend_id", "_enable_collectives_timing"),
    *("_get_backend_name", "_has_hooks", "_id", "_pybind11_conduit_v1_", "_register_backend"),
    *("_register_on_completion_hook", "_set_default_backend", "_set_group_desc", "_set_group_name"),
    *("bound_device_id", "boxed", "group_desc", "group_name", "rank", "size", "unbox"),
    *("merge_remote_group", "split_group", "use_pg_for_symm_mem_rendezvous"),
    *("_start_coalescing", "_end_coalescing"),  # of NCCL
    "monitored_barrier",  # torch.distributed refuses it for other backends than gloo
}


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="the names are of torch 2.13")
def test_every_collective_that_a_process_group_has_is_overridden():
    classes = AnabranchProcessGroup.__mro__
    own = {name for each in classes[: classes.index(dist.ProcessGroup)] for name in vars(each)}
    known = {name for name in dir(dist.ProcessGroup) if not name.startswith("__")}
    assert known - own == OF_THE_BASE


def test_importing_torch_loads_nothing_of_this_package_but_the_registration():
    code = (
        "import sys, torch, torch.distributed as dist\n"
        "assert 'anabranch' in dist.Backend.backend_list\n"
        "ours = sorted(name for name in sys.modules if name.startswith('anabranch'))\n"
        "print(ours)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(
        ["anabranch", "anabranch._lazy", "anabranch.torch", "anabranch.torch.autoload"]
    )


def test_a_registration_that_fails_is_told_and_breaks_nothing(monkeypatch, caplog):
    from anabranch.torch import autoload

    def broken(*given: Any, **named: Any) -> None:
        raise TypeError("another release")

    monkeypatch.setattr(dist.Backend, "backend_list", [])
    monkeypatch.setattr(dist.Backend, "register_backend", broken)
    autoload.register()
    assert "does not know the backend anabranch" in caplog.text


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_ranks_that_torchrun_starts_again_meet_again():
    script = Path(__file__).with_name("restarted.py")
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *command, "--max-restarts", "1", str(script)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = sorted(re.findall(r"attempt \d, rank \d: \d", done.stdout))  # lines may run together
    assert said == [f"attempt 1, rank {rank}: 2" for rank in range(2)]
