"""Pure: how often sites average, one file a period; and to which neighbours a site gossips.

A period is a frozen value that makes the rule of one site (:class:`Period`). One list,
:data:`AnyPeriod`, names all periods for scenario files and tests.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from anabranch._lazy import lazy as _lazy

if _TYPE_CHECKING:
    from anabranch.period._adaptive import Adaptive
    from anabranch.period._clock import VectorClock
    from anabranch.period._every import Every
    from anabranch.period._every_epoch import EveryEpoch
    from anabranch.period._every_step import EveryStep
    from anabranch.period._moved import Moved
    from anabranch.period._period import Averaged, Period, Progress, Rule
    from anabranch.period._periods import PERIODS, AnyPeriod
    from anabranch.period._timed import Timed
    from anabranch.period.peers import Gossip, NearPeers, Peers, RandomPeers
else:
    __getattr__, __dir__ = _lazy(
        __name__,
        {
            "_period": ["Averaged", "Period", "Progress", "Rule"],
            "_periods": ["PERIODS", "AnyPeriod"],
            "_adaptive": ["Adaptive"],
            "_clock": ["VectorClock"],
            "_every": ["Every"],
            "_every_epoch": ["EveryEpoch"],
            "_every_step": ["EveryStep"],
            "_moved": ["Moved"],
            "_timed": ["Timed"],
            "peers": ["Gossip", "NearPeers", "Peers", "RandomPeers"],
        },
    )

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
    "Timed",
    "VectorClock",
]
