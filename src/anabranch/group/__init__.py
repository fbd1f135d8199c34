"""The interface for a user's training loop: join a group of sites, and exchange with them."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from anabranch._lazy import lazy as _lazy

if _TYPE_CHECKING:
    from anabranch.group._average import ModelAverage
    from anabranch.group._gossip import ModelGossip
    from anabranch.group._local import local, spawn
    from anabranch.group._local_sgd import DiLoCo, LocalSGD
    from anabranch.group.blocking_group import Group, Handle, Stats, join
    from anabranch.group.service import Service
else:
    __getattr__, __dir__ = _lazy(
        __name__,
        {
            "_average": ["ModelAverage"],
            "_gossip": ["ModelGossip"],
            "blocking_group": ["Group", "Handle", "Stats", "join"],
            "_local": ["local", "spawn"],
            "_local_sgd": ["DiLoCo", "LocalSGD"],
            "service": ["Service"],
        },
    )

__all__ = [
    "DiLoCo",
    "Group",
    "Handle",
    "LocalSGD",
    "ModelAverage",
    "ModelGossip",
    "Service",
    "Stats",
    "join",
    "local",
    "spawn",
]
