"""Weights in proportion to data, as in federated averaging (McMahan et al., AISTATS 2017)."""

from __future__ import annotations

from typing import ClassVar

from anabranch._typed_toml import Table
from anabranch.merge._merge import UpdateFacts


class DataSize(Table, frozen=True, kw_only=True, tag_field="kind", tag="data-size"):
    """An update weighs its sites' share of all samples; P in HAAF's eq. 7."""

    weighs_data: ClassVar[bool] = True
    asks_loss: ClassVar[bool] = False
    asks_norm: ClassVar[bool] = False

    def weight(self, facts: UpdateFacts) -> float:
        """Return the share, in (0, 1]; 1 where all sites are in the update.

        >>> DataSize().weight(UpdateFacts(staleness=0, samples=300, all_samples=1200))
        0.25
        """
        return facts.samples / facts.all_samples
