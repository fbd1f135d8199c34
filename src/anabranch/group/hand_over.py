"""How members hand the state of training to sites that they let in.

The members that have the state are its holders. Each holder describes its state by a gathering, the
first one in full. Then each sends the part for which it has the fastest way. Where the group goes
on, holders send copies beside their further calls. Where it begins, all wait for the state.

A holder whose state cannot be handed on fails no other holder. The newcomers fail by its name, the
holders go on, and the next admission tries again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.group.tensors import Tensors
from anabranch.net.messages import Admitted
from anabranch.site.agent import SiteAgent
from anabranch.site.collectives import ExchangeError
from anabranch.train.handed_state import (
    Packed,
    StateDescription,
    Unpacked,
    UnreadableState,
    read_description,
)

_log = logging.getLogger("anabranch")
_NONE_HAS_IT = "no site is left that has the state of training"
_MOST_TOLD = 2000  # characters of an error that others are told


class NoneHasIt(ExchangeError):
    """No holder of the state is left."""


class Offer:
    """A holder's state as it is offered to newcomers.

    Args:
        state: the state, or what returns it.
        group_goes_on: the state changes while it is sent; keep a copy.

    Attributes:
        packed: describes the state; None where it cannot be handed on.
        arrays: what is sent of it.
        error: why not; None where it can.
    """

    def __init__(self, state: Any | Callable[[], Any], group_goes_on: bool) -> None:
        self.packed: Packed | None = None
        self.arrays: list[npt.NDArray[np.float32]] = []
        self.error: Exception | None = None
        try:
            packed = Packed(state() if callable(state) else state)
            # The caller's thread makes an offer, so that the event loop is not held up by a copy.
            arrays = packed.arrays
            self.arrays = [array.copy() for array in arrays] if group_goes_on else arrays
            self.packed = packed  # only now: where memory for the copy lacks, there is no offer
        except Exception as error:  # the newcomers wait for it, whatever it is
            self.error = error

    def told(self, is_first: bool) -> StateDescription:
        """Return what this holder says of its state."""
        if self.packed is None:
            return StateDescription(
                b"", b"", f"{type(self.error).__name__}: {self.error}"[:_MOST_TOLD]
            )
        return StateDescription(self.packed.shape, self.packed.skeleton if is_first else b"", "")


@dataclass(frozen=True, slots=True)
class HandedOver:
    """What has become of a hand-over at one site.

    Args:
        members: those that were left when it was last heard of them.
        state: what a newcomer goes on from; None at a holder.
        sending: what sends a holder's copy while the group goes on; None for none.
    """

    members: tuple[int, ...]
    state: Any = None
    sending: asyncio.Task[None] | None = None


async def hand_over(
    agent: SiteAgent, names: Sequence[str], admitted: Admitted, offer: Offer | None
) -> HandedOver:
    """Hand the state from its holders to the newcomers, as one of them.

    Args:
        agent: this site's.
        names: of all sites.
        admitted: how the newcomers were let in.
        offer: a holder's state; None at a newcomer.

    Raises:
        NoneHasIt: no holder is left; admit again.
        ExchangeError: a holder's state cannot be handed on, or two differ, and names the holders;
            or the state did not arrive. Where the group goes on, newcomers alone fail.
        Exception: the group begins, and this holder's own state cannot be handed on; says why.
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
            "%s: %s did not get the state of training, and this site goes on: %s",
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
    try:
        unpacked = Unpacked(told)
    except UnreadableState as error:
        raise ExchangeError(str(error)) from None
    if unpacked.arrays:
        try:
            members = await _transfer(agent, admitted, unpacked.arrays) or members
        except ExchangeError:
            if admitted.follows:  # the holders that are left have no more than this site
                raise
            present = (await agent.gather(msgspec.msgpack.encode(None))).members
            if {*admitted.holders} & {*present}:
                raise
            raise NoneHasIt(_NONE_HAS_IT) from None
    return HandedOver(members, unpacked.state())


async def _send(agent: SiteAgent, admitted: Admitted, arrays: list[Any]) -> None:
    await _transfer(agent, admitted, arrays)


def _forgive(sending: asyncio.Task[None]) -> None:
    """Look at an error, which asyncio would report else: it is the newcomer's alone."""
    if not sending.cancelled():
        sending.exception()


async def _transfer(agent: SiteAgent, admitted: Admitted, arrays: list[Any]) -> tuple[int, ...]:
    """Send or get the state's elements; return which members are left, empty where it is unsaid."""
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
    """Return what the first holder says of the state, and which members are left.

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
            continue  # it was lost meanwhile
        for site, each in told.items():
            if each.shape != told[first].shape:
                raise ExchangeError(
                    f"the states of {names[first]} and {names[site]} differ in their tensors' "
                    "names, types or shapes; give the same at every site"
                )
        return told[first], present
