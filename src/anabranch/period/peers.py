"""The neighbours that a gossiping site sends to (Malik, Qi and Dalla, II-C)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, Protocol

import numpy as np

from anabranch._typed_toml import Part, Positive, Table

_LEAST_LATENCY_S = 1e-6
GossipRule = Literal["pairs", "push-sum", "plain"]


class Peers(Protocol):
    """Chooses among neighbours."""

    def choose(
        self, latencies_s: Mapping[int, float], all_of_them: int, draw: np.random.Generator
    ) -> list[int]:
        """Return the neighbours to send to, in rising order; empty where there is none.

        Args:
            latencies_s: seconds one way to each neighbour that may be chosen now.
            all_of_them: number of all neighbours, also those that may not be chosen now.
            draw: the random generator.
        """


class RandomPeers(Table, frozen=True, kw_only=True, tag_field="kind", tag="random"):
    """Some neighbours, each as likely as any other.

    Args:
        share: of all neighbours, rounded up. The paper takes half.
    """

    share: Part = 0.5

    def choose(
        self, latencies_s: Mapping[int, float], all_of_them: int, draw: np.random.Generator
    ) -> list[int]:
        """See :class:`Peers`.

        >>> RandomPeers(share=1.0).choose({2: 1.0, 5: 1.0}, 2, np.random.default_rng(0))
        [2, 5]
        """
        count = min(len(latencies_s), math.ceil(self.share * all_of_them))
        return sorted(map(int, draw.choice(sorted(latencies_s), count, replace=False)))


class NearPeers(Table, frozen=True, kw_only=True, tag_field="kind", tag="latency"):
    """Neighbours drawn one after the other, each in proportion to 1 over its latency.

    Args:
        count: how many neighbours. With 1, each has the paper's probability, ``1 / (l_i T)`` where
            T is the sum of all ``1 / l_i``.
    """

    count: Positive = 1

    def choose(
        self, latencies_s: Mapping[int, float], all_of_them: int, draw: np.random.Generator
    ) -> list[int]:
        """See :class:`Peers`."""
        sites = sorted(latencies_s)
        if not sites:
            return []
        near = np.array([1.0 / max(_LEAST_LATENCY_S, latencies_s[site]) for site in sites])
        count = min(len(sites), self.count)
        return sorted(map(int, draw.choice(sites, count, replace=False, p=near / near.sum())))


AnyPeers = RandomPeers | NearPeers


class Gossip(Table, frozen=True, kw_only=True):
    """Sites send their models to a few neighbours, and merge the models that come; none waits.

    Args:
        peers: chooses the neighbours that a site sends to.
        rule: how a site merges a model that comes.

            ``pairs``: a neighbour that gets a model sends its own back. Both sites move towards
            each other, by the difference of the models that they sent. So each site keeps what it
            has learnt since, and the mean of all models stays the same.

            ``push-sum``: models carry weights (Kempe, Dobra and Gehrke, FOCS 2003). A site gives
            part of its weight away with each model that it sends, and a model counts by the weight
            that it brings. The receiver sends nothing back. The weighted mean over all sites and
            all models under way stays the same, but a model under way is old when it comes.

            ``plain``: a model becomes the mean of itself and all models that have come, as in the
            paper. The mean over the sites does not stay the same.
        most_ahead: how many steps a site may be ahead of any other site in the group, by its
            vector clock, before it waits; None for no bound.
    """

    peers: AnyPeers = RandomPeers()
    rule: GossipRule = "pairs"
    most_ahead: Positive | None = None
