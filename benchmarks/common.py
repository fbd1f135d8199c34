"""What every benchmark needs: where results go, and what they depend on."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from papers._lines import dumps

if TYPE_CHECKING:
    from anabranch_lab.emulate import Emulation

RESULTS = Path(__file__).parent / "results"


@contextmanager
def starting(
    wan: Emulation, environment: Mapping[str, str]
) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Yield a function that starts Python at a site, or on the control network; end all started.

    It is called with the site's index, None for the control network, and Python's arguments.
    """
    processes: list[subprocess.Popen[str]] = []

    def start(at: int | None, *arguments: str) -> subprocess.Popen[str]:
        command = [*wan.inside(at), sys.executable, *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        processes.append(process)
        return process

    try:
        yield start
    finally:
        for process in processes:
            process.kill()
            process.wait()


def write(name: str, seed: int, **figures: Any) -> None:
    """Write one benchmark's figures with everything they depend on."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    document = {
        "benchmark": name,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--", "src", "papers")),
        "seed": seed,
        "machine": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.release()}",
            "load_average": os.getloadavg(),
            "real_time": os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR),
        },
        "versions": {
            "python": platform.python_version(),
            **{each: version(each) for each in ("anabranch", "numpy", "torch", "msgspec")},
        },
        **figures,
    }
    path.write_text(dumps(document) + "\n", encoding="utf-8")
    print(f"written: {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


def no_options(description: str | None) -> None:
    """Answer --help, and refuse any other argument."""
    argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()


def commit() -> str:
    """Return the checkout's commit."""
    return _git("rev-parse", "HEAD")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def spread(values: Sequence[float]) -> dict[str, float | list[float]]:
    """Return the median and what it was taken of."""
    return {"median": median(values), "all": [round(value, 4) for value in values]}


def peak_memory_bytes(pid: int) -> int:
    """Return the most memory a living process has held so far; 0 once it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def machine_cpu_s() -> float:
    """Return what all processes but the niced ones, which are not ours, have used so far."""
    user, _, system, _, _, irq, softirq, *_ = map(
        int, Path("/proc/stat").read_text().split("\n")[0].split()[1:]
    )
    return (user + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
