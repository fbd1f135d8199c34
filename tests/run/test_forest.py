"""Forests in runs: trees that add up, each at its own pace, to one server."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from anabranch import plan as plans
from anabranch.log import (
    Event,
    GroupsFormed,
    LinkBytes,
    MessageRefused,
    PlanIssued,
    RunEnded,
    RunStarted,
    SiteJoined,
    SiteLost,
    StepDone,
    UpdateApplied,
    UpdateDiscarded,
    WorkerWent,
    read_events,
)
from anabranch.overlay import Overlay, dumps, random_complete
from anabranch.overlay import load as load_overlay
from anabranch_lab.reports import tables, write_report
from anabranch_lab.reports.runs import Run
from anabranch_lab.run.launch import run_locally
from anabranch_lab.run.replay import replay
from anabranch_lab.run.scenario import ScenarioError
from anabranch_lab.run.scenario import load as load_scenario
from anabranch_lab.run.simulate import simulate

from ..every import every
from ..seeds import seeds, slow_after
from .test_served import PACES, two_levels, write_overlay

LEFT, RIGHT = ("dc1", "dc3", "dc4", "dc5"), ("dc2", "dc6", "dc7", "dc8")
UPDATES = 12


def forest(*groups: tuple[str, ...], within: str = "") -> str:
    listed = ", ".join("[" + ", ".join(f'"{name}"' for name in group) + "]" for group in groups)
    more = f', elements = 10_000_000, within = {{kind = "{within}"}}' if within else ""
    found = f'{{kind = "given", groups = [{listed}]}}'
    return f'{{kind = "forest", server = "dc9", search = {found}{more}}}'


def events(
    folder: Path,
    pace: str = '{kind = "asp"}',
    route: str = forest(LEFT, RIGHT),
    more: str = "",
    name: str = "run",
    speed: float = 100.0,
    overlay: str = "two-levels.toml",
) -> list[Event]:
    """Simulate a run, if not said otherwise over two levels of sites with the server at the top."""
    two_levels(folder)
    path, log = folder / f"{name}.toml", folder / f"{name}.db"
    path.write_text(
        f'overlay = "{overlay}"\nstop = {{rounds = {UPDATES}}}\n'
        f'serve = {{only = ["dc9"]}}\npace = {pace}\nroute = {route}\n{more}\n'
        'task = {kind = "train", data = "digits", model = "softmax", learning_rate = 0.5}\n'
        f"[compute]\nsamples_per_s = {speed}\n[compute.sites.dc8]\nsamples_per_s = 40\n"
    )
    simulate(*load_scenario(path), log)
    happened = [event for _, event in read_events(log)]
    assert replay(read_events(log)).decided
    assert not any(isinstance(event, MessageRefused) for event in happened)
    return happened


def plan_of(happened: list[Event]) -> plans.Plan:
    started = happened[0]
    assert isinstance(started, RunStarted)
    return plans.loads(started.plan_json)


def groups_of(happened: list[Event]) -> list[tuple[int, ...]]:
    return [group.workers for group in plan_of(happened).groups]


def check_that_groups_step_together(happened: list[Event], *lost: int) -> None:
    """Check that every update is settled once, with those of the same number of its group."""
    steps: dict[tuple[int, int, int], list[int]] = {}  # by group, version and update
    for event in happened:
        if isinstance(event, UpdateApplied):
            (group,) = (
                number for number, each in enumerate(groups_of(happened)) if event.site in each
            )
            steps.setdefault((group, event.version, event.update), []).append(event.site)
    for (group, _, _), step in steps.items():
        assert {*groups_of(happened)[group]} - {*step} <= {*lost}
    settled = [(site, update) for (_, _, update), step in steps.items() for site in step]
    settled += [(e.site, e.update) for e in happened if isinstance(e, UpdateDiscarded)]
    assert len({*settled}) == len(settled)


@pytest.mark.parametrize("pace", PACES)
def test_every_pace_moves_trees(pace: str, tmp_path: Path) -> None:
    happened = events(tmp_path, pace)
    assert sorted(groups_of(happened)) == [(0, 2, 3, 4), (1, 5, 6, 7)]
    check_that_groups_step_together(happened)
    went = Counter(event.site for event in happened if isinstance(event, WorkerWent))
    assert went == dict.fromkeys(range(8), UPDATES)
    done_s = {e.site: e.at_s for e in happened if isinstance(e, WorkerWent)}
    if pace == '{kind = "asp"}':  # dc8 is slow, and with it its tree alone
        assert done_s[0] < 0.7 * done_s[1]
    end = happened[-1]
    assert isinstance(end, RunEnded)
    assert end.error is None


def losses(happened: list[Event]) -> list[tuple[int, int, float | None]]:
    return sorted((e.site, e.round, e.loss) for e in happened if isinstance(e, StepDone))


def test_one_tree_is_the_synchronous_run_to_the_last_bit(tmp_path: Path) -> None:
    one = events(tmp_path, route=forest(LEFT + RIGHT), name="one")
    [group] = plan_of(one).groups
    (tmp_path / "plan.json").write_text(plans.dumps(group.plan))
    same = '{kind = "file", path = "plan.json"}'
    together = events(tmp_path, '{kind = "bsp"}', same, name="together")
    assert len(losses(one)) == 8 * UPDATES
    assert losses(one) == losses(together)


@pytest.mark.parametrize(
    ("pace", "within"),
    [
        pytest.param(
            *(pace, within), marks=[] if (k + (within == "fapt")) % 2 == 0 else [pytest.mark.slow]
        )
        for k, pace in enumerate(PACES)
        for within in ("packed", "fapt")
    ],
)
def test_every_pace_moves_groups_that_have_several_trees(
    pace: str, within: str, tmp_path: Path
) -> None:
    haaf = 'merge = {kind = "product", of = [{kind = "data-size"}, {kind = "staleness"}]}'
    route = forest(LEFT, RIGHT, within=within)
    happened = events(tmp_path, pace, route, haaf, overlay="internet2-9")
    plan = plan_of(happened)
    assert len(plan.trees) > 3
    roots = {tree.root for tree in plan.trees}
    assert [{*group.plan.members} for group in plan.groups] == [
        roots.union(group.workers) for group in plan.groups
    ]
    check_that_groups_step_together(happened)
    went = Counter(event.site for event in happened if isinstance(event, WorkerWent))
    assert went == dict.fromkeys(range(8), UPDATES)
    found = [loss for _, _, loss in losses(happened) if loss is not None]
    assert np.mean(found[-8:]) < np.mean(found[:8])
    rows = tables.forests([Run.of(happened, tmp_path / "run.db")]).rows
    names = dict.fromkeys(f"dc{tree.root + 1}" for tree in plan.trees)
    assert {row[0] for row in rows} == {", ".join(names)}


@pytest.mark.parametrize("within", ["packed", "fapt"])
def test_one_group_is_the_synchronous_run_over_its_trees_to_the_last_bit(
    within: str, tmp_path: Path
) -> None:
    route = forest(LEFT + RIGHT, within=within)
    one = events(tmp_path, route=route, name="one", overlay="internet2-9")
    [group] = plan_of(one).groups
    assert group.plan.trees == plan_of(one).trees
    (tmp_path / "plan.json").write_text(plans.dumps(group.plan))
    same = '{kind = "file", path = "plan.json"}'
    together = events(tmp_path, '{kind = "bsp"}', same, name="together", overlay="internet2-9")
    assert len(losses(one)) == 8 * UPDATES
    assert losses(one) == losses(together)


def test_groups_with_several_trees_go_on_without_a_leaf(tmp_path: Path) -> None:
    # On two levels, trees within that have dc9 and dc1 at their roots lead through dc2 and no leaf.
    route = forest(LEFT, RIGHT).replace(
        '"dc9",', '"dc9", within = {kind = "fapt", roots = ["dc9", "dc1"]},', 1
    )
    fault = 'fault = [{kind = "kill", site = "dc6", at_s = 1.0, for_s = 0.5}]'
    happened = events(tmp_path, route=route, more=fault)
    assert len(plan_of(happened).trees) == 2
    assert [event.site for event in happened if isinstance(event, SiteLost)] == [5]
    check_that_groups_step_together(happened, 5)
    went = Counter(event.site for event in happened if isinstance(event, WorkerWent))
    assert every(went[site] == UPDATES for site in range(8) if site != 5)


@pytest.mark.parametrize("within", ["", ', within = {kind = "fapt", roots = ["dc9"]}'])
def test_a_worker_is_not_let_back_while_its_way_to_the_model_is_lost(
    within: str, tmp_path: Path
) -> None:
    edges = [("dc9", "dc1"), ("dc1", "dc2"), ("dc9", "dc3")]  # dc2 reaches the others by dc1 alone
    write_overlay(tmp_path, "line", edges, 1e7)
    route = forest(("dc1",), ("dc2",), ("dc3",)).replace("}}", f"}}{within}}}", 1)
    faults = (
        'fault = [{kind = "kill", site = "dc2", at_s = 0.5, for_s = 2.0}, '
        '{kind = "kill", site = "dc1", at_s = 1.5}]'
    )
    path, log = tmp_path / "scenario.toml", tmp_path / "run.db"
    path.write_text(
        f'overlay = "line.toml"\nstop = {{rounds = {UPDATES}}}\npace = {{kind = "asp"}}\n'
        f'serve = {{only = ["dc9"]}}\nroute = {route}\n{faults}\n'
        'task = {kind = "exchange", elements = 1000, batch_size = 10}\n'
        "compute = {samples_per_s = 30}\n"
    )
    simulate(*load_scenario(path), log)
    happened = [event for _, event in read_events(log)]
    went = Counter(event.site for event in happened if isinstance(event, WorkerWent))
    assert went[2] == UPDATES  # dc3
    assert [event.site for event in happened if isinstance(event, SiteLost)] == [1, 0]
    assert not [event for event in happened if isinstance(event, SiteJoined) and event.at_s > 0]
    assert replay(read_events(log)).decided


@pytest.mark.parametrize("pace", ['{kind = "asp"}', '{kind = "ssp", lead = 1}'])
def test_rules_at_their_limits_weigh_nothing_to_the_last_bit(pace: str, tmp_path: Path) -> None:
    limits = (
        '{kind = "product", of = [{kind = "staleness", a = 0.0}, {kind = "fairness", q = 0.0}]}'
    )
    plain = events(tmp_path, pace, name="plain")
    weighed = events(tmp_path, pace, more=f"merge = {limits}", name="weighed")
    assert losses(plain) == losses(weighed)
    factors = {event.factor for event in weighed if isinstance(event, UpdateApplied)}
    assert factors == {1.0}


def test_a_stale_tree_counts_less(tmp_path: Path) -> None:
    happened = events(tmp_path, more='merge = {kind = "staleness", a = 0.5}')
    version = 0  # of the model, as each tree has it, from which staleness follows
    has = {0: 0, 1: 0}
    seen = 0
    for event in happened:
        if not isinstance(event, UpdateApplied) or event.site not in has:
            continue
        staleness = event.version - 1 - has[event.site]
        assert event.factor == pytest.approx((staleness + 1) ** -0.5, rel=1e-12)
        seen += staleness > 0
        version = event.version
        has[event.site] = version
    assert seen > 3


@pytest.mark.parametrize("route", [forest(LEFT, RIGHT), '{kind = "star", hub = "dc9"}'])
@pytest.mark.parametrize("pace", ['{kind = "r2sp"}', '{kind = "safa", fraction = 0.5}'])
def test_rules_go_with_every_pace_and_route(pace: str, route: str, tmp_path: Path) -> None:
    haaf = (
        'merge = {kind = "product", of = [{kind = "data-size"}, {kind = "staleness"}, '
        '{kind = "fairness"}]}'
    )
    happened = events(tmp_path, pace, route, haaf)
    factors = [event.factor for event in happened if isinstance(event, UpdateApplied)]
    assert factors
    assert every(factor is not None and 0 < factor <= 1 for factor in factors)
    found = [loss for _, _, loss in losses(happened) if loss is not None]
    assert np.mean(found[-8:]) < np.mean(found[:8])


@seeds(6, 40)
def test_the_other_trees_train_on_when_a_leaf_dies_and_comes_back(
    seed: int, tmp_path: Path
) -> None:
    rng = np.random.default_rng(seed)
    pace, victim = PACES[seed % len(PACES)], int(rng.integers(2, 7))  # dc8, slow, is a root
    at_s, for_s = rng.uniform(0, 4.0), rng.choice([0.02, 0.3, 1.0, 30.0])
    fault = f'kind = "kill", site = "dc{victim + 1}", at_s = {at_s:.3f}, for_s = {for_s}'
    happened = events(tmp_path, pace, more=f"fault = [{{{fault}}}]")
    end = happened[-1]
    assert isinstance(end, RunEnded)
    assert end.error is None
    assert [event.site for event in happened if isinstance(event, SiteLost)] == [victim]
    check_that_groups_step_together(happened, victim)
    went = Counter(event.site for event in happened if isinstance(event, WorkerWent))
    assert every(went[site] == UPDATES for site in range(8) if site != victim)
    back = [event.site for event in happened if isinstance(event, SiteJoined) and event.at_s > 0]
    assert back in ([], [victim])


def test_a_tree_of_which_all_died_takes_part_again(tmp_path: Path) -> None:
    route = forest(LEFT, ("dc2", "dc6", "dc7"), ("dc8",))
    fault = 'fault = [{kind = "kill", site = "dc8", at_s = 2.0, for_s = 0.5}]'
    happened = events(tmp_path, route=route, more=fault)
    check_that_groups_step_together(happened)
    made = [event.update for event in happened if isinstance(event, WorkerWent) and event.site == 7]
    assert max(made) == UPDATES


def test_without_a_site_that_a_tree_needs_the_run_ends_by_name(tmp_path: Path) -> None:
    fault = 'fault = [{kind = "kill", site = "dc1", at_s = 1.0}]'
    with pytest.raises(Exception, match="site 0 \\(dc1\\) died"):
        events(tmp_path, more=fault)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('pace = {kind = "asp"}', 'pace = {kind = "bsp"}\n#', "route: a forest's trees push to"),
        ('["dc9"]}', '["dc9"], ahead = true}', "route: a forest adds updates up on their way"),
        ('"dc8"]', '"dc7"]', "route: groups hold sites"),
        (
            'server = "dc9"',
            'server = "dc9", compute_s = {dc1 = 1.0}',
            "route: groups hold sites",
        ),
        ('server = "dc9"', 'server = "dc9", spread_weight = -1.0', "spread_weight is -1"),
        (
            'route = {kind = "forest"',
            'awareness = {kind = "passive"}\nroute = {kind = "forest", within = {kind = "packed"}',
            "route: groups with trees within are not formed again",
        ),
        (
            'route = {kind = "forest"',
            'awareness = {kind = "passive", least_gain = "none"}\nroute = {kind = "forest"',
            'a forest is formed again only where that gains, so awareness.least_gain = "none"',
        ),
    ],
)
def test_what_does_not_go_with_a_forest_is_named(
    old: str, new: str, named: str, tmp_path: Path
) -> None:
    two_levels(tmp_path)
    path = tmp_path / "scenario.toml"
    text = (
        'overlay = "two-levels.toml"\nstop = {rounds = 3}\npace = {kind = "asp"}\n'
        f'serve = {{only = ["dc9"]}}\nroute = {forest(LEFT, RIGHT)}\n'
        'task = {kind = "train", data = "digits", model = "softmax", learning_rate = 0.5}\n'
    )
    if "bsp" in new:
        text = text.replace('serve = {only = ["dc9"]}\n', "")
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ScenarioError, match=named):
        load_scenario(path)


def meshed(
    folder: Path, faults: Sequence[str], pace: str = PACES[0], more: str = "", network: int = 0
) -> list[Event]:
    """Simulate a forest that is searched for, of eight workers that are all joined."""
    overlay = random_complete(
        9, network, low_bps=20e6, high_bps=200e6, latency_s=(0.005, 0.02), loss=0.0
    )
    (folder / "mesh.toml").write_text(dumps(overlay))
    path, log = folder / "run.toml", folder / "run.db"
    path.write_text(
        f'overlay = "mesh.toml"\nstop = {{rounds = {UPDATES}}}\nserve = {{only = ["site8"]}}\n'
        f'pace = {pace}\nroute = {{kind = "forest", server = "site8"}}\n{more}\n'
        f"fault = [{', '.join(f'{{{fault}}}' for fault in faults)}]\n"
        'task = {kind = "train", data = "digits", model = "softmax", learning_rate = 0.5}\n'
        "[compute]\nsamples_per_s = 100.0\ngini = 0.3\n"
    )
    scenario, _ = load_scenario(path)
    simulate(scenario.beside_its_scheduler(), overlay, log)
    happened = [event for _, event in read_events(log)]
    assert replay(read_events(log)).decided
    # What a process sent just before it was killed may come after its successor has joined.
    refused = [event for event in happened if isinstance(event, MessageRefused)]
    assert not [each.detail for each in refused if "which is in incarnation" not in each.detail]
    settled = [
        (event.site, event.update)
        for event in happened
        if isinstance(event, UpdateApplied | UpdateDiscarded)
    ]
    assert len({*settled}) == len(settled)
    end = happened[-1]
    assert isinstance(end, RunEnded)
    assert end.error is None
    return happened


AWARE = 'awareness = {kind = "passive", update_time_s = 2.0}'
AUXILIARY = "auxiliary = {primary_busy_bound = 1}\nchunk_elements = 40"  # of 650


def formed(happened: list[Event]) -> list[tuple[float, plans.Plan]]:
    """Return when workers moved in other groups, and the plans of these."""
    issued = {e.version: plans.loads(e.plan_json) for e in happened if isinstance(e, PlanIssued)}
    return [(e.at_s, issued[e.version]) for e in happened if isinstance(e, GroupsFormed)]


def test_a_tree_whose_root_dies_is_formed_anew_and_again_when_it_is_back(tmp_path: Path) -> None:
    happened = meshed(tmp_path, ['kind = "kill", site = "site2", at_s = 3.0, for_s = 1.0'])
    before = groups_of(happened)
    (without_s, without), (again_s, again) = formed(happened)
    assert 3.0 < without_s < 4.0 < again_s
    assert {w for group in without.groups for w in group.workers} == {*range(8)} - {2}
    assert [group.workers for group in again.groups] == before
    kept = {group.workers for group in without.groups} & {*before}
    changed = {worker for group in before if group not in kept for worker in group}
    assert kept  # one tree at least goes on as if nothing had been
    given_up = {e.site for e in happened if isinstance(e, UpdateDiscarded) and e.at_s < without_s}
    assert 2 in given_up <= changed
    (other,) = (each for each in kept if len(each) > 1)
    steps_s = [e.at_s for e in happened if isinstance(e, UpdateApplied) and e.site == other[0]]
    assert max(np.diff(steps_s)) < 2 * np.median(np.diff(steps_s))


@pytest.mark.parametrize("within", slow_after(1, ["", "packed"]))
def test_auxiliary_paths_carry_what_trees_say(within: str, tmp_path: Path) -> None:
    route, found = forest(LEFT + RIGHT, within=within), []
    for name, more in (("with", AUXILIARY), ("without", "chunk_elements = 40")):
        happened = events(tmp_path, route=route, more=more, name=name, overlay="internet2-9")
        carried = {(e.source, e.target) for e in happened if isinstance(e, LinkBytes)}
        found.append((losses(happened), carried))
        [group] = plan_of(happened).groups
        assert bool(group.plan.auxiliary) == (name == "with")
    (with_losses, carry), (without_losses, carry_without) = found
    assert [each[:2] for each in with_losses] == [each[:2] for each in without_losses]
    # Sums are added up as they come, which is in another order.
    with_l, without_l = ([each[2] for each in run] for run in (with_losses, without_losses))
    assert with_l == pytest.approx(without_l, rel=1e-4)
    assert carry >= carry_without
    if not within:
        assert carry > carry_without  # packed trees leave no link out


def test_trees_whose_auxiliary_paths_lead_through_a_lost_site_are_formed_anew(
    tmp_path: Path,
) -> None:
    fault = 'kind = "kill", site = "site4", at_s = 3.0'
    happened = meshed(tmp_path, [fault], more=AUXILIARY)
    through = [4 in group.plan.auxiliary_relays for group in plan_of(happened).groups]
    assert any(through)
    [(at_s, plan)] = formed(happened)
    assert 3.0 < at_s < 5.0
    assert not any(4 in group.plan.auxiliary_relays for group in plan.groups)
    assert every(group.plan.auxiliary for group in plan.groups)
    went = Counter(event.site for event in happened if isinstance(event, WorkerWent))
    assert every(went[site] == UPDATES for site in range(8) if site != 4)


def test_what_a_root_had_sent_before_it_died_is_taken(tmp_path: Path) -> None:
    faults = [
        'kind = "kill", site = "site2", at_s = 3.38, for_s = 1.0',
        'kind = "slow", site = "site1", at_s = 1.988, for_s = 4.0, factor = 3.0',
    ]
    assert formed(meshed(tmp_path, faults, '{kind = "safa", fraction = 0.5}', network=17))


def kill(site: int, at_s: float, for_s: float) -> str:
    return f'kind = "kill", site = "site{site}", at_s = {at_s}, for_s = {for_s}'


def slow(site: int, at_s: float, for_s: float, factor: float) -> str:
    return f'kind = "slow", site = "site{site}", at_s = {at_s}, for_s = {for_s}, factor = {factor}'


@seeds(2, 50)
def test_trees_are_formed_anew_whatever_dies_comes_back_or_becomes_slow(
    seed: int, tmp_path: Path
) -> None:
    rng = np.random.default_rng(seed)
    faults, dead_until_s = [], dict.fromkeys(range(8), 0.0)
    for at_s in sorted(rng.uniform(0, 8, int(rng.integers(1, 6)))):
        victim, for_s = int(rng.integers(8)), rng.choice([0.005, 0.02, 0.1, 0.3, 1.0, 3.0, 30.0])
        if at_s > dead_until_s[victim]:
            faults.append(kill(victim, round(at_s, 3), for_s))
            dead_until_s[victim] = at_s + for_s + 0.05
    for _ in range(int(rng.integers(3))):
        at_s, for_s = round(rng.uniform(0, 5), 3), rng.choice([1.0, 4.0, 20.0])
        faults.append(slow(int(rng.integers(8)), at_s, for_s, rng.choice([1.5, 3.0, 6.0])))
    if rng.random() < 0.3:
        at_s, for_s = round(rng.uniform(0, 6), 3), rng.choice([0.1, 1.0, 2.0])
        pause = f'kind = "pause", site = "site{rng.integers(9)}", at_s = {at_s}, for_s = {for_s}'
        faults.append(pause)
    more = f"{AWARE}\n" if rng.random() < 0.5 else ""
    if rng.random() < 0.5:
        more += AUXILIARY
    pace, network = PACES[seed % len(PACES)], int(rng.integers(0, 500))
    happened = meshed(tmp_path, faults, pace, more, network)
    assert 1 <= len([event for event in happened if isinstance(event, SiteLost)]) <= 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pace", "network", "more", "faults"),
    [
        pytest.param(
            *('{kind = "ssp", lead = 2}', 8, AWARE),
            [kill(3, 2.446, 0.02), kill(1, 5.824, 1), kill(0, 2.715, 3), slow(7, 0.084, 20, 1.5)],
            id="another group with the same first worker has its epoch",
        ),
        pytest.param(
            *('{kind = "safa", fraction = 0.5}', 49, AWARE),
            [kill(1, 4.611, 3), kill(5, 5.578, 1)],
            id="all have finished but one that is back and in no group yet",
        ),
        pytest.param(
            *('{kind = "r2sp"}', 5, ""),
            [kill(5, 4.753, 1), kill(1, 1.216, 30), kill(7, 5.640, 1)],
            id="one is back whose way leads through one that is not",
        ),
        pytest.param(
            *('{kind = "safa", fraction = 0.5}', 29, ""),
            [kill(7, 3.031, 1), kill(0, 5.504, 3), kill(5, 3.598, 0.02)],
            id="an update waits for its step when its group is no more",
        ),
        pytest.param(
            *('{kind = "safa", fraction = 0.5}', 7, AWARE),
            [kill(4, 4.178, 3), kill(3, 4.771, 0.3), slow(3, 1.323, 4, 3)],
            id="a leaf is lost while another forest is searched for",
        ),
        pytest.param(
            *('{kind = "bsp"}', 26, ""),
            [kill(7, 4.688, 0.3), kill(5, 4.836, 3), kill(6, 2.671, 3), slow(5, 0.924, 4, 1.5)],
            id="one hears of other groups that is not let in yet",
        ),
        pytest.param(
            *('{kind = "r2sp"}', 12, ""),
            [kill(1, 2.496, 3), kill(0, 1.411, 0.3), slow(0, 0.566, 4, 3)],
            id="one that is back gives up the update that it has no model for",
        ),
        pytest.param(
            *('{kind = "bsp"}', 250, ""),
            [
                kill(4, 0.198, 0.005),
                kill(3, 3.646, 0.1),
                kill(7, 5.61, 0.005),
                slow(3, 1.217, 1, 6),
            ],
            id="the model of one that died comes to its next process",
        ),
        pytest.param(
            *('{kind = "asp"}', 384, f"{AWARE}\n{AUXILIARY}"),
            [
                *(kill(6, 6.738, 0.005), kill(0, 7.549, 0.3), kill(7, 8.637, 30)),
                *(slow(5, 4.903, 1, 6), slow(2, 0.851, 4, 1.5)),
            ],
            id="a sum for one that died comes to its next process",
        ),
        pytest.param(
            *('{kind = "ssp", lead = 2}', 293, AWARE.replace("2.0", "0.5") + "\n" + AUXILIARY),
            [kill(3, 3.436, 0.02), kill(5, 4.342, 0.02), kill(0, 5.755, 0.02), kill(2, 8.17, 0.02)],
            id="the way is lost of a group that has nothing more to do",
        ),
        pytest.param(
            *('{kind = "asp"}', 451, ""),
            [
                *(kill(1, 2.253, 0.1), kill(7, 4.882, 1), kill(4, 5.865, 0.02)),
                *(kill(3, 7.594, 0.1), kill(1, 7.714, 3)),
            ],
            id="the last that has more to do is lost",
        ),
        pytest.param(
            *('{kind = "asp"}', 29, AUXILIARY),
            [kill(2, 5.878, 0.3)],
            id="all that a group has left to do is given up",
        ),
        pytest.param(
            *('{kind = "safa", fraction = 0.5}', 12, AUXILIARY),
            [
                kill(5, 2.542, 30),
                kill(7, 4.036, 0.02),
                kill(6, 1.877, 0.02),
                slow(7, 2.891, 20, 1.5),
            ],
            id="what was sent to one that died comes to its next process",
        ),
    ],
)
def test_runs_that_hung_or_ended_do_so_no_more(
    pace: str, network: int, more: str, faults: list[str], tmp_path: Path
) -> None:
    meshed(tmp_path, faults, pace, more, network)


def pause(site: int, at_s: float, for_s: float) -> str:
    return f'kind = "pause", site = "site{site}", at_s = {at_s}, for_s = {for_s}'


MESH = ((4, 0), (4, 1), (4, 3), (0, 1), (1, 2), (0, 2))
HUB = ((4, 0), (4, 1), (4, 2), (4, 3))


def small(
    folder: Path,
    edges: Sequence[tuple[int, int]],
    groups: Sequence[Sequence[int]],
    faults: Sequence[str],
    pace: str = '{kind = "asp"}',
    more: str = "",
    speeds: str = "",
) -> list[Event]:
    """Simulate given trees to the last of a few sites, of which one may fail at a chosen moment."""
    server = 1 + max(max(group) for group in groups)
    named = [(f"site{a}", f"site{b}") for a, b in edges]
    write_overlay(folder, "small", named, 1e7)
    listed = ", ".join(str([f"site{worker}" for worker in group]) for group in groups)
    path, log = folder / "run.toml", folder / "run.db"
    path.write_text(
        f'overlay = "small.toml"\nserve = {{only = ["site{server}"]}}\npace = {pace}\n'
        f'route = {{kind = "forest", server = "site{server}", '
        f'search = {{kind = "given", groups = [{listed}]}}}}\n{more}\n'
        f"fault = [{', '.join(f'{{{fault}}}' for fault in faults)}]\n"
        'task = {kind = "exchange", elements = 1000, batch_size = 32}\n'
        f"[compute]\nsamples_per_s = 100.0\n{speeds}"
    )
    simulate(*load_scenario(path), log)
    happened = [event for _, event in read_events(log)]
    assert replay(read_events(log)).decided
    assert not any(isinstance(event, MessageRefused) for event in happened)
    return happened


def latest(happened: list[Event]) -> dict[int, int]:
    """Return the latest update of each worker that became part of the model."""
    return {event.site: event.update for event in happened if isinstance(event, UpdateApplied)}


ROUNDS = f"stop = {{rounds = {UPDATES}}}"


def test_one_that_is_back_between_the_news_of_groups_and_their_beginning_takes_part(
    tmp_path: Path,
) -> None:
    faults = [pause(3, 1.95, 2), kill(0, 2.0, 30), kill(2, 2.8, 0.01)]
    happened = small(tmp_path, MESH, [(0, 1, 2), (3,)], faults, more=ROUNDS)
    done = latest(happened)
    assert (done[1], done[2], done[3]) == (UPDATES, UPDATES, UPDATES)


@pytest.mark.parametrize("away_s", [0.5, 0.55, 0.6])
def test_one_that_hears_of_groups_before_it_is_let_in_joins_them_later(
    away_s: float, tmp_path: Path
) -> None:
    faults = [pause(1, 1.95, 1), kill(0, 2.0, 30), kill(2, 2.3, away_s)]
    more = f"{ROUNDS}\nsimulation = {{control_latency_s = 0.1}}"
    done = latest(small(tmp_path, MESH, [(0, 1, 2), (3,)], faults, more=more))
    assert (done[1], done[2], done[3]) == (UPDATES, UPDATES, UPDATES)


@pytest.mark.parametrize("groups", [[(0, 1)], [(0, 1), (2,)]])
def test_a_run_is_not_over_while_one_that_is_back_waits_for_its_group(
    groups: list[tuple[int, ...]], tmp_path: Path
) -> None:
    server = 1 + max(max(group) for group in groups)
    edges = [(server, worker) for group in groups for worker in group]
    faults = [pause(1, 1.95, 2), kill(0, 2.0, 0.2), kill(1, 2.5, 1)]
    speeds = "[compute.sites.site2]\nsamples_per_s = 200.0\n" if server == 3 else ""
    happened = small(tmp_path, edges, groups, faults, more=ROUNDS, speeds=speeds)
    assert latest(happened)[0] == UPDATES


def test_a_run_that_is_stopped_forms_no_groups_of_those_that_are_back(tmp_path: Path) -> None:
    faults = [kill(2, 0.98, 0.3), kill(0, 1.0, 0.1)]
    happened = small(
        *(tmp_path, HUB, [(0, 1, 2), (3,)], faults, '{kind = "bsp"}'),
        f"stop = {{rounds = {UPDATES}, after_s = 1.4}}",
        "[compute.sites.site3]\nsamples_per_s = 20.0\n",
    )
    end = happened[-1]
    assert isinstance(end, RunEnded)
    assert end.reason == "1.4 s are over"


def test_a_log_replays_of_which_a_site_went_before_the_run_began(tmp_path: Path) -> None:
    small(tmp_path, HUB, [(0, 1), (2, 3)], [], more=ROUNDS)
    numbered = list(read_events(tmp_path / "run.db"))
    first = next(
        number for number, (_, event) in enumerate(numbered) if isinstance(event, SiteJoined)
    )
    gone = SiteLost(at_s=0.0, site=1, detail="it went before the run began", goes_on=True)
    numbered.insert(first, (0, gone))
    assert replay(numbered).decided


def test_a_worker_that_becomes_slow_no_longer_holds_up_its_tree(tmp_path: Path) -> None:
    slow = ['kind = "slow", site = "site7", at_s = 1.0, factor = 12.0']
    aware = 'awareness = {kind = "passive"}'
    happened = meshed(tmp_path, slow, more=aware)
    (before,) = (group for group in groups_of(happened) if 7 in group)
    at_s, plan = formed(happened)[0]
    assert every({*group.workers} & {*before} != {*before} for group in plan.groups)
    issued = next(event for event in happened if isinstance(event, PlanIssued))
    assert "site7 computes for" in issued.why
    assert at_s < 9.0
    table = tables.forests([Run.of(happened, tmp_path / "run.db")])
    assert "formed" in table.headings
    page = tmp_path / "report.html"
    write_report([tmp_path / "run.db"], page)
    assert "site7 computes for" in page.read_text()
    (tmp_path / "still").mkdir()
    assert not formed(meshed(tmp_path / "still", slow))  # unless asked for


def test_a_report_shows_each_tree_and_what_its_steps_weighed(tmp_path: Path) -> None:
    happened = events(tmp_path, more='merge = {kind = "staleness", a = 0.5}')
    run = Run.of(happened, tmp_path / "run.db")
    table = tables.forests([run])
    assert list(table.headings) == ["tree at", "workers", "period", "updates", "missed", "factor"]
    assert sorted(row[1] for row in table.rows) == [", ".join(LEFT), ", ".join(RIGHT)]
    assert [row[3] for row in table.rows] == [f"{UPDATES}"] * 2
    (slow,) = (row for row in table.rows if "dc8" in row[1])
    assert slow[0] == "dc8"  # as the root, the slowest worker does not hold up a child
    page = tmp_path / "report.html"
    write_report([tmp_path / "run.db"], page)
    assert "Which tree moved the model when" in page.read_text()


@pytest.mark.parametrize(
    ("serve", "named"),
    [
        ('only = ["dc9", "dc8"]', r"route: .*'dc8'\] are in trees, and .* compute"),
        ('only = ["dc9"], ahead = true', "route: a forest adds updates up on their way"),
    ],
)
def test_a_forest_from_a_file_is_held_to_the_same(serve: str, named: str, tmp_path: Path) -> None:
    happened = events(tmp_path)
    (tmp_path / "plan.json").write_text(plans.dumps(plan_of(happened)))
    text = (
        (tmp_path / "run.toml")
        .read_text()
        .replace(forest(LEFT, RIGHT), '{kind = "file", path = "plan.json"}')
    )
    path = tmp_path / "file.toml"
    path.write_text(text)
    load_scenario(path)
    path.write_text(text.replace('only = ["dc9"]', serve))
    with pytest.raises(ScenarioError, match=named):
        load_scenario(path)


def test_workers_of_two_trees_that_died_come_back_to_their_epochs(tmp_path: Path) -> None:
    groups = ("dc3", "dc6"), ("dc4", "dc7"), ("dc1", "dc2", "dc5", "dc8")
    for at_s in (1.08, 1.12, 1.16):
        faults = (
            'fault = [{kind = "kill", site = "dc7", at_s = 0.1, for_s = 0.3}, '
            f'{{kind = "kill", site = "dc6", at_s = {at_s:.2f}, for_s = 0.002}}]'
        )
        happened = events(tmp_path, route=forest(*groups), more=faults, name=f"{at_s:.2f}")
        check_that_groups_step_together(happened, 5, 6)


def test_a_server_that_computes_is_the_root_of_its_tree(tmp_path: Path) -> None:
    two_levels(tmp_path)
    path, log = tmp_path / "scenario.toml", tmp_path / "run.db"
    path.write_text(
        'overlay = "two-levels.toml"\nstop = {rounds = 3}\npace = {kind = "asp"}\n'
        f"serve = {{}}\nroute = {forest((*LEFT, 'dc9'), RIGHT)}\n"
        'task = {kind = "exchange", elements = 1000, batch_size = 10}\n'
        "compute = {samples_per_s = 100}\n"
    )
    simulate(*load_scenario(path), log)
    rows = tables.forests([Run.of((event for _, event in read_events(log)), log)]).rows
    assert {row[0]: row[1] for row in rows if "dc9" in row[1]} == {"dc9": ", ".join((*LEFT, "dc9"))}


def killed_in_reality(
    scenario: Path, overlay: Overlay, log: Path, victim: str, updates: int
) -> list[Event]:
    """Run a scenario with real processes, and kill a site once so many updates are applied."""
    pids: dict[str, int] = {}

    def kill_in_time() -> None:
        if f"site {victim}" in pids and log.exists():
            done = sum(isinstance(event, UpdateApplied) for _, event in read_events(log))
            if done >= updates:
                os.kill(pids.pop(f"site {victim}"), signal.SIGKILL)

    run_locally(scenario, 0, overlay, log, on_tick=kill_in_time, on_started=pids.update)
    return [event for _, event in read_events(log)]


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_eight_real_workers_train_in_groups_that_have_several_trees(tmp_path: Path) -> None:
    overlay = random_complete(9, 0, low_bps=50e6, high_bps=200e6, latency_s=0.001, loss=0.0)
    sites = tuple(replace(site, name=f"dc{k}") for k, site in enumerate(overlay.sites, 1))
    (tmp_path / "mesh.toml").write_text(dumps(replace(overlay, sites=sites)))
    path, log = tmp_path / "scenario.toml", tmp_path / "run.db"
    path.write_text(
        f'overlay = "mesh.toml"\nstop = {{rounds = {UPDATES}}}\npace = {{kind = "asp"}}\n'
        f'serve = {{only = ["dc9"]}}\nroute = {forest(LEFT, RIGHT, within="packed")}\n'
        'task = {kind = "train", data = "digits", model = "softmax", learning_rate = 0.5}\n'
    )
    _, network = load_scenario(path)
    run_locally(path, 0, network, log)
    happened = [event for _, event in read_events(log)]
    assert len(plan_of(happened).trees) > 3
    check_that_groups_step_together(happened)
    went = Counter(event.site for event in happened if isinstance(event, WorkerWent))
    assert went == dict.fromkeys(range(8), UPDATES)
    assert replay(read_events(log)).decided


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_eight_real_workers_form_other_trees_when_a_root_is_killed(tmp_path: Path) -> None:
    overlay = random_complete(9, 0, low_bps=50e6, high_bps=200e6, latency_s=0.001, loss=0.0)
    (tmp_path / "mesh.toml").write_text(dumps(overlay))
    path, log = tmp_path / "scenario.toml", tmp_path / "run.db"
    groups = '[["site0", "site1", "site2"], ["site3", "site4", "site5"], ["site6", "site7"]]'
    path.write_text(
        f'overlay = "mesh.toml"\nstop = {{rounds = {UPDATES}}}\npace = {{kind = "asp"}}\n'
        'serve = {only = ["site8"]}\nroute = {kind = "forest", server = "site8", '
        f'search = {{kind = "given", groups = {groups}}}}}\n'
        'task = {kind = "train", data = "digits", model = "softmax", learning_rate = 0.5}\n'
        "compute = {samples_per_s = 240}\n"
    )
    happened = killed_in_reality(path, overlay, log, "site3", updates=24)
    [(_, plan)] = formed(happened)
    assert sorted(group.workers for group in plan.groups) == [(0, 1, 2), (4, 5), (6, 7)]
    went = Counter(event.site for event in happened if isinstance(event, WorkerWent))
    assert every(went[site] == UPDATES for site in (0, 1, 2, 6, 7))
    assert min(went[4], went[5]) >= UPDATES - 1
    assert replay(read_events(log)).decided


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_nine_real_workers_train_on_when_a_leaf_is_killed(tmp_path: Path) -> None:
    below = {"a": ("a1", "a2"), "b": ("b1", "b2"), "c": ("c1", "c2")}
    edges = [("server", top) for top in below]
    edges += [(top, leaf) for top, leaves in below.items() for leaf in leaves]
    write_overlay(tmp_path, "three-trees", edges, 1e8)
    route = forest(*((top, *leaves) for top, leaves in below.items()))
    path, log = tmp_path / "scenario.toml", tmp_path / "run.db"
    path.write_text(
        f'overlay = "three-trees.toml"\nstop = {{rounds = {UPDATES}}}\npace = {{kind = "asp"}}\n'
        f'serve = {{only = ["server"]}}\nroute = {route.replace("dc9", "server")}\n'
        'merge = {kind = "staleness"}\n'
        'task = {kind = "train", data = "digits", model = "softmax", learning_rate = 0.5}\n'
        "compute = {samples_per_s = 240}\n"
    )
    overlay = load_overlay(str(tmp_path / "three-trees.toml"))
    happened = killed_in_reality(path, overlay, log, "b2", updates=30)
    victim = overlay.index("b2")
    assert [event.site for event in happened if isinstance(event, SiteLost)] == [victim]
    check_that_groups_step_together(happened, victim)
    went = Counter(event.site for event in happened if isinstance(event, WorkerWent))
    workers = [site for site in range(overlay.size) if overlay.sites[site].name != "server"]
    assert every(went[site] == UPDATES for site in workers if site != victim)
    assert len(workers) == 9
    found = [loss for _, _, loss in losses(happened) if loss is not None]
    assert np.mean(found[-8:]) < np.mean(found[:8])
    assert replay(read_events(log)).decided
