"""β-resampling: exact probabilities, and draws that follow them."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from anabranch_lab.tasks._resampling import ResamplingSampler, sample_probabilities


def labels_of(counts):
    """Return so many labels of each class, mixed."""
    labels = np.repeat(np.arange(len(counts)), counts)
    return np.random.default_rng(0).permutation(labels)


COUNTS = st.lists(st.integers(1, 60), min_size=1, max_size=8)


@settings(deadline=None, max_examples=20)
@given(COUNTS, st.floats(0.01, 1 - 2**-53))
def test_probabilities_are_those_of_exact_arithmetic(counts, beta):
    labels, exact_beta = labels_of(counts), Fraction(beta)
    weights = [(1 - exact_beta) / (1 - exact_beta**count) for count in counts]
    total = sum(weight * count for weight, count in zip(weights, counts, strict=True))
    expected = [float(weights[label] / total) for label in labels]
    np.testing.assert_allclose(sample_probabilities(labels, beta), expected, rtol=1e-13)


@given(COUNTS)
def test_without_strength_all_samples_are_as_likely_to_the_bit(counts):
    labels = labels_of(counts)
    assert set(sample_probabilities(labels, 0.0)) == {1 / len(labels)}


def test_a_strength_near_one_makes_labels_as_likely():
    labels = labels_of([1, 10, 1000])
    each = sample_probabilities(labels, math.nextafter(1, 0))
    for label in range(3):
        assert each[labels == label].sum() == pytest.approx(1 / 3, rel=1e-12)


def test_the_papers_strength_by_hand():
    """5,000 and 50 of two labels: effective numbers 993.28 and 48.79, so 0.0468 to 0.9532."""
    labels = labels_of([5000, 50])
    each = sample_probabilities(labels, 0.999)
    effective = [(1 - 0.999**count) / 0.001 for count in (5000, 50)]
    assert effective == pytest.approx([993.279, 48.794], abs=1e-3)
    rare, common = each[labels == 1][0], each[labels == 0][0]
    assert rare / common == pytest.approx(effective[0] / effective[1], rel=1e-12)
    assert each.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("beta", [5e-324, 1e-16, 0.5, 0.999999, 1 - 1e-12, math.nextafter(1, 0)])
def test_a_million_of_one_label_beside_one_of_another_lose_no_digits(beta):
    labels = np.zeros(1_000_001, np.int64)
    labels[-1] = 7
    common, rare = sample_probabilities(labels, beta)[[0, -1]]
    # (1 - beta) / (1 - beta^n) is 1 / (1 + beta + ... + beta^(n - 1)): no difference in it.
    effective = math.fsum(beta ** np.arange(1_000_000.0))
    assert rare / common == pytest.approx(effective, rel=1e-9)


@pytest.mark.parametrize(
    ("labels", "beta", "complaint"),
    [
        ([1, 2], 1.0, r"beta is 1, which must be in \[0, 1\)"),
        ([1, 2], -0.1, "beta is -0.1"),
        ([1, 2], math.nan, "beta is nan"),
        ([], 0.5, r"labels of shape \(0,\); give one for each sample, at least one"),
        ([[1, 2]], 0.5, r"labels of shape \(1, 2\)"),
    ],
)
def test_what_cannot_be_resampled_is_refused(labels, beta, complaint):
    with pytest.raises(ValueError, match=complaint):
        ResamplingSampler(np.array(labels, np.int64), beta, seed=0)


def test_indices_that_are_not_one_for_each_label_are_refused():
    with pytest.raises(ValueError, match=r"indices have shape \(3,\), and there are 2 labels"):
        ResamplingSampler(np.array([0, 1]), 0.5, seed=0, indices=np.arange(3))


@pytest.mark.parametrize("beta", [0.0, 0.9, 0.999])
def test_draws_follow_the_probabilities(beta):
    labels, count = labels_of([40, 8, 2]), 200_000
    drawn = ResamplingSampler(labels, beta, seed=1).draw(count)
    found = np.bincount(drawn, minlength=len(labels)) / count
    expected = sample_probabilities(labels, beta)
    deviations = np.sqrt(expected * (1 - expected) / count)
    assert (np.abs(found - expected) < 5 * deviations).all()


def test_one_seed_draws_alike_and_another_seed_otherwise():
    labels = labels_of([5, 50])
    first, again, other = (
        ResamplingSampler(labels, 0.9, seed).draw(100).tolist() for seed in (3, 3, 4)
    )
    assert first == again != other


def test_what_is_drawn_are_the_indices_that_were_given():
    shard = np.array([70, 10, 40])
    drawn = ResamplingSampler(np.array([0, 0, 1]), 0.9, seed=0, indices=shard).draw(300)
    assert set(drawn) == {10, 40, 70}
    assert drawn.dtype == np.int64


def test_an_epoch_is_what_draws_one_by_one_and_all_at_once_give():
    labels = labels_of([5, 50])
    one_by_one = list(ResamplingSampler(labels, 0.9, seed=3))
    assert one_by_one == ResamplingSampler(labels, 0.9, seed=3).draw(55).tolist()
    assert len(ResamplingSampler(labels, 0.9, seed=3)) == 55


def test_a_sampler_goes_on_from_a_state_within_an_epoch():
    labels = labels_of([5, 50])
    first, second = (ResamplingSampler(labels, 0.9, seed) for seed in (3, 4))
    epoch = iter(first)
    for _ in range(20):
        next(epoch)
    second.load_state_dict(first.state_dict())
    assert second.draw(35).tolist() == list(epoch)


def test_a_loader_of_torch_takes_the_sampler():
    labels = torch.from_numpy(labels_of([40, 8]))
    sampler = ResamplingSampler(labels, 0.99, seed=0)
    loader = DataLoader(TensorDataset(labels), batch_size=16, sampler=sampler)
    seen = torch.cat([batch for [batch] in loader])
    again = ResamplingSampler(labels, 0.99, seed=0)
    assert seen.tolist() == labels[again.draw(48)].tolist()
