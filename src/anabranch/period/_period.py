"""The period protocol: after each local step, a period decides whether to average.

Between two averages a site makes local steps: its own optimiser uses its own gradients. A period
decides after which local steps the sites average their models. It never touches a model, a clock or
a connection; the caller passes in all that it needs.

It has two parts: a *period* is the parameters, a frozen value as in a scenario file; its *rule*
holds the state of one site.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol


@dataclass(frozen=True, slots=True)
class Progress:
    """A site's progress after a local step.

    Args:
        steps: local steps since the last average began, this one included.
        moved: the norm of the model's change since the last average, over the norm of the model
            then. 0 where the period does not ask for it.
        is_called: whether another site has begun the next average, and waits.
        seconds: of these steps.
    """

    steps: int
    moved: float = 0.0
    is_called: bool = False
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Averaged:
    """Measurements of an average: of one site or, where the period shares them, of all sites.

    Args:
        steps: local steps before it.
        step_s: mean seconds of one of these steps.
        exchange_s: seconds from the request of an average to its result. Where sites share it, it
            is of the average before, since they send it with the next; after the first average it
            is this site's own.
        spread: the root of the mean square of the models' distances from their mean, over the
            distance that the mean has moved since the last average. The same at all sites; 0 where
            it was not measured.
    """

    steps: int
    step_s: float
    exchange_s: float
    spread: float = 0.0


class Period(Protocol):
    """How often sites average: the parameters, a frozen value.

    Attributes:
        averages: whether sites average models between local steps. If not, they average the
            gradients of each step.
        calls: whether an average may become due at different steps at different sites. Then the
            first site calls the others, which join after their current step.
        asks_moved: whether the rule needs ``Progress.moved``, which costs a pass over the model.
        shares: whether sites send their measurements with the model, as three more numbers. All
            rules then get the same values, means over the sites and the spread, and choose alike.
            Otherwise a site that waits for another takes the wait for the network's time.
    """

    averages: ClassVar[bool]
    calls: ClassVar[bool]
    asks_moved: ClassVar[bool]
    shares: ClassVar[bool]

    def rule(self) -> Rule:
        """Return a new rule, for one site."""


class Rule(Protocol):
    """A period at one site."""

    def is_due(self, progress: Progress) -> bool:
        """Return whether to average after this step."""

    def averaged(self, averaged: Averaged) -> None:
        """Record the measurements of an average."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that later decisions depend on: plain numbers by name."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of a rule of the same period."""


class Memoryless:
    """A rule that decides by a site's progress alone."""

    def averaged(self, averaged: Averaged) -> None:
        """See :class:`anabranch.period.Rule`."""

    def state_dict(self) -> dict[str, Any]:
        """See :class:`anabranch.period.Rule`."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See :class:`anabranch.period.Rule`."""
