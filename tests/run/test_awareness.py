"""Simulated runs on networks that change: what is measured, planned again, and won by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

import pytest

from anabranch.log import (
    Event,
    LinkMeasured,
    PlanIssued,
    RoundDone,
    RunSummary,
    UnknownEvent,
    fingerprint,
    read_events,
    summarise,
)
from anabranch.overlay import Overlay, Trace, internet2_9, random_complete
from anabranch.plan import loads as load_plan
from anabranch_lab.run.scenario import loads
from anabranch_lab.run.simulate import simulate

PASSIVE = 'kind = "passive"\nupdate_time_s = 1\n'
ORACLE = 'kind = "oracle"\nupdate_time_s = 1\n'
SLOWED = 2, 3  # dc3->dc4, which most trees of every route cross
SLOWER = 6
CHANGE_S = 16.0
CHUNKS = "chunk_elements = 262_144"  # the same for every route


class Run:
    """A finished simulation."""

    def __init__(self, log: Path) -> None:
        self.fingerprint = fingerprint(log)
        self.events: list[Event] = []
        for _, event in read_events(log):
            assert not isinstance(event, UnknownEvent)
            self.events.append(event)
        self.summary: RunSummary = summarise(self.events)
        assert self.summary.ended
        assert self.summary.error is None

    @property
    def ends_s(self) -> list[float]:
        """When the last site had each round's result."""
        last: dict[int, float] = {}
        for event in self.events:
            if isinstance(event, RoundDone):
                last[event.round] = event.at_s
        return [last[round] for round in sorted(last)]

    @property
    def rounds_s(self) -> list[float]:
        """How long each round took, from the end of the one before."""
        return [end_s - before_s for before_s, end_s in pairwise([0.0, *self.ends_s])]

    @property
    def measured(self) -> list[LinkMeasured]:
        return [event for event in self.events if isinstance(event, LinkMeasured)]

    @property
    def replans(self) -> list[PlanIssued]:
        return [event for event in self.events if isinstance(event, PlanIssued)]


Simulate = Callable[..., Run]


@pytest.fixture
def run(tmp_path: Path) -> Simulate:
    numbers = iter(range(100))

    def simulate_it(
        overlay: Overlay,
        *tables: str,
        route: str = 'kind = "fapt"',
        elements: int = 4_000_000,
        rounds: int = 6,
        awareness: str = "",
        top: str = "",
    ) -> Run:
        parts = [
            f'overlay = "given"\nstop.rounds = {rounds}\n{top}\n[route]\n{route}',
            f'[task]\nkind = "exchange"\nelements = {elements}',
            f"[awareness]\n{awareness}" if awareness else "",
            *tables,
        ]
        log = tmp_path / f"{next(numbers)}.db"
        simulate(loads("\n".join(parts)), overlay, log)
        return Run(log)

    return simulate_it


def with_link(overlay: Overlay, pair: tuple[int, int], rate_bps: float, at_s: float) -> Overlay:
    """Return the overlay with one link whose rate is another from a moment on."""
    links = []
    for link in overlay:
        if (link.source, link.target) == pair:
            if at_s > 0:
                link = replace(link, trace=Trace((0.0, at_s), (link.rate_bps, rate_bps)))
            else:
                link = replace(link, rate_bps=rate_bps)
        links.append(link)
    return replace(overlay, links=tuple(links))


def slowed(at_s: float) -> Overlay:
    """Return internet2-9 with a link that carries a sixth from a moment on, for good."""
    overlay = internet2_9()
    link = overlay.link(*SLOWED)
    assert link is not None
    return with_link(overlay, SLOWED, link.rate_bps / SLOWER, at_s)


def true_bps(overlay: Overlay, measured: LinkMeasured) -> float:
    link = overlay.at(measured.at_s).link(measured.source, measured.target)
    assert link is not None
    return link.goodput_bps


def errors(overlay: Overlay, measured: list[LinkMeasured]) -> list[float]:
    """Return how far off each measured rate is, relative."""
    return [abs(each.rate_bps / true_bps(overlay, each) - 1) for each in measured]


# --- a link slows down for good -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fapt", "packed"])
def test_a_link_that_slows_down_is_measured_named_and_planned_around(
    kind: str, run: Simulate
) -> None:
    given = {"route": f'kind = "{kind}"', "elements": 10_000_000, "top": CHUNKS}
    unaware = run(slowed(CHANGE_S), rounds=8, **given)
    aware = run(slowed(CHANGE_S), rounds=12, awareness=PASSIVE, **given)
    planned_for_it = run(slowed(0.0), rounds=3, **given)

    first = next(n for n, end_s in enumerate(aware.ends_s) if end_s > CHANGE_S)
    over_s = aware.ends_s[first]  # the end of the round in which it happened
    later = [each for each in aware.measured if each.at_s > over_s]
    of_it = [each for each in later if (each.source, each.target) == SLOWED]
    assert of_it
    assert max(errors(slowed(CHANGE_S), of_it)) < 0.15
    assert max(errors(slowed(CHANGE_S), later)) < 0.15

    [replan, *_] = [each for each in aware.replans if each.at_s > CHANGE_S]
    assert replan.why.startswith("dc3->dc4 fell from 127 to 2")
    assert replan.changed[0].now_bps == pytest.approx(127e6 / SLOWER, rel=0.15)
    assert replan.at_s < over_s + 1.0  # they are looked at every second
    settled_s = fmean(aware.rounds_s[first + 2 :])
    assert settled_s < 1.15 * planned_for_it.rounds_s[-1]
    assert settled_s < unaware.rounds_s[-1] / 1.5


@pytest.mark.slow
def test_one_tree_comes_back_to_the_plan_for_the_slowed_network_but_goes_on_trying_others(
    run: Simulate,
) -> None:
    # What is not used is not measured, and is forgotten: so now and then a round is spent on it.
    given = {"route": 'kind = "mst"', "elements": 10_000_000}
    unaware = run(slowed(CHANGE_S), rounds=6, **given)
    aware = run(slowed(CHANGE_S), rounds=16, awareness=PASSIVE, **given)
    planned_for_it = run(slowed(0.0), rounds=3, **given)
    first = next(n for n, end_s in enumerate(aware.ends_s) if end_s > CHANGE_S)
    rounds_s = aware.rounds_s[first + 1 :]
    assert min(rounds_s) < 1.15 * planned_for_it.rounds_s[-1]
    assert fmean(rounds_s) < unaware.rounds_s[-1]


def test_an_oracle_knows_before_anybody_could_have_measured(run: Simulate) -> None:
    # The link is slow from the middle of the first round on; whoever measures needs chunks first.
    overlay = slowed(1.0)
    oracle = run(overlay, elements=10_000_000, rounds=3, awareness=ORACLE)
    planned_for_it = run(slowed(0.0), elements=10_000_000, rounds=3)
    [replan] = oracle.replans
    assert replan.at_s == 1.0
    assert replan.why.startswith("dc3->dc4 fell from 127 to 21.2 Mbit/s")
    assert oracle.measured == []
    assert oracle.rounds_s[1:] == pytest.approx(planned_for_it.rounds_s[1:], rel=0.02)


# --- nothing is known at first --------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fapt", pytest.param("packed", marks=pytest.mark.slow)])
def test_who_knows_no_rates_at_first_soon_plans_as_well_as_who_does(
    kind: str, run: Simulate
) -> None:
    given = {"route": f'kind = "{kind}"', "top": CHUNKS}
    informed = run(internet2_9(), rounds=3, **given)
    ignorant = run(internet2_9(), rounds=14, awareness=f'{PASSIVE}start = "equal"', **given)
    assert ignorant.rounds_s[0] > 1.4 * informed.rounds_s[0]
    assert max(ignorant.rounds_s[3:]) < 1.25 * informed.rounds_s[-1]
    assert max(ignorant.rounds_s[-4:]) < 1.15 * informed.rounds_s[-1]
    first = load_plan(ignorant.summary.started.plan_json)
    assert first.trees != load_plan(ignorant.replans[-1].plan_json).trees


# --- a scheduler far away -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "awareness", "elements"),
    [
        ("star", "", 4_000_000),
        ("fapt", PASSIVE, 4_000_000),
        pytest.param("fapt", ORACLE, 4_000_000, marks=pytest.mark.slow),
        # More chunks than may be under way: the deal goes on.
        pytest.param("packed", PASSIVE, 10_000_000, marks=pytest.mark.slow),
    ],
)
def test_only_the_first_round_waits_for_a_scheduler_far_away(
    kind: str, awareness: str, elements: int, run: Simulate
) -> None:
    # Each next round is asked for before the present one ends.
    near, far = (
        run(
            internet2_9(),
            f"[simulation]\ncontrol_latency_s = {latency_s}",
            route=f'kind = "{kind}"',
            elements=elements,
            awareness=awareness,
            rounds=4,
            top="chunk_elements = 65_536",
        )
        for latency_s in (0.0, 0.2)
    )
    # It waits for the word to start, for its grant, and for the news of its end.
    assert far.rounds_s[0] == pytest.approx(near.rounds_s[0] + 4 * 0.2, rel=0.05)
    # Waiting would cost .4 s, a tenth; where dispatch is adaptive, a later word deals otherwise.
    assert fmean(far.rounds_s[1:]) == pytest.approx(fmean(near.rounds_s[1:]), rel=0.05)


# --- clocks that are wrong ------------------------------------------------------------------------

WRONG_CLOCKS = """
[[fault]]
kind = "clock"
at_s = 0
site = "dc4"
offset_s = 5
drift = 0.0001

[[fault]]
kind = "clock"
at_s = 0
site = "dc7"
offset_s = -3
drift = -0.0001
"""


@pytest.mark.parametrize("kind", ["fapt", "mst", pytest.param("packed", marks=pytest.mark.slow)])
def test_wrong_clocks_do_not_spoil_what_is_measured(kind: str, run: Simulate) -> None:
    given = {"route": f'kind = "{kind}"', "top": "chunk_elements = 65_536"}
    done = run(internet2_9(), WRONG_CLOCKS, awareness=PASSIVE, rounds=8, **given)
    undisturbed = run(internet2_9(), rounds=4, **given)
    off = errors(internet2_9(), done.measured)
    assert len(off) > 100
    assert median(off) < 0.002
    assert max(off) < 0.15
    # internet2-9 has 30 ms on every link; the clocks are off by seconds.
    late_s = [each.latency_s - 0.03 for each in done.measured if each.latency_s is not None]
    assert len(late_s) > 50
    assert max(map(abs, late_s)) < 0.02
    assert max(done.rounds_s[1:]) < 1.1 * max(undisturbed.rounds_s[1:])


def test_they_do_spoil_what_the_paper_s_formula_measures(run: Simulate) -> None:
    estimator = 'estimator = "chunk-mean"\nprobe_chunk_elements = 1'
    right, wrong = (
        median(
            errors(
                internet2_9(), run(internet2_9(), *tables, awareness=PASSIVE + estimator).measured
            )
        )
        for tables in ((), (WRONG_CLOCKS,))
    )
    assert right > 0.2  # latency and queues count as slowness
    assert wrong >= 0.9 * right


def test_a_clock_that_is_set_spoils_measurements_for_some_seconds_only(run: Simulate) -> None:
    step = '[[fault]]\nkind = "clock"\nat_s = 4.0\nsite = "dc7"\noffset_s = 3'
    done = run(internet2_9(), step, awareness=PASSIVE, rounds=10)
    undisturbed = run(internet2_9(), rounds=4)
    assert max(errors(internet2_9(), [each for each in done.measured if each.at_s > 12])) < 0.1
    assert max(done.rounds_s[1:]) < 1.1 * max(undisturbed.rounds_s[1:])


# --- auxiliary paths ------------------------------------------------------------------------------


def test_paths_over_idle_links_shorten_a_round_of_one_tree(run: Simulate) -> None:
    overlay = random_complete(6, 1, low_bps=20e6, high_bps=155e6, latency_s=0.01)
    without, with_paths = (
        run(overlay, *tables, route='kind = "mst"', rounds=3, top="chunk_elements = 65_536")
        for tables in ((), ("[auxiliary]",))
    )
    assert with_paths.rounds_s[1] < 0.85 * without.rounds_s[1]


KINDS = ["star", "mst", "fapt", "packed"]
QUEUES = [("disjoint", "wait"), ("disjoint", "primary"), ("algorithm-3", "primary")]


@pytest.mark.parametrize(
    ("kind", "search", "when_full"),
    [
        pytest.param(kind, *queue, marks=[] if i % len(QUEUES) == j else [pytest.mark.slow])
        for i, kind in enumerate(KINDS)
        for j, queue in enumerate(QUEUES)
    ],
)
def test_with_auxiliary_paths_and_changing_plans_every_mean_is_exact(
    kind: str, search: str, when_full: str, run: Simulate
) -> None:
    overlay = random_complete(5, 2, low_bps=2e6, high_bps=15e6, latency_s=0.02)
    done = run(
        with_link(overlay, (0, 1), 1e6, at_s=1.0),
        f'[auxiliary]\nsearch = "{search}"\nauxiliary_queue_length = 3\nwhen_full = "{when_full}"',
        '[simulation]\ntensors = "real"',
        route=f'kind = "{kind}"',
        elements=100_003,
        awareness='kind = "passive"\nupdate_time_s = 0.2\nstart = "equal"\nleast_gain = 0',
        top="chunk_elements = 2_000",
    )
    assert done.summary.checked_rounds == 6  # the sites compare each element with the true mean
    assert done.summary.checksums_agree
    assert not done.summary.refused


# --- the same every time --------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_that_measures_and_plans_again_is_the_same_every_time(run: Simulate) -> None:
    first, second = (
        run(
            slowed(2.0),
            "[auxiliary]",
            "[simulation]\ncontrol_latency_s = 0.01",
            route='kind = "packed"',
            awareness=PASSIVE,
            top=CHUNKS,
        )
        for _ in range(2)
    )
    assert first.replans
    assert first.fingerprint == second.fingerprint
