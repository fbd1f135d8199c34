"""Plans change every round, and chunks take paths that some sites have not heard of."""

from __future__ import annotations

from anabranch_lab.sim.loop import run_virtually

from ..seeds import seeds
from .interleavings import play


@seeds(1, 20)
def test_whatever_the_timing_nothing_is_lost_and_every_mean_is_exact(seed: int) -> None:
    for each in range(5 * seed, 5 * (seed + 1)):
        run_virtually(play(each))
