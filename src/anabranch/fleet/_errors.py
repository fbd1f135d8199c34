"""The error of this package."""

from __future__ import annotations


class ComputeError(ValueError):
    """Computing that cannot be modelled; the message names the key and the fix."""
