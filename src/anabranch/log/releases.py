"""The releases of the packages that a figure depends on."""

from __future__ import annotations

import platform

import msgspec
import numpy as np

from anabranch import __version__


def versions() -> dict[str, str]:
    """Return the releases that a figure depends on, by package."""
    return {
        "anabranch": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "msgspec": msgspec.__version__,
    }
