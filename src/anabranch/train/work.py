"""What a site computes in a run, apart from exchanging: the protocol of every task, own code too.

A run calls `Work.local_step`, exchanges `Work.buffer`, calls `Work.apply`, and begins again. It
knows nothing of models: a task of the user's own is an object with these methods. No torch here.
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
    """What a site computes is no longer finite; the message names the step."""


def check_finite(buffer: npt.NDArray[np.float32], step: int) -> None:
    """Check what a site would contribute, shape (elements,), before it is sent.

    Args:
        buffer: what its step left there.
        step: counted from 0.

    Raises:
        DivergedError: an element is infinite or no number.

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
    """What a factory of ``task.kind = "own"`` is told of the site it makes work for.

    Args:
        site: this site's index, from 0.
        name: its name in the overlay.
        sites: how many sites there are, with those that only serve.
        seed: the scenario's, the same at every site.
        data_dir: where data sets are, as ``--data-dir`` says; None if it was not given.
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
        """What is exchanged, in place; an attribute will do.

        Its shape is (elements,), the same at every site and in every round; it is float32,
        contiguous and writable.
        """

    def local_step(self, samples: int) -> float | None:
        """Fill the buffer with this site's contribution; return the loss, if there is one.

        Args:
            samples: of the batch.
        """

    def apply(self, round: int) -> int | None:
        """Use the mean over the sites, which the buffer now holds.

        Args:
            round: which round it is of, from 1.

        Returns:
            A checksum of the result, such as `anabranch.train.checksum` computes: the run ends with
            an error where sites disagree. None compares nothing.
        """

    def evaluate(self) -> float:
        """Return how good the model is: accuracy, or another figure of which more is better."""

    def state_dict(self) -> State:
        """Return all that goes on from here bit for bit: model, optimiser, order of the data.

        Under ``model`` stand the weights by the names that the model gives them, such as
        ``module.state_dict()``: they are what a run leaves. Nothing need be copied.
        """

    def load_state_dict(self, state: State) -> None:
        """Go on from a state that `state_dict` returned, in another process perhaps.

        Where a site comes back to a run that goes on (``on_loss``), the state is that of the other
        sites, all tensors of which must be alike there. Apart from the entries that an attribute
        ``own_state`` names, a tuple of strings: of these, such as the order of the site's own data,
        it is what `state_dict` returned here.
        """


class ServableWork(Work, Protocol):
    """Work whose model servers can hold, so that it runs under every pace.

    Where its last elements are no parameters, such as running variances, an attribute
    ``averaged_elements`` says how many. Servers never step on these: a push sends them as they are
    in ``model``, and the served model goes towards their mean.

    Attributes:
        model: the parameters, shape (elements,) as the buffer, float32; pulls overwrite it.
        make_rule: makes what changes so many elements of it by gradients; None where nothing is
            learnt.
    """

    model: npt.NDArray[np.float32]
    make_rule: Callable[[int], Update] | None


def averaged_elements(work: Work) -> int:
    """Return how many elements at the end of a work's model are no parameters."""
    return int(getattr(work, "averaged_elements", 0))
