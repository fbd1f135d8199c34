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

from anabranch.log import RunSummary, fingerprint, read_events, summarise
from anabranch.overlay import Overlay, _toml
from anabranch.overlay import load as load_overlay
from anabranch.pace import Asp, Bsp, Safa, Ssp, TunedBatches
from anabranch.plan import (
    AnyPlanner,
    Balanced,
    Fapt,
    Packed,
    Ring,
    Spanning,
    Star,
    dumps,
    limit_s,
)
from anabranch.scheduler.awareness import Oracle
from anabranch_lab.run.launch import run_locally
from anabranch_lab.run.scenario import ByShare, Scenario, Serve, check_real, load
from anabranch_lab.run.simulate import simulate
from tests.kept_logs import digest, kept

EXAMPLES = Path(__file__).parent.parent / "examples"
SCENARIOS = {path.stem: path for path in sorted(EXAMPLES.glob("scenarios/*.toml"))}
OVERLAYS = {path.stem: path for path in sorted(EXAMPLES.glob("overlays/*.toml"))}
PLANS = sorted(EXAMPLES.glob("plans/*.json"))
# These take seconds each: large buffers, many rounds, or a network that changes for long.
LONG = {
    *("routes", "packed-trees", "own-plan", "auxiliary-paths", "changing-network", "aware"),
    *("barrier", "paces", "faults", "outages", "intermittent", "netstorm-pro", "netstorm-std"),
    *("federated-clients", "federated-groups"),
}
# One group each, so that one worker simulates a scenario for all of its tests.
EACH_SCENARIO = [
    pytest.param(
        name,
        marks=[
            pytest.mark.xdist_group(f"example {name}"),
            *([pytest.mark.slow] if name in LONG else []),
        ],
    )
    for name in SCENARIOS
]
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


def summary(log: Path) -> RunSummary:
    return summarise(event for _, event in read_events(log))


def simulate_all(scenario: Scenario, overlay: Overlay, folder: Path) -> list[Path]:
    """Simulate a scenario over each of its routes; return the logs."""
    logs = []
    for number, run in enumerate(scenario.runs()):
        logs.append(folder / f"{number}.db")
        simulate(run, overlay, logs[-1])
    return logs


Simulated = Callable[[str], list[Path]]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Simulated:
    """Simulate a scenario, once for all tests of a worker: the log of each route."""

    @cache
    def simulated(name: str) -> list[Path]:
        return simulate_all(*load(SCENARIOS[name]), tmp_path_factory.mktemp(name))

    return simulated


def assert_went_well(run: RunSummary, scenario: Scenario) -> None:
    assert run.ended
    assert run.error is None
    target = run.started.target_accuracy
    if target is not None:
        assert run.time_to_accuracy_s(target) is not None
    if run.pace is not None:
        made = {len(each) for each in run.pace.iterations.values()}
        if scenario.clients is not None and scenario.clients.vanish:
            assert max(made) <= scenario.stop.rounds  # what never comes back is no iteration
        else:
            assert made == {scenario.stop.rounds}
    elif run.reason is None:
        rounds = 1 if scenario.gossip else scenario.stop.rounds  # the last average alone
        assert len(run.rounds) == rounds
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
        {"serve": AHEAD},
        {"pace": Bsp(), "serve": AHEAD},
        {"pace": Asp(), "serve": AHEAD},
    ],
}


NETSTORM = [f"netstorm-{stage}" for stage in ("lite", "std", "pro")]
WITH_FIGURES = ["routes", "intermittent", "changing-network", "packed-trees", *NETSTORM, *COMPARED]


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
    if name in ("aware", *NETSTORM):
        return run.total_s / len(run.rounds)
    target = run.started.target_accuracy
    return run.median_round_s if target is None else run.time_to_accuracy_s(target)


def assert_said(name: str, column: int, runs: list[RunSummary]) -> None:
    """Check a column of the table that a scenario begins with."""
    said = figures(name)
    given = {row(run, said): figure(name, run) for run in runs}
    assert {label: said[label][column] for label in given} == pytest.approx(given, rel=0.005)


@pytest.mark.parametrize("name", EACH_SCENARIO)
def test_a_scenario_is_simulated_to_its_end_and_gives_its_figures(
    name: str, simulated: Simulated
) -> None:
    scenario, _ = load(SCENARIOS[name])
    runs = [summary(log) for log in simulated(name)]
    assert len(runs) == len(scenario.routes)
    for run in runs:
        assert_went_well(run, scenario)
        has_numbers = scenario.simulation.tensors == "real" or run.accuracy
        assert run.checked_rounds == (len(run.rounds) if has_numbers else 0)
        assert not run.disputes
    if name in WITH_FIGURES:
        assert_said(name, 0, runs)
    if name == "packed-trees":
        said = figures(name)
        given = {row(run, said): 100 * (run.share_of_limit or 0.0) for run in runs}
        assert {label: said[label][1] for label in given} == pytest.approx(given, abs=0.6)


@pytest.mark.parametrize("name", EACH_SCENARIO)
def test_a_scenario_s_event_logs_are_those_that_are_kept(name: str, simulated: Simulated) -> None:
    """Compare each log with its digest in ``kept_logs.json``, event for event.

    A commit that changes a digest says which logs change, by how many per cent and why;
    ``python -m tests.kept_logs NAME`` then writes the new ones. Digests are of logs made with the
    releases in ``constraints.txt``.
    """
    assert [digest(log) for log in simulated(name)] == kept()[name]


def test_the_logs_of_every_example_are_kept() -> None:
    assert kept().keys() == SCENARIOS.keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "column"), [(name, n) for name, others in COMPARED.items() for n in range(len(others))]
)
def test_so_does_what_it_is_compared_with(name: str, column: int, tmp_path: Path) -> None:
    scenario, overlay = load(SCENARIOS[name])
    other = msgspec.structs.replace(scenario, **COMPARED[name][column])
    assert_said(name, column + 1, [summary(log) for log in simulate_all(other, overlay, tmp_path)])


@pytest.mark.slow
def test_a_simulation_depends_on_no_clock_no_hash_and_nothing_that_ran_before(
    tmp_path: Path,
) -> None:
    (tmp_path / "overlays").symlink_to(EXAMPLES / "overlays")
    paths = []
    # Drawn, and scripted.
    shorter = {
        "intermittent": ("rounds = 200", "rounds = 8"),
        "faults": ("1_000_000", "200_000"),
        "outages": ("rounds = 60", "rounds = 25"),
    }
    for name, (was, becomes) in shorter.items():
        paths.append(tmp_path / "scenarios" / f"{name}.toml")
        paths[-1].parent.mkdir(exist_ok=True)
        text = SCENARIOS[name].read_text("utf-8")
        assert text.count(was) == 1
        text = text.replace(was, becomes)
        paths[-1].write_text(text, "utf-8")
    again = anabranch(
        "simulate", *paths, "--out", tmp_path / "again", PYTHONHASHSEED="1", OMP_NUM_THREADS="2"
    )
    here = [tmp_path / path.stem for path in paths]
    for folder in here:
        folder.mkdir()
    first = [
        fingerprint(log)
        for path, folder in zip(paths, here, strict=True)
        for log in simulate_all(*load(path), folder)
    ]
    assert re.findall(r"event log (\w+)", again) == first
    assert len(set(first)) == len(first) > len(paths)


@pytest.mark.slow
def test_a_quick_scenario_runs_with_real_processes(tmp_path: Path) -> None:
    path = SCENARIOS["two-coasts-exchange"]
    anabranch("run", path, "--out", tmp_path)
    [log] = tmp_path.glob("*/*.db")
    run = summary(log)
    assert_went_well(run, load(path)[0])
    assert run.checksums_agree


def test_own_code_does_in_a_simulation_what_its_scenario_says(simulated: Simulated) -> None:
    [log] = simulated("own-code")
    said = re.search(r"after ([\d.]+) s, simulated", SCENARIOS["own-code"].read_text("utf-8"))
    assert said is not None
    assert summary(log).time_to_accuracy_s(0.9) == pytest.approx(float(said[1]), rel=0.005)
    assert log.with_suffix(".safetensors").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_own_code_runs_with_real_processes(tmp_path: Path) -> None:
    scenario, overlay = load(SCENARIOS["own-code"])
    log = tmp_path / "own-code.db"
    run_locally(SCENARIOS["own-code"], 0, overlay, log)
    run = summary(log)
    assert_went_well(run, scenario)
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
def test_an_overlay_can_be_planned(name: str) -> None:
    overlay = load_overlay(str(OVERLAYS[name]))
    assert Star().plan(overlay).trees
    assert limit_s(overlay, 4e6) > 0.0


@pytest.mark.parametrize(
    "route",
    [Star(), Balanced(), Spanning(), Ring(), Fapt(), Packed()],
    ids=lambda each: type(each).__name__,
)
def test_a_plan_that_was_saved_can_be_a_route_of_its_own(route: AnyPlanner, tmp_path: Path) -> None:
    saved = route.plan(load_overlay(str(OVERLAYS["two-coasts"])))
    plan = tmp_path / "plan.json"
    plan.write_text(dumps(saved))
    text = SCENARIOS["own-plan"].read_text("utf-8").replace("../plans/two-coasts.json", str(plan))
    path = tmp_path / "own.toml"
    path.write_text(text.replace("../overlays", str(EXAMPLES / "overlays")))
    scenario, overlay = load(path)
    [_, own, _] = scenario.routes
    assert own.plan(overlay).trees == saved.trees


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
