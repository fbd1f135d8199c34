"""One round at one site, without a network: what is sent when, and what is refused."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from anabranch.net.errors import (
    DuplicateMessage,
    MalformedMessage,
    OutOfPlaceMessage,
    PeerError,
)
from anabranch.net.frames import Sink
from anabranch.net.messages import Mean, PartialSum
from anabranch.plan import Plan, Tree, deal
from anabranch.site.aggregation import Aggregation, Send
from anabranch.site.arithmetic import Float32

# Site 0 is the root, 1 its child, 2 and 3 are 1's children.
PARENTS = (-1, 0, 1, 1)
PLAN = Plan(5, (Tree(0, 1.0, PARENTS, PARENTS),))
ELEMENTS = 8
CHUNKS = deal(PLAN, ELEMENTS, chunk_elements=4)


class Site:
    """An aggregation, what it emitted, and hands to feed it."""

    def __init__(self, site: int, elements: int = ELEMENTS) -> None:
        self.sent: list[Send] = []
        self.finished = 0
        self.aggregation = Aggregation(site, 1, elements, Float32(), self.sent.append, self._finish)
        self.buffer = np.full(elements, float(site + 1), np.float32)

    def _finish(self) -> None:
        self.finished += 1

    def begin(self, weight: float = 1.0) -> list[tuple[int, str]]:
        return self.aggregation.begin(PLAN, CHUNKS, self.buffer, weight)

    def hear_sum(
        self, child: int, chunk: int, value: float, version: int = 5, elements: int = 4
    ) -> None:
        payload = np.full(elements, value, np.float32)
        message = PartialSum(1, version, chunk, (child, self.aggregation.site), 1.0)
        deliver(self.aggregation.on_partial_sum(message, payload.nbytes), payload)

    def hear_mean(self, source: int, chunk: int, value: float) -> None:
        payload = np.full(4, value, np.float32)
        message = Mean(1, 5, chunk, (source, self.aggregation.site))
        deliver(self.aggregation.on_mean(message, payload.nbytes), payload)

    def said(self) -> list[tuple[str, int, int, list[float]]]:
        return [
            (
                type(send.message).__name__,
                send.message.chunk,
                send.message.path[-1],
                np.frombuffer(send.payload, np.float32).tolist(),
            )
            for send in self.sent
        ]


def deliver(sink: Sink, payload: npt.NDArray[np.float32]) -> None:
    data = memoryview(payload.data).cast("B")
    if sink.target is not None:
        sink.target[:] = data
    elif sink.piece is not None:
        sink.piece(0, data)
    sink.done()


def test_a_leaf_sends_its_own_chunks_at_once_in_order() -> None:
    leaf = Site(3)
    leaf.begin()
    assert leaf.said() == [("PartialSum", c, 1, [4.0] * 4) for c in (0, 1)]


def test_a_site_sends_up_as_soon_as_its_last_child_has_come_and_not_before() -> None:
    middle = Site(1)
    middle.begin()
    middle.hear_sum(2, 0, 3.0)
    assert middle.said() == []
    middle.hear_sum(3, 0, 4.0)
    assert middle.said() == [("PartialSum", 0, 0, [9.0] * 4)]
    message = middle.sent[0].message
    assert isinstance(message, PartialSum)
    assert message.weight == 3.0


def test_the_root_divides_by_the_weights_that_took_part_and_turns_round() -> None:
    root = Site(0)
    root.begin(weight=3.0)
    payload = np.full(4, 9.0, np.float32)
    message = PartialSum(1, 5, 1, (1, 0), weight=3.0)
    deliver(root.aggregation.on_partial_sum(message, 16), payload)
    assert root.said() == [("Mean", 1, 1, [2.0] * 4)]
    assert root.buffer.tolist() == [1.0] * 4 + [2.0] * 4
    assert root.finished == 0


def test_a_mean_is_forwarded_and_the_round_ends_with_the_last_one() -> None:
    middle = Site(1)
    middle.begin()
    for chunk in (0, 1):
        for child in (2, 3):
            middle.hear_sum(child, chunk, 1.0)
    for send in middle.sent:
        send.leaving()
    middle.sent.clear()
    middle.hear_mean(0, 0, 7.0)
    assert middle.said() == [("Mean", 0, child, [7.0] * 4) for child in (2, 3)]
    assert middle.finished == 0
    middle.hear_mean(0, 1, 8.0)
    assert middle.finished == 1
    assert middle.buffer.tolist() == [7.0] * 4 + [8.0] * 4


def test_data_that_comes_before_the_round_is_kept_and_counted() -> None:
    middle = Site(1)
    middle.hear_sum(2, 0, 3.0)
    middle.hear_sum(3, 0, 4.0)
    middle.hear_sum(3, 1, 4.0)
    assert middle.said() == []
    assert middle.begin() == []
    assert middle.said() == [("PartialSum", 0, 0, [9.0] * 4)]
    middle.hear_sum(2, 1, 3.0)
    assert middle.said()[1:] == [("PartialSum", 1, 0, [9.0] * 4)]


def test_data_still_arriving_when_the_round_begins_is_counted() -> None:
    middle = Site(1)
    message = PartialSum(1, 5, 0, (2, 1), 1.0)
    sink = middle.aggregation.on_partial_sum(message, 16)
    payload = np.arange(4, dtype=np.float32)
    assert sink.piece is not None
    sink.piece(0, payload[:2].data.cast("B"))
    middle.begin()
    sink.piece(8, payload[2:].data.cast("B"))
    sink.done()
    middle.hear_sum(3, 0, 0.0)
    assert middle.said() == [("PartialSum", 0, 0, [2.0, 3.0, 4.0, 5.0])]


def test_data_of_another_plan_is_never_merged() -> None:
    middle = Site(1)
    middle.hear_sum(2, 0, 100.0, version=6)
    middle.hear_sum(2, 0, 3.0, version=5)
    assert middle.begin() == [(2, "plan version 6, the round runs under 5")]
    middle.hear_sum(3, 0, 4.0)
    assert middle.said() == [("PartialSum", 0, 0, [9.0] * 4)]


def test_early_data_that_does_not_fit_the_plan_is_thrown_away_and_named() -> None:
    middle = Site(1)
    middle.hear_sum(0, 0, 1.0)  # the root is no child
    middle.hear_sum(2, 1, 1.0, elements=3)
    misfits = middle.begin()
    assert [child for child, _ in misfits] == [0, 2]
    for child in (2, 3):
        middle.hear_sum(child, 0, 1.0)
    assert middle.said() == [("PartialSum", 0, 0, [4.0] * 4)]


def test_early_data_of_another_size_does_not_mix_with_what_fits() -> None:
    middle = Site(1)
    middle.hear_sum(3, 0, 9.0, elements=3)
    middle.hear_sum(2, 0, 3.0)
    assert middle.begin() == [(3, "chunk 0 with 3 elements")]
    middle.hear_sum(3, 0, 4.0)
    assert middle.said() == [("PartialSum", 0, 0, [9.0] * 4)]


def test_early_data_of_a_stranger_in_a_sum_that_is_needed_ends_the_round_by_name() -> None:
    middle = Site(1)
    middle.hear_sum(0, 0, 100.0)  # the root is no child
    middle.hear_sum(2, 0, 3.0)
    with pytest.raises(OutOfPlaceMessage, match=r"chunk 0 from \[0\], not children"):
        middle.begin()


def test_early_data_is_bounded_by_one_buffer() -> None:
    middle = Site(1)
    middle.hear_sum(2, 0, 1.0)
    middle.hear_sum(2, 1, 1.0)
    with pytest.raises(OutOfPlaceMessage, match="more than a whole buffer"):
        middle.hear_sum(2, 2, 1.0)


def test_weights_are_carried_by_partial_sums() -> None:
    leaf = Site(2)
    leaf.begin(weight=2.5)
    message = leaf.sent[0].message
    assert isinstance(message, PartialSum)
    assert message.weight == 2.5
    assert leaf.said()[0] == ("PartialSum", 0, 1, [7.5] * 4)


@pytest.mark.parametrize(
    ("message", "payload_bytes", "error"),
    [
        (PartialSum(1, 5, 0, (0, 1), 1.0), 16, OutOfPlaceMessage),  # not a child
        (PartialSum(1, 6, 0, (2, 1), 1.0), 16, OutOfPlaceMessage),  # another plan
        (PartialSum(1, 5, 9, (2, 1), 1.0), 16, OutOfPlaceMessage),  # no such chunk
        (PartialSum(1, 5, -1, (2, 1), 1.0), 16, MalformedMessage),
        (PartialSum(1, 5, 0, (2, 1), 1.0), 12, OutOfPlaceMessage),  # another size
        (PartialSum(1, 5, 0, (2, 1), 1.0), 13, MalformedMessage),
        (PartialSum(1, 5, 0, (2, 1), 0.0), 16, MalformedMessage),  # weight
        (PartialSum(1, 5, 0, (2, 1), float("nan")), 16, MalformedMessage),
        (PartialSum(1, 5, 1, (2, 1), 1.0), 16, DuplicateMessage),
    ],
)
def test_a_sum_that_cannot_be_is_refused_and_the_round_goes_on(
    message: PartialSum, payload_bytes: int, error: type[PeerError]
) -> None:
    middle = Site(1)
    middle.begin()
    middle.hear_sum(2, 1, 3.0)
    with pytest.raises(error):
        middle.aggregation.on_partial_sum(message, payload_bytes)
    middle.hear_sum(3, 1, 4.0)
    assert middle.said() == [("PartialSum", 1, 0, [9.0] * 4)]
    with pytest.raises(DuplicateMessage):
        middle.hear_sum(3, 1, 4.0)


def test_a_mean_before_our_sum_has_left_is_refused_and_overwrites_nothing() -> None:
    leaf = Site(3)
    leaf.begin()
    with pytest.raises(OutOfPlaceMessage, match="before this site's sum has left"):
        leaf.hear_mean(1, 0, 7.0)
    assert leaf.buffer.tolist() == [4.0] * ELEMENTS
    leaf.sent[0].leaving()
    leaf.hear_mean(1, 0, 7.0)
    with pytest.raises(DuplicateMessage):
        leaf.hear_mean(1, 0, 8.0)
    with pytest.raises(OutOfPlaceMessage, match="not its source"):
        leaf.hear_mean(0, 1, 8.0)
    assert leaf.buffer.tolist() == [7.0] * 4 + [4.0] * 4


def test_a_mean_may_be_back_before_the_sender_hears_that_the_sum_has_left() -> None:
    leaf = Site(3)
    leaf.begin()
    leaf.sent[0].leaving()  # and not yet sent()
    leaf.hear_mean(1, 0, 7.0)
    assert leaf.buffer.tolist() == [7.0] * 4 + [4.0] * 4


def test_a_mean_of_a_round_that_has_not_begun_is_refused() -> None:
    with pytest.raises(OutOfPlaceMessage, match="has not begun"):
        Site(3).hear_mean(1, 0, 7.0)


def test_a_single_site_has_its_mean_at_once() -> None:
    plan = Plan(1, (Tree(0, 1.0, (-1,), (-1,)),))
    alone = Site(0)
    alone.aggregation.begin(plan, deal(plan, ELEMENTS, 4), alone.buffer, 2.0)
    assert alone.finished == 1
    assert alone.buffer.tolist() == [1.0] * ELEMENTS
    assert alone.sent == []


def test_an_empty_buffer_is_reduced_at_once() -> None:
    leaf = Site(3)
    leaf.aggregation.begin(PLAN, (), leaf.buffer[:0], 1.0)
    assert leaf.finished == 1
