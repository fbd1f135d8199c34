"""A forest's groups serve a loop's own model: each tree adds up, and members follow new trees."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

import anabranch
from anabranch import Group
from anabranch import plan as plans
from anabranch.group import Service
from anabranch.group.async_group import AsyncGroup, Callbacks, Door, Ports, join
from anabranch.group.service import Serving
from anabranch.log import GroupsFormed, PlanIssued, events, read_events
from anabranch.merge import Median
from anabranch.net.errors import NetError, PeerError
from anabranch.overlay import Overlay, Trace, dumps, random_complete
from anabranch.pace import AnyPace, Asp, Bsp, FedAvg, R2sp, Safa, Ssp
from anabranch.plan import ForestRoute, FromFile, GivenForest, Packed, Star
from anabranch.scheduler.awareness import Passive
from anabranch.scheduler.paced import Serve
from anabranch.scheduler.stop_rules import StopRules
from anabranch.site.agent import Transport
from anabranch.site.control import RoundsOver
from anabranch.train.optimisers import Sgd
from anabranch_lab.run.scenario import compute_model
from anabranch_lab.run.scenario import load as load_scenario
from anabranch_lab.run.simulate import simulate
from anabranch_lab.sim.loop import VirtualLoop, run_virtually
from anabranch_lab.sim.machine import Machine
from anabranch_lab.sim.network import SimulatedNetwork
from tests.seeds import slow_after

from ..every import every
from .virtual import CONTROL_S, Log

SMALL = random_complete(5, 0)
S0, S1, S2, S3, S4 = (site.name for site in SMALL.sites)
ALL, OTHERS = ((S0, S1, S2), (S3, S4)), ((S1, S2), (S3, S4))


def given(*groups: tuple[str, ...], server: str = S0, **more: Any) -> ForestRoute:
    return ForestRoute(server=server, search=GivenForest(groups=groups), **more)


def served(overlay: Overlay = SMALL, **more: Any) -> list[tuple[int, list[float]]]:
    """Let sites push ones; return how many updates each made, and its model in the end."""
    service = Service(overlay, **{"awareness": None, **more})

    def live(group: Group) -> tuple[int, list[float]]:
        parameter, made = torch.ones(2), 0
        group.serve([parameter], learning_rate=1.0)
        while group.pull():
            group.push([torch.ones(2)])
            made += 1
        return made, parameter.tolist()

    with anabranch.local(service) as groups, ThreadPoolExecutor(len(groups)) as pool:
        return list(pool.map(live, groups))


@pytest.mark.parametrize("pace", [Asp(), Bsp(), Ssp(lead=2), Safa(fraction=0.5), R2sp()])
def test_each_tree_adds_up_at_its_own_pace_and_all_end_alike(pace: AnyPace) -> None:
    found = served(planner=given(*ALL), pace=pace, updates=3)
    assert [made for made, _ in found] == [3] * 5
    assert every(model == found[0][1] for _, model in found)
    if not isinstance(pace, Safa | R2sp):  # which discard what is late, as on a busy machine
        assert found[0][1] == pytest.approx([1.0 - 3.0] * 2)


def test_a_server_that_computes_nothing_is_in_no_tree() -> None:
    only = Serving(Serve(only=(S0,)))
    found = served(planner=given(*OTHERS), pace=Asp(), updates=3, serving=only)
    assert [made for made, _ in found] == [0, 3, 3, 3, 3]
    assert every(model == pytest.approx([1.0 - 3.0] * 2) for _, model in found)


def test_trees_are_searched_for_among_the_sites_that_compute() -> None:
    only = Serving(Serve(only=(S0,)))
    found = served(planner=ForestRoute(server=S0), pace=Asp(), updates=2, serving=only)
    assert [made for made, _ in found] == [0, 2, 2, 2, 2]
    found = served(planner=ForestRoute(), pace=Asp(), updates=2)
    assert [made for made, _ in found] == [2] * 5


def test_the_roots_of_trees_within_hold_a_part_each() -> None:
    found = served(planner=given(*ALL, within=Packed()), pace=Asp(), updates=3)
    assert found == [(3, [1.0 - 3.0] * 2)] * 5


def test_a_plan_from_a_file_may_have_groups(tmp_path: Path) -> None:
    forest = Service(SMALL, given(*ALL), awareness=None, pace=Asp()).first_plan()
    (tmp_path / "plan.json").write_text(plans.dumps(forest))
    found = served(planner=FromFile(path=str(tmp_path / "plan.json")), pace=Asp(), updates=3)
    assert found == [(3, [1.0 - 3.0] * 2)] * 5


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "a forest's trees push to a model that is served, .* give a pace"),
        (
            {"pace": Asp(), "serving": Serving(Serve(ahead=True))},
            "a forest adds updates up on their way, .* leave serve.ahead out",
        ),
        ({"pace": FedAvg(), "merge": Median()}, "a forest adds them up on their way"),
        (
            {"pace": Asp(), "serving": Serving(Serve(only=(S4,)))},
            rf"groups hold sites|'{S4}'\] are in trees, and .* compute",
        ),
        (
            {"pace": Asp(), "planner": given(*ALL, within=Packed()), "awareness": Passive()},
            "groups with trees within are not formed again; have no awareness, or leave within",
        ),
        (
            {"pace": Asp(), "awareness": Passive(least_gain="none")},
            'only where that gains, so awareness.least_gain = "none" is not for it',
        ),
    ],
)
def test_what_does_not_go_with_a_forest_is_named(more: dict[str, Any], said: str) -> None:
    service = Service(SMALL, **{"planner": given(*ALL), "awareness": None, **more})
    with pytest.raises(ValueError, match=said), anabranch.local(service):
        pass


# --- in virtual time


@dataclass
class Ended:
    """How a site's latest process ended: the updates it made, its last model, whether it got it."""

    made: list[int] = field(default_factory=list)
    model: list[float] = field(default_factory=list)
    has_last: bool = False


class Trained:
    """A group whose members train a model that is served, in virtual time.

    Args:
        service: what it is served with.
        compute_s: seconds of each worker for an update.
        faults: moments after the beginning, each with what happens: (seconds, "kill", site, for how
            long) or (seconds, "slow", site, factor).
        elements: of the model.
        late: when sites come that are not there at first, seconds.

    Attributes:
        log: what the scheduler wrote down.
        sites: how each site's latest process ended; none where it was killed for good.
    """

    def __init__(
        self,
        service: Service,
        compute_s: Sequence[float],
        faults: Sequence[tuple[float, str, int, float]] = (),
        elements: int = 1000,
        late: Mapping[int, float] = MappingProxyType({}),
    ) -> None:
        self.log = Log()
        self.sites: dict[int, Ended] = {}
        self._service, self._faults, self._elements = service, faults, elements
        self._compute_s, self._late = compute_s, late
        run_virtually(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        overlay = self._service.overlay
        self._network = SimulatedNetwork(loop, overlay, seed=1, control_latency_s=CONTROL_S)
        self._machines = [Machine(loop) for _ in overlay.sites]
        with self._network.scheduler.in_process():
            scheduler = self._service.scheduler(self._network.control(None), "token", self.log)
            self._address = await scheduler.listen(("scheduler", 0))
        self._tasks = [
            loop.create_task(self._come_later(site)) if site in self._late else self._start(site)
            for site in range(overlay.size)
        ]
        self._network.begin()
        for at_s, what, site, how_much in self._faults:
            loop.at(at_s, self._happen, what, site, how_much)
        try:
            await scheduler.finished()
            ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
            await scheduler.close()
        for end in ends:
            if isinstance(end, Exception) and not isinstance(end, NetError):
                raise end

    def _happen(self, what: str, site: int, how_much: float) -> None:
        if what == "slow":
            self._machines[site].slow(how_much)
        elif not self._tasks[site].done() and not self._network.sites[site].dead:
            self._network.kill(site)
            self._tasks[site].cancel()
            self.sites.pop(site, None)
            asyncio.get_running_loop().call_later(how_much, self._come_back, site)

    def _come_back(self, site: int) -> None:
        self._network.revive(site)
        self._machines[site] = Machine(asyncio.get_running_loop())  # type: ignore[arg-type]
        self._tasks[site] = self._start(site)

    async def _come_later(self, site: int) -> None:
        await asyncio.sleep(self._late[site])
        await self._start(site)

    def _start(self, site: int) -> asyncio.Task[None]:
        with self._network.sites[site].in_process():
            return asyncio.get_running_loop().create_task(self._live(site))

    async def _live(self, site: int) -> None:
        def refused(sender: int | None, error: PeerError) -> None:
            if "which is in incarnation" not in str(error):
                raise AssertionError(f"site {site} refused a message of site {sender}") from error

        network, name = self._network, self._service.overlay.sites[site].name
        door = Door(self._address, name, "token", (network.sites[site].name, 0))
        group = await join(
            Ports(network.control(site), network.lanes(site)), door, Callbacks(refused)
        )
        try:
            model = np.ones(self._elements, np.float32)
            served = group.settings.served_model(model, Sgd(1.0).start, comes_later=True)
            chunk, most = self._elements // 8, self._elements
            transport = Transport(chunk, most, 1 << 20, auxiliary=group.settings.auxiliary)
            await group.start(transport, network.lanes(site), served, len(model))
            await group.serve_alike(model, ["sgd"])
            await self._train(group, site, model)
            await group.leave()
        except RoundsOver:  # it was back as the group ended
            pass
        finally:
            await group.close()

    async def _train(self, group: AsyncGroup, site: int, model: Any) -> None:
        ended = self.sites[site] = Ended()
        while (permission := await group.pull()) is not None:
            ended.made.append(permission.update)
            began_s = group.now_s()
            async with group.agent.unless_abandoned(permission):
                await self._machines[site].work(self._compute_s[site])
            gradients = np.full_like(model, 1.0 + site)
            group.agent.push(permission, gradients, 1.0, 1, group.now_s() - began_s)
        ended.has_last = site in group.agent.last_receivers or group.agent.serves_whole(model)
        ended.model = model.tolist()


def formed(happened: Sequence[events.Event]) -> list[plans.Plan]:
    issued = {e.version: plans.loads(e.plan_json) for e in happened if isinstance(e, PlanIssued)}
    return [issued[e.version] for e in happened if isinstance(e, GroupsFormed)]


def groups_of(plan: plans.Plan) -> list[tuple[int, ...]]:
    return [group.workers for group in plan.groups]


UPDATES, ROUNDS = 12, 40
MESH = random_complete(9, 0, low_bps=20e6, high_bps=200e6, latency_s=(0.005, 0.02), loss=0.0)
NAMES = [site.name for site in MESH.sites]
COMPUTE_S = [0.2, 0.21, 0.3, 0.22, 0.6, 0.31, 0.62, 0.3]
FOREST = Service(
    MESH,
    ForestRoute(server="site8", compute_s=dict(zip(NAMES[:8], COMPUTE_S, strict=True))),
    awareness=None,
    pace=Asp(),
    updates=UPDATES,
    serving=Serving(Serve(only=("site8",))),
    model_elements=1000,
)


def slowed(overlay: Overlay, site: int, at_s: float) -> Overlay:
    """Return a network in which all links of a site carry a hundredth from a moment on."""
    links = [
        replace(link, trace=Trace((0.0, at_s), (link.rate_bps, link.rate_bps / 100)))
        if site in (link.source, link.target)
        else link
        for link in overlay.links
    ]
    return replace(overlay, links=tuple(links))


@pytest.mark.parametrize("what", slow_after(1, ["a worker", "its links"]))
def test_members_follow_new_trees_as_the_sites_of_a_scenario_do(what: str, tmp_path: Path) -> None:
    network, elements = (MESH, 1000) if what == "a worker" else (slowed(MESH, 7, 3.0), 100_000)
    fault = 'kind = "slow", site = "site7", at_s = 1.0, factor = 12.0'
    (tmp_path / "mesh.toml").write_text(dumps(network))
    path, log = tmp_path / "run.toml", tmp_path / "run.db"
    path.write_text(
        f'overlay = "mesh.toml"\nstop = {{rounds = {ROUNDS}}}\nserve = {{only = ["site8"]}}\n'
        'pace = {kind = "asp"}\nroute = {kind = "forest", server = "site8"}\n'
        'awareness = {kind = "passive", update_time_s = 2.0}\n'
        f"fault = [{f'{{{fault}}}' if what == 'a worker' else ''}]\n"
        f'task = {{kind = "exchange", elements = {elements}, batch_size = 32}}\n'
        "[compute]\nsamples_per_s = 100.0\ngini = 0.3\n"
    )
    scenario, overlay = load_scenario(path)
    simulate(scenario, overlay, log)
    happened = [event for _, event in read_events(log)]

    model = compute_model(scenario, overlay)
    assert model is not None
    compute_s = [model.mean_s(site, 32) for site in range(overlay.size)]
    service = replace(
        FOREST,
        overlay=overlay,
        planner=ForestRoute(
            server="site8", compute_s=dict(list(zip(NAMES, compute_s, strict=True))[:8])
        ),
        awareness=Passive(update_time_s=2.0),
        model_elements=elements,
        updates=ROUNDS,
    )
    faults = [(1.0, "slow", 7, 12.0)] if what == "a worker" else []
    trained = Trained(service, compute_s, faults, elements)
    before, expected, found = (
        groups_of(plan) if what == "a worker" else plan.groups  # its ways alone are others
        for plan in (service.first_plan(), formed(happened)[0], formed(trained.log.events)[0])
    )
    assert before not in (found, expected)
    if what == "a worker":  # when a fall of a link is believed depends on the moments of reports
        assert found == expected
    for issued in (happened, trained.log.events):
        why = next(event.why for event in issued if isinstance(event, PlanIssued))
        assert ("site7 computes for" if what == "a worker" else "site7") in why
    workers = [*range(8)]
    assert every(trained.sites[site].made[-1] == ROUNDS for site in workers)
    assert every(trained.sites[site].has_last for site in range(9))
    assert every(trained.sites[site].model == trained.sites[8].model for site in workers)


def test_members_form_other_trees_when_a_root_dies_and_again_when_it_is_back() -> None:
    trained = Trained(FOREST, COMPUTE_S, [(2.0, "kill", 2, 1.0)])
    without, again = map(groups_of, formed(trained.log.events))
    assert {worker for group in without for worker in group} == {*range(8)} - {2}
    assert {worker for group in again for worker in group} == {*range(8)}
    assert every(trained.sites[site].made[-1] == UPDATES for site in range(8))
    models = [trained.sites[site].model for site in range(8)]
    assert every(trained.sites[site].has_last for site in range(8))
    assert every(model == models[0] for model in models)


@pytest.mark.parametrize("late", [False, True], ids=["back", "late"])
@pytest.mark.parametrize("route", [FOREST.planner, Star(hub="site8")], ids=["forest", "star"])
def test_a_site_that_computes_nothing_may_be_lost_and_come_back(route: Any, late: bool) -> None:
    only = Serving(Serve(only=("site8", "site4")))
    if isinstance(route, ForestRoute):
        names = [name for name in NAMES[:8] if name != "site4"]
        route = ForestRoute(server="site8", compute_s=dict.fromkeys(names, 0.3))
    service = replace(FOREST, planner=route, serving=only, begin_with=8 if late else None)
    faults = [] if late else [(2.0, "kill", 4, 1.0)]
    trained = Trained(service, COMPUTE_S, faults, late={4: 2.0} if late else {})
    assert trained.sites.keys() == {*range(9)}
    assert every(trained.sites[site].made[-1] == UPDATES for site in range(8) if site != 4)


HUNG = (8, 26, 38, 41)  # as the last model had no way, or a worker was back for it alone


@pytest.mark.parametrize(
    "seed",
    [
        *range(4),
        *HUNG,
        *(pytest.param(k, marks=[pytest.mark.slow]) for k in range(4, 80) if k not in HUNG),
    ],
)
def test_members_that_die_come_back_or_become_slow_end_with_one_model(seed: int) -> None:
    rng = np.random.default_rng(seed)
    faults, dead_until_s = list[tuple[float, str, int, float]](), dict.fromkeys(range(8), 0.0)
    for at_s in sorted(rng.uniform(1.0, 8.0, int(rng.integers(1, 6)))):
        victim, for_s = int(rng.integers(8)), float(rng.choice([0.02, 0.1, 0.3, 1.0, 3.0, 30.0]))
        if at_s > dead_until_s[victim]:
            faults.append((float(at_s), "kill", victim, for_s))
            dead_until_s[victim] = at_s + for_s + 0.5
    for _ in range(int(rng.integers(3))):
        slow_s, factor = float(rng.uniform(1.0, 5.0)), float(rng.choice([1.5, 3.0, 6.0]))
        faults.append((slow_s, "slow", int(rng.integers(8)), factor))
    service = replace(
        FOREST,
        planner=ForestRoute(server="site8") if seed % 4 == 3 else FOREST.planner,
        pace=[Asp(), Ssp(lead=2), Safa(fraction=0.5), R2sp(), Bsp()][seed % 5],
        awareness=Passive(update_time_s=2.0) if seed % 2 else None,
        stop=StopRules(after_s=6.0 if seed % 3 == 2 else None),
    )
    trained = Trained(service, COMPUTE_S, faults)
    last = [each for each in trained.sites.values() if each.has_last]
    assert last
    assert every(each.model == last[0].model for each in last)
