"""When a run ends before its last round: rules as a value, and what follows one run by them. Pure.

The rules read what the log reads. A run that one of them stops ends in good order: the exchange in
progress is finished, and the log says why no other follows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from anabranch.record import events
from anabranch.record.events import ReachedBy
from anabranch.record.target import Target


@dataclass(frozen=True)
class StopRules:
    """When a run ends, at whichever comes first.

    Args:
        after_s: seconds since the run began; None for no limit.
        accuracy: once sites have seen that their models have it; None for no target.
        reached_by: whose model counts where sites' models differ; see
            :class:`anabranch.record.target.Target`.
        gossips: whether sites gossip: they then stop on a word, and no round is refused.
    """

    after_s: float | None = None
    accuracy: float | None = None
    reached_by: ReachedBy = "first"
    gossips: bool = False

    def __post_init__(self) -> None:
        if self.after_s is not None and not 0 < self.after_s < math.inf:
            raise ValueError(f"after_s is {self.after_s!r}, must be a number of seconds above 0")

    def follow(self, sites: int) -> Stops:
        """Return what follows one run.

        Args:
            sites: how many have models of their own.
        """
        return Stops(self, sites)


class Stops:
    """Follows a run's events by its stop rules.

    Args:
        rules, sites: see :class:`StopRules`.

    Attributes:
        after_s, gossips: see there.
    """

    def __init__(self, rules: StopRules, sites: int) -> None:
        self.after_s, self.gossips = rules.after_s, rules.gossips
        self._accuracy = rules.accuracy
        self._target: Target | None = None
        if rules.accuracy is not None:
            self._target = Target(rules.accuracy, rules.reached_by, sites)

    def timed_out(self) -> str:
        """Return why the run ends, once ``after_s`` are over."""
        return f"{self.after_s:g} s are over"

    def saw(self, event: events.Event) -> str | None:
        """Take note of what happened; return why the run ends now, None where it does not."""
        if self._target is None:
            return None
        match event:
            case events.Evaluated() if self._target.is_reached(event):
                return f"accuracy {self._accuracy:g} was reached after round {event.round}"
            case events.SiteLost(goes_on=True):
                self._target.lost(event.site)
            case events.SiteJoined():
                self._target.joined()
        return None
