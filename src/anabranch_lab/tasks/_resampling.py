"""β-resampling: samples drawn by the inverse effective number of their label (HAAF, eq. 2, 3).

A site draws the samples of a label more often if it holds few of them. So sites with different
labels train on batches that are more alike. Each site needs only its own labels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Sampler

from anabranch.train.work import State

Labels = npt.NDArray[np.int64] | torch.Tensor


def sample_probabilities(labels: Labels, beta: float) -> npt.NDArray[np.float64]:
    """Return the probability of each sample to be drawn, exact to a few roundings.

    If n samples have a label, each is drawn in proportion to ``(1 - beta) / (1 - beta^n)``. At
    beta = 0 all samples are equally likely. As beta nears 1 the weight nears 1 / n, so that all
    labels are equally likely.

    Args:
        labels: of the samples, shape (n,), n >= 1.
        beta: resampling strength, in [0, 1).

    Returns:
        Shape (n,), sum 1; at beta = 0 each is 1 / n.

    Raises:
        ValueError: beta is out of its range, there is no sample, or not one label for each.
    Source: HAAF, eq. 2 and 3, after Cui et al., CVPR 2019, for the effective number.

    >>> sample_probabilities(np.array([4, 4, 4, 9]), beta=0.0).tolist()
    [0.25, 0.25, 0.25, 0.25]
    >>> sample_probabilities(np.array([4, 4, 4, 9]), beta=0.5).round(4).tolist()
    [0.2105, 0.2105, 0.2105, 0.3684]
    """
    if not 0 <= beta < 1:
        raise ValueError(f"beta is {beta:g}, which must be in [0, 1)")
    labels = np.asarray(labels)
    if labels.ndim != 1 or not labels.size:
        raise ValueError(
            f"cannot resample by labels of shape {labels.shape}; give one for each sample, at "
            "least one"
        )
    _, of_class, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if beta == 0:
        weights = np.ones(len(counts))
    else:
        # beta^n is near 1 where beta is: expm1 keeps the digits that 1 - beta^n would lose.
        weights = (1.0 - beta) / -np.expm1(counts * math.log(beta))
    each = weights / math.fsum(weights * counts)
    return np.asarray(each[of_class])


class ResamplingSampler(Sampler[int]):
    """Draws samples with replacement, with the probabilities of `sample_probabilities`.

    It is a torch sampler, also for a user's own ``DataLoader``: an epoch is as many draws as there
    are samples. After its state was saved and restored, draws continue bit for bit, even within an
    epoch.

    Args:
        labels: of the samples, shape (n,), n >= 1.
        beta: resampling strength, in [0, 1).
        seed: of the draws, >= 0, or the generator that draws.
        indices: the numbers that are drawn for the samples, shape (n,); None: 0 to n - 1.

    Raises:
        ValueError: beta is out of its range, or there is not one label for each sample.
    """

    def __init__(
        self,
        labels: Labels,
        beta: float,
        seed: int | np.random.Generator,
        indices: npt.NDArray[np.int64] | None = None,
    ) -> None:
        ends = np.cumsum(sample_probabilities(labels, beta))
        self._ends = ends / ends[-1]  # the last is 1, above every draw
        self._indices = np.arange(len(ends)) if indices is None else indices
        if self._indices.shape != ends.shape:
            raise ValueError(
                f"indices have shape {self._indices.shape}, and there are {len(ends)} labels; "
                "give one for each"
            )
        self._generator = np.random.default_rng(seed)

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[int]:
        for _ in range(len(self)):  # one by one, so that the state is never ahead
            yield int(self.draw(1)[0])

    def draw(self, count: int) -> npt.NDArray[np.int64]:
        """Return the indices of the next ``count`` samples."""
        found = np.searchsorted(self._ends, self._generator.random(count), side="right")
        return self._indices[found]

    def state_dict(self) -> State:
        """Return the state on which later draws depend, without copies."""
        return {"sampling": self._generator.bit_generator.state}

    def load_state_dict(self, state: State) -> None:
        """Continue the draws from a state of a sampler with the same arguments.

        Raises:
            ValueError: the state is of another sampling.
        """
        if "waiting" in state:
            raise ValueError("the state is of another sampling: samples wait to be drawn")
        self._generator.bit_generator.state = state["sampling"]
