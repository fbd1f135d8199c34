"""Models that are averaged between local steps of a user's own loop, over real connections."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anabranch
from anabranch import ExchangeError, Group, ModelAverage, Moved, Outer, Timed
from anabranch.exchange.terms import Terms
from anabranch.group import _local
from anabranch.group._average import period_of
from anabranch.site.agent import SiteAgent

from ..every import every
from ..threads import Threads, at_each

SITES, ELEMENTS = 3, 1000
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def groups() -> Iterator[tuple[Group, ...]]:
    with anabranch.local(SITES) as groups:
        yield groups


def parameters(seed: int = 0) -> list[torch.nn.Parameter]:
    """Return a model of three tensors, one of which is not contiguous."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (ELEMENTS // 2,), (10, ELEMENTS // 25), (ELEMENTS // 10, 1)
    made = [torch.randn(shape, generator=generator) for shape in shapes]
    made[1] = made[1].t()
    return [torch.nn.Parameter(each) for each in made]


def flat(model: list[torch.nn.Parameter]) -> torch.Tensor:
    return torch.cat([each.detach().reshape(-1) for each in model])


def drift(model: list[torch.nn.Parameter], rank: int, step: int) -> None:
    """Make a local step: what a site's optimiser does to its model, known to the references."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    with torch.no_grad():
        for each in model:
            each += 0.1 * torch.randn(each.shape, generator=generator)


def train(group: Group, steps: int, **how: Any) -> tuple[torch.Tensor, list[bool]]:
    """Make steps at a site; return its model in the end, and after which it was averaged."""
    model = parameters()
    average = group.average(model, **how)
    used = []
    for step in range(steps):
        drift(model, group.rank, step)
        used.append(average.step())
    average.finish()
    return flat(model), used


def same(models: list[torch.Tensor]) -> torch.Tensor:
    """Return a model that all of these equal, to the last bit."""
    assert every(torch.equal(models[0], each) for each in models)
    return models[0]


def reference(
    steps: int, every: int, outer: Outer | None, delay: int = 0, fragments: int = 1
) -> torch.Tensor:
    """Do in one process, with PyTorch in float64, what the sites do."""
    held = [parameters() for _ in range(SITES)]
    size = len(flat(held[0]))
    agreed = torch.nn.Parameter(flat(held[0]).double())
    models = [flat(model).double() for model in held]
    optimisers: list[torch.optim.SGD] = []
    cuts = [size * each // fragments for each in range(fragments + 1)]
    parts = [torch.nn.Parameter(agreed[cuts[i] : cuts[i + 1]].detach()) for i in range(fragments)]
    for part in parts:
        rate, momentum = (1.0, 0.0) if outer is None else (outer.learning_rate, outer.momentum)
        nesterov = outer is not None and outer.nesterov and momentum > 0
        optimisers.append(torch.optim.SGD([part], lr=rate, momentum=momentum, nesterov=nesterov))
    flying: list[tuple[int, int, list[torch.Tensor]]] = []
    begun, contributed_at = 0, [0] * fragments

    def take(fragment: int, sent: list[torch.Tensor]) -> None:
        span = slice(cuts[fragment], cuts[fragment + 1])
        parts[fragment].grad = parts[fragment].detach() - torch.stack(sent).mean(0)
        optimisers[fragment].step()
        for model, own in zip(models, sent, strict=True):
            model[span] += parts[fragment].detach() - own

    def begin(step: int) -> None:
        nonlocal begun
        fragment = begun % fragments
        begun += 1
        contributed_at[fragment] = step
        span = slice(cuts[fragment], cuts[fragment + 1])
        flying.append((step + delay, fragment, [model[span].clone() for model in models]))

    def take_ripe(step: float) -> None:
        while flying and flying[0][0] <= step:
            take(*flying.pop(0)[1:])

    for step in range(1, steps + 1):
        for rank, model in enumerate(models):
            moved = parameters()
            before = flat(moved)
            drift(moved, rank, step - 1)
            model += flat(moved) - before
        take_ripe(step)
        if step % (every // fragments) == 0:
            begin(step)
            take_ripe(step)
    take_ripe(np.inf)
    for _ in range(fragments):
        if outer is not None and contributed_at[begun % fragments] == steps:
            begun += 1  # nothing is left to average
            continue
        begin(steps)
        take_ripe(np.inf)
    return models[0]


@pytest.mark.parametrize("steps", [8, 10])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"outer": Outer(learning_rate=0.7, momentum=0.9)},
        {"outer": Outer(learning_rate=0.5, momentum=0.8, nesterov=False)},
        {"delay": 2},
        {"delay": 4, "outer": Outer()},
        {"fragments": 2},
        {"fragments": 2, "delay": 3, "outer": Outer()},
    ],
    ids=repr,
)
def test_sites_end_with_what_one_process_computes(
    groups: tuple[Group, ...], how: dict[str, Any], steps: int
) -> None:
    found = at_each(groups, lambda group: train(group, steps, every=4, **how))
    expected = reference(steps, 4, **{"outer": None, **how})
    torch.testing.assert_close(
        same([model for model, _ in found]).double(), expected, rtol=1e-4, atol=1e-5
    )
    spacing, delay = 4 // how.get("fragments", 1), how.get("delay", 0)
    right = [step > delay and (step - delay) % spacing == 0 for step in range(1, steps + 1)]
    assert every(used == right for _, used in found)


def test_a_plain_average_needs_no_copy_of_a_model_in_one_piece_each(
    groups: tuple[Group, ...],
) -> None:
    models = [np.full((2, 3), float(rank), np.float32) for rank in range(SITES)]
    averages = [group.average(model, every=1) for group, model in zip(groups, models, strict=True)]
    shared = [average._local.begin() for average in averages]
    assert every(np.shares_memory(one, model) for (one,), model in zip(shared, models, strict=True))


def test_weights_count(groups: tuple[Group, ...]) -> None:
    models = [np.full(5, float(rank), np.float32) for rank in range(SITES)]

    def step(group: Group) -> None:
        average = group.average(models[group.rank], every=1, weight=3.0)
        average.weight = 1.0 + group.rank
        assert average.step()
        assert average.latest is not None
        assert average.latest.contributors is None

    at_each(groups, step)
    assert [model.tolist() for model in models] == [pytest.approx([8 / 6] * 5)] * SITES


@pytest.mark.parametrize(
    "how", [{"every": 2}, {"every": 2, "fragments": 2}, {"every": Moved(by=9)}]
)
def test_sites_with_unequal_numbers_of_steps_end_with_the_same_model(
    groups: tuple[Group, ...], how: dict[str, Any]
) -> None:
    found = at_each(groups, lambda group: train(group, 3 + 2 * group.rank, **how))
    same([model for model, _ in found])


def test_one_whose_model_has_moved_calls_the_others(groups: tuple[Group, ...]) -> None:
    """One site moves fast and has few steps to make; the others would move far too late."""
    until = threading.Barrier(SITES)

    def run(group: Group) -> int:
        model = np.full(10, 1.0, np.float32)
        average = group.average(model, every=Moved(by=0.5, most_steps=10_000))
        by = 0.2 if group.rank == 0 else 1e-6
        until.wait()
        while average.begun < 4:
            model += np.float32(by)
            average.step()
            if group.rank == 2:  # a slow one
                threading.Event().wait(0.005)
        average.finish()
        assert average.begun >= 4
        models[group.rank] = torch.from_numpy(model)
        return average.steps

    models = [torch.empty(0)] * SITES
    steps = at_each(groups, run)
    same(models)
    assert max(steps) < 10_000, "none was called"
    assert steps[0] > 4


def test_the_first_member_says_how_seldom_averages_would_take_a_tenth(
    groups: tuple[Group, ...], caplog: pytest.LogCaptureFixture
) -> None:
    def run(group: Group) -> None:
        average = group.average(np.zeros(10, np.float32), every=2)
        for _ in range(10):
            if group.rank == 1:  # the others wait for it
                threading.Event().wait(0.02)
            average.step()

    at_each(groups, run)
    (told,) = [each.getMessage() for each in caplog.records if "every >= " in each.getMessage()]
    assert told.startswith("site0: 9")
    assert "of the time goes into averages every 2 steps" in told


def test_faster_sites_make_more_steps_in_a_time_and_count_for_them(
    groups: tuple[Group, ...],
) -> None:
    until = threading.Barrier(SITES)

    def run(group: Group) -> tuple[int, float]:
        model = np.zeros(10, np.float32)
        average = group.average(model, every="0.2s", weight="steps")
        until.wait()
        while not average.begun:
            threading.Event().wait(0.01 * (1 + 4 * group.rank))
            model += np.float32(1.0)
            average.step()
        return average.steps, float(model[0])

    found = at_each(groups, run)
    steps = [each for each, _ in found]
    assert steps[0] > 2 * steps[2]
    weighed = sum(each * each for each in steps) / sum(steps)
    assert [model for _, model in found] == [pytest.approx(weighed, rel=1e-5)] * SITES


def test_a_site_without_steps_does_not_count_where_steps_do(groups: tuple[Group, ...]) -> None:
    def run(group: Group) -> float:
        model = np.full(10, float(group.rank), np.float32)
        average = group.average(model, every=1, weight="steps")
        if group.rank:
            average.step()
        average.finish()
        return float(model[0])

    assert at_each(groups, run) == [pytest.approx(1.5, abs=1e-4)] * SITES


@pytest.mark.parametrize(("told", "seconds"), [("30s", 30), ("1.5 min", 90), ("2h", 7200)])
def test_a_period_may_be_a_time(told: str, seconds: float) -> None:
    assert period_of(told) == Timed(seconds=seconds)


@pytest.mark.parametrize("told", ["30", "s", "-1s", "0s", "30 days", ""])
def test_what_is_no_time_is_named(told: str) -> None:
    with pytest.raises(ValueError, match=r"every is .* must be a number of local steps"):
        period_of(told)


def test_sites_that_have_finished_do_not_call_the_others(groups: tuple[Group, ...]) -> None:
    def run(group: Group) -> int:
        model = np.full(10, 1.0, np.float32)
        average = group.average(model, every=Moved(by=0.5, most_steps=10))
        for _ in range(0 if group.rank == 0 else 40):
            model += np.float32(1e-3)
            average.step()
        average.finish()
        return average.begun

    begun = at_each(groups, run)
    assert begun == [begun[0]] * SITES
    # One of two sites has made ten steps before each, of forty; and the last one of all.
    assert begun[0] <= 2 * 40 // 10 + 1


def test_one_that_moves_calls_where_another_has_finished_first(groups: tuple[Group, ...]) -> None:
    def run(group: Group) -> int:
        model = np.full(10, 1.0, np.float32)
        average = group.average(model, every=Moved(by=0.5, most_steps=100_000))
        while group.rank and average.begun < 2:
            model += np.float32(0.2 if group.rank == 1 else 1e-6)
            average.step()
        average.finish()
        return average.steps

    steps = at_each(groups, run)
    assert steps[0] == 0
    assert max(steps) < 100_000


def test_a_subgroup_averages_its_own_models(groups: tuple[Group, ...]) -> None:
    models = [np.full(5, float(rank), np.float32) for rank in range(SITES)]

    def run(group: Group) -> None:
        if group.rank != 1:
            pair = group.subgroup(["site0", "site2"])
            assert pair.average(models[group.rank], every=1).step()

    at_each(groups, run)
    assert [model[0] for model in models] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("on_loss", ["complete", "retry"])
@pytest.mark.parametrize("outer", [None, Outer()])
def test_a_site_that_is_lost_under_way_leaves_one_model_to_the_others(
    outer: Outer | None, on_loss: Any
) -> None:
    service = anabranch.Service(_local._complete(SITES), on_loss=on_loss)
    with anabranch.local(service) as groups:
        lost = groups[1]

        def run(group: Group) -> torch.Tensor | None:
            rank = group.rank
            model = parameters()
            average = group.average(model, every=2, outer=outer)
            for step in range(6):
                drift(model, rank, step)
                if group is lost and step == 3:
                    _die(lost)
                    return None
                average.step()
            average.finish()
            assert average.begun == 4
            assert average.latest is not None
            for *_, names in average.latest.contributors or ():
                assert names == ("site0", "site2")
            return flat(model)

        found = same([each for each in at_each(groups, run) if each is not None])
        assert groups[0].sites == ("site0", "site2")
    if outer is None:
        expected = flat(parameters())
        for step in range(6):
            contribute = (0, 1, 2) if step < 2 else (0, 2)
            for rank in contribute:
                moved = parameters()
                drift(moved, rank, step)
                expected += (flat(moved) - flat(parameters())) / len(contribute)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def _die(group: Group) -> None:
    """End a site as its process's death would."""

    async def close() -> None:
        group._member.site.agent.close()

    group._member.thread.run(close())
    group._member._closed = True
    group._member.thread.close()


def test_the_first_member_is_lost_and_the_others_buffers_end_alike() -> None:
    service = anabranch.Service(_local._complete(SITES))
    with anabranch.local(service) as groups:
        lost = groups[0]

        def run(group: Group) -> list[float] | None:
            model = torch.nn.BatchNorm1d(3)
            average = group.average(model, every=2)
            for step in range(6):
                model(torch.randn(4, 3))
                model.num_batches_tracked += group.rank
                if group is lost and step == 3:
                    _die(lost)
                    return None
                average.step()
            average.finish()
            return [*model.running_mean.tolist(), model.num_batches_tracked.item()]

        _, one, other = at_each(groups, run)
    assert one == other
    assert one is not None


@pytest.mark.parametrize("wire", [None, "float16", "bfloat16"])
@pytest.mark.parametrize("how", [{}, {"fragments": 2, "delay": 2}])
def test_models_that_began_unlike_are_named_at_every_site(
    groups: tuple[Group, ...], wire: Any, how: dict[str, Any]
) -> None:
    def run(group: Group) -> str:
        weights = torch.full((4,), 1.0)
        weights[3] += 1e-6 * (group.rank == 1)
        average = group.average([weights], every=4, outer=Outer(), wire=wire, **how)
        try:
            for _ in range(8):
                weights += 0.1
                average.step()
        except ValueError as error:
            return str(error)
        return "nothing"

    assert every("that of site1 differed from that of" in each for each in at_each(groups, run))


def test_buffers_that_began_unlike_are_named_and_those_of_a_plain_mean_too(
    groups: tuple[Group, ...],
) -> None:
    def run(group: Group) -> None:
        model = torch.nn.BatchNorm1d(3)
        torch.nn.init.constant_(model.weight, group.rank)  # which a plain mean makes one
        model.running_var.fill_(1.0 + (group.rank == 2))
        average = group.average(model, every=1)
        with pytest.raises(ValueError, match="that of site2 differed"):
            average.step()
        group.broadcast(model)
        again = group.average(model, every=1, outer=Outer())
        assert again.step()

    at_each(groups, run)


def test_a_model_brings_its_own_buffers() -> None:
    with anabranch.local(1) as (group,):
        with pytest.raises(ValueError, match="a model has its buffers"):
            group.average(torch.nn.BatchNorm1d(3), buffers=[], every=1)
        frozen = torch.nn.Linear(2, 2).requires_grad_(False)
        with pytest.raises(ValueError, match="no parameter of the model needs a gradient"):
            group.average(frozen, every=1)


@pytest.mark.parametrize("how", [{"every": 3}, {"every": 4, "fragments": 2, "delay": 4}])
def test_buffers_go_on_from_a_state(how: dict[str, Any], tmp_path: Path) -> None:
    def run(group: Group, first: int, stop: int, loads: bool) -> list[torch.Tensor]:
        path = tmp_path / f"{group.site}.pt"
        model = torch.nn.BatchNorm1d(3)
        average = group.average(model, outer=Outer(), **how)
        if loads:
            state = torch.load(path)
            model.load_state_dict(state["model"])
            average.load_state_dict(state["average"])
        for step in range(first, stop):
            generator = torch.Generator().manual_seed(100 * group.rank + step)
            model(torch.randn(4, 3, generator=generator) + group.rank)
            average.step()
            if step == 5:
                saved = {"model": model.state_dict(), "average": average.state_dict()}
                torch.save(saved, path)
        if stop == 12:
            average.finish()
        return [each.clone() for each in model.buffers()]

    with anabranch.local(2) as groups:
        whole = at_each(groups, lambda group: run(group, 0, 12, loads=False))
    with anabranch.local(2) as groups:
        again = at_each(groups, lambda group: run(group, 6, 12, loads=True))
    for each in (whole[1], *again):
        assert every(torch.equal(one, other) for one, other in zip(whole[0], each, strict=True))


# --- states


HOWS = [
    {"every": 3},
    {"every": 4, "outer": Outer(), "fragments": 2},
    {"every": 3, "delay": 2},
    {"every": 3, "delay": 3, "outer": Outer()},
    {"every": Moved(by=0.2, most_steps=5)},
]


@pytest.mark.parametrize("how", HOWS, ids=repr)
def test_a_state_goes_on_bit_for_bit(how: dict[str, Any], tmp_path: Path) -> None:
    def run(group: Group, first: int, stop: int, saved: Path | None) -> torch.Tensor:
        path = tmp_path / f"{group.site}.pt"
        model = parameters()
        average = group.average(model, **how)
        if saved is not None:
            state = torch.load(path)
            for each, held in zip(model, state["model"], strict=True):
                each.data.copy_(held)
            average.load_state_dict(state["average"])
        for step in range(first, stop):
            drift(model, group.rank, step)
            average.step()
            if step == 5:
                torch.save({"model": model, "average": average.state_dict()}, path)
        if stop == 12:
            average.finish()
        return flat(model)

    # When one calls another depends on the moment, so of those there is one.
    sites = 1 if isinstance(how["every"], Moved) else 2
    with anabranch.local(sites) as groups:
        whole = same(at_each(groups, lambda group: run(group, 0, 12, None)))
    with anabranch.local(sites) as groups:
        again = same(at_each(groups, lambda group: run(group, 6, 12, tmp_path)))
    assert torch.equal(whole, again)


@pytest.mark.parametrize("how", [*HOWS, {"every": HOWS[4]["every"], "delay": 1}], ids=repr)
def test_a_site_that_joins_later_gets_the_state_of_averages(how: dict[str, Any]) -> None:
    service = anabranch.Service(_local._complete(SITES), begin_with=2, awareness=None)
    has_stepped, is_new_there = threading.Event(), threading.Event()
    began: dict[str, int] = {}

    def run(group: Group) -> torch.Tensor:
        site = int(group.site[-1])
        model, step = parameters(site), 0
        average = group.average(model, **how)

        def state() -> dict[str, Any]:
            return {"model": model, "average": average.state_dict(), "step": step}

        is_used = True
        while average.begun < 12 or group.size < SITES:  # a newcomer may be slow to ask
            if is_used:
                found = group.admit(state)
                if found is not None:
                    for each, held in zip(model, found["model"], strict=True):
                        each.data.copy_(held)
                    average.load_state_dict(found["average"])
                    step = began[group.site] = found["step"]
            drift(model, site, step)
            step += 1
            has_stepped.set()
            is_used = average.step()
            if average.begun > 4:
                assert is_new_there.wait(60)
        average.finish()
        assert group.sites == ("site0", "site1", "site2")
        return flat(model)

    with Threads(SITES) as pool, _local._serving(service) as (address, token):

        def join(name: str) -> Group:
            return anabranch.join(address, name, token=token)

        founders = pool.each(join, ("site0", "site1"))
        running = [pool.submit(run, group) for group in founders]
        assert has_stepped.wait(60)
        new = join("site2")
        is_new_there.set()
        same([each.result() for each in (*running, pool.submit(run, new))])
        assert (began["site1"], began["site2"] > 0) == (0, True)
        pool.each(lambda group: group.close(), (*founders, new))


# --- errors


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"every": 0}, "every is 0, must be a number of local steps, 1 at least, a time"),
        ({"every": 2.5}, "every is 2.5, must be"),
        ({"every": Moved(by=-1.0)}, "every: by: must be a number > 0, not -1.0"),
        ({"every": 4, "outer": 0.7}, "outer is a float, must be anabranch.Outer"),
        ({"every": 4, "outer": Outer(momentum=1.5)}, "outer.momentum: must be a number < 1"),
        ({"every": 4, "delay": 5}, "delay: averages begin every 4 steps"),
        ({"every": 4, "delay": -1}, "delay: must be an integer >= 0, not -1"),
        ({"every": 4, "delay": 0.5}, "delay is 0.5, must be an integer"),
        ({"every": 4, "fragments": 3}, "fragments: each of 3 fragments has its turn once"),
        ({"every": Moved(by=0.1), "fragments": 2}, "fragments: each of 2 fragments"),
        ({"every": 64, "fragments": 64}, "fragments: 64 of 5 elements; give fewer"),
        ({"every": 4, "weight": 0.0}, "weight"),
        ({"every": 4, "wire": "int3"}, "wire is 'int3', must be one of float32"),
    ],
    ids=repr,
)
def test_arguments_that_cannot_be_are_named(how: dict[str, Any], said: str) -> None:
    with anabranch.local(1) as (group,), pytest.raises(ValueError, match=re.escape(said)):
        group.average(np.zeros(5, np.float32), **how)


def test_parameters_that_cannot_be_are_named() -> None:
    with anabranch.local(1) as (group,):
        with pytest.raises(ValueError, match=r"parameters are bfloat16, .* keep them in float32"):
            group.average(torch.zeros(5, dtype=torch.bfloat16), every=1)
        with pytest.raises(ValueError, match="tensor 0 is float64"):
            group.average(np.zeros(5), every=1)
        moved = [torch.zeros(3), torch.nn.Parameter(torch.zeros(5))]
        average = group.average(moved, every=1)
        moved[1].data = torch.ones(5)
        with pytest.raises(ValueError, match=r"tensor 1 has other memory than before"):
            average.step()


def test_models_of_different_sizes_name_two_sites(groups: tuple[Group, ...]) -> None:
    def run(group: Group) -> ModelAverage:
        model = np.full(5 + group.rank // 2, 1.0, np.float32)
        average = group.average(model, every=1)
        with pytest.raises(ExchangeError, match="site2"):
            average.step()
        assert (model == 1.0).all()
        return average

    at_each(groups, run)


def test_members_that_average_otherwise_are_told(groups: tuple[Group, ...]) -> None:
    def run(group: Group) -> None:
        outer = Outer(learning_rate=0.7 if group.rank else 0.5)
        average = group.average(parameters(), every=1, outer=outer)
        with pytest.raises(
            ValueError, match=f"by other rules than this one, {group.site}, with Every"
        ):
            average.step()

    at_each(groups, run)


@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
def test_models_may_travel_in_halves(groups: tuple[Group, ...], wire: Any) -> None:
    found = at_each(groups, lambda group: train(group, 6, every=2, wire=wire))
    whole = at_each(groups, lambda group: train(group, 6, every=2))
    model = same([model for model, _ in found])
    torch.testing.assert_close(model, whole[0][0], rtol=0.02, atol=0.02)


def test_a_state_of_other_averages_is_refused() -> None:
    with anabranch.local(1) as (group,):
        state = group.average(parameters(), every=4, outer=Outer()).state_dict()
        with pytest.raises(ValueError, match=r"has \['last', 'outer'\], this one \[\]; give the"):
            group.average(parameters(), every=4).load_state_dict(state)
        with pytest.raises(ValueError, match="has 1 fragments, this model 2"):
            group.average(parameters(), every=4, fragments=2).load_state_dict(state)
        with pytest.raises(ValueError, match="last of the state of an average has shape"):
            group.average(torch.zeros(3), every=4, outer=Outer()).load_state_dict(state)


def test_the_example_of_the_docs_runs() -> None:
    text = (ROOT / "docs/local-steps.md").read_text("utf-8")
    examples = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (example,) = [each for each in examples if "group.average(" in each]
    told: dict[str, Any] = {}
    exec(example, told)
    one, other = told["models"]
    assert torch.equal(one, other)
    assert (one - 1).abs().max() < 0.01


@pytest.mark.parametrize(
    ("how", "asked_ahead"),
    [
        ({"every": 1}, 9),
        ({"every": 4}, 1),  # the first is of no known size before
        ({"every": 4, "outer": Outer()}, 1),
        ({"every": 4, "delay": 2}, 1),
        ({"every": 4, "delay": 1, "fragments": 2}, 3),
        ({"every": Moved(by=0.1)}, 0),  # no site knows which step is the last before it
    ],
    ids=str,
)
def test_an_average_is_asked_for_by_the_step_before(
    groups: tuple[Group, ...],
    monkeypatch: pytest.MonkeyPatch,
    how: dict[str, Any],
    asked_ahead: int,
) -> None:
    asked = []
    ask = SiteAgent.ask_ahead

    def note(agent: SiteAgent, terms: Terms, channel: int) -> None:
        asked.append(agent)
        ask(agent, terms, channel)

    monkeypatch.setattr(SiteAgent, "ask_ahead", note)
    same([model for model, _ in at_each(groups, lambda group: train(group, 9, **how))])
    assert len(asked) == SITES * asked_ahead


def test_other_calls_come_between_averages(groups: tuple[Group, ...]) -> None:
    """Also between the step that asks for an average ahead and that average."""

    def run(group: Group) -> torch.Tensor:
        model = parameters()
        average = group.average(model, every=4)
        for step in range(1, 13):
            drift(model, group.rank, step)
            average.step()
            group.barrier()
            group.admit({})
            assert group.all_gather(step) == [step] * SITES
        average.finish()
        group.barrier()
        return flat(model)

    same(at_each(groups, run))
