"""The plan in force: how a run gets from what is believed of its network to another plan."""

from __future__ import annotations

from collections.abc import Callable, Collection

from anabranch import plan as plans
from anabranch.net.errors import MalformedMessage, OutOfPlaceMessage
from anabranch.net.messages import Auxiliary, Measured
from anabranch.overlay import Overlay
from anabranch.plan import Plan
from anabranch.record import events
from anabranch.scheduler.awareness import Awareness
from anabranch.scheduler.losses import Planner
from anabranch.scheduler.policy import Replan, event_of
from anabranch.scheduler.replan_loop import ReplanLoop
from anabranch.scheduler.run import LONGEST_S, Run
from anabranch.scheduler.transfer import shares
from anabranch.site.ranges import Ranges

Path = tuple[int, ...]

_ELEMENT_BYTES = 4
_MEASURABLE_BPS = 1.0, 1e15


class Planning:
    """Plans again while a run goes on: for what is left, and for what is measured.

    Args:
        run: whose plans.
        plan: the first.
        awareness: plans again for what is measured; None leaves that.
        planner: plans for what is left where something is lost; None where the run then ends.
        remember: writes down what a restart needs.
        form_groups: called with plans whose groups are others, where workers move in groups.

    Attributes:
        leaves: sites to which the latest plan for what is left gives nothing to do for others.
    """

    def __init__(
        self,
        run: Run,
        plan: Plan,
        awareness: Awareness | None,
        planner: Planner | None,
        remember: Callable[[], None],
        form_groups: Callable[[Replan], None] | None = None,
    ) -> None:
        self._form_groups = form_groups
        self._run = run
        self._awareness = awareness
        self._planner = planner
        self._remember = remember
        self._auxiliary = plan.version, _flat(plan)  # the paths that sites have, of which plan
        self._replan_loop: ReplanLoop | None = None  # from the run's beginning on
        self.leaves: frozenset[int] = frozenset()

    @property
    def _believed(self) -> Overlay:
        return self._run.overlay if self._awareness is None else self._awareness.made_for

    def belief(self) -> tuple[Overlay, frozenset[tuple[int, int]]]:
        """Return what is believed of the network now, and which links were measured."""
        if self._awareness is None:
            return self._run.overlay, frozenset()
        return self._awareness.belief(self._run.since_start_s()), self._awareness.measured_links

    # --- for what is left

    def for_the_rest(self, newcomers: Collection[int] = ()) -> Plan:
        """Return a plan for what is left; its version follows that of the one in force.

        Args:
            newcomers: that are to follow, beside those that do already.
        """
        assert self._planner is not None
        version = self._run.channels.all.plan.version + 1
        losses, followers = self._run.losses, {*newcomers} | self._run.channels.followers
        self.leaves = frozenset()
        if followers:
            plan = losses.plan_beside(self._believed, version, self._planner, followers)
            if plan is not None:
                self.leaves = frozenset(followers)
                return plan
        return losses.plan(self._believed, version, self._planner)

    def transfer(
        self, holders: Collection[int], receiver: int, elements: int, version: int
    ) -> list[tuple[int, Ranges, Plan]]:
        """Return who sends what to a site that lacks it: see :func:`.transfer.shares`."""
        lost, cut = self._run.losses.lost, self._run.losses.cut
        return shares(self._believed, lost, cut, holders, receiver, elements, version)

    def begin_with(self, plan: Plan) -> None:
        """Let a plan be the first, of which all sites are told as they are welcomed."""
        self._auxiliary = plan.version, _flat(plan)

    def use(self, plan: Plan, why: str) -> None:
        """Write down a plan that something lost or found again asked for; plan on from there."""
        self._run.note(
            events.PlanIssued(
                at_s=self._run.since_start_s(),
                version=plan.version,
                plan_json=plans.dumps(plan),
                why=why,
                changed=[],
                before_s=None,
                after_s=None,
            )
        )
        if self._auxiliary[1] or plan.auxiliary:  # before anything is repaired under this plan
            self._run.broadcast(Auxiliary(plan.version, _flat(plan)))
        self._auxiliary = plan.version, _flat(plan)
        if self._awareness is not None and self._replan_loop is not None:
            assert self._planner is not None
            self._replan_loop.close()
            self._awareness.go_on(self._run.losses, plan, self._planner)
            self._begin_to_look(self._awareness, self._replan_loop.size_bytes)

    # --- for what is measured

    def begin(self, elements: int) -> None:
        """Plan again from the run's beginning on, where buffers have so many elements."""
        if self._awareness is not None:
            losses = self._run.losses
            if self._planner is not None and (losses.lost or losses.cut):
                self._awareness.go_on(losses, self._run.channels.all.plan, self._planner)
            self._begin_to_look(self._awareness, _ELEMENT_BYTES * elements)

    def begin_again(self) -> None:
        """Plan again after a restart of the scheduler."""
        if self._awareness is not None:
            size_bytes = _ELEMENT_BYTES * self._run.channels.largest_elements
            self._begin_to_look(self._awareness, size_bytes)

    def _begin_to_look(self, awareness: Awareness, size_bytes: int) -> None:
        assert self._run.started_s is not None
        self._replan_loop = ReplanLoop(
            awareness, size_bytes, self._run.started_s, self._found, self._run.abort
        )

    def look_in_time(self) -> None:
        """See that plans are looked at, as often as they should be while anything happens."""
        if self._replan_loop is not None:
            self._replan_loop.look_in_time()

    def exchange_began(self) -> None:
        """Take note that buffers may be larger from now on."""
        if self._replan_loop is not None:
            self._replan_loop.size_bytes = _ELEMENT_BYTES * self._run.channels.largest_elements

    def close(self) -> None:
        """Look at plans no more."""
        if self._replan_loop is not None:
            self._replan_loop.close()

    def hear(self, site: int, message: Measured) -> None:
        """Take what a site has measured."""
        name = self._run.name(site)
        for rate in message.links:
            if self._run.overlay.link(rate.source, site) is None:
                raise OutOfPlaceMessage(f"{name} measured a link from {rate.source}")
            slow, fast = _MEASURABLE_BPS
            latency_s = 0.0 if rate.latency_s is None else rate.latency_s
            if not slow <= rate.rate_bps <= fast or not 0 <= latency_s <= LONGEST_S:
                raise MalformedMessage(f"{name} measured {rate}")
            self._run.note(
                events.LinkMeasured(
                    at_s=self._run.since_start_s(),
                    site=site,
                    source=rate.source,
                    target=site,
                    rate_bps=rate.rate_bps,
                    latency_s=rate.latency_s,
                    chunks=rate.chunks,
                )
            )
            if self._awareness is not None:
                self._awareness.measured(rate.source, site, rate, self._run.since_start_s())

    def _found(self, replan: Replan | None, paths: tuple[Path, ...]) -> None:
        """Go on with what a look at plans has found."""
        if self._run.is_over:
            return
        if self._form_groups is not None:
            if replan is not None:
                self._form_groups(replan)
            return  # groups that stay keep their paths
        if replan is not None:
            self._run.channels.issue(replan.plan)
            self._remember()
            self._run.note(event_of(replan, self._run.since_start_s()))
            self._auxiliary = replan.plan.version, _flat(replan.plan)  # they come with the plan
        in_force = self._run.channels.all.plan
        if (in_force.version, paths) != self._auxiliary:
            self._auxiliary = in_force.version, paths
            self._run.broadcast(Auxiliary(*self._auxiliary))


def _flat(plan: Plan) -> tuple[Path, ...]:
    return tuple(path for paths in plan.all_auxiliary.values() for path in paths)
