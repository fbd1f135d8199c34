"""Robust rules against brute force, and against updates that may be anything."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from anabranch.merge import Krum, Median, Robust, TrimmedMean
from anabranch.merge._robust import _BLOCK_ELEMENTS

from ..every import every

RULES = [TrimmedMean(trim=0.3), Median(), Krum(bad=0.3), Krum(bad=0.3, keep=4)]


def draw(seed: int, count: int, elements: int = 50) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return list(rng.normal(size=(count, elements)).astype(np.float32))


@pytest.mark.parametrize("count", [1, 2, 3, 7, 10])
def test_the_trimmed_mean_is_that_of_what_is_left(count: int) -> None:
    updates = draw(count, count)
    cut = int(0.3 * count)
    kept = np.sort(np.stack(updates), axis=0)[cut : count - cut]
    assert np.allclose(TrimmedMean(trim=0.3).combine(updates), kept.mean(axis=0), atol=1e-6)
    assert np.allclose(Median().combine(updates), np.median(np.stack(updates), axis=0))


def test_krum_takes_the_update_with_the_least_sum_of_nearest_distances() -> None:
    updates = draw(3, 9)
    bad = 3  # of nine, rounded up from 0.3
    scores = []
    for one in updates:
        apart = [float(np.sum((one - other) ** 2)) for other in updates if other is not one]
        scores.append(min(sum(some) for some in combinations(apart, 9 - bad - 2)))
    best = sorted(range(9), key=scores.__getitem__)
    assert np.allclose(Krum(bad=0.3).combine(updates), updates[best[0]])
    kept = np.mean([updates[k] for k in best[:4]], axis=0)
    assert np.allclose(Krum(bad=0.3, keep=4).combine(updates), kept, atol=1e-6)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("evil", [1e6, -1e30, 3e38, math.inf, math.nan])
def test_a_few_bad_updates_cannot_lead_astray(rule: Robust, evil: float) -> None:
    good = draw(5, 8)
    bad = [np.full(50, evil, np.float32)] * 2
    with np.errstate(over="ignore", invalid="ignore"):
        found = rule.combine([*good[:3], *bad, *good[3:]])
    assert np.all(found >= np.min(good, axis=0))
    assert np.all(found <= np.max(good, axis=0))


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_blocks_change_nothing(rule: Robust) -> None:
    elements = _BLOCK_ELEMENTS + 3
    updates = draw(1, 5, elements)
    found = rule.combine(updates)
    assert found.shape == (elements,)
    assert found.dtype == np.float32
    if not isinstance(rule, Krum):
        tail = rule.combine([each[-5:] for each in updates])
        assert np.array_equal(found[-5:], tail)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_updates_that_agree_stay_as_they_are_and_are_not_changed(rule: Robust) -> None:
    update = draw(2, 1)[0]
    updates = [update.copy() for _ in range(6)]
    assert np.allclose(rule.combine(updates), update)
    assert every(np.array_equal(each, update) for each in updates)


@pytest.mark.parametrize(("trim", "count", "cut"), [(0.29, 100, 29), (0.2, 5, 1), (0.3, 10, 3)])
def test_as_many_are_left_out_as_a_part_of_them_is(trim: float, count: int, cut: int) -> None:
    """0.29 times 100 is a little less than 29 in floating point."""
    values = [np.float32([k if k < count - cut else 1e9]) for k in range(count)]
    found = TrimmedMean(trim=trim).combine(values)
    assert found == pytest.approx(np.mean(range(cut, count - cut)))


@pytest.mark.parametrize("seed", range(20))
def test_a_robust_step_is_no_further_from_the_good_ones_than_they_are_from_each_other(
    seed: int,
) -> None:
    """Whatever as many adversaries send as each rule allows for, and however large it is."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(5, 14))
    bad = int(0.3 * count)
    good = rng.normal(size=(count - bad, 30)).astype(np.float32)
    size = 10.0 ** rng.uniform(-2, 18)
    evil = (rng.normal(size=(bad, 30)) * size).astype(np.float32)
    if rng.random() < 0.5:  # together
        evil[:] = evil[:1] if bad else evil
    updates = list(rng.permutation(np.concatenate([good, evil])))
    for rule in (TrimmedMean(trim=0.3), Median()):
        found = rule.combine(updates)
        assert np.all(found >= good.min(axis=0) - 1e-6)
        assert np.all(found <= good.max(axis=0) + 1e-6)
    found = Krum(bad=0.3).combine(updates)
    widest = max(float(np.linalg.norm(a - b)) for a in good for b in good)
    assert min(float(np.linalg.norm(found - each)) for each in good) <= widest


def test_krum_keeps_no_more_than_are_not_bad() -> None:
    updates = [np.float32([each]) for each in (1.0, 1.1, 1.2, 1.3, 1e6)]
    assert Krum(bad=0.2, keep=99).combine(updates)[0] == pytest.approx(1.15)
