"""What is done to elements: whatever the order of pieces, the result is the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.exchange.arithmetic import (
    Accumulator,
    Arithmetic,
    Flat,
    Floats,
    NotOnWireError,
    Payload,
    Sized,
    arithmetic,
)
from anabranch.exchange.terms import Op, Terms, Wire, op_of, wire_of
from anabranch.net.errors import MalformedMessage
from anabranch.plan import Chunk

NARROW = [Wire.FLOAT16, Wire.BFLOAT16]


@pytest.mark.parametrize("wire", [Wire.FLOAT32, Wire.BFLOAT16])
@pytest.mark.filterwarnings("error")
def test_a_sum_that_overflows_is_infinite_whatever_the_program_asks_of_numpy(wire: Wire) -> None:
    rule, own = arithmetic(Op.MEAN, wire), np.full(4, 3e38, np.float32)
    with np.errstate(all="raise"):
        gathering = rule.gather(4, own=(Flat(own), 2.0))
        take = rule.intake(gathering, 2.0)
        assert take is not None
        take(0, rule.encode(own))
        rule.payload_up(gathering.sum, 0.5)
        rule.finish(Chunk(0, 0, 0, 4), gathering.sum, 1e-3, Flat(own))
    assert np.isinf(own).all()


@pytest.mark.parametrize("combine", [np.add, np.maximum, np.minimum])
@given(
    elements=st.integers(1, 40),
    children=st.integers(0, 3),
    weight=st.sampled_from([1.0, 2.0, 0.5]),
    data=st.data(),
)
def test_own_and_children_in_any_interleaving_add_up(
    combine: np.ufunc, elements: int, children: int, weight: float, data: st.DataObject
) -> None:
    # Whole numbers: float32 adds them exactly in any order.
    rng = np.random.default_rng(elements)
    rows = rng.integers(-99, 99, (children + 1, elements)).astype(np.float32)
    expected = combine.reduce([weight * rows[0], *rows[1:]])
    accumulator = Accumulator(elements, combine)
    places = [0] * (children + 1)  # how far each has come; row 0 is the site's own
    waiting = list(range(children + 1))
    while waiting:
        row = data.draw(st.sampled_from(waiting))
        if row == 0:
            accumulator.add_own(rows[0], weight)
            waiting.remove(0)
            continue
        start = places[row]
        stop = data.draw(st.integers(start + 1, elements))
        accumulator.add(start, rows[row, start:stop])
        places[row] = stop
        if stop == elements:
            waiting.remove(row)
    if children:
        assert np.array_equal(accumulator.sum, expected)


def made(payload: Payload) -> memoryview:
    return payload() if callable(payload) else payload


def reduced(act: Arithmetic, own: Floats, others: list[Floats], weights: list[float]) -> Floats:
    """Return what a root makes of its own elements, weight 1, and leaves' with theirs."""
    gathering = act.gather(len(own))
    assert isinstance(gathering, Accumulator)
    gathering.add_own(own, 1.0)
    for elements, weight in zip(others, weights, strict=True):
        payload = made(act.own_payload(Flat(elements), 0, len(elements), weight))
        take = act.intake(gathering, weight)
        assert take is not None
        half = len(payload) // 8 * 4
        take(0, payload[:half])
        take(half, payload[half:])
    buffer = np.zeros(len(own), np.float32)
    total = 1.0 + sum(weights)
    down = act.finish(Chunk(0, 0, 0, len(own)), gathering.sum, total, Flat(buffer))
    np.testing.assert_array_equal(act.values(down), buffer)  # the same bits as everywhere
    return buffer


@pytest.mark.parametrize("wire", [Wire.FLOAT32, *NARROW])
@pytest.mark.parametrize("op", [Op.MEAN, Op.SUM, Op.MAX, Op.MIN])
def test_ops_over_each_wire_format(op: Op, wire: Wire) -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(-8, 8, (3, 20)).astype(np.float32)
    found = reduced(arithmetic(op, wire), rows[0], [rows[1], rows[2]], [2.0, 5.0])
    weighted = rows[0] + 2 * rows[1] + 5 * rows[2]
    expected = {
        Op.MEAN: weighted / np.float32(8),
        Op.SUM: weighted,
        Op.MAX: rows.max(axis=0),
        Op.MIN: rows.min(axis=0),
    }[op]
    np.testing.assert_array_equal(found, expected)  # an eighth of a whole number is exact in all


@pytest.mark.parametrize("op", [Op.MEAN, Op.STEP])
@pytest.mark.parametrize("wire", NARROW)
def test_in_two_bytes_means_travel_so_that_large_sums_stay_in_range(op: Op, wire: Wire) -> None:
    act = arithmetic(op, wire)
    large = np.full(4, 60_000.0, np.float32)  # float16 ends at 65504
    own = act.values(made(act.own_payload(Flat(large), 0, 4, 1000.0)))
    np.testing.assert_allclose(own, large, rtol=4e-3)
    partial = act.values(act.payload_up(large * np.float32(50.0), 50.0))
    np.testing.assert_allclose(partial, large, rtol=4e-3)
    gathering = act.gather(4)
    assert isinstance(gathering, Accumulator)
    take = act.intake(gathering, 50.0)
    assert take is not None
    take(0, act.payload_up(large * np.float32(50.0), 50.0))
    np.testing.assert_allclose(gathering.sum, large * 50.0, rtol=4e-3)
    if op == Op.MEAN:
        np.testing.assert_allclose(
            reduced(act, large, [large, large], [100.0, 1000.0]), large, rtol=4e-3
        )


@pytest.mark.parametrize("wire", NARROW)
def test_narrow_formats_carry_what_they_hold_and_round_the_rest(wire: Wire) -> None:
    act = arithmetic(Op.SUM, wire)
    held = np.array([0.0, -1.5, 96.0, np.inf, 2.0**-10], np.float32)
    np.testing.assert_array_equal(act.values(act.encode(held)), held)
    assert len(act.encode(held)) == 2 * len(held)
    fine = np.array([1.001953125, 3.14159274], np.float32)
    np.testing.assert_allclose(act.values(act.encode(fine)), fine, rtol=2**-8)
    read_only = memoryview(bytes(act.encode(held)))  # as some networks hand payloads over
    np.testing.assert_array_equal(act.values(read_only), held)


@pytest.mark.parametrize("op", [Op.SUM, Op.MAX, Op.MIN])
def test_integers_travel_in_a_byte_each_and_come_out_as_they_are(op: Op) -> None:
    rows = np.random.default_rng(0).integers(-42, 43, (3, 20)).astype(np.float32)
    act = arithmetic(op, Wire.INT8)
    found = reduced(act, rows[0], [rows[1], rows[2]], [1.0, 1.0])
    combine = {Op.SUM: np.add, Op.MAX: np.maximum, Op.MIN: np.minimum}[op]
    expected = combine.reduce(rows)
    np.testing.assert_array_equal(found, expected)
    assert len(act.encode(rows[0])) == 20
    copy = arithmetic(Op.COPY, Wire.INT8)  # as a repair hands results on
    np.testing.assert_array_equal(copy.values(copy.encode(expected)), expected)


@pytest.mark.parametrize("wrong", [0.5, 128.0, -128.0, np.nan, np.inf])
def test_what_is_no_integer_in_range_does_not_travel_as_one(wrong: float) -> None:
    act = arithmetic(Op.SUM, Wire.INT8)
    with pytest.raises(NotOnWireError, match=r"element 2 is .* integers from -127 to 127"):
        act.encode(np.array([127, -127, wrong, 0], np.float32))


def test_float32_with_weight_one_travels_from_the_buffers_own_memory() -> None:
    buffer = np.arange(8, dtype=np.float32)
    act = arithmetic(Op.MEAN, Wire.FLOAT32)
    payload = act.own_payload(Flat(buffer), 2, 5, 1.0)
    assert not callable(payload)
    assert np.shares_memory(np.frombuffer(payload, np.uint8), buffer)
    weighted = act.own_payload(Flat(buffer), 2, 5, 3.0)
    assert callable(weighted)  # the product is made late, so that none waits in a lane
    assert np.frombuffer(weighted(), np.float32).tolist() == [6.0, 9.0, 12.0]
    for op in (Op.MAX, Op.MIN):
        kept = arithmetic(op, Wire.FLOAT32).own_payload(Flat(buffer), 2, 5, 3.0)
        assert np.frombuffer(made(kept), np.float32).tolist() == [2.0, 3.0, 4.0]


def test_the_least_of_elements_with_nan_is_nan_whatever_the_weight() -> None:
    act, own = arithmetic(Op.MIN, Wire.FLOAT32), np.array([1.0, -1.0, np.nan, np.inf], np.float32)
    gathering = act.gather(4, own=(Flat(own), 100.0))
    assert isinstance(gathering, Accumulator)
    gathering.add(0, np.array([2.0, -2.0, 0.0, -np.inf], np.float32))
    np.testing.assert_array_equal(gathering.sum, np.array([1.0, -2.0, np.nan, -np.inf]))


def test_a_lone_roots_elements_stay_where_they_are() -> None:
    buffer = np.arange(4, dtype=np.float32)
    flat, act = Flat(buffer), arithmetic(Op.MEAN, Wire.FLOAT32)
    down = act.finish(Chunk(0, 0, 1, 3), flat.read(1, 3), 1.0, flat)
    assert np.shares_memory(np.frombuffer(down, np.uint8), buffer)
    assert buffer.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_buffer_without_numbers_takes_no_memory_and_is_as_long() -> None:
    many = 1 << 24
    buffer, act = Sized(many), arithmetic(Op.MEAN, Wire.SIZES)
    assert buffer.elements == many
    assert buffer.memory(0, many, Wire.SIZES) is None
    payload = made(act.own_payload(buffer, 0, many, 2.0))
    assert (len(payload), payload.readonly) == (4 * many, True)
    gathering = act.gather(many)
    act.add_own(gathering, (buffer, 2.0), 0)
    assert act.intake(gathering, 2.0) is None
    assert len(act.payload_up(gathering.sum, 3.0)) == 4 * many
    assert len(act.finish(Chunk(0, 0, 0, many), gathering.sum, 3.0, buffer)) == 4 * many


@pytest.mark.parametrize("op", Op)
@pytest.mark.parametrize("wire", Wire)
def test_a_code_of_terms_tells_op_and_wire_and_one_from_another(op: Op, wire: Wire) -> None:
    terms = Terms(op, wire, 1000)
    assert (op_of(terms.code), wire_of(terms.code)) == (op, wire)
    assert 0 <= terms.code < 1 << 31
    others = [Terms(op, wire, 1001), Terms(op, wire, 1000, 0), Terms(op, wire, 1000, 1)]
    assert len({terms.code, *(each.code for each in others)}) == 4


def test_a_code_that_names_no_op_or_wire_is_the_peers_mistake() -> None:
    with pytest.raises(MalformedMessage, match="no operation"):
        op_of(7)
    with pytest.raises(MalformedMessage, match="no wire format"):
        wire_of(15 << 3)
