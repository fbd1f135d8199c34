import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.learn.partition import partition_evenly


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
