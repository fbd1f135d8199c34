"""The fairness weight, against eq. 8 by hand and where the bound is tight."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.merge import Fairness, UpdateFacts


def update(loss: float | None, squared_norm: float | None) -> UpdateFacts:
    return UpdateFacts(0, 1, 1, loss, squared_norm)


@pytest.mark.parametrize(
    ("q", "lipschitz", "loss", "squared_norm", "weight"),
    [
        (1.0, 100.0, 2.0, 50.0, 200 / 250),
        (2.0, 10.0, 3.0, 5.0, 90 / (90 + 2 * 3 * 5)),
        (0.5, 4.0, 4.0, 16.0, 8 / (8 + 0.5 * 0.5 * 16)),
        (5.0, 100.0, 0.5, 20.0, 3.125 / (3.125 + 5 * 0.0625 * 20)),
    ],
)
def test_an_update_weighs_what_equation_8_says(
    q: float, lipschitz: float, loss: float, squared_norm: float, weight: float
) -> None:
    found = Fairness(q=q, lipschitz=lipschitz).weight(update(loss, squared_norm))
    assert found == pytest.approx(weight, rel=1e-15)


@given(
    *(st.floats(0.01, 8.0), st.floats(0.1, 1e4), st.floats(1e-3, 1e3), st.floats(0, 1e6)),
)
def test_the_short_form_is_equation_8(
    q: float, lipschitz: float, loss: float, squared_norm: float
) -> None:
    above = lipschitz * loss**q
    literal = above / (above + q * loss ** (q - 1) * squared_norm)
    short = Fairness(q=q, lipschitz=lipschitz).weight(update(loss, squared_norm))
    assert short == pytest.approx(literal, rel=1e-12)


@given(st.floats(0, 10.0), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_a_parabola_weighs_the_least_that_a_smooth_loss_can(q: float, c: float, x: float) -> None:
    """f = c x² / 2 has Lipschitz constant c and |f'|² = 2 c f, the most there is."""
    found = Fairness(q=q, lipschitz=c).weight(update(c * x * x / 2, c * c * x * x))
    assert found == pytest.approx(1 / (1 + 2 * q), rel=1e-12)


@pytest.mark.parametrize("facts", [(2.0, 50.0), (0.0, 1.0), (-1.0, 1.0), (None, None)])
def test_a_factor_of_0_weighs_all_alike_to_the_bit(
    facts: tuple[float | None, float | None],
) -> None:
    assert Fairness(q=0.0, lipschitz=100.0).weight(update(*facts)) == 1.0


@pytest.mark.parametrize("q", [0.5, 1.0, 2.0])
def test_a_loss_of_0_weighs_1_without_a_gradient_and_else_what_it_tends_to(q: float) -> None:
    rule = Fairness(q=q, lipschitz=100.0)
    assert rule.weight(update(0.0, 0.0)) == 1.0
    assert rule.weight(update(0.0, 1e-8)) == 0.0
    tending = [rule.weight(update(loss, 1e-8)) for loss in (1e-8, 1e-12, 1e-20, 1e-300)]
    assert tending == sorted(tending, reverse=True)
    assert tending[-1] < 1e-280


def test_the_largest_and_the_smallest_numbers_do_no_harm() -> None:
    huge, tiny = 1e308, 5e-324
    rule = Fairness(q=huge, lipschitz=tiny)
    assert rule.weight(update(tiny, huge)) == 0.0
    assert Fairness(q=tiny, lipschitz=huge).weight(update(huge, tiny)) == 1.0


@pytest.mark.parametrize(
    ("loss", "squared_norm", "complaint"),
    [
        (None, 1.0, "without its mean_loss, .* or set q = 0"),
        (1.0, None, "without its squared_norm, .* or set q = 0"),
        (-0.5, 1.0, "mean_loss is -0.5, and fairness weighs losses that are never negative"),
    ],
)
def test_an_update_that_cannot_be_weighed_is_refused(
    loss: float | None, squared_norm: float | None, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        Fairness().weight(update(loss, squared_norm))


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"q": -1.0}, "q is -1, which must be finite and 0 or more"),
        ({"q": math.nan}, "q is nan"),
        ({"lipschitz": 0.0}, "lipschitz is 0, which must be finite and > 0"),
        ({"lipschitz": math.inf}, "lipschitz is inf"),
    ],
)
def test_a_parameter_out_of_range_is_refused(keys: dict[str, float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Fairness(**keys)
