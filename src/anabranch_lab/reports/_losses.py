"""The training loss over a run, smoothed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from anabranch.log.events import StepDone

_PART = 0.02  # of a run that one mean spans
_MOST_POINTS = 400

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class LossCurve:
    """A running mean over the workers' steps, at most a few hundred points.

    Each point is the mean over samples of the latest steps. It spans a fiftieth of the run's steps,
    and at least one step for each worker.
    """

    at_s: Floats  # when the latest step of each mean ended, shape (P,), seconds since the run began
    # Steps ended by that time, divided by the number of workers, shape (P,); where all step
    # together, this is the round.
    iterations: Floats
    loss: Floats  # shape (P,); NaN where training had diverged


def loss_curve(steps: Sequence[StepDone]) -> LossCurve | None:
    """Return the curve of the loss; None if no step had a loss, for instance without training.

    Args:
        steps: of one run, in order of time.
    """
    if all(step.loss is None for step in steps):
        return None
    workers = len({step.site for step in steps})
    window = min(len(steps), workers * max(1, round(_PART * len(steps) / workers)))
    samples = np.array([float(step.samples) for step in steps])
    losses = np.array([np.nan if step.loss is None else step.loss for step in steps])
    ends = np.linspace(window, len(steps), min(_MOST_POINTS, len(steps) - window + 1))
    last = np.unique(ends.round().astype(int))
    means = [
        np.average(losses[end - window : end], weights=samples[end - window : end]) for end in last
    ]
    at_s = np.array([step.at_s for step in steps])
    return LossCurve(at_s[last - 1], last / workers, np.array(means))
