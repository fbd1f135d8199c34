"""One site's local steps, and when and how its model is averaged with others'. No network.

A site steps; the scenario's period says when an average is due, of the whole model or of its next
fragment; the site exchanges what it is given here, and hands the mean back.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from anabranch.learn.averaging import Average, Averaging, Floats, bounds
from anabranch.learn.work import ServableWork, State
from anabranch.period import AnyPeriod, Averaged, Every, Progress, Rule

_STATE = "averaging"


class LocalSteps:
    """A site's model between averages.

    Args:
        work: whose model it is.
        period: how often it is averaged.
        average: how.
        has_numbers: whether there are any; otherwise only the order of things counts.

    Attributes:
        steps: local steps made.
        begun: averages begun.
    """

    def __init__(
        self, work: ServableWork, period: AnyPeriod, average: Average, has_numbers: bool = True
    ) -> None:
        self.work = work
        self.steps = 0
        self.begun = 0
        self._period = period
        self._average = average
        self._has_numbers = has_numbers
        self._rule = rule_of(period, average.fragments)
        self._since = 0  # steps since the last average began
        self._compute_s = 0.0  # of those steps
        self._bounds = bounds(len(work.model), average.fragments)
        asked = period.asks_moved or average.fragments > 1, period.asks_spread
        self._parts: list[Averaging] = []
        if has_numbers:
            self._parts = [
                Averaging(work.model[begin:end], average, *asked) for begin, end in self._bounds
            ]
        self._flying: deque[_Flying] = deque()

    def step(self, compute_s: float) -> None:
        """Let the work use its own gradients, which its buffer holds.

        Args:
            compute_s: what computing them took, seconds.
        """
        self.steps += 1
        self._since += 1
        self._compute_s += compute_s
        if self._has_numbers:
            self.work.apply(self.steps)

    def is_due(self, is_called: bool) -> bool:
        """Return whether to begin an average now.

        Args:
            is_called: whether another site has begun the next one, and waits.
        """
        moved = 0.0
        if self._period.asks_moved and self._has_numbers:
            moved = self._parts[0].moved()
        return self._rule.is_due(Progress(self._since, moved, is_called))

    @property
    def is_ripe(self) -> bool:
        """Whether the oldest average that is on its way is to be waited for now."""
        return bool(self._flying) and self.steps >= self._flying[0].ripe

    @property
    def is_fragmented(self) -> bool:
        """Whether averages are of parts of the model."""
        return self._average.fragments > 1

    @property
    def is_full(self) -> bool:
        """Whether an average has to end before another may begin."""
        return len(self._flying) >= self._average.fragments

    def sent(self) -> None:
        """Take note that the model was sent to others as it is, where sites gossip."""
        self.begun += 1
        self._since, self._compute_s = 0, 0.0
        if self._period.asks_moved and self._has_numbers:
            self._parts[0].remember()

    def begin(self) -> Floats:
        """Begin an average; return what is exchanged, in place, for its mean."""
        fragment = self.begun % self._average.fragments
        self.begun += 1
        step_s = self._compute_s / max(1, self._since)
        ripe = self.steps + self._average.delay
        self._flying.append(_Flying(fragment, self._since, step_s, ripe))
        self._since, self._compute_s = 0, 0.0
        if not self._has_numbers:
            begin, end = self._bounds[fragment]
            return self.work.model[begin:end]
        return self._parts[fragment].contribute()

    def take(self, exchange_s: float) -> Floats | None:
        """Use the mean of the oldest average that is on its way.

        Args:
            exchange_s: how long it was, seconds.

        Returns:
            What all sites hold alike from now on; None where there are no numbers.
        """
        flying = self._flying.popleft()
        spread, agreed = 0.0, None
        if self._has_numbers:
            part = self._parts[flying.fragment]
            spread = part.take()
            agreed = part.agreed
        else:
            self.work.apply(self.begun)  # which checks the mean, if there is one
        self._rule.averaged(Averaged(flying.steps, flying.step_s, exchange_s, spread))
        return agreed

    def finish(self) -> None:
        """Leave the model as the last averages made it, the same at every site."""
        for part in self._parts:
            part.settle()

    def state_dict(self) -> State:
        """Return all that goes on from here, while no average is on its way."""
        assert not self._flying
        own: State = {
            "steps": self.steps,
            "since": self._since,
            "compute_s": self._compute_s,
            "rule": self._rule.state_dict(),
            "parts": [part.state_dict() for part in self._parts],
        }
        return {**self.work.state_dict(), _STATE: own}

    def load_state_dict(self, state: State) -> None:
        """Go on from a state of local steps of the same scenario."""
        state = dict(state)
        own: dict[str, Any] = state.pop(_STATE)
        self.work.load_state_dict(state)
        self.steps, self._since = own["steps"], own["since"]
        self._compute_s = own["compute_s"]
        self._rule.load_state_dict(own["rule"])
        for part, each in zip(self._parts, own["parts"], strict=True):
            part.load_state_dict(each)

    def resume_after(self, averages: int) -> None:
        """Take note of how many averages were begun before a run went on."""
        self.begun = averages


class _Flying:
    """An average that is on its way."""

    def __init__(self, fragment: int, steps: int, step_s: float, ripe: int) -> None:
        self.fragment = fragment
        self.steps = steps
        self.step_s = step_s
        self.ripe = ripe  # after how many steps in all it is waited for


def rule_of(period: AnyPeriod, fragments: int) -> Rule:
    """Return a period's rule for one of so many fragments, each of which has its turn once in it.

    >>> rule = rule_of(Every(steps=8), fragments=4)
    >>> [rule.is_due(Progress(steps)) for steps in (1, 2)]
    [False, True]
    """
    if fragments > 1:
        assert isinstance(period, Every)
        return Every(steps=math.ceil(period.steps / fragments)).rule()
    return period.rule()
