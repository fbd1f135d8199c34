"""Hands to feed the pure parts of a site with, and eyes for what they answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from anabranch.exchange.actions import Action, Receipt, Send
from anabranch.exchange.arithmetic import Floats
from anabranch.exchange.exchange import Exchanges
from anabranch.net.messages import ChunkMessage, PartialSum


class Takes(Protocol):
    """A part of a site that chunks come to."""

    def receive(self, message: ChunkMessage, payload_bytes: int, /) -> Receipt: ...

    def received(self, receipt: Receipt, /) -> list[Action]: ...


def fill(receipt: Receipt, data: memoryview, start: int = 0) -> None:
    """Put bytes where a receipt says, from this offset on."""
    if receipt.target is not None:
        receipt.target[start : start + len(data)] = data
    elif receipt.piece is not None:
        receipt.piece(start, data)


def deliver(
    to: Takes | Exchanges, message: ChunkMessage, payload: Floats | memoryview
) -> list[Action]:
    """Let a chunk come, all of it; return what follows."""
    data = payload if isinstance(payload, memoryview) else payload.data.cast("B")
    receipt = to.receive(message, len(data))
    fill(receipt, data)
    owner = receipt.owner if isinstance(to, Exchanges) else to
    assert owner is not None
    return owner.received(receipt)


def bytes_of(send: Send) -> memoryview:
    """Return a payload, as it leaves."""
    return send.payload() if callable(send.payload) else send.payload


def sends(actions: Iterable[Action]) -> list[Send]:
    """Return what is to be sent."""
    return [action for action in actions if isinstance(action, Send)]


def said(actions: Iterable[Action]) -> list[tuple[str, int, int, list[float]]]:
    """Return kind, chunk, receiver and float32 elements of what is to be sent."""
    return [
        (
            "sum" if isinstance(send.message, PartialSum) else "result",
            send.message.chunk,
            send.message.path[-1],
            np.frombuffer(bytes_of(send), np.float32).tolist(),
        )
        for send in sends(actions)
    ]
