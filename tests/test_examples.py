"""The examples: every one does what its first lines say, and together they explain every key."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import msgspec
import pytest
from msgspec import inspect

from anabranch.overlay import _toml
from anabranch.pace import Asp, Bsp, Safa, Ssp, TunedBatches, Waves
from anabranch.record import RunSummary, read_events, summarise
from anabranch.run.scenario import ByShare, Scenario, Serve, check_real, load
from anabranch.run.simulate import simulate
from anabranch.scheduler.awareness import Oracle

EXAMPLES = Path(__file__).parent.parent / "examples"
SCENARIOS = {path.stem: path for path in sorted(EXAMPLES.glob("scenarios/*.toml"))}
OVERLAYS = {path.stem: path for path in sorted(EXAMPLES.glob("overlays/*.toml"))}
PLANS = sorted(EXAMPLES.glob("plans/*.json"))
CODE = sorted(EXAMPLES.glob("scenarios/*.py"))


def anabranch(*arguments: object, **environment: str) -> str:
    """Run a command, and return what it printed."""
    command = [sys.executable, "-m", "anabranch", *map(str, arguments)]
    environment = {**os.environ, **environment}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def summaries(folder: Path) -> list[RunSummary]:
    """Return the runs that a command left in its output folder, in their order."""
    logs = sorted(folder.glob("*/*.db"))
    return [summarise(event for _, event in read_events(log)) for log in logs]


def hashes(printed: str) -> list[str]:
    return re.findall(r"event log (\w+)", printed)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[str, Path]]:
    """Simulate a scenario, once for all tests: what that printed, and its output folder."""

    @cache
    def simulate(name: str) -> tuple[str, Path]:
        folder = tmp_path_factory.mktemp(name)
        return anabranch("simulate", SCENARIOS[name], "--out", folder), folder

    return simulate


def assert_went_well(run: RunSummary, scenario: Scenario) -> None:
    assert run.ended
    assert run.error is None
    target = run.started.target_accuracy
    if target is not None:
        assert run.time_to_accuracy_s(target) is not None
    if run.pace is not None:
        assert {len(each) for each in run.pace.iterations.values()} == {scenario.stop.rounds}
    elif run.reason is None:
        assert len(run.rounds) == scenario.stop.rounds
    else:  # the scenario asks to stop before the last round
        assert scenario.stop.at_target or scenario.stop.after_s is not None
        assert run.rounds


AHEAD = Serve(only=("server-1", "server-2"), ahead=True)
# What a table of figures compares the scenario with, column by column, from the second on.
COMPARED: dict[str, list[dict[str, object]]] = {
    "own-plan": [{"deal": ByShare()}],
    "auxiliary-paths": [{"auxiliary": None}],
    "aware": [{"awareness": None}, {"awareness": Oracle(update_rate=0.1)}],
    "barrier": [{"pace": Asp()}],
    "paces": [
        {"pace": Bsp()},
        {"pace": Asp()},
        {"pace": Ssp(lead=5)},
        {"pace": Safa()},
        {"load": TunedBatches(most=512)},
        {"pace": Waves()},
        {"serve": AHEAD},
        {"pace": Bsp(), "serve": AHEAD},
        {"pace": Asp(), "serve": AHEAD},
        {"pace": Waves(), "serve": AHEAD},
    ],
}


def figures(name: str) -> dict[str, list[float]]:
    """Return the rows of the table that a scenario begins with: a label, and its columns."""
    text = SCENARIOS[name].read_text("utf-8")
    rows = re.findall(r"^#     (\S.*?)((?:  +[\d.]+\b)+)", text, re.MULTILINE)
    return {label: [float(figure) for figure in columns.split()] for label, columns in rows}


def row(run: RunSummary, rows: dict[str, list[float]]) -> str:
    """Return the label of a run's row; packed trees need not say how many they are."""
    return run.label if run.label in rows else run.label.partition(",")[0]


def figure(name: str, run: RunSummary) -> float | None:
    """Return what a scenario's table says of a run."""
    if name == "changing-network":
        return run.round_s[1]  # the first has none before it to overlap with
    if name in ("barrier", "paces"):
        return None if run.pace is None else run.pace.iteration_s
    if name == "aware":
        return run.total_s / len(run.rounds)
    target = run.started.target_accuracy
    return run.median_round_s if target is None else run.time_to_accuracy_s(target)


def assert_said(name: str, column: int, runs: list[RunSummary]) -> None:
    """Check a column of the table that a scenario begins with."""
    said = figures(name)
    given = {row(run, said): figure(name, run) for run in runs}
    assert {label: said[label][column] for label in given} == pytest.approx(given, rel=0.005)


@pytest.mark.parametrize(
    "name", ["routes", "intermittent", "changing-network", "packed-trees", *COMPARED]
)
def test_the_figures_a_scenario_begins_with_are_those_it_gives(
    name: str, simulated: Callable[[str], tuple[str, Path]]
) -> None:
    assert_said(name, 0, summaries(simulated(name)[1]))


@pytest.mark.parametrize(
    ("name", "column"), [(name, n) for name, others in COMPARED.items() for n in range(len(others))]
)
def test_so_are_those_of_what_it_is_compared_with(name: str, column: int, tmp_path: Path) -> None:
    scenario, overlay = load(SCENARIOS[name])
    runs = []
    for route, one in enumerate(scenario.runs()):
        log = tmp_path / f"{route}.db"
        simulate(msgspec.structs.replace(one, **COMPARED[name][column]), overlay, log)
        runs.append(summarise(event for _, event in read_events(log)))
    assert_said(name, column + 1, runs)


def test_routes_come_as_near_to_the_limit_as_packed_trees_says(simulated) -> None:
    said = figures("packed-trees")
    runs = summaries(simulated("packed-trees")[1])
    given = {row(run, said): 100 * (run.share_of_limit or 0.0) for run in runs}
    assert {label: said[label][1] for label in given} == pytest.approx(given, abs=0.6)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_is_simulated_to_its_end(name, simulated) -> None:
    scenario, _ = load(SCENARIOS[name])
    runs = summaries(simulated(name)[1])
    assert len(runs) == len(scenario.routes)
    for run in runs:
        assert_went_well(run, scenario)
        has_numbers = scenario.simulation.tensors == "real" or run.accuracy
        assert run.checked_rounds == (len(run.rounds) if has_numbers else 0)
        assert not run.disputes


def test_a_simulation_depends_on_no_clock_no_hash_and_nothing_that_ran_before(
    simulated, tmp_path
) -> None:
    names = ["uneven-fleet", "intermittent", "faults"]  # whatever is drawn, trained or scripted
    paths = [SCENARIOS[name] for name in names]
    again = anabranch(
        "simulate", *paths, "--out", tmp_path, PYTHONHASHSEED="1", OMP_NUM_THREADS="2"
    )
    first = [each for name in names for each in hashes(simulated(name)[0])]
    assert hashes(again) == first
    assert len(set(first)) == len(summaries(tmp_path)) > len(names)


def test_quick_scenarios_run_with_real_processes(tmp_path) -> None:
    paths = [SCENARIOS[name] for name in ("digits-fapt", "two-coasts-exchange")]
    anabranch("run", *paths, "--out", tmp_path)
    for run, path in zip(summaries(tmp_path), paths, strict=True):
        assert_went_well(run, load(path)[0])
        assert run.checksums_agree


def test_own_code_does_in_a_simulation_what_its_scenario_says(simulated) -> None:
    [run] = summaries(simulated("own-code")[1])
    said = re.search(r"after ([\d.]+) s, simulated", SCENARIOS["own-code"].read_text("utf-8"))
    assert said is not None
    assert run.time_to_accuracy_s(0.9) == pytest.approx(float(said[1]), rel=0.005)
    assert [path.suffix for path in (simulated("own-code")[1]).glob("*/1-own*")].count(
        ".safetensors"
    ) == 1


@pytest.mark.slow
def test_own_code_runs_with_real_processes(tmp_path) -> None:
    anabranch("run", SCENARIOS["own-code"], "--out", tmp_path)
    [run] = summaries(tmp_path)
    assert_went_well(run, load(SCENARIOS["own-code"])[0])
    assert run.checked_rounds == len(run.rounds)
    assert run.checksums_agree


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_begins_with_its_question_and_with_commands_that_it_allows(name) -> None:
    question, _, rest = SCENARIOS[name].read_text(encoding="utf-8").partition("\n")
    assert re.fullmatch(r"# [A-Z].*\?", question)
    assert f"#     anabranch simulate examples/scenarios/{name}.toml" in rest
    if "#     anabranch run " in rest:
        check_real(*load(SCENARIOS[name]))


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_is_planned(name) -> None:
    assert "physical limit" in anabranch("plan", OVERLAYS[name])


@pytest.mark.parametrize("route", ["star", "balanced", "mst", "fapt", "packed"])
def test_a_plan_that_was_saved_can_be_a_route_of_its_own(route: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    anabranch("plan", OVERLAYS["two-coasts"], "--route", route, "--save", plan)
    text = SCENARIOS["own-plan"].read_text("utf-8").replace("../plans/two-coasts.json", str(plan))
    path = tmp_path / "own.toml"
    path.write_text(text.replace("../overlays", str(EXAMPLES / "overlays")))
    scenario, overlay = load(path)
    [_, own, _] = scenario.routes
    label = own.plan(overlay).label
    assert label.startswith("spanning tree" if route == "mst" else route)


def test_the_list_of_examples_is_complete() -> None:
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for path in [*SCENARIOS.values(), *OVERLAYS.values(), *PLANS, *CODE]:
        assert f"]({path.relative_to(EXAMPLES)})" in listed


def test_the_scenarios_show_every_key_and_every_choice() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in SCENARIOS.values())
    assert not missing(Scenario, text)


def test_two_coasts_shows_every_key_of_an_overlay() -> None:
    assert not missing(_toml._File, OVERLAYS["two-coasts"].read_text(encoding="utf-8"))


def missing(table: type[msgspec.Struct], text: str) -> set[str]:
    """Return the keys of a table and of those within it, and their choices, that a text lacks."""
    patterns = {
        word: rf"\b{word}\b(\s*=|\.|\])" if is_key else rf"\b{word}\b"
        for word, is_key in set(_words(inspect.type_info(table)))
    }
    return {word for word, pattern in patterns.items() if not re.search(pattern, text)}


def _words(described: inspect.Type) -> Iterator[tuple[str, bool]]:
    """Yield words that may stand in a file, and whether each is a key."""
    match described:
        case inspect.StructType(fields=fields, tag=tag):
            if tag is not None:
                yield str(tag), False
            for field in fields:
                yield field.encode_name, True
                yield from _words(field.type)
        case inspect.UnionType(types=types):
            for each in types:
                yield from _words(each)
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            yield from _words(item)
        case inspect.DictType(value_type=value):
            yield from _words(value)
        case inspect.LiteralType(values=values):
            yield from ((str(value), False) for value in values)
