"""The paper's search for a forest: estimation of distribution (HAAF, section 5.2, Algorithm 3).

An individual is a matrix of preferences, sites by trees, whose softmax gives probabilities
(eq. 15). The best of a population, its elite, give a mean and a covariance (eq. 17, 18). Jitter is
added to the covariance (eq. 19). The next population is drawn from that normal distribution, except
the best individual, which stays. A coarse search tries each number of trees, and a fine search the
most promising ones (eq. 20, 21).

Where the paper leaves a choice:

- It says that a site's tree is *sampled* by its probabilities, and writes arg max (eq. 16). The
  code takes arg max.
- Fitness is the negative objective, so that the paper's "descending order" and eq. 22's arg max
  mean the least of eq. 14.
- The first population is standard normal.
- A search has converged when all of its elite cost the same.
- The paper does not give sizes, generations, truncation ratio and jitter.
"""

from __future__ import annotations

import numpy as np

from anabranch._typed_toml import Part, Positive, Table
from anabranch.plan._forest import Forest, grown, objective
from anabranch.plan._forest_groups import Bools, Floats, GroupCosts
from anabranch.plan._forest_problem import ForestProblem


class EdaForest(Table, frozen=True, kw_only=True, tag_field="kind", tag="eda"):
    """The paper's search: estimation of distribution.

    Args:
        most_trees: m_max, the most trees to try; never more than there are sites.
        coarse_population, coarse_generations: I_c >= 2 and G_c, tried for each number of trees.
        fine_population, fine_generations: I_f >= 2 and G_f, for the most promising numbers.
        shortlist: t, how many numbers of trees the fine search tries.
        truncation: tau, the part of a population that is its elite, in (0, 1].
        jitter: eta, the variance added in every direction, in (0, 1].
        seed: of all draws.

    Raises:
        ValueError: a population of one, which has no covariance.
    """

    most_trees: Positive = 16
    coarse_population: Positive = 40
    coarse_generations: Positive = 20
    fine_population: Positive = 200
    fine_generations: Positive = 100
    shortlist: Positive = 3
    truncation: Part = 0.1
    jitter: Part = 0.3
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.coarse_population, self.fine_population) < 2:
            raise ValueError("a population of 1 has no covariance; give 2 or more")

    def search(self, problem: ForestProblem) -> Forest:
        """Return the best forest found (Algorithm 3)."""
        groups = GroupCosts(problem)
        rng = np.random.default_rng(self.seed)
        coarse = {
            trees: self._inner(
                problem, groups, rng, trees, self.coarse_population, self.coarse_generations
            )
            for trees in range(1, min(self.most_trees, groups.size) + 1)
        }
        shortlist = sorted(coarse, key=lambda trees: coarse[trees][0])[: self.shortlist]
        fine = [
            self._inner(problem, groups, rng, trees, self.fine_population, self.fine_generations)
            for trees in shortlist
        ]
        _, members = min(fine, key=lambda found: found[0])
        return grown(problem, groups, members)

    def _inner(
        self,
        problem: ForestProblem,
        groups: GroupCosts,
        rng: np.random.Generator,
        trees: int,
        population: int,
        generations: int,
    ) -> tuple[float, Bools]:
        """Return the least objective of at most ``trees`` trees, and its groups as rows of places.

        ``population`` individuals evolve for at most ``generations`` generations.
        """
        elite_size = max(2, round(self.truncation * population))
        individuals = rng.standard_normal((population, groups.size, trees))
        for generation in range(generations + 1):
            members = _decoded(individuals)
            cost = _objectives(problem, groups, members)
            order = np.argsort(cost, kind="stable")
            elite = order[:elite_size]
            best = order[0]
            if generation == generations or cost[elite[-1]] == cost[best]:
                break
            individuals = self._next(rng, individuals[elite], population)
        return float(cost[best]), members[best][members[best].any(axis=1)]

    def _next(self, rng: np.random.Generator, elite: Floats, population: int) -> Floats:
        """Return the next population; the best of the elite, its first, stays.

        A draw from N(mean, covariance + jitter) is a sum of three terms: the mean; the elite's
        deviations, weighted by standard normal numbers over ``sqrt(size - 1)``; and the jitter. So
        the covariance, of (sites x trees) squared entries, is never formed.
        """
        mean = elite.mean(axis=0)
        deviations = (elite - mean).reshape(len(elite), -1) / np.sqrt(len(elite) - 1)
        shape = (population - 1, deviations.shape[1])
        drawn = rng.standard_normal((population - 1, len(elite))) @ deviations
        drawn += np.sqrt(self.jitter) * rng.standard_normal(shape)
        return np.concatenate([elite[:1], mean + drawn.reshape(-1, *mean.shape)])


def _decoded(individuals: Floats) -> Bools:
    """Return which site is in which tree, (individuals, trees, sites): eq. 15 and 16."""
    exponents = np.exp(individuals - individuals.max(axis=2, keepdims=True))
    probabilities = exponents / exponents.sum(axis=2, keepdims=True)
    chosen = probabilities.argmax(axis=2)
    found: Bools = np.arange(individuals.shape[2])[:, None] == chosen[:, None, :]
    return found


def _objectives(problem: ForestProblem, groups: GroupCosts, members: Bools) -> Floats:
    """Return eq. 14 of each individual; trees without sites do not count."""
    filled: Bools = np.any(members, axis=2)
    costs = groups.costs(members[filled])
    latency_s, period_s = np.zeros((2, *filled.shape))
    latency_s[filled], period_s[filled] = costs.latency_s, costs.period_s
    return objective(problem, latency_s, period_s, where=filled)
