"""Averages whose changes travel in few bits: the same bits everywhere, and nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import anabranch
from anabranch import DiLoCo, ExchangeError, Group, Moved, Outer
from anabranch.period import Adaptive
from anabranch.train.averaging import FORMATS

from ..every import every
from ..threads import at_each
from .test_average import SITES, _die, drift, flat, parameters, reference, same

FEW_BITS = [name for name, wire in FORMATS.items() if wire.has_blocks]
ALL = pytest.mark.parametrize("wire", FEW_BITS)
KEPT_EARLY = {"int8": 0.05, "int4": 0.5}  # norm of what is kept, of a change's


@pytest.fixture
def groups() -> Iterator[tuple[Group, ...]]:
    with anabranch.local(SITES) as groups:
        yield groups


def kept_by(average: anabranch.ModelAverage) -> torch.Tensor:
    """Return what a site keeps for its next averages, of all fragments."""
    return torch.cat([each["kept"] for each in average.state_dict()["local"]["parts"]])


def trained(group: Group, steps: int, **how: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Make steps at a site; return its model in the end, and what it keeps."""
    model = parameters()
    average = group.average(model, **how)
    for step in range(steps):
        drift(model, group.rank, step)
        average.step()
    average.finish()
    return flat(model), kept_by(average)


@ALL
@pytest.mark.parametrize(
    "how", [{}, {"fragments": 2}, {"delay": 2}, {"fragments": 2, "delay": 1}], ids=repr
)
def test_a_model_and_what_sites_keep_are_the_exact_average(
    groups: tuple[Group, ...], wire: str, how: dict[str, Any]
) -> None:
    """Without momentum: what has not been applied yet is what the sites keep."""
    found = at_each(groups, lambda group: trained(group, 12, every=4, wire=wire, **how))
    model = same([model for model, _ in found])
    kept = torch.stack([kept for _, kept in found]).mean(0)
    assert kept.any()
    exact = reference(12, 4, None, **how)
    torch.testing.assert_close(model.double() - kept, exact, rtol=1e-4, atol=1e-4)
    moved = (exact - flat(parameters())).norm()
    if wire in KEPT_EARLY:
        assert kept.norm() < KEPT_EARLY[wire] * moved


@ALL
def test_diloco_in_few_bits_ends_alike_with_exact_buffers(
    groups: tuple[Group, ...], wire: Any
) -> None:
    def run(group: Group) -> dict[str, torch.Tensor]:
        model = torch.nn.Sequential(torch.nn.Linear(50, 100), torch.nn.BatchNorm1d(100))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with DiLoCo(model, optimizer, group, every=2, fragments=2, wire=wire):
            for step in range(6):
                data = torch.Generator().manual_seed(10 * group.rank + step)
                model(torch.randn(8, 50, generator=data)).square().mean().backward()
                optimizer.step()
        return model.state_dict()

    first, *others = at_each(groups, run)
    for other in others:
        assert every(torch.equal(first[name], other[name]) for name in first)
    assert first["1.running_mean"].abs().max() > 0


@ALL
def test_a_site_goes_on_from_its_own_state_bit_for_bit(wire: str) -> None:
    """Of two sites: with more, sums are rounded in the order in which they arrive."""
    with anabranch.local(2) as groups:
        _go_on(groups, wire)


def _go_on(groups: tuple[Group, ...], wire: str) -> None:
    how: dict[str, Any] = {"every": 2, "outer": Outer(), "wire": wire, "fragments": 2}
    whole = same([model for model, _ in at_each(groups, lambda group: trained(group, 8, **how))])

    def interrupted(group: Group) -> torch.Tensor:
        model = parameters()
        average = group.average(model, **how)
        for step in range(8):
            if step == 5:
                saved = average.state_dict()
                held = [each.detach().clone() for each in model]
                model = parameters(seed=1)
                for each, was in zip(model, held, strict=True):
                    each.data.copy_(was)
                average = group.average(model, **how)
                average.load_state_dict(saved)
            drift(model, group.rank, step)
            average.step()
        average.finish()
        return flat(model)

    assert torch.equal(same(at_each(groups, interrupted)), whole)


def test_a_site_with_anothers_state_keeps_nothing_of_it(groups: tuple[Group, ...]) -> None:
    def run(group: Group) -> tuple[torch.Tensor, torch.Tensor]:
        model = parameters()
        average = group.average(model, every=1, outer=Outer(), wire="int4")
        drift(model, group.rank, 0)
        average.step()
        state = average.state_dict()
        state["site"] = "another"
        fresh = group.average(parameters(), every=1, outer=Outer(), wire="int4")
        fresh.load_state_dict(state)
        return kept_by(average), kept_by(fresh)

    for own, of_another in at_each(groups, run):
        assert own.any()
        assert not of_another.any()


def test_a_site_with_anothers_state_keeps_nothing_of_an_average_in_flight(
    groups: tuple[Group, ...],
) -> None:
    def run(group: Group) -> torch.Tensor:
        model, fresh = parameters(), parameters()
        average = group.average(model, every=2, delay=2, wire="int4")
        for step in range(3):
            drift(model, group.rank, step)
            average.step()
        state = average.state_dict()
        assert bool(state["local"]["parts"][0]["lost"].any())
        state["site"] = "another"
        other = group.average(fresh, every=2, delay=2, wire="int4")
        other.load_state_dict(state)
        return torch.cat([each["lost"] for each in other.state_dict()["local"]["parts"]])

    assert not any(bool(each.any()) for each in at_each(groups, run))


@pytest.mark.parametrize("other", ["int8", "float32", "top2"])
def test_sites_that_compress_otherwise_are_named(groups: tuple[Group, ...], other: Any) -> None:
    def run(group: Group) -> str:
        model = parameters()
        wire = other if group.rank == 2 else "int4"
        average = group.average(model, every=1, outer=Outer(), wire=wire)
        drift(model, group.rank, 0)
        before = flat(model)
        with pytest.raises(ExchangeError) as told:
            average.step()
        assert torch.equal(flat(model), before)
        return str(told.value)

    for told in at_each(groups, run):
        assert "site2" in told


def test_an_average_that_fails_leaves_what_is_kept_as_it_was(groups: tuple[Group, ...]) -> None:
    def run(group: Group) -> None:
        model = parameters()
        average = group.average(model, every=1, wire="int2")
        drift(model, group.rank, 0)
        average.step()
        kept, before = kept_by(average).clone(), flat(model).clone()
        if group.rank == 1:
            model[0].data[3] = np.nan
        with pytest.raises(ExchangeError, match="NaN"):
            average.step()
        model[0].data[3] = before[3]
        assert torch.equal(kept_by(average), kept)
        assert torch.equal(flat(model), before)
        average.step()
        assert torch.isfinite(flat(model)).all()

    at_each(groups, run)


@ALL
def test_a_nan_that_is_allowed_is_not_kept(groups: tuple[Group, ...], wire: str) -> None:
    def run(group: Group) -> None:
        group.on_nan = "allow"
        model = parameters()
        average = group.average(model, every=1, wire=wire)
        if group.rank == 1:
            model[0].data[3] = np.nan
        average.step()
        assert model[0].isnan().any()
        assert torch.isfinite(kept_by(average)).all()

    at_each(groups, run)


def test_sites_that_call_one_another_compress_too(groups: tuple[Group, ...]) -> None:
    found = at_each(
        groups, lambda group: trained(group, 6, every=Moved(by=0.1, most_steps=3), wire="int4")
    )
    same([model for model, _ in found])


@pytest.mark.parametrize("on_loss", ["complete", "retry"])
def test_survivors_of_a_loss_have_the_same_model(on_loss: Any) -> None:
    service = anabranch.Service(anabranch.group._local._complete(SITES), on_loss=on_loss)
    with anabranch.local(service) as groups:
        lost = groups[1]

        def run(group: Group) -> torch.Tensor | None:
            model = parameters()
            average = group.average(model, every=2, outer=Outer(), wire="int4")
            for step in range(6):
                drift(model, group.rank, step)
                if group is lost and step == 3:
                    _die(lost)
                    return None
                average.step()
            average.finish()
            return flat(model)

        same([each for each in at_each(groups, run) if each is not None])


@ALL
def test_an_average_tells_the_bytes_that_it_took(groups: tuple[Group, ...], wire: str) -> None:
    def run(group: Group) -> int:
        model = np.zeros(10_000, np.float32)
        average = group.average([model], every=1, wire=wire)
        model += group.rank
        average.step()
        assert average.latest is not None
        return average.latest.result.size_bytes

    told = FORMATS[wire].bytes_of(FORMATS[wire].padded(10_000))
    assert at_each(groups, run) == [told] * SITES


def test_what_cannot_be_compressed_is_named(groups: tuple[Group, ...]) -> None:
    model = parameters()
    with pytest.raises(ValueError, match=r"wire is 'int3', must be one of float32, .*int4"):
        groups[0].average(model, every=1, wire="int3")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="wire: an adaptive period shares measurements"):
        groups[0].average(model, every=Adaptive(), wire="int4")


def test_what_is_kept_counts_as_it_would_have_where_weights_change(
    groups: tuple[Group, ...],
) -> None:
    changes = [torch.randn(2000, generator=torch.Generator().manual_seed(i)) for i in range(9)]

    def run(group: Group) -> tuple[torch.Tensor, torch.Tensor]:
        model, total = torch.zeros(2000), torch.zeros(2000, dtype=torch.float64)
        average = group.average([model], every=1, wire="int2")
        for number in range(3):
            average.weight = float(10 ** ((number + group.rank) % 3))
            before = model.clone()
            model += changes[3 * group.rank + number]
            average.step()
            total += 111.0 * (model - before)  # by the sum of all weights
        return total, 100.0 * kept_by(average).double()  # of the largest weight

    found = at_each(groups, run)
    exact = torch.zeros(2000, dtype=torch.float64)
    for number in range(3):
        for rank in range(SITES):
            exact += 10 ** ((number + rank) % 3) * changes[3 * rank + number].double()
    kept = sum(each for _, each in found)
    torch.testing.assert_close(found[0][0] - kept, exact, rtol=1e-4, atol=1e-2)


def test_what_was_lost_at_large_weights_does_not_swamp_an_average_of_small_ones(
    groups: tuple[Group, ...],
) -> None:
    """As with weight="steps", in whose last average no site may have made any."""

    def run(group: Group) -> torch.Tensor:
        model = parameters()
        average = group.average(model, every=3, weight="steps", wire="int2")
        for step in range(9):
            drift(model, group.rank, step)
            average.step()
        before = flat(model)
        for _ in range(3):
            average.finish()
        return flat(model) - before

    moved = same(at_each(groups, run))
    assert moved.norm() < 3 * flat(parameters()).norm()
    assert torch.isfinite(moved).all()


def test_an_average_that_fails_leaves_the_buffers_of_the_next_alone(
    groups: tuple[Group, ...],
) -> None:
    averages: dict[int, anabranch.ModelAverage] = {}

    def run(group: Group) -> torch.Tensor:
        model, buffer = torch.zeros(1000), torch.zeros(1000)
        average = group.average([model], every=1, wire="int4", buffers=[buffer])
        averages[group.rank] = average
        if group.rank == 1:
            model[3] = torch.nan
        if group.rank == 2:  # its part of the first average comes once the others begin the next
            wait(lambda: len(averages) == SITES)
            wait(lambda: averages[0].begun == averages[1].begun == 2)
        with pytest.raises(ExchangeError, match="NaN"):
            average.step()
        model.zero_()
        buffer.fill_(100.0 + 10 * group.rank)
        average.step()
        return buffer

    assert every(bool((each == 110.0).all()) for each in at_each(groups, run))


def test_a_fragment_that_fails_leaves_the_buffers_under_way_with_another_alone(
    groups: tuple[Group, ...],
) -> None:
    failed: set[int] = set()

    def run(group: Group) -> torch.Tensor:
        model, buffer = torch.zeros(1000), torch.zeros(1000)
        how: dict[str, Any] = {"every": 2, "fragments": 2, "delay": 2, "wire": "int4"}
        average = group.average([model], buffers=[buffer], **how)
        average.step()  # begins the first fragment, with the buffers
        if group.rank == 1:
            model[700] = torch.nan
        average.step()  # begins the second one, which fails
        model[700] = 0.0
        if group.rank == 2:
            wait(lambda: failed == {0, 1})
        buffer.fill_(100.0 + 10 * group.rank)
        average.step()  # takes the first fragment, and begins it anew
        with pytest.raises(ExchangeError, match="NaN"):
            average.step()
        failed.add(group.rank)
        average.step()  # takes the buffers
        return buffer

    assert every(bool((each == 110.0).all()) for each in at_each(groups, run))


def wait(until: Callable[[], bool]) -> None:
    while not until():
        threading.Event().wait(0.001)


def test_changes_that_were_not_counted_are_applied_where_they_are_alike(
    groups: tuple[Group, ...],
) -> None:
    def run(group: Group) -> torch.Tensor:
        model = parameters()
        average = group.average(model, every=1, outer=Outer(), wire="int4")
        drift(model, group.rank, 0)
        average.step()
        drift(model, 7, 1)  # the same at each site
        average.finish()
        return flat(model)

    same(at_each(groups, run))
