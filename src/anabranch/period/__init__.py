"""Pure: how often sites talk, one file a period; and with whom, where not with all.

A period is a value that makes the rule of one site (:class:`Period`). Those that there are stand in
one list, :data:`AnyPeriod`, by which scenario files and tests know them.
"""

from typing import get_args as _get_args

from anabranch.period._period import Averaged, Period, Progress, Rule
from anabranch.period.adaptive import Adaptive
from anabranch.period.clock import VectorClock
from anabranch.period.every import Every
from anabranch.period.every_epoch import EveryEpoch
from anabranch.period.every_step import EveryStep
from anabranch.period.moved import Moved
from anabranch.period.peers import Gossip, NearPeers, Peers, RandomPeers

AnyPeriod = EveryStep | Every | EveryEpoch | Moved | Adaptive
PERIODS: tuple[type[AnyPeriod], ...] = _get_args(AnyPeriod)

__all__ = [
    "PERIODS",
    "Adaptive",
    "AnyPeriod",
    "Averaged",
    "Every",
    "EveryEpoch",
    "EveryStep",
    "Gossip",
    "Moved",
    "NearPeers",
    "Peers",
    "Period",
    "Progress",
    "RandomPeers",
    "Rule",
    "VectorClock",
]
