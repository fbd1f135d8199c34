"""Small calls that are under way at once share exchanges, as far as all members have made them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from anabranch.exchange.arithmetic import Flat, Floats
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.group import Service
from anabranch.group.async_group import AsyncGroup
from anabranch.net.messages import Contribution, Signature
from anabranch.scheduler._exchanges import ExchangeBook
from anabranch.scheduler.calls._requests import Request, shared_terms
from anabranch.site.round import ExchangeError, Round
from anabranch.site.sharing import Line, SharedBuffer, SmallCall, Turn
from anabranch_lab.sim.loop import run_virtually
from tests.group.virtual import as_told, complete, run

_NEAR_S = 0.00005
SITES = 3


def near(**more: Any) -> Service:
    return Service(complete(SITES, latency_s=_NEAR_S), awareness=None, **more)


def at_all(program: Callable[[AsyncGroup], Any], service: Service | None = None) -> list[Any]:
    return run(*[program] * SITES, service=service or near(), start=as_told, control_s=_NEAR_S)


async def call(group: AsyncGroup, values: Floats, op: Op = Op.SUM) -> Round:
    terms = Terms(op, Wire.FLOAT32, len(values))
    return await group.exchange(Flat(values), terms, returns_early=True)


async def burst(group: AsyncGroup, sizes: list[int]) -> list[Round]:
    """Make calls of these sizes at once, and check each sum."""
    buffers = [
        np.full(size, float(2**group.index) * (place + 1)) for place, size in enumerate(sizes)
    ]
    given = [each.astype(np.float32) for each in buffers]
    done = await asyncio.gather(*(call(group, each) for each in given))
    for place, each in enumerate(given):
        np.testing.assert_array_equal(each, np.full_like(each, 7.0 * (place + 1)))
    return done


def test_calls_at_once_share_exchanges() -> None:
    async def program(group: AsyncGroup) -> list[int]:
        await burst(group, [4])
        return [done.round for done in await burst(group, [7 + place for place in range(100)])]

    answers = at_all(program)
    assert answers[0] == answers[1] == answers[2]
    assert answers[0] == sorted(answers[0]), "in the order of calls"
    assert len({*answers[0]}) <= 12, "instead of a hundred"


def test_each_call_has_its_own_part_of_the_round() -> None:
    async def program(group: AsyncGroup) -> None:
        sizes = [10 + place for place in range(60)]
        for done, size in zip(await burst(group, sizes), sizes, strict=True):
            assert done.size_bytes == 4 * size
            if done.settlement is not None:
                done = await done.settlement
            assert done.size_bytes == 4 * size
            assert {*done.members} == {0, 1, 2}
            for each in done.contributions:
                assert 0 <= each.start < each.stop <= size

    at_all(program)


def test_a_program_that_waits_for_each_result_joins_one_that_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    request = ExchangeBook.request

    def counted(self: ExchangeBook, one: Request, refusal: str = "") -> Any:
        asked.append(len(one.in_line))
        return request(self, one, refusal)

    monkeypatch.setattr(ExchangeBook, "request", counted)

    async def program(group: AsyncGroup) -> None:
        if group.index:
            await burst(group, [4] * 50)
            return
        for place in range(50):
            values = np.full(4, place + 1.0, np.float32)
            await call(group, values)
            np.testing.assert_array_equal(values, np.full(4, 7.0 * (place + 1), np.float32))

    at_all(program)
    assert sum(calls > 0 for calls in asked) <= 2 * 3, "the others then go on alone"


def test_a_call_in_line_is_made_though_its_caller_has_given_up() -> None:
    async def program(group: AsyncGroup) -> None:
        buffers = [np.full(4, 2.0**group.index, np.float32) for _ in range(20)]
        calls = [asyncio.create_task(call(group, each)) for each in buffers]
        await asyncio.sleep(0)
        if group.index == 1:
            calls[10].cancel()
        done = await asyncio.gather(*calls, return_exceptions=True)
        for place, each in enumerate(done):
            gave_up = group.index == 1 and place == 10
            assert isinstance(each, asyncio.CancelledError if gave_up else Round)
        for each in buffers:
            np.testing.assert_array_equal(each, np.full(4, 7.0, np.float32))

    at_all(program)


def test_a_gathering_in_line_is_made_though_its_caller_has_given_up() -> None:
    async def program(group: AsyncGroup) -> list[bytes]:
        calls = [asyncio.create_task(burst(group, [4] * 20))]
        await asyncio.sleep(0)
        gathered = asyncio.create_task(group.agent.gather(b"%d" % group.index))
        await asyncio.sleep(0)
        if group.index == 1:
            gathered.cancel()
        await asyncio.gather(*calls)
        await burst(group, [5] * 20)
        found = await asyncio.gather(gathered, return_exceptions=True)
        if group.index == 1:
            assert isinstance(found[0], asyncio.CancelledError)
            return []
        return list(found[0].values)

    answers = at_all(program)
    assert answers == [[b"0", b"1", b"2"], [], [b"0", b"1", b"2"]]


def test_another_members_call_is_not_awaited_while_calls_are_in_line() -> None:
    async def only_site_0_shares(group: AsyncGroup, lanes: Any) -> bool:
        transport = group.settings.transport()
        await group.start(replace(transport, most_alone=0) if group.index else transport, lanes)
        return True

    async def program(group: AsyncGroup) -> list[bool]:
        await burst(group, [4])
        calls = asyncio.create_task(burst(group, [4] * 20))
        await asyncio.sleep(_NEAR_S / 10)  # all calls are made
        values = np.full(9, 2.0**group.index, np.float32)
        terms = Terms(Op.MEAN, Wire.FLOAT32, 9)
        found = []
        if not group.index:
            line = group.agent._collectives._line(0)
            while line.is_served:
                found.append(group.agent.is_awaited())
                await asyncio.sleep(_NEAR_S / 10)
            while not group.agent.is_awaited():
                await asyncio.sleep(_NEAR_S)
        await asyncio.gather(calls, group.exchange(Flat(values), terms, calls=bool(group.index)))
        return found

    asked = run(*[program] * SITES, service=near(), start=only_site_0_shares, control_s=_NEAR_S)[0]
    assert len(asked) > 1
    assert not any(asked)


@pytest.mark.parametrize("on_loss", ["complete", "abort"])
def test_calls_in_line_end_when_a_member_leaves_before_them(on_loss: str) -> None:
    async def program(group: AsyncGroup) -> list[str]:
        await burst(group, [4])
        buffers = [np.full(4, 2.0**group.index, np.float32) for _ in range(20)]
        if group.index == 2:
            return []  # and makes no call
        done = await asyncio.gather(
            *(call(group, each) for each in buffers), return_exceptions=True
        )
        for values, each in zip(buffers, done, strict=True):
            is_left = not isinstance(each, Round)
            np.testing.assert_array_equal(values, 2.0**group.index if is_left else 3.0)
        return [type(each).__name__ for each in done]

    answers = at_all(program, near(on_loss=on_loss))
    assert answers[0] == answers[1]
    assert len(answers[0]) == 20


def test_calls_of_other_kinds_keep_their_place() -> None:
    async def program(group: AsyncGroup) -> None:
        calls: list[Any] = []
        buffers = []
        for place in range(60):
            values = np.full(3 + place % 2, 2.0**group.index, np.float32)
            buffers.append(values)
            if place % 20 == 13:
                calls.append(asyncio.create_task(group.agent.gather(b"%d" % place)))
            elif place % 20 == 17:
                terms = Terms(Op.COPY, Wire.FLOAT32, len(values), source=1)
                calls.append(asyncio.create_task(group.exchange(Flat(values), terms)))
            else:
                op = Op.MEAN if place % 3 else Op.SUM
                calls.append(asyncio.create_task(call(group, values, op)))
        done = await asyncio.gather(*calls)
        for place, (values, each) in enumerate(zip(buffers, done, strict=True)):
            if place % 20 == 13:
                assert {*each.values} == {b"%d" % place}
            else:
                mean = np.float32(7.0) / np.float32(3.0)
                expected = 2.0 if place % 20 == 17 else mean if place % 3 else 7.0
                np.testing.assert_array_equal(values, np.full_like(values, expected))

    at_all(program)


def test_members_that_disagree_within_a_line_are_named() -> None:
    async def program(group: AsyncGroup) -> list[str]:
        await burst(group, [4])
        sizes = [4] * 40
        sizes[30] += group.index == 2
        buffers = [np.full(size, 2.0**group.index, np.float32) for size in sizes]
        done = await asyncio.gather(
            *(call(group, each) for each in buffers), return_exceptions=True
        )
        said = []
        for values, each in zip(buffers, done, strict=True):
            if isinstance(each, BaseException):
                assert isinstance(each, ExchangeError), each
                np.testing.assert_array_equal(values, np.full_like(values, 2.0**group.index))
                said.append(str(each))
            else:
                np.testing.assert_array_equal(values, np.full_like(values, 7.0))
        return said

    answers = at_all(program)
    assert answers[0] == answers[1] == answers[2]
    assert len(answers[0]) == 1
    assert "s2" in answers[0][0]
    assert "5 elements" in answers[0][0]


def test_far_from_one_another_sites_join_nothing() -> None:
    async def program(group: AsyncGroup) -> int:
        await burst(group, [4])
        return len({done.round for done in await burst(group, [4] * 20)})

    service = Service(complete(SITES, latency_s=0.005), awareness=None)
    answers = run(*[program] * SITES, service=service, start=as_told, control_s=_NEAR_S)
    assert answers == [20, 20, 20], "each call leaves at once, over the latency of the others"


def test_far_from_the_scheduler_calls_go_alone_while_a_grant_would_take_longer() -> None:
    async def program(group: AsyncGroup) -> int:
        for _ in range(5):
            await burst(group, [4])
        return len({done.round for done in await burst(group, [4] * 20)})

    service = Service(complete(SITES, latency_s=_NEAR_S), awareness=None)
    assert run(*[program] * SITES, service=service, start=as_told, control_s=0.005) == [20] * 3


def test_the_shared_terms_are_those_of_calls_that_all_have_made() -> None:
    def request(*sizes: int) -> Request:
        return Request(0, 1, Signature(Op.SUM, Wire.FLOAT32, 4), in_line=sizes)

    assert shared_terms([request(4, 5, 6), request(4, 5)]).elements == 9
    assert shared_terms([request(4, 5), request(4, 6)]).elements == 4
    assert shared_terms([request(4, 5), request()]).elements == 4
    joint = Signature(Op.SUM, Wire.FLOAT32, 9, calls=(4, 5))
    assert request(4, 5, 6).sharing(joint) == 2
    assert request(4, 6).sharing(joint) == 0
    assert request().sharing(joint) == 0
    assert request(4, 5).sharing(Signature(Op.MEAN, Wire.FLOAT32, 9, calls=(4, 5))) == 0


def test_a_line_joins_alike_calls() -> None:
    async def lines() -> None:
        async def unasked(*_: Any) -> Any:
            raise AssertionError

        def entry(op: Op = Op.SUM, weight: float = 1.0, elements: int = 4) -> SmallCall:
            return SmallCall(
                Terms(op, Wire.FLOAT32, elements), weight, Flat(np.zeros(4, np.float32))
            )

        def sharing(*calls: SmallCall | Turn) -> int:
            line = Line(unasked, unasked, lambda: 2)
            line._calls.extend(calls)
            first = calls[0]
            assert isinstance(first, SmallCall)
            return len(line._sharable(first))

        assert sharing(entry(), entry(elements=5), entry()) == 3
        assert sharing(entry(), entry(Op.MEAN)) == 1
        assert sharing(entry(), entry(), entry(weight=2.0)) == 2
        assert sharing(entry(), Turn(int), entry()) == 1
        assert sharing(*(entry() for _ in range(100))) == 64
        assert sharing(*(entry(elements=1 << 17) for _ in range(64))) == 16

    run_virtually(lines())


def test_joined_buffers_are_read_and_written_across_their_bounds() -> None:
    parts = [np.arange(size, dtype=np.float32) for size in (3, 1, 5)]
    joined = SharedBuffer([Flat(each) for each in parts])
    whole = np.concatenate(parts)
    assert joined.elements == 9
    for start in range(9):
        for stop in range(start + 1, 10):
            np.testing.assert_array_equal(joined.read(start, stop), whole[start:stop])
            memory = joined.memory(start, stop, Wire.FLOAT32)
            if memory is not None:
                np.testing.assert_array_equal(np.frombuffer(memory, np.float32), whole[start:stop])
            values = whole[start:stop] + 10 * start
            joined.write(start, values)
            np.testing.assert_array_equal(joined.read(start, stop), values)
            joined.write(0, whole)
    assert joined.memory(0, 3, Wire.FLOAT32) is not None
    assert joined.memory(2, 4, Wire.FLOAT32) is None


def test_a_part_of_a_round_has_its_contributors() -> None:
    done = Round(
        3,
        1,
        0.1,
        size_bytes=40,
        members=(0, 1),
        contributions=(Contribution(0, 6, (0, 1)), Contribution(6, 10, (1,))),
    )
    part = done.part(4, 9)
    assert part.contributions == (Contribution(0, 2, (0, 1)), Contribution(2, 5, (1,)))
    assert part.size_bytes == 20
    assert part.is_told
    assert done.part(0, 6).contributions == (), "all members are in all of its elements"
