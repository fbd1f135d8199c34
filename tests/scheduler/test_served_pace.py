"""What the scheduler makes of the samples that sites hold, where those weigh updates."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.log import events
from anabranch.merge import AnyMerge, DataSize, Mean
from anabranch.net.errors import RunAborted
from anabranch.overlay import random_complete
from anabranch.pace import Bsp, Equal
from anabranch.plan import star
from anabranch.scheduler.pacing import PaceBook
from anabranch.site.serving import ServedModel
from anabranch.train.optimisers import Sgd
from anabranch_lab.sim.loop import run_virtually

from ..site.cluster import Cluster, simulated

OVERLAY = random_complete(3, 0)
WORKERS = (1, 2)


async def begin(samples: tuple[int, int, int], merge: AnyMerge) -> Cluster:
    book = PaceBook(Bsp(), Equal(8), WORKERS, [0], 1, merge=merge)
    return await Cluster.start(
        simulated(OVERLAY),
        OVERLAY,
        star(OVERLAY, hub=0),
        pacing=book,
        served=lambda site: ServedModel(np.zeros(10, np.float32), Sgd(1.0).start, 2, WORKERS),
        samples=samples,
    )


def test_the_samples_that_workers_hold_are_written_down_where_they_weigh_updates() -> None:
    async def play(merge: AnyMerge) -> list[tuple[int, int]]:
        cluster = await begin((0, 100, 300), merge)
        held = [(each.site, each.samples) for each in cluster.witness.of(events.SamplesHeld)]
        assert cluster.scheduler._pace is not None
        known = cluster.scheduler._pace.book._weights._samples
        assert known == ({1: 100, 2: 300} if merge.weighs_data else {1: 1, 2: 1})
        cluster.scheduler.abort("it is enough")
        await cluster.end()
        return held

    assert run_virtually(play(DataSize())) == [(1, 100), (2, 300)]
    assert run_virtually(play(Mean())) == []


def test_a_worker_that_does_not_say_how_many_samples_it_holds_ends_a_run_that_weighs_them() -> None:
    async def play() -> None:
        cluster = await begin((0, 100, 0), DataSize())
        name = OVERLAY.sites[2].name
        with pytest.raises(RunAborted, match=f"{name}.* does not say how many samples it holds"):
            await cluster.agents[1].permission()
        with pytest.raises(RunAborted, match="let its work have samples_held"):
            await cluster.scheduler.finished()
        await cluster.end()

    run_virtually(play())
