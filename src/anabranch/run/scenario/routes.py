"""Where aggregates travel: routes, dealing and auxiliary paths as tables, and a route's planner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from anabranch import plan as plans
from anabranch._typed_toml import Table
from anabranch.overlay import Overlay
from anabranch.plan import Plan, PlanError
from anabranch.run.scenario._bounds import Positive


class Star(Table, frozen=True, kw_only=True, tag_field="kind", tag="star"):
    """Every site talks to one hub.

    Args:
        hub: a site's name; None for the best.
    """

    hub: str | None = None


class Balanced(Table, frozen=True, kw_only=True, tag_field="kind", tag="balanced"):
    """A balanced tree, laid over the sites whatever their links.

    Args:
        root: a site's name; None for the best.
        arity: the most children of a site.
    """

    root: str | None = None
    arity: Positive = 2


class Spanning(Table, frozen=True, kw_only=True, tag_field="kind", tag="mst"):
    """The maximum-throughput spanning tree.

    Args:
        root: a site's name; None for the best.
    """

    root: str | None = None


class Fapt(Table, frozen=True, kw_only=True, tag_field="kind", tag="fapt"):
    """Fastest aggregation path trees, one for each root.

    Args:
        roots: how many of the best, or the names of the sites; None for every site.
    """

    roots: int | tuple[str, ...] | None = None


class Packed(Table, frozen=True, kw_only=True, tag_field="kind", tag="packed"):
    """Trees packed so that together they use what the network has."""


class FromFile(Table, frozen=True, kw_only=True, tag_field="kind", tag="file"):
    """A plan of your own.

    Args:
        path: of the plan as JSON, as ``anabranch plan --save`` writes it, from the scenario's
            folder.
    """

    path: str


Route = Star | Balanced | Spanning | Fapt | Packed | FromFile


class ByShare(Table, frozen=True, kw_only=True, tag_field="kind", tag="by-share"):
    """Deal all chunks to the trees when the round begins, in proportion to their shares."""


class Adaptive(Table, frozen=True, kw_only=True, tag_field="kind", tag="adaptive"):
    """Give the next chunk to the tree that ended one, while the round goes on.

    Args:
        window: how many chunks may be under way; None for what the plan needs.
    """

    window: Positive | None = None


class Auxiliary(Table, frozen=True, kw_only=True):
    """Further paths between tree neighbours, over links that the trees leave idle.

    Args:
        search: ``disjoint`` finds them for each pair on its own; ``algorithm-3`` is the paper's.
        primary_busy_bound: chunks at which a primary path counts as busy (PRIMARY_BUSY_BOUND).
        auxiliary_queue_length: chunks that an auxiliary path takes (AUXILIARY_QUEUE_LENGTH).
    """

    search: Literal["disjoint", "algorithm-3"] = "disjoint"
    primary_busy_bound: Positive = 2
    auxiliary_queue_length: Positive = 1


def plan_route(
    route: Route,
    overlay: Overlay,
    buffer_elements: int | None = None,
    chunk_elements: int = 1 << 16,
) -> Plan:
    """Plan a scenario's route on an overlay; see :func:`make_planner`.

    Raises:
        OverlayError: the route names a site that the overlay has not got.
        PlanError: there is no such plan.
    """
    return make_planner(route, overlay, buffer_elements, chunk_elements)(overlay, 1, None)


Planner = Callable[[Overlay, int, Plan | None], Plan]


def make_planner(
    route: Route,
    overlay: Overlay,
    buffer_elements: int | None = None,
    chunk_elements: int = 1 << 16,
) -> Planner:
    """Return what plans a route: called with an overlay, a version, and the plan before.

    Args:
        route: how aggregates travel.
        overlay: whose sites it names. Roots that are left to choose are chosen on it, once: a new
            root would need its part of the model moved to it (NetStorm, IV-B).

    Raises:
        OverlayError: the route names a site that the overlay has not got.
        PlanError: there is no such plan.
    """

    def root(name: str | None, plan: Callable[[Overlay], Plan]) -> int:
        return plan(overlay).trees[0].root if name is None else overlay.index(name)

    match route:
        case Star(hub=hub):
            at = root(hub, plans.star)
            return lambda network, version, _: plans.star(network, hub=at, version=version)
        case Balanced(root=name, arity=arity):
            at = root(name, lambda network: plans.balanced(network, arity=arity))
            return lambda network, version, _: plans.balanced(
                network, root=at, arity=arity, version=version
            )
        case Spanning(root=name):
            at = root(name, plans.spanning)
            return lambda network, version, _: plans.spanning(network, root=at, version=version)
        case Fapt(roots=roots):
            if isinstance(roots, tuple):
                chosen = [overlay.index(name) for name in roots]
            else:
                count = overlay.size if roots is None else roots
                chosen = [tree.root for tree in plans.fapt(overlay, roots=count).trees]
            return lambda network, version, _: plans.fapt(network, roots=chosen, version=version)
        case Packed():
            return lambda network, version, previous: plans.packed(
                network,
                size_bytes=None if buffer_elements is None else 4 * buffer_elements,
                chunk_bytes=4 * chunk_elements,
                version=version,
                previous=previous,
            )
        case FromFile(path=path):
            own = _read_plan(path)
            own.check_fits(overlay)
            return lambda network, version, _: replace(own, version=version)


def _read_plan(path: str) -> Plan:
    try:
        return plans.loads(Path(path).read_bytes())
    except (OSError, PlanError) as error:
        raise PlanError(f"{path}: {error}") from None
