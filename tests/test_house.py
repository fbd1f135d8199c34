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

from .parsed import nodes

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
        for node in nodes(file):
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
# scheduler.
SERVING_FILES = ("service", "checks", "group_file", "log", "serve", "_local")
SERVING = {f"group/{each}.py" for each in SERVING_FILES}
CLIENT_ROOMS = {"exchange", "group", "net", "overlay", "period", "plan", "site", "torch", "train"}
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
        for node in nodes(file):
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
                if module == "anabranch.log":
                    assert names == {"events"}, (place, names)
                else:
                    assert room_of(module) != "log" or module.endswith(".events"), place
                if module in ("anabranch", "anabranch.group"):
                    assert not names & SERVING_NAMES, (place, names)


def modules_used_by() -> dict[str, set[str]]:
    """Return who imports each module of ours, by the module: rooms, entry points, users."""
    used = defaultdict(set)
    for room, file in files():
        for node in nodes(file):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    used[alias.name].add(room)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for name in (node.module, *(f"{node.module}.{each.name}" for each in node.names)):
                    used[name].add(room)
    for module in re.findall(r'"(anabranch[\w.]*):\w+"', (ROOT / "pyproject.toml").read_text()):
        used[module].add("an entry point")
    for file in (SOURCE / "__init__.py", *(ROOT / "examples").rglob("*.py")):
        for module, _ in imports_of(file):
            used[module].add("a user")
    for page in (ROOT / "docs").glob("*.md"):
        for name in re.findall(r"\banabranch\.torch\.\w+", page.read_text()):
            used[name].add("a user")
    return used


def module_file(module: str) -> Path | None:
    """Return the file of a module of ours, a package's `__init__.py`; None where it has none."""
    for base in (ROOT / "src", ROOT):
        path = base.joinpath(*module.split("."))
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.exists():
                return file
    return None


@cache
def names_bound_in(file: Path) -> frozenset[str]:
    """Return what a file imports, defines or assigns, in any scope."""
    found = set()
    for node in nodes(file):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return frozenset(found)


IMPORT = re.compile(
    r"^ *(?:from ((?:anabranch|anabranch_lab|papers|tests)(?:\.\w+)*) import (\([^)]*\)|[^\n\\]*)"
    r"|import ((?:anabranch|anabranch_lab)(?:\.\w+)+))",
    re.M,
)


def test_every_name_that_is_imported_exists() -> None:
    """Type checkers take any name of a lazy package, and none reads programs in strings."""
    lacking = []
    for folder in ("src", "papers", "tests", "benchmarks", "examples", "docs"):
        for file in (ROOT / folder).rglob("*.py"):
            for module, names, whole in IMPORT.findall(file.read_text()):
                home = module_file(module or whole)
                if (module or whole).startswith("anabranch.room"):  # an example in a docstring
                    continue
                if home is None:
                    lacking.append(f"{file.relative_to(ROOT)}: no module {module or whole}")
                    continue
                plain = re.sub(r"#[^\n]*|[()]", "", names)
                named = {each.split()[0] for each in plain.split(",") if each.strip()}
                lacking += [
                    f"{file.relative_to(ROOT)}: {module} has no {name}"
                    for name in sorted(named - names_bound_in(home))
                    if not module_file(f"{module}.{name}")
                ]
    assert lacking == []


def test_a_file_that_no_other_room_imports_begins_with_an_underscore() -> None:
    used, wrong = modules_used_by(), []
    for room, file in files():
        package = LAB if room.startswith("lab_") else SOURCE
        if room == "papers" or file.name in ("__init__.py", "__main__.py"):
            continue
        module = ".".join(file.relative_to(package.parent).with_suffix("").parts)
        if bool(used[module] - {room}) == file.name.startswith("_"):
            wrong.append(module)
    assert not wrong, ", ".join(wrong)


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
        for node in nodes(file):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                called = node.func
                found[called.id if isinstance(called, ast.Name) else called.attr].append(place)
    return found


def imports_of(file: Path) -> list[tuple[str, set[str]]]:
    """Return the modules of ours that a file imports from, each with the names."""
    found = []
    for node in nodes(file):
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
    "exchange",
    "fleet",
    "group/place.py",
    "flower/_conversation.py",
    "flower/_federation.py",
    "train/averaging.py",
    "net/frames.py",
    "net/clocks.py",
    "net/messages.py",
    "net/_rings.py",
    "net/session.py",
    "net/throughput.py",
    "log/metrics.py",
    "log/pacing.py",
    "log/status.py",
    "log/target.py",
    "log/summary.py",
    "scheduler/calls",
    "scheduler/_channels.py",
    "scheduler/chunking.py",
    "scheduler/_clients.py",
    "scheduler/_collector.py",
    "scheduler/decisions.py",
    "scheduler/dependence.py",
    "scheduler/_dispatch.py",
    "scheduler/_exchanges.py",
    "scheduler/_members.py",
    "scheduler/membership",
    "scheduler/_outliers.py",
    "scheduler/pacing.py",
    "scheduler/_policy.py",
    "scheduler/_rate_forecast.py",
    "scheduler/_reports.py",
    "scheduler/serving",
    "scheduler/_stages.py",
    "scheduler/_status.py",
    "scheduler/_tally.py",
    "site/_multipath.py",
    "site/_ways.py",
]
LAB_PURE = [
    "tasks/adversaries.py",
    "tasks/partition.py",
    "tasks/sampling.py",
    "reports/_awareness.py",
    "reports/export.py",
    "reports/_known_rates.py",
    "reports/_twin.py",
    "run/_attendance.py",
    "run/_faults.py",
    "run/replay.py",
    "sim/_fluid.py",
]
IMPURE = {"asyncio", "datetime", "random", "socket", "subprocess", "threading", "time"}


@pytest.mark.parametrize("place", [*PURE, *(f"../anabranch_lab/{place}" for place in LAB_PURE)])
def test_what_is_pure_imports_no_clock_socket_or_loop(place: str) -> None:
    for file in sorted((SOURCE / place).rglob("*.py")) or [SOURCE / place]:
        for node in nodes(file):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            assert not {name.partition(".")[0] for name in names} & IMPURE, file


def test_no_function_lets_msgspec_look_at_a_type_for_the_first_time() -> None:
    """Two threads that did so at once would crash; `_typed_toml` has a lock."""
    found = []
    for file in (ROOT / "src").rglob("*.py"):
        if file == SOURCE / "_typed_toml.py":
            continue
        for function in nodes(file):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                calls = [each for each in ast.walk(function) if isinstance(each, ast.Call)]
                found += [
                    f"{file.relative_to(ROOT)}:{each.lineno}" for each in calls if _looks(each)
                ]
    assert not found, f"make a decoder with the module, or call decode_json, at {', '.join(found)}"


def _looks(call: ast.Call) -> bool:
    """Return whether msgspec looks at a type in this call."""
    called = ast.unparse(call.func).partition("[")[0]
    is_typed = any(each.arg == "type" for each in call.keywords) or len(call.args) > 1
    return (
        called.endswith((".Decoder", "msgspec.convert"))
        or called == "convert"
        or (called.endswith("decode") and "msgspec" in called and is_typed)
    )


def test_no_site_or_scheduler_asks_which_world_it_is_in() -> None:
    for room in ("site", "scheduler", "net"):
        for file in (SOURCE / room).rglob("*.py"):
            words = {node.id for node in nodes(file) if isinstance(node, ast.Name)}
            words |= {node.attr for node in nodes(file) if isinstance(node, ast.Attribute)}
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
