"""Which of its samples a site draws for each batch.

A sampling is a frozen value as a scenario spells it, with a method that makes the object that
draws. Torch is imported only when that method is called.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from anabranch._typed_toml import Table
from anabranch.train.work import State

Indices = npt.NDArray[np.int64]


class Draws(Protocol):
    """The draws of one site's samples, in one run."""

    def draw(self, count: int) -> Indices:
        """Return the indices of the next ``count`` samples."""

    def state_dict(self) -> State:
        """Return the state on which later draws depend, without copies."""

    def load_state_dict(self, state: State) -> None:
        """Continue from a state of draws with the same arguments.

        Raises:
            ValueError: the state is of another sampling.
        """


class Sampling(Protocol):
    """How samples are drawn: the parameters, a frozen value.

    Attributes:
        by_label: whether it needs one label for each sample.
    """

    by_label: ClassVar[bool]

    def start(self, shard: Indices, labels: Indices, generator: np.random.Generator) -> Draws:
        """Return new draws from a shard.

        Args:
            shard: indices of the samples, shape (n,), n >= 1.
            labels: of these samples, shape (n,), or further axes where ``by_label`` is false.
            generator: makes every draw; no other code may use it.

        Raises:
            ValueError: it cannot draw by such labels.
        """


class Shuffled(Table, frozen=True, kw_only=True, tag_field="kind", tag="shuffled"):
    """Each sample once an epoch, in an order that is drawn anew for each epoch."""

    by_label: ClassVar[bool] = False

    def start(self, shard: Indices, labels: Indices, generator: np.random.Generator) -> Draws:
        """See :class:`Sampling`."""
        return _Epochs(shard, generator)


class Resampled(Table, frozen=True, kw_only=True, tag_field="kind", tag="resampled"):
    """Samples with replacement, those of rare labels more often (HAAF, section 3.2).

    Args:
        beta: strength, in [0, 1): at 0 all samples are equally likely, near 1 all labels are. HAAF
            uses 0.999. See `anabranch_lab.tasks._resampling`.
    """

    beta: Annotated[float, Meta(ge=0, lt=1)] = 0.999
    by_label: ClassVar[bool] = True

    def start(self, shard: Indices, labels: Indices, generator: np.random.Generator) -> Draws:
        """See :class:`Sampling`."""
        from anabranch_lab.tasks._resampling import ResamplingSampler

        return ResamplingSampler(labels, self.beta, generator, indices=shard)


AnySampling = Shuffled | Resampled


class _Epochs:
    """A sequence of epochs, each newly shuffled."""

    def __init__(self, shard: Indices, generator: np.random.Generator) -> None:
        self._shard = shard
        self._generator = generator
        self._waiting = shard[:0]  # of the epoch in progress

    def draw(self, count: int) -> Indices:
        while self._waiting.size < count:
            again = self._generator.permutation(self._shard)
            self._waiting = np.concatenate([self._waiting, again])
        drawn, self._waiting = self._waiting[:count], self._waiting[count:]
        return drawn

    def state_dict(self) -> State:
        return {"waiting": self._waiting, "sampling": self._generator.bit_generator.state}

    def load_state_dict(self, state: State) -> None:
        if "waiting" not in state:
            raise ValueError("the state is of another sampling: no samples wait to be drawn")
        self._waiting = state["waiting"]
        self._generator.bit_generator.state = state["sampling"]
