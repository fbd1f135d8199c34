"""One site's local steps, and the averages of its model with other sites' models. No network.

A site makes steps. Its period decides when an average is due, of the whole model or of its next
fragment. The caller exchanges the arrays that `LocalSteps.begin` returns, and calls
`LocalSteps.take` with the mean in them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

from anabranch.period import AnyPeriod, Averaged, Every, Progress, Rule
from anabranch.train.averaging import (
    FORMATS,
    SHARED_NUMBERS,
    Average,
    Averaging,
    Floats,
    bounds,
    slices,
)
from anabranch.train.work import State


class LocalSteps:
    """A site's model between averages.

    Args:
        model: one array or several, each of shape (its elements,), changed in place.
        period: how often the model is averaged.
        average: how it is averaged.
        has_numbers: whether the model has real values; if not, only the order of steps and averages
            counts.
        may_stop: whether an average may be refused. Then ``finish`` needs the model after the last
            average.

    Attributes:
        steps: local steps made.
        begun: averages begun.
    """

    def __init__(
        self,
        model: Sequence[Floats],
        period: AnyPeriod,
        average: Average,
        has_numbers: bool = True,
        may_stop: bool = False,
    ) -> None:
        self.steps = 0
        self.begun = 0
        self._period = period
        self._average = average
        self._has_numbers = has_numbers
        self._rule = rule_of(period, average.fragments)
        self._since = 0  # steps since the last average began
        self._compute_s = 0.0  # seconds of those steps
        self._exchange_s = 0.0  # seconds of the last average
        elements = sum(map(len, model))
        self._fragments = [slices(model, *each) for each in bounds(elements, average.fragments)]
        asked = period.asks_moved or average.fragments > 1 or may_stop, period.shares
        self._parts: list[Averaging] = []
        if has_numbers:
            self._parts = [Averaging(each, average, *asked) for each in self._fragments]
        self._flying: deque[_Flying] = deque()

    def stepped(self, compute_s: float) -> None:
        """Count a local step.

        Args:
            compute_s: its seconds.
        """
        self.steps += 1
        self._since += 1
        self._compute_s += compute_s

    def is_due(self, is_called: bool) -> bool:
        """Return whether to begin an average now.

        Args:
            is_called: whether another site has begun the next one, and waits.
        """
        moved = 0.0
        if self._period.asks_moved and self._has_numbers:
            moved = self._parts[0].moved()
        return self._rule.is_due(Progress(self._since, moved, is_called, self._compute_s))

    @property
    def since(self) -> int:
        """Local steps since the last average began."""
        return self._since

    @property
    def is_due_next(self) -> bool:
        """Whether an average is due after the next step, under a period of a site's steps alone."""
        return self._rule.is_due(Progress(self._since + 1))

    @property
    def most_elements(self) -> int:
        """The most elements that an average exchanges, with the shared measurements.

        Where they travel in blocks, those of whole blocks.
        """
        shared = SHARED_NUMBERS if self._period.shares else 0
        largest = max(sum(map(len, each)) for each in self._fragments) + shared
        return FORMATS[self._average.wire].padded(largest)

    @property
    def is_ripe(self) -> bool:
        """Whether the site must wait now for the oldest average under way."""
        return bool(self._flying) and self.steps >= self._flying[0].ripe

    @property
    def is_fragmented(self) -> bool:
        """Whether averages are of parts of the model."""
        return self._average.fragments > 1

    @property
    def is_full(self) -> bool:
        """Whether an average must end before another may begin."""
        return len(self._flying) >= self._average.fragments

    def sent(self) -> None:
        """Count a model sent to neighbours by gossip."""
        self.begun += 1
        self._since, self._compute_s = 0, 0.0
        if self._period.asks_moved and self._has_numbers:
            self._parts[0].remember()

    @property
    def next_fragment(self) -> int:
        """The fragment of the next average, from 0."""
        return self.begun % self._average.fragments

    def begin(self, weight: float = 1.0) -> list[Floats]:
        """Begin an average; return the arrays to exchange, which the mean replaces in place.

        Args:
            weight: of the contribution.
        """
        fragment = self.next_fragment
        self.begun += 1
        step_s = self._compute_s / max(1, self._since)
        ripe = self.steps + self._average.delay
        self._flying.append(_Flying(fragment, self._since, step_s, ripe))
        self._since, self._compute_s = 0, 0.0
        if not self._has_numbers:
            return self._fragments[fragment]
        return self._parts[fragment].contribute(step_s, self._exchange_s, weight)

    def take(self, exchange_s: float) -> list[Floats]:
        """Apply the mean of the oldest average under way.

        Args:
            exchange_s: the seconds of its exchange.

        Returns:
            The arrays that are now equal at all sites; empty without numbers.
        """
        flying = self._flying.popleft()
        averaged, agreed = Averaged(flying.steps, flying.step_s, exchange_s), []
        if self._has_numbers:
            part = self._parts[flying.fragment]
            shared = part.take()
            agreed = part.agreed
            if shared is not None:
                told_s = shared.exchange_s or exchange_s
                averaged = Averaged(flying.steps, shared.step_s, told_s, shared.spread)
        self._exchange_s = exchange_s
        self._rule.averaged(averaged)
        return agreed

    @property
    def lost(self) -> Floats | None:
        """Where the latest average's exchange puts what rounding has lost; None if it keeps none.

        Shape: that of the array that ``begin`` returned.
        """
        return self._parts[self._flying[-1].fragment].lost if self._parts else None

    @property
    def base_checksum(self) -> int:
        """A checksum of the next average's part of the model after its last average.

        See :attr:`anabranch.train.averaging.Averaging.base_checksum`.
        """
        return self._parts[self.next_fragment].base_checksum

    @property
    def has_strayed(self) -> bool:
        """Whether this site's change differs from the mean of the oldest average under way."""
        return self._parts[self._flying[0].fragment].has_strayed

    def take_mean_alone(self) -> None:
        """Apply the mean of the oldest average under way, before which no site made a step."""
        self._parts[self._flying.popleft().fragment].take_mean_alone()

    def drop(self) -> None:
        """Drop the oldest average under way, which has no mean."""
        self._flying.popleft()

    def finish(self) -> None:
        """Set the model back to the last averages' result, the same at every site."""
        for part in self._parts:
            part.settle()

    def state_dict(self) -> State:
        """Return the state to continue from; averages under way must have their results."""
        return {
            "steps": self.steps,
            "since": self._since,
            "compute_s": self._compute_s,
            "exchange_s": self._exchange_s,
            "rule": self._rule.state_dict(),
            "parts": [part.state_dict() for part in self._parts],
            "flying": [
                [each.fragment, each.steps, each.step_s, each.ripe] for each in self._flying
            ],
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from the state of local steps with the same period, average and model.

        Raises:
            ValueError: the state is of others.
        """
        own: dict[str, Any] = state
        if len(own["parts"]) != len(self._parts):
            raise ValueError(
                f"the state has {len(own['parts'])} fragments, this model {len(self._parts)}; give "
                "as many as where it was saved"
            )
        for part, each in zip(self._parts, own["parts"], strict=True):
            part.load_state_dict(each)
        self.steps, self._since = own["steps"], own["since"]
        self._compute_s, self._exchange_s = own["compute_s"], own["exchange_s"]
        self._rule.load_state_dict(own["rule"])
        self._flying = deque(_Flying(*each) for each in own["flying"])

    def adopt(self) -> None:
        """Discard local changes since the last average; call after another site's state."""
        flying = {each.fragment for each in self._flying}
        for fragment, part in enumerate(self._parts):
            part.adopt(fragment in flying)

    def shared_state(self) -> State:
        """Return the state for a site that joins while no average is under way.

        Nothing is copied. :meth:`anabranch.train.averaging.Averaging.shared_state` says when to
        call it.
        """
        return {
            "steps": self.steps,
            "begun": self.begun,
            "exchange_s": self._exchange_s,
            "rule": self._rule.state_dict(),
            "parts": [part.shared_state() for part in self._parts],
        }

    def load_shared_state(self, state: State) -> None:
        """Continue from another site's ``shared_state``, at the last average of all sites."""
        for part, each in zip(self._parts, state["parts"], strict=True):
            part.load_shared_state(each)
        self.steps, self.begun = state["steps"], state["begun"]
        self._since, self._compute_s = 0, 0.0
        self._exchange_s = state["exchange_s"]
        self._rule.load_state_dict(state["rule"])
        self._flying.clear()

    def resume_after(self, averages: int) -> None:
        """Set the number of averages that were begun before."""
        self.begun = averages


class _Flying:
    """An average under way."""

    def __init__(self, fragment: int, steps: int, step_s: float, ripe: int) -> None:
        self.fragment = fragment
        self.steps = steps
        self.step_s = step_s
        self.ripe = ripe  # the site's step count at which it must wait for the result


def rule_of(period: AnyPeriod, fragments: int) -> Rule:
    """Return a period's rule for fragments, each of which is averaged once in a period.

    >>> rule = rule_of(Every(steps=8), fragments=4)
    >>> [rule.is_due(Progress(steps)) for steps in (1, 2)]
    [False, True]
    """
    if fragments > 1:
        assert isinstance(period, Every)
        return Every(steps=math.ceil(period.steps / fragments)).rule()
    return period.rule()


def check(period: AnyPeriod, average: Average) -> None:
    """Check that a period fits the average's delay and fragments.

    Raises:
        ValueError: it does not; the message begins with the name of a field of the average.
    """
    steps = period.steps if isinstance(period, Every) else None
    if average.fragments > 1 and (steps is None or steps % average.fragments):
        raise ValueError(
            f"fragments: each of {average.fragments} fragments has its turn once a period; give a "
            f"fixed period, a multiple of {average.fragments} steps"
        )
    if steps is not None and average.delay > steps:
        raise ValueError(
            f"delay: averages begin every {steps} steps, and each ends {average.delay} steps "
            f"after its beginning, when the next has begun; give at most {steps}"
        )
    if average.compresses and period.shares:
        raise ValueError(
            f"wire: an adaptive period shares measurements with each average, which {average.wire} "
            "would round; give a fixed period, or a wire of floats"
        )
