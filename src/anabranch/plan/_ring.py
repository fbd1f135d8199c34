"""The ring: each site sends to the next (gloo's and NCCL's all-reduce)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import ClassVar

from anabranch._typed_toml import Table
from anabranch.overlay import Overlay
from anabranch.plan._load import steady_rate_bps
from anabranch.plan._model import NO_PARENT, Plan, PlanError, Tree
from anabranch.plan._planner import CHUNK_ELEMENTS
from anabranch.plan._ring_order import best_order
from anabranch.plan._routes import relay_routes

_Edge = tuple[int, int]

_FASTER = 1 + 1e-9  # than rounding


class Ring(Table, frozen=True, kw_only=True, tag_field="kind", tag="ring"):
    """Each site sends to the next one round a ring.

    Args:
        order: names of all sites; each sends to the next, and the last to the first. None for the
            best order.
        both_ways: whether half of the buffer goes round the other way; None for the faster choice.
    """

    order: tuple[str, ...] | None = None
    both_ways: bool | None = None
    deep: ClassVar[bool] = True
    by_size: ClassVar[bool] = False

    def plan(
        self,
        overlay: Overlay,
        *,
        version: int = 1,
        previous: Plan | None = None,
        elements: int | None = None,
        chunk_elements: int = CHUNK_ELEMENTS,
    ) -> Plan:
        """See :class:`anabranch.plan.Planner`."""
        order = None if self.order is None else [overlay.index(name) for name in self.order]
        return ring(overlay, order=order, both_ways=self.both_ways, version=version)


def ring(
    overlay: Overlay,
    *,
    order: Sequence[int] | None = None,
    both_ways: bool | None = None,
    version: int = 1,
) -> Plan:
    """Plan a ring all-reduce: ways up do the reduce-scatter, ways down the all-gather.

    Each site is the root of an equal share. The sums of a share begin at the site after the root
    and go once round to the root; each site adds its own. The mean goes from the root once round
    the same way. So each directed link of the ring carries ``2 (n - 1) / n`` of the buffer.

    Args:
        overlay: n sites. Neighbours without a link get a relay route.
        order: all sites, each sending to the next. None for the order of the highest steady rate,
            and in a tie the least latency all round. Up to nine sites, that is the best of all
            orders; beyond, a search improves orders in steps (:mod:`anabranch.plan._ring_order`).
        both_ways: whether half of each share goes round the other way. Links that are as fast one
            way as the other then carry twice as much. Where links are not, a ring along the fast
            directions may be faster. None for the higher steady rate, one way if they tie.
        version: the plan's.

    Raises:
        PlanError: the order does not name every site exactly once.
    """
    if order is not None and sorted(order) != [*range(overlay.size)]:
        raise PlanError(_not_all_once(overlay, order))
    pairs = permutations(range(overlay.size), 2)
    ways = relay_routes(overlay, pairs if order is None else _neighbours(order, both_ways=True))

    def planned(both_ways: bool) -> Plan:
        found = order or best_order(overlay, ways, both_ways=both_ways)
        return _ring(found, ways, both_ways, version)

    if both_ways is not None:
        return planned(both_ways)
    one, both = planned(False), planned(True)
    is_faster = steady_rate_bps(both, overlay) > _FASTER * steady_rate_bps(one, overlay)
    return both if is_faster else one


def _not_all_once(overlay: Overlay, order: Sequence[int]) -> str:
    wrong = []
    for site in sorted({*range(overlay.size), *order}):
        if site not in range(overlay.size):
            wrong.append(f"{site} is no site")
        elif (times := order.count(site)) != 1:
            name = overlay.sites[site].name
            wrong.append(
                f"{name!r} is missing" if not times else f"{name!r} is there {times} times"
            )
    return f"the order of a ring must name every site once: {', '.join(wrong)}"


def _neighbours(order: Sequence[int], both_ways: bool) -> list[_Edge]:
    """Return the ring's directed edges, as (sender, receiver)."""
    onwards = [*zip(order, [*order[1:], *order[:1]], strict=True)] if len(order) > 1 else []
    return [*onwards, *((target, source) for source, target in onwards if both_ways)]


def _ring(
    order: Sequence[int], ways: Mapping[_Edge, tuple[int, ...]], both_ways: bool, version: int
) -> Plan:
    n = len(order)
    after, before = [NO_PARENT] * n, [NO_PARENT] * n
    for source, target in _neighbours(order, both_ways=False):
        after[source], before[target] = target, source
    turns = [(after, before), (before, after)] if both_ways and n > 1 else [(after, before)]
    share = 1 / (n * len(turns))
    trees = tuple(_tree(root, share, *turn) for root in range(n) for turn in turns)
    used = sorted({edge for edge in _neighbours(order, both_ways) if edge in ways})
    label = "ring, both ways" if both_ways else "ring"
    return Plan(version, trees, {edge: ways[edge] for edge in used}, label)


def _tree(root: int, share: float, after: Sequence[int], before: Sequence[int]) -> Tree:
    up, down = [*after], [*before]
    up[root] = down[root] = NO_PARENT
    return Tree(root, share, tuple(up), tuple(down))
