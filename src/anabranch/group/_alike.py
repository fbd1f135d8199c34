"""Compare members' models by digests of their tensors, and describe a difference. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from anabranch.train.checksum import checksum
from anabranch.train.sharded import check_whole

_DIGEST_BYTES = 8  # of a tensor


def digests_of(tensors: Mapping[str, Any]) -> bytes:
    """Return a digest of each tensor's type, shape and bits: 8 bytes for each.

    Raises:
        ValueError: a value is no dense tensor or array; names it.
    """
    return b"".join(_digest(name, each) for name, each in tensors.items())


def _digest(name: str, given: Any) -> bytes:
    check_whole(given, name)
    if isinstance(given, np.ndarray):
        kind, raw = given.dtype.name, np.ascontiguousarray(given).reshape(-1).view(np.uint8)
    elif hasattr(given, "detach") and str(given.layout) == "torch.strided" and not given.is_meta:
        import torch

        flat = given.detach().resolve_conj().resolve_neg().cpu().contiguous().view(-1)
        kind, raw = str(given.dtype), flat.view(torch.uint8).numpy()
    else:
        raise ValueError(f"{name} is a {type(given).__name__}; give dense tensors or arrays")
    if rest := len(raw) % 4:
        raw = np.append(raw, np.zeros(4 - rest, np.uint8))
    sum = checksum(raw.view(np.float32)) if len(raw) else 0
    said = f"{kind} {tuple(given.shape)} {sum}"
    return hashlib.blake2b(said.encode(), digest_size=_DIGEST_BYTES).digest()


def account(names: Iterable[str], digests: Mapping[str, bytes]) -> str:
    """Return how members' tensors differ, in words; empty if they do not.

    Args:
        names: the names of this member's tensors.
        digests: all members' digests of :func:`digests_of`, by the member's name.

    >>> account(["weight", "bias"], {"a": b"1" * 16, "b": b"1" * 16, "c": b"1" * 8 + b"2" * 8})
    "c's bias is not a's (1 of 2 tensors)"
    """
    said, here = [], [*names]
    first, wanted = next(iter(digests.items()))
    for site, found in digests.items():
        if len(found) != len(wanted):
            counts = len(found) // _DIGEST_BYTES, len(wanted) // _DIGEST_BYTES
            said.append(f"{site} has {counts[0]} tensors, {first} {counts[1]}")
            continue
        starts = range(0, len(found), _DIGEST_BYTES)
        odd = [
            place
            for place, start in enumerate(starts)
            if found[start : start + _DIGEST_BYTES] != wanted[start : start + _DIGEST_BYTES]
        ]
        if odd:
            name = here[odd[0]] if len(here) == len(starts) else f"tensor {odd[0]}"
            said.append(f"{site}'s {name} is not {first}'s ({len(odd)} of {len(starts)} tensors)")
    return "; ".join(said)
