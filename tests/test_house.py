"""The picture of the house in docs/house.md is the house: who imports whom, room by room."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "anabranch"
LAB = ROOT / "src" / "anabranch_lab"
PAPERS = ROOT / "papers"


def rooms_in(package: Path) -> set[str]:
    return {path.name for path in package.iterdir() if (path / "__init__.py").exists()}


LAB_ROOMS = rooms_in(LAB)
ROOMS = rooms_in(SOURCE) | {f"lab_{room}" for room in LAB_ROOMS} | {"papers"}


def room_of(module: str) -> str | None:
    """Return the room a module of ours lies in, or None; one of the lab's begins with `lab_`."""
    package, _, rest = module.partition(".")
    room = rest.partition(".")[0]
    found = {"anabranch": room, "anabranch_lab": f"lab_{room}", "papers": "papers"}.get(package)
    return found if found in ROOMS else None


def files() -> Iterator[tuple[str, Path]]:
    """Yield every file of ours in a room, with the room."""
    for package, prefix in ((SOURCE, ""), (LAB, "lab_")):
        for file in package.rglob("*.py"):
            room = prefix + file.relative_to(package).parts[0].removesuffix(".py")
            if room in ROOMS:
                yield room, file
    for file in PAPERS.rglob("*.py"):
        yield "papers", file


@cache
def imported() -> frozenset[tuple[str, str]]:
    """Return every pair (room, room it imports from), wherever in a file the import stands."""
    found = set()
    for room, file in files():
        for node in ast.walk(ast.parse(file.read_text())):
            modules: list[str] = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            found |= {(room, to) for to in map(room_of, modules) if to and to != room}
    return frozenset(found)


def drawn() -> set[tuple[str, str]]:
    """Return the arrows of the picture."""
    found = set()
    for left, right in re.findall(r"^  (.+) --> (.+)$", (ROOT / "docs/house.md").read_text(), re.M):
        found |= set(product(left.split(" & "), right.split(" & ")))
    return found


def test_every_import_follows_the_arrows_of_the_picture() -> None:
    reach = drawn()
    while more := {(a, d) for (a, b), (c, d) in product(reach, reach) if b == c} - reach:
        reach |= more
    assert not any(a == b for a, b in reach), "the picture has a circle"
    assert imported() - reach == set()


def test_every_arrow_of_the_picture_is_an_import() -> None:
    assert drawn() - imported() == set()


def test_every_room_is_in_the_picture() -> None:
    text = (ROOT / "docs/house.md").read_text()
    for room in ROOMS - {"papers"}:
        assert f"\n  {room.removeprefix('lab_')}/" in text


# A group's serving side; all other files of these rooms are a site's, whose process loads no
# scheduler. `interop/flower.py` and what it decides by serve a federation, over Flower's messages.
SERVING_FILES = ("service", "_checks", "group_file", "log", "serve", "_local")
SERVING = {f"group/{each}.py" for each in SERVING_FILES}
CLIENT_ROOMS = {"group", "interop", "learn", "net", "overlay", "period", "plan", "site"}
NO_CLIENTS = {"cli", "cohort", "scheduler"}
SERVING_NAMES = {"Service", "local", "spawn"}


def test_arrows_go_from_papers_to_the_lab_and_from_the_lab_to_the_runtime() -> None:
    for room, to in imported():
        is_of_lab, leads_to_lab = room.startswith("lab_"), to.startswith("lab_")
        assert to != "papers", room
        assert not leads_to_lab or is_of_lab or room == "papers", (room, to)


def test_a_class_that_is_large_says_why_it_is_one() -> None:
    silent, told = [], 0
    for _, file in files():
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.ClassDef):
                continue
            methods = [
                each
                for each in node.body
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
            lines = (node.end_lineno or node.lineno) - node.lineno
            if lines > 500 or len(methods) > 25:
                says = "It is one class since" in " ".join((ast.get_docstring(node) or "").split())
                silent += [] if says else [f"{file.relative_to(ROOT)}: {node.name}"]
                told += says
    assert silent == []
    assert told > 5


def test_no_file_of_a_site_imports_the_scheduler() -> None:
    """Wherever in the file the import stands: one in a function is loaded by its first call."""
    for room in sorted(CLIENT_ROOMS):
        for file in sorted((SOURCE / room).rglob("*.py")):
            place = file.relative_to(SOURCE).as_posix()
            if place in SERVING or file.name == "__init__.py":
                continue
            for module, names in imports_of(file):
                assert room_of(module) not in NO_CLIENTS, (place, module)
                assert not {module.replace(".", "/")[10:] + ".py"} & SERVING, (place, module)
                if module == "anabranch.record":
                    assert names == {"events"}, (place, names)
                else:
                    assert room_of(module) != "record" or module.endswith(".events"), place
                if module in ("anabranch", "anabranch.group"):
                    assert not names & SERVING_NAMES, (place, names)


def test_a_scheduler_is_put_together_in_one_place() -> None:
    assert callers()["Scheduler"] == ["group/service.py"]


def test_a_site_starts_in_one_place() -> None:
    assert callers()["SiteAgent"] == ["group/async_group.py"]
    for part in ("Transport", "ServedModel"):
        assert callers()[part] == ["group/_settings.py"]
    assert callers()["Meter"] == ["site/meter.py"]
    assert callers()["Gossips"] == ["group/gossip.py"]
    assert callers()["Settings"] == ["group/service.py"]


def test_a_run_is_served_to_its_end_in_one_place() -> None:
    assert callers()["watched"] == ["group/serve.py"]


@cache
def callers() -> dict[str, list[str]]:
    """Return the files that call something of a name, once for each call, by the name."""
    found = defaultdict(list)
    for _, file in files():
        place = file.relative_to(ROOT).as_posix().removeprefix("src/anabranch/")
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                called = node.func
                found[called.id if isinstance(called, ast.Name) else called.attr].append(place)
    return found


def imports_of(file: Path) -> list[tuple[str, set[str]]]:
    """Return the modules of ours that a file imports from, each with the names."""
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, set()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {alias.name for alias in node.names}
            found.append((node.module, names))
            if node.module == "anabranch":  # rooms, of which these are names
                found += [(f"anabranch.{name}", set()) for name in names]
    return [(module, names) for module, names in found if module.partition(".")[0] == "anabranch"]


# Decisions and models: plain data in, plain data out, time handed in.
PURE = [
    "overlay",
    "plan",
    "pace",
    "period",
    "merge",
    "fleet",
    "group/_place.py",
    "interop/_conversation.py",
    "interop/_federation.py",
    "learn/averaging.py",
    "net/frames.py",
    "net/clocks.py",
    "net/messages.py",
    "net/rings.py",
    "net/session.py",
    "net/throughput.py",
    "record/metrics.py",
    "record/pacing.py",
    "record/status.py",
    "record/target.py",
    "record/summary.py",
    "scheduler/calls",
    "scheduler/channels.py",
    "scheduler/chunking.py",
    "scheduler/clients.py",
    "scheduler/collector.py",
    "scheduler/decisions.py",
    "scheduler/dependence.py",
    "scheduler/dispatch.py",
    "scheduler/exchanges.py",
    "scheduler/members.py",
    "scheduler/membership",
    "scheduler/outliers.py",
    "scheduler/pacing.py",
    "scheduler/policy.py",
    "scheduler/rate_forecast.py",
    "scheduler/reports.py",
    "scheduler/serving",
    "scheduler/stages.py",
    "scheduler/status.py",
    "scheduler/tally.py",
    "site/actions.py",
    "site/arithmetic.py",
    "site/exchange.py",
    "site/letters.py",
    "site/multipath.py",
    "site/partition.py",
    "site/reduction.py",
    "site/served.py",
    "site/spread.py",
    "site/terms.py",
    "site/ways.py",
]
LAB_PURE = [
    "learn/adversaries.py",
    "learn/partition.py",
    "learn/sampling.py",
    "record/awareness.py",
    "record/export.py",
    "record/known_rates.py",
    "record/twin.py",
    "run/attendance.py",
    "run/faults.py",
    "run/replay.py",
    "sim/fluid.py",
]
IMPURE = {"asyncio", "datetime", "random", "socket", "subprocess", "threading", "time"}


@pytest.mark.parametrize("place", [*PURE, *(f"../anabranch_lab/{place}" for place in LAB_PURE)])
def test_what_is_pure_imports_no_clock_socket_or_loop(place: str) -> None:
    for file in sorted((SOURCE / place).rglob("*.py")) or [SOURCE / place]:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            assert not {name.partition(".")[0] for name in names} & IMPURE, file


def test_no_site_or_scheduler_asks_which_world_it_is_in() -> None:
    for room in ("site", "scheduler", "net"):
        for file in (SOURCE / room).rglob("*.py"):
            tree = ast.parse(file.read_text())
            words = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            words |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
            assert not {word for word in words if "simul" in word.lower()}, file


def test_no_test_claims_something_of_each_of_none() -> None:
    """``all`` is true where there is nothing: tests say ``every``, of `tests/every.py`."""
    tests = Path(__file__).parent.rglob("*.py")
    found = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in tests
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if line.lstrip().startswith("assert all(")
    ]
    assert not found, f"say every(...), from tests/every.py, at {', '.join(found)}"
