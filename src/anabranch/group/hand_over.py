"""How members hand the state of training to sites that they admit.

The members that have the state are its holders. A gathering carries each holder's description of
its state; the first holder describes it in full. Then each holder sends the part for which it has
the fastest route. In a running group, holders send copies beside their further calls. In a group
that begins, all members wait until the newcomers have the state.

If a holder's state cannot be sent, the newcomers fail with an error that names this holder. In a
running group the holders continue, and the next admission tries again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from anabranch._lazy import loaded
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.group.tensors import Tensors
from anabranch.net.messages import Admitted
from anabranch.site.agent import SiteAgent
from anabranch.site.round import ExchangeError
from anabranch.train.handed_state import (
    Packed,
    StateDescription,
    Unpacked,
    UnreadableState,
    read_description,
)

_log = logging.getLogger("anabranch")
_NONE_HAS_IT = "no site is left that has the state of training"
_MOST_TOLD = 2000  # characters of a holder's error that the other sites get


class NoneHasIt(ExchangeError):
    """No holder of the state is left."""


class Offer:
    """A holder's state, ready to send to newcomers.

    Args:
        state: the state, or a function that returns it.
        group_goes_on: whether the group trains while it sends the state; then keep a copy.

    Attributes:
        packed: describes the state; None where the state cannot be sent.
        arrays: the arrays to send.
        error: why the state cannot be sent; None where it can.
    """

    def __init__(self, state: Any | Callable[[], Any], group_goes_on: bool) -> None:
        self.packed: Packed | None = None
        self.arrays: list[npt.NDArray[np.float32]] = []
        self.error: Exception | None = None
        try:
            packed = Packed(state() if callable(state) else state)
            # The program's thread makes an offer, so that no copy holds up the event loop.
            arrays = packed.arrays
            self.arrays = [array.copy() for array in arrays] if group_goes_on else arrays
            self.packed = packed  # only after the copy, which may run out of memory
        except Exception as error:  # any type: the newcomers wait until they are told
            self.error = error

    def told(self, is_first: bool) -> StateDescription:
        """Return the description that this holder sends; in full if it is the first holder."""
        if self.packed is None:
            return StateDescription(
                b"", b"", f"{type(self.error).__name__}: {self.error}"[:_MOST_TOLD]
            )
        return StateDescription(self.packed.shape, self.packed.skeleton if is_first else b"", "")


@dataclass(frozen=True, slots=True)
class HandedOver:
    """The result of a hand-over at one site.

    Args:
        members: the members that remain after this site's latest call.
        state: the state that a newcomer received; None at a holder.
        sending: the task that sends a holder's copy while the group trains; None for none.
    """

    members: tuple[int, ...]
    state: Any = None
    sending: asyncio.Task[None] | None = None


async def hand_over(
    agent: SiteAgent, names: Sequence[str], admitted: Admitted, offer: Offer | None
) -> HandedOver:
    """Hand the state from its holders to the newcomers; each holder and newcomer calls this.

    Args:
        agent: this site's agent.
        names: the names of all sites.
        admitted: the admission of the newcomers.
        offer: a holder's state; None at a newcomer.

    Raises:
        NoneHasIt: no holder is left; admit again.
        ExchangeError: a holder's state cannot be sent, or two states differ; names the holders. Or
            the state did not arrive. In a running group, only newcomers raise this.
        Exception: the group begins, and this holder's own state cannot be sent; says why.
    """
    try:
        told, members = await _describe(agent, names, admitted, offer)
    except ExchangeError as error:
        if offer is None:
            raise
        if not admitted.follows:
            raise offer.error or error from None
        newcomers = ", ".join(names[site] for site in admitted.newcomers)
        _log.warning(
            "%s: %s did not get the state of training, and this site continues: %s",
            names[agent.welcome.site],
            newcomers,
            error,
            exc_info=offer.error,
        )
        return HandedOver(admitted.members)
    if offer is None:
        return await _get(agent, admitted, told, members)
    if not offer.arrays:
        return HandedOver(members)
    if not admitted.follows:
        return HandedOver(await _transfer(agent, admitted, offer.arrays) or members)
    sending = asyncio.get_running_loop().create_task(_send(agent, admitted, offer.arrays))
    sending.add_done_callback(_forgive)
    return HandedOver(members, sending=sending)


async def _get(
    agent: SiteAgent, admitted: Admitted, told: StateDescription, members: tuple[int, ...]
) -> HandedOver:
    if told.may_need_torch and loaded("torch") is None:
        await asyncio.to_thread(import_module, "torch")  # for seconds, and the loop goes on
    try:
        unpacked = Unpacked(told)
    except UnreadableState as error:
        raise ExchangeError(str(error)) from None
    if unpacked.arrays:
        try:
            members = await _transfer(agent, admitted, unpacked.arrays) or members
        except ExchangeError:
            if admitted.follows:  # the holders of a running group do not gather here
                raise
            present = (await agent.gather(msgspec.msgpack.encode(None))).members
            if {*admitted.holders} & {*present}:
                raise
            raise NoneHasIt(_NONE_HAS_IT) from None
    return HandedOver(members, unpacked.state())


async def _send(agent: SiteAgent, admitted: Admitted, arrays: list[Any]) -> None:
    await _transfer(agent, admitted, arrays)


def _forgive(sending: asyncio.Task[None]) -> None:
    """Mark an error as retrieved, so that asyncio does not report it: the newcomer raises it."""
    if not sending.cancelled():
        sending.exception()


async def _transfer(agent: SiteAgent, admitted: Admitted, arrays: list[Any]) -> tuple[int, ...]:
    """Send or receive the state's elements; return the members left, or none if not known."""
    buffer = Tensors(arrays, Op.COPY)
    source, receivers = None, admitted.newcomers
    if len(admitted.holders) == 1 and not admitted.follows:
        source, receivers = admitted.holders[0], ()
    terms = Terms(Op.COPY, Wire.FLOAT32, buffer.elements, source, receivers)
    done = await agent.exchange(buffer, terms)
    await agent.round_ended(done, None)
    return done.members


async def _describe(
    agent: SiteAgent, names: Sequence[str], admitted: Admitted, offer: Offer | None
) -> tuple[StateDescription, tuple[int, ...]]:
    """Return the first holder's description of the state, and the members left.

    Raises:
        NoneHasIt, ExchangeError: see ``hand_over``.
    """
    present = admitted.members
    while True:
        first = next((site for site in present if site in admitted.holders), None)
        if first is None:
            raise NoneHasIt(_NONE_HAS_IT)
        said = None if offer is None else offer.told(agent.welcome.site == first)
        gathered = await agent.gather(msgspec.msgpack.encode(said))
        present = gathered.members
        told: dict[int, StateDescription] = {}
        for site, value in zip(present, gathered.values, strict=True):
            if site not in admitted.holders:
                continue
            try:
                told[site] = read_description(value)
            except UnreadableState as error:
                raise ExchangeError(f"{names[site]}: {error}") from None
        for site, each in told.items():
            if each.wrong:
                raise ExchangeError(f"{names[site]} cannot hand its state on: {each.wrong}")
        if first not in told:
            continue  # the first holder was lost meanwhile
        for site, each in told.items():
            if each.shape != told[first].shape:
                raise ExchangeError(
                    f"the states of {names[first]} and {names[site]} differ in their tensors' "
                    "names, types or shapes; give the same at every site"
                )
        return told[first], present
