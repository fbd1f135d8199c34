"""When to plan again: what counts as a change, and what as a better plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from anabranch.overlay import Overlay, internet2_9, redraw
from anabranch.plan import Plan, PlanError, fapt, predict, star
from anabranch.scheduler._collector import equal_rates
from anabranch.scheduler._policy import (
    LinkChange,
    Policy,
    Replan,
    changes,
    event_of,
    named_changes,
)

from ..every import every

SIZE_BYTES, CHUNK_BYTES = 40e6, 1e6


@dataclass
class Fapt:
    """A planner that counts how often it is asked."""

    roots: int = 9
    asked: list[tuple[int, int]] = field(default_factory=list)

    def __call__(self, overlay: Overlay, version: int, previous: Plan) -> Plan:
        self.asked.append((version, previous.version))
        return fapt(overlay, roots=self.roots, version=version)


def with_rates(overlay: Overlay, rates_bps: Mapping[tuple[int, int], float]) -> Overlay:
    links = [
        replace(link, rate_bps=rates_bps.get((link.source, link.target), link.rate_bps))
        for link in overlay
    ]
    return replace(overlay, links=tuple(links))


def slowed(overlay: Overlay, factor: float, *pairs: tuple[int, int]) -> Overlay:
    rates_bps = {(link.source, link.target): factor * link.rate_bps for link in overlay}
    return with_rates(overlay, {pair: rates_bps[pair] for pair in pairs})


NETWORK = internet2_9()
BOTTLENECK = predict(fapt(NETWORK, roots=9), NETWORK, 40e6, chunk_bytes=1e6).bottleneck


def consider(policy: Policy, belief: Overlay) -> object:
    return policy.consider(belief, SIZE_BYTES, CHUNK_BYTES)


def test_a_slowed_link_brings_a_better_plan_of_the_next_version_and_says_why() -> None:
    planner = Fapt()
    plan = fapt(NETWORK, roots=9, version=4)
    policy = Policy(plan, NETWORK, planner, update_rate=0.1)
    assert BOTTLENECK is not None
    belief = slowed(NETWORK, 0.2, BOTTLENECK)
    replan = policy.consider(belief, SIZE_BYTES, CHUNK_BYTES)
    assert replan is not None
    assert planner.asked == [(5, 4)]
    assert replan.plan.version == 5
    assert policy.plan is replan.plan
    now = predict(plan, belief, SIZE_BYTES, chunk_bytes=CHUNK_BYTES).contention_s
    then = predict(replan.plan, belief, SIZE_BYTES, chunk_bytes=CHUNK_BYTES).contention_s
    assert (replan.before_s, replan.after_s) == (now, then)
    assert then < 0.98 * now
    link = NETWORK.link(*BOTTLENECK)
    assert link is not None
    was_bps = link.goodput_bps
    assert replan.changed == (LinkChange(*BOTTLENECK, was_bps, pytest.approx(0.2 * was_bps)),)
    assert replan.why.startswith(f"{NETWORK.label(link)} fell from {was_bps / 1e6:.3g} to ")
    assert replan.why.endswith(f"a round should take {then:.3g} s instead of {now:.3g} s")


def test_nothing_new_is_nothing_to_consider() -> None:
    planner = Fapt()
    policy = Policy(fapt(NETWORK, roots=9), NETWORK, planner)
    assert consider(policy, NETWORK) is None
    assert planner.asked == []


@pytest.mark.parametrize(("update_rate", "asked"), [(0.0, 1), (0.05, 1), (0.2, 0)])
def test_a_change_counts_beyond_the_update_rate(update_rate: float, asked: int) -> None:
    planner = Fapt()
    policy = Policy(fapt(NETWORK, roots=9), NETWORK, planner, update_rate=update_rate)
    consider(policy, slowed(NETWORK, 0.9, (0, 1)))
    assert len(planner.asked) == asked


def test_small_changes_add_up() -> None:
    planner = Fapt()
    policy = Policy(fapt(NETWORK, roots=9), NETWORK, planner, update_rate=0.2)
    for factor in (0.95, 0.9, 0.85, 0.79):
        assert planner.asked == []
        consider(policy, slowed(NETWORK, factor, (0, 1)))
    assert len(planner.asked) == 1


def test_a_gain_that_is_too_small_leaves_the_plan_in_force_and_is_not_considered_again() -> None:
    assert BOTTLENECK is not None
    belief = slowed(NETWORK, 0.2, BOTTLENECK)
    plan = fapt(NETWORK, roots=9)
    before_s = predict(plan, belief, SIZE_BYTES, chunk_bytes=CHUNK_BYTES).contention_s
    better = fapt(belief, roots=9)
    after_s = predict(better, belief, SIZE_BYTES, chunk_bytes=CHUNK_BYTES).contention_s
    gain = 1 - after_s / before_s
    assert 0.02 < gain < 0.9
    planner = Fapt()
    policy = Policy(plan, NETWORK, planner, least_gain=gain + 0.01)
    assert consider(policy, belief) is None
    assert consider(policy, belief) is None
    assert policy.plan is plan
    assert len(planner.asked) == 1
    bold = Policy(plan, NETWORK, planner, least_gain=gain - 0.01)
    assert consider(bold, belief) is not None


def test_a_change_back_after_an_unused_plan_is_considered() -> None:
    planner = Fapt()
    policy = Policy(fapt(NETWORK, roots=9), NETWORK, planner, least_gain=0.9)
    consider(policy, slowed(NETWORK, 0.2, (0, 1)))
    consider(policy, NETWORK)
    assert len(planner.asked) == 2


def test_the_same_trees_are_no_new_plan() -> None:
    plan = star(NETWORK, hub=0)
    policy = Policy(plan, NETWORK, lambda overlay, version, _: replace(plan, version=version))
    assert consider(policy, slowed(NETWORK, 0.1, (0, 1))) is None
    assert policy.plan.version == 1


def test_a_worse_plan_is_not_taken() -> None:
    policy = Policy(
        fapt(NETWORK, roots=9),
        NETWORK,
        lambda overlay, version, _: star(overlay, version=version),
        least_gain=0.0,
    )
    assert consider(policy, slowed(NETWORK, 0.9, (0, 1))) is None


def test_with_no_gain_asked_a_worse_plan_is_taken_but_the_same_is_not() -> None:
    policy = Policy(
        fapt(NETWORK, roots=9),
        NETWORK,
        lambda overlay, version, _: star(overlay, version=version),
        least_gain=-math.inf,
    )
    replan = policy.consider(slowed(NETWORK, 0.9, (0, 1)), SIZE_BYTES, CHUNK_BYTES)
    assert replan is not None
    assert replan.before_s is not None
    assert replan.after_s > replan.before_s
    assert consider(policy, slowed(NETWORK, 0.8, (0, 1))) is None


def test_over_a_changing_network_versions_rise_and_every_step_gains() -> None:
    changing = redraw(NETWORK, period_s=180, low_bps=20e6, high_bps=155e6, duration_s=1800, seed=2)
    policy = Policy(fapt(NETWORK, roots=9), NETWORK, Fapt(), update_rate=0.1)
    versions = [policy.plan.version]
    for k in range(10):
        replan = policy.consider(changing.at(180.0 * k), SIZE_BYTES, CHUNK_BYTES)
        if replan is not None:
            versions.append(replan.plan.version)
            assert replan.after_s < 0.98 * replan.before_s
            assert every(abs(c.now_bps / c.was_bps - 1) > 0.1 for c in replan.changed)
    assert versions == list(range(1, len(versions) + 1))
    assert len(versions) > 5


def test_the_largest_changes_come_first_and_a_reason_names_three() -> None:
    assert BOTTLENECK is not None
    belief = slowed(slowed(NETWORK, 0.2, BOTTLENECK), 0.8, (1, 2), (2, 1), (5, 8), (8, 5))
    found = changes(NETWORK, belief, 0.1)
    assert len(found) == 5
    assert (found[0].source, found[0].target) == BOTTLENECK
    replan = Policy(fapt(NETWORK, roots=9), NETWORK, Fapt()).consider(
        belief, SIZE_BYTES, CHUNK_BYTES
    )
    assert replan is not None
    assert replan.why.count(" fell from ") == 3
    assert "; 2 more links changed; " in replan.why
    assert named_changes(belief, found[:4])[-1] == "1 more link changed"
    assert len(named_changes(belief, found[:3])) == 3


def test_a_reason_calls_no_assumed_rate_a_rate() -> None:
    measured = {(0, 1): 5e6, (1, 0): 6e6}
    started = equal_rates(NETWORK, 100e6)
    belief = replace(
        started,
        links=tuple(
            replace(link, rate_bps=measured[pair], basis="measured")
            if (pair := (link.source, link.target)) in measured
            else replace(link, rate_bps=5.5e6)
            for link in started
        ),
    )
    name = NETWORK.sites[0].name, NETWORK.sites[1].name
    assert sorted(named_changes(belief, changes(started, belief, 0.1))) == [
        f"{name[0]}->{name[1]} carries 5 Mbit/s, as measured",
        f"{name[1]}->{name[0]} carries 6 Mbit/s, as measured",
    ]
    replan = Replan(fapt(NETWORK), "", changes(started, belief, 0.1), None, None)
    assert [change.was_bps for change in event_of(replan, 1.0).changed] == [None, None]


def test_misuse_is_refused() -> None:
    plan = fapt(NETWORK, roots=9)
    with pytest.raises(ValueError, match="least_gain in"):
        Policy(plan, NETWORK, Fapt(), least_gain=1.0)
    with pytest.raises(ValueError, match="-inf for every plan"):
        Policy(plan, NETWORK, Fapt(), least_gain=-0.1)
    with pytest.raises(ValueError, match="update_rate"):
        Policy(plan, NETWORK, Fapt(), update_rate=-0.1)
    with pytest.raises(PlanError):
        Policy(
            Plan(1, star(NETWORK).trees), replace(NETWORK, sites=NETWORK.sites), Fapt()
        ).consider(NETWORK, SIZE_BYTES, CHUNK_BYTES)
    deaf = Policy(plan, NETWORK, lambda overlay, version, _: plan)
    with pytest.raises(ValueError, match="pass the version on"):
        consider(deaf, slowed(NETWORK, 0.5, (0, 1)))
