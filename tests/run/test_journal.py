"""A scenario's run goes on, exact, with a scheduler that is started again with its journal."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from anabranch.log import LogError, events
from anabranch.overlay import Overlay, random_complete
from anabranch.plan import Plan
from anabranch.scheduler.server import Scheduler
from anabranch_lab.run._site import take_part
from anabranch_lab.run.checkpoints import WHOLE, Files
from anabranch_lab.run.control import check_journal, job_of, service_of
from anabranch_lab.run.scenario import Scenario, ScenarioError, loads
from anabranch_lab.run.simulate import _SimulatedWorld
from anabranch_lab.sim.loop import VirtualLoop, run_virtually
from anabranch_lab.sim.network import SimulatedNetwork
from tests.seeds import slow_after

from ..every import every

SITES, ROUNDS = 3, 12
OVERLAY = random_complete(SITES, 0, low_bps=50e6, high_bps=100e6, latency_s=0.005)
TRAIN = 'kind = "train"\nlearning_rate = 0.1\nbatch_size = 8'
AVERAGES = '[period]\nkind = "every"\nsteps = 2\n'


def scenario(task: str = TRAIN, more: str = "", stop: str = "", top: str = "") -> Scenario:
    return loads(
        f'overlay = "aws-8"\non_loss = "complete"\nleast_sites = 2\n{top}'
        f'stop = {{rounds = {ROUNDS}{stop}}}\n[route]\nkind = "fapt"\n{more}[task]\n{task}\n',
        "",
    )


class Journal:
    """A journal in memory, by virtual time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.data: bytes | None = None
        self.now_s = loop.time

    def load(self) -> bytes | None:
        return self.data

    def save(self, data: bytes) -> None:
        self.data = data


class Log:
    """Events of all schedulers of a run, in order."""

    def __init__(self) -> None:
        self.events: list[events.Event] = []

    def began(self, buffer_elements: int, plan: Plan) -> None:
        pass

    def write(self, *happened: events.Event) -> None:
        self.events += happened


async def run(
    given: Scenario, overlay: Overlay, killed_s: float, away_s: float, again: Scenario | None = None
) -> Log:
    """Run with a scheduler that is killed, and started again; return what was written down.

    Args:
        given: what runs.
        overlay: its overlay.
        killed_s: when the scheduler is killed, since the run began.
        away_s: how long none is there.
        again: what the second is started with, if not the same.
    """
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    network = SimulatedNetwork(loop, overlay, seed=1, control_latency_s=0.005)
    service, log, journal = service_of(given, overlay), Log(), Journal(loop)
    schedulers: list[Scheduler] = []

    async def start(told: Scenario = given) -> tuple[str, int]:
        job = job_of(told, WHOLE)
        with network.scheduler.in_process():
            control = network.control(None)
            schedulers.append(service.scheduler(control, "t", log, journal, job_json=job))
            return await schedulers[-1].listen(("scheduler", 0))

    address = await start()
    network.begin()
    worlds = [
        _SimulatedWorld(loop, network, site, None, lambda round: None)
        for site in range(overlay.size)
    ]
    sites = []
    for site, world in enumerate(worlds):
        world.machine.begin()
        with network.sites[site].in_process():
            name = overlay.sites[site].name
            sites.append(loop.create_task(take_part(world, name, address, "t", Files())))
    while schedulers[0].since_start_s() < killed_s:
        await asyncio.sleep(0.001)
    network.kill(None)
    schedulers[0].abandon()
    await asyncio.sleep(away_s)
    network.revive(None)
    await start(again or given)
    await asyncio.gather(*sites)
    await schedulers[-1].finished()
    return log


def rounds_of(log: Log) -> dict[int, set[int]]:
    """Return the checksums of each round."""
    found: dict[int, set[int]] = {}
    for event in log.events:
        if isinstance(event, events.RoundDone):
            assert event.checksum is not None
            found.setdefault(event.round, set()).add(event.checksum)
    return found


def longest_s(given: Scenario) -> float:
    """Return about how long a run takes."""
    log = run_virtually(run(given, OVERLAY, 0.001, 0.01))
    return max(event.at_s for event in log.events)


@pytest.mark.parametrize("more", ["", AVERAGES], ids=["rounds", "averages"])
@pytest.mark.parametrize("share", slow_after(1, [0.35, 0.1, 0.7]))
def test_a_run_goes_on_to_its_last_round_and_all_sites_hold_one_model(
    share: float, more: str
) -> None:
    given = scenario(more=more)
    log = run_virtually(run(given, OVERLAY, share * longest_s(given), away_s=3.0))
    assert any(isinstance(event, events.SchedulerRestarted) for event in log.events)
    assert not any(isinstance(event, events.SiteLost) for event in log.events)
    found = rounds_of(log)
    # What sites say just before a scheduler dies is lost with it: how a round ended, and no result.
    assert len(set(range(1, ROUNDS + 1)) - set(found)) <= 1
    assert every(len(checksums) == 1 for checksums in found.values())
    last = [each for each in log.events if isinstance(each, events.RoundDone)][-SITES:]
    assert {(each.site, each.round) for each in last} == {(site, ROUNDS) for site in range(SITES)}


def test_a_scheduler_is_not_started_again_with_another_scenario_than_its_sites_have() -> None:
    """The sites would go on by the old one, and the log would say that they ran the new one."""
    given, again = scenario(), scenario(task=TRAIN.replace("0.1", "0.5"))
    with pytest.raises(LogError, match="sites were told other settings: another scenario"):
        run_virtually(run(given, OVERLAY, 0.1, 1.0, again))


@pytest.mark.parametrize("later_s", slow_after(1, [0.0, 0.002, 0.005, 0.008, 0.011]))
def test_all_sites_make_the_rounds_that_were_begun_when_a_rule_ended_the_run(
    later_s: float,
) -> None:
    """The scheduler dies soon after the rule, when some sites have heard of it, or none."""
    half_s = 0.5 * longest_s(scenario())
    given = scenario(stop=f", after_s = {half_s}")
    log = run_virtually(run(given, OVERLAY, half_s + later_s, away_s=1.0))
    stopping = [event for event in log.events if isinstance(event, events.RunStopping)]
    assert len(stopping) == 1
    assert not any(isinstance(event, events.SiteLost) for event in log.events)
    found = rounds_of(log)
    assert every(len(checksums) == 1 for checksums in found.values())
    assert max(found) < ROUNDS


@pytest.mark.parametrize(
    ("top", "more", "why"),
    [
        ('on_loss = "abort"', "", "complete"),
        ("", '[pace]\nkind = "asp"\n', "gossip or push"),
    ],
)
def test_a_run_that_cannot_outlive_its_scheduler_is_refused(
    top: str, more: str, why: str, tmp_path: Path
) -> None:
    text = f'overlay = "aws-8"\n{top}\nstop = {{rounds = 2}}\n{more}[task]\n{TRAIN}\n'
    with pytest.raises(ScenarioError, match=why):
        check_journal(loads(text, ""))
