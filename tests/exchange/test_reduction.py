"""One reduction at one site, without a network: what is sent when, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.exchange.actions import Action, Stray, Total
from anabranch.exchange.arithmetic import Flat, Sized, arithmetic
from anabranch.exchange.reduction import Reduction, Room
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.net.errors import DuplicateMessage, MalformedMessage, OutOfPlaceMessage, PeerError
from anabranch.net.messages import PartialSum
from anabranch.plan import Chunk, Plan, Tree, deal

from .hands import bytes_of, deliver, fill, said, sends

# Site 0 is the root, 1 its child, 2 and 3 are 1's children.
PARENTS = (-1, 0, 1, 1)
PLAN = Plan(5, (Tree(0, 1.0, PARENTS, PARENTS),))
ELEMENTS = 8
CHUNKS = deal(PLAN, ELEMENTS, chunk_elements=4)
MEAN = Terms(Op.MEAN, Wire.FLOAT32, ELEMENTS)


class Root:
    """Keeps whole sums."""

    def __init__(self) -> None:
        self.totals: list[Total] = []

    def take(self, total: Total) -> list[Action]:
        self.totals.append(total)
        return []


class Site:
    """A reduction, and hands to feed it."""

    def __init__(
        self, site: int, terms: Terms = MEAN, room: int = ELEMENTS, overwrites: bool = False
    ) -> None:
        self.site = site
        self.room = Room(room)
        self.terms = terms
        self.reduction = Reduction(site, 1, terms.code, self.room, overwrites=overwrites)
        self.root = Root()
        self.buffer = np.full(ELEMENTS, float(site + 1), np.float32)

    def begin(
        self,
        weight: float = 1.0,
        contributors: frozenset[int] | None = None,
        chunks: tuple[Chunk, ...] = CHUNKS,
    ) -> list[Action]:
        self.reduction.begin(PLAN, len(CHUNKS), self.root, contributors)
        actions = self.reduction.deal(chunks)
        if contributors is None or self.site in contributors:
            actions += self.reduction.contribute(Flat(self.buffer), weight)
        return actions

    def up(self, child: int, chunk: int, version: int = 5, weight: float = 1.0) -> PartialSum:
        path = child, self.site
        return PartialSum(1, version, chunk, path, self.terms.code, weight=weight)

    def hear(
        self, child: int, chunk: int, value: float, version: int = 5, elements: int = 4
    ) -> list[Action]:
        payload = np.full(elements, value, np.float32)
        return deliver(self.reduction, self.up(child, chunk, version), payload)


def test_a_leaf_sends_its_own_chunks_at_once_in_order() -> None:
    leaf = Site(3)
    assert said(leaf.begin()) == [("sum", c, 1, [4.0] * 4) for c in (0, 1)]
    assert leaf.reduction.is_complete


def test_a_site_sends_up_as_soon_as_its_last_child_has_come_and_not_before() -> None:
    middle = Site(1)
    assert middle.begin() == []
    assert middle.hear(2, 0, 3.0) == []
    actions = middle.hear(3, 0, 4.0)
    assert said(actions) == [("sum", 0, 0, [9.0] * 4)]
    message = sends(actions)[0].message
    assert isinstance(message, PartialSum)
    assert message.weight == 3.0
    assert not middle.reduction.is_complete


def test_a_sum_that_has_left_gives_its_memory_to_the_sums_of_its_own_reduction() -> None:
    middle = Site(1)
    middle.begin()
    middle.hear(2, 0, 3.0)
    [send] = sends(middle.hear(3, 0, 4.0))
    assert send.free is not None
    send.free()
    sent = memoryview(send.payload() if callable(send.payload) else send.payload)
    assert np.shares_memory(np.frombuffer(sent, np.float32), middle.room.scratch.take(4))


def test_at_the_root_the_sum_and_its_weight_are_whole() -> None:
    root = Site(0)
    root.begin(weight=3.0)
    payload = np.full(4, 9.0, np.float32)
    assert deliver(root.reduction, root.up(1, 1, weight=3.0), payload) == []
    [total] = root.root.totals
    assert (total.chunk, total.weight, total.divisor, total.sender) == (CHUNKS[1], 6.0, 6.0, 1)
    assert total.values.tolist() == [12.0] * 4
    assert root.buffer.tolist() == [1.0] * ELEMENTS


@pytest.mark.parametrize("wire", [Wire.FLOAT32, Wire.BFLOAT16])
@pytest.mark.parametrize("overwrites", [True, False])
def test_a_root_overwrites_its_own_elements_once_a_whole_sum_shows_that_all_take_part(
    wire: Wire, overwrites: bool
) -> None:
    root = Site(0, Terms(Op.SUM, wire, ELEMENTS), overwrites=overwrites)
    payload = arithmetic(Op.SUM, wire).encode(np.full(4, 9.0, np.float32))
    root.begin(weight=3.0)
    for chunk in (0, 1):
        message = root.up(1, chunk, weight=3.0)
        receipt = root.reduction.receive(message, len(payload))
        fill(receipt, payload)
        # Until the first chunk is whole, members may turn out to disagree.
        begun = overwrites and chunk == 1
        assert root.buffer.tolist() == [1.0] * 4 + [12.0 if begun else 1.0] * 4
        root.reduction.received(receipt)
    first, second = root.root.totals
    assert first.values.tolist() == second.values.tolist() == [12.0] * 4
    assert first.is_scratch
    # The reduction makes later sums in scratch memory, which the user's memory must never become.
    assert second.is_scratch == (not np.shares_memory(second.values, root.buffer))
    assert second.is_scratch == (not overwrites)


def test_who_is_no_root_never_overwrites_its_own_elements() -> None:
    middle = Site(1, overwrites=True)
    middle.begin()
    for chunk in (0, 1):
        middle.hear(2, chunk, 3.0)
        assert said(middle.hear(3, chunk, 4.0)) == [("sum", chunk, 0, [9.0] * 4)]
    assert middle.buffer.tolist() == [2.0] * ELEMENTS


def test_weights_are_carried_by_sums_which_leave_when_they_leave() -> None:
    leaf = Site(2)
    send = sends(leaf.begin(weight=2.5))[0]
    assert isinstance(send.message, PartialSum)
    assert send.message.weight == 2.5
    assert callable(send.payload)  # the product is made late, so that none waits in a lane
    assert np.frombuffer(bytes_of(send), np.float32).tolist() == [7.5] * 4


def test_the_largest_is_taken_whatever_the_weights() -> None:
    middle = Site(1, Terms(Op.MAX, Wire.FLOAT32, ELEMENTS))
    middle.begin(weight=7.0)
    middle.hear(2, 0, 1.0)
    assert said(middle.hear(3, 0, -4.0)) == [("sum", 0, 0, [2.0] * 4)]


def test_a_subtree_without_contributors_sends_nothing_and_is_not_waited_for() -> None:
    who = frozenset({1, 3})
    leaf, middle, root = Site(2), Site(1), Site(0)
    assert leaf.begin(contributors=who) == []
    assert leaf.reduction.is_complete
    middle.begin(contributors=who)
    assert said(middle.hear(3, 0, 4.0)) == [("sum", 0, 0, [6.0] * 4)]
    with pytest.raises(OutOfPlaceMessage, match="site 2 sends nothing to this site"):
        middle.hear(2, 1, 4.0)
    root.begin(contributors=who)
    root.hear(1, 0, 6.0)
    [total] = root.root.totals
    assert (total.weight, total.values.tolist()) == (1.0, [6.0] * 4)


def test_a_lone_contributors_elements_go_to_the_root_as_they_are() -> None:
    who = frozenset({3})
    leaf, middle, root = Site(3), Site(1), Site(0)
    leaf_sends = sends(leaf.begin(weight=2.0, contributors=who))
    assert {send.message.path for send in leaf_sends} == {(3, 1, 0)}
    assert middle.begin(contributors=who) == []
    assert middle.reduction.is_complete
    root.begin(contributors=who)
    deliver(root.reduction, leaf_sends[0].message, bytes_of(leaf_sends[0]))
    [total] = root.root.totals
    assert (total.weight, total.divisor, total.values.tolist()) == (2.0, 1.0, [4.0] * 4)


def test_a_lone_contributor_that_is_the_root_needs_nothing_of_others() -> None:
    root = Site(0)
    assert root.begin(weight=2.0, contributors=frozenset({0})) == []
    assert [(each.weight, each.divisor) for each in root.root.totals] == [(2.0, 1.0)] * 2
    assert root.reduction.is_complete


# --- what comes early


def test_data_that_comes_before_the_exchange_is_kept_and_counted() -> None:
    middle = Site(1)
    assert middle.hear(2, 0, 3.0) == []
    assert middle.hear(3, 0, 4.0) == []
    assert middle.hear(3, 1, 4.0) == []
    assert middle.room.left == 0
    assert said(middle.begin()) == [("sum", 0, 0, [9.0] * 4)]
    assert middle.room.left == ELEMENTS
    assert said(middle.hear(2, 1, 3.0)) == [("sum", 1, 0, [9.0] * 4)]
    assert middle.reduction.is_complete


def test_data_still_arriving_when_the_exchange_begins_is_counted() -> None:
    middle = Site(1)
    receipt = middle.reduction.receive(middle.up(2, 0), 16)
    payload = np.arange(4, dtype=np.float32).data.cast("B")
    fill(receipt, payload[:8])
    middle.begin()
    fill(receipt, payload[8:], start=8)
    assert middle.reduction.received(receipt) == []
    assert said(middle.hear(3, 0, 0.0)) == [("sum", 0, 0, [2.0, 3.0, 4.0, 5.0])]


def test_chunks_whose_tree_is_not_known_yet_wait_in_the_same_way() -> None:
    middle = Site(1)
    middle.begin(chunks=CHUNKS[:1])
    for child in (2, 3):
        assert middle.hear(child, 1, 1.0) == []
    assert middle.room.left == ELEMENTS - 4
    assert said(middle.reduction.deal(CHUNKS[1:])) == [("sum", 1, 0, [4.0] * 4)]
    assert middle.room.left == ELEMENTS
    with pytest.raises(OutOfPlaceMessage, match="trees that its plan does not have"):
        middle.reduction.deal((Chunk(2, 1, 0, 4),))


def test_data_of_another_plan_is_never_merged() -> None:
    middle = Site(1)
    middle.hear(2, 0, 100.0, version=6)
    middle.hear(2, 0, 3.0, version=5)
    assert middle.begin() == [Stray(2, "plan version 6, the exchange runs under 5")]
    assert said(middle.hear(3, 0, 4.0)) == [("sum", 0, 0, [9.0] * 4)]


def test_early_data_that_does_not_fit_the_deal_is_thrown_away_and_named() -> None:
    middle = Site(1, room=100)
    middle.hear(0, 0, 1.0)  # the root is no child
    middle.hear(2, 1, 1.0, elements=3)
    middle.hear(2, 7, 1.0)
    strays = middle.begin()
    assert strays == [
        Stray(0, "chunk 0 from [0], which send nothing to this site"),
        Stray(2, "chunk 1 with 3 elements"),
        Stray(2, "chunk 7 of 2"),
    ]
    assert middle.room.left == 100
    middle.hear(2, 0, 1.0)
    assert said(middle.hear(3, 0, 1.0)) == [("sum", 0, 0, [4.0] * 4)]


def test_early_data_of_another_size_does_not_mix_with_what_fits() -> None:
    middle = Site(1)
    middle.hear(3, 0, 9.0, elements=3)
    middle.hear(2, 0, 3.0)
    assert middle.begin() == [Stray(3, "chunk 0 with 3 elements")]
    assert said(middle.hear(3, 0, 4.0)) == [("sum", 0, 0, [9.0] * 4)]


def test_early_data_of_a_stranger_in_a_sum_that_is_needed_ends_the_exchange_by_name() -> None:
    middle = Site(1)
    middle.hear(0, 0, 100.0)  # the root is no child
    middle.hear(2, 0, 3.0)
    with pytest.raises(OutOfPlaceMessage, match=r"chunk 0 from \[0\], which send nothing"):
        middle.begin()


def test_early_data_is_bounded_and_its_room_given_back() -> None:
    middle = Site(1)
    middle.hear(2, 0, 1.0)
    middle.hear(2, 1, 1.0)
    with pytest.raises(OutOfPlaceMessage, match="0 of 8 elements of room for such data are left"):
        middle.hear(2, 2, 1.0)
    middle.reduction.release()
    assert middle.room.left == ELEMENTS


# --- what is refused


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(
    "other",
    [
        Terms(Op.SUM, Wire.FLOAT32, ELEMENTS),
        Terms(Op.MEAN, Wire.BFLOAT16, ELEMENTS),
        Terms(Op.MEAN, Wire.FLOAT32, ELEMENTS + 1),
        Terms(Op.MEAN, Wire.FLOAT32, ELEMENTS, source=3),
    ],
)
def test_a_chunk_of_other_terms_is_refused_before_any_of_it_is_added(
    other: Terms, early: bool
) -> None:
    middle = Site(1)
    if not early:
        middle.begin()
    middle.hear(2, 0, 3.0)
    strange = PartialSum(1, 5, 0, (3, 1), other.code)
    with pytest.raises(OutOfPlaceMessage, match="exchange 1 is another one at site 3"):
        middle.reduction.receive(strange, 4 * other.wire.block_bytes)
    actions = middle.begin() if early else []
    actions += middle.hear(3, 0, 4.0)
    assert said(actions) == [("sum", 0, 0, [9.0] * 4)]


def refused() -> list[tuple[PartialSum, int, type[PeerError]]]:
    site, nan = Site(1), float("nan")
    return [
        (site.up(0, 0), 16, OutOfPlaceMessage),  # not a child
        (site.up(2, 0, version=6), 16, OutOfPlaceMessage),
        (site.up(2, 9), 16, OutOfPlaceMessage),  # no such chunk
        (site.up(2, -1), 16, MalformedMessage),
        (site.up(2, 0), 12, OutOfPlaceMessage),  # another size
        (site.up(2, 0), 13, MalformedMessage),
        (site.up(2, 0), 0, MalformedMessage),
        (site.up(2, 0, weight=0.0), 16, MalformedMessage),
        (site.up(2, 0, weight=nan), 16, MalformedMessage),
        (site.up(2, 0, weight=1e30), 16, MalformedMessage),
        (site.up(2, 0, weight=2.0), 16, MalformedMessage),  # its chunk 1 weighs 1
        (site.up(2, 1), 16, DuplicateMessage),
    ]


@pytest.mark.parametrize(("message", "payload_bytes", "error"), refused())
def test_a_sum_that_cannot_be_is_refused_and_the_exchange_goes_on(
    message: PartialSum, payload_bytes: int, error: type[PeerError]
) -> None:
    middle = Site(1)
    middle.begin()
    middle.hear(2, 1, 3.0)
    with pytest.raises(error):
        middle.reduction.receive(message, payload_bytes)
    assert said(middle.hear(3, 1, 4.0)) == [("sum", 1, 0, [9.0] * 4)]
    with pytest.raises(DuplicateMessage):
        middle.hear(3, 1, 4.0)


# --- how far it is


def test_sums_are_known_by_chunk_as_they_were_sent_and_none_at_their_root() -> None:
    leaf, root = Site(3), Site(0)
    assert leaf.reduction.sums == {}
    assert leaf.reduction.sums == dict(enumerate(leaf.begin()))
    root.begin()
    root.hear(1, 0, 1.0)
    assert root.reduction.sums == {0: None}


def test_without_numbers_the_same_is_sent() -> None:
    terms = Terms(Op.MEAN, Wire.SIZES, ELEMENTS)
    middle = Reduction(1, 1, terms.code, Room(0))
    middle.begin(PLAN, len(CHUNKS), Root())
    middle.deal(CHUNKS)
    assert middle.contribute(Sized(ELEMENTS), 2.0) == []
    receipts = [middle.receive(PartialSum(1, 5, 0, (child, 1), terms.code), 16) for child in (2, 3)]
    assert [(each.target, each.piece) for each in receipts] == [(None, None)] * 2
    assert middle.received(receipts[0]) == []
    [send] = sends(middle.received(receipts[1]))
    assert isinstance(send.message, PartialSum)
    assert (send.message.weight, len(bytes_of(send))) == (4.0, 16)
