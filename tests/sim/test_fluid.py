import itertools
import os
import subprocess
import sys
from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch_lab.sim._fluid import Flow, Fluid

from .brute_force import Change, Given, fair_rates_bps, finish_times_s
from .simgrid_reference import workload


def network(*capacities_bps: float) -> Fluid[int]:
    fluid: Fluid[int] = Fluid()
    for capacity_bps in capacities_bps:
        fluid.add_resource(capacity_bps)
    return fluid


def play(
    fluid: Fluid[int], flows: list[Given], changes: list[Change] | tuple[()] = ()
) -> tuple[list[float], list[list[int]]]:
    """Return when each flow finishes, and which finished together, in the order given."""
    events_s = sorted({flow.start_s for flow in flows} | {change.at_s for change in changes})
    ends_s = [inf] * len(flows)
    groups = []
    while (now_s := min([fluid.next_s, *events_s[:1]])) < inf:
        if finished := fluid.finish(now_s):
            groups.append([flow.token for flow in finished])
        for done in finished:
            ends_s[done.token] = done.finish_s
        if events_s and events_s[0] == now_s:
            del events_s[0]
            for change in changes:
                if change.at_s == now_s:
                    fluid.set_capacity(change.resource, change.capacity_bps)
            for f, flow in enumerate(flows):
                if flow.start_s == now_s:
                    fluid.start(flow.resources, flow.bits, f)
        fluid.settle(now_s)
    return ends_s, groups


def run_to_the_end(fluid: Fluid[int]) -> list[tuple[float, int]]:
    ends = []
    while (now_s := fluid.next_s) < inf:
        ends += [(flow.finish_s, flow.token) for flow in fluid.finish(now_s)]
        fluid.settle(now_s)
    return ends


# Small whole numbers make for ties, sevenths for rounding.
sizes_bits = st.one_of(st.integers(0, 12), st.integers(1, 2000).map(lambda n: n / 7))
rates_bps = st.one_of(
    st.sampled_from([0, 1, 2, 3, 4, 6, 12]), st.integers(1, 700).map(lambda n: n / 7)
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[float], list[Given], list[Change]]:
    capacities_bps = draw(st.lists(rates_bps, min_size=2, max_size=8))
    resource = st.integers(0, len(capacities_bps) - 1)
    paths = st.lists(resource, min_size=1, max_size=3, unique=True).map(tuple)
    flow = st.builds(Given, st.integers(0, 5).map(float), paths, sizes_bits)
    change = st.builds(Change, st.integers(0, 12).map(float), resource, rates_bps)
    changes = st.lists(change, max_size=6, unique_by=lambda change: change[:2])
    return capacities_bps, draw(st.lists(flow, min_size=1, max_size=16)), draw(changes)


# Against the plain solver.


@given(cases())
@settings(max_examples=120, deadline=None)
def test_finish_times_are_those_of_progressive_filling_at_every_event(case):
    capacities_bps, flows, changes = case
    ends_s, _ = play(network(*capacities_bps), flows, changes)
    assert ends_s == pytest.approx(finish_times_s(capacities_bps, flows, changes), rel=1e-9)


@given(cases())
@settings(max_examples=60, deadline=None)
def test_a_call_late_is_as_good_as_one_at_every_finish(case):
    capacities_bps, flows, changes = case
    fluid = network(*capacities_bps)
    ends_s = [inf] * len(flows)
    events_s = {flow.start_s for flow in flows} | {change.at_s for change in changes}
    for now_s in [*sorted(events_s), 1e9]:  # at no finish in between
        for flow in fluid.finish(now_s):
            ends_s[flow.token] = flow.finish_s
        for change in changes:
            if change.at_s == now_s:
                fluid.set_capacity(change.resource, change.capacity_bps)
        for f, flow in enumerate(flows):
            if flow.start_s == now_s:
                fluid.start(flow.resources, flow.bits, f)
        fluid.settle(now_s)
    for flow in fluid.finish(1e9):
        ends_s[flow.token] = flow.finish_s
    assert ends_s == pytest.approx(finish_times_s(capacities_bps, flows, changes), rel=1e-9)


# The property that makes rates max-min fair, and the only ones that are.


def assert_max_min(capacities_bps: list[float], flows: list[Flow[int]]) -> None:
    users = [[f for f in flows if r in f.resources] for r in range(len(capacities_bps))]
    loads_bps = [sum(f.rate_bps for f in using) for using in users]
    for load_bps, capacity_bps in zip(loads_bps, capacities_bps, strict=True):
        assert load_bps <= capacity_bps * (1 + 1e-9)
    for flow in flows:
        assert any(
            loads_bps[r] >= capacities_bps[r] * (1 - 1e-9)
            and all(other.rate_bps <= flow.rate_bps * (1 + 1e-9) for other in users[r])
            for r in flow.resources
        )


@given(cases())
@settings(max_examples=60, deadline=None)
def test_no_resource_is_overloaded_and_every_flow_has_a_bottleneck_after_any_history(case):
    capacities_bps, flows, changes = case
    fluid = network(*capacities_bps)
    going: list[Flow[int]] = []
    for now_s in range(6):
        finished = fluid.finish(now_s)
        going = [flow for flow in going if flow not in finished]
        for change in changes:
            if change.at_s == now_s:
                fluid.set_capacity(change.resource, change.capacity_bps)
                capacities_bps[change.resource] = change.capacity_bps
        if now_s == 3 and going:
            fluid.cancel(going.pop(0))
        for f, flow in enumerate(flows):
            if flow.start_s == now_s and flow.bits > 0:
                going.append(fluid.start(flow.resources, flow.bits, f))
        fluid.settle(now_s)
        assert_max_min(capacities_bps, going)
        fair_bps = fair_rates_bps(capacities_bps, [flow.resources for flow in going])
        assert [flow.rate_bps for flow in going] == pytest.approx(fair_bps, rel=1e-9)


# Closed forms.


def test_a_flow_alone_finishes_at_just_the_float_start_plus_bits_by_least_capacity():
    fluid = network(3e7, 0.7e7, 1.1e7, 0.3e7)
    ends_s, _ = play(fluid, [Given(0.1, (0, 1, 2), 1e6 / 3), Given(0.3, (3,), 1e5)])
    assert ends_s == [0.1 + 1e6 / 3 / 0.7e7, 0.3 + 1e5 / 0.3e7]
    assert fluid.recomputes == 0


def test_neighbours_that_leave_a_shared_port_below_its_capacity_cost_a_flow_no_digit():
    fluid = network(1e9, 0.7e7, 0.3e7, 0.9e7)
    others = [Given(n / 64, (0, 2 + n % 2), 1e3 * (1 + n % 5)) for n in range(64)]
    ends_s, _ = play(fluid, [Given(0.1, (1, 0), 1e7 / 3), *others])
    assert ends_s[0] == 0.1 + 1e7 / 3 / 0.7e7


@pytest.mark.parametrize("n", [2, 9, 1000])
def test_an_incast_of_n_equal_flows_ends_after_n_times_bits_by_capacity_for_all_at_once(n):
    fluid = network(7e6, *[3e7] * n)
    ends_s, groups = play(fluid, [Given(0.3, (0, 1 + f), 1e5 / 3) for f in range(n)])
    assert ends_s == pytest.approx([0.3 + n * 1e5 / 3 / 7e6] * n, rel=1e-12)
    assert groups == [list(range(n))]


def test_processor_sharing_of_sizes_1_to_n():
    n = 50
    ends_s, _ = play(network(3.0), [Given(0.0, (0,), float(n - f)) for f in range(n)])
    # While the flow of size k is the smallest, n - k + 1 flows each go one bit further.
    expected_s = list(itertools.accumulate((n - k + 1) / 3.0 for k in range(1, n + 1)))
    assert ends_s == pytest.approx(expected_s[::-1], rel=1e-12)


def test_a_chain_of_links_goes_at_the_least_of_them():
    assert play(network(5.0, 2.0, inf, 9.0), [Given(1.0, (0, 1, 2, 3), 7.0)])[0] == [4.5]


def test_parking_lot_the_flow_over_both_links_gets_what_the_tighter_one_shares():
    fluid = network(10.0, 4.0)
    flows = [fluid.start(path, 100.0, f) for f, path in enumerate([(0, 1), (0,), (1,)])]
    fluid.settle(0.0)
    assert [flow.rate_bps for flow in flows] == [2.0, 8.0, 2.0]


def test_filling_goes_on_where_the_first_bottleneck_leaves_room():
    fluid = network(1.0, 1.0, 1.0)
    paths = [(0, 1), (1,), (1, 2), (2,), (0,)]  # the middle one first: a third for each
    flows = [fluid.start(path, 9.0, f) for f, path in enumerate(paths)]
    fluid.settle(0.0)
    third = pytest.approx(1 / 3)
    assert [flow.rate_bps for flow in flows] == [third, third, third, *[pytest.approx(2 / 3)] * 2]


def test_no_bits_take_no_time_even_in_an_outage():
    fluid = network(0.0)
    fluid.start((0,), 0.0, 7)
    fluid.settle(2.5)
    assert fluid.next_s == 2.5
    assert [(flow.token, flow.finish_s) for flow in fluid.finish(2.5)] == [(7, 2.5)]
    assert fluid.next_s == inf


def test_without_any_limit_flows_end_as_they_begin():
    fluid = network(inf, inf)
    for f, path in enumerate([(0,), (0, 1), ()]):
        fluid.start(path, 1e9, f)
    fluid.settle(2.5)
    assert run_to_the_end(fluid) == [(2.5, 0), (2.5, 1), (2.5, 2)]


def test_a_limit_that_vanishes_ends_what_waits_for_it():
    fluid = network(1.0)
    for f in range(3):
        fluid.start((0,), 100.0, f)
    fluid.settle(0.0)
    fluid.set_capacity(0, inf)
    fluid.settle(2.0)
    assert run_to_the_end(fluid) == [(2.0, 0), (2.0, 1), (2.0, 2)]


def test_endless_flows_take_their_share_and_never_end():
    fluid = network(2.0)
    fluid.start((0,), inf, 0)
    fluid.start((0,), 3.0, 1)
    fluid.settle(0.0)
    assert run_to_the_end(fluid) == [(3.0, 1)]


# Capacities change.


@pytest.mark.parametrize("n", [1, 2, 5])
def test_an_outage_delays_flows_by_its_length(n):
    flows = [Given(0.0, (0,), 12.0)] * n
    outage = [Change(1.0, 0, 0.0), Change(4.5, 0, 3.0)]
    assert play(network(3.0), flows, outage)[0] == [4.0 * n + 3.5] * n


def test_flows_stall_in_an_outage_until_the_capacity_rises():
    fluid = network(3.0, 0.0, 5.0)
    flows = [fluid.start(path, 6.0, f) for f, path in enumerate([(0, 1), (1,), (2,), (0,)])]
    fluid.settle(0.0)
    assert fluid.stalled() == flows[:2]
    assert [flow.token for flow in fluid.finish(1.2)] == [2]
    fluid.settle(1.2)
    assert [flow.token for flow in fluid.finish(2.0)] == [3]
    fluid.settle(2.0)
    assert fluid.next_s == inf
    fluid.set_capacity(1, 4.0)
    fluid.settle(10.0)
    assert fluid.stalled() == []
    assert run_to_the_end(fluid) == [(13.0, 0), (13.0, 1)]


def test_a_change_on_the_way_counts_from_then_on():
    assert play(network(3.0), [Given(0.0, (0,), 12.0)], [Change(1.0, 0, 9.0)])[0] == [2.0]


def test_of_several_changes_at_one_instant_the_last_counts():
    fluid = network(3.0)
    fluid.start((0,), 12.0, 0)
    fluid.settle(0.0)
    for capacity_bps in (0.0, 100.0, 9.0):
        fluid.set_capacity(0, capacity_bps)
    fluid.settle(1.0)
    assert fluid.next_s == 2.0


# Instants.


def test_everything_at_one_instant_is_one_recompute():
    fluid = network(10.0, 4.0)
    flows = [fluid.start((f % 2,), 100.0, f) for f in range(10)]
    fluid.settle(0.0)
    assert fluid.recomputes == 1
    fluid.set_capacity(0, 6.0)
    fluid.cancel(flows[3])
    fluid.start((0, 1), 5.0, 10)
    fluid.settle(1.0)
    assert fluid.recomputes == 2
    fluid.settle(1.0)
    assert fluid.recomputes == 2


def test_a_finish_and_what_starts_in_its_place_are_one_recompute():
    fluid = network(10.0)
    for f in range(4):
        fluid.start((0,), 10.0 + f, f)
    fluid.settle(0.0)
    for round_ in range(1, 20):
        now_s = fluid.next_s
        for flow in fluid.finish(now_s):
            fluid.start((0,), 10.0, flow.token)
        fluid.settle(now_s)
        assert fluid.recomputes == 1 + round_


def test_only_flows_joined_by_a_shared_resource_are_looked_at():
    fluid = network(*[10.0] * 100)
    for f in range(200):
        fluid.start((f % 100,), 100.0 + f, f)
    fluid.settle(0.0)
    assert fluid.offers == 100
    fluid.start((7,), 1.0, 200)
    fluid.settle(1.0)
    assert fluid.offers == 101


def test_a_port_with_enough_to_spare_is_not_asked_about_each_flow():
    fluid = network(1e9, *[1e6] * 100)
    ends_s, _ = play(fluid, [Given(f / 8, (0, 1 + f % 100), 3e5) for f in range(1000)])
    assert ends_s == [f / 8 + 3e5 / 1e6 for f in range(1000)]
    assert fluid.offers < 500


def test_what_ends_together_on_paper_ends_together_despite_rounding():
    fluid = network(0.1, 0.7, 1 / 3)
    flows = [
        *[Given(0.0, (0,), 0.1 * 0.3 / 3)] * 3,  # 0.3 s by a third of 0.1 bit/s each
        *[Given(0.1, (1,), 0.7 * 0.2 / 7)] * 7,
        *[Given(0.2, (2,), (1 / 3) * 0.1 / 11)] * 11,
    ]
    ends_s, groups = play(fluid, flows)
    assert len(set(ends_s)) > 1  # or this shows nothing
    assert groups == [list(range(21))]


def test_flows_come_back_in_order_of_finish_then_of_start():
    fluid = network(1.0, 1.0, 1.0)
    for f, bits in enumerate([2.0, 1.0, 2.0]):
        fluid.start((f,), bits, f)
    fluid.settle(0.0)
    assert [flow.token for flow in fluid.finish(5.0)] == [1, 0, 2]


def test_flows_due_when_others_settle_first_do_not_wait_for_the_new_shares():
    fluid = network(1.0)
    fluid.start((0,), 2.0, 0)
    fluid.settle(0.0)
    fluid.set_capacity(0, 0.0)
    fluid.settle(2.0)  # before finish(2.0)
    assert fluid.next_s == 2.0
    assert [flow.token for flow in fluid.finish(2.0)] == [0]


def test_times_stay_exact_over_a_long_run_through_a_busy_port():
    # Two flows always, the older one half done when the next begins: each takes 2 s.
    flows = [Given(0.0, (0,), 1.5), *[Given(float(f), (0,), 3.0) for f in range(3000)]]
    ends_s, _ = play(network(3.0), flows)
    assert ends_s[:-1] == pytest.approx([1.0, *[f + 2.0 for f in range(2999)]], rel=1e-12)


# Cancelling.


def test_a_cancelled_flow_leaves_its_share_to_others_and_is_never_returned():
    fluid = network(2.0)
    flows = [fluid.start((0,), 10.0, f) for f in range(2)]
    fluid.settle(0.0)
    fluid.cancel(flows[0])
    fluid.cancel(flows[0])
    fluid.settle(4.0)
    assert flows[0].rate_bps == 0.0
    assert run_to_the_end(fluid) == [(7.0, 1)]


def test_a_flow_cancelled_before_it_began_or_as_it_ended_is_never_returned():
    fluid = network(2.0)
    unborn, done = (fluid.start((0,), 10.0, f) for f in range(2))
    fluid.cancel(unborn)
    fluid.settle(0.0)
    assert fluid.next_s == 5.0
    fluid.cancel(done)
    fluid.settle(5.0)
    assert fluid.finish(5.0) == []
    fluid.cancel(done)
    fluid.settle(6.0)
    assert fluid.next_s == inf


# Determinism.

TRACE = """
from anabranch_lab.sim._fluid import Fluid
fluid = Fluid()
junk = [object() for _ in range({junk})]
for r in range(12):
    fluid.add_resource(1.0 + r % 5 / 7)
for f in range(300):
    fluid.start((f % 12, (f * f + 1) % 12)[: 1 + (f % 12 != (f * f + 1) % 12)], 1.0 + f % 7 / 3, f)
fluid.settle(0.0)
while (now_s := fluid.next_s) < float("inf"):
    print([(flow.token, flow.finish_s.hex()) for flow in fluid.finish(now_s)])
    fluid.settle(now_s)
"""


def test_neither_hashes_nor_addresses_change_a_digit():
    traces = {
        subprocess.run(
            [sys.executable, "-c", TRACE.format(junk=junk)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed, junk in [("1", 0), ("2", 1001)]
    }
    assert len(traces) == 1
    assert len(traces.pop().splitlines()) > 20


# Errors.


def test_errors_name_what_was_wrong():
    fluid = network(1.0)
    with pytest.raises(ValueError, match=r"resource 1 has capacity -1.0 bit/s"):
        fluid.add_resource(-1.0)
    with pytest.raises(ValueError, match=r"resource 0 has capacity nan bit/s"):
        fluid.set_capacity(0, nan)
    with pytest.raises(IndexError):
        fluid.set_capacity(1, 1.0)
    with pytest.raises(ValueError, match=r"a flow has -1 bits"):
        fluid.start((0,), -1, 0)
    with pytest.raises(ValueError, match=r"uses resources \(0, 0\); name each once"):
        fluid.start((0, 0), 1.0, 0)
    fluid.settle(2.0)
    with pytest.raises(ValueError, match=r"time goes back from 2.0 s to 1.0 s"):
        fluid.settle(1.0)
    with pytest.raises(ValueError, match=r"time goes back"):
        fluid.finish(nan)


# Against SimGrid: the makespan and every 150th finish time of 1,200 flows between 9 sites, as
# printed by `simgrid_reference.py` (which has the workload and says how to run it) with SimGrid
# 3.32.0 of Debian 12, model CM02, and the options named there.

SIMGRID_S = {
    "links": (
        15.403781250000002,
        [
            1.8373572635135136,
            3.101424258474576,
            3.6337414743201455,
            8.082675705936776,
            5.644671613406795,
            2.761900057953877,
            1.7482405462184873,
            3.912466314935065,
        ],
    ),
    "ports": (
        18.852310943034702,
        [
            8.315018079625846,
            5.436399908831067,
            11.774495055349455,
            7.802248211685482,
            10.921485196788176,
            5.697410003813033,
            1.9461078932875882,
            10.900048985656046,
        ],
    ),
}


@pytest.mark.parametrize("kind", ["links", "ports"])
def test_finish_times_are_those_of_simgrid(kind):
    capacities_bps, transfers = workload(kind)
    index = {key: r for r, key in enumerate(capacities_bps)}
    flows = [
        Given(transfer.start_s, tuple(index[key] for key in transfer.resources), transfer.size_bits)
        for transfer in transfers
    ]
    ends_s, _ = play(network(*capacities_bps.values()), flows)
    makespan_s, some_s = SIMGRID_S[kind]
    assert max(ends_s) == pytest.approx(makespan_s, rel=1e-12)
    assert ends_s[::150] == pytest.approx(some_s, rel=1e-12)
