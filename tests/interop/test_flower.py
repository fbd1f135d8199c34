"""The Flower app of the examples in Flower's two runtimes, and the strategies on a grid of ours."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs pip install 'anabranch[flower]'")

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from anabranch.interop import flower

APP = Path(__file__).parents[2] / "examples" / "interop" / "flower-app"
BIN = Path(sys.executable).parent
STARTED = "Application startup complete"


class Reply:
    """What the strategy reads of a reply."""

    def __init__(self, to: str, content: RecordDict) -> None:
        self.metadata = type("Metadata", (), {"reply_to_message_id": to})
        self.content = content

    def has_error(self) -> bool:
        return False


class Grid:
    """Nodes whose models go towards a number each; some are silent from some message on."""

    def __init__(self, goals: dict[int, float], silent: dict[int, int]) -> None:
        self._goals = goals
        self._silent = silent
        self._out: dict[str, tuple[int, Message]] = {}
        self.sent: dict[int, int] = {}
        self.most_out = 0

    def get_node_ids(self) -> Iterable[int]:
        return list(self._goals)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            node = message.metadata.dst_node_id
            assert node not in [out for out, _ in self._out.values()], "one message at a time"
            self.sent[node] = self.sent.get(node, 0) + 1
            ids.append(f"{node}-{self.sent[node]}")
            if self.sent[node] != self._silent.get(node):
                self._out[ids[-1]] = node, message
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Reply]:
        replies = []
        for each in list(message_ids)[:2]:  # not all at once
            if each not in self._out:
                continue
            node, message = self._out.pop(each)
            model = message.content["arrays"]["w"].numpy()
            moved = model + 0.5 * (self._goals[node] - model)
            arrays = ArrayRecord({"w": Array(moved.astype(np.float32))})
            metrics = MetricRecord({"num-examples": 10, "loss": 1.0})
            replies.append(Reply(each, RecordDict({"arrays": arrays, "metrics": metrics})))
        return replies


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "_POLL_S", 0.0)
    monkeypatch.setattr(flower, "_NODES_S", 0.0)
    # Messages name the run and the task that they are of, which Flower sets in its processes.
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1, raising=False)


def start(strategy: flower.Paced, grid: Grid, rounds: int, timeout: float = 60.0) -> Any:
    first = ArrayRecord({"w": Array(np.zeros(8, np.float32))})
    seen = []

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        seen.append(number)
        return MetricRecord({"mean": float(arrays["w"].numpy().mean())})

    result = strategy.start(
        grid=grid, initial_arrays=first, num_rounds=rounds, timeout=timeout, evaluate_fn=evaluate
    )
    assert seen == list(range(rounds + 1))
    return result


@pytest.mark.parametrize(
    "strategy",
    [
        flower.FlR2sp(groups=3, relaxation=0.0, beta=None),
        flower.FlR2sp(groups=2, relaxation=0.0, collects="turn", mixes="updates"),
        flower.FedBuff(size=3),
    ],
    ids=["fl-r2sp", "fl-r2sp of updates", "fedbuff"],
)
def test_a_strategy_comes_to_the_mean_of_what_nodes_want(
    strategy: flower.Paced, quick: None
) -> None:
    grid = Grid({node: 1.0 + node % 3 / 10 for node in range(100, 109)}, {})
    result = start(strategy, grid, rounds=12)
    assert result.arrays["w"].numpy() == pytest.approx(np.full(8, 1.1), abs=0.2)
    assert result.train_metrics_clientapp[12]["loss"] == pytest.approx(1.0)
    assert set(grid.sent) == set(range(100, 109))


def test_a_silent_node_is_gone_on_without(quick: None) -> None:
    grid = Grid(dict.fromkeys(range(6), 1.0), silent={2: 2})
    result = start(flower.FlR2sp(groups=2, relaxation=0.0, fraction=1.0), grid, 8, timeout=0.3)
    assert result.arrays["w"].numpy() == pytest.approx(np.ones(8), abs=0.1)
    assert grid.sent[2] == 2


def test_an_outlier_gets_no_more_messages(quick: None) -> None:
    grid = Grid({**dict.fromkeys(range(5), 1.0), 5: -1.0}, {})
    strategy = flower.FlR2sp(groups=1, relaxation=0.0, fraction=1.0, beta=0.1, patience=2)
    start(strategy, grid, rounds=8)
    assert grid.sent[5] < grid.sent[0]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(log: Path, *command: object) -> Iterator[Path]:
    """Start a process in a group of its own, and end all of it, whatever happens."""
    with log.open("wb") as out:
        popen = subprocess.Popen(
            [*map(str, command)],
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=log.parent,
        )
    try:
        yield log
    finally:
        for sign, wait_s in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
            try:
                os.killpg(popen.pid, sign)
                popen.wait(wait_s)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
        popen.wait()


def wait_for(log: Path, text: str, limit_s: float = 60.0) -> None:
    until_s = time.monotonic() + limit_s
    while text not in log.read_text("utf-8", "replace"):
        assert time.monotonic() < until_s, log.read_text("utf-8", "replace")[-2000:]
        time.sleep(0.2)


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the app, in a folder where Flower keeps its own."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "home").mkdir()
    return Path(shutil.copytree(APP, tmp_path / "app"))


def run(app: Path, address: str, more: str, *arguments: str) -> float:
    """Run the app on a SuperLink; return the accuracy that it ends with."""
    config = f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{address}"\n{more}\n'
    Path(os.environ["FLWR_HOME"], "config.toml").write_text(config)
    command = [str(BIN / "flwr"), "run", str(app), "here", "--stream", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    found = re.findall(r"^accuracy ([\d.]+)$", done.stdout, re.MULTILINE)
    assert found, done.stdout[-3000:] + done.stderr[-2000:]
    return float(found[-1])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("flower")
def test_thirty_two_clients_in_the_simulation_engine(app: Path, tmp_path: Path) -> None:
    port = free_port()
    superlink = (BIN / "flower-superlink", "--simulation", "--insecure", "--host", "127.0.0.1")
    more = ("--disable-runtime-dependency-installation", "--port", port)
    with process(tmp_path / "superlink.log", *superlink, *more) as log:
        wait_for(log, STARTED)
        federation = "num-supernodes=32 client-resources-num-cpus=1"
        rounds = ("--run-config", "num-server-rounds=2 local-steps=10")
        accuracy = run(
            app, f"127.0.0.1:{port}", "insecure = true", "--federation-config", federation, *rounds
        )
    assert accuracy > 0.5


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("flower")
def test_a_superlink_with_tls_and_four_supernodes(app: Path, tmp_path: Path) -> None:
    key, certificate = tmp_path / "server.key", tmp_path / "server.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "1", "-subj", "/CN=localhost", "-keyout", str(key)),
            *("-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    port = free_port()
    superlink = (
        *(BIN / "flower-superlink", "--host", "127.0.0.1", "--port", port),
        *("--ssl-certfile", certificate, "--ssl-keyfile", key, "--ssl-ca-certfile", certificate),
        "--disable-runtime-dependency-installation",
    )
    with process(tmp_path / "superlink.log", *superlink) as log:
        wait_for(log, STARTED)
        nodes = [
            (
                *(BIN / "flower-supernode", "--superlink", f"127.0.0.1:{port}"),
                *("--root-certificates", certificate, "--port", free_port()),
                *("--node-config", f"partition-id={number} num-partitions=4"),
            )
            for number in range(4)
        ]
        names = [tmp_path / f"node-{number}.log" for number in range(4)]
        with (
            process(names[0], *nodes[0]),
            process(names[1], *nodes[1]),
            process(names[2], *nodes[2]),
            process(names[3], *nodes[3]),
        ):
            accuracy = run(
                app,
                f"127.0.0.1:{port}",
                f'root-certificates = "{certificate}"',
                *("--run-config", "num-server-rounds=1 local-steps=20 groups=2"),
            )
    assert accuracy > 0.3
