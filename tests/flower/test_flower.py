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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs pip install 'anabranch[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore.task_identity import TaskIdentity

from anabranch import flower
from anabranch.merge import Mean, Staleness
from anabranch.pace import Asp, Bsp

from ..every import every

APP = Path(__file__).parents[2] / "examples" / "interop" / "flower-app"
BIN = Path(sys.executable).parent
STARTED = "Application startup complete"


class Reply:
    """What the strategy reads of a reply."""

    def __init__(self, to: str, content: RecordDict | None, error: str = "") -> None:
        self.metadata = type("Metadata", (), {"reply_to_message_id": to})
        self.content = content
        self.error = type("Error", (), {"code": ErrorCode.CLIENT_APP_CRASHED, "reason": error})

    def has_error(self) -> bool:
        return self.content is None


@dataclass
class Grid:
    """Nodes in virtual time, whose models go half of the way to a number each.

    Args:
        goals: by node.
        takes_s: by node, how long an update takes; one second where nothing is said.
        fails: what a node says instead of a model.
        joins_s: by node, when it is there; from the beginning where nothing is said.
    """

    goals: dict[int, float]
    takes_s: dict[int, float] = field(default_factory=dict)
    fails: dict[int, str] = field(default_factory=dict)
    joins_s: dict[int, float] = field(default_factory=dict)
    time_s: float = 0.0
    sent: Counter[int] = field(default_factory=Counter)
    pulled: Counter[str] = field(default_factory=Counter)
    configs: list[ConfigRecord] = field(default_factory=list)
    _out: dict[str, tuple[float, Message]] = field(default_factory=dict)

    def now_s(self) -> float:
        return self.time_s

    def sleep(self, for_s: float) -> None:
        self.time_s += for_s

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self.goals if self.joins_s.get(node, 0.0) <= self.time_s]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            node = message.metadata.dst_node_id
            out = [other.metadata.dst_node_id for _, other in self._out.values()]
            assert node not in out, "one message at a time"
            self.sent[node] += 1
            self.configs.append(message.content["config"])
            ids.append(f"{node}-{self.sent[node]}")
            self._out[ids[-1]] = self.time_s + self.takes_s.get(node, 1.0), message
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Reply]:
        replies = []
        for each in message_ids:
            ready_s, message = self._out[each]
            if ready_s > self.time_s:
                continue
            del self._out[each]
            self.pulled[each] += 1
            node = message.metadata.dst_node_id
            if node in self.fails:
                replies.append(Reply(each, None, self.fails[node]))
                continue
            model = message.content["arrays"]["w"].numpy()
            moved = model + 0.5 * (self.goals[node] - model)
            arrays = ArrayRecord({"w": Array(moved.astype(np.float32))})
            seen = message.content["config"]["server-round"]
            metrics = MetricRecord({"num-examples": 10, "loss": 1.0, "seen": seen})
            replies.append(Reply(each, RecordDict({"arrays": arrays, "metrics": metrics})))
        return replies


@pytest.fixture(autouse=True)
def in_an_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let messages name the run and task that they are of, which Flower sets in its processes."""
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1, raising=False)


def start(
    strategy: flower.Paced, grid: Grid, rounds: int, timeout: float = 60.0, **more: Any
) -> Any:
    strategy._clock = grid  # type: ignore[assignment]
    first = ArrayRecord({"w": Array(np.zeros(8, np.float32))})
    seen = []

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        seen.append(number)
        return MetricRecord({"mean": float(arrays["w"].numpy().mean())})

    result = strategy.start(
        grid=grid,
        initial_arrays=first,
        num_rounds=rounds,
        timeout=timeout,
        evaluate_fn=evaluate,
        **more,
    )
    assert seen == list(range(rounds + 1))
    assert set(grid.pulled.values()) <= {1}
    return result


@pytest.mark.parametrize(
    "strategy",
    [
        flower.FlR2sp(groups=3, beta=None),
        flower.FlR2sp(groups=2, collects="turn", grouping="delay", mixes="updates"),
        flower.FedBuff(size=3),
        flower.Paced(Asp(share=0.3), Staleness(a=0.5), "models", steps_a_round=9),
    ],
    ids=["fl-r2sp", "fl-r2sp of updates", "fedbuff", "fedasync"],
)
def test_a_strategy_comes_to_the_mean_of_what_nodes_want(strategy: flower.Paced) -> None:
    nodes = range(100, 109)
    grid = Grid(
        {node: 1.0 + node % 3 / 10 for node in nodes}, {node: 1.0 + node % 4 for node in nodes}
    )
    result = start(strategy, grid, rounds=20)
    assert result.arrays["w"].numpy() == pytest.approx(np.full(8, 1.1), abs=0.2)
    assert result.train_metrics_clientapp[20]["loss"] == pytest.approx(1.0)
    assert result.train_metrics_clientapp[20]["seen"] <= 20
    assert result.evaluate_metrics_serverapp[20]["mean"] == pytest.approx(1.1, abs=0.2)
    assert set(grid.sent) == set(nodes)


def test_groups_take_turns_a_part_of_a_round_apart() -> None:
    grid = Grid(dict.fromkeys(range(8), 1.0), dict.fromkeys(range(8), 10.0))
    start(flower.FlR2sp(groups=4, fraction=1.0, beta=None), grid, rounds=5)
    assert 45.0 < grid.time_s < 75.0  # five rounds of ten seconds, and a turn each 2.5 s
    assert set(grid.sent.values()) <= {5, 6}


def test_a_silent_node_is_gone_on_without_and_its_late_reply_discarded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid = Grid(dict.fromkeys(range(6), 1.0), {2: 30.0})
    strategy = flower.FlR2sp(groups=2, relaxation=0.0, fraction=1.0, beta=None)
    with caplog.at_level("INFO", "flwr"):
        result = start(strategy, grid, 40, timeout=5.0)
    assert result.arrays["w"].numpy() == pytest.approx(np.ones(8), abs=0.1)
    assert "node 2 has been silent for 5 s; the others go on without it" in caplog.text
    assert "the reply of node 2 came after 30." in caplog.text
    assert grid.sent[2] == 2 < grid.sent[3]


def test_an_outlier_gets_no_more_messages() -> None:
    grid = Grid({**dict.fromkeys(range(5), 1.0), 5: -1.0})
    strategy = flower.FlR2sp(
        groups=1, relaxation=0.0, fraction=1.0, beta=0.1, patience=2, steps_a_round=2
    )
    result = start(strategy, grid, rounds=8)
    assert (grid.sent[5], grid.sent[0]) == (2, 17)
    assert result.arrays["w"].numpy() == pytest.approx(np.ones(8), abs=0.05)


def test_a_node_that_comes_later_takes_part() -> None:
    grid = Grid(dict.fromkeys(range(4), 1.0), joins_s={3: 10.0})
    start(flower.FedBuff(size=2), grid, rounds=40)
    assert 0 < grid.sent[3] < grid.sent[0] - 5


def test_a_client_app_that_raises_everywhere_ends_the_run() -> None:
    nodes = range(4)
    grid = Grid(dict.fromkeys(nodes, 1.0), fails=dict.fromkeys(nodes, "ValueError: no data"))
    with pytest.raises(flower.NoNodesLeft, match="4 failed 3 times in a row"):
        start(flower.FlR2sp(groups=2), grid, rounds=3)
    assert set(grid.sent.values()) == {3}


def test_replies_without_a_weight_are_failures(caplog: pytest.LogCaptureFixture) -> None:
    grid = Grid(dict.fromkeys(range(4), 1.0))
    with pytest.raises(flower.NoNodesLeft):
        start(flower.FedBuff(weighted_by_key="samples"), grid, rounds=1)
    assert "its reply does not have this app's records: KeyError" in caplog.text


def test_what_wraps_rounds_refuses_a_paced_strategy() -> None:
    with pytest.raises(NotImplementedError, match="FedBuff has no rounds that all nodes wait for"):
        flower.FedBuff().configure_train(1, ArrayRecord(), ConfigRecord(), Grid({}))


@pytest.mark.parametrize(
    "name", ["configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate"]
)
def test_an_override_that_would_never_be_called_is_refused_by_its_class(name: str) -> None:
    Decaying = type("Decaying", (flower.FedBuff,), {name: lambda self, *given: []})  # noqa: N806
    with pytest.raises(TypeError, match=rf"Decaying overrides {name}\(\), which is never called"):
        Decaying()
    type("Summed", (flower.FlR2sp,), {"summary": lambda self: None})()  # which is called


def test_a_round_has_a_config_of_its_own() -> None:
    grid = Grid(dict.fromkeys(range(4), 1.0))
    strategy = flower.FedBuff(
        size=2, train_config_fn=lambda number: ConfigRecord({"lr": 0.1 / number})
    )
    start(strategy, grid, rounds=6, train_config=ConfigRecord({"lr": 9.0, "epochs": 2}))
    assert {each["epochs"] for each in grid.configs} == {2}
    assert {round(each["lr"] * each["server-round"], 9) for each in grid.configs} == {0.1}
    assert len({each["server-round"] for each in grid.configs}) > 3


def test_what_of_flower_s_rounds_changes_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    strategy = flower.FlR2sp(groups=2, fraction_train=0.5, min_train_nodes=4, min_evaluate_nodes=2)
    strategy._clock = grid = Grid(dict.fromkeys(range(4), 1.0))  # type: ignore[assignment]
    first = ArrayRecord({"w": Array(np.zeros(8, np.float32))})
    strategy.start(grid, first, 1, evaluate_config=ConfigRecord({"batch": 1}))
    warned = [each.message for each in caplog.records if each.levelname == "WARNING"]
    for name in ("fraction_train", "min_train_nodes", "min_evaluate_nodes", "evaluate_config"):
        assert any(each.startswith(f"FlR2sp: {name} changes nothing:") for each in warned)
    assert any("no evaluate_fn is given" in each for each in warned)
    assert every("@app.evaluate() is never called" in each for each in warned[2:])


class Mine(flower.FlR2sp):
    """A user's own strategy."""


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Mine(fration=0.5), "Mine has no parameter 'fration'; did you mean 'fraction'"),
        (lambda: flower.FedBuff(sise=3), "FedBuff has no parameter 'sise'; did you mean 'size'"),
    ],
)
def test_a_parameter_that_is_none_is_refused_by_the_users_class(
    made: Callable[[], Any], said: str
) -> None:
    with pytest.raises(TypeError, match=said):
        made()


def test_a_round_ends_at_its_step(caplog: pytest.LogCaptureFixture) -> None:
    """Eight nodes reply at once: two rounds of four replies each, and not one of eight."""
    grid = Grid(dict.fromkeys(range(8), 1.0))
    counts = []

    def count(replies: list[RecordDict], key: str) -> MetricRecord:
        counts.append(len(replies))
        return MetricRecord({"loss": 1.0})

    strategy = flower.FedBuff(size=4, train_metrics_aggr_fn=count)
    result = start(strategy, grid, rounds=6)
    assert counts == [4] * 6
    means = [result.evaluate_metrics_serverapp[number]["mean"] for number in range(7)]
    assert len(set(means)) == 7, "no model is evaluated twice"


def test_turns_that_are_due_at_once_are_steps_of_rounds_of_their_own() -> None:
    """Groups 1 and 2 are ready before group 0: its update makes three turns due."""
    grid = Grid(dict.fromkeys(range(3), 1.0), {0: 30.0, 1: 10.0, 2: 10.0})
    strategy = flower.FlR2sp(
        groups=3, fraction=1.0, relaxation=0.0, beta=None, steps_a_round=1, mixes="updates"
    )
    result = start(strategy, grid, rounds=6)
    means = [result.evaluate_metrics_serverapp[number]["mean"] for number in range(7)]
    assert len(set(means)) == 7


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: flower.FlR2sp(fraction=2.0), "fraction is 2"),
        (lambda: flower.FlR2sp(mixes="both"), "mixes is 'both'"),
        (lambda: flower.FedBuff(min_available_nodes=0), "must be 1 or more"),
        (lambda: flower.Paced(Bsp(), Mean(), "models", 1), "no pace of a federation"),
    ],
)
def test_what_is_out_of_range_is_refused_at_once(made: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        made()


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


def still_there(home: Path) -> list[int]:
    """Return the processes of a Flower home; Ray's have sessions of their own."""
    marker, found = f"FLWR_HOME={home}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if marker in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:  # another user's, or gone
            continue
    return [each for each in found if each != os.getpid()]


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a copy of the app, in a folder where Flower keeps its own; end what is left of it."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "home").mkdir()
    yield Path(shutil.copytree(APP, tmp_path / "app"))
    for each in still_there(tmp_path / "home"):
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


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
