"""One spread at one site, without a network: what is handed on, kept and refused."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.exchange._spread import Spread
from anabranch.exchange.actions import Action, ChunkFinished, Stray
from anabranch.exchange.arithmetic import Flat, Sized, arithmetic
from anabranch.exchange.reduction import Room
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.net.errors import DuplicateMessage, OutOfPlaceMessage
from anabranch.net.messages import Result
from anabranch.plan import Plan, Tree, deal

from .hands import bytes_of, deliver, said, sends

# Site 0 is the root, 1 its child, 2 and 3 are 1's children.
PARENTS = (-1, 0, 1, 1)
PLAN = Plan(5, (Tree(0, 1.0, PARENTS, PARENTS),))
ELEMENTS = 8
CHUNKS = deal(PLAN, ELEMENTS, chunk_elements=4)
TERMS = Terms(Op.MEAN, Wire.FLOAT32, ELEMENTS)


class Site:
    """A spread, and hands to feed it."""

    def __init__(self, site: int, wire: Wire = Wire.FLOAT32, room: int = ELEMENTS) -> None:
        self.site = site
        self.room = Room(room)
        self.terms = Terms(Op.MEAN, wire, ELEMENTS).code
        self.arithmetic = arithmetic(Op.MEAN, wire)
        self.spread = Spread(site, 1, self.terms, self.room)
        self.buffer = np.zeros(ELEMENTS, np.float32)

    def begin(
        self, receivers: frozenset[int] | None = None, chunks: int = len(CHUNKS)
    ) -> list[Action]:
        receives = receivers is None or self.site in receivers
        self.spread.begin(PLAN, len(CHUNKS), Flat(self.buffer) if receives else None, receivers)
        return self.spread.deal(CHUNKS[:chunks])

    def hear(self, source: int, chunk: int, value: float, elements: int = 4) -> list[Action]:
        payload = self.arithmetic.encode(np.full(elements, value, np.float32))
        return deliver(self.spread, self.down(source, chunk), payload)

    def down(self, source: int, chunk: int, version: int = 5) -> Result:
        return Result(1, version, chunk, (source, self.site), self.terms)


def test_a_result_is_handed_on_and_the_last_one_ends_the_spread() -> None:
    middle = Site(1)
    assert middle.begin() == []
    actions = middle.hear(0, 0, 7.0)
    assert said(actions) == [("result", 0, child, [7.0] * 4) for child in (2, 3)]
    assert actions[-1] == ChunkFinished(CHUNKS[0], 0)
    assert not middle.spread.is_complete
    middle.hear(0, 1, 8.0)
    assert middle.spread.is_complete
    assert middle.spread.held_by_tree == [2]
    assert middle.spread.latest == (0, 0)
    assert middle.buffer.tolist() == [7.0] * 4 + [8.0] * 4


def test_the_root_hands_down_what_it_is_given() -> None:
    root = Site(0)
    root.begin()
    payload = np.full(4, 5.0, np.float32).data.cast("B")
    actions = root.spread.start(CHUNKS[1], payload, 1)
    assert said(actions) == [("result", 1, 1, [5.0] * 4)]
    assert actions[-1] == ChunkFinished(CHUNKS[1], 1)


@pytest.mark.parametrize("wire", [Wire.FLOAT16, Wire.BFLOAT16])
def test_narrow_results_are_handed_on_bit_by_bit_and_written_as_float32(wire: Wire) -> None:
    middle = Site(1, wire)
    middle.begin()
    actions = middle.hear(0, 0, 7.25)
    assert {bytes(bytes_of(send)) for send in sends(actions)} == {
        bytes(middle.arithmetic.encode(np.full(4, 7.25, np.float32)))
    }
    assert middle.buffer.tolist() == [7.25] * 4 + [0.0] * 4


def test_subtrees_without_receivers_get_nothing() -> None:
    who = frozenset({1, 3})
    middle, idle = Site(1), Site(2)
    middle.begin(who)
    assert [send.message.path for send in sends(middle.hear(0, 0, 1.0))] == [(1, 3)]
    idle.begin(who)
    assert idle.spread.is_complete
    assert not idle.spread.passes_on(CHUNKS[0])


def test_a_site_without_a_buffer_passes_results_on() -> None:
    who = frozenset({2, 3})
    middle = Site(1)
    middle.begin(who)
    assert said(middle.hear(0, 0, 2.0)) == [("result", 0, child, [2.0] * 4) for child in (2, 3)]
    assert middle.buffer.tolist() == [0.0] * ELEMENTS


def test_a_lone_receivers_chunks_come_from_the_root_directly() -> None:
    who = frozenset({3})
    root, middle, leaf = Site(0), Site(1), Site(3)
    root.begin(who)
    payload = np.full(4, 5.0, np.float32).data.cast("B")
    [send] = sends(root.spread.start(CHUNKS[0], payload, None))
    assert send.message.path == (0, 1, 3)
    middle.begin(who)
    assert middle.spread.is_complete
    leaf.begin(who)
    deliver(leaf.spread, send.message, bytes_of(send))
    assert leaf.buffer.tolist() == [5.0] * 4 + [0.0] * 4


@pytest.mark.parametrize("dealt", [0, 1])
def test_results_that_come_before_their_chunk_is_dealt_are_kept(dealt: int) -> None:
    middle = Site(1)
    if dealt:
        assert middle.begin(chunks=1) == []
    assert middle.hear(0, 1, 8.0) == []
    assert middle.room.left == ELEMENTS - 4
    actions = middle.spread.deal(CHUNKS[1:]) if dealt else middle.begin()
    assert said(actions) == [("result", 1, child, [8.0] * 4) for child in (2, 3)]
    assert middle.room.left == ELEMENTS
    assert middle.buffer.tolist() == [0.0] * 4 + [8.0] * 4


def test_a_result_still_arriving_when_its_chunk_is_dealt_is_kept_too() -> None:
    middle = Site(1)
    receipt = middle.spread.receive(middle.down(0, 0), 16)
    assert receipt.target is not None
    middle.begin()
    receipt.target[:] = np.full(4, 3.0, np.float32).data.cast("B")
    assert said(middle.spread.received(receipt)) == [
        ("result", 0, child, [3.0] * 4) for child in (2, 3)
    ]
    assert middle.room.left == ELEMENTS


def test_early_results_that_do_not_belong_are_thrown_away_and_named() -> None:
    middle = Site(1, room=100)
    middle.hear(2, 0, 1.0)
    middle.hear(0, 9, 1.0)
    middle.hear(0, 1, 1.0, elements=3)
    deliver(middle.spread, middle.down(0, 0, version=6), np.ones(4, np.float32))
    middle.hear(0, 1, 1.0)
    middle.hear(0, 1, 2.0)
    actions = middle.begin()
    strays = [each for each in actions if isinstance(each, Stray)]
    assert [each.sender for each in strays] == [2, 0, 0, 0, 0]
    named = ["not its source", "chunk 9 of 2", "12 bytes", "version 5", "has come before"]
    for each, part in zip(strays, named, strict=True):
        assert part in each.why
    assert middle.buffer.tolist() == [0.0] * 4 + [1.0] * 4
    assert middle.room.left == 100


def test_early_results_are_bounded_and_may_be_thrown_away() -> None:
    middle = Site(1)
    middle.hear(0, 0, 1.0)
    middle.hear(0, 1, 1.0)
    with pytest.raises(OutOfPlaceMessage, match="0 of 8 elements of room"):
        middle.hear(0, 2, 1.0)
    assert middle.spread.drop_early("no") == [Stray(0, "no")] * 2
    assert middle.room.left == ELEMENTS
    assert middle.begin() == []


def test_what_does_not_belong_is_refused_and_overwrites_nothing() -> None:
    middle = Site(1)
    middle.begin()
    other = Result(1, 5, 0, (0, 1), Terms(Op.SUM, Wire.FLOAT32, ELEMENTS).code)
    refused = [
        (other, 16, "is another one at site 0"),
        (middle.down(0, 0, version=6), 16, "runs under plan version 5"),
        (middle.down(0, 2), 16, "chunk 2 of 2"),
        (middle.down(0, -1), 16, "chunk -1 of 2"),
        (middle.down(0, 0), 12, "12 bytes where the plan deals 16"),
        (middle.down(2, 0), 16, "comes from site 2, which is not its source"),
    ]
    for message, size, named in refused:
        with pytest.raises(OutOfPlaceMessage, match=named):
            middle.spread.receive(message, size)
    middle.spread.receive(middle.down(0, 0), 16)
    with pytest.raises(DuplicateMessage):
        middle.spread.receive(middle.down(0, 0), 16)
    assert middle.buffer.tolist() == [0.0] * ELEMENTS


def test_without_numbers_the_same_is_handed_on() -> None:
    middle = Site(1, Wire.SIZES)
    middle.spread.begin(PLAN, len(CHUNKS), Sized(ELEMENTS))
    middle.spread.deal(CHUNKS)
    receipt = middle.spread.receive(middle.down(0, 0), 16)
    assert (receipt.target, receipt.piece) == (None, None)
    sent = sends(middle.spread.received(receipt))
    assert [(send.message.path[-1], len(bytes_of(send))) for send in sent] == [(2, 16), (3, 16)]
