"""Optimisers over flat buffers that give the same bits on every machine.

After an exchange all sites hold the same gradients, bit for bit, and must end the step with the
same parameters. PyTorch's optimisers do not promise that: their kernels use fused multiply-add only
on some CPUs, so two sites with different processors drift apart. Here each operation is one NumPy
call on float32 (add, subtract, multiply, divide, square root), which IEEE 754 rounds in exactly one
way. An update works block by block, so that scratch space stays small and in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from anabranch.train.work import State

_BLOCK_ELEMENTS = 16384


class Update(Protocol):
    """An optimiser on one buffer, with its state, such as momentum."""

    def __call__(
        self,
        parameters: npt.NDArray[np.float32],
        gradients: npt.NDArray[np.float32],
        scale: float = 1.0,
    ) -> None:
        """Change the parameters in place, given their gradients; both have shape (elements,).

        ``scale`` multiplies the learning rate of this one step.
        """

    def state_dict(self) -> State:
        """Return the state that later steps depend on; nothing is copied."""

    def load_state_dict(self, state: State) -> None:
        """Continue from the state of an update of the same rule and size.

        Raises:
            ValueError: the state is of another rule or size.
        """


class Optimiser(Protocol):
    """An optimiser's rule and settings: a value, shared by all sites."""

    def start(self, elements: int) -> Update:
        """Return a new update for buffers of this many elements."""


@dataclass(frozen=True, slots=True)
class Sgd:
    """Stochastic gradient descent: ``v = momentum * v + g``, then ``p -= learning_rate * v``.

    Args:
        learning_rate: > 0.
        momentum: in [0, 1).
        nesterov: whether to look ahead, as PyTorch's SGD does:
            ``p -= learning_rate * (g + momentum * v)``.

    Raises:
        ValueError: a setting outside its range, or ``nesterov`` without momentum.
    """

    learning_rate: float
    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        _check_learning_rate(self.learning_rate)
        _check_decay("momentum", self.momentum)
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov looks ahead along the momentum, which is 0; give some")

    def start(self, elements: int) -> Update:
        """Return a new update; without momentum it holds no state."""
        return _SgdUpdate(self, elements)


class _SgdUpdate:
    def __init__(self, rule: Sgd, elements: int) -> None:
        self._rule = rule
        self._velocity = np.zeros(elements if rule.momentum else 0, np.float32)
        self._scratch = np.empty(_BLOCK_ELEMENTS, np.float32)

    def __call__(
        self,
        parameters: npt.NDArray[np.float32],
        gradients: npt.NDArray[np.float32],
        scale: float = 1.0,
    ) -> None:
        rate = self._rule.learning_rate * scale
        for block in _blocks(parameters.size):
            direction = gradients[block]
            if self._rule.momentum:
                velocity = self._velocity[block]
                velocity *= self._rule.momentum
                velocity += direction
                direction = velocity
            change = self._scratch[: direction.size]
            if self._rule.nesterov:
                np.multiply(direction, self._rule.momentum, out=change)
                change += gradients[block]
                change *= rate
            else:
                np.multiply(direction, rate, out=change)
            parameters[block] -= change

    def state_dict(self) -> State:
        return {"velocity": self._velocity}

    def load_state_dict(self, state: State) -> None:
        _restore(self._velocity, state, "velocity")


@dataclass(frozen=True, slots=True)
class Adam:
    """Adam (Kingma and Ba, ICLR 2015, Algorithm 1).

    Args:
        learning_rate: > 0.
        mean_decay: decay of the running mean of gradients, in [0, 1); the paper's beta 1.
        square_decay: decay of the running mean of their squares, in [0, 1); its beta 2.
        epsilon: > 0, keeps the quotient finite.

    Raises:
        ValueError: a setting outside its range.
    """

    learning_rate: float
    mean_decay: float = 0.9
    square_decay: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        _check_learning_rate(self.learning_rate)
        _check_decay("mean_decay", self.mean_decay)
        _check_decay("square_decay", self.square_decay)
        if not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise ValueError(f"epsilon is {self.epsilon:g}, which must be > 0")

    def start(self, elements: int) -> Update:
        """Return a new update; its state is twice the size of the parameters."""
        return _AdamUpdate(self, elements)


class _AdamUpdate:
    def __init__(self, rule: Adam, elements: int) -> None:
        self._rule = rule
        self._mean = np.zeros(elements, np.float32)
        self._square = np.zeros(elements, np.float32)
        self._scratch = np.empty((2, _BLOCK_ELEMENTS), np.float32)
        # Powers of the decays, one factor a step: C libraries round `pow` differently.
        self._mean_left = 1.0
        self._square_left = 1.0

    def __call__(
        self,
        parameters: npt.NDArray[np.float32],
        gradients: npt.NDArray[np.float32],
        scale: float = 1.0,
    ) -> None:
        rule = self._rule
        self._mean_left *= rule.mean_decay
        self._square_left *= rule.square_decay
        rate = rule.learning_rate * scale / (1.0 - self._mean_left)
        bias = math.sqrt(1.0 - self._square_left)
        for block in _blocks(parameters.size):
            gradient, mean, square = gradients[block], self._mean[block], self._square[block]
            change, root = self._scratch[:, : gradient.size]

            mean *= rule.mean_decay
            np.multiply(gradient, 1.0 - rule.mean_decay, out=change)
            mean += change

            square *= rule.square_decay
            np.multiply(gradient, gradient, out=change)
            change *= 1.0 - rule.square_decay
            square += change

            np.sqrt(square, out=root)
            root /= bias
            root += rule.epsilon
            np.multiply(mean, rate, out=change)
            change /= root
            parameters[block] -= change

    def state_dict(self) -> State:
        return {
            "mean": self._mean,
            "square": self._square,
            "mean_left": self._mean_left,
            "square_left": self._square_left,
        }

    def load_state_dict(self, state: State) -> None:
        _restore(self._mean, state, "mean")
        _restore(self._square, state, "square")
        self._mean_left, self._square_left = state["mean_left"], state["square_left"]


def _restore(here: npt.NDArray[np.float32], state: State, name: str) -> None:
    saved = state.get(name)
    if not isinstance(saved, np.ndarray) or saved.shape != here.shape:
        found = "missing" if saved is None else f"of shape {np.shape(saved)}"
        raise ValueError(f"{name} of the optimiser's state is {found}, not of shape {here.shape}")
    here[:] = saved


def _blocks(elements: int) -> Iterator[slice]:
    for start in range(0, elements, _BLOCK_ELEMENTS):
        yield slice(start, min(elements, start + _BLOCK_ELEMENTS))


def _check_learning_rate(learning_rate: float) -> None:
    if not (learning_rate > 0 and math.isfinite(learning_rate)):
        raise ValueError(f"learning_rate is {learning_rate:g}, which must be > 0")


def _check_decay(name: str, decay: float) -> None:
    if not 0 <= decay < 1:
        raise ValueError(f"{name} is {decay:g}, which must be in [0, 1)")
