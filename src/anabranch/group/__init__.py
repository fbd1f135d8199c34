"""The way in for a training loop of one's own: join a group of sites, and exchange with them."""

from anabranch.group._average import ModelAverage
from anabranch.group._group import Group, Handle, Stats, join
from anabranch.group._local import local, spawn
from anabranch.group._local_sgd import DiLoCo, LocalSGD
from anabranch.group._serve import Service

__all__ = [
    "DiLoCo",
    "Group",
    "Handle",
    "LocalSGD",
    "ModelAverage",
    "Service",
    "Stats",
    "join",
    "local",
    "spawn",
]
