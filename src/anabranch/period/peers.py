"""Which neighbours a site that gossips sends to (Malik, Qi and Dalla, II-C)."""

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
            latencies_s: how long what is sent takes to each neighbour that may be chosen, one way.
            all_of_them: how many neighbours there are, with those that may not be chosen now.
            draw: what is drawn from.
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
        count: how many. With 1 a neighbour is chosen with the paper's probability, ``1 / (l_i T)``
            where T is the sum of all ``1 / l_i``.
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
    """Sites send their models to a few neighbours each time, and use what comes; none waits.

    Args:
        peers: chooses the neighbours that a site sends to.
        rule: what is made of a model that comes.

            ``pairs``: a neighbour that is sent a model sends its own back, and both move towards
            each other from the models that they sent: what they have learnt since is kept, and the
            mean of all models with it.

            ``push-sum``: models carry weights (Kempe, Dobra and Gehrke, FOCS 2003): a site gives
            part of its weight away with each model that it sends, and a model that comes counts by
            the weight it brings. Nothing is sent back. The weighted mean over all sites and all
            that is on its way is kept; but what is on its way is old when it comes.

            ``plain``: a model becomes the mean of itself and of all that has come, as in the
            paper; the mean over the sites is not kept.
        most_ahead: how many steps, at most, a site has finished more than any other that takes
            part, as far as vector clocks tell, before it waits; None for no bound.
    """

    peers: AnyPeers = RandomPeers()
    rule: GossipRule = "pairs"
    most_ahead: Positive | None = None
