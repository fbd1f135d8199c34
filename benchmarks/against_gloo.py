"""An unshaped all-reduce of 61 M float32 over nine processes, ours beside gloo in the same ones.

    python benchmarks/against_gloo.py

Every process joins both groups; rounds of ours and of gloo take turns, so both feel the same
machine. Ours computes the mean, gloo the sum, as each does by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

import common
from anabranch.net.tcp import TcpNetwork
from anabranch.overlay import dumps, internet2_9, random_complete
from anabranch.run.launch import TOKEN_VARIABLE
from anabranch.scheduler.server import LIMITS as CONTROL_LIMITS
from anabranch.site.agent import SiteAgent, Transport
from anabranch.site.arithmetic import Float32
from anabranch.site.dataplane import LIMITS as DATA_LIMITS

ELEMENTS = 61_100_840
SITES = 9
# Nobody shapes the links here, so the plan is made for equal ones: nine stars, one for each site.
EQUAL = random_complete(SITES, 0, low_bps=1e9, high_bps=1e9, latency_s=0.0, loss=0.0)


async def take_part(
    rank: int, name: str, scheduler: str, gloo_port: int, options: argparse.Namespace
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{gloo_port}", rank=rank, world_size=SITES
    )
    buffer = np.empty(ELEMENTS, np.float32)
    tensor = torch.from_numpy(buffer)
    times: dict[str, list[float]] = {"gloo": [], "anabranch": []}
    cpu: dict[str, list[float]] = {"gloo": [], "anabranch": []}
    host, port = scheduler.split(":")
    loop = asyncio.get_running_loop()
    lanes = TcpNetwork(DATA_LIMITS)
    agent = SiteAgent(
        TcpNetwork(CONTROL_LIMITS),
        lanes,
        name,
        os.environ[TOKEN_VARIABLE],
        ("127.0.0.1", 0),
        lambda: None,
        lambda *refused: None,
    )
    await agent.join((host, int(port)))
    await agent.start(Transport(options.chunk_elements), ELEMENTS, Float32(), lanes)
    for number in range(options.rounds + 1):
        for system in ("gloo", "anabranch"):
            buffer.fill(float(rank))
            await loop.run_in_executor(None, dist.barrier)
            began_s, began_cpu_s = time.perf_counter(), time.process_time()
            if system == "gloo":
                await loop.run_in_executor(None, dist.all_reduce, tensor)
            else:
                await agent.all_reduce(buffer)
            took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
            expected = SITES * (SITES - 1) / 2 / (1 if system == "gloo" else SITES)
            assert buffer[0] == expected
            assert bool((tensor == expected).all())
            await loop.run_in_executor(None, dist.barrier)
            if number:  # the first round of each opens connections
                times[system].append(took_s)
                cpu[system].append(cpu_s)
    await agent.leave()
    dist.destroy_process_group()
    print(json.dumps({"times": times, "cpu": cpu}), flush=True)


def compare(
    overlay_name: str, roots: int, chunk_elements: int, options: argparse.Namespace
) -> dict[str, object]:
    overlay = internet2_9() if overlay_name == "internet2-9" else EQUAL
    environment = {**os.environ, TOKEN_VARIABLE: secrets.token_hex(8), "GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        gloo_port = free.getsockname()[1]
        free.close()
        Path(folder, "overlay.toml").write_text(dumps(overlay))
        Path(folder, "scenario.toml").write_text(
            f'overlay = "overlay.toml"\nstop.rounds = {options.rounds + 1}\n'
            f'[route]\nkind = "fapt"\nroots = {roots}\n'
            f'[task]\nkind = "exchange"\nelements = {ELEMENTS}\n'
        )
        scheduler = subprocess.Popen(
            [
                *(sys.executable, "-m", "anabranch", "scheduler"),
                *(f"{folder}/scenario.toml", "--log", f"{folder}/run.db"),
            ],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        processes = [scheduler]
        try:
            assert scheduler.stdout is not None
            address = scheduler.stdout.readline().strip()
            for rank, site in enumerate(overlay.sites):
                command = [sys.executable, __file__, "--rank", str(rank), "--name", site.name]
                command += ["--scheduler", address, "--gloo-port", str(gloo_port)]
                command += ["--rounds", str(options.rounds)]
                command += ["--chunk-elements", str(chunk_elements)]
                processes.append(
                    subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
                )
            answers = [json.loads(process.communicate()[0]) for process in processes[1:]]
        finally:
            for process in processes:
                process.kill()
                process.wait()
    # A round lasts until its last process has the result.
    rounds = {
        system: [max(column) for column in zip(*(a["times"][system] for a in answers), strict=True)]
        for system in ("gloo", "anabranch")
    }
    cpu = {
        system: [sum(column) for column in zip(*(a["cpu"][system] for a in answers), strict=True)]
        for system in ("gloo", "anabranch")
    }
    ratio = median(g / a for g, a in zip(rounds["gloo"], rounds["anabranch"], strict=True))
    print(
        f"{overlay_name}, fapt {roots} roots, chunks of {chunk_elements}: "
        f"gloo {median(rounds['gloo']):.2f} s, "
        f"anabranch {median(rounds['anabranch']):.2f} s, gloo/anabranch {ratio:.2f}; CPU of all "
        f"nine {median(cpu['gloo']):.1f} s against {median(cpu['anabranch']):.1f} s"
    )
    return {
        "overlay": overlay_name,
        "roots": roots,
        "chunk_elements": chunk_elements,
        "gloo_s": common.spread(rounds["gloo"]),
        "anabranch_s": common.spread(rounds["anabranch"]),
        "gloo_over_anabranch": ratio,
        "gloo_cpu_s": common.spread(cpu["gloo"]),
        "anabranch_cpu_s": common.spread(cpu["anabranch"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--chunk-elements", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    parser.add_argument("--scheduler", help=argparse.SUPPRESS)
    parser.add_argument("--gloo-port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        asyncio.run(
            take_part(options.rank, options.name, options.scheduler, options.gloo_port, options)
        )
        return
    results = [
        compare(overlay, SITES, chunk_elements, options)
        for chunk_elements in (1 << 20, 1 << 22)
        for overlay in ("complete", "internet2-9")
    ]
    common.write(
        "against_gloo",
        seed=0,
        sites=SITES,
        elements=ELEMENTS,
        results=results,
    )


if __name__ == "__main__":
    main()
