"""How the sites of a run hand the state of training to one that comes back: a group's way.

The members that have the state describe it, by a gathering; then each sends the part of it for
which it has the fastest way, while all go on (docs/design/repair.md, *Joining*).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from anabranch.learn.handed_state import Packed, Told, Unpacked, UnreadableState
from anabranch.learn.work import State
from anabranch.net.errors import RunAborted
from anabranch.net.messages import Admitted
from anabranch.site.agent import SiteAgent
from anabranch.site.arithmetic import Flat, Floats
from anabranch.site.terms import Op, Terms, Wire

_NOTHING = Told(b"", b"", "")
_MOST_TOLD = 2000  # characters of an error that others are told


class NotHandedOn(RunAborted):
    """The other sites cannot hand on their state of training, and go on without this site."""


async def hand_on(
    agent: SiteAgent, admitted: Admitted, state: Callable[[], State]
) -> asyncio.Task[None] | None:
    """Hand the state of training to sites that were let in.

    Args:
        agent: of a site that has the state.
        admitted: by which they were let in.
        state: returns it; what its tensors hold is copied before this returns.

    Returns:
        What sends it while this site goes on; None where there is nothing to send.
    """
    packed: Packed | None = None
    wrong = ""
    try:
        packed = Packed(state())
    except ValueError as error:
        wrong = str(error)[:_MOST_TOLD]
    _, wrong = await _described(agent, admitted, packed, wrong)
    if packed is None or wrong or not packed.arrays:
        return None
    flat = np.concatenate(packed.arrays)
    return asyncio.get_running_loop().create_task(_transfer(agent, admitted, flat))


async def get_state(agent: SiteAgent, admitted: Admitted) -> Any:
    """Return the state of training that the other sites hand to this one.

    Raises:
        NotHandedOn: they cannot; says why.
        RoundsOver: the run ends before it has come.
    """
    told, wrong = await _described(agent, admitted, None, "")
    if wrong:
        raise NotHandedOn(f"this site cannot come back, and the others go on: {wrong}")
    try:
        unpacked = Unpacked(told)
    except UnreadableState as error:
        raise NotHandedOn(f"this site cannot come back, and the others go on: {error}") from None
    if unpacked.arrays:
        flat = np.empty(sum(map(len, unpacked.arrays)), np.float32)
        await _transfer(agent, admitted, flat)
        start = 0
        for array in unpacked.arrays:
            array[:] = flat[start : start + len(array)]
            start += len(array)
    return unpacked.state()


async def _transfer(agent: SiteAgent, admitted: Admitted, flat: Floats) -> None:
    terms = Terms(Op.COPY, Wire.FLOAT32, len(flat), None, admitted.newcomers)
    done = await agent.exchange(Flat(flat), terms)
    await agent.round_ended(done, None)


async def _described(
    agent: SiteAgent, admitted: Admitted, packed: Packed | None, wrong: str
) -> tuple[Told, str]:
    """Return what the first holder says of the state, and why it cannot be handed on."""
    own, present = agent.welcome.site, admitted.members
    while True:
        first = next((site for site in present if site in admitted.holders), None)
        said: Told | None = None
        if own in admitted.holders:
            shape, skeleton = (b"", b"") if packed is None else (packed.shape, packed.skeleton)
            said = Told(shape, skeleton if own == first else b"", wrong)
        gathered = await agent.gather(msgspec.msgpack.encode(said))
        present = gathered.members
        told: dict[int, Told] = {}
        for site, value in zip(present, gathered.values, strict=True):
            try:
                each = msgspec.msgpack.decode(value, type=Told | None)
            except msgspec.DecodeError as error:
                return _NOTHING, f"what site {site} says of its state cannot be read: {error}"
            if each is not None:
                told[site] = each
        if reasons := [each.wrong for each in told.values() if each.wrong]:
            return _NOTHING, reasons[0]
        if not told:
            return _NOTHING, "no site is left that has the state of training"
        if first in told:
            return told[first], _differ(agent, [*told], [each.shape for each in told.values()])


def _differ(agent: SiteAgent, sites: Sequence[int], shapes: Sequence[bytes]) -> str:
    """Return what is wrong where sites' states do not fit; empty if they do."""
    odd = [site for site, shape in zip(sites, shapes, strict=True) if shape != shapes[0]]
    if not odd:
        return ""
    return (
        f"the states of sites {sites[0]} and {odd[0]} differ in their tensors' names, types or "
        "shapes; name what is a site's own in own_state"
    )
