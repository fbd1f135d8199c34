"""A site's accuracy is that of the classes it has, and sites are as far apart as they are."""

from __future__ import annotations

import pytest

from anabranch.log.by_site import Spread, accuracy_of, spread_of


def test_a_site_with_one_class_has_its_accuracy() -> None:
    assert accuracy_of([0, 7], [0.25, 0.75]) == 0.75


def test_sites_that_share_the_held_out_samples_share_the_models_accuracy() -> None:
    # 30 held-out samples of the first class and 10 of the second: half of those and all of these.
    assert accuracy_of([300, 100], [0.5, 1.0]) == 25 / 40


@pytest.mark.parametrize(
    ("samples", "by_class"),
    [([0, 0], [0.5, 0.5]), ([3, 1], [0.5, None]), ([3, 1], [0.5]), ([], [])],
)
def test_what_is_not_known_is_none(samples: list[int], by_class: list[float | None]) -> None:
    assert accuracy_of(samples, by_class) is None


def test_a_class_that_a_site_has_not_need_not_be_known() -> None:
    assert accuracy_of([3, 0], [0.5, None]) == 0.5


def test_the_variance_counts_each_site_once() -> None:
    assert spread_of([0.6, 0.7, 0.8]) == Spread(pytest.approx(200 / 3), 0.6, 0.8)
    assert spread_of([0.5]) == Spread(0.0, 0.5, 0.5)
    assert spread_of([]) is None
