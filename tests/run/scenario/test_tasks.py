"""Tasks: what is offered is what there is."""

from __future__ import annotations

from typing import get_args, get_type_hints

from anabranch_lab.run.scenario.tasks import Train
from anabranch_lab.tasks.kinds import TASKS
from anabranch_lab.tasks.models import MODELS


def test_a_scenario_offers_just_the_models_and_data_sets_there_are() -> None:
    offered = get_type_hints(Train, include_extras=False)
    assert get_args(offered["model"]) == MODELS
    assert set(get_args(offered["data"])) == set(TASKS)
