"""The normalisation of our models, which keeps nothing beside its parameters."""

from __future__ import annotations

from torch import nn

_GROUP_CHANNELS = 16


def group_norm(channels: int) -> nn.GroupNorm:
    """Return group normalisation (Wu and He, ECCV 2018) with 16 channels to a group.

    Batch normalisation would keep a running mean and variance that no gradient changes. Sites
    exchange parameters alone, so each would hold another model, and accuracy would depend on the
    site that measures it; and its statistics are of one site's batch, whatever others hold.
    """
    return nn.GroupNorm(channels // _GROUP_CHANNELS, channels)
