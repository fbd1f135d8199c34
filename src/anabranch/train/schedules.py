"""Learning-rate schedules: the factor of the learning rate at each step of an optimiser.

A step is one call of the optimiser: a local step where sites step, an update where servers do.
Steps count from 0. All sites that make the same step must have the same factor, bit for bit, and C
libraries round `cos` and `pow` differently. So these are computed here by operations that IEEE 754
and `decimal` round in exactly one way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Annotated, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from anabranch._typed_toml import Part, Positive, Table
from anabranch.train.optimisers import Optimiser, Update
from anabranch.train.work import State

_EXACT = Context(prec=40)
_COSINE_TERMS = 20  # of the series: (pi ** 40) / 40! is below 1e-27


class Schedule(Protocol):
    """Factors of a learning rate: a value, shared by all sites."""

    def factor(self, step: int) -> float:
        """Return the factor of a step, counted from 0."""


class Constant(Table, frozen=True, kw_only=True, tag_field="kind", tag="constant"):
    """The learning rate itself at every step."""

    def factor(self, step: int) -> float:
        """See :class:`Schedule`."""
        return 1.0


class Steps(Table, frozen=True, kw_only=True, tag_field="kind", tag="steps"):
    """A smaller rate after every so many steps.

    Args:
        every: steps at one rate.
        factor_each: the factor of one rate over the rate before.
    """

    every: Positive
    factor_each: Part

    def factor(self, step: int) -> float:
        """See :class:`Schedule`.

        >>> [Steps(every=2, factor_each=0.5).factor(step) for step in range(5)]
        [1.0, 1.0, 0.5, 0.5, 0.25]
        """
        return _power(self.factor_each, float(step // self.every))


class Cosine(Table, frozen=True, kw_only=True, tag_field="kind", tag="cosine"):
    """Half a cosine (Loshchilov and Hutter, ICLR 2017, eq. 5, without restarts).

    Args:
        steps: after which the rate has its least value, and keeps it.
        least: the factor of that value.
    """

    steps: Positive
    least: Annotated[float, Meta(ge=0, le=1)] = 0.0

    def factor(self, step: int) -> float:
        """See :class:`Schedule`.

        >>> [round(Cosine(steps=4).factor(step), 3) for step in range(6)]
        [1.0, 0.854, 0.5, 0.146, 0.0, 0.0]
        """
        if step >= self.steps:
            return self.least
        return self.least + (1.0 - self.least) * 0.5 * (1.0 + _cosine(math.pi * step / self.steps))


class InversePower(Table, frozen=True, kw_only=True, tag_field="kind", tag="inverse-power"):
    """``(1 + step / scale) ** -power``; R²SP's Theorem 1 converges with a power of 3/4.

    Args:
        power: at most 1: with more, the sum of all rates is finite.
        scale: steps until ``1 + step / scale`` is 2.
    """

    power: Part
    scale: Positive = 1

    def factor(self, step: int) -> float:
        """See :class:`Schedule`.

        >>> [round(InversePower(power=0.75).factor(step), 3) for step in range(4)]
        [1.0, 0.595, 0.439, 0.354]
        """
        return _power(1.0 + step / self.scale, -self.power)


class WarmUp(Table, frozen=True, kw_only=True, tag_field="kind", tag="warm-up"):
    """A rate that grows evenly at first (Goyal et al., 2017, section 2.2), then another schedule.

    Args:
        steps: during which it grows; the last of them has the full rate.
        then: the schedule after them, which counts its own steps from 0.
    """

    steps: Positive
    then: Constant | Steps | Cosine | InversePower = Constant()

    def factor(self, step: int) -> float:
        """See :class:`Schedule`.

        >>> [WarmUp(steps=4).factor(step) for step in range(5)]
        [0.25, 0.5, 0.75, 1.0, 1.0]
        """
        if step < self.steps:
            return (step + 1) / self.steps
        return self.then.factor(step - self.steps)


AnySchedule = Constant | Steps | Cosine | InversePower | WarmUp


def scheduled(optimiser: Optimiser, schedule: Schedule) -> Optimiser:
    """Return an optimiser whose learning rate follows a schedule."""
    return optimiser if schedule == Constant() else Scheduled(optimiser, schedule)


@dataclass(frozen=True, slots=True)
class Scheduled:
    """An optimiser whose learning rate follows a schedule.

    Args:
        optimiser: has the rate that the factors multiply.
        schedule: the factors.
    """

    optimiser: Optimiser
    schedule: Schedule

    def start(self, elements: int) -> Update:
        """Return a new update, at step 0."""
        return _ScheduledUpdate(self.optimiser.start(elements), self.schedule)


class _ScheduledUpdate:
    def __init__(self, update: Update, schedule: Schedule) -> None:
        self._update = update
        self._schedule = schedule
        self._steps = 0

    def __call__(
        self,
        parameters: npt.NDArray[np.float32],
        gradients: npt.NDArray[np.float32],
        scale: float = 1.0,
    ) -> None:
        self._update(parameters, gradients, scale * self._schedule.factor(self._steps))
        self._steps += 1

    def state_dict(self) -> State:
        return {**self._update.state_dict(), "steps": self._steps}

    def load_state_dict(self, state: State) -> None:
        steps = state.get("steps")
        if not isinstance(steps, int) or steps < 0:
            raise ValueError(
                f"steps of the optimiser's state is {steps!r}, not a number of steps: the state is "
                "of an optimiser without a schedule"
            )
        self._update.load_state_dict({name: of for name, of in state.items() if name != "steps"})
        self._steps = steps


def _power(base: float, exponent: float) -> float:
    return float(_EXACT.power(Decimal(base), Decimal(exponent)))


def _cosine(angle: float) -> float:
    """Return the cosine of an angle in [0, pi].

    >>> [round(_cosine(angle), 12) for angle in (0.0, math.pi / 3, math.pi)]
    [1.0, 0.5, -1.0]
    """
    term, total = 1.0, 1.0
    for n in range(1, _COSINE_TERMS):
        term *= -angle * angle / ((2 * n - 1) * (2 * n))
        total += term
    return total
