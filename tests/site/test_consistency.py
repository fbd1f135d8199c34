"""Plans change every round, and chunks take paths that some sites have not heard of."""

from __future__ import annotations

import pytest

from anabranch.sim.loop import run_virtually

from .interleavings import play


@pytest.mark.parametrize(
    "block", [0, *(pytest.param(block, marks=pytest.mark.slow) for block in range(1, 8))]
)
def test_whatever_the_timing_nothing_is_lost_and_every_mean_is_exact(block: int) -> None:
    for seed in range(25 * block, 25 * (block + 1)):
        run_virtually(play(seed))
