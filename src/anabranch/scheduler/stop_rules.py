"""When a run ends before its last round: rules as a value, and their application to one run. Pure.

The rules read the events of the log. A run that a rule stops ends in good order: the exchange in
progress is finished, and the log has the reason.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from numbers import Integral, Real

from anabranch.log import events
from anabranch.log.events import REACHED_BY, ReachedBy
from anabranch.log.target import Target


@dataclass(frozen=True)
class StopRules:
    """When a run ends: as soon as one of these rules holds.

    Args:
        after_s: seconds since the run began; None for no limit.
        rounds: exchanges among all sites, each an all-reduce, a broadcast or an average. Transfers
            of the state to newcomers do not count. None for no limit. A scenario's sites count
            their rounds themselves.
        accuracy: ends the run once evaluated models have it, in (0, 1]; None for no target.
        loss: ends the run once sites report a loss of at most this; None for no target.
        reached_by: the sites whose models must reach the target, if models differ; see
            :class:`anabranch.log.target.Target`.
        window_s: a value is the mean of what its site told in the latest so many seconds, so that a
            single high one does not end the run; 0: what it told last.
        refuses: whether sites hear of the end by a refused round, in runs that a lost site ends.
            Otherwise one more round may follow, which tells them that it is the last.

    Raises:
        ValueError: an impossible value, or ``reached_by`` or ``window_s`` without a target; names
            it.
    """

    after_s: float | None = None
    rounds: int | None = None
    accuracy: float | None = None
    loss: float | None = None
    reached_by: ReachedBy = "first"
    window_s: float = 0.0
    refuses: bool = False

    def __post_init__(self) -> None:
        after_s, accuracy, loss = self.after_s, self.accuracy, self.loss
        if after_s is not None and not (isinstance(after_s, Real) and 0 < after_s < math.inf):
            raise ValueError(f"after_s is {after_s!r}, must be a number of seconds above 0")
        if self.rounds is not None and not (isinstance(self.rounds, Integral) and self.rounds >= 1):
            raise ValueError(f"rounds is {self.rounds!r}, must be an integer from 1")
        if accuracy is not None and not (isinstance(accuracy, Real) and 0 < accuracy <= 1):
            raise ValueError(f"accuracy is {accuracy!r}, must be above 0 and at most 1")
        if loss is not None and not (isinstance(loss, Real) and math.isfinite(loss)):
            raise ValueError(f"loss is {loss!r}, must be a finite number")
        if self.reached_by not in REACHED_BY:
            raise ValueError(
                f"reached_by is {self.reached_by!r}, must be one of {', '.join(REACHED_BY)}"
            )
        window_s = self.window_s
        if not (isinstance(window_s, Real) and 0 <= window_s < math.inf):
            raise ValueError(f"window_s is {window_s!r}, must be a number of seconds from 0")
        for name, is_given in (("reached_by", self.reached_by != "first"), ("window_s", window_s)):
            if is_given and self.accuracy is None and self.loss is None:
                raise ValueError(f"{name}: there is no target; give accuracy or loss")

    def follow(self, sites: Collection[int], gossips: bool = False) -> Stops:
        """Return the rules applied to one run.

        Args:
            sites: the sites with models of their own.
            gossips: whether sites gossip: a message then stops them, and no exchange is refused.
        """
        return Stops(self, sites, gossips)


class Stops:
    """The stop rules of one run, and the events that they have seen.

    Args:
        rules, sites, gossips: see :class:`StopRules`.

    Attributes:
        after_s, rounds, gossips, refuses: see there.
    """

    def __init__(self, rules: StopRules, sites: Collection[int], gossips: bool) -> None:
        self.after_s, self.rounds, self.gossips = rules.after_s, rules.rounds, gossips
        self.refuses = rules.refuses
        self._rules = rules
        self._sites = frozenset(sites)
        self._present: set[int] = set()

        def target(value: float | None, is_loss: bool) -> Target | None:
            if value is None:
                return None
            return Target(value, rules.reached_by, 0, is_loss, rules.window_s)

        self._accuracy, self._loss = target(rules.accuracy, False), target(rules.loss, True)
        self._targets = [each for each in (self._accuracy, self._loss) if each is not None]

    def timed_out(self) -> str:
        """Return the reason for the log when ``after_s`` are over."""
        return f"{self.after_s:g} s are over"

    def rounds_over(self) -> str:
        """Return the reason for the log when ``rounds`` are over."""
        return "1 round is over" if self.rounds == 1 else f"{self.rounds} rounds are over"

    def saw(self, event: events.Event) -> str | None:
        """Take an event; return the reason why the run ends now, None if it does not."""
        match event:
            case events.RoundDone(round=done) if self.rounds is not None and done >= self.rounds:
                return self.rounds_over()
            case events.Evaluated(round=after) if self._accuracy is not None:
                if self._accuracy.is_reached(event):
                    return f"accuracy {self._rules.accuracy:g} was reached after round {after}"
            case events.StepDone(site=site, round=step, loss=loss, at_s=at_s):
                return self._saw_loss(site, step, math.nan if loss is None else loss, at_s)
            case events.ProceedAsked(site=site, update=step, loss=float(loss), at_s=at_s):
                return self._saw_loss(site, step, loss, at_s)
            case events.SchedulerRestarted(awaited=awaited):
                for site in awaited:
                    self._comes(site)
            case events.SiteJoined(site=site):
                self._comes(site)
            case events.SiteLost(site=site, goes_on=True) if site in self._present:
                self._present.remove(site)
                return self._saw_go([each for each in self._targets if each.lost(site)])
            case events.SiteLeft(site=site) if site in self._present:
                self._present.remove(site)
                return self._saw_go([each for each in self._targets if each.left(site)])
        return None

    def _comes(self, site: int) -> None:
        if site in self._sites and site not in self._present:
            self._present.add(site)
            for target in self._targets:
                target.joined(site)

    def _saw_go(self, reached: list[Target]) -> str | None:
        """Return the reason if the remaining sites reach a target, now that one is gone."""
        if not reached:
            return None
        rules, is_accuracy = self._rules, reached[0] is self._accuracy
        what = f"accuracy {rules.accuracy:g}" if is_accuracy else f"loss {rules.loss:g}"
        return f"{what} was reached by the sites that are left"

    def _saw_loss(self, site: int, step: int, loss: float, at_s: float) -> str | None:
        if self._loss is None or not self._loss.is_reached_by(site, loss, at_s):
            return None
        return f"loss {self._rules.loss:g} was reached at step {step}"
