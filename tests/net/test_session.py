"""A conversation loses nothing, says nothing twice and keeps its order, wherever it is cut."""

from __future__ import annotations

import random

import pytest

from anabranch.net.errors import OutOfPlaceMessage
from anabranch.net.messages import Ack, Message, UpdateReceived
from anabranch.net.network import Payload
from anabranch.net.session import Session


class Wire:
    """One direction of a connection: what was posted and has not come."""

    peer = "the other"

    def __init__(self) -> None:
        self.under_way: list[Message] = []

    def post(self, message: Message) -> None:
        self.under_way.append(message)

    async def send(
        self, message: Message, payload: Payload = b"", head_first: bool = False
    ) -> None: ...

    def trust(self) -> None: ...

    def close(self) -> None: ...


def arrive(wire: Wire, session: Session, heard: list[int]) -> None:
    message = wire.under_way.pop(0)
    if isinstance(message, Ack):
        session.acknowledged(message.count)
    else:
        assert isinstance(message, UpdateReceived)
        session.count()
        heard.append(message.update)


@pytest.mark.parametrize("seed", range(50))
def test_what_a_cut_loses_is_said_again_once_and_in_order(seed: int) -> None:
    rng = random.Random(seed)
    wires = [Wire(), Wire()]  # from each
    sessions = [Session(wires[0]), Session(wires[1])]
    said, heard = [0, 0], [list[int](), list[int]()]
    for _ in range(1000):
        side = rng.randrange(2)
        match rng.choices(("say", "come", "cut", "flush"), (10, 10, 0.3, 2))[0]:
            case "say":
                said[side] += 1
                is_delayed = rng.random() < 0.5
                sessions[side].post(UpdateReceived(0, said[side]), is_delayed)
            case "flush":
                sessions[side].flush()
            case "come" if wires[1 - side].under_way:
                arrive(wires[1 - side], sessions[side], heard[side])
            case "cut":
                for session in sessions:
                    session.cut()
                sessions[side].post(
                    UpdateReceived(0, said[side] + 1)
                )  # while there is no connection
                said[side] += 1
                wires = [Wire(), Wire()]
                sessions[0].go_on(wires[0], sessions[1].heard)
                sessions[1].go_on(wires[1], sessions[0].heard)
    for side in (0, 1):
        sessions[1 - side].flush()
        while wires[1 - side].under_way:
            arrive(wires[1 - side], sessions[side], heard[side])
        assert heard[side] == list(range(1, said[1 - side] + 1))


def test_what_was_heard_is_forgotten() -> None:
    wire = Wire()
    session = Session(wire)
    for k in range(5):
        session.post(UpdateReceived(0, k))
    session.acknowledged(3)
    session.go_on(wire, 4)
    assert wire.under_way[5:] == [UpdateReceived(0, 4)]
    session.acknowledged(5)
    assert session.all_heard


@pytest.mark.parametrize("heard", [-1, 2, 6])
def test_nobody_can_have_heard_more_than_was_said_or_less_than_before(heard: int) -> None:
    session = Session(Wire())
    for k in range(5):
        session.post(UpdateReceived(0, k))
    session.acknowledged(3)
    with pytest.raises(OutOfPlaceMessage, match="where 5 were sent"):
        session.acknowledged(heard)


def test_the_other_side_is_told_now_and_then_how_much_was_heard() -> None:
    wire = Wire()
    session = Session(wire)
    for _ in range(200):
        session.count()
    assert wire.under_way == [Ack(64), Ack(128), Ack(192)]


def test_a_delayed_message_leaves_with_the_next_one_and_cannot_be_acknowledged_before() -> None:
    wire = Wire()
    session = Session(wire)
    session.post(UpdateReceived(0, 1), is_delayed=True)
    assert not wire.under_way
    with pytest.raises(OutOfPlaceMessage, match="heard 1 messages, where 0 were sent"):
        session.acknowledged(1)
    session.post(UpdateReceived(0, 2))
    assert wire.under_way == [UpdateReceived(0, 1), UpdateReceived(0, 2)]
    session.acknowledged(2)
    assert session.all_heard
