"""A site's work whose model makes local steps between averages."""

from __future__ import annotations

from collections import deque

import numpy as np

from anabranch.net.errors import RunAborted
from anabranch.period import AnyPeriod
from anabranch.train.averaging import FORMATS, Average, Floats
from anabranch.train.local_steps import LocalSteps
from anabranch.train.trailer import TRAILER_ELEMENTS, read_trailer, write_trailer
from anabranch.train.work import ServableWork, State, averaged_elements

_STATE = "averaging"
_MOST_OFF = 1e-4  # the largest rounding error of a mean of equal numbers, in float32


class LocalWork:
    """Work together with the rules of its local steps and averages, so that both are saved.

    Args:
        work: the work that holds the model.
        period: how often the model is averaged.
        average: how it is averaged.
        has_numbers: whether chunks hold numbers; otherwise only the order of calls matters.
        may_stop: see :class:`anabranch.train.local_steps.LocalSteps`.
        scale: multiplies each step's gradients.

    Attributes:
        work: the same.
        local: when and how the model is averaged.
        travels: the format of averages on the wire.
    """

    def __init__(
        self,
        work: ServableWork,
        period: AnyPeriod,
        average: Average,
        has_numbers: bool = True,
        may_stop: bool = False,
        scale: float = 1.0,
    ) -> None:
        if average.steps_by is not None and averaged_elements(work):
            raise RunAborted(
                "average.outer would step on the buffers that averaged_elements counts; leave "
                "[average] outer out, or let servers hold the model (pace, serve)"
            )
        self.work = work
        self._has_numbers = has_numbers
        self._scale = np.float32(scale)
        self.local = LocalSteps([work.model], period, average, has_numbers, may_stop)
        self._how = period, average
        self.travels = FORMATS[average.wire]
        self._said: deque[Floats] = deque()  # trailers of averages on their way, oldest first

    @property
    def most_elements(self) -> int:
        """How many elements an average exchanges at most."""
        return self.local.most_elements + TRAILER_ELEMENTS

    def step(self, compute_s: float) -> None:
        """Apply the gradients in the work's buffer to its own model.

        Args:
            compute_s: how long computing them took, seconds.
        """
        self.local.stepped(compute_s)
        if self._has_numbers:
            if self._scale != 1:
                np.multiply(self.work.buffer, self._scale, out=self.work.buffer)
            self.work.apply(self.local.steps)

    def begin(self) -> list[Floats]:
        """Begin an average; return the arrays that the exchange replaces by their mean.

        These are a part of the model, and this site's trailer. A compressed change has no trailer:
        the scheduler compares checksums of what sites make of it.
        """
        if self.travels.has_blocks:
            return self.local.begin()
        base = self.local.base_checksum if self._has_numbers else 0
        said = write_trailer(True, self.local.since, self._how, base)
        self._said.append(said)
        return [*self.local.begin(), said]

    def take(self, exchange_s: float) -> Floats | None:
        """Apply the mean of the oldest average that is on its way.

        Args:
            exchange_s: how long its exchange took, seconds.

        Returns:
            The elements that are equal at all sites from now on; None where there are no numbers.

        Raises:
            RunAborted: the sites' models differed before this average.
        """
        said = None if self.travels.has_blocks else self._said.popleft()
        if said is not None and self._has_numbers and not read_trailer(said, _MOST_OFF).are_alike:
            raise RunAborted(
                "models of sites were not alike before this average, which its outer optimiser "
                "cannot mend; let every site begin with the same parameters"
            )
        agreed = self.local.take(exchange_s)
        if self._has_numbers:
            (elements,) = agreed
            return elements
        self.work.apply(self.local.begun)  # checks the mean, if the work has a known one
        return None

    def shared_state(self) -> State:
        """Return the state for a site that comes back; see ``LocalSteps.shared_state``.

        Optimisers differ between sites, so the state of the work's optimiser is not in it.
        """
        return {_STATE: self.local.shared_state()}

    def load_shared_state(self, state: State) -> None:
        """Begin where the last average left all sites, with this site's own optimiser."""
        self.local.load_shared_state(state[_STATE])
        self._said.clear()

    def state_dict(self) -> State:
        """Return the whole state, while no average is on its way."""
        return {**self.work.state_dict(), _STATE: self.local.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Load the state of work and local steps of the same scenario."""
        state = dict(state)
        own = state.pop(_STATE)
        self.work.load_state_dict(state)
        self.local.load_state_dict(own)
