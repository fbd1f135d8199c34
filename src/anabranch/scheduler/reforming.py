"""Chooses another forest for a run when compute times, the network or the sites change. Pure.

- **Compute times.** A site's is the median of its latest updates.
- **When forests are compared.** A forest counts as outdated if a compute time or a link has changed
  by more than ``update_rate`` since forests were last compared.
- **Which one is taken.** The forest found for the present belief is taken if its workers make
  ``least_gain`` more updates a second and eq. 14 of HAAF does not grow. Eq. 14 counts waiting: by
  it alone, a forest with fewer updates a second may be better.
- **How often.** Forming groups stops their workers for a while. It may take at most a tenth of the
  time, so a better forest waits for its turn.
- **Losses.** A forest that leads through a lost site is replaced at once, without comparison.

``consider`` runs in a thread while the run goes on. ``_taken`` counts the changes that make its
result outdated. ``accept`` refuses a result from before the last change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import replace
from statistics import median

from anabranch import plan as plans
from anabranch.overlay import Overlay
from anabranch.plan import ForestProblem, ForestRoute, PathSearch, Plan
from anabranch.scheduler._policy import Replan, changes, named_changes

_LATEST = 5  # updates of a site, whose median is its compute time
_ENOUGH = 3  # updates of a site before its median counts
LEAST_CHANGE = 0.1
LEAST_GAIN = 0.1
_NAMED = 3  # sites that a reason names
_TRAINS = 9.0  # the time between two formings is at least this many times the time of the first


class Reforming:
    """The forest of a run, what it was made for, and the search for others.

    Args:
        route: finds forests.
        plan: the first forest.
        believed: the network that it was made for.
        compute_s: by worker, the assumed time for an update until it is measured, seconds.
        elements: of the model; None if that is not known before the run.
        update_rate: the least relative change of a link or a compute time that counts.
        least_gain: how many more updates a second another forest must make, relative.
        search: finds auxiliary paths.
        keeps_finished: whether groups that have made all their updates stay beside the new ones,
            because they still get the final model.

    Attributes:
        plan: the forest of the run, or the one to be formed next.
        made_for: the network that it was made for.
    """

    def __init__(
        self,
        route: ForestRoute,
        plan: Plan,
        believed: Overlay,
        compute_s: Mapping[int, float],
        elements: int | None,
        update_rate: float = LEAST_CHANGE,
        least_gain: float = LEAST_GAIN,
        search: PathSearch = lambda overlay, plan: {},
        keeps_finished: bool = False,
    ) -> None:
        self._route = route
        self._find_paths = search
        self._keeps_finished = keeps_finished
        self.plan = plan
        self.made_for = self._belief = believed
        self._elements = elements
        self._update_rate = update_rate
        self._least_gain = least_gain
        self._server = plan.trees[0].root
        self._latest: dict[int, deque[float]] = {site: deque(maxlen=_LATEST) for site in compute_s}
        self._compute_s = {**compute_s}
        self._considered = believed, self._compute_s
        self._lost: frozenset[int] = frozenset()
        self._finished: set[int] = set()
        self._not_before_s = 0.0
        # The number of changes so far that make a search's result outdated, and its value as the
        # last search began.
        self._taken = self._found_after = 0
        self._top = max(plan.version, *(group.plan.version for group in plan.groups))

    def begin(self, elements: int) -> None:
        """Note the size of the model, unless it was known before."""
        self._elements = self._elements or elements

    def computed(self, site: int, seconds: float) -> None:
        """Note how long a worker computed an update."""
        latest = self._latest[site]
        latest.append(seconds)
        if len(latest) >= _ENOUGH:  # a new dict, since a search in a thread may use the old one
            self._compute_s = {**self._compute_s, site: median(latest)}

    def missing(self, lost: Collection[int]) -> None:
        """Set the lost sites; a forest that was searched for with others is refused."""
        self._lost = frozenset(lost)
        self._taken += 1

    def finished(self, workers: Collection[int]) -> None:
        """Note that workers have made all their updates; they may still relay."""
        if workers:
            self._finished.update(workers)
            self._taken += 1  # a forest that was searched for with them is refused

    def _training(self, lost: Collection[int] | None = None) -> set[int]:
        return self._compute_s.keys() - {*(self._lost if lost is None else lost)} - self._finished

    def anyone_trains(self, lost: Collection[int]) -> bool:
        """Return whether a worker that is not lost has updates to make."""
        return bool(self._training(lost))

    def can_lose(self, lost: Collection[int]) -> bool:
        """Return whether the other workers reach the server without some sites."""
        if self._server in lost:
            return False
        rest = plans.remainder(self._belief, lost, around=self._server)
        return self._training(lost) <= {*rest.sites}

    def is_out_of_reach(self, worker: int, lost: Collection[int]) -> bool:
        """Return whether a worker that is back needs lost sites to reach the server."""
        rest = plans.remainder(self._belief, lost, around=self._server)
        return worker in self._compute_s and worker not in rest.sites

    def without(self, lost: Collection[int], why: str) -> Replan:
        """Return a forest without lost sites, which is the run's from now on.

        Args:
            lost: the lost sites.
            why: the reason in words.
        """
        self._lost = frozenset(lost)
        found = self._search(self._belief, self._compute_s)
        self._take(found)
        return Replan(found, why, (), None, None)

    def consider(self, belief: Overlay, size_bytes: float, chunk_bytes: float) -> Replan | None:
        """Return a better forest for the present belief; None if there is none.

        It becomes the run's with ``accept``.

        Args:
            belief: the network as believed now.
            size_bytes, chunk_bytes: of the model and of a chunk, which eq. 14 takes as they are.
        """
        self._belief, compute_s, self._found_after = belief, self._compute_s, self._taken
        was, was_s = self._considered
        changed = changes(was, belief, self._update_rate)
        slower = [
            site
            for site, seconds in compute_s.items()
            if abs(seconds - was_s[site]) > self._update_rate * was_s[site]
        ]
        if not self._training() or not (changed or slower):
            return None
        self._considered = belief, compute_s
        problem = self._problem(belief, compute_s)
        before = plans.forest_costs(problem, self.plan)
        if not before.updates_per_s:
            return None  # the training workers are in no tree yet: groups are being formed
        found = self._search(belief, compute_s)
        after = plans.forest_costs(problem, found)
        enough_per_s = (1 + self._least_gain) * before.updates_per_s
        if after.updates_per_s < enough_per_s or after.objective_s > before.objective_s:
            return None
        reasons = [*named_changes(belief, changes(self.made_for, belief, self._update_rate))]
        reasons += [
            f"{belief.sites[site].name} computes for {compute_s[site]:.3g} s instead of "
            f"{was_s[site]:.3g} s"
            for site in slower[:_NAMED]
        ]
        reasons.append(
            f"{after.updates_per_s:.3g} updates a second instead of {before.updates_per_s:.3g}, "
            f"and eq. 14 is {after.objective_s:.3g} s instead of {before.objective_s:.3g} s"
        )
        return Replan(found, "; ".join(reasons), changed, before.objective_s, after.objective_s)

    def accept(self, replan: Replan, is_free: bool, now_s: float) -> bool:
        """Make a found forest the run's; return whether it is.

        It is refused while groups are being formed, soon after that, or if the run has changed
        since the search began. The next look then searches again.

        Args:
            replan: what ``consider`` returned.
            is_free: whether no groups are being formed.
            now_s: the time.
        """
        is_free &= now_s >= self._not_before_s
        if not is_free or self._found_after != self._taken:
            self._considered = self.made_for, dict.fromkeys(self._compute_s, 0.0)
            return False
        self._take(replan.plan)
        return True

    def formed(self, began_s: float, now_s: float) -> None:
        """Note the time from the choice of a forest until its groups began."""
        self._not_before_s = now_s + _TRAINS * (now_s - began_s)

    def _take(self, plan: Plan) -> None:
        self.plan, self.made_for = plan, self._belief
        self._taken += 1
        self._top = max(plan.version, *(group.plan.version for group in plan.groups), self._top)

    def _problem(self, belief: Overlay, compute_s: Mapping[int, float]) -> ForestProblem:
        left = {site: compute_s[site] for site in sorted(self._training())}
        return self._route.problem(belief, self._server, left, self._elements)

    def _search(self, belief: Overlay, compute_s: Mapping[int, float]) -> Plan:
        """Return a forest without lost sites; groups that stay keep their plans."""
        lost = self._lost  # read once: another thread may replace it meanwhile
        rest = plans.remainder(belief, lost, around=self._server)
        place = {site: index for index, site in enumerate(rest.sites)}
        left = {place[site]: compute_s[site] for site in sorted(self._training(lost))}
        route = self._route.among({rest.overlay.sites[site].name for site in left})
        problem = route.problem(rest.overlay, place[self._server], left, self._elements)
        found = route.formed(problem, self._top + 1)
        found = rest.widen(plans.with_auxiliary(found, rest.overlay, self._find_paths))
        found = plans.with_kept_groups(found, self.plan, lost)
        if not self._keeps_finished:
            return found
        done = (group for group in self.plan.groups if self._finished.issuperset(group.workers))
        return replace(found, groups=(*found.groups, *done))
