"""What waits for a data plane ends with its failure, and with nothing that came before it."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.net.errors import LinkError
from anabranch.site._dataplane import DataPlane
from anabranch_lab.sim.loop import run_virtually


def make() -> DataPlane:
    plane = DataPlane.__new__(DataPlane)
    plane._failure, plane._waiting = None, {}
    return plane


def test_a_result_that_is_here_before_the_failure_is_not_returned_after_it() -> None:
    async def main() -> None:
        plane, result = make(), asyncio.get_running_loop().create_future()
        waiting = asyncio.ensure_future(plane.unless_failed(result))
        await asyncio.sleep(0)
        result.set_result(7)
        plane._set_failure(LinkError("cut"))  # in the same turn
        with pytest.raises(LinkError, match="cut"):
            await waiting

    run_virtually(main())


def test_the_failure_ends_what_waits_and_what_comes_later() -> None:
    async def main() -> None:
        plane, event = make(), asyncio.Event()
        waiting = asyncio.ensure_future(plane.unless_failed(event.wait()))
        await asyncio.sleep(1.0)
        assert plane._set_failure(LinkError("cut"))
        assert not plane._set_failure(LinkError("later"))
        for each in (waiting, plane.unless_failed(event.wait())):
            with pytest.raises(LinkError, match="cut"):
                await each
        assert not plane._waiting

    run_virtually(main())


def test_a_caller_that_is_cancelled_is_cancelled_though_the_plane_fails_meanwhile() -> None:
    async def main() -> None:
        plane, event = make(), asyncio.Event()
        waiting = asyncio.ensure_future(plane.unless_failed(event.wait()))
        await asyncio.sleep(1.0)
        waiting.cancel()
        plane._set_failure(LinkError("cut"))
        with pytest.raises(asyncio.CancelledError):
            await waiting

    run_virtually(main())
