"""A run that ends by its rule is a result: a call has its exact result, or says why it has none."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np

import anabranch
from anabranch import Group
from anabranch.group._local import _service
from anabranch.scheduler.stop_rules import StopRules

from ..every import every


def train(group: Group, ended: list[tuple[int, str]], totals: list[float]) -> None:
    """All-reduce until the run is over."""
    total, rounds = 0.0, 0
    try:
        while not group.is_over:
            value = np.full(5, float(group.rank), np.float32)
            group.all_reduce(value)
            total += float(value[0])
            rounds += 1
    except anabranch.RunEnded as over:
        assert group.is_over
        assert value.tolist() == [group.rank] * 5  # as it was
        ended.append((rounds, over.reason))
        totals.append(total)


def test_all_members_make_the_same_calls_and_are_told_why_no_other_follows() -> None:
    ended: list[tuple[int, str]] = []
    totals: list[float] = []
    service = replace(_service(3), stop=StopRules(after_s=0.3))
    with anabranch.local(service) as groups:
        assert not any(group.is_over for group in groups)
        threads = [threading.Thread(target=train, args=(each, ended, totals)) for each in groups]
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


def test_members_that_average_make_as_many_averages_before_the_run_is_over() -> None:
    ended: list[tuple[int, str]] = []

    def average(group: Group) -> None:
        import torch

        model = torch.zeros(5)
        averaging = group.average([model], every=2)
        try:
            while not group.is_over:
                model += group.rank
                averaging.step()
        except anabranch.RunEnded as over:
            ended.append((averaging.begun, over.reason))

    service = replace(_service(3), stop=StopRules(after_s=0.3))
    with anabranch.local(service) as groups:
        threads = [threading.Thread(target=average, args=(each,)) for each in groups]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert len(ended) == 3
    ((begun, reason),) = {*ended}
    assert begun > 1
    assert reason == "0.3 s are over"
