"""A worker's local steps between pull and push as one update, as a federated client makes it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from anabranch.train.averaging import Average, Floats
from anabranch.train.optimisers import Sgd, Update
from anabranch.train.work import ServableWork, State, averaged_elements


class ServedSteps:
    """Work whose update is the distance that several local steps moved the pulled model.

    The update is a pseudo-gradient (Reddi et al., ICLR 2021): the model that was pulled, less the
    model after the steps. Servers treat it as a gradient. Their outer optimiser has learning rate 1
    by default, so that applying the mean update yields the mean of the models.

    Args:
        work: makes the steps.
        steps: returns how many steps an update has, given the samples of a step.
        average: holds the servers' outer optimiser.
        spoil: changes an update in place, where this site is an adversary.

    Attributes:
        buffer: the update, shape (elements,).
        model: see :class:`anabranch.train.work.ServableWork`; after a round's steps its parameters
            are again as they were pulled.
        averaged_elements: how many elements at its end are no parameters; these stay as the steps
            left them.
    """

    def __init__(
        self,
        work: ServableWork,
        steps: Callable[[int], int],
        average: Average,
        spoil: Callable[[Floats], None] = lambda update: None,
    ) -> None:
        self._work = work
        self._spoil = spoil
        self._steps = steps
        self._made = 0
        self.model = work.model
        self.averaged_elements = averaged_elements(work)
        self.buffer: Floats = np.empty_like(work.model)
        self._pulled: Floats = np.empty_like(work.model)
        outer = Sgd(1.0) if average.outer is None else average.outer
        self.make_rule: Callable[[int], Update] | None = outer.start

    def local_step(self, samples: int) -> float | None:
        """Make the steps; return their mean loss, if there is one."""
        self._pulled[:] = self.model
        losses = []
        for _ in range(self._steps(samples)):
            self._made += 1
            loss = self._work.local_step(samples)
            self._work.apply(self._made)
            if loss is not None:
                losses.append(loss)
        np.subtract(self._pulled, self.model, out=self.buffer)
        stepped = slice(len(self.model) - self.averaged_elements)
        self.model[stepped] = self._pulled[stepped]
        self._spoil(self.buffer)
        return sum(losses) / len(losses) if losses else None

    def apply(self, round: int) -> int | None:
        """Never called: servers apply."""
        raise AssertionError("where the model is served, servers apply")

    def evaluate(self) -> float:
        """See :class:`anabranch.train.work.Work`."""
        return self._work.evaluate()

    def state_dict(self) -> State:
        """See :class:`anabranch.train.work.Work`."""
        return self._work.state_dict()

    def load_state_dict(self, state: State) -> None:
        """See :class:`anabranch.train.work.Work`."""
        self._work.load_state_dict(state)
