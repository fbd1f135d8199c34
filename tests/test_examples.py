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
from anabranch.record import RunSummary, read_events, summarise
from anabranch.run.scenario import Scenario, check_real, load

EXAMPLES = Path(__file__).parent.parent / "examples"
SCENARIOS = {path.stem: path for path in sorted(EXAMPLES.glob("scenarios/*.toml"))}
OVERLAYS = {path.stem: path for path in sorted(EXAMPLES.glob("overlays/*.toml"))}


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
    if run.reason is None:
        assert len(run.rounds) == scenario.stop.rounds
    else:  # the scenario asks to stop before the last round
        assert scenario.stop.at_target or scenario.stop.after_s is not None
        assert run.rounds


@pytest.mark.parametrize("name", ["routes", "intermittent", "changing-network"])
def test_the_figures_a_scenario_begins_with_are_those_it_gives(
    name: str, simulated: Callable[[str], tuple[str, Path]]
) -> None:
    said = dict(
        re.findall(r"^#     (\S.*?)  +([\d.]+)\b", SCENARIOS[name].read_text("utf-8"), re.MULTILINE)
    )
    _, folder = simulated(name)
    for run in summaries(folder):
        target = run.started.target_accuracy
        if name == "changing-network":
            given_s: float | None = run.round_s[1]  # the first has none before it to overlap with
        else:
            given_s = run.median_round_s if target is None else run.time_to_accuracy_s(target)
        assert float(said[run.label]) == pytest.approx(given_s, rel=0.005)


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


def test_the_list_of_examples_is_complete() -> None:
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for path in [*SCENARIOS.values(), *OVERLAYS.values()]:
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
