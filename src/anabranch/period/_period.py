"""What a period is: told after each local step how far a site has come, it says when to average.

Between two averages a site makes local steps: its own optimiser uses its own gradients. A period
decides after which of them the models are averaged. It never touches a model, a clock or a
connection; what it has to know of them is handed in.

Two objects do it: a *period* is the parameters, a frozen value that scenario files spell; its
*rule* follows one site.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a site has come, after a local step.

    Args:
        steps: local steps since the last average began, this one included.
        moved: how far its model is from where the last average left it: the norm of the difference
            over the norm of the model there. 0 where the period does not ask for it.
        is_called: whether another site has begun the next average, and waits.
    """

    steps: int
    moved: float = 0.0
    is_called: bool = False


@dataclass(frozen=True, slots=True)
class Averaged:
    """What an average was like, at one site or, where the period asks for that, at all.

    Args:
        steps: local steps that it came after.
        step_s: what one of them took, on the mean, seconds.
        exchange_s: from asking for an average to its result, seconds; of all sites, it is of the
            average before, since they tell it with the next, and of the first at this site alone.
        spread: how far the sites' models were apart: the root of the mean square of their distances
            from the mean, over the distance that the mean has moved since the last average. The
            same at all sites; 0 where it was not measured.
    """

    steps: int
    step_s: float
    exchange_s: float
    spread: float = 0.0


class Period(Protocol):
    """How often do sites talk? The parameters, a frozen value.

    Attributes:
        averages: whether models are averaged, between local steps; if not, each step's gradients.
        calls: whether sites may find at different steps that an average is due, so that the first
            calls the others, who join after the step they are at.
        asks_moved: whether the rule needs ``Progress.moved``, which costs a pass over the model.
        shares: whether sites exchange what they have measured, with the model, as three numbers
            more. All rules are then told the same, means over the sites and the spread, and choose
            alike. Otherwise one that waits for another takes the wait for the network's.
    """

    averages: ClassVar[bool]
    calls: ClassVar[bool]
    asks_moved: ClassVar[bool]
    shares: ClassVar[bool]

    def rule(self) -> Rule:
        """Return what follows one site, fresh."""


class Rule(Protocol):
    """A period at one site."""

    def is_due(self, progress: Progress) -> bool:
        """Return whether to average after this step."""

    def averaged(self, averaged: Averaged) -> None:
        """Take note of what an average was like."""

    def state_dict(self) -> dict[str, Any]:
        """Return what later decisions depend on: plain numbers by name."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of a rule of the same period."""


class Memoryless:
    """A rule that decides by a site's progress alone."""

    def averaged(self, averaged: Averaged) -> None:
        """See :class:`anabranch.period.Rule`."""

    def state_dict(self) -> dict[str, Any]:
        """See :class:`anabranch.period.Rule`."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See :class:`anabranch.period.Rule`."""
