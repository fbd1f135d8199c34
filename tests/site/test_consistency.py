"""Plans change every round, and chunks take paths that some sites have not heard of."""

from __future__ import annotations

import pytest

from anabranch.sim.loop import run_virtually

from .interleavings import play
from .test_served import seeds


@pytest.mark.parametrize("block", seeds(1, 20))
def test_whatever_the_timing_nothing_is_lost_and_every_mean_is_exact(block: int) -> None:
    for seed in range(5 * block, 5 * (block + 1)):
        run_virtually(play(seed))
