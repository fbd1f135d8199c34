"""The plan in force, and the three reasons for another: a loss, another size, better measurements.

- **After a loss or a return** (``for_the_rest``, ``use``), a plan for the rest is made at once, in
  the scheduler's thread: members wait for it.
- **For buffers of another order of size** (``seek``), a plan is made in a thread. The exchanges
  that need it wait; others continue.
- **For better measurements** (``_found``), `_replan_loop` compares plans now and then.

Tests and the explorer ask for a plan of another planner (``replan``).

Versions rise over all three. ``_networks`` counts the changes of the network that plans are made
for. A plan that was made in a thread is made again if that number changed meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace

from anabranch import plan as plans
from anabranch.exchange.ranges import Ranges
from anabranch.log import events, units
from anabranch.net.messages import Auxiliary
from anabranch.overlay import Overlay
from anabranch.plan import Plan
from anabranch.scheduler._awaited_bursts import AwaitedBursts
from anabranch.scheduler._measurements import Measurements
from anabranch.scheduler._plans_by_size import order_of
from anabranch.scheduler._policy import Replan, event_of
from anabranch.scheduler._replan_loop import ReplanLoop
from anabranch.scheduler._transfer import shares
from anabranch.scheduler.awareness import Awareness
from anabranch.scheduler.calls._outcome import Outcome
from anabranch.scheduler.losses import Planner
from anabranch.scheduler.run import Run

Path = tuple[int, ...]
Planners = Callable[[int], Planner]
"""Returns the planner for buffers of so many elements."""

_ELEMENT_BYTES = 4


class Planning:
    """Makes further plans during a run.

    Args:
        run: the run.
        plan: the first plan.
        awareness: compares plans for measured links; None if plans do not follow measurements.
        planner: plans after a loss; None if a loss ends the run.
        planners: return the planner for buffers of so many elements; None if one plan serves all
            sizes.
        remember: writes the journal.
        form_groups: called with plans that have other groups, where workers move in groups.

    Attributes:
        leaves: the followers that the latest plan for the rest has as leaves only.
        measurements: takes what sites measure.
        bursts: whose end the first plan for a size of buffers waits for.
    """

    def __init__(
        self,
        run: Run,
        plan: Plan,
        awareness: Awareness | None,
        planner: Planner | None,
        planners: Planners | None,
        remember: Callable[[], None],
        form_groups: Callable[[Replan], None] | None = None,
    ) -> None:
        self._form_groups = form_groups
        self._run = run
        self._awareness = awareness
        self._planner = planner
        self._planners = planners
        self._networks = 0  # the number of changes of the network that plans are made for
        self._sought: dict[int, asyncio.Task[None]] = {}  # by order of size, the search for a plan
        self._remember = remember
        # The auxiliary paths that sites have, and the version of their plan.
        self._auxiliary = plan.version, _flat(plan)
        self._replan_loop: ReplanLoop | None = None  # from the run's beginning on
        self.measurements = Measurements(run, awareness, remember)
        self.bursts = AwaitedBursts(self._rebase)
        self.leaves: frozenset[int] = frozenset()

    @property
    def _believed(self) -> Overlay:
        return self._run.overlay if self._awareness is None else self._awareness.made_for

    def belief(self) -> Overlay:
        """Return the network as believed now."""
        if self._awareness is None:
            return self._run.overlay
        return self._awareness.belief(self._run.since_start_s())

    # --- after a loss

    def for_the_rest(self, newcomers: Collection[int] = (), planner: Planner | None = None) -> Plan:
        """Return a plan without lost sites and links; its version follows the one in force.

        Args:
            newcomers: sites that will follow, beside the present followers.
            planner: makes it; None for the run's.
        """
        planner = planner or self._planner_for(self._run.channels.books.largest_elements)
        followers = {*newcomers} | self._run.channels.following.sites
        plan, self.leaves = self._find(planner, followers)()
        return plan

    def _find(
        self, planner: Planner | None, followers: Collection[int]
    ) -> Callable[[], tuple[Plan, frozenset[int]]]:
        """Return a function that plans for the present losses; it may run in another thread.

        Args:
            planner: makes the plan.
            followers: sites that are to be leaves.

        Returns:
            A function that returns the plan, and the followers that are leaves of it.
        """
        believed = self._believed
        version, losses = self._run.channels.all.plan.version + 1, self._run.losses
        assert planner is not None

        def find() -> tuple[Plan, frozenset[int]]:
            if followers:
                plan = losses.plan_beside(believed, version, planner, followers)
                if plan is not None:
                    return plan, frozenset(followers)
            return losses.plan(believed, version, planner), frozenset()

        return find

    def _planner_for(self, elements: int) -> Planner | None:
        if self._planners is None or not elements:
            return self._planner
        return self._planners(self._run.channels.books.at_once(elements))

    # --- for buffers of another order of size

    def seek(self, elements: int, follow: Callable[[Outcome], None]) -> None:
        """Plan for buffers of an order of size that has no plan.

        Args:
            elements: of the buffers.
            follow: called with the outcome, once there is a plan.
        """
        order = order_of(elements)
        if self._planners is None or self._run.channels.all.plans.of(elements) is not None:
            follow(Outcome())
        elif order not in self._sought:
            looking = self._look_for(elements, follow)
            loop = asyncio.get_running_loop()
            self._sought[order] = loop.create_task(looking, name="plan for another size")

    async def _look_for(self, elements: int, follow: Callable[[Outcome], None]) -> None:
        """Find a plan in a thread, since other exchanges continue meanwhile; then use it."""
        run, order = self._run, order_of(elements)
        try:
            networks = -1
            await self.bursts.wait_until_over()
            while networks != self._networks:  # again, if the network changed meanwhile
                networks = self._networks
                planner = self._planner_for(elements)
                find = self._find(planner, run.channels.following.sites)
                plan, _ = await asyncio.get_running_loop().run_in_executor(None, find)
        except Exception as error:  # any: no other code awaits this task, and the run must end
            run.abort(f"the scheduler failed to plan: {type(error).__name__}: {error}")
            return
        finally:
            del self._sought[order]
        if not run.is_over:
            follow(self._use_for(elements, plan))

    def _use_for(self, elements: int, plan: Plan) -> Outcome:
        """Use a plan for buffers of an order of size; return the outcome."""
        run, channels = self._run, self._run.channels
        main, is_largest = channels.books.main, elements >= channels.books.largest_elements
        same = [
            each
            for each in channels.all.plans.in_use
            if (each.trees, each.routes) == (plan.trees, plan.routes)
        ]
        plan = same[0] if same else replace(plan, version=channels.all.plan.version + 1)
        outcome = channels.add(plan, elements)
        self._remember()
        if not same:
            if run.started_s is not None and run.buffer_elements:  # else the first event has it
                size = units.size(_ELEMENT_BYTES * elements)
                self._write(plan, f"for buffers of the order of {size}")
            paths = _flat(plan) if is_largest else self._auxiliary[1]
            paths = self._beside(paths, plan if is_largest else main)
            if self._auxiliary[1] or paths:  # before an exchange runs under the plan
                run.broadcast(Auxiliary(plan.version, paths))
            self._auxiliary = plan.version, paths
        if is_largest:
            self._plan_on_from(plan, elements)
        return outcome

    def _plan_on_from(self, plan: Plan, elements: int) -> None:
        """Compare further plans with this one from now on."""
        planner = self._planner_for(elements)
        if self._awareness is None or planner is None:
            return
        self._awareness.go_on(self._run.losses, plan, planner)
        if self._replan_loop is not None:
            self._replan_loop.close()
            at_once = self._run.channels.books.at_once(elements)
            self._begin_to_look(self._awareness, _ELEMENT_BYTES * at_once)

    def transfer(
        self, holders: Collection[int], receiver: int, elements: int, version: int
    ) -> list[tuple[int, Ranges, Plan]]:
        """Return which holders send which elements: see :func:`.transfer.shares`."""
        lost, cut = self._run.losses.lost, self._run.losses.cut
        return shares(self._believed, lost, cut, holders, receiver, elements, version)

    def begin_with(self, plan: Plan) -> None:
        """Note the first plan, which sites get with their welcome."""
        self._auxiliary = plan.version, _flat(plan)

    def replan(self, planner: Planner) -> None:
        """Use another planner's trees for what is left of the network, from now on."""
        run = self._run
        if run.is_over or run.started_s is None or run.returning is not None:
            return
        plan = self.for_the_rest(planner=planner)
        self.issue(plan)
        self.use(plan, "another planner was asked for")

    def issue(self, plan: Plan) -> None:
        """Use a plan for exchanges that no member has begun."""
        outcome = self._run.channels.issue(plan)
        self._remember()
        for site, message in outcome.say:
            self._run.post(site, message)

    def use(self, plan: Plan, why: str) -> None:
        """Log a plan that a loss or a return made necessary, and compare further plans with it."""
        self._networks += 1
        self.bursts.over(*self._run.losses.lost)
        if self._run.started_s is not None:  # before that, the log's first event has the plan
            self._write(plan, why)
        if self._auxiliary[1] or plan.auxiliary:  # before an exchange is repaired under the plan
            self._run.broadcast(Auxiliary(plan.version, _flat(plan)))
        self._auxiliary = plan.version, _flat(plan)
        if self._replan_loop is not None:
            self._plan_on_from(plan, self._replan_loop.size_bytes // _ELEMENT_BYTES)

    def _write(self, plan: Plan, why: str) -> None:
        """Log a plan that no measurement caused."""
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

    def _beside(self, paths: tuple[Path, ...], main: Plan) -> tuple[Path, ...]:
        """Return the main plan's paths, and those of other plans in use between other ends."""
        ends = {(path[0], path[-1]) for path in paths}
        others = (
            path
            for plan in self._run.channels.all.plans.in_use
            for path in (() if plan.version == main.version else _flat(plan))
            if (path[0], path[-1]) not in ends
        )
        return (*paths, *dict.fromkeys(others))

    # --- for better measurements

    def begin(self, elements: int, sites: Collection[int]) -> None:
        """Compare plans from the run's beginning on.

        Args:
            elements: of the buffers; 0 if that is not known.
            sites: that begin.
        """
        if self._awareness is not None:
            if self._awareness.begins_with_bursts:
                self.bursts.begin(sites)
            losses, planner = self._run.losses, self._planner_for(elements)
            if planner is not None and (losses.lost or losses.cut):
                self._awareness.go_on(losses, self._run.channels.all.plan, planner)
            self._begin_to_look(self._awareness, _ELEMENT_BYTES * elements)

    def _rebase(self) -> None:
        """Let the first plan for a size be for the network that the bursts show."""
        has_plan = self._planners is None or self._run.buffer_elements
        if self._awareness is not None and not has_plan:  # else the next look compares that plan
            self._awareness.rebase(self._run.since_start_s())
            self._networks += 1

    def begin_again(self) -> None:
        """Compare plans again after a restart of the scheduler."""
        if self._awareness is not None:
            if self._awareness.measured_links:
                self._rebase()
            size_bytes = _ELEMENT_BYTES * self._run.channels.books.largest_at_once
            self._begin_to_look(self._awareness, size_bytes)

    def _begin_to_look(self, awareness: Awareness, size_bytes: int) -> None:
        assert self._run.started_s is not None
        self._replan_loop = ReplanLoop(
            awareness, size_bytes, self._run.started_s, self._found, self._run.abort
        )

    def look_in_time(self) -> None:
        """Make the next look at plans due; called for each message of a site."""
        if self._replan_loop is not None:
            self._replan_loop.look_in_time()

    def exchange_began(self) -> None:
        """Note that buffers may be larger from now on."""
        if self._replan_loop is not None:
            at_once = self._run.channels.books.largest_at_once
            self._replan_loop.size_bytes = _ELEMENT_BYTES * at_once

    def close(self) -> None:
        """Stop all planning in threads."""
        for looking in self._sought.values():
            looking.cancel()
        if self._replan_loop is not None:
            self._replan_loop.close()

    def _found(self, replan: Replan | None, paths: tuple[Path, ...]) -> None:
        """Use the result of a look at plans."""
        if self._run.is_over:
            return
        if self._form_groups is not None:
            if replan is not None:
                self._form_groups(replan)
            return  # groups that stay keep their paths
        if replan is not None:
            # A plan for another size may have taken the next version during the look.
            version = self._run.channels.all.plan.version + 1
            replan = replace(replan, plan=replace(replan.plan, version=version))
            self._networks += 1
            self.issue(replan.plan)
            self._run.note(event_of(replan, self._run.since_start_s()))
            self._auxiliary = version, _flat(replan.plan)  # sites get these paths with the plan
        channels = self._run.channels
        latest = channels.all.plan.version, self._beside(paths, channels.books.main)
        if latest != self._auxiliary:
            self._auxiliary = latest
            self._run.broadcast(Auxiliary(*latest))


def _flat(plan: Plan) -> tuple[Path, ...]:
    return tuple(path for paths in plan.all_auxiliary.values() for path in paths)
