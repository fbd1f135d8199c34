"""The next chunk goes to the tree that ended one."""

from __future__ import annotations

import heapq

import pytest

from anabranch.net.errors import MalformedMessage, OutOfPlaceMessage
from anabranch.overlay import internet2_9
from anabranch.plan import fapt
from anabranch.scheduler._dispatch import _DEALS_A_WINDOW, Dispatcher, needed_window


def play(
    takes_s: list[float], shares: list[float], chunks: int, window: int
) -> tuple[float, list[int]]:
    """Let each tree carry one chunk after the other, each for so long; return when all ended."""
    dispatcher = Dispatcher(shares, [0], chunks, window)
    queued = [dispatcher.first.count(tree) for tree in range(len(shares))]
    finished = [0] * len(shares)
    ends = [(takes_s[tree], tree) for tree, count in enumerate(queued) if count]
    heapq.heapify(ends)
    now_s = 0.0
    while ends:
        now_s, tree = heapq.heappop(ends)
        queued[tree] -= 1
        finished[tree] += 1
        if queued[tree]:
            heapq.heappush(ends, (now_s + takes_s[tree], tree))
        for other in dispatcher.progress(0, finished, now_s):
            queued[other] += 1
            if queued[other] == 1:
                heapq.heappush(ends, (now_s + takes_s[other], other))
    assert sum(finished) == chunks
    return now_s, finished


def test_a_window_is_dealt_by_share_and_the_rest_by_speed() -> None:
    dispatcher = Dispatcher([0.5, 0.25, 0.25], [0], 100, 8)
    assert sorted(dispatcher.first) == [0, 0, 0, 0, 1, 1, 2, 2]
    assert dispatcher.progress(0, [0, 2, 0], 1.0) == (1, 1)
    assert dispatcher.progress(0, [1, 2, 0], 2.0) == (0,)


def test_a_chunk_has_ended_when_every_site_holds_it() -> None:
    dispatcher = Dispatcher([0.5, 0.5], [3, 5, 8], 100, 4)
    assert dispatcher.members == (3, 5, 8)
    assert dispatcher.progress(3, [1, 0], 1.0) == ()
    assert dispatcher.progress(8, [1, 1], 1.0) == ()
    assert dispatcher.progress(5, [1, 0], 1.5) == (0,)


def test_chunks_are_dealt_in_batches_of_a_part_of_the_window() -> None:
    batch = 3
    window = batch * _DEALS_A_WINDOW
    dispatcher = Dispatcher([1.0], [0], 1000, window)
    dealt = [len(dispatcher.progress(0, [held], float(held))) for held in range(1, 3 * batch + 1)]
    assert dealt == [0, 0, batch] * 3


def test_a_batch_that_will_not_fill_is_dealt_once_nothing_is_under_way() -> None:
    window = 3 * _DEALS_A_WINDOW
    dispatcher = Dispatcher([1.0], [0], window + 2, window)
    assert dispatcher.progress(0, [1], 1.0) == ()
    assert dispatcher.progress(0, [window], 2.0) == (0, 0)


def test_trees_that_are_faster_than_thought_carry_more() -> None:
    # Thought equal, the first is four times as fast: together they carry 5 chunks in 4 s.
    all_s, finished = play([1.0, 4.0], [0.5, 0.5], chunks=200, window=8)
    assert finished[0] == pytest.approx(160, abs=5)
    assert all_s == pytest.approx(200 / 5 * 4, rel=0.05)
    by_share_s = 4.0 * 100
    assert all_s < by_share_s / 2


def test_one_chunk_that_was_held_up_counts_for_a_part_of_what_its_tree_takes() -> None:
    dispatcher = Dispatcher([0.5, 0.5], [0], chunks=8, window=2)
    assert dispatcher.first == (0, 1)
    # Dealt one by one; the first tree's chunks take 1 s, and then 3 s; the second's 2 s.
    assert dispatcher.progress(0, [1, 1], 2.0) == (0, 1)
    assert dispatcher.progress(0, [2, 1], 3.0) == (0,)
    assert dispatcher.progress(0, [2, 2], 4.0) == (1,)
    assert dispatcher._takes_s == [1.0, 2.0]
    assert dispatcher.progress(0, [3, 2], 6.0) == (0,)
    assert dispatcher._takes_s == pytest.approx([0.7 * 1.0 + 0.3 * 3.0, 2.0])


def test_exact_shares_are_kept() -> None:
    all_s, finished = play([1.0, 2.0, 4.0], [4 / 7, 2 / 7, 1 / 7], chunks=700, window=28)
    assert finished == pytest.approx([400, 200, 100], abs=5)
    assert all_s == pytest.approx(400, rel=0.02)


def test_a_slow_tree_gets_none_of_the_last_chunks() -> None:
    # A chunk on the second takes 50 s: one dealt near the end would hold up all.
    all_s, _ = play([1.0, 50.0], [0.9, 0.1], chunks=200, window=10)
    assert all_s <= 200


def test_what_is_dealt_is_all_there_is() -> None:
    dispatcher = Dispatcher([1.0], [0], 5, 3)
    assert dispatcher.first == (0, 0, 0)
    assert dispatcher.progress(0, [3], 1.0) == (0, 0)
    assert dispatcher.progress(0, [5], 2.0) == ()


@pytest.mark.parametrize(
    ("finished", "error"),
    [
        ((1,), MalformedMessage),
        ((4, 0), OutOfPlaceMessage),  # more than were dealt
        ((0, 1), OutOfPlaceMessage),  # fewer than before
    ],
)
def test_progress_that_cannot_be_is_refused(
    finished: tuple[int, ...], error: type[Exception]
) -> None:
    dispatcher = Dispatcher([0.5, 0.5], [0], 9, 4)
    dispatcher.progress(0, (1, 0), 1.0)
    with pytest.raises(error):
        dispatcher.progress(0, finished, 2.0)


def test_a_window_grows_with_distance_and_shrinks_with_the_size_of_chunks() -> None:
    overlay = internet2_9()
    plan = fapt(overlay, roots=9)
    near = needed_window(plan, overlay, 1 << 18, 10_000, round_trip_s=0.0)
    assert needed_window(plan, overlay, 1 << 18, 10_000, round_trip_s=1.0) > near
    assert needed_window(plan, overlay, 1 << 16, 10_000, round_trip_s=1.0) > near
    assert needed_window(plan, overlay, 1 << 18, 20, round_trip_s=0.0) == 20
    assert near >= 4 * 9
