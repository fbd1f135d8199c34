"""Groups that gossip: in a user's own loop, over real connections, and in virtual time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import anabranch
from anabranch import Group, ModelGossip, RunAborted, Service
from anabranch.exchange.arithmetic import Flat
from anabranch.exchange.letters import Letters
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.group import group_file
from anabranch.group._local import _complete, _serving
from anabranch.group._member import Member
from anabranch.group._settings import dumps, loads
from anabranch.group.async_group import AsyncGroup
from anabranch.group.blocking_group import join_at
from anabranch.group.checks import check
from anabranch.group.gossip import GossipRun, gossips_of
from anabranch.group.place import Place
from anabranch.merge import Fairness, Mean, Median, Staleness
from anabranch.net.network import Network
from anabranch.overlay import Overlay
from anabranch.pace import Asp
from anabranch.period import Adaptive, Every, Gossip, RandomPeers
from anabranch.period.peers import GossipRule
from anabranch.scheduler.stop_rules import StopRules
from anabranch.site.agent import Transport
from anabranch.train.averaging import Average
from anabranch.train.local_steps import LocalSteps

from ..every import every
from . import virtual

RULES: list[GossipRule] = ["pairs", "push-sum", "plain"]
SERVICE = Service(_complete(3), awareness=None, gossip=Gossip())


def run(live: Callable[[Group], Any], service: Service = SERVICE) -> list[Any]:
    """Let every site of a group live; return what each comes to."""
    with anabranch.local(service) as groups, ThreadPoolExecutor(len(groups)) as pool:
        return list(pool.map(live, groups))


def apart(group: Group, steps: int, weight: float = 1.0) -> list[float]:
    """Begin with a model of one's own, learn nothing, and return what the gossip comes to."""
    model = torch.zeros(5)
    gossip = group.gossip([model], every=2, weight=weight)
    model += group.index
    for _ in range(steps):
        assert gossip.step()
    gossip.finish()
    return model.tolist()


@pytest.mark.parametrize("rule", RULES)
def test_all_end_with_one_model_bit_for_bit(rule: GossipRule) -> None:
    service = replace(SERVICE, gossip=Gossip(rule=rule, most_ahead=3))
    found = run(lambda group: apart(group, 20 + 5 * group.index), service)
    assert found[0] == found[1] == found[2]
    if rule != "plain":  # which does not keep the mean
        assert found[0] == pytest.approx([1.0] * 5, abs=1e-5)


@pytest.mark.parametrize("rule", ["pairs", "push-sum"])
def test_without_a_step_the_mean_counts_by_weight(rule: GossipRule) -> None:
    service = replace(SERVICE, gossip=Gossip(rule=rule))
    found = run(lambda group: apart(group, 0, weight=1.0 + group.index), service)
    assert found[0] == found[1] == found[2]
    assert found[0] == pytest.approx([(0 * 1 + 1 * 2 + 2 * 3) / 6] * 5)


@pytest.mark.parametrize("overtakes", [False, True])
def test_after_its_end_a_group_that_gossips_says_so(
    overtakes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def live(group: Group) -> None:
        made.append(group.gossip([torch.zeros(5)], every=1))
        if group.index == 1:
            with pytest.raises(KeyError), group:
                raise KeyError("no such file")

    run(live)
    if overtakes:  # the thread has found the group open, and another one closes it then
        monkeypatch.setattr(Member, "check_open", lambda self: None)
    for gossip in made:
        for call in (gossip.step, gossip.finish):
            with pytest.raises(RunAborted, match="has left the group"):
                call()


def test_a_step_that_waits_as_its_group_ends_says_so() -> None:
    """Another thread leaves the block by an error, and the step's site is ahead of the others."""

    def live(group: Group) -> ModelGossip:
        return group.gossip([torch.zeros(5)], every=1)

    def steps() -> None:
        while gossip.step():
            pass

    service = replace(SERVICE, gossip=Gossip(most_ahead=1))
    with ThreadPoolExecutor(3) as pool:
        with suppress(KeyError), anabranch.local(service) as groups:
            gossip, *_ = pool.map(live, groups)
            waiting = pool.submit(steps)
            while not gossip.steps and not waiting.done():
                time.sleep(0.01)
            raise KeyError("no such file")
        with pytest.raises(RunAborted):
            waiting.result(timeout=20)


def test_sites_that_pull_apart_come_to_the_mean_of_where_they_pull() -> None:
    def live(group: Group) -> float:
        model = torch.nn.Parameter(torch.zeros(4))
        optimizer = torch.optim.SGD([model], lr=0.05)
        gossip = group.gossip([model], every=1)
        for _ in range(100):
            optimizer.zero_grad()
            (model - group.index).square().sum().backward()
            optimizer.step()
            gossip.step()
        assert (gossip.steps, gossip.sent) == (100, 100)
        gossip.finish()
        return float(model.detach()[0])

    peers = RandomPeers(share=1.0)
    found = run(live, replace(SERVICE, gossip=Gossip(peers=peers, most_ahead=1)))
    assert found == pytest.approx([1.0] * 3, abs=0.15)


def test_a_model_begins_as_the_first_member_has_it_and_its_buffers_end_alike() -> None:
    def live(group: Group) -> tuple[float, dict[str, Any]]:
        torch.manual_seed(group.index)
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
        model.register_buffer("mask", torch.tensor([group.index > 0, True]))
        model[0].bias.requires_grad_(False)
        gossip = group.gossip(model, every=1)
        begun = sum(float(each.sum()) for each in model.state_dict().values())
        for _ in range(3 + group.index):
            model(torch.randn(8, 3) + group.index)
            gossip.step()
        assert model[1].num_batches_tracked == 3 + group.index
        gossip.finish()
        group.verify(model)
        return begun, {name: each.tolist() for name, each in model.state_dict().items()}

    found = run(live)
    assert len({begun for begun, _ in found}) == 1
    assert found[0][1] == found[1][1] == found[2][1]
    assert found[0][1]["1.num_batches_tracked"] == 3
    assert found[0][1]["mask"] == [False, True]
    assert found[0][1]["1.running_var"] != [1.0, 1.0]


def test_no_site_is_further_ahead_than_the_bound() -> None:
    made, furthest, lock = [0, 0, 0], 0, threading.Lock()

    def live(group: Group) -> None:
        nonlocal furthest
        gossip = group.gossip([torch.zeros(3)], every=1)
        for _ in range(20):
            time.sleep(0.005 * group.index)
            with lock:
                made[group.index] += 1
                furthest = max(furthest, made[group.index] - min(made))
            gossip.step()
        gossip.finish()

    run(live, replace(SERVICE, gossip=Gossip(most_ahead=2)))
    assert made == [20] * 3
    assert 1 <= furthest <= 2


def test_a_rule_ends_the_steps_of_all_and_models_still_become_one() -> None:
    def live(group: Group) -> tuple[int, bool, list[float]]:
        model = torch.full((5,), float(group.index))
        gossip = group.gossip([model], every=2)
        assert not group.is_over
        while gossip.step():
            model += 0.001 * group.index
            time.sleep(0.001)
        gossip.finish()
        return gossip.steps, group.is_over, model.tolist()

    found = run(live, replace(SERVICE, stop=StopRules(after_s=0.3)))
    assert every(steps > 1 and is_over for steps, is_over, _ in found)
    assert found[0][2] == found[1][2] == found[2][2]


def test_other_calls_wait_for_the_end_of_the_gossip() -> None:
    def live(group: Group) -> float:
        value, model = torch.full((2,), float(group.index)), torch.zeros(3)
        with pytest.raises(ValueError, match=r"this group gossips; call group.gossip\(model"):
            group.all_reduce(value)
        with pytest.raises(ValueError, match="scheduler has no pace"):
            group.serve([model], learning_rate=0.1)
        gossip = group.gossip([model], every=1)
        calls: list[Callable[[], Any]] = [
            partial(group.all_reduce, value),
            partial(group.broadcast, value),
            group.barrier,
            partial(group.verify, model),
            partial(group.subgroup, group.sites),
        ]
        for call in calls:
            with pytest.raises(ValueError, match=r"after each member has called finish\(\)"):
                call()
        with pytest.raises(ValueError, match=r"gossip\(\) is called once"):
            group.gossip([model], every=1)
        with pytest.raises(ValueError, match=r"admit\(\) admits no site here: sites that gossip"):
            group.admit({})
        gossip.step()
        gossip.finish()
        for again in (gossip.step, gossip.finish):
            with pytest.raises(ValueError, match="this gossip is finished"):
                again()
        with pytest.raises(ValueError, match="a subgroup does not gossip"):
            group.subgroup(group.sites).gossip([model], every=1)
        group.all_reduce(value)
        return float(value[0])

    assert run(live) == [1.0] * 3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"gossip": Gossip()},
            r"this group gossips; call group\.gossip\(model, every=\.\.\.\) first",
        ),
        (
            {"pace": Asp()},
            r"this group serves a model; call group\.serve\(parameters, \.\.\.\) first",
        ),
    ],
)
def test_a_site_that_takes_no_part_yet_has_nothing_to_report(
    given: dict[str, Any], said: str
) -> None:
    service = Service(OVERLAY, awareness=None, **given)
    with anabranch.local(service) as groups:
        for report in (groups[0].report_loss, groups[0].report_accuracy):
            with pytest.raises(ValueError, match=said):
                report(0.5)


def test_a_group_that_does_not_gossip_says_so() -> None:
    def live(group: Group) -> None:
        with pytest.raises(ValueError, match="scheduler does not gossip"):
            group.gossip([torch.zeros(3)], every=1)

    with anabranch.local(2) as groups:
        for group in groups:
            live(group)


def test_models_that_cannot_gossip_are_named() -> None:
    def live(group: Group) -> None:
        given: list[tuple[Any, dict[str, Any], str]] = [
            ([torch.zeros(3, dtype=torch.bfloat16)], {}, "parameters are bfloat16"),
            ([torch.zeros(3, dtype=torch.int64)], {}, "tensor 0 is int64"),
            ([torch.zeros(3)], {"every": Adaptive()}, "every: .* the measurements of all sites"),
            ([torch.zeros(3)], {"every": 0}, "every is 0"),
            ([torch.zeros(3)], {"wire": "int8"}, "wire is 'int8'"),
            ([torch.zeros(3)], {"weight": 0.0}, "weight"),
        ]
        for model, how, said in given:
            with pytest.raises(ValueError, match=said):
                group.gossip(model, **{"every": 1, **how})
        group.gossip([torch.zeros(3)], every=1).finish()

    run(live)


def test_a_site_that_gossips_otherwise_is_named() -> None:
    def live(group: Group) -> None:
        with pytest.raises(ValueError, match=r"site[012] gossips \(how often, wire.*give the same"):
            group.gossip([torch.zeros(3)], every=1 + group.index)

    run(live)


def test_a_model_with_nan_is_not_sent_and_the_others_go_on() -> None:
    def live(group: Group) -> list[float]:
        model = torch.zeros(3)
        gossip = group.gossip([model], every=1)
        if group.index == 1:
            model[1] = float("nan")
            with pytest.raises(ValueError, match="parameter 0 has 1 NaN"):
                gossip.step()
            model[1] = 0.0
        for _ in range(5):
            gossip.step()
        gossip.finish()
        return model.tolist()

    assert run(live) == [[0.0] * 3] * 3


@pytest.mark.parametrize("how", ["leaves", "fails"])
def test_the_others_go_on_without_a_site_that_ends_early(how: str) -> None:
    service = replace(SERVICE, gossip=Gossip(most_ahead=2))
    left: list[list[float]] = []

    def live(place: Place) -> None:
        with join_at(place) as group:
            model = torch.full((3,), float(group.index))
            gossip = group.gossip([model], every=1)
            for _ in range(20):
                gossip.step()
                if group.index == 2 and gossip.steps == 5:
                    if how == "fails":
                        raise KeyError("no more data")
                    return
            gossip.finish()
            left.append(model.tolist())

    with _serving(service) as (address, token):
        places = [Place(scheduler=address, site=f"site{i}", token=token) for i in range(3)]
        with ThreadPoolExecutor(3) as pool:
            for place, ended in [(each, pool.submit(live, each)) for each in places]:
                error = ended.exception()
                assert (place.site, type(error)) == (
                    place.site,
                    KeyError if how == "fails" and place.site == "site2" else type(None),
                )
    assert len(left) == 2
    assert left[0] == left[1]


def test_a_site_that_comes_back_is_told_that_none_joins_later() -> None:
    joined = threading.Barrier(3)

    def live(place: Place) -> None:
        with join_at(place) as group:
            gossip = group.gossip([torch.zeros(3)], every=1)
            if group.index == 2:
                raise KeyError("no more data")
            joined.wait(60)
            gossip.step()
            gossip.finish()

    with _serving(SERVICE) as (address, token):
        places = [Place(scheduler=address, site=f"site{i}", token=token) for i in range(3)]
        with ThreadPoolExecutor(3) as pool:
            *others, failed = [pool.submit(live, each) for each in places]
            assert isinstance(failed.exception(), KeyError)
            with pytest.raises(anabranch.RunAborted, match="goes on without site2: its sites goss"):
                join_at(places[2])
            joined.wait(60)
            for each in others:
                each.result()


def test_a_site_that_never_waits_hears_that_the_group_has_ended() -> None:
    service = replace(SERVICE, on_loss="abort", on_error="abort")

    def live(place: Place) -> None:
        with join_at(place) as group:
            gossip = group.gossip([torch.zeros(3)], every=1)
            if group.index == 2:
                raise KeyError("no more data")
            while gossip.step():
                time.sleep(0.001)

    with _serving(service) as (address, token):
        places = [Place(scheduler=address, site=f"site{i}", token=token) for i in range(3)]
        with ThreadPoolExecutor(3) as pool:
            ended = [pool.submit(live, each) for each in places]
            for each in ended[:2]:
                with pytest.raises(anabranch.RunAborted, match="no more data"):
                    each.result()


@pytest.mark.parametrize("makes_s", [(5.0, 5.0), (0.0, 5.0), (0.0, 0.0)])
def test_a_site_that_is_lost_before_the_start_is_not_waited_for(
    makes_s: tuple[float, float],
) -> None:
    """Of the others one has made its part by then, or both, or none."""

    def start_with(model: Any) -> virtual.Start:
        async def start(group: AsyncGroup, lanes: Network) -> bool:
            if group.index == 2:
                await asyncio.sleep(1.0)
                await group.fail(RuntimeError("no data here"))
                return False
            await asyncio.sleep(makes_s[group.index])
            gossips = gossips_of(group.settings, group.index, model, Wire.FLOAT32, 1.0)
            await group.start(Transport(1024, 1024, 1 << 20), lanes, gossips=gossips)
            return True

        return start

    async def program(group: AsyncGroup) -> int:
        model = np.zeros(3, np.float32)
        local = LocalSteps([model], Every(steps=1), Average())
        gossip = GossipRun(group.agent, local)
        gossip.begin()
        while local.steps < 10 and await gossip.may_step():
            local.stepped(0.0)
            if gossip.stepped():
                gossip.send()

        async def mean(elements: Any) -> Any:
            return await group.exchange(Flat(elements), Terms(Op.MEAN, Wire.FLOAT32, len(elements)))

        done, _ = await gossip.finish(mean)
        return len(done.members)

    service = Service(virtual.complete(3), awareness=None, gossip=Gossip(most_ahead=1))
    start = start_with(np.zeros(3, np.float32))
    assert virtual.run(program, program, program, service=service, start=start) == [2, 2, None]


def test_letters_of_a_model_that_is_behind_count_less_where_the_merge_rule_says_so() -> None:
    def made(site: int, value: float, merge: Any) -> Letters:
        model = np.full(4, value, np.float32)
        service = Service(OVERLAY, gossip=Gossip(rule="plain"), merge=merge)
        settings = service.settings(may_be_restarted=False)
        return gossips_of(settings, site, model, Wire.FLOAT32, 1.0).letters

    for merge, counts in ((Mean(), 1.0), (Staleness(a=1.0), 0.25)):
        sender, receiver = made(0, 1.0, merge), made(1, 0.0, merge)
        receiver.steps = 3
        (sent,) = sender.write([1])
        receipt = receiver.receive(sent.message, len(sent.payload))  # type: ignore[arg-type]
        assert receipt.target is not None
        receipt.target[:] = bytes(sent.payload)
        receiver.received(receipt)
        receiver.use()
        assert receiver.weighted() == pytest.approx([counts / (1.0 + counts)] * 4)


OVERLAY: Overlay = _complete(3)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"pace": Asp()}, "pace: sites that gossip have no servers"),
        ({"begin_with": 2}, "begin_with: a group that gossips begins with all"),
        ({"merge": Fairness()}, 'merge.kind: "fairness" weighs by losses or gradients'),
        ({"merge": Median()}, 'merge.kind: "median" looks at the updates of a step'),
        ({"stop": StopRules(rounds=3)}, "stop.rounds: sites that gossip hold no rounds"),
    ],
)
def test_what_gossip_does_not_go_with_is_named(given: dict[str, Any], said: str) -> None:
    with (
        pytest.raises(ValueError, match=said),
        anabranch.local(Service(OVERLAY, gossip=Gossip(), **given)),
    ):
        raise AssertionError("it is served")


def test_the_merge_rule_and_the_gossip_reach_the_sites() -> None:
    service = Service(OVERLAY, gossip=Gossip(most_ahead=7), merge=Staleness(a=0.5))
    told = loads(dumps(service.settings(may_be_restarted=False)))
    assert (told.gossip, told.merge) == (Gossip(most_ahead=7), Staleness(a=0.5))
    alone = replace(service, gossip=None)
    with (
        pytest.raises(ValueError, match="served model, or of sites that gossip"),
        anabranch.local(alone),
    ):
        raise AssertionError("it is served")


def test_a_group_that_gossips_has_no_journal() -> None:
    with pytest.raises(ValueError, match="journal: neighbours that gossip exchange state"):
        check(SERVICE, SERVICE.first_plan(), has_journal=True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('pace = {kind = "asp"}', "pace: sites that gossip have no servers"),
        ("begin_with = 2", "begin_with: a group that gossips"),
        ('merge = {kind = "fairness"}', 'merge.kind: "fairness" weighs by losses'),
    ],
)
def test_so_it_is_in_a_group_s_file(text: str, said: str, tmp_path: Any) -> None:
    path = tmp_path / "group.toml"
    path.write_text('sites = ["a", "b"]\ngossip = {}\n' + text)
    with pytest.raises(ValueError, match=said):
        group_file.load(path)
