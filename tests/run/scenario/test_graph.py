"""What a scenario adds to a graph file."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.overlay import UniformRates, read_graph
from anabranch_lab.run.scenario import ScenarioError, load

NODES = """graph [
  node [ id 0 label "a" Latitude 38.7 Longitude -9.1 ]
  node [ id 1 label "b" Latitude 40.4 Longitude -3.7 ]
  node [ id 2 label "c" ]
  edge [ source 0 target 1 ]
"""


def written(folder: Path, edges: str, graph: str) -> Path:
    (folder / "graph.gml").write_text(f"{NODES}{edges}]\n")
    path = folder / "scenario.toml"
    path.write_text(
        f'overlay = "graph.gml"\n{graph}\nstop = {{rounds = 1}}\nseed = 7\n'
        'task = {kind = "exchange", elements = 10}\n'
    )
    return path


EDGE = "  edge [ source 1 target 2 ]\n"
WHOLE = "graph = {rate_bps = 1e6, default_latency_s = 0.25}"


def test_a_scenario_gives_what_a_graph_does_not_say(tmp_path: Path) -> None:
    _, overlay = load(written(tmp_path, EDGE, WHOLE))
    assert {link.rate_bps for link in overlay.links} == {1e6}
    assert [link.latency_s for link in overlay.links if link.target == 2] == [0.25]
    _, drawn = load(written(tmp_path, EDGE, WHOLE.replace("1e6", "[1e6, 2e6]")))
    rate = UniformRates(1e6, 2e6, seed=7)
    assert drawn == read_graph(tmp_path / "graph.gml", rate=rate, default_latency_s=0.25)
    _, part = load(written(tmp_path, "", "graph = {rate_bps = 1e6, largest_part = true}"))
    assert part.size == 2


@pytest.mark.parametrize(
    ("edges", "graph", "said"),
    [
        (EDGE, "", r"overlay: .*a->b has no rate; .*: graph.rate_bps = 155e6"),
        (
            EDGE,
            "graph = {rate_bps = 1e6}",
            r"c has no position; .*: graph.default_latency_s = 0.03",
        ),
        ("", "graph = {rate_bps = 1e6}", r"2 parts .*: graph.largest_part = true"),
        (EDGE, WHOLE.replace("1e6", "[2e6, 1e6]"), "graph: cannot draw rates from 2e.06 to 1e.06"),
        (EDGE, WHOLE.replace("1e6", "[2e6]"), "graph.rate_bps: must be an array of length >= 2"),
    ],
)
def test_what_is_still_missing_is_told_in_keys(
    edges: str, graph: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ScenarioError, match=said):
        load(written(tmp_path, edges, graph))


def test_other_overlays_take_nothing_from_a_graph_table(tmp_path: Path) -> None:
    path = written(tmp_path, EDGE, WHOLE)
    path.write_text(path.read_text().replace("graph.gml", "internet2-9"))
    with pytest.raises(ScenarioError, match="graph: internet2-9 does not take rate, which is for"):
        load(path)
