"""Train one PyTorch model across sites joined by slow, uneven, changing networks.

    import anabranch

    with anabranch.join("10.0.0.1:7700", site="paris") as group:
        group.broadcast(model, root=0)
        ...
        group.all_reduce(p.grad for p in model.parameters())

Importing this package reads no file, no command line and no environment.
"""

__version__ = "0.1.0"

from typing import TYPE_CHECKING as _TYPE_CHECKING

from anabranch._lazy import lazy as _lazy

if _TYPE_CHECKING:
    from anabranch.group import (
        DiLoCo,
        Group,
        Handle,
        LocalSGD,
        ModelAverage,
        ModelGossip,
        Service,
        Stats,
        join,
        local,
        spawn,
    )
    from anabranch.net.errors import LinkError, NetError, RunAborted
    from anabranch.period import Moved, Timed
    from anabranch.site.round import ExchangeError, RunEnded
    from anabranch.train.averaging import Outer
else:
    __getattr__, __dir__ = _lazy(
        __name__,
        {
            "group": [
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
            ],
            "train.averaging": ["Outer"],
            "net.errors": ["LinkError", "NetError", "RunAborted"],
            "period": ["Moved", "Timed"],
            "site.round": ["ExchangeError", "RunEnded"],
        },
    )

__all__ = [
    "DiLoCo",
    "ExchangeError",
    "Group",
    "Handle",
    "LinkError",
    "LocalSGD",
    "ModelAverage",
    "ModelGossip",
    "Moved",
    "NetError",
    "Outer",
    "RunAborted",
    "RunEnded",
    "Service",
    "Stats",
    "Timed",
    "__version__",
    "join",
    "local",
    "spawn",
]
