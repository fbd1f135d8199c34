"""Bounds that the tables share."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Positive = Annotated[int, Meta(ge=1)]
LONGEST_S = 1e9  # thirty years; TOML has inf and nan, and a bound keeps both out
Seconds = Annotated[float, Meta(gt=0, le=LONGEST_S)]
