"""Several rules at once, against eq. 10 by hand."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch._typed_toml import Table, TomlError, decode_toml
from anabranch.merge import AnyMerge, DataSize, Fairness, Mean, Product, Staleness, UpdateFacts


def test_haaf_weighs_by_data_fairness_and_staleness() -> None:
    """5,000 of 60,000 samples; 100 * 1.5 / (100 * 1.5 + 30) = 5 / 6; 9 versions, 10 ** -0.8."""
    update = UpdateFacts(9, 5_000, 60_000, mean_loss=1.5, squared_norm=30.0)
    haaf = Product(of=(DataSize(), Fairness(q=1.0, lipschitz=100.0), Staleness(a=0.8)))
    assert haaf.weight(update) == pytest.approx(1 / 12 * 5 / 6 * 10**-0.8, rel=1e-14)


@given(
    *(st.integers(0, 1000), st.integers(1, 10**6), st.floats(1e-3, 1e3), st.floats(0, 1e6)),
    *(st.floats(0, 3), st.floats(0, 5)),
)
def test_the_order_of_rules_changes_no_bit(
    staleness: int, samples: int, loss: float, squared_norm: float, a: float, q: float
) -> None:
    update = UpdateFacts(staleness, samples, 10**6, loss, squared_norm)
    rules = (DataSize(), Staleness(a=a), Fairness(q=q), Mean())
    assert len({Product(of=order).weight(update) for order in permutations(rules)}) == 1


@given(st.integers(0, 1000), st.floats(0, 3))
def test_a_rule_alone_or_beside_the_mean_keeps_its_weight_to_the_bit(
    staleness: int, a: float
) -> None:
    update, rule = UpdateFacts(staleness, 1, 3), Staleness(a=a)
    for product in (Product(of=(rule,)), Product(of=(Mean(), rule))):
        assert product.weight(update) == rule.weight(update)


def test_what_a_rule_refuses_its_product_refuses() -> None:
    with pytest.raises(ValueError, match="without its mean_loss"):
        Product(of=(DataSize(), Fairness())).weight(UpdateFacts(0, 1, 2))


class File(Table, frozen=True, kw_only=True):
    merge: AnyMerge


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("of = []", "merge: a product of no rules; give one or more, or take kind"),
        ('of = [{kind = "mean"}, {kind = "stale"}]', r"merge\.of\[1\]\.kind: .*'staleness'"),
        ('of = [{kind = "staleness", a = -1}]', r"merge\.of\[0\]: a is -1, which must be"),
        ('of = [{kind = "product", of = []}]', r"merge\.of\[0\]\.kind: no such kind 'product'"),
    ],
)
def test_what_is_wrong_is_named_with_its_key(text: str, complaint: str) -> None:
    with pytest.raises(TomlError, match=f"^{complaint}"):
        decode_toml(f'merge = {{kind = "product", {text}}}', File)
