"""Who is barred, for how long, and that no more are than are allowed to be."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.merge import DataSize, OutlierFilter, Product, Staleness, cosine, filter_of


def test_only_so_many_in_a_row_bar_a_client() -> None:
    judge = OutlierFilter(beta=0.5, patience=3).start()
    told = [judge.saw(4, each, 1, 10) for each in (0.1, 0.2, 0.6, 0.1, 0.49, 0.5, -1, -1, -1, -1)]
    assert told == [False] * 8 + [True, False]
    assert judge.barred == {4: 1}


def test_a_blacklist_ends_and_its_count_begins_anew() -> None:
    judge = OutlierFilter(patience=2, ends_after=5).start()
    assert not judge.saw(1, 0.0, 1, 4)
    assert judge.saw(1, 0.0, 2, 4)
    assert judge.over(6) == ()
    assert judge.over(7) == (1,)
    assert judge.over(8) == (1,)
    judge.readmit(1)
    assert judge.over(8) == ()
    assert not judge.saw(1, 0.0, 9, 4)
    assert judge.saw(1, 0.0, 10, 4)


def test_without_an_end_it_is_for_ever() -> None:
    judge = OutlierFilter(patience=1).start()
    assert judge.saw(1, 0.0, 1, 4)
    assert judge.over(10**9) == ()
    assert judge.eldest() == ()


def test_those_barred_for_longest_are_let_in_first() -> None:
    judge = OutlierFilter(patience=1, ends_after=9).start()
    assert judge.eldest() == ()
    for version, client in enumerate((5, 2, 7), 1):
        assert judge.saw(client, 0.0, version, 8)
    assert judge.saw(4, 0.0, 1, 8)
    assert judge.eldest() == (5, 4)
    assert judge.eldest(among=(2, 7)) == (2,)
    assert judge.eldest(among=(0,)) == ()


@pytest.mark.parametrize("seed", range(20))
def test_no_more_are_barred_than_may_be(seed: int) -> None:
    rng = np.random.default_rng(seed)
    most, clients = float(rng.uniform()), int(rng.integers(1, 30))
    judge = OutlierFilter(beta=0.9, patience=1, most=most, ends_after=7).start()
    for version in range(200):
        judge.saw(int(rng.integers(clients)), float(rng.uniform(-1, 1)), version, clients)
        assert len(judge.barred) <= most * clients
        for client in judge.over(version):
            judge.readmit(client)


def test_a_cosine_is_of_the_angle_and_parts_add_up_to_the_whole() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 100))
    whole = cosine(a @ b, a @ a, b @ b)
    assert whole == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    parts = [slice(0, 30), slice(30, 100)]
    sums = [sum(x[p] @ y[p] for p in parts) for x, y in ((a, b), (a, a), (b, b))]
    assert cosine(*sums) == pytest.approx(whole)
    assert cosine(0.0, 0.0, 1.0) == 1.0
    assert cosine(1e300, 1e300, 1e300) == 1.0
    assert cosine(5e299, 1e300, 1e300) == pytest.approx(0.5)  # whose product overflows
    assert cosine(5e-301, 1e-300, 1e-300) == pytest.approx(0.5)  # and underflows


def test_a_filter_is_found_in_a_product_and_only_one_may_be() -> None:
    rule = OutlierFilter(beta=0.1)
    assert filter_of(Product(of=(DataSize(), rule))) is rule
    assert filter_of(Staleness()) is None
    with pytest.raises(ValueError, match="several outlier filters; leave one"):
        Product(of=(rule, OutlierFilter()))


def test_as_many_are_barred_as_a_part_of_them_is() -> None:
    """0.29 times 100 is a little less than 29 in floating point."""
    judge = OutlierFilter(patience=1, most=0.29).start()
    barred = [judge.saw(client, -1.0, 1, 100) for client in range(40)]
    assert sum(barred) == 29
