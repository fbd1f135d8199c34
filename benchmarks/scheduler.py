"""What the scheduler costs with 200 sites: CPU of its process, over TCP, plans looked at every 5 s.

    python benchmarks/scheduler.py

The clients say what sites of a real run say, as often: they ask for rounds, tell their progress,
report what they measured of links whose rates wander, and end rounds with a checksum. They move no
data. A round takes ``--round-s``.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import common
from anabranch.exchange.terms import Op, Wire
from anabranch.log import read_events, summarise
from anabranch.net.frames import CONTROL_LIMITS, DISCARD, Sink
from anabranch.net.identity import proven
from anabranch.net.messages import (
    AnyMessage,
    ExchangeEnded,
    ExchangeRequest,
    Grant,
    Join,
    LinkRate,
    Measured,
    NoMoreRounds,
    Progress,
    Ready,
    Signature,
    Start,
    TimeReply,
    TimeRequest,
    Welcome,
)
from anabranch.net.network import Connection
from anabranch.net.tcp import TcpNetwork
from anabranch.overlay import Overlay, dumps, random_sparse
from anabranch.plan import loads
from anabranch_lab.run.launch import TOKEN_VARIABLE

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
ELEMENTS = 61_000_000
SIGNATURE = Signature(Op.MEAN, Wire.FLOAT32, ELEMENTS)
REPORTS_A_ROUND = 16
MEASURED_EVERY_S = 1.25


class Client:
    """One site, as far as the scheduler can tell."""

    def __init__(self, overlay: Overlay, site: int, token: str, round_s: float) -> None:
        self.heard: asyncio.Queue[AnyMessage] = asyncio.Queue()
        self._overlay, self._site, self._token, self._round_s = overlay, site, token, round_s
        self._rng = np.random.default_rng(site)

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        if isinstance(message, Welcome | Start | Grant | NoMoreRounds):
            self.heard.put_nowait(message)
        elif not isinstance(message, TimeReply):
            self.others += 1
        return DISCARD

    others = 0

    def on_refused(self, message: AnyMessage, error: Exception) -> None:
        raise error

    def on_closed(self, error: Exception | None) -> None: ...

    async def live(self, address: tuple[str, int], until_s: float) -> int:
        """Take part; return how many rounds were held."""
        connection = await TcpNetwork(CONTROL_LIMITS).connect(address, self)
        name = self._overlay.sites[self._site].name
        join = Join(b"", name, "127.0.0.1", 1 + self._site)
        connection.post(proven(join, self._token.encode(), connection.their_challenge))
        welcome = await self.heard.get()
        assert isinstance(welcome, Welcome)
        trees = len(loads(welcome.plan_json).trees)
        connection.post(Ready(ELEMENTS))
        await self.heard.get()
        measuring = asyncio.get_running_loop().create_task(self._measure(connection))
        rounds = 0
        connection.post(ExchangeRequest(0, 1, SIGNATURE))
        while True:
            grant = await self.heard.get()
            if not isinstance(grant, Grant):
                break
            rounds += 1
            if grant.plan_json:
                trees = len(loads(grant.plan_json).trees)
            for report in range(REPORTS_A_ROUND):
                await asyncio.sleep(self._round_s / REPORTS_A_ROUND)
                if grant.trees is not None:
                    share = (report + 1) / REPORTS_A_ROUND
                    counts = np.bincount(grant.trees, minlength=trees)
                    finished = tuple(int(count * share) for count in counts)
                    connection.post(Progress(grant.exchange, finished))
            if time.monotonic() > until_s:
                break
            connection.post(ExchangeRequest(0, rounds + 1, SIGNATURE))
            connection.post(ExchangeEnded(0, rounds, grant.version, self._round_s, 1))
        measuring.cancel()
        connection.close()
        return rounds

    async def _measure(self, connection: Connection) -> None:
        while True:
            await asyncio.sleep(MEASURED_EVERY_S)
            rates = []
            for source in self._overlay.sources[self._site]:
                link = self._overlay.link(source, self._site)
                assert link is not None
                factor = math.exp(0.2 * self._rng.standard_normal())
                rates.append(LinkRate(source, link.goodput_bps * factor, 0.01, 8))
            connection.post(Measured(tuple(rates)))
            connection.post(TimeRequest(time.monotonic()))


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def measure(route: str, options: argparse.Namespace) -> dict[str, object]:
    overlay = random_sparse(options.sites, 0)
    token = secrets.token_hex(8)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "overlay.toml").write_text(dumps(overlay))
        Path(folder, "scenario.toml").write_text(
            f'overlay = "overlay.toml"\nstop.rounds = 100000\nroute = {route}\n'
            f'awareness = {{kind = "passive", update_time_s = {options.update_time_s}}}\n'
            f'task = {{kind = "exchange", elements = {ELEMENTS}}}\n'
        )
        scheduler = subprocess.Popen(
            [
                *(sys.executable, "-m", "anabranch", "scheduler"),
                *(f"{folder}/scenario.toml", "--log", f"{folder}/run.db"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, TOKEN_VARIABLE: token},
        )
        try:
            assert scheduler.stdout is not None
            host, _, port = scheduler.stdout.readline().strip().partition(":")
            clients = [
                Client(overlay, site, token, options.round_s) for site in range(overlay.size)
            ]

            async def live() -> tuple[int, float, float]:
                until_s = time.monotonic() + options.seconds + 5.0
                lives = [
                    asyncio.create_task(client.live((host, int(port)), until_s))
                    for client in clients
                ]
                await asyncio.sleep(5.0)  # joining is over
                began_s, began_cpu_s = time.monotonic(), cpu_s(scheduler.pid)
                await asyncio.sleep(options.seconds)
                used_s, passed_s = cpu_s(scheduler.pid) - began_cpu_s, time.monotonic() - began_s
                return (await lives[0]), used_s, passed_s

            rounds, used_s, passed_s = asyncio.run(live())
            scheduler.terminate()
            scheduler.wait(30)
            run = summarise(event for _, event in read_events(Path(folder, "run.db")))
        finally:
            scheduler.kill()
            scheduler.wait()
    share = used_s / passed_s
    print(
        f"{route}: {overlay.size} sites, {len(overlay.links)} links: {share:.1%} of a core, "
        f"{rounds} rounds, {len(run.plans)} new plans"
    )
    return {
        "route": route,
        "sites": overlay.size,
        "links": len(overlay.links),
        "core_share": share,
        "rounds": rounds,
        "plans_issued": len(run.plans),
        "others": sum(client.others for client in clients),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--round-s", type=float, default=10.0)
    parser.add_argument("--update-time-s", type=float, default=5.0)
    options = parser.parse_args()
    results = [
        measure('{kind = "fapt", roots = 10}', options),
        measure('{kind = "packed"}', options),
    ]
    common.write(
        "scheduler",
        seed=0,
        update_time_s=options.update_time_s,
        round_s=options.round_s,
        results=results,
    )


if __name__ == "__main__":
    main()
