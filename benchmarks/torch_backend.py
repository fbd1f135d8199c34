"""The torch.distributed backend beside gloo: DDP and HSDP over emulated links, and one machine's.

    sudo python benchmarks/torch_backend.py --only far      # DDP, internet2-9, 30 ms and .02 % loss
    sudo python benchmarks/torch_backend.py --only near     # the same without delay or loss
    sudo python benchmarks/torch_backend.py --only hsdp     # two sites of two ranks
    sudo python benchmarks/torch_backend.py --only diloco   # every step against every 100, 8 seeds
    python benchmarks/torch_backend.py --only loopback --ranks 3 [--device cuda]

The script of all is one: only the name of the backend differs, and gloo's ranks go in the order of
sites and in the best order for its ring. The backward pass also sleeps, layer by layer, as if a GPU
computed meanwhile, so that DDP's overlap of computing and communicating counts. Ours is told the
overlay's rates, as `ANABRANCH_OVERLAY`; its trees may be planned again from what it measures, or
the plan is kept. Where links delay and lose, gloo's connections use bbr, as ours do.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import common
import peers
import versions
from anabranch.overlay import Link, Overlay, Site, dumps, internet2_9
from anabranch.plan import limit_s
from anabranch_lab.emulate import emulated

PORT = 29600
WIDTH, LAYERS, LAST = 2000, 15, 530  # 61,090,530 parameters
SLOW_BPS = 10e6


@dataclass(frozen=True)
class Told:
    """What a rank is told.

    Args:
        what: the function to run, a key of `RUNS`.
        backend: of torch.distributed.
        steps: that count.
        compute_s: that a backward pass sleeps.
        width: of a layer.
        seed: of data and model.
        keeps_plan: whether the overlay's rates are facts, and nothing is measured.
        device: of the tensors; all ranks of one machine share it.
    """

    what: str
    backend: str
    steps: int
    compute_s: float = 0.0
    width: int = WIDTH
    seed: int = 0
    keeps_plan: bool = False
    device: str = "cpu"


def model_of(told: Told) -> Any:
    """Return layers whose backward pass takes a while, as on a GPU."""
    import torch
    from torch import nn

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            time.sleep(told.compute_s / (LAYERS + 1))
            return gradient

    class Layer(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = Slow.apply(super().forward(x))  # type: ignore[no-untyped-call]
            return found

    torch.manual_seed(told.seed)
    layers = [Layer(told.width, told.width) for _ in range(LAYERS)]
    return nn.Sequential(*layers, Layer(told.width, told.width * LAST // WIDTH))


def timed_steps(told: Told, model: Any, parameters: Any) -> dict[str, Any]:
    """Train; return how long each step took, the first left out."""
    import torch
    import torch.distributed as dist

    optimizer = torch.optim.SGD(parameters, 1e-3)
    x = torch.randn(4, told.width)
    took_s = []
    for _ in range(told.steps + 1):
        dist.barrier()
        began_s = time.perf_counter()
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        took_s.append(time.perf_counter() - began_s)
    return {"step_s": took_s[1:]}


def ddp(told: Told) -> dict[str, Any]:
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(model_of(told))
    return timed_steps(told, model, model.parameters())


def hsdp(told: Told) -> dict[str, Any]:
    """Two sites of two ranks: shards within a site by gloo, their mean between sites."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(
        "cpu",
        (2, 2),
        mesh_dim_names=("inter", "intra"),
        backend_override={"inter": told.backend},
    )
    model = model_of(told)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return timed_steps(told, model, model.parameters())


def loopback(told: Told) -> dict[str, Any]:
    """All-reduce one buffer by the backend, by its group, and by gloo, each first in turn."""
    import torch
    import torch.distributed as dist

    from anabranch.torch.backend import group_of

    gloo = dist.new_group(backend="gloo")
    group = group_of()
    tensor = torch.empty(told.width, device=told.device)
    ready: Callable[[], object] = torch.cuda.synchronize if tensor.is_cuda else lambda: None
    ways: dict[str, Callable[[], object]] = {
        "gloo": lambda: dist.all_reduce(tensor, group=gloo),
        "backend": lambda: dist.all_reduce(tensor),
        "group": lambda: group.all_reduce(tensor, op="sum"),
    }
    took_s: dict[str, list[float]] = {way: [] for way in ways}
    size = dist.get_world_size()
    for number in range(told.steps + 1):
        turns = [*ways.items()]
        first = number % len(turns)
        for way, call in turns[first:] + turns[:first]:
            tensor.fill_(float(dist.get_rank()))
            ready()
            dist.barrier(gloo)
            began_s = time.perf_counter()
            call()
            ready()
            took = time.perf_counter() - began_s
            assert bool((tensor == size * (size - 1) / 2).all())
            if number:
                took_s[way].append(took)
    return took_s


def accuracy(told: Told) -> dict[str, Any]:
    """Train on digits to 95 %, averaging each step (DDP), or every 100 (DiLoCo)."""
    import torch
    import torch.distributed as dist
    from sklearn.datasets import load_digits
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import anabranch
    from anabranch.torch.backend import group_of

    rank, size = dist.get_rank(), dist.get_world_size()
    digits = load_digits()
    x = torch.tensor(digits.data / 16, dtype=torch.float32)
    y = torch.tensor(digits.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(told.seed))
    test, train = order[:360], order[360:][rank::size]
    torch.manual_seed(told.seed)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU())
    net.append(nn.Linear(128, 10))
    batches = torch.Generator().manual_seed(1000 * told.seed + rank)
    group = group_of()
    every = 1 if told.what == "accuracy of ddp" else 100
    model = DistributedDataParallel(net) if every == 1 else net
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    began_s = time.perf_counter()

    def step() -> None:
        chosen = train[torch.randint(len(train), (32,), generator=batches)]
        nn.functional.cross_entropy(model(x[chosen]), y[chosen]).backward()
        optimizer.step()
        optimizer.zero_grad()

    def score() -> float:
        with torch.no_grad():
            return float((net(x[test]).argmax(1) == y[test]).float().mean())

    reached: dict[str, Any] = {"seconds": None, "steps": None, "bytes": None}
    if every == 1:
        block: Any = None
    else:
        block = anabranch.DiLoCo(net, optimizer, group, every=every).__enter__()
    for number in range(1, 1001):
        step()
        # The models are alike after an average, so that all see the same accuracy.
        if number % max(every, 10) == 0 and score() >= 0.95:
            sent = sum(group.stats.sent_bytes.values())
            took_s = time.perf_counter() - began_s
            reached = {"seconds": took_s, "steps": number, "bytes": sent}
            break
    if block is not None:
        block.__exit__(None, None, None)
    return reached


RUNS = {
    "ddp": ddp,
    "hsdp": hsdp,
    "loopback": loopback,
    "accuracy of ddp": accuracy,
    "accuracy of diloco": accuracy,
}


def take_part(told: Told) -> None:
    """Be one rank; print what its run returned."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    # Of HSDP's two kinds of groups the one within a site is gloo's in any case.
    dist.init_process_group("gloo" if told.what == "hsdp" else told.backend)
    said = RUNS[told.what](told)
    print(json.dumps(said), flush=True)
    dist.destroy_process_group()


def over_links(
    overlay: Overlay,
    told: Told,
    order: Sequence[int],
    names: Sequence[str] | None = None,
    congestion_control: str = "cubic",
) -> list[dict[str, Any]]:
    """Run ranks over an emulated overlay; return what each said.

    Args:
        overlay: the links; sites forward what others send each other.
        told: of all ranks.
        order: the site of each rank; one may have several.
        names: of the sites, where ranks say theirs.
        congestion_control: of connections that do not ask for another.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        emulated(overlay, forwarding=True, congestion_control=congestion_control) as wan,
    ):
        file = Path(folder, "overlay.toml")
        file.write_text(dumps(overlay))
        wan.begin()
        processes = []
        for rank, site in enumerate(order):
            variables = {
                "MASTER_ADDR": wan.control_addresses[order[0]],
                "MASTER_PORT": str(PORT),
                "RANK": str(rank),
                "WORLD_SIZE": str(len(order)),
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": wan.interface,
                "ANABRANCH_INSECURE": "1",
                "ANABRANCH_HOST": wan.addresses[site],
                "ANABRANCH_OVERLAY": str(file),
                "ANABRANCH_KEEP_PLAN": str(int(told.keeps_plan)),
            }
            if names is not None:
                variables["ANABRANCH_SITE"] = names[rank]
            command = [sys.executable, __file__, "--told", json.dumps(asdict(told))]
            processes.append(
                wan.popen(
                    site,
                    command,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    env={**os.environ, **variables},
                )
            )
        said = peers._answers(told.backend, processes)
    return [json.loads(each.strip().rpartition("\n")[2]) for each in said]


def on_this_machine(told: Told, size: int) -> list[dict[str, Any]]:
    """Run ranks that have nothing between them; return what each said."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    processes = []
    for rank in range(size):
        variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank)}
        variables |= {"WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        processes.append(
            subprocess.Popen(
                [sys.executable, __file__, "--told", json.dumps(asdict(told))],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, **variables},
            )
        )
    said = peers._answers(told.backend, processes)
    return [json.loads(each.strip().rpartition("\n")[2]) for each in said]


def slowest(said: list[dict[str, Any]], key: str) -> list[float]:
    """Return each round's seconds: it lasts until its last rank has the result."""
    return [max(each) for each in zip(*(own[key] for own in said), strict=True)]


def compare_ddp(name: str, overlay: Overlay, options: argparse.Namespace) -> None:
    """DDP by ours, and by gloo with both orders of its ring."""
    sites = tuple(range(overlay.size))
    best = peers.best_ring(overlay)
    told = Told("ddp", "anabranch", options.steps, options.compute_s, options.width)
    gloo = replace(told, backend="gloo", steps=max(1, options.steps // 2))
    ways: dict[str, tuple[Told, Sequence[int], str]] = {
        "anabranch": (told, sites, "cubic"),
        "anabranch, plan kept": (replace(told, keeps_plan=True), sites, "cubic"),
    }
    for control in ("bbr",) if name == "far" else ("cubic",):
        ways[f"gloo, best ring, {control}"] = gloo, best, control
        if not options.best_only:
            ways[f"gloo, ranks in the order of sites, {control}"] = gloo, sites, control
    elements = parameters(options.width)
    least_s = limit_s(overlay, 4 * elements)
    print(f"{name}: {elements:,} parameters, limit of the links {least_s:.2f} s", flush=True)
    rows: dict[str, Any] = {}
    for way, (one, order, control) in ways.items():
        took_s = slowest(over_links(overlay, one, order, None, control), "step_s")
        rows[way] = {"step_s": common.spread(took_s), "default_congestion_control": control}
        rows[way]["share_of_limit"] = least_s / median(took_s)
        print(f"  {way}: {median(took_s):.2f} s a step", flush=True)
    medians_s = {way: row["step_s"]["median"] for way, row in rows.items()}
    best_s = min(each for way, each in medians_s.items() if way.startswith("gloo"))
    over = {way: best_s / medians_s[way] for way in ("anabranch", "anabranch, plan kept")}
    print(f"  gloo at its best over ours: {over}", flush=True)
    common.write(
        f"torch_ddp_{name}" + ("" if options.width == WIDTH else "_small"),
        seed=0,
        overlay=overlay.name,
        parameters=elements,
        compute_s=options.compute_s,
        limit_s=least_s,
        best_ring=[overlay.sites[site].name for site in best],
        rows=rows,
        best_gloo_over_ours=over,
    )


def parameters(width: int) -> int:
    """Return how many the model has."""
    last = width * LAST // WIDTH
    return LAYERS * (width**2 + width) + width * last + last


def compare_hsdp(options: argparse.Namespace) -> None:
    """Two sites of two ranks over one link, by ours and by gloo."""
    overlay = Overlay(
        "two sites",
        (Site("west"), Site("east")),
        tuple(Link(a, b, 100e6, 0.03, 0.0002) for a, b in ((0, 1), (1, 0))),
    )
    names = ["west", "west", "east", "east"]
    rows: dict[str, Any] = {}
    for way, control in (("anabranch", "cubic"), ("gloo", "cubic"), ("gloo", "bbr")):
        told = Told("hsdp", way, options.steps, options.compute_s, options.width)
        said = over_links(overlay, told, (0, 0, 1, 1), names, control)
        took_s = slowest(said, "step_s")
        label = way if way == "anabranch" else f"{way}, {control}"
        rows[label] = {"step_s": common.spread(took_s)}
        print(f"hsdp, {label}: {median(took_s):.2f} s a step", flush=True)
    common.write(
        "torch_hsdp",
        seed=0,
        rate_bps=100e6,
        latency_s=0.03,
        loss=0.0002,
        parameters=parameters(options.width),
        compute_s=options.compute_s,
        rows=rows,
    )


def compare_diloco(options: argparse.Namespace) -> None:
    """Time and bytes to 95 % on digits, averaging each step or every 100."""
    pairs = ((a, b) for a in range(3) for b in range(3) if a != b)
    overlay = Overlay(
        "three sites at 10 Mbit/s",
        tuple(map(Site, "abc")),
        tuple(Link(a, b, SLOW_BPS, 0.02) for a, b in pairs),
    )
    rows: dict[str, dict[str, list[Any]]] = {}
    for what in ("accuracy of ddp", "accuracy of diloco"):
        rows[what] = {"seconds": [], "steps": [], "bytes": []}
        for seed in range(options.seeds):
            said = over_links(overlay, Told(what, "anabranch", 0, seed=seed), (0, 1, 2))
            ended = all(own["seconds"] is not None for own in said)
            rows[what]["seconds"].append(slowest_of(said) if ended else None)
            rows[what]["steps"].append(said[0]["steps"])
            rows[what]["bytes"].append(sum(own["bytes"] for own in said) if ended else None)
            print(f"{what}, seed {seed}: { {k: v[-1] for k, v in rows[what].items()} }", flush=True)
    common.write(
        "torch_diloco",
        seed=0,
        seeds=options.seeds,
        target_accuracy=0.95,
        rate_bps=SLOW_BPS,
        latency_s=0.02,
        every=100,
        rows=rows,
    )


def slowest_of(said: list[dict[str, Any]]) -> float:
    return max(float(own["seconds"]) for own in said)


def compare_loopback(options: argparse.Namespace) -> None:
    """All-reduce of one buffer between processes of one machine: the backend, its group, gloo."""
    told = Told(
        "loopback", "anabranch", options.steps, width=options.elements, device=options.device
    )
    said = on_this_machine(told, options.ranks)
    rounds_s = {way: slowest(said, way) for way in said[0]}
    over = {
        "gloo_over_backend": _ratio(rounds_s["gloo"], rounds_s["backend"]),
        "backend_over_group": _ratio(rounds_s["backend"], rounds_s["group"]),
    }
    print(
        f"{options.ranks} ranks, {options.elements:,} float32: "
        + ", ".join(f"{way} {median(each):.4f} s" for way, each in rounds_s.items())
        + f"; {over}",
        flush=True,
    )
    common.write(
        f"torch_loopback_{options.ranks}"
        + ("" if options.elements == 61_090_530 else f"_{options.elements}")
        + ("" if options.device == "cpu" else f"_{options.device}"),
        seed=0,
        device=torch_device(options.device),
        ranks=options.ranks,
        elements=options.elements,
        **{f"{way}_s": common.spread(each) for way, each in rounds_s.items()},
        **over,
    )


def torch_device(name: str) -> str:
    """Return a device's name and, of a GPU, its model."""
    import torch

    return f"{name}: {torch.cuda.get_device_name(name)}" if name.startswith("cuda") else name


def _ratio(one: list[float], other: list[float]) -> float:
    return median(a / b for a, b in zip(one, other, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("far", "near", "hsdp", "diloco", "loopback"))
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--compute-s", type=float, default=4.0)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--elements", type=int, default=61_090_530)
    parser.add_argument("--device", default="cpu", help="of loopback's tensors, such as cuda")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--best-only", action="store_true", help="gloo's best ring alone")
    parser.add_argument("--told", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.told:
        take_part(Told(**json.loads(options.told)))
        return
    far = internet2_9()
    runs: dict[str, Callable[[], None]] = {
        "far": lambda: compare_ddp("far", far, options),
        "near": lambda: compare_ddp("near", versions.near(far), options),
        "hsdp": lambda: compare_hsdp(options),
        "diloco": lambda: compare_diloco(options),
        "loopback": lambda: compare_loopback(options),
    }
    for name, run in runs.items():
        if options.only in (None, name):
            run()


if __name__ == "__main__":
    main()
