"""What a run's scheduler plans with."""

from __future__ import annotations

from itertools import permutations

import msgspec
import pytest

from anabranch.group._settings import dumps as dumps_settings
from anabranch.group._settings import loads as loads_settings
from anabranch.group.service import Service
from anabranch.overlay import Link, Overlay, Site, load
from anabranch.pace import Asp
from anabranch.plan import AnyPlanner, Fapt, Packed, Star
from anabranch_lab.run.control import first_plan, service_of
from anabranch_lab.run.scenario import loads

MLP_ELEMENTS = 19_210  # of digits, with 256 hidden


def scenario(task: str, more: str = "") -> str:
    return f'overlay = "aws-8"\n{more}\n[task]\n{task}\n[stop]\nrounds = 1\n'


EXCHANGE = f'kind = "exchange"\nelements = {MLP_ELEMENTS}'
TRAIN = 'kind = "train"\nmodel = "mlp"\nhidden = [256]\nlearning_rate = 0.1'


@pytest.mark.parametrize("more", ["", 'awareness = {kind = "passive"}', 'pace = {kind = "asp"}'])
def test_training_is_planned_for_like_an_exchange_of_the_same_size(more: str) -> None:
    overlay = load("aws-8")
    train, exchange = (loads(scenario(task, more), "") for task in (TRAIN, EXCHANGE))
    plan = first_plan(train, overlay)
    assert plan == first_plan(exchange, overlay)
    assert plan == Packed().plan(overlay, elements=MLP_ELEMENTS, chunk_elements=1 << 14)
    assert plan != Packed().plan(overlay)


FAST = Overlay(
    "fast",
    tuple(map(Site, "abcd")),
    tuple(Link(*pair, 100e9) for pair in permutations(range(4), 2)),
)


@pytest.mark.parametrize("route", [Packed(), Fapt(), Star(hub="b")])
def test_a_scenario_plans_and_cuts_by_the_rules_of_a_group(route: AnyPlanner) -> None:
    exchange = loads(scenario('kind = "exchange"\nelements = 61_000_000'), "")
    given = service_of(msgspec.structs.replace(exchange, route=route), FAST)
    group = Service(FAST, route, model_elements=61_000_000)
    plan = given.first_plan()
    assert plan == group.first_plan()
    said, by_group = (each.run_started(61_000_000, plan) for each in (given, group))
    assert (said.chunk_elements, said.predicted_s) == (
        by_group.chunk_elements,
        by_group.predicted_s,
    )


@pytest.mark.parametrize("route", [Packed(), Star(hub="b")])
@pytest.mark.parametrize("elements", [100, 4_000_000, 61_000_000])
@pytest.mark.parametrize("most", [None, 5000])
def test_a_served_model_is_cut_alike_at_every_way_in(
    route: AnyPlanner, elements: int, most: int | None
) -> None:
    """Its sites cut it before any of them hears of the others, and the log tells how."""
    task = f'pace = {{kind = "asp"}}\n[task]\nkind = "exchange"\nelements = {elements}'
    given = loads(f'overlay = "aws-8"\n{task}\n[stop]\nrounds = 1\n', "")
    given = msgspec.structs.replace(given, route=route, chunk_elements=most)
    service = Service(FAST, route, pace=Asp(), updates=1, chunk_elements=most)
    plan = service.first_plan()
    told = loads_settings(dumps_settings(service.settings(may_be_restarted=False)))
    cut = {told.chunk_elements(elements)}
    for each in (service, service_of(given, FAST, cores=0.1)):
        cut.add(each.settings(may_be_restarted=False).chunk_elements(elements))
        cut.add(each.run_started(elements, plan).chunk_elements)
    assert len(cut) == 1
