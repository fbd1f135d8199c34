"""Averages of models that make local steps of their own in between. Pure: NumPy, no network.

A site contributes its model, or, with an outer optimiser, what its model has changed by since the
last average: the *pseudo-gradient* (Reddi et al., ICLR 2021; DiLoCo, Douillard et al., 2023). The
mean of those is one step of the outer optimiser from where the last average left all models. The
outer optimiser without momentum and with a learning rate of 1 is the plain mean, but for rounding.

Each operation is one NumPy call on float32, as in :mod:`anabranch.learn.optimisers`: sites that get
the same mean come to the same model, bit for bit.

**Delay.** Local steps may go on while an average is on its way. What a model has changed by
meanwhile is kept: it is added to the average, which is used a stated number of steps after it began
(delayed averaging; Streaming DiLoCo, Douillard et al., 2025). So the numbers do not depend on how
long anything took.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from anabranch._typed_toml import Positive, Table
from anabranch.learn.optimisers import Sgd, Update
from anabranch.learn.work import State

Floats = npt.NDArray[np.float32]


class Outer(Table, frozen=True, kw_only=True):
    """The outer optimiser: SGD on the mean of what sites' models have changed by.

    Args:
        learning_rate: of its step; 1 goes all the way to the mean.
        momentum: in [0, 1).
        nesterov: whether it looks ahead along its momentum, as DiLoCo does.
    """

    learning_rate: Annotated[float, Meta(gt=0, le=1e9)] = 0.7
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    nesterov: bool = True

    def start(self, elements: int) -> Update:
        """Return a fresh update for so many elements."""
        nesterov = self.nesterov and self.momentum > 0
        return Sgd(self.learning_rate, self.momentum, nesterov).start(elements)


class Average(Table, frozen=True, kw_only=True):
    """What is averaged, and whether steps go on meanwhile.

    Args:
        outer: the outer optimiser; None takes the mean of the models.
        delay: how many local steps are made while an average is on its way, its staleness: it is
            waited for after so many, and what they changed is kept. 0 waits at once.
        fragments: how many parts the model has that are averaged one after the other, spread evenly
            over the period, as in Streaming DiLoCo (Douillard et al., 2025).
    """

    outer: Outer | None = None
    delay: Annotated[int, Meta(ge=0)] = 0
    fragments: Positive = 1


class Averaging:
    """A part of one site's model between averages.

    Memory beside the model: a copy of it for an outer optimiser, one for a delay, and what is
    contributed where that is not the model itself.

    Args:
        model: shape (elements,), changed in place.
        average: see there.
        remembers: whether to know how far the model has moved, which costs a copy of it.
        asks_spread: whether ``take`` has to tell how far from the mean it was; likewise.
    """

    def __init__(
        self,
        model: Floats,
        average: Average,
        remembers: bool = False,
        asks_spread: bool = False,
    ) -> None:
        self._asks_spread = asks_spread
        self._model = model
        self._outer = None if average.outer is None else average.outer.start(len(model))
        self._overlaps = average.delay > 0
        needs_last = self._outer is not None or remembers or asks_spread
        # Where the last average left the model, before any step of its own.
        self._last: Floats | None = model.copy() if needs_last else None
        is_apart = self._outer is not None or self._overlaps
        self.buffer: Floats = np.empty_like(model) if is_apart else model
        self._sent: Floats | None = np.empty_like(model) if self._overlaps else None
        self._own_move = 0.0  # of the contribution that is on its way

    def moved(self) -> float:
        """Return how far the model is from where the last average left it, over its norm there."""
        assert self._last is not None
        return _ratio(_distance(self._model, self._last), _norm(self._last))

    def remember(self) -> None:
        """Count how far the model moves from here on."""
        assert self._last is not None
        self._last[:] = self._model

    def contribute(self) -> Floats:
        """Return what is exchanged, in place, for its mean over the sites; shape (elements,)."""
        if self._asks_spread:
            assert self._last is not None
            self._own_move = _distance(self._model, self._last)
        if self._outer is not None:
            assert self._last is not None
            np.subtract(self._last, self._model, out=self.buffer)
        elif self._overlaps:
            self.buffer[:] = self._model
        if self._sent is not None:
            self._sent[:] = self._model
        return self.buffer

    def take(self) -> float:
        """Use the mean, which what was contributed now holds.

        Returns:
            How far this site's model was from the mean of all, see
            :class:`anabranch.period.Averaged`. Over all sites the mean of the squares is that of
            their moves less that of the mean's move, so that no model need be kept for it.
        """
        spread = self._spread()
        found = self.buffer
        if self._outer is not None:
            assert self._last is not None
            self._outer(self._last, self.buffer)
            found = self._last
        elif self._last is not None:
            self._last[:] = self.buffer
        if self._sent is not None:
            self._model -= self._sent
            self._model += found
        elif found is not self._model:
            self._model[:] = found
        return spread

    def _spread(self) -> float:
        if not self._asks_spread:
            return 0.0
        assert self._last is not None
        is_difference = self._outer is not None
        move = _norm(self.buffer) if is_difference else _distance(self.buffer, self._last)
        return math.sqrt(max(0.0, _ratio(self._own_move, move) ** 2 - 1.0)) if move else 0.0

    def settle(self) -> None:
        """Forget what the model has changed by since the last average."""
        if self._last is not None:
            self._model[:] = self._last
        elif self._sent is not None:
            self._model[:] = self.buffer

    @property
    def agreed(self) -> Floats:
        """What all sites hold alike once they have used the same mean, shape (elements,)."""
        return self.buffer if self._last is None else self._last

    def state_dict(self) -> State:
        """Return what goes on from here where no average is on its way; nothing is copied."""
        state: State = {}
        if self._last is not None:
            state["last"] = self._last
        if self._outer is not None:
            state["outer"] = self._outer.state_dict()
        return state

    def load_state_dict(self, state: State) -> None:
        """Go on from a state of an averaging of the same kind and size."""
        if self._last is not None:
            self._last[:] = state["last"]
        if self._outer is not None:
            self._outer.load_state_dict(state["outer"])


def bounds(elements: int, fragments: int) -> list[tuple[int, int]]:
    """Return where each fragment of a model begins and ends; they differ by one element at most.

    >>> bounds(10, 3)
    [(0, 3), (3, 6), (6, 10)]
    """
    return [(elements * i // fragments, elements * (i + 1) // fragments) for i in range(fragments)]


_BLOCK_ELEMENTS = 1 << 18


def _distance(one: Floats, other: Floats) -> float:
    squares = 0.0
    for start in range(0, len(one), _BLOCK_ELEMENTS):
        difference = one[start : start + _BLOCK_ELEMENTS] - other[start : start + _BLOCK_ELEMENTS]
        squares += float(np.dot(difference, difference))
    return float(squares**0.5)


def _norm(one: Floats) -> float:
    return float(np.linalg.norm(one))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else (float("inf") if part else 0.0)
