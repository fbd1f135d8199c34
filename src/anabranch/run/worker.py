"""A site's process: join a run, and do its task."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from anabranch.net.errors import PeerError, RunAborted
from anabranch.net.network import Address
from anabranch.net.tcp import TcpNetwork
from anabranch.record import events
from anabranch.run.scenario import Exchange, Scenario, Train, decode
from anabranch.scheduler.server import LIMITS as CONTROL_LIMITS
from anabranch.site.agent import Round, SiteAgent
from anabranch.site.dataplane import LIMITS as DATA_LIMITS
from anabranch.site.door import Door

if TYPE_CHECKING:
    from anabranch.learn.train import Trainer

# The event loop shares the interpreter with training; the default of 5 ms is how long it would
# wait for its turn each time.
_SWITCH_INTERVAL_S = 0.0005
_REPORT_EVERY_S = 0.5


def run_site(
    name: str,
    scheduler: Address,
    token: str,
    listen_host: str,
    data_dir: Path | None = None,
    threads: int | None = None,
) -> None:
    """Take part in a run as one site, to its end.

    Args:
        name: this site's name in the run's overlay.
        scheduler: where to join.
        token: the run's shared secret.
        listen_host: the address other sites reach this one at.
        data_dir: where data sets are.
        threads: for torch; None for its own choice.

    Raises:
        RunAborted: the run ended early; says who or what caused it.
        LinkError: the scheduler cannot be reached.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    with Door() as door:
        site = _Site(door, name, token, listen_host)
        try:
            scenario = site.join(scheduler)
            match scenario.task:
                case Train() as task:
                    _train(site, scenario, task, data_dir, threads)
                case Exchange() as task:
                    _exchange(site, scenario, task)
            site.leave()
        except Exception as error:
            site.fail(error)
            raise


class _Site:
    """The site's agent behind its door, and the events it reports."""

    def __init__(self, door: Door, name: str, token: str, listen_host: str) -> None:
        self._door = door
        self._events: list[events.Event] = []
        self._sent_bytes: dict[int, int] = {}
        self._sampled_s = 0.0

        async def make() -> SiteAgent:
            control, data = TcpNetwork(CONTROL_LIMITS), TcpNetwork(DATA_LIMITS)
            return SiteAgent(control, data, name, token, (listen_host, 0), self._refused)

        self._agent = door.call(make())

    def join(self, scheduler: Address) -> Scenario:
        welcome = self._door.call(self._agent.join(scheduler))
        self.index, self.sites = welcome.site, len(welcome.addresses)
        return decode(welcome.work)

    def start(self, scenario: Scenario, buffer_elements: int) -> None:
        self._door.call(
            self._agent.start(scenario.chunk_elements, buffer_elements, scenario.shaped)
        )
        self._reporting = self._door.submit(self._report_regularly())

    def now_s(self) -> float:
        """Seconds since the run began."""
        return self._agent.loop.time() - self._agent.epoch_s

    def all_reduce(self, buffer: npt.NDArray[np.float32]) -> Round:
        return self._door.call(self._agent.all_reduce(buffer))

    def round_ended(self, done: Round, checksum: int) -> None:
        self._door.call(self._agent.round_ended(done, checksum))

    def record(self, event: events.Event) -> None:
        self._events.append(event)

    def leave(self) -> None:
        self._reporting.cancel()
        self._door.call(self._report_and_leave())

    def fail(self, error: Exception) -> None:
        self._door.call(self._agent.fail(error))

    def _refused(self, sender: int | None, error: PeerError) -> None:
        self.record(
            events.MessageRefused(
                at_s=self.now_s(),
                site=self.index,
                sender=sender,
                error=type(error).__name__,
                detail=str(error),
            )
        )

    async def _report_regularly(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_EVERY_S)
            self._report()

    async def _report_and_leave(self) -> None:
        self._report()
        await self._agent.leave()

    def _report(self) -> None:
        now_s, sent_bytes = self.now_s(), self._agent.sent_bytes()
        for target, count in sent_bytes.items():
            if more := count - self._sent_bytes.get(target, 0):
                self._events.append(
                    events.LinkBytes(
                        at_s=now_s,
                        source=self.index,
                        target=target,
                        seconds=now_s - self._sampled_s,
                        payload_bytes=more,
                    )
                )
        self._sent_bytes, self._sampled_s = sent_bytes, now_s
        waiting, self._events = self._events, []
        if waiting:
            self._agent.report(tuple(events.encode(event).encode() for event in waiting))


def _train(
    site: _Site, scenario: Scenario, task: Train, data_dir: Path | None, threads: int | None
) -> None:
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    trainer = _trainer(site, scenario, task, data_dir)
    site.start(scenario, trainer.flat.gradients.size)
    done: Round

    def exchange(gradients: npt.NDArray[np.float32]) -> None:
        nonlocal done
        done = site.all_reduce(gradients)

    for step in range(1, scenario.rounds + 1):
        result = trainer.step(exchange)
        site.round_ended(done, result.checksum)
        site.record(
            events.StepDone(
                at_s=site.now_s(),
                site=site.index,
                round=step,
                loss=result.loss,
                samples=result.samples,
                compute_s=result.compute_s,
            )
        )
        # All sites hold the same model, so one of them measures it.
        if site.index == 0 and (step % task.evaluate_every == 0 or step == scenario.rounds):
            at_s = site.now_s()
            accuracy = trainer.accuracy()
            site.record(events.Evaluated(at_s=at_s, site=0, round=step, accuracy=accuracy))


def _trainer(site: _Site, scenario: Scenario, task: Train, data_dir: Path | None) -> Trainer:
    from anabranch.learn.models import build_model
    from anabranch.learn.optimisers import Adam, Sgd
    from anabranch.learn.partition import partition_evenly
    from anabranch.learn.tasks import load_task
    from anabranch.learn.train import Trainer

    data = load_task(task.data, data_dir)
    model = build_model(
        task.model, data.shape, data.classes, seed=scenario.seed, hidden=task.hidden or None
    )
    shards = partition_evenly(len(data.train_labels), site.sites, scenario.seed)
    rate = task.learning_rate
    return Trainer(
        data,
        model,
        shards[site.index],
        Adam(rate) if task.optimiser == "adam" else Sgd(rate, task.momentum),
        task.batch_size,
        seed=scenario.seed * site.sites + site.index,
        clock=site.now_s,
    )


def _exchange(site: _Site, scenario: Scenario, task: Exchange) -> None:
    from anabranch.learn.checksum import checksum
    from anabranch.learn.profiles import load_profile

    elements = task.elements if task.profile is None else load_profile(task.profile).elements
    assert elements is not None
    buffer = np.empty(elements, np.float32)
    site.start(scenario, elements)
    for _ in range(scenario.rounds):
        _fill(buffer, site.index)
        done = site.all_reduce(buffer)
        _check(buffer, site.sites, done.round)
        site.round_ended(done, checksum(buffer))


# What sites exchange when they compute nothing: whole numbers so small that float32 adds them up
# exactly, in any order, so the mean is known to the last bit.
_PATTERN = (np.arange(251 * 1024) % 251).astype(np.float32)


def _fill(buffer: npt.NDArray[np.float32], site: int) -> None:
    for start in range(0, len(buffer), len(_PATTERN)):
        part = buffer[start : start + len(_PATTERN)]
        np.add(_PATTERN[: len(part)], np.float32(site), out=part)


def _check(buffer: npt.NDArray[np.float32], sites: int, round: int) -> None:
    mean = (_PATTERN * sites + np.float32(sites * (sites - 1) // 2)) / np.float32(sites)
    for start in range(0, len(buffer), len(mean)):
        part = buffer[start : start + len(mean)]
        if not np.array_equal(part, mean[: len(part)]):
            raise RunAborted(
                f"round {round} gave a wrong mean, first in {start}..{start + len(part)}"
            )
