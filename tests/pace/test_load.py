"""Batches that fill the time a worker would wait."""

from __future__ import annotations

import pytest

from anabranch.pace import Equal, Load, StatedBatches, Tuned


def iterate(load: Load, speeds: dict[int, float], rest_s: dict[int, float], times: int) -> None:
    """Let each worker compute its batch, at so many samples a second."""
    for _ in range(times):
        for worker, speed in speeds.items():
            samples = load.samples(worker)
            compute_s = samples / speed
            load.measured(worker, samples, compute_s, compute_s + rest_s[worker])


SPEEDS = {0: 429.0, 1: 628.0, 2: 917.0}  # samples/s: g2.2xlarge, p2.xlarge, g3.4xlarge


def test_batches_are_in_proportion_to_speed_where_nothing_else_takes_time() -> None:
    load = Tuned(512, 4096)
    iterate(load, SPEEDS, dict.fromkeys(SPEEDS, 0.0), 3)
    assert [load.samples(worker) for worker in SPEEDS] == [512, 750, 1094]


def test_the_papers_batches_follow_from_the_papers_waits() -> None:
    """Table III: blocked 0, 0.62 and 0.82 s at a batch of 512, tuned to 512, 901 and 1264."""
    slowest_s = 512 / 429 + 0.5
    rest_s = {0: 0.5, 1: slowest_s - 0.62 - 512 / 628, 2: slowest_s - 0.82 - 512 / 917}
    load = Tuned(512, 4096)
    iterate(load, SPEEDS, rest_s, 1)
    assert [load.samples(worker) for worker in SPEEDS] == [512, 901, 1264]


def test_iterations_become_equally_long_and_stay_so_when_speeds_drift() -> None:
    load, rest_s = Tuned(100, 10_000), {0: 0.1, 1: 0.4, 2: 0.2}
    for speeds in ({0: 50.0, 1: 200.0, 2: 400.0}, {0: 150.0, 1: 80.0, 2: 400.0}):
        iterate(load, speeds, rest_s, 100)
        times_s = [rest_s[worker] + load.samples(worker) / speeds[worker] for worker in speeds]
        assert max(times_s) == pytest.approx(min(times_s), rel=0.02)
        assert min(load.samples(worker) for worker in speeds) == 100


def test_no_batch_is_larger_than_memory_allows() -> None:
    load = Tuned(512, 1000)
    iterate(load, SPEEDS, dict.fromkeys(SPEEDS, 0.0), 3)
    assert [load.samples(worker) for worker in SPEEDS] == [512, 750, 1000]


def test_who_has_left_holds_nobody_back() -> None:
    load = Tuned(512, 4096)
    iterate(load, SPEEDS, dict.fromkeys(SPEEDS, 0.0), 3)
    load.leave(0)
    assert [load.samples(worker) for worker in (1, 2)] == [512, 748]


def test_equal_batches_are_equal() -> None:
    load = Equal(32)
    iterate(load, SPEEDS, dict.fromkeys(SPEEDS, 0.0), 3)
    assert {load.samples(worker) for worker in SPEEDS} == {32}


@pytest.mark.parametrize(("batch_size", "most"), [(0, 10), (11, 10)])
def test_batches_out_of_range_are_refused(batch_size: int, most: int) -> None:
    with pytest.raises(ValueError, match="1 <= batch_size <= most"):
        Tuned(batch_size, most)


def test_stated_batches_stay_as_they_were_stated() -> None:
    load = StatedBatches(samples={"a": 7}).load(32, ["b", "a"])
    iterate(load, {0: 429.0, 1: 628.0}, {0: 0.5, 1: 0.0}, 3)
    assert [load.samples(worker) for worker in (0, 1)] == [32, 7]
