"""Nine sites train through a day of faults, beside the same training without any.

    sudo python benchmarks/day.py              # 8 seeds of each; MNIST from $ANABRANCH_DATA
    sudo python benchmarks/day.py --seeds 1 --dry

The sites of `internet2-9` are processes in network namespaces whose links the kernel holds to the
overlay's rates; their scheduler is on a control network. Each trains the same model on a ninth of
the training images, by the program that the README shows: `admit` before each step, `all_reduce`
of the gradients after it. Sites 0 and 8 are never touched. A site whose process ends is started
again, as a supervisor would. Written are the accuracy on the held-out images after the last step,
whether all sites end with the same bits, and how long the longest step at site 0 took that began
within a while of each fault; that is what the others feel of it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import IO, Any

import common
from anabranch.overlay import load
from anabranch_lab.emulate import Emulation, emulated

SITES = 9
STEPS = 300
HIDDEN = 24
BATCH = 32
TOKEN = "day"
OBSERVER = 0
GIVE_UP_S = 240.0
FELT_S = 15.0  # after a fault, in which a step that is slow counts as slowed by it
PAIR = 3, 4  # joined by a link; other ways lead from one to the other


@dataclass(frozen=True)
class Told:
    """What one site's process is told."""

    site: int
    seed: int
    steps: int
    address: str
    scheduler: str
    data: str


def take_part(told: Told) -> None:
    """Be one site, to the end of the training."""
    import torch

    import anabranch
    from anabranch_lab.tasks.kinds import load_task

    torch.set_num_threads(1)
    data = load_task("mnist", Path(told.data)) if told.data else load_task("digits")
    pixels = data.train_inputs[0].numel()
    torch.manual_seed(1000 * told.seed + told.site)  # admit() makes all begin alike
    model = torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(pixels, HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN, data.classes),
    )
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    own = torch.arange(told.site, len(data.train_inputs), SITES)
    name = load("internet2-9").sites[told.site].name
    step = 0
    with anabranch.join(told.scheduler, name, host=told.address, insecure=True) as group:
        while step < told.steps:
            began = time.monotonic()
            state = group.admit(
                lambda step=step: {
                    "model": model.state_dict(),
                    "optimiser": optimiser.state_dict(),
                    "step": step,
                }
            )
            if state is not None:
                model.load_state_dict(state["model"])
                optimiser.load_state_dict(state["optimiser"])
                step = state["step"]
            draw = torch.Generator().manual_seed(10_000_000 * told.seed + 10 * step + told.site)
            batch = own[torch.randint(len(own), (BATCH,), generator=draw)]
            optimiser.zero_grad()
            loss = torch.nn.functional.cross_entropy(
                model(data.train_inputs[batch]), data.train_labels[batch]
            )
            loss.backward()
            group.all_reduce(p.grad for p in model.parameters())
            optimiser.step()
            step += 1
            line = {"step": step, "began": began, "at": time.monotonic(), "sites": group.size}
            print(json.dumps(line), flush=True)
        with torch.no_grad():
            right = model(data.held_out_inputs).argmax(1) == data.held_out_labels
        total = float(sum(p.double().abs().sum() for p in model.parameters()))
        print(json.dumps({"accuracy": float(right.float().mean()), "sum": repr(total)}), flush=True)


@dataclass
class Site:
    """A site's process, which is started again whenever it ends before the training does."""

    start: Callable[[], subprocess.Popen[str]]
    stderr: IO[str]
    process: subprocess.Popen[str] = field(init=False)
    lines: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] | None = None
    starts: int = 0
    held_back: bool = False  # not started again for now

    def follow(self, is_over: threading.Event) -> None:
        while self.result is None and not is_over.is_set():
            if self.held_back:
                time.sleep(0.05)
                continue
            self.process = self.start()
            self.starts += 1
            assert self.process.stdout is not None
            for text in self.process.stdout:
                if text.startswith('{"step"'):
                    self.lines.append(json.loads(text))
                elif text.startswith('{"accuracy"'):
                    self.result = json.loads(text)
            self.process.wait()
            time.sleep(0.3)


@dataclass
class Day:
    """What goes wrong, and when; each is done in its time by `run`."""

    wan: Emulation
    sites: list[Site]
    scheduler: Callable[[], subprocess.Popen[str]]
    overlay_links: frozenset[tuple[int, int]]
    scheduler_process: subprocess.Popen[str]

    def kill(self, *which: int) -> None:
        for site in which:
            self.sites[site].held_back = True
            self.sites[site].process.kill()

    def come_back(self, *which: int) -> None:
        for site in which:
            self.sites[site].held_back = False

    def pair(self, cut: bool) -> None:
        for source, target in (PAIR, PAIR[::-1]):
            (self.wan.cut if cut else self.wan.heal)(source, target)

    def silence(self, site: int, cut: bool) -> None:
        for source, target in self.overlay_links:
            if site in (source, target):
                (self.wan.cut if cut else self.wan.heal)(source, target)

    def kill_scheduler(self, how: signal.Signals) -> None:
        self.scheduler_process.send_signal(how)
        self.scheduler_process.wait()

    def start_scheduler(self) -> None:
        self.scheduler_process = self.scheduler()

    def script(self) -> list[tuple[float, str, Callable[[], None]]]:
        stop, go = signal.SIGSTOP, signal.SIGCONT
        return [
            (6.0, "site 3 is killed", lambda: self.kill(3)),
            (9.0, "site 3 comes back", lambda: self.come_back(3)),
            (15.0, "a pair's links are cut", lambda: self.pair(cut=True)),
            (22.0, "the scheduler is killed", lambda: self.kill_scheduler(signal.SIGKILL)),
            (23.0, "the scheduler is started", self.start_scheduler),
            (30.0, "the pair's links carry again", lambda: self.pair(cut=False)),
            (34.0, "site 6 falls silent", lambda: self.silence(6, cut=True)),
            (40.0, "site 6 is heard again", lambda: self.silence(6, cut=False)),
            (48.0, "site 1 is stopped", lambda: self.sites[1].process.send_signal(stop)),
            (54.0, "site 1 goes on", lambda: self.sites[1].process.send_signal(go)),
            (60.0, "sites 4 and 7 are killed", lambda: self.kill(4, 7)),
            (62.0, "sites 4 and 7 come back", lambda: self.come_back(4, 7)),
            (68.0, "the scheduler is stopped", lambda: self.kill_scheduler(signal.SIGTERM)),
            (68.2, "the scheduler is started", self.start_scheduler),
        ]


def run(seed: int, faults: bool, steps: int, data: str) -> dict[str, Any]:
    overlay = load("internet2-9")
    is_over = threading.Event()
    with ExitStack() as stack:
        wan = stack.enter_context(emulated(overlay))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        wan.begin()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "ANABRANCH_TOKEN": TOKEN}
        address = ""

        def scheduler() -> subprocess.Popen[str]:
            nonlocal address
            at = address or f"{wan.control_address}:0"
            command = [sys.executable, "-m", "anabranch", "scheduler", "--overlay", "internet2-9"]
            command += ["--stillness", "2"]  # so that the site that is stopped is lost
            command += ["--listen", at, "--insecure", "--journal", str(folder / "journal")]
            stderr = stack.enter_context((folder / "scheduler").open("a"))
            process = wan.popen(
                None, command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment
            )
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            if not address:
                raise RuntimeError(f"no scheduler: {(folder / 'scheduler').read_text()}")
            return process

        first = scheduler()

        def starter(site: int, stderr: IO[str]) -> Callable[[], subprocess.Popen[str]]:
            told = Told(site, seed, steps, wan.addresses[site], address, data)
            command = [sys.executable, __file__, "--site", json.dumps(asdict(told))]
            return lambda: wan.popen(
                site, command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment
            )

        sites = []
        for site in range(SITES):
            stderr = stack.enter_context(tempfile.TemporaryFile("w+"))
            sites.append(Site(starter(site, stderr), stderr))
        threads = [threading.Thread(target=each.follow, args=(is_over,)) for each in sites]
        for thread in threads:
            thread.start()

        def end() -> None:
            is_over.set()
            for each in sites:
                if hasattr(each, "process"):
                    each.process.kill()

        stack.callback(end)
        links = frozenset((link.source, link.target) for link in overlay)
        day = Day(wan, sites, scheduler, links, first)
        happened = live(day, faults)
        row = account(sites, happened) | {"seed": seed, "faults": faults}
        row["scheduler_said"] = (folder / "scheduler").read_text().splitlines()[-40:]
        if any(each.result is None for each in sites):
            for each in sites:
                each.stderr.seek(0)
            row["last_words"] = [each.stderr.read()[-500:] for each in sites]
        return row


def live(day: Day, faults: bool) -> list[tuple[str, float]]:
    """Let the script happen, wait for the end; return what was done when."""
    until = time.monotonic() + GIVE_UP_S
    while not day.sites[OBSERVER].lines:
        if time.monotonic() > until:
            return []
        time.sleep(0.05)
    began = time.monotonic()
    happened = []
    for at_s, what, act in day.script() if faults else []:
        while time.monotonic() < began + at_s and day.sites[OBSERVER].result is None:
            time.sleep(0.02)
        if day.sites[OBSERVER].result is not None:
            raise RuntimeError(f"the training ended before {what!r}; ask for more steps")
        happened.append((what, time.monotonic()))
        act()
    while any(each.result is None for each in day.sites) and time.monotonic() < until:
        time.sleep(0.1)
    return happened


def account(sites: Sequence[Site], happened: Sequence[tuple[str, float]]) -> dict[str, Any]:
    lines = sites[OBSERVER].lines
    results = [each.result for each in sites]
    whole = all(results)
    steps = [line["at"] - line["began"] for line in lines]
    felt = []
    ends = [at for _, at in happened[1:]] + [float("inf")]
    for (what, at), following in zip(happened, ends, strict=False):
        slowed = [
            line["at"] - line["began"]
            for line in lines
            if line["at"] > at and line["began"] < min(at + FELT_S, following)
        ]
        felt.append({"what": what, "longest_step_s": round(max(slowed, default=0.0), 3)})
    observed = results[OBSERVER]
    return {
        "accuracy": observed["accuracy"] if observed else None,
        "all_ended_alike": whole and len({each["sum"] for each in results if each}) == 1,
        "steps": lines[-1]["step"] if lines else 0,
        "steps_in_order": [line["step"] for line in lines] == [*range(1, len(lines) + 1)],
        "seconds": round(lines[-1]["at"] - lines[0]["began"], 2) if lines else None,
        "median_step_s": round(sorted(steps)[len(steps) // 2], 4) if steps else None,
        "starts": [each.starts for each in sites],
        "felt": felt,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--dry", action="store_true", help="write no file")
    parser.add_argument("--site", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.site:
        take_part(Told(**json.loads(options.site)))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends what was started
    data = os.environ.get("ANABRANCH_DATA", "")
    rows = []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for faults in (True, False):
            row = run(seed, faults, options.steps, data)
            rows.append(row)
            print(
                f"seed {seed}, {'a day of faults' if faults else 'undisturbed'}: accuracy "
                f"{row['accuracy']}, {row['steps']} steps in {row['seconds']} s, median "
                f"{row['median_step_s']} s, all alike: {row['all_ended_alike']}, starts "
                f"{row['starts']}",
                flush=True,
            )
            for each in row["felt"]:
                print(f"    {each['what']}: {each['longest_step_s']} s", flush=True)
            if not row["all_ended_alike"]:
                print("\n".join([*row["scheduler_said"][-8:], *row.get("last_words", [])]))
    found = {}
    for faults, name in ((True, "faults"), (False, "undisturbed")):
        values = [row["accuracy"] for row in rows if row["faults"] == faults and row["accuracy"]]
        deviation = stdev(values) if len(values) > 1 else None
        found[name] = {"mean": mean(values), "deviation": deviation, "all": values}
        print(f"{name}: accuracy {mean(values):.4f}, deviation {deviation}")
    if not options.dry:
        common.write(
            "day",
            seed=options.first_seed,
            task="mnist" if data else "digits",
            steps=options.steps,
            batch=BATCH,
            accuracy=found,
            runs=rows,
        )


if __name__ == "__main__":
    main()
