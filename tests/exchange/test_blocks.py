"""Blocks of few bits: what they hold, what they lose, and that no bit is lost for ever."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.exchange import _blocks
from anabranch.exchange.actions import Send
from anabranch.exchange.arithmetic import Floats, arithmetic
from anabranch.exchange.compressed import Compressed
from anabranch.exchange.exchange import Exchange
from anabranch.exchange.ranges import PartOf
from anabranch.exchange.reduction import Room
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.net.messages import PartialSum
from anabranch.plan import Chunk, Plan, Tree
from tests.every import every
from tests.exchange.hands import bytes_of, fill, sends

WIRES = [wire for wire in Wire if wire.has_blocks]
ALL = pytest.mark.parametrize("wire", WIRES)
LOST = {Wire.BLOCKS8: 0.01, Wire.BLOCKS4: 0.15, Wire.BLOCKS2: 0.5, Wire.TOP2: 0.95}


def there_and_back(values: Floats, wire: Wire) -> Floats:
    return _blocks.decode(_blocks.encode(values, wire), wire)


@ALL
def test_normal_values_lose_at_most_this_part(wire: Wire) -> None:
    values = np.random.default_rng(0).normal(size=8192).astype(np.float32)
    lost = values - there_and_back(values, wire)
    assert 0 < np.linalg.norm(lost) < LOST[wire] * np.linalg.norm(values)
    assert len(_blocks.encode(values, wire)) == wire.bytes_of(8192)


@ALL
def test_a_block_of_few_values_of_one_size_loses_nothing(wire: Wire) -> None:
    values = np.zeros(8192, np.float32)
    values[[3, 4095, 5000]] = [0.5, -0.5, 0.25]
    assert np.array_equal(there_and_back(values, wire), values)


@ALL
@pytest.mark.parametrize("size", [np.finfo(np.float32).max, 1e30, 1.2e-38])
def test_the_largest_and_the_least_numbers_stay_finite_and_zeros_stay_zeros(
    wire: Wire, size: float
) -> None:
    values = np.full(4096, size, np.float32)
    values[::2] *= -1
    found = there_and_back(values, wire)
    assert np.isfinite(found).all()
    assert (np.abs(found) / np.abs(values) <= 1.0001).all()
    assert not there_and_back(np.zeros(4096, np.float32), wire).any()
    assert np.isfinite(there_and_back(np.full(4096, 1e-42, np.float32), wire)).all()


@ALL
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_block_with_nan_or_an_infinity_is_nan_and_no_other_block_is(
    wire: Wire, bad: float
) -> None:
    values = np.ones(8192, np.float32)
    values[5] = bad
    with np.errstate(all="ignore"):
        found = there_and_back(values, wire)
    assert np.isnan(found[: wire.block_elements]).all()
    assert np.isfinite(found[wire.block_elements :]).all()


@ALL
def test_pieces_may_end_within_a_block(wire: Wire) -> None:
    act, rng = arithmetic(Op.MEAN, wire), np.random.default_rng(1)
    values = rng.normal(size=3 * 4096).astype(np.float32)
    payload = _blocks.encode(values, wire)
    gathering = act.gather(len(values))
    take = act.intake(gathering, 2.0)
    assert take is not None
    start = 0
    while start < len(payload):
        stop = min(len(payload), start + int(rng.integers(1, 700)))
        take(start, payload[start:stop])
        start = stop
    assert np.array_equal(gathering.sum, 2 * there_and_back(values, wire))


# Site 0 is the root; 1 and 2 send to 0, and 3 to 2.
PLAN = Plan(1, (Tree(0, 1.0, (-1, 0, 0, 2), (-1, 0, 0, 2)),))
WEIGHTS = 1.0, 2.5, 3.0, 0.5


def exchanged(
    contributions: list[Floats], wire: Wire, ranges: tuple[tuple[int, int], ...] = ()
) -> tuple[list[Floats], list[Floats]]:
    """Return the sites' results, and what each keeps of what was lost."""
    values = [each.copy() for each in contributions]
    lost = [np.zeros_like(each) for each in contributions]
    whole = [
        Compressed(one, kept, weight, wire)
        for one, kept, weight in zip(values, lost, WEIGHTS, strict=True)
    ]
    buffers = [PartOf(each, ranges) if ranges else each for each in whole]
    terms = Terms(Op.MEAN, wire, buffers[0].elements)
    sites = [Exchange(site, 1, terms.code, Room(1 << 20)) for site in range(4)]
    block = wire.block_elements
    chunks = [
        Chunk(index, 0, start, min(start + 2 * block, terms.elements))
        for index, start in enumerate(range(0, terms.elements, 2 * block))
    ]
    waiting: list[Send] = []
    for site, buffer, weight in zip(sites, buffers, WEIGHTS, strict=True):
        waiting += sends(site.begin(PLAN, chunks, len(chunks), buffer, weight))
    while waiting:
        send = waiting.pop(0)
        to, payload = send.message.path[-1], bytes_of(send)
        send.has_left = True
        site = sites[to]
        half = site.reduction if isinstance(send.message, PartialSum) else site.spread
        receipt = half.receive(send.message, len(payload))
        fill(receipt, payload)
        waiting += sends(half.received(receipt))
    assert [each.is_complete for each in sites] == [True] * 4
    return values, lost


@ALL
@pytest.mark.parametrize("elements", [1, 255, 5000, 3 * 4096])
def test_all_sites_get_the_same_bits_and_what_is_lost_is_kept(wire: Wire, elements: int) -> None:
    rng = np.random.default_rng(2)
    given = [rng.normal(size=elements).astype(np.float32) for _ in WEIGHTS]
    results, lost = exchanged(given, wire)
    for each in results[1:]:
        assert np.array_equal(each, results[0])
    wanted = np.average(np.array(given, np.float64), axis=0, weights=WEIGHTS)
    kept = sum(weight * each.astype(np.float64) for weight, each in zip(WEIGHTS, lost, strict=True))
    assert np.allclose(results[0] + kept / sum(WEIGHTS), wanted, atol=1e-5)
    assert any(each.any() for each in lost) or elements == 1


@ALL
def test_a_repair_of_some_blocks_keeps_what_those_lose(wire: Wire) -> None:
    block = wire.block_elements
    given = [
        np.random.default_rng(site).normal(size=4 * block).astype(np.float32) for site in range(4)
    ]
    results, lost = exchanged(given, wire, ((block, 2 * block), (3 * block, 4 * block)))
    for site in range(4):
        for untouched in (slice(0, block), slice(2 * block, 3 * block)):
            assert np.array_equal(results[site][untouched], given[site][untouched])
            assert not lost[site][untouched].any()
        assert lost[site][block : 2 * block].any()


@ALL
def test_means_with_feedback_add_up_to_the_sum_of_the_exact_ones(wire: Wire) -> None:
    rng = np.random.default_rng(3)
    given = [rng.normal(size=4096).astype(np.float32) for _ in WEIGHTS]
    wanted = np.average(np.array(given, np.float64), axis=0, weights=WEIGHTS)
    kept, total, off = [np.zeros(4096, np.float32)] * 4, np.zeros(4096), []
    for number in range(1, 401):
        means, kept = exchanged([one + two for one, two in zip(given, kept, strict=True)], wire)
        total += means[0]
        off.append(np.linalg.norm(total - number * wanted) / np.linalg.norm(wanted))
    assert max(off[200:]) < 1.2 * max(off[100:200]), "what is kept does not grow"
    assert off[-1] < 0.15 * 400


@ALL
def test_a_nan_is_in_no_later_mean(wire: Wire) -> None:
    given = [np.ones(4096, np.float32) for _ in WEIGHTS]
    given[3][7] = np.nan
    with np.errstate(all="ignore"):
        results, lost = exchanged(given, wire)
    assert np.isnan(results[1][: wire.block_elements]).all()
    assert every(np.isfinite(each).all() for each in lost)
