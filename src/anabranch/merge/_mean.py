"""The plain mean: all updates weigh the same."""

from __future__ import annotations

from typing import ClassVar

from anabranch._typed_toml import Table
from anabranch.merge._merge import UpdateFacts


class Mean(Table, frozen=True, kw_only=True, tag_field="kind", tag="mean"):
    """Every site's update weighs the same."""

    weighs_data: ClassVar[bool] = False
    asks_loss: ClassVar[bool] = False
    asks_norm: ClassVar[bool] = False

    def weight(self, facts: UpdateFacts) -> float:
        """Return 1."""
        return 1.0
