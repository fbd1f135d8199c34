"""Decides whether to replace the plan in force after a change of the belief. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from anabranch import plan as plans
from anabranch.log import events
from anabranch.overlay import Basis, Overlay
from anabranch.plan import Plan, predict, steady_rate_bps

Planner = Callable[[Overlay, int, Plan], Plan]
"""Makes a plan: called with the network as believed, the new version, and the plan in force."""

_NAMED = 3  # links that a reason names


@dataclass(frozen=True, slots=True)
class LinkChange:
    """A link whose believed goodput has changed.

    Args:
        source, target: the link's two sites.
        was_bps: the goodput that the plan in force was made for, bit/s.
        now_bps: the goodput believed now, bit/s.
        was, now: the basis of each.
    """

    source: int
    target: int
    was_bps: float
    now_bps: float
    was: Basis = "given"
    now: Basis = "given"


@dataclass(frozen=True, slots=True)
class Replan:
    """A new plan, and why it is better.

    Args:
        plan: the new plan; its version is one above the last.
        why: the reason in words, for logs and reports.
        changed: the changed links, the largest ratio first.
        before_s, after_s: predicted time of a round under the old and under the new plan, on the
            network as believed now, seconds; of a forest, eq. 14 of HAAF. None if the old plan is
            unusable.
    """

    plan: Plan
    why: str
    changed: tuple[LinkChange, ...]
    before_s: float | None
    after_s: float | None


class Policy:
    """The plan in force and the network it was made for; decides when to replace the plan.

    The network counts as changed if some link's believed goodput differs by more than
    ``update_rate`` from its value when plans were last compared. Then a plan is made for the new
    belief. It is taken if it shortens the predicted round by more than ``least_gain``. Otherwise
    the plan in force stays, and the same belief is not considered again. NetStorm (VIII-B) takes
    every new plan, even if only measurement noise caused it; ``-math.inf`` does the same.

    Rounds are predicted by :func:`anabranch.plan.predict`, not by the steady rate alone. Plans for
    one network differ in depth as often as in bottleneck, and filling the pipeline takes about as
    long as a gain of 2 % saves. A prediction costs 1 ms at 9 sites and 9 trees, 40 ms at 200 sites
    and 10 trees, 0.8 s at 200 and 200. The steady rate is ten times cheaper and bounds a round from
    below. It saves the second prediction if a new plan cannot be better.

    Args:
        plan: the plan in force.
        made_for: the network it was made for.
        planner: makes a plan for a network.
        update_rate: relative change of a link that counts (UPDATE_RATE), >= 0. At 0, the paper's
            value, every change does.
        least_gain: relative gain that a new plan must promise, in [0, 1); ``-math.inf`` takes
            every plan that differs from the one in force.

    Raises:
        PlanError: the plan does not fit the network.
        ValueError: an argument outside its range.
    """

    def __init__(
        self,
        plan: Plan,
        made_for: Overlay,
        planner: Planner,
        *,
        update_rate: float = 0.0,
        least_gain: float = 0.02,
    ) -> None:
        is_gain = 0 <= least_gain < 1 or least_gain == -math.inf
        if not 0 <= update_rate < math.inf or not is_gain:
            raise ValueError(
                f"update_rate is {update_rate:g} and least_gain {least_gain:g}; give update_rate "
                ">= 0 and least_gain in [0, 1), or -inf for every plan"
            )
        plan.check_fits(made_for)
        self._plan = plan
        self._made_for = made_for
        self._considered = made_for
        self._planner = planner
        self._update_rate = update_rate
        self._least_gain = least_gain

    @property
    def plan(self) -> Plan:
        """The plan in force: the first, or the last that `consider` returned."""
        return self._plan

    @property
    def made_for(self) -> Overlay:
        """The network that the plan in force was made for."""
        return self._made_for

    def go_on(self, plan: Plan, planner: Planner) -> Policy:
        """Return the policy for a new plan and planner, after a loss made them necessary."""
        return Policy(
            plan,
            self._considered,
            planner,
            update_rate=self._update_rate,
            least_gain=self._least_gain,
        )

    def rebase(self, belief: Overlay) -> None:
        """Compare later beliefs with this one; the next plan is made for it."""
        self._made_for = self._considered = belief

    def consider(self, belief: Overlay, size_bytes: float, chunk_bytes: float) -> Replan | None:
        """Return a better plan, which is in force from now on; None if there is none.

        Args:
            belief: the network as believed now, with the sites and links it always had.
            size_bytes: of the flat buffer.
            chunk_bytes: the most bytes of a chunk.

        Raises:
            PlanError: the planner found no plan, or a plan uses a link that is not there.
            ValueError: the planner gave its plan another version than it was told to.
        """
        if not changes(self._considered, belief, self._update_rate):
            return None
        self._considered = belief
        version = self._plan.version + 1
        plan = self._planner(belief, version, self._plan)
        if plan.version != version:
            raise ValueError(
                f"the planner made version {plan.version}, asked for {version}; pass the version on"
            )
        if (plan.trees, plan.routes) == (self._plan.trees, self._plan.routes):
            return None
        before_s = predict(self._plan, belief, size_bytes, chunk_bytes=chunk_bytes).contention_s
        enough_s = before_s * (1 - self._least_gain)
        if 8 * size_bytes / steady_rate_bps(plan, belief) >= enough_s:
            return None
        after_s = predict(plan, belief, size_bytes, chunk_bytes=chunk_bytes).contention_s
        if after_s >= enough_s:
            return None
        changed = changes(self._made_for, belief, self._update_rate)
        self._plan, self._made_for = plan, belief
        why = _why(belief, changed, before_s, after_s)
        return Replan(plan, why, changed, before_s, after_s)


def changes(was: Overlay, now: Overlay, update_rate: float) -> tuple[LinkChange, ...]:
    """Return the links whose goodput changed by more than a share of its former value.

    The largest ratio comes first. Links that only one of the overlays has are left out.
    """
    found = []
    for link in now:
        before = was.link(link.source, link.target)
        if before is None:
            continue
        was_bps, now_bps = before.goodput_bps, link.goodput_bps
        if abs(now_bps - was_bps) > update_rate * was_bps:
            change = LinkChange(
                link.source, link.target, was_bps, now_bps, before.basis, link.basis
            )
            found.append(change)
    found.sort(key=lambda change: -abs(math.log(change.now_bps / change.was_bps)))
    return tuple(found)


def _why(belief: Overlay, changed: tuple[LinkChange, ...], before_s: float, after_s: float) -> str:
    """Return the reason: ``dc3->dc4 fell from 127 to 22 Mbit/s; a round should take ...``."""
    parts = named_changes(belief, changed)
    parts.append(f"a round should take {after_s:.3g} s instead of {before_s:.3g} s")
    return "; ".join(parts)


def named_changes(belief: Overlay, changed: tuple[LinkChange, ...]) -> list[str]:
    """Return the changes in words, the first ones by name, without changes to an assumed rate."""
    known = [change for change in changed if change.now != "assumed"]
    parts = [_named_change(belief, change) for change in known[:_NAMED]]
    if more := len(known) - len(parts):
        parts.append(f"{more} more link{'s' if more > 1 else ''} changed")
    return parts


def _named_change(belief: Overlay, change: LinkChange) -> str:
    source, target = (belief.sites[i].name for i in (change.source, change.target))
    was, now = (f"{bps / 1e6:.3g}" for bps in (change.was_bps, change.now_bps))
    if change.was == "assumed":
        return f"{source}->{target} carries {now} Mbit/s, as {change.now}"
    moved = "fell" if change.now_bps < change.was_bps else "rose"
    return f"{source}->{target} {moved} from {was} to {now} Mbit/s"


def event_of(replan: Replan, at_s: float) -> events.PlanIssued:
    """Return the log's event for a new plan."""
    return events.PlanIssued(
        at_s=at_s,
        version=replan.plan.version,
        plan_json=plans.dumps(replan.plan),
        why=replan.why,
        changed=[
            events.LinkChanged(
                source=change.source,
                target=change.target,
                was_bps=None if change.was == "assumed" else change.was_bps,
                now_bps=change.now_bps,
            )
            for change in replan.changed
            if change.now != "assumed"
        ],
        before_s=replan.before_s,
        after_s=replan.after_s,
    )
