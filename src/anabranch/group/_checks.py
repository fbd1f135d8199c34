"""Whether what a group is served with fits together, and is for a group at all. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch._typed_toml import tag_of
from anabranch.merge import AnyMerge, Mean
from anabranch.pace import AnyPace, EqualBatches, TunedBatches
from anabranch.plan import ForestRoute, Plan
from anabranch.scheduler.awareness import Oracle
from anabranch.scheduler.deal import Adaptive
from anabranch.scheduler.paced import (
    Serve,
    forest_misfit,
    groups_misfit,
    misfit,
    unfit_for_letters,
)

if TYPE_CHECKING:
    from anabranch.group.service import Service

NO_JOURNAL = (
    "journal: neighbours that gossip go by what they told each other, which no journal has, so the "
    "group ends with its scheduler; leave the journal or gossip out"
)


def check(service: Service, plan: Plan, has_journal: bool) -> None:
    """Check what a group is to be served with.

    Args:
        service: what with.
        plan: the first.
        has_journal: whether the scheduler keeps one.

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
            "let each site say what its update counts, push(weight=...), or its model, "
            "gossip(weight=...)"
        )
    if service.least_sites > max(2, service.overlay.size):
        raise ValueError(
            f"least_sites is {service.least_sites}, and there are {service.overlay.size} sites"
        )
    if service.gossip is not None:
        check_gossips(service.pace, service.merge, service.begin_with)
        if has_journal:
            raise ValueError(NO_JOURNAL)
        if service.stop.rounds is not None:
            raise ValueError(
                "stop.rounds: sites that gossip hold no rounds; let each leave its loop after so "
                "many steps, or give stop.after_s"
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
        if serve != Serve() or load != EqualBatches():
            raise ValueError("load and serving.serve are of a served model; give a pace")
        if service.merge != Mean() and service.gossip is None:
            raise ValueError(
                "merge is of a served model, or of sites that gossip; give a pace or gossip"
            )
        if plan.groups:
            raise ValueError(
                "a forest's trees push to a model that is served, each at its own pace; give a "
                "pace, such as asp, or another route"
            )
        return
    if isinstance(service.deal, Adaptive):
        raise ValueError(
            "deal: where the model is served, its chunks stay with their trees; leave it out"
        )
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


def check_gossips(pace: AnyPace | None, merge: AnyMerge, begin_with: int | None) -> None:
    """Check that a group can gossip, with these settings of it.

    Raises:
        ValueError: it cannot; names the setting, and what to do.
    """
    if pace is not None:
        raise ValueError(
            "pace: sites that gossip have no servers, and mix models with neighbours alone; leave "
            "pace or gossip out"
        )
    if begin_with is not None:
        raise ValueError(
            "begin_with: a group that gossips begins with all of its sites, and lets none in "
            "later; leave begin_with or gossip out"
        )
    if (why := unfit_for_letters(merge)) is not None:
        raise ValueError(why)
