"""Edge aggregators: sites that train nothing, and add up what the groups near them send."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from anabranch.log import (
    Event,
    LinkBytes,
    MessageRefused,
    RunEnded,
    SiteLost,
    UpdateApplied,
    UpdateDiscarded,
    WorkerWent,
    read_events,
)
from anabranch_lab.run.checkpoints import weights_of
from anabranch_lab.run.replay import replay
from anabranch_lab.run.scenario import load as load_scenario
from anabranch_lab.run.simulate import simulate
from anabranch_lab.tasks.kinds import load_task
from anabranch_lab.tasks.models import build_model

from ..every import every
from ..seeds import seeds, slow_after
from .test_forest import killed_in_reality
from .test_served import PACES, write_overlay

EDGES = "edge-1", "edge-2"
CLIENTS = tuple(f"c{number}" for number in range(6))
NEAR = {"edge-1": CLIENTS[:3], "edge-2": CLIENTS[3:]}
EACH = [(server, edge) for server in ("server",) for edge in EDGES]
LINKS = EACH + [(edge, client) for edge, near in NEAR.items() for client in near]
SPLIT = (("c0", "c1"), ("c2",), ("c3",), ("c4", "c5"))  # two groups at each edge
UPDATES = 6


def write(
    folder: Path, groups: tuple[tuple[str, ...], ...], pace: str = '{kind = "bsp"}', more: str = ""
) -> Path:
    """Write a scenario with edges, and its overlay."""
    write_overlay(folder, "edges", LINKS, 1e7)
    listed = str([list(group) for group in groups]).replace("'", '"')
    path = folder / "edges.scenario.toml"
    path.write_text(
        'overlay = "edges.toml"\nserve = {only = ["server", "edge-1", "edge-2"]}\n'
        f"pace = {pace}\nstop = {{rounds = {UPDATES}}}\nchunk_elements = 300\nseed = 5\n"
        'period = {kind = "every", steps = 2}\ncompute = {samples_per_s = 40, gini = 0.2}\n'
        'route = {kind = "forest", server = "server", '
        f'search = {{kind = "given", groups = {listed}}}, within = {{kind = "fapt", '
        f'roots = ["server"]}}}}\n{more}\n'
        'task = {kind = "train", data = "digits", model = "softmax", learning_rate = 0.2, '
        "batch_size = 8}\n"
    )
    return path


def events(path: Path) -> list[Event]:
    log = path.with_suffix(".db")
    simulate(*load_scenario(path), log)
    happened = [event for _, event in read_events(log)]
    assert replay(read_events(log)).decided
    assert not any(isinstance(event, MessageRefused) for event in happened)
    return happened


def check(happened: list[Event], *lost: int) -> None:
    """Each update is settled once at most, and who was not lost made all of its updates."""
    settled = [
        (e.site, e.update) for e in happened if isinstance(e, UpdateApplied | UpdateDiscarded)
    ]
    assert len({*settled}) == len(settled)
    went = Counter(event.site for event in happened if isinstance(event, WorkerWent))
    assert every(went[site] == UPDATES for site in clients() if site not in lost)
    end = happened[-1]
    assert isinstance(end, RunEnded)
    assert end.error is None


def names() -> list[str]:
    return sorted({name for link in LINKS for name in link})


def clients() -> list[int]:
    return [names().index(client) for client in CLIENTS]


def sent(happened: list[Event]) -> dict[tuple[str, str], int]:
    """Return the bytes of each link."""
    found = Counter[tuple[str, str]]()
    for each in happened:
        if isinstance(each, LinkBytes):
            found[names()[each.source], names()[each.target]] += each.payload_bytes
    return found


@pytest.mark.parametrize("groups", [tuple(NEAR.values()), SPLIT])
@pytest.mark.parametrize("pace", PACES)
def test_a_link_to_an_edge_carries_one_model_of_each_group(
    pace: str, groups: tuple[tuple[str, ...], ...], tmp_path: Path
) -> None:
    happened = events(write(tmp_path, groups, pace))
    check(happened)
    found = sent(happened)
    at_each = len(groups) // len(EDGES)
    for edge, near in NEAR.items():
        one = {found[client, edge] for client in near}
        assert one == {found[edge, "server"] // at_each}
        assert found[edge, "server"] == at_each * max(one)
        down = {found[edge, client] for client in near}
        if pace == '{kind = "asp"}' or len(groups) == len(EDGES):
            assert {found["server", edge]} == {at_each * each for each in down}


def test_edges_change_where_sums_are_made_and_not_what_is_learnt(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    data = load_task("digits", None)
    model = build_model("softmax", data.shape, data.classes, 5, hidden=None, vocabulary=None)
    found = []
    for name, groups in (("whole", (CLIENTS,)), ("edges", tuple(NEAR.values())), ("split", SPLIT)):
        folder = tmp_path / name
        folder.mkdir()
        path = write(folder, groups)
        events(path)
        weights = load_file(weights_of(path.with_suffix(".db")))
        found.append(np.concatenate([weights[n].ravel() for n, _ in model.named_parameters()]))
    for each in found[1:]:
        np.testing.assert_allclose(each, found[0], atol=2e-6)


def test_without_a_client_its_group_goes_on_and_without_an_edge_the_run_ends_by_name(
    tmp_path: Path,
) -> None:
    fault = 'fault = [{kind = "kill", site = "c1", at_s = 1.0}]'
    happened = events(write(tmp_path, SPLIT, '{kind = "asp"}', fault))
    check(happened, names().index("c1"))
    (lost,) = [event.site for event in happened if isinstance(event, SiteLost)]
    assert names()[lost] == "c1"
    other = tmp_path / "other"
    other.mkdir()
    path = write(other, SPLIT, '{kind = "asp"}', fault.replace("c1", "edge-1"))
    with pytest.raises(Exception, match=r"edge-1 .*"):
        simulate(*load_scenario(path), path.with_suffix(".db"))


@pytest.mark.parametrize(
    "pace",
    [
        '{kind = "fl-r2sp", groups = 2}',
        '{kind = "fl-r2sp", groups = 2, fraction = 0.5}',
        '{kind = "fedbuff", size = 4}',
    ],
)
def test_an_edge_passes_no_model_where_a_group_goes_on_with_the_one_it_has(
    pace: str, tmp_path: Path
) -> None:
    path = write(tmp_path, SPLIT, pace)
    path.write_text(path.read_text().replace("gini = 0.2", "gini = 0.6"))
    happened = events(path)
    check(happened)
    let_go = {(e.site, e.update) for e in happened if isinstance(e, WorkerWent)}
    settled = {
        (e.site, e.update) for e in happened if isinstance(e, UpdateApplied | UpdateDiscarded)
    }
    assert settled == let_go


@pytest.mark.parametrize("victim", slow_after(1, ["c0", "c1"]))
def test_a_client_may_die_while_the_model_is_on_its_way_to_it(victim: str, tmp_path: Path) -> None:
    path = write(tmp_path, SPLIT, '{kind = "asp"}')
    site = names().index(victim)
    [at_s] = [
        event.at_s
        for event in events(path)
        if isinstance(event, WorkerWent) and (event.site, event.update) == (site, 3)
    ]
    whole = path.read_text()
    for after_ms in (0.2, 0.5, 1, 1.5, 2, 3, 4, 6, 10, 15):
        fault = f'fault = [{{kind = "kill", site = "{victim}", at_s = {at_s + after_ms / 1e3}}}]\n'
        path.write_text(fault + whole)
        path.with_suffix(".db").unlink()
        check(events(path), site)


@seeds(8, 30)
def test_clients_of_edges_that_die_and_return_never_stop_a_run(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    faults = []
    victims = rng.permutation(CLIENTS)[: int(rng.integers(1, 4))]
    for victim in victims:
        back = f", for_s = {rng.uniform(0.1, 2):.2f}" if rng.random() < 0.6 else ""
        faults.append(
            f'{{kind = "kill", site = "{victim}", at_s = {rng.uniform(0.1, 4):.2f}{back}}}'
        )
    pace = PACES[int(rng.integers(len(PACES)))]
    more = f"fault = [{', '.join(faults)}]"
    happened = events(write(tmp_path, SPLIT if rng.random() < 0.6 else (CLIENTS,), pace, more))
    check(happened, *(names().index(str(victim)) for victim in victims))


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_real_clients_of_edges_train_on_when_one_is_killed(tmp_path: Path) -> None:
    path = write(tmp_path, SPLIT, '{kind = "asp"}')
    path.write_text(path.read_text().replace("compute = {samples_per_s = 40, gini = 0.2}\n", ""))
    _, overlay = load_scenario(path)
    happened = killed_in_reality(path, overlay, tmp_path / "killed.db", "c4", 4)
    lost = {event.site for event in happened if isinstance(event, SiteLost)}
    assert lost <= {names().index("c4")}
    check(happened, *lost)
    assert replay(read_events(tmp_path / "killed.db")).decided
