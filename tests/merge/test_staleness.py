"""Polynomial decay, against eq. 9 by hand."""

from __future__ import annotations

import pytest

from anabranch.merge import Staleness, UpdateFacts


@pytest.mark.parametrize(
    ("a", "staleness", "weight"),
    [
        (1.0, 1, 0.5),
        (0.5, 3, 0.5),
        (0.5, 8, 1 / 3),
        (2.0, 4, 0.04),
        (0.8, 1, 0.5743491774985174),
        (0.8, 31, 0.0625),
    ],
)
def test_an_update_s_versions_late_weighs_what_equation_9_says(
    a: float, staleness: int, weight: float
) -> None:
    found = Staleness(a=a).weight(UpdateFacts(staleness, 1, 1))
    assert found == pytest.approx(weight, rel=1e-15)


@pytest.mark.parametrize("staleness", [0, 1, 7, 10**9])
def test_a_factor_of_0_forgives_any_staleness_to_the_bit(staleness: int) -> None:
    assert Staleness(a=0.0).weight(UpdateFacts(staleness, 1, 1)) == 1.0


@pytest.mark.parametrize("a", [0.0, 1e-300, 0.8, 1e300])
def test_an_update_that_is_not_stale_weighs_1_to_the_bit(a: float) -> None:
    assert Staleness(a=a).weight(UpdateFacts(0, 1, 1)) == 1.0


@pytest.mark.parametrize("a", [-0.1, float("nan"), float("inf")])
def test_a_factor_out_of_range_is_refused(a: float) -> None:
    with pytest.raises(ValueError, match=f"a is {a:g}, which must be finite and 0 or more"):
        Staleness(a=a)
