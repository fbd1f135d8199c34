"""Checks of a group's settings: each alone, and whether they fit together. Pure."""

from __future__ import annotations

import math
from numbers import Integral, Real
from operator import attrgetter
from typing import TYPE_CHECKING, Any, get_args

from anabranch._typed_toml import BadInput, tag_of
from anabranch.merge import AnyMerge, Mean
from anabranch.overlay import Overlay
from anabranch.pace import AnyLoad, AnyPace, EqualBatches, StatedBatches, TunedBatches
from anabranch.period import Gossip
from anabranch.plan import LEAST_CHUNK_ELEMENTS, Auxiliary, ForestRoute, Plan
from anabranch.scheduler.awareness import AnyAwareness, Oracle
from anabranch.scheduler.deal import Adaptive, AnyDeal, cuts_tensors
from anabranch.scheduler.paced import (
    Serve,
    forest_misfit,
    groups_misfit,
    misfit,
    unfit_for_letters,
)
from anabranch.scheduler.served_pace import LastTo
from anabranch.scheduler.stop_rules import StopRules

if TYPE_CHECKING:
    from anabranch.group.service import Service

NO_JOURNAL = (
    "journal: neighbours that gossip exchange state that no journal has, so the group ends with "
    "its scheduler; leave the journal or gossip out"
)


_KINDS: dict[str, tuple[Any, str]] = {
    "overlay": (Overlay, "an Overlay, such as anabranch.overlay.load(...) returns"),
    "awareness": (AnyAwareness | None, "a value of anabranch.scheduler.awareness, or None"),
    "auxiliary": (Auxiliary | None, "an anabranch.plan.Auxiliary, or None"),
    "deal": (AnyDeal | None, "a value of anabranch.scheduler.deal, or None"),
    "pace": (AnyPace | None, "a value of anabranch.pace, such as Asp(), or None"),
    "load": (AnyLoad, "EqualBatches(), StatedBatches(...) or TunedBatches(...) of anabranch.pace"),
    "merge": (AnyMerge, "a value of anabranch.merge, such as Mean()"),
    "gossip": (Gossip | None, "an anabranch.period.Gossip, or None"),
    "stop": (StopRules, "an anabranch.scheduler.stop_rules.StopRules"),
}
LEAST_SITES = 2
_LEAST: dict[str, int] = {
    "updates": 1,
    "batch_size": 0,
    "model_elements": 1,
    "under_way_bytes": 1,
    "chunk_elements": 1,
    "least_chunk_elements": 1,
    "least_sites": 1,
    "begin_with": 1,
}
_MAY_BE_NONE = {"model_elements", "under_way_bytes", "chunk_elements", "begin_with", "silence_s"}
_WORDS: dict[str, tuple[str, ...]] = {
    "on_loss": ("complete", "retry", "abort"),
    "on_error": ("lose", "abort"),
    "serving.last_to": get_args(LastTo),
}


class ServiceError(BadInput):
    """A group's settings do not fit together; the message names the setting."""


def check_values(service: Service, serving: type, machines: type) -> None:
    """Check each setting alone, of a group's service or of a scenario's.

    Args:
        service: the settings.
        serving, machines: the classes of these two settings.

    Raises:
        TypeError: a setting is of another type; names it.
        ValueError: a number or word is invalid; names the setting.
    """
    ours = {"serving": (serving, "a Serving"), "machines": (machines, "a Machines")}
    for name, (kind, shown) in (_KINDS | ours).items():
        if not isinstance(value := getattr(service, name), kind):
            raise TypeError(f"{name} is {value!r}, must be {shown}")
    if isinstance(service.planner, type) or not hasattr(service.planner, "plan"):
        raise TypeError(
            f"planner is {service.planner!r}, must be a planner of anabranch.plan, such as Packed()"
        )
    for name, words in _WORDS.items():
        if (value := attrgetter(name)(service)) not in words:
            raise ValueError(f"{name} is {value!r}, must be one of {', '.join(words)}")
    for name, least in _LEAST.items():
        value = getattr(service, name)
        is_whole = isinstance(value, Integral) and int(value) >= least
        if not is_whole and not (value is None and name in _MAY_BE_NONE):
            raise ValueError(f"{name} is {value!r}, must be an integer from {least}")
    for name in ("silence_s", "stillness_s", "away_s"):
        value = getattr(service, name)
        is_seconds = isinstance(value, Real) and 0 < float(value) < math.inf
        if not is_seconds and not (value is None and name in _MAY_BE_NONE):
            raise ValueError(f"{name} is {value!r}, must be a number of seconds above 0")


def check(service: Service, plan: Plan, has_journal: bool) -> None:
    """Check that a group's settings fit together.

    Args:
        service: the settings.
        plan: the first plan.
        has_journal: whether the scheduler keeps a journal.

    Raises:
        ServiceError: a setting does not fit the others, or is for scenarios alone.
    """
    serving = service.serving
    for answer, is_given in (
        ("awareness: an oracle", isinstance(service.awareness, Oracle)),
        ("serving.clients", serving.clients is not None),
        ("serving.seed", serving.seed != 0),
        ("serving.look_every_s", serving.look_every_s is not None),
    ):
        if is_given:
            raise ServiceError(
                f"{answer} is for the sites of a scenario, which `anabranch site` starts; leave it "
                "out of a group's service"
            )
    if service.merge.weighs_data:
        raise ServiceError(
            f"merge: {tag_of(service.merge)} asks how many samples sites hold; leave it out, and "
            "let each site weigh its update by push(weight=...), or its model by "
            "gossip(weight=...)"
        )
    if service.chunk_elements and service.least_chunk_elements != LEAST_CHUNK_ELEMENTS:
        raise ServiceError(
            "least_chunk_elements bounds chunks whose size follows the buffer and the plan, and "
            "chunk_elements gives all chunks one size; leave one of them out"
        )
    if service.on_loss == "abort" and service.least_sites != LEAST_SITES:
        raise ServiceError(
            'least_sites: on_loss = "abort" ends the group at the first loss; give on_loss = '
            '"complete" or "retry", or leave least_sites out'
        )
    if service.least_sites > max(2, service.overlay.size):
        raise ServiceError(
            f"least_sites is {service.least_sites}, and there are {service.overlay.size} sites"
        )
    _check_beginning(service)
    if cuts_tensors(service.deal) and (service.pace is not None or service.gossip is not None):
        raise ServiceError(
            'deal.cut: "tensors" is of all-reduces, and this group serves a model or gossips; '
            "leave it out"
        )
    if service.gossip is not None:
        check_gossips(service.pace, service.merge, service.begin_with)
        if has_journal:
            raise ServiceError(NO_JOURNAL)
        if service.stop.rounds is not None:
            raise ServiceError(
                "stop.rounds: sites that gossip hold no rounds; let each leave its loop after so "
                "many steps, or give stop.after_s"
            )
    _check_served(service, plan)


def _check_beginning(service: Service) -> None:
    begin_with, sites = service.begin_with, service.overlay.size
    if begin_with is None:
        return
    if service.on_loss == "abort":
        raise ServiceError(
            'begin_with is not for a group that a loss ends; give on_loss = "complete" or "retry", '
            "or leave begin_with out"
        )
    if begin_with > sites:
        raise ServiceError(f"begin_with is {begin_with}, and there are {sites} sites")
    if begin_with < service.least_sites and sites >= service.least_sites > 2:
        raise ServiceError(
            f"begin_with is {begin_with}, and with fewer than least_sites = {service.least_sites} "
            "the group ends; give begin_with as many at least, or leave one of them out"
        )


def check_unserved(load: AnyLoad, serve: Serve, updates: int, batch_size: int) -> None:
    """Check that settings of a served model are not given where no model is served.

    Raises:
        ServiceError: such a setting is given; names it.
    """
    for name, value, usual in (
        ("load", load, EqualBatches()),
        ("serve", serve, Serve()),
        ("updates", updates, 1),
        ("batch_size", batch_size, 0),
    ):
        if value != usual:
            raise ServiceError(f"{name} is of a served model; give a pace, or leave it out")


def _check_served(service: Service, plan: Plan) -> None:
    serve, load = service.serving.serve, service.load
    names = service.overlay.names
    if unknown := [name for name in serve.only if name not in names]:
        raise ServiceError(
            f"serve.only: there is no site {unknown[0]!r}; the sites are {', '.join(names)}"
        )
    if not service.workers:
        raise ServiceError("serve.only: it names all sites, so none computes; leave one out")
    if service.pace is None:
        check_unserved(load, serve, service.updates, service.batch_size)
        if service.serving.last_to != "all":
            raise ServiceError("serving.last_to is of a served model; give a pace, or leave it out")
        if service.merge != Mean() and service.gossip is None:
            raise ServiceError(
                "merge is of a served model, or of sites that gossip; give a pace or gossip"
            )
        if plan.groups:
            raise ServiceError(
                "a forest's trees push to a model that is served, each at its own pace; give a "
                "pace, such as asp, or another route"
            )
        return
    if isinstance(service.deal, Adaptive):
        raise ServiceError(
            "deal: where the model is served, its chunks stay with their trees; leave it out"
        )
    if service.stop.rounds is not None:
        raise ServiceError(
            "stop.rounds: a served model ends after so many updates of each worker; give updates, "
            "and leave it out"
        )
    stated = load.samples if isinstance(load, StatedBatches) else {}
    if unknown := [name for name in stated if name not in names]:
        raise ServiceError(
            f"load.samples: there is no site {unknown[0]!r}; the sites are {', '.join(names)}"
        )
    if stated and not service.batch_size and len(stated) < len(service.workers):
        raise ServiceError(
            "load.samples: it does not name all workers, and batch_size is 0; give batch_size, the "
            "samples of the other workers' batches"
        )
    if isinstance(load, TunedBatches) and not 1 <= service.batch_size <= load.most:
        raise ServiceError(
            f"batch_size is {service.batch_size}, must be in 1..{load.most} (load.most): "
            "the slowest worker's batch has so many samples"
        )
    route = service.planner
    if plan.groups:
        has_within = isinstance(route, ForestRoute) and route.within is not None
        looks = service.awareness if isinstance(route, ForestRoute) else None
        if why := forest_misfit(has_within, serve, looks):
            raise ServiceError(why)
    why = misfit(service.pace, service.merge, serve, bool(plan.groups))
    why = why or groups_misfit(plan, service.workers, names)
    if why is not None:
        raise ServiceError(why)


def check_gossips(pace: AnyPace | None, merge: AnyMerge, begin_with: int | None) -> None:
    """Check that a group with these settings can gossip.

    Raises:
        ServiceError: it cannot; names the setting, and says what to do.
    """
    if pace is not None:
        raise ServiceError(
            "pace: sites that gossip have no servers, and mix models with neighbours alone; leave "
            "pace or gossip out"
        )
    if begin_with is not None:
        raise ServiceError(
            "begin_with: a group that gossips begins with all of its sites, and admits none later; "
            "leave begin_with or gossip out"
        )
    if (why := unfit_for_letters(merge)) is not None:
        raise ServiceError(why)
