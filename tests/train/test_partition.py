from typing import get_args

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from anabranch_lab.tasks.partition import (
    AnyPartition,
    Dirichlet,
    Even,
    MixedDirichlet,
    Quantity,
    Shards,
    partition_evenly,
)

from ..every import every


@settings(deadline=None)
@given(st.integers(1, 300), st.data())
def test_every_sample_goes_to_one_site_and_sizes_differ_by_at_most_one(samples, data):
    sites = data.draw(st.integers(1, samples))
    shards = partition_evenly(samples, sites, data.draw(st.integers(0, 2**32)))
    assert len(shards) == sites
    np.testing.assert_array_equal(np.sort(np.concatenate(shards)), np.arange(samples))
    sizes = [shard.size for shard in shards]
    assert max(sizes) - min(sizes) <= 1


def test_one_seed_gives_one_partition_and_another_seed_another():
    first, again, other = (np.stack(partition_evenly(90, 3, seed)) for seed in (7, 7, 8))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_samples_are_shuffled_before_they_are_dealt():
    assert partition_evenly(1000, 2, seed=0)[0].max() > 900


@pytest.mark.parametrize("sites", [0, -1, 6])
def test_no_site_or_more_sites_than_samples_is_refused(sites):
    with pytest.raises(ValueError, match=f"5 samples to {sites} sites"):
        partition_evenly(5, sites, seed=0)


def labels_of(counts, seed=0):
    """Return so many labels of each class, mixed."""
    labels = np.repeat(np.arange(len(counts)), counts)
    return np.random.default_rng(seed).permutation(labels)


TEN = labels_of([100] * 10)
DEALS_ALL = [Even(), Dirichlet(alpha=2.0), Shards(per_site=2), Quantity(alpha=2.0)]
EACH = [*DEALS_ALL, MixedDirichlet()]
each = pytest.mark.parametrize("partition", EACH, ids=str)


def counts_of(labels, shards):
    """Return how many of each class each site has."""
    classes = np.unique(labels)
    return np.array([[(labels[shard] == label).sum() for shard in shards] for label in classes])


def test_no_partition_is_left_out():
    assert {type(partition) for partition in EACH} == set(get_args(AnyPartition))


@pytest.mark.parametrize("partition", DEALS_ALL, ids=str)
@settings(deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(1, 5), st.integers(0, 2**32)
)
def test_every_sample_goes_to_one_site_and_every_site_has_enough(partition, counts, sites, seed):
    labels = labels_of(counts, seed)
    assume(len(labels) >= 10 * sites)
    shards = partition.deal(labels, sites, seed)
    assert len(shards) == sites
    assert min(shard.size for shard in shards) >= 1
    assert {shard.dtype for shard in shards} == {np.dtype(np.int64)}
    np.testing.assert_array_equal(np.sort(np.concatenate(shards)), np.arange(len(labels)))


@each
def test_the_seed_alone_decides_who_holds_what(partition):
    first, again, other = (
        [shard.tolist() for shard in partition.deal(TEN, 4, seed)] for seed in (7, 7, 8)
    )
    assert first == again != other


@each
def test_each_site_has_as_many_samples_as_are_asked_for(partition):
    for seed in range(20):
        assert min(shard.size for shard in partition.deal(TEN, 4, seed, least=100)) >= 100


@each
def test_more_samples_than_there_are_cannot_be_asked_for(partition):
    with pytest.raises(ValueError, match="sites"):
        partition.deal(TEN, 4, seed=0, least=251)
    with pytest.raises(ValueError, match="1000 samples to 0 sites"):
        partition.deal(TEN, 0, seed=0)


@each
def test_one_site_gets_everything(partition):
    [shard] = partition.deal(TEN, 1, seed=0)
    np.testing.assert_array_equal(np.sort(shard), np.arange(1000))


def test_even_deals_as_ever():
    for mine, before in zip(Even().deal(TEN, 3, 5), partition_evenly(1000, 3, 5), strict=True):
        np.testing.assert_array_equal(mine, before)


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_shares_of_a_class_have_the_spread_of_the_dirichlet_distribution(alpha):
    """The variance of one of N shares is (N - 1) / (N² (N alpha + 1))."""
    labels, sites = labels_of([200] * 10), 6
    shares = [
        counts_of(labels, Dirichlet(alpha=alpha).deal(labels, sites, seed)) / 200
        for seed in range(40)
    ]
    expected = (sites - 1) / (sites**2 * (sites * alpha + 1))
    assert np.mean(shares) == pytest.approx(1 / sites)
    assert np.var(shares) == pytest.approx(expected, rel=0.15)


def test_classes_are_dealt_independently_and_their_samples_mixed():
    labels = np.repeat(np.arange(2), 500)
    shards = Dirichlet(alpha=1.0).deal(labels, 2, seed=0)
    first, second = counts_of(labels, shards)
    assert first.tolist() != second.tolist()
    zeros = np.concatenate([shard[labels[shard] == 0] for shard in shards])
    assert zeros.tolist() != sorted(zeros)


def test_a_large_concentration_deals_every_class_evenly():
    shards = Dirichlet(alpha=1e9).deal(TEN, 4, seed=0)
    assert set(counts_of(TEN, shards).ravel()) == {25}


def test_a_concentration_that_starves_a_site_is_refused_with_the_fix():
    with pytest.raises(ValueError, match=r"alpha is 1e-06, .* raise alpha, or lower batch_size"):
        Dirichlet(alpha=1e-6).deal(labels_of([50, 50]), 3, seed=0)


@pytest.mark.parametrize("per_site", [1, 2, 5])
def test_a_site_with_a_few_shards_has_hardly_more_labels_and_as_many_samples(per_site):
    for seed in range(20):
        shards = Shards(per_site=per_site).deal(TEN, 10, seed)
        counts = counts_of(TEN, shards)
        assert {shard.size for shard in shards} == {100}
        assert ((counts > 0).sum(axis=0) <= per_site).all()  # here no shard has two labels


def test_shards_that_cut_through_labels_add_one_at_most():
    labels = labels_of([37, 20, 43])
    for shard in Shards(per_site=1).deal(labels, 7, seed=0):
        assert len(set(labels[shard])) <= 2


def test_quantity_skews_sizes_and_mixes_labels():
    shards = Quantity(alpha=1.0).deal(TEN, 3, seed=1)
    sizes = sorted(shard.size for shard in shards)
    assert sizes[-1] > 2 * sizes[0]
    shares = counts_of(TEN, shards)[:, np.argmax([shard.size for shard in shards])] / sizes[-1]
    assert shares.max() < 0.2


@pytest.mark.parametrize("partition", [Dirichlet(alpha=1.0), Shards(), MixedDirichlet()], ids=str)
def test_samples_with_several_labels_cannot_be_dealt_by_them(partition):
    with pytest.raises(ValueError, match=r"labels have shape \(9, 4\), not one for each"):
        partition.deal(np.zeros((9, 4), np.int64), 2, seed=0)
    assert partition.by_label


@pytest.mark.parametrize("partition", [Even(), Quantity(alpha=1.0)], ids=str)
def test_samples_with_several_labels_are_dealt_without(partition):
    shards = partition.deal(np.zeros((9, 4), np.int64), 2, seed=0)
    np.testing.assert_array_equal(np.sort(np.concatenate(shards)), np.arange(9))
    assert not partition.by_label


CIFAR = labels_of([5000] * 10)


def test_of_a_mixed_partition_a_few_sites_are_outliers_and_can_be_asked_for():
    partition = MixedDirichlet(alpha=10.0, outlier_alpha=0.1, outliers=0.25)
    shares, of_outliers = [], []
    for seed in range(5):
        shards = partition.deal(CIFAR, 128, seed)
        assert {shard.size for shard in shards} == {390}
        outliers = partition.outlier_sites(128, seed)
        assert outliers.tolist() == sorted({*outliers.tolist()})
        assert outliers.size == 32
        largest = counts_of(CIFAR, shards).max(axis=0) / 390
        of_outliers.append(largest[outliers])
        shares.append(np.delete(largest, outliers))
    # The largest of ten shares has these means at 0.1 and at 10.
    assert np.mean(of_outliers) == pytest.approx(0.66, abs=0.05)
    assert np.mean(shares) == pytest.approx(0.16, abs=0.01)
    assert np.max(shares) < 0.35


def test_who_is_an_outlier_depends_on_the_seed_and_on_no_concentration():
    first, again, other = (
        MixedDirichlet(alpha=alpha).outlier_sites(40, seed).tolist()
        for alpha, seed in ((10.0, 1), (5.0, 1), (10.0, 2))
    )
    assert first == again != other
    assert MixedDirichlet(outliers=0.0).outlier_sites(40, 1).size == 0
    assert MixedDirichlet(outliers=1.0).outlier_sites(40, 1).tolist() == list(range(40))


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=5),
    st.integers(1, 12),
    st.integers(1, 40),
    st.integers(0, 2**32),
)
def test_mixed_sites_are_equally_large_and_share_samples_only_of_classes_that_run_out(
    counts, sites, size, seed
):
    labels = labels_of(counts, seed)
    assume(size <= len(labels))
    shards = MixedDirichlet(samples_per_site=size).deal(labels, sites, seed)
    assert [shard.size for shard in shards] == [size] * sites
    assert every(len(set(shard.tolist())) == size for shard in shards)
    held = np.bincount(np.concatenate(shards), minlength=len(labels))
    for label in range(len(counts)):
        of_class = held[labels == label]
        assert of_class.max() - of_class.min() <= 1


def test_a_mixed_partition_has_no_sample_twice_where_classes_suffice():
    shards = MixedDirichlet(samples_per_site=300).deal(CIFAR, 128, seed=0)
    assert len(np.unique(np.concatenate(shards))) == 128 * 300


def test_a_mixed_partition_deals_to_more_sites_than_there_are_samples():
    shards = MixedDirichlet(samples_per_site=20).deal(TEN, 2000, seed=0)
    assert {shard.size for shard in shards} == {20}
    held = np.bincount(np.concatenate(shards))
    assert held.min() > 20
    with pytest.raises(ValueError, match="1000 samples to 2000 sites"):
        MixedDirichlet().deal(TEN, 2000, seed=0)
    with pytest.raises(ValueError, match="samples_per_site is 1001, and there are 1000"):
        MixedDirichlet(samples_per_site=1001).deal(TEN, 2, seed=0)
    with pytest.raises(ValueError, match="to 0 sites"):
        MixedDirichlet(samples_per_site=1).deal(TEN, 0, seed=0)


def test_samples_of_a_mixed_class_are_shuffled_before_they_are_dealt():
    labels = np.zeros(1000, np.int64)
    shards = MixedDirichlet().deal(labels, 2, seed=0)
    assert shards[0].max() > 900
