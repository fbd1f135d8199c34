"""The event logs of all examples, as digests: what a change of the code leaves alone.

``python -m tests.kept_logs NAME...`` simulates the named examples, or all, and writes their digests
into the table.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from anabranch_lab.run.scenario import load
from anabranch_lab.run.simulate import simulate

TABLE = Path(__file__).parent / "kept_logs.json"
SCENARIOS = Path(__file__).parent.parent / "examples" / "scenarios"


# The last bits of a sum of floats differ between processors. The times, sizes, plans and decisions
# of a log do not, nor do accuracies: that was tried without the vector instructions of a newer one.
LEARNT = {"loss", "checksum", "cosine", "factor", "squared_norm"}
RELEASES = {"versions"}


def digest(log: Path) -> str:
    """Return the SHA-256 of a log's events, without learnt numbers and the releases in use."""
    found = hashlib.sha256()
    with closing(sqlite3.connect(log)) as connection:
        for (data,) in connection.execute("SELECT data FROM events ORDER BY seq"):
            event = json.loads(data)
            kept = {key: event[key] for key in event if key not in LEARNT | RELEASES}
            found.update(json.dumps(kept).encode() + b"\n")
    return found.hexdigest()


def kept() -> dict[str, list[str]]:
    """Return the digests of each example's logs, one for each of its routes."""
    table: dict[str, list[str]] = json.loads(TABLE.read_text("utf-8"))
    return table


def keep(names: Iterable[str]) -> None:
    """Simulate examples, and write down the digests of their logs."""
    table = kept()
    for name in names:
        scenario, overlay = load(SCENARIOS / f"{name}.toml")
        table[name] = []
        for run in scenario.runs():
            with TemporaryDirectory() as folder:
                log = Path(folder, "run.db")
                simulate(run, overlay, log)
                table[name].append(digest(log))
    TABLE.write_text(json.dumps(dict(sorted(table.items())), indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    keep(sys.argv[1:] or sorted(path.stem for path in SCENARIOS.glob("*.toml")))
