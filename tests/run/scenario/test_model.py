"""A scenario as a whole: it travels unchanged, and chooses what it was not told."""

from __future__ import annotations

import msgspec
import pytest

from anabranch.plan import AnyPlanner, Auxiliary, Fapt, FromFile, Packed, Star
from anabranch.scheduler.awareness import Passive
from anabranch_lab.run.checkpoints import Course, Job
from anabranch_lab.run.scenario import Adaptive, ByShare, Scenario, Stop
from anabranch_lab.run.scenario.tasks import Exchange, Own, Train


@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(
            overlay="internet2-9",
            stop=Stop(rounds=3),
            route=Fapt(roots=9),
            task=Train(learning_rate=0.1),
        ),
        Scenario(
            overlay="x",
            stop=Stop(rounds=1),
            route=Fapt(roots=("a", "b")),
            task=Exchange(profile="alexnet"),
        ),
        Scenario(overlay="x", stop=Stop(rounds=1), route=Star(hub="a"), task=Exchange(elements=7)),
        Scenario(
            overlay="x",
            stop=Stop(rounds=1),
            task=Own(factory="train:make", folder="/there", options={"rate": 0.5, "of": [1, "a"]}),
        ),
        Scenario(
            overlay="x",
            stop=Stop(rounds=1),
            route=FromFile(path="/plans/own.json"),
            task=Exchange(elements=7),
            deal=Adaptive(window=9),
            awareness=Passive(start="equal", belief="latest", least_gain="none"),
            auxiliary=Auxiliary(search="algorithm-3", when_full="primary"),
        ),
    ],
)
def test_a_scenario_reaches_the_sites_unchanged(scenario: Scenario) -> None:
    job = Job(scenario=scenario, course=Course(after_round=3, save_every=2))
    assert msgspec.json.decode(msgspec.json.encode(job), type=Job) == job


def test_chunks_are_small_and_dealt_during_the_round_on_packed_trees_unless_told_otherwise() -> (
    None
):
    def given(route: AnyPlanner, **others: object) -> Scenario:
        task = Exchange(elements=1)
        return Scenario(overlay="x", stop=Stop(rounds=1), route=route, task=task, **others)  # type: ignore[arg-type]

    assert given(Packed()).adaptive == Adaptive()
    assert given(Packed(), deal=ByShare()).adaptive is None
    assert given(Fapt()).adaptive is None
    assert given(Fapt(), deal=Adaptive(window=5)).adaptive == Adaptive(window=5)
