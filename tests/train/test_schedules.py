"""Schedules have torch's factors, and an update that is restored continues its schedule."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler as torchs

from anabranch.train.optimisers import Adam, Sgd
from anabranch.train.schedules import (
    AnySchedule,
    Constant,
    Cosine,
    InversePower,
    Schedule,
    Steps,
    WarmUp,
    scheduled,
)

STEPS = 30
Theirs = Callable[[torch.optim.Optimizer], torchs.LRScheduler]


def warm_and_cosine(optimiser: torch.optim.Optimizer) -> torchs.LRScheduler:
    warm = torchs.LinearLR(optimiser, start_factor=0.2, end_factor=1.0, total_iters=4)
    cosine = torchs.CosineAnnealingLR(optimiser, T_max=25)
    return torchs.SequentialLR(optimiser, [warm, cosine], milestones=[5])


@pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning")
@pytest.mark.parametrize(
    ("schedule", "theirs"),
    [
        (Constant(), lambda of: torchs.ConstantLR(of, factor=1.0)),
        (Steps(every=7, factor_each=0.3), lambda of: torchs.StepLR(of, 7, gamma=0.3)),
        (Cosine(steps=25), lambda of: torchs.CosineAnnealingLR(of, T_max=25)),
        (
            Cosine(steps=25, least=0.1),
            lambda of: torchs.CosineAnnealingLR(of, T_max=25, eta_min=0.1),
        ),
        (
            InversePower(power=0.75, scale=3),
            lambda of: torchs.LambdaLR(of, lambda step: (1 + step / 3) ** -0.75),
        ),
        (WarmUp(steps=5, then=Cosine(steps=25)), warm_and_cosine),
    ],
    ids=lambda each: type(each).__name__,
)
def test_factors_are_those_of_torch(schedule: Schedule, theirs: Theirs) -> None:
    optimiser = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scheduler = theirs(optimiser)
    for step in range(25):
        factor = optimiser.param_groups[0]["lr"]
        assert schedule.factor(step) == pytest.approx(factor, rel=1e-12, abs=1e-15), step
        optimiser.step()
        scheduler.step()


def test_a_schedule_ends_at_its_least_rate() -> None:
    assert Cosine(steps=5, least=0.25).factor(5) == Cosine(steps=5, least=0.25).factor(99) == 0.25


def test_rates_of_theorem_1_sum_to_more_than_any_bound_and_their_squares_vanish_beside() -> None:
    rates = np.array([InversePower(power=0.75).factor(step) for step in range(20_000)])
    sums = np.cumsum(rates)
    squares = np.cumsum(rates**2) / sums  # R²SP, eq. 4
    assert sums[-1] > 2 * sums[1000]
    assert squares[-1] < 0.5 * squares[1000]


def test_a_constant_schedule_is_the_optimiser_itself() -> None:
    sgd = Sgd(0.1)
    assert scheduled(sgd, Constant()) is sgd


@pytest.mark.parametrize("optimiser", [Sgd(0.5), Sgd(0.5, 0.9), Adam(0.5)], ids=str)
def test_an_update_steps_by_its_schedule_and_continues_where_it_was(optimiser: Sgd | Adam) -> None:
    schedule = WarmUp(steps=3, then=Steps(every=2, factor_each=0.5))
    rule = scheduled(optimiser, schedule)
    plain, ours = optimiser.start(8), rule.start(8)
    expected, found = np.ones(8, np.float32), np.ones(8, np.float32)
    draw = np.random.default_rng(0)
    for step in range(STEPS):
        gradients = draw.standard_normal(8, np.float32)
        plain(expected, gradients.copy(), scale=0.7 * schedule.factor(step))
        if step == 10:
            restored = rule.start(8)
            restored.load_state_dict(ours.state_dict())
            ours = restored
        ours(found, gradients.copy(), scale=0.7)
    assert np.array_equal(expected, found)


def test_a_state_without_steps_is_refused() -> None:
    ours = scheduled(Sgd(0.5, 0.9), Cosine(steps=9)).start(8)
    with pytest.raises(ValueError, match="of an optimiser without a schedule"):
        ours.load_state_dict(Sgd(0.5, 0.9).start(8).state_dict())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"kind": "steps", "every": 0, "factor_each": 0.5}', "every"),
        ('{"kind": "steps", "every": 5, "factor_each": 1.5}', "factor_each"),
        ('{"kind": "inverse-power", "power": 2.0}', "power"),
        ('{"kind": "warm-up", "steps": 5, "then": {"kind": "warm-up", "steps": 5}}', "warm-up"),
    ],
)
def test_a_setting_out_of_range_is_named(text: str, said: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=said):
        msgspec.json.decode(text, type=AnySchedule)
