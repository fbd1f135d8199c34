"""Load modules when a name of theirs is first used, and tell which ones are loaded.

A package's ``__init__`` lists its names for users' convenience. If it imported them all, a site's
process would load each planner and each report for the sake of one small value. It says instead
where each name is defined, imports the same for type checkers only, and a test compares the two::

    if TYPE_CHECKING:
        from anabranch.room._module import Name
    else:
        __getattr__, __dir__ = lazy(__name__, {"_module": ["Name"]})

    __all__ = ["Name"]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def lazy(
    package: str, homes: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` and ``__dir__``.

    Args:
        package: its name.
        homes: its exported names by the module that defines them, whose name begins where the
            package's ends.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def load(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(f"{package}.{home_of[name]}"), name)
        setattr(sys.modules[package], name, value)  # else each use would pass here
        return value

    def names() -> list[str]:
        return list(sys.modules[package].__all__)

    return load, names


def loaded(name: str) -> Any:
    """Return a module; None where it is not loaded, or another thread is still loading it."""
    module = sys.modules.get(name)
    is_loading = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return None if is_loading else module
