"""The compute model: closed forms, exact integration, and draws that no order can change."""

from __future__ import annotations

import ast
import math
import re
import statistics
from bisect import bisect_right
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import anabranch.fleet as fleet
from anabranch._typed_toml import Table, TomlError, decode_toml
from anabranch.fleet import (
    Compute,
    ComputeError,
    ComputeModel,
    Constant,
    Distribution,
    Exponential,
    Lognormal,
    SiteCompute,
    Slowdowns,
    Uniform,
    uneven_samples_per_s,
)

from ..parsed import nodes

NAMES = [f"dc{i}" for i in range(1, 10)]


class File(Table, frozen=True, kw_only=True):
    compute: Compute


TEXT = """
[compute]
samples_per_s = 500.0
fixed_s = 0.01
[compute.jitter]
kind = "lognormal"
cv = 0.5
[compute.added_delay]
kind = "lognormal"
mu = -2.0
sigma = 1.0
[compute.sites.dc3]
samples_per_s = 100.0
jitter = { kind = "uniform", spread = 0.0 }
added_delay = { kind = "constant", delay_s = 0.5 }
slowdowns = { starts_s = [0.0, 60.0, 120.0], factors = [1.0, 4.0, 1.0] }
"""


def read(text: str) -> Compute:
    return decode_toml(text, File).compute


def test_every_key_is_read() -> None:
    assert read(TEXT) == Compute(
        samples_per_s=500.0,
        fixed_s=0.01,
        jitter=Lognormal(cv=0.5),
        added_delay=Lognormal(mu=-2.0, sigma=1.0),
        sites={
            "dc3": SiteCompute(
                samples_per_s=100.0,
                jitter=Uniform(spread=0.0),
                added_delay=Constant(delay_s=0.5),
                slowdowns=Slowdowns(starts_s=(0.0, 60.0, 120.0), factors=(1.0, 4.0, 1.0)),
            )
        },
    )


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("= 100.0", "= 0", "compute.sites.dc3.samples_per_s: must be a number > 0, not 0"),
        (
            "samples_per_s = 100.0",
            "samples_per_sec = 1",
            "compute.sites.dc3.samples_per_sec: no such key; did you mean 'samples_per_s'?",
        ),
        (
            "lognormal",
            "lognorm",
            "compute.jitter.kind: no such kind 'lognorm'; did you mean 'logno",
        ),
        ("cv = 0.5", "", "compute.jitter: give cv, or mu and sigma, and nothing else"),
        ("cv = 0.5", "cv = 0.5\nmu = 0", "compute.jitter: give cv, or mu and sigma, and nothing"),
        ("sigma = 1.0", "", "compute.added_delay: give cv, or mu and sigma, and nothing else"),
        (
            'kind = "constant", delay_s = 0.5',
            'kind = "exponential"',
            "compute.sites.dc3.added_delay: give cv, or mean_s, and nothing else",
        ),
        ("fixed_s = 0.01", "fixed_s = inf", "compute.fixed_s: must be a finite number, not inf"),
        ("fixed_s = 0.01", "gini = 1", "compute.gini: must be a number < 1, not 1"),
        (
            "[0.0, 60.0, 120.0]",
            "[0.0, 60.0]",
            "compute.sites.dc3.slowdowns: slowdowns have 2 start times and 3 factors; give the",
        ),
        (
            'kind = "constant", delay_s = 0.5',
            'kind = "uniform", low_s = 2, high_s = 1',
            "compute.sites.dc3.added_delay: cannot draw a delay from 2 to 1 s; give low_s <= high",
        ),
    ],
)
def test_what_is_wrong_is_named_with_key_and_fix(old: str, new: str, complaint: str) -> None:
    assert old in TEXT
    with pytest.raises(TomlError, match=f"^{re.escape(complaint)}"):
        read(TEXT.replace(old, new, 1))


def test_a_step_takes_its_fixed_seconds_and_its_samples() -> None:
    model = ComputeModel(Compute(samples_per_s=500.0, fixed_s=0.25), NAMES, seed=1)
    assert model.step_s(site=4, step=0, samples=100, start_s=0.0) == 0.25 + 100 / 500
    assert model.step_s(site=4, step=9, samples=0, start_s=1e9) == 0.25


def test_a_site_inherits_what_it_does_not_say() -> None:
    table = read(TEXT)
    model = ComputeModel(table, NAMES, seed=1)
    assert model.work_s(2, 7, 50) == 0.01 + 50 / 100.0
    assert model.added_s(2, 7) == 0.5
    assert model.work_s(0, 7, 50) != model.work_s(1, 7, 50) != 0.01 + 50 / 500
    assert model.slowdowns(0).takes_s(90.0, 1.0) == 1.0
    assert model.slowdowns(2).takes_s(90.0, 1.0) == 4.0


def test_a_step_is_its_work_stretched_and_then_its_delay() -> None:
    model = ComputeModel(read(TEXT), NAMES, seed=1)
    # 2.01 s of work: 1 s before 60 s, the rest four times slower; 0.5 s of delay as it is
    assert model.step_s(2, 0, 200, start_s=59.0) == pytest.approx(1.0 + 4 * 1.01 + 0.5, abs=1e-12)
    for site, start_s in product(range(9), (0.0, 59.9, 119.5)):
        expected_s = model.slowdowns(site).takes_s(start_s, model.work_s(site, 3, 64))
        expected_s += model.added_s(site, 3)
        assert model.step_s(site, 3, 64, start_s) == pytest.approx(expected_s, abs=1e-9)


def test_the_delays_of_eight_workers_are_those_written() -> None:
    delays_s = {"w5": 0.5, "w6": 0.5, "w7": 1.0, "w8": 1.0}
    sites = {n: SiteCompute(added_delay=Constant(delay_s=d)) for n, d in delays_s.items()}
    model = ComputeModel(
        Compute(samples_per_s=400.0, sites=sites), [f"w{i}" for i in range(1, 9)], seed=0
    )
    assert [model.added_s(site, 5) for site in range(8)] == [0, 0, 0, 0, 0.5, 0.5, 1, 1]


def test_an_unknown_site_is_named_with_the_nearest() -> None:
    table = Compute(samples_per_s=1.0, sites={"dc33": SiteCompute()})
    with pytest.raises(ComputeError, match=r"^compute\.sites\.dc33: no site 'dc33'; did you mean"):
        ComputeModel(table, NAMES, seed=0)
    with pytest.raises(ComputeError, match=r"no site 'dc33'; the sites are paris, rome$"):
        ComputeModel(table, ["paris", "rome"], seed=0)


def test_a_speed_of_its_own_beside_a_gini_coefficient_is_refused() -> None:
    sites = {"dc3": SiteCompute(samples_per_s=5.0)}
    with pytest.raises(ComputeError, match=r"^compute\.sites\.dc3\.samples_per_s: compute\.gini"):
        ComputeModel(Compute(samples_per_s=1.0, gini=0.3, sites=sites), NAMES, seed=0)


# draws


def test_draws_do_not_depend_on_the_order_of_calls() -> None:
    calls = list(product(range(9), range(20)))

    def draws(order: list[tuple[int, int]]) -> dict[tuple[int, int], tuple[float, float]]:
        model = ComputeModel(read(TEXT), NAMES, seed=3)
        found = {}
        for site, step in order:
            added_s = model.added_s(site, step)
            found[site, step] = (model.work_s(site, step, 64), added_s)
        return found

    assert draws(calls) == draws(calls[::-1]) == draws(sorted(calls, key=lambda c: (c[1], c[0])))


def test_every_site_step_seed_and_use_has_a_draw_of_its_own() -> None:
    jitter, delay = Exponential(cv=1.0), Exponential(mean_s=1.0)
    table = Compute(samples_per_s=1.0, jitter=jitter, added_delay=delay)
    seen = set()
    for seed in (0, 1, 11, 2**70):
        model = ComputeModel(table, NAMES, seed)
        for site, step in product(range(9), (0, 1, 11, 111, 10**9)):
            seen |= {model.work_s(site, step, 1), model.added_s(site, step)}
    assert len(seen) == 4 * 9 * 5 * 2


def test_a_draw_is_the_same_on_every_machine_and_version() -> None:
    model = ComputeModel(read(TEXT), NAMES, seed=3)
    assert model.work_s(0, 5, 64) == pytest.approx(0.27157817828505104, rel=1e-12)
    assert model.added_s(8, 12345) == pytest.approx(0.06026281982806731, rel=1e-12)


def test_another_batch_has_the_same_jitter() -> None:
    table = Compute(samples_per_s=10.0, jitter=Lognormal(cv=1.0))
    model = ComputeModel(table, NAMES, seed=0)
    assert model.work_s(1, 4, 300) == pytest.approx(3 * model.work_s(1, 4, 100))


@pytest.mark.parametrize(
    ("jitter", "cv"),
    [
        (Lognormal(cv=0.2), 0.2),
        (Lognormal(cv=1.0), 1.0),
        (Exponential(cv=0.5), 0.5),
        (Exponential(cv=1.0), 1.0),
        (Uniform(spread=0.2), 0.2 / math.sqrt(3)),
    ],
)
def test_jitter_has_mean_one_and_the_spread_it_names(jitter: Distribution, cv: float) -> None:
    model = ComputeModel(Compute(samples_per_s=1.0, jitter=jitter), NAMES, seed=0)
    factors = [model.work_s(site, step, 1) for site in range(9) for step in range(2000)]
    n = len(factors)
    assert statistics.fmean(factors) == pytest.approx(1.0, abs=6 * cv / math.sqrt(n))
    assert statistics.stdev(factors) == pytest.approx(cv, rel=0.2)
    assert min(factors) > 0


@pytest.mark.parametrize(
    ("delay", "mean_s"),
    [
        (Constant(delay_s=0.5), 0.5),
        (Lognormal(mu=-2.0, sigma=1.0), math.exp(-1.5)),  # the paper's 0.22 s
        (Exponential(mean_s=0.3), 0.3),
        (Uniform(low_s=0.1, high_s=0.3), 0.2),
    ],
)
def test_an_added_delay_has_the_mean_it_names(delay: Distribution, mean_s: float) -> None:
    model = ComputeModel(Compute(samples_per_s=1.0, added_delay=delay), NAMES, seed=0)
    delays_s = [model.added_s(site, step) for site in range(9) for step in range(2000)]
    assert statistics.fmean(delays_s) == pytest.approx(mean_s, rel=0.05)
    assert min(delays_s) >= 0


NO_SPREAD: list[Distribution] = [
    Lognormal(cv=0.0),
    Exponential(cv=0.0),
    Uniform(spread=0.0),
]


@pytest.mark.parametrize("jitter", NO_SPREAD)
def test_jitter_without_spread_is_none(jitter: Distribution) -> None:
    model = ComputeModel(Compute(samples_per_s=4.0, jitter=jitter), NAMES, seed=0)
    assert model.work_s(3, 3, 10) == 2.5


@pytest.mark.parametrize(
    "law",
    [
        Lognormal(cv=100.0),
        Exponential(cv=1.0),
        Uniform(spread=1.0),
        Lognormal(mu=50.0, sigma=10.0),
        Exponential(mean_s=1.0),
        Uniform(low_s=0.0, high_s=1.0),
    ],
)
@pytest.mark.parametrize("share", [2.0**-53, 1 - 2.0**-53])
def test_the_most_extreme_draw_is_finite_and_not_negative(law: Distribution, share: float) -> None:
    assert 0 <= law.quantile(share) < math.inf


# slowdowns

PIECES = st.lists(st.tuples(st.floats(0.01, 50.0), st.floats(0.05, 20.0)), min_size=1, max_size=6)


def slowdowns_of(pieces: list[tuple[float, float]]) -> Slowdowns:
    starts_s, at_s = [], 0.0
    for length_s, _ in pieces:
        starts_s.append(at_s)
        at_s += length_s
    return Slowdowns(starts_s=tuple(starts_s), factors=tuple(factor for _, factor in pieces))


def test_work_is_stretched_by_the_factor_of_each_piece_it_runs_through() -> None:
    slow = Slowdowns(starts_s=(0.0, 60.0, 120.0), factors=(1.0, 4.0, 1.0))
    assert slow.takes_s(0.0, 10.0) == 10.0
    assert slow.takes_s(50.0, 10.0) == 10.0
    assert slow.takes_s(50.0, 12.0) == 18.0
    assert slow.takes_s(60.0, 15.0) == 60.0
    assert slow.takes_s(50.0, 10.0 + 15.0 + 3.0) == 73.0
    assert slow.takes_s(500.0, 1.0) == 1.0
    assert slow.takes_s(80.0, 0.0) == 0.0
    assert slow.work_s(50.0, 123.0) == 28.0


def test_a_factor_that_never_changes_multiplies_exactly() -> None:
    slow = Slowdowns(starts_s=(0.0,), factors=(3.0,))
    assert slow.takes_s(0.1, 0.7) == 3.0 * 0.7


@given(PIECES, st.floats(0.0, 200.0), st.floats(0.0, 100.0))
def test_the_work_done_until_it_is_finished_is_the_work(
    pieces: list[tuple[float, float]], start_s: float, work_s: float
) -> None:
    slow = slowdowns_of(pieces)
    assert slow.work_s(start_s, start_s + slow.takes_s(start_s, work_s)) == pytest.approx(
        work_s, rel=1e-9, abs=1e-9
    )


@given(PIECES, st.floats(0.0, 100.0), st.floats(0.01, 50.0))
def test_integration_is_what_small_steps_sum_to(
    pieces: list[tuple[float, float]], start_s: float, work_s: float
) -> None:
    slow = slowdowns_of(pieces)
    takes_s = slow.takes_s(start_s, work_s)
    small_s = takes_s / 2000
    middles_s = [start_s + (i + 0.5) * small_s for i in range(2000)]
    summed_s = sum(small_s / slow.factors[bisect_right(slow.starts_s, m) - 1] for m in middles_s)
    # each change of factor is missed by at most half a small step
    missed_s = len(pieces) * small_s / min(slow.factors)
    assert summed_s == pytest.approx(work_s, abs=missed_s + 1e-9)


@given(PIECES, st.floats(0.0, 100.0), st.floats(0.0, 50.0), st.floats(0.0, 50.0))
def test_work_in_two_parts_ends_when_it_does_in_one(
    pieces: list[tuple[float, float]], start_s: float, first_s: float, second_s: float
) -> None:
    slow = slowdowns_of(pieces)
    took_s = slow.takes_s(start_s, first_s)
    assert took_s + slow.takes_s(start_s + took_s, second_s) == pytest.approx(
        slow.takes_s(start_s, first_s + second_s), rel=1e-9, abs=1e-6
    )


@pytest.mark.parametrize(
    ("starts_s", "factors", "complaint"),
    [
        ((), (), "0 start times and 0 factors"),
        ((0.0,), (1.0, 2.0), "1 start times and 2 factors; give the same number"),
        ((5.0,), (1.0,), "slowdowns start at 5 s; say the factor from 0 s on"),
        ((0.0, 2.0, 2.0), (1.0, 2.0, 3.0), "start 2 s after 2 s; give finite start times"),
        ((0.0, math.nan), (1.0, 2.0), "start nan s after 0 s"),
        ((0.0,), (0.0,), "factor 0, which must be finite and > 0; model"),
        ((0.0,), (math.inf,), "factor inf"),
        ((0.0,), (math.nan,), "factor nan"),
    ],
)
def test_slowdowns_that_make_no_sense_are_refused(
    starts_s: tuple[float, ...], factors: tuple[float, ...], complaint: str
) -> None:
    with pytest.raises(ComputeError, match=complaint):
        Slowdowns(starts_s=starts_s, factors=factors)


# uneven fleets


def gini(values: Sequence[float]) -> float:
    """Return the mean difference over twice the mean."""
    n, mean = len(values), statistics.fmean(values)
    return sum(abs(a - b) for a in values for b in values) / (2 * n**2 * mean)


@given(st.integers(1, 200), st.floats(1e-3, 1e9), st.floats(0.0, 0.99), st.integers(0, 2**64))
def test_a_fleet_has_exactly_the_mean_and_gini_asked_for(
    sites: int, mean: float, share: float, seed: int
) -> None:
    asked = share * (sites - 1) / sites
    speeds = uneven_samples_per_s(sites, mean, asked, seed)
    assert len(speeds) == sites
    assert min(speeds) > 0
    assert gini(speeds) == pytest.approx(asked, abs=1e-9)
    assert statistics.fmean(speeds) == pytest.approx(mean, rel=1e-9)


@pytest.mark.parametrize("asked", [0.1, 0.3, 0.6])
def test_seconds_a_sample_are_as_uneven_as_samples_a_second(asked: float) -> None:
    speeds = uneven_samples_per_s(12, 300.0, asked, seed=5)
    assert gini([1 / speed for speed in speeds]) == pytest.approx(asked, abs=1e-9)


def test_a_fleet_is_lognormal_in_shape() -> None:
    speeds = sorted(uneven_samples_per_s(1000, 1.0, 0.3, seed=0))
    # of a log-normal, the Gini coefficient is erf(sigma / 2)
    sigma = statistics.pstdev(map(math.log, speeds))
    assert math.erf(sigma / 2) == pytest.approx(0.3, rel=0.01)
    assert math.log(speeds[500]) == pytest.approx(-(sigma**2) / 2, rel=0.05)


def test_the_seed_deals_the_speeds_to_the_sites() -> None:
    fleets = [uneven_samples_per_s(12, 1.0, 0.3, seed) for seed in range(20)]
    assert fleets[0] == uneven_samples_per_s(12, 1.0, 0.3, 0)
    assert len(set(fleets)) == 20
    assert len({tuple(sorted(fleet)) for fleet in fleets}) == 1
    assert len({fleet.index(max(fleet)) for fleet in fleets}) > 5


def test_a_fleet_all_alike_has_the_mean_everywhere() -> None:
    assert uneven_samples_per_s(7, 0.1, 0.0, seed=0) == (0.1,) * 7


@pytest.mark.parametrize(
    ("sites", "asked"), [(9, 8 / 9), (9, 0.95), (2, 0.5), (1, 0.1), (9, -0.1), (9, math.nan)]
)
def test_more_unevenness_than_there_can_be_is_refused(sites: int, asked: float) -> None:
    with pytest.raises(ComputeError, match=rf"{sites} sites cannot .* less than {sites - 1}/"):
        uneven_samples_per_s(sites, 1.0, asked, seed=0)


def test_unevenness_that_leaves_a_site_no_speed_is_refused() -> None:
    with pytest.raises(ComputeError, match="no speed at all; lower it or add sites"):
        uneven_samples_per_s(2000, 1.0, math.nextafter(1999 / 2000, 0), seed=0)


def test_the_model_deals_the_fleet_that_its_table_asks_for() -> None:
    model = ComputeModel(Compute(samples_per_s=300.0, gini=0.6), NAMES, seed=4)
    speeds = uneven_samples_per_s(9, 300.0, 0.6, 4)
    assert [300 / model.work_s(site, 0, 300) for site in range(9)] == pytest.approx(speeds)
    with pytest.raises(ComputeError, match=r"^compute\.gini: 9 sites cannot have .* 0\.9"):
        ComputeModel(Compute(samples_per_s=300.0, gini=0.9), NAMES, seed=4)


def test_the_room_knows_no_other_room() -> None:
    allowed = "anabranch.fleet", "anabranch._typed_toml"
    files = [*Path(fleet.__file__).parent.glob("*.py")]
    assert files
    for file in files:
        modules = {node.module or "" for node in nodes(file) if isinstance(node, ast.ImportFrom)}
        ours = {module for module in modules if module.startswith("anabranch")}
        assert not [each for each in ours if not each.startswith(allowed)]
