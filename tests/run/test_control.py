"""What a run's scheduler plans with."""

from __future__ import annotations

import pytest

from anabranch.overlay import load
from anabranch.plan import Packed
from anabranch.run.control import first_plan
from anabranch.run.scenario import loads

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
