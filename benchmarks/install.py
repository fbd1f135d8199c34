"""What installing takes: seconds, packages, bytes on disk; and what importing takes afterwards.

    python benchmarks/install.py                    # half an hour
    python benchmarks/install.py --before 69f78d4   # the commit to compare with

Each row is a fresh environment, into which pip installs a commit's tree under the tree's own
``constraints.txt``. `cold` begins with an empty cache of pip's, `warm` with what a cold one left in
it. Both ask the index that pip is configured for, which may be near. Bytes are those of the files
that came, packages those beside pip and setuptools. Then commands run in that environment, each
once unmeasured: their seconds, and the most memory that they held.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import common

NOTHING = ["python", "-c", ""]
COMMANDS = {
    "python": NOTHING,
    "import anabranch": ["python", "-c", "import anabranch"],
    "import torch": ["python", "-c", "import torch"],
    "import anabranch, torch": ["python", "-c", "import anabranch, torch"],
    "anabranch --help": ["anabranch", "--help"],
}


def unpack(commit: str, to: Path) -> Path:
    """Put a commit's tree into a folder, without what only a checkout has."""
    to.mkdir()
    archive = subprocess.run(["git", "archive", commit], capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", str(to)], input=archive.stdout, check=True)
    return to


def size_bytes(folder: Path) -> int:
    """Return the bytes of all files in a folder."""
    return sum(each.lstat().st_size for each in folder.rglob("*") if not each.is_dir())


def packages(environment: Path) -> int:
    """Return how many packages are installed."""
    return len([*environment.glob("lib/python*/site-packages/*.dist-info")])


def install(tree: Path, extra: str, environment: Path, cache: Path) -> dict[str, float]:
    """Install a tree with an extra into a new environment; return what came, and in how long."""
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    bytes_before, packages_before = size_bytes(environment), packages(environment)
    pip = [str(environment / "bin" / "pip"), "install", "-qq", "--cache-dir", str(cache)]
    began_s = time.perf_counter()
    subprocess.run(
        [*pip, "--constraint", str(tree / "constraints.txt"), f"{tree}{extra}"], check=True
    )
    return {
        "seconds": time.perf_counter() - began_s,
        "bytes": size_bytes(environment) - bytes_before,
        "packages": packages(environment) - packages_before,
    }


# A process of its own: what a new process held includes what the one held that started it.
RUN = """
import os, sys, time
began_s = time.perf_counter()
quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
_, status, usage = os.wait4(os.posix_spawn(sys.argv[1], sys.argv[1:], {}, file_actions=quiet), 0)
assert status == 0, sys.argv
print(time.perf_counter() - began_s, usage.ru_maxrss * 1024)
"""


def run(environment: Path, command: list[str]) -> tuple[float, float]:
    """Run a command of an environment; return its seconds, and the most bytes it held."""
    program, *arguments = command
    started = [sys.executable, "-c", RUN, str(environment / "bin" / program), *arguments]
    done = subprocess.run(started, cwd=environment, stdout=subprocess.PIPE, text=True, check=True)
    seconds, peak_bytes = done.stdout.split()
    return float(seconds), float(peak_bytes)


def measure(environment: Path, command: list[str], runs: int) -> dict[str, Any]:
    """Return what a command takes, once its files were read."""
    run(environment, command)
    seconds, peaks = zip(*(run(environment, command) for _ in range(runs)), strict=True)
    return {"seconds": common.spread(seconds), "peak_bytes": common.spread(peaks)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", default="69f78d4", help="the commit to compare with")
    parser.add_argument("--runs", type=int, default=3, help="of each kind of install")
    parser.add_argument("--imports", type=int, default=10, help="runs of each command")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    installed = common.commit()  # now: the checkout may go on while this runs
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        now = unpack(installed, folder / "now")
        before = unpack(options.before, folder / "before")
        for what, tree, extra in (
            ("pip install .", now, ""),
            ("pip install '.[lab]'", now, "[lab]"),
            ("pip install '.[dev]'", now, "[dev]"),
            (f"pip install . at {options.before}", before, ""),
            (f"pip install '.[dev]' at {options.before}", before, "[dev]"),
        ):
            times_s: dict[str, list[float]] = {"cold": [], "warm": []}
            for attempt in range(options.runs):
                for cache in times_s:
                    environment = folder / f"environment-{len(rows)}-{attempt}-{cache}"
                    came = install(
                        tree, extra, environment, folder / f"cache-{len(rows)}-{attempt}"
                    )
                    times_s[cache].append(came["seconds"])
                    print(what, cache, came, flush=True)
                    if (attempt, cache) != (options.runs - 1, "warm"):
                        subprocess.run(["rm", "-rf", str(environment)], check=True)
            commands = {
                name: measure(environment, command, options.imports)
                for name, command in COMMANDS.items()
            }
            for name, each in commands.items():
                print(name, each["seconds"]["median"], each["peak_bytes"]["median"], flush=True)
            rows.append(
                {
                    "what": what,
                    **{f"{cache}_s": common.spread(each) for cache, each in times_s.items()},
                    "bytes": came["bytes"],
                    "packages": came["packages"],
                    "commands": commands,
                }
            )
            subprocess.run(["rm", "-rf", str(environment)], check=True)
    common.write(
        "install",
        seed=0,
        installed=installed,
        before=options.before,
        runs=options.runs,
        results=rows,
    )


if __name__ == "__main__":
    main()
