"""The normalisation of our models, which has no state beside its parameters."""

from __future__ import annotations

from torch import nn

_GROUP_CHANNELS = 16


def group_norm(channels: int) -> nn.GroupNorm:
    """Return group normalisation (Wu and He, ECCV 2018) with 16 channels to a group.

    Batch normalisation would keep a running mean and variance that no gradient changes. Sites
    exchange parameters alone. So their models would differ, and accuracy would depend on the site
    that measures it. Its statistics would also be those of one site's batch alone.
    """
    return nn.GroupNorm(channels // _GROUP_CHANNELS, channels)
