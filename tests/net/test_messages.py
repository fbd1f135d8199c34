"""Messages: what is written is read back; what has the wrong shape is refused by name."""

from __future__ import annotations

import msgspec
import pytest

from anabranch.net.errors import MalformedMessage
from anabranch.net.messages import (
    Abort,
    Came,
    Credit,
    EpochChanged,
    Hello,
    Join,
    Mean,
    Message,
    PartialSum,
    Ready,
    RejoinAck,
    Rejoined,
    Report,
    RoundEnded,
    RoundGrant,
    RoundRequest,
    Start,
    UpdateSum,
    Welcome,
    decode,
    encode,
)

EXAMPLES: list[Message] = [
    Hello("secret", 1, 2),
    PartialSum(3, 1, 17, (1, 4, 2), 2.5),
    Mean(3, 1, 17, (2, 4, 1)),
    UpdateSum(3, 1, 17, (1, 4, 2), 2.5, 1),
    Came(3, 7, 1),
    EpochChanged(2, (3, 5), 7),
    Rejoined(3, 1, "127.0.0.1", 4711),
    RejoinAck(3, 1),
    Credit((1, 4, 2)),
    Join("secret", "kansas", "127.0.0.1", 4711),
    Welcome(3, "name = 'x'", "{}", (("127.0.0.1", 1),), "{}", (1,), 4),
    Ready(1000),
    Start(),
    RoundRequest(3),
    RoundGrant(3, 1, ""),
    RoundEnded(3, 1, 0.25, None),
    RoundEnded(3, 1, 0.25, 2**64 - 1),
    Report((b"{}", b"")),
    Abort("site 3 died"),
]


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_every_message_survives_the_wire(message: Message) -> None:
    assert decode(encode(message)) == message


@pytest.mark.parametrize(
    "fields",
    [
        ["PartialSum", 3, 1, 17, [1, 2]],
        ["PartialSum", 3, 1, 17, [1, 2], "heavy"],
        ["PartialSum", 3, 1, 17, [1, 2], 1.0, "more"],
        ["PartialSum", 3, 1, -0.5, [1, 2], 1.0],
        ["UpdateSum", 3, 1, 17, [1, 2], 1.0],
        ["UpdateSum", 3, 1, 17, [1, 2], 1.0, 0.5],
        ["EpochChanged", 2, 3, 7],
        ["Hello", b"secret", 1, 2],
        ["Nonsense"],
        [],
        {"type": "Start"},
    ],
)
def test_a_message_of_the_wrong_shape_is_refused(fields: object) -> None:
    with pytest.raises(MalformedMessage):
        decode(msgspec.msgpack.encode(fields))
