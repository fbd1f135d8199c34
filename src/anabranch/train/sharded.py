"""Sharded tensors, of which each process holds a part: DTensors, such as FSDP's parameters."""

from __future__ import annotations

from typing import Any


def check_whole(tensor: Any, name: str) -> None:
    """Check that a tensor's elements are all in this process.

    Args:
        tensor: a tensor.
        name: of it, for the error.

    Raises:
        ValueError: it is a DTensor; says how it is spread, and what to give instead.
    """
    mesh, placements = getattr(tensor, "device_mesh", None), getattr(tensor, "placements", None)
    if mesh is None or placements is None:
        return
    spread = ", ".join(str(each) for each in placements)
    raise ValueError(
        f"{name} is a DTensor, spread by {spread} over a mesh of {mesh.size()} processes, as "
        "fully_shard makes; give the part of this process, its to_local(), where the processes "
        "that exchange hold the same part of each model, or its full_tensor()"
    )
