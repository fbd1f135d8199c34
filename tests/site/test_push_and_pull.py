"""A whole run with servers, scheduler and sites in one loop: exact, ordered, over any route."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from anabranch.overlay import Overlay, internet2_9, random_complete
from anabranch.pace import Asp, Bsp, Equal, Pace, R2sp, Safa, Ssp
from anabranch.plan import Plan, balanced, fapt, packed, star
from anabranch.scheduler.pacing import PaceBook
from anabranch.site.agent import SiteAgent
from anabranch.site.control import RoundsOver
from anabranch.site.serving import ServedModel
from anabranch.train.optimisers import Adam, Optimiser, Sgd

from .cluster import Cluster, Floats, all_reduce
from .test_all_reduce import WORLDS

ELEMENTS, UPDATES = 500, 4
PACES: dict[str, Callable[[], Pace]] = {
    "bsp": Bsp,
    "asp": Asp,
    "ssp": lambda: Ssp(lead=1),
    # No worker abandons an update, however late a busy machine makes it.
    "safa": lambda: Safa(fraction=0.5, lag_tolerance=100),
    "r2sp": R2sp,
}
ROUTES: dict[str, Callable[[Overlay], Plan]] = {
    "star": star,
    "balanced": balanced,
    "fapt, 3 roots": lambda overlay: fapt(overlay, roots=3),
    "packed": packed,
}


def initial() -> Floats:
    return np.random.default_rng(0).normal(size=ELEMENTS).astype(np.float32)


def gradients_on(model: Floats, worker: int) -> Floats:
    """Return gradients that depend on the model, so that no step may be missed or reordered."""
    return (model * np.float32(0.1 + 0.01 * worker) + np.float32(worker)).astype(np.float32)


async def work(
    agent: SiteAgent, worker: int, model: Floats, seen: dict[tuple[int, int], Floats]
) -> None:
    """Compute updates until no more are wanted."""
    while True:
        try:
            permission = await agent.permission()
        except RoundsOver:
            return
        gradients = gradients_on(model, worker)
        seen[worker, permission.update] = gradients.copy()
        agent.push(permission, gradients, 1.0, permission.samples, 0.0)


async def serve(agent: SiteAgent) -> None:
    with pytest.raises(RoundsOver):
        await agent.permission()


@pytest.mark.parametrize(
    ("world", "route"), [*(("simulated", route) for route in ROUTES), ("tcp", "packed")]
)
@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize(
    ("optimiser", "ahead"),
    [
        pytest.param(Sgd(0.1), 0, id="sgd"),
        pytest.param(Adam(0.1), 0, id="adam", marks=pytest.mark.slow),
        pytest.param(Sgd(0.1), 1, id="sgd, ahead"),
    ],
)
def test_the_model_is_what_the_steps_make_of_the_updates(
    world: str, route: str, pace: str, optimiser: Optimiser, ahead: int
) -> None:
    run, make_ports = WORLDS[world]
    overlay = internet2_9()

    async def play() -> None:
        plan = ROUTES[route](overlay)
        roots = {tree.root for tree in plan.trees}
        workers = [site for site in range(overlay.size) if site != min(roots)]
        book = PaceBook(PACES[pace](), Equal(8), workers, roots, UPDATES, ahead)
        models = [initial() for _ in overlay.sites]
        cluster = await Cluster.start(
            make_ports(overlay),
            overlay,
            plan,
            pacing=book,
            served=lambda site: ServedModel(
                models[site],
                optimiser.start,
                len(workers),
                tuple(workers) if book.standing.adds_up else (),
                ahead,
            ),
        )
        seen: dict[tuple[int, int], Floats] = {}
        tasks = [
            work(agent, site, models[site], seen) if site in workers else serve(agent)
            for site, agent in enumerate(cluster.agents)
        ]
        await asyncio.gather(*tasks)
        await cluster.leave()
        check(cluster, plan, models, seen)

    def check(
        cluster: Cluster, plan: Plan, models: list[Floats], seen: dict[tuple[int, int], Floats]
    ) -> None:
        """Take the same steps with one optimiser for the whole model, and look at every pull."""
        assert cluster.refusals == cluster.witness.refusals == []
        workers = len(models) - 1
        model, update = initial(), optimiser.start(ELEMENTS)
        settled = []
        for decision in cluster.witness.decisions:
            if decision.applied:
                gradients = sum(seen[each] for each in decision.applied)
                gradients = np.asarray(gradients / np.float32(len(decision.applied)), np.float32)
                update(model, gradients, len(decision.applied) / workers)
            settled += decision.applied + decision.discarded
            for each in decision.went:
                np.testing.assert_allclose(
                    seen[each],
                    gradients_on(model, each[0]),
                    rtol=2e-5,
                    atol=1e-6,
                )
        assert sorted(settled) == sorted(seen)
        assert len(seen) == UPDATES * workers

    run(play())


@pytest.mark.parametrize("world", WORLDS)
def test_one_worker_and_one_server_are_plain_gradient_descent(world: str) -> None:
    run, make_ports = WORLDS[world]
    overlay = random_complete(2, seed=0)

    async def play() -> None:
        models = [initial() for _ in overlay.sites]
        cluster = await Cluster.start(
            make_ports(overlay),
            overlay,
            star(overlay, hub=0),
            pacing=PaceBook(R2sp(), Equal(1), [1], [0], 10),
            served=lambda site: ServedModel(models[site], Sgd(0.1).start, 1),
        )
        seen: dict[tuple[int, int], Floats] = {}
        await asyncio.gather(serve(cluster.agents[0]), work(cluster.agents[1], 1, models[1], seen))
        await cluster.leave()
        expected = initial()
        for update in range(1, 11):
            np.testing.assert_array_equal(seen[1, update], gradients_on(expected, 1))
            expected -= gradients_on(expected, 1) * np.float32(0.1)

    run(play())


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("pace", [Bsp, Asp])
def test_exchanges_go_on_beside_a_served_model(world: str, pace: Callable[[], Pace]) -> None:
    run, make_ports = WORLDS[world]
    overlay = random_complete(3, seed=0)
    workers = (1, 2)

    async def play() -> None:
        models = [initial() for _ in overlay.sites]
        cluster = await Cluster.start(
            make_ports(overlay),
            overlay,
            star(overlay, hub=0),
            pacing=PaceBook(pace(), Equal(8), workers, [0], 60),
            served=lambda site: ServedModel(
                models[site],
                Sgd(0.1).start,
                len(workers),
                added_up=workers if pace().barrier else (),
            ),
        )
        seen: dict[tuple[int, int], Floats] = {}

        async def exchange(site: int) -> None:
            for _ in range(6):  # their numbers are those of updates, too
                buffer = np.full(3000, float(site), np.float32)
                await all_reduce(cluster.agents[site], buffer)
                assert buffer.tolist() == [1.0] * 3000

        await asyncio.gather(
            serve(cluster.agents[0]),
            *(work(cluster.agents[site], site, models[site], seen) for site in workers),
            *map(exchange, range(3)),
        )
        assert len(seen) == 60 * len(workers)
        assert cluster.refusals == cluster.witness.refusals == []
        await cluster.leave()

    run(play())
