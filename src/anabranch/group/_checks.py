"""Whether what a group is served with fits together, and is for a group at all. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch._typed_toml import tag_of
from anabranch.merge import Mean
from anabranch.pace import EqualBatches, TunedBatches
from anabranch.plan import ForestRoute, Plan
from anabranch.scheduler.awareness import Oracle
from anabranch.scheduler.paced import Serve, forest_misfit, groups_misfit, misfit

if TYPE_CHECKING:
    from anabranch.group.service import Service


def check(service: Service, plan: Plan) -> None:
    """Check what a group is to be served with.

    Args:
        service: what with.
        plan: the first.

    Raises:
        ValueError: a setting that does not fit the others, or that scenarios alone support.
    """
    for answer, is_given in (
        ("awareness: an oracle", isinstance(service.awareness, Oracle)),
        ("serving.clients", service.serving.clients is not None),
    ):
        if is_given:
            raise ValueError(
                f"{answer} is for the sites of a scenario, which `anabranch site` starts; give "
                "a group another, or leave it out"
            )
    if service.merge.weighs_data:
        raise ValueError(
            f"merge: {tag_of(service.merge)} asks how many samples sites hold; leave it out, and "
            "let each worker say what its update counts: push(weight=...)"
        )
    if service.least_sites > max(2, service.overlay.size):
        raise ValueError(
            f"least_sites is {service.least_sites}, and there are {service.overlay.size} sites"
        )
    _check_served(service, plan)


def _check_served(service: Service, plan: Plan) -> None:
    serve, load = service.serving.serve, service.load
    names = [site.name for site in service.overlay.sites]
    if unknown := [name for name in serve.only if name not in names]:
        raise ValueError(
            f"serve.only: there is no site {unknown[0]!r}; the sites are {', '.join(names)}"
        )
    if not service.workers:
        raise ValueError("serve.only: it names all sites, so none computes; leave one out")
    if service.pace is None:
        if service.merge != Mean() or serve != Serve() or load != EqualBatches():
            raise ValueError("load, merge and serving.serve are of a served model; give a pace")
        if plan.groups:
            raise ValueError(
                "a forest's trees push to a model that is served, each at its own pace; give a "
                "pace, such as asp, or another route"
            )
        return
    if service.stop.rounds is not None:
        raise ValueError(
            "stop.rounds: a served model ends after so many updates of each worker; give updates, "
            "and leave it out"
        )
    if isinstance(load, TunedBatches) and not 1 <= service.batch_size <= load.most:
        raise ValueError(
            f"batch_size is {service.batch_size}, must be in 1..{load.most} (load.most): "
            "the slowest worker's batch has so many samples"
        )
    route = service.planner
    if plan.groups:
        has_within = isinstance(route, ForestRoute) and route.within is not None
        looks = service.awareness if isinstance(route, ForestRoute) else None
        if why := forest_misfit(has_within, serve, looks):
            raise ValueError(why)
    why = misfit(service.pace, service.merge, serve, bool(plan.groups))
    why = why or groups_misfit(plan, service.workers, names)
    if why is not None:
        raise ValueError(why)
