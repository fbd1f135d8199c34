"""Pure: who may proceed when, one file a scheme (:class:`Pace`), and how much work each has."""

from anabranch.pace._pace import Pace, Step, Update
from anabranch.pace.asp import Asp
from anabranch.pace.bsp import Bsp
from anabranch.pace.ledger import Applied, Ledger
from anabranch.pace.load import Equal, Load, Tuned
from anabranch.pace.r2sp import R2sp
from anabranch.pace.safa import Safa
from anabranch.pace.ssp import Ssp
from anabranch.pace.waves import Waves

__all__ = [
    "Applied",
    "Asp",
    "Bsp",
    "Equal",
    "Ledger",
    "Load",
    "Pace",
    "R2sp",
    "Safa",
    "Ssp",
    "Step",
    "Tuned",
    "Update",
    "Waves",
]
