"""Strategies for Flower apps, with the paces and merge rules of all runs."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from anabranch._lazy import lazy as _lazy

if _TYPE_CHECKING:
    from anabranch.flower._strategies import FedBuff, FlR2sp, NoNodesLeft, Paced
else:
    __getattr__, __dir__ = _lazy(
        __name__, {"_strategies": ["FedBuff", "FlR2sp", "NoNodesLeft", "Paced"]}
    )

__all__ = ["FedBuff", "FlR2sp", "NoNodesLeft", "Paced"]
