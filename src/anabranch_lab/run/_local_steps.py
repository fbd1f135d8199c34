"""A site's work whose model makes local steps between averages."""

from __future__ import annotations

from collections import deque

from anabranch.net.errors import RunAborted
from anabranch.period import AnyPeriod
from anabranch.train.averaging import Average, Floats
from anabranch.train.local_steps import LocalSteps
from anabranch.train.trailer import TRAILER_ELEMENTS, read_trailer, write_trailer
from anabranch.train.work import ServableWork, State, averaged_elements

_STATE = "averaging"
_MOST_OFF = 1e-4  # of a mean of equal numbers, in float32


class LocalWork:
    """Work, and what its local steps and averages go by; as one, so that they are saved together.

    Args:
        work: whose model it is.
        period: how often it is averaged.
        average: how.
        has_numbers: whether there are any; otherwise only the order of things counts.
        may_stop: see :class:`anabranch.train.local_steps.LocalSteps`.

    Attributes:
        work: see there.
        local: when and how the model is averaged.
    """

    def __init__(
        self,
        work: ServableWork,
        period: AnyPeriod,
        average: Average,
        has_numbers: bool = True,
        may_stop: bool = False,
    ) -> None:
        if average.outer is not None and averaged_elements(work):
            raise RunAborted(
                "average.outer would step on the buffers that averaged_elements counts; leave "
                "[average] outer out, or let servers hold the model (pace, serve)"
            )
        self.work = work
        self._has_numbers = has_numbers
        self.local = LocalSteps([work.model], period, average, has_numbers, may_stop)
        self._how = period, average
        self._said: deque[Floats] = deque()  # beside averages on their way, oldest first

    @property
    def most_elements(self) -> int:
        """How many elements an average exchanges at most."""
        return self.local.most_elements + TRAILER_ELEMENTS

    def step(self, compute_s: float) -> None:
        """Let the work use its own gradients, which its buffer holds.

        Args:
            compute_s: what computing them took, seconds.
        """
        self.local.stepped(compute_s)
        if self._has_numbers:
            self.work.apply(self.local.steps)

    def begin(self) -> list[Floats]:
        """Begin an average; return what is exchanged, in place, for its mean.

        That is a part of the model, and what this site says beside it.
        """
        base = self.local.base_checksum if self._has_numbers else 0
        said = write_trailer(True, self.local.since, self._how, base)
        self._said.append(said)
        return [*self.local.begin(), said]

    def take(self, exchange_s: float) -> Floats | None:
        """Use the mean of the oldest average that is on its way.

        Args:
            exchange_s: how long it was, seconds.

        Returns:
            What all sites hold alike from now on; None where there are no numbers.

        Raises:
            RunAborted: models were not alike before.
        """
        said = self._said.popleft()
        if self._has_numbers and not read_trailer(said, _MOST_OFF).are_alike:
            raise RunAborted(
                "models of sites were not alike before this average, which its outer optimiser "
                "cannot mend; let every site begin with the same parameters"
            )
        agreed = self.local.take(exchange_s)
        if self._has_numbers:
            (elements,) = agreed
            return elements
        self.work.apply(self.local.begun)  # which checks the mean, if there is one
        return None

    def shared_state(self) -> State:
        """Return what a site gets that comes back; see ``LocalSteps.shared_state``.

        Each site's own optimiser is its own, so that of the work is not in it.
        """
        return {_STATE: self.local.shared_state()}

    def load_shared_state(self, state: State) -> None:
        """Begin where the last average left all sites, with this site's own optimiser."""
        self.local.load_shared_state(state[_STATE])
        self._said.clear()

    def state_dict(self) -> State:
        """Return all that goes on from here, while no average is on its way."""
        return {**self.work.state_dict(), _STATE: self.local.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Go on from a state of work and local steps of the same scenario."""
        state = dict(state)
        own = state.pop(_STATE)
        self.work.load_state_dict(state)
        self.local.load_state_dict(own)
