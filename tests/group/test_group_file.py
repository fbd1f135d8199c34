"""A group's file: every key reaches the service, and the examples run as their first lines say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeGuard

import msgspec
import pytest

from anabranch import plan as plans
from anabranch._typed_toml import TomlError
from anabranch.group.group_file import GroupFile, Stop, load
from anabranch.log import LogError, read_events
from anabranch.log.events import (
    Event,
    GroupsFormed,
    RoundDone,
    RunStarted,
    SiteJoined,
    SiteLost,
    UpdateApplied,
)
from anabranch.scheduler.stop_rules import StopRules

from ..every import every
from ..forked import Forked

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "groups"
OTHERS: dict[str, Any] = {
    "overlay": "internet2-9",
    "route": {"kind": "star"},
    "keep_plan": True,
    "awareness": {"kind": "passive", "update_time_s": 2.0},
    "auxiliary": {},
    "deal": {"kind": "by-share"},
    "pace": {"kind": "asp"},
    "load": {"kind": "tuned", "most": 8},
    "merge": {"kind": "staleness"},
    "gossip": {"most_ahead": 5},
    "serve": {"ahead": True},
    "stop": {"after_s": 3.0},
    "on_loss": "retry",
    "on_error": "abort",
}


def read(document: dict[str, Any]) -> Any:
    return msgspec.convert(document, GroupFile).service(Path())


@pytest.mark.parametrize("key", GroupFile.__struct_fields__)
def test_every_key_changes_what_a_group_is_served_with(key: str) -> None:
    usual: dict[str, Any] = {"overlay": "aws-8"}
    if key in ("load", "merge", "serve", "updates", "batch_size"):
        usual["pace"] = {"kind": "asp"}
    if key == "sites":
        changed: dict[str, Any] = {"sites": ["a", "b"]}
    else:
        changed = usual | {key: OTHERS.get(key, 3)}
    assert read(changed) != read(usual)


@pytest.mark.parametrize("key", Stop.__struct_fields__)
def test_every_key_of_stop_reaches_the_rules(key: str) -> None:
    values = {
        "after_s": 3.0,
        "rounds": 7,
        "accuracy": 0.5,
        "loss": 0.25,
        "reached_by": "all",
        "window_s": 9.0,
    }
    stop = {key: values[key]} | ({"loss": 0.25} if key in ("reached_by", "window_s") else {})
    assert read({"overlay": "aws-8", "stop": stop}).stop == StopRules(**stop)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "overlay: give either that or sites"),
        ('overlay = "aws-8"\nsites = ["a"]', "overlay: give either that or sites"),
        ('overlay = "aws-8"\nmarge = {}', "marge: no such key; did you mean 'merge'"),
        ('overlay = "aws-8"\nupdates = 5', "updates is of a served model; give a pace"),
        ('overlay = "aws-8"\nbatch_size = 5', "batch_size is of a served model; give a pace"),
        ('overlay = "aws-8"\nmerge = {kind = "staleness"}', "merge is of a served model, or of"),
        (
            'sites = ["a", "b"]\nkeep_plan = true',
            "keep_plan: the links between sites have no rates",
        ),
        ('overlay = "aws-8"\nstop = {}', "stop: it says nothing; give after_s, rounds, accuracy"),
        ('overlay = "aws-8"\nstop = {rounds = 0}', "stop.rounds"),
        ('overlay = "aws-8"\nstop = {accuracy = 90}', "stop.accuracy"),
        ('overlay = "aws-8"\nstop = {loss = nan}', "loss is nan, must be a finite number"),
        ('overlay = "aws-8"\nstop = {rounds = 1, reached_by = "all"}', "there is no target"),
        ('overlay = "aws-8"\nstop = {loss = 1, reached_by = "most"}', "stop.reached_by"),
        (
            'overlay = "aws-8"\nkeep_plan = true\nawareness = {kind = "passive"}',
            r"keep_plan: \[awareness\] measures links",
        ),
    ],
)
def test_a_file_that_cannot_be_is_refused_by_name(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "group.toml"
    path.write_text(text)
    with pytest.raises(TomlError, match=said) as refused:
        load(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_an_example_is_read(path: Path) -> None:
    assert load(path).overlay.size >= 3


class Running:
    """A scheduler of an example's group, and its sites; all end with the test."""

    def __init__(self, file: Path, log: Path) -> None:
        self.started: list[Forked] = []
        self._log = log
        self._environment = {**os.environ, "ANABRANCH_TOKEN": "of an example"}
        options = ["--group", str(file), "--log", str(log), "--listen", "127.0.0.1:0"]
        self.scheduler = self._start("-m", "anabranch", "scheduler", *options)
        assert self.scheduler.stdout is not None
        self._environment["ANABRANCH_SCHEDULER"] = self.scheduler.stdout.readline().strip()

    def _start(self, *arguments: str, **more: str) -> Forked:
        process = Forked(
            [sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment | more,
        )
        self.started.append(process)
        return process

    def await_events(self, *kinds: type[Event], site: int | None = None) -> None:
        """Wait until the log has an event of each kind, in this order, of a site if given."""
        waited_for, seen = [*kinds], 0
        while waited_for:
            assert self.scheduler.poll() is None, "the scheduler has ended"
            time.sleep(0.05)
            with suppress(LogError):  # the scheduler is just creating it
                for number, event in [*read_events(self._log, seen)]:
                    seen, of = number, getattr(event, "site", None)
                    if waited_for and isinstance(event, waited_for[0]) and site in (None, of):
                        waited_for.pop(0)

    def site(self, script: Path, name: str, **more: str) -> Forked:
        return self._start(str(script), name, ANABRANCH_SITE=name, **more)


@contextmanager
def running(file: Path, log: Path) -> Iterator[Running]:
    group = Running(file, log)
    try:
        yield group
    finally:
        for process in group.started:
            process.kill()
            process.communicate()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_workers_of_a_served_model_are_killed_and_started_again(tmp_path: Path) -> None:
    script, names = EXAMPLES / "served.py", ("paris", "austin", "tokyo")
    text = (EXAMPLES / "tuned.toml").read_text()
    assert text.count("updates = 200 ") == 1
    file = tmp_path / "tuned.toml"
    file.write_text(text.replace("updates = 200 ", "updates = 800 "))
    with running(file, tmp_path / "run.db") as group:
        *others, killed = (group.site(script, name) for name in names)
        group.await_events(UpdateApplied, site=len(names) - 1)
        assert killed.poll() is None
        killed.kill()
        group.await_events(SiteLost)  # its name is free from then on
        sites = [*others, group.site(script, names[-1])]
        said = [each.communicate(timeout=90) for each in sites]
        assert every(re.search(r"\d+ updates, largest batch \d+, loss", out) for out, _ in said)
        assert [each.wait(30) for each in (*sites, group.scheduler)] == [0] * 4


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_forest_outlives_the_root_of_a_tree_which_is_killed_and_comes_back(
    tmp_path: Path,
) -> None:
    script, log, enough = tmp_path / "served.py", tmp_path / "run.db", tmp_path / "enough"
    # However long a start takes: the run ends once the returned site's update is in the log.
    text, said_loss = (EXAMPLES / "served.py").read_text(), "loss=loss.item()"
    assert text.count(said_loss) == 1
    known = f"loss=float(not pathlib.Path({str(enough)!r}).exists())"
    script.write_text("import pathlib\n" + text.replace(said_loss, known))
    text = (EXAMPLES / "forest.toml").read_text()
    assert text.count("updates = 200 ") == 1
    file = tmp_path / "forest.toml"
    file.write_text(text.replace("updates = 200 ", "updates = 1_000_000 ") + "[stop]\nloss = 0.5\n")
    service = load(file)
    names = [site.name for site in service.overlay.sites]
    [group_of_all] = service.first_plan().groups
    (server,) = (tree.root for tree in group_of_all.plan.trees)
    root = group_of_all.plan.trees[0].up.index(server)  # the one that sends to the server
    with running(file, log) as group:
        sites = [group.site(script, name) for name in names]
        group.await_events(UpdateApplied, site=root)
        assert sites[root].poll() is None
        sites[root].kill()
        group.await_events(SiteLost, site=root)  # its name is free from then on
        sites[root] = group.site(script, names[root])
        group.await_events(SiteLost, SiteJoined, UpdateApplied, site=root)
        enough.touch()
        said = [each.communicate(timeout=90) for each in sites]
        assert every(re.search(r"\d+ updates, largest batch \d+, loss", out) for out, _ in said), (
            said
        )
        assert [each.wait(30) for each in (*sites, group.scheduler)] == [0] * 6
    happened = [event for _, event in read_events(log)]
    (lost,) = (event for event in happened if isinstance(event, SiteLost))
    assert lost.site == root
    assert any(isinstance(event, GroupsFormed) for event in happened)
    applied = [e for e in happened if isinstance(e, UpdateApplied)]
    assert {event.site for event in applied} == {*range(len(names))} - {server}


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_sites_gossip_on_without_a_killed_one_and_end_with_one_model(tmp_path: Path) -> None:
    script, names = EXAMPLES / "gossiping.py", ("paris", "austin", "tokyo", "lagos")
    with running(EXAMPLES / "gossip.toml", tmp_path / "run.db") as group:
        others = [group.site(script, name, STEPS="2000") for name in names[:-1]]
        killed = group.site(script, names[-1], STEPS="1000000000")
        group.await_events(RunStarted)
        assert killed.poll() is None
        killed.kill()
        killed.wait()
        returned = group.site(script, names[-1])
        assert "the group goes on without lagos: its sites gossip" in returned.communicate()[1]
        assert returned.returncode
        said = [each.communicate(timeout=90)[0] for each in others]
        wanted = (rf"{name}: 2000 steps, one of 3 sites, loss" for name in names)
        assert every(re.search(one, out) for one, out in zip(wanted, said, strict=False))
        assert [each.wait(30) for each in (*others, group.scheduler)] == [0] * 4
    (started,) = [event for _, event in read_events(tmp_path / "run.db") if is_start(event)]
    assert started.gossips


def is_start(event: object) -> TypeGuard[RunStarted]:
    return isinstance(event, RunStarted)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_loop_trains_as_netstorm_pro_and_outlives_a_killed_site(tmp_path: Path) -> None:
    log, script = tmp_path / "run.db", ROOT / "examples" / "deploy" / "train.py"
    file = EXAMPLES / "netstorm-pro.toml"
    names = [site.name for site in load(file).overlay.sites]
    with running(file, log) as group:
        *others, killed = (group.site(script, name, STEPS="1000") for name in names)
        group.await_events(RoundDone, site=len(names) - 1)
        assert killed.poll() is None
        killed.kill()
        group.await_events(SiteLost)  # its name is free from then on
        sites = [*others, group.site(script, names[-1], STEPS="1000")]
        said = [each.communicate(timeout=120)[0] for each in sites]
        assert every(f"{name}: 1000 steps" in out for name, out in zip(names, said, strict=True))
        assert group.scheduler.wait(30) == 0
    (started,) = [event for _, event in read_events(log) if is_start(event)]
    roots = {tree.root for tree in plans.loads(started.plan_json).trees}
    assert roots == {*range(len(names))}
