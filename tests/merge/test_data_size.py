"""Shares of data."""

from __future__ import annotations

from anabranch.merge import DataSize, UpdateFacts


def test_the_weights_of_trees_that_share_the_data_add_up_to_1() -> None:
    trees = [UpdateFacts(staleness, samples, 64) for staleness, samples in enumerate((8, 24, 32))]
    assert [DataSize().weight(tree) for tree in trees] == [0.125, 0.375, 0.5]
