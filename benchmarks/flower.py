"""What a message costs in Flower's two runtimes, and an exchange of four sites in ours.

    pip install 'anabranch[flower]'
    python benchmarks/flower.py            # or --only simulation, supernodes, ours

A client app returns the arrays that it was sent, at once, and a server app asks for the reply every
50 ms, so that what is measured is the runtime: to one client in turn, and to all clients together,
divided by their number. The processor time is that of all processes of the runtime. Ours is an
all-reduce of as many elements among four processes of this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import anabranch
import common

BIN = Path(sys.executable).parent
SIZES = (25_000, 2_500_000)  # float32
CLIENTS = {"simulation": 32, "supernodes": 4}
EXCHANGES = 50

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "messages"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "anabranch"
[tool.flwr.app.components]
serverapp = "messages:server"
clientapp = "messages:client"
[tool.flwr.app.config]
clients = 4
times = 5
"""

APP = """
import json, os, time
from pathlib import Path
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()

@client.train()
def echo(message, context):
    return Message(content=RecordDict({"arrays": message.content["arrays"]}), reply_to=message)

def cpu_s():
    # All processes of the runtime share FLWR_HOME.
    ticks, home = 0, b"FLWR_HOME=" + os.environ["FLWR_HOME"].encode() + b"\\0"
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if home in (process / "environ").read_bytes():
                fields = (process / "stat").read_text().rpartition(") ")[2].split()
                ticks += sum(map(int, fields[11:15]))  # its own, and of children that have ended
        except OSError:
            continue
    return ticks / os.sysconf("SC_CLK_TCK")

def ask(grid, nodes, arrays):
    for node in nodes:
        content = RecordDict({"arrays": arrays})
        message = Message(content=content, message_type=MessageType.TRAIN, dst_node_id=node)
        yield from grid.push_messages([message])

@server.main()
def main(grid, context):
    config = context.run_config
    while len(nodes := list(grid.get_node_ids())) < config["clients"]:
        time.sleep(0.5)
    for elements in SIZES:
        for kind, asked in (("one", 1), ("all", len(nodes))):
            for number in range(config["times"] + 1):  # the first does not count
                chosen = nodes[number % len(nodes):][:1] if asked == 1 else nodes
                numbers = np.random.default_rng(number).normal(size=elements)
                arrays = ArrayRecord({"w": Array(numbers.astype(np.float32))})
                began_s, began_cpu_s = time.monotonic(), cpu_s()
                out = set(ask(grid, chosen, arrays))
                while out:
                    for reply in grid.pull_messages([*out]):
                        assert not reply.has_error(), reply.error.reason
                        out.discard(reply.metadata.reply_to_message_id)
                    time.sleep(0.05)
                row = {
                    "elements": elements, "to": kind, "first": not number,
                    "wall_s": (time.monotonic() - began_s) / asked,
                    "cpu_s": (cpu_s() - began_cpu_s) / asked,
                }
                print("ROW", json.dumps(row), flush=True)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(folder: Path, *command: object) -> Iterator[None]:
    """Start a process in a group of its own, and end all of that group."""
    with (folder / "log").open("ab") as log:
        popen = subprocess.Popen(
            [*map(str, command)], stdout=log, stderr=log, start_new_session=True, cwd=folder
        )
    try:
        yield
    finally:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(popen.pid, sign)
                popen.wait(10.0)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
        popen.wait()


def certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate that names this machine."""
    key, pem = folder / "server.key", folder / "server.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "1", "-subj", "/CN=localhost", "-keyout", str(key)),
            *("-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-out", str(pem)),
        ],
        check=True,
        capture_output=True,
    )
    return key, pem


def flower(runtime: str, times: int) -> list[dict[str, Any]]:
    """Run the app in one of Flower's runtimes; return its rows."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, port = Path(name), free_port()
        os.environ.update(FLWR_HOME=name, FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0")
        os.environ["PATH"] = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        app = folder / "app"
        app.mkdir()
        (app / "pyproject.toml").write_text(PROJECT)
        (app / "messages.py").write_text(APP.replace("SIZES", repr(SIZES)))
        key, pem = certificate(folder)
        superlink = [BIN / "flower-superlink", "--disable-runtime-dependency-installation"]
        superlink += ["--host", "127.0.0.1", "--port", port]
        if runtime == "simulation":
            superlink += ["--simulation", "--insecure"]
            trust, more = "insecure = true", ["--federation-config"]
            more += [f"num-supernodes={CLIENTS[runtime]} client-resources-num-cpus=1"]
        else:
            superlink += ["--ssl-certfile", pem, "--ssl-keyfile", key, "--ssl-ca-certfile", pem]
            trust, more = f'root-certificates = "{pem}"', []
        stack.enter_context(process(folder, *superlink))
        time.sleep(10.0)
        for number in range(CLIENTS[runtime] if runtime == "supernodes" else 0):
            node = [BIN / "flower-supernode", "--superlink", f"127.0.0.1:{port}"]
            node += ["--root-certificates", pem, "--port", free_port()]
            node += ["--node-config", f"partition-id={number}"]
            stack.enter_context(process(folder, *node))
        (folder / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n[superlink.here]\n'
            f'address = "127.0.0.1:{port}"\n{trust}\n'
        )
        config = f"clients={CLIENTS[runtime]} times={times}"
        command = [BIN / "flwr", "run", app, "here", "--stream", "--run-config", config, *more]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
        rows = [
            json.loads(line[4:]) for line in done.stdout.splitlines() if line.startswith("ROW ")
        ]
        if len(rows) != 2 * len(SIZES) * (times + 1):
            raise RuntimeError(done.stdout + done.stderr + (folder / "log").read_text())
        return rows


def exchanges(group: anabranch.Group) -> dict[int, list[float]]:
    """Return how long each all-reduce takes, by its elements."""
    took_s: dict[int, list[float]] = {}
    for elements in SIZES:
        values = np.zeros(elements, np.float32)
        for _ in range(EXCHANGES + 1):
            began_s = time.monotonic()
            group.all_reduce([values])
            took_s.setdefault(elements, []).append(time.monotonic() - began_s)
    return {elements: each[1:] for elements, each in took_s.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("simulation", "supernodes", "ours"))
    parser.add_argument("--times", type=int, default=5)
    given = parser.parse_args()
    results: dict[str, Any] = {}
    if given.only in (None, "ours"):
        ours = anabranch.spawn(exchanges, 4)[0]
        for elements, took_s in ours.items():
            results[f"ours, 4 sites, {elements} elements"] = {"wall_s": common.spread(took_s)}
    for runtime in CLIENTS:
        if given.only not in (None, runtime):
            continue
        rows = [row for row in flower(runtime, given.times) if not row["first"]]
        for elements in SIZES:
            for to in ("one", "all"):
                found = [row for row in rows if (row["elements"], row["to"]) == (elements, to)]
                results[f"{runtime}, to {to} of {CLIENTS[runtime]}, {elements} elements"] = {
                    each: common.spread([row[each] for row in found])
                    for each in ("wall_s", "cpu_s")
                }
    for name, row in results.items():
        print(name, {each: round(values["median"], 4) for each, values in row.items()})
    common.write("flower", seed=0, flwr=version("flwr"), results=results)


if __name__ == "__main__":
    main()
