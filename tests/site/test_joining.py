"""A site joins a group that trains: what the others feel of it, and what all end with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from statistics import median

import numpy as np
import pytest

from anabranch.exchange.arithmetic import Flat
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.log import events
from anabranch.net.errors import NetError
from anabranch.net.messages import Admitted, Contribution
from anabranch.overlay import Link, Overlay, Site
from anabranch.plan import Packed, Plan
from anabranch.scheduler.losses import Repairs
from anabranch.site.agent import SiteAgent
from anabranch.site.round import ExchangeError, Round
from anabranch_lab.sim.loop import run_virtually
from anabranch_lab.sim.network import SimulatedNetwork
from tests.site.cluster import Cluster, Floats, simulated
from tests.site.test_restart import Restartable

SITES, NEW = 4, 3
# In the first, it waits to be let in; then it gets the state; in the last, it catches up or has.
SELDOM_S = [pytest.param(at_s, marks=pytest.mark.slow) for at_s in (0.01, 0.7, 2.2, 3.1)]
MOMENTS_S = [0.2, 1.3, 4.4, *SELDOM_S]
RATE_BPS = 1e6
ELEMENTS = 20_000  # a round of three sites takes 1.1 s, the state over three links 0.2 s each


def plan_of(overlay: Overlay, version: int = 1, previous: Plan | None = None) -> Plan:
    return Packed().plan(overlay, version=version)


class Trainer:
    """One site's training: its gradients depend on the site, the step and the weights.

    Args:
        agent: joined and started.
        computes_s: how long a gradient takes.
        states: how many times as large as a gradient the state is.
        also: called each step, between the gradient and its exchange.
    """

    def __init__(
        self,
        agent: SiteAgent,
        computes_s: float = 0.0,
        states: int = 1,
        also: Callable[[Trainer], Awaitable[None]] | None = None,
    ) -> None:
        self.agent = agent
        self.site = agent.welcome.site
        self.computes_s = computes_s
        self.also = also
        self.state = np.zeros(states * ELEMENTS, np.float32)
        self.step = 0
        self.steps: list[tuple[float, float]] = []
        self.rounds: list[Round] = []
        self.results: dict[int, Floats] = {}  # of each step
        self.has_state_at_s: float | None = None
        self._handing_on: list[asyncio.Task[None]] = []

    async def run(self, until: Callable[[], bool]) -> None:
        """Train, as a group's program does, until a condition holds before a step."""
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            told = await self.agent.admit()
            if told.newcomers:
                await self.hand_on(told)
            self.agent.has_state()
            if self.has_state_at_s is None:
                self.has_state_at_s = loop.time()
            if until():
                break
            await asyncio.sleep(self.computes_s)
            if self.also is not None:
                await self.also(self)
            await self.exchange()
            self.steps.append((began_s, loop.time()))
        await asyncio.gather(*self._handing_on)

    def gradient(self) -> float:
        return float((self.site + 1) * (self.step % 7 + 1))

    async def exchange(self, elements: int = ELEMENTS) -> None:
        buffer = np.full(elements, self.gradient(), np.float32)
        terms = Terms(Op.MEAN, Wire.FLOAT32, elements)
        done = await self.agent.exchange(Flat(buffer), terms)
        await self.agent.round_ended(done, None)
        self.results[self.step] = buffer
        self.rounds.append(done)
        self.state.reshape(-1, ELEMENTS)[:] += buffer
        self.step += 1

    async def hand_on(self, told: Admitted) -> None:
        goes_on = told.follows and self.site in told.holders
        counts = await self.agent.gather(b"%d" % self.step if self.site in told.holders else b"")
        self.step = max(int(count) for count in counts.values if count)
        buffer = self.state.copy() if goes_on else self.state
        terms = Terms(Op.COPY, Wire.FLOAT32, len(buffer), None, told.newcomers)
        if not told.follows and len(told.holders) == 1:
            terms = Terms(Op.COPY, Wire.FLOAT32, len(buffer), told.holders[0])

        async def transfer() -> None:
            await self.agent.round_ended(await self.agent.exchange(Flat(buffer), terms), None)

        if goes_on:
            self._handing_on.append(asyncio.create_task(transfer()))
        else:
            await transfer()

    def contributors(self, done: Round) -> tuple[int, ...]:
        """Return who contributed to a result where none was lost."""
        whose = {each.sites for each in done.contributions} or {done.members}
        assert len(whose) == 1
        return whose.pop()

    def check(self) -> None:
        """Compare all results with what the sites that are named had to say."""
        for step, done in enumerate(self.rounds, self.step - len(self.rounds)):
            whole = (Contribution(0, ELEMENTS, done.members),)
            for each in done.contributions or whole:
                mean = sum(site + 1 for site in each.sites) * (step % 7 + 1) / len(each.sites)
                assert {*self.results[step][each.start : each.stop].tolist()} == {np.float32(mean)}


class Training:
    """Three sites that train, and a fourth that may join them."""

    def __init__(self, network: SimulatedNetwork, cluster: Cluster) -> None:
        self.network, self.cluster = network, cluster
        self.members = [Trainer(agent) for agent in cluster.agents]
        self.new: Trainer | None = None
        self.stop = False
        self.tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def begin(cls) -> Training:
        pairs = [(a, b) for a in range(SITES) for b in range(SITES) if a != b]
        links = tuple(Link(a, b, RATE_BPS, latency_s=0.001) for a, b in pairs)
        overlay = Overlay("full", tuple(Site(f"s{site}") for site in range(SITES)), links)
        network = simulated(overlay)
        network.begin()
        cluster = await Cluster.start(
            *(network, overlay, plan_of(overlay)),
            chunk_elements=1000,
            repairs=Repairs(plan_of, 2, NEW),
            joining=range(NEW),
        )
        return cls(network, cluster)

    def go(self, **settings: object) -> None:
        """Let the members train until told to stop, all at the same step."""
        last: list[int] = []

        def until(trainer: Trainer) -> Callable[[], bool]:
            def is_over() -> bool:
                if self.stop and not last:
                    # The others cannot be further than the next step.
                    last.append(max(each.step for each in self.everyone) + 2)
                return bool(last) and trainer.step >= last[0]

            return is_over

        self.until = until
        for trainer in self.members:
            for name, value in settings.items():
                setattr(trainer, name, value)
            self.tasks.append(asyncio.create_task(trainer.run(until(trainer))))

    @property
    def everyone(self) -> list[Trainer]:
        return [*self.members, *([] if self.new is None else [self.new])]

    async def join(self, **settings: object) -> Trainer:
        agent = await self.cluster.join(NEW)
        self.new = Trainer(agent)
        for name, value in settings.items():
            setattr(self.new, name, value)
        self.tasks.append(asyncio.create_task(self.new.run(self.until(self.new))))
        return self.new

    async def end(self) -> None:
        self.stop = True
        await asyncio.gather(*self.tasks)
        assert not self.cluster.refusals

    def check_results(self) -> None:
        """Compare all results with what the sites that are named had to say."""
        for trainer in self.everyone:
            trainer.check()
        states = {trainer.state.tobytes() for trainer in self.everyone}
        assert len(states) == 1

    @property
    def in_step(self) -> list[events.SiteInStep]:
        return self.cluster.witness.of(events.SiteInStep)


def wide(states: int) -> Floats:
    return np.zeros(states * ELEMENTS, np.float32)


@pytest.mark.parametrize("states", [1, 3])
@pytest.mark.parametrize("computes_s", [0.0, 0.5, 4.0])
def test_while_a_site_joins_the_others_take_no_longer_and_all_end_alike(
    states: int, computes_s: float
) -> None:
    async def go() -> None:
        training = await Training.begin()
        for trainer in training.members:
            trainer.state = wide(states)
        training.go(computes_s=computes_s)
        await asyncio.sleep(5 * (1.2 + computes_s))
        joined_s = asyncio.get_running_loop().time()
        new = await training.join(computes_s=computes_s, state=wide(states))
        await asyncio.sleep(12 * (1.2 + computes_s))
        await training.end()
        training.check_results()
        member = training.members[0]
        lengths = [(began, ended - began) for began, ended in member.steps]
        before = median(length for began, length in lengths[1:] if began + length < joined_s)
        assert max(length for began, length in lengths if began + length >= joined_s) < 1.1 * before
        [event] = training.in_step
        assert (event.site, event.kept, event.why) == (NEW, 0, "")
        assert NEW in new.contributors(new.rounds[-1])
        assert new.rounds[0].was_kept
        assert member.contributors(new.rounds[0]) == (0, 1, 2)

    run_virtually(go())


def test_a_program_that_computes_more_slowly_than_the_others_is_waited_for_in_the_end() -> None:
    async def go() -> None:
        training = await Training.begin()
        training.go(computes_s=0.5)
        await asyncio.sleep(4.0)
        new = await training.join(computes_s=4.0)
        await asyncio.sleep(60.0)
        await training.end()
        training.check_results()
        [event] = training.in_step
        assert (event.why, event.kept > 0) == ("its program does not catch up", True)
        assert NEW in new.contributors(new.rounds[-1])

    run_virtually(go())


def test_the_others_wait_where_a_newcomer_would_have_to_keep_too_much() -> None:
    async def go() -> None:
        training = await Training.begin()
        for trainer in training.members:
            trainer.state = wide(20)
        training.go()
        await asyncio.sleep(4.0)
        agent = await training.cluster.join(NEW)
        agent._collectives._most_kept_bytes = 4 * ELEMENTS
        new = training.new = Trainer(agent, states=20)
        training.tasks.append(asyncio.create_task(new.run(training.until(new))))
        await asyncio.sleep(40.0)
        await training.end()
        training.check_results()
        [event] = training.in_step
        assert event.kept == 3
        assert "bytes of results" in event.why
        assert NEW in new.contributors(new.rounds[-1])

    run_virtually(go())


def test_others_may_broadcast_gather_and_exchange_in_subgroups_meanwhile() -> None:
    heard: dict[tuple[int, int], list[object]] = {}

    async def also(trainer: Trainer) -> None:
        agent, said = trainer.agent, heard.setdefault((trainer.site, trainer.step), [])
        for source in (1, trainer.step % 4 if trainer.step > 20 else 2):
            buffer = np.full(300, float(trainer.site + 10 * trainer.step), np.float32)
            done = await agent.exchange(Flat(buffer), Terms(Op.COPY, Wire.FLOAT32, 300, source))
            await agent.round_ended(done, None)
            said.append(buffer[0])
        for op in (Op.MAX, Op.SUM):
            buffer = np.full(300, float(trainer.site + trainer.step), np.float32)
            done = await agent.exchange(Flat(buffer), Terms(op, Wire.BFLOAT16, 300), 2.0)
            await agent.round_ended(done, None)
            said.append((buffer[0], trainer.contributors(done)))
        if trainer.step % 3 == 2:
            said.append((await agent.gather(b"%d" % trainer.site)).values)
        if trainer.step % 4 == 3 and trainer.site in (0, 1):
            channel = await agent.subgroup((0, 1))
            buffer = np.full(300, float(trainer.site), np.float32)
            done = await agent.exchange(
                Flat(buffer), Terms(Op.SUM, Wire.FLOAT32, 300), channel=channel
            )
            await agent.round_ended(done, None)
            assert {*buffer.tolist()} == {1.0}

    async def go() -> None:
        training = await Training.begin()
        training.go(also=also)
        await asyncio.sleep(4.0)
        new = await training.join(also=also)
        await asyncio.sleep(40.0)
        await training.end()
        training.check_results()
        steps = [step for site, step in heard if site == NEW]
        assert steps
        for step in steps:
            assert heard[NEW, step] == heard[0, step] == heard[1, step] == heard[2, step]
            (_, _, (most, who), (total, whose), *_) = heard[NEW, step]  # type: ignore[misc]
            assert most == max(who) + step  # type: ignore[has-type]
            exact = float(sum(2 * (site + step) for site in whose))  # type: ignore[has-type]
            assert total == pytest.approx(exact, rel=0.01)  # of two bytes an element
        assert NEW in new.contributors(new.rounds[-1])

    run_virtually(go())


def test_a_newcomer_whose_program_makes_other_calls_is_refused_and_the_others_go_on() -> None:
    async def go() -> None:
        training = await Training.begin()
        training.go()
        await asyncio.sleep(4.0)
        agent = await training.cluster.join(NEW)
        new = Trainer(agent)
        told = await agent.admit()
        await new.hand_on(told)
        await asyncio.sleep(1.5)
        agent.has_state()
        with pytest.raises(ExchangeError, match="another call in this place"):
            await new.exchange(ELEMENTS + 1)
        with pytest.raises(ExchangeError, match="another call in this place"):
            await agent.gather(b"")
        with pytest.raises(ExchangeError, match="another call in this place"):
            await agent.admit()
        training.network.kill(NEW)
        agent.close()
        await asyncio.sleep(5.0)
        await training.end()
        training.check_results()

    run_virtually(go())


@pytest.mark.parametrize("after_s", MOMENTS_S)
@pytest.mark.parametrize("site", [0, 2, NEW])
def test_a_loss_while_a_site_follows_is_repaired(site: int, after_s: float) -> None:
    async def go() -> None:
        training = await Training.begin()
        for trainer in training.members:
            trainer.state = wide(8)
        training.go()
        await asyncio.sleep(4.0)
        await training.join(state=wide(8))
        await asyncio.sleep(after_s)
        training.network.kill(site)
        lost = training.everyone[site]
        training.tasks.pop(site).cancel()
        lost.agent.close()
        if site == NEW:
            training.new = None
        else:
            training.members.remove(lost)
        await asyncio.sleep(20.0)
        await training.end()
        training.check_results()
        last = training.members[0].rounds[-1]
        assert {*training.members[0].contributors(last)} == {0, 1, 2, NEW} - {site}

    run_virtually(go())


@pytest.mark.parametrize("after_s", MOMENTS_S)
def test_a_scheduler_that_is_started_again_finds_who_follows(after_s: float) -> None:
    async def go() -> None:
        group = await Restartable.begin(SITES, begin_with=NEW)
        training = Training(group.network, group.cluster)
        for trainer in training.members:
            trainer.state = wide(8)
        training.go()
        await asyncio.sleep(4.0)
        new = await training.join(state=wide(8))
        new.agent.wait_for_scheduler(60.0)
        await asyncio.sleep(after_s)
        group.kill_scheduler()
        await asyncio.sleep(1.0)
        await group.start_scheduler()
        await asyncio.sleep(20.0)
        training.stop = True
        done = await asyncio.gather(*training.tasks, return_exceptions=True)
        if NetError in map(type, done[-1:]) or isinstance(done[-1], NetError):
            assert after_s < 1.0  # it was not let in yet, and has to join again
            training.new = None
        else:
            assert done == [None] * 4
        training.check_results()
        assert len(training.members[0].rounds) > 10

    run_virtually(go())
