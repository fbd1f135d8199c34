"""Loops around DDP and over a group give at every rank what one process gives with all samples."""

from __future__ import annotations

import pytest
import torch

from tests.torch import loops
from tests.torch.ranks import run_ranks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("ranks"),
    pytest.mark.parametrize("way", [*loops.WRAPPERS]),
]
Found = list[dict[tuple[str, str], loops.Found]]


@pytest.fixture(scope="module")
def found() -> Found:
    """Return what each rank found: one process group for all loops."""
    return run_ranks(
        loops.at_a_rank,
        loops.RANKS,
        [*loops.WRAPPERS],
        [*loops.LOOPS],
    )


def assert_alike(found: Found, way: str, name: str, within: float = 1e-6) -> loops.Found:
    """Check that all ranks have the same bits, and nearly those of one process; return these."""
    wanted = loops.alone(name)
    for each in found:
        for what, value in each[way, name].items():
            assert torch.equal(value, found[0][way, name][what]), what
    for what, value in wanted.items():
        torch.testing.assert_close(found[0][way, name][what], value, rtol=within, atol=within)
    return found[0][way, name]


def test_gradients_are_accumulated_and_exchanged_once(found: Found, way: str) -> None:
    assert_alike(found, way, "accumulate")


def test_the_norm_that_is_clipped_is_that_of_the_mean(found: Found, way: str) -> None:
    norms = assert_alike(found, way, "clip", within=1e-5)["norms"]
    assert (norms > 0.5).any()


def test_schedules_go_on_alike_also_by_the_mean_loss(found: Found, way: str) -> None:
    rates = assert_alike(found, way, "schedule", within=1e-5)["rates"]
    assert rates[0] < rates[2]
    assert rates[-1] < rates[2]


def test_all_skip_the_step_in_which_one_ranks_gradient_is_infinite(found: Found, way: str) -> None:
    scaled = assert_alike(
        found, way, "scale", within=2e-2
    )  # bfloat16 sums depend on what is a batch
    skipped = {step for _, step in loops.OVERFLOWS}
    assert [not moved for moved in scaled["moved"]] == [s in skipped for s in range(loops.STEPS)]
    assert scaled["scales"][-1] == 2.0**10 / 2 ** len(skipped)


def test_ranks_with_fewer_batches_shadow_the_others(found: Found, way: str) -> None:
    assert_alike(found, way, "uneven")


def test_an_evaluation_that_ranks_share_counts_each_sample_once(found: Found, way: str) -> None:
    counts = assert_alike(found, way, "evaluate")["counts"]
    assert counts[1] == loops.HELD_OUT


def test_a_compiled_model_trains_as_it_does_uncompiled(found: Found, way: str) -> None:
    assert_alike(found, way, "compiled", within=1e-5)
