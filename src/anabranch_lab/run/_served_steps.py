"""A worker's local steps between pull and push, as one update: what a federated client does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from anabranch.train.averaging import Average, Floats
from anabranch.train.optimisers import Sgd, Update
from anabranch.train.work import ServableWork, State, averaged_elements


class ServedSteps:
    """Work whose update is how far some steps of its own optimiser went from the model it pulled.

    The update is a pseudo-gradient (Reddi et al., ICLR 2021): where the model was, less where it
    came to. Servers take it for a gradient: the mean of all, with an outer optimiser whose learning
    rate is 1 unless another is given, is the mean of the models.

    Args:
        work: makes the steps.
        steps: how many, of so many samples each.
        average: whose outer optimiser is the servers'.
        spoil: changes an update in place, where this site sends what it should not.

    Attributes:
        buffer: the update, shape (elements,).
        model: see :class:`anabranch.train.work.ServableWork`; after a round's steps its parameters
            are again as they were pulled.
        averaged_elements: how many at its end are no parameters; these stay as the steps left them.
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
        """Never asked for: servers apply."""
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
