"""Faults at random moments, and an oracle; ``anabranch explore`` looks for longer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.exchange.terms import Op, Wire
from anabranch.overlay import Link, Overlay, Site
from anabranch.plan import Packed, Ring, Spanning
from anabranch.scheduler._admission import Admission
from anabranch.scheduler._repair import Unsettled
from anabranch.scheduler.calls._outcome import Outcome
from anabranch.scheduler.membership._life import Stage
from anabranch_lab.run import explore
from anabranch_lab.run.explore import make_case, minimised
from tests.seeds import slow_after


@pytest.mark.parametrize("first", slow_after(1, range(0, 60, 20)))
def test_no_fault_breaks_a_promise(first: int) -> None:
    found = explore.explore_seeds(range(first, first + 20))
    assert found.violations == {}
    assert found.cases == 20
    assert found.exchanges > 50
    assert found.repaired > 3


def test_no_fault_breaks_a_promise_over_a_ring() -> None:
    for seed in range(20):
        case = replace(make_case(seed), planner=Ring())
        assert explore.explore(case).violations == (), seed


def test_what_broke_a_promise_once_does_so_no_more() -> None:
    lost_answers, late_chunks = [60003372, 80028246], [60108617, 60187030]
    not_cut_any_more = [80035686]
    still_cut = [60015310, 60025397, 60031160, 60122343, 60036244]
    all_gone = [60005973, 60013512, 90093647, 90142728]
    seeds = [*lost_answers, *late_chunks, *not_cut_any_more, *still_cut, *all_gone]
    for seed in seeds:
        case = replace(of_all(make_case(seed)), state_times=1, by_size=False)  # as found
        assert explore.explore(case).violations == (), seed
    newcomers_lanes, last_one_alone = [200067059, 200107666], [200084227]
    late_ones_alone = [600006326, 600052939]
    for seed in [*newcomers_lanes, *last_one_alone, *late_ones_alone]:
        case = replace(of_all(make_case(seed)), by_size=False)
        assert explore.explore(case).violations == (), seed


def test_calls_that_a_restarted_scheduler_hears_of_all_at_once_get_its_first_plan() -> None:
    pairs = [(0, 1), (1, 0), (1, 2), (2, 1), (2, 0), (0, 2)]
    links = tuple(Link(*each, 1e5, latency_s=0.02 if each == (1, 2) else 0.0) for each in pairs)
    everyone, pair = None, (1, 2)
    calls = tuple(
        explore.Call(Op.SUM, elements, None, at_once=False, of=of)
        for elements, of in ((82, everyone), (196, pair), (82, pair), (82, everyone))
    )
    case = explore.Case(
        Overlay("three", tuple(Site(f"s{site}") for site in range(3)), links),
        Spanning(),
        16,
        calls,
        ((1.04, 3.64, 5.40, 4.92), (5.37, 5.44, 3.36, 1.56), (2.99, 1.31, 0.84, 1.94)),
        (4, 4, 4),
        (
            explore.Fault("restart", 12.3, 0, 1, 2.0),
            explore.Fault("unplug", 5.3, 1, 2, 60.0),
        ),
        seed=0,
        retries=True,
        outbound_only=frozenset({0}),
        by_size=True,
    )
    assert explore.explore(case).violations == ()


def of_all(case: explore.Case) -> explore.Case:
    """Return a case without its subgroups."""
    return replace(case, calls=tuple(replace(call, of=None) for call in case.calls))


def test_no_fault_breaks_a_promise_where_each_order_of_size_has_its_plan() -> None:
    for seed in range(20):
        case = replace(make_case(seed), by_size=True)
        assert explore.explore(case).violations == (), seed


def test_no_fault_breaks_a_promise_to_subgroups() -> None:
    """Members that learn of them late, also through a restart, have broken one once."""
    another_plan, restarted, order_of_requests = [60, 88, 1064], [218, 312], [195, 788]
    gone = [914516]  # a site that had left, and said nothing to a scheduler that was restarted
    behind = [300_027_954]  # a program that asks for one, behind an admission made in its place
    for seed in [*another_plan, *restarted, *order_of_requests, *gone, *behind]:
        case = make_case(seed)
        assert any(call.of for call in case.calls)
        assert explore.explore(case).violations == (), seed


def test_a_site_that_left_and_slept_through_a_restart_hears_that_it_may_end() -> None:
    case = make_case(100_007_062)
    assert {"restart", "pause"} <= {fault.kind for fault in case.faults}
    assert case.leaves_after[4] == 0, "it carries for others"
    assert explore.explore(case).violations == ()


def test_an_admission_is_made_once_by_a_site_that_follows_and_waits_for_settlements() -> None:
    """Others called it while the site waited, so it was made in the program's place, and again."""
    case = make_case(700_004_290)
    assert case.returns_early
    assert explore.explore(case).violations == ()


def test_a_newcomer_that_dies_while_a_scheduler_waits_for_its_sites_may_join_again() -> None:
    """It was taken for a site that might resume, and its next process ended the scheduler."""
    case = make_case(500_004_898)
    assert [fault.kind for fault in case.faults].count("kill") == 2
    assert explore.explore(case).violations == ()


def test_a_scheduler_that_stood_still_gives_up_no_site_that_has_come_back() -> None:
    for seed in (103, 10_002, 10_058):
        kinds = [fault.kind for fault in make_case(seed).faults]
        assert {"stall", "unplug"} <= {*kinds}
        assert explore.explore(replace(make_case(seed), by_size=False)).violations == (), seed


def test_a_site_whose_way_to_the_scheduler_alone_is_cut_is_not_lost() -> None:
    tried = 0
    for seed in range(40):
        case = make_case(seed)
        cut = explore.Fault("unplug", 0.1, seed % case.overlay.size, 0, 60.0)
        case = replace(case, faults=(cut,))
        if case.is_late(cut.site) or not explore._has_a_way_round(case, cut.site):
            continue
        tried += 1
        explored = explore.explore(case)
        assert (explored.violations, explored.lost) == ((), 0), seed
    assert tried > 20


def test_the_oracle_sees_a_site_that_is_given_up_without_a_reason() -> None:
    case = replace(make_case(103), faults=())
    finds = explore._oracle(case, {site: {} for site in range(case.overlay.size)}, {3}, "")
    assert "site 3 is lost, and none of the faults explains it" in [*finds]


def test_a_newcomer_that_has_lost_its_only_lane_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, str]] = []
    admit_all, turn_away = Admission.admit, Admission._turn_away

    def part_first(self: Admission, number: int, holders: frozenset[int]) -> Outcome:
        if self._run.lives[2] == Stage.ASKING:
            self._introductions.lane_ended(1, 2)
        return admit_all(self, number, holders)

    def hear(self: Admission, site: int, reason: str) -> None:
        told.append((site, reason))
        turn_away(self, site, reason)

    monkeypatch.setattr(Admission, "admit", part_first)
    monkeypatch.setattr(Admission, "_turn_away", hear)
    links = tuple(Link(*pair, rate_bps=1e6) for pair in [(0, 1), (1, 0), (1, 2), (2, 1)])
    admit = explore.Call(op=None, elements=10, source=None, at_once=False, admits=True)
    case = replace(
        make_case(0),
        overlay=Overlay("line", tuple(Site(f"s{k}") for k in range(3)), links),
        planner=Packed(),
        calls=(admit, admit),
        pauses_s=((0.0, 2.0),) * 3,
        leaves_after=(2, 2, 2),
        faults=(),
        comes_s=(0.0, 0.0, 0.2),
        come_back=False,
        retries=False,
        outbound_only=frozenset(),
        state_times=1,
    )
    explored = explore.explore(case)
    assert told == [(2, "its lanes to the others ended before it was let in")]
    assert not any("hangs" in each for each in explored.violations)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(10_000, 10_300, 100))
def test_no_fault_breaks_a_promise_in_a_minute(first: int) -> None:
    assert explore.explore_seeds(range(first, first + 100)).violations == {}


def test_the_oracle_sees_a_contribution_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Unsettled, "_contribute", lambda self, again, sites: None)
    for seed in range(100):
        case = make_case(seed)
        if violations := explore.explore(case).violations:
            break
    assert "is not the result of" in violations[0]
    smaller = minimised(case)
    assert explore.explore(smaller).violations
    assert any(fault.kind == "kill" for fault in smaller.faults)
    for index in range(len(smaller.faults)):
        faults = smaller.faults[:index] + smaller.faults[index + 1 :]
        assert explore.explore(replace(smaller, faults=faults)).violations == ()


# In the second the others need two sites that have left: one dies, and one is dismissed. In the
# third one of them had made all its calls.
@pytest.mark.parametrize("seed", [667, 1_006_824, 46_580])
def test_a_site_that_has_left_and_dies_as_the_only_way_between_others_ends_the_group(
    seed: int,
) -> None:
    assert explore.explore(make_case(seed)).violations == ()


def test_a_site_that_is_lost_between_one_that_left_and_one_that_died_is_explained() -> None:
    assert explore.explore(make_case(1_120_694)).violations == ()


def test_a_newcomer_leaves_though_a_member_waits_for_it_before_a_call_that_it_has_made() -> None:
    assert explore.explore(make_case(2_106_741)).violations == ()


def test_a_machine_that_is_stopped_when_all_others_end_is_woken_to_end_too() -> None:
    assert explore.explore(make_case(3_121_693)).violations == ()


def test_a_site_that_left_after_its_last_call_does_not_come_back_to_a_scheduler() -> None:
    """Two have left, one died, and the way of the last one to the scheduler is cut for long."""
    assert explore.explore(make_case(4_131_153)).violations == ()


def test_a_site_that_left_and_dies_as_the_only_way_ends_the_group_before_its_next_call() -> None:
    """The link between the last two members is silent, and no call of theirs is under way."""
    assert explore.explore(make_case(5_017_146)).violations == ()


def test_a_cut_link_to_a_newcomer_stays_cut_when_it_is_admitted() -> None:
    """A member found it cut anew before that, and the scheduler knew of the cut to the last one."""
    case = make_case(900_018_508)
    assert explore.explore(case).violations == ()


@pytest.mark.parametrize("wire", [wire for wire in Wire if wire.has_blocks])
def test_a_second_loss_during_a_copy_leaves_whole_blocks(wire: Wire) -> None:
    """A copy in float32 was cut within blocks, and the rest was reduced without its last block."""
    case = make_case(1_000_000_170)
    sites = case.overlay.size
    call = explore.Call(Op.MEAN, wire.padded(29_952), None, False, wire=wire)
    alone = replace(
        case,
        calls=(call,),
        pauses_s=((0.0,),) * sites,
        leaves_after=(1,) * sites,
        comes_s=(),
        come_back=False,
        retries=False,
        outbound_only=frozenset(),
    )
    for first_s in (0.3, 0.6292, 0.7):
        for second_s in (0.05, 0.15, 0.2682, 0.4):
            faults = (
                explore.Fault("kill", first_s, 2, 3, 1.0),
                explore.Fault("kill", first_s + second_s, 5, 0, 1.0),
            )
            assert explore.explore(replace(alone, faults=faults)).violations == ()
