"""A run that ends by its rule is a result: a call has its exact result, or says why it has none."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import anabranch
from anabranch import Group
from anabranch.group._local import _service
from anabranch.pace import Asp
from anabranch.scheduler.stop_rules import StopRules
from anabranch.train.averaging import Outer

from ..every import every


def train(group: Group, step_s: float, ended: list[tuple[int, str]], totals: list[float]) -> None:
    """All-reduce until the run is over, with no error to catch."""
    total, rounds = 0.0, 0
    value = np.zeros(5, np.float32)
    while not group.is_over:
        value[:] = group.rank
        time.sleep(step_s)
        group.all_reduce(value)
        total += float(value[0])
        rounds += 1
    held = value.copy()
    with pytest.raises(anabranch.RunEnded) as refused:
        group.all_reduce(value)
    assert np.array_equal(value, held)
    ended.append((rounds, refused.value.reason))
    totals.append(total)


@pytest.mark.parametrize("step_s", [0.0, 0.1], ids=["as fast as may be", "with work between"])
def test_all_members_see_at_the_same_call_that_it_was_the_last(step_s: float) -> None:
    ended: list[tuple[int, str]] = []
    totals: list[float] = []
    service = replace(_service(3), stop=StopRules(after_s=0.3))
    with anabranch.local(service) as groups:
        assert not any(group.is_over for group in groups)
        threads = [
            threading.Thread(target=train, args=(each, step_s, ended, totals)) for each in groups
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert every(group.is_over for group in groups)
    assert len(ended) == 3
    (told,) = {*ended}
    rounds, reason = told
    assert rounds > 0
    assert reason == "0.3 s are over"
    assert {*totals} == {float(rounds)}


def run(live: Callable[[Group], Any], members: int = 3) -> list[Any]:
    """Let members of a group whose rule ends it live; return what each comes to."""
    service = replace(_service(members), stop=StopRules(after_s=0.3))
    with anabranch.local(service) as groups, ThreadPoolExecutor(members) as pool:
        return list(pool.map(live, groups))


def test_several_calls_under_way_at_the_end_have_a_result_or_say_that_it_is_over() -> None:
    def live(group: Group) -> tuple[int, int]:
        held = refused = 0
        while not group.is_over:
            handles = [group.all_reduce(np.ones(3, np.float32), async_op=True) for _ in range(9)]
            for handle in handles:
                try:
                    handle.wait()
                    held += 1
                except anabranch.RunEnded:
                    refused += 1
        return held, refused

    for _ in range(3):
        counts = run(live)
        assert counts[0] == counts[1] == counts[2]
        assert counts[0][0] > 0


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"delay": 3},
        {"outer": Outer()},
        {"fragments": 2},
        {"fragments": 4, "delay": 2, "outer": Outer()},
    ],
    ids=["plain", "delay", "outer", "fragments", "all"],
)
def test_models_are_alike_once_they_have_finished(how: dict[str, Any]) -> None:
    def live(group: Group) -> tuple[int, list[list[float]]]:
        model, running = torch.zeros(5), torch.zeros(2)
        counted = torch.zeros(1, dtype=torch.int64)
        averaging = group.average([model], buffers=[running, counted], every=4, **how)
        while not group.is_over:
            model += group.rank
            running += group.rank
            counted += 1 + group.rank
            averaging.step()
        averaging.finish()
        return averaging.steps, [each.tolist() for each in (model, running, counted)]

    found = run(live)
    assert len({steps for steps, _ in found}) == 1
    assert found[0] == found[1] == found[2]


def test_a_block_of_local_steps_may_end_with_the_run() -> None:
    def live(group: Group) -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with anabranch.LocalSGD(model, optimizer, group, every=3):
            while not group.is_over:
                optimizer.zero_grad()
                model(torch.full((4, 2), float(group.rank))).sum().backward()
                optimizer.step()
        return model.weight.detach().flatten().tolist()

    found = run(live)
    assert found[0] == found[1] == found[2]


def test_a_subgroup_has_a_last_call_of_its_own() -> None:
    def meet(group: Group) -> tuple[int, int]:
        alone = together = 0
        if group.rank < 2:
            pair = group.subgroup(group.sites[:2])
            while not pair.is_over:
                pair.all_reduce(np.ones(3, np.float32))
                alone += 1
                group.report_loss(1.0 / alone)
        while not group.is_over:
            group.all_reduce(np.ones(3, np.float32))
            together += 1
        return alone, together

    service = replace(_service(3), stop=StopRules(loss=0.1))
    with anabranch.local(service) as groups, ThreadPoolExecutor(3) as pool:
        counts = list(pool.map(meet, groups))
    assert counts[0] == counts[1]
    assert counts[0][0] > 1
    # The third site has the grant of the first call of all before the end: the next one tells it.
    assert [together for _, together in counts] == [2, 2, 2]


def test_members_that_average_make_as_many_averages_before_the_run_is_over() -> None:
    begun: list[int] = []
    models: list[list[float]] = []

    def average(group: Group) -> None:
        model = torch.zeros(5)
        averaging = group.average([model], every=2)
        while not group.is_over:
            model += group.rank
            averaging.step()
            group.report_loss(1.0 / (1.0 + averaging.begun))
        begun.append(averaging.begun)
        models.append(model.tolist())

    service = replace(_service(3), stop=StopRules(loss=0.1))
    with anabranch.local(service) as groups:
        threads = [threading.Thread(target=average, args=(each,)) for each in groups]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert len(begun) == 3
    assert len({*begun}) == 1
    assert begun[0] > 1
    assert models[0] == models[1] == models[2]  # the last average came after the last step


def stopping(rules: StopRules, members: int = 3, **more: Any) -> anabranch.Service:
    return replace(_service(members), stop=rules, **more)


def live_all(service: anabranch.Service, live: Callable[[Group], Any]) -> list[Any]:
    """Let the members of a group live; return what each comes to."""
    with anabranch.local(service) as groups, ThreadPoolExecutor(len(groups)) as pool:
        return list(pool.map(live, groups))


@pytest.mark.parametrize("rules", [StopRules(rounds=4), StopRules(after_s=0.2)])
def test_a_group_that_a_loss_would_end_hears_of_its_end_with_a_result(rules: StopRules) -> None:
    def live(group: Group) -> tuple[int, float]:
        value, total = np.zeros(5, np.float32), 0.0
        rounds = 0
        while not group.is_over:  # and no call of it raises RunEnded
            value[:] = group.rank
            group.all_reduce(value, more=rounds % 3 == 1)
            total += float(value[0])
            rounds += 1
        return rounds, total

    found = live_all(stopping(rules, on_loss="abort"), live)
    assert len({*found}) == 1
    rounds, total = found[0]
    assert rounds == total
    assert rules.rounds in (None, rounds)


def test_a_group_ends_after_so_many_rounds_and_each_has_its_result() -> None:
    def live(group: Group) -> tuple[int, float]:
        value, total = np.zeros(5, np.float32), 0.0
        rounds = 0
        while not group.is_over:
            value[:] = group.rank
            group.all_reduce(value)
            total += float(value[0])
            rounds += 1
            group.barrier()  # which is no round
        return rounds, total

    assert live_all(stopping(StopRules(rounds=4)), live) == [(4, 4.0)] * 3


def test_no_further_round_is_held_though_it_is_asked_for_ahead() -> None:
    def live(group: Group) -> tuple[int, set[str]]:
        handles = [group.all_reduce(np.ones(3, np.float32), async_op=True) for _ in range(9)]
        held, whys = 0, set()
        for handle in handles:
            try:
                handle.wait()
                held += 1
            except anabranch.RunEnded as ended:
                whys.add(ended.reason)
        assert group.is_over
        return held, whys

    assert live_all(stopping(StopRules(rounds=4)), live) == [(4, {"4 rounds are over"})] * 3


@pytest.mark.parametrize("reached_by", ["first", "mean", "all"])
def test_a_group_ends_at_the_loss_that_was_asked_for(reached_by: Any) -> None:
    def live(group: Group) -> int:
        rounds = 0
        while not group.is_over:
            group.all_reduce(np.ones(3, np.float32))
            rounds += 1
            # Site 2 is the last at the target; what one of them says last is no number.
            group.report_loss(float("nan") if rounds == 1 else (2.0 + group.rank) / rounds)
        return rounds

    found = live_all(stopping(StopRules(loss=0.5, reached_by=reached_by)), live)
    assert len({*found}) == 1
    least = {"first": 4, "mean": 6, "all": 8}[reached_by]
    assert least <= found[0] <= least + 2  # what is said is heard while the next call goes on


def test_a_group_ends_at_the_accuracy_that_one_site_tells_of() -> None:
    def live(group: Group) -> int:
        rounds = 0
        while not group.is_over:
            group.all_reduce(np.ones(3, np.float32))
            rounds += 1
            if group.rank == 1:
                group.report_accuracy(min(1.0, 0.1 * rounds), rounds)
        return rounds

    found = live_all(stopping(StopRules(accuracy=0.5)), live)
    assert len({*found}) == 1
    assert 5 <= found[0] <= 7


@pytest.mark.parametrize("on_loss", ["complete", "abort"])
def test_a_group_ends_at_what_was_told_of_before_its_first_call(on_loss: Any) -> None:
    """As where training goes on with a model that is good enough, and is evaluated at first."""

    def live(group: Group) -> int:
        group.report_accuracy(1.0)
        rounds = 0
        while not group.is_over and rounds < 9:
            group.all_reduce(np.ones(3, np.float32))
            rounds += 1
        return rounds

    found = live_all(replace(stopping(StopRules(accuracy=0.5)), on_loss=on_loss), live)
    assert len({*found}) == 1
    assert found[0] <= 2


@pytest.mark.parametrize("is_pushed", [False, True])
def test_a_served_model_ends_at_a_target_and_not_after_rounds(is_pushed: bool) -> None:
    def live(group: Group) -> int:
        model = torch.nn.Linear(1, 1)
        group.serve(model.parameters(), learning_rate=0.1)
        pushed = 0
        while group.pull():
            pushed += 1
            loss = 1.0 / pushed
            gradients = (torch.zeros_like(each) for each in model.parameters())
            group.push(gradients, loss=loss if is_pushed else None)
            if not is_pushed:
                group.report_loss(loss)
        assert group.is_over
        return pushed

    served = stopping(StopRules(loss=0.2), pace=Asp(), updates=1000)
    assert 4 < max(live_all(served, live)) < 1000
    with pytest.raises(
        ValueError, match=r"stop\.rounds: a served model ends after so many updates"
    ):
        live_all(replace(served, stop=StopRules(rounds=3)), live)
