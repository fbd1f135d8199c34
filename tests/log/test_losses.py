"""How the loss fell: closed forms."""

from __future__ import annotations

import math

import pytest

from anabranch.log import StepDone
from anabranch_lab.reports._losses import loss_curve


def step(at_s: float, site: int, loss: float | None, samples: int = 8) -> StepDone:
    return StepDone(at_s=at_s, site=site, round=1, loss=loss, samples=samples, compute_s=0.1)


def test_each_point_is_the_mean_of_one_step_of_each_worker() -> None:
    steps = [step(1.0, 0, 4.0), step(2.0, 1, 2.0), step(3.0, 0, 2.0), step(4.0, 1, 1.0)]
    curve = loss_curve(steps)
    assert curve is not None
    assert list(curve.loss) == [3.0, 2.0, 1.5]
    assert list(curve.at_s) == [2.0, 3.0, 4.0]
    assert list(curve.iterations) == [1.0, 1.5, 2.0]


def test_a_step_weighs_its_samples() -> None:
    curve = loss_curve([step(1.0, 0, 4.0, 1), step(1.0, 1, 0.0, 3)])
    assert curve is not None
    assert list(curve.loss) == [1.0]


def test_long_runs_are_smoothed_over_a_fiftieth_and_have_few_points() -> None:
    steps = [step(float(k), k % 2, float(k)) for k in range(10_000)]
    curve = loss_curve(steps)
    assert curve is not None
    assert len(curve.loss) == 400
    assert curve.loss[0] == pytest.approx(99.5)  # of 200 steps
    assert (curve.at_s[-1], curve.iterations[-1]) == (9999.0, 5000.0)


def test_what_diverged_is_no_number() -> None:
    curve = loss_curve([step(1.0, 0, 1.0), step(2.0, 0, None)])
    assert curve is not None
    assert curve.loss[0] == 1.0
    assert math.isnan(curve.loss[1])


@pytest.mark.parametrize("steps", [[], [step(1.0, 0, None)]])
def test_where_nothing_is_learnt_there_is_no_curve(steps: list[StepDone]) -> None:
    assert loss_curve(steps) is None
