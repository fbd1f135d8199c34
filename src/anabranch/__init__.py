"""Train one PyTorch model across sites joined by slow, uneven, changing networks.

    import anabranch

    with anabranch.join("10.0.0.1:7700", site="paris") as group:
        group.broadcast(model, root=0)
        ...
        group.all_reduce(p.grad for p in model.parameters())

Importing this package reads no file, no command line and no environment.
"""

__version__ = "0.1.0"

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from anabranch.group import (
        DiLoCo,
        Group,
        Handle,
        LocalSGD,
        ModelAverage,
        Service,
        Stats,
        join,
        local,
        spawn,
    )
    from anabranch.learn.averaging import Outer
    from anabranch.net.errors import LinkError, NetError, RunAborted
    from anabranch.period import Moved
    from anabranch.site.collectives import ExchangeError

_HOMES = {
    "ExchangeError": "site.collectives",
    "LinkError": "net.errors",
    "Moved": "period",
    "NetError": "net.errors",
    "Outer": "learn.averaging",
    "RunAborted": "net.errors",
}


def __getattr__(name: str) -> object:
    """Load what is asked for when it is: planners need SciPy, which takes most of a second."""
    if name not in __all__:
        raise AttributeError(f"module 'anabranch' has no attribute {name!r}")
    home = _import_module(f"anabranch.{_HOMES.get(name, 'group')}")
    return getattr(home, name)


def __dir__() -> list[str]:
    return __all__


__all__ = [
    "DiLoCo",
    "ExchangeError",
    "Group",
    "Handle",
    "LinkError",
    "LocalSGD",
    "ModelAverage",
    "Moved",
    "NetError",
    "Outer",
    "RunAborted",
    "Service",
    "Stats",
    "__version__",
    "join",
    "local",
    "spawn",
]
