"""The hand-over of a state, of which the newcomer alone hears an error."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from anabranch.group import hand_over as module
from anabranch.group.hand_over import Offer, hand_over
from anabranch.net.messages import Admitted
from anabranch.site.agent import SiteAgent
from anabranch.site.round import ExchangeError


def test_a_holder_whose_sending_fails_hears_of_no_error() -> None:
    reported: list[dict[str, Any]] = []

    async def gather(value: bytes) -> Any:
        nothing = msgspec.msgpack.encode(None)
        return SimpleNamespace(members=(0, 1), values=(value, nothing))

    async def exchange(*_: Any) -> Any:
        raise ExchangeError("the newcomer is lost")

    async def hand() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: reported.append(what))
        welcome = SimpleNamespace(site=0)
        agent = SimpleNamespace(welcome=welcome, gather=gather, exchange=exchange)
        admitted = SimpleNamespace(members=(0, 1), holders=(0,), newcomers=(1,), follows=True)
        offer = Offer({"w": np.zeros(2, np.float32)}, group_goes_on=True)
        names = ["a", "b"]
        handed = await hand_over(cast(SiteAgent, agent), names, cast(Admitted, admitted), offer)
        assert handed.members == (0, 1)
        assert handed.sending is not None
        await asyncio.wait({handed.sending})
        assert handed.sending.done()

    asyncio.run(hand())
    gc.collect()
    assert reported == []


def test_a_holder_without_memory_for_a_copy_offers_nothing_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class NoMemory:
        def copy(self) -> None:
            raise MemoryError("no room for a copy")

    packed = SimpleNamespace(arrays=[NoMemory()], shape=b"shape", skeleton=b"")
    monkeypatch.setattr(module, "Packed", lambda state: packed)
    offer = Offer({}, group_goes_on=True)
    assert offer.packed is None
    assert offer.told(is_first=True).wrong == "MemoryError: no room for a copy"
