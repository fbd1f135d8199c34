"""Asks a scheduler for the status of its run, from outside the run."""

from __future__ import annotations

import asyncio

from anabranch.log.status import Status, loads
from anabranch.net.deadline import within
from anabranch.net.errors import (
    LinkError,
    MalformedMessage,
    NetError,
    OutOfPlaceMessage,
    UnauthorisedPeer,
)
from anabranch.net.frames import DISCARD, Sink
from anabranch.net.identity import proven
from anabranch.net.messages import AnyMessage, Refusal, StatusReply, StatusRequest
from anabranch.net.network import Address, Network
from anabranch.net.tls import SCHEDULER, connect_to


class _Answer:
    """Receives a scheduler's answer, or the reason that there is none."""

    def __init__(self) -> None:
        self.status: asyncio.Future[tuple[Status, str]]
        self.status = asyncio.get_running_loop().create_future()

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        if self.status.done():
            return DISCARD
        match message:
            case StatusReply():
                try:
                    self.status.set_result((loads(message.status), message.stack))
                except ValueError as error:
                    self.status.set_exception(MalformedMessage(str(error)))
            case Refusal():
                is_unknown = message.error == UnauthorisedPeer.__name__
                kind = UnauthorisedPeer if is_unknown else OutOfPlaceMessage
                self.status.set_exception(kind(message.detail))
        return DISCARD

    def on_refused(self, message: AnyMessage, error: NetError) -> None:
        raise AssertionError(f"refused {message}")  # on_message raises no PeerError

    def on_closed(self, error: Exception | None) -> None:
        if not self.status.done():
            self.status.set_exception(error or LinkError("the scheduler closed the connection"))


async def ask(
    network: Network, scheduler: Address, token: str, longest_s: float, stack_of: str = ""
) -> tuple[Status, str]:
    """Return the status of a scheduler's run, and the Python stacks of a site.

    Args:
        network: leads to the scheduler.
        scheduler: the address at which it listens.
        token: the run's shared secret.
        longest_s: how long to wait for the answer, seconds.
        stack_of: the name of the site; empty for no stacks.

    Raises:
        LinkError: the scheduler cannot be reached, or does not answer.
        PeerError: it refuses to answer, or is no scheduler of this release.
    """
    answer = _Answer()
    connection = await connect_to(network, scheduler, answer, SCHEDULER)
    try:
        connection.post(
            proven(StatusRequest(b"", stack_of), token.encode(), connection.their_challenge)
        )
        async with within(longest_s):
            return await answer.status
    except TimeoutError:
        of = f", of the stacks of {stack_of}: its interpreter stands still" if stack_of else ""
        raise LinkError(f"no answer from {connection.peer} in {longest_s:g} s{of}") from None
    finally:
        connection.close()
        if answer.status.done() and not answer.status.cancelled():
            # The answer may have come after the deadline: mark it as retrieved, so that asyncio
            # does not warn.
            answer.status.exception()
