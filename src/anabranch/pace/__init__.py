"""Pure: when each worker may proceed, one file a pace, and how large its batches are.

A pace is a frozen value that makes the rule of a run (:class:`Pace`). One list, :data:`AnyPace`,
names all paces for scenario files and tests.
"""

from typing import get_args as _get_args

from anabranch.pace._asp import Asp
from anabranch.pace._bsp import Bsp
from anabranch.pace._fed_avg import FedAvg
from anabranch.pace._fed_buff import FedBuff
from anabranch.pace._fl_r2sp import FlR2sp
from anabranch.pace._ledger import Applied, Ledger
from anabranch.pace._load import (
    AnyLoad,
    Equal,
    EqualBatches,
    Load,
    Stated,
    StatedBatches,
    Tuned,
    TunedBatches,
)
from anabranch.pace._pace import Pace, Rule, Step, Update, added_up
from anabranch.pace._r2sp import R2sp
from anabranch.pace._safa import Safa
from anabranch.pace._ssp import Ssp

AnyPace = Bsp | Asp | Ssp | Safa | R2sp | FlR2sp | FedAvg | FedBuff
PACES: tuple[type[AnyPace], ...] = _get_args(AnyPace)

__all__ = [
    "PACES",
    "AnyLoad",
    "AnyPace",
    "Applied",
    "Asp",
    "Bsp",
    "Equal",
    "EqualBatches",
    "FedAvg",
    "FedBuff",
    "FlR2sp",
    "Ledger",
    "Load",
    "Pace",
    "R2sp",
    "Rule",
    "Safa",
    "Ssp",
    "Stated",
    "StatedBatches",
    "Step",
    "Tuned",
    "TunedBatches",
    "Update",
    "added_up",
]
