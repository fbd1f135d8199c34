"""Processes that join a group that goes on: those that come late, and those that come back."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

import anabranch
from anabranch import Group
from anabranch.group import _local, hand_over
from anabranch.group._local import local
from anabranch.net.tcp import Networks
from anabranch.pace import Asp
from anabranch.plan import Star
from anabranch.scheduler.deal import ByShare
from anabranch.train.handed_state import Packed

from ..forked import Forked
from ..threads import Threads, at_each

PROGRAM = """
import sys
import numpy as np
import torch
import anabranch

torch.manual_seed(sum(map(ord, sys.argv[1])))
model = torch.nn.Linear(40, 30)
optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
step = 0
with anabranch.join() as group:
    while step < int(sys.argv[2]):
        state = group.admit(
            lambda: {"model": model.state_dict(), "optimiser": optimiser.state_dict(), "step": step}
        )
        if state is not None:
            model.load_state_dict(state["model"])
            optimiser.load_state_dict(state["optimiser"])
            step = state["step"]
            print("from", step, flush=True)
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(8, 40, generator=generator)
        optimiser.zero_grad()
        model(inputs).square().mean().backward()
        group.all_reduce(p.grad for p in model.parameters())
        optimiser.step()
        step += 1
        if step == 5:
            print("begun", flush=True)
        if len(group.sites) < 3 and step > int(sys.argv[2]) - 10:
            step -= 1  # wait for the third
print(step, *group.sites, sum(p.double().sum().item() for p in model.parameters()))
"""


class Processes:
    """A group's scheduler and sites; :meth:`site` starts one."""

    def __init__(self, *options: str) -> None:
        self.started: list[Forked] = []
        self._environment = {**os.environ, "ANABRANCH_TOKEN": "told"}
        self.scheduler = self._start(["-m", "anabranch", "scheduler", *options])
        assert self.scheduler.stdout is not None
        self._environment["ANABRANCH_SCHEDULER"] = self.scheduler.stdout.readline().strip()

    def _start(self, arguments: list[str]) -> Forked:
        process = Forked(
            [sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment,
        )
        self.started.append(process)
        return process

    def site(self, name: str, steps: int) -> Forked:
        self._environment["ANABRANCH_SITE"] = name
        return self._start(["-c", PROGRAM, name, str(steps)])


@pytest.fixture
def processes() -> Iterator[Callable[..., Processes]]:
    """Return what starts a group's scheduler; all processes end with the test."""
    all_of: list[Processes] = []

    def start(*options: str) -> Processes:
        all_of.append(Processes(*options))
        return all_of[-1]

    yield start
    for each in all_of:
        for process in each.started:
            process.kill()
            process.communicate()


def line(process: Forked) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_process_comes_back_and_all_end_with_the_same_model(
    processes: Callable[..., Processes],
) -> None:
    group = processes("--sites", "a,b,c", "--begin-with", "2")
    first, lost = group.site("a", 150), group.site("b", 150)
    assert line(lost) == "from 0"
    assert line(first) == line(lost) == "begun"
    late = group.site("c", 150)
    assert line(late).startswith("from ")
    lost.kill()
    again = group.site("b", 150)
    came = line(again)
    assert came.startswith("from ")
    assert int(came.removeprefix("from ")) > 5
    ends = [process.communicate() for process in (first, late, again)]
    assert [process.returncode for process in (first, late, again)] == [0, 0, 0], ends
    last = {out.splitlines()[-1] for out, _ in ends}
    assert len(last) == 1, ends
    assert last.pop().startswith("150 a b c ")
    _, told = group.scheduler.communicate()
    assert group.scheduler.returncode == 0, told
    assert "b is lost" in told


def test_all_begin_with_the_state_of_the_first_and_may_hand_on_anything() -> None:
    with local(3) as groups:
        states = [{"w": np.full(5, index, np.int64), "at": index} for index in range(3)]
        found = at_each(groups, lambda group: group.admit(states[group.rank]))
        assert found[0] is None
        for each in found[1:]:
            assert each is not None
            assert each["at"] == 0
            assert each["w"].tolist() == [0] * 5
            assert each["w"].dtype == np.int64
        assert at_each(groups, lambda group: group.admit(fail)) == [None, None, None]


def fail() -> None:
    raise AssertionError("no site needs the state")


@pytest.mark.parametrize("holds", [np.ones(3, np.float32), torch.ones(3)], ids=["NumPy", "torch"])
def test_a_newcomer_imports_pytorch_beside_the_loop_and_only_for_its_tensors(
    holds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def note(name: str) -> None:
        threads.append(threading.current_thread().name)

    monkeypatch.setattr(hand_over, "loaded", lambda name: None)
    monkeypatch.setattr(hand_over, "import_module", note)
    with local(2) as groups:
        at_each(groups, lambda group: group.admit({"held": holds}))
    assert len(threads) == isinstance(holds, torch.Tensor)
    assert not [each for each in threads if each.startswith("anabranch")]


def test_a_site_that_joins_later_calls_nothing_before_it_is_let_in() -> None:
    service = anabranch.Service(_local._complete(3), awareness=None, deal=ByShare(), begin_with=2)
    with Threads(3) as pool, _local._serving(service) as (address, token):
        names = ["site0", "site1"]
        founders = pool.each(lambda name: anabranch.join(address, name, token=token), names)
        new = anabranch.join(address, "site2", token=token)
        with pytest.raises(ValueError, match=r"joins a running group; call group.admit"):
            new.all_reduce(np.zeros(3, np.float32))
        with pytest.raises(
            ValueError, match=r"group.index is known before that, group.rank is not"
        ):
            new.rank  # noqa: B018
        assert [group.index for group in (*founders, new)] == [0, 1, 2]
        assert [group.sites for group in founders] == [("site0", "site1")] * 2
        waiting = pool.submit(new.admit, None)
        for _ in range(200):
            pool.each(lambda group: group.admit(b"state"), founders)
            if founders[0].size == 3:
                break
        assert waiting.result() == b"state"
        everyone = [*founders, new]
        assert {group.sites for group in everyone} == {("site0", "site1", "site2")}
        assert [group.rank for group in everyone] == [0, 1, 2]
        pool.each(lambda group: group.close(), everyone)


def test_a_site_to_which_a_served_model_comes_later_is_one_of_its_sites() -> None:
    """As one that is back: programs ask for their rank, and are started again as they are."""
    service = anabranch.Service(
        _local._complete(3),
        awareness=None,
        planner=Star(hub="site0"),
        pace=Asp(),
        updates=20,
        begin_with=2,
    )
    names, is_there = ("site0", "site1", "site2"), Event()

    def work(group: Group) -> tuple[float, ...]:
        parameter = np.zeros(3, np.float32)
        group.serve([parameter], learning_rate=1.0)
        assert (group.sites, group.rank, group.size) == (names, group.index, 3)
        if group.index == 2:
            is_there.set()
        while group.pull():
            assert is_there.wait(60.0)
            group.push([np.ones(3, np.float32)], samples=1)
        assert (group.sites, group.rank, group.size) == (names, group.index, 3)
        group.close()
        return tuple(parameter.tolist())

    with Threads(3) as pool, _local._serving(service) as (address, token):
        founders = pool.each(lambda name: anabranch.join(address, name, token=token), names[:2])
        assert {group.sites for group in founders} == {names}
        first = [pool.submit(work, group) for group in founders]
        late = anabranch.join(address, "site2", token=token)
        assert (late.sites, late.rank) == (names, 2)
        last = pool.submit(work, late)
        assert len({part.result() for part in (*first, last)}) == 1


def test_a_newcomer_that_fails_is_named_to_the_others_and_may_come_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = anabranch.Service(_local._complete(3), awareness=None, deal=ByShare(), begin_with=2)
    with Threads(3) as pool, _local._serving(service) as (address, token):
        names = ["site0", "site1"]
        founders = pool.each(lambda name: anabranch.join(address, name, token=token), names)
        for _ in range(2):  # as it does each time that it is started again
            new = anabranch.join(address, "site2", token=token)
            with pytest.raises(KeyError), new:
                raise KeyError("no such file")
        new = anabranch.join(address, "site2", token=token)
        waiting = pool.submit(new.admit, None)
        while founders[0].size < 3:
            pool.each(lambda group: group.admit(b"state"), founders)
        assert waiting.result() == b"state"
        # Earlier losses of the site do not count: it was let in since.
        assert not any(group.watch_whole().done() for group in (*founders, new))
        pool.each(lambda group: group.close(), [*founders, new])
    why = "site 2 (site2) failed before it was let in: KeyError: 'no such file'"
    told = [each.getMessage() for each in caplog.records if why in each.getMessage()]
    assert sorted(told) == [f"{name}: {why}; the others go on" for name in names for _ in range(2)]


def test_members_take_note_of_where_a_newcomer_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what suits the links, as the congestion control, is not used on the lanes to it."""
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(Networks, "moved", lambda _, site, at: told.append((site, at[1])))
    service = anabranch.Service(_local._complete(3), awareness=None, deal=ByShare(), begin_with=2)
    with Threads(3) as pool, _local._serving(service) as (address, token):
        names = ["site0", "site1"]
        founders = pool.each(lambda name: anabranch.join(address, name, token=token), names)
        told.clear()
        new = anabranch.join(address, "site2", token=token)
        waiting = pool.submit(new.admit, None)
        while founders[0].size < 3:
            pool.each(lambda group: group.admit(b"state"), founders)
        waiting.result()
        pool.each(lambda group: group.close(), [*founders, new])
    ports = [port for site, port in told if site == 2 and port]
    assert len(ports) >= 2
    assert len({*ports}) == 1


def test_a_sites_index_is_its_place_in_the_overlay_whoever_is_there() -> None:
    service = anabranch.Service(_local._complete(3), awareness=None, deal=ByShare())
    with local(service) as groups:
        pair = at_each(groups[::2], lambda group: group.subgroup(["site0", "site2"]))
        assert [(group.index, group.rank) for group in pair] == [(0, 0), (2, 1)]


def test_a_hostile_members_state_ends_no_newcomer_but_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = anabranch.Service(_local._complete(3), awareness=None, deal=ByShare(), begin_with=2)
    with Threads(3) as pool, _local._serving(service) as (address, token):
        names = ["site0", "site1"]
        founders = pool.each(lambda name: anabranch.join(address, name, token=token), names)
        pool.each(lambda group: group.admit({"w": np.zeros(2)}), founders)
        huge = msgspec.msgpack.encode(["#", ["torch", "float32", [1 << 60]]])
        says = property(lambda self: huge, lambda self, _: None)
        monkeypatch.setattr(Packed, "skeleton", says, raising=False)
        new = anabranch.join(address, "site2", token=token)
        waiting = pool.submit(new.admit, None)

        def admit(group: anabranch.Group) -> None:
            while len(group.sites) < 3:
                group.admit({"w": np.zeros(2)})

        going_on = [pool.submit(admit, group) for group in founders]
        with pytest.raises(anabranch.ExchangeError, match="another site's state cannot be read"):
            waiting.result()
        new.close()
        for each in going_on:
            each.result()
        pool.each(lambda group: group.close(), founders)


@pytest.fixture
def pair_and_newcomer() -> Iterator[tuple[Threads, list[anabranch.Group], anabranch.Group]]:
    """Return threads, two founders that hold a state, and a site that has joined meanwhile."""
    service = anabranch.Service(_local._complete(3), awareness=None, deal=ByShare(), begin_with=2)
    with Threads(3) as pool, _local._serving(service) as (address, token):
        names = ["site0", "site1"]
        founders = pool.each(lambda name: anabranch.join(address, name, token=token), names)
        pool.each(lambda group: group.admit({"w": np.zeros(2)}), founders)
        new = anabranch.join(address, "site2", token=token)
        yield pool, founders, new
        pool.each(lambda group: group.close(), [*founders, new])


def _state_of(group: anabranch.Group, problem: str) -> dict[str, object]:
    if problem == "no state can hold it" and group.rank:
        return {"w": np.zeros(2), "odd": object()}
    if problem == "it raises" and group.rank:
        raise KeyError("odd")
    return {"w": np.zeros(2 + (problem == "they differ") * group.rank), "odd": 3}


@pytest.mark.parametrize(
    ("problem", "named"),
    [
        ("they differ", "the states of site0 and site1 differ in their tensors"),
        (
            "no state can hold it",
            "site1 cannot hand its state on: ValueError: state['odd'] is a object",
        ),
        ("it raises", "site1 cannot hand its state on: KeyError: 'odd'"),
    ],
)
def test_a_holder_whose_state_cannot_be_handed_on_fails_no_other_holder(
    pair_and_newcomer: tuple[Threads, list[anabranch.Group], anabranch.Group],
    problem: str,
    named: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool, founders, new = pair_and_newcomer
    waiting = pool.submit(new.admit, None)

    def admit(group: anabranch.Group) -> object:
        while group.size < 3:
            found = group.admit(lambda: _state_of(group, problem))
        return found

    assert pool.each(admit, founders) == [None, None]
    assert isinstance(waiting.exception(), anabranch.ExchangeError)
    assert named in str(waiting.exception())
    for site in "site0", "site1":
        said = f"{site}: site2 did not get the state of training, and this site continues: {named}"
        assert [each for each in caplog.messages if each.startswith(said)]
    # It may ask again, and gets the state where the members have mended theirs.
    found = pool.each(lambda group: group.admit({"odd": 3}), [*founders, new])
    assert found == [None, None, {"odd": 3}]


def test_a_group_does_not_begin_with_a_state_that_cannot_be_handed_on() -> None:
    with local(2) as groups:
        said = at_each(groups, _error_of_admit)
        assert said[0].startswith("ValueError: state is a object")
        assert said[1].startswith("ExchangeError: site0 cannot hand its state on: ValueError")


def _error_of_admit(group: anabranch.Group) -> str:
    with pytest.raises((ValueError, anabranch.ExchangeError)) as caught:
        group.admit(object())
    return f"{caught.type.__name__}: {caught.value}"


def test_a_subgroup_lets_no_site_in() -> None:
    with Threads(2) as pool, local(2) as groups:
        pair = pool.each(lambda group: group.subgroup(["site0", "site1"]), groups)
        with pytest.raises(ValueError, match="a subgroup lets no site in"):
            pair[0].admit(None)


def test_a_group_that_ends_with_a_loss_lets_no_site_in() -> None:
    service = anabranch.Service(_local._complete(2), awareness=None, on_loss="abort")
    with local(service) as groups, pytest.raises(ValueError, match="admits no site here"):
        groups[0].admit(None)
