"""Exchanges at one site: the turn at the root, several at once, and what is over."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.exchange.actions import Action, Stray
from anabranch.exchange.arithmetic import Flat
from anabranch.exchange.exchange import Exchange, Exchanges
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.net.errors import DuplicateMessage, OutOfPlaceMessage
from anabranch.net.messages import PartialSum, Result
from anabranch.plan import Plan, Tree, deal

from .hands import bytes_of, deliver, said, sends

# Site 0 is the root, 1 its child, 2 and 3 are 1's children.
PARENTS = (-1, 0, 1, 1)
PLAN = Plan(5, (Tree(0, 1.0, PARENTS, PARENTS),))
ELEMENTS = 8
CHUNKS = deal(PLAN, ELEMENTS, chunk_elements=4)


class Site:
    """The exchanges of a site, and hands to feed them."""

    def __init__(self, site: int, room: int = ELEMENTS) -> None:
        self.site = site
        self.exchanges = Exchanges(site, room)
        self.buffers: dict[int, np.ndarray] = {}

    def begin(
        self,
        number: int = 1,
        op: Op = Op.MEAN,
        weight: float = 1.0,
        source: int | None = None,
        elements: int = ELEMENTS,
        chunks: int | None = None,
    ) -> list[Action]:
        dealt = deal(PLAN, elements, 4)
        terms = Terms(op, Wire.FLOAT32, elements, source)
        self.buffers[number] = buffer = np.full(elements, float(self.site + 1), np.float32)
        exchange = self.exchanges.open(number, terms)
        return exchange.begin(PLAN, dealt[:chunks], len(dealt), Flat(buffer), weight, source)

    def hear_sum(
        self, child: int, chunk: int, value: float, number: int = 1, elements: int = ELEMENTS
    ) -> list[Action]:
        code = Terms(Op.MEAN, Wire.FLOAT32, elements).code
        message = PartialSum(number, 5, chunk, (child, self.site), code)
        return self.deliver(message, value)

    def hear_result(
        self, source: int, chunk: int, value: float, origin: int | None = None
    ) -> list[Action]:
        code = Terms(Op.MEAN, Wire.FLOAT32, ELEMENTS, origin).code
        return self.deliver(Result(1, 5, chunk, (source, self.site), code), value)

    def deliver(self, message: PartialSum | Result, value: float) -> list[Action]:
        return deliver(self.exchanges, message, np.full(4, value, np.float32))

    def now(self, number: int = 1) -> Exchange:
        return self.exchanges.active[number]


@pytest.mark.parametrize(
    ("op", "turned"),
    [(Op.MEAN, 2.0), (Op.SUM, 12.0), (Op.MAX, 9.0), (Op.MIN, 1.0)],
    ids=["mean", "sum", "max", "min"],
)
def test_the_root_turns_a_sum_round(op: Op, turned: float) -> None:
    root = Site(0)
    root.begin(op=op, weight=3.0)
    code = Terms(op, Wire.FLOAT32, ELEMENTS).code
    actions = root.deliver(PartialSum(1, 5, 1, (1, 0), code, weight=3.0), 9.0)
    assert said(actions) == [("result", 1, 1, [turned] * 4)]
    assert root.buffers[1].tolist() == [1.0] * 4 + [turned] * 4
    assert not root.now().is_complete
    assert root.now().done_share == 0.5


def test_a_site_has_ended_when_its_sums_and_its_results_are_through() -> None:
    middle = Site(1)
    up = middle.begin()
    for chunk in (0, 1):
        for child in (2, 3):
            up += middle.hear_sum(child, chunk, 1.0)
    for send in sends(up):
        send.has_left = True
    middle.hear_result(0, 0, 7.0)
    assert not middle.now().is_complete
    middle.hear_result(0, 1, 8.0)
    assert middle.now().is_complete
    assert middle.buffers[1].tolist() == [7.0] * 4 + [8.0] * 4


def test_a_result_before_our_sum_has_left_is_refused_and_overwrites_nothing() -> None:
    leaf = Site(3)
    first, _ = sends(leaf.begin())
    with pytest.raises(OutOfPlaceMessage, match="before this site's sum has left"):
        leaf.hear_result(1, 0, 7.0)
    assert leaf.buffers[1].tolist() == [4.0] * ELEMENTS
    first.has_left = True  # and not all of it has been sent
    leaf.hear_result(1, 0, 7.0)
    with pytest.raises(DuplicateMessage):
        leaf.hear_result(1, 0, 8.0)
    with pytest.raises(OutOfPlaceMessage, match="before this site's sum has left"):
        leaf.hear_result(1, 1, 8.0)
    assert leaf.buffers[1].tolist() == [7.0] * 4 + [4.0] * 4


def test_a_result_before_the_exchange_has_begun_is_thrown_away_by_a_contributor() -> None:
    leaf = Site(3)
    leaf.hear_result(1, 0, 7.0)
    actions = leaf.begin()
    assert [each for each in actions if isinstance(each, Stray)] == [
        Stray(1, "a result before this site's sum has left")
    ]
    assert said(actions) == [("sum", c, 1, [4.0] * 4) for c in (0, 1)]
    assert leaf.buffers[1].tolist() == [4.0] * ELEMENTS
    assert leaf.exchanges.room.left == ELEMENTS


def test_a_single_site_has_its_result_at_once() -> None:
    plan = Plan(1, (Tree(0, 1.0, (-1,), (-1,)),))
    for op, result in ((Op.MEAN, 3.0), (Op.SUM, 6.0), (Op.MAX, 3.0), (Op.MIN, 3.0)):
        exchanges = Exchanges(0, 0)
        buffer = np.full(ELEMENTS, 3.0, np.float32)
        exchange = exchanges.open(1, Terms(op, Wire.FLOAT32, ELEMENTS))
        actions = exchange.begin(plan, CHUNKS, len(CHUNKS), Flat(buffer), 2.0)
        assert sends(actions) == []
        assert exchange.is_complete
        assert buffer.tolist() == [result] * ELEMENTS


# --- from one site to all


def test_a_broadcast_goes_to_the_root_and_from_there_to_all() -> None:
    source, root, middle, other = Site(3), Site(0), Site(1), Site(2)
    up = sends(source.begin(source=3, op=Op.MEAN))
    assert [send.message.path for send in up] == [(3, 1, 0)] * 2
    for site in (root, middle, other):
        assert sends(site.begin(source=3)) == []
        assert not site.now().is_complete
    for send in up:
        send.has_left = True
        for down in sends(deliver(root.exchanges, send.message, bytes_of(send))):
            assert down.message.path == (0, 1)
            for last in sends(deliver(middle.exchanges, down.message, bytes_of(down))):
                assert last.message.path == (1, 2)  # and not back to the source
                deliver(other.exchanges, last.message, bytes_of(last))
    for site in (source, root, middle, other):
        assert site.now().is_complete
        assert site.buffers[1].tolist() == [4.0] * ELEMENTS


def test_a_receiver_of_a_broadcast_keeps_what_comes_before_it_has_begun() -> None:
    other = Site(2)
    other.hear_result(1, 1, 9.0, origin=3)
    other.begin(source=3)
    assert other.buffers[1].tolist() == [3.0] * 4 + [9.0] * 4


# --- several


def test_exchanges_of_several_sizes_do_not_touch_each_other_whichever_ends_first() -> None:
    middle = Site(1, room=100)
    middle.begin(1)
    middle.hear_sum(2, 0, 100.0, number=2, elements=4)  # a neighbour is ahead
    actions = middle.begin(2, elements=4)
    actions += middle.begin(3, elements=12)
    assert actions == []
    middle.hear_sum(3, 2, 1.0, number=3, elements=12)
    assert said(middle.hear_sum(3, 0, 50.0, number=2, elements=4)) == [("sum", 0, 0, [152.0] * 4)]
    middle.exchanges.end(2)
    middle.hear_sum(2, 0, 3.0, number=1)
    assert said(middle.hear_sum(3, 0, 4.0, number=1)) == [("sum", 0, 0, [9.0] * 4)]
    middle.exchanges.end(1)
    assert said(middle.hear_sum(2, 2, 2.0, number=3, elements=12)) == [("sum", 2, 0, [5.0] * 4)]


def test_what_is_over_takes_no_data_however_long_ago() -> None:
    middle = Site(1)
    for number in (2, 1, 4):
        middle.begin(number)
        middle.exchanges.end(number)
    for number in (0, -3, 1, 2, 4):
        with pytest.raises(DuplicateMessage, match=f"exchange {number}, which is over"):
            middle.hear_sum(2, 0, 1.0, number=number)
    with pytest.raises(ValueError, match="exchange 4 has ended"):
        middle.begin(4)
    middle.hear_sum(2, 0, 1.0, number=3)
    middle.exchanges.end(3)  # it never began here
    assert middle.exchanges.room.left == ELEMENTS
    with pytest.raises(DuplicateMessage):
        middle.hear_sum(2, 0, 1.0, number=3)


def test_ends_are_remembered_in_bounded_memory() -> None:
    exchanges = Exchanges(1, ELEMENTS)
    for number in range(2, 10_000, 2):  # the numbers between are of other members
        exchanges.end(number)
    assert len(exchanges._ended) <= 4096
    message = PartialSum(2, 5, 0, (2, 1), Terms(Op.MEAN, Wire.FLOAT32, ELEMENTS).code)
    with pytest.raises(DuplicateMessage):
        exchanges.receive(message, 16)


# --- bounds


def test_early_data_is_bounded_over_all_exchanges() -> None:
    middle = Site(1)
    middle.hear_sum(2, 0, 1.0, number=1)
    middle.hear_sum(2, 0, 1.0, number=2)
    with pytest.raises(OutOfPlaceMessage, match="0 of 8 elements of room for such data are left"):
        middle.hear_sum(2, 0, 1.0, number=3)
    assert 3 not in middle.exchanges.active  # a refused message leaves nothing behind
    middle.hear_sum(3, 0, 1.0, number=1)  # adds to what is there
    middle.begin(1)
    middle.hear_sum(2, 0, 1.0, number=3)


def test_an_empty_chunk_opens_no_exchange() -> None:
    middle = Site(1)
    code = Terms(Op.MEAN, Wire.FLOAT32, ELEMENTS).code
    for message in (PartialSum(1, 5, 0, (2, 1), code), Result(1, 5, 0, (0, 1), code)):
        with pytest.raises(OutOfPlaceMessage, match="is empty"):
            middle.exchanges.receive(message, 0)
    assert not middle.exchanges.active


def test_an_exchange_of_other_terms_than_a_neighbours_cannot_begin() -> None:
    middle = Site(1)
    middle.hear_sum(2, 0, 1.0)
    with pytest.raises(OutOfPlaceMessage, match="exchange 1 is a sum of 8 elements"):
        middle.begin(op=Op.SUM)


def test_dispatch_may_go_on_during_an_exchange() -> None:
    middle = Site(1)
    middle.begin(chunks=1)
    exchange = middle.now()
    for chunk in (0, 1):
        for child in (2, 3):
            middle.hear_sum(child, chunk, 1.0)
    assert (exchange.dealt, exchange.all_dealt) == (1, False)
    assert said(exchange.deal(CHUNKS[1:])) == [("sum", 1, 0, [4.0] * 4)]
    assert exchange.all_dealt


# --- exchanges that may have to be repaired


def test_each_element_is_the_site_s_own_or_the_result_and_it_is_known_which() -> None:
    root, child = Site(0), Site(2)
    for site in (root, child):
        site.exchanges = Exchanges(site.site, ELEMENTS, are_repairable=True)
        site.begin()
    root.hear_sum(1, 0, 10.0)  # shows that all take part
    code = Terms(Op.MEAN, Wire.FLOAT32, ELEMENTS).code
    receipt = root.exchanges.receive(PartialSum(1, 5, 1, (1, 0), code), 16)
    assert receipt.piece is not None
    receipt.piece(0, np.full(2, 99.0, np.float32).data.cast("B"))
    assert root.buffers[1][4:].tolist() == [1.0] * 4
    for action in sends(child.now().reduction.sums.values()):  # type: ignore[arg-type]
        action.has_left = True
    receipt = child.exchanges.receive(Result(1, 5, 0, (1, 2), code), 16)
    assert receipt.piece is not None
    receipt.piece(0, np.full(2, 7.0, np.float32).data.cast("B"))
    assert child.buffers[1].tolist() == [7.0] * 2 + [3.0] * 6
    receipt.piece(8, np.full(2, 7.0, np.float32).data.cast("B"))
    assert receipt.owner is not None
    receipt.owner.received(receipt)
    second = child.exchanges.receive(Result(1, 5, 1, (1, 2), code), 16)
    assert second.piece is not None
    second.piece(0, np.full(1, 7.0, np.float32).data.cast("B"))
    assert child.now().spread.stop() == [(0, 4), (4, 5)]
    second.piece(4, np.full(3, 7.0, np.float32).data.cast("B"))  # comes too late
    assert child.buffers[1].tolist() == [7.0] * 5 + [3.0] * 3


def test_what_comes_of_an_exchange_that_was_stopped_is_thrown_away() -> None:
    site = Site(1)
    site.exchanges = Exchanges(1, ELEMENTS, are_repairable=True)
    site.begin()
    site.exchanges.stop(1)
    code = Terms(Op.MEAN, Wire.FLOAT32, ELEMENTS).code
    receipt = site.exchanges.receive(PartialSum(1, 5, 0, (2, 1), code), 16)
    assert (receipt.target, receipt.piece, receipt.owner) == (None, None, None)
    site.exchanges.stop(2)  # of which nothing has come yet
    assert site.exchanges.receive(PartialSum(2, 5, 0, (2, 1), code), 16).owner is None
    assert not site.exchanges.active
