"""All periods in one list."""

from __future__ import annotations

from typing import get_args

from anabranch.period._adaptive import Adaptive
from anabranch.period._every import Every
from anabranch.period._every_epoch import EveryEpoch
from anabranch.period._every_step import EveryStep
from anabranch.period._moved import Moved
from anabranch.period._timed import Timed

AnyPeriod = EveryStep | Every | EveryEpoch | Moved | Timed | Adaptive
PERIODS: tuple[type[AnyPeriod], ...] = get_args(AnyPeriod)
