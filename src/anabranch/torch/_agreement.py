"""What each rank says of a call that passes the scheduler, and whether all say the same. Pure.

The group compares exchanges itself. Of a gathering it knows no more than bytes, so that these begin
with the call in words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec


class Said(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What a rank says of a call.

    Attributes:
        what: it calls, in words; the same at each rank that makes the same call.
        data: that it gives, where this is small.
        over: why it makes no call by gloo any more; empty where it does.
    """

    what: str
    data: bytes = b""
    over: str = ""


def agreed(
    what: str, rank: int, names: Sequence[str], gathered: Mapping[str, bytes], is_by_gloo: bool
) -> list[bytes]:
    """Return what ranks give to a call that all of them make.

    Args:
        what: this rank calls.
        rank: this one, in [0, ranks).
        names: of the ranks' sites.
        gathered: what ranks have said, encoded, by their sites' names; without those that are lost.
        is_by_gloo: whether gloo carries it.

    Raises:
        ValueError: ranks make different calls; names two of them, and both calls.
        RuntimeError: a rank is lost or has left, or its gloo is over; names it.
    """
    parts = []
    for other, name in enumerate(names):
        if name not in gathered:
            raise RuntimeError(f"{what}: rank {other} ({name}) is lost or has left")
        try:
            said = msgspec.msgpack.decode(gathered[name], type=Said)
        except msgspec.MsgspecError:  # of the group below, by its own name
            said = Said("all_gather or barrier of the group itself")
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
