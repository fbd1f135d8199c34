"""Messages: what is written is read back; what has the wrong shape is refused by name."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec
import pytest

from anabranch.net.messages import (
    NO_MESSAGE,
    WIRE_VERSION,
    Abandon,
    Abort,
    Admitted,
    Agreed,
    AnyMessage,
    AskAhead,
    CallMade,
    CaughtUp,
    ChannelSnapshot,
    Credit,
    Departed,
    Dispatched,
    EpochChanged,
    ExchangeEnded,
    ExchangeFailed,
    ExchangeRequest,
    Gather,
    Gathered,
    Grant,
    Hello,
    Join,
    Letter,
    LetterEnds,
    LetterTaken,
    Message,
    Model,
    ModelDigest,
    ModelsDiffer,
    NoMoreRounds,
    OpenExchange,
    OpenGathering,
    PartialSum,
    Piece,
    PieceTaken,
    Piped,
    PipeRequest,
    Progress,
    Ready,
    Reform,
    Reformed,
    RejoinAck,
    Rejoined,
    Report,
    RequestAwaited,
    Restarted,
    Result,
    Signature,
    SiteAwaited,
    SiteGone,
    SiteSnapshot,
    Stack,
    StackRequest,
    Stamp,
    Start,
    StatusReply,
    StatusRequest,
    StepsKnown,
    Stopping,
    Subgrouped,
    SubgroupRequest,
    Unfit,
    UpdateReceived,
    Welcome,
    Withdrawn,
    decode,
    encode,
)

SIGNATURE = Signature(1, 2, 1000, 3)

EXAMPLES: list[Message] = [
    Hello(b"proof", 1, 2),
    PipeRequest(b"proof", 1, 2, 3),
    Piped(),
    Piece(b"\x00\xff"),
    PieceTaken(),
    PartialSum(3, 1, 17, (1, 4, 2), 16, 1, weight=2.5),
    PartialSum(3, 1, 17, (1, 4, 2), 16, stamp=Stamp(1.5, None, True), is_aux=True),
    Result(3, 1, 17, (2, 4, 1), 16),
    UpdateReceived(3, 7, 1),
    Abandon(7),
    EpochChanged(2, (3, 5), 7, 2),
    Agreed(((3, 7), (5, 2)), (0.5, -1.0), (2.0, 3.0), 1.5),
    Reform("{}", (8, 3)),
    Reformed(4),
    Rejoined(3, 1, "127.0.0.1", 4711),
    RejoinAck(3, 1),
    Credit((1, 4, 2)),
    Join(b"proof", "kansas", "127.0.0.1", 4711),
    Welcome(3, "name = 'x'", "{}", {3: ("127.0.0.1", 1)}, "{}", {3: 1}, 4, b"own", {1: b"lane"}),
    Ready(1000),
    Start(),
    Departed(),
    StatusRequest(b"proof"),
    StatusRequest(b"proof", "paris"),
    StatusReply(b"{}"),
    StatusReply(b"{}", "thread MainThread:"),
    StackRequest(3),
    Stack(3, "thread MainThread:"),
    SiteAwaited("tokyo", 14.5, "call 7 (an exchange)"),
    ExchangeRequest(0, 3, SIGNATURE),
    ExchangeRequest(0, 3, SIGNATURE, calls=True),
    AskAhead(0, 3, SIGNATURE, attempt=1),
    Withdrawn(0, 3),
    Unfit(0, 3, "2 NaN or infinite elements"),
    ModelDigest(0, 3, Model(2, 2**64 - 1, is_first=False)),
    RequestAwaited(0, 3),
    Letter(1 << 40, 0, 3, (1, 4), 5, weight=0.25, steps=7, is_answer=True),
    LetterEnds(1 << 40),
    LetterTaken(1 << 40, True),
    StepsKnown((3, 0, 1 << 53)),
    SiteGone(3, "site 3 (d) failed: KeyError: 'no such file'"),
    Stopping(),
    Grant(2, 3, 41, 1, "", 1 << 16),
    Grant(2, 3, 41, 1, "{}", 1 << 16, (0, 1, 0)),
    ExchangeFailed(2, 3, 41, "site 1 calls for a sum"),
    SubgroupRequest((1, 3)),
    Subgrouped(2, (1, 3), "{}"),
    Gather(0, 3, b"state", admits=True),
    Admitted(3, 7, (0, 1, 2), (2,), (0, 1), "{}"),
    CallMade(4, 9, SIGNATURE),
    CallMade(4, 9, None),
    CaughtUp(2, "it keeps too much"),
    Restarted(),
    SiteSnapshot(
        (
            ChannelSnapshot(
                *(1, 4, 9, 2),
                (OpenExchange(9, SIGNATURE, 11, 40, 64, 2, (40, 41)),),
                (OpenGathering(2, 10, b"value", False, "barrier"),),
                (b"answer",),
            ),
        ),
        False,
    ),
    ModelsDiffer("the model of tokyo no longer equals that of paris"),
    Gather(2, 1, b"\x00"),
    Gathered(2, 1, (b"", b"\x00")),
    Dispatched(41, (0, 1)),
    Progress(41, (3, 2)),
    NoMoreRounds(4),
    ExchangeEnded(0, 3, 1, 0.25, None),
    ExchangeEnded(2, 3, 1, 0.25, 2**64 - 1, waited_for=1, tree=0),
    Report((b"{}", b"")),
    Abort("site 3 died"),
]


def test_a_change_of_the_messages_comes_with_another_wire_version() -> None:
    """Releases that speak differently must know: raise WIRE_VERSION, then write both down here."""
    schema = json.dumps(without_prose(msgspec.json.schema(AnyMessage)), sort_keys=True)
    digest = hashlib.sha256(schema.encode()).hexdigest()[:16]
    assert (WIRE_VERSION, digest) == (40, "7e1803a9066628de")


def without_prose(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {k: without_prose(v) for k, v in schema.items() if k != "description"}
    return [*map(without_prose, schema)] if isinstance(schema, list) else schema


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_every_message_survives_the_wire(message: Message) -> None:
    assert decode(encode(message)) == message


@pytest.mark.parametrize(
    "fields",
    [
        ["PartialSum", 3, 1, 17, [1, 2]],
        ["PartialSum", 3, 1, 17, [1, 2], "mean"],
        ["PartialSum", 3, 1, -0.5, [1, 2], 16],
        ["PartialSum", 3, 1, 17, [1, 2], 16, 0.5],
        ["PartialSum", 3, 1, 17, [1, 2], 16, 0, "heavy"],
        ["Result", 3, 1, 17, [1, 2], 16, 0, False, None, 1.0],
        ["ExchangeRequest", 0, 3, [1, 2]],
        ["ExchangeRequest", 0, 3, [1, 2, "many"]],
        ["Gather", 0, 1, "text"],
        ["Grant", 0, 3, 41, 1, ""],
        ["EpochChanged", 2, 3, 7],
        ["Agreed", [[3, 7]], [0.5], "none", 1.0],
        ["Hello", "secret", 1, 2],
        ["Nonsense"],
        [],
        {"type": "Start"},
    ],
)
def test_a_message_of_the_wrong_shape_is_refused(fields: object) -> None:
    with pytest.raises(NO_MESSAGE):
        decode(msgspec.msgpack.encode(fields))
