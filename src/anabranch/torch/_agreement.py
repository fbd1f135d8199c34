"""Ranks describe each call that passes the scheduler, and compare the descriptions. Pure.

The group itself compares exchanges. It knows only the bytes of a gathering, so ranks gather
descriptions of the call, in words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec


class CallDescription(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A rank's description of a call.

    Attributes:
        what: the call in words; equal at ranks that make the same call.
        data: the rank's small input; empty where gloo carries it.
        over: why gloo has ended at this rank; empty while it runs.
    """

    what: str
    data: bytes = b""
    over: str = ""


_decoder = msgspec.msgpack.Decoder(CallDescription)


def agreed(
    what: str, rank: int, names: Sequence[str], gathered: Mapping[str, bytes], is_by_gloo: bool
) -> list[bytes]:
    """Check that all ranks make the same call; return their data, by rank.

    Args:
        what: this rank's call, in words.
        rank: this rank, in [0, ranks).
        names: the sites' names, by rank.
        gathered: encoded descriptions by site name; lost sites have none.
        is_by_gloo: whether gloo carries the call.

    Raises:
        ValueError: ranks make different calls; names two of them, and both calls.
        RuntimeError: a rank is lost or has left, or its gloo is over; names it.
    """
    parts = []
    for other, name in enumerate(names):
        if name not in gathered:
            raise RuntimeError(f"{what}: rank {other} ({name}) is lost or has left")
        try:
            said = _decoder.decode(gathered[name])
        except msgspec.MsgspecError:  # that rank's program called the group directly, beside torch
            said = CallDescription("all_gather or barrier of the group itself")
        if said.what != what:
            raise ValueError(
                f"rank {rank} ({names[rank]}) calls {what}, and rank {other} ({name}) calls "
                f"{said.what}; all ranks make the same calls in the same order, of tensors of the "
                "same types and sizes"
            )
        if said.over and is_by_gloo:
            raise RuntimeError(f"{what}: rank {other} ({name}) can make no gloo call: {said.over}")
        parts.append(said.data)
    return parts
