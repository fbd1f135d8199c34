"""What every merge rule must hold to, whatever an update is like."""

from __future__ import annotations

import ast
import math
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import anabranch.merge as room
from anabranch._typed_toml import Table, decode_toml, tag_of
from anabranch.merge import (
    MERGES,
    AnyMerge,
    DataSize,
    Fairness,
    Krum,
    Mean,
    Median,
    OutlierFilter,
    Product,
    Staleness,
    TrimmedMean,
    UpdateFacts,
)

from ..parsed import nodes

EACH: list[AnyMerge] = [
    Mean(),
    DataSize(),
    *(Staleness(a=a) for a in (0.8, 0.0, 1e-9, 3.0)),
    *(Fairness(q=q, lipschitz=lipschitz) for q, lipschitz in ((1, 100), (0, 1), (0.5, 1e-3))),
    Fairness(q=5.0, lipschitz=10.0),
    Product(of=(DataSize(), Fairness(), Staleness())),
    Product(of=(Staleness(a=0.3), Staleness(a=0.4), Mean())),
    OutlierFilter(ends_after=20),
    Product(of=(DataSize(), OutlierFilter(ends_after=7, most=0.5))),
    TrimmedMean(trim=0.1),
    Median(),
    Krum(keep=3),
]

STALENESSES = st.integers(0, 10**6)
SAMPLES = st.integers(1, 10**9)
LOSSES = st.floats(1e-6, 1e6)
SQUARED_NORMS = st.floats(0, 1e12)


@st.composite
def facts(
    draw: st.DrawFn,
    staleness: st.SearchStrategy[int] = STALENESSES,
    losses: st.SearchStrategy[float] = LOSSES,
    squared_norms: st.SearchStrategy[float] = SQUARED_NORMS,
) -> UpdateFacts:
    first, second = sorted((draw(SAMPLES), draw(SAMPLES)))
    return UpdateFacts(draw(staleness), first, second, draw(losses), draw(squared_norms))


def test_no_rule_is_left_out() -> None:
    assert {type(rule) for rule in EACH} == set(MERGES)


@given(update=facts())
def test_a_weight_is_above_0_and_1_at_most(update: UpdateFacts) -> None:
    for rule in EACH:
        assert 0 < rule.weight(update) <= 1, rule


FINITE = st.floats(0, sys.float_info.max)


@given(update=facts(losses=FINITE, squared_norms=FINITE))
def test_no_loss_and_no_norm_gives_a_weight_outside_0_to_1(update: UpdateFacts) -> None:
    for rule in EACH:
        assert 0 <= rule.weight(update) <= 1, rule


@given(samples=SAMPLES, loss=st.floats(0, 1e300))
def test_a_fresh_update_of_all_sites_without_a_gradient_weighs_1_to_the_bit(
    samples: int, loss: float
) -> None:
    for rule in EACH:
        assert rule.weight(UpdateFacts(0, samples, samples, loss, 0.0)) == 1.0, rule


def with_(update: UpdateFacts, **changed: float) -> UpdateFacts:
    kept = {name: getattr(update, name) for name in UpdateFacts.__slots__}
    return UpdateFacts(**{**kept, **changed})


@given(update=facts(), ages=st.tuples(STALENESSES, STALENESSES))
def test_a_staler_update_weighs_no_more(update: UpdateFacts, ages: tuple[int, int]) -> None:
    younger, older = (with_(update, staleness=age) for age in sorted(ages))
    for rule in EACH:
        assert rule.weight(older) <= rule.weight(younger), rule


@given(update=facts(), losses=st.tuples(LOSSES, LOSSES))
def test_an_update_of_a_higher_loss_weighs_no_less(
    update: UpdateFacts, losses: tuple[float, float]
) -> None:
    low, high = (with_(update, mean_loss=loss) for loss in sorted(losses))
    for rule in EACH:
        assert rule.weight(low) <= rule.weight(high), rule


@given(update=facts(), norms=st.tuples(SQUARED_NORMS, SQUARED_NORMS))
def test_a_larger_gradient_weighs_no_more(update: UpdateFacts, norms: tuple[float, float]) -> None:
    small, large = (with_(update, squared_norm=norm) for norm in sorted(norms))
    for rule in EACH:
        assert rule.weight(large) <= rule.weight(small), rule


@given(update=facts(), sizes=st.tuples(SAMPLES, SAMPLES))
def test_an_update_from_more_samples_weighs_no_less(
    update: UpdateFacts, sizes: tuple[int, int]
) -> None:
    few, many = (with_(update, samples=size, all_samples=10**9) for size in sorted(sizes))
    for rule in EACH:
        assert rule.weight(few) <= rule.weight(many), rule


class _File(Table, frozen=True, kw_only=True):
    merge: AnyMerge


@given(update=facts())
def test_equal_rules_weigh_equal_facts_alike_to_the_bit(update: UpdateFacts) -> None:
    for rule in EACH:
        again = decode_toml(spell(rule), _File).merge
        assert again == rule
        assert hash(again) == hash(rule)
        assert again.weight(with_(update)) == rule.weight(update)


def spell(rule: AnyMerge) -> str:
    """Return a rule as a scenario's line."""

    def table(rule: AnyMerge) -> str:
        keys = [f'kind = "{tag_of(rule)}"']
        for name in rule.__struct_fields__:
            value = getattr(rule, name)
            keys.append(f"{name} = {list_of(value) if isinstance(value, tuple) else repr(value)}")
        return "{" + ", ".join(keys) + "}"

    def list_of(several: tuple[AnyMerge, ...]) -> str:
        return "[" + ", ".join(map(table, several)) + "]"

    return f"merge = {table(rule)}"


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"staleness": -1}, "staleness is -1, which must be 0 or more"),
        ({"samples": 0}, r"samples is 0, which must be in 1\.\.9"),
        ({"samples": -3}, "samples is -3"),
        ({"samples": 10}, "samples is 10, .* the samples of all sites"),
        ({"mean_loss": math.nan}, "mean_loss is nan, which must be finite; .* diverged"),
        ({"mean_loss": math.inf}, "mean_loss is inf"),
        ({"squared_norm": math.nan}, "squared_norm is nan"),
        ({"squared_norm": math.inf}, "squared_norm is inf"),
        ({"squared_norm": -1.0}, "squared_norm is -1, which must be finite and 0 or more"),
    ],
)
def test_facts_that_cannot_be_are_refused(changed: dict[str, float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        with_(UpdateFacts(2, 3, 9, 0.5, 4.0), **changed)


def test_the_room_knows_numbers_and_nothing_else() -> None:
    for file in Path(room.__file__).parent.glob("*.py"):
        for node in nodes(file):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            ours = [name for name in names if name.startswith("anabranch.")]
            own = "anabranch.merge", "anabranch._typed"
            assert not [each for each in ours if not each.startswith(own)]
            others = {name for name in names if name not in ours}
            allowed = {"__future__", "collections.abc", "dataclasses", "math", "typing", "msgspec"}
            assert others <= allowed | {"numpy", "numpy.typing"}, file


def test_the_public_list_is_sorted_and_real() -> None:
    assert room.__all__ == sorted(room.__all__, key=lambda name: (not name.isupper(), name))
    modules = {path.stem for path in Path(room.__file__).parent.glob("*.py")}
    public = {name for name in vars(room) if not name.startswith("_")}
    assert public - modules == set(room.__all__)
