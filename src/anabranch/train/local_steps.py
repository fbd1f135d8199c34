"""One site's local steps, and when and how its model is averaged with others'. No network.

A site steps; its period says when an average is due, of the whole model or of its next fragment;
the site exchanges what it is given here, and hands the mean back.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

from anabranch.period import AnyPeriod, Averaged, Every, Progress, Rule
from anabranch.train.averaging import SHARED_NUMBERS, Average, Averaging, Floats, bounds, slices
from anabranch.train.work import State


class LocalSteps:
    """A site's model between averages.

    Args:
        model: one array or several, each of shape (elements of it,), changed in place.
        period: how often it is averaged.
        average: how.
        has_numbers: whether there are any; otherwise only the order of things counts.
        may_stop: whether an average may be refused, after which ``finish`` has to know where the
            last one left the model.

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
        self._compute_s = 0.0  # of those steps
        self._exchange_s = 0.0  # of the last average
        elements = sum(map(len, model))
        self._fragments = [slices(model, *each) for each in bounds(elements, average.fragments)]
        asked = period.asks_moved or average.fragments > 1 or may_stop, period.shares
        self._parts: list[Averaging] = []
        if has_numbers:
            self._parts = [Averaging(each, average, *asked) for each in self._fragments]
        self._flying: deque[_Flying] = deque()

    def stepped(self, compute_s: float) -> None:
        """Take note of a local step.

        Args:
            compute_s: what it took, seconds.
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
        return self._rule.is_due(Progress(self._since, moved, is_called))

    @property
    def since(self) -> int:
        """How many steps were made since the last average began."""
        return self._since

    @property
    def is_due_next(self) -> bool:
        """Whether an average is due after the next step, where a site's steps alone decide."""
        return self._rule.is_due(Progress(self._since + 1))

    @property
    def most_elements(self) -> int:
        """How many elements an average exchanges at most, of the model and of what is shared."""
        shared = SHARED_NUMBERS if self._period.shares else 0
        return max(sum(map(len, each)) for each in self._fragments) + shared

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

    @property
    def next_fragment(self) -> int:
        """Which fragment the next average is of, from 0."""
        return self.begun % self._average.fragments

    def begin(self) -> list[Floats]:
        """Begin an average; return what is exchanged, in place, for its mean."""
        fragment = self.next_fragment
        self.begun += 1
        step_s = self._compute_s / max(1, self._since)
        ripe = self.steps + self._average.delay
        self._flying.append(_Flying(fragment, self._since, step_s, ripe))
        self._since, self._compute_s = 0, 0.0
        if not self._has_numbers:
            return self._fragments[fragment]
        return self._parts[fragment].contribute(step_s, self._exchange_s)

    def take(self, exchange_s: float) -> list[Floats]:
        """Use the mean of the oldest average that is on its way.

        Args:
            exchange_s: how long it was, seconds.

        Returns:
            What all sites hold alike from now on; without numbers nothing.
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
    def base_checksum(self) -> int:
        """A checksum of where the last average left the part that the next one is of."""
        return self._parts[self.next_fragment].base_checksum

    @property
    def has_strayed(self) -> bool:
        """Whether this site's model has changed otherwise than the oldest average on its way."""
        return self._parts[self._flying[0].fragment].has_strayed

    def take_mean_alone(self) -> None:
        """Use the mean of the oldest average on its way, to which no site has brought a step."""
        self._parts[self._flying.popleft().fragment].take_mean_alone()

    def drop(self) -> None:
        """Go on without the oldest average that is on its way: there is no mean."""
        self._flying.popleft()

    def finish(self) -> None:
        """Leave the model as the last averages made it, the same at every site."""
        for part in self._parts:
            part.settle()

    def state_dict(self) -> State:
        """Return all that goes on from here, where averages on their way have a result."""
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
        """Go on from a state of local steps of the same period, average and model.

        Raises:
            ValueError: it is of others.
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
        """Leave out what the model of the site has changed by whose state was loaded."""
        flying = {each.fragment for each in self._flying}
        for fragment, part in enumerate(self._parts):
            part.adopt(fragment in flying)

    def shared_state(self) -> State:
        """Return what a site gets that joins while no average is on its way; nothing is copied.

        See :meth:`anabranch.train.averaging.Averaging.shared_state` on the moment.
        """
        return {
            "steps": self.steps,
            "begun": self.begun,
            "exchange_s": self._exchange_s,
            "rule": self._rule.state_dict(),
            "parts": [part.shared_state() for part in self._parts],
        }

    def load_shared_state(self, state: State) -> None:
        """Begin where the last average left all sites, from another site's ``shared_state``."""
        for part, each in zip(self._parts, state["parts"], strict=True):
            part.load_shared_state(each)
        self.steps, self.begun = state["steps"], state["begun"]
        self._since, self._compute_s = 0, 0.0
        self._exchange_s = state["exchange_s"]
        self._rule.load_state_dict(state["rule"])
        self._flying.clear()

    def resume_after(self, averages: int) -> None:
        """Take note of how many averages were begun before."""
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


def check(period: AnyPeriod, average: Average) -> None:
    """Check that models can be averaged so, as often as that.

    Raises:
        ValueError: they cannot; the message begins with the name of a field of the average.
    """
    steps = period.steps if isinstance(period, Every) else None
    if average.fragments > 1 and (steps is None or steps % average.fragments):
        raise ValueError(
            f"fragments: each of {average.fragments} fragments has its turn once a period, which "
            "must be every so many steps, a multiple of the fragments"
        )
    if steps is not None and average.delay > steps:
        raise ValueError(
            f"delay: the next average begins {steps} steps after one, before that has waited for "
            f"its {average.delay}; give {steps} at most"
        )
