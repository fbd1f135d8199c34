from typing import get_args

import numpy as np
import pytest

from anabranch._typed_toml import TomlError, decode_toml
from anabranch_lab.tasks.adversaries import AnyAdversaries, LabelFlip, Noise, Scaled
from anabranch_lab.tasks.partition import MixedDirichlet

EACH = [LabelFlip(share=0.3), Noise(share=0.3), Scaled(share=0.3)]
each = pytest.mark.parametrize("bad", EACH, ids=str)
UPDATE = np.random.default_rng(0).normal(size=10_000).astype(np.float32)


def test_no_kind_is_left_out():
    assert {type(bad) for bad in EACH} == set(get_args(AnyAdversaries))


@each
def test_they_are_their_share_of_the_sites_drawn_from_the_seed_alone(bad):
    who = bad.who(50, seed=3)
    assert who.tolist() == sorted({*who.tolist()})
    assert who.size == 15
    assert 0 <= who.min() <= who.max() < 50
    assert who.tolist() == LabelFlip(share=0.3).who(50, seed=3).tolist()
    assert who.tolist() != bad.who(50, seed=4).tolist()


def test_a_larger_share_keeps_those_of_the_smaller():
    before: set[int] = set()
    for share, count in ((0.0, 0), (0.1, 13), (0.2, 26), (0.3, 38), (1.0, 128)):
        who = {*Noise(share=share).who(128, seed=1).tolist()}
        assert len(who) == count
        assert before <= who
        before = who


def test_they_are_drawn_apart_from_the_outliers_of_a_partition():
    """Of a quarter of the sites a quarter are outliers; were they the same, all would be."""
    common = [
        len(
            np.intersect1d(
                Noise(share=0.25).who(128, seed), MixedDirichlet().outlier_sites(128, seed)
            )
        )
        for seed in range(40)
    ]
    assert np.mean(common) == pytest.approx(8, abs=1.5)


@each
def test_what_is_given_is_not_changed(bad):
    labels, update = np.arange(10), UPDATE.copy()
    bad.labels(labels, 10)
    bad.contribution(update, np.random.default_rng(1))
    np.testing.assert_array_equal(labels, np.arange(10))
    np.testing.assert_array_equal(update, UPDATE)


def test_label_flip_turns_labels_round_and_nothing_else():
    bad = LabelFlip(share=0.3)
    assert bad.labels(np.array([0, 1, 4]), 10).tolist() == [9, 8, 5]
    np.testing.assert_array_equal(bad.contribution(UPDATE, np.random.default_rng(1)), UPDATE)


@pytest.mark.parametrize("bad", [Noise(share=0.3), Scaled(share=0.3)], ids=str)
def test_the_others_train_on_the_right_labels(bad):
    assert bad.labels(np.array([0, 1, 4]), 10).tolist() == [0, 1, 4]


@pytest.mark.parametrize("factor", [1.0, 5.0])
def test_noise_has_the_norm_of_the_update_and_no_direction(factor):
    noise = Noise(share=0.3, factor=factor).contribution(UPDATE, np.random.default_rng(1))
    assert noise.dtype == np.float32
    norm = np.linalg.norm(UPDATE)
    assert np.linalg.norm(noise) == pytest.approx(factor * norm, rel=1e-5)
    assert abs(noise @ UPDATE) < 0.05 * np.linalg.norm(noise) * norm
    other = Noise(share=0.3, factor=factor).contribution(UPDATE, np.random.default_rng(2))
    assert (noise != other).any()


@pytest.mark.parametrize("update", [np.zeros(4, np.float32), np.zeros(0, np.float32)])
def test_noise_of_an_update_of_nothing_is_nothing(update):
    noise = Noise(share=1.0).contribution(update, np.random.default_rng(1))
    np.testing.assert_array_equal(noise, update)


@pytest.mark.parametrize("factor", [-10.0, 10.0])
def test_scaled_is_a_multiple_in_float32(factor):
    scaled = Scaled(share=0.3, factor=factor).contribution(UPDATE, np.random.default_rng(1))
    assert scaled.dtype == np.float32
    np.testing.assert_array_equal(scaled, np.float32(factor) * UPDATE)


def test_a_file_spells_them_and_a_share_beyond_one_is_refused():
    assert decode_toml('kind = "scaled"\nshare = 0.1\nfactor = 10', Scaled).factor == 10.0
    with pytest.raises(TomlError, match="share"):
        decode_toml('kind = "noise"\nshare = 1.5', Noise)
