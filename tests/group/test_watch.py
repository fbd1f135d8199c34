"""Members whose gradients are averaged, and whose models are compared by themselves."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anabranch
from anabranch import ExchangeError, Group
from anabranch.group import _watch
from anabranch.group._local import _complete, _serving
from anabranch.group._watch import Watch, sample_checksum
from anabranch.group.blocking_group import join_at
from anabranch.group.place import Place

from ..every import every
from ..threads import Threads, at_each
from ..weak_sets import free_amid

SITES = 3
Average = Callable[[Group, nn.Module], object]


@pytest.fixture
def joined() -> Iterator[tuple[Group, ...]]:
    """Return a group whose sites have joined as `anabranch.join` does."""
    service = anabranch.Service(_complete(SITES), awareness=None)
    with Threads(SITES) as pool, _serving(service) as (address, token):

        def join(name: str) -> Group:
            place = Place(scheduler=address, site=name, token=token)
            return join_at(place, hints=True)

        groups = pool.each(join, [f"site{number}" for number in range(SITES)])
        yield tuple(groups)
        pool.each(Group.close, groups)


@pytest.fixture
def switching() -> Iterator[None]:
    """Let threads take turns as often as they can."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval_s)


def net(seed: int) -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 1))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for each in model.parameters():
            each.normal_(generator=generator)
    return model


def compute(model: nn.Module, seed: int) -> None:
    """Compute gradients of this site's own."""
    inputs = torch.randn(8, 5, generator=torch.Generator().manual_seed(seed))
    model(inputs).square().mean().backward()


def gradients(model: nn.Module) -> Iterable[torch.Tensor]:
    return (each.grad for each in model.parameters() if each.grad is not None)


def train(
    group: Group,
    model: nn.Module,
    average: Average,
    steps: int = 6,
    then: Callable[[int], object] = lambda step: None,
) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        compute(model, 100 * group.rank + step)
        average(group, model)
        optimizer.step()
        then(step)
    return model


def at_once(group: Group, model: nn.Module) -> None:
    group.all_reduce(gradients(model))


def ahead(group: Group, model: nn.Module) -> None:
    group.all_reduce(gradients(model), more=True)


def one_by_one(group: Group, model: nn.Module) -> None:
    for each in model.parameters():
        assert each.grad is not None
        group.all_reduce(each.grad.data)


def sum_and_divide(group: Group, model: nn.Module) -> None:
    given = [*gradients(model)]
    group.all_reduce(given, op="sum", async_op=True).wait()
    for each in given:
        each /= group.size
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)


@pytest.mark.parametrize("average", [at_once, ahead, one_by_one, sum_and_divide])
def test_a_broadcast_that_was_forgotten_is_an_error_at_every_site(
    joined: tuple[Group, ...], average: Average
) -> None:
    seeds = {"site0": 0, "site1": 1, "site2": 0}
    reached: dict[str, int] = {}

    def run(group: Group) -> str:
        def note(step: int) -> None:
            reached[group.site] = step

        with pytest.raises(ExchangeError) as told:
            train(group, net(seeds[group.site]), average, then=note)
        group.barrier()  # the group goes on
        return str(told.value)

    said = at_each(joined, run)
    assert every(
        each.startswith(
            "models differ before their first step: that of site 1 (site1) is not that of "
            "site 0 (site0); call group.broadcast(model)"
        )
        for each in said
    )
    assert reached == dict.fromkeys(seeds, 0)  # with the second mean


@pytest.mark.parametrize("average", [at_once, ahead, one_by_one, sum_and_divide])
def test_models_that_are_alike_are_no_news(
    joined: tuple[Group, ...], caplog: pytest.LogCaptureFixture, average: Average
) -> None:
    def run(group: Group) -> list[float]:
        model = net(group.rank)
        group.broadcast(model)
        train(group, model, average, steps=20)
        return [each.sum().item() for each in model.parameters()]

    one, *others = at_each(joined, run)
    assert every(other == one for other in others)
    assert not caplog.records


@pytest.mark.parametrize("average", [at_once, ahead])
def test_models_that_part_are_named_once_at_every_site(
    joined: tuple[Group, ...], caplog: pytest.LogCaptureFixture, average: Average
) -> None:
    def run(group: Group) -> None:
        model = net(0)
        group.broadcast(model)

        def part(step: int) -> None:
            if group.site == "site2" and step == 2:
                with torch.no_grad():
                    model[2].weight[0, 0] += 1e-3

        train(group, model, average, 20, part)

    at_each(joined, run)
    said = [each.getMessage() for each in caplog.records]
    assert len(said) == SITES
    assert every(
        "the model of site 2 (site2) no longer equals that of site 0" in each for each in said
    )


def test_a_broadcast_of_a_second_model_that_was_forgotten_is_an_error(
    joined: tuple[Group, ...],
) -> None:
    def run(group: Group) -> str:
        models = net(group.rank), net(group.rank)
        optimizers = [torch.optim.SGD(each.parameters(), 0.01) for each in models]
        group.broadcast(models[0])

        def in_turns() -> None:
            for step in range(3):
                for model, optimizer in zip(models, optimizers, strict=True):
                    optimizer.zero_grad()
                    compute(model, 100 * group.rank + step)
                    group.all_reduce(gradients(model))
                    optimizer.step()

        with pytest.raises(ExchangeError) as told:
            in_turns()
        return str(told.value)

    assert every("call group.broadcast(model)" in each for each in at_each(joined, run))


# --- models that differ for a reason


def by_deltas(group: Group) -> None:
    """Take local steps, and an outer one by the mean of what they changed, as DiLoCo by hand."""
    model = net(0)
    outer = torch.optim.SGD(model.parameters(), 0.7, momentum=0.9, nesterov=True)
    for round in range(5):
        before = [each.detach().clone() for each in model.parameters()]
        inner = torch.optim.SGD(model.parameters(), 0.01)
        for step in range(3):
            inner.zero_grad(set_to_none=False)
            compute(model, 100 * group.rank + 10 * round + step)
            inner.step()
        for each, old in zip(model.parameters(), before, strict=True):
            assert each.grad is not None
            each.grad.copy_(old - each.detach())
        group.all_reduce(gradients(model))
        with torch.no_grad():
            for each, old in zip(model.parameters(), before, strict=True):
                each.copy_(old)
        outer.step()


def with_a_head_of_its_own(group: Group) -> None:
    model, head = net(0), nn.Linear(1, 1)
    nn.init.constant_(head.weight, group.rank)
    optimizer = torch.optim.SGD([*head.parameters(), *model.parameters()], 0.01)
    for step in range(5):
        optimizer.zero_grad()
        compute(nn.Sequential(model, head), 100 * group.rank + step)
        group.all_reduce(gradients(model))
        optimizer.step()


def by_models(group: Group) -> None:
    """Average parameters themselves, which local steps have changed."""
    model = net(group.rank)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(6):
        optimizer.zero_grad()
        compute(model, 100 * group.rank + step)
        optimizer.step()
        if step % 2:
            group.all_reduce(each.data for each in model.parameters())


def in_a_block(group: Group) -> None:
    model = net(group.rank)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with anabranch.LocalSGD(model, optimizer, group, every=2):
        for step in range(6):
            optimizer.zero_grad()
            compute(model, 100 * group.rank + step)
            group.all_reduce(torch.ones(3))  # a metric
            optimizer.step()


def with_copies_for_a_metric(group: Group) -> None:
    """Average copies in memory that gradients have later, as an allocator gives it to them."""
    memory = np.zeros(3, np.float32)
    model = nn.Linear(3, 1, bias=False)
    nn.init.constant_(model.weight, group.rank)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(5):
        group.all_reduce(torch.from_numpy(memory))
        model.weight.grad = torch.from_numpy(memory).view(1, 3)
        model.weight.grad.fill_(group.rank)
        optimizer.step()


def with_arrays(group: Group) -> None:
    weights = np.full(5, group.rank, np.float32)
    for _ in range(5):
        gradient = weights * 2
        group.all_reduce(gradient)
        weights -= 0.1 * gradient


def as_is_allowed(group: Group) -> None:
    group.on_unlike = "allow"
    train(group, net(group.rank), at_once)


def in_subgroups(group: Group) -> None:
    if group.rank < 2:
        train(group.subgroup(group.sites[:2]), net(1), at_once)
    else:
        train(group.subgroup([group.site]), net(2), at_once)


@pytest.mark.parametrize(
    "run",
    [
        by_deltas,
        with_a_head_of_its_own,
        by_models,
        in_a_block,
        with_copies_for_a_metric,
        with_arrays,
        as_is_allowed,
        in_subgroups,
    ],
)
def test_models_that_differ_for_a_reason_are_no_news(
    joined: tuple[Group, ...],
    caplog: pytest.LogCaptureFixture,
    run: Callable[[Group], None],
) -> None:
    at_each(joined, run)
    said = [each.getMessage() for each in caplog.records]
    assert not [each for each in said if "that of site" in each]


def test_a_subgroup_compares_its_members_models(joined: tuple[Group, ...]) -> None:
    def run(group: Group) -> str:
        part = group.subgroup(group.sites[:2]) if group.rank < 2 else None
        if part is None:
            return ""
        with pytest.raises(ExchangeError) as told:
            train(part, net(part.rank), at_once)
        return str(told.value)

    one, other, _ = at_each(joined, run)
    assert one == other
    assert "that of site 1 (site1) is not that of site 0 (site0)" in one


def test_sites_that_joined_later_are_compared_as_the_others_are(
    joined: tuple[Group, ...], caplog: pytest.LogCaptureFixture
) -> None:
    def run(group: Group) -> None:
        model = net(group.rank)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for step in range(6):
            state = group.admit(model.state_dict)
            if state is not None:
                model.load_state_dict(state)
            optimizer.zero_grad()
            compute(model, 100 * group.rank + step)
            at_once(group, model)
            optimizer.step()

    at_each(joined, run)
    assert not caplog.records


def test_what_models_differ_in_is_one_of_two() -> None:
    with pytest.raises(ValueError, match="on_unlike is 'warn', must be 'raise' or 'allow'"):
        anabranch.join("127.0.0.1:1", "a", token="t", on_unlike="warn")  # type: ignore[arg-type]


# --- the watch alone


def stepped(watch: Watch, optimizer: torch.optim.Optimizer, *models: nn.Module) -> None:
    for each in models:
        compute(each, 0)
        watch.averaged(gradients(each))
    optimizer.step()


def test_comparisons_become_rare() -> None:
    watch, model = Watch(), net(0)
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    compared = []
    for _ in range(40):
        stepped(watch, optimizer, model)
        told = watch.take()
        if told is not None:
            compared.append((told.step, told.is_first))
    assert compared == [(1, True), (2, False), (4, False), (8, False), (16, False), (32, False)]


def test_a_step_without_a_mean_is_not_counted() -> None:
    watch, model = Watch(), net(0)
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    for _ in range(3):
        compute(model, 0)
        optimizer.step()
    assert watch.take() is None
    stepped(watch, optimizer, model)
    optimizer.step()
    told = watch.take()
    assert told is not None
    assert (told.step, told.is_first) == (1, True)


def test_a_watch_from_before_pytorch_was_loaded_sees_steps_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as early:
        early.setattr(_watch, "loaded", lambda name: None)
        watch = Watch()
    watch.averaged([np.ones(3, np.float32)])
    assert watch not in _watch._watching
    model = net(0)
    stepped(watch, torch.optim.SGD(model.parameters(), 1e-6), model)
    assert watch.take() is not None


def test_memory_of_a_mean_that_was_freed_makes_no_mean_of_what_comes_there() -> None:
    watch, memory = Watch(), np.ones(3, np.float32)
    parameter = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([parameter], 0.1)
    metric = torch.from_numpy(memory)
    watch.averaged([metric])
    place = metric.data_ptr()
    del metric
    parameter.grad = torch.from_numpy(memory)
    assert parameter.grad.data_ptr() == place
    optimizer.step()
    assert watch.take() is None
    watch.averaged([parameter.grad.view(-1)])
    optimizer.step()
    assert watch.take() is not None


def test_a_second_model_is_new_at_its_first_step_too() -> None:
    watch, models = Watch(), (net(0), net(1))
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in models]
    told = []
    for _ in range(2):
        for model, optimizer in zip(models, optimizers, strict=True):
            stepped(watch, optimizer, model)
            told.append(watch.take())
    assert [each is not None and each.is_first for each in told] == [True, True, False, False]
    again = torch.optim.SGD(models[0].parameters(), 0.1)
    stepped(watch, again, models[0])
    once_more = watch.take()
    assert once_more is not None
    assert not once_more.is_first


def test_two_optimizers_are_compared_together() -> None:
    def told(first: int, second: int) -> Any:
        watch, models = Watch(), (net(first), net(second))
        optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in models]
        for each in models:
            compute(each, 0)
        watch.averaged([*gradients(models[0]), *gradients(models[1])])
        for optimizer in optimizers:
            optimizer.step()
        return watch.take()

    assert told(0, 1) == told(0, 1)
    assert told(0, 1).is_first
    assert len({told(*seeds).checksum for seeds in ((0, 1), (1, 0), (0, 0), (1, 1))}) == 4


def test_after_others_are_let_in_a_difference_is_no_error_and_all_count_alike() -> None:
    old, new = Watch(), Watch()
    model = net(0)
    optimizers = {each: torch.optim.SGD(model.parameters(), 0.1) for each in (old, new)}
    for _ in range(5):
        stepped(old, optimizers[old], model)
    for watch in (old, new):
        watch.let_in(others_go_on=True)
        stepped(watch, optimizers[watch], model)
    one, other = old.take(), new.take()
    assert one is not None
    assert other is not None
    assert (one.step, one.is_first) == (other.step, other.is_first) == (2, False)


@pytest.mark.parametrize("foreach", [True, False])
def test_gradients_and_models_are_let_go(foreach: bool) -> None:
    watch, model = Watch(), net(0)
    optimizer = torch.optim.Adam(model.parameters(), foreach=foreach)
    stepped(watch, optimizer, model)
    held = [weakref.ref(each) for each in (*gradients(model), model, optimizer)]
    optimizer.zero_grad()
    del model, optimizer
    gc.collect()
    assert every(each() is None for each in held)
    gone = weakref.ref(watch)
    del watch
    assert gone() is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own
def test_a_compiled_step_is_left_alone() -> None:
    watch, model = Watch(), net(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    compute(model, 0)
    watch.averaged(gradients(model))
    step = torch.compile(optimizer.step, backend="eager")
    before = model[0].weight.detach().clone()
    step()
    assert not torch.equal(before, model[0].weight)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
def test_one_bit_of_a_small_tensor_changes_the_checksum(kind: torch.dtype) -> None:
    parameters = [torch.arange(6).to(kind).reshape(2, 3).t(), torch.zeros(0), torch.zeros(())]
    before = sample_checksum(parameters)
    assert before == sample_checksum([each.clone() for each in parameters])
    assert before != sample_checksum([*parameters[:2], torch.tensor(1.0)])
    assert before != sample_checksum([parameters[0] + 1, *parameters[1:]])


def test_of_a_large_model_a_sample_is_read() -> None:
    large = torch.zeros(10 * _watch._SAMPLED)
    seen = 0
    for place in range(100):
        large[place] = 1.0
        seen += sample_checksum([large]) != sample_checksum([torch.zeros_like(large)])
        large[place] = 0.0
    assert seen == 10


def test_a_thread_may_average_while_another_steps(switching: None) -> None:
    """Each watch of a process hears of every step, so two groups' threads meet in one watch."""
    watch = Watch()
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1)
    gradients = [torch.ones(1) for _ in range(1000)]
    watch.averaged(gradients)
    has_ended = threading.Event()

    def average() -> None:
        while not has_ended.is_set():
            watch.averaged(gradients)

    with ThreadPoolExecutor(1) as pool:
        averaging = pool.submit(average)
        try:
            for _ in range(100):
                watch.before_step(optimizer)
        finally:
            has_ended.set()
        averaging.result()


def test_a_thread_may_free_a_watch_while_another_steps() -> None:
    kept = [Watch() for _ in range(3)]
    freed = [Watch()]
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1)
    free_amid(optimizer.step, freed.clear)
    assert len(kept) == 3
    assert None not in {each() for each in [*_watch._watching]}


def test_odd_tensors_are_passed_over() -> None:
    class Odd(torch.Tensor):
        pass

    watch = Watch()
    table = nn.Embedding(3, 2, sparse=True)
    odd = nn.Parameter(torch.ones(2).as_subclass(Odd))
    plain = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([*table.parameters(), odd, plain], 0.1)
    (table(torch.tensor([1])).sum() + odd.sum() + plain.sum()).backward()
    assert plain.grad is not None
    watch.averaged([plain.grad, table.weight])
    optimizer.step()
    told = watch.take()
    assert told is not None
    assert told.checksum == sample_checksum([torch.ones(2)])
