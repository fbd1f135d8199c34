"""A site's computation in a run: the protocol of every task, also of a user's own task.

A run calls `Work.local_step`, exchanges `Work.buffer`, calls `Work.apply`, and begins again. A run
does not know the model: a user's own task is any object with these methods. No torch here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from anabranch.train.optimisers import Update

State = dict[str, Any]
"""Dicts, lists, tuples, numbers, strings, bytes, None, NumPy arrays and torch tensors, nested."""


class DivergedError(ArithmeticError):
    """A site's contribution is no longer finite; the message names the step."""


def check_finite(buffer: npt.NDArray[np.float32], step: int) -> None:
    """Check a site's contribution before it is sent.

    Args:
        buffer: the contribution of a step, shape (elements,).
        step: counted from 0.

    Raises:
        DivergedError: an element is infinite or NaN.

    >>> check_finite(np.array([1, np.nan, np.inf], np.float32), 4)
    Traceback (most recent call last):
    anabranch.train.work.DivergedError: after step 4, 2 of 3 elements of what this site would \
exchange are not finite, the first at index 1 (nan); lower the learning rate, or look at its data
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(buffer.sum()):
            return
    wrong = np.flatnonzero(~np.isfinite(buffer))
    if len(wrong):
        raise DivergedError(
            f"after step {step}, {len(wrong)} of {len(buffer)} elements of what this site would "
            f"exchange are not finite, the first at index {wrong[0]} ({buffer[wrong[0]]}); lower "
            "the learning rate, or look at its data"
        )


@dataclass(frozen=True, slots=True)
class Context:
    """The facts that a factory of ``task.kind = "own"`` gets about its site.

    Args:
        site: this site's index, from 0.
        name: its name in the overlay.
        sites: number of sites, also those that only serve.
        seed: the scenario's, the same at every site.
        data_dir: the folder of data sets from ``--data-dir``; None if it was not given.
        options: the scenario's ``task.options``.
    """

    site: int
    name: str
    sites: int
    seed: int
    data_dir: Path | None
    options: Mapping[str, Any]


class Work(Protocol):
    """One site's work. Its methods compute; they are called one at a time, from any thread."""

    @property
    def buffer(self) -> npt.NDArray[np.float32]:
        """The array that a run exchanges in place; an attribute will do.

        Its shape is (elements,), the same at every site and in every round. It is float32,
        contiguous and writable.
        """

    def local_step(self, samples: int) -> float | None:
        """Fill the buffer with this site's contribution; return the loss, or None without one.

        Args:
            samples: of the batch.
        """

    def apply(self, round: int) -> int | None:
        """Apply the mean over the sites, now in the buffer.

        Args:
            round: the mean's round, from 1.

        Returns:
            A checksum of the result, such as `anabranch.train.checksum` computes. The run ends with
            an error where sites' checksums differ. None: the run compares nothing.
        """

    def evaluate(self) -> float:
        """Return the model's accuracy, or another figure of which more is better."""

    def state_dict(self) -> State:
        """Return the state to continue from bit for bit: model, optimiser, order of the data.

        The key ``model`` holds the weights by the model's names for them, such as
        ``module.state_dict()``: they are the run's result. Nothing need be copied.
        """

    def load_state_dict(self, state: State) -> None:
        """Continue from a state that `state_dict` returned, maybe in another process.

        Where a site returns to a running run (``on_loss``), the state comes from the other sites.
        Its tensors must be equal at all of them. An attribute ``own_state``, a tuple of strings,
        may name entries that differ by site, such as the order of the site's own data. For these
        the state has the values that `state_dict` returned at this site.
        """


class ServableWork(Work, Protocol):
    """Work whose model servers can hold, so that it runs under every pace.

    Where its last elements are no parameters, such as running variances, an attribute
    ``averaged_elements`` gives their number. Servers make no gradient step on these: a push sends
    the values in ``model``, and the served model moves towards their mean.

    Attributes:
        model: the parameters, shape (elements,) as the buffer, float32; pulls overwrite it.
        make_rule: returns an optimiser's update for this many elements; None where nothing is
            learnt.
    """

    model: npt.NDArray[np.float32]
    make_rule: Callable[[int], Update] | None


def averaged_elements(work: Work) -> int:
    """Return how many elements at the end of a work's model are no parameters."""
    return int(getattr(work, "averaged_elements", 0))
